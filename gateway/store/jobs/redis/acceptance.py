"""How jobs come into the Redis: one of a kind under a dedupe key, in the place of another under a debounce key, or new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from gateway.policy.jobs.job import Accepted, NewJob
from gateway.store.jobs.redis import records
from gateway.store.jobs.redis.partitions import JobPartitions, job_script
from gateway.store.jobs.transitions import OpenBounds

ACCEPT, TAKE_BACK = job_script("accept", "take"), job_script("take_back", "erase")


class RedisAcceptance:
    """Adds to the jobs. `open_elsewhere` tells how many jobs are open in all partitions but one."""

    def __init__(self, partitions: JobPartitions, bounds: OpenBounds, open_elsewhere: Callable[[int], int]) -> None:
        self._partitions = partitions
        self._bounds = bounds
        self._open_elsewhere = open_elsewhere

    async def accept(self, jobs: Sequence[NewJob]) -> tuple[list[Accepted], list[int]]:
        """Takes jobs, and returns in which partitions they are. Raises TooManyJobs, JobsUnavailable.

        All or none of those of one partition; a caller that repeats all of them completes what a failure has left.
        """
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
