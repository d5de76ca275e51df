"""What is refused, and how it is said."""
import openai
import pytest


@pytest.mark.parametrize("field,value", [("temperature", 5), ("top_p", -1), ("n", 0), ("max_tokens", -7),
                                         ("stop", [""]), ("seed", "x"), ("logit_bias", {"abc": 1})])
def test_a_wrong_value_is_named_and_shown(chat, field, value):
    with pytest.raises(openai.BadRequestError) as refused:
        chat("hi", extra_body={field: value})
    assert refused.value.param.startswith(field)
    assert refused.value.type == "invalid_request_error"
    assert field in refused.value.message


def test_an_unknown_model_is_not_found(chat):
    with pytest.raises(openai.NotFoundError) as refused:
        chat("hi", model="gpt-17")
    assert refused.value.code == "model_not_found"
    assert "gpt-17" in refused.value.message


def test_a_prompt_beyond_the_context_is_refused_with_the_figures(chat):
    with pytest.raises(openai.BadRequestError) as refused:
        chat("word " * 6000)
    assert refused.value.code == "context_length_exceeded"
    assert "4096" in refused.value.message


def test_images_are_refused_clearly(chat):
    with pytest.raises(openai.BadRequestError) as refused:
        chat("", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}])
    assert "image_url" in refused.value.message


def test_a_grammar_that_does_not_parse_is_the_clients_error(chat):
    with pytest.raises(openai.BadRequestError) as refused:
        chat("hi", extra_body={"grammar": "root ::= ("})
    assert "grammar" in refused.value.message


def test_a_deadline_that_passes_is_a_timeout(server):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3000, "ignore_eos": True, "deadline_ms": 100}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"


def test_paths_methods_and_bodies(server):
    assert server.http.get("/nothing").status_code == 404
    assert server.http.get("/v1/completions").status_code == 405
    for body in (b"", b"{", b"[]", b'{"messages": "\xff"}'):
        answer = server.http.post("/v1/chat/completions", content=body)
        assert answer.status_code == 400
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert server.http.post("/v1/chat/completions", content=b"x" * (9 << 20)).status_code == 413
    assert server.http.get("/health").status_code == 200
