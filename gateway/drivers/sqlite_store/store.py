"""A store in one file: answers that were paid for outlive the process.

It divides memory and file among the parts of the store; the modules beside it use the file. Invariants: only opening waits
for the disk, and only opening raises; after that a failing disk costs answers, never calls. Neither prompts nor credentials
are stored: keys are digests.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from itertools import count

from gateway.core.clock import Ahead, never_ahead
from gateway.core.ports import Answers, Objects, Records, Vectors
from gateway.core.types import StoreBounds
from gateway.drivers.sqlite import File, FileThread, Trouble
from gateway.drivers.sqlite_store.eviction import STATE_FILE, Eviction
from gateway.drivers.sqlite_store.opening import Connect
from gateway.features.ownership.sqlite import SqliteObjects
from gateway.features.reuse.memory import MemoryAnswers
from gateway.features.reuse.sqlite import SqliteAnswers, SqliteRecords
from gateway.features.semantic.sqlite import SqliteVectors

FRONT_PART = 4
FRONT_BYTES = 64 * 1024 * 1024
"""The cap on a group's answers in memory, which are otherwise a quarter of its bytes."""


class SqliteStore:
    """Implements `gateway.core.ports.Store` on a file, for one event loop; the constructor opens it and
    raises StoreUnusable."""

    is_local: bool = False

    def __init__(
        self,
        path: str,
        wall: Callable[[], float],
        bounds: StoreBounds,
        *,
        ahead: Ahead = never_ahead,
        connect: Connect = sqlite3.connect,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._wall = wall
        trouble = Trouble(path, STATE_FILE, monotonic)
        self._room = Eviction(bounds, wall)
        self._file = File(path, STATE_FILE, connect, trouble, self._room.keep_to_bounds, ahead=ahead)
        self._thread = FileThread(self._file, trouble, monotonic)
        self._thread.start()
        self._front = MemoryAnswers(wall)
        self._front.configure(_front_of(bounds.answers))
        self._is_tidying = False
        first = self._file.starts << 32  # so that neither fences nor uses ever go back, whatever was before
        self._records = SqliteRecords(self._thread, self._room, wall, count(first), bounds.records)
        self._answers = SqliteAnswers(self._thread, self._front, wall, count(first), bounds.answers)
        self._vectors = SqliteVectors(self._thread, wall, bounds.vectors)
        self.records: Records = self._records
        self.answers: Answers = self._answers
        self.vectors: Vectors = self._vectors
        self._objects = SqliteObjects(self._thread, self._file, wall, bounds.objects)
        self.objects: Objects = self._objects

    def configure(self, bounds: StoreBounds) -> None:
        """Sets new bounds; entries above a lowered bound are evicted step by step."""
        self._room.configure(bounds)
        self._front.configure(_front_of(bounds.answers))
        self._records.configure(bounds.records)
        self._answers.configure(bounds.answers)
        self._vectors.configure(bounds.vectors)
        self._objects.configure(bounds.objects)

    def tick(self) -> None:
        """Is called about once a second: deletes some expired entries, and gives up a disk that does not answer."""
        self._thread.watch()
        self._front.tick()
        self._records.tick()
        self._answers.tick(self.stats()["answers"]["entries"])
        if not self._is_tidying:
            self._is_tidying = True
            now = self._wall()
            self._thread.ask(lambda db: self._room.tidy(db, now), None, self._tidied, "cache")

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Returns the contents of the file as of its last write; while it cannot be used, those of memory."""
        stats = {use: {"entries": 0, "bytes": 0} for use in ("answers", "records", "vectors")}
        for name, entries, size in self._file.totals:
            if name == "objects":
                continue
            one = stats[name.partition("/")[0]]
            one["entries"] += entries
            one["bytes"] += size
        stats["records"]["entries"] += self._records.running
        stats["records"]["early"] = self._room.early.count
        return stats if self._thread.is_well else {**stats, "answers": self._front.stats()}

    @property
    def is_well(self) -> bool:
        """Tells whether an entry that is kept now is expected to outlive the process."""
        return self._thread.is_well

    @property
    def dropped(self) -> int:
        """Returns the number of cache writes that were dropped because the disk was too slow."""
        return self._thread.dropped

    async def backup(self, path: str) -> str | None:
        """Copies the file to `path`, which must not exist, while calls go on; returns an error message or None."""
        return await self._thread.backup(path)

    @property
    def path(self) -> str:
        """Returns the path of the file."""
        return self._path

    async def aclose(self) -> None:
        """Takes nothing more, writes all that was taken, if the disk lets it, and closes the file."""
        self._answers.tick(0)
        await self._thread.aclose()

    def _tidied(self, _: None) -> None:
        self._is_tidying = False


def _front_of(bounds: Mapping[str, int]) -> dict[str, int]:
    return {group: min(size // FRONT_PART, FRONT_BYTES) for group, size in bounds.items()}
