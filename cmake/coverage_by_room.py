#!/usr/bin/env python3
"""Lines and branches that tests reach, by room, from gcovr's summary. Fails below 90 % of lines or 75 % of branches.

    coverage_by_room.py coverage.json [--files]      # --files: the files with gaps as well, worst first
"""
import collections
import json
import sys

LEAST_LINES, LEAST_BRANCHES = 90.0, 75.0


def share(covered, total):
    return 100.0 * covered / total if total else 100.0


def row(name, counts):
    lines, branches = counts[:2], counts[2:]
    return f"{name:32} {share(*lines):6.1f} % of {lines[1]:5} lines {share(*branches):6.1f} % of {branches[1]:5} branches"


def main(path, *options):
    with open(path, encoding="utf-8") as summary:
        files = json.load(summary)["files"]
    rooms, counts_of = collections.defaultdict(lambda: [0] * 4), {}
    for file in files:
        counts = [file["line_covered"], file["line_total"], file["branch_covered"], file["branch_total"]]
        counts_of[file["filename"]] = counts
        room = "/".join(file["filename"].split("/")[:2])
        for name in (room, "all"):
            rooms[name] = [a + b for a, b in zip(rooms[name], counts)]
    if "--files" in options:
        for name in sorted(counts_of, key=lambda name: counts_of[name][0] - counts_of[name][1]):
            print(row(name, counts_of[name]))
        print()
    for name in sorted(rooms, key=lambda name: (name == "all", name)):
        print(row(name, rooms[name]))
    total = rooms["all"]
    return 0 if share(*total[:2]) >= LEAST_LINES and share(*total[2:]) >= LEAST_BRANCHES else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
