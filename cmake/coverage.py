#!/usr/bin/env python3
"""Lines and branches that tests reached, room by room, of what gcov counted. Fails below 90 % of lines or 75 % of branches.

    coverage.py BUILD [--source DIR] [--report FILE] [--jobs N]

Counted are branches that somebody can take who calls, feeds or starves the code. Left out:
- edges of exceptions, and of each the edge beside it (every call that may throw has such a pair);
- statements KVLINK_CHECK and KVLINK_DCHECK, message lines included: their other side is our own mistake, which no test can make;
- lines of nothing but braces, which run when the compiler's destructors do, and comparisons that are `= default`.
A branch of a template, or of a header that many files include, counts once, and is taken when one of its instances took it.
The report lists every line and branch that no test reached. A source that no test links counts as reached by nothing.
"""
import argparse
import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

LEAST_LINES, LEAST_BRANCHES = 90.0, 75.0
COUNTED = re.compile(r"(src|include)/.*\.(h|cc)")
TESTS = re.compile(r".*(_test\.cc|/testing/.*|_(harness|world)\.h)")
CHECK = re.compile(r"\bKVLINK_D?CHECK\(")


class Source:
    """A file of the product: its text, and what happened on its lines."""

    def __init__(self, path):
        self.text = path.read_text(encoding="utf-8").splitlines()
        self.checks = set(lines_of_checks(self.text))
        self.lines = collections.Counter()  # times a line ran, in all instances
        self.branches = {}                  # by line: times each of its branches was taken

    def add(self, number, count, branches):
        code = without_comment(self.text[number - 1])
        if not code.strip(" {});") or (number in self.checks and not CHECK.search(code)):
            return
        self.lines[number] += count
        counts = without_exceptions(branches)
        if counts and number not in self.checks and not code.endswith("= default;"):
            old = self.branches.get(number, [])
            self.branches[number] = [a + b for a, b in itertools.zip_longest(old, counts, fillvalue=0)]

    def counts(self):
        """Lines reached, lines, branches taken, branches."""
        taken = [count > 0 for counts in self.branches.values() for count in counts]
        return [sum(count > 0 for count in self.lines.values()), len(self.lines), sum(taken), len(taken)]

    def gaps(self):
        for number in sorted(self.lines):
            branches = self.branches.get(number, [])
            left = branches.count(0)
            if self.lines[number] == 0:
                yield number, "never run"
            elif left:
                yield number, f"{left} of {len(branches)} branches not taken"


def without_comment(line):
    return re.split(r"(?:^|\s)//", line)[0].rstrip()


def lines_of_checks(text):
    """Numbers of the lines of statements that begin with a check."""
    inside = False
    for number, line in enumerate(text, 1):
        inside = inside or (CHECK.search(line) is not None and not line.startswith("#"))
        if inside:
            yield number
            inside = not without_comment(line).endswith((";", "}"))


def without_exceptions(branches):
    """Counts of the branches that are neither the edge of an exception nor the edge beside it."""
    kept = [True] * len(branches)
    for i, branch in enumerate(branches):
        if not branch["throw"]:
            continue
        kept[i] = False
        for beside in (i - 1, i + 1):
            if 0 <= beside < len(branches) and kept[beside] and branches[beside]["fallthrough"]:
                kept[beside] = False
                break
    return [branch["count"] for branch, keep in zip(branches, kept) if keep]


def data_files(build):
    """What was counted; where nothing was, what could have been, for sources of the product alone."""
    counted = set(build.rglob("*.gcda"))
    yield from sorted(counted)
    for notes in sorted((build / "src").rglob("*.gcno")):
        if notes.with_suffix(".gcda") not in counted and not TESTS.fullmatch(str(notes.with_suffix(""))):
            yield notes


def read(build, file):
    """gcov's account of one object file."""
    run = subprocess.run(["gcov", "--json-format", "--branch-probabilities", "--stdout", str(file)], cwd=build,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True)
    return json.loads(run.stdout)


def collect(build, root, jobs):
    sources = {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for account in pool.map(lambda file: read(build, file), data_files(build)):
            folder = account["current_working_directory"]
            for file in account["files"]:
                name = os.path.relpath(os.path.join(folder, file["file"]), root)
                if not COUNTED.fullmatch(name) or TESTS.fullmatch(name):
                    continue
                if name not in sources:
                    sources[name] = Source(root / name)
                source = sources[name]
                for line in file["lines"]:
                    if line["line_number"] <= len(source.text):
                        source.add(line["line_number"], line["count"], line["branches"])
    return sources


def share(reached, total):
    return 100.0 * reached / total if total else 100.0


def row(name, counts):
    lines, branches = counts[:2], counts[2:]
    return f"{name:32} {share(*lines):6.1f} % of {lines[1]:5} lines {share(*branches):6.1f} % of {branches[1]:5} branches"


def write_gaps(sources, report):
    with open(report, "w", encoding="utf-8") as out:
        for name in sorted(sources):
            out.write(row(name, sources[name].counts()) + "\n")
        for name, source in sorted(sources.items()):
            out.write("\n" if any(True for _ in source.gaps()) else "")
            for number, what in source.gaps():
                out.write(f"{name}:{number}: {what}: {source.text[number - 1].strip()}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path, help="a build with KVLINK_COVERAGE whose tests have run")
    parser.add_argument("--source", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    parser.add_argument("--report", type=pathlib.Path, help="lists lines and branches not reached; BUILD/coverage.txt unless given")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    sources = collect(build, arguments.source.resolve(), arguments.jobs)
    if not sources:
        sys.exit(f"{build} holds no counts: build it with KVLINK_COVERAGE and run its tests")
    report = arguments.report or build / "coverage.txt"
    write_gaps(sources, report)
    rooms = collections.defaultdict(lambda: [0] * 4)
    for name, source in sources.items():
        for room in ("/".join(name.split("/")[:2]), "all"):
            rooms[room] = [a + b for a, b in zip(rooms[room], source.counts())]
    for name in sorted(rooms, key=lambda name: (name == "all", name)):
        print(row(name, rooms[name]))
    print(f"lines and branches not reached: {os.path.relpath(report)}")
    reached = share(*rooms["all"][:2]), share(*rooms["all"][2:])
    if reached[0] < LEAST_LINES or reached[1] < LEAST_BRANCHES:
        sys.exit(f"{reached[0]:.1f} % of lines and {reached[1]:.1f} % of branches: at least {LEAST_LINES:.0f} and {LEAST_BRANCHES:.0f} are asked for")


if __name__ == "__main__":
    main()
