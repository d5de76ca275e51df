#!/usr/bin/env python3
"""Everything at once, for long: two real servers on a real model, with tenants, similar reuse, tiers and one Redis, one
of them over TLS; random load, cancels, slow readers, a Redis that freezes, dies, fills up and hangs up, damaged and
lost files, a full disk, keys and certificates that are read again, kill -9 and restarts.

    tests/soak/soak.py [--seconds 1800] [--seed 1]

The load stops a few times. Fails unless: exact answers are those of a server that shares nothing, under load and when it
stops; no status is a 5xx but 503 and 504; pages are conserved and quotas held whenever somebody looks, and nothing is in
use when nobody asks; no memory, descriptor, thread or connection to Redis is lost once the restarts are over; every
server that is told to end ends cleanly; and, in runs of ten minutes and more, all of it happened. Prints what happened,
as JSON.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
os.environ.setdefault("KVLINK_BINARY", str(HERE.parents[1] / "build/release/kvlink"))
os.environ.setdefault("KVLINK_MODEL", str(HERE.parents[1] / ".deps/models/SmolLM2-135M-Instruct-Q4_1.gguf"))
sys.path.insert(0, str(HERE.parent / "e2e"))
from conftest import PATIENCE_S, filler  # noqa: E402
from soak_clients import Worker, chat_body  # noqa: E402
from soak_faults import Faults, SoakRedis  # noqa: E402
from soak_servers import Replica  # noqa: E402
from tier_tools import TierServer, text_of  # noqa: E402

WORKERS = 5
MANY_S = 60
LONG_S = 600  # shorter runs are all warm-up: not judged by growth, nor by what did not happen
PHASE_S = 100
MOST_REDIS_CLIENTS = 4  # of a server
OWN_MOUNTS = "KVLINK_SOAK_OWN_MOUNTS"


def make_prompts(count):
    """Three contexts with several questions each: prompts that share prefixes."""
    contexts = [filler(110 + 40 * i, f"soak {i}") for i in range(3)]
    return [f"{contexts[i % 3]}\nThe code of vault {i} is {4000 + 37 * i}. What is the code of vault {i}?"
            for i in range(count)]


def make_near_prompts(count):
    """The same but for a number near the head."""
    return [f"Session {1000 + 137 * i}.\n{filler(180, 'near')}\nWhat comes after the river?" for i in range(count)]


class Soak:
    def __init__(self, folder, seconds, seed):
        self.folder, self.seconds, self.seed = folder, seconds, seed
        self.is_long = seconds >= LONG_S
        self.near_prompts = make_near_prompts(8 if seconds >= MANY_S else 3)
        self.prompts = make_prompts(24 if seconds >= MANY_S else 6) + self.near_prompts
        self.redis = SoakRedis(folder)
        self.may_mount = OWN_MOUNTS in os.environ
        self.counts = collections.Counter()
        self.notes = {}
        self.failures = []
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.gate = threading.Condition()  # guards the two below
        self.pause, self.parked = False, 0
        self.steady = False  # no restarts any more
        self.replicas = []
        self.start = time.monotonic()

    # --- notes of all threads ---

    def count(self, what, number=1):
        with self.lock:
            self.counts[what] += number

    def note(self, what, value):
        with self.lock:
            self.notes[what] = value

    def fail(self, what):
        with self.lock:
            self.failures.append(f"{time.monotonic() - self.start:.1f} s: {what}")
        if len(self.failures) > 20:
            self.over.set()

    def compare(self, what, answer, expected):
        self.count("answers compared")
        if answer != expected:
            self.fail(f"{what}: {answer!r} instead of {expected!r}")

    def guarded(self, task):
        try:
            task()
        except Exception as error:  # noqa: BLE001: a thread that ends early is a failed run
            at = traceback.extract_tb(error.__traceback__)[-1]
            self.fail(f"{task.__qualname__}: {error!r} at {pathlib.Path(at.filename).name}:{at.lineno}")
            self.over.set()

    # --- phases: the load runs, then everybody stands still ---

    def goes_on(self, leave):
        """For a thread of the load, between two things it does: waits while the load stands still."""
        with self.gate:
            if self.pause:
                leave()
                self.parked += 1
                self.gate.notify_all()
                self.gate.wait_for(lambda: not self.pause)
                self.parked -= 1
        return not self.over.is_set()

    def stand_still(self, threads):
        deadline = time.monotonic() + PATIENCE_S
        with self.gate:
            self.pause = True
            while self.parked < threads and not self.over.is_set():
                self.gate.wait(1)
                if time.monotonic() > deadline:
                    raise RuntimeError(f"only {self.parked} of {threads} threads came to a stop")

    def run_again(self):
        with self.gate:
            self.pause = False
            self.gate.notify_all()

    # --- the run ---

    def ask_reference(self):
        """A server that shares nothing, and that nobody disturbs."""
        reference = TierServer(self.folder, "--sharing", "off", kv_memory="256M")
        self.expected = {prompt: text_of(reference.ask(prompt)) for prompt in self.prompts}
        self.expected_completion = {}
        for prompt in self.prompts[:3]:
            answer = reference.http.post("/v1/completions", json={"prompt": prompt, "temperature": 0, "max_tokens": 8})
            assert answer.status_code == 200, answer.text
            self.expected_completion[prompt] = answer.json()["choices"][0]["text"]
        assert reference.stop() == 0

    def run(self):
        self.ask_reference()
        self.redis.limit()
        for number in range(2):
            self.replicas.append(Replica(self, number, self.redis.url))
        load = [Worker(self, number).run for number in range(WORKERS)] + [self.make_faults]
        threads = [threading.Thread(target=self.guarded, args=(task,)) for task in [*load, self.watch]]
        self.start = time.monotonic()
        for thread in threads:
            thread.start()
        self.guarded(lambda: self.conduct(len(load)))
        self.over.set()
        self.run_again()
        for thread in threads:
            thread.join()
        self.guarded(self.check_end)

    def conduct(self, threads):
        phases = max(2, round(self.seconds / PHASE_S))
        for number in range(phases):
            if self.over.wait(max(0, self.start + self.seconds * (number + 1) / phases - time.monotonic())):
                return
            self.stand_still(threads)
            if self.over.is_set():
                return
            self.check_quiet(random.Random(f"{self.seed} phase {number}"))
            self.count("times that all stood still")
            self.run_again()

    def make_faults(self):
        faults = Faults(self)
        pause = min(6, self.seconds / 12)
        # Restarts come in the first part, so that the rest can show whether anything is lost.
        number = max(2, round(self.seconds / 150))
        restarts = [self.seconds * 0.45 * (i + 1) / number for i in range(number)]
        while not self.over.wait(faults.random.uniform(0.2, 1) * pause) and self.goes_on(lambda: None):
            if restarts and time.monotonic() - self.start > restarts[0]:
                restarts.pop(0)
                faults.restart_one()
                self.steady = not restarts
            else:
                faults.make_one()

    def watch(self):
        while not self.over.wait(1):
            for replica in self.replicas:
                replica.look(self.steady)

    # --- what is looked at ---

    def check_quiet(self, source):
        some = source.sample(self.prompts, 4 if self.seconds >= MANY_S else 2)
        for replica in self.replicas:
            replica.check_quiet(some)
        clients = self.redis.clients()
        self.note("connections to Redis", clients)
        if clients > MOST_REDIS_CLIENTS * len(self.replicas):
            self.fail(f"{clients} connections to Redis, of {len(self.replicas)} servers")

    def check_answers(self, replica, prompts):
        for prompt in prompts:
            answer = replica.server.http.post("/v1/chat/completions", json=chat_body(prompt, deterministic=True))
            if answer.status_code != 200:
                self.fail(f"{replica.name}, quiet: {answer.status_code} {answer.text[:300]}")
            else:
                self.compare(f"{replica.name}, quiet", text_of(answer.json()), self.expected[prompt])

    def check_end(self):
        for replica in self.replicas:
            replica.check_quiet(self.prompts)
            replica.tell()
            replica.check_growth(self.is_long)
        if self.is_long:
            self.check_that_it_happened()
        for replica in self.replicas:
            if (code := replica.server.end()) != 0:
                self.fail(f"{replica.name} ended with {code}")
            replica.check_logs()

    def check_that_it_happened(self):
        """A run in which nothing was shared, lent, evicted, refused or broken shows nothing."""
        for what in ("tokens reused from ram", "tokens reused from cold", "tokens reused from remote", "verdict accepted",
                     "kvlink_evicted_blocks_total", "kvlink_tenant_quota_evictions_total", "restart kill", "restart terminate",
                     "fault fill_disk", "fault freeze_redis", "fault kill_redis", "fault damage_disk", "fault reload"):
            if not self.counts[what]:
                self.fail(f"never happened: {what}")
        if not any(name.startswith("tier errors: cold") for name in self.counts):
            self.fail("no fault of the disk was seen by a server")


def begin_again_with_own_mounts():
    """Where the system lets us: what is mounted then is seen by us and our servers alone, and gone when we are."""
    if OWN_MOUNTS in os.environ or not shutil.which("unshare"):
        return
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    tried = subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", tempfile.gettempdir()], capture_output=True, check=False)
    if tried.returncode == 0:
        os.environ[OWN_MOUNTS] = "1"
        os.execvp(unshare[0], [*unshare, sys.executable, *sys.argv])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1800, help="how long there is load; 1800 unless given")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the folder with logs and stores behind when the run fails")
    arguments = parser.parse_args()
    begin_again_with_own_mounts()
    with tempfile.TemporaryDirectory(prefix="kvlink-soak-", ignore_cleanup_errors=True) as name:
        folder = pathlib.Path(name)
        soak = Soak(folder, arguments.seconds, arguments.seed)
        try:
            soak.run()
        finally:
            for server in list(TierServer.running):
                server.kill()
            soak.redis.stop()
            for replica in soak.replicas:
                replica.unmount()
        if soak.failures and arguments.keep:
            kept = folder.with_name(folder.name + "-failed")
            folder.rename(kept)
            folder.mkdir()
            print(f"kept: {kept}", file=sys.stderr)
    print(json.dumps({"seconds": arguments.seconds, "seed": arguments.seed, **dict(sorted(soak.counts.items())), **soak.notes}, indent=1))
    for failure in soak.failures:
        print(failure, file=sys.stderr)
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
