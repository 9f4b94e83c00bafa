"""The kept responses in memory: the reference."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from gateway.products.jobs.model import ClaimedWork, WriteResult
from gateway.products.jobs.response_store import (
    REMOVED_S,
    EarlyResponses,
    KeptBounds,
    LogPage,
    LogPart,
    LogWatchers,
    StoredResponse,
    place_in_log,
)
from gateway.products.jobs.transitions import NOT_OURS, WholeJob, written

# The logs of responses in memory: the reference.


@dataclass(slots=True)
class MemoryLog:
    """The events of one generation."""

    generation: int
    parts: list[LogPart] = field(default_factory=list)
    bytes: int = 0
    is_cut: bool = False


class MemoryEventLogs:
    """Implements `gateway.products.jobs.response_store.EventLogs`; `claimed` returns the job of a
    claim that holds."""

    def __init__(
        self,
        jobs: Mapping[str, WholeJob],
        claimed: Callable[[ClaimedWork], WholeJob | None],
        bounds: KeptBounds,
    ) -> None:
        self._jobs = jobs
        self._claimed = claimed
        self._bounds = bounds
        self._logs: dict[str, MemoryLog] = {}
        self._watchers = LogWatchers()

    @property
    def every_s(self) -> float:
        """Returns how long events may wait for others to be added with."""
        return 0.1

    async def append(self, work: ClaimedWork, part: LogPart) -> WriteResult:
        """Adds a part that follows the last one."""
        kept = self._claimed(work)
        if kept is None:
            return NOT_OURS
        log = self._logs.get(work.job.id)
        if log is None or log.generation != work.fence:
            log = self._logs[work.job.id] = MemoryLog(work.fence)
        if not log.is_cut:
            self._add(log, part)
        self._watchers.wake(work.job.id)
        return written(kept.job)

    async def read(self, job_id: str, tenant: str, after: int, most_bytes: int = 1024 * 1024) -> LogPage | None:
        """Returns the parts with events behind `after`, whole ones, at least one if there is any."""
        kept = self._jobs.get(job_id)
        if kept is None or kept.job.tenant != tenant:
            return None
        has_ended = kept.job.state.is_end
        log = self._logs.get(job_id)
        if log is None:
            return LogPage(0, [], has_ended=has_ended)
        found: list[LogPart] = []
        size = 0
        for part in log.parts:
            if part.last > after:
                size += len(part.frames)
                if found and size > most_bytes:
                    break
                found.append(part)
        return LogPage(log.generation, found, log.is_cut, has_ended)

    async def drop(self, job_id: str) -> None:
        """Forgets the log of a job."""
        self.forget([job_id])
        self._watchers.wake(job_id)

    def forget(self, job_ids: Iterable[str]) -> None:
        """Forgets logs with their jobs."""
        for job_id in job_ids:
            self._logs.pop(job_id, None)

    def watch(self, job_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Has `wake` called when a part of the job has come."""
        return self._watchers.watch(job_id, wake)

    def _add(self, log: MemoryLog, part: LogPart) -> None:
        next_event = log.parts[-1].last + 1 if log.parts else 0
        place = place_in_log(part, next_event, log.bytes, self._bounds)
        if place == "next":
            log.parts.append(part)
            log.bytes += len(part.frames)
        elif place == "cut":
            log.parts.clear()
            log.is_cut = True


class MemoryKeptResponses:
    """Implements `gateway.products.jobs.response_store.KeptResponses`: knows responses by
    tenant, those put first at the head."""

    def __init__(self, wall: Callable[[], float], bounds: KeptBounds) -> None:
        self._wall = wall
        self._bounds = bounds
        self._early = EarlyResponses(bounds)
        self._tenants: dict[str, OrderedDict[str, StoredResponse]] = {}
        self._bytes: dict[str, int] = {}
        self._ends: list[tuple[float, str, str]] = []
        """When responses are to be forgotten, with tenants and ids; those that are gone or put again are among them."""
        self._removed: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Until when responses that were removed are not kept again."""

    @property
    def early(self) -> int:
        """Returns how many went before their time."""
        return self._early.count

    async def put(self, response: StoredResponse) -> None:
        """Keeps a response in place of one with the same id; one that was removed is not kept again."""
        tenant = response.tenant
        if self._removed.get((tenant, response.id), 0.0) > self._wall():
            return
        self._forget(tenant, response.id)
        if response.bytes > self._bounds.tenant_bytes:
            self._early.note(1)
            return
        self._tenants.setdefault(tenant, OrderedDict())[response.id] = response
        self._bytes[tenant] = self._bytes.get(tenant, 0) + response.bytes
        heappush(self._ends, (response.keep_until, tenant, response.id))
        while self._bytes[tenant] > self._bounds.tenant_bytes:
            self._forget(tenant, next(iter(self._tenants[tenant])))
            self._early.note(1)

    async def find(self, response_id: str, tenant: str) -> StoredResponse | None:
        """Returns a response of the tenant whose time is not over."""
        response = self._get(response_id, tenant)
        return response if response is not None and response.keep_until > self._wall() else None

    async def chain(
        self, response_id: str, tenant: str, most: int, most_bytes: int = 8 * 1024 * 1024
    ) -> Sequence[StoredResponse]:
        """Returns the response and those that it goes on from, the latest first."""
        found: dict[str, StoredResponse] = {}
        size = 0
        while len(found) < most and size <= most_bytes and response_id not in found:
            response = await self.find(response_id, tenant)
            if response is None:
                break
            found[response_id] = response
            size += response.bytes
            response_id = response.previous_id
        return list(found.values())

    async def remove(self, response_id: str, tenant: str, *, is_expected: bool = False) -> bool:
        """Forgets a response; it is not kept again."""
        is_there = await self.find(response_id, tenant) is not None
        if is_there or is_expected:
            self._removed[tenant, response_id] = self._wall() + REMOVED_S
            self._removed.move_to_end((tenant, response_id))
        self._forget(tenant, response_id)
        return is_there

    async def trim(self, most: int) -> int:
        """Forgets responses whose time is over."""
        now, gone = self._wall(), 0
        while self._removed and next(iter(self._removed.values())) <= now:
            self._removed.popitem(last=False)
        while gone < most and self._ends and self._ends[0][0] <= now:
            keep_until, tenant, response_id = heappop(self._ends)
            response = self._get(response_id, tenant)
            if response is not None and response.keep_until == keep_until:
                self._forget(tenant, response_id)
                gone += 1
        return gone

    def _get(self, response_id: str, tenant: str) -> StoredResponse | None:
        responses = self._tenants.get(tenant)
        return None if responses is None else responses.get(response_id)

    def _forget(self, tenant: str, response_id: str) -> None:
        responses = self._tenants.get(tenant, OrderedDict())
        response = responses.pop(response_id, None)
        if response is not None:
            self._bytes[tenant] -= response.bytes
        if not responses:
            self._tenants.pop(tenant, None)
            self._bytes.pop(tenant, None)
