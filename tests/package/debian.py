"""A Debian 12 of its own for tests that install the package for real: made by debootstrap, so that no registry of images is
needed. Needs root, debootstrap and a mirror of Debian."""
import os
import shutil
import time

from installed import BUILD, run

PATIENCE_S = 300  # for a server to answer on a machine that does other things as well


def missing(*programs):
    """Why such a test cannot be run here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    absent = [program for program in ("debootstrap", "curl", "nsenter", *programs) if shutil.which(program) is None]
    return f"needs {', '.join(absent)} (scripts/setup.sh --heavy)" if absent else None


def make_package(folder):
    """kvlink.deb of this build, compressed quickly instead of well."""
    run("cpack", "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-B", folder, "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip",
        timeout=600)
    (package,) = folder.glob("kvlink_*.deb")
    return package


def bootstrap(root):
    """The smallest Debian 12, with nothing that apt has fetched left in it."""
    run("debootstrap", "--variant=minbase", "bookworm", root, timeout=1200)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    apt(root, "clean")


def copy(base, root):
    """With owners and devices, which Python's own copying would follow."""
    run("cp", "--archive", base, root)


def apt(root, *command):
    run("chroot", root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet", *command, timeout=1200)


def wait_for(condition, what):
    """The first true value of `condition()`; its exceptions of processes count as false."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if found := condition():
                return found
        except (AssertionError, OSError):
            pass
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.2)


def curl(pid, *arguments, expected=0):
    """Asks from within the network of process `pid`."""
    return run("nsenter", "--target", pid, "--net", "curl", "--silent", "--show-error", "--noproxy", "*", *arguments,
               expected=expected, timeout=PATIENCE_S)


def status_of(pid):
    """The fields of /proc/PID/status."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
        return {name: value.strip() for name, value in (line.split(":", 1) for line in status)}


def processes():
    """{pid: fields of its status} of all that runs."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found[int(name)] = status_of(name)
            except OSError:
                pass  # it has ended
    return found
