"""`cmake --install` into a prefix: everything is there, nothing points back into the build tree, and the prefix can be moved."""
import re
import shutil
import subprocess

import pytest

from installed import BINARY, BUILD, SOURCE, check_it_works, elf_files, project_version, run


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("install") / "prefix"
    run("cmake", "--install", BUILD, "--prefix", folder)
    return folder


def files_of(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}


def test_program_library_and_documents_are_installed(prefix):
    files = files_of(prefix)
    expected = {"bin/kvlink", "lib/kvlink/kvlink", "lib/kvlink/libggml.so.0", "lib/kvlink/libggml-base.so.0",
                "lib/kvlink/libllama.so.0", "lib/libkvlink.a", "lib/cmake/kvlink/kvlink-config.cmake",
                "lib/cmake/kvlink/kvlink-config-version.cmake", "include/kvlink/cache.h", "etc/kvlink/kvlink.toml",
                "lib/systemd/system/kvlink.service", "share/man/man1/kvlink.1",
                "share/bash-completion/completions/kvlink"}
    expected |= {f"share/doc/kvlink/{name}" for name in ("README.md", "README.zh.md", "CHANGELOG.md", "LICENSE",
                                                         "THIRD_PARTY_LICENSES.md", "operations.md", "tutorial.md",
                                                         "api.md", "security.md")}
    expected |= {f"include/kvlink/{path.name}" for path in (SOURCE / "include" / "kvlink").glob("*.h")}
    expected |= {f"share/kvlink/{path.name}" for path in (SOURCE / "share" / "kvlink").iterdir()}
    expected |= {f"lib/kvlink/{path.name}" for path in BUILD.glob("libggml-cpu-*.so")}
    assert expected - files == set()
    assert any("libggml-cpu-" in name for name in files)


def test_no_third_party_header_and_no_test_is_installed(prefix):
    assert {name for name in files_of(prefix) if name.startswith("include/") and not name.startswith("include/kvlink/")} == set()
    assert not [name for name in files_of(prefix) if re.search(r"test|\.cc$", name.rsplit("/", 1)[1])]


def test_no_binary_looks_for_libraries_in_the_build_tree(prefix):
    binaries = elf_files(prefix / "lib" / "kvlink")
    assert len(binaries) >= 6
    for binary in binaries:
        paths = re.findall(r"(?:RPATH|RUNPATH).*\[(.*)\]", run("readelf", "-d", binary))
        assert set(paths) <= {"$ORIGIN"}, binary
    for text in (prefix / "lib" / "cmake" / "kvlink").glob("*.cmake"):
        for folder in (BUILD, SOURCE):  # not as the end of another path, such as lib/kvlink
            assert not re.search(rf"(?<![\w.}}]){re.escape(str(folder))}", text.read_text()), text


def test_the_installed_program_runs_by_its_link_and_after_a_move(prefix, tmp_path):
    assert run(prefix / "bin" / "kvlink", "version").startswith(f"kvlink {project_version()}\n")
    moved = tmp_path / "elsewhere"
    shutil.copytree(prefix, moved, symlinks=True)
    linked = subprocess.run(["ldd", str(moved / "lib" / "kvlink" / "kvlink")], capture_output=True, text=True, check=True).stdout
    assert "not found" not in linked
    assert set(re.findall(r"=> (\S*/)lib(?:ggml|llama)\S*", linked)) == {f"{moved}/lib/kvlink/"}
    check_it_works(moved / "bin" / "kvlink", tmp_path / "work")


def test_the_build_is_of_this_tree(prefix):
    assert run(prefix / "bin" / "kvlink", "version") == run(BINARY, "version")
