"""What the tests of the installed program share: where it is built, and what an installed one must be able to do."""
import json
import os
import re
import subprocess
from pathlib import Path

BINARY = Path(os.environ["KVLINK_BINARY"])
BUILD = BINARY.parent
SOURCE = Path(os.environ["KVLINK_SOURCE_DIR"])
MODEL = os.environ["KVLINK_MODEL"]


def run(*command, expected=0, timeout=300, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout, check=False,
                          **options)
    assert done.returncode == expected, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def project_version():
    return re.search(r"project\(kvlink VERSION ([0-9.]+)", (SOURCE / "CMakeLists.txt").read_text()).group(1)


def elf_files(folder):
    """Files that begin as ELF does; links are left out."""
    return [path for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.is_symlink() and path.open("rb").read(4) == b"\x7fELF"]


def check_it_works(kvlink, folder):
    """The program at `kvlink` generates (so it found its CPU variants) and finds its calibration."""
    folder.mkdir(parents=True, exist_ok=True)
    assert run(kvlink, "version") == run(BINARY, "version")
    system = {"role": "system", "content": " ".join(f"Rule {i}: parcels of {i + 3} pounds leave on day {i % 5}." for i in range(30))}
    log = folder / "log.jsonl"
    log.write_text("".join(json.dumps({"id": f"c{i}", "turns": [{"messages": [system, {"role": "user", "content": question}],
                                                                 "max_tokens": 4}]}) + "\n"
                           for i, question in enumerate(["When does it leave?", "How heavy may it be?"])))
    figures = folder / "figures.json"
    run(kvlink, "bench", "--model", MODEL, "--workload", log, "--modes", "exact", "--concurrency", 1, "--threads", 1,
        "--kv-memory", "64M", "--json", figures)
    exact = json.loads(figures.read_text())["modes"]["exact"]
    assert exact["errors"] == 0 and exact["cached_tokens"] > 100
    run(kvlink, "doctor", "--quiet", "--prompts", log, "--model", MODEL, "--kv-memory", "64M", "--similar", "on")
