"""One HTTP/1.1 connection: bytes in, bytes out, one exchange at a time.

`Http1Connection` is the asyncio protocol: it writes a request, parses the answer into an `Exchange`, which is the half
that the caller holds, and watches one deadline. It knows its pool only as `Pool`, and nothing of origins or waiting
callers. Invariant: after the answer's last byte, exactly one of `release` (clean) and
`drop` (anything else) is called, and no byte of one exchange can be read in another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Protocol

import httptools
import httpx

from gateway.core.http.client.connection.paced_socket import PacedSocket
from gateway.core.http.client.connection.turns import LoopTurns
from gateway.core.http.client.exchange.ending import closed_early, take_rest
from gateway.core.http.client.exchange.exchange import Exchange
from gateway.core.http.client.exchange.head import MAX_HEAD_BYTES
from gateway.core.http.client.exchange.reader import ResponseReader
from gateway.core.http.client.exchange.upload import PIECE_BYTES, Upload
from gateway.core.http.client.exchange.wire import EncodedRequest, WireTimeouts
from gateway.core.http.client.wire.redaction.phase import with_phase
from gateway.core.types.exchange import Signs
from gateway.core.types.provider_errors import Phase

HIGH_WATER_BYTES = 4 * 1024
"""Unread body above this stops reading from the provider until the caller has drained it, and it is the connection's turn."""
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


class Http1Connection(PacedSocket):
    """The protocol of one connection; `expire` is called when its deadline has passed."""

    __slots__ = (
        "_pool",
        "_read_buffer",
        "_reader",
        "get_buffer",
        "new_future",
        "was_used",
    )

    def __init__(self, pool: Pool, now: Callable[[], float]) -> None:
        super().__init__(pool.turns, now)
        self._pool = pool
        # The loop is looked up once, because that is a system call on Python 3.11.
        self.new_future: Callable[[], asyncio.Future[bytes]] = asyncio.get_running_loop().create_future
        # Where the loop reads into: left to itself it takes up to 256 KiB at once, for each slow reader. It asks before each
        # read how much room there is for so many bytes; that number is `getattr`'s default, which is never needed.
        self.get_buffer = partial(getattr, pool, "read_buffer")  # type: ignore[method-assign]  # a call less in each read
        self._read_buffer = pool.read_buffer
        self._reader = ResponseReader()
        self.was_used = False

    # What the pool does with it.

    def start(self, outgoing: EncodedRequest, timeouts: WireTimeouts, signs: Signs | None = None) -> Exchange:
        """Write the request and return its exchange. The connection must be open and unused."""
        now, body = self._now(), outgoing.body
        can_replay = self.was_used and body is not None
        exchange = self._exchange = Exchange(self, timeouts, now + STALE_WITHIN_S if can_replay else -inf, signs)
        self.was_used = True
        self._reader.begin(exchange, expects_body=outgoing.expects_body)
        if body is not None and len(body) <= PIECE_BYTES:
            self._is_sent = True
            self.deadline = now + timeouts.first_byte_s
            self.transport.write(outgoing.head + body)
        else:
            self._is_sent = False
            self.deadline = inf
            self.transport.write(outgoing.head)
            self._upload = Upload(self, outgoing)
        return exchange

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
        self._stop_upload()
        if isinstance(error, httpx.TransportError) and not hasattr(error, "phase"):
            is_answered = exchange.status or self._reader.has_status_line()
            with_phase(error, Phase.ANSWERED if is_answered else Phase.SENT)
        if is_stale:
            exchange.is_stale = True
            self.abort()
        else:
            self.discard()
        exchange.finish(error)

    # asyncio callbacks.

    def data_received(self, data: bytes) -> None:
        """Take bytes that are not in the pool's buffer."""
        self.buffer_updated(len(data), data)

    def buffer_updated(self, nbytes: int, data: bytes | None = None) -> None:
        """Take so many bytes from the pool's buffer; `data` are those that came elsewhere."""
        if data is None:
            data = bytes(self._read_buffer[:nbytes])
        exchange, reader = self._exchange, self._reader
        if exchange is None:
            # Bytes nobody asked for would be read as the answer to the next request.
            self._close_unused()
            return
        if not exchange.status:
            if not reader.unfruitful_bytes and data[0] != 72:  # "H"
                # The parser also speaks ICE/ and RTSP/, and skips empty lines.
                self._refuse("the answer does not begin with HTTP/")
                return
            reader.head_parts.append(data)
        reader.unfruitful_bytes += nbytes
        refusal: Exception | None = None
        try:
            reader.feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            refusal, reader.is_clean = exc, False
        arrived, size = reader.arrived, 0
        if arrived:
            block = arrived[0] if len(arrived) == 1 else b"".join(arrived)
            arrived.clear()
            reader.unfruitful_bytes, size = 0, len(block)
            exchange.bring(block)  # also where something is wrong behind it
        if reader.is_complete:
            self._finish(exchange)
        elif refusal is not None:
            self._refuse(str(refusal.__context__ or refusal))
        elif reader.unfruitful_bytes > MAX_HEAD_BYTES:
            self._refuse(f"the answer's head, chunk header or trailers exceed {MAX_HEAD_BYTES} bytes")
        elif exchange.status:
            if size > HIGH_WATER_BYTES or exchange.buffered > HIGH_WATER_BYTES:
                exchange.compact()
                self.deadline = inf
                if not self.is_reading_paused:
                    self.is_reading_paused = True
                    self.transport.pause_reading()
            else:
                self.deadline = self._now() + exchange.timeouts.read_s
            if not exchange.opening.done():
                self._stop_upload()  # whoever answers before it has everything wants no more
                exchange.opening.set_result(b"")
        else:  # a 1xx, or a part of the head
            if reader.has_interim:  # the provider works on the request, so the first-byte clock starts again
                reader.has_interim = False
                self._set_deadline()
            if exchange.signs is not None:
                exchange.signs.sign_at = self._now()

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
        self.is_closed = True
        self._reader.close()

    # The ends of an exchange.

    def _finish(self, exchange: Exchange) -> None:
        """Hand the connection on as soon as the last byte is parsed, before the caller has read it."""
        self._exchange = None
        if self._upload is not None:
            self._stop_upload()
        if self._reader.is_clean and self._is_sent and not self.transport.get_write_buffer_size():
            if self.is_reading_paused:
                self.is_reading_paused = False
                self.transport.resume_reading()
            self._pool.release(self)
        else:
            self.discard()
        exchange.finish(None)

    def _end(self, exc: Exception | None) -> None:
        """The provider closed, or the socket broke."""
        is_said = True
        if self._tls is not None and self._exchange is not None:
            self._reader.is_clean = False
            is_said = take_rest(self._tls, self._take_late)
        exchange = self._exchange
        if exchange is None:
            self._close_unused()
        elif exchange.status and self._reader.ends_with_connection and exc is None and is_said:
            self._reader.is_clean = False
            self._finish(exchange)
        else:
            is_silent = not exchange.status and not self._reader.unfruitful_bytes
            is_stale = is_silent and self._now() < exchange.replay_until
            if exc is not None:
                kind = httpx.ReadError if self._is_sent or exchange.status else httpx.WriteError
                error: httpx.TransportError = kind(f"the connection broke: {exc}")
                error.__cause__ = exc
            else:
                is_open_ended = bool(exchange.status) and self._reader.ends_with_connection
                error = closed_early(is_silent=is_silent, is_open_ended=is_open_ended)
            self.fail(error, is_stale=is_stale)

    def _take_late(self, data: bytes) -> bool:
        """Take what TLS still held, and tell whether the answer wants more."""
        self.data_received(data)
        return self._exchange is not None

    def _refuse(self, reason: str) -> None:
        self.fail(httpx.RemoteProtocolError(f"bad answer: {reason}"))

    def _close_unused(self) -> None:
        self.abort()
        self._pool.closed_while_unused(self)

    # What the upload tells.

    def uploaded(self, error: BaseException | None) -> None:
        """The request's body has gone out, or cannot."""
        self._upload = None
        if error is None:
            self._is_sent = True
            self._set_deadline()
        else:
            self.fail(error)

    def _stop_upload(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.stop()
