#!/usr/bin/env python3
"""Everything at once, for long: a real server on a real model with tiers, random load, cancels, slow readers, a Redis
that freezes and dies, damaged files, a full disk budget, kill -9 and restarts.

    tests/soak/soak.py [--seconds 1800] [--seed 1]

Fails unless: greedy answers are those of a server that shares nothing; no status is a 5xx but 503 and 504; pages are
conserved whenever somebody looks; no memory, descriptor or thread is lost once the restarts are over; everything is
given back when the load ends; the server ends cleanly. Prints what happened, as JSON.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import socket
import statistics
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
os.environ.setdefault("KVLINK_BINARY", str(HERE.parents[1] / "build/release/kvlink"))
os.environ.setdefault("KVLINK_MODEL", str(HERE.parents[1] / ".deps/models/SmolLM2-135M-Instruct-Q4_1.gguf"))
sys.path.insert(0, str(HERE.parent / "e2e"))
import httpx  # noqa: E402

from conftest import PATIENCE_S, filler  # noqa: E402
from tier_tools import Redis, TierServer, damage_files, text_of  # noqa: E402

MIB = 1 << 20
WORKERS = 4
KV_MEMORY, COLD_SIZE, REDIS_MEMORY = "30M", "40M", "48mb"  # all full all the time
MOST_GROWTH_MIB = 32  # of the resident memory, over the phase without restarts
MOST_MORE_FILES, MOST_MORE_THREADS = 16, 4
LONG_S, LEAST_SAMPLES = 120, 16  # shorter runs are all warm-up, and are not judged by growth


def make_prompts(count):
    """Three contexts with several questions each: prompts that share prefixes."""
    contexts = [filler(110 + 40 * i, f"soak {i}") for i in range(3)]
    return [f"{contexts[i % 3]}\nThe code of vault {i} is {4000 + 37 * i}. What is the code of vault {i}?"
            for i in range(count)]


def chat_body(prompt, **more):
    return {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 8, **more}


class Clients:
    """A client of whichever server runs; of one thread."""

    def __init__(self, soak):
        self.soak, self.url, self.http = soak, None, None

    def get(self):
        url = self.soak.server.url
        if url != self.url:
            self.close()
            self.url, self.http = url, httpx.Client(base_url=url, timeout=PATIENCE_S, verify=False)
        return self.http

    def close(self):
        if self.http:
            self.http.close()
        self.url = self.http = None


class Process:
    """What the system says of a process."""

    def __init__(self, pid):
        self.folder = pathlib.Path(f"/proc/{pid}")

    def sample(self):
        status = dict(line.split(":", 1) for line in (self.folder / "status").read_text().splitlines() if ":" in line)
        return (int(status["VmRSS"].split()[0]) / 1024, len(list((self.folder / "fd").iterdir())), int(status["Threads"]))


class Soak:
    def __init__(self, folder, seconds, seed):
        self.folder, self.seconds, self.seed = folder, seconds, seed
        self.prompts = make_prompts(6 if seconds < LONG_S else 24)
        self.redis = Redis(folder)
        self.counts = collections.Counter()
        self.failures = []
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.epoch, self.restarting, self.steady = 0, False, False
        self.total_pages = {}  # by epoch
        self.samples = []      # of the steady phase
        self.server = None

    # --- notes of all threads ---

    def count(self, what, number=1):
        with self.lock:
            self.counts[what] += number

    def fail(self, what):
        with self.lock:
            self.failures.append(f"{time.monotonic() - self.start:.1f} s: {what}")
        if len(self.failures) > 20:
            self.over.set()

    def guarded(self, task):
        try:
            task()
        except Exception as error:  # noqa: BLE001: a thread that ends early is a failed run
            self.fail(f"{task.__qualname__}: {error!r}")
            self.over.set()

    # --- the run ---

    def ask_reference(self):
        reference = TierServer(self.folder, "--sharing", "off", kv_memory="256M")
        self.expected = {prompt: text_of(reference.ask(prompt)) for prompt in self.prompts}
        self.expected_completion = {}
        for prompt in self.prompts[:3]:
            answer = reference.http.post("/v1/completions", json={"prompt": prompt, "temperature": 0, "max_tokens": 8})
            assert answer.status_code == 200, answer.text
            self.expected_completion[prompt] = answer.json()["choices"][0]["text"]
        assert reference.stop() == 0

    def run(self):
        self.start = time.monotonic()
        self.ask_reference()
        self.limit_redis()
        self.server = TierServer(self.folder, "--cold-dir", str(self.folder / "cold"), "--cold-size", COLD_SIZE, "--remote",
                                 self.redis.url, "--tier-writes", "all", kv_memory=KV_MEMORY)
        tasks = [Worker(self, number).run for number in range(WORKERS)] + [self.make_faults, self.watch]
        workers = [threading.Thread(target=self.guarded, args=(task,)) for task in tasks]
        self.start = time.monotonic()
        for worker in workers:
            worker.start()
        self.over.wait(self.seconds)
        self.over.set()
        for worker in workers:
            worker.join()
        self.check_end()

    def limit_redis(self):
        self.redis.command("CONFIG", "SET", "maxmemory", REDIS_MEMORY)
        self.redis.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")

    # --- faults ---

    def make_faults(self):
        source = random.Random(f"{self.seed} faults")
        pause = min(8, self.seconds / 10)
        # Restarts come in the first part, so that the rest can show whether anything is lost.
        restarts = [self.seconds * share for share in ((0.25,) if self.seconds < LONG_S else (0.1, 0.2, 0.3, 0.4))]
        faults = [self.freeze, self.kill_redis, self.empty_redis, self.damage_redis, self.damage_disk, self.cut_disk]
        while not self.over.wait(source.uniform(0.3, 1) * pause):
            if restarts and time.monotonic() - self.start > restarts[0]:
                restarts.pop(0)
                self.restart()
                self.steady = not restarts
                continue
            fault = source.choice(faults)
            fault(source)
            self.count(f"fault {fault.__name__}")

    def freeze(self, source):
        self.redis.freeze()
        self.over.wait(source.uniform(0.5, 3))
        self.redis.thaw()

    def kill_redis(self, source):
        self.redis.kill()
        self.over.wait(source.uniform(0, 2))
        self.redis.start()
        self.limit_redis()

    def empty_redis(self, _):
        self.redis.command("FLUSHALL")

    def damage_redis(self, _):
        self.redis.flip_a_byte_of_every_value()

    def damage_disk(self, _):
        self.count("bytes damaged", damage_files(self.folder / "cold"))

    def cut_disk(self, source):
        blobs = sorted(self.folder.glob("cold/**/*.blob"))
        if blobs:
            path = source.choice(blobs)
            try:
                os.truncate(path, path.stat().st_size // 2)
            except FileNotFoundError:
                pass  # the tier was faster

    def restart(self):
        self.restarting = True
        self.epoch += 1
        self.server.kill()
        try:
            self.server = self.server.started_again()
        except RuntimeError as error:
            self.fail(f"the server did not start again: {error}")
            self.over.set()
            return
        self.restarting = False
        self.count("kill -9")

    # --- what is looked at all the time ---

    def watch(self):
        clients = Clients(self)
        while not self.over.wait(1):
            if self.restarting:
                continue
            epoch, server = self.epoch, self.server
            if server._process.poll() is not None and self.epoch == epoch and not self.restarting:
                self.fail(f"the server ended with {server._process.returncode}")
                self.over.set()
                break
            try:
                self.check_metrics(epoch, clients.get().get("/metrics").text)
                if self.steady and self.epoch == epoch:
                    self.samples.append(Process(server._process.pid).sample())
            except (httpx.TransportError, OSError) as error:
                clients.close()
                if self.epoch == epoch and not self.restarting:
                    self.fail(f"/metrics: {error!r}")
        clients.close()

    def check_metrics(self, epoch, text):
        blocks, bytes_of = {}, {}
        for line in text.splitlines():
            if line.startswith("#"):
                continue
            name, value = line.rsplit(" ", 1)
            if name.startswith("kvlink_blocks{"):
                blocks[name.split('state="')[1].split('"')[0]] = float(value)
            elif name.startswith("kvlink_kv_bytes{"):
                bytes_of[name.split('state="')[1].split('"')[0]] = float(value)
            elif name.startswith("kvlink_http_requests_total{"):
                status = name.split('status="')[1].split('"')[0]
                if status.startswith("5") and status not in ("503", "504"):
                    self.fail(f"{name} {value}")
        total = sum(blocks.values())
        if self.total_pages.setdefault(epoch, total) != total:
            self.fail(f"{blocks} are not {self.total_pages[epoch]:.0f} pages")
        if bytes_of["in_use"] + bytes_of["cached"] > bytes_of["budget"]:
            self.fail(f"more than the budget: {bytes_of}")
        self.count("looks at the pages")

    # --- the end ---

    def check_end(self):
        server = self.server
        if server._process.poll() is not None:
            return self.fail("the server is gone")
        server.wait_until_idle()
        server.wait_for(lambda: server.metric("kvlink_blocks", state="in_use") == 0)
        server.wait_for(lambda: server.metric("kvlink_http_connections") <= 2)  # one is ours
        for prompt, expected in self.expected.items():
            answer = text_of(server.ask(prompt))
            if answer != expected:
                self.fail(f"at the end: {answer!r} instead of {expected!r}")
        for tier in ("ram", "cold", "remote"):
            self.counts[f"tokens reused from {tier}"] = int(server.metric("kvlink_reuse_tokens_total", tier=tier))
        self.counts["blocks evicted from the disk"] = int(server.metric("kvlink_tier_blocks_total", tier="cold", outcome="evicted"))
        lines = server.http.get("/metrics").text.splitlines()
        self.counts["tier errors"] = int(sum(float(line.rsplit(" ", 1)[1]) for line in lines
                                             if line.startswith("kvlink_tier_errors_total{")))
        self.check_growth()
        code = server.stop()
        if code != 0:
            self.fail(f"the server ended with {code}")
        for log in sorted(self.folder.glob("log-*")):
            for line in log.read_text(errors="replace").splitlines():
                if any(bad in line for bad in ("CHECK", "terminate called", "GGML_ASSERT", "AddressSanitizer")):
                    self.fail(f"{log.name}: {line[:300]}")

    def check_growth(self):
        if len(self.samples) < LEAST_SAMPLES:
            if self.seconds >= LONG_S:
                self.fail(f"only {len(self.samples)} samples of the memory")
            return
        # The first quarter warms up: pools, arenas and caches fill.
        quarter = len(self.samples) // 4
        first, last = self.samples[quarter:2 * quarter], self.samples[-quarter:]
        names = (("resident MiB", MOST_GROWTH_MIB), ("descriptors", MOST_MORE_FILES), ("threads", MOST_MORE_THREADS))
        for i, (name, most) in enumerate(names):
            before, after = (statistics.median(sample[i] for sample in part) for part in (first, last))
            self.counts[f"{name} before"], self.counts[f"{name} after"] = round(before, 1), round(after, 1)
            if self.seconds >= LONG_S and after - before > most:
                self.fail(f"{name}: {before:.1f} became {after:.1f}, allowed are {most} more")


class Worker:
    """One client after the other, each doing something at random."""

    def __init__(self, soak, number):
        self.soak = soak
        self.random = random.Random(f"{soak.seed} {number}")
        self.number = number
        self.fresh_prompts = 0

    def run(self):
        actions = {self.greedy: 6, self.streamed: 5, self.completion: 2, self.choices: 2, self.fresh: 2, self.cancelled: 3,
                   self.slow: 1, self.half_open: 1, self.wrong: 2, self.administered: 1}
        clients = Clients(self.soak)
        while not self.soak.over.is_set():
            epoch, restarting = self.soak.epoch, self.soak.restarting
            action = self.random.choices(list(actions), list(actions.values()))[0]
            try:
                action(clients.get())
                self.soak.count(action.__name__)
            except (httpx.TransportError, OSError) as error:
                clients.close()
                if restarting or self.soak.restarting or self.soak.epoch != epoch:
                    self.soak.count("cut off by kill -9")
                    self.soak.over.wait(0.2)
                else:
                    self.soak.fail(f"{action.__name__}: {error!r}")
            except Exception as error:  # noqa: BLE001: whatever it is, the run has failed
                self.soak.fail(f"{action.__name__}: {error!r}")
        clients.close()

    def post(self, http, path, body):
        """The answer where there is one; a refusal must be a documented one."""
        answer = http.post(path, json=body)
        return self.checked(answer)

    def checked(self, answer):
        self.soak.count(f"status {answer.status_code}")
        if answer.status_code == 200:
            return answer
        if answer.status_code in (429, 503) and "retry-after" in answer.headers:
            time.sleep(0.1)
            return None
        self.soak.fail(f"{answer.request.url.path}: {answer.status_code} {answer.read().decode(errors='replace')[:300]}")
        return None

    def compare(self, what, answer, expected):
        self.soak.count("answers compared")
        if answer != expected:
            self.soak.fail(f"{what}: {answer!r} instead of {expected!r}")

    def any_prompt(self):
        return self.random.choice(self.soak.prompts)

    def greedy(self, http):
        prompt = self.any_prompt()
        if answer := self.post(http, "/v1/chat/completions", chat_body(prompt)):
            self.compare("chat", text_of(answer.json()), self.soak.expected[prompt])

    def events(self, http, body):
        with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
            if self.checked(answer):
                yield from (line[6:] for line in answer.iter_lines() if line.startswith("data: "))

    def streamed(self, http):
        prompt = self.any_prompt()
        events = list(self.events(http, chat_body(prompt)))
        if not events:
            return
        if events[-1] != "[DONE]":
            return self.soak.fail(f"a stream ended with {events[-1][:300]}")
        parts = [choice["delta"].get("content") or "" for event in events[:-1] for choice in json.loads(event)["choices"]]
        self.compare("stream", "".join(parts), self.soak.expected[prompt])

    def completion(self, http):
        prompt = self.random.choice(list(self.soak.expected_completion))
        if answer := self.post(http, "/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 8}):
            self.compare("completion", answer.json()["choices"][0]["text"], self.soak.expected_completion[prompt])

    def choices(self, http):
        n = self.random.randint(2, 4)
        body = chat_body(self.any_prompt(), n=n, temperature=1, seed=self.random.getrandbits(31), max_tokens=12)
        if answer := self.post(http, "/v1/chat/completions", body):
            choices = answer.json()["choices"]
            if [choice["index"] for choice in choices] != list(range(n)):
                self.soak.fail(f"{n} choices were asked for: {choices}")

    def fresh(self, http):
        """Nobody has asked this before; who asks again gets the same answer."""
        self.fresh_prompts += 1
        prompt = filler(self.random.randint(20, 150), f"fresh {self.number} {self.fresh_prompts}") + " And then?"
        answers = [self.post(http, "/v1/chat/completions", chat_body(prompt)) for _ in range(2)]
        if all(answers):
            self.compare("asked again", text_of(answers[1].json()), text_of(answers[0].json()))

    def cancelled(self, http):
        left = self.random.randint(0, 6)
        for _ in self.events(http, chat_body(self.any_prompt(), max_tokens=64, ignore_eos=True)):
            left -= 1
            if left < 0:
                return  # closes the connection

    def slow(self, http):
        for number, _ in enumerate(self.events(http, chat_body(self.any_prompt(), max_tokens=40, ignore_eos=True))):
            if number % 10 == 0 and self.soak.over.wait(self.random.uniform(0.1, 1)):
                return

    def half_open(self, http):
        with socket.create_connection((http.base_url.host, http.base_url.port), timeout=PATIENCE_S) as connection:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 500\r\n\r\n{\"mess"[:self.random.randint(0, 70)])
            self.soak.over.wait(self.random.uniform(0, 1))

    def wrong(self, http):
        ask, status = self.random.choice([
            (lambda: http.post("/v1/chat/completions", content=b"{\"messages\": ["), 400),
            (lambda: http.post("/v1/chat/completions", json=chat_body("a", temperature=9)), 400),
            (lambda: http.post("/v1/completions", json={"prompt": [1 << 30]}), 400),
            (lambda: http.get("/nothing"), 404),
            (lambda: http.get("/v1/completions"), 405),
            (lambda: http.get("/health", headers={"X-Long": "a" * (20 << 10)}), 431),
        ])
        answer = ask()
        if answer.status_code != status:
            self.soak.fail(f"a wrong request was answered {answer.status_code}, not {status}: {answer.text[:300]}")

    def administered(self, http):
        prompt = {"messages": [{"role": "user", "content": self.any_prompt()}]}
        path, body, allowed = self.random.choice([
            ("/kvlink/pin", {**prompt, "ttl_s": 1}, (200, 404, 409)),
            ("/kvlink/warm", prompt, (200, 429, 503)),
            ("/kvlink/flush", {}, (200,)),
        ])
        answer = http.post(path, json=body)
        if answer.status_code not in allowed:
            self.soak.fail(f"{path}: {answer.status_code} {answer.text[:300]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1800, help="how long there is load; 1800 unless given")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvlink-soak-") as folder:
        soak = Soak(pathlib.Path(folder), arguments.seconds, arguments.seed)
        try:
            soak.run()
        finally:
            for server in list(TierServer.running):
                server.kill()
            soak.redis.stop()
    print(json.dumps({"seconds": arguments.seconds, "seed": arguments.seed, **dict(sorted(soak.counts.items()))}, indent=1))
    for failure in soak.failures:
        print(failure, file=sys.stderr)
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
