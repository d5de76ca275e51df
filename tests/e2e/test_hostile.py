"""Input that nobody meant, files that are none, and the bits of exact answers while everything happens at once."""
import concurrent.futures
import json
import os
import random
import socket
import subprocess

import pytest

from conftest import BINARY, MODEL
from tier_tools import TierServer, facts


def kvlink(*arguments, stdout=subprocess.PIPE, **more):
    return subprocess.run([BINARY, *map(str, arguments)], stdout=stdout, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                          text=True, timeout=300, check=False, **more)


def refused(ended, *texts):
    """An error in words: no crash, and what is wrong by name."""
    assert ended.returncode in (1, 2), (ended.returncode, ended.stderr)
    for text in texts:
        assert str(text) in ended.stderr


SERVE = ("serve", "--model", MODEL, "--port", "0", "--no-cold", "--kv-memory", "64M", "--threads", "1", "--quiet")


# --- files ---

def test_a_folder_is_no_file(tmp_path):
    refused(kvlink(*SERVE, "--similar", "on", "--calibration", tmp_path), "--calibration", tmp_path)
    refused(kvlink(*SERVE, "--config", tmp_path), "--config", tmp_path)
    refused(kvlink("cache", "warm", "--prompt-file", tmp_path), "--prompt-file", tmp_path)
    refused(kvlink("cache", "pin", "--messages", tmp_path), "--messages", tmp_path)


CALIBRATION = {"format": "kvlink-calibration", "version": 1, "model_digest": "00"}


@pytest.mark.parametrize("text", [
    "", "[]", "\xff", json.dumps({"format": 1}), json.dumps({**CALIBRATION, "version": "x"}),
    json.dumps({**CALIBRATION, "version": None}), json.dumps({**CALIBRATION, "model_digest": 5}),
    json.dumps({**CALIBRATION, "model_digest": ["00"]}), '{"format": ' + "[" * 100000])
def test_a_calibration_of_wrong_types_is_refused(tmp_path, text):
    path = tmp_path / "wrong.json"
    path.write_bytes(text.encode("latin1"))
    ended = kvlink(*SERVE, "--similar", "on", "--calibration", path)
    refused(ended, path)
    assert len(ended.stderr) < 1000


def test_trials_that_nobody_made_do_not_hold_up_the_start(tmp_path):
    path = tmp_path / "many.json"
    path.write_text(json.dumps({**CALIBRATION, "model_digest": digest_of_the_model(tmp_path),
                                "classes": {"values": {"trials": 1 << 60, "failures": 1 << 59}}}))
    refused(kvlink(*SERVE, "--similar", "on", "--calibration", path), "classes.values.trials", str(1 << 60))


def digest_of_the_model(folder):
    (folder / "other.json").write_text(json.dumps(CALIBRATION))
    said = kvlink(*SERVE, "--similar", "on", "--calibration", folder / "other.json").stderr
    return said.rsplit("which is ", 1)[1].split()[0]


def test_repairing_makes_no_store_where_there_is_none(tmp_path):
    missing = tmp_path / "typo"
    refused(kvlink("inspect", "fsck", "--repair", "--cold-dir", missing), missing)
    assert not missing.exists()
    refused(kvlink("inspect", "list", "--repair", "--cold-dir", missing), "--repair")


@pytest.mark.parametrize("name", ["COLD_STORE", "CURRENT", "kv-000001.blob"])
def test_a_fifo_under_the_name_of_a_stores_file_is_refused(tmp_path, name):
    (tmp_path / "COLD_STORE").write_text("kvlink cold store, format 2\n")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    for action in ("list", "fsck"):
        refused(kvlink("inspect", action, "--cold-dir", tmp_path), tmp_path, f"'{name}' is a FIFO")


@pytest.mark.parametrize("arguments", [("man",), ("--help",), ("--version",), ("version",), ("completion", "bash"),
                                       ("serve", "--print-config"), ("serve", "--help"), ("cache", "pin", "--help"),
                                       ("key", "new", "--name", "a", "--tenant", "b")])
def test_output_that_cannot_be_written_is_an_error(arguments):
    with open("/dev/full", "wb") as full:
        ended = kvlink(*arguments, stdout=full)
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.endswith("kvlink: standard output cannot be written\n")


# --- bits ---

def bits_of(server, prompt, **more):
    """All numbers of an answer; JSON writes a float so that it reads back the same."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 6, "logprobs": 5, **more}
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return choice["text"], choice["logprobs"], answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def disturb(server, prompts, number):
    """What others do meanwhile; none of it may show in an answer."""
    prompt = prompts[number % len(prompts)]
    post = server.http.post
    match number % 5:
        case 0:
            post("/kvlink/flush")
        case 1:
            post("/kvlink/pin", json={"prompt": prompt, "ttl_s": 0.05})
        case 2:
            post("/kvlink/unpin", json={"prompt": prompt[:40]})
        case 3:
            post("/kvlink/warm", json={"prompt": prompt[:200]})
        case 4:  # a client that goes away
            host, port = server.url.removeprefix("http://").split(":")
            body = json.dumps({"prompt": prompt, "max_tokens": 64, "ignore_eos": True}).encode()
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


# Acceptance 5, to the bit: the answers' texts alone would hide small differences.
def test_exact_answers_keep_every_bit_whatever_happens_beside_them(tmp_path):
    heads = facts(2, words=120, salt="bits ")
    prompts = [head + tail for head in heads for tail in ("", " Think.", " Think. Then answer.", " Answer in one word.")]
    reference = TierServer(tmp_path, "--sharing", "off", kv_memory="64M")
    # Ids: text would be tokenised by what was generated before.
    prompts = [reference.http.post("/tokenize", json={"prompt": prompt}).json()["tokens"] for prompt in prompts]
    expected = [bits_of(reference, prompt)[:2] for prompt in prompts]
    assert reference.stop() == 0
    server = TierServer(tmp_path, "--cold-dir", str(tmp_path / "cold"), "--cold-size", "64M", "--tier-writes", "all",
                        "--max-seqs", "3", "--chunk", "48", kv_memory="16M")
    order = [i for i in range(len(prompts)) for _ in range(4)]
    random.Random(1).shuffle(order)

    def ask(number):
        disturb(server, prompts, number)
        return bits_of(server, prompts[order[number]])

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(len(order))))
    for i, answer in zip(order, answers):
        assert answer[:2] == expected[i]
    assert sum(answer[2] for answer in answers) > 0
    server.wait_until_idle()
    assert server.metric("kvlink_blocks", state="in_use") == 0
    assert server.stop() == 0
