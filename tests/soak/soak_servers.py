"""The servers of a soak: two that share a Redis, one of them over TLS, both with tenants and similar reuse; and what
can be seen of them from outside."""
import collections
import json
import os
import pathlib
import secrets
import signal
import statistics
import subprocess

import httpx
from conftest import PATIENCE_S, key_line
from tier_tools import TierServer

MIB = 1 << 20
KV_MEMORY, COLD_SIZE = "40M", "40M"  # full all the time
DEVICE_BYTES = 1 << 30  # of a file system for one cold store alone; memory is taken by what lies in it
TIGHT_BYTES = 16 * MIB
MOST_GROWTH_MIB = 24  # of the resident memory, over the phases without restarts
MOST_MORE_FILES, MOST_MORE_THREADS = 16, 4
LEAST_SAMPLES = 16
GRACE_S = 120  # what runs when a server is told to end may finish
OPERATOR = "ops"

# A key is the name of its tenant.
TENANTS = [{"tenant": "acme"},
           {"tenant": "red", "sharing": "group", "group": "colours"}, {"tenant": "blue", "sharing": "group", "group": "colours"},
           {"tenant": "solo", "sharing": "none", "max_requests": 2}, {"tenant": "clinic", "sensitive": True},
           {"tenant": "tight", "cache_bytes": TIGHT_BYTES, "weight": 3}, {"tenant": "paced", "requests_per_minute": 30}]
KEYS = [settings["tenant"] for settings in TENANTS]


def mount(target, *options):
    """False: the system refuses."""
    return subprocess.run(["mount", *options, str(target)], check=False, timeout=PATIENCE_S, capture_output=True).returncode == 0


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def write_keys(path):
    """The same keys and tenants as ever, and one that nobody knows: a file that changed."""
    lines = [key_line(key, key) for key in KEYS] + [key_line(OPERATOR, "acme", ("inference", "metrics", "admin")),
                                                    key_line(secrets.token_hex(8), "acme")]
    lines += [json.dumps(settings) for settings in TENANTS if len(settings) > 1]
    replace(path, "\n".join(lines) + "\n")


def replace(path, text):
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def write_certificate(folder):
    """A key and its own certificate in one file, so that a server never reads one half of a pair."""
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                           "-subj", "/CN=localhost", "-keyout", "/dev/stdout", "-out", "/dev/stdout"],
                          check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    replace(folder / "tls.pem", made.stdout)


class SoakServer(TierServer):
    """A server that asks for keys, and may speak TLS."""

    def __init__(self, folder, *options, kv_memory):
        super().__init__(folder, *options, kv_memory=kv_memory)
        self.http.close()
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S, verify=False, headers=bearer(OPERATOR))

    @property
    def pid(self):
        return self._process.pid

    def exit_code(self):
        return self._process.poll()

    def end(self):
        """SIGTERM. What runs is finished, and what is in RAM is written; the exit code."""
        TierServer.running.discard(self)
        self.http.close()
        self._process.terminate()
        try:
            return self._process.wait(timeout=PATIENCE_S)
        finally:
            self._process.kill()
            self._log.close()

    def reload(self):
        self._process.send_signal(signal.SIGHUP)

    def metrics(self):
        """Every line of /metrics: (name, {label: value}, number)."""
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith("#"):
                continue
            name, number = line.rsplit(" ", 1)
            name, _, labels = name.partition("{")
            pairs = (pair.partition("=") for pair in labels.rstrip("}").split(",") if pair)
            yield name, {key: value.strip('"') for key, _, value in pairs}, float(number)

    def sample(self):
        """Resident MiB, descriptors, threads."""
        folder = pathlib.Path(f"/proc/{self.pid}")
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
        return int(status["VmRSS"].split()[0]) / 1024, len(list((folder / "fd").iterdir())), int(status["Threads"])


class Replica:
    """One of the servers, through all its restarts. `epoch` counts those; while one is under way requests may be cut off."""

    def __init__(self, soak, number, redis_url):
        self.soak, self.name = soak, f"server {number}"
        self.folder = soak.folder / f"server{number}"
        self.folder.mkdir()
        self.cold = self.folder / "cold"
        self.cold.mkdir()
        self.has_own_device = (number == 0 and soak.may_mount
                               and mount(self.cold, "-t", "tmpfs", "-o", f"size={DEVICE_BYTES}", "none"))
        self.keys = self.folder / "keys"
        write_keys(self.keys)
        options = ["--api-keys", str(self.keys), "--cold-dir", str(self.cold), "--cold-size", COLD_SIZE, "--remote",
                   redis_url, "--tier-writes", "all", "--similar", "on", "--shutdown-grace", str(GRACE_S),
                   "--output-memory", "2M"]
        self.speaks_tls = number == 0
        if self.speaks_tls:
            write_certificate(self.folder)
            options += ["--tls-cert", str(self.folder / "tls.pem"), "--tls-key", str(self.folder / "tls.pem")]
        self.server = SoakServer(self.folder, *options, kv_memory=KV_MEMORY)
        self.epoch, self.restarting = 0, False
        self.total_pages = {}  # by epoch
        self.samples = []      # of the phases without restarts

    def resize_device(self, size):
        return mount(self.cold, "-o", f"remount,size={size}")

    def unmount(self):
        if self.has_own_device:
            subprocess.run(["umount", str(self.cold)], check=False)

    def is_up(self, epoch):
        return not self.restarting and self.epoch == epoch

    def restart(self, end):
        """`end` ends the server, which then starts again."""
        self.restarting = True
        self.epoch += 1
        end(self.server)
        arguments, more = self.server.arguments
        self.server = SoakServer(*arguments, **more)
        self.restarting = False

    def reload(self):
        write_keys(self.keys)
        if self.speaks_tls:
            write_certificate(self.folder)
        self.server.reload()

    # --- what must hold at any time ---

    def look(self, steady):
        if self.restarting:
            return
        epoch, server = self.epoch, self.server
        try:
            code = server.exit_code()
            if code is not None and self.is_up(epoch):
                self.soak.fail(f"{self.name} ended with {code}")
                self.soak.over.set()
                return
            self.check_metrics(epoch, list(server.metrics()))
            if steady and self.is_up(epoch):
                self.samples.append(server.sample())
        except Exception as error:  # noqa: BLE001: a restart closes the client under us, whatever that makes of it
            if self.is_up(epoch):
                self.soak.fail(f"{self.name}: /metrics: {error!r}")

    def check_metrics(self, epoch, metrics):
        values = collections.defaultdict(dict)
        for name, labels, number in metrics:
            if name in ("kvlink_blocks", "kvlink_kv_bytes"):
                values[name][labels["state"]] = number
            elif name.startswith("kvlink_tenant_kv_") and labels["tenant"] == "tight":
                values[name] = number
            elif name == "kvlink_http_requests_total" and labels["status"] >= "500" and labels["status"] not in ("503", "504"):
                self.soak.fail(f"{self.name}: {labels} {number}")
        blocks, in_bytes = values["kvlink_blocks"], values["kvlink_kv_bytes"]
        total = sum(blocks.values())
        if total == 0 or self.total_pages.setdefault(epoch, total) != total:
            self.soak.fail(f"{self.name}: {blocks} are not {self.total_pages.get(epoch)} pages")
        if in_bytes["in_use"] + in_bytes["cached"] > in_bytes["budget"]:
            self.soak.fail(f"{self.name}: more than the budget: {in_bytes}")
        if values.get("kvlink_tenant_kv_bytes", 0) > TIGHT_BYTES:
            self.soak.fail(f"{self.name}: a tenant holds {values['kvlink_tenant_kv_bytes']} bytes, its quota is {TIGHT_BYTES}")
        self.soak.count("looks at the pages")

    # --- what must hold when nobody asks anything ---

    def check_quiet(self, prompts):
        server = self.server
        if server.exit_code() is not None:
            return self.soak.fail(f"{self.name} is gone: {server.exit_code()}")
        server.wait_until_idle()
        # Shadows run when nobody asks; they come to an end.
        server.wait_for(lambda: server.metric("kvlink_blocks", state="in_use") + server.metric("kvlink_kv_bytes", state="in_use") == 0)
        server.wait_for(lambda: server.metric("kvlink_http_connections") <= 2)  # ours
        device, budget = (server.metric("kvlink_tier_bytes", tier="cold", kind=kind) for kind in ("device", "budget"))
        if device > budget:
            self.soak.fail(f"{self.name}: the cold store takes {device} bytes of {budget}")
        self.soak.check_answers(self, prompts)

    def check_growth(self, must):
        if len(self.samples) < LEAST_SAMPLES:
            if must:
                self.soak.fail(f"{self.name}: only {len(self.samples)} samples of the memory")
            return
        # The first quarter warms up: pools, arenas and caches fill.
        quarter = len(self.samples) // 4
        first, last = self.samples[quarter:2 * quarter], self.samples[-quarter:]
        names = (("resident MiB", MOST_GROWTH_MIB), ("descriptors", MOST_MORE_FILES), ("threads", MOST_MORE_THREADS))
        for i, (name, most) in enumerate(names):
            before, after = (statistics.median(sample[i] for sample in part) for part in (first, last))
            self.soak.note(f"{self.name}: {name} before, after", [round(before, 1), round(after, 1)])
            if must and after - before > most:
                self.soak.fail(f"{self.name}: {name}: {before:.1f} became {after:.1f}, allowed are {most} more")

    def tell(self):
        """What its life came to since its last start."""
        for name, labels, number in self.server.metrics():
            if name == "kvlink_reuse_tokens_total" and number:
                self.soak.count(f"tokens reused from {labels['tier']}", int(number))
            elif name == "kvlink_tier_errors_total" and number:
                self.soak.count(f"tier errors: {labels['tier']} {labels['op']} {labels['reason']}", int(number))
            elif name == "kvlink_tier_blocks_total" and labels["outcome"] == "evicted":
                self.soak.count(f"blocks evicted from {labels['tier']}", int(number))
            elif name in ("kvlink_tenant_quota_evictions_total", "kvlink_preemptions_total", "kvlink_tier_breaker_openings_total",
                          "kvlink_evicted_blocks_total", "kvlink_single_flight_waits_total", "kvlink_shadows_total",
                          "kvlink_tls_failed_handshakes_total", "kvlink_shadow_failures_total"):
                self.soak.count(name, int(number))

    def check_logs(self):
        for log in sorted(self.folder.glob("log-*")):
            for line in log.read_text(errors="replace").splitlines():
                if any(bad in line for bad in ("CHECK", "terminate called", "GGML_ASSERT", "AddressSanitizer")):
                    self.soak.fail(f"{self.name}: {log.name}: {line[:300]}")
