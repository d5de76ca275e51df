#!/usr/bin/env python3
"""Compares KVLink's raw operations with llama.cpp's own tools, on this machine, interleaved.

Builds llama-bench and llama-batched-bench from the same llama.cpp version that KVLink is built on, in a folder of their own
and with llama.cpp's best defaults (this machine's instructions, OpenMP, llamafile's products, repacked weights). Each round
measures every operation with both, one right after the other, and the order turns with each round, so that a busy
neighbour hits both. Prints medians and the median of the rounds' ratios as Markdown; --json keeps every round.

KVLink runs with F16 KV; llama.cpp with flash attention (F16 KV) and, per operation, the layout of the KV cache that is
faster there: unified for a shared prefix, one per sequence for distinct contexts.
"""
import argparse
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from kvlink_bench import ROOT, add_common_arguments, kvlink_bench, markdown, median, run, write_json

# Operation -> least ratio to llama.cpp that is aimed at (issue 3, point c); None: shown only.
OPERATIONS = {
    "prefill:512": 0.97,
    "prefill:2048": 1.1,
    "decode:2048": 1.4,
    "shared:10x2048": 1.75,
    "distinct:10x2048": None,
}


def sources(given):
    """The whole tree: what the set-up unpacks leaves llama.cpp's tools out."""
    if given:
        return Path(given)
    target = ROOT / ".deps" / "llama.cpp-tools"
    if not (target / "tools" / "llama-bench").is_dir():
        with tempfile.TemporaryDirectory() as folder:
            print("fetching the whole llama.cpp tree (75 MB)", file=sys.stderr)
            python = ROOT / ".deps" / "venv" / "bin" / "python"
            run([python if python.exists() else sys.executable, "-m", "pip", "download", "--require-hashes", "--no-deps",
                 "--no-binary", "llama-cpp-python", "-d", folder, "-r", str(ROOT / "scripts" / "requirements-llama.txt")])
            archive = next(Path(folder).glob("*.tar.gz"))
            with tarfile.open(archive) as tar:
                tar.extractall(folder)
            tree = next(Path(folder).glob("*/vendor/llama.cpp"))
            shutil.rmtree(target, ignore_errors=True)
            shutil.move(str(tree), target)
    return target


def build(source, folder):
    if not (folder / "bin" / "llama-batched-bench").exists():
        print(f"building llama-bench and llama-batched-bench in {folder} (minutes)", file=sys.stderr)
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DGGML_OPENMP=ON", "-DGGML_LLAMAFILE=ON",
                   "-DGGML_CPU_REPACK=ON", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_TESTS=OFF",
                   "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_COMMON=ON", "-DLLAMA_OPENSSL=OFF"]
        if shutil.which("ccache"):
            options += [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX")]
        run(["cmake", "-S", str(source), "-B", str(folder), "-G", "Ninja", *options])
        run(["cmake", "--build", str(folder), "--target", "llama-bench", "llama-batched-bench"])
    return folder / "bin"


def llama_tok_per_s(tools, arguments, operation):
    kind, size = operation.split(":")
    threads = ["-m", arguments.model, "-t", str(arguments.threads), "-fa", "on"]
    if kind in ("prefill", "decode"):
        shape = ["-p", size, "-n", "0"] if kind == "prefill" else ["-p", "0", "-n", str(arguments.decode_tokens), "-d", size]
        answer = run([tools / "llama-bench", *threads, *shape, "-r", "1", "-o", "json"])
        return json.loads(answer)[0]["avg_ts"]
    sequences, context = map(int, size.split("x"))
    rows = sequences * (context + arguments.decode_tokens + 1)
    layout = ["-pps", "-kvu"] if kind == "shared" else []
    answer = run([tools / "llama-batched-bench", *threads, "-c", str(rows), "-npp", str(context), "-npl", str(sequences),
                  "-ntg", str(arguments.decode_tokens), "--output-format", "jsonl", *layout])
    line = next(l for l in answer.splitlines() if l.startswith("{"))
    return json.loads(line)["speed_tg"]


def kvlink_tok_per_s(arguments, operation):
    figures = kvlink_bench(arguments, "--synthetic", operation, "--rounds", "1",
                           "--decode-tokens", str(arguments.decode_tokens))
    return figures["ops"][operation]["tok_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--decode-tokens", type=int, default=64)
    parser.add_argument("--operations", nargs="+", default=list(OPERATIONS))
    parser.add_argument("--llama-cpp-dir", help="whole llama.cpp tree; default: the pinned version, fetched with pip")
    parser.add_argument("--build-dir", default=str(ROOT / "build" / "llama-bench"))
    parser.add_argument("--check", action="store_true", help="exit 1 when a ratio is below its aim")
    arguments = parser.parse_args()

    tools = build(sources(arguments.llama_cpp_dir), Path(arguments.build_dir))
    figures = {operation: {"kvlink": [], "llama_cpp": []} for operation in arguments.operations}
    for number in range(arguments.rounds):
        for operation in arguments.operations:
            turns = [("kvlink", lambda: kvlink_tok_per_s(arguments, operation)),
                     ("llama_cpp", lambda: llama_tok_per_s(tools, arguments, operation))]
            for name, measure in turns if number % 2 == 0 else reversed(turns):
                figures[operation][name].append(measure())
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)

    rows, missed = [], []
    for operation, rounds in figures.items():
        ratio = median([k / l for k, l in zip(rounds["kvlink"], rounds["llama_cpp"])])
        rounds["ratio"] = ratio
        aim = OPERATIONS.get(operation)
        if aim is not None and ratio < aim:
            missed.append(operation)
        rows.append([operation, f"{median(rounds['llama_cpp']):.1f}", f"{median(rounds['kvlink']):.1f}", f"{ratio:.2f}x",
                     f"{aim:.2f}x" if aim else "-"])
    print(markdown(["operation", "llama.cpp tok/s", "KVLink tok/s", "ratio", "aim"], rows))
    write_json(arguments.json, {"model": Path(arguments.model).name, "threads": arguments.threads,
                                "rounds": arguments.rounds, "operations": figures})
    if missed:
        print(f"below the aim: {', '.join(missed)}", file=sys.stderr)
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
