"""The ports of what is stored of responses: those that are kept, and the logs of the events that make them.

In this order: the port of kept responses; that of logs; and what `sqlite_responses.py` and `redis_responses.py`, which
implement them, have in common: the bounds, and what follows from them. Times are wall-clock seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

from gateway.products.jobs.model import ClaimedWork, WriteResult


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response at its end, and what it was asked."""

    id: str
    tenant: str
    created_at: float
    keep_until: float
    """When it is forgotten; earlier only where its tenant has too many bytes, or removes it."""
    previous_id: str
    """The response that it goes on from; empty: none."""
    body: bytes
    """The response object as it is shown, JSON."""
    input_items: bytes
    """The items of its own input, without those of earlier responses, as a JSON array."""

    @property
    def bytes(self) -> int:
        return len(self.body) + len(self.input_items)


class KeptResponses(Protocol):
    """Responses by id, bounded in bytes for each tenant: those put first go early then. All methods raise JobsUnavailable."""

    @property
    def early(self) -> int:
        """Returns how many went before their time for want of room, as this process has seen since it started."""
        ...

    async def put(self, response: StoredResponse) -> None:
        """Keeps a response, durably, in place of one with the same id; one that was removed is not kept again for a day."""
        ...

    async def find(self, response_id: str, tenant: str) -> StoredResponse | None:
        """Returns a response; None: there is none, its time is over, or it is another tenant's."""
        ...

    async def chain(
        self, response_id: str, tenant: str, most: int, most_bytes: int = 8 * 1024 * 1024
    ) -> Sequence[StoredResponse]:
        """Returns the response and those that it goes on from, the latest first, at most so many; it ends where one is gone.

        It ends with the one by which they have more than `most_bytes`, too.
        """
        ...

    async def remove(self, response_id: str, tenant: str, *, is_expected: bool = False) -> bool:
        """Forgets a response, durably; False: there was none.

        `is_expected`: its job is under way, and what that puts is not kept.
        """
        ...

    async def trim(self, most: int) -> int:
        """Forgets responses whose time is over, at most so many; returns how many."""
        ...


# --- the port of logs: the events of a response so far, for whoever comes back ---


class LogPart(NamedTuple):
    """Events of one response that were written together, in order."""

    first: int
    """The `sequence_number` of the first event."""
    last: int
    frames: bytes
    """The events as server-sent events, each with its empty line."""


class LogPage(NamedTuple):
    """What a log has behind a certain event."""

    generation: int
    """The run of the model that the events are of: a worker that takes over begins another one, from event 0; 0: none yet."""
    parts: Sequence[LogPart]
    is_cut: bool = False
    """The log of this generation has outgrown its bound and is gone: only the response's end will be shown."""
    has_ended: bool = False
    """The job is at its end: there will be no more parts than there are now."""


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


# --- what the stores have in common: bounds ---

MEBIBYTE: Final = 1024 * 1024
REMOVED_S: Final = 86_400.0
"""A response that was removed is not kept again for so long: who may still put it has given up by then."""
log = logging.getLogger("gateway.jobs")


class KeptBounds(NamedTuple):
    """The most bytes that are kept."""

    log_bytes: int = 16 * MEBIBYTE
    """The bytes of the events of one response."""
    tenant_bytes: int = 1024 * MEBIBYTE
    """The bytes of the kept responses of one tenant."""
    run_bytes: int = 1024 * MEBIBYTE
    """The bytes of the runs of one tenant, with their steps."""


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
        self.count += number
        if number and not self._has_warned:
            self._has_warned = True
            log.warning(
                "No room for all responses of a tenant: the oldest are forgotten early, and previous_response_id cannot go on "
                "from them. Raise jobs.max_response_bytes_per_tenant (now %d).",
                self._bounds.tenant_bytes,
            )


class LogWatchers:
    """Wakes readers by the ids of their jobs, in the loop's thread."""

    __slots__ = ("_wakes",)

    def __init__(self) -> None:
        self._wakes: dict[str, list[Callable[[], None]]] = {}

    def has(self, job_id: str) -> bool:
        return job_id in self._wakes

    def watch(self, job_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Has `wake` called at each `wake` of the job; returns what ends that, which may be called again."""
        self._wakes.setdefault(job_id, []).append(wake)
        left = [wake]

        def end() -> None:
            if left:
                there = self._wakes[job_id]
                there.remove(left.pop())
                if not there:
                    del self._wakes[job_id]

        return end

    def wake(self, job_id: str) -> None:
        for wake in tuple(self._wakes.get(job_id, ())):
            wake()

    def wake_all(self) -> None:
        """Wakes everybody: something may have been missed."""
        for job_id in tuple(self._wakes):
            self.wake(job_id)
