"""`kvlink doctor` against a real server and on a log of prompts: what is wrong is found, what is not is not."""
import json
import subprocess

import pytest

from conftest import BINARY, MODEL, Server, key_line

RULES = " ".join(f"Rule {i + 1}: a parcel of {3 + i * 7 % 20} pounds for town {i * 5 % 12} leaves on day {i * 3 % 5}."
                 for i in range(20))
QUESTIONS = ["What does a lamp cost?", "When does the driver leave?", "Who calls before noon?", "Is the road closed?",
             "How heavy may a parcel be?", "Which town is the last?"]


def conversation(number, clock):
    head = f"Current time: 2026-11-03 08:15:{10 + number}.\n\n" if clock else ""
    return [{"role": "system", "content": f"{head}You work for a carrier. {RULES}"},
            {"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}]


def doctor(*arguments):
    ended = subprocess.run([BINARY, "doctor", "--quiet", *map(str, arguments)], capture_output=True, text=True,
                           timeout=300, check=False)
    return ended


@pytest.fixture(params=[False, True], ids=["healthy", "clock"])
def asked(request, tmp_path):
    """A server that was asked six questions, behind a clock or not."""
    running = Server(tmp_path / "log", kv_memory="256M")
    for number in range(6):
        answer = running.http.post("/v1/chat/completions", json={"messages": conversation(number, request.param),
                                                                 "max_tokens": 1, "temperature": 0})
        assert answer.status_code == 200
    yield running, request.param
    assert running.stop() == 0


def test_a_server_is_judged_by_its_recent_requests(asked):
    server, clock = asked
    ended = doctor("--url", server.url, "--json", "-")
    assert ended.returncode == (1 if clock else 0), ended.stdout + ended.stderr
    diagnosis = json.loads(ended.stdout)
    assert diagnosis["figures"]["requests"] == 6
    assert diagnosis["healthy"] is not clock
    if not clock:
        assert diagnosis["figures"]["hit_rate"] > 0.6
        return
    (finding,) = diagnosis["findings"]
    assert finding["id"] == "mutating_head"
    assert finding["evidence"]["message"] == 0
    assert finding["evidence"]["requests"] == 5
    assert "--similar on" in finding["setting"]
    text = doctor("--url", server.url)
    assert text.returncode == 1
    assert "1. mutating_head (hits)" in text.stdout


def test_the_key_may_stand_in_the_environment(tmp_path, monkeypatch):
    (tmp_path / "keys").write_text(key_line("k", "acme", ("inference", "metrics")) + "\n")
    running = Server(tmp_path / "log", "--api-keys", str(tmp_path / "keys"), kv_memory="64M")
    monkeypatch.delenv("KVLINK_API_KEY", raising=False)
    refused = doctor("--url", running.url)
    assert refused.returncode == 2 and "--api-key" in refused.stderr
    monkeypatch.setenv("KVLINK_API_KEY", "k")
    asked = doctor("--url", running.url)
    assert asked.returncode == 0, asked.stderr
    assert "cannot read" in doctor("--prompts", "/no/such.jsonl").stderr  # which needs no key, and minds none
    assert running.stop() == 0


@pytest.mark.parametrize("clock", [False, True])
def test_a_log_of_prompts_is_judged_without_computing(tmp_path, clock):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"id": f"c{i}", "turns": [{"messages": conversation(i, clock), "max_tokens": 8}]}) +
                           "\n" for i in range(6)))
    ended = doctor("--prompts", log, "--model", MODEL, "--kv-memory", "64M")
    assert ended.returncode == (1 if clock else 0), ended.stdout + ended.stderr
    assert ("mutating_head" in ended.stdout) is clock
    if clock:  # with similar reuse the same log is fine
        report = tmp_path / "report.json"
        ended = doctor("--prompts", log, "--model", MODEL, "--kv-memory", "64M", "--similar", "on", "--json", report)
        assert ended.returncode == 0, ended.stdout
        assert json.loads(report.read_text())["figures"]["similar_rate"] > 0.4


@pytest.mark.parametrize("arguments,named", [
    (["--url", "http://127.0.0.1:1"], "cannot connect"),
    (["--url", "ftp://x"], "must start with http://"),
    (["--url", "http://127.0.0.1:1", "--prompts", "x"], "not both"),
    (["--prompts", "/no/such.jsonl"], "--prompts: cannot read"),
    (["--similar", "on"], "only with --prompts"),
    (["--nonsense"], "--nonsense"),
])
def test_bad_input_exits_2_and_says_what(arguments, named):
    ended = doctor(*arguments)
    assert ended.returncode == 2
    assert named in ended.stderr
    assert ended.stdout == ""
