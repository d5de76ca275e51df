"""The Debian packages: fields, dependencies, what is where; installed into a root of their own by dpkg, upgraded and purged."""
import os
import re
import shutil
import subprocess

import pytest

from installed import BUILD, SOURCE, check_it_works, elf_files, project_version, run

pytestmark = pytest.mark.skipif(shutil.which("dpkg-shlibdeps") is None or shutil.which("file") is None,
                                reason="needs dpkg-dev and file")


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Paths of kvlink.deb and libkvlink-dev.deb; compressed quickly instead of well."""
    folder = tmp_path_factory.mktemp("packages")
    run("cpack", "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-B", folder, "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip",
        timeout=600)
    found = {path.name.split("_")[0]: path for path in folder.glob("*.deb")}
    assert set(found) == {"kvlink", "libkvlink-dev"}
    return found


@pytest.fixture(scope="module")
def tree(packages, tmp_path_factory):
    """The files of kvlink.deb, unpacked."""
    folder = tmp_path_factory.mktemp("tree")
    run("dpkg-deb", "-x", packages["kvlink"], folder)
    return folder


def field(package, name):
    return run("dpkg-deb", "-f", package, name).strip()


def contents(package):
    """{path: (mode, owner)} of a package's files and folders."""
    lines = (line.split(None, 5) for line in run("dpkg-deb", "-c", package).splitlines())
    return {name.split(" -> ")[0].removeprefix("."): (mode, owner) for mode, owner, _, _, _, name in lines}


def test_names_and_versions(packages):
    for name, package in packages.items():
        assert field(package, "Package") == name
        assert re.fullmatch(re.escape(project_version()) + r"-0kvlink\d+", field(package, "Version"))
        assert field(package, "Architecture") == run("dpkg", "--print-architecture").strip()


def test_dependencies_are_what_the_binaries_need(packages, tree):
    needed, paths = set(), {}
    for binary in elf_files(tree):
        needed |= set(re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", binary)))
        paths.update(re.findall(r"^\s*(\S+) => (\S+)", run("ldd", binary), re.M))
    own = {path.name for path in (tree / "usr/lib/kvlink").iterdir()}
    assert needed & own, "libllama and ggml come along"
    foreign = {soname for soname in needed - own if soname in paths}  # all but the loader
    assert len(foreign) > 10
    depends = field(packages["kvlink"], "Depends")
    for soname in foreign:
        owners = {line.split(":")[0] for line in
                  run("dpkg", "-S", "*/" + os.path.basename(os.path.realpath(paths[soname]))).splitlines()}
        for owner in list(owners):  # a dependency may name what a package provides
            owners |= {name.split()[0] for name in run("dpkg-query", "-W", "-f", "${Provides}", owner).split(", ") if name.strip()}
        assert any(re.search(rf"(^|, ){re.escape(owner)}( |,|$)", depends) for owner in owners), \
            f"{soname}, which is of {owners}, is not in {depends}"
    assert "librocksdb-dev" in field(packages["libkvlink-dev"], "Depends")


def test_files_have_the_modes_and_places_that_policy_wants(packages, tree):
    for package in packages.values():
        for path, (mode, owner) in contents(package).items():
            assert owner == "root/root", path
            assert mode[:10] in {"drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x", "lrwxrwxrwx"}, f"{path} {mode}"
            assert re.match(r"/(usr|etc|$)", path), path
    shared = [path for path, (mode, _) in contents(packages["kvlink"]).items()
              if path in contents(packages["libkvlink-dev"]) and not mode.startswith("d")]
    assert shared == []
    assert os.readlink(tree / "usr/bin/kvlink") == "../lib/kvlink/kvlink"
    for binary in elf_files(tree):
        assert ".debug_info" not in run("readelf", "-SW", binary), binary
        assert "BIND_NOW" in run("readelf", "-d", binary) and "GNU_RELRO" in run("readelf", "-lW", binary), binary
    for name in ("copyright", "changelog.gz", "changelog.Debian.gz"):
        assert (tree / "usr/share/doc/kvlink" / name).is_file()


def test_the_unpacked_program_works(tree, tmp_path):
    check_it_works(tree / "usr/bin/kvlink", tmp_path)


def test_every_key_of_the_configuration_is_an_option(tree, tmp_path):
    """With every comment that shows a setting undone, the file is read to its end: what is missing is the model."""
    shipped = (tree / "etc/kvlink/kvlink.toml").read_text()
    active = re.sub(r"^#([a-z-]+ = )", r"\1", shipped, flags=re.M)
    keys = re.findall(r"^([a-z-]+) = ", active, re.M)
    assert len(keys) > 10 and re.findall(r"^([a-z-]+) = ", shipped, re.M) == []
    options = set(re.findall(r"--([a-z][a-z-]*)", run(tree / "usr/bin/kvlink", "serve", "--help")))
    assert set(keys) <= options
    # Files that exist, no certificate, and a model that does not exist.
    (tmp_path / "keys").touch()
    active = re.sub(r"^tls-.*\n", "", active, flags=re.M)
    active = active.replace("/etc/kvlink/keys", str(tmp_path / "keys")).replace("/srv/kvlink/", "/no/such/")
    config = tmp_path / "kvlink.toml"
    config.write_text(active)
    done = subprocess.run([tree / "usr/bin/kvlink", "serve", "--config", config], capture_output=True, text=True, check=False,
                          timeout=60, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
    assert done.returncode == 2
    assert "no file '/no/such/model.gguf'" in done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_is_valid_and_exposes_little(tree, tmp_path):
    unit = tree / "usr/lib/systemd/system/kvlink.service"
    # The program's path is that of an installed package.
    copy = tmp_path / "kvlink.service"
    copy.write_text(unit.read_text().replace("/usr/bin/kvlink", str(tree / "usr/bin/kvlink")))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False, timeout=60)
    complaints = [line for line in done.stderr.splitlines() if "kvlink" in line]
    assert complaints == []
    done = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--threshold=20", copy], capture_output=True, text=True,
                          check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="dpkg needs root")
def test_dpkg_installs_upgrades_and_purges(packages, tmp_path):
    root = tmp_path / "root"
    for folder in ("info", "updates", "triggers", "parts"):
        (root / "var/lib/dpkg" / folder).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    (root / "etc").mkdir(exist_ok=True)
    dpkg = ["dpkg", f"--root={root}", "--force-depends", "--force-script-chrootless", "--force-confold"]
    run(*dpkg, "-i", packages["kvlink"], packages["libkvlink-dev"])
    config = root / "etc/kvlink/kvlink.toml"
    status = run("dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W", "-f", "${db:Status-Status} ${Conffiles}", "kvlink")
    assert status.startswith("installed") and "/etc/kvlink/kvlink.toml" in status
    assert run(root / "usr/bin/kvlink", "version").startswith(f"kvlink {project_version()}\n")

    config.write_text("# mine\n")
    run(*dpkg, "-i", packages["kvlink"])
    assert config.read_text() == "# mine\n", "an upgrade keeps what an administrator wrote"

    stored = root / "var/cache/private/kvlink/cold"
    stored.mkdir(parents=True)
    run(*dpkg, "-r", "kvlink")
    assert config.exists() and stored.exists() and not (root / "usr/bin/kvlink").exists()
    run(*dpkg, "-P", "kvlink", "libkvlink-dev")
    assert not config.exists() and not stored.exists()
    assert [path for path in (root / "usr").rglob("*") if not path.is_dir()] == []


def test_maintainer_scripts_are_plain_sh():
    for name in ("postinst", "prerm", "postrm"):
        script = SOURCE / "packaging" / "debian" / name
        run("sh", "-n", script)
        assert script.read_text().startswith("#!/bin/sh\n") and "\nset -e\n" in script.read_text()
