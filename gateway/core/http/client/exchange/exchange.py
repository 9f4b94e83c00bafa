"""One request and its answer over HTTP/1.1, from the caller's side: wait for the head, then iterate the body.

An exchange is the `exchange.Answer` that the flow reads: nothing stands between the connection's parser and the relay. The
connection feeds it (`bring`, `finish`) and may serve the next request while the last bytes of this one are unread. It knows
nothing of bytes on the wire. Invariants: giving it up before its end closes the connection; what `mask_body` was told to
mask is masked before anybody can read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import httpx

from gateway.core.http.client.exchange.wire import WireTimeouts
from gateway.core.http.client.wire.redaction.redaction import MaskedChunks, Seam, Secrets
from gateway.core.types.exchange import RawHeaders, Signs, TappedChunks
from gateway.dialects.upstream.decoding import unpacked

TAP_BYTES = 2048
"""A longer block is for the reader: the connection stops behind one that is above its high-water mark until it is read."""


class Carrier(Protocol):
    """The connection that carries an exchange."""

    is_reading_paused: bool

    @property
    def new_future(self) -> Callable[[], asyncio.Future[bytes]]: ...
    def resume_reading(self) -> None: ...
    def fail(self, error: BaseException) -> None:
        """Close it; who waits for the answer hears the error."""
        ...


class Exchange(TappedChunks):
    """One request and its answer, seen by the caller; iterating it yields the body as it arrives.

    Await `opening` first: then either `status` says that the head has come, or `error` why it cannot come. Chunks that
    arrived since the last step come as one. Steps raise httpx errors of phase `ANSWERED`. Who stops reading early, or is
    cancelled, calls `aclose` (or `abandon`), which closes the connection.
    """

    __slots__ = (
        "_chunks",
        "_connection",
        "_new_future",
        "_seam",
        "_unpacked",
        "_waiter",
        "buffered",
        "error",
        "headers",
        "is_complete",
        "is_stale",
        "opening",
        "reason",
        "replay_until",
        "secrets",
        "signs",
        "status",
        "tap",
        "timeouts",
        "version",
        "whole",
    )

    def __init__(self, connection: Carrier, timeouts: WireTimeouts, replay_until: float, signs: Signs | None) -> None:
        self._connection: Carrier | None = connection  # None once the connection is done with this exchange
        self._chunks: list[bytes] = []
        self._waiter: asyncio.Future[bytes] | None = None  # of a step for which nothing has come yet
        self._new_future = connection.new_future
        self._seam: Seam | None = None
        self._unpacked: AsyncIterator[bytes] | None = None
        self.opening = connection.new_future()
        self.buffered = 0
        self.error: BaseException | None = None
        self.headers: RawHeaders = []
        self.is_complete = False
        self.is_stale = False  # a kept-alive connection was already dead: nothing answered, safe to send again
        self.reason = b""
        self.replay_until = replay_until  # of the connection's `now`; a silent end before makes it stale
        self.secrets: Secrets | None = None
        """What is masked again in a body that is unpacked: packed, nobody has seen it."""
        self.signs = signs
        self.status = 0  # 0 until the head is complete
        self.tap: Callable[[bytes], bool] | None = None
        self.timeouts = timeouts
        self.version = b""
        self.whole: bytes | None = None
        """The body, when all of it had come when the answer was handed out."""

    # What the flow reads.

    @property
    def chunks(self) -> AsyncIterator[bytes]:
        """The body, to be read once."""
        return self if self._unpacked is None else self._unpacked

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    def __anext__(self) -> asyncio.Future[bytes]:
        """The next step as a future, which costs a stream half of what a coroutine for each of its events would."""
        step = self._new_future()
        chunks, connection = self._chunks, self._connection
        if chunks:
            step.set_result(chunks[0] if len(chunks) == 1 else b"".join(chunks))
            chunks.clear()
            self.buffered = 0
        elif self.is_complete:
            step.set_exception(StopAsyncIteration())
        elif self.error is not None:
            step.set_exception(self.error)
        else:
            self._waiter = step
        if connection is not None and connection.is_reading_paused:
            connection.resume_reading()
        return step

    def unpack(self, codings: bytes) -> None:
        """Take the `content-encoding` off: the body is then to be read from `chunks`. Raises httpx.DecodingError."""
        self._unpacked, self.whole = unpacked(self, codings), None
        self.headers = [header for header in self.headers if header[0] not in (b"content-encoding", b"content-length")]
        if self.secrets is not None:
            self.secrets.guard(self)

    def mask_body(self, secrets: Secrets) -> None:
        """Mask these in what has come already, and in all that comes from now on."""
        if self._unpacked is not None:
            self._unpacked = MaskedChunks(self._unpacked, Seam(secrets))
            return
        come = b"".join(self._chunks)
        if self.is_complete:
            masked = secrets.mask(come)
            self.whole = None if self.whole is None else masked
        else:
            self._seam = Seam(secrets)
            masked = self._seam.feed(come)
        self._chunks = [masked] if masked else []
        self.buffered = len(masked)

    async def aclose(self) -> None:
        """Finish with the answer; before its end this closes the connection at once."""
        self.abandon()

    def abandon(self) -> None:
        """Give the answer up: the connection is closed unless the answer is already complete."""
        if self._connection is not None:
            self._connection.fail(httpx.StreamClosed())

    def keep_whole(self) -> None:
        """Give out the body with the head, as all of it is here and none has been read."""
        chunks = self._chunks
        self.whole = chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # What the connection tells.

    def bring(self, block: bytes) -> None:
        """The body's next bytes: for who waits, else to be kept until somebody does."""
        seam = self._seam
        if seam is not None:
            if seam.kept or block[-1:] in seam.ends:
                block = seam.feed(block)
            else:
                for probe in seam.probes:  # as `feed` looks, without a call: each event of each stream comes by
                    if block.replace(probe, probe) is not block:
                        block = seam.feed(block)
                        break
            if not block:
                return
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            tap = self.tap
            if tap is not None and len(block) < TAP_BYTES and tap(block):
                return  # whoever waits goes on waiting: to wake a task for each event is half of what the event costs
            self._waiter = None
            waiter.set_result(block)
        else:
            self._waiter = None
            self._chunks.append(block)
            self.buffered += len(block)

    def compact(self) -> None:
        """Make one of what is unread: it may stay for long, and each small chunk takes 33 bytes more than it has."""
        if len(self._chunks) > 1:
            self._chunks[:] = (b"".join(self._chunks),)

    def finish(self, error: BaseException | None) -> None:
        """Nothing more comes: the answer is complete, or has broken off."""
        self._connection = self.tap = None
        seam, self._seam = self._seam, None
        rest = b"" if seam is None else seam.end()
        if rest:
            self.bring(rest)
        self.error = error
        self.is_complete = error is None
        if not self.opening.done():
            self.opening.set_result(b"")
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_exception(StopAsyncIteration() if error is None else error)
