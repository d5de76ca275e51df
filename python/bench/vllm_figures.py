"""The figures of docs/vllm.md: vLLM on CPU with and without the connector. Two cores, about ten minutes.

usage: PYTHONPATH=build/release/python python python/bench/vllm_figures.py restart|steady|binding
  restart   time to the first token of a 4,096-token prompt after a restart, with and without
  steady    fresh prompts and decode, plain and connector alternating
  binding   decode with the cores that vLLM takes when it sees a connector, and with one
"""

import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests")]
from vllm_process import ONE_COMPUTING_CORE, Vllm, environment_of_vllm  # noqa: E402

ENGINE = {"dtype": "bfloat16", "kv_cache_memory_bytes": 400 << 20, "max_num_batched_tokens": 4608}


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
    from processes import cpu_seconds

    figures = {"plain": [], "connector": []}
    connector = {"ram_bytes": "512MiB", "cold_dir": str(folder / "cold")}
    with Vllm(None, log, ENGINE) as plain, Vllm(connector, log, ENGINE) as with_connector:
        for name, vllm in (("plain", plain), ("connector", with_connector)):
            vllm.generate([prompt(99, 64)], 4)
        for i in range(4):
            for name, vllm in (("plain", plain), ("connector", with_connector)):
                before = cpu_seconds(vllm.process.pid)
                fresh = vllm.generate([prompt(1000 + 10 * i + j, 1024) for j in range(2)], 64)
                decode = vllm.ask(steps=64, rounds=1, prompt=prompt(50, 200))
                figures[name].append((fresh["seconds"], decode["median"],
                                      cpu_seconds(vllm.process.pid) - before))
    print("alternating rounds: two fresh prompts of 1,024 tokens with 64 tokens each; decode alone")
    for at, what in enumerate(("fresh prompts, s", "decode, s a token", "CPU time of all processes, s")):
        a, b = ([round_[at] for round_ in figures[name]] for name in ("plain", "connector"))
        ratio = statistics.median(b) / statistics.median(a)
        print(f"  {what:30} plain {statistics.median(a):.4f}  connector {statistics.median(b):.4f}"
              f"  ratio {ratio:.3f}")


def binding(folder, log):
    connector = {"ram_bytes": "64MiB"}
    for name, options, environment in (("plain", None, {}), ("connector, vLLM's choice", connector, {}),
                                       ("connector, one core", connector, ONE_COMPUTING_CORE)):
        with Vllm(options, log, ENGINE, environment) as vllm:
            vllm.generate([prompt(99, 64)], 4)
            times = vllm.ask(steps=48, rounds=4, prompt=prompt(50, 200))["all"]
            print(f"  {name:26} {spread(times)} a token")


def main():
    environment_of_vllm()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "vllm.log"
        {"restart": restart, "steady": steady, "binding": binding}[sys.argv[1]](Path(folder), log)


if __name__ == "__main__":
    main()
