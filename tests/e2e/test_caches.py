"""Answers that are given again, on the wire: byte for byte or in another form, complete ones only, and to nobody else."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.cli.main import main
from gateway.core.clock import SteadyClock
from gateway.emulator.config import EmulatorConfig
from tests.dialects.answers import bare
from tests.e2e.caches import (
    CHAT,
    EMBEDDINGS,
    RESPONSES,
    STREAMS,
    WITH_USAGE,
    Wall,
    ask,
    behind,
    cache_of,
    config,
    events,
    saying,
    streaming,
    whole,
)
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import (
    ADMIN_KEY,
    NIGHTLY_KEY,
    WEB_KEY,
    Running,
    connect,
    get,
    post,
    until,
)
from tests.soak.support import metrics, sum_of
from tests.support.raw_server import READ, RawServer, yield_to_peer

CHATS = (
    "audio",
    "azure",
    "chat",
    "choices",
    "citations",
    "deepseek",
    "groq",
    "mistral",
    "odd",
    "openrouter",
    "parallel_tools",
    "tools",
)
ALIKE = ("audio", "choices", "odd", "parallel_tools")
"""Recorded beside their whole answers, and read alike by the SDK in both forms."""
USAGE = b'data: {"id":"c","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
STATES = ("memory", "sqlite:///kept.db")
PRICED = {
    "*": {"targets": [{"provider": "main", "price": {"input_usd_per_million": 2, "output_usd_per_million": 8}}]},
}
CHUNK = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[%b]}\n\n'
WORD = CHUNK % b'{"index":0,"delta":{"role":"assistant","content":"hi"},"finish_reason":null}'
FINISH = CHUNK % b'{"index":0,"delta":{},"finish_reason":"stop"}'
DONE = b"data: [DONE]\n\n"
PLAIN = WORD + FINISH + USAGE + DONE
ODD = {
    "CRLF": PLAIN.replace(b"\n", b"\r\n"),
    "CR": PLAIN.replace(b"\n", b"\r"),
    "comments": b": hello\n\n" + WORD + b": keep-alive\n\n:\n\n" + FINISH + b": PROCESSING\n\n" + USAGE + DONE,
    "names": b"event: message\nid: 1\nretry: 10\n" + PLAIN.replace(b"data: {", b"event: delta\ndata:{"),
    "lines": PLAIN.replace(b',"object"', b',\ndata: "object"').replace(b',"choices"', b',\ndata:"choices"'),
    "a provider that tells its usage at the end of an answer": WORD
    + CHUNK.replace(b"]}", b'],"usage":{"prompt_tokens":7,"completion_tokens":2}}')
    % b'{"index":0,"delta":{},"finish_reason":"stop"}'
    + DONE,
    "blanks": PLAIN.replace(b'":', b'": ').replace(b',"', b', "'),
    "nothing behind the finish but the end": WORD + FINISH + DONE,
}


def recorded(names: tuple[str, ...]) -> dict[str, bytes]:
    return {name: (STREAMS / f"{name}.sse").read_bytes() for name in names}


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    """The wall clock of gateways that are started from now on."""
    moved = Wall()
    monkeypatch.setattr(SteadyClock, "wall", staticmethod(moved.now))
    return moved


# --- replays ---


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("headers", [(), ("idempotency-key: k-{}",)], ids=["exact", "idempotency"])
@pytest.mark.parametrize("usage", [{}, WITH_USAGE], ids=["usage not asked for", "usage asked for"])
async def test_odd_streams_are_given_again_byte_for_byte(
    start: StartGateway, tmp_path: Path, headers: tuple[str, ...], usage: dict[str, Any], state: str
) -> None:
    """As the first client got them, which is as they came where usage was asked for; nobody is asked twice."""
    streams = {**recorded(CHATS), **ODD}
    answers = [events(frames, 1 + 97 * number) for number, frames in enumerate(streams.values())]

    async with behind(start, tmp_path, *answers, state=state) as (gateway, provider):
        for number, (name, frames) in enumerate(streams.items()):
            own = [header.format(number) for header in headers]
            first = await ask(gateway, streaming(name, **usage), *own)
            again = await ask(gateway, streaming(name, **usage), *own)

            assert (cache_of(first), cache_of(again)) == ("miss", "hit"), name
            assert again.body == first.body, name
            assert not usage or first.body == frames, name
            assert again.header("content-type") == first.header("content-type") == "text/event-stream"
            assert again.header("idempotent-replayed") == ("true" if headers else None)
        assert len(provider.requests) == len(streams)


@pytest.mark.parametrize("headers", [(), ("idempotency-key: k-{}",)], ids=["exact", "idempotency"])
async def test_odd_streams_of_responses_are_given_again_byte_for_byte(
    start: StartGateway, tmp_path: Path, headers: tuple[str, ...]
) -> None:
    """Whatever their events are named, and whatever is between them."""
    streams = recorded(("responses", "responses_bare", "responses_items"))
    streams["CRLF"] = b": hello\r\n\r\n" + streams["responses"].replace(b"\n", b"\r\n")

    async with behind(start, tmp_path, *map(events, streams.values())) as (gateway, provider):
        for number, (name, frames) in enumerate(streams.items()):
            own = [header.format(number) for header in headers]
            body = {"model": "gpt-4o", "input": name, "stream": True}
            first = await ask(gateway, body, *own, path=RESPONSES)
            again = await ask(gateway, body, *own, path=RESPONSES)

            assert first.body == again.body == frames, name
            assert cache_of(again) == "hit"
        assert len(provider.requests) == len(streams)


async def test_usage_is_taken_out_of_a_kept_stream_as_the_relay_does_it(start: StartGateway, tmp_path: Path) -> None:
    """Who did not ask for it gets the same from the cache as from a provider; and who asks for it, if it was taken out."""
    streams = recorded(CHATS) | {name: ODD[name] for name in ("CRLF", "comments", "names", "lines")}
    answers = [events(frames) for frames in streams.values() for _ in range(2)]

    async with behind(start, tmp_path, *answers) as (gateway, provider):
        for name, frames in streams.items():
            relayed = await ask(gateway, streaming(f"{name} without"))
            await ask(gateway, streaming(f"{name} with", **WITH_USAGE))
            without = await ask(gateway, streaming(f"{name} with"))
            added = await ask(gateway, streaming(f"{name} without", **WITH_USAGE))

            assert cache_of(without) == cache_of(added) == "hit"
            assert without.body == relayed.body, name
            assert _usages(added.body) == _usages(frames), name
        assert len(provider.requests) == len(answers)


def _usages(frames: bytes) -> list[Any]:
    found = [orjson.loads(line[5:]) for line in frames.splitlines() if line.startswith(b"data:") and line.endswith(b"}")
             and b'"usage"' in line and line[5:].strip().startswith(b"{")]  # fmt: skip
    return [one["usage"] for one in found if one.get("usage")]


async def test_a_paced_replay_is_the_same_stream(start: StartGateway, tmp_path: Path) -> None:
    """Event by event, and not a byte more or less."""
    async with behind(start, tmp_path, *map(events, ODD.values()), caching={"exact": {"pace": "1ms"}}) as (gateway, _):
        for name in ODD:
            first, again = [await ask(gateway, streaming(name, **WITH_USAGE)) for _ in range(2)]
            assert (cache_of(again), again.body) == ("hit", first.body), name


async def test_what_is_no_text_is_given_again_as_it_was(start: StartGateway, tmp_path: Path) -> None:
    """Sound, with the type and the encoding that it has come with."""
    sound = bytes(range(256)) * 50
    answers = [
        b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\nconnection: close\r\n%bcontent-length: %d\r\n\r\n%b"
        % (extra, len(sound), sound)
        for extra in (b"", b"content-encoding: zstd\r\n")
    ]
    async with behind(start, tmp_path, *answers) as (gateway, provider):
        for text, encoding in (("plain", None), ("packed", "zstd")):
            wanted = {"model": "gpt-4o", "input": text, "voice": "alloy"}
            for cache in ("miss", "hit"):
                answer = await ask(gateway, wanted, path="/v1/audio/speech")
                assert (cache_of(answer), answer.body) == (cache, sound)
                assert answer.header("content-type") == "audio/mpeg"
                assert answer.header("content-encoding") == encoding
        assert len(provider.requests) == 2


async def test_what_was_not_asked_for_is_given_again_as_it_was(start: StartGateway, tmp_path: Path) -> None:
    """Events to a call that wants none become a whole answer, also by its key; events stay where the body asks for them."""
    async with behind(start, tmp_path, events(PLAIN), events(PLAIN)) as (gateway, provider):
        speech = {"model": "gpt-4o", "input": "x", "voice": "alloy", "stream_format": "sse"}
        cases = (
            (("idempotency-key: k",), CHAT, saying("x"), "application/json"),
            ((), "/v1/audio/speech", speech, "text/event-stream"),
        )
        for headers, path, body, kind in cases:
            first, again = [await ask(gateway, body, *headers, path=path) for _ in range(2)]
            assert (cache_of(first), cache_of(again)) == ("miss", "hit")
            assert first.body == again.body
            assert (first.body == PLAIN) is (kind == "text/event-stream")
            assert again.header("content-type") == kind
        assert len(provider.requests) == 2


# --- other forms ---


@pytest.mark.parametrize("name", ALIKE)
async def test_the_sdk_reads_a_kept_chat_alike_in_both_forms(start: StartGateway, tmp_path: Path, name: str) -> None:
    """Streamed first and asked for whole, whole first and asked for as a stream."""
    frames, body = (STREAMS / f"{name}.sse").read_bytes(), (STREAMS / f"{name}.json").read_bytes()

    async with behind(start, tmp_path, events(frames), whole(body)) as (gateway, provider), gateway.sdk() as sdk:
        streamed = await _chat_streamed(sdk, "first")
        made_whole = await _chat_whole(sdk, "first")
        was_whole = await _chat_whole(sdk, "second")
        made_streamed = await _chat_streamed(sdk, "second")

    assert streamed == made_whole
    assert was_whole == made_streamed == bare(orjson.loads(body))
    assert len(provider.requests) == 2


@pytest.mark.parametrize("name", ["responses_bare", "responses_items"])
async def test_the_sdk_reads_a_kept_response_alike_in_both_forms(
    start: StartGateway, tmp_path: Path, name: str
) -> None:
    """The same of Responses; where the last event lacks its items (`bare`), the SDK has none of them of a stream either."""
    frames, body = (STREAMS / f"{name}.sse").read_bytes(), (STREAMS / f"{name}.json").read_bytes()

    async with behind(start, tmp_path, events(frames), whole(body)) as (gateway, provider), gateway.sdk() as sdk:
        streamed = await _response_streamed(sdk, "first")
        made_whole = bare((await sdk.responses.create(model="gpt-4o", input="first")).to_dict())
        was_whole = bare((await sdk.responses.create(model="gpt-4o", input="second")).to_dict())
        made_streamed = await _response_streamed(sdk, "second")

    assert streamed == (made_whole if name == "responses_items" else {**made_whole, "output": []})
    assert made_whole == was_whole == made_streamed
    assert len(provider.requests) == 2


async def test_the_sdk_reads_a_kept_text_alike_in_both_forms(start: StartGateway, tmp_path: Path) -> None:
    """The old completions have no accumulator in the SDK: what their chunks say, joined, is the whole text."""
    frames, body = (STREAMS / "text.sse").read_bytes(), (STREAMS / "text.json").read_bytes()

    async with behind(start, tmp_path, events(frames), whole(body)) as (gateway, provider), gateway.sdk() as sdk:
        texts = []
        for prompt, forms in (("first", (True, False)), ("second", (False, True))):
            for stream in forms:
                texts.append(await _text(sdk, prompt, stream=stream))

    assert len(set(texts)) == 1
    assert len(provider.requests) == 2


@pytest.mark.parametrize("tools", [{}, {"tools": [{"type": "function", "function": {"name": "f"}}]}])
async def test_forms_of_the_emulators_answers_are_alike(
    start: StartGateway, tmp_path: Path, tools: dict[str, Any]
) -> None:
    """Text and tool calls, from either side."""
    gateway = await start(config(tmp_path))
    choice = {"tool_choice": "required"} if tools else {}

    async with gateway.sdk() as sdk:
        streamed = await _chat_streamed(sdk, "one", **tools, **choice)
        assert await _chat_whole(sdk, "one", **tools, **choice) == streamed
        answered = await _chat_whole(sdk, "two", **tools, **choice)
        assert await _chat_streamed(sdk, "two", **tools, **choice) == answered
    assert gateway.upstream_calls() == 2


async def _chat_streamed(sdk: Any, text: str, **fields: Any) -> Any:
    asked = sdk.chat.completions.stream(**{**saying(text), **fields, **WITH_USAGE})
    async with asked as stream:
        await stream.until_done()
        return bare(stream.current_completion_snapshot.to_dict())


async def _chat_whole(sdk: Any, text: str, **fields: Any) -> Any:
    return bare((await sdk.chat.completions.create(**saying(text), **fields)).to_dict())


async def _response_streamed(sdk: Any, text: str) -> Any:
    async with sdk.responses.stream(model="gpt-4o", input=text) as stream:
        return bare((await stream.get_final_response()).to_dict())


async def _text(sdk: Any, prompt: str, *, stream: bool) -> str:
    answer = await sdk.completions.create(model="gpt-4o", prompt=prompt, stream=stream)
    chunks = [chunk async for chunk in answer] if stream else [answer]
    return "".join(choice.text for chunk in chunks for choice in chunk.choices if choice.index == 0)


async def test_a_whole_answer_to_calls_that_want_a_stream_is_events_for_each_of_them(
    start: StartGateway, tmp_path: Path
) -> None:
    """For who asked first, for those who were waiting with it, and for who repeats it by its key."""
    gate = asyncio.Event()
    body = (STREAMS / "parallel_tools.json").read_bytes()
    wanted = streaming("x", temperature=0)

    async with RawServer([[READ, gate, whole(body)]]) as provider:
        gateway = await start(lambda _url: config(tmp_path)(f"{provider.url}/v1"))
        asked = [asyncio.ensure_future(ask(gateway, wanted)) for _ in range(7)]
        keyed = asyncio.ensure_future(ask(gateway, wanted, "idempotency-key: k"))
        await until(lambda: len(gateway.inflight) == 8 and len(provider.requests) == 1)
        gate.set()
        answers = await asyncio.gather(*asked, keyed)
        again = [await ask(gateway, wanted, "idempotency-key: k") for _ in range(2)]
        kept = await ask(gateway, wanted)

        assert len({answer.body for answer in [*answers, *again, kept]}) == 1
        assert answers[0].body.startswith(b"data: {")
        assert answers[0].body.endswith(DONE)
        assert b"x-gateway" not in answers[0].body
        for answer in (*answers, *again, kept):
            assert (answer.header("content-type") or "").startswith("text/event-stream")
        assert again[0].header("idempotent-replayed") == "true"
        assert len(provider.requests) == 1


async def test_two_keys_of_one_question_each_have_its_whole_record(start: StartGateway, tmp_path: Path) -> None:
    """They share the attempt that is running; later each is given its own again, headers and all."""
    gate = asyncio.Event()
    wanted = streaming("x", temperature=0)
    caching = {"exact": {"requests": "off"}}

    async with RawServer([[READ, gate, events(PLAIN)]]) as provider:
        gateway = await start(lambda _url: config(tmp_path, caching)(f"{provider.url}/v1"))
        keys = [f"idempotency-key: {name}" for name in "ab"]
        asked = [asyncio.ensure_future(ask(gateway, wanted, key)) for key in keys]
        await until(lambda: len(gateway.inflight) == 2 and len(provider.requests) == 1)
        await yield_to_peer()
        gate.set()
        answers = await asyncio.gather(*asked)
        again = [await ask(gateway, wanted, key) for key in keys]

        assert {answer.body for answer in [*answers, *again]} == {WORD + FINISH + DONE}
        assert [one.header("content-type") for one in again] == ["text/event-stream"] * 2
        assert len(provider.requests) == 1


async def test_who_followed_another_keeps_all_that_is_known_of_the_answer(start: StartGateway, tmp_path: Path) -> None:
    """Its usage, though that was no part of the stream: for who asks for it in another form, and for what is saved later."""
    gate = asyncio.Event()
    wanted = streaming("x", temperature=0)

    async with RawServer([[READ, gate, events(PLAIN)]]) as provider:
        gateway = await start(lambda _url: config(tmp_path)(f"{provider.url}/v1"))
        keys = [f"idempotency-key: {name}" for name in "ab"]
        asked = [asyncio.ensure_future(ask(gateway, wanted, key)) for key in keys]
        await until(lambda: len(gateway.inflight) == 2 and len(provider.requests) == 1)
        await yield_to_peer()
        gate.set()
        first = next(one for one in await asyncio.gather(*asked) if cache_of(one) == "miss")
        again = [await ask(gateway, wanted, key) for key in keys]
        whole_one = await ask(gateway, saying("x", temperature=0))
        with_usage = await ask(gateway, {**wanted, **WITH_USAGE})

        assert [cache_of(one) for one in (*again, whole_one, with_usage)] == ["hit"] * 4
        assert whole_one.header("x-gateway-cache-source") == first.header("x-gateway-request-id")
        assert orjson.loads(whole_one.body)["usage"] == {"prompt_tokens": 7, "completion_tokens": 2}
        assert b'"prompt_tokens":7' in with_usage.body
        assert sum_of(metrics(gateway), "gateway_cache_saved_tokens_total", kind="input") == 7 * 5
        assert len(provider.requests) == 1


# --- never kept ---

FAULTS_OF_BOTH = [
    "e401",
    "e404",
    "e500",
    "e503",
    "e529",
    "html502",
    "cut",
    "malformed",
    "in_band_error",
    "truncated",
    "empty_200",
    "error_in_200",
    "content_filter",
    "context_length",
    "raw_error",
]
FAULTS_OF_STREAMS = ("opening_error", "no_done", "reset;after_chunks=2")
NO_PATIENCE = {"queue": {"lanes": {"interactive": {"deadline": "1s"}}}, "breakers": {"enabled": False}}


@pytest.mark.parametrize(
    ("path", "stream"), [(CHAT, False), (CHAT, True), (RESPONSES, False), (RESPONSES, True), (EMBEDDINGS, False)]
)
async def test_nothing_that_went_wrong_is_kept(start: StartGateway, tmp_path: Path, path: str, stream: bool) -> None:
    """No error, no part of an answer, no error in the clothes of an answer: who asks again asks the provider."""
    gateway = await start(config(tmp_path))
    faults = [*FAULTS_OF_BOTH, *(FAULTS_OF_STREAMS if stream else ())]

    for fault in faults:
        body = _question(path, fault, stream=stream)
        gateway.script(fault)
        bad = await _whatever(gateway, body, path)
        good = await ask(gateway, body, "x-gateway-deadline-ms: 5000", path=path)
        again = await ask(gateway, body, path=path)

        assert (good.status, cache_of(good)) == (200, "miss"), (fault, bad, good)
        assert cache_of(again) == "hit", fault
        assert again.body == good.body != bad, fault


def _question(path: str, text: str, *, stream: bool) -> dict[str, Any]:
    if path == CHAT:
        return saying(text, stream=stream, temperature=0)
    return {"model": "gpt-4o", "input": text, **({"stream": stream} if path == RESPONSES else {"dimensions": 8})}


async def _whatever(gateway: Running, body: Any, path: str) -> bytes:
    """All that comes, even if it breaks off."""
    async with connect(gateway.url) as peer:
        peer.send(post(path, body, "x-gateway-deadline-ms: 1000", "connection: close"))
        return await peer.rest()


@pytest.mark.parametrize("state", ["incomplete", "failed", "cancelled", "in_progress", "queued"])
async def test_a_response_that_is_not_completed_is_not_kept(start: StartGateway, tmp_path: Path, state: str) -> None:
    """Streamed or whole: it may be another one tomorrow, and nobody wants half of one."""
    done = orjson.loads((STREAMS / "responses_bare.json").read_bytes())
    half = orjson.dumps(
        {**done, "status": state, "error": {"message": "x", "code": "y"} if state == "failed" else None}
    )
    last = b'event: response.%b\ndata: {"type":"response.%b","sequence_number":1,"response":%b}\n\n'
    streamed = last % (state.encode(), state.encode(), half)
    answers = [whole(half), whole(half), events(streamed), events(streamed)]

    async with behind(start, tmp_path, *answers) as (gateway, provider):
        for stream in (False, True):
            for _ in range(2):
                body = {"model": "gpt-4o", "input": "x", "stream": stream}
                assert cache_of(await ask(gateway, body, path=RESPONSES)) != "hit"
        assert len(provider.requests) == 4


BAD_ENDS = {
    "an error for an end": WORD + FINISH.replace(b'"stop"', b'"error"') + DONE,
    "no end of any choice": WORD + DONE,
    "an error behind the end": WORD + FINISH + b'data: {"error":{"message":"x","code":500}}\n\n' + DONE,
    "half of its last event": PLAIN.removesuffix(USAGE + DONE)[:-40],
}


@pytest.mark.parametrize("end", list(BAD_ENDS))
async def test_a_stream_that_does_not_end_well_is_not_kept(start: StartGateway, tmp_path: Path, end: str) -> None:
    """Though it is framed as a complete one."""
    async with behind(start, tmp_path, *[events(BAD_ENDS[end])] * 2) as (gateway, provider):
        found = [cache_of(await ask(gateway, streaming("x"))) for _ in range(2)]

        assert (found, len(provider.requests)) == (["miss"] * 2, 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_nobody_waited_for_is_not_kept(start: StartGateway, tmp_path: Path, stream: bool) -> None:
    """Its client has left in the middle: the provider is left, too."""
    gateway = await start(config(tmp_path))
    gateway.script("stall")
    async with connect(gateway.url) as peer:
        peer.send(post(CHAT, saying("x", stream=stream)))
        await until(lambda: gateway.upstream_calls() == 1)
        if stream:
            await peer.reader.readuntil(b"data: ")
        peer.close()
    await gateway.idle()

    assert cache_of(await ask(gateway, saying("x", stream=stream))) == "miss"
    assert gateway.upstream_calls() == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_too_large_is_not_kept(start: StartGateway, tmp_path: Path, stream: bool) -> None:
    """But passed on to its last byte."""
    gateway = await start(
        config(tmp_path, {"exact": {"max_entry": "1KiB"}}), emulator=EmulatorConfig(output_tokens=2000)
    )
    answers = [await ask(gateway, saying("x", stream=stream)) for _ in range(2)]

    assert [cache_of(answer) for answer in answers] == ["miss", "miss"]
    assert all(len(answer.body) > 2000 for answer in answers)


@pytest.mark.parametrize("fault", ["e500", "e401", "in_band_error", "truncated"])
async def test_a_key_gets_what_went_wrong_only_once(start: StartGateway, tmp_path: Path, fault: str) -> None:
    """Its record is free again at once; what the provider would only say again is said by the record."""
    gateway = await start(config(tmp_path))
    key = "idempotency-key: k"
    gateway.script(fault)

    await _keyed(gateway, key)
    good = await ask(gateway, streaming("x"), key)
    again = await ask(gateway, streaming("x"), key)

    assert (good.status, good.header("idempotent-replayed")) == (200, None)
    assert (again.body, again.header("idempotent-replayed")) == (good.body, "true")


async def test_a_key_gets_what_was_wrong_with_its_request_again(start: StartGateway, tmp_path: Path) -> None:
    """The provider is not asked a second time; the cache keeps nothing of it."""
    gateway = await start(config(tmp_path))
    gateway.script("context_length")
    answers = [await ask(gateway, saying("x"), "idempotency-key: k") for _ in range(2)]

    assert [answer.status for answer in answers] == [400, 400]
    assert answers[0].body == answers[1].body
    assert answers[1].header("x-should-retry") == "false"
    assert gateway.upstream_calls() == 1
    assert (await ask(gateway, saying("x"))).status == 200


async def _keyed(gateway: Running, key: str) -> None:
    async with connect(gateway.url) as peer:
        peer.send(post(CHAT, streaming("x"), key, "connection: close"))
        await peer.rest()


# --- what is told ---


async def test_the_head_of_an_answer_tells_where_it_is_from(start: StartGateway, tmp_path: Path, wall: Wall) -> None:
    """Age, freshness, key, source; the first one's own attempts are its own."""
    gateway = await start(config(tmp_path))
    first = await ask(gateway, saying("x"), "x-request-id: first")
    wall.ahead_s += 20
    again = await ask(gateway, saying("x"), "x-request-id: second")
    stream = await ask(gateway, streaming("x"))

    assert (cache_of(first), cache_of(again), cache_of(stream)) == ("miss", "hit", "hit")
    assert first.header("age") is None
    assert 20 <= int(again.header("age") or 0) < 60
    assert again.header("cache-control") in ("private, max-age=59", "private, max-age=60")
    key = again.header("x-gateway-cache-key") or ""
    assert len(bytes.fromhex(key)) == 32
    assert first.header("x-gateway-cache-key") == stream.header("x-gateway-cache-key") == key
    assert again.header("x-gateway-cache-source") == first.header("x-gateway-request-id") == "first"
    assert again.header("x-request-id") == "second"
    assert again.header("x-gateway-target") == "main/gpt-4o"
    assert again.header("x-gateway-attempts") is None
    assert again.header("content-type") == "application/json"
    assert (stream.header("content-type") or "").startswith("text/event-stream")
    wall.ahead_s += 41
    assert cache_of(await ask(gateway, saying("x"))) == "miss"


@pytest.mark.parametrize(
    ("headers", "cache", "asked"),
    [
        ((), "hit", 0),
        (("cache-control: no-cache",), "miss", 1),
        (("cache-control: NO-CACHE, max-age=100",), "miss", 1),
        (("cache-control: max-age=10",), "miss", 1),
        (("cache-control: max-age=30",), "hit", 0),
        (("cache-control: min-fresh=50",), "miss", 1),
        (("cache-control: only-if-cached",), "hit", 0),
        (("cache-control: max-age=100", "cache-control: no-cache"), "miss", 1),
        (("cache-control: no-cache", "cache-control: max-age=100"), "miss", 1),
    ],
)
async def test_a_request_says_what_it_takes(
    start: StartGateway, tmp_path: Path, wall: Wall, headers: tuple[str, ...], cache: str, asked: int
) -> None:
    """Cache-Control through the edge, on one line or on several."""
    gateway = await start(config(tmp_path))
    await ask(gateway, saying("x"))
    wall.ahead_s += 20

    answer = await ask(gateway, saying("x"), *headers)

    assert (cache_of(answer), gateway.upstream_calls()) == (cache, 1 + asked)


async def test_an_answer_that_is_not_to_be_stored_is_not(start: StartGateway, tmp_path: Path) -> None:
    """Neither streamed nor whole, whichever line says so."""
    gateway = await start(config(tmp_path))
    for stream in (False, True):
        await ask(gateway, saying("x", stream=stream), "cache-control: no-store", "cache-control: max-age=5")

    assert cache_of(await ask(gateway, saying("x"))) == "miss"
    assert gateway.upstream_calls() == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_only_if_cached_costs_nothing(start: StartGateway, tmp_path: Path, stream: bool) -> None:
    """504 where nothing is kept, as RFC 9111 has it; an SDK is told not to try again."""
    gateway = await start(config(tmp_path))
    refused = await ask(gateway, saying("x", stream=stream), "cache-control: only-if-cached")

    assert (refused.status, refused.error["code"]) == (504, "not_cached")
    assert refused.header("x-should-retry") == "false"
    assert gateway.upstream_calls() == 0


# --- stale ---


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stale_answer_stands_in_for_a_provider_that_is_gone(
    start: StartGateway, tmp_path: Path, wall: Wall, stream: bool
) -> None:
    """Connections are refused, then the breaker is open: 200 with its age all the while, in either form."""
    gateway = await start(config(tmp_path, {"exact": {"stale_if_error": "1h"}}))
    first = await ask(gateway, saying("x", stream=stream))
    await gateway.emulator.stop()
    wall.ahead_s += 100
    answers = [await ask(gateway, saying("x", stream=stream)) for _ in range(12)]
    other = await ask(gateway, saying("x", stream=not stream))

    for answer in (*answers, other):
        assert (answer.status, cache_of(answer)) == (200, "stale")
        assert 100 <= int(answer.header("age") or 0) < 160
        assert answer.header("cache-control") == "private, no-cache"
        assert answer.header("x-should-retry") is None
    assert {answer.body for answer in answers} == {first.body}
    assert sum_of(metrics(gateway), "gateway_breaker_state") > 0
    assert (await ask(gateway, saying("y"))).status in (502, 503)
    wall.ahead_s += 3600
    assert (await ask(gateway, saying("x", stream=stream))).status in (502, 503)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stale_answer_is_given_for_failures_only(
    start: StartGateway, tmp_path: Path, wall: Wall, stream: bool
) -> None:
    """Whatever they look like; what is wrong with the request, or with who asks, is said as it is."""
    gateway = await start(config(tmp_path, {"exact": {"stale_if_error": "1h"}}))
    requests = ["content_filter", "context_length", "e404"]
    failures = ["e500", "e503", "e529", "html502", "empty_200", "error_in_200", "in_band_error"]
    for fault in (*requests, *failures):
        first = await ask(gateway, saying(fault, stream=stream))
        wall.ahead_s += 100
        gateway.script(fault)
        answer = await ask(gateway, saying(fault, stream=stream))

        if fault in requests:
            assert (answer.status // 100, cache_of(answer)) == (4, "miss"), fault
        else:
            assert (answer.status, cache_of(answer), answer.body) == (200, "stale", first.body), fault


# --- kept alive ---


@pytest.mark.parametrize("kind", ["stream", "whole", "stale"])
async def test_who_was_kept_alive_gets_a_right_stream(
    start: StartGateway, tmp_path: Path, wall: Wall, kind: str
) -> None:
    """Its head has gone with comments behind it; live, coalesced or stale, its events follow as they would have come."""
    gate = asyncio.Event()
    body = (STREAMS / "parallel_tools.json").read_bytes()
    late = {"stream": events(PLAIN), "whole": whole(body), "stale": whole(b"{}", b"503 Unavailable")}[kind]
    wanted = streaming("x", temperature=0)
    (tmp_path / "queue.yaml").write_text("default: {keepalive_after: 20ms}\n")

    async with RawServer([[READ, events(PLAIN)], [READ, gate, late]]) as provider:
        gateway = await start(lambda _url: config(tmp_path, {"exact": {"stale_if_error": "1h"}})(f"{provider.url}/v1"))
        before = await ask(gateway, wanted)
        wall.ahead_s += 100
        async with AsyncExitStack() as clients:
            peers = [await clients.enter_async_context(connect(gateway.url)) for _ in range(3)]
            for peer in peers:
                peer.send(post(CHAT, wanted))
            for peer in peers:
                assert (await peer.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
                await peer.reader.readuntil(b": waiting")
                await peer.reader.readuntil(b"\n\n\r\n")
            gate.set()
            found = {_without_comments((await peer._chunked())[0]) for peer in peers}
        kept = before if kind == "stale" else await ask(gateway, wanted)

        assert found == {kept.body}
        assert kept.body.endswith(DONE)
        assert len(provider.requests) == 2


def _without_comments(frames: bytes) -> bytes:
    """Without those that came first."""
    while frames.startswith(b": waiting"):
        frames = frames.partition(b"\n\n")[2]
    return frames


# --- operators ---


async def test_operators_are_told_what_clients_were(
    start: StartGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gateway stats`, /admin/stats and /metrics say of tokens and money what the answers have said of what they cost."""
    gateway = await start(config(tmp_path, models=PRICED))
    paid = await ask(gateway, saying("x", temperature=0))
    again = [await ask(gateway, saying("x", temperature=0, stream=stream)) for stream in (False, True, True)]
    keyed = [await ask(gateway, saying("y and more"), "idempotency-key: k") for _ in range(3)]
    gateway.script("slow_first_token;seconds=0.3")
    together = await asyncio.gather(*(ask(gateway, saying("z", temperature=0)) for _ in range(4)))
    await gateway.idle()

    spared = [*again, *keyed[1:], *(one for one in together if cache_of(one) != "miss")]
    assert [cache_of(one) for one in spared][:5] == ["hit"] * 5
    late = [cache_of(one) for one in spared].count("hit") - 5  # who came when the others had been answered
    sources = [paid] * 3 + keyed[:1] * 2 + [one for one in together if cache_of(one) == "miss"] * 3
    tokens = [orjson.loads(one.body)["usage"] for one in sources]
    saved = {
        "calls": 11,
        "hits": 8,
        "hit_rate": 0.7273,
        "input_tokens": sum(one["prompt_tokens"] for one in tokens),
        "output_tokens": sum(one["completion_tokens"] for one in tokens),
        "usd": pytest.approx(sum(float(one.header("x-gateway-cost-usd") or 0) for one in sources)),
        "unpriced": 0,
    }
    assert saved["input_tokens"] > 0
    assert (await _admin(gateway, "/admin/stats"))["total"] == saved

    def told(name: str, **labels: str) -> float:
        return sum_of(metrics(gateway), f"gateway_cache_{name}", **labels)

    assert told("saved_tokens_total", kind="input") == saved["input_tokens"]
    assert told("saved_tokens_total", kind="output") == saved["output_tokens"]
    assert told("saved_usd_total") == saved["usd"]
    assert told("requests_total", layer="exact", result="hit") == 3 + late
    assert told("requests_total", layer="idempotency", result="hit") == 2
    assert told("requests_total", layer="single_flight", result="hit") == 3 - late
    assert sum_of(metrics(gateway), "gateway_tokens_total") == sum(
        orjson.loads(one.body)["usage"]["total_tokens"] for one in (paid, keyed[0], together[0])
    )
    code, output, _ = await run(capsys, gateway, "stats")
    assert code == 0
    total = output.splitlines()[-1].split()
    assert total[:4] == ["total", "11", "8", "72.7%"]
    assert int(total[4].replace(",", "")) == saved["input_tokens"] + saved["output_tokens"]


async def test_operators_see_and_forget_what_is_kept(
    start: StartGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gateway cache show`, `why` and `purge`: by key, by model and tenant, all of it; records stay, for they are promised."""
    gateway = await start(config(tmp_path))
    answers = [await ask(gateway, saying("x", model=model)) for model in ("gpt-4o", "renamed", "another")]
    await ask(gateway, saying("y"), "idempotency-key: k")
    key = answers[0].header("x-gateway-cache-key") or ""
    source = answers[0].header("x-gateway-request-id") or ""
    request = tmp_path / "request.json"
    request.write_bytes(orjson.dumps(streaming("x")))

    _, shown, _ = await run(capsys, gateway, "cache", "show")
    assert shown.splitlines()[1].split()[:2] == ["answers", "4"]
    assert (await _admin(gateway, "/admin/cache"))["kept"]["records"]["entries"] == 1
    _, why, _ = await run(capsys, gateway, "cache", "why", source)
    assert key in why
    _, why, _ = await run(capsys, gateway, "cache", "why", str(request))
    assert why.splitlines()[1] == "cache    hit, by exact"
    assert f"the answer of {source}" in why

    _, said, _ = await run(capsys, gateway, "cache", "purge", "--key", key)
    assert said == "1 answer forgotten\n"
    assert cache_of(await ask(gateway, saying("x"), "cache-control: only-if-cached")) == "miss"
    _, said, _ = await run(capsys, gateway, "cache", "purge", "--model", "renamed", "--tenant", "somebody else")
    assert said == "nothing matched\n"
    _, said, _ = await run(capsys, gateway, "cache", "purge", "--model", "renamed", "--tenant", "anonymous")
    assert said == "1 answer forgotten\n"
    assert cache_of(await ask(gateway, saying("x", model="another"))) == "hit"
    await run(capsys, gateway, "cache", "purge", "--all")
    assert cache_of(await ask(gateway, saying("x", model="another"))) == "miss"
    assert (await ask(gateway, saying("y"), "idempotency-key: k")).header("idempotent-replayed") == "true"
    _, why, _ = await run(capsys, gateway, "cache", "why", str(request))
    assert why.splitlines()[1] == "cache    miss"


async def _admin(gateway: Running, path: str) -> Any:
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(get(path, f"authorization: Bearer {ADMIN_KEY}"))
    assert answer.status == 200
    return orjson.loads(answer.body)


async def run(capsys: pytest.CaptureFixture[str], gateway: Running, *arguments: str) -> tuple[int, str, str]:
    """What a command of the CLI prints while the gateway goes on in this loop."""
    capsys.readouterr()
    where = ("--url", gateway.url, "--admin-key", ADMIN_KEY)
    code = await asyncio.to_thread(main, (*arguments, *where))
    return (code, *capsys.readouterr())


# --- strangers ---

OTHER_KEY = "other-canary-key-00998877665544332211"
SHARED_KEY = "shared-canary-key-5544332211009988776655"
TENANTS = [
    ("web", f"authorization: Bearer {WEB_KEY}"),
    ("other", f"authorization: Bearer {OTHER_KEY}"),
    ("shared", f"x-api-key: {SHARED_KEY}"),
    ("shared/web", f"x-api-key: {SHARED_KEY}\r\nx-gateway-tenant: web"),
    ("shared/other", f"x-api-key: {SHARED_KEY}\r\nx-gateway-tenant: other"),
    ("shared/a:1", f"x-api-key: {SHARED_KEY}\r\nx-gateway-tenant: a:1"),
    ("shared/a", f"x-api-key: {SHARED_KEY}\r\nx-gateway-tenant: a"),
]
CALLERS = [
    ("nobody", "accept: */*"),
    ("a", "authorization: Bearer sk-a"),
    ("b", "authorization: Bearer sk-b"),
    ("c", "x-api-key: sk-c"),
    ("a, project p", "authorization: Bearer sk-a\r\nopenai-project: p"),
    ("a, project q", "authorization: Bearer sk-a\r\nopenai-project: q"),
    ("a, organization p", "authorization: Bearer sk-a\r\nopenai-organization: p"),
]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", ["tenants", "callers"])
@pytest.mark.parametrize("headers", [(), ("idempotency-key: k",)], ids=["exact", "idempotency"])
async def test_strangers_share_nothing(
    start: StartGateway, tmp_path: Path, kind: str, headers: tuple[str, ...], state: str
) -> None:
    """Each is answered by the provider, and then finds its own: by keys, by tenants that a key names, by credentials that
    are passed through, and by the account that those are used for; one after the other, and at the same time.
    """
    strangers = TENANTS if kind == "tenants" else CALLERS
    gateway = await start(
        lambda url: config(tmp_path, {"coalesce": "always"}, state=state, **_sections(kind, url))(url)
    )

    for stream in (False, True):
        body = saying(f"what is my secret? {stream}", stream=stream)
        own = [f"{header}-{stream}" for header in headers]
        gateway.script(*["slow_first_token;seconds=0.1"] * len(strangers))
        at_once = await asyncio.gather(*(ask(gateway, body, who, *own) for _, who in strangers))
        later = [await ask(gateway, body, who, *own) for _, who in strangers]

        for (name, _), first, again in zip(strangers, at_once, later, strict=True):
            assert (cache_of(first), cache_of(again)) == ("miss", "hit"), name
            assert again.body == first.body, name
        assert len({answer.body for answer in at_once}) == len(strangers)
    assert gateway.upstream_calls() == 2 * len(strangers)


def _sections(kind: str, url: str) -> dict[str, Any]:
    if kind == "callers":
        return {"providers": {"main": {"dialect": "openai", "base_url": url}}}
    shared = {"name": "shared", "key": SHARED_KEY, "names_tenants": True}
    return {"keys": [{"name": "web", "key": WEB_KEY}, {"name": "other", "key": OTHER_KEY}, shared]}


async def test_keys_of_one_tenant_share(start: StartGateway, tmp_path: Path) -> None:
    """That is what a tenant is: what one key has paid for, the other need not pay."""
    keys = [{"name": "web", "key": WEB_KEY, "tenant": "t"}, {"name": "nightly", "key": NIGHTLY_KEY, "tenant": "t"}]
    gateway = await start(config(tmp_path, keys=keys))
    found = [await ask(gateway, saying("x"), f"authorization: Bearer {key}") for key in (WEB_KEY, NIGHTLY_KEY)]

    assert [cache_of(answer) for answer in found] == ["miss", "hit"]


async def test_what_two_parsers_may_read_differently_is_asked_by_itself(start: StartGateway, tmp_path: Path) -> None:
    """The provider gets the client's bytes: a key that stands there twice, or a number that we would round."""
    gateway = await start(config(tmp_path))
    clear = b'{"model":"gpt-4o","messages":[{"role":"user","content":"x"}],"seed":%b}'
    bodies = [clear % seed for seed in (b"1", b'2,"seed":1', b"18446744073709551616", b"18446744073709551617")]
    answers = [await ask(gateway, body) for body in bodies for _ in range(2)]

    assert [cache_of(answer) for answer in answers] == ["miss", "hit"] * 4
    assert gateway.upstream_calls() == 4
