"""One answer in the making for any number of readers: a late reader gets all that has come so far at once, then follows live.

    complete_whole | begin -> add -> … -> end             by the producer
    enter -> opened -> reply -> (chunks) -> leave         by each reader

It must not know how an answer is got, nor what is stored of it. Invariants: every reader gets the same bytes from the first
one on; a reader that leaves disturbs no other, and the last one that leaves cancels the work; the buffer is bounded: beyond
its bound the answer takes no more readers, waits for the fastest, and drops readers that are far behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from copy import copy

from gateway.core.call import Call, Reply
from gateway.core.errors import DeadlineExceeded, GatewayError
from gateway.core.ledger.settle import CLIENT_GONE, why_stopped
from gateway.core.relay.raw_relay import StreamBroken

PIECE_BYTES = 65_536
"""A late reader gets the buffered chunks in pieces of about this size."""
SLOW_READER = "slow_client"
"""The outcome of a call whose slow client was dropped because others waited for it."""


class AnswerReader:
    """One reader of a shared answer, or one that waits for its beginning."""

    __slots__ = ("at", "is_cut", "outcome", "turn")

    def __init__(self) -> None:
        self.at = 0
        """The number of chunks that the reader has taken."""
        self.is_cut = False
        self.outcome = CLIENT_GONE
        """The outcome of the reading; before its end, the outcome if the reader left now."""
        self.turn: asyncio.Future[None] | None = None
        """The future that the reader waits on for more chunks; None: it is not waiting."""

    def wake(self) -> None:
        """Wakes the reader: there are more chunks, or the end."""
        turn, self.turn = self.turn, None
        if turn is not None and not turn.done():
            turn.set_result(None)


class SharedAnswer:
    """The answer of the leader `call`, shared with other readers. `task` is set by the code that starts it."""

    __slots__ = (
        "_chunks",
        "_dropped",
        "_producer_waiter",
        "_readers",
        "_room",
        "_size",
        "call",
        "error",
        "fingerprint",
        "goes_on",
        "is_abandoned",
        "is_ended",
        "keys",
        "reply",
        "task",
    )

    def __init__(self, call: Call, room: int, *, goes_on: bool = False) -> None:
        """`room` is the number of bytes of a stream that the answer may buffer; `goes_on`: also when nobody reads it."""
        self.call = call
        self.goes_on = goes_on
        self.keys: tuple[bytes, ...] = ()
        """The keys under which other calls find the answer."""
        self.fingerprint = b""
        self.task: asyncio.Task[None] | None = None
        self.reply: Reply | None = None
        """The reply, once the answer has begun."""
        self.error: BaseException | None = None
        """The error that replaces the answer, or that breaks it off."""
        self.is_ended = False
        self.is_abandoned = False
        """The last reader has left before the end, and the work is being stopped."""
        self._room = room
        self._chunks: list[bytes] = []
        self._dropped = 0  # chunks freed from the full buffer, because every reader has taken them
        self._size = 0
        self._readers: set[AnswerReader] = set()
        self._producer_waiter: asyncio.Future[None] | None = None

    @property
    def takes_readers(self) -> bool:
        """Returns whether a new reader would get the whole answer."""
        return not (self._dropped or self.is_abandoned or (self.is_ended and self.reply is None))

    @property
    def has_begun(self) -> bool:
        """Returns whether the answer has begun."""
        return self.reply is not None

    # --- producing ---

    def complete_whole(self, reply: Reply) -> None:
        """Sets a reply that is complete at once, and ends the answer."""
        self.reply = reply
        self._end()

    def begin(self, reply: Reply) -> None:
        """Sets the reply of a stream; its chunks follow with `add`."""
        self.reply = reply
        self._wake()

    async def add(self, chunk: bytes) -> None:
        """Adds the next chunk; waits while the buffer is full and every reader is behind."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        self._wake()
        if self._size > self._room:
            await self._make_room()

    def end(self, error: BaseException | None = None) -> None:
        """Ends the answer; an `error` replaces it, or breaks it off."""
        self.error = error
        self._end()

    def body(self) -> bytes | None:
        """Returns the whole body of an answer that has ended; None: it was too large to be buffered."""
        if self._dropped or self.reply is None:
            return None
        return self.reply.body if self.reply.chunks is None else b"".join(self._chunks)

    def _end(self) -> None:
        self.is_ended = True
        self._wake()

    def _wake(self) -> None:
        for reader in self._readers:
            if reader.turn is not None:
                reader.wake()

    async def _make_room(self) -> None:
        """Frees the chunks that every reader has taken; drops the slowest while the buffer is full and another reader waits."""
        while self._readers:
            slowest = min(reader.at for reader in self._readers)
            gone = self._chunks[: slowest - self._dropped]
            del self._chunks[: slowest - self._dropped]
            self._dropped = slowest
            self._size -= sum(map(len, gone))
            if self._size <= self._room:
                return
            ahead = self._dropped + len(self._chunks)
            if any(reader.at == ahead for reader in self._readers):
                self._cut(slowest)
            else:
                self._producer_waiter = asyncio.get_running_loop().create_future()
                await self._producer_waiter

    def _cut(self, slowest: int) -> None:
        for reader in [one for one in self._readers if one.at == slowest]:
            reader.is_cut = True
            self._readers.discard(reader)
            reader.wake()

    # --- reading ---

    def enter(self) -> AnswerReader:
        """Adds a reader."""
        reader = AnswerReader()
        self._readers.add(reader)
        return reader

    def leave(self, reader: AnswerReader, why: str) -> bool:
        """Removes a reader; the last one cancels the work, unless that is done or goes on. Returns whether it was the last."""
        self._readers.discard(reader)
        self._resume()
        if self._readers or self.goes_on:
            return False
        if not self.is_ended and self.task is not None:
            self.is_abandoned = True
            self.task.cancel(why)
        return True

    async def opened(self, reader: AnswerReader) -> None:
        """Waits until the answer has begun. Raises the GatewayError that replaces it."""
        while self.reply is None and not self.is_ended:
            await self._news(reader)
        if self.reply is None:
            self._raise()

    async def chunks(self, reader: AnswerReader) -> AsyncGenerator[bytes, None]:
        """Yields the answer from its first byte, as it comes. Raises StreamBroken where it breaks off."""
        try:
            while True:
                if reader.is_cut:
                    raise StreamBroken("the client has fallen too far behind others that read the same answer")
                if reader.at - self._dropped < len(self._chunks):
                    piece = self._take(reader)
                    if self._producer_waiter is not None:
                        self._resume()
                    yield piece
                elif not self.is_ended:
                    await self._news(reader)
                elif self.error is not None:
                    self._raise()
                else:
                    reader.outcome = self.call.outcome
                    return
        except StreamBroken:
            reader.outcome = SLOW_READER if reader.is_cut else self.call.outcome
            raise
        except asyncio.CancelledError as stopped:
            reader.outcome = why_stopped(stopped)
            raise

    def _take(self, reader: AnswerReader) -> bytes:
        """Returns the next piece for the reader, about as large as a socket takes: what no reader holds can be freed."""
        chunks, start = self._chunks, reader.at - self._dropped
        end, size = start, 0
        while end < len(chunks) and size < PIECE_BYTES:
            size += len(chunks[end])
            end += 1
        reader.at += end - start
        return chunks[start] if end - start == 1 else b"".join(chunks[start:end])

    async def _news(self, reader: AnswerReader) -> None:
        turn = reader.turn = asyncio.get_running_loop().create_future()
        await turn

    def _resume(self) -> None:
        producer_waiter, self._producer_waiter = self._producer_waiter, None
        if producer_waiter is not None and not producer_waiter.done():
            producer_waiter.set_result(None)

    def _raise(self) -> None:
        """Raises a copy of the error for each reader, because a traceback belongs to one task."""
        error = self.error
        if isinstance(error, GatewayError):
            own = copy(error)
            own.__cause__ = error.__cause__
            raise own
        raise StreamBroken("the answer broke off")


def time_is_up(reader: AnswerReader) -> None:
    """Ends the waiting of a reader whose own deadline has passed."""
    turn, reader.turn = reader.turn, None
    if turn is not None and not turn.done():
        turn.set_exception(DeadlineExceeded("The deadline passed before the call that this one repeats was answered."))
