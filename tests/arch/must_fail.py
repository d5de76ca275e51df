#!/usr/bin/env python3
"""Proves that arch_check.py can fail: on the fixture it must report exactly expected.txt."""

import difflib
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).parent
expected = (here / "fixture" / "expected.txt").read_text()
run = subprocess.run(
    [sys.executable, here / "arch_check.py", here / "fixture"], capture_output=True, text=True
)
if run.returncode != 1:
    sys.exit(f"arch_check.py exited with {run.returncode} instead of 1\n{run.stdout}{run.stderr}")
if run.stdout != expected:
    sys.stdout.writelines(
        difflib.unified_diff(
            expected.splitlines(True), run.stdout.splitlines(True), "expected", "reported"
        )
    )
    sys.exit("arch_check.py reported something else than fixture/expected.txt")
