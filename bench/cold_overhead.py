#!/usr/bin/env python3
"""What sharing costs where nothing can be shared: CPU time of a cold workload with sharing exact, over that with it off.

Each round runs both modes in one process on one loaded model, in alternating order; the figure is the median of the rounds'
ratios of process CPU time, so that one disturbed round does not matter. Prints Markdown; --json keeps every round.
"""
import argparse
import sys
from pathlib import Path

from kvlink_bench import add_common_arguments, kvlink_bench, markdown, median, write_json


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--workload", required=True, help="conversations that share nothing (JSON lines)")
    parser.add_argument("--limit", type=int, default=0, help="first N lines; 0: all")
    parser.add_argument("--concurrency", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--most", type=float, default=1.02, help="largest ratio that is fine")
    parser.add_argument("--check", action="store_true", help="exit 1 when the ratio is above --most")
    arguments = parser.parse_args()

    rounds = []
    for number in range(arguments.rounds):
        modes = "off,exact" if number % 2 == 0 else "exact,off"
        figures = kvlink_bench(arguments, "--workload", arguments.workload, "--limit", str(arguments.limit),
                               "--concurrency", str(arguments.concurrency), "--modes", modes, "--ignore-eos")
        off, exact = figures["modes"]["off"], figures["modes"]["exact"]
        rounds.append({"order": modes, "off_cpu_s": off["cpu_s"], "exact_cpu_s": exact["cpu_s"],
                       "ratio": exact["cpu_s"] / off["cpu_s"], "cached_tokens": exact["cached_tokens"],
                       "prompt_tokens": exact["prompt_tokens"]})
        print(f"round {number + 1} of {arguments.rounds}: {rounds[-1]['ratio']:.4f}", file=sys.stderr)

    ratio = median([r["ratio"] for r in rounds])
    print(markdown(["round", "order", "off CPU s", "exact CPU s", "ratio"],
                   [[i + 1, r["order"], f"{r['off_cpu_s']:.2f}", f"{r['exact_cpu_s']:.2f}", f"{r['ratio']:.4f}"]
                    for i, r in enumerate(rounds)]))
    print(f"\nmedian ratio {ratio:.4f} (aim: at most {arguments.most:.2f})")
    write_json(arguments.json, {"model": Path(arguments.model).name, "workload": Path(arguments.workload).name,
                                "threads": arguments.threads, "median_ratio": ratio, "rounds": rounds})
    return 1 if arguments.check and ratio > arguments.most else 0


if __name__ == "__main__":
    sys.exit(main())
