"""The lines of one chunk on their way in: those that have no result yet, read from the input file a piece at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import NamedTuple

from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.products.batches.input import ENTRY_BYTES, IndexEntry, lines_of, read_index
from gateway.products.batches.output import INDEX, INPUT, LineIdentity, plan_of, unanswered_line
from gateway.products.jobs.model import ClaimedWork, Job, LineResult, line_id
from gateway.products.jobs.store import Blobs

AHEAD_BYTES = 1024 * 1024
MOST_MISSING = 30
"""Tries of a chunk whose input is not there, 10 s from one to the next: a volume may be mounted again."""
INPUT_GONE = (
    "input_no_permissions",
    "The input file of this batch is gone from the gateway's folder of files; send the request in another batch.",
)


class InputLine(NamedTuple):
    """A line that waits to be run."""

    number: int
    text: bytes
    offset: int
    """Of its text, in the input file."""
    model: int = 0
    """The number of its model in the batch's list."""


class ChunkInput:
    """Reads the lines of one chunk, in order, about a megabyte ahead."""

    def __init__(self, blobs: Blobs, job: Job, chunk: int) -> None:
        self._blobs = blobs
        self._job = job
        self._numbers = lines_of(plan_of(job), chunk)
        self._left: deque[tuple[int, IndexEntry]] = deque()
        self._read: deque[InputLine] = deque()
        self._unknown: list[int] = []
        """Lines of which it is not known where they are."""

    def __len__(self) -> int:
        return len(self._left) + len(self._read)

    async def open(self, has_result: Collection[int]) -> None:
        """Finds the lines that have no result yet. Raises JobsUnavailable, FileNotFoundError."""
        self._unknown = [number for number in self._numbers if number not in has_result]
        start = self._numbers.start * ENTRY_BYTES
        data = await self._bytes(self._job.marks[INDEX], start, len(self._numbers) * ENTRY_BYTES)
        entries = zip(self._numbers, read_index(data), strict=True)
        self._left.extend((number, entry) for number, entry in entries if number not in has_result)
        self._unknown = []

    def has_any(self, away: Collection[int]) -> bool:
        """Tells whether there are lines for other models than those."""
        return any(line.model not in away for line in self._read) or self._is_left(away)

    async def next_lines(self, most: int, away: Collection[int] = ()) -> list[InputLine]:
        """Returns the next lines for other models than `away`, at least one while there are any.

        Raises JobsUnavailable, FileNotFoundError.
        """
        if self._is_left(away) and all(line.model in away for line in self._read):
            await self._read_ahead(away)
        some = list(islice((line for line in self._read if line.model not in away), most))
        for line in some:
            self._read.remove(line)
        return some

    def give_up(self) -> list[LineResult]:
        """Returns the results of all lines that were not read: their input is gone, and with it what they are called."""
        numbers = [*self._unknown, *(number for number, _ in self._left)]
        self._left.clear()
        return [
            unanswered_line(LineIdentity(number, line_id(self._job.id, number), ""), *INPUT_GONE) for number in numbers
        ]

    def _is_left(self, away: Collection[int]) -> bool:
        return any(entry.model not in away for _, entry in self._left)

    async def _read_ahead(self, away: Collection[int]) -> None:
        wanted = [one for one in self._left if one[1].model not in away]
        start = wanted[0][1].offset
        taken = wanted[:1]
        for one in wanted[1:]:
            if _end(one[1]) - start > AHEAD_BYTES:
                break
            taken.append(one)
        data = await self._bytes(self._job.about[INPUT], start, _end(taken[-1][1]) - start)
        for number, entry in taken:
            self._left.remove((number, entry))
            at = entry.offset - start
            self._read.append(InputLine(number, data[at : at + entry.length], entry.offset, entry.model))

    async def _bytes(self, name: str, start: int, length: int) -> bytes:
        return b"".join([part async for part in self._blobs.read(name, start, length)])


class MissingInputs:
    """Counts how often the input of chunks was not there, in this process."""

    def __init__(self) -> None:
        self._tries: dict[tuple[str, int], int] = {}

    def is_gone_for_good(self, work: ClaimedWork, trouble: Exception) -> bool:
        """Counts a try of a chunk whose input is not there; tells whether there have been enough of them."""
        if not isinstance(trouble, FileNotFoundError):
            return False
        chunk = work.job.id, work.piece
        tries = self._tries[chunk] = self._tries.get(chunk, 0) + 1
        return tries >= MOST_MISSING

    def was_read(self, work: ClaimedWork) -> None:
        """Notes that lines of a chunk have been read: what was not there has come back, and is counted anew from now on."""
        self._tries.pop((work.job.id, work.piece), None)

    def forget(self, job_id: str) -> None:
        """Forgets a batch that has ended."""
        for one in [one for one in self._tries if one[0] == job_id]:
            del self._tries[one]


def _end(entry: IndexEntry) -> int:
    return entry.offset + entry.length


# What a claim of a chunk leaves for another one: lines that failed for now, or for which there is no room for some time.
#
# A line that is put off for longer than FAR_S does not wait in the chunk: what can start does not wait behind it. Once several
# for one model are, none let through in between, the others for it stay where they are until the first of these may ask again.


FAR_S = 5.0
"""A line that has to wait longer leaves the chunk; one that may ask again sooner stays, and is not read again."""
ENOUGH = 8
"""Lines in a row for one model that are put off so: whatever keeps them out is not one line's size."""


class DeferredLines:
    """The lines that one claim leaves without a result. Times are wall-clock seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[int, list[float]] = {}
        """By the number of their model, when lines may ask again that were put off since the last one was let through."""
        self.number = 0
        """Lines that were tried."""
        self.at: float | None = None
        """When the first of them may be tried again."""

    def leave(self, wait_s: float) -> None:
        """Leaves a line, which may be tried again so much later."""
        at = self._clock.wall() + wait_s
        self.number += 1
        self.at = at if self.at is None else min(at, self.at)

    def put_off(self, model: int, wait_s: float) -> None:
        """Leaves a line for which there is no room."""
        self.leave(wait_s)
        self._refused.setdefault(model, []).append(self._clock.wall() + wait_s)

    def let_through(self, model: int) -> None:
        """Notes that there was room for a line."""
        self._refused.pop(model, None)

    def leave_all_until(self, wait_s: float) -> None:
        """Leaves everything until so much later, and no longer."""
        self.at = self._clock.wall() + wait_s

    def models(self) -> Collection[int]:
        """Returns the numbers of the models for which there is no room now."""
        if not self._refused:
            return ()
        now = self._clock.wall()
        return [model for model, times in self._refused.items() if len(times) >= ENOUGH and min(times) > now]


# The calls that are made for the lines of a chunk, and which of them wait in the delay queue.


class LineCalls:
    """The calls of lines under way, by the lines' numbers."""

    def __init__(self, is_holding: Callable[[], bool]) -> None:
        """`is_holding` tells whether the delay queue has any call at all: without one there is nothing to count."""
        self._is_holding = is_holding
        self._calls: dict[int, list[Call]] = {}

    def begin(self, line: int) -> list[Call]:
        """Returns where the next call of a line goes as soon as there is one."""
        calls = self._calls[line] = []
        return calls

    def end(self, line: int) -> None:
        """Forgets a line that is not under way any more."""
        self._calls.pop(line, None)

    def held(self) -> int:
        """Returns how many calls wait in the delay queue; lines that go together are one."""
        if not self._is_holding():
            return 0
        return len(
            {id(sent) for calls in self._calls.values() if calls and (sent := _sent_for(calls)).held is not None}
        )

    def held_lines(self) -> Sequence[int]:
        """Returns the lines whose calls wait in the delay queue."""
        return [line for line, calls in self._calls.items() if calls and _sent_for(calls).held is not None]


def _sent_for(calls: list[Call]) -> Call:
    """Returns the call that is sent for a line: its last one, or the one that several have become together."""
    joined = calls[-1].joined
    return calls[-1] if joined is None else joined[0]
