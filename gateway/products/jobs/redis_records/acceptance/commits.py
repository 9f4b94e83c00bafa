"""Writes that come at the same moment, as one script: the results of lines that chunks commit, the parts of logs.

While one is under way in a partition, what comes waits for the next. Invariant: each write has its own answer, or
JobsUnavailable; whoever leaves takes nobody's write along.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.drivers.redis.link import BackgroundTasks, Script
from gateway.products.jobs.dead_letters.redis.letters import LetterChange
from gateway.products.jobs.dead_letters.rules.jobs_dead_letters import DeadLetter
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.model.job import ClaimedWork, WriteResult
from gateway.products.jobs.model.lines import LineResult
from gateway.products.jobs.redis_claims.claims import read_result
from gateway.products.jobs.redis_partitions.partitions import Argument, JobPartitions, job_script
from gateway.products.jobs.redis_records import records

COMMIT = job_script("commit", "letters")
MOST_ARGUMENTS = 4000
"""About so many arguments of one script, which takes some milliseconds then."""


class WaitingWrite(NamedTuple):
    """A write that waits for its script."""

    arguments: Sequence[Argument]
    weight: int
    answer: asyncio.Future[WriteResult]


class SharedScript:
    """Runs a script for all writes that wait in a partition, up to a weight."""

    def __init__(
        self,
        partitions: JobPartitions,
        background: BackgroundTasks,
        script: Script,
        most_weight: int,
        front: Callable[[], Sequence[Argument]] = tuple,
    ) -> None:
        """`front` gives the arguments that come before those of the writes."""
        self._partitions = partitions
        self._background = background
        self._script = script
        self._most_weight = most_weight
        self._front = front
        self._waiting: list[deque[WaitingWrite]] = [deque() for _ in range(partitions.number)]
        self._is_running = [False] * partitions.number

    async def write(self, work: ClaimedWork, arguments: Sequence[Argument], weight: int) -> WriteResult:
        """Returns what the script says of this write. Raises JobsUnavailable."""
        partition = self._partitions.of_work(work)
        answer: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        self._waiting[partition].append(WaitingWrite(arguments, weight, answer))
        if not self._is_running[partition]:
            self._is_running[partition] = True
            self._background.start(self._run(partition))
        return await answer

    async def _run(self, partition: int) -> None:
        """Sends what waits, until nothing does; what comes in one turn of the loop goes together."""
        try:
            while some := self._next(partition):
                try:
                    sent = [argument for one in some for argument in one.arguments]
                    _, _, told = await self._partitions.run(self._script, partition, *self._front(), *sent)
                except JobsUnavailable as error:
                    for one in some:
                        if not one.answer.done():
                            one.answer.set_exception(JobsUnavailable(error.message))
                except Exception as defect:  # noqa: BLE001  # theirs all, who would wait for ever
                    for one in some:
                        if not one.answer.done():
                            one.answer.set_exception(defect)
                else:
                    for one, result in zip(some, told, strict=True):
                        if not one.answer.done():
                            one.answer.set_result(read_result(result))
        finally:
            self._is_running[partition] = False

    def _next(self, partition: int) -> list[WaitingWrite]:
        some: list[WaitingWrite] = []
        weight = 0
        while self._waiting[partition] and weight < self._most_weight:
            some.append(self._waiting[partition].popleft())
            weight += some[-1].weight
        return some


class RedisCommits:
    """Commits results."""

    def __init__(self, partitions: JobPartitions, background: BackgroundTasks) -> None:
        self._partitions = partitions
        self._script = SharedScript(partitions, background, COMMIT, MOST_ARGUMENTS)

    async def commit(self, work: ClaimedWork, results: Sequence[LineResult], dead: Sequence[DeadLetter]) -> WriteResult:
        """Keeps the first result of each line, and counts it, and letters about such lines. Raises JobsUnavailable."""
        letters = [part for letter in dead for part in (letter.line or 0, *LetterChange(letter).arguments())]
        lines = [part for result in results for part in records.line_arguments(result)]
        arguments = [*self._partitions.claim_of(work), len(dead), len(results), *letters, *lines]
        return await self._script.write(work, arguments, len(arguments))
