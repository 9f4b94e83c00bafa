"""All flights: who runs under which key, how calls join them, and whose account is closed when.

A flight's own call is settled by whoever serves it, those who follow are settled here. It must not know how answers are got or
kept. Invariants: a key leads to a flight that still takes readers, or that has to be waited for; a task that works for nobody
is stopped; each call that joins is settled once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from gateway.call import Call, Reply
from gateway.clock import Clock, Timer
from gateway.errors import (
    BudgetExceeded,
    DeadlineExceeded,
    GatewayError,
    KeyRateLimited,
    QueueDeadlineExceeded,
    ShuttingDown,
    TargetsTimedOut,
    WaitTooLong,
)
from gateway.flow.answer_headers import answer_headers
from gateway.flow.raw_relay import StreamBroken, why_stopped
from gateway.flow.reuse import entries
from gateway.flow.reuse.shared_answer import AnswerReader, Flight, time_is_up
from gateway.flow.settle import CLIENT_GONE, CLIENT_GONE_STATUS, Accounts

Keep = Callable[[Reply, bytes], Awaitable[None]]
"""Keeps a whole body before its end is passed on."""

ABOUT_AS_LONG_S = 1.0
"""Who has hardly more time than the one it followed need not try what that could not do in time."""
TERMINAL_EVENTS = tuple(
    field + blank + word
    for blank in (b" ", b"")
    for field, words in (
        (b"data:", (b"[DONE]",)),
        (b"event:", (b"response.completed", b"response.incomplete", b"response.failed")),
    )
    for word in words
)
"""A stream that says this is taken for complete by its client: by then its record has to be."""
OWN_LIMITS = (KeyRateLimited, BudgetExceeded)
OUT_OF_TIME = (DeadlineExceeded, QueueDeadlineExceeded, WaitTooLong, TargetsTimedOut)
ENDING_S = 5.0
SOON_S = 0.1


class Flights:
    """The flights of this process."""

    __slots__ = ("_accounts", "_by_key", "_clock", "_tasks")

    def __init__(self, clock: Clock, accounts: Accounts) -> None:
        self._clock = clock
        self._accounts = accounts
        self._by_key: dict[bytes, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, key: bytes) -> Flight | None:
        """Who runs under this key."""
        return self._by_key.get(key)

    def start(self, flight: Flight, work: Coroutine[Any, Any, None]) -> None:
        """Let it fly, in a task of its own, to be found under its keys until that ends."""
        for key in flight.keys:
            self._by_key[key] = flight
        flight.call.task = None  # the edge's task only reads
        flight.task = task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._completed(flight))

    def offer(self, flight: Flight, key: bytes) -> None:
        """Others find it under this key, too."""
        flight.keys = (*flight.keys, key)
        self._by_key[key] = flight

    def share(self, call: Call, reply: Reply) -> Flight:
        """Make an answer that has begun, and of which nothing is kept, one for several readers."""
        flight = Flight(call, entries.LEAST_ROOM)
        flight.begin(reply)
        self.start(flight, self._pass_on(flight, reply))
        if call.left:  # its retries will be here in a moment, unless they leave as well
            self._hold(flight)
        return flight

    def _hold(self, flight: Flight) -> None:
        """Keep it alive until those have come who were told of it."""
        nobody = flight.enter()

        def release() -> None:
            self._leave(flight.call, flight, nobody, CLIENT_GONE)

        self._clock.call_at(self._clock.monotonic() + SOON_S, release)

    def forget(self, flight: Flight) -> None:
        """Nobody finds it any more."""
        for key in flight.keys:
            if self._by_key.get(key) is flight:
                del self._by_key[key]

    async def aclose(self) -> None:
        """Wait for what is being kept. To be called when no reader is left."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ENDING_S)

    # --- reading ---

    async def join(self, call: Call, flight: Flight) -> Reply | None:
        """The flight's answer for this call; None: it has to look again, for what stopped the flight need not stop it."""
        is_own = flight.call is call
        if not is_own:
            call.parsed = None  # its memory is not needed as long as it waits
        reader = flight.enter()
        since = self._clock.monotonic()
        timer = self._alarm(call, reader) if call.deadline_is_callers and not is_own else None
        try:
            await flight.opened(reader)
        except GatewayError as error:
            self._leave(call, flight, reader, CLIENT_GONE)
            is_late = call.deadline_is_callers and self._clock.monotonic() >= call.deadline
            if is_own or is_late or isinstance(error, ShuttingDown) or not _is_others(error, flight.call, call):
                raise
            return None
        except StreamBroken:
            self._leave(call, flight, reader, CLIENT_GONE)
            if is_own:
                raise
            return None
        except asyncio.CancelledError as stopped:
            self._left(call, flight, reader, why_stopped(stopped))
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if not is_own:
                call.queue_s += self._clock.monotonic() - since
        return self._reply(call, flight, reader)

    def _alarm(self, call: Call, reader: AnswerReader) -> Timer:
        return self._clock.call_at(call.deadline, lambda: time_is_up(reader))

    def _reply(self, call: Call, flight: Flight, reader: AnswerReader) -> Reply:
        made = flight.reply
        assert made is not None  # noqa: S101  # it has opened
        is_own = flight.call is call
        if not is_own:
            entries.follow(call, flight.call)
        if made.chunks is None:
            self._leave(call, flight, reader, CLIENT_GONE)
            if is_own:
                return made
            entries.count_saved(call, flight.call)
            self._accounts.settle(call, made.status, flight.call.outcome)
        headers = made.headers if is_own else [*made.shared, *answer_headers(call, self._clock.monotonic())]
        if made.chunks is None:
            return Reply(made.status, headers, made.body, shared=made.shared)
        chunks = flight.chunks(reader)

        async def close() -> None:
            await chunks.aclose()
            self._left(call, flight, reader, reader.outcome)

        return Reply(made.status, headers, chunks=chunks, close=close, shared=made.shared)

    def _left(self, call: Call, flight: Flight, reader: AnswerReader, why: str) -> None:
        """The call reads no more: its account is closed, unless it is the one that works for others."""
        if self._leave(call, flight, reader, why) and flight.call is call:
            return  # whoever flies settles
        if flight.call is call:
            call.left = not flight.is_ended and why == CLIENT_GONE
            return
        entries.count_saved(call, flight.call)
        made = flight.reply
        status = made.status if made is not None else CLIENT_GONE_STATUS if why == CLIENT_GONE else ShuttingDown.status
        self._accounts.settle(call, status, why)

    def _leave(self, call: Call, flight: Flight, reader: AnswerReader, why: str) -> bool:
        was_last = flight.leave(reader, why)
        if was_last and not flight.is_ended:
            self.forget(flight)  # it is being cancelled: nobody may join it any more
        return was_last

    # --- flying ---

    async def carry(self, flight: Flight, reply: Reply, keep: Keep | None = None, *, is_recorded: bool = False) -> None:
        """Pass the answer on to all who read it; `is_recorded`: its end only when it is kept."""
        if reply.chunks is None:
            if keep is not None:
                await keep(reply, reply.body)
            flight.complete_whole(reply)
            return
        flight.begin(reply)
        try:
            await self._pump(flight, reply, keep, is_recorded=is_recorded)
        finally:
            await reply.close()

    async def _pump(self, flight: Flight, reply: Reply, keep: Keep | None, *, is_recorded: bool) -> None:
        assert reply.chunks is not None  # noqa: S101  # that is why it is carried
        held = b""
        async for chunk in reply.chunks:
            if held or (is_recorded and is_last_word(chunk)):
                held += chunk
            else:
                await flight.add(chunk)
        await reply.close()
        body = flight.body() if keep is not None else None
        if keep is not None and body is not None:
            await keep(reply, body + held)
        if held:
            await flight.add(held)
        flight.end()

    async def _pass_on(self, flight: Flight, reply: Reply) -> None:
        try:
            await self.carry(flight, reply)
        except StreamBroken as broken:
            flight.end(broken)

    def _completed(self, flight: Flight) -> None:
        """The last resort: a task that was cancelled before it began, or failed where nobody thought it could."""
        task, is_abandoned = flight.task, not flight.is_ended
        if task is not None:
            self._tasks.discard(task)
        self.forget(flight)
        if is_abandoned:
            flight.end(StreamBroken("the answer broke off"))
        if is_abandoned and flight.reply is not None:
            closing = asyncio.get_running_loop().create_task(_close(flight.reply))  # which settles, too
            self._tasks.add(closing)
            closing.add_done_callback(self._tasks.discard)
        elif not flight.call.settled:
            self._accounts.settle(flight.call, CLIENT_GONE_STATUS, CLIENT_GONE)


async def _close(reply: Reply) -> None:
    await reply.close()


def is_last_word(chunk: bytes) -> bool:
    """Whether one of these events tells the client that it has everything."""
    return any(chunk.startswith(words) or b"\n" + words in chunk for words in TERMINAL_EVENTS)


def _is_others(error: GatewayError, leader: Call, call: Call) -> bool:
    """Whether the call that was followed was stopped by what need not stop this one."""
    if isinstance(error, OWN_LIMITS):
        return leader.key.name != call.key.name
    return isinstance(error, OUT_OF_TIME) and call.deadline > leader.deadline + ABOUT_AS_LONG_S
