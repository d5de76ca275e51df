"""The Chinese documents say what the English ones say: same commands, options, figures and links."""
import re

import pytest

from markdown import SOURCE, commands, inline_code, tables, without_code

README, README_ZH = (SOURCE / name for name in ("README.md", "README.zh.md"))
OPERATIONS, TROUBLESHOOTING_ZH = (SOURCE / "docs" / name for name in ("operations.md", "troubleshooting.zh.md"))


def section(text, heading):
    """From a heading of the second level to the next."""
    return re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.M | re.S).group(1)


TWINS = {"README.zh.md": "README.md", "docs/troubleshooting.zh.md": "docs/operations.md"}


def links(text):
    """Targets without their anchors; a Chinese document counts as its English twin."""
    targets = (target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)))
    return {TWINS.get(target, target) for target in targets}


def difference(left, right):
    """What one list has more than the other, both ways."""
    left, right = list(map(str, left)), list(map(str, right))
    more = [item for item in dict.fromkeys(left) if left.count(item) > right.count(item)]
    less = [item for item in dict.fromkeys(right) if right.count(item) > left.count(item)]
    return more, less


def test_the_readmes_have_the_same_commands():
    assert difference(commands(README.read_text()), commands(README_ZH.read_text())) == ([], [])


def test_the_readmes_name_the_same_options_files_and_words_of_code():
    assert difference(inline_code(README.read_text()), inline_code(README_ZH.read_text())) == ([], [])


def test_the_readmes_have_the_same_figures():
    english, chinese = tables(README.read_text()), tables(README_ZH.read_text())
    assert len(english) > 10
    assert difference(english, chinese) == ([], [])


def test_the_readmes_link_to_the_same_documents_and_to_each_other():
    assert links(README.read_text()) == links(README_ZH.read_text())
    assert "(README.zh.md)" in README.read_text() and "(README.md)" in README_ZH.read_text()


def test_troubleshooting_has_the_same_commands_and_rows_in_both_languages():
    english = section(OPERATIONS.read_text(), "Troubleshooting")
    chinese = TROUBLESHOOTING_ZH.read_text()
    assert difference(commands(english), commands(chinese)) == ([], [])
    assert difference(inline_code(english), inline_code(chinese)) == ([], [])


@pytest.mark.parametrize("document", [README_ZH, TROUBLESHOOTING_ZH], ids=lambda path: path.name)
def test_the_chinese_documents_are_chinese(document):
    prose = without_code(document.read_text())
    assert len(re.findall(r"[\u4e00-\u9fff]", prose)) > 1000
    # Full-width marks between Chinese characters, as the language is written.
    assert re.findall(r"[\u4e00-\u9fff][,;:?!][\u4e00-\u9fff]", prose) == []
