"""The programs of README.md run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)


def run(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          timeout=60, env=os.environ, check=False)


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_runs(program):
    done = run(program)
    assert done.returncode == 0, done.stderr


def test_the_cache_program_prints_what_its_comments_say():
    lines = run(PROGRAMS[0]).stdout.split()
    assert lines == re.findall(r"# (\d+):", PROGRAMS[0]) and len(lines) == 2
