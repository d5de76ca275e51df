#!/usr/bin/env python3
"""Checks that all C++ sources are formatted with the pinned clang-format.

It leaves comments as they are (.clang-format), so that their width is looked at here.

Usage: format_check.py ROOT [--fix]. Exits with 77 (skipped) when clang-format is not installed.
"""

import pathlib
import re
import shutil
import subprocess
import sys

VERSION = 14
COLUMNS = 100
FOLDERS = ("include", "src", "bench", "examples", "fuzz", "python", "tests")


def find_clang_format():
    for name in (f"clang-format-{VERSION}", "clang-format"):
        path = shutil.which(name)
        if path:
            text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
            if re.search(rf"version {VERSION}\.", text):
                return path
    return None


def wide_comments(path):
    """Numbers of the lines with a comment that ends behind the last column."""
    lines = path.read_text(encoding="utf-8").split("\n")
    comment = re.compile(r"(^|\s)//")
    return [n for n, line in enumerate(lines, 1) if len(line) > COLUMNS and comment.search(line)]


def main():
    root = pathlib.Path(sys.argv[1])
    clang_format = find_clang_format()
    if clang_format is None:
        print(f"skipped: clang-format {VERSION} is not installed")
        return 77
    files = sorted(
        path
        for folder in FOLDERS
        for path in (root / folder).rglob("*")
        if path.suffix in (".h", ".cc") and path.is_file()
    )
    if "--fix" in sys.argv:
        return subprocess.run([clang_format, "-i", *files]).returncode
    run = subprocess.run(
        [clang_format, "--dry-run", "-Werror", *files], capture_output=True, text=True
    )
    wrong = sorted({line.split(":")[0] for line in run.stderr.splitlines() if ": error:" in line})
    for path in wrong:
        print(f"{pathlib.Path(path).relative_to(root)}: not formatted")
    if wrong:
        print("repair with: tests/arch/format_check.py . --fix")
    elif run.returncode:
        print(run.stderr)
    wide = [(path.relative_to(root), n) for path in files for n in wide_comments(path)]
    for path, n in wide:
        print(f"{path}:{n}: a comment wider than {COLUMNS} columns: wrap it by hand")
    return 1 if run.returncode or wide else 0


if __name__ == "__main__":
    sys.exit(main())
