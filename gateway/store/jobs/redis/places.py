"""Where jobs are, by their ids, and what is read of them there without a script.

All that a tenant has is in one partition; a job that follows from another's end, and has no tenant, is beside that one. Whoever
does not name a tenant asks all partitions, unless this process has met the job before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.policy.jobs.job import ChunkResult, ClaimedWork, LineResult
from gateway.store.jobs.redis import records
from gateway.store.jobs.redis.partitions import JobPartitions

MOST_KNOWN = 4096


class JobPlaces:
    """Finds jobs."""

    def __init__(self, partitions: JobPartitions) -> None:
        self._partitions = partitions
        self._known: dict[str, int] = {}

    def learn(self, job_id: str, partition: int) -> None:
        """Remembers where a job is."""
        if self._partitions.number > 1:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[job_id] = partition

    def learn_work(self, work: ClaimedWork) -> None:
        """Remembers where a claimed job is."""
        self.learn(work.job.id, self._partitions.of_work(work))

    async def find(self, job_id: str, tenant: str | None) -> int | None:
        """Returns the partition of a job; None: there is none, or it is another tenant's. Raises JobsUnavailable."""
        found = await self._search(job_id, tenant, b"s")
        return None if found is None else found[0]

    async def row(self, job_id: str, tenant: str | None, *fields: bytes) -> Sequence[Any] | None:
        """Returns fields of a job, its text the first of them; None: there is none, or it is another tenant's."""
        found = await self._search(job_id, tenant, *fields)
        return None if found is None else found[1]

    async def chunks(self, partition: int, job_id: str) -> list[ChunkResult]:
        """Returns the complete chunks of a batch, in order."""
        found = await self._partitions.command(b"HGETALL", self._partitions.key(partition, f"k:{job_id}"))
        return sorted(records.read_chunk(*pair) for pair in zip(found[::2], found[1::2], strict=True))

    async def open_chunks(self, partition: int, job_id: str) -> list[int]:
        """Returns the chunks that have lines."""
        found = await self._partitions.command(b"HGET", self._partitions.key(partition, f"j:{job_id}"), b"o")
        return [] if found is None else [int(number) for number in found.split()]

    async def lines(self, partition: int, job_id: str, chunks: Sequence[int]) -> list[LineResult]:
        """Returns the results of the lines of chunks, in the order of lines."""
        results: list[LineResult] = []
        for chunk in chunks:
            found = await self._partitions.command(b"HGETALL", self._partitions.key(partition, f"l:{job_id}:{chunk}"))
            results += [records.read_line(*pair) for pair in zip(found[::2], found[1::2], strict=True)]
        return sorted(results)

    async def _search(self, job_id: str, tenant: str | None, *fields: bytes) -> tuple[int, Sequence[Any]] | None:
        for partition in self._likely(job_id, tenant):
            row = await self._partitions.command(b"HMGET", self._partitions.key(partition, f"j:{job_id}"), *fields)
            if row[0] is not None and tenant in (None, records.tenant_of(row[0])):
                self.learn(job_id, partition)
                return partition, row
        return None

    def _likely(self, job_id: str, tenant: str | None) -> Sequence[int]:
        if tenant:
            return [self._partitions.of_tenant(tenant)]
        known = self._known.get(job_id)
        rest = [partition for partition in range(self._partitions.number) if partition != known]
        return rest if known is None else [known, *rest]
