"""Clients that are slow, huge, silent or gone: memory stays bounded, others are served, nothing is left behind.

Time is passed to the sweeps by hand; no test waits for a clock.
"""

from __future__ import annotations

import asyncio
import resource
import socket

import orjson
import pytest

from gateway.core.http.connection import sweep_connections
from gateway.emulator.config import EmulatorConfig
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Running, chat, config_of, connect, get, post, until

CHAT = "/v1/chat/completions"
STREAM = post(CHAT, orjson.dumps(chat(stream=True)))
HOUR_S = 3600.0
MEGABYTE = 1_000_000


def sweep(
    gateway: Running, later_s: float, *, head_s: float = 30.0, keep_alive_s: float = 75.0, write_s: float = 60.0
) -> None:
    """What housekeeping does, as if it were this much later."""
    now = asyncio.get_running_loop().time()
    sweep_connections(gateway.connections, head_s - later_s, keep_alive_s - later_s, write_s - later_s)
    gateway.inflight.sweep(now + later_s)


async def is_served(gateway: Running) -> bool:
    """Whether an ordinary call on a new connection is answered."""
    async with connect(gateway.url) as peer:
        return (await peer.exchange(post())).status == 200


def peak_rss_bytes() -> int:
    """The most memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def test_a_body_of_100_mb_is_refused_when_it_passes_the_cap(start: StartGateway) -> None:
    """12: 413 while it is still coming; no more than the cap is ever held; the rest is dropped and the connection lives."""
    gateway = await start(lambda url: config_of(url, server={"max_body": "20MB"}))
    chunk = b"%x\r\n%s\r\n" % (MEGABYTE, b"x" * MEGABYTE)
    before = peak_rss_bytes()
    async with connect(gateway.url) as peer:
        peer.send(f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        for _ in range(100):
            peer.send(chunk)
            await peer.writer.drain()
        peer.send(b"0\r\n\r\n")
        answer = await peer.response()
        served = await peer.exchange(post())

    assert answer.status == 413
    assert answer.error["code"] == "request_too_large"
    assert served.status == 200
    assert gateway.upstream_calls() == 1
    assert peak_rss_bytes() - before < 60 * MEGABYTE


async def test_a_length_over_the_cap_is_refused_before_a_byte_of_the_body(gateway: Running) -> None:
    """13: 10 GB announced: 413 at once, and the client that then leaves is no event."""
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(post(CHAT, b"x", length=10_000_000_000))

    assert answer.status == 413
    assert "68157440" in answer.error["message"]
    assert await is_served(gateway)
    assert gateway.upstream_calls() == 1


async def test_the_cap_is_what_the_config_says(start: StartGateway) -> None:
    """One byte over is refused, the cap itself is not."""
    body = orjson.dumps(chat())
    gateway = await start(lambda url: config_of(url, server={"max_body": f"{len(body)}B"}))

    async with connect(gateway.url) as peer:
        fits = await peer.exchange(post(CHAT, body))
        over = await peer.exchange(post(CHAT, body + b" "))

    assert (fits.status, over.status) == (200, 413)


@pytest.mark.parametrize(
    "sent", [b"", b"GET /v1/models HTTP/1.1\r\nx-a: ", post()[:40]], ids=["nothing", "get", "post"]
)
async def test_a_head_that_does_not_arrive_ends_its_connection(gateway: Running, sent: bytes) -> None:
    """48: after 30 s, not before."""
    async with connect(gateway.url) as peer:
        peer.send(sent)
        await until(lambda: len(gateway.connections) == 1)
        await asyncio.sleep(0.01)  # a turn of the loop for the bytes to arrive
        sweep(gateway, 29.0)
        assert not peer.reader.at_eof()
        sweep(gateway, 31.0)
        assert await peer.rest() == b""

    assert await is_served(gateway)


@pytest.mark.parametrize("between", [b"", b"\r\n", b"GET /"], ids=["silent", "blank_lines", "half_a_head"])
async def test_an_idle_connection_ends_after_its_keep_alive(gateway: Running, between: bytes) -> None:
    """48: whatever it drips in between; 75 s."""
    async with connect(gateway.url) as peer:
        assert (await peer.exchange(post())).status == 200
        peer.send(between)
        await asyncio.sleep(0.01)  # a turn of the loop for the bytes to arrive
        sweep(gateway, 76.0)
        assert await peer.rest() == b""


async def test_a_running_call_is_not_idle(gateway: Running) -> None:
    """However long an answer takes, neither sweep touches it, also when its request came in two pieces behind another."""
    gateway.script("ok", "stall;after_chunks=1")
    async with connect(gateway.url) as peer:
        peer.send(post() + STREAM[:20])
        assert (await peer.response()).status == 200
        peer.send(STREAM[20:])
        await peer.reader.readuntil(b"data: ")
        sweep(gateway, HOUR_S)
        await asyncio.sleep(0.01)  # a turn of the loop in which the end would show

        assert len(gateway.inflight) == 1
        assert not peer.reader.at_eof()
    await gateway.idle()


async def test_a_body_that_does_not_arrive_is_answered_with_408(gateway: Running) -> None:
    """48, 43: after 60 s, in the one shape; the connection cannot be used again and says so."""
    async with connect(gateway.url) as peer:
        peer.send(post(CHAT, b"{", length=1000))
        await until(lambda: len(gateway.inflight) == 1)
        await asyncio.sleep(0.01)  # a turn of the loop for the body to be awaited
        sweep(gateway, 59.0)
        assert len(gateway.inflight) == 1
        sweep(gateway, 61.0)
        answer = await peer.response()
        assert await peer.rest() == b""

    assert answer.status == 408
    assert answer.error["code"] == "request_body_timeout"
    assert answer.header("connection") == "close"
    assert gateway.upstream_calls() == 0
    await gateway.idle()
    await gateway.stop()
    assert [one["status"] for one in gateway.records] == [408]


async def test_a_client_may_leave_at_any_byte_of_its_request(gateway: Running) -> None:
    """49: no traceback, nobody left in flight, the next call is served."""
    request = post()
    for length in range(len(request)):
        async with connect(gateway.url) as peer:
            peer.send(request[:length])
            await peer.writer.drain()
            if length % 2:
                peer.writer.write_eof()

    await gateway.idle()
    assert await is_served(gateway)
    assert gateway.upstream_calls() == 1


async def test_a_client_may_leave_at_any_byte_of_its_answer(gateway: Running) -> None:
    """49: every call is settled once, as ok or as a client that left; connections to the provider do not pile up."""
    async with connect(gateway.url) as peer:
        whole = len((await peer.exchange(STREAM)).raw)
    for length in range(0, whole, 97):
        async with connect(gateway.url) as peer:
            peer.send(STREAM)
            await peer.reader.readexactly(length)

    await gateway.idle()
    assert await is_served(gateway)
    await gateway.stop()
    calls = [one for one in gateway.records if one["event"] == "call"]
    assert len(calls) == 2 + len(range(0, whole, 97))
    assert {one["outcome"] for one in calls} <= {"ok", "client_gone"}


@pytest.mark.parametrize("size", [10, 100_000, 1_000_000])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_its_call_at_the_provider(gateway: Running, size: int, stream: bool) -> None:
    """Also one whose prompt was so large that reading had been paused: nobody pays for an answer nobody gets."""
    gateway.script("silence")
    request = post(CHAT, orjson.dumps(chat(user="u" * size, stream=stream)))
    async with connect(gateway.url) as peer:
        peer.send(request[:200])
        await until(lambda: len(gateway.inflight) == 1)
        peer.send(request[200:])
        await peer.writer.drain()
        await until(lambda: gateway.emulator.emulator.stats.active == 1 and gateway.upstream_calls() == 1)
        await until(lambda: gateway.emulator.emulator.stats.bytes_in > size)

    await until(lambda: gateway.emulator.emulator.stats.cancelled == 1)
    await gateway.idle()
    await gateway.stop()
    assert [(one["status"], one["outcome"]) for one in gateway.records] == [(499, "client_gone")]


async def lazy_reader(gateway: Running) -> socket.socket:
    """A client that asks for a stream and has little room for it."""
    lazy = socket.socket()
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lazy.setblocking(False)
    loop = asyncio.get_running_loop()
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    await loop.sock_connect(lazy, (host, int(port)))
    await loop.sock_sendall(lazy, STREAM)
    return lazy


async def test_a_client_that_takes_nothing_is_dropped_and_its_call_cancelled(start: StartGateway) -> None:
    """After 60 s in which not one byte went out, not before: it must not hold what it has at the provider for ever."""
    gateway = await start(emulator=EmulatorConfig(output_tokens=200_000))
    with await lazy_reader(gateway) as lazy:
        await until(lambda: len(gateway.connections) == 1)
        (connection,) = gateway.connections
        await until(lambda: bool(connection.flow.write_paused))
        sweep(gateway, 0.0)
        sweep(gateway, 59.0)
        assert not connection.transport.is_closing()
        before = connection.transport.get_write_buffer_size()
        while connection.transport.get_write_buffer_size() == before:
            await asyncio.get_running_loop().sock_recv(lazy, 65536)  # slow is not stuck: the clock starts again
        sweep(gateway, 0.0)
        await until(lambda: bool(connection.flow.write_paused))
        sweep(gateway, 59.0)
        assert not connection.transport.is_closing()

        sweep(gateway, 61.0)
        await until(lambda: gateway.emulator.emulator.stats.cancelled == 1)
        await gateway.idle()

    await gateway.stop()
    assert [one["outcome"] for one in gateway.records] == ["client_gone"]


async def test_a_reader_that_never_reads_holds_up_nobody_and_little_memory(start: StartGateway) -> None:
    """48: the provider is slowed down instead of buffered; when the client leaves, everything is let go."""
    gateway = await start(emulator=EmulatorConfig(output_tokens=200_000))
    before = peak_rss_bytes()
    lazy = await lazy_reader(gateway)
    stats = gateway.emulator.emulator.stats
    await until(lambda: stats.bytes_out > MEGABYTE)

    async with connect(gateway.url) as peer:
        served = await peer.exchange(post("/v1/embeddings", orjson.dumps({"model": "e", "input": "hi"})))
    assert served.status == 200
    assert stats.bytes_out < 20 * MEGABYTE
    lazy.close()

    await until(lambda: stats.cancelled == 1)
    await gateway.idle()
    assert peak_rss_bytes() - before < 60 * MEGABYTE


async def test_pipelining_does_not_queue_without_bound(gateway: Running) -> None:
    """47: while requests wait for their turn, nothing more is read from their connection."""
    async with connect(gateway.url) as peer:
        peer.send(get("/healthz") * 100_000)
        reading = asyncio.create_task(peer.rest())
        await until(lambda: len(gateway.connections) == 1)
        connection = next(iter(gateway.connections))
        longest = 0

        def has_served_many() -> bool:
            nonlocal longest
            longest = max(longest, len(connection.pipeline))
            return bool(connection.server_state.total_requests > 5000)

        await until(has_served_many)
        reading.cancel()

    assert 0 < longest < 10_000
