#!/usr/bin/env python3
"""What tiers bring when the working set does not fit: throughput with blocks on disk, and in Redis, over RAM alone.

The working set is measured first (all of it cached), then RAM is cut to a share of it. Each round runs both modes in one
process on one loaded model, in alternating order and with an empty tier; figures are medians. With --redis a redis-server is
started on the loopback interface for each round. Prints Markdown; --json keeps every round.
"""
import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kvlink_bench import add_common_arguments, kvlink_bench, markdown, median, write_json


class Redis:
    """An empty redis-server, for the duration of a with statement."""

    def __enter__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.process = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly",
                                         "no"], stdout=subprocess.DEVNULL)
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return f"redis://127.0.0.1:{port}"
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("redis-server did not start")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def run(arguments, workload, kv_memory, modes, *tiers):
    return kvlink_bench(arguments, "--workload", workload, "--concurrency", str(arguments.concurrency), "--modes", modes,
                        "--ignore-eos", "--kv-memory", str(kv_memory), *tiers)


def interleaved(arguments, workload, folder):
    """The workload's lines as they are run: what belongs together lies apart, as with many users at once."""
    lines = Path(workload).read_text(encoding="utf-8").splitlines()[:arguments.take or None]
    apart = [line for first in range(arguments.interleave) for line in lines[first::arguments.interleave]]
    path = Path(folder) / Path(workload).name
    path.write_text("\n".join(apart[:arguments.limit or None]) + "\n", encoding="utf-8")
    return str(path)


def measure(arguments, workload):
    if arguments.kv_memory:
        kv_memory, working_set = int(arguments.kv_memory) << 20, None
    else:
        working_set = run(arguments, workload, arguments.all_memory, "exact")["modes"]["exact"]["cached_bytes"]
        kv_memory = int(working_set / arguments.times)
    rounds = []
    for number in range(arguments.rounds):
        modes = "exact,tiered" if number % 2 == 0 else "tiered,exact"
        if arguments.redis:
            with Redis() as url:
                figures = run(arguments, workload, kv_memory, modes, "--tier-writes", arguments.writes, "--remote", url)
        else:
            figures = run(arguments, workload, kv_memory, modes, "--tier-writes", arguments.writes)
        if not figures["outputs_equal"]:
            raise RuntimeError(f"{workload}: answers differ between the modes")
        exact, tiered = figures["modes"]["exact"], figures["modes"]["tiered"]
        rounds.append({"order": modes, "exact": exact, "tiered": tiered,
                       "throughput": tiered["req_per_s"] / exact["req_per_s"], "cpu": tiered["cpu_s"] / exact["cpu_s"]})
        print(f"{Path(workload).stem} round {number + 1} of {arguments.rounds}: throughput {rounds[-1]['throughput']:.3f}, CPU "
              f"{rounds[-1]['cpu']:.3f}", file=sys.stderr)
    return {"workload": Path(workload).stem, "working_set": working_set, "kv_memory": kv_memory, "rounds": rounds}


def row(result):
    of = lambda mode, name: median([r[mode][name] for r in result["rounds"]])
    return [result["workload"], f"{result['kv_memory'] / 2**20:.0f} MiB", f"{of('exact', 'hit_rate'):.1%}",
            f"{of('tiered', 'hit_rate'):.1%}", f"{of('tiered', 'loaded_tokens'):.0f}", f"{of('exact', 'req_per_s'):.2f}",
            f"{of('tiered', 'req_per_s'):.2f}", f"{median([r['throughput'] for r in result['rounds']]):.2f}x",
            f"{median([r['cpu'] for r in result['rounds']]):.3f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--workload", action="append", required=True, help="conversations (JSON lines); may be repeated")
    parser.add_argument("--take", type=int, default=0, help="of the first N lines; 0: all")
    parser.add_argument("--interleave", type=int, default=1, help="every N-th line first, then every N-th from the second on, ...")
    parser.add_argument("--limit", type=int, default=0, help="then the first N lines; 0: all")
    parser.add_argument("--concurrency", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=float, default=4, help="working set over RAM")
    parser.add_argument("--all-memory", default="4G", help="RAM that the whole working set fits into")
    parser.add_argument("--kv-memory", type=int, default=0, help="RAM in MiB, instead of a share of the working set")
    parser.add_argument("--writes", default="paid", choices=["paid", "all"], help="kvlink's --tier-writes")
    parser.add_argument("--redis", action="store_true", help="a Redis instead of a disk")
    arguments = parser.parse_args()
    if arguments.redis and shutil.which("redis-server") is None:
        parser.error("--redis: redis-server is not installed")
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(arguments, interleaved(arguments, workload, folder)) for workload in arguments.workload]
    print(markdown(["workload", "RAM", "hit rate", "with tier", "tokens loaded", "requests/s", "with tier", "ratio", "CPU ratio"],
                   [row(result) for result in results]))
    write_json(arguments.json, {"model": Path(arguments.model).name, "threads": arguments.threads,
                                "tier": "remote" if arguments.redis else "cold", "results": results})


if __name__ == "__main__":
    main()
