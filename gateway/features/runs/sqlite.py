"""The runs in the jobs file, asked from the event loop."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from gateway.drivers.durable_file import DurableFile
from gateway.drivers.sqlite import Rest
from gateway.features.runs import sqlite_rows
from gateway.features.runs.step import RunChanged, RunPage, RunQuery, RunToChange, StepAbout, StoredRun, StoredStep
from gateway.features.runs.store import RunQuota

AT_ONCE = 50
"""Runs that are forgotten in one step, after which others have their turn."""


class SqliteRuns:
    """Implements `gateway.features.runs.step.Runs`."""

    def __init__(self, file: DurableFile, wall: Callable[[], float], most_bytes: int) -> None:
        self._file = file
        self._wall = wall
        self._room = RunQuota(most_bytes)

    @property
    def early(self) -> int:
        return self._room.early

    async def find_step(self, tenant: str, run: str, step: str) -> StoredStep | None:
        now = self._wall()
        return await self._file.read(lambda db: sqlite_rows.find_step(db, tenant, run, step, now))

    async def keep_step(self, step: StoredStep, *, replaces: bool = False) -> StoredStep:
        self._room.check(step)
        now, most = self._wall(), self._room.bytes
        kept, gone = await self._file.write(lambda db: sqlite_rows.keep_step(db, step, now, most, replaces=replaces))
        self._room.note(gone)
        return kept

    async def change(self, changes: Sequence[RunToChange]) -> Sequence[RunChanged | None]:
        """Adds to the records of runs, and closes those that have ended, durably."""
        now, most = self._wall(), self._room.bytes
        for one in changes:
            one.written()  # the file's writes are done in the order in which they are asked for
        results, gone = await self._file.write(lambda db: sqlite_rows.change(db, changes, now, most))
        self._room.note(gone)
        return results

    async def find(self, tenant: str, run: str) -> tuple[StoredRun, Sequence[StepAbout]] | None:
        return await self._file.read(lambda db: sqlite_rows.find(db, tenant, run))

    async def list_runs(self, query: RunQuery) -> RunPage:
        return await self._file.read(lambda db: sqlite_rows.page_of(db, query))

    async def forget(self, tenant: str, run: str) -> bool:
        return await self._file.write(lambda db: sqlite_rows.forget(db, tenant, run))

    async def trim(self, before: float, most: int) -> int:
        return await self._file.write(lambda db: _trim(db, before, most))


def _trim(db: sqlite3.Connection, before: float, most: int, count: int = 0) -> int | Rest:
    step = min(most - count, AT_ONCE)
    gone = sqlite_rows.trim(db, before, step)
    count += gone
    return count if gone < step or count == most else Rest(lambda db: _trim(db, before, most, count))
