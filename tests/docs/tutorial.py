"""Runs the commands of docs/tutorial.md as they stand, one shell from the first to the last, and can write what they print
back into it:  KVLINK_BINARY=build/release/kvlink python3 tests/docs/tutorial.py --update

In the document every ```sh block is run. A ```text block behind it is what it printed on standard output.
`<!-- start the server -->` before a block starts it in the background and waits until the server listens;
`<!-- stop the server -->` is Ctrl-C in that terminal. The server listens on a free port, on one thread.
"""
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

SOURCE = Path(os.environ.get("KVLINK_SOURCE_DIR", Path(__file__).resolve().parents[2]))
TUTORIAL = SOURCE / "docs" / "tutorial.md"
BLOCK = re.compile(r"(?P<mark><!-- start the server -->\n)?^```sh\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?"
                   r"|(?P<stop><!-- stop the server -->)", re.M | re.S)
PATIENCE_S = 600


class Step:
    def __init__(self, match):
        self.stop = match["stop"] is not None
        self.background = match["mark"] is not None
        self.code, self.output = match["code"], match["output"]
        self.span = match.span("output") if match["output"] is not None else None


def steps(text):
    return [Step(match) for match in BLOCK.finditer(text)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def script(parts, port):
    """One bash script that puts what step i prints into out.i and err.i."""
    lines = ["set -eu", 'trap \'if [ -n "${server:-}" ]; then kill -KILL "$server" 2>/dev/null || true; fi\' EXIT']
    for i, step in enumerate(parts):
        if step.stop:
            lines += ['kill -TERM "$server"', 'wait "$server"', "server="]
            continue
        code = step.code.replace(":8080", f":{port}")
        if not step.background:
            lines.append(f"{{\n{code}}} >out.{i} 2>err.{i}")
            continue
        # One command, so that the process is the server itself; the step is over when it listens.
        lines += [f"{{\nexec {code.strip()}\n}} >out.{i} 2>err.{i} &", "server=$!",
                  f"until grep -q '^Stop:' out.{i}; do kill -0 \"$server\"; sleep 0.1; done"]
    return "\n".join(lines) + "\n"


def run(folder, binary, model):
    """[(step, what it printed)], in `folder`; raises with the output of the step that failed."""
    parts = steps(TUTORIAL.read_text())
    port = free_port()
    tools = folder / "tools"
    tools.mkdir()
    # What a reader has: the executable on PATH. One thread, and the port that is free, are the test's.
    wrapper = tools / "kvlink"
    binary, model = shlex.quote(str(Path(binary).resolve())), shlex.quote(str(model))
    wrapper.write_text("#!/bin/bash\n"
                       f"export KVLINK_MODEL={model}\n"
                       'case "$1" in\n'
                       f'  serve) exec {binary} "$@" --threads 1 --port {port} ;;\n'
                       f'  bench) [[ " $* " == *" --shape "* ]] && exec {binary} "$@"; exec {binary} "$@" --threads 1 ;;\n'
                       f'  *) exec {binary} "$@" ;;\n'
                       "esac\n")
    wrapper.chmod(0o755)
    work = folder / "work"
    work.mkdir()
    done = subprocess.run(["bash", "-c", script(parts, port)], cwd=work, timeout=PATIENCE_S, check=False, capture_output=True, text=True,
                          env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(folder)})
    printed = []
    for i, step in enumerate(parts):
        out = work / f"out.{i}"
        printed.append((step, out.read_text() if out.exists() else None))
    if done.returncode != 0:
        ran = [i for i, (_, text) in enumerate(printed) if text is not None]
        last = ran[-1] if ran else 0
        errors = work / f"err.{last}"
        raise RuntimeError(f"step {last} failed ({done.returncode}):\n{parts[last].code}\n{printed[last][1]}\n"
                           f"{errors.read_text() if errors.exists() else ''}\n{done.stderr}")
    return printed, work, port


def update(printed, port):
    """Writes the real output into the document."""
    text = TUTORIAL.read_text()
    for step, output in reversed(printed):
        if step.span is not None:
            begin, end = step.span
            text = text[:begin] + output.replace(f":{port}", ":8080").rstrip() + "\n" + text[end:]
    TUTORIAL.write_text(text)


if __name__ == "__main__":
    import tempfile

    model = os.environ.get("KVLINK_MODEL", SOURCE / ".deps/models/SmolLM2-135M-Instruct-Q4_1.gguf")
    with tempfile.TemporaryDirectory() as scratch:
        outputs, _, used_port = run(Path(scratch), os.environ["KVLINK_BINARY"], model)
    if "--update" in sys.argv:
        update(outputs, used_port)
    else:
        for number, (_, shown) in enumerate(outputs):
            print(f"--- {number}\n{shown}")
