"""Single flight: equal calls that come at the same time share one answer; this finds it by key, joins calls, and settles them.

The leader is the call that gets the answer; it is settled by the module that serves it, its followers are settled here. This
must not know how answers are got or stored. Invariants: a key leads to an answer that still takes readers, or that has to be
waited for; a task without readers is stopped; each call that joins is settled once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from gateway.core.call import Call, Reply
from gateway.core.clock import Clock, Timer
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
from gateway.core.ledger.answer_headers import answer_headers
from gateway.core.ledger.settle import CLIENT_GONE, CLIENT_GONE_STATUS, Accounts, why_stopped
from gateway.core.relay.raw_relay import StreamBroken
from gateway.features.reuse.layers import entries
from gateway.features.reuse.single_flight.last_word import LastWord
from gateway.features.reuse.single_flight.shared_answer import AnswerReader, SharedAnswer, time_is_up

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
        shared.call.task = None  # the edge's task only reads
        shared.task = task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._completed(shared))

    def offer(self, shared: SharedAnswer, key: bytes) -> None:
        """Makes the answer joinable under this key, too."""
        shared.keys = (*shared.keys, key)
        self._by_key[key] = shared

    def share(self, call: Call, reply: Reply) -> SharedAnswer:
        """Makes an answer that has begun, and of which nothing is stored, readable for several calls."""
        shared = SharedAnswer(call, entries.LEAST_ROOM)
        shared.begin(reply)
        self.start(shared, self._pass_on(shared, reply))
        # The client has left, but its retries are about to join, unless they leave as well.
        if call.left:
            self._hold(shared)
        return shared

    def _hold(self, shared: SharedAnswer) -> None:
        """Keeps an answer without readers running for SOON_S, until the calls that were told of it have joined."""
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
            call.parsed = None  # its memory is not needed as long as it waits
        reader = shared.enter()
        since = self._clock.monotonic()
        timer = self._alarm(call, reader) if call.deadline_is_callers and not is_own else None
        try:
            await shared.opened(reader)
        except GatewayError as error:
            self._leave(call, shared, reader, CLIENT_GONE)
            is_late = call.deadline_is_callers and self._clock.monotonic() >= call.deadline
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
                call.queue_s += self._clock.monotonic() - since
        return self._reply(call, shared, reader)

    def _alarm(self, call: Call, reader: AnswerReader) -> Timer:
        return self._clock.call_at(call.deadline, lambda: time_is_up(reader))

    def _reply(self, call: Call, shared: SharedAnswer, reader: AnswerReader) -> Reply:
        made = shared.reply
        assert made is not None  # noqa: S101  # it has opened
        is_own = shared.call is call
        if not is_own:
            entries.follow(call, shared.call)
        if made.chunks is None:
            self._leave(call, shared, reader, CLIENT_GONE)
            if is_own:
                return made
            entries.count_saved(call, shared.call)
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
            call.left = not shared.is_ended and why == CLIENT_GONE
            return
        entries.count_saved(call, shared.call)
        made = shared.reply
        status = made.status if made is not None else CLIENT_GONE_STATUS if why == CLIENT_GONE else ShuttingDown.status
        self._accounts.settle(call, status, why)

    def _leave(self, call: Call, shared: SharedAnswer, reader: AnswerReader, why: str) -> bool:
        was_last = shared.leave(reader, why)
        if was_last and not shared.is_ended:
            self.forget(shared)  # it is being cancelled, so no other call may join
        return was_last

    # --- leading ---

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
            await self._pump(shared, reply, keep, is_recorded=is_recorded)
        finally:
            await reply.close()

    async def _pump(self, shared: SharedAnswer, reply: Reply, keep: Keep | None, *, is_recorded: bool) -> None:
        assert reply.chunks is not None  # noqa: S101  # that is why it is carried
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
        return leader.key.name != call.key.name
    return isinstance(error, OUT_OF_TIME) and call.deadline > leader.deadline + ABOUT_AS_LONG_S
