"""A store in one file: what was paid for outlives the process.

It decides who has which part of the memory and of the file; how the file is used is the business of the modules beside it.
Invariants: opening is the only thing that waits for the disk, and the only thing that raises; after that a failing disk
costs answers, never calls. Prompts are not stored, nor credentials: keys are digests.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from itertools import count

from gateway.policy.snapshot import StoreBounds
from gateway.ports import Answers, Objects, Records, Vectors
from gateway.store.memory.answers import MemoryAnswers
from gateway.store.sqlite.answers import SqliteAnswers
from gateway.store.sqlite.disk_trouble import Trouble
from gateway.store.sqlite.eviction import Eviction
from gateway.store.sqlite.file import File
from gateway.store.sqlite.objects import SqliteObjects
from gateway.store.sqlite.records import SqliteRecords
from gateway.store.sqlite.schema import Connect
from gateway.store.sqlite.thread import FileThread
from gateway.store.sqlite.vectors import SqliteVectors

FRONT_PART = 4
FRONT_BYTES = 64 * 1024 * 1024
"""A quarter of a group's bytes, but no more than this, is kept in memory besides."""


class SqliteStore:
    """`gateway.ports.Store` on a file; the constructor opens it, and raises StoreUnusable. To be used in one event loop."""

    is_local: bool = False

    def __init__(
        self,
        path: str,
        wall: Callable[[], float],
        bounds: StoreBounds,
        *,
        connect: Connect = sqlite3.connect,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._wall = wall
        trouble = Trouble(path, monotonic)
        self._room = Eviction(bounds, wall)
        self._file = File(path, connect, trouble, self._room.keep_to_bounds)
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
        """Keep to these from now on; what is too much by now goes step by step."""
        self._room.configure(bounds)
        self._front.configure(_front_of(bounds.answers))
        self._records.configure(bounds.records)
        self._answers.configure(bounds.answers)
        self._vectors.configure(bounds.vectors)
        self._objects.configure(bounds.objects)

    def tick(self) -> None:
        """Called about once a second: has some of what has expired forgotten, and gives up a disk that says nothing."""
        self._thread.watch()
        self._front.tick()
        self._records.tick()
        self._answers.tick(self.stats()["answers"]["entries"])
        if not self._is_tidying:
            self._is_tidying = True
            now = self._wall()
            self._thread.ask(lambda db: self._room.tidy(db, now), None, self._tidied, "cache")

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """What the file has as of its last write; while that cannot be used, what memory has."""
        stats = {use: {"entries": 0, "bytes": 0} for use in ("answers", "records", "vectors")}
        for name, entries, size in self._file.totals:
            if name == "objects":
                continue
            one = stats[name.partition("/")[0]]
            one["entries"] += entries
            one["bytes"] += size
        stats["records"]["entries"] += self._records.running
        stats["records"]["early"] = self._room.early
        return stats if self._thread.is_well else {**stats, "answers": self._front.stats()}

    @property
    def is_well(self) -> bool:
        """Whether what is kept now is believed to outlive the process."""
        return self._thread.is_well

    @property
    def dropped(self) -> int:
        """Cache writes that the disk was too slow for."""
        return self._thread.dropped

    async def backup(self, path: str) -> str | None:
        """Copy the file to `path`, which must not exist, while calls go on; what went wrong, None: nothing."""
        return await self._thread.backup(path)

    @property
    def path(self) -> str:
        """Where the file is."""
        return self._path

    async def aclose(self) -> None:
        """Everything taken so far is in the file, if the disk lets it; nothing more is taken."""
        self._answers.tick(0)
        await self._thread.aclose()

    def _tidied(self, _: None) -> None:
        self._is_tidying = False


def _front_of(bounds: Mapping[str, int]) -> dict[str, int]:
    return {group: min(size // FRONT_PART, FRONT_BYTES) for group, size in bounds.items()}
