"""The executable run to its end, and in a terminal of its own."""
import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time

from conftest import BINARY, MODEL, PATIENCE_S


def small(context):
    return ["--model", MODEL, "--threads", "1", "--ctx", str(context), "--kv-memory", "128M"]


SMALL = small(2048)
FIGURES = re.compile(r"\[([\d,]+) prompt tokens, ([\d,]+) cached \(\d+ %\); first token after [\d.]+ s; ([\d,]+) tokens")
CLEAN = {key: value for key, value in os.environ.items() if key not in ("KVLINK_API_KEY", "KVLINK_MODEL")}


def kvlink(*arguments, stdin="", **more):
    return subprocess.run([BINARY, *map(str, arguments)], input=stdin, capture_output=True, text=True,
                          timeout=PATIENCE_S, check=False, env={**CLEAN, **more})


def count(text):
    return int(text.replace(",", ""))


class Terminal:
    """A process whose input, output and errors are one terminal of its own."""

    def __init__(self, *arguments):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [BINARY, *map(str, arguments)], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), env={**CLEAN, "TERM": "xterm"})
        os.close(slave)
        self.seen, self._bytes = "", b""

    def _read(self, deadline):
        """More of the screen; False at its end."""
        ready, _, _ = select.select([self.master], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"nothing came any more behind {self.seen[-500:]!r}"
        try:
            piece = os.read(self.master, 65536)
        except OSError:  # the other end is closed
            piece = b""
        self._bytes += piece
        self.seen = self._bytes.decode(errors="ignore")
        return bool(piece)

    def wait_for(self, pattern, start=0):
        """The match of a pattern behind `start` in what came so far, once it is there."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.compile(pattern).search(self.seen, start)):
            assert self._read(deadline), f"ended without {pattern!r}: {self.seen[-500:]!r}"
        return found

    def type(self, text):
        os.write(self.master, text.encode())

    def line(self, text):
        """Types a line at the prompt; answers where on the screen what follows begins."""
        start = len(self.seen)
        self.type(text + "\n")
        return self.wait_for(re.escape(text) + "\r\n", start).end()

    def end(self):
        """Reads to the end; the exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(deadline):
            pass
        return self.process.wait(timeout=PATIENCE_S)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=PATIENCE_S)
        os.close(self.master)
