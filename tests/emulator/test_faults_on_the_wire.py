"""Each fault as a client meets it, over a real socket."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig, parse_script_entry
from tests.emulator.conftest import (
    FakeClock,
    Seen,
    StartServer,
    chat_body,
    connect,
    dechunk,
    events,
    exchange,
    raw_request,
    until,
)


async def meet(server: EmulatorServer, fault: str, *, stream: bool = False, **extra: Any) -> Seen:
    server.emulator.faults.script("*", [parse_script_entry(fault)])
    return await exchange(server, chat_body(stream=stream, **extra))


def contents(seen: Seen) -> list[str]:
    """The non-empty content deltas of a chat stream."""
    chunks = [
        orjson.loads(data) for data in events(dechunk(seen.body)) if data.startswith(b"{") and b"broken" not in data
    ]
    deltas = [choice["delta"].get("content") for chunk in chunks if "choices" in chunk for choice in chunk["choices"]]
    return [delta for delta in deltas if delta]


@pytest.mark.parametrize(
    ("fault", "status", "field", "value"),
    [
        ("rate_limit;seconds=3", 429, "type", "requests"),
        ("rate_limit_bare", 429, "code", "rate_limit_exceeded"),
        ("quota", 429, "code", "insufficient_quota"),
        ("e401", 401, "code", "invalid_api_key"),
        ("e403", 403, "code", "model_not_found"),
        ("e404", 404, "code", "model_not_found"),
        ("e500", 500, "type", "server_error"),
        ("e503", 503, "code", "server_is_overloaded"),
        ("e529", 529, "type", "overloaded_error"),
        ("content_filter", 400, "code", "content_policy_violation"),
        ("context_length", 400, "code", "context_length_exceeded"),
        ("error_in_200", 200, "code", "server_is_overloaded"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_plain_json(
    start_server: StartServer, fault: str, status: int, field: str, value: str, stream: bool
) -> None:
    """Status and error object, for streams too, with the ids every answer has."""
    seen = await meet(await start_server(), fault, stream=stream)

    assert seen.status == status
    assert orjson.loads(seen.body)["error"][field] == value
    assert b"content-type: application/json" in seen.head
    assert b"x-request-id: req_" in seen.head


async def test_a_scripted_rate_limit_hints_and_a_bare_one_does_not(start_server: StartServer) -> None:
    """The two 429s differ in every hint."""
    server = await start_server(EmulatorConfig(rpm=100))

    hinted = await meet(server, "rate_limit;seconds=3")
    bare = await meet(server, "rate_limit_bare")

    assert b"retry-after: 3\r\n" in hinted.head
    assert b"retry-after-ms: 3000" in hinted.head
    assert b"x-ratelimit-limit-requests: 100" in hinted.head
    assert b"try again in 3s" in hinted.body
    assert b"retry-after" not in bare.head
    assert b"x-ratelimit" not in bare.head
    assert b"try again" not in bare.body


@pytest.mark.parametrize(
    ("dialect", "fault", "status", "error"),
    [
        ("anthropic", "quota", 400, {"type": "invalid_request_error"}),
        ("anthropic", "rate_limit", 429, {"type": "rate_limit_error"}),
        ("anthropic", "e529", 529, {"type": "overloaded_error", "message": "Overloaded"}),
        ("anthropic", "e500", 500, {"type": "api_error"}),
        ("azure", "e500", 500, {"code": "InternalServerError"}),
        ("azure", "rate_limit", 429, {"code": "429"}),
        ("azure", "content_filter", 400, {"code": "content_filter", "param": "prompt", "type": None}),
    ],
)
async def test_a_dialect_has_its_own_words(
    start_server: StartServer, dialect: str, fault: str, status: int, error: dict[str, Any]
) -> None:
    """Types and codes are the provider's."""
    seen = await meet(await start_server(EmulatorConfig(dialect=dialect)), fault)

    assert seen.status == status
    assert orjson.loads(seen.body)["error"].items() >= error.items()


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [("rate_limit", 86_400), ("rate_limit", 10**9), ("e503", 0), ("e503", 86_400), ("e503", 10**9), ("e529", 10**9)],
)
async def test_a_wait_can_be_absurd(start_server: StartServer, kind: str, seconds: int) -> None:
    """A day, thirty years, or no time at all: the header says it as it is."""
    seen = await meet(await start_server(), f"{kind};seconds={seconds}")

    assert f"retry-after: {seconds}\r\n".encode() in seen.head + b"\r\n"


@pytest.mark.parametrize("kind", ["e401", "e403", "e404"])
async def test_who_is_turned_away_hears_nothing_of_limits(start_server: StartServer, kind: str) -> None:
    """Nothing is counted for a key or a model that is not served."""
    seen = await meet(await start_server(EmulatorConfig(rpm=100)), kind)

    assert b"x-ratelimit" not in seen.head


async def test_html502_comes_from_something_in_front(start_server: StartServer) -> None:
    """HTML, and none of the provider's headers."""
    seen = await meet(await start_server(EmulatorConfig(rpm=100)), "html502")

    assert seen.status == 502
    assert b"content-type: text/html" in seen.head
    assert b"x-request-id" not in seen.head
    assert b"x-ratelimit" not in seen.head
    assert seen.body.startswith(b"<!DOCTYPE html>")


async def test_reset_sends_a_rst_before_any_byte(start_server: StartServer) -> None:
    """The client sees ECONNRESET and nothing else; no departure of the peer is counted."""
    server = await start_server()

    seen = await meet(server, "reset")

    assert seen == Seen(b"", is_reset=True)
    assert server.emulator.stats.cancelled == 0
    assert server.emulator.stats.faults == {"reset": 1}


async def test_reset_can_come_in_the_middle_of_a_stream(start_server: StartServer) -> None:
    """Some chunks may arrive, the end never does."""
    seen = await meet(await start_server(), "reset;after_chunks=3", stream=True)

    assert seen.is_reset
    assert b"[DONE]" not in seen.data


async def test_silence_never_answers_and_notices_when_the_peer_leaves(start_server: StartServer) -> None:
    """Accepted, counted as active, and cancelled by the peer the moment it closes."""
    server = await start_server()
    stats = server.emulator.stats
    server.emulator.faults.script("*", [parse_script_entry("silence")])
    reader, writer = await connect(server)
    writer.write(raw_request("/v1/chat/completions", chat_body()))
    await until(lambda: stats.faults["silence"] == 1)
    assert stats.active == 1

    writer.close()
    await until(lambda: stats.active == 0)

    assert await reader.read() == b""
    assert stats.cancelled == 1
    assert stats.departures[0]["model"] == "gpt-4o"
    assert not stats.statuses


async def test_slow_first_token_waits_before_the_first_byte(start_server: StartServer, clock: FakeClock) -> None:
    """Its seconds come on top of the time to first token."""
    server = await start_server(EmulatorConfig(ttft_s=0.5), now=clock.now, sleep=clock.sleep)

    seen = await meet(server, "slow_first_token;seconds=7")

    assert seen.status == 200
    assert clock.slept == [7.5]


@pytest.mark.parametrize("chunks", [0, 1, 3])
async def test_cut_closes_a_stream_without_an_end(start_server: StartServer, chunks: int) -> None:
    """Exactly so many tokens, then the connection ends inside the chunked body."""
    seen = await meet(await start_server(), f"cut;after_chunks={chunks}", stream=True)

    assert seen.status == 200
    assert len(contents(seen)) == chunks
    assert not seen.body.endswith(b"0\r\n\r\n")
    assert b'finish_reason":"' not in seen.body


async def test_cut_closes_a_whole_answer_in_its_middle(start_server: StartServer) -> None:
    """Content-Length promises more than comes."""
    seen = await meet(await start_server(), "cut")

    assert 0 < len(seen.body) < promised(seen)


async def test_stall_keeps_the_connection_open_and_says_nothing_more(start_server: StartServer) -> None:
    """After its chunks nothing comes; the peer's leaving ends it."""
    server = await start_server()
    stats = server.emulator.stats
    server.emulator.faults.script("*", [parse_script_entry("stall;after_chunks=1")])
    reader, writer = await connect(server)
    writer.write(raw_request("/v1/chat/completions", chat_body(stream=True)))

    seen = await reader.readuntil(b'"content":"emulated"')
    await reader.readuntil(b"\r\n")
    for _ in range(20):
        await asyncio.sleep(0)

    assert b"200 OK" in seen
    assert stats.active == 1
    assert not reader.at_eof()
    writer.close()
    await until(lambda: stats.cancelled == 1)


@pytest.mark.parametrize(
    ("fault", "gaps"),
    [("drip;after_chunks=57;seconds=2", [2.0, 2.0, 2.0]), ("fade;after_chunks=57;seconds=0.5", [0.5, 1.0, 2.0])],
)
async def test_a_drip_sends_everything_slowly(
    start_server: StartServer, clock: FakeClock, fault: str, gaps: list[float]
) -> None:
    """From its chunk on one at a time, at even or at growing distances, and the proper end."""
    server = await start_server(now=clock.now, sleep=clock.sleep)

    seen = await meet(server, fault, stream=True)

    assert clock.slept == gaps
    assert len(contents(seen)) == 60
    assert events(dechunk(seen.body))[-1] == b"[DONE]"


async def test_a_whole_answer_drips_in_pieces(start_server: StartServer, clock: FakeClock) -> None:
    """Sixteen of them, two at once."""
    server = await start_server(now=clock.now, sleep=clock.sleep)

    seen = await meet(server, "drip;seconds=3")

    assert clock.slept == [3.0] * 14
    assert len(seen.body) == promised(seen)
    assert is_json(seen.body)


async def test_opening_error_comes_after_the_role(start_server: StartServer) -> None:
    """Nothing of the answer was said, but the stream has begun."""
    seen = await meet(await start_server(), "opening_error", stream=True)

    opening, error = map(orjson.loads, events(dechunk(seen.body)))
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert error["error"]["code"] == "server_is_overloaded"
    assert seen.body.endswith(b"0\r\n\r\n")


async def test_raw_error_is_no_event(start_server: StartServer) -> None:
    """Bare JSON where an event should be, then a clean end."""
    seen = await meet(await start_server(), "raw_error;after_chunks=3", stream=True)

    tail = dechunk(seen.body).rpartition(b"\n\n")[2]
    assert orjson.loads(tail)["error"]["code"] == "server_is_overloaded"
    assert len(contents(seen)) == 3
    assert seen.body.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("kind", ["in_band_error", "opening_error", "raw_error"])
async def test_an_error_in_a_stream_is_an_error_in_a_200_otherwise(start_server: StartServer, kind: str) -> None:
    """A whole answer has no events."""
    seen = await meet(await start_server(), kind)

    assert seen.status == 200
    assert orjson.loads(seen.body)["error"]["code"] == "server_is_overloaded"


async def test_malformed_breaks_one_chunk_and_goes_on(start_server: StartServer) -> None:
    """One event is not JSON; the stream still ends properly."""
    seen = await meet(await start_server(), "malformed;after_chunks=1", stream=True)

    data = events(dechunk(seen.body))
    broken = [index for index, each in enumerate(data) if each.startswith(b"{") and not is_json(each)]
    assert broken == [2]  # the role, one token, then the broken one
    assert data[-1] == b"[DONE]"
    assert len(contents(seen)) == 60


async def test_malformed_breaks_a_whole_answer(start_server: StartServer) -> None:
    """The right length of the wrong JSON."""
    seen = await meet(await start_server(), "malformed")

    assert len(seen.body) == promised(seen)
    assert not is_json(seen.body)


@pytest.mark.parametrize(("fault", "chunks"), [("in_band_error", 0), ("in_band_error;after_chunks=2", 2)])
async def test_in_band_error_is_an_event_and_then_the_end(start_server: StartServer, fault: str, chunks: int) -> None:
    """First or after some tokens; the chunked body ends cleanly, without [DONE]."""
    seen = await meet(await start_server(), fault, stream=True)

    data = events(dechunk(seen.body))
    assert orjson.loads(data[-1])["error"]["code"] == "server_is_overloaded"
    assert len(contents(seen)) == chunks
    assert len(data) == (chunks + 2 if chunks else 1)
    assert seen.body.endswith(b"0\r\n\r\n")


async def test_in_band_error_of_a_response_is_a_named_event(start_server: StartServer) -> None:
    """The Responses stream nests the error under its own key."""
    server = await start_server()
    server.emulator.faults.script("*", [parse_script_entry("in_band_error")])

    seen = await exchange(server, {"model": "gpt-4o", "input": "hi", "stream": True}, "/v1/responses")

    content = dechunk(seen.body)
    assert content.startswith(b"event: error\n")
    event = orjson.loads(events(content)[0])
    assert (event["type"], event["error"]["code"]) == ("error", "server_is_overloaded")


@pytest.mark.parametrize("stream", [False, True])
async def test_truncated_sends_less_than_it_promised(start_server: StartServer, stream: bool) -> None:
    """Framed by Content-Length, then closed early."""
    seen = await meet(await start_server(), "truncated", stream=stream)

    assert 0 < len(seen.body) < promised(seen)


async def test_wrong_length_leaves_bytes_on_a_kept_connection(start_server: StartServer) -> None:
    """More bytes than promised, and the next request on the connection is still served."""
    server = await start_server()
    server.emulator.faults.script("*", [parse_script_entry("wrong_length")])
    reader, writer = await connect(server)
    writer.write(raw_request("/v1/chat/completions", chat_body(), close=False))
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(promised(Seen(head, is_reset=False)))

    extra = await reader.readexactly(16)
    writer.write(raw_request("/v1/chat/completions", chat_body()))

    assert is_json(body + extra)
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
    writer.close()


async def test_empty_200_has_no_body(start_server: StartServer) -> None:
    """A success that says nothing."""
    seen = await meet(await start_server(), "empty_200")

    assert (seen.status, seen.body, promised(seen)) == (200, b"", 0)


async def test_no_done_ends_cleanly_without_a_terminal_event(start_server: StartServer) -> None:
    """All tokens, a proper end of the body, and neither finish_reason nor [DONE]."""
    seen = await meet(await start_server(), "no_done", stream=True)

    assert len(contents(seen)) == 60
    assert seen.body.endswith(b"0\r\n\r\n")
    assert b"[DONE]" not in seen.body
    assert b'"finish_reason":"' not in seen.body


@pytest.mark.parametrize("stream", [False, True])
async def test_refusal_is_a_finish_reason(start_server: StartServer, stream: bool) -> None:
    """A 200 that ends with content_filter."""
    seen = await meet(await start_server(), "refusal", stream=stream)

    assert seen.status == 200
    assert b'"finish_reason":"content_filter"' in seen.body
    assert b'"finish_reason":"stop"' not in seen.body


async def test_no_fault_leaves_an_error_in_the_log(start_server: StartServer, caplog: pytest.LogCaptureFixture) -> None:
    """Broken on purpose is not broken."""
    server = await start_server()

    for fault in ("reset", "cut", "truncated", "wrong_length", "in_band_error", "raw_error", "no_done"):
        await meet(server, fault)
        await meet(server, fault, stream=True)

    assert caplog.records == []
    assert server.emulator.stats.active == 0


def promised(seen: Seen) -> int:
    """The Content-Length."""
    return int(seen.head.partition(b"content-length: ")[2].partition(b"\r\n")[0])


def is_json(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True
