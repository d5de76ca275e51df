"""Tools through the official client: forced and free calls, streams, results that go back in."""
import json

import jsonschema
import openai
import pytest

from conftest import cached, filler

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Looks up the weather of a city.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"], "additionalProperties": False}}}
CLOCK = {"type": "function", "function": {
    "name": "get_time", "parameters": {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}},
                                       "required": ["zone"], "additionalProperties": False}}}
BY_NAME = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, CLOCK)}


def check(call):
    assert call.type == "function" and call.id
    jsonschema.validate(json.loads(call.function.arguments), BY_NAME[call.function.name])


def reordered(value):
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


def test_a_required_call_meets_its_schema(chat):
    answer = chat("What is the weather in Oslo?", tools=[WEATHER, CLOCK], tool_choice="required",
                  parallel_tool_calls=False, max_tokens=120)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert len(choice.message.tool_calls) == 1
    check(choice.message.tool_calls[0])


@pytest.mark.parametrize("name", ["get_weather", "get_time"])
def test_a_named_function_is_the_one_called(chat, name):
    answer = chat("Hello!", tools=[WEATHER, CLOCK], tool_choice={"type": "function", "function": {"name": name}},
                  parallel_tool_calls=False, n=2, temperature=1, seed=3, max_tokens=120)
    for choice in answer.choices:
        if choice.finish_reason == "tool_calls":
            check(choice.message.tool_calls[0])
            assert choice.message.tool_calls[0].function.name == name
    assert any(choice.finish_reason == "tool_calls" for choice in answer.choices)


def test_parallel_calls_have_ids_of_their_own(chat):
    for seed in range(6):
        answer = chat("Weather in Oslo and Rome, and the time?", tools=[CLOCK], tool_choice="required", temperature=1,
                      seed=seed, max_tokens=160)
        calls = answer.choices[0].message.tool_calls
        for call in calls:
            if answer.choices[0].finish_reason == "tool_calls":
                check(call)
        assert len({call.id for call in calls}) == len(calls)
        if len(calls) > 1:
            return
    pytest.skip("the model never wanted two calls")


def test_a_stream_tells_the_same_call_in_deltas(chat):
    arguments = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 120}
    whole = chat("Weather in Rome?", **arguments).choices[0].message.tool_calls[0]
    names, text, deltas, reason = [], "", 0, None
    for chunk in chat("Weather in Rome?", stream=True, **arguments):
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            assert not choice.delta.content
            for call in choice.delta.tool_calls or []:
                assert call.index == 0
                if call.function.name:
                    names.append(call.function.name)
                    assert call.id
                text += call.function.arguments or ""
                deltas += 1
    assert names == [whole.function.name]
    assert text == whole.function.arguments
    assert deltas > 3, "arguments come as they are generated"
    assert reason == "tool_calls"


def test_results_go_back_in_and_the_conversation_is_reused(chat):
    question = {"role": "user", "content": "What is the weather in Oslo? " + filler(120, "tools-back")}
    first = chat("", messages=[question], tools=[WEATHER], tool_choice="required", parallel_tool_calls=False,
                 max_tokens=120)
    call = first.choices[0].message.tool_calls[0]
    history = [question, first.choices[0].message.model_dump(exclude_none=True),
               {"role": "tool", "tool_call_id": call.id, "content": '{"degrees": 3}'}]
    second = chat("", messages=history, tools=[WEATHER], tool_choice="auto")
    # All of the first prompt, and the call as the model wrote it.
    assert cached(second) >= first.usage.prompt_tokens
    assert second.choices[0].message.content or second.choices[0].message.tool_calls


def test_free_choice_and_none(chat):
    none = chat("Say hello.", tools=[WEATHER], tool_choice="none")
    plain = chat("Say hello.")
    assert none.choices[0].message.content == plain.choices[0].message.content
    assert none.choices[0].message.tool_calls is None
    auto = chat("Say hello.", tools=[WEATHER])
    assert auto.usage.prompt_tokens > plain.usage.prompt_tokens, "the tools are in the prompt"


def test_the_order_of_keys_is_told_and_can_be_made_one(chat):
    tools = [WEATHER, CLOCK]
    text = filler(150, "tool-order")
    options = {"tool_choice": "auto", "max_tokens": 1}
    chat(text, tools=tools, **options)
    other = chat(text, tools=reordered(tools), **options)
    assert other.model_extra["kvlink"]["miss_reason"] == "diverged"
    assert other.model_extra["kvlink"]["miss_detail"] == "tool_key_order"
    again = chat(text, tools=reordered(tools), **options)
    assert again.model_extra["kvlink"]["miss_detail"] is None
    sort = {"extra_body": {"kvlink": {"sort_tool_keys": True}}}
    text = filler(150, "tool-order-sorted")
    chat(text, tools=tools, **options, **sort)
    same = chat(text, tools=reordered(tools), **options, **sort)
    assert cached(same) >= same.usage.prompt_tokens - 1


def test_tools_are_checked(chat):
    for arguments, complaint in [
            ({"tools": [{"type": "web"}]}, "tools[0].type"),
            ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
            ({"tools": [WEATHER, WEATHER]}, "twice"),
            ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "nope"}}}, "nope"),
            ({"tool_choice": "required"}, "needs tools"),
            ({"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}}, "combined"),
            ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]}]}, "tool_calls[0]")]:
        with pytest.raises(openai.BadRequestError) as refused:
            chat("x", **arguments)
        assert complaint in refused.value.message, refused.value.message
