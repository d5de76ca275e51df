"""Processes that the comparison starts: ports, readiness, CPU time and memory of a process and its children, stopping."""
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A peer could not be built, started or measured; the text says why."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def tail(path, lines=5):
    text = Path(path).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " | ".join(line.strip() for line in text[-lines:])[-600:]


def checked(command, log, **options):
    """Runs a command with its output in `log`; Failed with the last lines when it fails."""
    with open(log, "a", encoding="utf-8") as file:
        print("$", *command, file=file, flush=True)
        done = subprocess.run([str(part) for part in command], stdout=file, stderr=subprocess.STDOUT, check=False, **options)
    if done.returncode != 0:
        raise Failed(f"'{Path(str(command[0])).name}' failed ({done.returncode}), see {log}: {tail(log)}")


def _descendants(root):
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        parent = int(text.rsplit(")", 1)[1].split()[1])
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def cpu_seconds(root):
    """User and system time of a process and its living descendants."""
    total = 0
    for pid in _descendants(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_SECOND


def peak_resident_bytes(root):
    """Sum of the peaks of a process and its descendants."""
    total = 0
    for pid in _descendants(root):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    return total


class ServerProcess:
    """An HTTP server in a session of its own, so that it can be stopped, frozen and ended with all its children."""

    def __init__(self, command, port, log, environment=None, patience_s=300):
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        with open(log, "w", encoding="utf-8") as file:
            self.process = subprocess.Popen([str(part) for part in command], stdout=file, stderr=subprocess.STDOUT,
                                            stdin=subprocess.DEVNULL, start_new_session=True,
                                            env={**os.environ, **(environment or {})})
        try:
            self._await_ready(patience_s)
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self):
        return self.process.pid

    def _await_ready(self, patience_s):
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Failed(f"the server ended ({self.process.returncode}) while starting: {tail(self.log)}")
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.2)
        raise Failed(f"the server was not ready after {patience_s} s: {tail(self.log)}")

    def freeze(self):
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self):
        os.killpg(self.pid, signal.SIGCONT)

    def stop(self):
        if self.process.poll() is None:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                pass
        self._signal(signal.SIGKILL)  # whatever is left of its session
        self.process.wait()

    def _signal(self, number):
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass
