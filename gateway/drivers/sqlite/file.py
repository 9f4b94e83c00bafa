"""The one connection to the file: it runs jobs in transactions, and handles a transaction that fails.

One thread uses it. It must not know what jobs read or write. Invariants: once the file is open, no failure is raised; a job
that cannot be run gets the result of an empty store; a job that fails because of its own data fails alone.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from gateway.core.errors import StoreUnusable
from gateway.drivers.sqlite.disk_trouble import Trouble
from gateway.drivers.sqlite_store.opening import Connect, FileKind, open_file, open_to_read
from gateway.products.jobs.sqlite_rows.jobs import FileJob, Rest, Work

log = logging.getLogger("gateway.store")

LOG_BYTES = 32 * 1024 * 1024
"""The write-ahead log is truncated above this size; sqlite starts it over by itself unless a reader is in its way."""

COPIED_PAGES = 256
"""Pages (1 MiB) that a backup copies before it lets waiting jobs run."""

Total = tuple[str, int, int]
"""The name of a table, or `table/group`; its rows; their bytes."""


class File:
    """Runs jobs; those that arrive together share one transaction, and so one fsync."""

    def __init__(
        self,
        path: str,
        kind: FileKind,
        connect: Connect,
        trouble: Trouble,
        keep_to_bounds: Callable[[sqlite3.Connection, Sequence[Total]], bool],
        begin: Callable[[sqlite3.Connection, int], None] | None = None,
    ) -> None:
        self._path = path
        self.kind = kind
        self._connect = connect
        self._trouble = trouble
        self._keep_to_bounds = keep_to_bounds
        """Is called before a commit, and returns whether it deleted rows."""
        self._begin = begin
        """Is called in a transaction when the process opens the file, or another one that stands at its path now, with the
        number of times it has been opened."""
        self._begun: tuple[object, object] = (None, None)
        """The inode of the file with which the work was begun, and the number that was written into it then."""
        self._db: sqlite3.Connection | None = None
        self._identity: tuple[object, object] = (None, None)
        self._is_for_reading = False
        """The connection was opened after a failure and can only read."""
        self._is_full_sync = False
        self.starts = 0
        """The number of times the file has been opened."""
        self.totals: Sequence[Total] = ()
        """The contents of the tables as of the last write."""

    def open(self) -> None:
        """Opens the file; raises StoreUnusable, and sqlite3.Error where the begin of the work with it fails."""
        self._db = self._opened()

    def close(self) -> None:
        """Closes the file; sqlite moves the write-ahead log into it, if the disk lets it."""
        if self._db is not None:
            try:
                self._db.close()
            except sqlite3.Error as error:
                log.warning("%s %s could not be closed properly: %s", self.kind.name, self._path, error)
            self._db = None
        self._is_for_reading = False

    def finish(self) -> None:
        """Tries once more to write what is owed to the file, and closes it."""
        if not self._trouble.is_well:
            self._trouble.try_now()
            self.do([FileJob(lambda db: None, None, "durable")])
        self.close()

    def do(self, jobs: Sequence[FileJob]) -> list[Any]:
        """Runs the jobs in one transaction and returns their results in order; a job that fails gets its `otherwise`."""
        if not self._trouble.may_try:
            return self._without_writes(jobs)
        try:
            return self._all_of(jobs)
        except Exception as error:  # noqa: BLE001 - whatever it is, calls go on
            self._roll_back()
            if _is_of_the_disk(error):
                self._failed(error)
                for job in jobs:  # a commit that failed may have come through nevertheless
                    if job.undo is not None:
                        self._trouble.owe(job.undo)
                return self._without_writes(jobs)
            if len(jobs) > 1:  # one job's data is the cause: run apart, the others succeed
                return [self.do([job])[0] for job in jobs]
            self._trouble.log_data_error(error)
            return [jobs[0].otherwise]

    def _all_of(self, jobs: Sequence[FileJob]) -> list[Any]:
        is_writing = any(job.effort != "read" for job in jobs)
        db = self._usable(is_writing)
        if not is_writing:
            return [job.work(db) for job in jobs]
        had_failed = not self._trouble.is_well
        self._sync_fully(db, had_failed or any(job.effort in ("durable", "told") for job in jobs))
        db.execute("BEGIN IMMEDIATE")
        if had_failed:
            self._catch_up(db)
        results = [job.work(db) for job in jobs]
        totals = _totals(db)
        if self._keep_to_bounds(db, totals):
            totals = _totals(db)
        db.execute("COMMIT")
        self.totals = totals
        if had_failed:
            self._trouble.ended()
        return results

    def _usable(self, is_writing: bool) -> sqlite3.Connection:
        """Returns the connection, opened anew where it is closed, or where another file stands at the path now."""
        if self._is_for_reading and is_writing:
            self.close()
        if self._db is not None and is_writing and self._inodes() != self._identity:
            log.warning(
                "%s %s was deleted or replaced while in use: what it held is forgotten%s. %s",
                self.kind.name,
                self._path,
                "" if os.path.exists(self._path) else ", and a new one is made",
                self.kind.when_replaced,
            )
            self.close()
        if self._db is None:
            self._db = self._opened()
        return self._db

    def _opened(self) -> sqlite3.Connection:
        db, self.starts = open_file(self._path, self.kind, connect=self._connect)
        try:
            db.execute("PRAGMA synchronous = NORMAL")
            self._is_full_sync = False
            self._begin_work(db)
            self._identity = self._inodes()
            self.totals = _totals(db)
        except BaseException:
            db.close()
            raise
        return db

    def _begin_work(self, db: sqlite3.Connection) -> None:
        """Begins the work with a file, once: what is opened again after a failure goes on as it was.

        The inode alone does not tell them apart: a backup that is copied over the file has it, too.
        """
        found = db.execute("SELECT value FROM meta WHERE name = 'begun'").fetchone()
        if self._begin is None or (_inode(self._path), found) == self._begun:
            return
        db.execute("BEGIN IMMEDIATE")
        self._begin(db, self.starts)
        db.execute("REPLACE INTO meta VALUES ('begun', random())")
        found = db.execute("SELECT value FROM meta WHERE name = 'begun'").fetchone()
        db.execute("COMMIT")
        self._begun = _inode(self._path), found

    def _inodes(self) -> tuple[object, object]:
        """Returns the inodes of the file and its log: sqlite would go on writing to deleted ones."""
        return _inode(self._path), _inode(self._path + "-wal")

    def _sync_fully(self, db: sqlite3.Connection, fully: bool) -> None:
        if fully != self._is_full_sync:
            db.execute("PRAGMA synchronous = FULL" if fully else "PRAGMA synchronous = NORMAL")
            self._is_full_sync = fully

    def _without_writes(self, jobs: Sequence[FileJob]) -> list[Any]:
        """Runs only the jobs that read, because a full disk can still be read; notes the writes as missed."""
        for job in jobs:
            if job.effort != "read":
                self._trouble.missed(job)
        return [self._read(job) if job.effort == "read" else job.otherwise for job in jobs]

    def _read(self, job: FileJob) -> Any:
        if self._db is None:
            return job.otherwise
        try:
            return job.work(self._db)
        except Exception as error:  # noqa: BLE001 - the disk is known to fail, and the log has told of it
            if _is_of_the_disk(error):
                self.close()
            return job.otherwise

    def _catch_up(self, db: sqlite3.Connection) -> None:
        """Writes a probe, to find out whether the disk works, and then all owed writes."""
        db.execute("UPDATE meta SET value = value + 1 WHERE name = 'probes'")
        for job in self._trouble.owed:
            try:
                _do_all(db, job.work)
            except Exception as error:
                if _is_of_the_disk(error):
                    raise
                self._trouble.log_data_error(error)

    def _roll_back(self) -> None:
        if self._db is not None and self._db.in_transaction:
            try:
                self._db.execute("ROLLBACK")
            except sqlite3.Error:  # then closing it does
                self.close()

    def _failed(self, error: BaseException) -> None:
        if not _is_full(error):
            self.close()  # what a failed fsync leaves in the caches is not to be trusted; opening reads the log again
            self._db = open_to_read(self._path, self.kind, connect=self._connect)
            self._is_for_reading = self._db is not None
        self._trouble.began(error)

    def copy(self, path: str, between: Callable[[], None]) -> str | None:
        """Copies the whole file to `path`, and returns an error message or None.

        `between` is called after every 256 pages and may run jobs: sqlite copies what this connection writes meanwhile as
        well (https://www.sqlite.org/backup.html).
        """
        try:
            db = self._usable(is_writing=False)

            def go_on(_status: int, _left: int, _all: int) -> None:
                between()
                if self._db is not db:
                    raise StoreUnusable(f"the {self.kind.name} was opened anew meanwhile; try again")

            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with closing(sqlite3.connect(path, isolation_level=None)) as copied:
                db.backup(copied, pages=COPIED_PAGES, progress=go_on, sleep=0.0)
                copied.execute("DELETE FROM meta WHERE name = 'begun'")  # nobody has begun to work with the copy
                copied.execute("PRAGMA journal_mode = DELETE").fetchone()  # one file, without a log beside it
        except (sqlite3.Error, OSError, StoreUnusable) as error:
            return str(error)
        return None

    def shorten_log(self) -> None:
        """Truncates a write-ahead log above `LOG_BYTES`; a failure counts as trouble of the disk."""
        if self._db is not None and _size(self._path + "-wal") > LOG_BYTES:
            try:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.Error as error:
                self._failed(error)


def _do_all(db: sqlite3.Connection, work: Work) -> None:
    while isinstance(rest := work(db), Rest):
        work = rest.work


def _totals(db: sqlite3.Connection) -> list[Total]:
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
    """Tells whether the disk or the file is the cause, so that every job would fail, and not one job's data."""
    if isinstance(error, StoreUnusable | OSError | sqlite3.OperationalError):
        return True
    return type(error) is sqlite3.DatabaseError or isinstance(error, MemoryError)


def _is_full(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
