"""A subscriber of KV events, as a router has one, and the server it listens to."""
import os
import re
import subprocess
import threading
import time

import httpx
import zmq

BINARY = os.environ["KVLINK_BINARY"]
MODEL = os.environ["KVLINK_MODEL"]
PATIENCE_S = 300


class Server:
    """`kvlink serve` with KV events and replay on free ports."""

    def __init__(self, folder, *options):
        self._log = open(folder / "log", "w", encoding="utf-8")
        self._process = subprocess.Popen(
            [BINARY, "serve", "--model", MODEL, "--port", "0", "--threads", "1", "--ctx", "2048", "--kv-events",
             "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://127.0.0.1:*", *options],
            stdout=subprocess.PIPE, stderr=self._log, text=True)
        self.url = self.events = self.replay = None
        for line in self._process.stdout:
            if found := re.search(r"events\s+(tcp://\S+), replay (tcp://\S+)", line):
                self.events, self.replay = found.groups()
            if found := re.search(r"address\s+(http://\S+)", line):
                self.url = found[1]
                break
        assert self.url and self.events, (folder / "log").read_text(encoding="utf-8")
        threading.Thread(target=self._process.stdout.read, daemon=True).start()
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def complete(self, tokens, **more):
        answer = self.http.post("/v1/completions", json={"prompt": tokens, "max_tokens": 1, "temperature": 0, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stop(self):
        self.http.close()
        self._process.terminate()
        code = self._process.wait(timeout=60)
        self._log.close()
        return code


def replay(server, first=0):
    """Batches from number `first` on that the server still has: [(number, payload)]."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(server.replay)
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        batches = []
        while True:
            assert socket.poll(PATIENCE_S * 1000), "no answer to a replay request"
            empty, _topic, number, payload = socket.recv_multipart()
            assert empty == b""
            if int.from_bytes(number, "big", signed=True) == -1:
                return batches
            batches.append((int.from_bytes(number, "big"), payload))


def replay_until(server, enough):
    """Replays until `enough(batches)`: events leave a moment after an answer does."""
    deadline = time.monotonic() + PATIENCE_S
    while not enough(batches := replay(server)):
        assert time.monotonic() < deadline, batches
        time.sleep(0.05)
    return batches
