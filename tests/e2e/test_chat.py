"""Chat answers: whole, streamed, several, sampled, constrained."""
import json

from conftest import cached


def test_models_health_and_version(server, client):
    models = client.models.list().data
    assert len(models) == 1
    assert client.models.retrieve(models[0].id).id == models[0].id
    assert server.http.get("/health").json()["status"] == "ok"
    assert server.http.get("/version").json()["version"]


def test_an_answer_has_usage_timings_and_reuse(chat):
    answer = chat("Name a colour. [usage]")
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 24
    timings = answer.model_extra["timings"]
    assert timings["cache_n"] == cached(answer)
    assert timings["prompt_n"] + timings["cache_n"] == usage.prompt_tokens
    assert timings["predicted_n"] == usage.completion_tokens and timings["predicted_ms"] > 0
    reuse = answer.model_extra["kvlink"]
    assert reuse["exact"] + reuse["partial"] == cached(answer)
    assert reuse["miss_reason"] in ("cold", "diverged")


def test_a_stream_says_what_the_whole_answer_says(chat):
    whole = chat("Write a sentence about the sea.")
    parts = list(chat("Write a sentence about the sea.", stream=True, stream_options={"include_usage": True}))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == whole.choices[0].message.content
    assert parts[0].choices[0].delta.role == "assistant"
    assert [part.choices[0].finish_reason for part in parts if part.choices][-1] == whole.choices[0].finish_reason
    last = parts[-1]
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert cached(last) == last.usage.prompt_tokens - 1  # the last row is always computed
    assert all(part.usage is None for part in parts[:-1])


def test_a_stream_without_include_usage_still_ends_with_usage(chat):
    parts = list(chat("Write a sentence about rain.", stream=True))
    assert cached(parts[-1]) >= 0
    assert parts[-1].choices[0].finish_reason


def test_a_seed_repeats_and_another_does_not(chat):
    ask = lambda seed: chat("Tell me a story.", temperature=1.2, seed=seed).choices[0].message.content
    first = ask(7)
    assert ask(7) == first
    assert len({ask(seed) for seed in (8, 9, 10)} | {first}) > 1


def test_several_choices_differ_and_share_the_prompt(chat):
    answer = chat("Invent a name for a cat.", n=4, temperature=1.5, seed=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in answer.choices}) > 1
    single = chat("Invent a name for a cat.", temperature=1.5, seed=3)
    assert answer.usage.prompt_tokens == single.usage.prompt_tokens
    streamed = ["", "", "", ""]
    for part in chat("Invent a name for a cat.", n=4, temperature=1.5, seed=3, stream=True):
        for choice in part.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == [choice.message.content for choice in answer.choices]


def test_a_stop_string_ends_the_answer_before_it(chat):
    whole = chat("Count: one, two, three", max_tokens=40).choices[0].message.content
    middle = whole[len(whole) // 2:len(whole) // 2 + 3]
    cut = chat("Count: one, two, three", max_tokens=40, stop=[middle, "no such text"])
    assert cut.choices[0].message.content == whole[:whole.index(middle)]
    assert cut.choices[0].finish_reason == "stop"
    streamed = chat("Count: one, two, three", max_tokens=40, stop=middle, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in streamed) == cut.choices[0].message.content


def test_max_tokens_ends_with_length(chat):
    answer = chat("Tell me a long story.", max_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3


def test_logprobs_of_a_greedy_answer_name_the_token_first(chat):
    answer = chat("What is two plus two?", logprobs=True, top_logprobs=3, max_tokens=8)
    entries = answer.choices[0].logprobs.content
    assert entries
    for entry in entries:
        assert entry.logprob <= 0
        assert entry.top_logprobs[0].token == entry.token
        assert len(entry.top_logprobs) == 3
        assert sorted((top.logprob for top in entry.top_logprobs), reverse=True) == [
            top.logprob for top in entry.top_logprobs]
    text = b"".join(bytes(entry.bytes) for entry in entries).decode(errors="replace")
    assert text.startswith(answer.choices[0].message.content[:5])


def test_a_banned_token_is_not_generated(server, chat):
    answer = chat("What is two plus two?", logprobs=True, max_tokens=1)
    token = answer.choices[0].logprobs.content[0]
    ids = server.http.post("/tokenize", json={"content": token.token}).json()["tokens"]
    other = chat("What is two plus two?", max_tokens=1, logprobs=True, logit_bias={str(ids[0]): -100})
    assert other.choices[0].logprobs.content[0].token != token.token


def test_beam_search_gives_the_best_beams(chat):
    greedy = chat("What is the capital of France?", max_tokens=8, logprobs=True)
    beams = chat("What is the capital of France?", max_tokens=8, n=2,
                 extra_body={"use_beam_search": True, "best_of": 3, "length_penalty": 1.0})
    assert len(beams.choices) == 2
    assert beams.choices[0].message.content != beams.choices[1].message.content
    assert greedy.choices[0].message.content


def test_json_answers_are_json(chat):
    schema = {"type": "object", "properties": {"sunny": {"type": "boolean"}, "city": {"enum": ["Oslo", "Rome"]}},
              "required": ["sunny", "city"], "additionalProperties": False}
    answer = chat("Describe the weather.", max_tokens=80, response_format={
        "type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": schema}})
    parsed = json.loads(answer.choices[0].message.content)
    assert set(parsed) == {"sunny", "city"} and parsed["city"] in ("Oslo", "Rome")


def test_fields_of_other_servers_and_unknown_ones_are_taken(chat):
    answer = chat("Hello there.", max_tokens=4, user="someone", extra_body={
        "top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1, "cache_prompt": True, "prompt_cache_key": "k",
        "ignore_eos": True, "no_such_field": {"a": 1}, "chat_template_kwargs": {}})
    assert answer.usage.completion_tokens == 4


def test_content_parts_are_the_text_they_hold(chat):
    plain = chat("one two three", max_tokens=4)
    parts = chat("", max_tokens=4, messages=[{"role": "user", "content": [
        {"type": "text", "text": "one two"}, {"type": "text", "text": " three"}]}])
    assert parts.usage.prompt_tokens == plain.usage.prompt_tokens
    assert cached(parts) == parts.usage.prompt_tokens - 1
