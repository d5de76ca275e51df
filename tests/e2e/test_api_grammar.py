"""Answers that are held to a grammar or a JSON schema: valid whatever the model would rather say."""
import json

import jsonschema
import openai
import pytest

from conftest import cached, filler

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blau", "grün", "绿"]}, "maxItems": 3},
        "address": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/address"}]},
        "pair": {"type": "array", "prefixItems": [{"type": "boolean"}, {"const": 7}], "items": False},
    },
    "required": ["name", "age", "tags", "pair"],
    "additionalProperties": False,
    "$defs": {"address": {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
                          "additionalProperties": False}},
}


def schema_format(schema, name="answer"):
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": schema}}


def finished(choices):
    return [choice for choice in choices if choice.finish_reason == "stop"]


@pytest.mark.parametrize("temperature", [0, 1])
def test_answers_meet_their_schema_at_any_temperature(chat, temperature):
    answer = chat("Describe a person as JSON.", response_format=schema_format(PERSON), temperature=temperature, seed=5,
                  n=1 if temperature == 0 else 4, max_tokens=220)
    done = finished(answer.choices)
    assert done, [choice.message.content for choice in answer.choices]
    for choice in done:
        jsonschema.validate(json.loads(choice.message.content), PERSON)
    for choice in answer.choices:
        if choice.finish_reason != "stop":
            assert choice.finish_reason == "length"
            with pytest.raises(json.JSONDecodeError):
                json.loads(choice.message.content)


def test_a_stream_says_the_same_json_as_a_whole_answer(chat):
    arguments = {"response_format": schema_format(PERSON), "max_tokens": 220}
    whole = chat("Describe a cook as JSON.", **arguments)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in
                   chat("Describe a cook as JSON.", stream=True, **arguments) if chunk.choices)
    assert text == whole.choices[0].message.content
    if whole.choices[0].finish_reason == "stop":
        jsonschema.validate(json.loads(text), PERSON)


def test_any_json_object(chat):
    answer = chat("Give me an object with a key.", response_format={"type": "json_object"}, max_tokens=200)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    assert answer.choices[0].message.content.lstrip().startswith("{")


def test_objects_of_any_keys(chat):
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    done = [choice for seed in range(3) for choice in finished(chat(
        "Scores as JSON.", response_format=schema_format(schema), temperature=1, seed=seed, n=4,
        max_tokens=60).choices)]
    assert done
    for choice in done:
        jsonschema.validate(json.loads(choice.message.content), schema)


def test_an_answer_cut_short_says_length(chat):
    answer = chat("Count.", response_format=schema_format({"type": "array", "items": {"type": "integer"},
                                                           "minItems": 50}), max_tokens=10)
    assert answer.choices[0].finish_reason == "length"


def test_held_answers_reuse_the_cache_as_others_do(chat):
    text = filler(300, "grammar-cache")
    chat(text, max_tokens=1)
    plain = chat(text, max_tokens=1)
    held = chat(text, max_tokens=20, response_format=schema_format({"enum": ["yes", "no"]}))
    assert cached(held) == cached(plain) > 200
    assert held.choices[0].message.content.strip() in ('"yes"', '"no"')


@pytest.mark.parametrize("extra, allowed", [
    ({"grammar": 'root ::= "ja" | "nein"'}, {"ja", "nein"}),
    ({"guided_grammar": 'root ::= "ja" | "nein"'}, {"ja", "nein"}),
    ({"guided_choice": ["ja", "näin", "好的"]}, {"ja", "näin", "好的"}),
    ({"structured_outputs": {"choice": ["ja", "nein"]}}, {"ja", "nein"}),
    ({"json_schema": {"const": 5}}, {"5"}),
    ({"guided_json": {"const": {"a": "é"}}}, {'{"a":"é"}'}),
])
def test_the_fields_of_other_servers(chat, extra, allowed):
    for temperature in (0, 1):
        answer = chat("Yes or no?", extra_body=extra, temperature=temperature, n=1 if temperature == 0 else 3)
        for choice in answer.choices:
            assert choice.message.content.strip() in allowed
            assert choice.finish_reason == "stop"


def test_ignore_eos_does_not_go_beyond_a_complete_grammar(chat):
    answer = chat("?", extra_body={"grammar": 'root ::= "abc"', "ignore_eos": True}, max_tokens=50)
    assert answer.choices[0].message.content == "abc"
    assert answer.choices[0].finish_reason == "stop"


def test_completions_are_held_as_well(client):
    model = client.models.list().data[0].id
    answer = client.completions.create(model=model, prompt="The answer is", max_tokens=30, temperature=0, n=2, seed=1,
                                       extra_body={"response_format": schema_format({"type": "boolean"})})
    assert all(choice.text.strip() in ("true", "false") for choice in answer.choices)


@pytest.mark.parametrize("schema, path, keyword", [
    ({"type": "object", "properties": {"a": {"type": "string", "pattern": "^x"}}}, "properties.a", "pattern"),
    ({"type": "array", "items": {"type": "integer", "minimum": 3}}, "items", "minimum"),
    ({"not": {}}, "schema", "not"),
])
def test_a_keyword_that_cannot_be_held_is_named(chat, schema, path, keyword):
    with pytest.raises(openai.BadRequestError) as refused:
        chat("x", response_format=schema_format(schema))
    assert f'"{keyword}"' in refused.value.message and path in refused.value.message
    assert refused.value.param == "response_format.json_schema"


@pytest.mark.parametrize("grammar, complaint", [
    ("root ::= root | \"a\"", "left recursion"),
    ("root ::= (", "1:11"),
    ("root ::= missing", "missing"),
    ("root ::= ((\"a\"{9999}){9999}){9999}", "too large"),
    ("x ::= " * 100000, "grammar"),
])
def test_hostile_and_broken_grammars_are_the_clients_error(chat, grammar, complaint):
    with pytest.raises(openai.BadRequestError) as refused:
        chat("hi", extra_body={"grammar": grammar})
    assert complaint in refused.value.message
    assert refused.value.param == "grammar"


def test_a_grammar_that_explodes_while_it_is_used_ends_its_request_only(chat):
    # Each letter doubles the ways in which the text can be read, and each must be written.
    rules = [f'r{i} ::= "x" r{i + 1} "a" | "x" r{i + 1} "b"' for i in range(24)]
    grammar = "\n".join(["root ::= r0", *rules, 'r24 ::= "c"'])
    with pytest.raises(openai.BadRequestError) as refused:
        chat("hi", extra_body={"grammar": grammar}, max_tokens=60)
    assert "too ambiguous" in refused.value.message
    assert chat("Say hello.").choices[0].message.content


def test_combinations_that_cannot_be_are_refused(chat):
    with pytest.raises(openai.BadRequestError) as refused:
        chat("x", response_format={"type": "json_object"}, extra_body={"use_beam_search": True})
    assert "use_beam_search" in refused.value.message
    with pytest.raises(openai.BadRequestError) as refused:
        chat("x", response_format={"type": "json_object"}, extra_body={"grammar": 'root ::= "a"'})
    assert "cannot be combined" in refused.value.message
