"""What the flow relies on whatever carries a call: ours, httpx's over HTTP/1.1 and HTTP/2, and through a proxy.

Errors say how far the attempt had come, nothing that was cut looks whole, and a caller who leaves ends the provider's work.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx
import pytest
import trustme

from gateway.core.http.client import wire as upstream
from gateway.core.http.client.redaction import phase_of
from gateway.core.http.client.transport import Http1Transport, HttpxTransport
from gateway.core.snapshot import Provider
from gateway.core.types import Clocks, Outgoing, Phase, Spliced
from tests.core.http.client.provider_server import BODY, EVENT, ProviderServer, Wire, digest
from tests.fixtures.transports import fetch, server_tls

LEFT_WITHIN_EVENTS = 20
"""How many more events a provider may write after its reader has left: a few turns of the loop, in which the news travels."""


@dataclass
class Line:
    """A transport, and what is at its other end."""

    transport: httpx.AsyncBaseTransport
    provider: ProviderServer
    wire: Wire
    port: int
    is_http2: bool

    def request(self, path: str) -> httpx.Request:
        return httpx.Request("POST", f"https://localhost:{self.port}{path}", content=b"{}")

    async def begin(self) -> tuple[httpx.Response, AsyncIterator[bytes]]:
        """An answer of events, of which the first has been read."""
        response = await self.transport.handle_async_request(self.request("/endless"))
        assert isinstance(response.stream, httpx.AsyncByteStream)
        parts = aiter(response.stream)
        assert (await anext(parts)).startswith(EVENT[:20])
        return response, parts


@pytest.fixture(params=["ours", "httpx", "httpx http2", "httpx proxy", "httpx http2 proxy"])
async def line(request: pytest.FixtureRequest, authority: trustme.CA, trusting: ssl.SSLContext) -> AsyncIterator[Line]:
    """Each transport in turn."""
    kinds = request.param.split()
    is_http2, is_proxy = "http2" in kinds, "proxy" in kinds
    tls = server_tls(authority, "localhost")
    tls.set_alpn_protocols(["h2", "http/1.1"])
    provider = ProviderServer(tls)
    async with provider:
        wire = Wire(target=provider.port, is_proxy=is_proxy)
        async with wire:
            port = provider.port if is_proxy else wire.port
            transport: httpx.AsyncBaseTransport
            if kinds[0] == "ours":
                transport = Http1Transport(ssl_context=trusting)
            else:
                proxy = f"http://127.0.0.1:{wire.port}" if is_proxy else None
                transport = HttpxTransport(ssl_context=trusting, http2=is_http2, proxy=proxy)
            yield Line(transport, provider, wire, port, is_http2)
            await transport.aclose()


async def test_an_answer_comes_whole_over_the_protocol_that_was_chosen(line: Line) -> None:
    """Each line carries a call, and the next one over the same connection."""
    for _ in range(2):
        answer = await fetch(line.transport, line.request("/whole"))
        assert (answer.status, answer.body) == (200, BODY)
        assert answer.extensions["http_version"] == (b"HTTP/2" if line.is_http2 else b"HTTP/1.1")
    assert line.provider.connections == 1


async def test_a_large_body_is_written_from_the_buffers_that_it_is_made_of(line: Line) -> None:
    """Its length is that of all of them; over a connection that was used before it is written once."""
    text = bytes(range(256)) * 2_000
    body = Spliced(text, [(100_000, 100_010, b"another name"), (3, 3, b"and more"), (len(text) - 1, len(text), b"")])
    provider = Provider("p", "openai", f"https://localhost:{line.port}")
    clocks = Clocks(5.0, 5.0, 5.0, 5.0, 30.0)
    sent = Outgoing("POST", "/digest", b"", "m", [], body, None, clocks, 5.0)
    for _ in range(2):
        answer = await upstream.Wire(provider, None, line.transport).send(sent)
        told = answer.whole or b"".join([chunk async for chunk in answer.chunks])
        await answer.aclose()
        assert told == digest(b"".join(body.pieces(1000))) == digest(bytes(body))


# Errors by phase.


async def test_where_nobody_listens_nothing_is_sent(line: Line) -> None:
    """A refused connection, at a proxy or at the provider, may be tried elsewhere for free."""
    line.provider.stop_listening()
    if not line.wire.is_proxy:
        line.wire.stop_listening()
    with pytest.raises((httpx.ConnectError, httpx.ProxyError)) as caught:
        await fetch(line.transport, line.request("/whole"))
    assert phase_of(caught.value) is Phase.NOTHING_SENT


CUTS: list[Callable[[Wire], None]] = [Wire.cut, Wire.reset, Wire.garble]
cuts = pytest.mark.parametrize("cut", CUTS, ids=["cut", "reset", "garbled"])


@cuts
async def test_a_connection_that_breaks_before_the_answer_is_an_error_of_a_sent_request(
    line: Line, cut: Callable[[Wire], None]
) -> None:
    """The provider may have worked on it: never `NOTHING_SENT`."""
    call = asyncio.ensure_future(fetch(line.transport, line.request("/silent")))
    await line.provider.asked.acquire()
    cut(line.wire)
    with pytest.raises(httpx.TransportError) as caught:
        await call
    assert phase_of(caught.value) is Phase.SENT


@cuts
async def test_a_connection_that_breaks_in_the_answer_never_ends_it(line: Line, cut: Callable[[Wire], None]) -> None:
    """What has come is handed out; then there is an error of phase `ANSWERED`."""
    _, parts = await line.begin()
    cut(line.wire)
    with pytest.raises(httpx.TransportError) as caught:
        async for _ in parts:
            pass
    assert phase_of(caught.value, answered=True) is Phase.ANSWERED


# Leaving.


async def test_a_caller_who_leaves_before_the_answer_is_noticed(line: Line) -> None:
    """Cancelled while it waits for the head: the provider hears of it."""
    call = asyncio.ensure_future(fetch(line.transport, line.request("/silent")))
    await line.provider.asked.acquire()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(line.provider.stopped.acquire(), 5)


@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_a_caller_who_leaves_a_stream_ends_it(line: Line, how: str) -> None:
    """Whether it is cancelled while it waits for the next event or closes the answer between two."""
    response, parts = await line.begin()
    assert isinstance(response.stream, httpx.AsyncByteStream)
    written = line.provider.written
    if how == "cancelled":

        async def read_on() -> None:
            async for _ in parts:
                pass

        reading = asyncio.ensure_future(read_on())
        await asyncio.sleep(0)
        written = line.provider.written
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    await response.stream.aclose()
    await asyncio.wait_for(line.provider.stopped.acquire(), 5)
    assert line.provider.written - written < LEFT_WITHIN_EVENTS


async def test_who_stays_reads_on_when_another_leaves(line: Line) -> None:
    """Two streams, over one connection where that is HTTP/2: ending one leaves the other as it is."""
    left, _ = await line.begin()
    stays, parts = await line.begin()
    assert line.provider.connections == (1 if line.is_http2 else 2)
    assert isinstance(left.stream, httpx.AsyncByteStream)
    assert isinstance(stays.stream, httpx.AsyncByteStream)
    await left.stream.aclose()
    await asyncio.wait_for(line.provider.stopped.acquire(), 5)
    for _ in range(20):
        assert (await anext(parts)).startswith(b"data") or line.is_http2
    await stays.stream.aclose()
    assert (await fetch(line.transport, line.request("/whole"))).body == BODY


async def test_what_leaving_callers_left_unread_does_not_stop_those_who_come(line: Line) -> None:
    """What was dropped does not count against the connection's window for ever."""
    if not line.is_http2:
        pytest.skip("HTTP/1.1 has no such window: an unfinished connection is closed")
    for _ in range(30):
        response, _ = await line.begin()
        state = line.transport._inner._pool.connections[0]  # type: ignore[attr-defined]  # httpcore's
        while not hasattr(state, "_h2_state"):
            state = state._connection
        state._h2_state._inbound_flow_control_window_manager.current_window_size -= 2**20  # as if so much had come
        assert isinstance(response.stream, httpx.AsyncByteStream)
        await response.stream.aclose()
        await asyncio.wait_for(line.provider.stopped.acquire(), 5)
    assert (await fetch(line.transport, line.request("/whole"))).body == BODY
