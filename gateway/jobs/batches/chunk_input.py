"""The lines of one chunk on their way in: those that have no result yet, read from the input file a piece at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from gateway.job_ports import Blobs
from gateway.policy.batches.chunks import lines_of
from gateway.policy.batches.index import ENTRY_BYTES, IndexEntry, read_index
from gateway.policy.batches.marks import INDEX, INPUT, plan_of
from gateway.policy.jobs.job import Job

AHEAD_BYTES = 1024 * 1024


class InputLine(NamedTuple):
    """A line that waits to be run."""

    number: int
    text: bytes
    offset: int
    """Of its text, in the input file."""


class ChunkInput:
    """Reads the lines of one chunk, in order, about a megabyte ahead."""

    def __init__(self, blobs: Blobs, job: Job, chunk: int) -> None:
        self._blobs = blobs
        self._job = job
        self._numbers = lines_of(plan_of(job), chunk)
        self._left: deque[tuple[int, IndexEntry]] = deque()
        self._read: deque[InputLine] = deque()

    def __len__(self) -> int:
        return len(self._left) + len(self._read)

    async def open(self, has_result: Collection[int]) -> None:
        """Finds the lines that have no result yet. Raises JobsUnavailable."""
        start = self._numbers.start * ENTRY_BYTES
        data = await self._bytes(self._job.marks[INDEX], start, len(self._numbers) * ENTRY_BYTES)
        entries = zip(self._numbers, read_index(data), strict=True)
        self._left.extend((number, entry) for number, entry in entries if number not in has_result)

    async def next_lines(self, most: int) -> list[InputLine]:
        """Returns the next lines, at least one while there are any. Raises JobsUnavailable."""
        if not self._read and self._left:
            await self._read_ahead()
        return [self._read.popleft() for _ in range(min(most, len(self._read)))]

    async def _read_ahead(self) -> None:
        start = self._left[0][1].offset
        taken = [self._left.popleft()]
        while self._left and _end(self._left[0][1]) - start <= AHEAD_BYTES:
            taken.append(self._left.popleft())
        data = await self._bytes(self._job.about[INPUT], start, _end(taken[-1][1]) - start)
        for number, entry in taken:
            at = entry.offset - start
            self._read.append(InputLine(number, data[at : at + entry.length], entry.offset))

    async def _bytes(self, name: str, start: int, length: int) -> bytes:
        return b"".join([part async for part in self._blobs.read(name, start, length)])


def _end(entry: IndexEntry) -> int:
    return entry.offset + entry.length
