"""Callers and providers of different languages, over the wire: the openai SDK, a real gateway, the emulator behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import openai
import orjson
import pytest

from gateway.emulator.config import EmulatorConfig, parse_rule
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Running, config_of

QUESTION = [{"role": "user", "content": "hello there"}]
TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture
def start(start: StartGateway) -> StartGateway:
    """Starts gateways whose provider refuses what its language does not have."""
    return partial(start, emulator=EmulatorConfig(strict=True))


def speaking(*languages: str, **sections: Any) -> Callable[[str], Mapping[str, Any]]:
    """A config whose provider speaks these."""

    def make(url: str) -> Mapping[str, Any]:
        config = config_of(url, **sections)
        config["providers"]["main"]["speaks"] = list(languages)
        return config

    return make


def paths(gateway: Running) -> list[str]:
    return [one["path"] for one in gateway.received()]


async def test_a_coding_agent_at_a_provider_of_chat(start: StartGateway) -> None:
    """Its tools are served, and what is OpenAI's own, or its own, does not leave the gateway."""
    gateway = await start(speaking("chat"))
    space = {"type": "namespace", "name": "mcp__docs__", "description": "Docs", "tools": [TOOL]}
    asked: dict[str, Any] = {"model": "gpt-4o", "input": "call get_weather", "tools": [space, {"type": "web_search"}]}
    own = {
        "client_metadata": {"session_id": "s_1"},
        "prompt_cache_key": "s_1",
        "text": {"verbosity": "low"},
        "store": False,
    }
    async with gateway.sdk() as sdk:
        raw = await sdk.responses.with_raw_response.create(**asked, extra_body=own, tool_choice="required")
    await gateway.stop()

    call = raw.parse().output[0]
    assert (call.type, call.model_dump().get("namespace"), call.model_dump()["name"]) == (
        "function_call",
        "mcp__docs__",
        "get_weather",
    )
    assert raw.headers["x-gateway-lossy"] == (
        "tools.web_search(dropped), other(dropped), prompt_cache_key(dropped), text.verbosity(dropped),"
        " tools.namespace(approximated)"
    )
    sent = orjson.loads(gateway.received()[0]["body"])
    assert sent.keys() == {"model", "messages", "tools", "tool_choice"}


async def test_responses_at_a_provider_of_chat(start: StartGateway) -> None:
    """Whole and streamed, to the SDK's own types; what was lost is told, logged and counted."""
    gateway = await start(speaking("chat"))
    async with gateway.sdk() as sdk:
        raw = await sdk.responses.with_raw_response.create(model="gpt-4o", input="hello there", truncation="auto")
        whole = raw.parse()
        async with sdk.responses.stream(model="gpt-4o", input="hello there") as stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            streamed = await stream.get_final_response()
    await gateway.stop()

    assert whole.output_text == streamed.output_text == "".join(deltas) != ""
    assert streamed.usage is not None
    assert (streamed.usage.total_tokens > 0, whole.status, orjson.loads(raw.text)["store"]) == (
        True,
        "completed",
        False,
    )
    assert raw.headers["x-gateway-lossy"] == "truncation(dropped)"
    assert [call.get("lossy") for call in gateway.records] == [["truncation(dropped)"], None]
    labels = {"target": "main/gpt-4o", "field": "truncation", "how": "dropped"}
    assert gateway.gateway.registry.get_sample_value("gateway_lossy_fields_total", labels) == 1
    assert paths(gateway) == ["/v1/chat/completions"] * 2


async def test_chat_at_a_model_of_responses(start: StartGateway) -> None:
    """Usage is in a stream where the caller asks for it, and counted where not."""
    gateway = await start(speaking("responses"))
    async with gateway.sdk() as sdk:
        whole = await sdk.chat.completions.create(model="gpt-4o", messages=QUESTION)  # type: ignore[arg-type]  # as JSON
        for options, told in (({}, 0), ({"stream_options": {"include_usage": True}}, 1)):
            chunks = [
                chunk
                async for chunk in await sdk.chat.completions.create(  # type: ignore[call-overload]  # as JSON
                    model="gpt-4o", messages=QUESTION, stream=True, **options
                )
            ]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            assert text == whole.choices[0].message.content
            assert sum(chunk.usage is not None for chunk in chunks) == told
            assert chunks[-1 - told].choices[0].finish_reason == "stop"
    await gateway.stop()

    assert paths(gateway) == ["/v1/responses"] * 3
    assert all(call["output_tokens"] > 0 and call["usage_estimated"] is False for call in gateway.records)


async def test_a_call_that_cannot_be_said_goes_elsewhere_or_is_refused(start: StartGateway) -> None:
    """A target in whose language it cannot be said is skipped, as one that lacks a capability."""
    models = {
        "gpt-4o": {"targets": [{"provider": "main", "model": "gpt-4o", "speaks": ["chat"]}], "fallbacks": ["other"]},
        "other": {"targets": [{"provider": "main", "model": "gpt-4o-mini", "speaks": ["chat", "responses"]}]},
        "small": {"targets": [{"provider": "main", "model": "gpt-4o", "speaks": ["chat"]}]},
    }
    gateway = await start(speaking("chat", models=models))
    asked: dict[str, Any] = {"input": "hello", "tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}
    unknown_role: Any = [{"role": "robot", "content": "x"}]
    async with gateway.sdk() as sdk:
        served = await sdk.responses.with_raw_response.create(model="gpt-4o", **asked)
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.responses.create(model="small", **asked)
        with pytest.raises(openai.BadRequestError) as senseless:
            await sdk.responses.create(model="small", input=unknown_role)

    assert served.headers["x-gateway-target"] == "main/gpt-4o-mini"
    assert refused.value.code == "unsupported_by_targets"
    assert "tools.file_search" in refused.value.message
    assert senseless.value.param == "input[0].role"
    assert paths(gateway) == ["/v1/responses"]
    await gateway.idle()
    await gateway.stop()
    assert [call["attempts"] for call in gateway.records] == [["main/gpt-4o-mini:200"], [], []]


async def test_a_call_fails_over_from_one_language_to_another(start: StartGateway) -> None:
    """Before its first byte, streamed too: Responses asked, a provider of Responses down, one of chat answers."""
    models = {
        "gpt-4o": {
            "targets": [{"provider": "main", "model": "gpt-4o", "speaks": ["responses"]}],
            "fallbacks": ["other"],
        },
        "other": {"targets": [{"provider": "main", "model": "gpt-4o-mini", "speaks": ["chat"]}]},
    }
    gateway = await start(speaking("chat", models=models))
    await gateway.emulator.configure(faults=(parse_rule({"fault": "e500", "model": "gpt-4o"}),))
    async with gateway.sdk() as sdk, sdk.responses.stream(model="gpt-4o", input="hello", tools=[TOOL]) as stream:  # type: ignore[list-item]  # as JSON
        async for _ in stream:
            pass
        assert (await stream.get_final_response()).status == "completed"

    assert paths(gateway)[-1] == "/v1/chat/completions"
    assert set(paths(gateway)[:-1]) == {"/v1/responses"}


async def test_a_caller_may_have_nothing_lost(start: StartGateway) -> None:
    """For one call, by a header; a model, by the config."""
    gateway = await start(speaking("chat", models={"gpt-4o": {"targets": ["main/gpt-4o"], "on_loss": "refuse"}}))
    plain = await start(speaking("chat"))
    strict = {"x-gateway-strict": "true"}
    for one, headers in ((gateway, {}), (plain, strict)):
        async with one.sdk() as sdk:
            with pytest.raises(openai.BadRequestError, match="truncation") as refused:
                await sdk.responses.create(model="gpt-4o", input="hi", truncation="auto", extra_headers=headers)
            assert refused.value.code == "unsupported_by_targets"
            assert (await sdk.responses.create(model="gpt-4o", input="hi", extra_headers=headers)).output_text
    async with plain.sdk() as sdk:
        with pytest.raises(openai.BadRequestError, match="x-gateway-strict"):
            await sdk.responses.create(model="gpt-4o", input="hi", extra_headers={"x-gateway-strict": "maybe"})
