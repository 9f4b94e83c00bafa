"""The Responses API as its users' suites check it: every field of the schema, calls of tools, what stands beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall

from gateway.emulator.app import EmulatorServer
from tests.emulator.conftest import StartServer
from tests.loopback import plain_http

REQUIRED = frozenset(
    [
        "id",
        "object",
        "created_at",
        "completed_at",
        "status",
        "incomplete_details",
        "model",
        "previous_response_id",
        "instructions",
        "output",
        "error",
        "tools",
        "tool_choice",
        "truncation",
        "parallel_tool_calls",
        "text",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "top_logprobs",
        "temperature",
        "reasoning",
        "usage",
        "max_output_tokens",
        "max_tool_calls",
        "store",
        "background",
        "service_tier",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
    ]
)
"""The fields of a response that Open Responses wants to be there, null or not (its schema `ResponseResource`)."""
NULLABLE = frozenset(
    [
        "completed_at",
        "incomplete_details",
        "previous_response_id",
        "instructions",
        "error",
        "reasoning",
        "usage",
        "max_output_tokens",
        "max_tool_calls",
        "safety_identifier",
        "prompt_cache_key",
    ]
)
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CLOCK: FunctionToolParam = {**WEATHER, "name": "get_time"}


@pytest.fixture
async def server(start_server: StartServer) -> EmulatorServer:
    return await start_server()


@pytest.fixture
async def client(server: EmulatorServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=server.base_url, api_key="sk-test", max_retries=0, http_client=plain_http()
    ) as made:
        yield made


async def raw(client: AsyncOpenAI, **asked: Any) -> dict[str, Any]:
    """The JSON of a response, as it came."""
    answer = await client.responses.with_raw_response.create(model="gpt-4o", **{"input": "hi", **asked})
    body = answer.http_response.json()
    assert isinstance(body, dict)
    return body


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"tools": [WEATHER], "tool_choice": "required"},
        {"max_output_tokens": 2},
        {"reasoning": None, "text": None, "metadata": None, "tools": None, "temperature": None},
        {"reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "metadata": {"a": "b"}, "top_logprobs": 2},
    ],
)
async def test_every_field_of_a_response_is_there(client: AsyncOpenAI, asked: dict[str, Any]) -> None:
    """Also where a caller says null; null itself only where the schema lets it be."""
    body = await raw(client, **asked)

    assert body.keys() >= REQUIRED
    assert {name for name in REQUIRED if body[name] is None} <= NULLABLE
    assert set(body["text"]) >= {"format", "verbosity"}
    assert all(set(tool) >= {"type", "name", "description", "parameters", "strict"} for tool in body["tools"])
    assert (body["completed_at"] is not None) == (body["status"] == "completed")


async def test_what_a_caller_has_said_comes_back(client: AsyncOpenAI) -> None:
    """In the words of the request."""
    body = await raw(client, text={"verbosity": "low"}, reasoning={"effort": "high"}, prompt_cache_key="k", top_p=0.5)

    assert body["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert body["reasoning"] == {"effort": "high", "summary": None}
    assert (body["prompt_cache_key"], body["top_p"]) == ("k", 0.5)


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ("auto", "get_weather"),
        ("required", "get_weather"),
        (None, "get_weather"),
        ({"type": "function", "name": "get_time"}, "get_time"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_time"}]}, "get_time"),
        ("none", None),
    ],
)
async def test_tools_that_come_along_are_called(client: AsyncOpenAI, choice: Any, called: str | None) -> None:
    """With arguments that fit the schema; `tool_choice` says which one, or that none is to be."""
    response = await client.responses.create(
        model="gpt-4o", input="hi", tools=[WEATHER, CLOCK], **({} if choice is None else {"tool_choice": choice})
    )

    (item,) = response.output
    assert (item.name if isinstance(item, ResponseFunctionToolCall) else None) == called
    if isinstance(item, ResponseFunctionToolCall):
        assert (item.arguments, item.status) == ('{"city":"emulated"}', "completed")
        assert item.call_id.startswith("call_")


async def test_a_tool_that_the_last_message_names_is_called_in_its_namespace(client: AsyncOpenAI) -> None:
    """Before the first one."""
    space: Any = {"type": "namespace", "name": "mcp__clock", "description": "Clock", "tools": [CLOCK]}

    response = await client.responses.create(model="gpt-4o", input="call get_time now", tools=[WEATHER, space])

    (item,) = response.output
    assert isinstance(item, ResponseFunctionToolCall)
    assert (item.name, item.to_dict()["namespace"]) == ("get_time", "mcp__clock")


async def test_a_tools_output_is_answered_in_prose(client: AsyncOpenAI) -> None:
    """Even where a tool is required: else no loop of tools would ever end."""
    response = await client.responses.create(
        model="gpt-4o",
        tools=[WEATHER],
        tool_choice="required",
        input=[
            {"role": "user", "content": "hi"},
            {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        ],
    )

    assert response.output_text.startswith("emulated answer to: sunny")


async def test_a_call_of_a_tool_streams_its_arguments(client: AsyncOpenAI) -> None:
    """The real names in order, numbered without a gap; the pieces make the whole."""
    stream = await client.responses.create(model="gpt-4o", input="hi", tools=[WEATHER], stream=True)
    seen = [event async for event in stream]
    deltas = [event.delta for event in seen if event.type == "response.function_call_arguments.delta"]
    (done,) = (event for event in seen if event.type == "response.function_call_arguments.done")
    names = [event.type.removeprefix("response.") for event in seen if not event.type.endswith("delta")]

    assert "".join(deltas) == done.arguments == '{"city":"emulated"}'
    assert names == [
        *("created", "in_progress", "output_item.added"),
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))


async def test_the_stream_helper_puts_a_call_together(client: AsyncOpenAI) -> None:
    """The SDK's accumulator accepts the events."""
    async with client.responses.stream(model="gpt-4o", input="hi", tools=[WEATHER]) as stream:
        final = await stream.get_final_response()

    (item,) = final.output
    assert isinstance(item, ResponseFunctionToolCall)
    assert item.name == "get_weather"


async def test_a_conversation_is_compacted(client: AsyncOpenAI) -> None:
    """What users said is kept, the rest is one item that may go into the next call."""
    answer = await client.responses.with_raw_response.compact(
        model="gpt-4o",
        input=[{"role": "user", "content": "my name is Alice"}, {"role": "assistant", "content": "hello Alice"}],
    )
    compacted, kept = answer.parse(), answer.http_response.json()["output"]
    following = await client.responses.create(model="gpt-4o", input=[*kept, {"role": "user", "content": "who am I"}])

    assert compacted.object == "response.compaction"
    assert [item["type"] for item in kept] == ["message", "compaction"]
    assert compacted.usage.input_tokens == 7
    assert following.output_text.startswith("emulated answer to: who am I")


async def test_input_tokens_are_counted(client: AsyncOpenAI) -> None:
    """As the usage of the same call would count them; no model has to be named."""
    counted = await client.responses.input_tokens.count(input="say hello", instructions="be brief")
    response = await client.responses.create(model="gpt-4o", input="say hello", instructions="be brief")

    assert response.usage is not None
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", response.usage.input_tokens)


async def test_a_stored_prompt_needs_neither_model_nor_input(client: AsyncOpenAI) -> None:
    """A call without any of it is told what is missing."""
    stored = await client.responses.create(prompt={"id": "pmpt_1"})
    with pytest.raises(openai.BadRequestError) as raised:
        await client.responses.create(model="gpt-4o")

    assert stored.status == "completed"
    assert raised.value.param == "input"
