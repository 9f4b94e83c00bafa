"""One HTTP/1.1 connection: bytes in, bytes out, one exchange at a time.

First whose turn it is to read on (`LoopTurns`), then the socket with its flow control and clock (`PacedSocket`), then
`Http1Connection`, the asyncio protocol: it writes a request, parses the answer into an `Exchange`, which is the half that
the caller holds, and watches one deadline. It knows its pool only as `Pool`, and nothing of origins or waiting callers.
Invariant: after the answer's last byte, exactly one of `release` (clean) and `drop` (anything else) is called, and no byte
of one exchange can be read in another.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Protocol

import httptools
import httpx

from gateway.core.http.client.exchange import (
    MAX_HEAD_BYTES,
    PIECE_BYTES,
    EncodedRequest,
    Exchange,
    ResponseReader,
    Upload,
    WireTimeouts,
    closed_early,
    take_rest,
)
from gateway.core.http.client.redaction import with_phase
from gateway.core.types import Phase, Progress

# --- turns: whose it is to read on ---


MOST_PIECES = 8
"""The pieces read in one turn of the loop, by all connections of the process together."""
LONG_TURN_S = 0.010
"""When a turn of the loop takes longer, fewer pieces fit into the next: their events are small, or the machine is busy."""


class TurnReader(Protocol):
    """A connection that has stopped reading."""

    def read_on(self) -> None: ...


class LoopTurns:
    """The readers that wait for their turn: streams that come faster than they are handled, a few in each turn of the loop.

    Each of them has brought a full piece, which is work for a millisecond. Three hundred of these in one turn of the loop
    would keep everybody else waiting for theirs: a health check takes several turns, a call a dozen. For one event loop. It
    must not know HTTP. Invariant: the others read on in later turns, in the order in which they asked.
    """

    __slots__ = ("_began", "_is_counting", "_left", "_most", "_now", "_waiting")

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._waiting: dict[TurnReader, None] = {}  # in the order of asking
        self._most = self._left = MOST_PIECES
        self._is_counting = False
        self._began = 0.0

    def ask(self, reader: TurnReader) -> None:
        """Call the reader's `read_on`: now, where this turn of the loop has room, else in a later one."""
        if not self._is_counting:
            self._is_counting = True
            self._began = self._now()
            asyncio.get_running_loop().call_soon(self._turn)
        # Whoever waits already comes first, however much room there is.
        if self._left > 0 and not self._waiting:
            self._left -= 1
            reader.read_on()
        else:
            self._waiting[reader] = None

    def _turn(self) -> None:
        """Once in each turn of the loop, as long as anybody asks."""
        waiting, now = self._waiting, self._now()
        if not waiting and self._left == self._most:  # nobody has asked since the last time
            self._is_counting = False
            self._most = self._left = MOST_PIECES
            return
        self._most = max(1, self._most // 2) if now - self._began > LONG_TURN_S else min(MOST_PIECES, self._most + 1)
        self._began, self._left = now, self._most
        # Before anybody reads on: an error in one reader must not end the turns of all.
        asyncio.get_running_loop().call_soon(self._turn)
        while waiting and self._left > 0:
            self._left -= 1
            reader = next(iter(waiting))
            # Before it reads: one that asks again gets a new place, at the end.
            del waiting[reader]
            reader.read_on()


# --- the socket under an HTTP/1.1 connection ---


class PacedSocket(asyncio.BufferedProtocol):
    """The flow control and the clock of one connection. `deadline` (of `now`) is the only timer; the pool looks at it.

    It holds what may be written and read now, and how long the next move may take. It must not know HTTP's grammar, nor the
    pool. Invariant: while the next move is the caller's, no clock runs.
    """

    __slots__ = (
        "_exchange",
        "_is_sent",
        "_is_writing_paused",
        "_now",
        "_tls",
        "_turns",
        "_upload",
        "deadline",
        "is_closed",
        "is_reading_paused",
        "transport",
    )

    def __init__(self, turns: LoopTurns, now: Callable[[], float]) -> None:
        self._turns = turns
        self._now = now
        self.transport: Any = None  # asyncio.Transport; uvloop's share no base class with it
        self._tls: ssl.SSLObject | None = None
        self._exchange: Exchange | None = None
        self._upload: Upload | None = None  # only for bodies that do not fit into one write
        self._is_sent = False  # the whole request has been given to the transport
        self._is_writing_paused = False
        self.is_reading_paused = False
        self.deadline = inf
        self.is_closed = False

    def is_usable(self) -> bool:
        """Return whether a request can be written; a broken transport knows before `connection_lost` says so."""
        return not self.is_closed and not self.transport.is_closing()

    def abort(self) -> None:
        """Close the socket now, without flushing; the pool gets no notice."""
        self.is_closed = True
        self.deadline = inf
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._tls = transport.get_extra_info("ssl_object")
        if self.is_closed:  # given up while the handshake was finishing
            self.transport.abort()

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        self._set_deadline()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        if self._upload is not None:
            self._upload.go_on()
        self._set_deadline()

    def _set_deadline(self) -> None:
        """Start the clock of the phase the exchange is in; no clock runs while the next move is the caller's."""
        exchange = self._exchange
        if exchange is None:
            return
        timeouts = exchange.timeouts
        if exchange.status:
            seconds = inf if self.is_reading_paused else timeouts.read_s
        elif self._is_writing_paused:
            seconds = timeouts.write_s
        else:
            # Until all is sent, the next piece has to come from the caller's source, which has no clock here.
            seconds = timeouts.first_byte_s if self._is_sent else inf
        self.deadline = self._now() + seconds

    def resume_reading(self) -> None:
        """Read on, if reading was paused, as soon as it is this connection's turn: the caller has drained the buffer."""
        if self.is_reading_paused:
            self._turns.ask(self)

    def read_on(self) -> None:
        """What `LoopTurns` calls."""
        if self.is_reading_paused and not self.transport.is_closing():
            self.is_reading_paused = False
            self.transport.resume_reading()
            self._set_deadline()

    @property
    def takes_more(self) -> bool:
        """Whether the socket takes bytes now."""
        return not self._is_writing_paused

    def write(self, data: bytes) -> None:
        """Write a piece of the request's body. Raises `httpx.WriteError` where the connection has broken."""
        if self.transport.is_closing():  # uvloop's raises a RuntimeError then
            raise httpx.WriteError("the connection broke while the request's body was written")
        self.transport.write(data)

    def gave_sign(self) -> None:
        """The provider takes what it is sent."""
        if self._exchange is not None and self._exchange.signs is not None:
            self._exchange.signs.last_activity_at = self._now()


# --- the connection ---

HIGH_WATER_BYTES = 4 * 1024
"""Unread body above this stops reading from the provider until the caller has drained it, and it is the connection's turn."""
STALE_WITHIN_S = 1.0
"""A peer that had closed before it was written to says so within a round trip. One that closes later may have worked on
the request, and is not made to work twice."""


class Pool(Protocol):
    """What a connection reports to its pool, the one buffer that all its connections read into, and who may read on when."""

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
        "ages_at",
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
        self.ages_at = inf
        """When the pool takes it back no more."""

    # What the pool does with it.

    def start(self, outgoing: EncodedRequest, timeouts: WireTimeouts, signs: Progress | None = None) -> Exchange:
        """Write the request and return its exchange. The connection must be open and unused."""
        now, body = self._now(), outgoing.body
        # Only a kept connection can have been dead before, and a body that comes as a stream is gone once it was sent.
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
        # First: closing the socket leads to `connection_lost`, which must not end this exchange again.
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
            # A copy: the next read of any connection of the pool goes into the same buffer.
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
        refusal: str | None = None  # not the exception, which holds this frame
        try:
            reader.feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            refusal, reader.is_clean = str(exc.__context__ or exc), False
        arrived, size = reader.arrived, 0
        if arrived:
            block = arrived[0] if len(arrived) == 1 else b"".join(arrived)
            arrived.clear()
            reader.unfruitful_bytes, size = 0, len(block)
            exchange.bring(block)  # also where something is wrong behind it
        # Before the refusal: an answer that has ended is whole, whatever is wrong behind it; that costs the connection.
        if reader.is_complete:
            self._finish(exchange)
        elif refusal is not None:
            self._refuse(refusal)
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
                exchange.signs.last_activity_at = self._now()

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
        # What is left of this request would be written in front of the next one.
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
        is_announced = True
        if self._tls is not None and self._exchange is not None:
            # The rest may complete the answer, and the pool must not get back a connection that has ended.
            self._reader.is_clean = False
            is_announced = take_rest(self._tls, self._take_late)
        # Only now: the rest of TLS may have ended the exchange.
        exchange = self._exchange
        if exchange is None:
            self._close_unused()
        elif exchange.status and self._reader.ends_with_connection and exc is None and is_announced:
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
        """Take what TLS still held, and return whether the answer wants more."""
        self.data_received(data)
        return self._exchange is not None

    def _refuse(self, reason: str) -> None:
        self.fail(httpx.RemoteProtocolError(f"bad answer: {reason}"))

    def _close_unused(self) -> None:
        self.abort()
        self._pool.closed_while_unused(self)

    # Called by the upload.

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
