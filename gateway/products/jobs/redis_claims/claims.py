"""Claims of pieces in the Redis, and what time does to jobs: they become due, claims and deadlines end.

One script per partition does all of it, about once a second: a worker's claim looks at what time has done as well, and only
where nobody claims does a tick look. A claim is an entry in a stream's list of pending ones: its worker keeps it young, and
whoever claims takes over those that have grown older than a lease.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any
from urllib.parse import quote

from gateway.core.types.words import LANES, Lane
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.model.job import ClaimAsk, ClaimedWork, JobDepth, JobState, WriteResult
from gateway.products.jobs.redis_claims.steps import RedisSteps, StepEffects
from gateway.products.jobs.redis_partitions.partitions import JobPartitions, job_script
from gateway.products.jobs.redis_records import records
from gateway.products.jobs.transitions.pieces import MemoryJob, MemoryPieces
from gateway.products.jobs.transitions.transitions import NOT_OURS, is_past_stopping

CLAIM, RENEW, TIDY = job_script("claim"), job_script("renew"), job_script("tidy")
FORGOTTEN_S = 3600.0
"""Of a worker that is not heard of: each start of a replica is a new one."""
PROMOTED = 100
"""Pieces that become ready in one script, and jobs whose deadlines pass between two, at most."""
ENDED_AT_ONCE = 25
CLAIMED_AT_ONCE, RENEWED_AT_ONCE = 50, 200
"""Pieces that one script gives, or keeps, in a few milliseconds."""
MOST_LOOKS = 20
"""Scripts of one tick, at most, while there is more to do."""
LOOK_S, SILENT_S = 0.9, 1.6
"""Seconds after which a claim looks at what time has done; seconds without that, after which a tick does."""
RESTS = 6
"""Of so many looks where nothing is to be done one is left out, so that what else is asked now and then has its room."""

Depths = Mapping[tuple[str, Lane, str], JobDepth]


class RedisClaims:
    """Gives pieces to the worker of this replica, and takes its results."""

    def __init__(
        self, partitions: JobPartitions, steps: RedisSteps, replica: str, lease_s: float, *, is_hasty: bool
    ) -> None:
        """`is_hasty` has everything looked at each time."""
        self._partitions = partitions
        self._steps = steps
        self._replica = replica
        self._lease_ms = round(lease_s * 1000)
        self._is_hasty = is_hasty
        self._looked_at = [-inf] * partitions.number
        self._depths: list[Depths] = [{}] * partitions.number
        self._is_empty = [False] * partitions.number
        self._open = [0] * partitions.number
        self._first = 0
        self._merged: Depths | None = {}

    def depth(self) -> Depths:
        """Returns what waits and runs, as of the last look."""
        if self._merged is None:
            merged: dict[tuple[str, Lane, str], JobDepth] = {}
            for depths in self._depths:
                for name, depth in depths.items():
                    _add(merged, name, depth)
            self._merged = merged
        return self._merged

    def open_elsewhere(self, partition: int) -> int:
        """Returns how many jobs are open in the other partitions, as of the last look."""
        return sum(self._open) - self._open[partition]

    async def claim(self, asks: Sequence[ClaimAsk]) -> list[ClaimedWork]:
        """Claims the first of what is ready, partition by partition. Raises JobsUnavailable where none can be asked."""
        rooms: Counter[str] = Counter()
        for ask in asks:
            rooms[ask.segment] += ask.most
        works: list[ClaimedWork] = []
        away = 0
        self._first += 1
        for place in range(self._partitions.number):
            partition = (self._first + place) % self._partitions.number
            if self._rests(partition):
                continue
            try:
                await self._claim_from(partition, rooms, works)
            except JobsUnavailable:  # those on other servers are not held up, and what was given is not lost
                away += 1
                if away == self._partitions.number and not works:
                    raise
        return works

    async def _claim_from(self, partition: int, rooms: Counter[str], works: list[ClaimedWork]) -> None:
        """Adds to the works what a partition has, as far as there is room. Raises JobsUnavailable."""
        while asked := _some(rooms):
            before = len(works)
            try:
                await self._look(partition, asked, works)
            finally:
                given = Counter(work.job.segment for work in works[before:])
                rooms.subtract(given)
            if all(given[ask.segment] < ask.most for ask in asked):
                break

    def _rests(self, partition: int) -> bool:
        """Tells whether a look can be left out: there was nothing a moment ago, and nothing came from here since."""
        now_s = time.monotonic()
        rests = (
            (self._first + partition) % RESTS == 0
            and self._is_empty[partition]
            and partition not in self._partitions.readied
            and self._looked_at[partition] + SILENT_S > now_s
        )
        if rests and not self._is_hasty:
            self._looked_at[partition], self._is_empty[partition] = now_s, False  # the next is not left out
            return True
        return False

    def is_silent(self) -> bool:
        """Tells whether nobody has looked for a while."""
        return self._is_hasty or min(self._looked_at) + SILENT_S < time.monotonic()

    async def look(self) -> None:
        """Does what time has made due. Raises JobsUnavailable where some of it could not be done."""
        refusal: JobsUnavailable | None = None
        for partition in range(self._partitions.number):
            try:
                await self._look_on(partition)
            except JobsUnavailable as error:
                refusal = error
        if refusal is not None:
            raise refusal

    async def _look_on(self, partition: int) -> None:
        if self._is_hasty or self._looked_at[partition] + SILENT_S < time.monotonic():
            for _ in range(MOST_LOOKS):
                if not await self._look(partition, []):
                    break

    async def tidy(self) -> None:
        """Forgets workers that have nothing and were not heard of for long. Raises JobsUnavailable."""
        for partition in range(self._partitions.number):
            await self._partitions.run(TIDY, partition, round(FORGOTTEN_S * 1000))

    async def _look(self, partition: int, asks: Sequence[ClaimAsk], works: list[ClaimedWork] | None = None) -> bool:
        """Claims, and does a little of what time has made due; returns whether there is more to do."""
        now_s = time.monotonic()
        is_look = self._is_hasty or not asks or self._looked_at[partition] + LOOK_S < now_s
        if is_look:
            self._looked_at[partition] = now_s
        self._partitions.readied.discard(partition)
        rooms = [part for ask in asks for part in (quote(ask.segment, safe=""), ask.most)]
        arguments = (self._replica, self._lease_ms, int(is_look), PROMOTED, " ".join(LANES), len(asks), *rooms)
        reply = await self._partitions.run(CLAIM, partition, *arguments)
        _, _, due, promoted, given, depths, oldest, first, opened = reply
        if works is not None:
            works += [self._work(partition, row) for row in given]
        self._see(partition, depths, oldest if is_look else None, first)
        self._open[partition] = int(opened)
        self._is_empty[partition] = not (depths or given or due) if is_look else False
        if due:
            await self._attend(partition, [job_id.decode() for job_id in due])
        return len(due) == PROMOTED or promoted == PROMOTED

    def _work(self, partition: int, row: Sequence[Any]) -> ClaimedWork:
        job_id, piece, fence, claims, text, payload = row
        seen = records.thaw(job_id.decode(), text)
        self._steps.learn(seen.kept.job.id, seen)
        full = int(fence) * self._partitions.number + partition
        return ClaimedWork(seen.kept.job, int(piece), full, claims, payload)

    async def _attend(self, partition: int, job_ids: Sequence[str]) -> None:
        """Ends jobs whose deadlines have passed, and those that were to stop when their workers died."""
        found = await self._steps.look(partition, job_ids)
        for first in range(0, len(job_ids), ENDED_AT_ONCE):
            some = zip(job_ids[first : first + ENDED_AT_ONCE], found[first : first + ENDED_AT_ONCE], strict=True)
            await asyncio.gather(*[self._steps.take(partition, job_id, _stop, seen) for job_id, seen in some])

    def _see(self, partition: int, depths: Sequence[bytes], oldest: Sequence[bytes] | None, first: bytes) -> None:
        """Notes how much waits and runs; since when, only where that was looked at."""
        now, before = self._partitions.now(), self._depths[partition]
        since = {name: float(at) for name, at in zip((oldest or ())[::2], (oldest or ())[1::2], strict=True)}
        found: dict[tuple[str, Lane, str], JobDepth] = {}
        for name, number in zip(depths[::2], depths[1::2], strict=True):
            queue, letter = name.decode().rsplit(":", 1)
            shown = "later" if letter == "w" else records.STATES[letter]
            key = (*records.queue_parts(queue), shown)
            at = since.get(name)
            if at is None and shown == "later" and first:
                at = float(first)
            if at is None:
                at = before[key].oldest_at if oldest is None and key in before else now
            if int(number) > 0:
                _add(found, key, JobDepth(int(number), at))
        self._depths[partition], self._merged = found, None

    async def renew(self, works: Sequence[ClaimedWork]) -> list[WriteResult]:
        """Keeps claims young, and says what has been asked of the jobs."""
        results = [NOT_OURS] * len(works)
        for partition in range(self._partitions.number):
            places = [place for place, work in enumerate(works) if self._partitions.of_work(work) == partition]
            for first in range(0, len(places), RENEWED_AT_ONCE):
                some = places[first : first + RENEWED_AT_ONCE]
                claims = [part for place in some for part in self._partitions.claim_of(works[place])]
                _, _, told = await self._partitions.run(RENEW, partition, self._replica, *claims)
                for place, answer in zip(some, told, strict=True):
                    results[place] = read_result(answer)
        return results


def _some(rooms: Mapping[str, int]) -> list[ClaimAsk]:
    """Returns asks for about as many as one script gives."""
    left = {segment: room for segment, room in rooms.items() if room > 0}
    return [ClaimAsk(segment, min(room, max(8, CLAIMED_AT_ONCE // len(left)))) for segment, room in left.items()]


def read_result(told: bytes) -> WriteResult:
    """Returns what a script says of a claim."""
    if not told:
        return NOT_OURS
    ends_as, paused = told.decode().split()
    return WriteResult(True, None if ends_as == records.NONE else JobState(ends_as), paused == "1")


def _stop(pieces: MemoryPieces, kept: MemoryJob, now: float, effects: StepEffects) -> None:
    effects.is_forced = True  # it is not due any more, whatever becomes of it
    if kept.job.deadline <= now and not is_past_stopping(kept.job):
        pieces.expire(kept, now)
    elif not kept.job.state.is_end:
        pieces.stop_if_asked(kept, now)


def _add(found: dict[tuple[str, Lane, str], JobDepth], name: tuple[str, Lane, str], depth: JobDepth) -> None:
    before = found.get(name, JobDepth(0, inf))
    found[name] = JobDepth(before.number + depth.number, min(before.oldest_at, depth.oldest_at))
