"""Callers of Gemini's generateContent, over the wire: at Gemini, and at servers of other languages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.emulator.config import EmulatorConfig
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import KEYS, WEB_KEY, Response, Running, config_of, connect, get, post

PATH = "/v1beta/models"
GO: Mapping[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "hello there"}]}]}
KEY = f"x-goog-api-key: {WEB_KEY}"
TOOL = {
    "functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}}]
}


@pytest.fixture
def start(start: StartGateway) -> StartGateway:
    """Starts gateways whose provider refuses what its language does not have."""
    return partial(start, emulator=EmulatorConfig(strict=True))


def config(url: str) -> Mapping[str, Any]:
    made = config_of(url, keys=KEYS)
    base = url.removesuffix("/v1")
    made["providers"] |= {
        "goo": {"dialect": "gemini", "base_url": base, "api_key": "AIza-of-the-gateway"},
        "ant": {"dialect": "anthropic", "base_url": base, "api_key": "sk-ant-of-the-gateway"},
    }
    made["models"] = {
        "gem": {"targets": ["goo/gemini-2.5-flash"]},
        "gpt": {"targets": ["main/gpt-4o"]},
        "claude": {"targets": ["ant/claude-opus-4-5"]},
        "both": {"targets": ["main/gpt-4o"], "fallbacks": ["gem"]},
    }
    return made


async def ask(
    gateway: Running, model: str, body: Any = GO, *headers: str, verb: str = "generateContent", query: str = ""
) -> Response:
    verb += "?alt=sse" if verb == "streamGenerateContent" else ""
    async with connect(gateway.url) as peer:
        return await peer.exchange(post(f"{PATH}/{model}:{verb}{query}", body, *(headers or (KEY,))))


def text_in(said: Any) -> str:
    return "".join(part.get("text", "") for part in said["candidates"][0]["content"]["parts"])


def events(answer: Response) -> list[Any]:
    return [orjson.loads(one.strip().removeprefix(b"data: ")) for one in answer.body.split(b"data: ")[1:]]


async def test_bytes_go_through_at_gemini(start: StartGateway) -> None:
    """The model's name is that of the target, in the path; the body is the caller's; keys are exchanged."""
    gateway = await start(config)
    odd = b'{ "contents":[{"parts":[{"text":"x \\u00e4"}], "role":"user"}],"generationConfig":{"temperature":1.50} }'
    whole = await ask(gateway, "gem", odd)
    streamed = await ask(gateway, "gem", verb="streamGenerateContent")
    await gateway.idle()
    await gateway.stop()

    assert (whole.status, streamed.status) == (200, 200)
    first, second = gateway.received()
    assert (first["path"], second["path"]) == (
        f"{PATH}/gemini-2.5-flash:generateContent",
        f"{PATH}/gemini-2.5-flash:streamGenerateContent",
    )
    assert first["body"].encode() == b'{"contents"' + odd.partition(b'"contents"')[2]
    assert dict(first["headers"])["x-goog-api-key"] == "AIza-of-the-gateway"
    said = orjson.loads(whole.body)
    last = events(streamed)[-1]
    for call, usage in zip(gateway.records, (said["usageMetadata"], last["usageMetadata"]), strict=True):
        assert (call["endpoint"], call["outcome"], call["usage_estimated"]) == ("generate", "ok", False)
        assert (call["input_tokens"], call["output_tokens"]) == (
            usage["promptTokenCount"],
            usage["candidatesTokenCount"],
        )


@pytest.mark.parametrize("model", ["gpt", "claude"])
async def test_a_caller_of_geminis_at_other_servers(start: StartGateway, model: str) -> None:
    """Whole, streamed, with a tool and its result; what is lost is told."""
    gateway = await start(config)
    whole = await ask(gateway, model, {**GO, "safetySettings": [{"category": "x"}]})
    streamed = await ask(gateway, model, verb="streamGenerateContent")
    forced = {**GO, "tools": [TOOL], "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}
    called = orjson.loads((await ask(gateway, model, forced)).body)

    assert whole.header("x-gateway-lossy") == "safetySettings(dropped)"
    assert text_in(orjson.loads(whole.body))
    said = events(streamed)
    assert len(said) > 2
    assert said[-1]["candidates"][0]["finishReason"] == "STOP"
    assert said[-1]["usageMetadata"]["candidatesTokenCount"] > 0
    turn = called["candidates"][0]["content"]
    (call,) = [part["functionCall"] for part in turn["parts"] if "functionCall" in part]
    result = {"functionResponse": {"name": "f", "id": call["id"], "response": {"output": "it is five"}}}
    contents = [*GO["contents"], turn, {"role": "user", "parts": [result]}]
    answer = await ask(gateway, model, {"contents": contents, "tools": [TOOL]})
    assert "it is five" in text_in(orjson.loads(answer.body))


@pytest.mark.parametrize("verb", ["generateContent", "streamGenerateContent"])
async def test_a_call_falls_back_across_languages(start: StartGateway, verb: str) -> None:
    """From a converted target to one in the caller's own language."""
    gateway = await start(config)
    gateway.script("e503", "e503", "e503", "e503", model="gpt-4o")
    answer = await ask(gateway, "both", verb=verb)
    assert (answer.status, answer.header("x-gateway-target")) == (200, "goo/gemini-2.5-flash")


OWN: Mapping[str, tuple[str, str, Any, tuple[str, ...], int, str]] = {
    "no key": ("gem", "generateContent", GO, ("x-a: b",), 401, "UNAUTHENTICATED"),
    "an unknown model": ("none", "generateContent", GO, (), 404, "NOT_FOUND"),
    "an unknown verb": ("gem", "embedContent", GO, (), 404, "NOT_FOUND"),
    "no JSON": ("gem", "generateContent", b"{", (), 400, "INVALID_ARGUMENT"),
    "no object": ("gem", "generateContent", b"[]", (), 400, "INVALID_ARGUMENT"),
    "two models": ("gem", "generateContent", {"model": "gpt", **GO}, (), 400, "INVALID_ARGUMENT"),
    "no events": ("gem", "streamGenerateContent&", GO, (), 400, "INVALID_ARGUMENT"),
    "no contents": ("gpt", "generateContent", {}, (), 400, "INVALID_ARGUMENT"),
    "what nobody can say": ("gpt", "generateContent", {**GO, "cachedContent": "c"}, (), 400, "INVALID_ARGUMENT"),
    "too many bytes": ("gem", "generateContent", b"{" + b" " * 3000 + b"}", (), 413, "INVALID_ARGUMENT"),
}


async def test_errors_have_googles_shape(start: StartGateway) -> None:
    """Ours and the providers', whole and in a stream."""
    gateway = await start(lambda url: {**config(url), "server": {"max_body": "2KB"}})
    for name, (model, verb, body, headers, status, kind) in OWN.items():
        answer = await ask(
            gateway, model, body, *headers, verb=verb.replace("&", ""), query="" if "&" not in verb else "&alt=json"
        )
        if "&" in verb:  # without `alt=sse`
            async with connect(gateway.url) as peer:
                answer = await peer.exchange(post(f"{PATH}/{model}:streamGenerateContent", body, KEY))
        error = orjson.loads(answer.body)["error"]
        assert (answer.status, error["code"], error["status"]) == (status, status, kind), name
        assert error["message"], name
    gateway.script("context_length", model="gpt-4o")
    theirs = await ask(gateway, "gpt")
    assert orjson.loads(theirs.body)["error"]["status"] == "INVALID_ARGUMENT"


async def test_a_key_in_the_query_goes_nowhere_else(start: StartGateway) -> None:
    """Neither to the provider nor into a log."""
    gateway = await start(config)
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(post(f"{PATH}/gem:generateContent?key={WEB_KEY}", GO, "x-a: b"))
        listed = await peer.exchange(get(f"/v1/models?key={WEB_KEY}", "x-goog-api-key: made-up"))
        models = await peer.exchange(get(f"/v1/models?key={WEB_KEY}&x=1"))
        page = await peer.exchange(get(PATH, KEY))
        one = await peer.exchange(get(f"{PATH}/gem", KEY))
        count = await peer.exchange(
            post(f"{PATH}/gpt:countTokens", {"generateContentRequest": {"model": "x", **GO}}, KEY)
        )
    await gateway.idle()
    await gateway.stop()
    assert (answer.status, listed.status, models.status) == (200, 401, 401)
    assert WEB_KEY not in gateway.log.getvalue()
    assert WEB_KEY not in str(gateway.received())
    assert sorted(model["name"] for model in orjson.loads(page.body)["models"]) == [
        f"models/{name}" for name in ("both", "claude", "gem", "gpt")
    ]
    assert orjson.loads(one.body)["displayName"] == "gem"
    assert orjson.loads(count.body)["totalTokens"] > 0
    assert count.header("x-gateway-estimated") == "true"


async def test_such_calls_are_no_jobs(start: StartGateway, tmp_path: Path) -> None:
    """What says a part of itself in its path cannot be kept as one: it is answered as always."""
    gateway = await start(lambda url: {**config(url), "jobs": {"store": f"sqlite:///{tmp_path}/jobs.db"}})
    answer = await ask(gateway, "gem", GO, KEY, "prefer: respond-async")
    assert answer.status == 200
