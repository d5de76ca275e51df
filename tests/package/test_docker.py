"""The Dockerfile, as far as it can be tried without a container engine (test_image.py has one): what it copies is there, it does
not run as root, and its health check tells a server that answers from one that does not."""
import fnmatch
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from installed import SOURCE

HADOLINT = Path(sys.executable).parent / "hadolint"


def instructions():
    text = re.sub(r"^\s*#.*\n", "", (SOURCE / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line.strip()]


def ignored(path):
    """Whether .dockerignore keeps `path` out of the build context."""
    patterns = [line for line in (SOURCE / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    parts = path.split("/")
    names = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return any(fnmatch.fnmatch(name, pattern) or (pattern.startswith("**/") and fnmatch.fnmatch(name.split("/")[-1], pattern[3:]))
               for name in names for pattern in patterns)


def test_what_is_copied_from_the_tree_is_in_it():
    copied = [rest.split() for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    assert copied
    for *sources, _ in copied:
        for source in sources:
            assert (SOURCE / source).exists() and not ignored(source), source


@pytest.mark.skipif(not HADOLINT.exists(), reason="needs hadolint (scripts/setup.sh --heavy)")
def test_the_linter_has_nothing_to_say():
    done = subprocess.run([HADOLINT, "--no-color", SOURCE / "Dockerfile"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_the_build_context_has_the_sources_and_not_what_was_built():
    tracked = ["CMakeLists.txt", "cmake/package.cmake", "packaging/debian/stage.cmake", "scripts/setup.sh", "share/kvlink",
               "src/cli/main.cc", "README.md", "docs/operations.md", "bench/CMakeLists.txt", "LICENSE"]
    assert [path for path in tracked if ignored(path)] == []
    assert all(ignored(path) for path in ["build/release/kvlink", ".deps/venv/bin/python", ".git/HEAD", "x.gguf",
                                          "python/kvlink/__pycache__/a.pyc"])


def test_every_stage_that_serves_runs_as_a_user():
    stages, names = [], {}
    for word, rest in instructions():
        if word == "FROM":
            base, *alias = re.sub(r"\s+AS\s+", " ", rest, flags=re.I).split()
            stages.append({"user": names.get(base, {}).get("user"), "entry": names.get(base, {}).get("entry"), "base": base})
            if alias:
                names[alias[0]] = stages[-1]
        elif word == "USER":
            stages[-1]["user"] = rest
        elif word == "ENTRYPOINT":
            stages[-1]["entry"] = json.loads(rest)
    assert stages[-1]["entry"] == ["kvlink"]
    # By number: a name does not tell an orchestrator whether it is root.
    assert all(re.fullmatch(r"[1-9]\d*:[1-9]\d*", stage["user"] or "") for stage in stages if stage["entry"])
    assert all(stage["base"] in names or stage["base"].startswith("debian:12") for stage in stages)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_health_check_follows_the_server():
    (check,) = [rest for word, rest in instructions() if word == "HEALTHCHECK"]
    command = json.loads(check.split("CMD", 1)[1])

    class Health(http.server.BaseHTTPRequestHandler):
        status = 200

        def do_GET(self):
            self.send_response(self.status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command[-1] = command[-1].replace("/8080", f"/{server.server_port}")

        def healthy():
            return subprocess.run(command, timeout=60, check=False, capture_output=True).returncode == 0

        assert healthy()
        Health.status = 400  # of a server with a certificate, which plain HTTP does not get past
        assert healthy()
        Health.status = 503
        assert not healthy()
        server.shutdown()
    assert not healthy()
