"""One suite for every egress transport: what a caller of the seam may rely on, whichever is behind it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator

import httpx
import pytest
import trustme
import uvloop

from gateway.core.http.client.redaction import phase_of
from gateway.core.http.client.transport import Http1Transport
from gateway.core.types import Phase
from tests.core.http.client.answers import RECORDED, Recorded, chunked, head, lowered
from tests.fixtures.transports import fetch, read_body, server_tls
from tests.support.raw_server import CLOSE, DROP, READ, READ_HEAD, RESET, Cut, RawServer, Script, Step

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

recorded = pytest.mark.parametrize("answer", RECORDED.values(), ids=RECORDED.keys())


def post(server: RawServer, body: bytes = b'{"model":"m"}', path: str = "/v1/chat/completions") -> httpx.Request:
    return httpx.Request("POST", server.url + path, content=body, headers={"x-request-id": "r1"})


class Pieces(httpx.AsyncByteStream):
    """A request body that comes in pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await asyncio.sleep(0)
            yield piece


def streamed(server: RawServer, *pieces: bytes, headers: dict[str, str]) -> httpx.Request:
    return httpx.Request("POST", server.url, stream=Pieces(*pieces), headers={"host": "provider", **headers})


# Answers.


@recorded
async def test_a_recorded_answer_arrives_as_it_was_sent(transport: httpx.AsyncBaseTransport, answer: Recorded) -> None:
    """Status, headers in order, and body bytes come through unchanged (names may be lowered: they have no case)."""
    end: Script = [CLOSE] if answer.closes else []
    async with RawServer([[READ, answer.wire, *end]]) as server:
        got = await fetch(transport, httpx.Request(answer.method, server.url, content=b"{}"))
    assert (got.status, lowered(got.headers), got.body) == (answer.status, lowered(answer.headers), answer.body)
    assert got.extensions["http_version"] == b"HTTP/1.1"


@recorded
async def test_an_answer_may_be_split_anywhere(transport: httpx.AsyncBaseTransport, answer: Recorded) -> None:
    """Where TCP cuts an answer makes no difference: ours cuts it at every byte on the loop of production.

    On the other loop, and for the other transport, whose parser has tests of its own, at every fifth.
    """
    is_ours = isinstance(transport, Http1Transport) and isinstance(asyncio.get_running_loop(), uvloop.Loop)
    cuts = range(1, len(answer.wire), 1 if is_ours else 5)
    scripts: list[Script] = [[step for cut in cuts for step in (READ, Cut(answer.wire, (cut,)))]]
    if answer.closes or (answer.method == "HEAD" and isinstance(transport, Http1Transport)):
        scripts = [[READ, Cut(answer.wire, (cut,)), CLOSE] for cut in cuts]
    async with RawServer(scripts) as server:
        request = httpx.Request(answer.method, server.url, content=b"{}")
        for _ in cuts:
            got = await fetch(transport, request)
            assert (got.status, lowered(got.headers), got.body) == (answer.status, lowered(answer.headers), answer.body)


async def test_chunks_arrive_as_they_are_sent(transport: httpx.AsyncBaseTransport) -> None:
    """An event is handed out before the next one exists."""
    more = asyncio.Event()
    start = head(b"200 OK", ((b"Transfer-Encoding", b"chunked"),)) + b"5\r\nfirst\r\n"
    async with RawServer([[READ, start, more, chunked(b"second")]]) as server:
        response = await transport.handle_async_request(post(server))
        assert isinstance(response.stream, httpx.AsyncByteStream)
        stream = response.stream.__aiter__()
        assert await anext(stream) == b"first"
        more.set()
        assert await anext(stream) == b"second"
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        await response.stream.aclose()


async def test_the_reason_phrase_is_kept(transport: httpx.AsyncBaseTransport) -> None:
    """The status line's text is an extension of the response."""
    async with RawServer([[READ, b"HTTP/1.1 429 Slow Down\r\nContent-Length: 0\r\n\r\n"]]) as server:
        assert (await fetch(transport, post(server))).extensions["reason_phrase"] == b"Slow Down"


# Requests.


async def test_a_request_arrives_as_it_was_given(transport: httpx.AsyncBaseTransport) -> None:
    """Method, target, headers and body reach the provider unchanged."""
    async with RawServer([[READ, OK]]) as server:
        await fetch(transport, post(server, b"\x00\xff body", "/v1/x%20y?a=b&c=%C3%A9"))
        (request,) = server.requests
    assert request.line == b"POST /v1/x%20y?a=b&c=%C3%A9 HTTP/1.1"
    assert request.body == b"\x00\xff body"
    assert request.header(b"x-request-id") == b"r1"
    assert request.header(b"host") == b"127.0.0.1:%d" % server.port


async def test_a_large_body_arrives_whole(transport: httpx.AsyncBaseTransport) -> None:
    """Bodies larger than any buffer are sent, and answered, in full."""
    body = bytes(range(256)) * 8192
    big = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with RawServer([[READ, big, body]]) as server:
        got = await fetch(transport, post(server, body))
        assert server.requests[0].body == body
    assert got.body == body


async def test_a_streamed_body_of_unknown_length_is_sent_in_chunks(transport: httpx.AsyncBaseTransport) -> None:
    """A stream with `transfer-encoding: chunked` arrives as its bytes; empty pieces do not end it."""
    async with RawServer([[READ, OK]]) as server:
        await fetch(transport, streamed(server, b"one", b"", b"two", headers={"transfer-encoding": "chunked"}))
        assert server.requests[0].body == b"onetwo"


async def test_a_streamed_body_of_known_length_is_sent_plain(transport: httpx.AsyncBaseTransport) -> None:
    """A stream with `content-length` is not chunked."""
    async with RawServer([[READ, OK]]) as server:
        await fetch(transport, streamed(server, b"one", b"two", headers={"content-length": "6"}))
        assert server.requests[0].body == b"onetwo"


@pytest.mark.parametrize("header", [("x-a", "b\r\nx-c: d"), ("x-a\r\nx-c", "d"), ("x-a", "b\nc"), ("x-a", "\0")])
async def test_a_header_cannot_start_a_line_of_its_own(
    transport: httpx.AsyncBaseTransport, header: tuple[str, str]
) -> None:
    """CR, LF and NUL in a header are refused and nothing of the request is sent."""
    async with RawServer([[READ, OK]]) as server:
        request = httpx.Request("POST", server.url, headers=[header], content=b"{}")
        with pytest.raises(httpx.LocalProtocolError) as caught:
            await fetch(transport, request)
        await transport.aclose()
        assert not any(server.raw)
        assert not server.requests
    assert phase_of(caught.value) == Phase.NOTHING_SENT


# Connections.


@pytest.mark.parametrize("name", ["json", "event stream", "trailers", "interim answers", "no content", "empty body"])
async def test_a_connection_is_used_again(transport: httpx.AsyncBaseTransport, name: str) -> None:
    """After a complete answer the next request goes over the same connection."""
    wire = RECORDED[name].wire
    async with RawServer([[READ, wire, READ, wire, READ, wire]]) as server:
        for _ in range(3):
            await fetch(transport, post(server))
        assert server.connections == 1


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ],
    ids=["connection: close", "HTTP/1.0"],
)
async def test_a_spent_connection_is_not_used_again(transport: httpx.AsyncBaseTransport, wire: bytes) -> None:
    """The next request gets a new connection."""
    async with RawServer([[READ, wire], [READ, OK]]) as server:
        assert (await fetch(transport, post(server))).body == b"ok"
        assert (await fetch(transport, post(server))).body == b"ok"
        assert server.connections == 2


async def test_closing_an_unfinished_answer_closes_the_connection(transport: httpx.AsyncBaseTransport) -> None:
    """A caller that has read enough does not leave a half-read connection behind."""
    async with RawServer([[READ, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"], [READ, OK]]) as server:
        response = await transport.handle_async_request(post(server))
        await response.aclose()
        await server.gone.acquire()
        assert (await fetch(transport, post(server))).body == b"ok"


async def test_an_answer_before_the_request_is_written_is_handed_out(transport: httpx.AsyncBaseTransport) -> None:
    """A provider may refuse a body it has not read; the refusal is the answer, and the connection is spent."""
    refusal = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig"

    class Refused(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"x" * 1000
            if isinstance(transport, Http1Transport):
                await asyncio.Event().wait()  # the stock transport reads only when it has written everything

    async with RawServer([[READ_HEAD, refusal], [READ, OK]]) as server:
        headers = {"host": "provider", "transfer-encoding": "chunked"}
        got = await fetch(transport, httpx.Request("POST", server.url, stream=Refused(), headers=headers))
        assert (got.status, got.body) == (413, b"big")
        if isinstance(transport, Http1Transport):
            assert (await fetch(transport, post(server))).body == b"ok"
            assert server.connections == 2


# Failures.


async def test_a_refused_connection_has_sent_nothing(transport: httpx.AsyncBaseTransport) -> None:
    """Nobody listening is a ConnectError of phase `NOTHING_SENT`."""
    async with RawServer([[]]) as server:
        request = post(server)
    with pytest.raises(httpx.ConnectError) as caught:
        await fetch(transport, request)
    assert phase_of(caught.value) == Phase.NOTHING_SENT


async def test_only_http_urls_are_served(transport: httpx.AsyncBaseTransport) -> None:
    """Another scheme is an UnsupportedProtocol of phase `NOTHING_SENT`."""
    with pytest.raises(httpx.UnsupportedProtocol) as caught:
        await fetch(transport, httpx.Request("GET", "ftp://127.0.0.1/"))
    assert phase_of(caught.value) == Phase.NOTHING_SENT


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ([READ, CLOSE], httpx.RemoteProtocolError),
        ([READ, RESET], httpx.ReadError),
        ([READ, b"HTTP/1.1 200 OK\r\nConte", CLOSE], httpx.RemoteProtocolError),
        ([READ, b"<html>\r\n\r\n"], httpx.RemoteProtocolError),
        ([READ, b"HTTP/1.1 abc OK\r\n\r\n"], httpx.RemoteProtocolError),
        ([READ, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], httpx.RemoteProtocolError),
        ([READ, b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000], httpx.RemoteProtocolError),
    ],
    ids=["close", "reset", "close in the head", "garbage", "bad status", "HTTP/2", "endless head"],
)
async def test_no_answer_is_an_error_of_the_sent_request(
    transport: httpx.AsyncBaseTransport, script: Script, kind: type[Exception]
) -> None:
    """Whatever comes instead of an answer's head is an error; the request may have been seen."""
    async with RawServer([script]) as server:
        with pytest.raises(kind) as caught:
            await fetch(transport, post(server))
        assert server.connections == 1
    if b"Conte" not in b"".join(step for step in script if isinstance(step, bytes)):
        assert phase_of(caught.value) == Phase.SENT or isinstance(transport, Http1Transport)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ([b"Content-Length: 9\r\n\r\nhalf", CLOSE], httpx.RemoteProtocolError),
        ([b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", CLOSE], httpx.RemoteProtocolError),
        ([b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n6\r\nx", CLOSE], httpx.RemoteProtocolError),
        ([b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n"], httpx.RemoteProtocolError),
        ([b"Content-Length: 9\r\n\r\nhalf", RESET], httpx.ReadError),
    ],
    ids=["short", "no last chunk", "short chunk", "bad chunk size", "reset"],
)
async def test_a_body_that_breaks_is_an_error_after_the_answer(
    transport: httpx.AsyncBaseTransport, script: Script, kind: type[Exception]
) -> None:
    """A truncated body never looks complete; its error is of phase `ANSWERED`."""
    async with RawServer([[READ, b"HTTP/1.1 200 OK\r\n", *script]]) as server:
        try:
            response = await transport.handle_async_request(post(server))
            with pytest.raises(kind) as caught:
                await read_body(response)
        except httpx.ReadError:
            assert RESET in script  # the reset may overtake the head
            return
    assert response.status_code == 200
    assert phase_of(caught.value, answered=True) == Phase.ANSWERED


# TLS.


async def test_tls_is_verified_and_named(transport: httpx.AsyncBaseTransport, authority: trustme.CA) -> None:
    """A certificate for the host, signed by a trusted CA, is accepted; the host is sent as SNI."""
    asked: list[str | None] = []
    tls = server_tls(authority, "localhost")
    tls.sni_callback = lambda _socket, name, _context: asked.append(name)
    async with RawServer([[READ, OK, READ, OK]], tls=tls) as server:
        request = httpx.Request("GET", f"https://localhost:{server.port}/")
        for _ in range(2):
            assert (await fetch(transport, request)).body == b"ok"
        assert server.connections == 1
    assert asked == ["localhost"]


@pytest.mark.parametrize("name", ["other.example", None], ids=["wrong host", "unknown CA"])
async def test_a_certificate_that_proves_nothing_is_refused(
    transport: httpx.AsyncBaseTransport, authority: trustme.CA, name: str | None
) -> None:
    """A wrong name or an unknown CA is a ConnectError that says so; nothing is sent."""
    tls = server_tls(authority, name) if name else server_tls(trustme.CA(), "localhost")
    async with RawServer([[READ, OK]], tls=tls) as server:
        with pytest.raises(httpx.ConnectError, match="certificate verify failed") as caught:
            await fetch(transport, httpx.Request("GET", f"https://localhost:{server.port}/"))
        assert not server.requests
    assert phase_of(caught.value) == Phase.NOTHING_SENT


@pytest.mark.parametrize("size", [4, 200_000])
@pytest.mark.parametrize("end", [CLOSE, DROP, RESET], ids=["close_notify", "no close_notify", "reset"])
async def test_only_a_goodbye_ends_an_answer_without_a_length(
    transport: httpx.AsyncBaseTransport, authority: trustme.CA, end: Step, size: int
) -> None:
    """Over TLS anybody on the way can cut such an answer: it is whole after a close_notify only (RFC 8446, 6.1)."""
    body = bytes(range(256)) * (size // 256 + 1)
    async with RawServer(
        [[READ, b"HTTP/1.1 200 OK\r\n\r\n" + body, end]], tls=server_tls(authority, "localhost")
    ) as server:
        response = await transport.handle_async_request(httpx.Request("GET", f"https://localhost:{server.port}/"))
        if end is CLOSE:
            assert await read_body(response) == body
            return
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)) as caught:
            await read_body(response)
    assert phase_of(caught.value, answered=True) == Phase.ANSWERED


@pytest.mark.parametrize("tail", [CLOSE, DROP], ids=["close_notify", "no close_notify"])
async def test_an_answer_with_a_length_is_whole_however_the_connection_ends(
    transport: httpx.AsyncBaseTransport, authority: trustme.CA, tail: Step
) -> None:
    """What has all its bytes is whole, also when its reader is slower than the provider's goodbye."""
    body = bytes(range(256)) * 600
    wire = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with RawServer([[READ, wire + body, tail]], tls=server_tls(authority, "localhost")) as server:
        response = await transport.handle_async_request(httpx.Request("GET", f"https://localhost:{server.port}/"))
        for _ in range(100):  # until the connection is over; all of it happens in this loop
            await asyncio.sleep(0)
        assert await read_body(response) == body


async def test_the_default_context_verifies(authority: trustme.CA) -> None:
    """Without a context of ours, a private CA is not trusted."""
    transport = Http1Transport()
    async with RawServer([[READ, OK]], tls=server_tls(authority, "localhost")) as server:
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            await fetch(transport, httpx.Request("GET", f"https://localhost:{server.port}/"))
    await transport.aclose()


async def test_alpn_offers_http1_only(authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that could speak HTTP/2 is asked for HTTP/1.1."""
    client = ssl.create_default_context()
    authority.configure_trust(client)
    monkeypatch.setattr(ssl, "create_default_context", lambda: client)
    tls = server_tls(authority, "localhost")
    tls.set_alpn_protocols(["h2", "http/1.1"])
    transport = Http1Transport()
    async with RawServer([[READ, OK]], tls=tls) as server:
        assert (await fetch(transport, httpx.Request("GET", f"https://localhost:{server.port}/"))).body == b"ok"
        assert server.protocols == ["http/1.1"]
    await transport.aclose()
