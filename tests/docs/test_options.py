"""What the documents tell people to type is what the executable takes."""
import os
import re
import subprocess

import pytest

from markdown import FENCE, SOURCE, documents

BINARY = os.environ["KVLINK_BINARY"]


def helped(*command):
    done = subprocess.run([BINARY, *command, "--help"], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else None


def subcommands(text):
    block = text.split("Subcommands:", 1)
    return re.findall(r"^  (\w[\w-]*)", block[1], re.M) if len(block) == 2 else []


@pytest.fixture(scope="module")
def options():
    """Long options by command: ("serve",), ("inspect", "list"), ..."""
    found, todo = {}, [()]
    while todo:
        command = todo.pop()
        text = helped(*command)
        assert text is not None, command
        found[command] = set(re.findall(r"(--[a-z][a-z-]*)", text))
        todo += [(*command, name) for name in subcommands(text)]
    assert ("serve",) in found and len(found) > 8
    return found


def typed(text):
    """Commands that begin with kvlink in fenced blocks, continued lines joined, comments and what follows a pipe left out."""
    for block in FENCE.finditer(text):
        for line in block.group(2).replace("\\\n", " ").splitlines():
            line = re.sub(r"\s#\s.*", "", line)
            for part in re.split(r"[|;&]+", line):
                words = part.strip().split()
                if words and re.fullmatch(r"(\S*/)?kvlink", words[0]):
                    yield words[1:]


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_commands_of_the_documents_have_real_options(document, options):
    wrong = []
    for words in typed(document.read_text()):
        command = ()
        while len(command) < len(words) and (*command, words[len(command)]) in options:
            command = (*command, words[len(command)])
        for word in words[len(command):]:
            name = re.match(r"--[a-z][a-z-]*", word)
            if name and name.group(0) not in options[command]:
                wrong.append(f"kvlink {' '.join(words)}: {name.group(0)}")
    assert wrong == []


def test_operations_explains_every_option_of_serve(options):
    text = (SOURCE / "docs" / "operations.md").read_text()
    missing = sorted(name for name in options[("serve",)] - {"--help"} if name not in text)
    assert missing == []
