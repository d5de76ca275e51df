"""Smaller routes and fields, as clients of OpenAI, llama-server and vLLM expect them."""
import openai
import pytest

from conftest import filler


@pytest.fixture
def model(client):
    return client.models.list().data[0].id


def test_embeddings_are_refused_with_the_reason(client, model):
    with pytest.raises(openai.APIStatusError) as refused:
        client.embeddings.create(model=model, input="x")
    assert refused.value.status_code == 501
    assert "embeddings are not supported" in refused.value.message


def test_a_prompt_beyond_the_context_has_the_code_that_clients_look_for(chat, client, model):
    with pytest.raises(openai.BadRequestError) as refused:
        chat("word " * 6000)
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.type == "invalid_request_error"
    assert refused.value.param == "messages"
    assert "4096" in refused.value.message
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=model, prompt="word " * 6000)
    assert refused.value.code == "context_length_exceeded"


def test_a_suffix_needs_a_model_that_fills_in(client, model):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=model, prompt="def f(", suffix="return x")
    assert refused.value.param == "suffix" and refused.value.code == "unsupported"
    assert "filling in the middle" in refused.value.message


def test_stop_sequences_are_found_across_tokens_in_a_stream(chat):
    text = chat("Count from one to ten in words.", max_tokens=40).choices[0].message.content
    for at in (3, 7, 12):
        stop = text[at:at + 5]
        arguments = {"stop": ["never here", stop], "max_tokens": 40}
        whole = chat("Count from one to ten in words.", **arguments).choices[0]
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chat(
            "Count from one to ten in words.", stream=True, **arguments) if chunk.choices)
        assert streamed == whole.message.content == text[:text.index(stop)]
        assert whole.finish_reason == "stop"


def test_log_probabilities_in_chat_and_completions(chat, client, model):
    answer = chat("Say hello.", logprobs=True, top_logprobs=3, max_tokens=5).choices[0]
    assert len(answer.logprobs.content) >= 1
    for entry in answer.logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob)  # greedy
        assert bytes(entry.bytes).decode(errors="replace")
    streamed = [entry for chunk in chat("Say hello.", logprobs=True, top_logprobs=3, max_tokens=5, stream=True)
                for choice in chunk.choices if choice.logprobs for entry in choice.logprobs.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in answer.logprobs.content]
    echo = client.completions.create(model=model, prompt="One two three", echo=True, logprobs=2, max_tokens=2,
                                     temperature=0).choices[0]
    assert echo.text.startswith("One two three")
    assert echo.logprobs.token_logprobs[0] is None
    assert len(echo.logprobs.tokens) > 4
    assert "".join(echo.logprobs.tokens) == echo.text


def test_several_answers_and_beams(chat, client, model):
    several = chat("Name a colour.", n=3, temperature=1, seed=1)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    best = client.completions.create(model=model, prompt="A colour:", n=1, best_of=3, temperature=1, seed=1, max_tokens=4)
    assert len(best.choices) == 1
    beams = chat("Name a colour.", n=2, extra_body={"best_of": 3, "use_beam_search": True}, max_tokens=6)
    assert len(beams.choices) == 2
    assert beams.choices[0].message.content != beams.choices[1].message.content


def test_tokens_there_and_back(server):
    text = "Grüße, 世界! " + filler(20, "tokens")
    tokens = server.http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert server.http.post("/detokenize", json={"tokens": tokens}).json()["content"] == text
    chat = server.http.post("/tokenize", json={"messages": [{"role": "user", "content": "x"}]}).json()
    assert chat["count"] == len(chat["tokens"]) > 5


def test_what_clients_ask_of_a_server(server, client, model):
    assert server.http.get("/health").json() == {"status": "ok"}
    props = server.http.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert props["total_slots"] >= 1 and props["model_alias"] == model
    assert client.models.retrieve(model).id == model
    wrong = server.http.get("/v1/chat/completions")
    assert wrong.status_code == 405 and "POST" in wrong.json()["error"]["message"]


def test_unknown_fields_are_ignored(chat):
    assert chat("Hi", extra_body={"frobnicate": {"x": 1}, "service_tier": "auto"}).choices[0].message.content
