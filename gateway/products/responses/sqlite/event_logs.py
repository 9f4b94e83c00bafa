"""The logs of responses in the jobs file, asked from the event loop."""

from __future__ import annotations

from collections.abc import Callable

from gateway.products.jobs.model.job import ClaimedWork, WriteResult
from gateway.products.jobs.sqlite_store.file import JobsFile
from gateway.products.responses.log.log_watchers import LogWatchers
from gateway.products.responses.log.shared_logs.bounds import KeptBounds
from gateway.products.responses.rules.response_object.stored_response import LogPage, LogPart
from gateway.products.responses.sqlite import event_rows


class SqliteEventLogs:
    """Implements `gateway.products.responses.log.shared_logs.event_logs.EventLogs`.

    A loss of power may take the end of a log with it, as it takes the worker: whoever takes over begins another generation.
    """

    def __init__(self, file: JobsFile, bounds: KeptBounds) -> None:
        self._file = file
        self._bounds = bounds
        self._watchers = LogWatchers()

    @property
    def every_s(self) -> float:
        """Returns how long events may wait for others to be added with."""
        return 0.5  # the file is this process's alone, and whoever reads here does not wait for it

    async def append(self, work: ClaimedWork, part: LogPart) -> WriteResult:
        """Adds a part that follows the last one."""
        result = await self._file.note(lambda db: event_rows.append(db, work, part, self._bounds))
        self._watchers.wake(work.job.id)
        return result

    async def read(self, job_id: str, tenant: str, after: int, most_bytes: int = 1024 * 1024) -> LogPage | None:
        """Returns the parts with events behind `after`, whole ones, at least one if there is any."""
        return await self._file.read(lambda db: event_rows.read(db, job_id, tenant, after, most_bytes))

    async def drop(self, job_id: str) -> None:
        """Forgets the log of a job, durably."""
        await self._file.write(lambda db: event_rows.drop(db, job_id))
        self._watchers.wake(job_id)

    def watch(self, job_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Has `wake` called when a part of the job has come."""
        return self._watchers.watch(job_id, wake)
