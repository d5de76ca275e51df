"""Blocks on disk and in Redis, seen from outside: the same answers, hits where they are due, and nothing worse than
computing when a tier is damaged, frozen, stopped or killed."""
import concurrent.futures
import random
import subprocess

import pytest

from conftest import BINARY
from tier_tools import ROWS, Redis, TierServer, blocks_of, cached_of, damage_files, facts, text_of


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A server that shares nothing."""
    running = TierServer(tmp_path_factory.mktemp("reference"), "--sharing", "off", kv_memory="256M")
    yield running
    assert running.stop() == 0


@pytest.fixture(autouse=True)
def nothing_left(reference):
    yield
    for server in TierServer.running - {reference}:
        server.kill()


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    running = Redis(tmp_path_factory.mktemp("redis"))
    yield running
    running.stop()


def ask_all(server, prompts, clients=4):
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        return list(pool.map(server.ask, prompts))


def ask_in_random_order(server, prompts, expected, rounds, seed=1):
    """Answers that differ from what is expected."""
    wrong = []
    for number in range(rounds):
        order = list(range(len(prompts)))
        random.Random(seed + number).shuffle(order)
        answers = ask_all(server, [prompts[i] for i in order])
        wrong += [(i, text_of(answer), expected[i]) for i, answer in zip(order, answers) if text_of(answer) != expected[i]]
    return wrong


def check_counters(server, cached_tokens):
    """What the answers said adds up to what the counters say. (Acceptance 26.)"""
    assert server.metric("vllm:prompt_tokens_cached_total") == cached_tokens
    assert server.metric("kvlink_reuse_tokens_total") == cached_tokens
    assert server.metric("vllm:prefix_cache_hits_total") + server.metric("vllm:external_prefix_cache_hits_total") == cached_tokens
    assert server.metric("vllm:external_prefix_cache_hits_total") == server.reused("cold") + server.reused("remote")


def run_through_all_tiers(tmp_path, reference, redis, count, rounds, kv_memory, cold_size):
    prompts = facts(count)
    expected = [text_of(answer) for answer in ask_all(reference, prompts)]
    server = TierServer(tmp_path, "--cold-dir", str(tmp_path / "cold"), "--cold-size", cold_size, "--remote", redis.url,
                        "--tier-writes", "all", kv_memory=kv_memory)
    first = ask_all(server, prompts)
    assert [text_of(answer) for answer in first] == expected
    server.wait_until_written("remote", blocks_of(first))
    assert ask_in_random_order(server, prompts, expected, rounds) == []
    assert server.reused("cold") > 0
    assert server.reused("remote") > 0
    assert server.metric("kvlink_tier_errors_total", op="get", reason="corrupt") == 0
    assert server.metric("vllm:prefix_cache_queries_total") == server.metric("vllm:prompt_tokens_total")
    assert server.metric("kvlink_tier_bytes", tier="cold", kind="device") <= server.metric(
        "kvlink_tier_bytes", tier="cold", kind="budget")
    assert server.stop() == 0


# Acceptance 1: all go RAM -> disk -> Redis, and come back equal.
def test_facts_come_back_from_disk_and_redis_as_they_were(tmp_path, reference, redis):
    run_through_all_tiers(tmp_path, reference, redis, count=12, rounds=2, kv_memory="30M", cold_size="48M")


def test_an_answer_tells_the_tier_and_counters_add_up(tmp_path):
    server = TierServer(tmp_path, "--cold-dir", str(tmp_path / "cold"), "--cold-size", "256M")
    prompts = facts(5, salt="tell ")
    first = [server.ask(prompt) for prompt in prompts]
    server.wait_until_written("cold", blocks_of(first))
    again = [server.ask(prompt) for prompt in prompts]
    from_disk = [answer for answer in again if answer["kvlink"]["tier"] == "cold"]
    assert from_disk
    for answer in from_disk:
        told = answer["kvlink"]["tier_tokens"]
        assert told["cold"] > 0 and told["ram"] + told["cold"] == cached_of(answer)
        assert answer["kvlink"]["miss_reason"] == "none"
    assert [text_of(answer) for answer in again] == [text_of(answer) for answer in first]
    check_counters(server, sum(map(cached_of, first + again)))
    assert server.metric("vllm:external_prefix_cache_queries_total") > 0
    assert server.stop() == 0


# RAM holds one prompt at a time, and what Redis has is known only when it was asked.
def test_requests_that_wait_for_room_load_from_redis(tmp_path, redis):
    server = TierServer(tmp_path, "--no-cold", "--remote", redis.url, "--tier-writes", "all")
    prompts = facts(3, words=560, salt="room ")
    first = ask_all(server, prompts, clients=1)
    server.wait_until_written("remote", blocks_of(first))

    def most_are_loaded():
        again = ask_all(server, prompts, clients=3)
        assert [text_of(answer) for answer in again] == [text_of(answer) for answer in first]
        return sum(answer["kvlink"]["tier_tokens"].get("remote", 0) >= 10 * ROWS for answer in again) >= 2

    server.wait_for(most_are_loaded)
    assert server.stop() == 0


# Acceptance 28: the reason that a miss has after a start with another model file, KV type or processor.
def test_after_a_start_with_another_kv_type_a_miss_says_so(tmp_path):
    cold = ("--cold-dir", str(tmp_path / "cold"), "--cold-size", "256M")
    prompts = facts(2, salt="types ")

    def run(kv_type, ask):
        server = TierServer(tmp_path, *cold, "--kv-type", kv_type, kv_memory="256M")
        answers = [server.ask(prompt, max_tokens=1) for prompt in ask]
        assert server.stop() == 0  # which writes out what is in RAM
        return [answer["kvlink"] for answer in answers]

    [first] = run("f16", prompts[:1])
    assert first["miss_reason"] == "cold"
    same, other = run("q8_0", prompts)
    assert same["exact"] + same["partial"] == 0 and same["miss_reason"] == "namespace"
    assert other["miss_reason"] in ("cold", "diverged")
    # Its own blocks are in reach again, whether they come in time or not.
    assert run("f16", prompts[:1])[0]["miss_reason"] != "namespace"


# Acceptance 22. No shared seed, nothing kept in the process: the index comes back from the disk.
def test_after_kill_9_and_a_restart_the_same_is_found(tmp_path):
    server = TierServer(tmp_path, "--cold-dir", str(tmp_path / "cold"), "--cold-size", "256M", kv_memory="256M")
    prompts = facts(3, salt="kill ")
    first = [server.ask(prompt) for prompt in prompts]
    warm = [server.ask(prompt) for prompt in prompts]
    assert all(cached_of(answer) > 200 for answer in warm)
    server.wait_until_written("cold", blocks_of(first))
    server.kill()
    server = server.started_again()
    after = [server.ask(prompt) for prompt in prompts]
    for was, now in zip(warm, after):
        # All but the rest behind the last whole block, which lives in RAM alone.
        assert cached_of(now) >= cached_of(was) // ROWS * ROWS
        assert now["kvlink"]["tier"] == "cold"
    assert [text_of(answer) for answer in after] == [text_of(answer) for answer in first]
    assert server.stop() == 0


def turn(server, question, answer, **more):
    """The second turn of a chat whose first answer was `answer`."""
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer},
                {"role": "user", "content": "Why?"}]
    return server.ask("", messages=messages, max_tokens=1, **more)


def turn_with_its_ids(server, question, answer):
    """Likewise, once the ids came from a tier: a request waits for them a moment only, and this machine may be slow."""
    turns = []

    def is_spliced():
        turns.append(turn(server, question, answer))
        return server.metric("kvlink_output_splices_total") == 1

    server.wait_for(is_spliced)
    return turns[-1]


def start_a_chat(server, question):
    """An answer that no tokenizer would write in the same ids: drawn at a high temperature."""
    answer = server.ask(question, max_tokens=100, temperature=1.6, seed=11, ignore_eos=True)
    return text_of(answer), answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]


# The ids of an answer live in RAM, its blocks on the disk: both must come back. Tokenised again, the text has other ids.
def test_after_a_restart_the_next_turn_finds_the_blocks_of_its_own_answer(tmp_path):
    server = TierServer(tmp_path, "--cold-dir", str(tmp_path / "cold"), "--cold-size", "256M", "--tier-writes", "all",
                        kv_memory="256M")
    question = facts(1, salt="chat ")[0]
    answer, tokens = start_a_chat(server, question)
    warm = turn(server, question, answer)
    assert cached_of(warm) >= tokens - ROWS
    server.wait_for(lambda: server.stored() >= tokens // ROWS
                    and server.metric("kvlink_tier_queue_blocks", tier="cold") == 0)
    server.kill()
    server = server.started_again()
    again = turn_with_its_ids(server, question, answer)
    assert cached_of(again) >= cached_of(warm) // ROWS * ROWS
    assert again["kvlink"]["tier"] == "cold"
    # Without the ids there would be less: of a text that only begins as this one nothing is remembered.
    assert cached_of(turn(server, question, answer + " .")) < tokens - ROWS
    assert server.stop() == 0


def test_another_server_finds_the_blocks_of_an_answer_through_redis(tmp_path, redis):
    redis.command("FLUSHALL")
    options = ("--remote", redis.url, "--tier-writes", "all")
    server = TierServer(tmp_path, *options, kv_memory="256M")
    other = TierServer(tmp_path, *options, kv_memory="256M")
    question = facts(1, salt="chat elsewhere ")[0]
    answer, tokens = start_a_chat(server, question)
    server.wait_for(lambda: server.stored("remote") >= tokens // ROWS
                    and server.metric("kvlink_tier_queue_blocks", tier="remote") == 0)
    there = turn_with_its_ids(other, question, answer)
    assert there["kvlink"]["tier"] == "remote"
    assert cached_of(there) >= tokens // ROWS * ROWS - ROWS
    # Both write; each finds what only the other computed.
    second = facts(1, salt="other way ")[0]
    first = other.ask(second)
    other.wait_for(lambda: other.stored("remote") >= blocks_of([first])
                   and other.metric("kvlink_tier_queue_blocks", tier="remote") == 0)
    back = server.ask(second)
    assert back["kvlink"]["tier"] == "remote" and text_of(back) == text_of(first)
    assert server.stop() == 0 and other.stop() == 0


def test_a_clean_end_writes_out_what_is_in_ram(tmp_path):
    server = TierServer(tmp_path, "--cold-dir", str(tmp_path / "cold"), "--cold-size", "256M", kv_memory="256M")
    prompt = facts(1, salt="clean ")[0]
    answer = server.ask(prompt)
    assert server.stop() == 0
    server = server.started_again()
    again = server.ask(prompt)
    assert cached_of(again) >= answer["usage"]["prompt_tokens"] // ROWS * ROWS - ROWS
    assert text_of(again) == text_of(answer)
    assert server.stop() == 0


# Acceptance 1.
def test_damaged_files_are_misses_and_counted(tmp_path, reference):
    cold = tmp_path / "cold"
    server = TierServer(tmp_path, "--cold-dir", str(cold), "--cold-size", "256M", "--tier-writes", "all")
    prompts = facts(4, salt="damage ")
    expected = [text_of(answer) for answer in ask_all(reference, prompts)]
    ask_all(server, prompts)
    assert server.stop() == 0
    sound = subprocess.run([BINARY, "inspect", "fsck", "--cold-dir", str(cold)], capture_output=True, text=True)
    assert sound.returncode == 0, sound.stdout + sound.stderr
    assert damage_files(cold) > 0
    damaged = subprocess.run([BINARY, "inspect", "fsck", "--cold-dir", str(cold)], capture_output=True, text=True)
    assert damaged.returncode == 1, damaged.stdout + damaged.stderr
    server = server.started_again()
    answers = ask_all(server, prompts)
    assert [text_of(answer) for answer in answers] == expected
    assert server.errors() > 0
    assert server.metric("kvlink_miss_total", reason="tier_error") > 0
    assert server.stop() == 0


def test_damaged_redis_values_are_misses_and_counted(tmp_path, reference, redis):
    redis.command("FLUSHALL")
    server = TierServer(tmp_path, "--remote", redis.url, "--tier-writes", "all")
    prompts = facts(4, salt="redis damage ")
    expected = [text_of(answer) for answer in ask_all(reference, prompts)]
    first = ask_all(server, prompts)
    server.wait_until_written("remote", blocks_of(first))
    assert server.stop() == 0
    redis.flip_a_byte_of_every_value()
    server = server.started_again()
    assert [text_of(answer) for answer in ask_all(server, prompts)] == expected
    assert server.metric("kvlink_tier_errors_total", op="get", reason="corrupt") > 0
    assert server.stop() == 0


def test_a_second_server_hits_what_the_first_one_computed(tmp_path, redis):
    redis.command("FLUSHALL")
    server = TierServer(tmp_path, "--remote", redis.url, kv_memory="256M")
    other = TierServer(tmp_path, "--remote", redis.url, kv_memory="256M")
    prompt = facts(1, salt="second ")[0]
    first = server.ask(prompt)
    server.wait_until_written("remote", blocks_of([first]))
    answer = other.ask(prompt)
    assert answer["kvlink"]["tier"] == "remote"
    assert text_of(answer) == text_of(first)
    assert server.stop() == 0 and other.stop() == 0


# Acceptance 3: those who would compute other bytes share a Redis, and each finds its own blocks only.
def test_servers_of_other_kv_types_and_processors_get_no_blocks_of_each_other(tmp_path, redis, monkeypatch):
    redis.command("FLUSHALL")
    prompts = facts(2, words=120, salt="kinds ")
    kinds = [("f16", ""), ("q8_0", "")]
    if "kernels avx512" in subprocess.run([BINARY, "version"], capture_output=True, text=True, check=True).stdout:
        kinds.append(("f16", "avx2"))

    def start(kv_type, isa):
        monkeypatch.setenv("KVLINK_ISA", isa)
        return TierServer(tmp_path, "--remote", redis.url, "--tier-writes", "all", "--kv-type", kv_type, kv_memory="256M")

    def ask(server, **more):
        answers = [server.ask(prompt, logprobs=True, top_logprobs=3, **more) for prompt in prompts]
        return answers, [(text_of(answer), answer["choices"][0]["logprobs"]) for answer in answers]

    expected = {}
    for kind in kinds:
        server = start(*kind)
        expected[kind] = ask(server, kvlink={"reuse": False, "store": False})[1]
        answers, told = ask(server)
        assert told == expected[kind]
        assert server.reused("remote") == 0
        server.wait_until_written("remote", blocks_of(answers))
        assert server.stop() == 0
    for kind in kinds:
        server = start(*kind)

        def its_own_are_loaded():  # in time, on a machine that may be slow
            assert server.http.post("/kvlink/flush").status_code == 200
            assert ask(server)[1] == expected[kind]
            return server.reused("remote") >= ROWS

        server.wait_for(its_own_are_loaded)
        assert 'reason="foreign"' not in server.http.get("/metrics").text
        assert server.stop() == 0


# Acceptance 21.
@pytest.mark.parametrize("fault", ["freeze", "kill"])
def test_a_redis_that_fails_is_cut_off_and_taken_in_again(tmp_path, reference, fault):
    redis = Redis(tmp_path)
    try:
        server = TierServer(tmp_path, "--remote", redis.url)
        prompts = facts(6, salt=f"{fault} ")
        expected = [text_of(answer) for answer in ask_all(reference, prompts)]
        first = ask_all(server, prompts)
        server.wait_until_written("remote", blocks_of(first))
        getattr(redis, fault)()
        assert ask_in_random_order(server, prompts + facts(3, salt=f"{fault} more "), expected + [
            text_of(answer) for answer in ask_all(reference, facts(3, salt=f"{fault} more "))], rounds=1) == []
        server.wait_for(lambda: server.metric("kvlink_tier_breaker_openings_total", tier="remote") > 0)
        assert server.metric("kvlink_tier_errors_total") > 0
        assert server.metric("kvlink_tier_breaker_open", tier="remote") == 1
        if fault == "freeze":
            redis.thaw()
        else:
            redis.start()
        server.wait_for(lambda: server.metric("kvlink_tier_breaker_open", tier="remote") == 0)
        stored = server.stored("remote")
        ask_all(server, facts(2, salt=f"{fault} after "))
        server.wait_for(lambda: server.stored("remote") > stored)
        assert server.stop() == 0
    finally:
        redis.stop()


def test_a_server_starts_and_serves_without_its_redis(tmp_path):
    server = TierServer(tmp_path, "--remote", "redis://127.0.0.1:1")
    assert server.ask("Hello")["choices"]
    assert server.stop() == 0


def test_a_folder_in_use_is_refused_by_name_and_default_folders_are_done_without(tmp_path):
    server = TierServer(tmp_path, "--cold-dir", str(tmp_path / "cold"), "--cold-size", "64M")
    with pytest.raises(RuntimeError, match=str(tmp_path / "cold")):
        TierServer(tmp_path, "--cold-dir", str(tmp_path / "cold"), "--cold-size", "64M")
    assert server.stop() == 0


def test_inspect_lists_and_exports_what_a_server_left(tmp_path):
    cold = tmp_path / "cold"
    server = TierServer(tmp_path, "--cold-dir", str(cold), "--cold-size", "64M")
    answer = server.ask(facts(1, salt="inspect ")[0])
    assert server.stop() == 0
    blocks = answer["usage"]["prompt_tokens"] // ROWS
    listed = subprocess.run([BINARY, "inspect", "list", "--cold-dir", str(cold), "--limit", "0"], capture_output=True,
                            text=True, check=True).stdout
    assert listed.count(f"{ROWS:8d}") >= blocks
    subprocess.run([BINARY, "inspect", "export", "--cold-dir", str(cold), "--output", str(tmp_path / "out")], check=True)
    files = list((tmp_path / "out").glob("*.kvblock"))
    assert len(files) >= blocks
    assert all(len(file.stem) == 32 for file in files)
