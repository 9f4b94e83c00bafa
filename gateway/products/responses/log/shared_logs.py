"""The logs of responses that are read in this process: one watch over each, and one look for all who are at the same place.

Readers come by the hundred to a response that is still queued, and each would ask the store once a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, Protocol

from gateway.core.clock import Clock, Timer
from gateway.products.jobs.model import ClaimedWork, Job, WriteResult
from gateway.products.responses.rules.response_object import LogPage, LogPart

# How much is kept of responses and runs, whichever store keeps them, and what becomes of a part that arrives in a log.


log = logging.getLogger("gateway.jobs")

MEBIBYTE: Final = 1024 * 1024
REMOVED_S: Final = 86_400.0
"""A response that was removed is not kept again for so long: who may still put it has given up by then."""


class KeptBounds(NamedTuple):
    """How many bytes there may be."""

    log_bytes: int = 16 * MEBIBYTE
    """Of the events of one response."""
    tenant_bytes: int = 1024 * MEBIBYTE
    """Of the kept responses of one tenant."""
    run_bytes: int = 1024 * MEBIBYTE
    """Of the runs of one tenant, with their steps."""


def place_in_log(part: LogPart, next_event: int, size: int, bounds: KeptBounds) -> Literal["there", "next", "cut"]:
    """Returns what becomes of a part where `next_event` is the first event that the log lacks, and `size` its bytes.

    A log with a gap would be one answer put together from two: it is cut. A part that is sent again has the same events.
    """
    if part.last < next_event:
        return "there"
    is_next = part.first == next_event and size + len(part.frames) <= bounds.log_bytes
    return "next" if is_next else "cut"


class EarlyResponses:
    """Counts kept responses that went before their time, and warns of the first."""

    __slots__ = ("_bounds", "_has_warned", "count")

    def __init__(self, bounds: KeptBounds) -> None:
        self._bounds = bounds
        self._has_warned = False
        self.count = 0

    def note(self, number: int) -> None:
        """Counts so many more."""
        self.count += number
        if number and not self._has_warned:
            self._has_warned = True
            log.warning(
                "No room for all responses of a tenant: the oldest are forgotten early, and previous_response_id cannot go on "
                "from them. Raise jobs.max_response_bytes_per_tenant (now %d).",
                self._bounds.tenant_bytes,
            )


# The port of event logs: what a response has said so far, for whoever comes back.


class EventLogs(Protocol):
    """The logs of jobs of kind `response`, each of one generation at a time, from its event 0. All raise JobsUnavailable.

    A generation is known by the fence of the claim that writes it: the first part of a new one takes the place of all that an
    earlier one wrote, and an earlier one writes nothing any more. A log is forgotten with its job, or by `drop`.
    """

    @property
    def every_s(self) -> float:
        """Returns how long events may wait for others to be added with: short where other replicas read them."""
        ...

    async def append(self, work: ClaimedWork, part: LogPart) -> WriteResult:
        """Adds a part that follows the last one; the generation is the claim's fence. A part that is there already is left.

        A log that grows beyond the store's bound (16 MiB by default) is cut: its parts go, and later ones are not kept. So is
        one that would have a gap: a Redis that fails may lose the parts of its last second, which are not waited for. Where
        an append fails, the same part may be sent again, but not put together with others.
        """
        ...

    async def read(self, job_id: str, tenant: str, after: int, most_bytes: int = 1024 * 1024) -> LogPage | None:
        """Returns the parts with events behind `after` (-1: all), whole ones, at least one if there is any.

        None: there is no such job, or it is another tenant's.
        """
        ...

    async def drop(self, job_id: str) -> None:
        """Forgets the log of a job."""
        ...

    def watch(self, job_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Has `wake` called, in the loop's thread, when a part of the job may have come, here or in another replica.

        Returns what ends that. A wake may be missed between replicas: readers look once a second besides.
        """
        ...


LOOK_S = 1.0
PAGE_BYTES = 1024 * 1024


class LogReader(Protocol):
    """Reads a log."""

    def on_message(self) -> None:
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
        arguments = after, most_bytes
        look = self._looks.get(arguments)
        if look is None:
            look = asyncio.create_task(self._events.read(self.job.id, self.job.tenant, after, most_bytes))
            self._looks[arguments] = look
            look.add_done_callback(lambda done: self._looked(arguments, done))
        return await asyncio.shield(look)

    def _looked(self, arguments: tuple[int, int], look: asyncio.Task[LogPage | None]) -> None:
        if self._looks.get(arguments) is look:
            del self._looks[arguments]
        if not look.cancelled():
            look.exception()  # whoever asked may have left

    def _changed(self) -> None:
        """The looks under way may have missed what is new."""
        self._looks.clear()
        for reader in tuple(self.readers):
            reader.on_message()

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
