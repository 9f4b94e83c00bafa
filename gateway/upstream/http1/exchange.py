"""One request and its answer over HTTP/1.1, from the caller's side: wait for the head, then iterate the body.

The connection feeds it (`add`, `finish`) and may serve the next request while the last chunks of this one are unread. It
knows nothing of bytes on the wire. Invariant: giving it up before its end closes the connection, at whatever await.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import httpx

from gateway.exchange import RawHeaders, Signs
from gateway.upstream.http1.wire import WireTimeouts


class Carrier(Protocol):
    """The connection that carries an exchange."""

    @property
    def new_future(self) -> Callable[[], asyncio.Future[None]]: ...
    def resume_reading(self) -> None: ...
    def fail(self, error: BaseException) -> None:
        """Close it; who waits for the answer hears the error."""
        ...


class Exchange(httpx.AsyncByteStream):
    """One request and its answer, seen by the caller; iterating it yields the body as it arrives.

    Chunks that arrived since the last step come as one; `is_complete` after a step says that it was the last. Raises
    httpx errors of phase `ANSWERED`. A caller that is cancelled, or calls `aclose` early, closes the connection.
    """

    __slots__ = (
        "_chunks",
        "_connection",
        "_new_future",
        "_waiter",
        "buffered",
        "error",
        "headers",
        "is_complete",
        "is_stale",
        "reason",
        "replay_until",
        "signs",
        "status",
        "timeouts",
        "version",
    )

    def __init__(self, connection: Carrier, timeouts: WireTimeouts, replay_until: float) -> None:
        self._connection: Carrier | None = connection  # None once the connection is done with this exchange
        self._chunks: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._new_future = connection.new_future
        self.buffered = 0
        self.error: BaseException | None = None
        self.headers: RawHeaders = []
        self.is_complete = False
        self.is_stale = False  # a kept-alive connection was already dead: nothing answered, safe to send again
        self.reason = b""
        self.signs: Signs | None = None
        self.replay_until = replay_until  # of the connection's `now`; a silent end before makes it stale
        self.status = 0  # 0 until the head is complete
        self.timeouts = timeouts
        self.version = b""

    async def head(self) -> None:
        """Wait until the answer's head has come (`status`) or cannot come (`error`)."""
        try:
            while not self.status and self.error is None:
                await self._next_news()
        except BaseException:
            self.abandon()
            raise

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._chunks:
            if self.is_complete:
                raise StopAsyncIteration
            if self.error is not None:
                raise self.error
            try:
                await self._next_news()
            except BaseException:
                self.abandon()
                raise
        chunks = self._chunks
        chunk = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.buffered = 0
        if self._connection is not None:
            self._connection.resume_reading()
        return chunk

    def whole(self) -> bytes | None:
        """The body, when all of it is here and none has been read; the connection has been handed on already."""
        if not self.is_complete:
            return None
        chunks = self._chunks
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def aclose(self) -> None:
        """Finish with the answer; before its end this closes the connection at once."""
        self.abandon()

    def abandon(self) -> None:
        """Give the answer up: the connection is closed unless the answer is already complete."""
        if self._connection is not None:
            self._connection.fail(httpx.StreamClosed())

    def _next_news(self) -> asyncio.Future[None]:
        self._waiter = self._new_future()
        return self._waiter

    # What the connection tells.

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self.buffered += len(chunk)

    def compact(self) -> None:
        """Make one of what is unread: it may stay for long, and each small chunk takes 33 bytes more than it has."""
        if len(self._chunks) > 1:
            self._chunks[:] = (b"".join(self._chunks),)

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def finish(self, error: BaseException | None) -> None:
        self._connection = None
        self.error = error
        self.is_complete = error is None
        self.wake()
