"""The dead letters of the jobs in the Redis. A letter is in the partition of its job, and so is the job that runs it again."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from gateway.drivers.redis.partitions import JobPartitions, job_script
from gateway.products.jobs import redis_records as records
from gateway.products.jobs.dead_letters.rules import (
    DeadGroup,
    DeadLetter,
    LetterKind,
    LetterPage,
    RedriveResult,
    begin_redrive,
    stripped,
)
from gateway.products.jobs.model import ClaimedWork, NewJob
from gateway.products.jobs.redis_acceptance import RedisWrites
from gateway.products.jobs.redis_claims import LetterChange, RedisSteps, read_letter
from gateway.products.jobs.transitions import GROUPS_AT_ONCE, MOST_GROUPS, NOT_OURS

WRITE, PURGE = job_script("letters_write", "take", "letters"), job_script("letters_purge", "letters")
PAGE, GROUPS = job_script("letters_page", "letters"), job_script("letters_groups", "letters")
OLD = job_script("letters_old", "letters")
AT_ONCE = 100
"""Letters of one script, at most."""


class RedisDeadLetters:
    """Implements `gateway.products.jobs.dead_letters.rules.DeadLetters`."""

    def __init__(self, partitions: JobPartitions, steps: RedisSteps, writes: RedisWrites) -> None:
        self._partitions = partitions
        self._writes = writes
        self._letters = steps.letters

    async def groups(self, samples: int, after: str | None = None) -> Sequence[DeadGroup]:
        groups: dict[str, DeadGroup] = {}
        for partition in range(self._partitions.number):
            arguments = (samples, MOST_GROUPS) if after is None else (samples, GROUPS_AT_ONCE, after)
            _, _, rows = await self._partitions.run(GROUPS, partition, *arguments)
            for name, about, number, size, oldest, newest, texts in rows:
                kind, error_class, model, template = orjson.loads(about)
                letters = [read_letter(text) for text in texts]
                times = (float(oldest), float(newest))
                one = DeadGroup(
                    name.decode(), LetterKind(kind), error_class, model, template, number, int(size), *times, letters
                )
                groups[one.id] = _both(groups[one.id], one, samples) if one.id in groups else one
        if after is not None:
            return sorted(groups.values(), key=lambda group: group.id)[:GROUPS_AT_ONCE]
        return sorted(groups.values(), key=lambda group: (-group.number, group.id))[:MOST_GROUPS]

    async def page(self, page: LetterPage) -> Sequence[DeadLetter]:
        found: list[DeadLetter] = []
        at, letter_id = page.after
        for partition in range(self._partitions.number):
            _, _, texts = await self._partitions.run(PAGE, partition, page.group, repr(at), letter_id, page.limit)
            found += [read_letter(text) for text in texts]
        return sorted(found, key=lambda letter: (letter.at, letter.id))[: page.limit]

    async def find(self, letter_id: str) -> DeadLetter | None:
        found = await self._letters.find(letter_id)
        return None if found is None else found[1].letter

    async def payload(self, letter_id: str) -> bytes | None:
        found = await self._letters.find(letter_id)
        if found is None or not found[1].letter.bytes:
            return None
        job = self._partitions.key(found[0], f"j:{found[1].letter.job_id}")
        text, payload = await self._partitions.command(b"HMGET", job, b"s", b"x")
        return None if text is None else payload or b""

    async def redrive(self, work: ClaimedWork, letter_id: str, number: int, new: NewJob) -> RedriveResult:
        """Marks a letter as being redriven, and accepts its new job.

        In one script where the redrive is in the letter's partition; else in two, and a replica that dies between them leaves
        the letter redriven, but not counted by the redrive.
        """
        while True:
            found = await self._letters.find(letter_id)
            begun = None if found is None else begin_redrive(found[1].letter, work.job.id, number, new.job.id)
            if found is None or begun is None:
                (held,) = await self._writes.look([work])
                return RedriveResult(held, is_done=False)
            partition, seen = found
            change = LetterChange(begun, seen.text)
            if partition == self._partitions.of_fence(work.fence):
                result = await self._writes.count_redrive(work, change, new)
                if result is not None:
                    return RedriveResult(result, is_done=result.is_ours)
                continue
            (held,) = await self._writes.look([work])
            if not held.is_ours:
                return RedriveResult(NOT_OURS, is_done=False)
            arguments = (1, *change.arguments(), *records.new_arguments(new))
            _, _, is_done = await self._partitions.run(WRITE, partition, *arguments)
            if is_done:
                await self._writes.count_redrive(work, None, None)
                return RedriveResult(held, is_done=True)

    async def purge(self, letter_ids: Sequence[str]) -> int:
        gone = 0
        for partition in range(self._partitions.number):
            for first in range(0, len(letter_ids), AT_ONCE):
                gone += (await self._partitions.run(PURGE, partition, *letter_ids[first : first + AT_ONCE]))[2]
        return gone

    async def trim(self, before: float, max_bytes: int, most: int) -> int:
        """Removes old letters, and of the oldest others the payloads; partition by partition."""
        done = over = 0
        for partition in range(self._partitions.number):
            while done < most:
                step = min(AT_ONCE, most - done)
                _, _, old, _, _ = await self._partitions.run(OLD, partition, repr(float(before)), step)
                if old:
                    done += (await self._partitions.run(PURGE, partition, *old))[2]
                if len(old) < step:
                    break
            over += int((await self._partitions.run(OLD, partition, 0, 1))[3])
        over -= max_bytes
        for partition in range(self._partitions.number):
            while over > 0 and done < most:
                _, _, _, _, texts = await self._partitions.run(OLD, partition, 0, min(AT_ONCE, most - done))
                for text in texts:
                    letter = read_letter(text)
                    if over > 0:
                        change = LetterChange(stripped(letter), text, is_stripped=True)
                        done += (await self._partitions.run(WRITE, partition, 1, *change.arguments()))[2]
                        over -= letter.bytes
                if not texts:
                    break
        return done


def _both(one: DeadGroup, other: DeadGroup, samples: int) -> DeadGroup:
    """Returns a group of which two partitions have letters."""
    newest = sorted([*one.samples, *other.samples], key=lambda letter: (letter.at, letter.id), reverse=True)
    return one._replace(
        number=one.number + other.number,
        bytes=one.bytes + other.bytes,
        oldest_at=min(one.oldest_at, other.oldest_at),
        newest_at=max(one.newest_at, other.newest_at),
        samples=newest[:samples],
    )
