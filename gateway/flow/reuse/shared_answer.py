"""One answer in the making, for any number of readers: who comes late gets what is there at once and follows live.

    land (whole) | begin -> add -> … -> end      by the one who flies
    enter -> opened -> reply -> (chunks) -> leave    by each reader

It must not know how an answer is got, nor what is kept of it. Invariants: every reader gets the same bytes from the first one
on; a reader that leaves disturbs nobody, the last one that leaves cancels the work; what is buffered is bounded: beyond its
room a flight takes no more readers, waits for the fastest, and lets go of those who are far behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from copy import copy

from gateway.call import Call, Reply
from gateway.errors import DeadlineExceeded, GatewayError
from gateway.flow.raw_relay import StreamBroken, why_stopped
from gateway.flow.settle import CLIENT_GONE

PIECE_BYTES = 65_536
"""Who comes late gets what is there in pieces of about this size."""
SLOW_READER = "slow_client"
"""The outcome of a call whose client was let go because others waited for it."""


class AnswerReader:
    """One who waits for, or reads, the answer of a flight."""

    __slots__ = ("at", "is_cut", "outcome", "turn")

    def __init__(self) -> None:
        self.at = 0
        """How many chunks it has taken."""
        self.is_cut = False
        self.outcome = CLIENT_GONE
        """How its reading has ended; until then, how it would if it left now."""
        self.turn: asyncio.Future[None] | None = None
        """While it waits for news."""

    def wake(self) -> None:
        """There is news."""
        turn, self.turn = self.turn, None
        if turn is not None and not turn.done():
            turn.set_result(None)


class Flight:
    """The answer of `call`, shared. `task` is set by whoever starts it."""

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
        "is_abandoned",
        "is_ended",
        "keys",
        "reply",
        "task",
    )

    def __init__(self, call: Call, room: int) -> None:
        """`room` is how many bytes of a stream it may hold."""
        self.call = call
        self.keys: tuple[bytes, ...] = ()
        """Under which others find it."""
        self.fingerprint = b""
        self.task: asyncio.Task[None] | None = None
        self.reply: Reply | None = None
        """Once the answer has begun."""
        self.error: BaseException | None = None
        """Why there is none, or why it breaks off."""
        self.is_ended = False
        self.is_abandoned = False
        """Its last reader has left before its end, and it is being stopped."""
        self._room = room
        self._chunks: list[bytes] = []
        self._dropped = 0  # chunks that everybody has taken, where there is no room for them
        self._size = 0
        self._readers: set[AnswerReader] = set()
        self._producer_waiter: asyncio.Future[None] | None = None

    @property
    def takes_readers(self) -> bool:
        """Whether somebody new would get all of it."""
        return not (self._dropped or self.is_abandoned or (self.is_ended and self.reply is None))

    @property
    def has_begun(self) -> bool:
        """The answer is there, or on its way."""
        return self.reply is not None

    # --- who flies ---

    def complete_whole(self, reply: Reply) -> None:
        """The answer is there, all of it."""
        self.reply = reply
        self._end()

    def begin(self, reply: Reply) -> None:
        """The answer has begun; its chunks follow with `add`."""
        self.reply = reply
        self._wake()

    async def add(self, chunk: bytes) -> None:
        """The next piece; waits where nobody has read for long."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        self._wake()
        if self._size > self._room:
            await self._make_room()

    def end(self, error: BaseException | None = None) -> None:
        """There is nothing more; with an `error` the answer is none, or breaks off."""
        self.error = error
        self._end()

    def body(self) -> bytes | None:
        """All of it, once it has ended; None: too large to be kept."""
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
        """Forget what everybody has taken; who is further behind than there is room for, while another waits, is cut."""
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

    # --- who reads ---

    def enter(self) -> AnswerReader:
        """Somebody waits for it."""
        reader = AnswerReader()
        self._readers.add(reader)
        return reader

    def leave(self, reader: AnswerReader, why: str) -> bool:
        """The reader wants no more; the last one takes the work with it, unless that is done. True: it was the last."""
        self._readers.discard(reader)
        self._resume()
        if self._readers:
            return False
        if not self.is_ended and self.task is not None:
            self.is_abandoned = True
            self.task.cancel(why)
        return True

    async def opened(self, reader: AnswerReader) -> None:
        """Wait until the answer has begun. Raises the GatewayError that there is instead."""
        while self.reply is None and not self.is_ended:
            await self._news(reader)
        if self.reply is None:
            self._raise()

    async def chunks(self, reader: AnswerReader) -> AsyncGenerator[bytes, None]:
        """The answer from its first byte, as it comes. Raises StreamBroken where it breaks off."""
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
        """What comes next for it: no more than a socket takes well, for what a reader holds nobody else can let go."""
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
        """Each reader gets an error of its own: a traceback belongs to one task."""
        error = self.error
        if isinstance(error, GatewayError):
            own = copy(error)
            own.__cause__ = error.__cause__
            raise own
        raise StreamBroken("the answer broke off")


def time_is_up(reader: AnswerReader) -> None:
    """Let a reader go whose own deadline has passed."""
    turn, reader.turn = reader.turn, None
    if turn is not None and not turn.done():
        turn.set_exception(DeadlineExceeded("The deadline passed before the call that this one repeats was answered."))
