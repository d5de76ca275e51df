#!/usr/bin/env python3
"""Checks that every include obeys the layers of rooms.toml.

Prints one line per violation, `file:line: rule: what`, and exits with 1 if there is any.
Usage: arch_check.py ROOT [--table rooms.toml]
"""

import argparse
import fnmatch
import pathlib
import re
import sys
import tomllib

SUFFIXES = {".h", ".cc", ".cpp", ".hpp", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.S)
ROOM_CALL = re.compile(r"\bkvlink_room\s*\(([^)]*)\)", re.S)
CPP_STANDARD = re.compile(r"^[a-z_0-9]+$")  # <vector>, <cstdint>: no dot, no slash


class Table:
    """Rooms and libraries, as read from rooms.toml."""

    def __init__(self, path):
        data = tomllib.loads(path.read_text())
        self.rooms = data["rooms"]
        self.libraries = data["libraries"]
        self.test_files = data["tests"]["files"]
        self.test_libraries = set(data["tests"]["libraries"])

    def problems(self):
        """Mistakes in the table itself: an unknown name, or a cycle between rooms."""
        for name, room in self.rooms.items():
            for other in room["includes"]:
                if other != "*" and other not in self.rooms:
                    yield f"rooms.toml:1: table: room {name} includes an unknown room '{other}'"
            for library in room["libraries"]:
                if library != "*" and library not in self.libraries:
                    yield f"rooms.toml:1: table: room {name} uses an unknown library '{library}'"
        left = {name: set(room["includes"]) - {"*"} for name, room in self.rooms.items()}
        while ready := [name for name, needs in left.items() if not needs & left.keys()]:
            for name in ready:
                del left[name]
        if left:
            yield f"rooms.toml:1: table: rooms in a cycle: {', '.join(sorted(left))}"

    def room_of_header(self, header):
        """The room that a header written from src/ or include/ lies in, or None."""
        first = header.split("/")[0] if "/" in header else None
        if first == "kvlink":
            return "public"
        room = self.rooms.get(first)
        return first if room and room["path"].startswith("src/") else None

    def libraries_of_header(self, header):
        return [
            name
            for name, patterns in self.libraries.items()
            if any(fnmatch.fnmatchcase(header, pattern) for pattern in patterns)
        ]


def without_comments(text):
    """Comments blanked, line numbers kept."""
    text = BLOCK_COMMENT.sub(lambda match: "\n" * match.group().count("\n"), text)
    return [line.split("//")[0] for line in text.split("\n")]


def check_include(table, room_name, relative, header, quoted):
    """The violation of one include, as `rule: what`, or None."""
    room = table.rooms[room_name]
    is_test = any(fnmatch.fnmatchcase(relative, pattern) for pattern in table.test_files)

    other = table.room_of_header(header)
    if other is not None:
        if not quoted:
            return f"quotes: <{header}> is ours; write \"{header}\""
        if other == room_name or other in room["includes"] or "*" in room["includes"]:
            return None
        allowed = ", ".join(room["includes"]) or "only the standard library"
        return f"layer: {room_name} must not include {other} (\"{header}\"); it may include {allowed}"

    owners = table.libraries_of_header(header)
    if owners:
        allowed = set(room["libraries"]) | (table.test_libraries if is_test else set())
        if "*" in allowed or allowed & set(owners):
            return None
        return f"library: {room_name} must not include <{header}> of {' or '.join(owners)}"

    if quoted:
        # A folder of helpers beside a test or a benchmark may use a plain name.
        if room_name in ("tests", "bench", "fuzz", "examples", "python"):
            return None
        return f"path: \"{header}\" must be written from src/ or include/, as \"room/file.h\""
    if CPP_STANDARD.match(header):
        return None
    return f"unknown: <{header}> is in no library of rooms.toml"


def check_sources(table, root):
    for name, room in table.rooms.items():
        folder = root / room["path"]
        skipped = [root / path for path in room.get("except", [])]
        for path in sorted(folder.rglob("*")):
            if path.suffix not in SUFFIXES or any(path.is_relative_to(skip) for skip in skipped):
                continue
            relative = path.relative_to(root).as_posix()
            for number, line in enumerate(without_comments(path.read_text()), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                quoted = match[1] is not None
                problem = check_include(table, name, relative, match[1] or match[2], quoted)
                if problem:
                    yield f"{relative}:{number}: {problem}"


def check_targets(table, root):
    """The DEPS of kvlink_room() may not say more than the table."""
    for name, room in table.rooms.items():
        path = root / room["path"] / "CMakeLists.txt"
        if not path.is_file():
            continue
        text = path.read_text()
        for call in ROOM_CALL.finditer(text):
            line = text.count("\n", 0, call.start()) + 1
            words = call[1].split()
            keyword, deps = None, []
            for word in words[1:]:
                if word in ("SOURCES", "DEPS", "LIBS"):
                    keyword = word
                elif keyword == "DEPS":
                    deps.append(word)
            for other in deps:
                if other not in room["includes"] and "*" not in room["includes"]:
                    relative = path.relative_to(root).as_posix()
                    yield f"{relative}:{line}: target: {name} must not depend on {other}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=pathlib.Path)
    default_table = pathlib.Path(__file__).with_name("rooms.toml")
    parser.add_argument("--table", type=pathlib.Path, default=default_table)
    arguments = parser.parse_args()

    table = Table(arguments.table)
    violations = list(table.problems())
    if not violations:
        violations += check_sources(table, arguments.root)
        violations += check_targets(table, arguments.root)
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
