"""What Http1Transport promises beyond the seam: its pool, its clock, its errors' phase, and that nothing ever leaks."""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
import trustme

from gateway.core.http.client.connection import STALE_WITHIN_S
from gateway.core.http.client.transport import Http1Transport, PoolStats, phase_of
from gateway.core.types import Phase
from tests.core.http.client.answers import chunked, head
from tests.fixtures.transports import FakeClock, fetch, read_body, server_tls
from tests.support.raw_server import (
    CLOSE,
    READ,
    READ_HEAD,
    RESET,
    STOP_READING,
    Cut,
    RawServer,
    Script,
    yield_to_peer,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nha"
TIMEOUTS = {"connect": 1.0, "pool": 2.0, "write": 3.0, "first_byte": 4.0, "read": 5.0}

NewTransport = Callable[..., Http1Transport]


@pytest.fixture
async def new(clock: FakeClock) -> AsyncIterator[NewTransport]:
    """Make transports on the fake clock that sweep only when told."""
    made: list[Http1Transport] = []

    def make(**options: object) -> Http1Transport:
        transport = Http1Transport(**{"now": clock, "sweep_interval_s": 3600.0, **options})  # type: ignore[arg-type]  # any option
        made.append(transport)
        return transport

    yield make
    for transport in made:
        await transport.aclose()


def post(server: RawServer, body: bytes = b"{}") -> httpx.Request:
    return httpx.Request("POST", server.url, content=body, extensions={"timeout": TIMEOUTS})


class Source(httpx.AsyncByteStream):
    """A request body that yields one piece and then waits for `more`."""

    def __init__(self, piece: bytes, more: asyncio.Event, error: Exception | None = None) -> None:
        self._piece, self._more, self._error = piece, more, error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._piece
        await self._more.wait()
        if self._error is not None:
            raise self._error
        yield self._piece


async def until(is_so: Callable[[], bool]) -> None:
    """Yield to the loop until something has happened; fails rather than hang."""
    for _ in range(20_000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen")


async def start(transport: Http1Transport, request: httpx.Request) -> asyncio.Task[bytes]:
    """Begin a request and read its body in a task of its own."""

    async def run() -> bytes:
        return (await fetch(transport, request)).body

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    return task


# The pool.


async def test_the_connection_used_last_is_used_first(new: NewTransport) -> None:
    """Surplus connections fall idle, and so expire."""
    transport = new()
    gates = [asyncio.Event(), asyncio.Event()]
    scripts: list[Script] = [
        [READ, gate, OK, READ, b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % n] for n, gate in enumerate(gates)
    ]
    async with RawServer(scripts) as server:
        first = await start(transport, post(server))
        await until(lambda: len(server.requests) == 1)
        second = await start(transport, post(server))
        await until(lambda: len(server.requests) == 2)
        gates[1].set()
        await second
        gates[0].set()
        await first
        assert transport.stats() == PoolStats(active=0, idle=2, waiting=0)
        assert (await fetch(transport, post(server))).body == b"0"


async def test_origins_do_not_share_connections(new: NewTransport) -> None:
    """Each scheme, host and port has its own pool."""
    transport = new()
    async with RawServer([[READ, OK]]) as one, RawServer([[READ, OK]]) as two:
        await fetch(transport, post(one))
        await fetch(transport, post(two))
        assert (one.connections, two.connections) == (1, 1)
        assert f"http://127.0.0.1:{one.port} active=0 idle=1 waiting=0" in repr(transport)
        assert transport.stats() == PoolStats(active=0, idle=2, waiting=0)


async def test_waiting_requests_are_served_in_order(new: NewTransport) -> None:
    """At the cap, connections go to whoever has waited longest, and no further one is opened."""
    transport = new(max_connections=1)
    gate = asyncio.Event()
    async with RawServer([[READ, gate, OK, READ, OK, READ, OK, READ, OK]]) as server:
        tasks = [await start(transport, post(server, b'"%d"' % n)) for n in range(4)]
        assert transport.stats() == PoolStats(active=1, idle=0, waiting=3)
        assert "waiting=3" in repr(transport)
        gate.set()
        await asyncio.gather(*tasks)
        assert [request.body for request in server.requests] == [b'"0"', b'"1"', b'"2"', b'"3"']
        assert server.connections == 1


async def test_waiting_for_a_connection_has_its_own_timeout(new: NewTransport, clock: FakeClock) -> None:
    """A request that got no connection in time has sent nothing."""
    transport = new(max_connections=1)
    async with RawServer([[READ]]) as server:
        holder = await start(transport, httpx.Request("POST", server.url))
        await until(lambda: len(server.requests) == 1)
        waiter = await start(transport, post(server))
        clock.advance(1.9)
        transport.sweep()
        assert transport.stats().waiting == 1
        clock.advance(0.1)
        transport.sweep()
        with pytest.raises(httpx.PoolTimeout) as caught:
            await waiter
        holder.cancel()
    assert phase_of(caught.value) == Phase.NOTHING_SENT


async def test_a_failed_exchange_passes_its_slot_on(new: NewTransport) -> None:
    """A broken connection does not cost the pool a slot."""
    transport = new(max_connections=1)
    gate = asyncio.Event()
    async with RawServer([[READ, gate, RESET], [READ, OK]]) as server:
        broken = await start(transport, post(server))
        waiter = await start(transport, post(server))
        gate.set()
        with pytest.raises(httpx.ReadError):
            await broken
        assert await waiter == b"ok"


async def test_a_failed_connect_passes_its_slot_on(new: NewTransport) -> None:
    """A refused connection does not cost the pool a slot."""
    transport = new(max_connections=1)
    async with RawServer([[]]) as server:
        request = post(server)
    tasks = [await start(transport, request) for _ in range(3)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [httpx.ConnectError] * 3
    assert transport.stats() == PoolStats(0, 0, 0)


async def test_a_cancelled_waiter_leaves_the_queue_whole(new: NewTransport) -> None:
    """Cancelled while queued, or in the very moment of its turn: the next one is served."""
    transport = new(max_connections=1)
    gate = asyncio.Event()
    async with RawServer([[READ, gate, OK, READ, OK]]) as server:
        holder = await start(transport, post(server))
        queued, at_turn, last = [await start(transport, post(server)) for _ in range(3)]
        queued.cancel()
        pool = next(iter(transport._pools.values()))
        gate.set()
        await until(lambda: pool.waiting < 2)
        at_turn.cancel()
        assert await holder == b"ok"
        assert await last == b"ok"
        await asyncio.gather(queued, at_turn, return_exceptions=True)
        assert transport.stats() == PoolStats(active=0, idle=1, waiting=0)


async def test_an_idle_connection_expires(new: NewTransport, clock: FakeClock) -> None:
    """The sweep closes what nobody used for `idle_expiry_s`."""
    transport = new(idle_expiry_s=10.0)
    async with RawServer([[READ, OK]]) as server:
        await fetch(transport, post(server))
        clock.advance(9.9)
        transport.sweep()
        assert transport.stats().idle == 1
        clock.advance(0.1)
        transport.sweep()
        assert transport.stats() == PoolStats(0, 0, 0)
        await server.gone.acquire()


async def test_an_old_connection_is_not_kept(new: NewTransport, clock: FakeClock) -> None:
    """However busy it is: its provider may have moved, and only a new one is opened by name."""
    async with RawServer([[READ, OK] * 4, [READ, OK]]) as server:
        transport = new(idle_expiry_s=1000.0)
        for later_s in (0.0, 150.0, 150.0, 1.0):
            clock.advance(later_s)
            await fetch(transport, post(server))
        assert (server.connections, transport.stats()) == (1, PoolStats(0, 0, 0))
        await fetch(transport, post(server))

        assert server.connections == 2


async def test_an_expired_connection_is_not_used(new: NewTransport, clock: FakeClock) -> None:
    """Even before the sweep has come by."""
    transport = new(idle_expiry_s=10.0)
    async with RawServer([[READ, OK]]) as server:
        await fetch(transport, post(server))
        clock.advance(10.0)
        await fetch(transport, post(server))
        assert server.connections == 2
        assert transport.stats() == PoolStats(active=0, idle=1, waiting=0)


async def test_a_connection_closed_while_idle_leaves_the_pool(new: NewTransport) -> None:
    """The provider's close is noticed when it comes, not when the connection is next needed."""
    transport = new()
    async with RawServer([[READ, OK, CLOSE], [READ, OK]]) as server:
        await fetch(transport, post(server))
        await until(lambda: transport.stats().idle == 0)
        await fetch(transport, post(server))
        assert server.connections == 2


async def test_a_connection_is_released_with_its_last_byte(new: NewTransport) -> None:
    """The pool has it back before the caller reads the body, and the body stays readable."""
    transport = new(max_connections=1)
    async with RawServer([[READ, OK, READ, OK]]) as server:
        first = await transport.handle_async_request(post(server))
        second = await transport.handle_async_request(post(server))
        assert (await read_body(first), await read_body(second)) == (b"ok", b"ok")
        assert server.connections == 1


async def test_another_answer_in_the_same_read_is_never_delivered(new: NewTransport) -> None:
    """A provider cannot queue up an answer for the next request (response-queue poisoning)."""
    transport = new()
    evil = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    async with RawServer([[READ, OK + evil], [READ, OK]]) as server:
        assert (await fetch(transport, post(server))).body == b"ok"
        assert (await fetch(transport, post(server))).body == b"ok"
        assert server.connections == 2


# Kept-alive connections that are dead.


@pytest.mark.parametrize("end", [CLOSE, RESET])
async def test_a_stale_connection_is_replaced_once(new: NewTransport, end: Script) -> None:
    """A kept-alive connection that dies without a byte of an answer costs the caller nothing."""
    transport = new(max_connections=1)
    async with RawServer([[READ, OK, READ, end], [READ, OK]]) as server:  # type: ignore[list-item]  # a step
        await fetch(transport, post(server))
        assert (await fetch(transport, post(server, b'"again"'))).body == b"ok"
        assert [request.body for request in server.requests] == [b"{}", b'"again"', b'"again"']
        assert transport.stats() == PoolStats(active=0, idle=1, waiting=0)


async def test_a_connection_that_dies_later_is_not_stale(new: NewTransport, clock: FakeClock) -> None:
    """The provider may have worked on the request all the time: sending it again could pay for it twice."""
    transport = new()
    worked = asyncio.Event()
    async with RawServer([[READ, OK, READ, worked, CLOSE], [READ, OK]]) as server:
        await fetch(transport, post(server))
        task = await start(transport, post(server))
        await until(lambda: len(server.requests) == 2)
        clock.advance(STALE_WITHIN_S)
        worked.set()
        with pytest.raises(httpx.RemoteProtocolError, match="without answering") as caught:
            await task
        assert server.connections == 1
    assert phase_of(caught.value) == Phase.SENT
    assert transport.stats() == PoolStats(0, 0, 0)


async def test_its_replacement_is_not_replaced(new: NewTransport) -> None:
    """A fresh connection that dies is an error."""
    transport = new()
    async with RawServer([[READ, OK, READ, CLOSE], [READ, CLOSE]]) as server:
        await fetch(transport, post(server))
        with pytest.raises(httpx.RemoteProtocolError, match="without answering") as caught:
            await fetch(transport, post(server))
        assert server.connections == 2
    assert phase_of(caught.value) == Phase.SENT
    assert transport.stats() == PoolStats(0, 0, 0)


async def test_an_answered_request_is_not_sent_again(new: NewTransport) -> None:
    """One byte of an answer is enough."""
    transport = new()
    async with RawServer([[READ, OK, READ, b"H", CLOSE], [READ, OK]]) as server:
        await fetch(transport, post(server))
        with pytest.raises(httpx.RemoteProtocolError):
            await fetch(transport, post(server))
        assert server.connections == 1


async def test_a_stream_is_not_sent_again(new: NewTransport) -> None:
    """A body that was consumed cannot be repeated: it goes over a new connection, or a kept one where there is no room."""
    more = asyncio.Event()
    more.set()
    for most, connections in ((2, 2), (1, 1)):
        transport = new(max_connections=most)
        async with RawServer([[READ, OK, READ, CLOSE], [READ, CLOSE], [READ, OK]]) as server:
            await fetch(transport, post(server))
            with pytest.raises(httpx.RemoteProtocolError):
                await fetch(transport, httpx.Request("POST", server.url, stream=Source(b"x", more)))
            assert server.connections == connections


async def test_a_stale_connection_that_cannot_be_replaced_frees_its_slot(new: NewTransport) -> None:
    """The provider went away altogether: phase `NOTHING_SENT` now, since the second try sent nothing."""
    transport = new(max_connections=1)
    server = RawServer([[READ, OK, READ, CLOSE]])
    async with server:
        await fetch(transport, post(server))
        server.stop_listening()
        with pytest.raises(httpx.ConnectError):
            await fetch(transport, post(server))
    assert transport.stats() == PoolStats(0, 0, 0)


# Time.


async def test_connecting_has_a_timeout(new: NewTransport, clock: FakeClock, trusting: ssl.SSLContext) -> None:
    """A peer that accepts and then never shakes hands is a ConnectTimeout; nothing was sent."""
    transport = new(ssl_context=trusting, max_connections=1)
    async with RawServer([[]]) as server:
        url = f"https://localhost:{server.port}/"
        task = await start(transport, httpx.Request("GET", url, extensions={"timeout": TIMEOUTS}))
        await until(lambda: server.connections == 1)
        clock.advance(0.9)
        transport.sweep()
        await yield_to_peer()
        assert not task.done()
        clock.advance(0.1)
        transport.sweep()
        with pytest.raises(httpx.ConnectTimeout) as caught:
            await task
    assert phase_of(caught.value) == Phase.NOTHING_SENT
    assert transport.stats() == PoolStats(0, 0, 0)


async def test_the_first_byte_has_a_timeout(new: NewTransport, clock: FakeClock) -> None:
    """It runs from the request's end to the end of the answer's head: dripping header bytes do not stretch it."""
    transport = new()
    async with RawServer([[READ, b"HTTP/1.1 200 OK\r\nX-A"]]) as server:
        task = await start(transport, post(server))
        await until(lambda: len(server.requests) == 1)
        clock.advance(3.9)
        await yield_to_peer()
        transport.sweep()
        await yield_to_peer()
        assert not task.done()
        clock.advance(0.1)
        transport.sweep()
        with pytest.raises(httpx.ReadTimeout, match="did not begin to answer"):
            await task
        await server.gone.acquire()


async def test_an_interim_answer_restarts_the_first_byte_clock(new: NewTransport, clock: FakeClock) -> None:
    """A provider that says 102 is working."""
    transport = new()
    gates = [asyncio.Event(), asyncio.Event()]
    script: Script = [READ, gates[0], b"HTTP/1.1 102 Processing\r\n\r\n", gates[1], OK]
    async with RawServer([script]) as server:
        task = await start(transport, post(server))
        await until(lambda: len(server.requests) == 1)
        (pool,) = transport._pools.values()
        (connection,) = pool.connections
        clock.advance(3.0)
        gates[0].set()
        await until(lambda: connection.deadline == clock() + 4.0)
        clock.advance(3.0)
        transport.sweep()
        gates[1].set()
        assert await task == b"ok"


class Noted:
    """Who wants to hear of signs of life."""

    last_activity_at = 0.0


@pytest.mark.parametrize("sign", [b"HTTP/1.1 103 Early Hints\r\n\r\n", OK[:20], OK[:1]])
async def test_whatever_comes_before_the_head_is_a_sign_of_life(
    new: NewTransport, clock: FakeClock, sign: bytes
) -> None:
    """A 1xx, a part of the head, a byte of it: noted with its time. The head itself is the caller's to see."""
    transport, noted, gate = new(), Noted(), asyncio.Event()
    rest = OK if sign.endswith(b"\r\n\r\n") else OK[len(sign) :]
    async with RawServer([[READ, sign, gate, rest]]) as server:
        request = httpx.Request("POST", server.url, content=b"{}", extensions={"timeout": TIMEOUTS, "signs": noted})
        clock.advance(1.0)
        task = asyncio.ensure_future(fetch(transport, request))
        await until(lambda: noted.last_activity_at == clock())
        seen_at = clock()
        clock.advance(1.0)
        gate.set()
        await task
        assert noted.last_activity_at == seen_at


async def test_a_stalled_body_is_a_read_timeout(new: NewTransport, clock: FakeClock) -> None:
    """What came before is delivered; each arrival restarts the clock."""
    transport = new()
    gate = asyncio.Event()
    async with RawServer([[READ, HALF, gate, b"l"]]) as server:
        response = await transport.handle_async_request(post(server))
        assert isinstance(response.stream, httpx.AsyncByteStream)
        stream = response.stream.__aiter__()
        assert await anext(stream) == b"ha"
        clock.advance(4.9)
        transport.sweep()
        gate.set()
        assert await anext(stream) == b"l"
        clock.advance(4.9)
        transport.sweep()
        clock.advance(0.1)
        transport.sweep()
        with pytest.raises(httpx.ReadTimeout, match="stalled") as caught:
            await anext(stream)
    assert phase_of(caught.value) == Phase.ANSWERED


@pytest.mark.parametrize("is_stream", [False, True], ids=["bytes", "stream"])
async def test_a_provider_that_stops_reading_is_a_write_timeout(
    new: NewTransport, clock: FakeClock, is_stream: bool
) -> None:
    """The clock runs while the socket takes nothing, and only then."""
    transport = new()
    more = asyncio.Event()
    more.set()
    big = b"x" * 30_000_000
    async with RawServer([[READ_HEAD, STOP_READING, asyncio.Event()]]) as server:
        request = post(server, big)
        if is_stream:
            request.stream = Source(big, more)
        task = await start(transport, request)
        await until(lambda: bool(transport._pools))
        (pool,) = transport._pools.values()
        await until(lambda: any(member._is_writing_paused for member in pool.connections))
        for _ in range(200):
            await asyncio.sleep(0)
        clock.advance(2.9)
        transport.sweep()
        assert not task.done()
        clock.advance(0.1)
        transport.sweep()
        with pytest.raises(httpx.WriteTimeout) as caught:
            await task
    assert phase_of(caught.value) == Phase.SENT


async def test_no_clock_runs_while_the_caller_makes_the_body(new: NewTransport, clock: FakeClock) -> None:
    """A slow client is not the provider's fault."""
    transport = new()
    more = asyncio.Event()
    async with RawServer([[READ, OK]]) as server:
        request = httpx.Request("POST", server.url, stream=Source(b"x", more), extensions={"timeout": TIMEOUTS})
        task = await start(transport, request)
        (pool,) = transport._pools.values()
        await until(lambda: bool(pool.connections))
        clock.advance(1e6)
        transport.sweep()
        more.set()
        assert await task == b"ok"


async def test_a_lagging_caller_is_not_timed_out(new: NewTransport, clock: FakeClock) -> None:
    """While reading is paused for the caller's sake, no clock runs and the buffer stays bounded."""
    transport = new()
    body = b"x" * 3_000_000
    async with RawServer([[READ, b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + body]]) as server:
        response = await transport.handle_async_request(post(server))
        (pool,) = transport._pools.values()
        (connection,) = pool.connections
        await until(lambda: connection.is_reading_paused)
        clock.advance(1e6)
        transport.sweep()
        assert connection._exchange is not None
        assert connection._exchange.buffered < 400_000
        assert await read_body(response) == body


async def test_the_sweep_runs_by_itself_while_something_is_active(clock: FakeClock) -> None:
    """No caller has to drive the clock; an idle transport is left alone until connections expire."""
    transport = Http1Transport(now=clock, sweep_interval_s=0.0)
    async with RawServer([[READ, OK, READ]]) as server:
        await fetch(transport, post(server))
        await until(lambda: not transport._is_sweeping_fast)
        task = await start(transport, post(server))
        await until(lambda: len(server.requests) == 2)
        clock.advance(4.0)
        with pytest.raises(httpx.ReadTimeout):
            await task
        await until(lambda: transport._sweeper is None)
    await transport.aclose()


async def test_a_sweep_that_fails_is_not_the_last(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect shows in the log; the timeouts after it still fire."""
    transport = Http1Transport(now=clock, sweep_interval_s=0.0)
    sweep, defects, logged = transport.sweep, [RuntimeError("defect")], []

    def sweep_or_fail() -> None:
        if defects:
            raise defects.pop()
        sweep()

    monkeypatch.setattr(transport, "sweep", sweep_or_fail)
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: logged.append(str(context["exception"])))
    async with RawServer([[READ]]) as server:
        task = await start(transport, post(server))
        await until(lambda: len(server.requests) == 1)
        await until(lambda: not defects)
        clock.advance(4.0)
        await until(task.done)
    with pytest.raises(httpx.ReadTimeout):
        await task
    assert logged == ["defect"]
    await transport.aclose()


# Failures, and their phase.


async def test_an_error_of_the_bodys_source_reaches_the_caller(new: NewTransport) -> None:
    """The caller's own exception comes back unchanged, and the half-sent request is not completed."""
    transport = new()
    more = asyncio.Event()
    more.set()
    async with RawServer([[READ]]) as server:
        with pytest.raises(ZeroDivisionError):
            await fetch(transport, httpx.Request("POST", server.url, stream=Source(b"x", more, ZeroDivisionError())))
        await server.gone.acquire()
        assert not server.requests
    assert transport.stats() == PoolStats(0, 0, 0)


@pytest.mark.parametrize("declared", ["1", "3"])
async def test_a_stream_that_belies_its_length_fails(new: NewTransport, declared: str) -> None:
    """A request is never completed with a body of another length than it declared; its head may have been seen."""
    transport = new()
    more = asyncio.Event()
    more.set()
    async with RawServer([[READ_HEAD]]) as server:
        headers = {"content-length": declared}
        with pytest.raises(httpx.LocalProtocolError) as caught:
            await fetch(transport, httpx.Request("POST", server.url, stream=Source(b"x", more), headers=headers))
    assert phase_of(caught.value) == Phase.SENT


async def test_a_break_in_the_head_is_an_answer(new: NewTransport) -> None:
    """After the status line the provider has certainly seen the request."""
    transport = new()
    async with RawServer([[READ, b"HTTP/1.1 200 OK\r\nX-A: b", CLOSE]]) as server:
        with pytest.raises(httpx.RemoteProtocolError, match="in the middle of its answer") as caught:
            await fetch(transport, post(server))
    assert phase_of(caught.value) == Phase.ANSWERED


async def test_a_server_that_speaks_first_gets_no_request(new: NewTransport) -> None:
    """A banner would be read as the answer."""
    transport = new()
    async with RawServer([[OK, READ, OK]]) as server:
        try:
            await fetch(transport, post(server))
        except httpx.ConnectError as error:
            assert phase_of(error) == Phase.NOTHING_SENT  # noqa: PT017  # or the banner loses the race and is the answer
        assert transport.stats().active == 0


async def test_an_impossible_host_is_a_connect_error(new: NewTransport) -> None:
    """A name that cannot be encoded has sent nothing."""
    transport = new()
    with pytest.raises(httpx.ConnectError, match="cannot connect to") as caught:
        await fetch(transport, httpx.Request("GET", f"http://{'x' * 70}.invalid/"))
    assert phase_of(caught.value) == Phase.NOTHING_SENT
    assert transport.stats() == PoolStats(0, 0, 0)


# Leaving.


async def test_a_closed_transport_ends_everything(new: NewTransport) -> None:
    """Running exchanges, queued requests and idle connections end at once; later requests are refused."""
    transport = new(max_connections=2)
    async with RawServer([[READ, HALF], [READ]]) as server:
        response = await transport.handle_async_request(post(server))
        running = await start(transport, post(server))
        await until(lambda: len(server.requests) == 2)
        queued = await start(transport, post(server))
        await transport.aclose()
        with pytest.raises(httpx.ReadError, match="closed"):
            await running
        with pytest.raises(httpx.ConnectError, match="closed"):
            await queued
        with pytest.raises(httpx.ReadError, match="closed"):
            await read_body(response)
        with pytest.raises(httpx.ConnectError, match="closed"):
            await fetch(transport, post(server))
        for _ in range(2):
            await server.gone.acquire()
        await transport.aclose()
    assert transport.stats() == PoolStats(0, 0, 0)


async def test_an_abandoned_answer_cannot_be_read_on(new: NewTransport) -> None:
    """What was closed early never looks like a complete, short body."""
    transport = new()
    async with RawServer([[READ, HALF]]) as server:
        response = await transport.handle_async_request(post(server))
        assert isinstance(response.stream, httpx.AsyncByteStream)
        stream = response.stream.__aiter__()
        assert await anext(stream) == b"ha"
        await response.aclose()
        with pytest.raises(httpx.StreamClosed):
            await anext(stream)


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


CHUNKED = head(b"200 OK", ((b"Transfer-Encoding", b"chunked"),)) + chunked(b"one", b"two", b"three")


@pytest.mark.parametrize("kind", ["bytes", "stream", "tls", "queued", "stale"])
async def test_cancelling_anywhere_leaves_nothing(
    new: NewTransport, authority: trustme.CA, trusting: ssl.SSLContext, kind: str
) -> None:
    """Cancelled after any number of the loop's turns, a request leaves no task, socket or slot, and the next works.

    `max_connections=1`: a lost slot would stop the next request for good.
    """
    answer: Script = [READ, Cut(CHUNKED, tuple(range(10, len(CHUNKED), 12)))]
    scripts: list[Script] = (
        [[READ, OK, READ, CLOSE], [*answer, READ, OK]] if kind == "stale" else [[*answer, *answer, *answer]]
    )
    tls = server_tls(authority, "localhost") if kind == "tls" else None
    more = asyncio.Event()
    more.set()
    turns, finished = 0, 0
    while finished < 3:  # until it is too late to cancel
        transport = new(ssl_context=trusting, max_connections=1)
        async with RawServer(scripts, tls=tls) as server:
            url = server.url if tls is None else f"https://localhost:{server.port}"
            before = asyncio.all_tasks()
            files = open_files()
            if kind == "stale":
                await fetch(transport, httpx.Request("POST", url))
                await transport_settles(transport, 1)
                before |= asyncio.all_tasks()
            stream = Source(b"x" * 100_000, more) if kind == "stream" else httpx.ByteStream(b"")
            holder = await start(transport, httpx.Request("POST", url)) if kind == "queued" else None
            task = await start(transport, httpx.Request("POST", url, stream=stream))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            finished += not isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
            if holder is not None:
                await holder
            assert (await fetch(transport, httpx.Request("POST", url))).status == 200
            await transport.aclose()
            await until(lambda: open_files() <= files and asyncio.all_tasks() <= before)  # noqa: B023  # awaited here
            assert transport.stats() == PoolStats(0, 0, 0)
        turns += 1
    assert turns > 5
    gc.collect()


async def transport_settles(transport: Http1Transport, idle: int) -> None:
    await until(lambda: transport.stats().idle == idle)
