"""How jobs come into the Redis: one of a kind under a dedupe key, in the place of another under a debounce key, or new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby

from gateway.policy.jobs.errors import JobsUnavailable
from gateway.policy.jobs.job import Accepted, NewJob
from gateway.store.jobs.redis import records
from gateway.store.jobs.redis.partitions import JobPartitions, job_script
from gateway.store.jobs.transitions import OpenBounds
from gateway.store.redis_link.link import BackgroundTasks

ACCEPT, TAKE_BACK = job_script("accept", "take"), job_script("take_back", "erase")

TAKE_BACK_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds between attempts to remove what was taken, but not acknowledged."""


class RedisAcceptance:
    """Adds to the jobs. `open_elsewhere` tells how many jobs are open in all partitions but one."""

    def __init__(
        self,
        partitions: JobPartitions,
        bounds: OpenBounds,
        open_elsewhere: Callable[[int], int],
        background: BackgroundTasks,
    ) -> None:
        self._partitions = partitions
        self._background = background
        self._refused: dict[str, NewJob] = {}
        """Jobs that were refused because nobody answered, and may have been taken; who sends one again wants it."""
        self._bounds = bounds
        self._open_elsewhere = open_elsewhere

    async def accept(self, jobs: Sequence[NewJob]) -> list[Accepted]:
        """Takes jobs, durably, all or none of those of one partition. Raises TooManyJobs, JobsUnavailable.

        What was refused does not happen later: where nobody answered, what was taken is taken back as soon as somebody does.
        """
        for new in jobs:
            self._refused.pop(new.job.id, None)
        try:
            accepted, partitions = await self._accept_all(jobs)
            await self._partitions.settle(partitions)
        except JobsUnavailable:
            if not self._partitions.is_closed:
                self._refused.update({new.job.id: new for new in jobs})
                self._background.start(self._take_back([new.job.id for new in jobs]))
            raise
        return accepted

    async def _accept_all(self, jobs: Sequence[NewJob]) -> tuple[list[Accepted], list[int]]:
        """Takes jobs, and returns in which partitions they are."""
        places = [self._partitions.of_tenant(new.job.tenant) for new in jobs]
        accepted: dict[int, Accepted] = {}
        for partition, numbers in groupby(sorted(range(len(jobs)), key=places.__getitem__), key=places.__getitem__):
            some = list(numbers)
            accepted.update(zip(some, await self._accept(partition, [jobs[number] for number in some]), strict=True))
        return [accepted[number] for number in range(len(jobs))], sorted(set(places))

    async def take_back(self, jobs: Sequence[NewJob]) -> None:
        """Removes those that were taken all the same, unless somebody has met them since. Raises JobsUnavailable."""
        for new in jobs:
            await self._partitions.run(TAKE_BACK, self._partitions.of_tenant(new.job.tenant), new.job.id)

    async def _take_back(self, job_ids: Sequence[str]) -> None:
        """Takes back what was refused. Where the Redis is away for longer than all of these waits, what it has taken runs."""
        for delay_s in TAKE_BACK_S:
            with suppress(JobsUnavailable):
                await self.take_back([self._refused[name] for name in job_ids if name in self._refused])
                break
            await asyncio.sleep(delay_s)
        for name in job_ids:
            self._refused.pop(name, None)

    async def _accept(self, partition: int, jobs: Sequence[NewJob]) -> list[Accepted]:
        bounds = self._bounds
        rooms = (bounds.in_all - self._open_elsewhere(partition), bounds.per_tenant)
        arguments = [argument for new in jobs for argument in records.new_arguments(new)]
        reply = await self._partitions.run(ACCEPT, partition, *rooms, *arguments)
        if len(reply) == 4:
            _, _, in_all, of_tenant = reply
            refusal = bounds.refusal(in_all + self._open_elsewhere(partition), of_tenant)
            if refusal is not None:
                raise refusal
        return [_accepted(*row) for row in reply[2]]


def _accepted(job_id: bytes, how: bytes, text: bytes) -> Accepted:
    job = records.read_job(job_id.decode(), text)
    if how == b"replaced":
        return Accepted(job, is_new=False, debounced=records.debounced_of(text))
    return Accepted(job, is_new=how == b"new", is_conflict=how == b"conflict")
