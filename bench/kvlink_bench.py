"""What the comparison scripts share: finding the executable, running `kvlink bench`, medians, tables."""
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def add_common_arguments(parser):
    parser.add_argument("--kvlink", default=str(ROOT / "build" / "release" / "kvlink"), help="executable")
    parser.add_argument("--model", default=default_model(), help="GGUF file")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", help="write the figures there")


def default_model():
    return os.environ.get("KVLINK_MODEL") or str(ROOT / ".deps" / "models" / "SmolLM2-135M-Instruct-Q4_1.gguf")


def kvlink_bench(arguments, *options):
    """The JSON that one `kvlink bench` run writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "figures.json")
        command = [arguments.kvlink, "bench", "--quiet", "--model", arguments.model,
                   "--threads", str(arguments.threads), "--json", path, *options]
        run(command, timeout=getattr(arguments, "run_timeout", None))
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def run(command, **options):
    """stdout of a command; its stderr is shown when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    except subprocess.TimeoutExpired as expired:
        raise SystemExit(f"'{' '.join(map(str, command))}' was not done after {expired.timeout:.0f} s") from None
    if done.returncode != 0:
        raise SystemExit(f"'{' '.join(map(str, command))}' failed ({done.returncode}):\n{done.stdout}\n{done.stderr}")
    return done.stdout


def median(values):
    return statistics.median(values)


def markdown(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def write_json(path, figures):
    if path:
        Path(path).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
