"""The openai SDK cannot tell the gateway from the provider: same answers, streams, errors and types, asked both ways.

The emulator is reset before each of the two calls, so that it draws the same ids, and its clock stands still: whatever
differs is the gateway's doing. The provider has no key of its own here: both ways the caller's is judged.
"""

from __future__ import annotations

import asyncio
import inspect
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, AsyncStream, OpenAI, Stream
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

from gateway.emulator.config import EmulatorConfig
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Running, config_of, until

MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "say h\u00e9llo to the r\u00efver \N{ROCKET}"}
]
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
KEY = "sk-callers-own-key"
NOON = 1_790_000_000.0

Ask = Callable[[Any], Any]


def chat(**extra: Any) -> Ask:
    """A chat completion."""
    return lambda client: client.chat.completions.create(model="gpt-4o", messages=MESSAGES, **extra)


ASKS: dict[str, Ask] = {
    "chat": chat(),
    "chat_n_2": chat(n=2, max_tokens=7, temperature=0.5, user="u", seed=3),
    "chat_tools": chat(tools=[WEATHER], tool_choice="required"),
    "chat_json": chat(response_format={"type": "json_object"}),
    "chat_logprobs_and_unknown_field": chat(logprobs=True, extra_body={"zebra": {"model": "x"}}),
    "chat_stream": chat(stream=True),
    "chat_stream_with_usage": chat(stream=True, stream_options={"include_usage": True}),
    "chat_stream_without_usage": chat(stream=True, stream_options={"include_usage": False}),
    "chat_stream_n_2": chat(stream=True, n=2, max_tokens=5),
    "chat_stream_tools": chat(stream=True, tools=[WEATHER], tool_choice="required"),
    "completion": lambda client: client.completions.create(model="gpt-4o", prompt="once upon"),
    "completion_stream": lambda client: client.completions.create(model="gpt-4o", prompt="once upon", stream=True),
    "embedding_base64": lambda client: client.embeddings.create(model="gpt-4o", input=["a b", "c"]),
    "embedding_float": lambda client: client.embeddings.create(model="gpt-4o", input="a", encoding_format="float"),
    "response": lambda client: client.responses.create(model="gpt-4o", input="hi", instructions="be brief"),
    "response_stream": lambda client: client.responses.create(model="gpt-4o", input="hi", stream=True),
    "moderation": lambda client: client.moderations.create(model="gpt-4o", input=["calm", "pure violence"]),
    "image": lambda client: client.images.generate(model="gpt-4o", prompt="a house"),
    "speech": lambda client: client.audio.speech.create(model="gpt-4o", voice="alloy", input="hello"),
    "transcription": lambda client: client.audio.transcriptions.create(
        model="gpt-4o", file=("a.wav", io.BytesIO(bytes(range(256)) * 40)), language="en"
    ),
    "files": lambda client: client.files.list(),
    # what is wrong with a request, in the provider's words
    "bad_request": chat(temperature=9),
    "bad_request_empty": lambda client: client.chat.completions.create(model="gpt-4o", messages=[]),
    "bad_request_responses": lambda client: client.responses.create(model="gpt-4o", input=[]),
    "bad_request_streamed": chat(stream=True, temperature=9),
    "model_not_found": lambda client: client.chat.completions.create(model="no-such", messages=MESSAGES),
    "wrong_key": lambda client: client.with_options(api_key="sk-wrong-key-000000").embeddings.create(
        model="gpt-4o", input="a"
    ),
}  # fmt: skip

# What the provider says each time it is asked, what the SDK makes of it, and how often the gateway asks: a call that costs
# less than a cent may fail once more than others.
FAULTS: dict[str, tuple[str, type[openai.APIError], Ask, int]] = {
    "quota": ("quota", openai.RateLimitError, chat(), 1),
    "server_error": ("e500", openai.InternalServerError, chat(), 4),
    "context_length": ("context_length", openai.BadRequestError, chat(), 1),
    "content_filter": ("content_filter", openai.BadRequestError, chat(), 1),
    "error_amid_a_stream": ("in_band_error;after_chunks=3", openai.APIError, chat(stream=True), 1),
}


async def outcome(client: AsyncOpenAI, ask: Ask) -> Any:
    """All that the SDK makes of an answer."""
    try:
        result = await ask(client)
        if isinstance(result, AsyncStream):
            return [_plain(chunk) async for chunk in result]
        return _plain(result)
    except openai.APIError as error:
        return _error(error)


def blocking_outcome(client: OpenAI, ask: Ask) -> Any:
    """The same with the synchronous client."""
    try:
        result = ask(client)
        return [_plain(chunk) for chunk in result] if isinstance(result, Stream) else _plain(result)
    except openai.APIError as error:
        return _error(error)


def _plain(result: Any) -> tuple[type, Any]:
    if isinstance(result, BaseModel):
        return type(result), result.model_dump()
    assert not inspect.isawaitable(result)
    return type(result), result.content


def _error(error: openai.APIError) -> dict[str, Any]:
    told = {name: getattr(error, name, None) for name in ("message", "code", "param", "type", "body", "status_code")}
    told["class"] = type(error)
    if isinstance(error, openai.APIStatusError):
        told |= {"bytes": error.response.content, "request_id": error.request_id}
        told["hints"] = {name: error.response.headers.get(name) for name in ("retry-after", "retry-after-ms")}
    return told


@pytest.fixture
async def both(start: StartGateway, tmp_path: Path) -> Running:
    """A gateway that passes the caller's credential on and does not wait long, and an emulator that knows it."""
    return await start_both(start, tmp_path, "default: {backoff: {base: 1ms}}\n")


async def start_both(start: StartGateway, folder: Path, retries: str) -> Running:
    """Both of them, where the policy of retries is this."""
    (folder / "retries.yaml").write_text(retries)

    def config(url: str) -> dict[str, Any]:
        providers = {"main": {"dialect": "openai", "base_url": url}}
        return config_of(url, providers=providers, passthrough="main", policies=str(folder))

    emulator = EmulatorConfig(models=("gpt-4o",), api_key=KEY)
    return await start(config, emulator=emulator, wall=lambda: NOON)


def again(both: Running, *faults: str) -> None:
    """Start the emulator's draws anew, with these faults ahead."""
    both.emulator.emulator.reset()
    both.script(*faults)


@pytest.mark.parametrize("name", ASKS)
async def test_the_async_sdk_sees_no_difference(both: Running, name: str) -> None:
    """Values, types, ids, errors and their bytes are those of the provider."""
    async with both.direct(KEY) as direct, both.sdk(KEY) as through:
        again(both)
        expected = await outcome(direct, ASKS[name])
        again(both)
        assert await outcome(through, ASKS[name]) == expected


@pytest.mark.parametrize("name", ASKS)
async def test_the_sync_sdk_sees_no_difference(both: Running, name: str) -> None:
    """The same from a thread."""
    with both.blocking_direct(KEY) as direct, both.blocking_sdk(KEY) as through:
        again(both)
        expected = await asyncio.to_thread(blocking_outcome, direct, ASKS[name])
        again(both)
        assert await asyncio.to_thread(blocking_outcome, through, ASKS[name]) == expected


@pytest.mark.parametrize("name", FAULTS)
async def test_a_providers_trouble_raises_the_same_error(both: Running, name: str) -> None:
    """With one target there is nobody better to ask: class, status, body bytes and hints are those of its last answer."""
    await see_the_same_error(both, *FAULTS[name])


@pytest.mark.parametrize("fault", ["e503;seconds=0.01", "e529"])
async def test_an_overloaded_provider_raises_the_same_error_where_it_is_asked_once(
    start: StartGateway, tmp_path: Path, fault: str
) -> None:
    """A call that may be tried again waits for the end of such trouble instead."""
    both = await start_both(start, tmp_path, "default: {attempts: 1}\n")

    await see_the_same_error(both, fault, openai.InternalServerError, chat(), 1)


async def see_the_same_error(
    both: Running, fault: str, error_class: type[openai.APIError], ask: Ask, tries: int
) -> None:
    """The SDK raises the same straight and through, with bytes and hints."""
    async with both.direct(KEY) as direct, both.sdk(KEY) as through:
        again(both, *[fault] * tries)
        expected = [await outcome(direct, ask) for _ in range(tries)][-1]
        again(both, *[fault] * (tries + 1))
        found = await outcome(through, ask)

    if set(expected.get("hints", {}).values()) == {None}:
        found.get("hints", {}).clear()  # the gateway's own advice when to come back
        expected.get("hints", {}).clear()
    assert found == expected
    assert found["class"] is error_class
    assert both.upstream_calls() == tries


@pytest.mark.parametrize("fault", ["html502", "reset", "empty_200", "truncated", "cut"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_nobody_can_read_raises_a_server_error(both: Running, fault: str, stream: bool) -> None:
    """Never a silent success: what is broken at the provider is an APIError here, in OpenAI's shape."""
    again(both, *[fault] * 4)
    async with both.sdk(KEY) as through:
        found = await outcome(through, chat(stream=stream))

    assert issubclass(found["class"], openai.APIError), found
    assert found["message"]


async def test_a_raw_response_has_the_providers_bytes_and_headers(both: Running) -> None:
    """Ids and limits included; the transport's own headers and ours differ, and whose account it is stays with us."""
    own = {
        "openai-organization",
        "date",
        "content-length",
        "server",
        "connection",
        "transfer-encoding",
        "openai-processing-ms",
    }

    async def ask(client: AsyncOpenAI) -> tuple[bytes, dict[str, str]]:
        raw = await client.chat.completions.with_raw_response.create(model="gpt-4o", messages=MESSAGES)
        headers = {name.lower(): value for name, value in raw.headers.items()}
        return raw.http_response.content, {name: value for name, value in headers.items() if name not in own}

    async with both.direct(KEY) as direct, both.sdk(KEY) as through:
        again(both)
        expected, provider_headers = await ask(direct)
        again(both)
        content, headers = await ask(through)

    assert content == expected
    assert {name: value for name, value in headers.items() if not name.startswith("x-gateway-")} == provider_headers
    assert headers["x-gateway-attempts"] == "main/gpt-4o:200"


async def test_models_come_from_the_config(both: Running) -> None:
    """As the SDK's own type; a name that nothing serves is a NotFoundError."""
    async with both.sdk(KEY) as client:
        listed = [model async for model in client.models.list()]
        one = await client.models.retrieve("gpt-4o")
        any_name = await client.models.retrieve("served/by:the-pattern")

    assert [model.id for model in listed] == ["gpt-4o", "renamed"]
    assert (one.id, one.object, one.owned_by) == ("gpt-4o", "model", "main")
    assert any_name.id == "served/by:the-pattern"


async def test_the_gateways_own_refusals_are_the_sdks_own_errors(start: StartGateway) -> None:
    """AuthenticationError, PermissionDeniedError, NotFoundError, BadRequestError, and a request too large."""
    keys = [{"name": "web", "key": KEY, "models": ["gpt-4o"]}]
    gateway = await start(
        lambda url: config_of(url, keys=keys, models={"gpt-4o": {"targets": ["main"]}}, server={"max_body": "10kB"})
    )

    async def error_of(client: AsyncOpenAI, **request: Any) -> Any:
        return (await outcome(client, lambda one: one.embeddings.create(**request)))["class"]

    async with gateway.sdk(KEY) as client, gateway.sdk("sk-wrong") as stranger:
        assert await error_of(stranger, model="gpt-4o", input="a") is openai.AuthenticationError
        assert await error_of(client, model="other", input="a") is openai.PermissionDeniedError
        assert await error_of(client, model="", input="a") is openai.BadRequestError
        assert await error_of(client, model="gpt-4o", input="a" * 20_000) is openai.APIStatusError
        with pytest.raises(openai.NotFoundError):
            await client.vector_stores.list()


async def test_a_client_that_gives_up_gets_its_own_timeout(both: Running) -> None:
    """The gateway knows when the caller gives up and answers no later; the provider's call is cancelled."""
    again(both, "silence")
    async with both.sdk(KEY, timeout=0.3) as client:
        found = await outcome(client, chat())

    assert found["class"] is openai.APITimeoutError or found["status_code"] == 504
    await until(lambda: both.emulator.emulator.stats.cancelled == 1)
    await both.idle()
