"""The figures of docs/vllm.md: vLLM on CPU with and without the connector. Two cores, about ten minutes.

usage: PYTHONPATH=build/release/python python python/bench/vllm_figures.py restart|steady
  restart   time to the first token of a 4,096-token prompt after a restart, with and without
  steady    fresh prompts and decode: plain vLLM, the connector, and the connector on the cores that
            vLLM takes by itself when it sees one
"""

import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests")]
from vllm_process import Vllm, environment_of_vllm  # noqa: E402

ENGINE = {"dtype": "bfloat16", "kv_cache_memory_bytes": 400 << 20, "max_num_batched_tokens": 4608}
ROUNDS = 5


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
          f"{metrics['vllm:kvlink_load_blocks_cold']:.0f} blocks from disk, "
          f"{metrics['vllm:kvlink_load_seconds']:.3f} s of loading in all")


def steady(folder, log):
    """Three engines that wait while another is measured, so that what else runs hits all alike."""
    from processes import cpu_seconds

    tiers = {"ram_bytes": "256MiB", "cold_dir": str(folder / "cold")}
    fresh, decode, cpu = ({name: [] for name in ("plain", "connector", "vLLM's cores")}
                          for _ in range(3))
    with Vllm(None, log, ENGINE) as plain, Vllm(tiers, log, ENGINE) as connector, \
            Vllm({"ram_bytes": "64MiB"}, log, ENGINE, {}) as all_cores:
        engines = {"plain": plain, "connector": connector, "vLLM's cores": all_cores}
        for vllm in engines.values():
            vllm.generate([prompt(99, 64)], 4)
        for i in range(ROUNDS):
            for name, vllm in engines.items():
                before = cpu_seconds(vllm.process.pid)
                prompts = [prompt(1000 + 10 * i + j, 1024) for j in range(2)]
                fresh[name].append(vllm.generate(prompts, 48)["seconds"])
                cpu[name].append(cpu_seconds(vllm.process.pid) - before)
                decode[name] += vllm.ask(steps=48, rounds=2, prompt=prompt(50, 200))["all"]
    print("alternating rounds; a ratio is the median over the rounds of this engine / plain")
    for what, figures in (("two fresh prompts of 1,024 tokens, 48 tokens each, s", fresh),
                          ("CPU time of that, all processes, s", cpu),
                          ("decode alone, s a token", decode)):
        print(f"  {what}")
        for name, values in figures.items():
            ratio = statistics.median(a / b for a, b in zip(values, figures["plain"]))
            print(f"    {name:14} {spread(values)}  ratio {ratio:.3f}")


def main():
    environment_of_vllm()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "vllm.log"
        {"restart": restart, "steady": steady}[sys.argv[1]](Path(folder), log)


if __name__ == "__main__":
    main()
