"""Dead letters as the Redis has them: read, and changed if nobody has changed them meanwhile."""

from __future__ import annotations

from typing import NamedTuple

import orjson

from gateway.products.jobs.dead_letters.rules import DeadLetter, pack, unpack
from gateway.products.jobs.redis_partitions.durability import Argument, JobPartitions


class LetterSeen(NamedTuple):
    """A letter as it was read."""

    letter: DeadLetter
    text: bytes


class LetterChange(NamedTuple):
    """A letter that comes, or takes the place of what was seen."""

    letter: DeadLetter
    seen: bytes = b""
    is_stripped: bool = False
    """The payload of its job goes."""

    def arguments(self) -> list[Argument]:
        """Returns the letter as `lua/letters.lua` reads it."""
        letter = self.letter
        about = orjson.dumps([letter.kind, letter.error_class, letter.model, letter.template])
        text = letter.group.encode() + b" " + pack(letter)
        return [
            letter.id, letter.group, about, repr(float(letter.at)), self.seen, text, letter.job_id if self.is_stripped else "",
        ]  # fmt: skip


class RedisLetters:
    """Reads letters."""

    def __init__(self, partitions: JobPartitions) -> None:
        self._partitions = partitions

    async def seen(self, partition: int, letter_id: str) -> LetterSeen | None:
        """Returns a letter of a partition. Raises JobsUnavailable."""
        text = await self._partitions.command(b"HGET", self._partitions.key(partition, "dead"), letter_id)
        return None if text is None else LetterSeen(read_letter(text), text)

    async def find(self, letter_id: str) -> tuple[int, LetterSeen] | None:
        """Returns a letter and the partition that has it. Raises JobsUnavailable."""
        for partition in range(self._partitions.number if letter_id else 0):
            seen = await self.seen(partition, letter_id)
            if seen is not None:
                return partition, seen
        return None


def read_letter(text: bytes) -> DeadLetter:
    """Returns the letter that was written so."""
    return unpack(text.partition(b" ")[2])
