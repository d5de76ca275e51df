"""The figures of docs/vllm.md: vLLM on CPU with and without the connector. Two cores, minutes each.

usage: PYTHONPATH=build/release/python python python/bench/vllm_figures.py restart|steady [N]|cores|lmcache [N]
  restart   time to the first token of a 4,096-token prompt after a restart, with and without
  steady    fresh prompts and decode: plain vLLM and the connector, N rounds
  cores     the same with the connector on the cores that vLLM takes by itself when it sees one
  lmcache   [N] restart and fresh prompts with LMCache's connector beside `lmcache server`; needs lmcache
            and sortedcontainers in vLLM's environment (or on PYTHONPATH)
"""

import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests")]
from vllm_process import Vllm, environment_of_vllm  # noqa: E402

ENGINE = {"dtype": "bfloat16", "kv_cache_memory_bytes": 400 << 20, "max_num_batched_tokens": 4608}
ROUNDS, WARM_ROUNDS = 5, 3
SETTLE_S = 2  # in which the connector writes what waits


def prompt(seed, size):
    return [int(t) for t in np.random.default_rng(seed).integers(1000, 20000, size)]


def spread(seconds):
    return (f"median {statistics.median(seconds):.3f} s "
            f"({min(seconds):.3f} to {max(seconds):.3f}, n = {len(seconds)})")


def first_tokens(vllm, prompts):
    vllm.generate([prompt(99, 64)], 1)  # the first request of a process warms it up
    return [vllm.generate([tokens], 1)["seconds"] for tokens in prompts]


def restart(folder, log):
    prompts = [prompt(seed, 4096) for seed in (1, 2, 3)]
    connector = {"ram_bytes": "512MiB", "cold_dir": str(folder / "cold")}
    with Vllm(connector, log, ENGINE) as vllm:
        computed = first_tokens(vllm, prompts)
    with Vllm(None, log, ENGINE) as vllm:
        plain = first_tokens(vllm, prompts)
    with Vllm(connector, log, ENGINE) as vllm:
        loaded = first_tokens(vllm, prompts)
        metrics = vllm.metrics()
    print("4,096 tokens, time to the first token")
    print(f"  plain vLLM after a restart       {spread(plain)}")
    print(f"  connector, nothing stored yet    {spread(computed)}")
    print(f"  connector after a restart        {spread(loaded)}")
    print(f"  ratio of medians: {statistics.median(plain) / statistics.median(loaded):.1f}; "
          f"{metrics['vllm:kvlink_load_blocks_cold']:.0f} blocks from disk")


class Alternating:
    """Rounds of engines that wait while another is measured, so that what else runs hits all alike. A
    ratio is the median over the rounds of an engine's figure / the first engine's beside it."""

    def __init__(self, engines):
        self._engines = engines
        self._figures = {}  # what -> engine -> values

    def run(self, rounds, measure):
        """measure(vllm, round) -> {what: value}. Every other round goes backwards."""
        for i in range(rounds):
            for name in list(self._engines)[:: 1 if i % 2 == 0 else -1]:
                for what, value in measure(self._engines[name], i).items():
                    self._figures.setdefault(what, {}).setdefault(name, []).append(value)

    def print(self):
        for what, of_engine in self._figures.items():
            print(f"  {what}")
            first = next(iter(self._engines))
            for name in self._engines:
                values = of_engine[name]
                ratios = [a / b for a, b in zip(values, of_engine[first])]
                print(f"    {name:14} {spread(values)}  ratio {statistics.median(ratios):.3f} "
                      f"({min(ratios):.3f} to {max(ratios):.3f})", flush=True)


def fresh_round(vllm, i, others=()):
    """Two prompts that nobody has seen, then time in which what waits is written; then decode alone.
    others: processes that belong to this engine, too."""
    from processes import cpu_seconds

    def cpu():
        return sum(cpu_seconds(process.pid) for process in (vllm.process, *others))

    before = cpu()
    seconds = vllm.generate([prompt(1000 + 10 * i + j, 1024) for j in range(2)], 48)["seconds"]
    busy = cpu() - before
    time.sleep(SETTLE_S)
    after = cpu() - before
    decode = vllm.ask(steps=48, rounds=1, prompt=prompt(50, 200))["median"]
    return {"two fresh prompts of 1,024 tokens, 48 tokens each, s": seconds,
            "CPU time of that, all processes, s": busy,
            f"CPU time with the {SETTLE_S} s after it, s": after,
            "decode alone, s a token": decode}


def steady(folder, log):
    """Plain vLLM and the connector, whose RAM is full after the rounds that are not counted."""
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    tiers = {"ram_bytes": f"{WARM_ROUNDS * 45}MiB", "cold_dir": str(folder / "cold")}
    with Vllm(None, log, ENGINE) as plain, Vllm(tiers, log, ENGINE) as connector:
        engines = {"plain": plain, "connector": connector}
        Alternating(engines).run(WARM_ROUNDS, lambda vllm, i: fresh_round(vllm, 1000 + i))
        figures = Alternating(engines)
        figures.run(rounds, fresh_round)
        figures.print()
        metrics = connector.metrics()
        print(f"  connector: {metrics['vllm:kvlink_save_blocks']:.0f} blocks in all, "
              f"{metrics['vllm:kvlink_save_blocks_dropped']:.0f} dropped")


def cores(folder, log):
    """The connector on the cores that vLLM takes by itself when it sees one."""
    with Vllm(None, log, ENGINE) as plain, \
            Vllm({"ram_bytes": "64MiB", "cold_dir": str(folder / "cold")}, log, ENGINE, {}) as taken:
        figures = Alternating({"plain": plain, "vLLM's cores": taken})
        figures.run(3, fresh_round)
        figures.print()


@contextlib.contextmanager
def lmcache_server(python, log):
    """`lmcache server` in shared memory; gives the arguments of a vLLM that uses it."""
    with socket.socket() as a, socket.socket() as b:
        for probe in (a, b):
            probe.bind(("127.0.0.1", 0))
        port, http = a.getsockname()[1], b.getsockname()[1]
    environment = {**os.environ, "LMCACHE_TRACK_USAGE": "false", "DO_NOT_TRACK": "1"}
    with open(log, "a", encoding="utf-8") as log_file:
        server = subprocess.Popen(
            [str(python), "-c", "import sys; from lmcache.cli.main import main; sys.exit(main())", "server",
             "--host", "127.0.0.1", "--port", str(port), "--http-host", "127.0.0.1", "--http-port", str(http),
             "--chunk-size", "128", "--l1-size-gb", "1", "--eviction-policy", "LRU",
             "--disable-observability", "--supported-transfer-mode", "lmcache_driven"],
            stdout=log_file, stderr=log_file, env=environment)
    try:
        deadline = time.monotonic() + 120
        while True:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"lmcache server: {Path(log).read_text()[-2000:]}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", http), 1):
                break
            time.sleep(0.2)
        yield server, {**ENGINE, "kv_transfer_config": {
            "kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
            "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector",
            "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port,
                                          "lmcache.mp.mp_transfer_mode": "lmcache_driven"}}}
    finally:
        server.terminate()
        server.wait(30)


def lmcache(folder, log):
    """Alternating rounds of fresh prompts, then a restart of each with its prompts stored: in files
    (KVLink), in the memory of the server, which goes on (LMCache)."""
    python, _model = environment_of_vllm()
    os.environ["LMCACHE_TRACK_USAGE"] = "false"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    tiers = {"ram_bytes": "512MiB", "cold_dir": str(folder / "cold")}
    prompts = [prompt(seed, 4096) for seed in (1, 2, 3)]
    with lmcache_server(python, log) as (server, engine):
        with Vllm(None, log, ENGINE) as plain, Vllm(tiers, log, ENGINE) as ours, \
                Vllm(None, log, engine) as theirs:
            others = {theirs: (server,)}
            figures = Alternating({"plain": plain, "kvlink": ours, "lmcache": theirs})
            figures.run(1, lambda vllm, i: fresh_round(vllm, 1000 + i) and {})
            figures.run(rounds, lambda vllm, i: fresh_round(vllm, i, others.get(vllm, ())))
            figures.print()
            for vllm in (ours, theirs):
                first_tokens(vllm, prompts)
        print("  first token of 4,096 tokens after a restart, s")
        for name, connector, arguments in (("plain", None, ENGINE), ("kvlink", tiers, ENGINE),
                                           ("lmcache", None, engine)):
            with Vllm(connector, log, arguments) as vllm:
                print(f"    {name:14} {spread(first_tokens(vllm, prompts))}", flush=True)


def main():
    environment_of_vllm()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "vllm.log"
        {"restart": restart, "steady": steady, "cores": cores, "lmcache": lmcache}[sys.argv[1]](Path(folder), log)


if __name__ == "__main__":
    main()
