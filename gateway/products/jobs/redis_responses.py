"""The responses in the Redis: the logs of their events, then the kept ones; those of a tenant are beside its jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gateway.drivers.redis.link import BackgroundTasks
from gateway.drivers.redis.partitions import JobPartitions, job_script, tenant_token
from gateway.products.jobs import redis_records as records
from gateway.products.jobs.model import ClaimedWork, JobState, WriteResult
from gateway.products.jobs.redis_acceptance import JobPlaces, SharedScript
from gateway.products.jobs.response_store import (
    REMOVED_S,
    EarlyResponses,
    KeptBounds,
    LogPage,
    LogPart,
    LogWatchers,
    StoredResponse,
)

# --- the logs, which any replica reads ---

APPEND, READ = job_script("events_append"), job_script("events_read")
PART_WEIGHT = 8 * 1024
"""The weight of a part besides its bytes."""
MOST_WEIGHT = 256 * 1024
"""The most weight of one script: parts in it take a few milliseconds."""


class RedisEventLogs:
    """Implements `gateway.products.jobs.response_store.EventLogs`.

    Parts are not waited for until they are safe: those of the last second may go with the Redis, and the log is cut then.

    A replica that waits for events registers with each look, and who adds some notifies it: where nobody waits, nothing is
    sent.
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
        self._listening: asyncio.Task[None] | None = None

    @property
    def every_s(self) -> float:
        return 0.1

    async def append(self, work: ClaimedWork, part: LogPart) -> WriteResult:
        arguments = (*records.claim_of(self._partitions, work), *part)
        result = await self._appends.write(work, arguments, PART_WEIGHT + len(part.frames))
        self._watchers.wake(work.job.id)
        return result

    async def read(self, job_id: str, tenant: str, after: int, most_bytes: int = 1024 * 1024) -> LogPage | None:
        partition = self._partitions.of_tenant(tenant)
        reader = self._replica if self._watchers.has(job_id) else ""
        arguments = (job_id, tenant_token(tenant), after, most_bytes, reader)
        _, _, state, log, found = await self._partitions.run(READ, partition, *arguments)
        if not state:
            return None
        has_ended = JobState(state.decode()).is_end
        if not log:
            return LogPage(0, [], has_ended=has_ended)
        fence, _, _, is_cut = log.split()
        parts = [LogPart(int(first), int(place.split(b"-")[0]) - 1, frames) for place, first, frames in found]
        return LogPage(int(fence) * self._partitions.number + partition, parts, is_cut == b"1", has_ended)

    async def drop(self, job_id: str) -> None:
        partition = await self._places.find(job_id, None)
        if partition is not None:
            await self._partitions.run(READ, partition, job_id, "", 0, 0, "-")
        self._watchers.wake(job_id)

    def watch(self, job_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(
                self._partitions.link.subscribe(self._channel, self._on_message, self._watchers.wake_all)
            )
        return self._watchers.watch(job_id, wake)

    async def aclose(self) -> None:
        """Hears nothing more."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    def _on_message(self, message: bytes) -> None:
        sender, _, job_id = message.decode().rpartition(" ")
        if sender != self._replica:
            self._watchers.wake(job_id)


# --- the kept responses ---

PUT, CHAIN = job_script("kept_put", "kept"), job_script("kept_chain", "kept")
REMOVE, TRIM = job_script("kept_remove", "kept"), job_script("kept_trim", "kept")
BYTES_AT_ONCE = 1024 * 1024
"""The bytes of the responses of a chain that one script reads, but for the last of them."""
TRIMMED_AT_ONCE = 100


class RedisKeptResponses:
    """Implements `gateway.products.jobs.response_store.KeptResponses`; `refuse_if_unfit` raises
    JobsUnavailable where the Redis may
    not keep anything.
    """

    def __init__(self, partitions: JobPartitions, refuse_if_unfit: Callable[[], None], bounds: KeptBounds) -> None:
        self._partitions = partitions
        self._refuse_if_unfit = refuse_if_unfit
        self._bounds = bounds
        self._early = EarlyResponses(bounds)
        self._first = 0
        """The partition that is trimmed first next time."""

    @property
    def early(self) -> int:
        return self._early.count

    async def put(self, response: StoredResponse) -> None:
        self._refuse_if_unfit()
        await self._partitions.retry_until_known(lambda _: self._put(response))

    async def find(self, response_id: str, tenant: str) -> StoredResponse | None:
        return next(iter(await self.chain(response_id, tenant, 1)), None)

    async def chain(
        self, response_id: str, tenant: str, most: int, most_bytes: int = 8 * 1024 * 1024
    ) -> Sequence[StoredResponse]:
        partition, token = self._partitions.of_tenant(tenant), tenant_token(tenant)
        found: dict[str, StoredResponse] = {}
        while response_id and len(found) < most and most_bytes >= 0 and response_id not in found:
            arguments = (token, response_id, most - len(found), min(most_bytes, BYTES_AT_ONCE))
            _, _, behind, rows = await self._partitions.run(CHAIN, partition, *arguments)
            for row in rows:
                response = _response(tenant, row)
                if response.id in found:
                    return list(found.values())
                found[response.id] = response
                most_bytes -= response.bytes
            response_id = behind.decode()
        return list(found.values())

    async def remove(self, response_id: str, tenant: str, *, is_expected: bool = False) -> bool:
        return await self._partitions.retry_until_known(
            lambda is_again: self._remove(response_id, tenant, is_expected=is_expected, is_again=is_again)
        )

    async def trim(self, most: int) -> int:
        gone = 0
        self._first += 1
        for place in range(self._partitions.number):
            partition = (self._first + place) % self._partitions.number
            number = TRIMMED_AT_ONCE
            while number == TRIMMED_AT_ONCE and gone < most:
                _, _, number = await self._partitions.run(TRIM, partition, most - gone)
                gone += number
        return gone

    async def _put(self, response: StoredResponse) -> None:
        partition, token = self._partitions.of_tenant(response.tenant), tenant_token(response.tenant)
        times = (repr(float(response.created_at)), repr(float(response.keep_until)))
        about = (response.id, *times, response.previous_id, response.bytes, response.body, response.input_items)
        most, mark = self._bounds.tenant_bytes, self._partitions.mark(partition)
        _, _, early, is_more = await self._partitions.run(PUT, partition, token, most, *about, mark=mark)
        while is_more:
            _, _, more, is_more = await self._partitions.run(PUT, partition, token, most)
            early += more
        self._early.note(early)
        await self._partitions.settle([mark])

    async def _remove(self, response_id: str, tenant: str, *, is_expected: bool, is_again: bool) -> bool:
        partition, token = self._partitions.of_tenant(tenant), tenant_token(tenant)
        mark = self._partitions.mark(partition)
        about = (token, response_id, REMOVED_S, int(is_expected), int(is_again))
        _, _, was_there = await self._partitions.run(REMOVE, partition, *about, mark=mark)
        if was_there or is_expected:
            await self._partitions.settle([mark])
        return bool(was_there)


def _response(tenant: str, row: Sequence[bytes]) -> StoredResponse:
    name, created, keep_until, previous, body, items = row
    return StoredResponse(name.decode(), tenant, float(created), float(keep_until), previous.decode(), body, items)
