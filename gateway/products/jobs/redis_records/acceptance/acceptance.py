"""How jobs come into the Redis: one of a kind under a dedupe key, in the place of another under a debounce key, or new."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

from gateway.drivers.redis.link import BackgroundTasks
from gateway.products.jobs.model.errors import JobsUnavailable, OutcomeUnknown
from gateway.products.jobs.model.job import Accepted, Job, JobKind, NewJob
from gateway.products.jobs.redis_partitions.partitions import JobPartitions, job_script
from gateway.products.jobs.redis_records import records
from gateway.products.jobs.transitions.transitions import OpenBounds

ACCEPT, TAKE_BACK = job_script("accept", "take"), job_script("take_back", "take", "erase")

TAKE_BACK_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds between attempts to remove what was taken, but not acknowledged."""


class Sent(NamedTuple):
    """A job that was sent, and when: what is taken back are the attempts until then, also those that arrive later."""

    new: NewJob
    at_us: int


class RedisAcceptance:
    """Adds to the jobs. `open_elsewhere` tells how many jobs are open in all partitions but one; `cancel` stops one."""

    def __init__(
        self,
        partitions: JobPartitions,
        bounds: OpenBounds,
        open_elsewhere: Callable[[int], int],
        cancel: Callable[[int, str], Awaitable[object]],
        background: BackgroundTasks,
    ) -> None:
        self._partitions = partitions
        self._background = background
        self._refused: dict[str, Sent] = {}
        """Jobs that were refused because nobody answered, and may have been taken; who sends one again wants it."""
        self._bounds = bounds
        self._open_elsewhere = open_elsewhere
        self._cancel = cancel

    async def accept(self, jobs: Sequence[NewJob]) -> list[Accepted]:
        """Takes jobs, durably, all or none of those of one partition. Raises TooManyJobs, JobsUnavailable.

        Where an answer is lost it is asked for again. What is refused does not happen later, as far as that can be: what was
        taken all the same is taken back as soon as the Redis answers, and stopped if it runs already.
        """
        for new in jobs:
            self._refused.pop(new.job.id, None)
        sent_us = time.time_ns() // 1000
        try:
            return await self._accept_all(jobs, sent_us)
        except JobsUnavailable as error:
            if not self._partitions.is_closed:
                self._refused.update({new.job.id: Sent(new, sent_us) for new in jobs})
                self._background.start(self._take_back([new.job.id for new in jobs]))
            if isinstance(error, OutcomeUnknown):
                raise OutcomeUnknown(_unknown([new.job for new in jobs])) from error
            raise

    async def _accept_all(self, jobs: Sequence[NewJob], sent_us: int) -> list[Accepted]:
        places = [self._partitions.of_tenant(new.job.tenant) for new in jobs]
        accepted: dict[int, Accepted] = {}
        for partition, numbers in groupby(sorted(range(len(jobs)), key=places.__getitem__), key=places.__getitem__):
            some = list(numbers)
            answers = await self._accept_in(partition, [jobs[number] for number in some], sent_us)
            accepted.update(zip(some, answers, strict=True))
        return [accepted[number] for number in range(len(jobs))]

    async def _accept_in(self, partition: int, jobs: Sequence[NewJob], sent_us: int) -> list[Accepted]:
        async def ask(is_again: bool) -> list[Accepted]:  # as `insist` calls it
            mark = self._partitions.mark(partition)
            accepted = await self._accept(partition, jobs, sent_us, mark, is_again=is_again)
            await self._partitions.settle([mark])
            return accepted

        return await self._partitions.insist(ask)

    async def take_back(self, jobs: Sequence[Sent]) -> None:
        """Removes those that were taken all the same, unless somebody has met them since. Raises JobsUnavailable."""
        for new, sent_us in jobs:
            partition = self._partitions.of_tenant(new.job.tenant)
            _, _, runs = await self._partitions.run(TAKE_BACK, partition, new.job.id, sent_us)
            if runs:
                await self._cancel(partition, new.job.id)

    async def _take_back(self, job_ids: Sequence[str]) -> None:
        """Takes back what was refused. Where the Redis is away for longer than all of these waits, what it has taken runs."""
        for delay_s in TAKE_BACK_S:
            with suppress(JobsUnavailable):
                await self.take_back([self._refused[name] for name in job_ids if name in self._refused])
                break
            await asyncio.sleep(delay_s)
        for name in job_ids:
            self._refused.pop(name, None)

    async def _accept(
        self, partition: int, jobs: Sequence[NewJob], sent_us: int, mark: bytes | None, *, is_again: bool
    ) -> list[Accepted]:
        bounds = self._bounds
        rooms = (bounds.in_all - self._open_elsewhere(partition), bounds.per_tenant)
        arguments = [argument for new in jobs for argument in records.new_arguments(new)]
        reply = await self._partitions.run(ACCEPT, partition, *rooms, sent_us, int(is_again), *arguments, mark=mark)
        if len(reply) == 4:
            _, _, in_all, of_tenant = reply
            refusal = bounds.refusal(in_all + self._open_elsewhere(partition), of_tenant)
            if refusal is not None:
                raise refusal
        if not reply[2]:
            raise JobsUnavailable("Jobs cannot be kept now: these were taken back a moment ago. Send them again.")
        return [_accepted(row, new, is_again=is_again) for row, new in zip(reply[2], jobs, strict=True)]


def _accepted(row: Sequence[bytes], new: NewJob, *, is_again: bool) -> Accepted:
    job_id, how, text = row
    job = records.read_job(job_id.decode(), text)
    if how == b"replaced":
        return Accepted(job, is_new=False, debounced=records.debounced_of(text))
    is_new = how == b"new" or (is_again and job.id == new.job.id)  # by an attempt of which nobody heard
    return Accepted(job, is_new=is_new, is_conflict=how == b"conflict")


def _unknown(jobs: Sequence[Job]) -> str:
    """Returns what is told to whom nobody can say what has become of their jobs."""
    names = ", ".join(job.id for job in jobs[:3]) + (", …" if len(jobs) > 3 else "")
    there = "/v1/batches" if jobs[0].kind is JobKind.BATCH else "/v1/jobs"
    return (
        f"Jobs cannot be kept now: their Redis did not answer in time, and may have taken {names} all the same. It is taken "
        "back within two minutes if it can be: send it again under the same Idempotency-Key or dedupe key, which never makes a "
        f"second one, or look after that time (GET {there}/{jobs[0].id}) whether it is there."
    )
