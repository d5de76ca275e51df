"""llama.cpp's server and benchmark tools, built from the version that KVLink is built on, with llama.cpp's best defaults:
this machine's instructions, OpenMP, llamafile's products, repacked weights."""
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from kvlink_bench import ROOT, run
from processes import checked

TARGETS = ["llama-server", "llama-bench", "llama-batched-bench"]


def sources(given=None):
    """The whole tree: what the set-up unpacks leaves llama.cpp's tools out."""
    if given:
        return Path(given)
    target = ROOT / ".deps" / "llama.cpp-tools"
    if not (target / "tools" / "server").is_dir():
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


INSTRUCTIONS = {  # of ggml
    "native": ["-DGGML_NATIVE=ON"],
    "avx2": ["-DGGML_NATIVE=OFF", "-DGGML_SSE42=ON", "-DGGML_AVX=ON", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON",
             "-DGGML_BMI2=ON"],
}


def build(source, folder, isa):
    """The folder with the executables. The web page of the server is left out: it would be downloaded."""
    if not all((folder / "bin" / target).exists() for target in TARGETS):
        log = ROOT / ".deps" / "logs" / "bench-llama.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        print(f"building {', '.join(TARGETS)} in {folder} (minutes; log: {log})", file=sys.stderr)
        options = ["-DCMAKE_BUILD_TYPE=Release", *INSTRUCTIONS[isa], "-DGGML_OPENMP=ON", "-DGGML_LLAMAFILE=ON",
                   "-DGGML_CPU_REPACK=ON", "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
                   "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_TOOLS=ON",
                   "-DLLAMA_BUILD_COMMON=ON", "-DLLAMA_OPENSSL=OFF"]
        if shutil.which("ccache"):
            options += [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX")]
        checked(["cmake", "-S", source, "-B", folder, "-G", "Ninja", *options], log)
        checked(["cmake", "--build", folder, "--target", *TARGETS], log)
    return folder / "bin"


def tokens_per_second(tools, model, threads, operation, decode_tokens, timeout_s):
    """One run of one raw operation. Flash attention; of the KV layouts the faster one: unified for a shared prefix, one per
    sequence for distinct contexts."""
    kind, size = operation.split(":")
    common = ["-m", model, "-t", str(threads), "-fa", "on"]
    if kind in ("prefill", "decode"):
        shape = ["-p", size, "-n", "0"] if kind == "prefill" else ["-p", "0", "-n", str(decode_tokens), "-d", size]
        answer = run([tools / "llama-bench", *common, *shape, "-r", "1", "-o", "json"], timeout=timeout_s)
        return json.loads(answer)[0]["avg_ts"]
    sequences, context = map(int, size.split("x"))
    rows = sequences * (context + decode_tokens + 1)
    layout = ["-pps", "-kvu"] if kind == "shared" else []
    answer = run([tools / "llama-batched-bench", *common, "-c", str(rows), "-npp", str(context), "-npl", str(sequences),
                  "-ntg", str(decode_tokens), "--output-format", "jsonl", *layout], timeout=timeout_s)
    return json.loads(next(line for line in answer.splitlines() if line.startswith("{")))["speed_tg"]
