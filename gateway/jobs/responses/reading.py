"""Readers of the events of a response: from any event on, here or at another replica, to the end of the response.

    events of this process, as they come | the log -> … -> the last event

It touches nothing of the generation: whoever leaves ends only his own reading. Invariant: nobody is given events of two runs
of the model, but the announcements of a response, which are the same for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import islice

import orjson

from gateway.clock import Clock
from gateway.job_ports.jobs import JobStore
from gateway.jobs.responses.live import LiveLogs
from gateway.policy.jobs.errors import JobsUnavailable
from gateway.policy.jobs.job import Job
from gateway.policy.openai.sse import split_events
from gateway.policy.responses.own_events import (
    ANNOUNCED,
    GENERATION_STEP,
    announcements,
    frame,
    is_end,
    number_of,
)
from gateway.policy.responses.response_object import begun
from gateway.policy.responses.stored_response import LogPage, LogPart

LOOK_S = 1.0
SILENCE_S = 15.0
"""So long a stream is silent, at most."""
_RESTARTED = (
    "stream_restarted",
    "The model was broken off and runs again: what you have read is not continued. Stream it from its beginning.",
)
_CUT = (
    "stream_log_cut",
    "The response has outgrown the log of its events: poll GET /v1/responses/{id}, which has all of it at its end.",
)

FinalOf = Callable[[str, str], Awaitable[bytes | None]]
"""Returns the response object of an id and a tenant at its end; None: it is gone."""


class EventReading:
    """Reads the events of responses."""

    def __init__(self, clock: Clock, lives: LiveLogs, final_of: FinalOf, is_closing: Callable[[], bool]) -> None:
        self._clock = clock
        self._lives = lives
        self._final_of = final_of
        self._is_closing = is_closing

    async def follow(self, store: JobStore, job: Job, after: int) -> AsyncIterator[bytes | None]:
        """Yields blocks of events behind the one of this number (-1: all); None where there was none for a while.

        It ends behind the last event, or one that says why there will be no more, or with the process.
        """
        reader, woken = _Reader(job, store, self._lives, after), asyncio.Event()
        ends = store.events.watch(job.id, woken.set), self._lives.watch(job.id, woken.set)
        told_at = self._clock.monotonic()
        try:
            while not self._is_closing():
                woken.clear()
                try:
                    block = await reader.read()
                    if block is None:
                        block = await self._end_of(reader)
                        if block is not None:
                            yield block
                        return
                except JobsUnavailable:
                    block = b""
                if block:
                    told_at = self._clock.monotonic()
                    yield block
                    if reader.is_over:
                        return
                    continue
                if self._clock.monotonic() - told_at >= SILENCE_S:
                    told_at = self._clock.monotonic()
                    yield None
                timer = self._clock.call_at(self._clock.monotonic() + LOOK_S, woken.set)
                await woken.wait()
                timer.cancel()
        finally:
            for end in ends:
                end()

    async def _end_of(self, reader: _Reader) -> bytes | None:
        """Returns the last event of a response whose log has none, made of what is kept; None: it was told, or is gone."""
        final = await self._final_of(reader.job.id, reader.job.tenant)
        if final is None:
            return None
        return await reader.end_with(final)


class _Reader:
    """Where one reader is."""

    def __init__(self, job: Job, store: JobStore, lives: LiveLogs, after: int) -> None:
        self.job = job
        self._events = store.events
        self._lives = lives
        self._place = after % GENERATION_STEP if after >= 0 else -1
        """Of the last event that he has, in its generation."""
        self._seen = after // GENERATION_STEP if self._place >= ANNOUNCED else None
        """The generation of which he has events; None: of none."""
        self._fence = 0
        """Of the generation in the log, once it is known to be the one that he has seen."""
        self.is_over = False

    async def read(self) -> bytes | None:
        """Returns the next events; empty: there are none yet; None: there will be no more. Raises JobsUnavailable."""
        live = self._lives.find(self.job.id)
        if live is not None:
            if self._seen not in (None, live.generation):
                return self._over(*_RESTARTED)
            block = live.behind(self._place)
            if block is not None:
                return self._given(block, live.generation, max(self._place, live.count - 1))
        page = await self._events.read(self.job.id, self.job.tenant, self._place)
        if page is None:
            return None
        return await self._of_page(page)

    async def _of_page(self, page: LogPage) -> bytes | None:
        if page.is_cut:
            return self._over(*_CUT)
        if page.generation == 0:
            if page.has_ended:
                return None
            made = announcements(begun(self.job, "queued"))[self._place + 1 :]
            self._place = max(self._place, ANNOUNCED - 1)
            return b"".join(made)
        if page.generation != self._fence and self._seen is not None and not await self._is_same():
            return self._over(*_RESTARTED)
        self._fence = page.generation
        if not page.parts:
            return None if page.has_ended else b""
        generation = number_of(page.parts[0].frames) // GENERATION_STEP
        if self._seen not in (None, generation):
            return self._over(*_RESTARTED)
        block = b"".join(_behind(part, self._place) for part in page.parts)
        return self._given(block, generation, page.parts[-1].last)

    async def _is_same(self) -> bool:
        """Tells whether the log is that of the generation that he has seen."""
        if self._fence:
            return False
        head = await self._events.read(self.job.id, self.job.tenant, -1, 1)
        return head is None or not head.parts or number_of(head.parts[0].frames) // GENERATION_STEP == self._seen

    def _given(self, block: bytes, generation: int, place: int) -> bytes:
        if place >= ANNOUNCED:
            self._seen = generation
        self._place = place
        self.is_over = bool(block) and is_end(last_event(block))
        return block

    def _over(self, code: str, message: str) -> bytes:
        self.is_over = True
        number = (self._seen or 0) * GENERATION_STEP + self._place + 1
        return frame("error", number, {"code": code, "message": message, "param": None})

    async def end_with(self, final: bytes) -> bytes | None:
        """Returns the last event, with what has to be before it; None: he has it. Raises JobsUnavailable."""
        last: LogPart | None = None
        place = -1
        while (page := await self._events.read(self.job.id, self.job.tenant, place)) is not None and page.parts:
            last = page.parts[-1]
            place = last.last
        if last is not None and (is_end(last_event(last.frames)) or self._place > last.last):
            return None
        self.is_over = True
        made = announcements(begun(self.job, "queued"))[self._place + 1 :] if last is None else []
        number = ANNOUNCED if last is None else number_of(last_event(last.frames)) + 1
        response = orjson.loads(final)
        return b"".join([*made, frame(f"response.{response['status']}", number, {"response": response})])


def last_event(block: bytes) -> bytes:
    """Returns the last of whole events."""
    cut = block.rfind(b"\n\n", 0, len(block) - 2)
    return block if cut < 0 else block[cut + 2 :]


def _behind(part: LogPart, place: int) -> bytes:
    """Returns the events of a part that are behind a place."""
    if part.first > place:
        return part.frames
    return b"".join(islice(split_events(part.frames), place + 1 - part.first, None))
