"""The seven templates of Open Responses' compliance test, at providers of Responses and of chat completions only.

Requests and checks are those of openresponses/openresponses, `src/lib/compliance-tests.ts`; instead of its schemas the official
SDK's types are used, unknown fields forbidden, with the fields that its schema of a response requires.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openai
import orjson
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from pydantic import BaseModel

from gateway.emulator.config import parse_rule
from tests.dialects.grammar import check_responses
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import config_of

REQUIRED = frozenset(
    (
        "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id",
        "instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p",
        "presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "user", "usage",
        "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier",
        "prompt_cache_key",
    )
)  # fmt: skip
UNTYPED = frozenset(("presence_penalty", "frequency_penalty", "store"))
"""Fields that Open Responses requires, and the SDK's type does not name."""
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
PLACE = {"type": "string", "description": "The city and state, e.g. San Francisco, CA"}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": PLACE}, "required": ["location"]},
}


def said(text: Any, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


SEEN = [{"type": "input_text", "text": "What do you see in this image?"}, {"type": "input_image", "image_url": PIXEL}]
ASKED = said("What's the weather like in San Francisco?")
MUST = {"tool_choice": "required"}
"""Not in the templates: the emulator's chat completions call a tool when told to."""
TEMPLATES: dict[str, dict[str, Any]] = {
    "basic-response": {"input": [said("Say hello in exactly 3 words.")]},
    "streaming-response": {"input": [said("Count from 1 to 5.")], "stream": True},
    "system-prompt": {"input": [said("You are a pirate.", "system"), said("Say hello.")]},
    "tool-calling": {"input": [ASKED], "tools": [WEATHER], **MUST},
    "tool-calling-streaming": {"input": [ASKED], "tools": [WEATHER], "stream": True, **MUST},
    "image-input": {"input": [said(SEEN)]},
    "multi-turn": {"input": [said("My name is Alice."), said("Hello Alice!", "assistant"), said("What is my name?")]},
}


def two_kinds(url: str) -> Mapping[str, Any]:
    """A model whose provider has Responses, one whose has chat completions only, and one that only answers Responses."""
    config = config_of(url)
    config["models"] = {
        name: {"targets": [{"provider": "main", "model": "gpt-4o", "speaks": speaks}]}
        for name, speaks in (
            ("native", ["chat", "responses"]),
            ("chat-only", ["chat"]),
            ("responses-only", ["responses"]),
        )
    }
    return config


def unknown_in(value: Any) -> set[str]:
    """The fields that no type of the SDK names, however deep."""
    if isinstance(value, BaseModel):
        return set(value.model_extra or ()).union(
            *(unknown_in(getattr(value, name)) for name in type(value).model_fields)
        )
    return set().union(*map(unknown_in, value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("model", ["native", "chat-only"])
async def test_the_templates_pass(start: StartGateway, model: str) -> None:
    """Whole and streamed, tools and pictures."""
    gateway = await start(two_kinds)
    async with gateway.sdk() as sdk:
        for name, body in TEMPLATES.items():
            async with sdk.responses.with_streaming_response.create(model=model, **body) as answer:
                text = await answer.text()
            if body.get("stream"):
                events = [orjson.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
                whole = check_responses(events)
                if body.get("tools"):
                    kinds = {event["type"] for event in events}
                    assert {f"response.function_call_arguments.{what}" for what in ("delta", "done")} <= kinds
            else:
                whole = orjson.loads(text)
            assert whole["status"] == "completed", name
            assert "function_call" in [item["type"] for item in whole["output"]] or not body.get("tools"), name
            assert whole["output"], name
            if model == "chat-only":
                assert whole.keys() >= REQUIRED, name
                assert unknown_in(Response.model_validate(whole)) <= UNTYPED, name


async def test_chat_passes_at_a_model_of_responses(start: StartGateway) -> None:
    """By the SDK's types, nothing unknown in them; streamed as whole, tools and pictures."""
    gateway = await start(two_kinds)
    tool = {"type": "function", "function": {name: WEATHER[name] for name in ("name", "description", "parameters")}}
    picture = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    bodies: list[dict[str, Any]] = [
        {"messages": [{"role": "system", "content": "You are a pirate."}, {"role": "user", "content": "Say hello."}]},
        {"messages": [{"role": "user", "content": picture}]},
        {"messages": [{"role": "user", "content": "What's the weather?"}], "tools": [tool], **MUST},
    ]
    async with gateway.sdk() as sdk:
        for body in bodies:
            whole = await sdk.chat.completions.create(model="responses-only", **body)
            assert isinstance(whole, ChatCompletion)
            assert unknown_in(whole) <= {"cache_write_tokens"}
            async with sdk.chat.completions.stream(model="responses-only", **body) as stream:
                unknown = set[str]()
                async for event in stream:
                    if event.type == "chunk":
                        assert isinstance(event.chunk, ChatCompletionChunk)
                        unknown |= unknown_in(event.chunk)
                streamed = await stream.get_final_completion()
            assert unknown <= {"cache_write_tokens"}
            one, other = whole.choices[0], streamed.choices[0]
            assert (one.message.content or "", one.finish_reason) == (other.message.content or "", other.finish_reason)
            assert len(one.message.tool_calls or ()) == len(other.message.tool_calls or ()) == bool(body.get("tools"))


@pytest.mark.parametrize("fault", ["cut", "reset", "malformed", "in_band_error", "raw_error", "no_done"])
async def test_a_stream_that_breaks_has_no_end(start: StartGateway, fault: str) -> None:
    """In both languages: what came is whole events, numbered without a gap to the error that is last."""
    gateway = await start(two_kinds)
    await gateway.emulator.configure(
        faults=(parse_rule({"fault": fault} | ({} if fault == "no_done" else {"after_chunks": 3})),)
    )
    question: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
    async with gateway.sdk() as sdk:
        for model, asked in (("chat-only", {"input": "hello", "stream": True}), ("responses-only", question)):
            create: Any = sdk.responses if "input" in asked else sdk.chat.completions
            async with create.with_streaming_response.create(model=model, **asked) as answer:
                text = await answer.text()
            events = [orjson.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
            if "input" in asked:
                assert check_responses(events[:-1])["type"] == "error"
                assert events[-1]["type"] == "response.failed"
                assert events[-1]["response"]["id"] == events[0]["response"]["id"]
                assert len(events) > 4
            else:
                assert "error" in events[-1]
                assert "[DONE]" not in text
                assert not any(choice["finish_reason"] for event in events[:-1] for choice in event["choices"])


async def test_what_converted_calls_refuse_is_read_by_the_sdk(start: StartGateway) -> None:
    """As its own kind of error, naming the field."""
    gateway = await start(two_kinds)
    lonely: Any = [{"type": "function_call_output", "call_id": "a", "output": "x"}]
    async with gateway.sdk() as sdk:
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.responses.create(model="chat-only", input=lonely)
    assert refused.value.param == "input[0].call_id"
