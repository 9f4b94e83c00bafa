"""Anthropic's Messages over bare HTTP: answers, streams, and what is refused in its words."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.emulator.conftest import FakeClock, client_of
from tests.emulator.native.support import MESSAGES, SCHEMA, VERSION, emulator, message_body, named_events, post

TOOLS = [{"name": "get_weather", "input_schema": SCHEMA}, {"name": "get_time", "input_schema": {"type": "object"}}]
THINKING = {"type": "enabled", "budget_tokens": 2000}


def merged(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events add up to; one block is open at a time, numbered from 0."""
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    message: dict[str, Any] = events[0]["message"]
    texts: dict[int, str] = {}
    is_open = False
    for event in events[1:-1]:
        match event["type"]:
            case "content_block_start":
                assert (is_open, event["index"]) == (False, len(message["content"]))
                is_open = True
                message["content"].append(event["content_block"])
            case "content_block_stop":
                assert is_open
                is_open = False
            case "content_block_delta":
                delta = event["delta"]
                assert is_open
                block = message["content"][event["index"]]
                match delta["type"]:
                    case "text_delta":
                        block["text"] += delta["text"]
                    case "thinking_delta":
                        block["thinking"] += delta["thinking"]
                    case "signature_delta":
                        block["signature"] += delta["signature"]
                    case "input_json_delta":
                        texts[event["index"]] = texts.get(event["index"], "") + delta["partial_json"]
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    for index, text in texts.items():
        message["content"][index]["input"] = orjson.loads(text)
    return message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    content = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": "", "content": content}


@pytest.mark.parametrize(
    ("extra", "kinds", "reason"),
    [
        ({}, ["text"], "end_turn"),
        ({"max_tokens": 3}, ["text"], "max_tokens"),
        ({"thinking": THINKING}, ["thinking", "text"], "end_turn"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, ["thinking", "text"], "end_turn"),
        ({"tools": TOOLS, "tool_choice": {"type": "any"}}, ["tool_use"], "tool_use"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "get_time"}}, ["tool_use"], "tool_use"),
        ({"tools": TOOLS, "tool_choice": {"type": "none"}}, ["text"], "end_turn"),
        ({"tools": TOOLS}, ["text"], "end_turn"),
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, ["text"], "end_turn"),
    ],
)
async def test_a_stream_adds_up_to_the_message(
    clock: FakeClock, extra: dict[str, Any], kinds: list[str], reason: str
) -> None:
    """Blocks, why it ends and usage are the same whole and streamed."""
    served = emulator(clock)

    whole = (await post(served, MESSAGES, message_body(**extra))).json()
    streamed = await post(served, MESSAGES, message_body(stream=True, **extra))

    assert ([block["type"] for block in whole["content"]], whole["stop_reason"]) == (kinds, reason)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert b"event: ping" in streamed.content
    assert without_ids(merged(named_events(streamed.content))) == without_ids(whole)


async def test_the_form_of_an_answer_may_stand_where_it_stood_before(clock: FakeClock) -> None:
    """Clients of the beta say `output_format`; beside its new place, or with another form, it is refused."""
    served = emulator(clock)
    form = {"type": "json_schema", "schema": SCHEMA}

    new, old, both, odd = [
        await post(served, MESSAGES, message_body(**extra))
        for extra in (
            {"output_config": {"format": form}},
            {"output_format": form},
            {"output_config": {"format": form}, "output_format": form},
            {"output_format": {"type": "json_object"}},
        )
    ]

    assert old.json()["content"] == new.json()["content"]
    assert (both.status_code, odd.status_code) == (400, 400)


async def test_the_tools_that_the_last_message_names_are_called(clock: FakeClock) -> None:
    """Several at once, unless the caller forbids it; their results are answered with text."""
    served = emulator(clock)
    asked = message_body("use get_weather and get_time", tools=TOOLS)
    one = {"type": "auto", "disable_parallel_tool_use": True}

    both = (await post(served, MESSAGES, asked)).json()["content"]
    single = (await post(served, MESSAGES, {**asked, "tool_choice": one})).json()["content"]
    results = [{"type": "tool_result", "tool_use_id": block["id"], "content": "fine"} for block in both]
    turns = [*asked["messages"], {"role": "assistant", "content": both}, {"role": "user", "content": results}]
    answered = await post(served, MESSAGES, {**asked, "messages": turns})

    assert [block["name"] for block in both] == ["get_weather", "get_time"]
    assert both[0]["input"] == {"city": "emulated", "days": 1}
    assert [block["name"] for block in single] == ["get_weather"]
    assert answered.json()["stop_reason"] == "end_turn"


async def test_a_thought_comes_back_as_it_was_or_not_at_all(clock: FakeClock) -> None:
    """Its signature is of its text alone; in the middle of a tool use it has to come back."""
    served = emulator(clock)
    body = message_body("use get_time", tools=TOOLS, thinking=THINKING)
    thought, call = (await post(served, MESSAGES, body)).json()["content"]
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "noon"}]}

    async def replayed(*blocks: dict[str, Any]) -> Any:
        turns = [*body["messages"], {"role": "assistant", "content": list(blocks)}, result]
        return (await post(served, MESSAGES, {**body, "messages": turns})).json()

    assert (await replayed(thought, call))["type"] == "message"
    changed = await replayed({**thought, "thinking": "other"}, call)
    assert changed["error"]["message"] == "messages.1.content.0: Invalid `signature` in `thinking` block"
    assert "Expected `thinking` or `redacted_thinking`" in (await replayed(call))["error"]["message"]


async def test_marked_prefixes_are_written_once_and_then_read(clock: FakeClock) -> None:
    """Fresh, written and read add up to the prompt; an hour's mark outlives five minutes."""
    served = emulator(clock)

    async def usage(ttl: str) -> tuple[int, int, int]:
        system = [{"type": "text", "text": "x" * 400, "cache_control": {"type": "ephemeral", "ttl": ttl}}]
        found = (await post(served, MESSAGES, message_body(system=system))).json()["usage"]
        names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        return tuple(found[name] for name in names)

    assert [await usage("5m"), await usage("5m")] == [(5, 100, 0), (5, 0, 100)]
    clock.at_s += 301
    assert [await usage("1h"), await usage("1h")] == [(5, 100, 0), (5, 0, 100)]
    clock.at_s += 301
    assert await usage("1h") == (5, 0, 100)


def _turns(*contents: Any) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(contents)]


CALL = {"type": "tool_use", "id": "t1", "name": "get_time", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "noon"}


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"max_tokens": "9"}, "max_tokens: Input should be a valid integer"),
        ({"messages": []}, "messages: at least one message is required"),
        ({"messages": [{"role": "system", "content": "x"}]}, 'Unexpected role "system"'),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role: Input should be 'user' or 'assistant'"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "first message must use the"),
        ({"messages": _turns("")}, "messages.0: all messages must have non-empty content"),
        ({"messages": _turns([{"type": "text", "text": ""}])}, "text content blocks must be non-empty"),
        ({"messages": _turns([{"type": "text", "text": " \n"}])}, "must contain non-whitespace text"),
        ({"messages": _turns("q", "a ")}, "final assistant content cannot end with trailing whitespace"),
        ({"messages": _turns([{"type": "image_url"}])}, "Input tag 'image_url' found using 'type' does not match"),
        ({"messages": _turns("q", [CALL])}, "ids were found without `tool_result` blocks immediately after: t1"),
        ({"messages": _turns("q", [CALL], "hm")}, "messages.1: `tool_use` ids were found without `tool_result`"),
        ({"messages": _turns("q", [CALL], [{"type": "text", "text": "x"}, RESULT])}, "immediately after: t1"),
        ({"messages": _turns("q", "a", [RESULT])}, "unexpected `tool_use_id` found in `tool_result` blocks: t1"),
        ({"messages": _turns("q", [CALL, CALL], [RESULT])}, "`tool_use` ids must be unique"),
        ({"messages": _turns("q", [{**CALL, "input": "{}"}], [RESULT])}, "Input should be a valid dictionary"),
        ({"messages": _turns("q", [CALL], [{**RESULT, "error": "x"}])}, "tool_result.error: Extra inputs are not"),
        ({"stream_options": {}}, "stream_options: Extra inputs are not permitted"),
        ({"system": [{"type": "text", "text": ""}]}, "text content blocks must be non-empty"),
        ({"tools": [{"name": "a b", "input_schema": SCHEMA}]}, "String should match pattern"),
        ({"tools": [{"name": "a"}]}, "tools.0.custom.input_schema: Field required"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0: Input tag 'function' found using 'type'"),
        ({"tools": [*TOOLS, *TOOLS]}, "Tool names must be unique"),
        ({"tool_choice": {"type": "auto"}}, "may only be specified while providing tools"),
        ({"tools": TOOLS, "tool_choice": "auto"}, "tool_choice: Input tag"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "Tool 'x' not found in provided tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "any"}, "thinking": THINKING}, "when tool_choice forces tool use"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5000}}, "must be greater than `thinking.budget_tokens`"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "greater than or equal to 1024"),
        ({"thinking": THINKING, "temperature": 0.5}, "`temperature` may only be set to 1 when thinking is enabled"),
        ({"temperature": 1.5}, "temperature: range: 0..1"),
        ({"stop_sequences": [" "]}, "each stop sequence must contain non-whitespace"),
        ({"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}] * 5}, "A maximum of 4"),
    ],
)
async def test_what_anthropic_refuses_is_refused(clock: FakeClock, extra: dict[str, Any], text: str) -> None:
    """A 400 in its words and its shape, with the request's id."""
    body = {name: value for name, value in message_body(**extra).items() if value is not None}

    refused = await post(emulator(clock), MESSAGES, body)

    answer = refused.json()
    assert (refused.status_code, answer["type"], answer["error"]["type"]) == (400, "error", "invalid_request_error")
    assert text in answer["error"]["message"]
    assert answer["request_id"] == refused.headers["request-id"]


async def test_the_version_is_demanded_and_the_newest_takes_no_sampling(clock: FakeClock) -> None:
    """Whatever the value of `temperature`."""
    served = emulator(clock)
    newest = {"anthropic-version": "2026-10-21"}

    missing = await post(served, MESSAGES, message_body(), {})
    unknown = await post(served, MESSAGES, message_body(), {"anthropic-version": "2020-01-01"})
    sampled = await post(served, MESSAGES, message_body(temperature=1), newest)

    assert missing.json()["error"]["message"] == "anthropic-version: header is required"
    assert "is not a valid version" in unknown.json()["error"]["message"]
    assert sampled.json()["error"]["message"].startswith("temperature: is not supported")
    assert (await post(served, MESSAGES, message_body(), newest)).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "right"}, 200),
        ({"authorization": "Bearer right"}, 200),
        ({"x-api-key": "right", "authorization": "Bearer wrong"}, 200),
        ({"x-api-key": "wrong"}, 401),
        ({}, 401),
    ],
)
async def test_the_key_is_either_header_and_its_own_comes_first(
    clock: FakeClock, headers: dict[str, str], status: int
) -> None:
    """As the API does where both are given."""
    served = emulator(clock, api_key="right")

    answer = await post(served, MESSAGES, message_body(), {"anthropic-version": "2023-06-01", **headers})

    assert answer.status_code == status
    assert status == 200 or answer.json()["error"]["type"] == "authentication_error"


async def test_tokens_are_counted_without_max_tokens(clock: FakeClock) -> None:
    """As many as the call itself reads, and not against the limit of calls."""
    served = emulator(clock, rpm=1)
    body = message_body("how many", system="be brief", tools=TOOLS)
    counted = {name: value for name, value in body.items() if name != "max_tokens"}

    told = await post(served, f"{MESSAGES}/count_tokens?beta=true", counted)
    used = (await post(served, MESSAGES, body)).json()["usage"]

    assert told.json() == {"input_tokens": used["input_tokens"]}
    assert served.stats.endpoints == {"messages/count_tokens": 1, "messages": 1}


async def test_models_have_anthropics_shape_for_those_who_ask_in_it(clock: FakeClock) -> None:
    """By the version header; without it the path is OpenAI's."""
    served = emulator(clock, models=("claude-a", "claude-b"))

    async with client_of(served) as client:
        listed = (await client.get("/v1/models", headers=VERSION)).json()
        one = (await client.get("/v1/models/claude-b", headers=VERSION)).json()
        none = await client.get("/v1/models/other", headers=VERSION)
        openai = (await client.get("/v1/models")).json()

    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("claude-a", "claude-b", False)
    assert (one["id"], one["type"]) == ("claude-b", "model")
    assert (none.status_code, none.json()["error"]["type"]) == (404, "not_found_error")
    assert openai["object"] == "list"


async def test_limits_are_anthropics_whatever_the_dialect(clock: FakeClock) -> None:
    """Headers in RFC 3339, and a 429 in its shape; OpenAI's path has its own account."""
    served = emulator(clock, rpm=1)

    first = await post(served, MESSAGES, message_body())
    second = await post(served, MESSAGES, message_body())

    assert first.headers["anthropic-ratelimit-requests-limit"] == "1"
    assert first.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    assert (second.status_code, second.headers["retry-after"]) == (429, "60")
    assert second.json()["error"]["type"] == "rate_limit_error"
    assert second.json()["request_id"] == second.headers["request-id"]
    assert "openai-processing-ms" not in second.headers
