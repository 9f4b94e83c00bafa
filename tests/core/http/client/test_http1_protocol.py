"""Http1Transport's reading of answers, fed byte by byte through a transport that has no socket."""

from __future__ import annotations

import asyncio
from math import inf

import httpx
import pytest

from gateway.core.http.client.connection import HIGH_WATER_BYTES, Http1Connection, LoopTurns
from gateway.core.http.client.exchange import (
    MAX_HEAD_BYTES,
    EncodedRequest,
    Exchange,
    WireTimeouts,
    encode,
    read_timeouts,
)
from gateway.core.http.client.redaction import phase_of
from gateway.core.types import Phase
from tests.core.http.client.answers import RECORDED, Recorded, chunked, lowered
from tests.rows import rows

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Wire(asyncio.Transport):
    """Records what the protocol asks of its transport."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.unsent = 0
        self.is_aborted = False
        self.reads = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.is_aborted

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.is_aborted = True

    def is_paused(self) -> bool:
        return not self.reads

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Pool:
    """Records what the protocol tells its pool."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.read_buffer = memoryview(bytearray(1024))
        self.turns = LoopTurns()

    def release(self, connection: Http1Connection) -> None:
        self.told.append("release")

    def drop(self, connection: Http1Connection) -> None:
        self.told.append("drop")

    def closed_while_unused(self, connection: Http1Connection) -> None:
        self.told.append("closed_while_unused")


def connect(method: str = "POST", timeouts: WireTimeouts | None = None) -> tuple[Http1Connection, Exchange, Wire, Pool]:
    """A connection that has just written a request."""
    wire, pool = Wire(), Pool()
    connection = Http1Connection(pool, lambda: 0.0)
    connection.connection_made(wire)
    outgoing = EncodedRequest(b"HEAD\r\n\r\n", b"", None, 0, method != "HEAD")
    return connection, connection.start(outgoing, timeouts or WireTimeouts()), wire, pool


async def body_of(exchange: Exchange) -> bytes:
    return b"".join([chunk async for chunk in exchange])


@rows("answer", RECORDED.values(), ids=RECORDED.keys())
async def test_every_cut_of_an_answer_reads_the_same(answer: Recorded) -> None:
    """Two reads cut at any index, and one read per byte, give the same answer and the same fate of the connection."""
    wire = answer.wire
    deliveries = [[wire[:cut], wire[cut:]] for cut in range(1, len(wire))]
    deliveries += [[wire], [wire[i : i + 1] for i in range(len(wire))]]
    for pieces in deliveries:
        connection, exchange, _, pool = connect(answer.method)
        for piece in pieces:
            if not exchange.is_complete:
                connection.data_received(piece)
        if not exchange.is_complete:
            connection.eof_received()
        assert (exchange.status, lowered(exchange.headers)) == (answer.status, lowered(answer.headers))
        assert await body_of(exchange) == answer.body
        assert pool.told == ["drop" if answer.closes or answer.method == "HEAD" else "release"]


# Answers that two readers could read differently, and answers that are none.

_FRAMED = b"Content-Length: 2\r\n\r\nok"
_CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
_HEADS_REFUSED = {
    "length and chunked": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + _CHUNKED + chunked(b"ok"),
    "chunked and length": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + _FRAMED,
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n" + _FRAMED,
    "the same length twice": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + _FRAMED,
    "list of lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok",
    "plus": b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
    "minus": b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
    "hexadecimal length": b"HTTP/1.1 200 OK\r\nContent-Length: 0x2\r\n\r\nok",
    "empty length": b"HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\nok",
    "length overflow": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nok",
    "obs-fold": b"HTTP/1.1 200 OK\r\nX-A: a\r\n b\r\n" + _FRAMED,
    "folded coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n chunked\r\n\r\n" + chunked(b"ok"),
    "space before the first header": b"HTTP/1.1 200 OK\r\n X-A: a\r\n" + _FRAMED,
    "bare LF everywhere": b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    "bare LF after a header": b"HTTP/1.1 200 OK\r\nX-A: a\n" + _FRAMED,
    "bare CR in a header": b"HTTP/1.1 200 OK\r\nX-A: a\rX-B: b\r\n" + _FRAMED,
    "space before the colon": b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok",
    "no colon": b"HTTP/1.1 200 OK\r\nX-A\r\n" + _FRAMED,
    "empty name": b"HTTP/1.1 200 OK\r\n: a\r\n" + _FRAMED,
    "NUL in a value": b"HTTP/1.1 200 OK\r\nX-A: a\0b\r\n" + _FRAMED,
    "NUL in a name": b"HTTP/1.1 200 OK\r\nX\0A: b\r\n" + _FRAMED,
    "NUL in the status line": b"HTTP/1.1 200 O\0K\r\n" + _FRAMED,
    "chunked twice": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n" + chunked(b"ok"),
    "chunked on two lines": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + _CHUNKED + chunked(b"ok"),
    "xchunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n" + chunked(b"ok"),
    "gzip, chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n" + chunked(b"ok"),
    "identity": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nok",
    "identity and length": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n" + _FRAMED,
    "status of two digits": b"HTTP/1.1 99 OK\r\n" + _FRAMED,
    "status of four digits": b"HTTP/1.1 2000 OK\r\n" + _FRAMED,
    "status below 100": b"HTTP/1.1 099 OK\r\n" + _FRAMED,
    "unasked upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
    "status line garbage": b"HTTP/1.1 OK 200\r\n" + _FRAMED,
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2 frame": b"\0\0\x12\4\0\0\0\0\0\0\3\0\0\0\x80",
    "HTTP/0.9 body": b"<html>hello</html>\r\n\r\n",
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\n" + _FRAMED,
    "HTTP/1.2": b"HTTP/1.2 200 OK\r\n" + _FRAMED,
    "HTTP/2.0": b"HTTP/2.0 200 OK\r\n" + _FRAMED,
    "ICE": b"ICE/1.0 200 OK\r\n" + _FRAMED,
    "RTSP": b"RTSP/1.0 200 OK\r\n" + _FRAMED,
    "lower case": b"http/1.1 200 OK\r\n" + _FRAMED,
    "empty line first": b"\r\n" + OK,
    "one long header": b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * MAX_HEAD_BYTES + b"\r\n" + _FRAMED,
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"X-A: a\r\n" * 10_000 + _FRAMED,
    "long status line": b"HTTP/1.1 200 " + b"a" * MAX_HEAD_BYTES + b"\r\n" + _FRAMED,
    "endless interim answers": b"HTTP/1.1 100 Continue\r\n\r\n" * 101 + OK,
}


@rows("size", [1 << 20, 1000], ids=["in one read", "in pieces"])
@rows("wire", _HEADS_REFUSED.values(), ids=_HEADS_REFUSED.keys())
async def test_an_ambiguous_head_is_refused(wire: bytes, size: int) -> None:
    """No answer is handed out, and the connection is closed."""
    connection, exchange, transport, pool = connect()
    for start in range(0, len(wire), size):
        connection.data_received(wire[start : start + size])
    assert isinstance(exchange.error, httpx.RemoteProtocolError)
    assert exchange.status == 0
    assert phase_of(exchange.error) in {Phase.SENT, Phase.ANSWERED}
    assert transport.is_aborted
    assert pool.told[0] == "drop"
    assert "release" not in pool.told


_BODIES_REFUSED = {
    "not hexadecimal": b"zz\r\nhello\r\n0\r\n\r\n",
    "negative": b"-5\r\nhello\r\n0\r\n\r\n",
    "0x prefix": b"0x5\r\nhello\r\n0\r\n\r\n",
    "overflow": b"FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
    "bare LF": b"5\nhello\r\n0\r\n\r\n",
    "space after the size": b"5 \r\nhello\r\n0\r\n\r\n",
    "longer than its size": b"5\r\nhello!!\r\n0\r\n\r\n",
    "no CRLF after the data": b"5\r\nhello0\r\n\r\n",
    "bad trailer": b"5\r\nhello\r\n0\r\nX A: b\r\n\r\n",
    "length as a trailer": b"5\r\nhello\r\n0\r\nContent-Length: 4\r\n\r\n",
    "endless trailer": b"5\r\nhello\r\n0\r\nX-A: " + b"a" * 200_000,
    "endless chunk extension": b"5;" + b"a" * 200_000,
}


@rows("body", _BODIES_REFUSED.values(), ids=_BODIES_REFUSED.keys())
async def test_an_ambiguous_body_is_refused(body: bytes) -> None:
    """What was good is handed out, then the error comes, of phase `ANSWERED`."""
    connection, exchange, transport, _ = connect()
    connection.data_received(b"HTTP/1.1 200 OK\r\n" + _CHUNKED)
    for start in range(0, len(body), 10_000):
        connection.data_received(body[start : start + 10_000]) if exchange.error is None else None
    with pytest.raises(httpx.RemoteProtocolError) as caught:
        await body_of(exchange)
    assert phase_of(caught.value) == Phase.ANSWERED
    assert transport.is_aborted


async def test_a_hundred_interim_answers_are_skipped() -> None:
    """1xx answers before the answer are not the answer."""
    connection, exchange, _, pool = connect()
    connection.data_received(b"HTTP/1.1 102 Processing\r\n\r\n" * 100 + OK)
    assert (exchange.status, pool.told) == (200, ["release"])


@rows("extra", [b"X", b"HTTP/1.1 200 OK\r\n", OK, b"\0"])
async def test_bytes_after_the_answer_spend_the_connection(extra: bytes) -> None:
    """The answer is good, what follows it in the same read is nobody's."""
    connection, exchange, transport, pool = connect()
    connection.data_received(OK + extra)
    assert exchange.is_complete
    assert exchange.buffered == 2
    assert pool.told == ["drop"]
    assert transport.is_aborted


@rows("extra", [b"X", b"\r\n", OK])
async def test_bytes_on_an_idle_connection_close_it(extra: bytes) -> None:
    """A server that speaks unasked is not asked again."""
    connection, _, transport, pool = connect()
    connection.data_received(OK)
    connection.data_received(extra)
    assert pool.told == ["release", "closed_while_unused"]
    assert transport.is_aborted


async def test_an_answer_to_head_ends_at_its_head() -> None:
    """Its lengths describe a body that does not come; bytes that do come belong to nobody."""
    connection, exchange, _, pool = connect("HEAD")
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
    assert (exchange.status, exchange.buffered, pool.told) == (200, 0, ["drop"])


async def test_http_1_0_is_not_kept_alive() -> None:
    """Even where it says keep-alive: its framing is not trusted with a second answer."""
    connection, exchange, _, pool = connect()
    connection.data_received(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok")
    assert exchange.version == b"HTTP/1.0"
    assert pool.told == ["drop"]


async def test_a_request_still_unsent_spends_the_connection() -> None:
    """A provider that answered before it took the request may read the rest as the next one."""
    connection, exchange, transport, pool = connect()
    transport.unsent = 10
    connection.data_received(OK)
    assert exchange.is_complete
    assert pool.told == ["drop"]


# Backpressure.


async def test_reading_pauses_while_the_caller_lags() -> None:
    """Above the high water mark nothing is read until the caller has drained the buffer; no clock runs meanwhile."""
    connection, exchange, transport, _ = connect(timeouts=WireTimeouts(read_s=5.0))
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    connection.data_received(b"a" * HIGH_WATER_BYTES)
    assert not transport.is_paused()
    assert connection.deadline == 5.0
    connection.data_received(b"a")
    assert transport.is_paused()
    assert connection.deadline == inf
    assert len(await anext(exchange)) == HIGH_WATER_BYTES + 1
    assert not transport.is_paused()
    assert connection.deadline == 5.0


async def test_a_released_connection_reads_again() -> None:
    """A connection that was paused at its answer's end notices the provider closing it later."""
    connection, _, transport, pool = connect()
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"a" * 70_000)
    assert transport.is_paused()
    connection.data_received(b"a" * 30_000)  # TLS may still deliver what it had decrypted
    assert pool.told == ["release"]
    assert not transport.is_paused()


# Requests.


def request(**options: object) -> httpx.Request:
    return httpx.Request("POST", "http://provider:81/v1/x?y=z", **options)  # type: ignore[arg-type]  # any option


async def test_a_request_is_written_as_given() -> None:
    """Order and case of headers stay; the target is path and query."""
    outgoing = encode(request(headers=[("X-Two", "2"), ("x-one", "1")], content=b"{}"))
    assert outgoing.head == (
        b"POST /v1/x?y=z HTTP/1.1\r\nHost: provider:81\r\nX-Two: 2\r\nx-one: 1\r\nContent-Length: 2\r\n\r\n"
    )
    assert outgoing.body == b"{}"


class Stream(httpx.AsyncByteStream):
    pass


async def test_missing_framing_is_added() -> None:
    """A request built from a bare stream gets Host and a stated length."""
    assert encode(request(stream=httpx.ByteStream(b"abc"))).head == (
        b"POST /v1/x?y=z HTTP/1.1\r\nHost: provider:81\r\nContent-Length: 3\r\n\r\n"
    )
    assert encode(request(stream=Stream())).head == (
        b"POST /v1/x?y=z HTTP/1.1\r\nHost: provider:81\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    ipv6 = httpx.Request("GET", "http://[::1]:81/", stream=httpx.ByteStream(b""))
    assert encode(ipv6).head == b"GET / HTTP/1.1\r\nHost: [::1]:81\r\n\r\n"


async def test_bytes_can_be_sent_chunked() -> None:
    """A caller that says chunked gets one chunk."""
    outgoing = encode(request(headers={"transfer-encoding": "chunked"}, stream=httpx.ByteStream(b"abc")))
    assert outgoing.body == b"3\r\nabc\r\n0\r\n\r\n"


@rows(
    "headers",
    [
        [("content-length", "4")],
        [("content-length", "+3")],
        [("content-length", "3"), ("content-length", "3")],
        [("content-length", "3"), ("transfer-encoding", "chunked")],
        [("transfer-encoding", "gzip, chunked")],
        [("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
        [("x-a", "1\r\nx-b: 2")],
        [("x-a", "1\nx-b: 2")],
        [("x-a", "1\rx-b: 2")],
        [("x-a", "1\0")],
        [("x-a\r\nx-b", "2")],
        [("x a", "1")],
        [("x-a:", "1")],
        [("content-length ", "3")],
        [("", "1")],
    ],
)
async def test_an_ambiguous_request_is_not_sent(headers: list[tuple[str, str]]) -> None:
    """A request that two readers could read differently raises before a byte is written."""
    with pytest.raises(httpx.LocalProtocolError) as caught:
        encode(request(headers=headers, stream=httpx.ByteStream(b"abc")))
    assert phase_of(caught.value) == Phase.NOTHING_SENT


@rows("method", ["CONNECT", "GE T", "GÉT", "GET\r\nX: y", ""])
async def test_a_method_must_be_a_token(method: str) -> None:
    """So does CONNECT fail: there is no tunnel."""
    with pytest.raises(httpx.LocalProtocolError):
        encode(httpx.Request(method, "http://provider/"))


async def test_timeouts_are_read_from_the_extension() -> None:
    """`first_byte` falls back to `read`; None and absent are no limit."""
    given = {"connect": 1.0, "read": 2.0, "write": None}
    assert read_timeouts({"timeout": given}) == WireTimeouts(1.0, inf, inf, 2.0, 2.0)
    assert read_timeouts({"timeout": {**given, "first_byte": 9.0}}).first_byte_s == 9.0
    assert read_timeouts({}) == WireTimeouts()


async def test_a_foreign_error_is_judged_by_its_type() -> None:
    """Errors of other transports carry no phase."""
    assert phase_of(httpx.ConnectTimeout("")) == Phase.NOTHING_SENT
    assert phase_of(httpx.PoolTimeout("")) == Phase.NOTHING_SENT
    assert phase_of(httpx.ReadTimeout("")) == Phase.SENT
    assert phase_of(httpx.ReadError(""), answered=True) == Phase.ANSWERED
