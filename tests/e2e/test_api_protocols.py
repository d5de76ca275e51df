"""The other protocols through their official clients: Anthropic's messages and OpenAI's responses."""
import re

import anthropic
import jsonschema
import openai
import pytest

from conftest import PATIENCE_S, filler

GREEDY = {"temperature": 0}  # the client has no argument for it any more
TOOL = {"name": "get_time", "description": "Tells the time.", "input_schema": {
    "type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"],
    "additionalProperties": False}}


@pytest.fixture
def claude(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=PATIENCE_S) as running:
        yield running


@pytest.fixture
def model(client):
    return client.models.list().data[0].id


def total(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def test_a_message_is_answered_and_its_cache_use_told(claude, client, model):
    system = [{"type": "text", "text": filler(200, "messages-system"), "cache_control": {"type": "ephemeral"}}]
    arguments = {"model": model, "max_tokens": 12, "extra_body": GREEDY, "system": system,
                 "messages": [{"role": "user", "content": "Say hello."}]}
    first = claude.messages.create(**arguments)
    assert first.type == "message" and first.role == "assistant"
    assert re.fullmatch("[0-9a-f]{24}", first._request_id)  # as the client reads it
    assert first.content[0].type == "text" and first.content[0].text
    assert first.usage.cache_creation_input_tokens > 150
    second = claude.messages.create(**arguments)
    assert second.content[0].text == first.content[0].text
    assert second.usage.cache_read_input_tokens > 150
    assert total(first.usage) == total(second.usage)
    count = claude.messages.count_tokens(model=model, system=system, messages=arguments["messages"])
    assert count.input_tokens == total(first.usage)
    # The same conversation through the other door shares the same blocks.
    other = client.chat.completions.create(model=model, max_tokens=12, temperature=0, messages=[
        {"role": "system", "content": system[0]["text"]}, {"role": "user", "content": "Say hello."}])
    assert other.choices[0].message.content == first.content[0].text
    assert other.usage.prompt_tokens_details.cached_tokens == second.usage.cache_read_input_tokens


def test_a_stream_of_events_says_the_same(claude, model):
    arguments = {"model": model, "max_tokens": 12, "extra_body": GREEDY, "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Count to five."}]}]}
    whole = claude.messages.create(**arguments)
    with claude.messages.stream(**arguments) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_stop_reasons(claude, model):
    ask = {"model": model, "extra_body": GREEDY, "messages": [{"role": "user", "content": "Count: 1, 2, 3, 4"}]}
    cut = claude.messages.create(max_tokens=2, **ask)
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 2
    text = claude.messages.create(max_tokens=30, **ask).content[0].text
    stop = text[3:6]
    stopped = claude.messages.create(max_tokens=30, stop_sequences=[stop], **ask)
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == stop


def test_a_forced_tool_is_called_and_its_result_taken(claude, model):
    ask = {"model": model, "max_tokens": 100, "extra_body": GREEDY, "tools": [TOOL]}
    question = {"role": "user", "content": "What time is it?"}
    choice = {"type": "tool", "name": "get_time", "disable_parallel_tool_use": True}
    first = claude.messages.create(messages=[question], tool_choice=choice, **ask)
    assert first.stop_reason == "tool_use"
    use = first.content[-1]
    assert use.type == "tool_use" and use.name == "get_time"
    jsonschema.validate(use.input, TOOL["input_schema"])
    with claude.messages.stream(messages=[question], tool_choice=choice, **ask) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[-1].input == use.input
    second = claude.messages.create(messages=[
        question, {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "12:00"}]}], **ask)
    assert second.content
    assert second.usage.cache_read_input_tokens > 0


def test_errors_have_anthropics_shape(claude, model):
    with pytest.raises(anthropic.BadRequestError) as refused:
        claude.messages.create(model=model, max_tokens=5, messages=[{"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": "http://x"}}]}])
    assert refused.value.body["type"] == "error"
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="other", max_tokens=5, messages=[{"role": "user", "content": "x"}])
    with pytest.raises(anthropic.BadRequestError) as long:
        claude.messages.create(model=model, max_tokens=5, messages=[{"role": "user", "content": "word " * 6000}])
    assert "maximum context length" in str(long.value)


def test_keys_come_in_x_api_key(keyed_server):
    with anthropic.Anthropic(base_url=keyed_server.url, api_key="key-a", max_retries=0) as known:
        assert known.messages.create(model="SmolLM2-135M-Instruct-Q4_1", max_tokens=1,
                                     messages=[{"role": "user", "content": "x"}]).content is not None
    with anthropic.Anthropic(base_url=keyed_server.url, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(anthropic.AuthenticationError):
            stranger.messages.create(model="x", max_tokens=1, messages=[{"role": "user", "content": "x"}])


# --- responses ---

def test_a_response_is_answered_stored_and_gone_on_from(client, model):
    first = client.responses.create(model=model, instructions="Be brief.", input="Say hello. " + filler(60, "resp"),
                                    temperature=0, max_output_tokens=10)
    assert first.status in ("completed", "incomplete")
    assert first.output_text
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(model=model, instructions="Be brief.", previous_response_id=first.id,
                                     input="And again.", temperature=0, max_output_tokens=10)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens - 1
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=model, previous_response_id=first.id, input="x")


def test_a_response_that_is_not_to_be_stored_is_not(client, model):
    answer = client.responses.create(model=model, input="x", store=False, max_output_tokens=2)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def test_a_streamed_response_says_the_same(client, model):
    arguments = {"model": model, "input": [{"role": "user", "content": [{"type": "input_text", "text": "Count."}]}],
                 "temperature": 0, "max_output_tokens": 12}
    whole = client.responses.create(**arguments)
    text, kinds, numbers, last = "", [], [], None
    for event in client.responses.create(stream=True, **arguments):
        kinds.append(event.type)
        numbers.append(event.sequence_number)
        if event.type == "response.output_text.delta":
            text += event.delta
        last = event
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-1] == f"response.{whole.status}"
    assert numbers == list(range(len(numbers)))
    assert text == whole.output_text == last.response.output_text


def test_a_response_calls_functions_and_takes_results(client, model):
    tool = {"type": "function", "name": "get_time", "parameters": TOOL["input_schema"], "strict": True}
    arguments = {"model": model, "tools": [tool], "temperature": 0, "max_output_tokens": 100}
    first = client.responses.create(input="What time is it?", tool_choice="required", parallel_tool_calls=False,
                                    **arguments)
    call = first.output[-1]
    assert call.type == "function_call" and call.name == "get_time"
    streamed = [event for event in client.responses.create(
        input="What time is it?", tool_choice="required", parallel_tool_calls=False, stream=True, **arguments)]
    done = [event for event in streamed if event.type == "response.function_call_arguments.done"]
    assert [event.arguments for event in done] == [call.arguments]
    second = client.responses.create(previous_response_id=first.id, tool_choice="none", input=[
        {"type": "function_call_output", "call_id": call.call_id, "output": "12:00"}], **arguments)
    assert second.output_text


def test_a_response_in_a_schema(client, model):
    answer = client.responses.create(model=model, input="Sunny?", max_output_tokens=20, text={"format": {
        "type": "json_schema", "name": "s", "strict": True, "schema": {"enum": ["yes", "no"]}}})
    assert answer.output_text.strip() in ('"yes"', '"no"')


@pytest.mark.parametrize("arguments, param", [
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"input": "x", "background": True}, "background"),
])
def test_what_a_response_cannot_do_is_named(client, model, arguments, param):
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=model, **arguments)
    assert refused.value.param == param
