#!/usr/bin/env python3
"""What similar reuse costs where there is nothing similar: CPU time of a workload in mode similar, over mode exact.

Each round runs both modes in one process on one loaded model, in alternating order; the figure is the median of the rounds'
ratios of process CPU time, so that one disturbed round does not matter. Beside it the share of the time that looking for
donors took, and how many requests found one: a workload in which many do says nothing here. Prints Markdown; --json keeps
every round.
"""
import argparse
import sys
from pathlib import Path

from kvlink_bench import add_common_arguments, kvlink_bench, markdown, median, write_json


def measure(arguments, modes):
    """CPU seconds of both modes, and what mode similar says of itself."""
    figures = kvlink_bench(arguments, "--workload", arguments.workload, "--limit", str(arguments.limit), "--concurrency",
                           str(arguments.concurrency), "--modes", modes, "--similar", arguments.similar, "--ignore-eos",
                           *(["--calibration", arguments.calibration] if arguments.calibration else []))
    exact, similar = figures["modes"]["exact"], figures["modes"]["similar"]
    return {"order": modes, "exact_cpu_s": exact["cpu_s"], "similar_cpu_s": similar["cpu_s"],
            "ratio": similar["cpu_s"] / exact["cpu_s"], "match_share": similar["match_share"],
            "similar_match_share": similar["similar_match_share"], "requests": similar["requests"],
            "accepted": similar["accepted"], "fallbacks": sum(similar["fallbacks"].values()),
            "errors": exact["errors"] + similar["errors"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--workload", required=True, help="conversations without similar donors (JSON lines)")
    parser.add_argument("--limit", type=int, default=0, help="first N lines; 0: all")
    parser.add_argument("--concurrency", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--similar", default="on", choices=["on", "strict"])
    parser.add_argument("--calibration", help="calibration file; default: the one shipped for the model")
    parser.add_argument("--most", type=float, default=1.01, help="largest ratio that is fine")
    parser.add_argument("--most-matching", type=float, default=0.01, help="largest share of looking for donors that is fine")
    parser.add_argument("--check", action="store_true", help="exit 1 when one of them is above")
    arguments = parser.parse_args()

    rounds = []
    for number in range(arguments.rounds):
        rounds.append(measure(arguments, "exact,similar" if number % 2 == 0 else "similar,exact"))
        print(f"round {number + 1} of {arguments.rounds}: {rounds[-1]['ratio']:.4f}", file=sys.stderr)

    ratio = median([r["ratio"] for r in rounds])
    matching = median([r["similar_match_share"] for r in rounds])
    found = max(r["accepted"] + r["fallbacks"] for r in rounds)
    print(markdown(["round", "order", "exact CPU s", "similar CPU s", "ratio", "looking for donors", "all matching"],
                   [[i + 1, r["order"], f"{r['exact_cpu_s']:.2f}", f"{r['similar_cpu_s']:.2f}", f"{r['ratio']:.4f}",
                     f"{100 * r['similar_match_share']:.3f} %", f"{100 * r['match_share']:.3f} %"]
                    for i, r in enumerate(rounds)]))
    print(f"\nmedian ratio {ratio:.4f} (aim: at most {arguments.most:.2f}); looking for donors "
          f"{100 * matching:.3f} % of the time (aim: at most {100 * arguments.most_matching:.0f} %); "
          f"{found} of {rounds[0]['requests']} requests found a donor")
    write_json(arguments.json, {"model": Path(arguments.model).name, "workload": Path(arguments.workload).name,
                                "threads": arguments.threads, "median_ratio": ratio, "median_similar_match_share": matching,
                                "rounds": rounds})
    if any(r["errors"] for r in rounds):
        print("some requests failed", file=sys.stderr)
        return 1
    return 1 if arguments.check and (ratio > arguments.most or matching > arguments.most_matching) else 0


if __name__ == "__main__":
    sys.exit(main())
