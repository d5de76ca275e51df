"""Links between documents, and to files of the tree, lead somewhere."""
import re

import pytest

from markdown import SOURCE, anchors, documents, without_code


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_relative_links_have_a_target(document):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(document.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists():
            broken.append(target)
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            broken.append(target)
    assert broken == []


def test_a_broken_link_would_be_found():
    text = "# One two\n`x` [a](b.md#c)\n```\n[x](y)\n```\n"
    assert anchors(text) == {"one-two"}
    assert re.findall(r"\]\(([^)\s]+)\)", without_code(text)) == ["b.md#c"]
