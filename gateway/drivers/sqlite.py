"""The one connection to a SQLite file, and its thread.

First come its jobs, then the state of a failing disk (`Trouble`), then the connection, which runs jobs in transactions and
handles one that fails (`File`), then the thread that owns it (`FileThread`), to which the event loop hands its jobs. It must
not know what jobs read or write. Invariants: once the file is open, no failure is raised; a job that cannot be run gets the
result of an empty store; a job that fails because of its own data fails alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Literal, TypeVar

from gateway.core.clock import LEAST_STEP_S, Ahead, never_ahead
from gateway.core.errors import StoreUnusable
from gateway.drivers.sqlite_file import Connect, FileKind, move_times, note_ahead, open_file, open_to_read

# --- reads and writes that the event loop hands to the file's thread, and how durable each has to be ---

Work = Callable[[sqlite3.Connection], Any]
"""Works on the file; it may run twice. It returns a `Rest` when it has more to do after other jobs have had their turn."""


Effort = Literal["read", "cache", "durable", "acknowledged"]
"""`read` changes nothing; a `cache` write may be lost with the power; a `durable` one is on the disk when it is done, and is
made up for later if it failed; an `acknowledged` one is as durable, but where it fails the caller learns so, and nothing of it
happens later."""


@dataclass(slots=True, eq=False)
class FileJob:
    """One read or write of the file."""

    work: Work
    otherwise: Any
    """The result when the job cannot be run."""
    effort: Effort = "read"
    bytes: int = 0
    """The memory that the job holds until it is done."""
    then: Callable[[Any], None] | None = None
    """Is called with the result in the event loop; None: the caller does not wait."""
    queued_at: float = 0.0
    undo: Work | None = None
    """Takes back what an `acknowledged` job has done where its caller learned that it failed."""
    _verdict: Lock | None = field(default=None, init=False)
    """The verdict on an `acknowledged` job that somebody waits for: who takes it decides whether it is done or was given up."""

    def __post_init__(self) -> None:
        if self.effort == "acknowledged":
            self._verdict = Lock()

    def decide(self) -> bool:
        """Returns True to the first that asks, which is the loop that gives a job up or the thread that has done it."""
        return self._verdict is None or self._verdict.acquire(blocking=False)

    @property
    def is_given_up(self) -> bool:
        """Returns whether an `acknowledged` job need not be done any more."""
        return self._verdict is not None and self._verdict.locked()


@dataclass(frozen=True, slots=True)
class Backup:
    """The order to copy the whole file while jobs go on."""

    path: str
    """The path of the copy, where no file exists yet."""
    on_done: Callable[[str | None], None]
    """Is called in the event loop with an error message; None: the copy is complete and on the disk."""


@dataclass(frozen=True, slots=True)
class Rest:
    """The result of work that has more to do: the work that goes on."""

    work: Work


# --- a failing disk: when it is tried again, what the log says, and which writes it still has to take ---


FIRST_RETRY_S, LAST_RETRY_S = 1.0, 15.0
"""Seconds until a failed disk is tried again: the first delay, doubled after each failure up to the second."""
QUIET_S = 60.0
"""Trouble that returns within this many seconds counts as the same and is not logged again."""
OWED_BYTES = 16 * 1024 * 1024
"""Durable writes and deletions that failed are remembered up to this many bytes, until the file takes them."""


class Trouble:
    """The trouble of one file; any thread may ask for `is_well`.

    Invariants: the log has one line of the trouble and one of its end; the trouble is over when a write has succeeded and
    every durable write that was missed is in the file.
    """

    def __init__(self, path: str, kind: FileKind, monotonic: Callable[[], float]) -> None:
        self._path = path
        self._kind = kind
        self._monotonic = monotonic
        self._retry_at: float | None = None
        """The monotonic time of the next attempt; None while the disk works."""
        self._retry_s = FIRST_RETRY_S
        self._logged_at: float | None = None
        self._is_logged = False
        """The present trouble is logged, and its end has to be."""
        self._odd_at: float | None = None
        self.owed: deque[FileJob] = deque()
        self._owed_bytes = 0
        self._missed = 0

    @property
    def is_well(self) -> bool:
        """Returns whether a write is expected to last: the last attempt did not fail."""
        return self._retry_at is None

    @property
    def may_try(self) -> bool:
        """Returns whether the disk works, or the next attempt is due."""
        return self._retry_at is None or self._monotonic() >= self._retry_at

    def try_now(self) -> None:
        """Makes the next attempt due now."""
        if self._retry_at is not None:
            self._retry_at = self._monotonic()

    def began(self, error: BaseException) -> None:
        """Notes that an attempt failed, sets the time of the next one, and logs new trouble."""
        now = self._monotonic()
        is_new = self._retry_at is None
        self._retry_s = FIRST_RETRY_S if is_new else min(LAST_RETRY_S, self._retry_s * 2)
        self._retry_at = now + self._retry_s
        if is_new and (self._logged_at is None or now - self._logged_at >= QUIET_S):
            self._logged_at, self._is_logged = now, True
            log.warning(
                "%s %s",
                error if isinstance(error, StoreUnusable) else f"{self._kind.name} {self._path}: {error}.",
                self._kind.when_failing,
            )

    def log_data_error(self, error: BaseException) -> None:
        """Logs, at most once a minute, that a job failed because of its data and not because of the disk."""
        now = self._monotonic()
        if self._odd_at is None or now - self._odd_at >= QUIET_S:
            self._odd_at = now
            log.warning("%s %s: something could not be stored or read: %r", self._kind.name, self._path, error)

    def missed(self, job: FileJob) -> None:
        """Notes that a write failed: a durable one is owed to the file, any other is counted as lost."""
        if job.effort == "durable" and self._owed_bytes + job.bytes <= OWED_BYTES:
            self.owed.append(job)
            self._owed_bytes += job.bytes
        else:
            self._missed += bool(job.bytes)

    def owe(self, undo: Work) -> None:
        """Notes work that takes back what may be in the file though its caller got a failure."""
        self.owed.append(FileJob(undo, None, "durable"))

    def ended(self) -> None:
        """Notes that the disk works and has taken all owed writes; logs the end of trouble that was logged."""
        missed = self._missed
        self._retry_at, self._owed_bytes, self._missed = None, 0, 0
        self.owed.clear()
        if self._is_logged:
            self._is_logged = False
            log.warning("%s %s works again; it misses %d writes.", self._kind.name, self._path, missed)


log = logging.getLogger("gateway.store")

LOG_BYTES = 32 * 1024 * 1024
"""The write-ahead log is truncated above this size; sqlite starts it over by itself unless a reader is in its way."""
LOG_S = 5.0
"""Seconds after which the log is truncated, however short: until then deleted rows can be read in it."""

COPIED_PAGES = 256
"""Pages (1 MiB) that a backup copies before it lets waiting jobs run."""

Total = tuple[str, int, int]
"""The name of a table, or `table/group`; its rows; their bytes."""


# --- the connection, which runs jobs in transactions ---


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
        ahead: Ahead = never_ahead,
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
        self.ahead = ahead
        self.noted_ahead_s = 0.0
        """How far the clock was ahead of the machine's when that was noted in the file."""
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
        self.is_log_old = False
        """The log is to be truncated behind the next jobs. The event loop sets it."""

    def open(self) -> None:
        """Opens the file; raises StoreUnusable, whatever is wrong with what is in it."""
        try:
            self._db = self._opened()
        except StoreUnusable:
            raise
        except Exception as error:
            raise StoreUnusable(f"{self.kind.name} {self._path}: {error}. {self.kind.when_damaged}") from error

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
            if self._db is not None and self._db.in_transaction:
                try:
                    self._db.execute("ROLLBACK")
                except sqlite3.Error:  # then closing it does
                    self.close()
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
        fully = had_failed or any(job.effort in ("durable", "acknowledged") for job in jobs)
        if fully != self._is_full_sync:
            db.execute("PRAGMA synchronous = FULL" if fully else "PRAGMA synchronous = NORMAL")
            self._is_full_sync = fully
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
        if (_inode(self._path), found) == self._begun:
            return
        db.execute("BEGIN IMMEDIATE")
        self.noted_ahead_s = self.ahead()
        move_times(db, self.kind, self.noted_ahead_s)
        if self._begin is not None:
            self._begin(db, self.starts)
        db.execute("REPLACE INTO meta VALUES ('begun', random())")
        found = db.execute("SELECT value FROM meta WHERE name = 'begun'").fetchone()
        db.execute("COMMIT")
        self._begun = _inode(self._path), found

    def _inodes(self) -> tuple[object, object]:
        """Returns the inodes of the file and its log: sqlite would go on writing to deleted ones."""
        return _inode(self._path), _inode(self._path + "-wal")

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
        except Exception as error:  # noqa: BLE001 - the disk is known to fail, and logged
            if _is_of_the_disk(error):
                self.close()
            return job.otherwise

    def _catch_up(self, db: sqlite3.Connection) -> None:
        """Writes a probe, to find out whether the disk works, and then all owed writes."""
        db.execute("UPDATE meta SET value = value + 1 WHERE name = 'probes'")
        for job in self._trouble.owed:
            try:
                work = job.work
                while isinstance(rest := work(db), Rest):
                    work = rest.work
            except Exception as error:
                if _is_of_the_disk(error):
                    raise
                self._trouble.log_data_error(error)

    def _failed(self, error: BaseException) -> None:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_FULL:  # a full disk can still be read
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
        """Truncates a write-ahead log above `LOG_BYTES`, or an old one; a failure counts as trouble of the disk."""
        most, self.is_log_old = 0 if self.is_log_old and self._trouble.is_well else LOG_BYTES, False
        if self._db is not None and _size(self._path + "-wal") > most:
            try:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.Error as error:
                self._failed(error)


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
    """Returns whether the disk or the file is the cause, so that every job would fail, and not one job's data."""
    if isinstance(error, StoreUnusable | OSError | sqlite3.OperationalError):
        return True
    return type(error) is sqlite3.DatabaseError or isinstance(error, MemoryError)


# --- the thread that owns the file ---


T = TypeVar("T")

MOST_JOBS = 256
"""Jobs in one transaction, at most."""
QUEUED_BYTES = 16 * 1024 * 1024
"""Bytes of queued writes that no caller waits for; further ones are dropped."""
STALL_S = 5.0
"""Seconds without progress after which a job is given up."""
CLOSE_S = 10.0
"""Seconds that the disk has at the end for the remaining jobs."""


class FileThread:
    """Takes jobs on the loop, runs them in the thread, and calls back on the loop in batches.

    Invariants: the loop never waits for a disk; jobs run in the order in which they were handed over; a write that no
    caller waits for is dropped rather than queued without bound; no caller waits for ever: a disk that does not answer
    counts as an empty one.
    """

    def __init__(self, file: File, trouble: Trouble, monotonic: Callable[[], float]) -> None:
        self._file = file
        self._trouble = trouble
        self._monotonic = monotonic
        self._jobs: SimpleQueue[FileJob | Backup | None] = SimpleQueue()
        self._waiting: dict[FileJob, None] = {}
        """The jobs with a `then`, oldest first."""
        self._queued_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_open = True
        self.is_stalled = False
        self._shortened_at = monotonic()
        self.dropped = 0
        """The number of writes that were dropped for want of room."""
        self._opened = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="store-file", daemon=True)

    @property
    def is_well(self) -> bool:
        """Returns whether a write is expected to last."""
        return self._trouble.is_well and not self.is_stalled

    def start(self) -> None:
        """Starts the thread and waits until it has opened the file; raises StoreUnusable."""
        self._thread.start()
        self._opened.wait()
        if self._failure is not None:
            raise self._failure

    def submit(
        self,
        work: Callable[[Any], T | Rest],
        otherwise: T,
        then: Callable[[T], None],
        effort: Effort = "read",
        size: int = 0,
        undo: Work | None = None,
    ) -> None:
        """Runs the work and calls `then` with its result in the running loop; with `otherwise`, at once, if it cannot run."""
        if not self._is_open or self.is_stalled:
            if effort == "durable":  # the caller does not wait for a stalled disk, but the write must not be lost
                self._put(FileJob(work, otherwise, effort, size))
            then(otherwise)
            return
        self._loop = asyncio.get_running_loop()
        job = FileJob(work, otherwise, effort, size, then, self._monotonic(), undo)
        self._waiting[job] = None
        self._jobs.put(job)

    def later(
        self, work: Callable[[Any], T | Rest], otherwise: T, effort: Effort = "read", undo: Work | None = None
    ) -> asyncio.Future[T]:
        """Does as `submit`, and returns a future for the result."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.submit(
            work, otherwise, lambda result: None if future.done() else future.set_result(result), effort, undo=undo
        )
        return future

    def queue_write(self, work: Callable[[Any], object], size: int) -> None:
        """Queues a cache write that no caller waits for."""
        if self.is_stalled:
            self.dropped += 1
        else:
            self._put(FileJob(work, None, "cache", size))

    def backup(self, path: str) -> asyncio.Future[str | None]:
        """Copies the file to `path` while jobs go on; the future resolves to an error message or None."""
        self._loop = asyncio.get_running_loop()
        done: asyncio.Future[str | None] = self._loop.create_future()
        if self._is_open:
            self._jobs.put(Backup(path, lambda problem: None if done.done() else done.set_result(problem)))
        else:
            done.set_result("the gateway is stopping")
        return done

    def watch(self) -> None:
        """Is called about once a second: notes a step of the machine's time, gives up jobs that have waited longer than
        `STALL_S`, and ends an old log."""
        ahead_s = self._file.ahead()
        if abs(ahead_s - self._file.noted_ahead_s) >= LEAST_STEP_S:
            self._file.noted_ahead_s = ahead_s
            self.submit(lambda db: note_ahead(db, ahead_s), None, lambda _: None, "durable")
        now = self._monotonic()
        if now - self._shortened_at >= LOG_S and not self.is_stalled:
            self._shortened_at, self._file.is_log_old = now, True
            self._put(FileJob(lambda db: None, None))
        before = now - STALL_S
        late = [job for job in self._waiting if job.queued_at < before]
        if late and not self.is_stalled:
            self.is_stalled = True
            kind = self._file.kind
            log.warning("the disk of the %s has said nothing for %g s; %s", kind.name, STALL_S, kind.when_stalled)
        for job in late:
            if job.decide():
                self._deliver(job, job.otherwise)

    async def aclose(self) -> None:
        """Takes nothing more and returns when all jobs are done, or after `CLOSE_S`."""
        if not self._is_open:
            return
        self._is_open = False
        self._jobs.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, CLOSE_S)
        for job in list(self._waiting):
            if job.decide():
                self._deliver(job, job.otherwise)

    def _put(self, job: FileJob) -> None:
        if not self._is_open or self._queued_bytes + job.bytes > QUEUED_BYTES:
            self.dropped += 1
            return
        self._queued_bytes += job.bytes
        self._loop = asyncio.get_running_loop()
        self._jobs.put(job)

    def _deliver(self, job: FileJob, result: Any) -> None:
        """Calls the job's `then`, once."""
        if job in self._waiting:
            del self._waiting[job]
            if job.then is not None:
                job.then(result)

    def _deliver_all(self, done: list[tuple[FileJob, Any]]) -> None:
        if self.is_stalled:
            self.is_stalled = False
            log.warning("the disk of the %s answers again.", self._file.kind.name)
        for job, result in done:
            if job.then is None:
                self._queued_bytes -= job.bytes
            else:
                self._deliver(job, result)

    # The methods below run in the thread.

    def _run(self) -> None:
        try:
            self._file.open()
        except BaseException as error:  # noqa: BLE001 - `start` raises it in the caller's thread
            self._failure = error
            return
        finally:
            self._opened.set()
        while batch := self._next():
            self._serve([job for job in batch if isinstance(job, FileJob)])
            for job in batch:
                if isinstance(job, Backup):
                    self._call_on_loop(job.on_done, self._file.copy(job.path, self._serve_meanwhile))
        self._file.finish()

    def _serve_meanwhile(self) -> None:
        """Runs the jobs that arrived during a backup; the order to stop, and other backups, wait for its end."""
        came = [self._jobs.get_nowait() for _ in range(self._jobs.qsize())]
        for one in came:
            if not isinstance(one, FileJob):
                self._jobs.put(one)
        self._serve([job for job in came if isinstance(job, FileJob)])

    def _next(self) -> list[FileJob | Backup]:
        """Waits for the next jobs and returns all that are queued; an empty list ends the thread."""
        batch: list[FileJob | Backup] = []
        job = self._jobs.get()
        while job is not None:
            batch.append(job)
            if len(batch) == MOST_JOBS:
                return batch
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return batch
        if batch or not self._jobs.empty():
            self._jobs.put(None)  # the rest of some work was queued behind the order to stop
            return batch or self._next()
        return batch

    def _serve(self, batch: list[FileJob]) -> None:
        batch = [job for job in batch if not job.is_given_up]
        if not batch:
            return
        results = self._file.do(batch)
        self._file.shorten_log()
        done = []
        is_late = False
        for job, result in zip(batch, results, strict=True):
            if isinstance(result, Rest):
                job.work, job.queued_at = result.work, self._monotonic()
                self._jobs.put(job)
            elif job.decide():
                done.append((job, result))
            else:
                is_late = True
                if job.undo is not None:
                    self._file.do([FileJob(job.undo, None, "durable")])
        if done or is_late:
            self._call_on_loop(self._deliver_all, done)

    def _call_on_loop(self, deliver: Callable[[Any], None], what: Any) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(deliver, what)
            except RuntimeError:  # the loop is closed: no caller waits any more
                log.debug("nobody heard how jobs ended")


PAGE_BYTES = 4096
ROW_BYTES = 256
"""About the bytes that a row takes besides its columns: its places in the indexes."""


def taken(*columns: bytes) -> int:
    """Returns about the bytes of the file that a row takes: a long one fills whole pages, short ones share a page."""
    size = sum(map(len, columns))
    if size < PAGE_BYTES // 2:
        return ROW_BYTES + PAGE_BYTES // (PAGE_BYTES // (size + 1))
    return ROW_BYTES + -(-size // PAGE_BYTES) * PAGE_BYTES
