"""The dead letters of the jobs file, asked from the event loop."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from gateway.products.jobs import sqlite_rows, transitions
from gateway.products.jobs.dead_letters.rules import DeadGroup, DeadLetter, LetterPage, ReplayResult, replaying
from gateway.products.jobs.dead_letters.sqlite import dead_rows
from gateway.products.jobs.model import ClaimedWork, NewJob
from gateway.products.jobs.sqlite import SqliteAcceptance, SqlitePieces
from gateway.products.jobs.sqlite_rows import Rest
from gateway.products.jobs.sqlite_store.file import JobsFile
from gateway.products.jobs.transitions import NOT_OURS, written

AT_ONCE = 100
"""Letters that are removed in one step, after which others have their turn."""


class SqliteDeadLetters:
    """Implements `gateway.products.jobs.dead_letters.rules.DeadLetters`."""

    def __init__(
        self, file: JobsFile, pieces: SqlitePieces, acceptance: SqliteAcceptance, wall: Callable[[], float]
    ) -> None:
        self._file = file
        self._pieces = pieces
        self._acceptance = acceptance
        self._wall = wall

    async def groups(self, samples: int, after: str | None = None) -> Sequence[DeadGroup]:
        """Returns the groups with the most letters, the largest first, each with its newest letters; or the next by id."""
        return await self._file.read(lambda db: dead_rows.groups(db, samples, after))

    async def page(self, page: LetterPage) -> Sequence[DeadLetter]:
        """Returns the letters of a group that are open, in order."""
        return await self._file.read(lambda db: dead_rows.page_of(db, page))

    async def find(self, letter_id: str) -> DeadLetter | None:
        """Returns a letter."""
        return await self._file.read(lambda db: dead_rows.find(db, letter_id))

    async def payload(self, letter_id: str) -> bytes | None:
        """Returns the payload of a letter's job."""
        return await self._file.read(lambda db: dead_rows.payload(db, letter_id))

    async def replay(self, work: ClaimedWork, letter_id: str, number: int, new: NewJob) -> ReplayResult:
        """Marks a letter as being replayed, and accepts its new job, in one transaction."""
        now, taken = self._wall(), next(self._pieces.numbers)

        def replayed(db: sqlite3.Connection) -> ReplayResult:
            row = self._pieces.claimed(db, work)
            if row is None:
                return ReplayResult(NOT_OURS, is_done=False)
            letter = dead_rows.find(db, letter_id)
            begun = None if letter is None else replaying(letter, work.job.id, number, new.job.id)
            if letter is not None and begun is not None:
                dead_rows.change(db, letter, begun)
                self._acceptance.accept(db, new, now, taken)
                sqlite_rows.keep(db, row, transitions.one_more(row.job))
            return ReplayResult(written(row.job), is_done=begun is not None)

        return await self._file.write(replayed)

    async def purge(self, letter_ids: Sequence[str]) -> int:
        """Removes letters; returns how many there were."""
        return await self._file.write(lambda db: _purge(db, letter_ids))

    async def trim(self, before: float, max_bytes: int, most: int) -> int:
        """Removes old letters, and of the oldest others the payloads."""
        return await self._file.write(lambda db: _trim(db, before, max_bytes, most))


def _purge(db: sqlite3.Connection, letter_ids: Sequence[str], count: int = 0) -> int | Rest:
    count += dead_rows.purge(db, letter_ids[:AT_ONCE])
    rest = letter_ids[AT_ONCE:]
    return Rest(lambda db: _purge(db, rest, count)) if rest else count


def _trim(db: sqlite3.Connection, before: float, max_bytes: int, most: int, count: int = 0) -> int | Rest:
    step = min(most - count, AT_ONCE)
    done = dead_rows.trim(db, before, max_bytes, step)
    count += done
    return count if done < step or count == most else Rest(lambda db: _trim(db, before, max_bytes, most, count))
