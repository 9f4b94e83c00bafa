"""The logs of responses in the Redis, which any replica reads.

A replica that waits for events says so with each look, and whoever adds some tells it: where nobody waits, nothing is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.drivers.redis.link import BackgroundTasks
from gateway.products.jobs.model.job import ClaimedWork, JobState, WriteResult
from gateway.products.jobs.redis_partitions.partitions import JobPartitions, job_script
from gateway.products.jobs.redis_records import records
from gateway.products.jobs.redis_records.acceptance.commits import SharedScript
from gateway.products.jobs.redis_records.acceptance.places import JobPlaces
from gateway.products.responses.log.log_watchers import LogWatchers
from gateway.products.responses.log.shared_logs.bounds import KeptBounds
from gateway.products.responses.rules.response_object.stored_response import LogPage, LogPart

APPEND, READ = job_script("events_append"), job_script("events_read")
PART_WEIGHT = 8 * 1024
"""What a part costs besides its bytes."""
MOST_WEIGHT = 256 * 1024
"""Of one script: parts in it take a few milliseconds."""


class RedisEventLogs:
    """Implements `gateway.products.responses.log.shared_logs.event_logs.EventLogs`.

    Parts are not waited for until they are safe: those of the last second may go with the Redis, and the log is cut then.
    """

    def __init__(
        self,
        partitions: JobPartitions,
        places: JobPlaces,
        background: BackgroundTasks,
        replica: str,
        bounds: KeptBounds,
    ) -> None:
        self._partitions = partitions
        self._places = places
        self._replica = replica
        self._channel = partitions.link.slot_key("jobs", "all") + b":events"
        front = (bounds.log_bytes, self._channel, replica)
        self._appends = SharedScript(partitions, background, APPEND, MOST_WEIGHT, lambda: front)
        self._watchers = LogWatchers()
        self._hearing: asyncio.Task[None] | None = None

    @property
    def every_s(self) -> float:
        """Returns how long events may wait for others to be added with."""
        return 0.1

    async def append(self, work: ClaimedWork, part: LogPart) -> WriteResult:
        """Adds a part that follows the last one."""
        arguments = (*self._partitions.claim_of(work), *part)
        result = await self._appends.write(work, arguments, PART_WEIGHT + len(part.frames))
        self._watchers.wake(work.job.id)
        return result

    async def read(self, job_id: str, tenant: str, after: int, most_bytes: int = 1024 * 1024) -> LogPage | None:
        """Returns the parts with events behind `after`, whole ones, at least one if there is any."""
        partition = self._partitions.of_tenant(tenant)
        reader = self._replica if self._watchers.has(job_id) else ""
        asked = (job_id, records.tenant_token(tenant), after, most_bytes, reader)
        _, _, state, log, found = await self._partitions.run(READ, partition, *asked)
        if not state:
            return None
        has_ended = JobState(state.decode()).is_end
        if not log:
            return LogPage(0, [], has_ended=has_ended)
        fence, _, _, is_cut = log.split()
        parts = [LogPart(int(first), int(place.split(b"-")[0]) - 1, frames) for place, first, frames in found]
        return LogPage(int(fence) * self._partitions.number + partition, parts, is_cut == b"1", has_ended)

    async def drop(self, job_id: str) -> None:
        """Forgets the log of a job."""
        partition = await self._places.find(job_id, None)
        if partition is not None:
            await self._partitions.run(READ, partition, job_id, "", 0, 0, "-")
        self._watchers.wake(job_id)

    def watch(self, job_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Has `wake` called when a part of the job may have come, here or in another replica."""
        if self._hearing is None:
            self._hearing = asyncio.get_running_loop().create_task(
                self._partitions.link.subscribe(self._channel, self._heard, self._watchers.wake_all)
            )
        return self._watchers.watch(job_id, wake)

    async def aclose(self) -> None:
        """Hears nothing more."""
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.wait([self._hearing])

    def _heard(self, message: bytes) -> None:
        sender, _, job_id = message.decode().rpartition(" ")
        if sender != self._replica:
            self._watchers.wake(job_id)
