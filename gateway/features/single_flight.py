"""Single flight: equal calls that come at the same time share one answer; this finds it by key, joins calls, and settles them.

First one answer for any number of readers, then the flights. The leader is the call that gets the answer; it is settled by
the module that serves it, its followers are settled here. Invariants: a key leads to an answer that still takes readers, or
that has to be waited for; a task without readers is stopped; each call that joins is settled once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

from gateway.core.call import LED, Call, Reply, deciding_attempt
from gateway.core.clock import Clock
from gateway.core.errors import (
    BudgetExceeded,
    DeadlineExceeded,
    GatewayError,
    KeyRateLimited,
    QueueDeadlineExceeded,
    ShuttingDown,
    TargetsTimedOut,
    WaitTooLong,
)
from gateway.core.ledger import CLIENT_GONE, CLIENT_GONE_STATUS, Accounts, answer_headers, note_left, why_stopped
from gateway.core.relay import StreamBroken
from gateway.core.retry import shown
from gateway.dialects.last_word import LastWord
from gateway.features.outcome import OUTCOME, CacheOutcome

# --- one answer in the making for any number of readers ---

LEAST_ROOM = 1_048_576
"""The bytes of a stream that are buffered for late readers where no store wants more."""
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
    """The answer of the leader `call`, shared with other readers. `task` is set by the code that starts it.

        complete_whole | begin -> add -> … -> end             by the producer
        enter -> opened -> reply -> (chunks) -> leave         by each reader

    A late reader gets all that has come so far at once, then follows live. Invariants: every reader gets the same bytes from
    the first one on; a reader that leaves disturbs no other, and the last one that leaves cancels the work; the buffer is
    bounded: beyond its bound the answer takes no more readers, waits for the fastest, and drops readers that are far behind it.
    """

    __slots__ = (
        "_chunks", "_dropped", "_producer_waiter", "_readers", "_room", "_size", "call", "error", "fingerprint",
        "goes_on", "is_abandoned", "is_ended", "keys", "reply", "task",
    )  # fmt: skip

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
                self._cut(slowest)  # a reader that has everything must not wait for one that is far behind
            else:  # all are behind: the producer waits until one of them has taken a piece
                self._producer_waiter = asyncio.get_running_loop().create_future()
                await self._producer_waiter

    def _cut(self, slowest: int) -> None:
        for reader in [one for one in self._readers if one.at == slowest]:
            reader.is_cut = True
            self._readers.discard(reader)
            reader.wake()

    # --- reading ---

    def enter(self) -> AnswerReader:
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


# --- the flights, by key ---

Keep = Callable[[Reply, bytes], Awaitable[None]]
"""Stores a whole body before its end is passed on."""

ABOUT_AS_LONG_S = 1.0
"""A follower with at most this much more time than its leader, in seconds, does not try again what the leader could not do."""
OWN_LIMITS = (KeyRateLimited, BudgetExceeded)
OUT_OF_TIME = (DeadlineExceeded, QueueDeadlineExceeded, WaitTooLong, TargetsTimedOut)
ENDING_S = 5.0
SOON_S = 0.1


class SingleFlight:
    """The answers in the making of this process."""

    __slots__ = ("_accounts", "_by_key", "_clock", "_tasks")

    def __init__(self, clock: Clock, accounts: Accounts) -> None:
        self._clock = clock
        self._accounts = accounts
        self._by_key: dict[bytes, SharedAnswer] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, key: bytes) -> SharedAnswer | None:
        """Returns the answer in the making under this key."""
        return self._by_key.get(key)

    def start(self, shared: SharedAnswer, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` in a task of its own; the answer is found under its keys until that ends."""
        for key in shared.keys:
            self._by_key[key] = shared
        LED.put(shared.call, True)  # the edge's task only reads
        shared.task = task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._completed(shared))

    def offer(self, shared: SharedAnswer, key: bytes) -> None:
        """Makes the answer joinable under this key, too."""
        shared.keys = (*shared.keys, key)
        self._by_key[key] = shared

    def share(self, call: Call, reply: Reply) -> SharedAnswer:
        """Makes an answer that has begun, and of which nothing is stored, readable for several calls."""
        shared = SharedAnswer(call, LEAST_ROOM)
        shared.begin(reply)
        self.start(shared, self._pass_on(shared, reply))
        # The client has left, but its retries are about to join, unless they leave as well.
        if call.left:
            self._hold(shared)
        return shared

    def _hold(self, shared: SharedAnswer) -> None:
        """Keeps an answer without readers running for SOON_S, until the calls that learned of it have joined."""
        placeholder = shared.enter()

        def release() -> None:
            self._leave(shared.call, shared, placeholder, CLIENT_GONE)

        self._clock.call_at(self._clock.monotonic() + SOON_S, release)

    def forget(self, shared: SharedAnswer) -> None:
        """Removes the answer from its keys: no call finds it any more."""
        for key in shared.keys:
            if self._by_key.get(key) is shared:
                del self._by_key[key]

    async def aclose(self) -> None:
        """Waits for answers that are being stored. To be called when no reader is left."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ENDING_S)

    # --- reading ---

    async def join(self, call: Call, shared: SharedAnswer) -> Reply | None:
        """Returns the shared answer for this call; None: the call looks again, for it need not fail as its leader did."""
        is_own = shared.call is call
        if not is_own:
            call.drop_parsed()  # its memory is not needed as long as it waits
        reader = shared.enter()
        since = self._clock.monotonic()
        timer = None
        if call.request.deadline_is_callers and not is_own:
            timer = self._clock.call_at(call.request.deadline, lambda: time_is_up(reader))
        try:
            await shared.opened(reader)
        except GatewayError as error:
            self._leave(call, shared, reader, CLIENT_GONE)
            is_late = call.request.deadline_is_callers and self._clock.monotonic() >= call.request.deadline
            if is_own or is_late or isinstance(error, ShuttingDown) or not _is_others(error, shared.call, call):
                raise
            return None
        except StreamBroken:
            self._leave(call, shared, reader, CLIENT_GONE)
            if is_own:
                raise
            return None
        except asyncio.CancelledError as stopped:
            self._left(call, shared, reader, why_stopped(stopped))
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if not is_own:
                call.own_setbacks().wait(self._clock.monotonic() - since)
        return self._reply(call, shared, reader)

    def _reply(self, call: Call, shared: SharedAnswer, reader: AnswerReader) -> Reply:
        made = shared.reply
        assert made is not None  # noqa: S101  # it has opened
        is_own = shared.call is call
        if not is_own:
            follow(call, shared.call)
        if made.chunks is None:
            self._leave(call, shared, reader, CLIENT_GONE)
            if is_own:
                return made
            count_saved(call, shared.call)
            self._accounts.settle(call, made.status, shared.call.outcome)
        headers = made.headers if is_own else [*made.shared, *answer_headers(call, self._clock.monotonic())]
        if made.chunks is None:
            return Reply(made.status, headers, made.body, shared=made.shared)
        chunks = shared.chunks(reader)

        async def close() -> None:
            await chunks.aclose()
            self._left(call, shared, reader, reader.outcome)

        return Reply(made.status, headers, chunks=chunks, close=close, shared=made.shared)

    def _left(self, call: Call, shared: SharedAnswer, reader: AnswerReader, why: str) -> None:
        """Closes the account of a call that has stopped reading, unless it is the leader, whose work goes on."""
        if self._leave(call, shared, reader, why) and shared.call is call:
            return  # the leader settles, for it has been cancelled by this
        if shared.call is call:
            note_left(call, has_left=not shared.is_ended and why == CLIENT_GONE)
            return
        count_saved(call, shared.call)
        made = shared.reply
        status = made.status if made is not None else CLIENT_GONE_STATUS if why == CLIENT_GONE else ShuttingDown.status
        self._accounts.settle(call, status, why)

    def _leave(self, call: Call, shared: SharedAnswer, reader: AnswerReader, why: str) -> bool:
        was_last = shared.leave(reader, why)
        if was_last and not shared.is_ended:
            self.forget(shared)  # it is being cancelled, so no other call may join
        return was_last

    # --- leading ---

    @contextmanager
    def leading(self, own: SharedAnswer) -> Iterator[None]:
        """Within it a leader gets its answer: however that fails, its readers get the error, and its account is closed."""
        try:
            yield
        except StreamBroken as broken:
            own.end(broken)
        except asyncio.CancelledError as stopped:
            self._accounts.settle_stopped(own.call, stopped)
            own.end(StreamBroken("the answer broke off"))
        except Exception as failure:  # noqa: BLE001  # the readers get it, and log it
            own.end(self._accounts.settle_failed(own.call, failure))
        finally:
            self.forget(own)

    async def carry(
        self, shared: SharedAnswer, reply: Reply, keep: Keep | None = None, *, is_recorded: bool = False
    ) -> None:
        """Passes the answer on to all readers; `is_recorded`: its end only after it has been stored."""
        if reply.chunks is None:
            if keep is not None:
                await keep(reply, reply.body)
            shared.complete_whole(reply)
            return
        shared.begin(reply)
        try:
            ending = LastWord() if is_recorded else None
            async for chunk in reply.chunks:
                passed = chunk if ending is None else ending.feed(chunk)
                if passed:
                    await shared.add(passed)
            await reply.close()
            held = b"" if ending is None else ending.held
            body = shared.body() if keep is not None else None
            if keep is not None and body is not None:
                await keep(reply, body + held)
            if held:
                await shared.add(held)
            shared.end()
        finally:
            await reply.close()

    async def _pass_on(self, shared: SharedAnswer, reply: Reply) -> None:
        try:
            await self.carry(shared, reply)
        except StreamBroken as broken:
            shared.end(broken)

    def _completed(self, shared: SharedAnswer) -> None:
        """Ends what a leader's task has left open, for instance one that was cancelled before it began."""
        task, is_abandoned = shared.task, not shared.is_ended
        if task is not None:
            self._tasks.discard(task)
        self.forget(shared)
        if is_abandoned:
            shared.end(StreamBroken("the answer broke off"))
        if is_abandoned and shared.reply is not None:
            closing = asyncio.get_running_loop().create_task(_close(shared.reply))  # which settles, too
            self._tasks.add(closing)
            closing.add_done_callback(self._tasks.discard)
        elif not shared.call.settled:
            self._accounts.settle(shared.call, CLIENT_GONE_STATUS, CLIENT_GONE)


async def _close(reply: Reply) -> None:
    await reply.close()


def _is_others(error: GatewayError, leader: Call, call: Call) -> bool:
    """Returns whether the leader failed for a reason of its own, which need not stop the follower."""
    if isinstance(error, OWN_LIMITS):
        return leader.route.key.name != call.route.key.name
    return isinstance(error, OUT_OF_TIME) and call.request.deadline > leader.request.deadline + ABOUT_AS_LONG_S


def follow(call: Call, leader: Call) -> None:
    """Notes on the call that it shares the leader's answer."""
    replay, leaders = OUTCOME.find(call) or OUTCOME.put(call, CacheOutcome()), OUTCOME.find(leader)
    is_stale = leaders is not None and leaders.result == "stale"
    replay.result, replay.layer = "stale" if is_stale else "coalesced", "single_flight"
    replay.source = leader.request.id
    last = deciding_attempt(leader)
    replay.target = last.target.name if last is not None else leaders.target if leaders else ""
    replay.attempts = shown(leader.attempts, skips=leader.skips)
    replay.tried.append(("single_flight", "hit"))


def count_saved(call: Call, leader: Call) -> None:
    """Notes on the follower what the answer would have cost again; to be called when the answer has ended."""
    replay, leaders = OUTCOME.find(call), OUTCOME.find(leader)
    if replay is None or replay.layer != "single_flight":
        return
    spared = leaders if leaders is not None and leaders.saved is not None else None
    last = deciding_attempt(leader)
    replay.saved = leader.usage if spared is None else spared.saved
    replay.saved_usd = spared.saved_usd if spared is not None else last.cost_usd if last is not None else None
