"""Servers with tiers, and a real Redis that tests stop, freeze and kill."""
import os
import shutil
import signal
import socket
import subprocess
import time

from conftest import Server, filler

ROWS = 32  # of a block
REUSED = "kvlink_reuse_tokens_total"


class TierServer(Server):
    """A server in a folder of its own; `start` again is a restart on the same options."""

    count = 0
    running = set()  # for those that a failed test leaves

    def __init__(self, folder, *options, kv_memory="24M"):
        self.arguments = (folder, *options), {"kv_memory": kv_memory}
        TierServer.count += 1
        super().__init__(folder / f"log-{TierServer.count}", *options, kv_memory=kv_memory)
        TierServer.running.add(self)

    def stop(self):
        TierServer.running.discard(self)
        return super().stop()

    def kill(self):
        """As the kernel would: no time to write anything."""
        TierServer.running.discard(self)
        self.http.close()
        self._process.kill()
        self._process.wait()
        self._log.close()

    def started_again(self):
        arguments, more = self.arguments
        return TierServer(*arguments, **more)

    def ask(self, prompt, **more):
        body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 8, **more}
        answer = self.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stored(self, tier="cold"):
        return self.metric("kvlink_tier_blocks_total", tier=tier, outcome="stored")

    def wait_until_written(self, tier, blocks):
        """Idle time writes what there was no time for before, but for what was evicted until then."""
        self.wait_for(lambda: self.stored(tier) + self.metric("kvlink_unwritten_blocks_total") >= blocks
                      and self.metric("kvlink_tier_queue_blocks", tier=tier) == 0)

    def reused(self, tier):
        return self.metric(REUSED, tier=tier)

    def errors(self, op="get"):
        return self.metric("kvlink_tier_errors_total", op=op)


def text_of(answer):
    return answer["choices"][0]["message"]["content"]


def cached_of(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def facts(count, words=240, salt=""):
    """Prompts that share only the template's head, with one fact each that the answer must be about."""
    return [f"{filler(words, f'fact {salt}{i}')}\nThe code of vault {i} is {4000 + 37 * i}. What is the code of vault {i}?"
            for i in range(count)]


def blocks_of(answers):
    """Blocks of the prompts behind the template's head, which all share."""
    return sum(answer["usage"]["prompt_tokens"] // ROWS - 1 for answer in answers)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Redis:
    """redis-server on the loopback interface, without a file of its own."""

    def __init__(self, folder):
        self.binary = shutil.which("redis-server")
        assert self.binary, "redis-server is not installed (scripts/setup.sh does it)"
        self.folder, self.port = folder, free_port()
        self.start()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def start(self):
        self.process = subprocess.Popen(
            [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
             "--dir", str(self.folder), "--daemonize", "no"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while self.command("PING") != b"+PONG":
            assert self.process.poll() is None and time.monotonic() < deadline, "redis-server did not start"
            time.sleep(0.05)

    def command(self, *words):
        """One command; the reply's line, a string, or the items of a list of strings."""
        packed = b"*%d\r\n" % len(words) + b"".join(
            b"$%d\r\n%s\r\n" % (len(word), word) for word in (w.encode() if isinstance(w, str) else w for w in words))
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
                connection.sendall(packed)
                stream = connection.makefile("rb")
                line = stream.readline().rstrip(b"\r\n")
                if line.startswith(b"$") and line != b"$-1":
                    return stream.read(int(line[1:]))
                if not line.startswith(b"*"):
                    return line
                items = []
                for _ in range(int(line[1:])):
                    size = int(stream.readline()[1:])
                    items.append(stream.read(size + 2)[:-2])
                return items
        except OSError:
            return None

    def keys(self):
        return self.command("KEYS", "*")

    def flip_a_byte_of_every_value(self):
        for key in self.keys():
            self.command("SETRANGE", key, "5000", b"\xa5\x5a\xa5")

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.thaw()
            self.kill()


def damage_files(folder):
    """Turns bits in every file that holds blocks, every 64 KiB; returns how many bytes were changed."""
    changed = 0
    for root, _, names in os.walk(folder):
        for name in names:
            if not name.endswith((".blob", ".sst", ".log")):
                continue
            path = os.path.join(root, name)
            if name.endswith(".blob"):
                with open(path, "r+b") as file:
                    for at in range(30_000, os.path.getsize(path), 64 << 10):
                        file.seek(at)
                        byte = file.read(1)
                        file.seek(at)
                        file.write(bytes([byte[0] ^ 0x10]))
                        changed += 1
    return changed
