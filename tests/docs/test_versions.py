"""The version is written once, in CMakeLists.txt, and everything that shows one shows that."""
import glob
import json
import os
import re
import subprocess
import sys

import pytest

from markdown import SOURCE

BINARY = os.environ["KVLINK_BINARY"]
BUILD = os.path.dirname(BINARY)
VERSION = re.search(r"project\(kvlink VERSION (\d+\.\d+\.\d+) ", (SOURCE / "CMakeLists.txt").read_text()).group(1)


def run(*command, **environment):
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env={**os.environ, **environment}).stdout


def test_the_executable_and_its_packages():
    assert run(BINARY, "--version") == f"kvlink {VERSION}\n"
    assert run(BINARY, "version").startswith(f"kvlink {VERSION}\n")
    with open(f"{BUILD}/CPackConfig.cmake", encoding="utf-8") as config:
        assert f'set(CPACK_PACKAGE_VERSION "{VERSION}")' in config.read()
    with open(f"{BUILD}/kvlink-config-version.cmake", encoding="utf-8") as config:
        assert f'set(PACKAGE_VERSION "{VERSION}")' in config.read()


@pytest.mark.skipif(not glob.glob(f"{BUILD}/python/kvlink/_kvlink*.so"), reason="the Python package was not built")
def test_the_python_package():
    assert run(sys.executable, "-c", "import kvlink; print(kvlink.__version__)", PYTHONPATH=f"{BUILD}/python") == f"{VERSION}\n"
    # The wheel's version comes from the same line.
    pyproject = (SOURCE / "python" / "pyproject.toml").read_text()
    pattern = re.search(r"regex = '(.*)'", pyproject).group(1)
    assert re.search(pattern, (SOURCE / "CMakeLists.txt").read_text()).group("value") == VERSION


def test_the_changelog_has_the_version_first():
    changelog = (SOURCE / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[(.*?)\](.*)$", changelog, re.M)
    assert headings[0][0] == "Unreleased"
    assert headings[1][0] == VERSION
    # Keep a Changelog: these sections and no others; a date, or that there is none yet.
    sections = set(re.findall(r"^### (.*)$", changelog, re.M))
    assert sections <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"} and "Added" in sections
    for _, date in headings[1:]:
        assert re.fullmatch(r" - (\d{4}-\d\d-\d\d|not released yet)", date)
    versions = [tuple(map(int, version.split("."))) for version, _ in headings[1:]]
    assert versions == sorted(versions, reverse=True)


def test_no_other_place_has_a_version_of_its_own():
    """What would be forgotten at the next release."""
    places = ["include", "src", "python", "cmake", "packaging", "tests/package", "examples", "scripts", "Dockerfile"]
    files = [path for place in places for path in ([SOURCE / place] if (SOURCE / place).is_file() else (SOURCE / place).rglob("*"))
             if path.suffix in {".h", ".cc", ".in", ".py", ".toml", ".cmake", ".txt", ".sh", ".json", ".service", ""} and path.is_file()]
    assert len(files) > 300
    found = []
    for path in files:
        if path.name.startswith("requirements") or "__pycache__" in path.parts:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if re.search(rf"(?<![\d.]){re.escape(VERSION)}(?![\d.])", line):
                found.append(f"{path.relative_to(SOURCE)}:{number}: {line.strip()}")
    assert found == []
    assert json.loads((SOURCE / "src/server/openapi.json").read_text())["info"]["version"] == "KVLINK_VERSION"
