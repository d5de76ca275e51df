"""Virtual environments of the peers and of the plots: a folder and a requirements file each, under .deps/."""
import hashlib
import shutil
import sys
from pathlib import Path

from kvlink_bench import ROOT
from processes import checked

HERE = Path(__file__).resolve().parent
LOGS = ROOT / ".deps" / "logs"


def python_of(name):
    """The interpreter of the environment `name`; makes or renews it when requirements-NAME.txt is another one.

    Every package is pinned, so nothing is resolved: pip takes the list as it stands."""
    requirements = HERE / f"requirements-{name}.txt"
    folder = ROOT / ".deps" / f"bench-{name}"
    stamp = folder / "requirements.sha256"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    python = folder / "bin" / "python"
    if python.exists() and stamp.exists() and stamp.read_text() == digest:
        return python
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"bench-{name}.log"
    print(f"installing {requirements.name} in {folder.relative_to(ROOT)} (log: {log.relative_to(ROOT)})", file=sys.stderr)
    if not python.exists():
        shutil.rmtree(folder, ignore_errors=True)
        checked([sys.executable, "-m", "venv", folder], log)
    checked([python, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "-r", requirements], log)
    stamp.write_text(digest)
    return python
