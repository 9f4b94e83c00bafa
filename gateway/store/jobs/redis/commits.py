"""The results of lines on their way into the Redis: what chunks commit at the same moment is one script.

While one is under way in a partition, what comes waits for the next. Invariant: each commit has its own answer, or
JobsUnavailable; whoever leaves takes nobody's commit along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.policy.jobs.dead_letters import DeadLetter
from gateway.policy.jobs.errors import JobsUnavailable
from gateway.policy.jobs.job import ClaimedWork, WriteResult
from gateway.policy.jobs.lines import LineResult
from gateway.store.jobs.redis import records
from gateway.store.jobs.redis.claims import read_result
from gateway.store.jobs.redis.letters import LetterChange
from gateway.store.jobs.redis.partitions import Argument, JobPartitions, job_script
from gateway.store.redis_link.link import BackgroundTasks

COMMIT = job_script("commit", "letters")
MOST_ARGUMENTS = 4000
"""About so many arguments of one script, which takes some milliseconds then."""

_Waiting = tuple[list[Argument], "asyncio.Future[WriteResult]"]


class RedisCommits:
    """Commits results."""

    def __init__(self, partitions: JobPartitions, background: BackgroundTasks) -> None:
        self._partitions = partitions
        self._background = background
        self._waiting: list[list[_Waiting]] = [[] for _ in range(partitions.number)]
        self._is_running = [False] * partitions.number

    async def commit(self, work: ClaimedWork, results: Sequence[LineResult], dead: Sequence[DeadLetter]) -> WriteResult:
        """Keeps the first result of each line, and counts it, and letters about such lines. Raises JobsUnavailable."""
        partition = self._partitions.of_work(work)
        letters = [part for letter in dead for part in (letter.line or 0, *LetterChange(letter).arguments())]
        lines = [part for result in results for part in records.line_arguments(result)]
        arguments = [*self._partitions.claim_of(work), len(dead), len(results), *letters, *lines]
        answer: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        self._waiting[partition].append((arguments, answer))
        if not self._is_running[partition]:
            self._is_running[partition] = True
            self._background.start(self._run(partition))
        return await answer

    async def _run(self, partition: int) -> None:
        """Sends what waits, until nothing does; what comes in one turn of the loop goes together."""
        try:
            while some := self._next(partition):
                try:
                    sent = [argument for arguments, _ in some for argument in arguments]
                    _, _, told = await self._partitions.run(COMMIT, partition, *sent)
                except JobsUnavailable as error:
                    for _, answer in some:
                        if not answer.done():
                            answer.set_exception(JobsUnavailable(error.message))
                except Exception as defect:  # noqa: BLE001  # theirs all, who would wait for ever
                    for _, answer in some:
                        if not answer.done():
                            answer.set_exception(defect)
                else:
                    for (_, answer), one in zip(some, told, strict=True):
                        if not answer.done():
                            answer.set_result(read_result(one))
        finally:
            self._is_running[partition] = False

    def _next(self, partition: int) -> list[_Waiting]:
        some: list[_Waiting] = []
        size = 0
        while self._waiting[partition] and size < MOST_ARGUMENTS:
            some.append(self._waiting[partition].pop(0))
            size += len(some[-1][0])
        return some
