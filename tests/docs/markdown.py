"""Reads Markdown as far as the tests of the documents need it."""
import os
import re
from pathlib import Path

SOURCE = Path(os.environ.get("KVLINK_SOURCE_DIR", Path(__file__).resolve().parents[2]))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def documents():
    """Every Markdown file of the tree that is ours."""
    found = [path for folder in ("", "docs", "docs/adr", "docs/formats", "python", "src")
             for path in sorted((SOURCE / folder).glob("*.md"))]
    assert len(found) > 20
    return found


def without_code(text):
    """The text without fenced blocks and inline code, line by line as it was."""
    text = FENCE.sub(lambda block: "\n" * block.group(0).count("\n"), text)
    return re.sub(r"`[^`\n]*`", "``", text)


def commands(text):
    """Command lines of all fenced blocks, without comments and white space around them."""
    lines = (re.sub(r"(^|\s+)#\s.*$", "", line).strip() for block in FENCE.finditer(text) for line in block.group(2).splitlines())
    return [line for line in lines if line]


def inline_code(text):
    return sorted(re.findall(r"`([^`\n]+)`", FENCE.sub("", text)))


def tables(text):
    """Every table row as the numbers in it."""
    return [re.findall(r"\d[\d,.]*", line) for line in FENCE.sub("", text).splitlines() if line.startswith("|")]


def anchors(text):
    """What GitHub makes of the headings, repeated ones numbered."""
    seen, found = {}, set()
    for heading in re.findall(r"^#{1,6} (.*)$", FENCE.sub("", text), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count = seen.get(name, 0)
        seen[name] = count + 1
        found.add(f"{name}-{count}" if count else name)
    return found
