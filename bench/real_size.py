#!/usr/bin/env python3
"""A model of real size on this machine, end to end: a Llama-2-7B shape in Q4_0 with random weights serves customer service.

usage: .deps/venv/bin/python bench/real_size.py --workload customer_service.jsonl [options]

Makes the model (3.9 GB) in a temporary folder, cuts the workload to a few users, turns and short answers, and measures
memory, prefill and decoding with sharing off and exact (`kvlink bench`), then `kvlink serve` beside llama-server and the raw
operations beside llama.cpp's tools (bench/compare). Random weights say nothing, but cost what real ones cost. Takes some
twenty minutes on two cores; --out gets real_size.md and the comparison's files.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from kvlink_bench import ROOT, default_model, kvlink_bench, markdown, write_json

HERE = Path(__file__).resolve().parent
GIB = 1 << 30


def cut(path, users, turns, max_tokens, target):
    """The first users of a workload, each with fewer turns and shorter answers."""
    lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()][:users]
    for line in lines:
        line["turns"] = [{**turn, "max_tokens": min(turn["max_tokens"], max_tokens)} for turn in line["turns"][:turns]]
    target.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return target


def in_process(arguments, workload):
    """Both modes in one process: memory, and that every token is equal."""
    figures = kvlink_bench(arguments, "--workload", str(workload), "--modes", "exact,off", "--ignore-eos",
                           "--concurrency", str(arguments.users))
    rows = []
    for name in ("off", "exact"):
        mode = figures["modes"][name]
        rows.append([name, f"{mode['peak_kv_bytes'] / GIB:.2f} GiB", f"{mode['rss_bytes'] / GIB:.2f} GiB",
                     f"{mode['computed_tokens']} of {mode['prompt_tokens']}", f"{mode['wall_s']:.1f} s",
                     f"{mode['ttft_p50']:.1f} / {mode['ttft_p95']:.1f} s", f"{1 / mode['itl_p50']:.2f}" if mode["itl_p50"] else "-"])
    header = ["sharing", "peak KV", "peak resident", "prompt tokens computed", "wall", "TTFT p50 / p95", "tokens/s of a user (median)"]
    same = "yes" if figures["outputs_equal"] else "NO"
    return figures, f"## In process, {arguments.users} users\n\n{markdown(header, rows)}\n\nOutputs equal: {same}."


def compare(arguments, model, workload, out):
    command = [sys.executable, str(HERE / "compare"), "--kvlink", arguments.kvlink, "--model", str(model), "--threads",
               str(arguments.threads), "--out", str(out), "--peers", "llama.cpp", "--parts", arguments.parts, "--rounds", "1",
               "--workloads", str(workload), "--limits", f"{workload.stem}=0", "--concurrency", str(arguments.users),
               "--context", "4096", "--decode-tokens", "16", "--kv-memory", str(6 * GIB), "--run-timeout", "1800",
               "--operations", f"prefill:512,decode:512,shared:{arguments.users}x512,distinct:{arguments.users}x512"]
    return subprocess.run(command, check=False).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--kvlink", default=str(ROOT / "build" / "release" / "kvlink"), help="executable")
    add("--threads", type=int, default=2)
    add("--workload", default=str(HERE / "workloads" / "smoke.jsonl"))
    add("--shape", default="llama2-7b", help="as of make_random_model.py")
    add("--type", default="Q4_0")
    add("--model", help="a model made before, which is kept")
    add("--users", type=int, default=3)
    add("--turns", type=int, default=2)
    add("--max-tokens", type=int, default=8)
    add("--parts", default="ops,http,off", help="of bench/compare; empty: none")
    add("--out", default=str(ROOT / "build" / "real_size"))
    arguments = parser.parse_args()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.model is None:
            arguments.model = str(Path(folder) / f"random-{arguments.shape}-{arguments.type}.gguf")
            subprocess.run([sys.executable, str(HERE / "make_random_model.py"), arguments.model, "--shape", arguments.shape,
                            "--type", arguments.type, "--vocabulary", default_model()], check=True)
        model = Path(arguments.model)
        workload = cut(arguments.workload, arguments.users, arguments.turns, arguments.max_tokens,
                       Path(folder) / Path(arguments.workload).name)
        print("kvlink bench, sharing exact and off ...", file=sys.stderr)
        figures, text = in_process(arguments, workload)
        title = f"# {model.name}, {model.stat().st_size / GIB:.2f} GiB, {arguments.threads} threads"
        (out / "real_size.md").write_text(f"{title}\n\n{text}\n", encoding="utf-8")
        write_json(out / "real_size.json", figures)
        print(f"{title}\n\n{text}\n", flush=True)
        return compare(arguments, model, workload, out) if arguments.parts else 0


if __name__ == "__main__":
    sys.exit(main())
