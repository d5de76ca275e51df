"""What the cache promises, seen from outside: hits where they are due, the same answers, counters that add up."""
import concurrent.futures
import json
import socket

import pytest

from conftest import cached, filler

OWN_OUTPUTS = {
    "chinese": "你好，世界！今天天气很好，我们去公园散步吧。",
    "emoji": "Sure 😀👩‍👩‍👧 and 🇫🇷!",
    "leading_space": "   three spaces, then text",
    "code": "def f(x):\n\tif x:\n        return  [x] * 2\n",
    "odd_words": "xqzvth  Straße   naïve\n\n\n- a\n",
}


def gbnf(text):
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'root ::= "{escaped}"'


# The grammar makes the model write this text, in tokens of its own choosing at temperature 1.
@pytest.mark.parametrize("name", OWN_OUTPUTS)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_sent_back_hits_the_tokens_it_was_generated_as(server, chat, name, stream):
    text = OWN_OUTPUTS[name]
    question = [{"role": "user", "content": f"Say it. [{name} {stream}]"}]
    spliced = server.metric("kvlink_output_splices_total")
    arguments = {"temperature": 1.0, "seed": 4, "max_tokens": 120, "extra_body": {"grammar": gbnf(text)}}
    if stream:
        parts = list(chat("", messages=question, stream=True, stream_options={"include_usage": True}, **arguments))
        answered, usage = "".join(part.choices[0].delta.content or "" for part in parts if part.choices), parts[-1].usage
    else:
        answer = chat("", messages=question, **arguments)
        answered, usage = answer.choices[0].message.content, answer.usage
    assert answered == text
    messages = [*question, {"role": "assistant", "content": answered}, {"role": "user", "content": "Go on."}]
    again = chat("", messages=messages, max_tokens=4)
    # All rows of the first turn: its prompt and what was generated, but for the token that ended it.
    assert cached(again) >= usage.prompt_tokens + usage.completion_tokens - 1
    assert server.metric("kvlink_output_splices_total") > spliced


def test_a_completion_continued_hits_all_of_it(client):
    model = client.models.list().data[0].id
    ask = lambda prompt: client.completions.create(model=model, prompt=prompt, temperature=1.3, seed=2, max_tokens=20)
    prompt = "A poem about tides that come and go:\n"
    first = ask(prompt)
    second = ask(prompt + first.choices[0].text + " And")
    assert cached(second) >= first.usage.prompt_tokens + first.usage.completion_tokens - 1


def test_warm_answers_equal_cold_ones(chat):
    questions = [f"Question {i}: why is the sky blue on day {i}?" for i in range(4)]
    cold = [chat(question, extra_body={"kvlink": {"reuse": False, "store": False}}) for question in questions]
    assert all(cached(answer) == 0 for answer in cold)
    assert cold[0].model_extra["kvlink"]["miss_reason"] == "policy"
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        warm = list(pool.map(chat, questions * 2))
    assert sum(map(cached, warm)) > 0
    for i, answer in enumerate(warm):
        assert answer.choices[0].message.content == cold[i % 4].choices[0].message.content


def test_equal_prompts_at_once_are_computed_once(server, chat):
    text = filler(700, "burst")
    waits = server.metric("kvlink_single_flight_waits_total")
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: chat(text, max_tokens=4), range(16)))
    prompt = answers[0].usage.prompt_tokens
    assert prompt > 700
    computed = sum(answer.usage.prompt_tokens - cached(answer) for answer in answers)
    assert computed < 1.2 * prompt + 16
    assert server.metric("kvlink_single_flight_waits_total") > waits
    assert len({answer.choices[0].message.content for answer in answers}) == 1


def test_a_divergence_is_told_with_its_message(chat):
    head = {"role": "system", "content": filler(60, "divergence")}
    ask = lambda text: chat("", max_tokens=2, messages=[head, {"role": "user", "content": text}])
    ask("first question, word for word")
    answer = ask("other question, from its first word")
    reuse = answer.model_extra["kvlink"]
    assert reuse["miss_reason"] == "diverged"
    assert reuse["diverged_at"] == cached(answer) > 60
    assert reuse["diverged_message"] == 1


def test_do_not_store_leaves_nothing_behind(chat):
    text = filler(80, "secret")
    chat(text, max_tokens=2, extra_body={"kvlink": {"store": False}})
    assert cached(chat(text, max_tokens=2)) < 40  # the template's head at most


def test_a_client_that_leaves_cancels_and_its_blocks_stay(server, chat):
    text = filler(2600, "cut")
    aborted = server.metric("vllm:request_success_total", finished_reason="abort")
    stored = server.metric("kvlink_stored_blocks_total")
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 64, "temperature": 0}
    half = server.http.post("/tokenize", json={"messages": body["messages"]}).json()["count"] // 32 // 2

    # A plain socket, so that it can be closed while the answer is awaited.
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        payload = json.dumps(body).encode()
        raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(payload) + payload)
        server.wait_for(lambda: server.metric("kvlink_stored_blocks_total") - stored >= half)
    server.wait_until_idle()
    assert server.metric("vllm:request_success_total", finished_reason="abort") == aborted + 1
    again = chat(text, max_tokens=2)
    assert cached(again) >= 0.45 * again.usage.prompt_tokens


def test_a_stream_that_is_left_is_cancelled(server, chat):
    aborted = server.metric("vllm:request_success_total", finished_reason="abort")
    stream = chat("Count to a thousand.", max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    server.wait_until_idle()
    assert server.metric("vllm:request_success_total", finished_reason="abort") == aborted + 1


COUNTERS = ["vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total", "vllm:generation_tokens_total",
            "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "kvlink_reuse_tokens_total"]


def test_sums_over_answers_equal_the_counters(server, chat):
    server.wait_until_idle()
    before = {name: server.metric(name) for name in COUNTERS}

    def ask(i):
        stream = i % 2 == 0
        answer = chat(f"Sum {i % 3} " + filler(20 * (i % 4), "sum"), max_tokens=3, n=1 + i % 3, temperature=1, seed=i,
                      stream=stream)
        return list(answer)[-1] if stream else answer

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(18)))
    gained = {name: server.metric(name) - before[name] for name in COUNTERS}
    prompt = sum(answer.usage.prompt_tokens for answer in answers)
    hits = sum(map(cached, answers))
    assert hits > 0
    assert gained["vllm:prompt_tokens_total"] == gained["vllm:prefix_cache_queries_total"] == prompt
    assert gained["vllm:prompt_tokens_cached_total"] == gained["vllm:prefix_cache_hits_total"] == hits
    assert gained["kvlink_reuse_tokens_total"] == hits
    assert gained["vllm:generation_tokens_total"] == sum(answer.usage.completion_tokens for answer in answers)


def test_pages_add_up_when_idle(server):
    server.wait_until_idle()
    assert server.metric("kvlink_blocks", state="in_use") == 0
    assert server.metric("kvlink_blocks", state="cached") > 0
    assert 0 <= server.metric("vllm:kv_cache_usage_perc") <= 1
