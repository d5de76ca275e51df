"""The report of coverage counts what somebody can reach, and nothing else."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(os.environ["KVLINK_SOURCE_DIR"])

# Of its branches two sides are taken of four; the lines that count are numbered in comments.
PART = """\
#include "room/part.h"
void Fail(const char*, int);
#define KVLINK_CHECK(c) (c) ? void(0) : Fail(#c, __LINE__)
struct Guard {
  ~Guard() { ++count; }
  static int count;
};
int Guard::count = 0;
int MayThrow(int x) {
  Guard guard;
  KVLINK_CHECK(x < 100
               && x > -100);
  if (x < 0) throw 1;
  return Twice(x);
}
int Reached(int x) {
  Guard guard;
  const int y = MayThrow(x) + MayThrow(x + 1);
  if (y > 0) {
    return y;
  }
  return MayThrow(y);
}
int NeverCalled(int x) {
  Guard guard;
  return MayThrow(x) + MayThrow(x);
}
void Fail(const char*, int) {}
"""
HEADER = """\
#pragma once
template <typename T>
T Twice(T x) {
  return x > 1000 ? x : x + x;
}
int Reached(int x);
"""
MAIN = """\
#include "room/part.h"
int main() { return Reached(1) + Twice(2000L) > 0 ? 0 : 1; }
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    compiler, gcov = shutil.which("g++"), shutil.which("gcov")
    if not compiler or not gcov:
        pytest.skip("there is no g++ with gcov")
    root = tmp_path_factory.mktemp("coverage")
    (root / "src/room").mkdir(parents=True)
    (root / "src/room/part.cc").write_text(PART)
    (root / "src/room/part.h").write_text(HEADER)
    (root / "src/room/part_test.cc").write_text(MAIN)
    build = root / "build/src/room"
    build.mkdir(parents=True)
    for name in ("part", "part_test"):
        subprocess.run([compiler, "-O0", "--coverage", "-fprofile-abs-path", "-I", str(root / "src"), "-c",
                        str(root / f"src/room/{name}.cc"), "-o", f"{name}.o"], cwd=build, check=True, timeout=100)
    subprocess.run([compiler, "--coverage", "part.o", "part_test.o", "-o", "part_test"], cwd=build, check=True, timeout=100)
    subprocess.run([build / "part_test"], cwd=build, check=True, timeout=100)
    return root


def test_branches_that_only_a_mistake_or_an_exception_takes_do_not_count(built):
    run = subprocess.run([sys.executable, SOURCE / "cmake/coverage.py", built / "build", "--source", built], capture_output=True,
                         text=True, timeout=100, check=False)
    table = {line.split()[0]: line.split() for line in run.stdout.splitlines() if "% of" in line}
    assert table["src/room"][1:] == table["all"][1:]
    # x < 0 and y > 0, one side each; both sides of the template's condition, each in another instance.
    assert table["all"][6:11] == ["66.7", "%", "of", "6", "branches"], run.stdout + run.stderr
    assert run.returncode == 1 and "at least 90 and 75" in run.stderr
    report = (built / "build/coverage.txt").read_text()
    gaps = [line.split(": ", 2) for line in report.splitlines() if line.startswith("src/room/part.cc:")]
    lines = PART.splitlines()
    number = {text: lines.index(text) + 1 for text in ("  if (x < 0) throw 1;", "  if (y > 0) {", "int NeverCalled(int x) {")}
    assert [place for place, what, _ in gaps if "branches" in what] == [
        f"src/room/part.cc:{number['  if (x < 0) throw 1;']}", f"src/room/part.cc:{number['  if (y > 0) {']}"]
    assert f"src/room/part.cc:{number['int NeverCalled(int x) {']}" in [place for place, what, _ in gaps if what == "never run"]
    assert "KVLINK_CHECK" not in "".join(text for *_, text in gaps)
    assert "src/room/part_test.cc" not in report


def test_a_folder_without_counts_is_refused(tmp_path):
    run = subprocess.run([sys.executable, SOURCE / "cmake/coverage.py", tmp_path], capture_output=True, text=True, timeout=100,
                         check=False)
    assert run.returncode == 1 and "holds no counts" in run.stderr
