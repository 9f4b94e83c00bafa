"""The logs of responses in memory: the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gateway.products.jobs.model.job import ClaimedWork, WriteResult
from gateway.products.jobs.transitions.pieces import MemoryJob
from gateway.products.jobs.transitions.transitions import NOT_OURS, written
from gateway.products.responses.log.log_watchers import LogWatchers
from gateway.products.responses.log.shared_logs.bounds import KeptBounds, place_in_log
from gateway.products.responses.rules.response_object.stored_response import LogPage, LogPart


@dataclass(slots=True)
class MemoryLog:
    """The events of one generation."""

    generation: int
    parts: list[LogPart] = field(default_factory=list)
    bytes: int = 0
    is_cut: bool = False


class MemoryEventLogs:
    """Implements `gateway.products.responses.log.shared_logs.event_logs.EventLogs`; `claimed` returns the job of a
    claim that holds."""

    def __init__(
        self,
        jobs: Mapping[str, MemoryJob],
        claimed: Callable[[ClaimedWork], MemoryJob | None],
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
