"""Figures -> PNG. Runs in the plots' virtual environment.

usage: plots.py compare.json OUT_DIR
"""
import json
import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402 (after the choice of the backend)

NAMES = {"kvlink": "kvlink", "kvlink-off": "kvlink, sharing off", "llama-server": "llama-server", "vllm": "vLLM (CPU)"}


def series(part, figure):
    """Peer -> [(x, median, lowest, highest)], ascending."""
    lines = {}
    for case in part.values():
        for peer, result in case.items():
            found = [r[figure] for r in result.get("rounds", {}).values() if r.get(figure) is not None]
            if found:
                lines.setdefault(peer, []).append((result["x"], statistics.median(found), min(found), max(found)))
    return {peer: sorted(points) for peer, points in lines.items()}


def draw(part, figure, labels, path):
    lines = series(part, figure)
    if not lines:
        return
    title, x_label, y_label = labels
    figure_, axes = plt.subplots(figsize=(7, 4.5), dpi=150)
    for peer, points in lines.items():
        x, y, low, high = zip(*points)
        bars = [[m - l for m, l in zip(y, low)], [h - m for m, h in zip(y, high)]]
        axes.errorbar(x, y, yerr=bars, marker="o", capsize=3, label=NAMES.get(peer, peer))
    axes.set(title=title, xlabel=x_label, ylabel=y_label, yscale="log")
    axes.set_xticks([point[0] for point in max(lines.values(), key=len)])
    axes.get_xaxis().set_major_formatter(matplotlib.ticker.ScalarFormatter())
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure_.tight_layout()
    figure_.savefig(path)
    plt.close(figure_)


def main():
    data = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(sys.argv[2])
    machine = f"{data['model']}, {data['machine']['cpu']}, {data['threads']} threads"
    draw(data["results"].get("concurrency", {}), "latency_mean",
         (f"Latency against concurrency\n{machine}", "users at once", "mean latency, s"), folder / "latency.png")
    draw(data["results"].get("shared", {}), "gen_tok_per_s",
         (f"Throughput against shared length, {data['concurrency']} users\n{machine}", "tokens that all requests share",
          "generated tokens/s"), folder / "throughput.png")


if __name__ == "__main__":
    main()
