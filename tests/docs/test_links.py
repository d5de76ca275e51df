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


def test_every_document_can_be_reached_from_the_readme():
    reached, todo = set(), [SOURCE / "README.md"]
    while todo:
        document = todo.pop()
        if document in reached or not document.is_file():
            continue
        reached.add(document)
        targets = re.findall(r"\]\(([^)\s]+)\)", without_code(document.read_text()))
        todo += [(document.parent / target.partition("#")[0]).resolve() for target in targets if ".md" in target]
    assert [path.name for path in (SOURCE / "docs").glob("*.md") if path.resolve() not in reached] == []


def test_a_broken_link_would_be_found():
    text = "# One two\n`x` [a](b.md#c)\n```\n[x](y)\n```\n"
    assert anchors(text) == {"one-two"}
    assert re.findall(r"\]\(([^)\s]+)\)", without_code(text)) == ["b.md#c"]
