"""Clients of three languages at providers of four: a real SDK and bytes, a real gateway, the emulator with each one's API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from tests.dialects.cases import events_of
from tests.dialects.grammar import check_messages
from tests.e2e.anthropic_server import AnthropicServer, message
from tests.e2e.anthropic_server import events as message_events
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import KEYS, NIGHTLY_KEY, PROVIDER_KEY, WEB_KEY, Running, config_of, connect, post

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
PATHS = {
    "claude": "/v1/messages",
    "gemini": "/v1beta/models/gemini-3-flash-preview:generateContent",
    "bedrock": f"/model/{CLAUDE}/converse",
    "nova": "/model/us.amazon.nova-pro-v1:0/converse",
}
"""By model, the path of a chat completion at its provider."""
QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "hello there"}]
WISH: list[dict[str, Any]] = [{"role": "user", "content": "use get_time and get_weather"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NAMES = ("get_time", "get_weather")
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
FORMS: dict[str, tuple[str, dict[str, Any], bytes, bytes]] = {
    "chat": ("/v1/chat/completions", {"messages": QUESTION}, b"[DONE]", b'"content":"emulated'),
    "responses": ("/v1/responses", {"input": "hello there"}, b"response.completed", b'"text":"emulated'),
    "messages": ("/v1/messages", {"messages": QUESTION, "max_tokens": 50}, b"message_stop", b'"text":"emulated'),
}
"""By the caller's language: path, body, and what a whole stream and a whole answer have in them."""


def dialects(**sections: Any) -> Callable[[str], Mapping[str, Any]]:
    """A config with a provider of each dialect."""

    def make(url: str) -> Mapping[str, Any]:
        made = config_of(url, **sections)
        root = url.removesuffix("/v1")
        for name in ("anthropic", "gemini", "bedrock"):
            made["providers"][name] = {"dialect": name, "base_url": root, "api_key": PROVIDER_KEY}
        made["providers"]["bedrock"]["region"] = "us-east-1"
        made["models"] |= {
            "claude": {"targets": ["anthropic/claude-sonnet-4-6"]},
            "gemini": {"targets": ["gemini/gemini-3-flash-preview"]},
            "bedrock": {"targets": [f"bedrock/{CLAUDE}"]},
            "nova": {"targets": ["bedrock/us.amazon.nova-pro-v1:0"]},
            "any": {
                "targets": [
                    {"provider": "main", "model": "gpt-first"},
                    {"provider": "anthropic", "model": "claude-sonnet-4-6", "order": 2},
                    {"provider": "gemini", "model": "gemini-3-flash-preview", "order": 3},
                ]
            },
        }
        return made

    return make


async def answer_of(gateway: Running, path: str, body: Mapping[str, Any], *headers: str) -> tuple[int, Any, bytes]:
    """The status, the target and the body of an answer."""
    async with connect(gateway.url) as peer:
        told = await peer.exchange(post(path, body, "anthropic-version: 2023-06-01", *headers))
    return told.status, told.header("x-gateway-target"), told.body


async def test_chat_at_every_dialect(start: StartGateway) -> None:
    """Whole, streamed, and with the results of parallel calls, by the SDK; what is streamed is what is whole."""
    gateway = await start(dialects())
    async with gateway.sdk() as sdk:
        for model, path in PATHS.items():
            asked: dict[str, Any] = {"model": model, "messages": QUESTION}
            whole = await sdk.chat.completions.create(**asked)
            async with sdk.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
                streamed = await stream.get_final_completion()
            assert gateway.received()[-2]["path"] == path
            assert whole.choices[0].message.content == streamed.choices[0].message.content, model
            assert whole.usage is not None
            assert streamed.usage is not None
            assert whole.usage.total_tokens == streamed.usage.total_tokens > 0

            asked |= {"messages": WISH, "tools": TOOLS}
            async with sdk.chat.completions.stream(**asked) as stream:
                said = (await stream.get_final_completion()).choices[0]
            calls = [one.model_dump(include={"id", "type", "function"}) for one in said.message.tool_calls or ()]
            assert [one["function"]["name"] for one in calls] == list(NAMES)
            assert said.finish_reason == "tool_calls"
            for call in calls:
                del call["function"]["parsed_arguments"]
            results = [{"role": "tool", "tool_call_id": one["id"], "content": "21"} for one in calls]
            asked["messages"] = [*WISH, {"role": "assistant", "tool_calls": calls}, *results]
            last = await sdk.chat.completions.create(**asked)
            assert last.choices[0].finish_reason == "stop", model


async def test_responses_at_every_dialect(start: StartGateway) -> None:
    gateway = await start(dialects())
    tools: Any = [{"type": "function", "strict": False, **tool["function"]} for tool in TOOLS]  # type: ignore[dict-item]  # as JSON
    async with gateway.sdk() as sdk:
        for model in PATHS:
            async with sdk.responses.stream(model=model, input=WISH, tools=tools) as stream:  # type: ignore[arg-type]  # as JSON
                said = await stream.get_final_response()
            calls = [item for item in said.output if item.type == "function_call"]
            assert [call.name for call in calls] == list(NAMES)
            told: Any = [*WISH, *(call.model_dump(exclude={"parsed_arguments"}, exclude_none=True) for call in calls)]
            told += [{"type": "function_call_output", "call_id": call.call_id, "output": "21"} for call in calls]
            last = await sdk.responses.create(model=model, input=told, tools=tools)
            assert (last.status, bool(last.output_text)) == ("completed", True)


async def test_messages_at_every_dialect(start: StartGateway) -> None:
    """Converted for Gemini and Nova; Claude at Bedrock has them in an envelope, and its own thoughts back as they were."""
    gateway = await start(dialects())
    tools = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
    asked: dict[str, Any] = {"max_tokens": 4000, "messages": WISH, "tools": tools}
    for model in PATHS:
        thinking = {} if model == "nova" else {"thinking": {"type": "enabled", "budget_tokens": 2000}}
        body = {**asked, **thinking, "model": model}
        _, _, streamed = await answer_of(gateway, "/v1/messages", {**body, "stream": True})
        kinds = [event["type"] for event in events_of(streamed) if event["type"] != "ping"]
        assert (kinds[0], kinds[-2:], kinds.count("message_start")) == (
            "message_start",
            ["message_delta", "message_stop"],
            1,
        )
        assert kinds.count("content_block_start") == kinds.count("content_block_stop") >= 2
        status, _, whole = await answer_of(gateway, "/v1/messages", body)
        said = orjson.loads(whole)
        uses = [block for block in said["content"] if block["type"] == "tool_use"]
        assert (status, said["stop_reason"], [use["name"] for use in uses]) == (200, "tool_use", list(NAMES))
        results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "21"} for use in uses]
        turns = [*WISH, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": results}]
        status, _, last = await answer_of(gateway, "/v1/messages", {**body, "messages": turns})
        assert (status, orjson.loads(last)["stop_reason"]) == (200, "end_turn")
        if model in ("claude", "bedrock"):
            sent = orjson.loads(gateway.received()[-1]["body"])
            assert sent["messages"][1]["content"] == said["content"]
            assert said["content"][0]["signature"]


@pytest.mark.parametrize("form", FORMS)
async def test_a_call_moves_on_over_three_dialects(start: StartGateway, form: str) -> None:
    """From OpenAI to Anthropic to Gemini, whole and streamed; a stream moves on before the first byte of it is given."""
    gateway = await start(dialects())
    path, asked, end, words = FORMS[form]
    for stream in (False, True):
        fault = "opening_error" if stream else "e529"
        for failing, target in ((("gpt-first",), "anthropic/"), (("gpt-first", "claude-sonnet-4-6"), "gemini/")):
            for model in failing:
                gateway.script(*[fault] * 3, model=model)
            status, told, body = await answer_of(gateway, path, {**asked, "model": "any", "stream": stream})
            assert (status, told.startswith(target)) == (200, True), (told, body)
            assert (end if stream else words) in body
            assert b'"error"' not in body.replace(b'"error":null', b"")
            gateway.emulator.emulator.reset()


@pytest.mark.parametrize("stream", [False, True])
async def test_claude_goes_on_from_calls_of_a_model_that_told_no_thought(start: StartGateway, *, stream: bool) -> None:
    """With a budget for thinking Claude would refuse them: it goes on without, and the caller is told."""
    gateway = await start(dialects())
    thinking = {"type": "enabled", "budget_tokens": 2000}
    tools = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
    asked = {"model": "any", "max_tokens": 4000, "messages": WISH, "tools": tools, "thinking": thinking}
    _, target, raw = await answer_of(gateway, "/v1/messages", {**asked, "stream": stream})
    assert target.startswith("main/")
    calls = check_messages(raw)["content"] if stream else orjson.loads(raw)["content"]
    results = [{"type": "tool_result", "tool_use_id": one["id"], "content": "21"} for one in calls if "id" in one]
    turns = [*WISH, {"role": "assistant", "content": calls}, {"role": "user", "content": results}]

    gateway.script(*["e529"] * 3, model="gpt-first")
    async with connect(gateway.url) as peer:
        last = await peer.exchange(post("/v1/messages", {**asked, "messages": turns}, "anthropic-version: 2023-06-01"))
    assert (last.status, last.header("x-gateway-lossy")) == (200, "thinking(dropped)"), last.body
    sent = orjson.loads(gateway.received()[-1]["body"])
    assert [block["type"] for block in sent["messages"][1]["content"]] == ["tool_use", "tool_use"]
    assert "thinking" not in sent


@pytest.mark.parametrize("stream", [False, True])
async def test_gemini_goes_on_from_calls_that_it_did_not_sign(start: StartGateway, *, stream: bool) -> None:
    """What OpenAI's model called for one of Gemini's callers would be refused at Gemini without a signature."""
    gateway = await start(dialects())
    declared = [{"name": name, "parametersJsonSchema": SCHEMA} for name in NAMES]
    said: dict[str, Any] = {"role": "user", "parts": [{"text": "use get_time and get_weather"}]}
    asked = {"contents": [said], "tools": [{"functionDeclarations": declared}]}
    verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
    _, target, raw = await answer_of(gateway, f"/v1beta/models/any:{verb}", asked)
    assert target.startswith("main/")
    pieces = [orjson.loads(one) for one in raw.split(b"data: ")[1:]] if stream else [orjson.loads(raw)]
    parts = [part for one in pieces for part in one["candidates"][0]["content"].get("parts", ())]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    results = [{"functionResponse": {"id": c["id"], "name": c["name"], "response": {"x": 1}}} for c in calls]
    turns = [said, {"role": "model", "parts": parts}, {"role": "user", "parts": results}]

    gateway.script(*["e529"] * 3, model="gpt-first")
    gateway.script(*["e529"] * 3, model="claude-sonnet-4-6")
    status, target, raw = await answer_of(gateway, "/v1beta/models/any:generateContent", {**asked, "contents": turns})
    assert (len(calls), status, target.startswith("gemini/")) == (2, 200, True), raw


async def test_errors_have_the_class_that_the_sdk_knows(start: StartGateway, tmp_path: Path) -> None:
    """Google says 400 of a bad key, Bedrock 403, and Bedrock's 5xx have a shape of their own."""
    (tmp_path / "retries.yaml").write_text("default: {attempts: 1, by_cost: []}\n")
    gateway = await start(dialects(policies=str(tmp_path)))
    kinds = {"e401": (openai.InternalServerError, 502), "e500": (openai.InternalServerError, 500)}
    async with gateway.sdk() as sdk:
        for model, name in (("claude", "claude-sonnet-4-6"), ("gemini", "gemini-3-flash-preview"), ("bedrock", CLAUDE)):
            for fault, (kind, status) in kinds.items():
                gateway.script(*[fault] * 9, model=name)
                with pytest.raises(kind) as caught:
                    await sdk.chat.completions.create(model=model, messages=QUESTION)  # type: ignore[arg-type]  # as JSON
                assert (caught.value.status_code, type(caught.value.body)) == (status, dict)
                assert ("refused the gateway's own credential" in str(caught.value)) is (fault == "e401")
                gateway.emulator.emulator.reset()
    status, _, raw = await answer_of(gateway, "/v1/messages", {"model": "nova", "max_tokens": 0, "messages": QUESTION})
    error = orjson.loads(raw)["error"]
    assert (status, error["type"], error["code"]) == (400, "invalid_request_error", "unsupported_by_targets")


async def test_a_thread_is_its_tenants_and_refused_where_there_is_none(start: StartGateway) -> None:
    """In the words by which Anthropic's SDKs send a conversation whole instead."""
    async with AnthropicServer() as server:

        def config(url: str) -> Mapping[str, Any]:
            made = dict(dialects(keys=KEYS)(url))
            made["providers"]["threads"] = {"dialect": "anthropic", "base_url": server.url, "api_key": PROVIDER_KEY}
            made["models"] = {
                **made["models"],
                "gpt-4o-x": {"targets": ["threads/claude-x"]},
                "gpt-4o": made["models"]["gemini"],
            }
            return made

        gateway = await start(config)
        begin: dict[str, Any] = {"max_tokens": 50, "messages": QUESTION, "thread": {"type": "create"}}
        go_on = {"model": "gpt-4o-x", **begin, "thread": {"type": "continue", "previous_message_id": "msg_1"}}
        web, nightly = f"x-api-key: {WEB_KEY}", f"x-api-key: {NIGHTLY_KEY}"
        for answer in ((200, message("hello")), (200, message_events("hel", "lo"))):
            server.script.append(answer)
            created = {"model": "gpt-4o-x", **begin, "stream": isinstance(answer[1], bytes)}
            assert (await answer_of(gateway, "/v1/messages", created, web))[0] == 200
        own = await answer_of(gateway, "/v1/messages", go_on, web)
        others = await answer_of(gateway, "/v1/messages", go_on, nightly)
        nowhere = await answer_of(gateway, "/v1/messages", {"model": "gpt-4o", **begin}, web)

    assert (own[0], others[0], nowhere[0], len(server.seen)) == (200, 404, 400, 3)
    assert orjson.loads(others[2])["error"]["details"] == {"error_code": "thread_not_found"}
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert orjson.loads(nowhere[2])["error"]["details"] == details
