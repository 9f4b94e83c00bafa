"""Streams that wait: what their clients hear meanwhile, and how everything ends that has begun with a comment.

The provider is scripted and time is moved by hand; the sockets, the pipeline and the SDK are real.
"""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pytest
from openai import APIError, AsyncOpenAI

from gateway.core.call import Call
from gateway.core.edge import Edge
from gateway.core.http.server import HttpServer, bind
from gateway.core.intake import InFlight
from gateway.core.snapshot import Key, Policies
from gateway.core.types import LANES
from gateway.core.waiting import KeepAlive, Shedding, waiting_for
from gateway.routes import build_front
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Peer, chat, config_of, connect, post, until
from tests.loopback import plain_http
from tests.support.flow import ANSWER, JSON, SSE, Bench, Broken, Recorder, Script, ScriptedUpstream

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
EVENT = b'data: {"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
RESPONSE_EVENT = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"hi"}\n\n'
RESPONSE_END = b'event: response.completed\ndata: {"type":"response.completed","response":{"status":"completed"}}\n\n'
KEEPALIVE_S = 10.0
Describe = Callable[[Call], bytes]


@dataclass
class EdgeRecorder(Recorder):
    """A meter that also keeps what the edge refuses."""

    refusals: list[tuple[str, int, str | None]] = field(default_factory=list)

    def refused(self, request_id: str, path: str, status: int, code: str | None) -> None:
        self.refusals.append((path, status, code))


@dataclass
class Front:
    """The edge of a gateway on a port, in front of scripted upstreams."""

    bench: Bench
    meter: EdgeRecorder
    server: HttpServer
    inflight: InFlight
    keepalive: KeepAlive
    overload: Shedding

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def connections(self) -> list[Any]:
        """The client connections."""
        return list(self.server._state.connections)

    def sdk(self) -> AsyncOpenAI:
        """The openai SDK, set to give up at once."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="sk-callers", max_retries=0, http_client=plain_http())

    async def waiting(self, count: int = 1) -> None:
        """Wait until so many streams wait for their first byte at the provider."""
        upstreams = self.bench.upstreams
        await until(lambda: len(self.keepalive) == count and sum(len(upstream.sent) for upstream in upstreams) >= count)

    def pass_time(self, seconds: float = KEEPALIVE_S) -> None:
        """Let time pass, and housekeeping look around."""
        self.bench.clock.now += seconds
        self.keepalive.sweep(self.bench.clock.now)
        self.bench.watch.sweep(self.bench.clock.now)

    async def settled(self) -> str:
        """The outcome of the one call."""
        await until(lambda: len(self.meter.accounts) == 1)
        return self.bench.account.outcome


def saying(*texts: bytes) -> Describe:
    """Tells the calls that wait one text after the other, then whom they wait for."""
    left = list(texts)
    return lambda call: left.pop(0) if left else waiting_for(call)


@asynccontextmanager
async def front(
    *scripts: Script, describe: Describe = waiting_for, keys: dict[bytes, Key] | None = None
) -> AsyncIterator[Front]:
    """Wired as the gateway is, with `describe` in the place of the delay queue's."""
    meter = EdgeRecorder()
    bench = Bench([ScriptedUpstream(*scripts)], meter=meter)
    policies = Policies(replace(bench.call().route.policy, keys=keys or {}, lane_deadline_s=dict.fromkeys(LANES, 30.0)))
    inflight, overload, keepalive = InFlight(), Shedding(), KeepAlive(describe)
    edge = Edge(bench.pipeline, policies, meter, bench.clock, inflight, overload, keepalive)
    server = HttpServer(build_front(edge, policies, [], meter), bind("127.0.0.1", 0), meter.refused)
    await server.start()
    try:
        yield Front(bench, meter, server, inflight, keepalive, overload)
    finally:
        await server.stop()


def ask(path: str = CHAT, *headers: str, stream: bool = True, version: bytes = b"1.1") -> bytes:
    """A request to the scripted model."""
    return post(path, {"model": "m", "stream": stream}, *headers).replace(b"HTTP/1.1", b"HTTP/" + version)


def slow(gate: asyncio.Event, *chunks: bytes | Exception, status: int = 200, kind: tuple[bytes, bytes] = SSE) -> Script:
    """A provider that thinks until the gate opens."""
    return Script(status, (kind,), [gate, *chunks])


async def head_of(peer: Peer) -> tuple[bytes, dict[bytes, bytes]]:
    """The status line and headers of an answer that has only begun."""
    async with asyncio.timeout(10):
        line, *lines = (await peer.reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    return line, {name: value for name, _, value in (each.partition(b": ") for each in lines)}


async def chunk_of(peer: Peer) -> bytes:
    """The next chunk of a chunked body; empty at its end."""
    async with asyncio.timeout(10):
        size = int(await peer.reader.readline(), 16)
        return (await peer.reader.readexactly(size + 2))[:-2]


async def body_of(peer: Peer) -> bytes:
    """The rest of a chunked body."""
    parts = []
    while part := await chunk_of(peer):
        parts.append(part)
    return b"".join(parts)


async def kept_alive_until(peer: Peer, front: Front, request: bytes, gate: asyncio.Event) -> bytes:
    """Send the request, be kept alive once, let the provider go on; returns the body behind the comment."""
    peer.send(request)
    await front.waiting()
    front.pass_time()
    await head_of(peer)
    assert (await chunk_of(peer)).startswith(b": ")
    gate.set()
    return await body_of(peer)


def error_of(event: bytes) -> dict[str, Any]:
    """The error object of a chat stream's error event, checked to be the only event and of OpenAI's shape."""
    assert event.startswith(b"data: ")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    found: dict[str, Any] = orjson.loads(event[6:])["error"]
    return found


async def test_a_stream_that_waits_is_answered_with_comments() -> None:
    """Nothing before 10 s; then the head, a comment, another one every 10 s, and at last the provider's own bytes."""
    gate = asyncio.Event()
    words = saying(b"queued position=3 eta_ms=4200")
    async with (
        front(slow(gate, EVENT, DONE), slow(asyncio.Event()), describe=words) as gateway,
        connect(gateway.url) as peer,
    ):
        peer.send(ask())
        await gateway.waiting()
        gateway.pass_time(9.9)
        assert not gateway.connections[0].cycle.response_started
        gateway.pass_time(0.1)
        line, headers = await head_of(peer)
        heard = [await chunk_of(peer)]
        for _ in range(2):
            gateway.pass_time()
            heard.append(await chunk_of(peer))
        gate.set()
        body = await body_of(peer)
        outcome = await gateway.settled()
        peer.send(ask())
        await gateway.waiting()

    assert line == b"HTTP/1.1 200 OK"
    assert heard == [b": queued position=3 eta_ms=4200\n\n", b": waiting for p0/m\n\n", b": waiting for p0/m\n\n"]
    assert body == EVENT + DONE
    assert outcome == "ok"
    assert headers.pop(b"date")
    assert headers.pop(b"x-request-id") == headers.pop(b"x-gateway-request-id")
    assert headers == {
        b"content-type": b"text/event-stream; charset=utf-8",
        b"cache-control": b"no-cache",
        b"transfer-encoding": b"chunked",
    }


async def test_the_clients_own_request_id_is_in_the_head() -> None:
    """It is known from the start, unlike the target and the attempts."""
    gate = asyncio.Event()
    async with front(slow(gate, EVENT, DONE)) as gateway, connect(gateway.url) as peer:
        peer.send(ask(CHAT, "x-request-id: mine-1"))
        await gateway.waiting()
        gateway.pass_time()
        _, headers = await head_of(peer)

    assert (headers[b"x-request-id"], headers[b"x-gateway-request-id"]) == (b"mine-1", b"mine-1")


async def test_an_answer_in_time_is_as_ever() -> None:
    """Its call is not thought of any more once it has its first event, however long the rest takes."""
    gate, rest = asyncio.Event(), asyncio.Event()
    async with front(Script(200, (SSE,), [gate, EVENT, rest, DONE])) as gateway, connect(gateway.url) as peer:
        peer.send(ask())
        await gateway.waiting()
        gateway.pass_time(9.0)
        gate.set()
        line, headers = await head_of(peer)
        first = await chunk_of(peer)
        assert len(gateway.keepalive) == 0
        gateway.pass_time(60.0)
        rest.set()
        body = await body_of(peer)

    assert (line, headers[b"x-gateway-target"], first + body) == (b"HTTP/1.1 200 OK", b"p0/m", EVENT + DONE)


@pytest.mark.parametrize(
    ("path", "stream"),
    [(CHAT, False), ("/v1/embeddings", True), ("/v1/moderations", True), ("/v1/audio/speech", True)],
)
async def test_only_streams_of_events_are_kept_alive(path: str, stream: bool) -> None:
    """What is no stream has no place for a comment, whatever its body says."""
    gate = asyncio.Event()
    async with front(slow(gate, ANSWER, kind=JSON)) as gateway, connect(gateway.url) as peer:
        peer.send(ask(path, stream=stream))
        await until(lambda: len(gateway.bench.upstreams[0].sent) == 1)
        assert len(gateway.keepalive) == 0
        gate.set()
        answer = await peer.response()

    assert (answer.status, answer.body) == (200, ANSWER)


async def test_a_client_of_http_1_0_gets_the_bare_bytes() -> None:
    """It does not know chunks: the end of the connection is the end of the body."""
    gate = asyncio.Event()
    async with front(slow(gate, EVENT, DONE)) as gateway, connect(gateway.url) as peer:
        peer.send(ask(CHAT, "connection: keep-alive", version=b"1.0"))
        await gateway.waiting()
        gateway.pass_time()
        _, headers = await head_of(peer)
        gateway.pass_time()
        gate.set()
        body = await peer.rest()

    assert b"transfer-encoding" not in headers
    assert headers[b"connection"] == b"close"
    assert body == b": waiting for p0/m\n\n" * 2 + EVENT + DONE


async def test_a_failure_becomes_an_error_event() -> None:
    """With the code and type that it would have had; no [DONE], but a proper end, and the connection lives."""
    gate = asyncio.Event()
    async with (
        front(slow(gate, Broken("reset")), Script(200, (JSON,), [ANSWER])) as gateway,
        connect(gateway.url) as peer,
    ):
        error = error_of(await kept_alive_until(peer, gateway, ask(), gate))
        next_answer = await peer.exchange(ask(stream=False))

    assert (error["code"], error["type"], error["param"]) == ("no_target_available", "server_error", None)
    assert "p0/m" in error["message"]
    assert next_answer.status == 200
    assert [account.outcome for account in gateway.meter.accounts] == ["no_target_available", "ok"]


def events_of(raw: bytes) -> list[dict[str, Any]]:
    """The data of these events."""
    return [orjson.loads(event.partition(b"data: ")[2]) for event in raw.removesuffix(b"\n\n").split(b"\n\n")]


async def test_a_responses_stream_gets_its_own_kind_of_error_event() -> None:
    """A named event with a flat error, and the response as failed, which is all that Codex reads."""
    gate = asyncio.Event()
    async with front(slow(gate, Broken("reset"))) as gateway, connect(gateway.url) as peer:
        event = await kept_alive_until(peer, gateway, ask(RESPONSES), gate)

    error, failed = events_of(event)
    assert failed["response"]["error"] == {"code": "no_target_available", "message": error["message"]}
    assert "p0/m" in error.pop("message")
    assert error == {"type": "error", "code": "no_target_available", "param": None, "sequence_number": 0}


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_providers_own_error_becomes_an_event(path: str) -> None:
    """Its error object is told as it is; what cannot be read as one is quoted."""
    theirs = {
        "message": "too long",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    told = []
    for body in (orjson.dumps({"error": theirs}, option=orjson.OPT_INDENT_2), b"<html>\nteapot</html>"):
        gate = asyncio.Event()
        async with front(slow(gate, body, status=400, kind=JSON)) as gateway, connect(gateway.url) as peer:
            event = await kept_alive_until(peer, gateway, ask(path), gate)
            told.append(events_of(event))
            assert (await gateway.settled()) != "ok"

    if path == CHAT:
        assert told[0] == [{"error": theirs}]
        message = told[1][0]["error"].pop("message")
        assert told[1][0] == {"error": {"type": "invalid_request_error", "param": None, "code": None}}
    else:
        assert told[0][0] == {**theirs, "type": "error", "sequence_number": 0}
        assert told[0][1]["response"]["error"] == {"code": "context_length_exceeded", "message": "too long"}
        message = told[1][0].pop("message")
        assert told[1][0] == {"type": "error", "code": "invalid_request_error", "param": None, "sequence_number": 0}
    assert message == "The provider answered with status 400: <html>\nteapot</html>"


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (CHAT, b'{\r\n "id": "1",\n "choices": [{}]\n}\n', b'data: { "id": "1", "choices": [{}]}\n\n' + DONE),
        (
            RESPONSES,
            b'{"id": "1",\n"status": "incomplete"}',
            b"event: response.incomplete\n"
            b'data: {"type":"response.incomplete","sequence_number":0,"response":{"id": "1","status": "incomplete"}}\n\n',
        ),
        (
            RESPONSES,
            b'{"id": "1"}',
            b'event: response.completed\ndata: {"type":"response.completed","sequence_number":0,"response":{"id": "1"}}\n\n',
        ),
        ("/v1/images/generations", b'{"data": []}', b'data: {"data": []}\n\n'),
    ],
)
async def test_an_answer_that_is_no_stream_becomes_one_event(path: str, body: bytes, expected: bytes) -> None:
    """Some providers ignore `stream`: the client has been promised events."""
    gate = asyncio.Event()
    async with front(slow(gate, body, kind=JSON)) as gateway, connect(gateway.url) as peer:
        assert await kept_alive_until(peer, gateway, ask(path), gate) == expected


async def test_an_answer_that_is_no_stream_and_too_large_to_be_held_becomes_one_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is put on one line on its way through."""
    monkeypatch.setattr("gateway.core.answers.WHOLE_LIMIT", 4)
    gate = asyncio.Event()
    script = slow(gate, b'{\n"id": ', b'"1"', b"\n}\n", kind=JSON)
    async with front(script) as gateway, connect(gateway.url) as peer:
        assert await kept_alive_until(peer, gateway, ask(), gate) == b'data: {"id": "1"}\n\n' + DONE


async def test_a_deadline_that_passes_is_told_by_an_event() -> None:
    """The caller's own, while the provider is silent."""
    async with front(slow(asyncio.Event())) as gateway, connect(gateway.url) as peer:
        peer.send(ask(CHAT, "x-gateway-deadline-ms: 15000"))
        await gateway.waiting()
        gateway.pass_time()
        await head_of(peer)
        await chunk_of(peer)
        gateway.pass_time(5.0)
        error = error_of(await body_of(peer))

    assert (error["code"], error["type"]) == ("deadline_exceeded", "timeout_error")


async def test_a_defect_is_told_by_an_event(caplog: pytest.LogCaptureFixture) -> None:
    """What went wrong stays in the log."""
    gate = asyncio.Event()
    async with front(slow(gate, ZeroDivisionError("a defect"))) as gateway, connect(gateway.url) as peer:
        error = error_of(await kept_alive_until(peer, gateway, ask(), gate))

    assert error["code"] == "internal_error"
    assert "a defect" not in error["message"]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
    caplog.clear()


@pytest.mark.parametrize(
    ("path", "first", "code"),
    [(CHAT, EVENT, b'"code":"stream_interrupted"'), (RESPONSES, RESPONSE_EVENT, b"event: error\n")],
)
async def test_a_stream_that_breaks_after_comments_ends_as_any_other(path: str, first: bytes, code: bytes) -> None:
    """With the relay's error event behind what came before."""
    gate = asyncio.Event()
    async with front(slow(gate, first, Broken("reset"))) as gateway, connect(gateway.url) as peer:
        body = await kept_alive_until(peer, gateway, ask(path), gate)

    assert body.startswith(first)
    assert code in body
    assert b"[DONE]" not in body


async def test_a_defect_behind_the_first_event_breaks_the_connection_off(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody knows where in an event it happened, and a body cut short must not look complete."""
    gate = asyncio.Event()
    async with front(slow(gate, EVENT, ZeroDivisionError("a defect"))) as gateway, connect(gateway.url) as peer:
        peer.send(ask())
        await gateway.waiting()
        gateway.pass_time()
        await head_of(peer)
        gate.set()
        rest = await peer.rest()

    assert not rest.endswith(b"0\r\n\r\n")
    assert b"internal_error" not in rest
    caplog.clear()


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_shutdown_ends_it_with_an_error_event(version: bytes, has_begun: bool) -> None:
    """Whether the provider's first event had come or not."""
    gate = asyncio.Event()
    script = Script(200, (SSE,), [gate, EVENT, asyncio.Event()])
    async with front(script) as gateway, connect(gateway.url) as peer:
        peer.send(ask(version=version))
        await gateway.waiting()
        gateway.pass_time()
        await head_of(peer)
        if has_begun:
            gate.set()
            await peer.reader.readuntil(EVENT)
        gateway.inflight.draining = True
        gateway.inflight.abort()
        await until(lambda: len(gateway.inflight) == 0)
        await gateway.server.stop()
        rest = await peer.rest()
        outcome = await gateway.settled()

    assert b'"code":"shutting_down"' in rest
    assert rest.endswith(b"}\n\n\r\n0\r\n\r\n" if version == b"1.1" else b"}\n\n")
    assert outcome == "shutdown"
    assert script.closed


async def test_a_client_that_leaves_cancels_its_call() -> None:
    """As before its first comment; and it is not kept alive any further."""
    script = slow(asyncio.Event())
    async with front(script) as gateway, connect(gateway.url) as peer:
        peer.send(ask())
        await gateway.waiting()
        gateway.pass_time()
        await head_of(peer)
        peer.close()
        outcome = await gateway.settled()
        await until(lambda: len(gateway.inflight) == 0)

        assert (outcome, len(gateway.keepalive)) == ("client_gone", 0)
        assert script.closed


@pytest.mark.parametrize("end", ["answered", "failed", "gone"])
async def test_a_comment_that_comes_too_late_is_not_sent(end: str) -> None:
    """Whoever still has a way to send one learns that it is over."""
    gate, senders = asyncio.Event(), list[Callable[[bytes], bool] | None]()

    def describe(call: Call) -> bytes:
        senders.append(call.comment)
        return b"still here"

    script = slow(gate, Broken("reset") if end == "failed" else EVENT, DONE)
    async with front(script, describe=describe) as gateway, connect(gateway.url) as peer:
        peer.send(ask())
        await gateway.waiting()
        gateway.pass_time()
        await head_of(peer)
        await chunk_of(peer)
        if end == "gone":
            peer.close()
        else:
            gate.set()
            await body_of(peer)
        await until(lambda: len(gateway.inflight) == 0)
        (send,) = senders
        assert send is not None
        assert send(b"late") is False


async def test_comments_do_not_pile_up_for_a_client_that_does_not_read() -> None:
    """It has all that the sockets take, and a few in the gateway; when it reads on, it gets its answer."""
    gate = asyncio.Event()
    words = saying(*[b"x" * 8000] * 2000)
    async with front(slow(gate, EVENT, DONE), describe=words) as gateway, connect(gateway.url) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a stream's transport is read from, too
        peer.send(ask())
        await gateway.waiting()
        (connection,) = gateway.connections
        for number in range(1, 2001):
            gateway.keepalive.sweep(gateway.bench.clock.now + number * KEEPALIVE_S)
            await asyncio.sleep(0)
        buffered = connection.transport.get_write_buffer_size()
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
        gate.set()
        await head_of(peer)
        body = await body_of(peer)

    assert buffered <= 2 * 8100
    assert body.endswith(b"\n\n" + EVENT + DONE)
    assert body.count(b": x") < 2000


async def test_a_request_behind_it_waits_for_its_turn() -> None:
    """Comments belong to the first answer of a pipeline."""
    gate = asyncio.Event()
    script = Script(200, (JSON,), [b'{"second": 1, "choices": [{}]}'])
    async with front(slow(gate, EVENT, DONE), script) as gateway, connect(gateway.url) as peer:
        peer.send(ask() + ask(stream=False))
        await gateway.waiting()
        gateway.pass_time()
        await head_of(peer)
        assert (await chunk_of(peer)).startswith(b": ")
        gate.set()
        assert await body_of(peer) == EVENT + DONE
        second = await peer.response()

    assert second.body == b'{"second": 1, "choices": [{}]}'


@pytest.mark.parametrize("fails", [False, True])
async def test_the_sdk_reads_a_chat_that_was_kept_alive(fails: bool) -> None:
    """It skips the comments, and raises on the error event."""
    gate = asyncio.Event()
    script = slow(gate, Broken("reset")) if fails else slow(gate, EVENT, EVENT, DONE)
    async with front(script) as gateway, gateway.sdk() as sdk:
        request = sdk.chat.completions.create(model="m", stream=True, messages=[{"role": "user", "content": "hi"}])
        asking = asyncio.create_task(request)
        await gateway.waiting()
        for _ in range(3):
            gateway.pass_time()
        stream = await asking
        gateway.pass_time()
        gate.set()
        if fails:
            with pytest.raises(APIError) as raised:
                _ = [chunk async for chunk in stream]
            assert raised.value.code == "no_target_available"
        else:
            assert [chunk.choices[0].delta.content async for chunk in stream] == ["hi", "hi"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("header", ["x-stainless-lang: go", "user-agent: OpenAI/Go 3.40.0", "x-stainless-lang: python"])
async def test_the_go_sdk_gets_comments_without_an_empty_line(path: str, header: str) -> None:
    """It takes that for an event without data, and gives up (openai-go before 3.99); others need it."""
    gate, end = asyncio.Event(), b"\n\n" if "python" in header else b"\n"
    async with front(slow(gate, EVENT, DONE)) as gateway, connect(gateway.url) as peer:
        peer.send(ask(path, header))
        await gateway.waiting()
        for _ in range(2):
            gateway.pass_time()
        await head_of(peer)
        assert [await chunk_of(peer), await chunk_of(peer)] == [b": waiting for p0/m" + end] * 2
        gate.set()
        assert (await body_of(peer)).startswith(b"data: ")


@pytest.mark.parametrize("fails", [False, True])
async def test_the_sdk_reads_a_response_that_was_kept_alive(fails: bool) -> None:
    """With the events of the Responses API."""
    gate = asyncio.Event()
    script = slow(gate, Broken("reset")) if fails else slow(gate, RESPONSE_EVENT, RESPONSE_END)
    async with front(script) as gateway, gateway.sdk() as sdk:
        asking = asyncio.create_task(sdk.responses.create(model="m", stream=True, input="hi"))
        await gateway.waiting()
        gateway.pass_time()
        stream = await asking
        gate.set()
        events = [event async for event in stream]

    assert [event.type for event in events] == (
        ["error", "response.failed"] if fails else ["response.output_text.delta", "response.completed"]
    )


async def test_a_call_in_the_delay_queue_hears_of_its_place(start: StartGateway) -> None:
    """In the gateway as it is wired: behind a stream that takes the target's only place, until that ends."""
    target = {"provider": "main", "model": "gpt-4o", "max_concurrency": 1}
    gateway = await start(lambda url: config_of(url, models={"gpt-4o": {"targets": [target]}}))
    gateway.script("stall;after_chunks=2")
    keepalive, clock = gateway.gateway._keepalive, gateway.gateway._clock
    async with connect(gateway.url) as first, connect(gateway.url) as second:
        first.send(post(CHAT, chat(stream=True)))
        await head_of(first)
        second.send(post(CHAT, chat(stream=True)))
        await until(lambda: len(keepalive) == 1)
        keepalive.sweep(clock.monotonic() + KEEPALIVE_S)
        await head_of(second)
        heard = await chunk_of(second)
        assert gateway.upstream_calls() == 1
        first.close()
        body = await body_of(second)

    assert re.fullmatch(rb": queued position=1 eta_ms=\d+\n\n", heard)
    assert body.endswith(DONE)


async def test_nothing_of_it_is_left_to_the_collector() -> None:
    """A call that was kept alive is gone when it ends, like any other."""
    gate = asyncio.Event()
    async with front(slow(gate, EVENT, DONE)) as gateway, connect(gateway.url) as peer:
        gc.collect()
        gc.disable()
        others = [
            each for each in gc.get_objects() if isinstance(each, Call)
        ]  # what a failed test's traceback still has
        try:
            await kept_alive_until(peer, gateway, ask(), gate)
            await gateway.settled()
            await until(lambda: len(gateway.inflight) == 0)
            await asyncio.sleep(0)
            gateway.meter.accounts.clear()
            left = [each for each in gc.get_objects() if isinstance(each, Call)]
        finally:
            gc.enable()

    assert [each for each in left if not any(each is other for other in others)] == []
