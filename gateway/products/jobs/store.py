"""The port of durable work: jobs and their pieces, implemented in `sqlite_store.py` and `redis.py`.

In this order: the port of blobs; that of files; that of jobs; and the opening of the stores that the config names. Unlike the
store of answers, whose failures cost a cache hit, it says the truth or raises JobsUnavailable: what is accepted is durable, and
what is not durable is not accepted. Every method that writes about claimed work is fenced.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Literal, Protocol

from gateway.core.clock import Ahead, SharedClock, never_ahead
from gateway.core.types import Lane, SharedState
from gateway.drivers.blobs import DirectoryBlobs
from gateway.installed import is_installed
from gateway.products.jobs.dead_letters.rules import DeadLetter, DeadLetters
from gateway.products.jobs.model import (
    Accepted,
    ChunkPlan,
    ChunkResult,
    ClaimedWork,
    ClaimRequest,
    FileQuery,
    Following,
    Job,
    JobDepth,
    JobEnd,
    JobError,
    JobFlag,
    JobPage,
    JobQuery,
    LineResult,
    NewJob,
    StoredAnswer,
    StoredFile,
    WriteResult,
    nothing_follows,
)
from gateway.products.jobs.response_store import EventLogs, KeptBounds, KeptResponses
from gateway.products.jobs.transitions import OpenBounds

if is_installed("gateway.features.runs"):
    from gateway.features.runs.step import Runs

# --- the port of blobs: named bytes that outlive the process ---


class BlobWriter(Protocol):
    """A blob in the making. It is nobody's until `commit`."""

    async def write(self, data: bytes) -> None:
        """Adds bytes; may wait for the disk. Raises JobsUnavailable, after which only `abort` may follow."""
        ...

    async def commit(self) -> int:
        """Gives the blob its name, durably, in place of an older one; returns its bytes.

        Raises NotDurable with them, JobsUnavailable.
        """
        ...

    async def abort(self) -> None:
        """Throws away what was written; may follow `commit`, and then does nothing."""
        ...


class Blobs(Protocol):
    """Named bytes that outlive the process. Names are made by us: letters, digits, `-`, `_`, `.` and `/`."""

    async def writer(self, name: str) -> BlobWriter:
        """Begins a blob. Raises JobsUnavailable, also where less than the free space to be kept is left."""
        ...

    def read(self, name: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yields the bytes from `start` on, at most `length` of them. Raises JobsUnavailable; FileNotFoundError if gone."""
        ...

    async def remove(self, names: Sequence[str]) -> None:
        """Removes blobs, those that are there. Raises JobsUnavailable."""
        ...

    async def belong_to(self, store: str) -> bool:
        """Returns whether all blobs are those of the store of this identity: no other has ever asked.

        False also where they are not to be searched. Raises JobsUnavailable.
        """
        ...

    def old_names(self, least_age_s: float, most: int) -> AsyncIterator[Sequence[str]]:
        """Yields the names of all blobs that were written so long ago, at most so many at a time. Raises JobsUnavailable."""
        ...

    async def remove_below(self, folder: str) -> None:
        """Removes all blobs whose names begin with `folder` and a slash, also those nobody knows. Raises JobsUnavailable."""
        ...

    async def aclose(self) -> None:
        """Ends what is under way."""
        ...


# --- the port of the files of the Files API: their rows, and the blobs that nobody needs any more ---


class JobFiles(Protocol):
    """The files of the Files API in a store of jobs, and which blobs are still needed. Every method raises JobsUnavailable."""

    async def add(self, file: StoredFile) -> None:
        """Keeps a file, durably; one with the same id is replaced, but one that was removed stays so: the blob is garbage."""
        ...

    async def find(self, file_id: str, tenant: str) -> StoredFile | None:
        """Returns a file; None: there is none, it has expired, or it is another tenant's."""
        ...

    async def page(self, query: FileQuery) -> tuple[Sequence[StoredFile], bool]:
        """Returns a page of files, and whether there are more; it goes on behind a file that was removed meanwhile, too."""
        ...

    async def remove(self, file_id: str, tenant: str) -> bool:
        """Takes a file away from its tenant; its blob stays while a job that is not at its end reads it (`NewJob.reads`)."""
        ...

    async def bytes_of(self, tenant: str | None) -> int:
        """Returns the bytes of all files that a tenant has; None: of everybody's."""
        ...

    async def find_garbage(self, most: int) -> Sequence[str]:
        """Returns names of blobs of removed, replaced and expired files, of chunks of ended jobs, until forgotten."""
        ...

    async def forget_garbage(self, names: Sequence[str]) -> None:
        """Forgets blobs that `find_garbage` has named, once they are removed."""
        ...

    async def used(self, names: Sequence[str]) -> Collection[str]:
        """Returns those of the blobs that are a file's, are read by a job that has not ended, or are garbage as yet."""
        ...


# --- the port of jobs ---


class JobStore(Protocol):
    """Jobs and their pieces of work. Every method but the last four raises JobsUnavailable.

    The store's own clock says what is due. A transition and all that follows from it (the next chunk, the end) is one step:
    a crash leaves either all of it or nothing. However a job ends (by `finish`, cancelled, past its deadline), what its
    `Following` names is accepted in the step of that end, its dead letter made, and its parent woken: a run that is parked is
    ready then, and one that a worker has is ready as soon as it would be parked, once for all that has happened meanwhile.
    """

    lease_s: float
    """A claim ends after so long without `renew`; infinite where a crash of the worker is a crash of the store."""

    @property
    def durability(self) -> str:
        """Returns what is true when `accept` returns, for `/readyz`: such as "on disk"."""
        ...

    @property
    def durability_lag_s(self) -> float:
        """Returns the seconds after which what was written stays, even if the store dies: what it was made of may go then."""
        ...

    @property
    def dead(self) -> DeadLetters:
        """Returns the dead letters of this store."""
        ...

    @property
    def files(self) -> JobFiles:
        """Returns the files of this store."""
        ...

    @property
    def events(self) -> EventLogs:
        """Returns the logs of the responses that run here."""
        ...

    @property
    def responses(self) -> KeptResponses:
        """Returns the responses that are kept here."""
        ...

    @property
    def runs(self) -> Runs:
        """Returns the runs of this store; where runs are not installed, there is nothing to return."""
        ...

    @property
    def is_well(self) -> bool:
        """Returns whether jobs are expected to be kept: the last attempt to write did not fail."""
        ...

    async def accept(self, jobs: Sequence[NewJob]) -> Sequence[Accepted]:
        """Takes jobs, durably, all or none of them. Raises TooManyJobs above a bound of open jobs.

        A job whose id is there already is answered with the one that is there, so that an accept can be repeated. Jobs that
        have a parent count towards no bound: their run does.
        """
        ...

    async def claim(self, asks: Sequence[ClaimRequest]) -> Sequence[ClaimedWork]:
        """Gives pieces that are due to this worker: of the highest lane, in that the urgent, then by readiness.

        A job's first claim sets `started_at` and the state RUNNING. Pieces of jobs that are paused, or are to stop, are
        not given (but FINALISE always, and a run that is to stop: its worker sees to its children).
        """
        ...

    async def renew(self, works: Sequence[ClaimedWork]) -> Sequence[WriteResult]:
        """Extends claims, and says what has been asked of their jobs meanwhile."""
        ...

    async def give_back(
        self, work: ClaimedWork, *, run_at: float | None, error: JobError | None = None, is_attempt: bool
    ) -> WriteResult:
        """Ends a claim without a result: the piece is ready again, behind all others, from `run_at` (None: now) on.

        `is_attempt` counts it as an attempt of the job. `claims` goes back by one: what counts there are claims whose
        workers were not heard of again. Where the job is to stop, and no piece of it is claimed any more, a `call` ends so
        and a batch goes on to FINALISE.
        """
        ...

    async def park(self, work: ClaimedWork, children: Sequence[NewJob], progress: Mapping[str, object]) -> WriteResult:
        """Ends the claim of a run, which waits for its children from now on; these are accepted, whatever the bounds.

        Marks are added as by `note`. Children whose ids are there already stay as they are. Where one has ended since the
        claim, or the run was told to stop, it is ready at once instead; what was told to stop since takes no new children.
        Raises ValueError for a child that is not this run's, or another tenant's.
        """
        ...

    async def begin_lines(self, work: ClaimedWork, plan: ChunkPlan, marks: Mapping[str, object]) -> WriteResult:
        """Ends the claim of CHECK: the batch is in stage RUN, and its first `plan.parallel` chunks are ready."""
        ...

    async def commit(
        self, work: ClaimedWork, results: Sequence[LineResult], dead: Sequence[DeadLetter] = ()
    ) -> WriteResult:
        """Keeps the results of lines of a claimed chunk, durably; of a line that has one the first stays, and counts.

        `dead` are letters about some of these lines: each is kept if the result of its line is. FINALISE of a batch that
        stopped early may commit, too, what came late for lines without a result in `open_results`, which has it from then on.
        """
        ...

    async def results(self, work: ClaimedWork) -> Sequence[LineResult]:
        """Returns what was committed for a claimed chunk so far, by whomever, in the order of lines."""
        ...

    async def note(self, work: ClaimedWork, marks: Mapping[str, object]) -> WriteResult:
        """Adds to the marks of a claimed piece's job, durably; None takes a mark away. The claim goes on.

        So a worker says what it is about to do, such as something that a crash must not have it do twice.
        """
        ...

    async def complete_chunk(self, work: ClaimedWork, result: ChunkResult) -> WriteResult:
        """Ends the claim of a chunk whose lines all have results, which its blobs hold from now on; the rows go.

        The next chunk is ready, or FINALISE when it was the last, or the job is to stop and nothing else of it is claimed.
        """
        ...

    async def chunk_results(self, job_id: str) -> Sequence[ChunkResult]:
        """Returns the chunks of a batch that are complete, in order."""
        ...

    async def open_results(self, work: ClaimedWork) -> Sequence[LineResult]:
        """Returns the results of lines whose chunks are not complete, for FINALISE of a batch that stopped early."""
        ...

    async def finish(self, work: ClaimedWork, end: JobEnd, following: Sequence[NewJob] = ()) -> WriteResult:
        """Ends a job, and accepts those that follow from its end, in one step."""
        ...

    async def flag(self, job_id: str, tenant: str | None, flag: JobFlag) -> Job | None:
        """Asks something of a job; None: there is none, or it is another tenant's. An ended job stays as it is.

        CANCEL: a `call` that nobody runs ends at once; otherwise `ends_as` is set, its time is the mark `cancelling_at`, a
        batch of which nothing is claimed goes on to FINALISE, and a run that has begun is ready at once. A deadline does the
        same. PAUSE and RESUME withhold its pieces from claims.
        """
        ...

    async def find(self, job_id: str, tenant: str | None) -> Job | None:
        """Returns a job; None: there is none, or it is another tenant's."""
        ...

    async def answer(self, job_id: str, tenant: str | None) -> StoredAnswer | None:
        """Returns the stored answer of a `call` that has one."""
        ...

    async def list_jobs(self, query: JobQuery) -> JobPage:
        """Returns a page of jobs, newest first; an empty one behind a job that is not there, or is another tenant's."""
        ...

    async def identity(self) -> str:
        """Returns what distinguishes this store from all others, always the same: letters and digits."""
        ...

    async def forget_ended(self, before: float, most: int) -> int:
        """Forgets jobs that ended before `before`, with their answers; returns how many. Their files live on.

        Not those whose dead letters can be redriven, nor children of a run that has not ended.
        """
        ...

    def on_ready(self, wake: Callable[[], None]) -> None:
        """Registers `wake`, called in the loop's thread when work became ready here or elsewhere."""
        ...

    def depth(self) -> Mapping[tuple[str, Lane, str], JobDepth]:
        """Returns what waits and runs, by (segment, lane, "ready" | "later" | "claimed"), as last known.

        Pieces of jobs that are paused count as "later".
        """
        ...

    def tick(self) -> None:
        """Is called about once a second: lets deadlines pass, and does a little of what else is due."""
        ...

    async def aclose(self) -> None:
        """Writes all that was taken, and takes nothing more."""
        ...


# --- the stores of jobs and of blobs that the config names, opened ---

log = logging.getLogger("gateway.jobs")


def open_jobs(
    path: str,
    wall: Callable[[], float],
    in_all: int,
    per_tenant: int,
    following: Following = nothing_follows,
    kept_bounds: KeptBounds | None = None,
    ahead: Ahead = never_ahead,
) -> JobStore:
    """Returns the store of jobs in the file; `following` says what their ends bring with them. Raises StoreUnusable."""
    from gateway.products.jobs.sqlite_store import SqliteJobStore  # a gateway without jobs does not load it

    is_new = not has_jobs(path)
    bounds = OpenBounds(in_all, per_tenant)
    store = SqliteJobStore(path, wall, bounds, following=following, kept_bounds=kept_bounds, ahead=ahead)
    log.info("jobs are kept in %s%s", path, ", which is new" if is_new else "")
    return store


async def open_redis_jobs(
    shared: SharedState,
    *,
    replica: str,
    clock: SharedClock | None = None,
    wall: Callable[[], float] | None = None,
    in_all: int,
    per_tenant: int,
    accept: Literal["fsync", "replicated", "fast"] = "fsync",
    following: Following = nothing_follows,
    kept_bounds: KeptBounds | None = None,
) -> JobStore:
    """Returns the store of jobs in a Redis, over links of its own, in the running event loop. Raises StoreUnusable.

    `replica` names this process among those that share the work. `clock` follows that of the Redis, which is the only one that
    replicas have in common; `wall` takes its place in tests. `accept` says what must be true before jobs are acknowledged.
    """
    from gateway.products.jobs.redis import open_store  # a gateway without such jobs does not load it

    return await open_store(
        shared, replica, wall, OpenBounds(in_all, per_tenant), accept, following, kept_bounds, clock
    )


def open_blobs(folder: str, min_free_bytes: int) -> Blobs:
    """Returns the store of blobs in a folder, which is made when the first is written."""
    return DirectoryBlobs(folder, min_free_bytes=min_free_bytes)


def open_redis_blobs(shared: SharedState, accept: Literal["fsync", "replicated", "fast"]) -> Blobs:
    """Returns the store of blobs in a Redis, which connects when it is first used; `accept` as for jobs.

    On one server a job is behind the blobs that it names, and waits for both. On a cluster it may be on another, and after a
    failover it may be on a new master that never had the blob: there blobs are waited for themselves.
    """
    from gateway.drivers.blobs_redis import RedisBlobs  # a gateway without a Redis does not load it
    from gateway.drivers.redis.partitions import BlobDurability  # a gateway without such jobs does not load it

    is_apart = "+cluster:" in shared.url or accept == "replicated"
    return RedisBlobs(shared, safety=BlobDurability(shared, accept) if is_apart and accept != "fast" else None)


def has_jobs(path: str) -> bool:
    """Returns whether jobs were kept there before."""
    return os.path.exists(path)


def no_jobs(wall: Callable[[], float]) -> JobStore:
    """Returns an empty store, to look into where there is no file yet."""
    from gateway.drivers.sqlite_file import IN_MEMORY  # loads SQLite, which a gateway without jobs does not
    from gateway.products.jobs.sqlite_store import SqliteJobStore  # a gateway without jobs does not load it

    return SqliteJobStore(IN_MEMORY, wall)


def copier_of(store: JobStore) -> tuple[str, Callable[[str], Awaitable[str | None]]] | None:
    """Returns the path of the store's file, and what copies it to another path; None: it is in no file."""
    from gateway.drivers.sqlite_file import IN_MEMORY  # loads SQLite, which a gateway without jobs does not
    from gateway.products.jobs.sqlite_store import SqliteJobStore  # a gateway without jobs does not load it

    if isinstance(store, SqliteJobStore) and store.path != IN_MEMORY:
        return store.path, store.backup
    return None
