"""Where jobs are, by their ids, and what is read of them there without a script.

All that a tenant has is in one partition; a job that follows from another's end, and has no tenant, is beside that one. Whoever
does not name a tenant asks all partitions, unless this process has met the job before. Lists are newest first; long work is
done in many short scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.products.jobs.model.job import ClaimedWork, Job, JobPage, JobQuery
from gateway.products.jobs.model.lines import ChunkResult, LineResult
from gateway.products.jobs.redis_partitions.partitions import JobPartitions, job_script
from gateway.products.jobs.redis_records import records
from gateway.products.jobs.transitions import transitions

PAGE, FORGET = job_script("page"), job_script("forget", "erase")
ROWS_AT_ONCE = 200
"""Jobs that one script of a list reads."""
FORGOTTEN_AT_ONCE = 50
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


class _Listed(NamedTuple):
    seq: tuple[int, int]
    job: Job


async def page_of(partitions: JobPartitions, query: JobQuery, after: tuple[int, int] | None) -> JobPage:
    """Returns a page of jobs behind the place `after`, of all partitions that have some. Raises JobsUnavailable."""
    asked = range(partitions.number) if query.tenant is None else [partitions.of_tenant(query.tenant)]
    is_sifted = query.states or query.metadata or query.parent == ""
    step = ROWS_AT_ONCE if is_sifted else min(ROWS_AT_ONCE, query.limit + 1)
    found: list[Job] = []
    before = "+" if after is None else f"{after[0]}-{after[1]}"
    while True:
        rows: list[_Listed] = []
        rest: list[tuple[int, int]] = []
        for partition in asked:
            some, last = await _rows(partitions, partition, query, before, step)
            rows += some
            rest += last
        down_to = max(rest, default=(0, 0))
        rows = sorted((row for row in rows if row.seq >= down_to), key=lambda row: row.seq, reverse=True)
        found += [row.job for row in rows if transitions.matches(row.job, query)]
        if len(found) > query.limit or not rest:
            return JobPage(found[: query.limit], len(found) > query.limit)
        before = f"{down_to[0]}-{down_to[1]}"


async def _rows(
    partitions: JobPartitions, partition: int, query: JobQuery, before: str, most: int
) -> tuple[Sequence[_Listed], Sequence[tuple[int, int]]]:
    """Returns the next jobs of a partition, and the place of the last if there may be more."""
    tenant = "" if query.tenant is None else records.tenant_token(query.tenant)
    _, _, last, rows = await partitions.run(PAGE, partition, tenant, query.kind or "", before, most, query.parent or "")
    found = [_Listed(records.seq_of(text), records.read_job(name.decode(), text)) for name, text in rows]
    if not last:
        return found, ()
    first, second = last.split(b"-")
    return found, [(int(first), int(second))]


async def forget_ended(partitions: JobPartitions, before: float, most: int) -> int:
    """Forgets the jobs that ended first, of each partition; returns how many. Raises JobsUnavailable."""
    count = 0
    for partition in range(partitions.number):
        needed = 0
        while count < most:
            step = min(FORGOTTEN_AT_ONCE, most - count)
            _, _, gone, passed_over = await partitions.run(FORGET, partition, before, step, needed)
            count, needed = count + gone, needed + passed_over
            if gone + passed_over < step:
                break
    return count
