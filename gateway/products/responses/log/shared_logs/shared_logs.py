"""The logs of responses that are read in this process: one watch over each, and one look for all who are at the same place.

Readers come by the hundred to a response that is still queued, and each would ask the store once a second.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.core.clock import Clock, Timer
from gateway.products.jobs.model.job import Job
from gateway.products.responses.log.shared_logs.event_logs import EventLogs
from gateway.products.responses.rules.response_object.stored_response import LogPage

LOOK_S = 1.0
PAGE_BYTES = 1024 * 1024


class LogReader(Protocol):
    """Reads a log."""

    def hear(self) -> None:
        """Is told that the log has grown."""
        ...

    def wake(self) -> None:
        """Is told to look again: it is time to."""
        ...


class SharedLog:
    """The log of one response, from its first reader to its last."""

    def __init__(self, events: EventLogs, job: Job, clock: Clock) -> None:
        self.job = job
        self.readers: dict[LogReader, None] = {}
        self._events = events
        self._clock = clock
        self._looks: dict[tuple[int, int], asyncio.Task[LogPage | None]] = {}
        self._unwatch = events.watch(job.id, self._changed)
        self._timer = self._next_look()

    def close(self) -> None:
        """Watches it no more."""
        self._unwatch()
        self._timer.cancel()

    async def read(self, after: int, most_bytes: int = PAGE_BYTES) -> LogPage | None:
        """Returns what `EventLogs.read` does. Raises JobsUnavailable.

        Whoever asks the same meanwhile shares the look, which goes on for the others when one leaves.
        """
        asked = after, most_bytes
        look = self._looks.get(asked)
        if look is None:
            look = asyncio.create_task(self._events.read(self.job.id, self.job.tenant, after, most_bytes))
            self._looks[asked] = look
            look.add_done_callback(lambda done: self._looked(asked, done))
        return await asyncio.shield(look)

    def _looked(self, asked: tuple[int, int], look: asyncio.Task[LogPage | None]) -> None:
        if self._looks.get(asked) is look:
            del self._looks[asked]
        if not look.cancelled():
            look.exception()  # whoever asked may have left

    def _changed(self) -> None:
        """The looks under way may have missed what is new."""
        self._looks.clear()
        for reader in tuple(self.readers):
            reader.hear()

    def _next_look(self) -> Timer:
        return self._clock.call_at(self._clock.monotonic() + LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self._timer = self._next_look()
        for reader in tuple(self.readers):
            reader.wake()


class SharedLogs:
    """All that are read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logs: dict[str, SharedLog] = {}

    def join(self, events: EventLogs, job: Job, reader: LogReader) -> SharedLog:
        """Returns the log of a response; the reader is told when there may be more in it, until he leaves."""
        log = self._logs.get(job.id)
        if log is None:
            log = self._logs[job.id] = SharedLog(events, job, self._clock)
        log.readers[reader] = None
        return log

    def leave(self, log: SharedLog, reader: LogReader) -> None:
        """Forgets a reader, and behind the last one the log."""
        del log.readers[reader]
        if not log.readers:
            log.close()
            del self._logs[log.job.id]
