"""Every test that docs/acceptance.md names exists, and is heavy where it says so."""
import re

from markdown import SOURCE

GTEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.M)
NUMBER_OF_LINES = 30
PARTS = ("Tests", "Heavy", "Less than the line")


def lines_of(text):
    """By number: the code words of each part of the line."""
    found = {}
    for number, body in re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |^## |\Z)", text, re.M | re.S):
        parts = dict(re.findall(r"^ +- ([^:\n]+): (.*)$", body, re.M))
        assert int(number) not in found and set(parts) <= set(PARTS), (number, list(parts))
        found[int(number)] = {part: re.findall(r"`([^`]+)`", words) for part, words in parts.items()}
    return found


def sources(pattern):
    return (path for folder in ("src", "tests") for path in sorted((SOURCE / folder).rglob(pattern)))


def names_of_the_tree():
    """Every name that a line may give, and whether it runs in the heavy suites only."""
    heavy = {}
    for path in sources("*_test.cc"):
        for suite, test in GTEST.findall(path.read_text()):
            heavy[f"{suite}.{test}"] = heavy[f"{suite}.*"] = False
    for listed in sources("CMakeLists.txt"):
        for body in re.findall(r"kvlink_pytest\((.*?)\)", listed.read_text(), re.S):
            is_heavy = re.search(r"LABELS[^A-Z]*\bheavy\b", body) is not None
            for name in re.findall(r"\btest_\w+\.py\b", body):
                for test in re.findall(r"^def (test_\w+)\(", (listed.parent / name).read_text(), re.M):
                    heavy[f"{name}::{test}"] = is_heavy
    presets = re.search(r"foreach\(preset ([\w ]+)\)", (SOURCE / "tests" / "sanitizer" / "CMakeLists.txt").read_text())
    return heavy | {f"sanitizer.{preset}": False for preset in presets.group(1).split()}


def wrong(text, names):
    found = []
    for number, parts in lines_of(text).items():
        for part, is_heavy in (("Tests", False), ("Heavy", True)):
            found += [f"{number}: {name}" for name in parts.get(part, []) if names.get(name) is not is_heavy]
    return found


def test_every_line_names_tests_that_exist():
    text = (SOURCE / "docs" / "acceptance.md").read_text()
    lines = lines_of(text)
    assert sorted(lines) == list(range(1, NUMBER_OF_LINES + 1))
    assert [number for number, parts in lines.items() if not parts.get("Tests")] == []
    assert wrong(text, names_of_the_tree()) == []


def test_comments_of_tests_mean_a_line_that_there_is():
    numbers = [int(number) for pattern in ("*_test.cc", "test_*.py") for path in sources(pattern)
               for number in re.findall(r"\b[Aa]cceptance (\d+)", path.read_text())]
    assert len(numbers) > 20 and set(numbers) <= set(range(1, NUMBER_OF_LINES + 1))


def test_a_name_that_is_gone_would_be_found():
    names = {"Suite.Test": False, "test_a.py::test_b": True}
    text = "1. A.\n   - Tests: `Suite.Test`, `Suite.Gone`\n   - Heavy: `test_a.py::test_b`, `Suite.Test`\n"
    assert wrong(text, names) == ["1: Suite.Gone", "1: Suite.Test"]
