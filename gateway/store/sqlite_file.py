"""The one connection to the file, and how it fares: what is done in one transaction, what when the disk fails.

Used by one thread only. It must not know what is read or written. Invariants: nothing that fails here is raised; whoever
cannot be served gets the answer of an empty store; trouble is told once, and its end; it is over when a write has
succeeded and everything that had to be kept meanwhile is in the file.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gateway.errors import StoreUnusable
from gateway.store.sqlite_schema import Connect, open_file

log = logging.getLogger("gateway.store")

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 15.0
"""How soon a failed disk is tried again, doubling."""
QUIET_S = 60.0
"""Trouble that comes back within this time is the same trouble, and is not told again."""
OWED_BYTES = 16 * 1024 * 1024
"""Of what has to be kept, or forgotten, and could not be written, so much is remembered until it can."""
LOG_BYTES = 32 * 1024 * 1024
"""The write-ahead log is not to stay larger; sqlite begins it anew by itself, unless something is in its way."""

Effort = Literal["read", "cache", "durable"]
"""`read` changes nothing; a `cache` write may be lost with the power; a `durable` one is on the disk when it is done."""


@dataclass(slots=True, eq=False)
class Job:
    """Something to do with the file."""

    work: Callable[[sqlite3.Connection], Any]
    """May be done twice; returns a `Rest` when it has more to do, after others have had their turn."""
    otherwise: Any
    """Its result when it cannot be done."""
    effort: Effort = "read"
    bytes: int = 0
    """Held in memory until it is done."""
    then: Callable[[Any], None] | None = None
    """Called with the result in the event loop."""
    asked_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left of some work."""

    work: Callable[[sqlite3.Connection], Any]


class File:
    """Does jobs, together where they come together: a disk is asked to be sure once for all of them."""

    def __init__(self, path: str, connect: Connect, monotonic: Callable[[], float]) -> None:
        self._path = path
        self._connect = connect
        self._monotonic = monotonic
        self._db: sqlite3.Connection | None = None
        self._identity: tuple[object, object] = (None, None)
        self._is_full_sync = False
        self._retry_at: float | None = None
        """None: all is well."""
        self._retry_s = FIRST_RETRY_S
        self._told_at: float | None = None
        self._is_told = False
        """Of the present trouble."""
        self._owed: deque[Job] = deque()
        self._owed_bytes = 0
        self.starts = 0
        """How often the file has been opened."""
        self.totals: Sequence[tuple[str, int, int]] = ()
        """What it holds as of the last write: name, entries, bytes."""
        self.failed_writes = 0

    @property
    def is_well(self) -> bool:
        """Whether what is written now is believed to last."""
        return self._retry_at is None

    def open(self) -> None:
        """Raises StoreUnusable."""
        self._db = self._opened()

    def close(self) -> None:
        """What was written is in the file itself, not only in its log, if the disk lets it."""
        if self._db is not None:
            try:
                self._db.close()
            except sqlite3.Error as error:
                log.warning("state file %s could not be closed properly: %s", self._path, error)
            self._db = None

    def finish(self) -> None:
        """Try once more to write what is owed, and close."""
        if self._retry_at is not None:
            self._retry_at = self._monotonic()
            self.do([Job(lambda db: None, None, "durable")])
        self.close()

    def do(self, jobs: Sequence[Job]) -> list[Any]:
        """The results of these, in order."""
        if self._retry_at is not None and self._monotonic() < self._retry_at:
            return self._without_writes(jobs)
        try:
            return self._all_of(jobs)
        except Exception as error:  # noqa: BLE001 - whatever it is, calls go on
            self._roll_back()
            if not _is_of_the_disk(
                error
            ):  # one of them is not what sqlite can store: the others shall not suffer for it
                return [self._alone(job) for job in jobs]
            self._fell_ill(error)
            return self._without_writes(jobs)

    def _all_of(self, jobs: Sequence[Job]) -> list[Any]:
        is_writing = any(job.effort != "read" for job in jobs)
        db = self._usable(is_writing)
        if not is_writing:
            return [job.work(db) for job in jobs]
        was_ill = self._retry_at is not None
        self._sync_fully(db, was_ill or any(job.effort == "durable" for job in jobs))
        db.execute("BEGIN IMMEDIATE")
        if was_ill:
            self._catch_up(db)
        results = [job.work(db) for job in jobs]
        totals = _totals(db)
        db.execute("COMMIT")
        self.totals = totals
        if was_ill:
            self._recovered()
        return results

    def _usable(self, is_writing: bool) -> sqlite3.Connection:
        """The connection; made anew where it is closed, or where the file is no longer the one that it has open."""
        if self._db is not None and is_writing and self._look() != self._identity:
            log.warning(
                "state file %s was deleted or replaced while in use: what it held is forgotten, and a new one is made. "
                "Stop the gateway first, or purge through its admin interface.",
                self._path,
            )
            self.close()
        if self._db is None:
            self._db = self._opened()
        return self._db

    def _opened(self) -> sqlite3.Connection:
        db, self.starts = open_file(self._path, connect=self._connect)
        db.execute("PRAGMA synchronous = NORMAL")
        self._is_full_sync = False
        self._identity = self._look()
        self.totals = _totals(db)
        return db

    def _look(self) -> tuple[object, object]:
        """Which files these are; sqlite would go on writing to deleted ones."""
        return _inode(self._path), _inode(self._path + "-wal")

    def _sync_fully(self, db: sqlite3.Connection, fully: bool) -> None:
        if fully != self._is_full_sync:
            db.execute("PRAGMA synchronous = FULL" if fully else "PRAGMA synchronous = NORMAL")
            self._is_full_sync = fully

    def _alone(self, job: Job) -> Any:
        """A job in a transaction of its own, so that it fails alone."""
        try:
            return self._all_of([job])[0]
        except Exception as error:  # noqa: BLE001 - whatever it is, calls go on
            self._roll_back()
            if _is_of_the_disk(error):
                self._fell_ill(error)
                return self._without_writes([job])[0]
            log.warning("state file %s: something could not be stored or read: %s", self._path, error)
            return job.otherwise

    def _without_writes(self, jobs: Sequence[Job]) -> list[Any]:
        """A full disk can still be read."""
        return [self._read(job) if job.effort == "read" else self._missed(job) for job in jobs]

    def _read(self, job: Job) -> Any:
        if self._db is None:
            return job.otherwise
        try:
            return job.work(self._db)
        except Exception as error:  # noqa: BLE001 - the disk is known to be ill; it has been told
            if _is_of_the_disk(error):
                self.close()
            return job.otherwise

    def _missed(self, job: Job) -> Any:
        self.failed_writes += 1
        if job.effort == "durable" and self._owed_bytes + job.bytes <= OWED_BYTES:
            self._owed.append(job)
            self._owed_bytes += job.bytes
        return job.otherwise

    def _catch_up(self, db: sqlite3.Connection) -> None:
        """Write something in any case, and all that is owed."""
        db.execute("UPDATE meta SET value = value + 1 WHERE name = 'probes'")
        for job in self._owed:
            try:
                result = job.work(db)
                while isinstance(result, Rest):
                    result = result.work(db)
            except (sqlite3.DataError, sqlite3.IntegrityError, ValueError) as error:  # nor will it ever be written
                log.warning("state file %s: something could not be stored: %s", self._path, error)

    def _roll_back(self) -> None:
        if self._db is not None and self._db.in_transaction:
            try:
                self._db.execute("ROLLBACK")
            except sqlite3.Error:  # then closing it does
                self.close()

    def _fell_ill(self, error: BaseException) -> None:
        now = self._monotonic()
        is_new = self._retry_at is None
        self._retry_s = FIRST_RETRY_S if is_new else min(LAST_RETRY_S, self._retry_s * 2)
        self._retry_at = now + self._retry_s
        if not _is_full(error):
            self.close()  # what a failed fsync leaves in the caches is not to be trusted; opening reads the log again
        if is_new and (self._told_at is None or now - self._told_at >= QUIET_S):
            self._told_at, self._is_told = now, True
            log.warning(
                "%s Calls go on; what they would leave for others is kept in memory only, until the file works again. "
                "There has to be room on a disk that works; move a broken file away, and a new one is made.",
                error if isinstance(error, StoreUnusable) else f"state file {self._path}: {error}.",
            )

    def _recovered(self) -> None:
        missed = self.failed_writes - len(self._owed)
        self._retry_at, self._owed_bytes, self.failed_writes = None, 0, 0
        self._owed.clear()
        if self._is_told:
            self._is_told = False
            log.warning("state file %s works again; it misses %d writes.", self._path, missed)

    def shorten_log(self) -> None:
        """Begin the write-ahead log anew when it has become long; says in the log what is in its way."""
        if self._db is not None and _size(self._path + "-wal") > LOG_BYTES:
            try:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.Error as error:
                self._fell_ill(error)


def _totals(db: sqlite3.Connection) -> list[tuple[str, int, int]]:
    return db.execute("SELECT name, entries, bytes FROM totals").fetchall()


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _is_of_the_disk(error: BaseException) -> bool:
    """Whether it would go wrong for everybody, and not because of what one of them wants."""
    if isinstance(error, StoreUnusable | OSError | sqlite3.OperationalError):
        return True
    return type(error) is sqlite3.DatabaseError or isinstance(error, MemoryError)


def _is_full(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
