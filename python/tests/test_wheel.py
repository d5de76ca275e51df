"""The wheel as users get it: built by pip, installed away from this tree, used."""

import os
import subprocess
import sys
from pathlib import Path

PYTHON = Path(__file__).resolve().parent.parent


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False,
                          **options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_the_wheel_builds_and_works(tmp_path):
    # Without isolation: scripts/setup.sh has the pinned build requirements of pyproject.toml.
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation",
        "--wheel-dir", tmp_path, f"--config-settings=build-dir={tmp_path / 'build'}", PYTHON)
    (wheel,) = tmp_path.glob("kvlink-*.whl")
    version = run("sed", "-n", r"s/^project(kvlink VERSION \([0-9.]*\).*/\1/p",
                  PYTHON.parent / "CMakeLists.txt").strip()
    assert version and wheel.name.startswith(f"kvlink-{version}-")
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", site, wheel)
    module = next((site / "kvlink").glob("_kvlink*.so"))
    assert "libkvlink" not in run("ldd", module)  # it is inside
    assert (site / "kvlink" / "_kvlink.pyi").is_file() and (site / "kvlink" / "py.typed").is_file()
    licences = site / f"kvlink-{version}.dist-info" / "licenses"
    assert {path.name for path in licences.iterdir()} == {"LICENSE", "copyright"}
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    where = run(sys.executable, "-c", "import kvlink; print(kvlink.__version__, kvlink.__file__)",
                env=environment, cwd=tmp_path)
    assert where.split() == [version, str(site / "kvlink" / "__init__.py")]
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
        PYTHON / "tests" / "test_readme.py", env=environment, cwd=tmp_path)
