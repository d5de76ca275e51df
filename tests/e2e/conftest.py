"""One `kvlink serve` for the whole session, and what tests ask it with."""
import hashlib
import json
import os
import re
import subprocess
import threading
import time

import httpx
import openai
import pytest

BINARY = os.environ["KVLINK_BINARY"]
MODEL = os.environ["KVLINK_MODEL"]
# One thread has no barriers, so that other work on the machine does not stop ours.
MORE_OPTIONS = os.environ.get("KVLINK_SERVE_OPTIONS", "--threads 1").split()
PATIENCE_S = 600  # loading and answers on a machine that does other things as well


class Server:
    """A running `kvlink serve` on a free port of the loopback interface."""

    def __init__(self, log, *options, kv_memory="512M"):
        self._log = open(log, "w", encoding="utf-8")
        if "--cold-dir" not in options:
            options = (*options, "--no-cold")  # what earlier tests stored would be found
        self._process = subprocess.Popen(
            [BINARY, "serve", "--model", MODEL, "--port", "0", "--ctx", "4096", "--kv-memory", kv_memory, *options,
             *MORE_OPTIONS],
            stdout=subprocess.PIPE, stderr=self._log, text=True)
        self.url = None
        for line in self._process.stdout:
            found = re.search(r"address\s+(https?://\S+)", line)
            if found:
                self.url = found.group(1)
                break
        if self.url is None:
            self._process.wait()
            with open(log, encoding="utf-8") as text:
                raise RuntimeError(f"kvlink serve ended with {self._process.returncode}: {text.read()}")
        # Whoever writes must not find the pipe full.
        self._reader = threading.Thread(target=self._process.stdout.read, daemon=True)
        self._reader.start()
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def client(self, key="none"):
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)

    def metric(self, name, **labels):
        """Sum over the lines of a metric that carry these labels."""
        total, seen = 0.0, False
        for line in self.http.get("/metrics").text.splitlines():
            if not line.startswith((f"{name}{{", f"{name} ")):
                continue
            if all(f'{key}="{value}"' in line for key, value in labels.items()):
                total, seen = total + float(line.rsplit(" ", 1)[1]), True
        assert seen, f"{name} {labels} is not in /metrics"
        return total

    def resident_bytes(self):
        with open(f"/proc/{self._process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))

    def wait_for(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "nothing happened"
            time.sleep(0.02)

    def wait_until_idle(self):
        self.wait_for(lambda: self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting") == 0)

    def stop(self):
        self.http.close()
        self._process.terminate()
        try:
            self._process.wait(timeout=60)
        finally:
            self._process.kill()
            self._log.close()
        return self._process.returncode


def key_line(key, tenant, rights=("inference",)):
    """The line of `key`, which is its own name, in a file of API keys."""
    return json.dumps({"name": key, "hash": hashlib.sha256(key.encode()).hexdigest(), "tenant": tenant,
                       "rights": list(rights)})


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("serve") / "log", "--chunk", "128")
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def keyed_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keyed")
    lines = [key_line(key, tenant) for key, tenant in [("key-a", "acme"), ("key-b", "acme"), ("key-c", "other")]]
    (folder / "keys").write_text("# made by the tests\n" + "\n".join(lines) + "\n")
    running = Server(folder / "log", "--api-keys", str(folder / "keys"))
    yield running
    assert running.stop() == 0


@pytest.fixture
def client(server):
    with server.client() as running:
        yield running


@pytest.fixture
def chat(client):
    """A greedy chat with one user message, unless told otherwise."""

    def ask(text, **more):
        messages = more.pop("messages", [{"role": "user", "content": text}])
        arguments = {"model": "", "messages": messages, "temperature": 0, "max_tokens": 24, **more}
        arguments["model"] = arguments["model"] or client.models.list().data[0].id
        return client.chat.completions.create(**arguments)

    return ask


def cached(answer):
    return answer.usage.prompt_tokens_details.cached_tokens


def filler(words, salt):
    """Text of about `words` tokens that no other test has sent."""
    digest = hashlib.sha256(salt.encode()).digest()
    names = ["river", "stone", "cloud", "paper", "garden", "winter", "copper", "signal"]
    return " ".join(names[digest[i % 32] + i * 7 & 7] if i % 9 else f"item {salt}" for i in range(words))
