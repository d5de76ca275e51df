"""Two hundred users at once over two contexts of 7,000 tokens, at default settings: nobody is lost, and memory keeps to its budget."""
import json
import os
import random
import re
import subprocess
import threading
import time
import urllib.request

import pytest

BINARY = os.environ["KVLINK_BINARY"]
MODEL = os.environ["KVLINK_MODEL"]
MORE_OPTIONS = os.environ.get("KVLINK_SERVE_OPTIONS", "--threads 1").split()
MIB = 1 << 20
USERS, CONTEXTS, CONTEXT_TOKENS, ANSWER_TOKENS = 200, 2, 7000, 16
BUDGET_MIB = 512  # the two contexts take 310 of it
SLACK_MIB = 128   # connections, requests, answers, events


def text(source, words):
    names = ["river", "stone", "cloud", "paper", "garden", "winter", "copper", "signal", "letter", "market"]
    return " ".join(source.choice(names) for _ in range(words))


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    source = random.Random(3)
    # A word is a token, and so is the chat template's share of about forty.
    contexts = [text(source, CONTEXT_TOKENS) for _ in range(CONTEXTS)]
    path = tmp_path_factory.mktemp("load") / "load.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for user in range(USERS):
            messages = [{"role": "system", "content": contexts[user % CONTEXTS]},
                        {"role": "user", "content": f"Question {user}: {text(source, 20)}?"}]
            line = {"id": f"user_{user}", "tenant": "t", "turns": [{"messages": messages, "max_tokens": ANSWER_TOKENS}]}
            file.write(json.dumps(line) + "\n")
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Default settings but for the memory and the port."""
    with open(tmp_path_factory.mktemp("serve") / "log", "w", encoding="utf-8") as log:
        process = subprocess.Popen([BINARY, "serve", "--model", MODEL, "--port", "0", "--kv-memory", f"{BUDGET_MIB}M",
                                    "--no-cold", *MORE_OPTIONS], stdout=subprocess.PIPE, stderr=log, text=True)
        address = next(re.search(r"http://\S+", line)[0] for line in process.stdout if "address" in line)
        reader = threading.Thread(target=process.stdout.read, daemon=True)
        reader.start()
        yield process, address
        process.terminate()
        assert process.wait(60) == 0


def metric(address, line_start):
    with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(line_start))


def resident_mib(process):
    with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) / 1024


def test_two_hundred_streaming_users_over_long_contexts_are_all_answered_within_the_budget(server, workload, tmp_path):
    process, address = server
    hello = json.dumps({"prompt": "Hello", "max_tokens": 2}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{address}/v1/completions", hello,
                                                  {"Content-Type": "application/json"}), timeout=300).read()
    before = resident_mib(process)
    figures = tmp_path / "figures.json"
    client = subprocess.Popen([BINARY, "bench", "--quiet", "--url", address, "--workload", workload, "--concurrency", str(USERS),
                               "--ignore-eos", "--timeout", "3000", "--json", figures], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True)
    most_resident, most_usage, most_waiting = before, 0.0, 0.0
    while client.poll() is None:
        most_resident = max(most_resident, resident_mib(process))
        most_usage = max(most_usage, metric(address, "vllm:kv_cache_usage_perc"))
        most_waiting = max(most_waiting, metric(address, "vllm:num_requests_waiting"))
        time.sleep(1)
    assert client.returncode == 0, client.stderr.read()
    run = json.loads(figures.read_text())["modes"]["url"]
    print(f"\n{USERS} users: {run['wall_s']:.1f} s, {run['gen_tok_per_s']:.0f} tokens/s, TTFT p50 {run['ttft_p50']:.1f} s, p95 "
          f"{run['ttft_p95']:.1f} s; computed {run['computed_tokens']} of {run['prompt_tokens']} prompt tokens; resident "
          f"+{most_resident - before:.0f} MiB of {BUDGET_MIB}; client's CPU {run['client_cpu_share']:.2%}")
    assert run["errors"] == 0 and run["requests"] == USERS
    assert round(run["gen_tok_per_s"] * run["wall_s"]) == USERS * ANSWER_TOKENS
    assert run["prompt_tokens"] > USERS * CONTEXT_TOKENS
    # Each context once; each user's own question.
    assert run["computed_tokens"] < CONTEXTS * (CONTEXT_TOKENS + 200) + USERS * 100
    assert most_waiting > USERS / 2  # they did come at once
    assert 0 < most_usage <= 1
    assert most_resident - before < BUDGET_MIB + SLACK_MIB
    assert metric(address, "vllm:num_requests_running") + metric(address, "vllm:num_requests_waiting") == 0
