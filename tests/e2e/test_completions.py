"""/v1/completions, tokenising and detokenising."""
import openai
import pytest


@pytest.fixture
def complete(client):
    def ask(prompt, **more):
        arguments = {"model": client.models.list().data[0].id, "temperature": 0, "max_tokens": 8, **more}
        return client.completions.create(prompt=prompt, **arguments)

    return ask


def test_prompts_come_as_text_lists_and_token_ids(server, complete):
    text = "The largest planet is"
    ids = server.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    expected = complete(text).choices[0].text
    assert complete(ids).choices[0].text == expected
    both = complete([text, "Water boils at"])
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.choices[0].text == expected
    assert complete([ids]).choices[0].text == expected
    assert both.usage.prompt_tokens > len(ids)


def test_echo_with_logprobs_scores_the_prompt(complete):
    answer = complete("Paris is the capital of France.", echo=True, logprobs=1, max_tokens=0)
    choice = answer.choices[0]
    assert choice.text == "Paris is the capital of France."
    assert answer.usage.completion_tokens == 0
    logprobs = choice.logprobs
    assert len(logprobs.tokens) == answer.usage.prompt_tokens
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    # A true sentence is likelier than the same words in disorder.
    other = complete("capital Paris France of the is.", echo=True, logprobs=1, max_tokens=0).choices[0].logprobs
    assert sum(logprobs.token_logprobs[1:]) > sum(other.token_logprobs[1:])


def test_prompt_logprobs_are_fresh_even_when_the_prompt_is_cached(complete):
    ask = lambda: complete("A prompt that is asked twice.", extra_body={"prompt_logprobs": 0})
    first, second = ask().choices[0].prompt_logprobs, ask().choices[0].prompt_logprobs
    assert first == second
    assert first[0] is None and len(first) > 4


def test_a_stream_of_a_completion(complete):
    whole = complete("Once upon a time", max_tokens=12).choices[0].text
    parts = list(complete("Once upon a time", max_tokens=12, stream=True))
    assert "".join(part.choices[0].text for part in parts if part.choices) == whole


def test_best_of_keeps_the_likeliest(complete):
    answer = complete("My favourite food is", n=1, best_of=3, temperature=1.0, seed=5, logprobs=0)
    assert len(answer.choices) == 1
    assert answer.usage.completion_tokens > 8  # those that were dropped were generated too
    assert len(answer.choices[0].logprobs.tokens) <= 8


def test_more_choices_than_run_at_once_are_those_of_each_alone(complete):
    ask = {"prompt": "My favourite food is", "temperature": 1.0, "max_tokens": 6, "extra_body": {"ignore_eos": True}}
    many = complete(**ask, n=20, seed=5)  # 16 run at once
    assert [choice.index for choice in many.choices] == list(range(20))
    assert many.usage.completion_tokens == 20 * 6
    for index in (0, 15, 16, 19):
        assert many.choices[index].text == complete(**ask, seed=5 + index).choices[0].text
    streamed = [""] * 20
    for part in complete(**ask, n=20, seed=5, stream=True):
        for choice in part.choices:
            streamed[choice.index] += choice.text
    assert streamed == [choice.text for choice in many.choices]
    with pytest.raises(openai.BadRequestError, match="17 beams, which all advance together; at most 16"):
        complete("x", n=17, extra_body={"use_beam_search": True})


@pytest.mark.parametrize("text", ["plain words", "你好，世界", "emoji 😀👩‍👩‍👧", "  leading", "def f(x):\n\treturn x\n",
                                  "café naïve", "<|im_end|>"])
def test_detokenising_undoes_tokenising(server, text):
    answer = server.http.post("/tokenize", json={"content": text}).json()
    assert answer["count"] == len(answer["tokens"])
    assert server.http.post("/detokenize", json={"tokens": answer["tokens"]}).json()["content"] == text


def test_tokenising_a_chat_counts_what_the_chat_counts(server, chat):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    count = server.http.post("/tokenize", json={"messages": messages}).json()["count"]
    assert chat("", messages=messages, max_tokens=1).usage.prompt_tokens == count
