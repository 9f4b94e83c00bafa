"""The thread that owns the file: the event loop hands it jobs, and gets their results back in batches.

It must not know what the jobs do. Invariants: the loop never waits for a disk; jobs run in the order in which they were
handed over; a write that no caller waits for is dropped rather than queued without bound; no caller waits for ever: a disk
that does not answer counts as an empty one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from gateway.drivers.sqlite.disk_trouble import Trouble
from gateway.drivers.sqlite.file import File
from gateway.products.jobs.sqlite_rows.jobs import Backup, Effort, FileJob, Rest, Work

T = TypeVar("T")
log = logging.getLogger("gateway.store")

MOST_JOBS = 256
"""Jobs in one transaction, at most."""
QUEUED_BYTES = 16 * 1024 * 1024
"""Bytes of queued writes that no caller waits for; further ones are dropped."""
STALL_S = 5.0
"""Seconds without progress after which a job is given up."""
CLOSE_S = 10.0
"""Seconds that the disk has at the end for the remaining jobs."""


class FileThread:
    """Takes jobs on the loop, runs them in the thread, and calls back on the loop."""

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
        self.dropped = 0
        """The number of writes that were dropped for want of room."""
        self._opened = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="store-file", daemon=True)

    @property
    def is_well(self) -> bool:
        """Tells whether a write is expected to last."""
        return self._trouble.is_well and not self.is_stalled

    def start(self) -> None:
        """Starts the thread and waits until it has opened the file; raises StoreUnusable."""
        self._thread.start()
        self._opened.wait()
        if self._failure is not None:
            raise self._failure

    def ask(
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
        """Does as `ask`, and returns a future for the result."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.ask(
            work, otherwise, lambda result: None if future.done() else future.set_result(result), effort, undo=undo
        )
        return future

    def tell(self, work: Callable[[Any], object], size: int) -> None:
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
            self._jobs.put(Backup(path, lambda said: None if done.done() else done.set_result(said)))
        else:
            done.set_result("the gateway is stopping")
        return done

    def watch(self) -> None:
        """Is called about once a second: gives up jobs that have waited longer than `STALL_S`."""
        before = self._monotonic() - STALL_S
        late = [job for job in self._waiting if job.asked_at < before]
        if late and not self.is_stalled:
            self.is_stalled = True
            kind = self._file.kind
            log.warning("the disk of the %s has said nothing for %g s; %s", kind.name, STALL_S, kind.when_stalled)
        for job in late:
            if job.decide():
                self._tell(job, job.otherwise)

    async def aclose(self) -> None:
        """Takes nothing more and returns when all jobs are done, or after `CLOSE_S`."""
        if not self._is_open:
            return
        self._is_open = False
        self._jobs.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, CLOSE_S)
        for job in list(self._waiting):
            if job.decide():
                self._tell(job, job.otherwise)

    def _put(self, job: FileJob) -> None:
        if not self._is_open or self._queued_bytes + job.bytes > QUEUED_BYTES:
            self.dropped += 1
            return
        self._queued_bytes += job.bytes
        self._loop = asyncio.get_running_loop()
        self._jobs.put(job)

    def _tell(self, job: FileJob, result: Any) -> None:
        """Calls the job's `then`, once."""
        if job in self._waiting:
            del self._waiting[job]
            if job.then is not None:
                job.then(result)

    def _tell_all(self, done: list[tuple[FileJob, Any]]) -> None:
        if self.is_stalled:
            self.is_stalled = False
            log.warning("the disk of the %s answers again.", self._file.kind.name)
        for job, result in done:
            if job.then is None:
                self._queued_bytes -= job.bytes
            else:
                self._tell(job, result)

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
                    self._call_on_loop(job.told, self._file.copy(job.path, self._serve_meanwhile))
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
                job.work, job.asked_at = result.work, self._monotonic()
                self._jobs.put(job)
            elif job.decide():
                done.append((job, result))
            else:
                is_late = True
                if job.undo is not None:
                    self._file.do([FileJob(job.undo, None, "durable")])
        if done or is_late:
            self._call_on_loop(self._tell_all, done)

    def _call_on_loop(self, tell: Callable[[Any], None], what: Any) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(tell, what)
            except RuntimeError:  # the loop is closed: no caller waits any more
                log.debug("nobody heard how jobs ended")
