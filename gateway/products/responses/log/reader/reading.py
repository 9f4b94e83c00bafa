"""Readers of the events of a response: from any event on, here or at another replica, to the end of the response.

    events of this process, as they come | the log -> … -> the last event

It touches nothing of the generation: whoever leaves ends only his own reading.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from gateway.core.clock import Clock
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.model.job import Job
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.responses.log.reader.live import LiveLogs
from gateway.products.responses.log.reader.reader import FollowingReader
from gateway.products.responses.log.shared_logs.shared_logs import SharedLog, SharedLogs

SILENCE_S = 15.0
"""So long a stream is silent, at most."""

FinalOf = Callable[[str, str], Awaitable[bytes | None]]
"""Returns the response object of an id and a tenant at its end; None: it is gone."""


class Following:
    """The events of a response behind one. `blocks` is to be iterated once."""

    def __init__(self, reader: FollowingReader, blocks: AsyncGenerator[bytes | None, None]) -> None:
        self._reader = reader
        self.blocks = blocks
        """Blocks of events; None where there was none for a while."""

    def pass_on(self, write: Callable[[bytes], bool]) -> None:
        """Lets usual events go straight to `write` while `blocks` waits for the next, as `Reply.pass_on` tells."""
        self._reader.write = write


class EventReading:
    """Reads the events of responses."""

    def __init__(self, clock: Clock, lives: LiveLogs, final_of: FinalOf, is_closing: Callable[[], bool]) -> None:
        self._clock = clock
        self._lives = lives
        self._final_of = final_of
        self._is_closing = is_closing
        self._logs = SharedLogs(clock)

    def follow(self, store: JobStore, job: Job, after: int) -> Following:
        """Returns the events behind the one of this number (-1: all).

        They end behind the last event, or one that says why there will be no more, or with the process.
        """
        reader = FollowingReader(job, self._lives, after)
        return Following(reader, self._blocks(store, reader))

    async def _blocks(self, store: JobStore, reader: FollowingReader) -> AsyncGenerator[bytes | None, None]:
        log = self._logs.join(store.events, reader.job, reader)
        unwatch = self._lives.watch(reader.job.id, reader)
        told_at = self._clock.monotonic()
        try:
            while not self._is_closing():
                reader.woken.clear()
                try:
                    block = await reader.read(log)
                    if block is None:
                        block = await self._end_of(reader, log)
                        if block is not None:
                            yield block
                        return
                except JobsUnavailable:
                    block = b""
                if block or reader.has_taken:
                    reader.has_taken = False
                    told_at = self._clock.monotonic()
                if block:
                    yield block
                    if reader.is_over:
                        return
                    continue
                if self._clock.monotonic() - told_at >= SILENCE_S:
                    told_at = self._clock.monotonic()
                    yield None
                reader.is_waiting = True
                await reader.woken.wait()
                reader.is_waiting = False
        finally:
            reader.write = None
            unwatch()
            self._logs.leave(log, reader)

    async def _end_of(self, reader: FollowingReader, log: SharedLog) -> bytes | None:
        """Returns the last event of a response whose log has none, made of what is kept; None: it was told, or is gone."""
        final = await self._final_of(reader.job.id, reader.job.tenant)
        if final is None:
            return None
        return await reader.end_with(log, final)
