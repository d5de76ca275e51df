"""A real Redis for the tests, on a port of its own, and skipped where none is installed."""

import shutil
import socket
import subprocess
import time

import pytest


class RedisServer:
    def __init__(self, folder):
        binary = shutil.which("redis-server")
        if binary is None:
            pytest.skip("redis-server is not installed (scripts/setup.sh installs it)")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        self._process = subprocess.Popen(
            [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
             "--appendonly", "no", "--dir", str(folder)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._await()

    def _await(self):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with socket.socket() as client:
                client.settimeout(1)
                if client.connect_ex(("127.0.0.1", self.port)) == 0:
                    client.sendall(b"PING\r\n")
                    if client.recv(16).startswith(b"+PONG"):
                        return
            time.sleep(0.02)
        raise RuntimeError("redis-server does not answer")

    def ask(self, line):
        """The first line of the answer to an inline command."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as client:
            client.sendall(line.encode() + b"\r\n")
            return client.makefile("rb").readline().decode().strip()

    def stop(self):
        self._process.kill()
        self._process.wait()
