"""Where one reader of a response's events is, and what he is given next.

Invariant: nobody is given events of two runs of the model, but the announcements of a response, which are the same for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice

import orjson

from gateway.core.openai.sse.sse import split_events
from gateway.products.jobs.model.job import Job
from gateway.products.responses.events.own_events import (
    ANNOUNCED,
    GENERATION_STEP,
    announcements,
    frame,
    is_end,
    number_of,
)
from gateway.products.responses.log.reader.live import LiveLog, LiveLogs
from gateway.products.responses.log.shared_logs.shared_logs import SharedLog
from gateway.products.responses.rules.response_object.response_object import begun
from gateway.products.responses.rules.response_object.stored_response import LogPage, LogPart

_RESTARTED = (
    "stream_restarted",
    "The model was broken off and runs again: what you have read is not continued. Stream it from its beginning.",
)
_CUT = (
    "stream_log_cut",
    "The response has outgrown the log of its events: poll GET /v1/responses/{id}, which has all of it at its end.",
)


class FollowingReader:
    """Where one reader is."""

    def __init__(self, job: Job, lives: LiveLogs, after: int) -> None:
        self.job = job
        self.woken = asyncio.Event()
        self._lives = lives
        self._place = after % GENERATION_STEP if after >= 0 else -1
        """Of the last event that he has, in its generation."""
        self._seen = after // GENERATION_STEP if self._place >= ANNOUNCED else None
        """The generation of which he has events; None: of none."""
        self._fence = 0
        """Of the generation in the log, once it is known to be the one that he has seen."""
        self.is_over = False
        self.is_waiting = False
        """He has all that there is, and nothing is on its way to him."""
        self.has_taken = False
        """Events have gone to him in passing."""
        self.write: Callable[[bytes], bool] | None = None
        """Gives events to him in passing; False: he has to be waited for."""

    def wake(self) -> None:
        """Is told that there is news."""
        self.woken.set()

    def hear(self) -> None:
        """Is told that the log has grown: of one who reads what there is here that is no news."""
        if self._lives.find(self.job.id) is None:
            self.woken.set()

    def take(self, live: LiveLog, event: bytes) -> bool:
        """Takes the event that has just come, in passing; False: he has to be woken for it."""
        write, place = self.write, live.count - 1
        if (
            write is None
            or not self.is_waiting
            or self.woken.is_set()
            or self._seen != live.generation
            or self._place != place - 1
            or not write(event)
        ):
            return False
        self._place = place
        self.has_taken = True
        return True

    async def read(self, log: SharedLog) -> bytes | None:
        """Returns the next events; empty: there are none yet; None: there will be no more. Raises JobsUnavailable."""
        live = self._lives.find(self.job.id)
        if live is not None:
            if self._seen not in (None, live.generation):
                return self._over(*_RESTARTED)
            block = live.behind(self._place)
            if block is not None:
                return self._given(block, live.generation, max(self._place, live.count - 1))
        page = await log.read(self._place)
        if page is None:
            return None
        return await self._of_page(log, page)

    async def _of_page(self, log: SharedLog, page: LogPage) -> bytes | None:
        if page.is_cut:
            return self._over(*_CUT)
        if page.generation == 0:
            if page.has_ended:
                return None
            made = announcements(begun(self.job, "queued"))[self._place + 1 :]
            self._place = max(self._place, ANNOUNCED - 1)
            return b"".join(made)
        if page.generation != self._fence and self._seen is not None and not await self._is_same(log):
            return self._over(*_RESTARTED)
        self._fence = page.generation
        if not page.parts:
            return None if page.has_ended else b""
        generation = number_of(page.parts[0].frames) // GENERATION_STEP
        if self._seen not in (None, generation):
            return self._over(*_RESTARTED)
        block = b"".join(_behind(part, self._place) for part in page.parts)
        return self._given(block, generation, page.parts[-1].last)

    async def _is_same(self, log: SharedLog) -> bool:
        """Tells whether the log is that of the generation that he has seen."""
        if self._fence:
            return False
        head = await log.read(-1, 1)
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

    async def end_with(self, log: SharedLog, final: bytes) -> bytes | None:
        """Returns the last event, with what has to be before it; None: he has it. Raises JobsUnavailable."""
        last: LogPart | None = None
        place = -1
        while (page := await log.read(place)) is not None and page.parts:
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
