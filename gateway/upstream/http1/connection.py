"""One HTTP/1.1 connection: bytes in, bytes out, one exchange at a time.

`Http1Connection` is the asyncio protocol: it writes a request, parses the answer into an `Exchange`, which is the half
that the caller holds, and watches one deadline. It knows its pool only as `Pool`, and nothing of origins or waiting
callers. Invariant: after the answer's last byte, exactly one of `release` (clean) and
`drop` (anything else) is called, and no byte of one exchange can be read in another.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from math import inf
from typing import Any, Protocol

import httptools
import httpx

from gateway.errors import Phase
from gateway.splice import pieces_of
from gateway.upstream.http1.exchange import Exchange
from gateway.upstream.http1.turns import LoopTurns
from gateway.upstream.http1.wire import (
    MAX_HEAD_BYTES,
    EncodedRequest,
    WireTimeouts,
    accept_head,
    ends_with_connection,
    head_size,
)
from gateway.upstream.phase import with_phase

HIGH_WATER_BYTES = 4 * 1024
"""Unread body above this stops reading from the provider until the caller has drained it, and it is the connection's turn."""
PIECE_BYTES = 64 * 1024  # a longer request body is written in pieces, each within the write timeout
MAX_INTERIM_ANSWERS = 100
STALE_WITHIN_S = 1.0
"""A peer that had closed before it was written to says so within a round trip. One that closes later may have worked on
the request, and is not made to work twice."""


class Pool(Protocol):
    """What a connection tells its pool, the one buffer that all its connections read into, and who may read on when."""

    read_buffer: memoryview
    turns: LoopTurns

    def release(self, connection: Http1Connection) -> None: ...
    def drop(self, connection: Http1Connection) -> None: ...
    def closed_while_unused(self, connection: Http1Connection) -> None: ...


class Http1Connection(asyncio.BufferedProtocol):
    """The protocol of one connection. `deadline` (of `now`) is the only timer; `expire` is called when it passed."""

    __slots__ = (
        "_drained",
        "_ends_with_connection",
        "_exchange",
        "_expects_body",
        "_headers",
        "_interim_answers",
        "_is_clean",
        "_is_complete",
        "_is_reading_paused",
        "_is_sent",
        "_is_writing_paused",
        "_now",
        "_parser",
        "_pool",
        "_reason",
        "_tls",
        "_transport",
        "_unfruitful_bytes",
        "_writer",
        "deadline",
        "is_closed",
        "new_future",
        "was_used",
    )

    def __init__(self, pool: Pool, now: Callable[[], float]) -> None:
        self._pool = pool
        self._now = now
        self.new_future = (
            asyncio.get_running_loop().create_future
        )  # looking the loop up is a system call on Python 3.11
        self._transport: Any = None  # asyncio.Transport; uvloop's share no base class with it
        self._tls: ssl.SSLObject | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._writer: asyncio.Task[None] | None = None  # only for bodies that do not fit into one write
        self._drained: asyncio.Future[None] | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._reason = b""
        self._interim_answers = 0
        self._unfruitful_bytes = 0  # received since the start of the head or the last body byte
        self._expects_body = True
        self._ends_with_connection = False
        self._is_complete = False  # the answer's last byte has been parsed
        self._is_clean = False  # nothing follows it, and the provider keeps the connection open
        self._is_sent = False  # the whole request has been given to the transport
        self._is_reading_paused = False
        self._is_writing_paused = False
        self.deadline = inf
        self.is_closed = False
        self.was_used = False

    # What the pool does with it.

    def start(self, outgoing: EncodedRequest, timeouts: WireTimeouts) -> Exchange:
        """Write the request and return its exchange. The connection must be open and unused."""
        can_replay = self.was_used and outgoing.body is not None
        exchange = Exchange(self, timeouts, self._now() + STALE_WITHIN_S if can_replay else -inf)
        self._exchange = exchange
        self.was_used = True
        self._headers = []
        self._reason = b""
        self._interim_answers = self._unfruitful_bytes = 0
        self._expects_body = outgoing.expects_body
        self._is_complete = self._is_sent = False
        self._is_clean = True
        body = outgoing.body
        if body is not None and len(body) <= PIECE_BYTES:
            self._is_sent = True
            self._transport.write(outgoing.head + body)
        else:
            self._transport.write(outgoing.head)
            self._writer = asyncio.get_running_loop().create_task(self._write_body(outgoing))
            self._writer.add_done_callback(self._body_written)
        self._set_deadline()
        return exchange

    def is_usable(self) -> bool:
        """Tell whether a request can be written; a broken transport knows before `connection_lost` says so."""
        return not self.is_closed and not self._transport.is_closing()

    def expire(self) -> None:
        """Act on a passed deadline: an unused connection is closed, a waiting exchange fails."""
        if self._exchange is None:
            self._close_unused()
        elif self._is_writing_paused:
            self.fail(httpx.WriteTimeout("the provider did not take the request's next bytes in time"))
        elif not self._exchange.status:
            self.fail(httpx.ReadTimeout("the provider did not begin to answer in time"))
        else:
            self.fail(httpx.ReadTimeout("the provider's answer stalled"))

    def abort(self) -> None:
        """Close the socket now, without flushing; the pool is not told."""
        self.is_closed = True
        self.deadline = inf
        if self._transport is not None:
            self._transport.abort()

    def discard(self) -> None:
        """Close the connection and give its place in the pool back; may be called again."""
        self.abort()
        self._pool.drop(self)

    def fail(self, error: BaseException, *, is_stale: bool = False) -> None:
        """End the exchange with `error` and close; a stale connection's place is kept for its replacement."""
        exchange = self._exchange
        if exchange is None:
            return
        self._exchange = None
        self._stop_writing()
        if isinstance(error, httpx.TransportError) and not hasattr(error, "phase"):
            is_answered = exchange.status or self._reason
            with_phase(error, Phase.ANSWERED if is_answered else Phase.SENT)
        if is_stale:
            exchange.is_stale = True
            self.abort()
        else:
            self.discard()
        exchange.finish(error)

    # asyncio callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._tls = transport.get_extra_info("ssl_object")
        if self.is_closed:  # given up while the handshake was finishing
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the loop reads into: left to itself it takes up to 256 KiB at once, for each slow reader."""
        return self._pool.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._pool.read_buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            # Bytes nobody asked for would be read as the answer to the next request.
            self._close_unused()
            return
        if not (self._unfruitful_bytes or exchange.status) and data[0] != 72:  # "H"
            # The parser also speaks ICE/ and RTSP/, and skips empty lines.
            self._refuse("the answer does not begin with HTTP/")
            return
        self._unfruitful_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            if not self._is_complete:
                self._refuse(str(exc.__context__ or exc))
                return
            self._is_clean = False
        if self._is_complete:
            self._finish(exchange)
        elif self._unfruitful_bytes > MAX_HEAD_BYTES:
            self._refuse(f"the answer's head, chunk header or trailers exceed {MAX_HEAD_BYTES} bytes")
        elif exchange.status:
            exchange.wake()
            if exchange.buffered > HIGH_WATER_BYTES:
                exchange.compact()
                self._pause_reading()
            self._set_deadline()
        elif exchange.signs is not None:  # a 1xx, or a part of the head
            exchange.signs.sign_at = self._now()

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
        self.is_closed = True
        self._parser = None  # it holds our bound methods: a cycle

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        self._set_deadline()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._set_deadline()

    # Parser callbacks. What they raise stops the parser; `data_received` tells why.

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise httpx.RemoteProtocolError("bytes follow the answer")

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        exchange, parser, headers = self._exchange, self._parser, self._headers
        if exchange is None:
            return
        status = parser.get_status_code()
        version = accept_head(status, parser.get_http_version(), self._reason)
        if self._unfruitful_bytes > MAX_HEAD_BYTES and head_size(self._reason, headers) > MAX_HEAD_BYTES:
            raise httpx.RemoteProtocolError(f"the answer's head exceeds {MAX_HEAD_BYTES} bytes")
        self._headers = []  # trailers land here and are forgotten
        if status < 200:
            return
        self._unfruitful_bytes = 0
        has_body = self._expects_body and status != 204 and status != 304
        self._ends_with_connection = has_body and ends_with_connection(headers)
        if version == b"HTTP/1.0":
            self._is_clean = False
        exchange.version, exchange.reason, exchange.headers = version, self._reason, headers
        exchange.status = status
        if self._writer is not None:
            self._stop_writing()
        if not self._expects_body:
            # The parser cannot be told that this length has no body, so this connection ends here.
            self._is_complete, self._is_clean = True, False
            raise httpx.RemoteProtocolError("an answer to HEAD has no body")

    def on_body(self, chunk: bytes) -> None:
        self._unfruitful_bytes = 0
        if self._exchange is not None:
            self._exchange.add(chunk)

    def on_message_complete(self) -> None:
        if self._exchange is not None and not self._exchange.status:
            self._interim_answer()
            return
        self._is_complete = True
        self._is_clean = self._is_clean and self._parser.should_keep_alive()

    def _interim_answer(self) -> None:
        """Forget a 1xx; it proves that the provider works on the request, so the first-byte clock starts again."""
        self._interim_answers += 1
        if self._interim_answers > MAX_INTERIM_ANSWERS:
            raise httpx.RemoteProtocolError(f"more than {MAX_INTERIM_ANSWERS} interim answers")
        self._reason = b""
        self._set_deadline()

    # The ends of an exchange.

    def _finish(self, exchange: Exchange) -> None:
        """Hand the connection on as soon as the last byte is parsed, before the caller has read it."""
        self._exchange = None
        if self._is_clean and self._is_sent and not self._transport.get_write_buffer_size():
            if self._is_reading_paused:
                self._is_reading_paused = False
                self._transport.resume_reading()
            self._pool.release(self)
        else:
            self.discard()
        exchange.finish(None)

    def _end(self, exc: Exception | None) -> None:
        """The provider closed, or the socket broke."""
        is_said = self._read_rest() if self._tls is not None and self._exchange is not None else True
        exchange = self._exchange
        if exchange is None:
            self._close_unused()
        elif exchange.status and self._ends_with_connection and exc is None and is_said:
            self._is_clean = False
            self._finish(exchange)
        else:
            is_silent = not exchange.status and not self._unfruitful_bytes
            is_stale = is_silent and self._now() < exchange.replay_until
            self.fail(self._why_ended(exchange, exc, is_silent), is_stale=is_stale)

    def _read_rest(self) -> bool:
        """Take what TLS still holds, and tell whether the provider's close_notify follows it.

        Without one anybody on the way can have cut the answer short (RFC 8446, 6.1). Neither loop tells the two ends apart
        by its callbacks, and both forget what is decrypted when the connection closes behind a reader who pauses.
        """
        tls, self._is_clean = self._tls, False
        try:
            while tls is not None and self._exchange is not None:
                data = tls.read(PIECE_BYTES)
                if not data:
                    return True
                self.data_received(data)
        except ssl.SSLError:  # wants more, which will not come; or what came is not of this session
            return False
        return False

    def _why_ended(self, exchange: Exchange, exc: Exception | None, is_silent: bool) -> httpx.TransportError:
        if exc is None:
            where = "without answering" if is_silent else "in the middle of its answer"
            if exchange.status and self._ends_with_connection:
                where = "without saying that its answer was over (TLS close_notify)"
            return httpx.RemoteProtocolError(f"the provider closed the connection {where}")
        kind = httpx.ReadError if self._is_sent or exchange.status else httpx.WriteError
        error = kind(f"the connection broke: {exc}")
        error.__cause__ = exc
        return error

    def _refuse(self, reason: str) -> None:
        self.fail(httpx.RemoteProtocolError(f"bad answer: {reason}"))

    def _close_unused(self) -> None:
        self.abort()
        self._pool.closed_while_unused(self)

    # Flow control and the clock.

    def _set_deadline(self) -> None:
        """Start the clock of the phase the exchange is in; no clock runs while the next move is the caller's."""
        exchange = self._exchange
        if exchange is None:
            return
        timeouts = exchange.timeouts
        if exchange.status:
            seconds = inf if self._is_reading_paused else timeouts.read_s
        elif self._is_writing_paused:
            seconds = timeouts.write_s
        else:
            seconds = timeouts.first_byte_s if self._is_sent else inf
        self.deadline = self._now() + seconds

    def _pause_reading(self) -> None:
        if not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, if reading was paused, as soon as it is this connection's turn: the caller has drained the buffer."""
        if self._is_reading_paused:
            self._pool.turns.ask(self)

    def read_on(self) -> None:
        """What `LoopTurns` calls."""
        if self._is_reading_paused and not self._transport.is_closing():
            self._is_reading_paused = False
            self._transport.resume_reading()
            self._set_deadline()

    # Request bodies that take more than one write.

    async def _write_body(self, outgoing: EncodedRequest) -> None:
        written, length = 0, outgoing.length
        async for piece in _pieces(outgoing):
            written += len(piece)
            if length is None and outgoing.stream is not None:
                piece = b"%x\r\n%b\r\n" % (len(piece), piece)
            elif length is not None and written > length:
                raise httpx.LocalProtocolError(f"the request's body is longer than the {length} bytes it declared")
            self._write(piece)
            if self._is_writing_paused:
                self._drained = asyncio.get_running_loop().create_future()
                await self._drained
                if self._exchange is not None and self._exchange.signs is not None:
                    self._exchange.signs.sign_at = self._now()  # it takes what it is sent
        if length is None and outgoing.stream is not None:
            self._write(b"0\r\n\r\n")
        elif length is not None and written < length:
            raise httpx.LocalProtocolError(f"the request's body ended {length - written} bytes early")

    def _write(self, data: bytes) -> None:
        if self._transport.is_closing():  # uvloop's raises a RuntimeError then
            raise httpx.WriteError("the connection broke while the request's body was written")
        self._transport.write(data)

    def _body_written(self, writer: asyncio.Task[None]) -> None:
        cancelled = httpx.WriteError("the request's body was cancelled by its source")
        error = cancelled if writer.cancelled() else writer.exception()
        if writer is not self._writer:
            return  # stopped on purpose
        self._writer = None
        if error is None:
            self._is_sent = True
            self._set_deadline()
        else:
            self.fail(error)

    def _stop_writing(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.cancel()


async def _pieces(outgoing: EncodedRequest) -> AsyncIterator[bytes]:
    if outgoing.body is not None:
        for piece in pieces_of(outgoing.body, PIECE_BYTES):
            yield piece
    elif outgoing.stream is not None:
        async for piece in outgoing.stream:
            if piece:  # an empty chunk would end the body
                yield piece
