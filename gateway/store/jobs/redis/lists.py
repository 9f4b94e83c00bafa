"""Lists of jobs in the Redis, newest first, and the jobs that are forgotten; long work in many short scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.policy.jobs.job import Job, JobPage, JobQuery
from gateway.store.jobs import transitions
from gateway.store.jobs.redis import records
from gateway.store.jobs.redis.partitions import JobPartitions, job_script

PAGE, FORGET = job_script("page"), job_script("forget", "erase")
ROWS_AT_ONCE = 200
"""Jobs that one script of a list reads."""
FORGOTTEN_AT_ONCE = 50


class _Listed(NamedTuple):
    seq: tuple[int, int]
    job: Job


async def page_of(partitions: JobPartitions, query: JobQuery, after: tuple[int, int] | None) -> JobPage:
    """Returns a page of jobs behind the place `after`, of all partitions that have some. Raises JobsUnavailable."""
    asked = range(partitions.number) if query.tenant is None else [partitions.of_tenant(query.tenant)]
    step = ROWS_AT_ONCE if query.states or query.metadata else min(ROWS_AT_ONCE, query.limit + 1)
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
    _, _, last, rows = await partitions.run(PAGE, partition, tenant, query.kind or "", before, most)
    found = [_Listed(records.seq_of(text), records.read_job(name.decode(), text)) for name, text in rows]
    if not last:
        return found, ()
    first, second = last.split(b"-")
    return found, [(int(first), int(second))]


async def forget_ended(partitions: JobPartitions, before: float, most: int) -> int:
    """Forgets the jobs that ended first, of each partition; returns how many. Raises JobsUnavailable."""
    count = 0
    for partition in range(partitions.number):
        while count < most:
            step = min(FORGOTTEN_AT_ONCE, most - count)
            _, _, gone = await partitions.run(FORGET, partition, before, step)
            count += gone
            if gone < step:
                break
    return count
