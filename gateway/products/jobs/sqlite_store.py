"""The store of jobs in an SQLite file: jobs outlive the process, and what was acknowledged outlives a loss of power.

The file's thread does the work, in one transaction for all that arrives together; `sqlite` and `sqlite_rows` say what. There
are no leases: whoever opens the file has it alone, and knows that everybody who had claims before is dead. Unlike the state
store this one never pretends: where the disk fails, or says nothing, every method raises JobsUnavailable, and what was refused
does not happen later.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final

from gateway.core.clock import Ahead, never_ahead
from gateway.core.types import LANES, Lane
from gateway.drivers.durable_file import FAILED, DurableFile
from gateway.drivers.sqlite import Rest
from gateway.drivers.sqlite_file import Connect
from gateway.installed import is_installed
from gateway.products.jobs import sqlite_rows, transitions
from gateway.products.jobs.dead_letters import sqlite as dead_rows
from gateway.products.jobs.dead_letters.rules import DeadGroup, DeadLetter, LetterPage, RedriveResult, begin_redrive
from gateway.products.jobs.model import (
    Accepted,
    ChunkPlan,
    ChunkResult,
    ClaimedWork,
    ClaimRequest,
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
    TooManyJobs,
    WriteResult,
    nothing_follows,
)
from gateway.products.jobs.response_store import KeptBounds
from gateway.products.jobs.sqlite import Oldest, Replacement, SqliteAcceptance, SqliteClaims, SqlitePieces
from gateway.products.jobs.sqlite_files import SqliteJobFiles
from gateway.products.jobs.sqlite_responses import SqliteEventLogs, SqliteKeptResponses
from gateway.products.jobs.sqlite_rows import OPEN, STATES
from gateway.products.jobs.transitions import NOT_OURS, OpenBounds, written

HAS_RUNS: Final = is_installed("gateway.features.runs")
if HAS_RUNS:
    from gateway.features.runs.sqlite import SqliteRuns


class SqliteJobStore:
    """Implements `gateway.products.jobs.store.JobStore` on a file, for one event loop; the constructor raises StoreUnusable.

    The port says what each method does; `SqliteAcceptance`, `SqliteClaims` and `sqlite_rows` do it, in the file's thread.
    """

    lease_s = inf
    durability_lag_s = 0.0
    durability = "on disk"

    def __init__(
        self,
        path: str,
        wall: Callable[[], float],
        bounds: OpenBounds | None = None,
        *,
        following: Following = nothing_follows,
        kept_bounds: KeptBounds | None = None,
        ahead: Ahead = never_ahead,
        connect: Connect = sqlite3.connect,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._wall = wall
        self._following = following
        self._pieces = SqlitePieces(self._follow)
        self._claims = SqliteClaims(self._pieces)
        self._acceptance = SqliteAcceptance(self._pieces, bounds or OpenBounds())
        self._file = DurableFile(
            *(path, sqlite_rows.JOBS_FILE),
            begin=lambda db, starts: self._pieces.open(db, starts, wall()),
            readied=lambda: self._pieces.readied,
            connect=connect,
            monotonic=monotonic,
            ahead=ahead,
        )
        self.dead = SqliteDeadLetters(self._file, self._pieces, self._acceptance, wall)
        self.files = SqliteJobFiles(self._file, wall)
        kept_bounds = kept_bounds or KeptBounds()
        self.events = SqliteEventLogs(self._file, kept_bounds)
        self.responses = SqliteKeptResponses(self._file, wall, kept_bounds)
        if HAS_RUNS:
            self.runs = SqliteRuns(self._file, wall, kept_bounds.run_bytes)
        self._oldest: Oldest = {}
        self._is_ticking = False
        self._changes = 0

    async def accept(self, jobs: Sequence[NewJob]) -> Sequence[Accepted]:
        now, taken = self._wall(), next(self._pieces.numbers)
        replaced: list[Replacement] = []
        accepted: Sequence[Accepted] | TooManyJobs = await self._file.write(
            lambda db: self._acceptance.accept_all(db, jobs, now, taken, replaced),
            undo=lambda db: self._acceptance.take_back(db, jobs, taken, replaced, now),
        )
        if isinstance(accepted, TooManyJobs):
            raise accepted
        return accepted

    async def claim(self, asks: Sequence[ClaimRequest]) -> Sequence[ClaimedWork]:
        now = self._wall()
        if self._file.is_quiet(now):
            return []
        fences: list[int] = []
        return await self._file.write(
            lambda db: self._claims.claim(db, asks, now, fences),
            undo=lambda db: self._claims.unclaim(db, fences),
            is_undone_unacknowledged=True,
        )

    async def renew(self, works: Sequence[ClaimedWork]) -> Sequence[WriteResult]:
        """Returns what has been asked of the jobs meanwhile; no claim ends by itself."""
        return await self._file.read(lambda db: self._claims.renew(db, works))

    async def give_back(
        self, work: ClaimedWork, *, run_at: float | None, error: JobError | None = None, is_attempt: bool
    ) -> WriteResult:
        now = self._wall()
        return await self._file.write(
            lambda db: self._claims.give_back(db, work, run_at or now, now, error, is_attempt=is_attempt)
        )

    async def park(self, work: ClaimedWork, children: Sequence[NewJob], progress: Mapping[str, object]) -> WriteResult:
        now, taken, news = self._wall(), next(self._pieces.numbers), transitions.fitting(work.job, children)

        def parked(db: sqlite3.Connection) -> WriteResult:
            result = self._claims.park(db, work, progress, now)
            if result.is_ours and result.ends_as is work.job.ends_as:
                for new in news:
                    self._acceptance.accept(db, new, now, taken)
            return result

        return await self._file.write(parked)

    async def begin_lines(self, work: ClaimedWork, plan: ChunkPlan, marks: Mapping[str, object]) -> WriteResult:
        now = self._wall()
        return await self._file.write(lambda db: self._claims.begin_lines(db, work, plan, marks, now))

    async def commit(
        self, work: ClaimedWork, results: Sequence[LineResult], dead: Sequence[DeadLetter] = ()
    ) -> WriteResult:
        return await self._file.write(lambda db: self._claims.commit(db, work, results, dead))

    async def results(self, work: ClaimedWork) -> Sequence[LineResult]:
        return await self._file.read(lambda db: self._claims.results(db, work.job.id, work.piece))

    async def note(self, work: ClaimedWork, marks: Mapping[str, object]) -> WriteResult:
        return await self._file.write(lambda db: self._claims.note(db, work, marks))

    async def complete_chunk(self, work: ClaimedWork, result: ChunkResult) -> WriteResult:
        now = self._wall()
        return await self._file.write(lambda db: self._claims.complete_chunk(db, work, result, now))

    async def chunk_results(self, job_id: str) -> Sequence[ChunkResult]:
        return await self._file.read(lambda db: self._claims.chunks(db, job_id))

    async def open_results(self, work: ClaimedWork) -> Sequence[LineResult]:
        return await self._file.read(lambda db: self._claims.results(db, work.job.id))

    async def finish(self, work: ClaimedWork, end: JobEnd, following: Sequence[NewJob] = ()) -> WriteResult:
        now, taken = self._wall(), next(self._pieces.numbers)

        def finished(db: sqlite3.Connection) -> WriteResult:
            result = self._claims.finish(db, work, end, now)
            if result.is_ours:
                for new in following:
                    self._acceptance.accept(db, new, now, taken)
            return result

        return await self._file.write(finished)

    async def flag(self, job_id: str, tenant: str | None, flag: JobFlag) -> Job | None:
        now = self._wall()

        def flagged(db: sqlite3.Connection) -> Job | None:
            row = sqlite_rows.find(db, job_id, tenant)
            if row is None:
                return None
            if not row.job.state.is_end:
                self._pieces.flag(db, row, flag, now)
            return row.job

        return await self._file.write(flagged)

    async def find(self, job_id: str, tenant: str | None) -> Job | None:
        row = await self._file.read(lambda db: sqlite_rows.find(db, job_id, tenant))
        return None if row is None else row.job

    async def answer(self, job_id: str, tenant: str | None) -> StoredAnswer | None:
        def answered(db: sqlite3.Connection) -> StoredAnswer | None:
            row = sqlite_rows.find(db, job_id, tenant)
            return None if row is None else sqlite_rows.answer_of(db, row)

        return await self._file.read(answered)

    async def list_jobs(self, query: JobQuery) -> JobPage:
        return await self._file.read(lambda db: sqlite_rows.page_of(db, query))

    async def identity(self) -> str:
        """Returns what distinguishes this file from all others; a copy of it has the same."""
        return await self._file.read(sqlite_rows.identity_of)

    async def forget_ended(self, before: float, most: int) -> int:
        return await self._file.write(lambda db: sqlite_rows.forget_ended(db, before, most))

    def on_ready(self, wake: Callable[[], None]) -> None:
        self._file.on_ready(wake)

    def depth(self) -> Mapping[tuple[str, Lane, str], JobDepth]:
        """Returns what waits and runs as of the last write; the oldest as of the last tick."""
        found: dict[tuple[str, Lane, str], JobDepth] = {}
        for name, number, _ in self._file.totals:
            if name == OPEN or not number:
                continue
            segment, lane, state = name.rsplit("/", 2)
            shown = STATES[int(state)]
            key = (segment, LANES[int(lane)], "later" if shown == "withheld" else shown)
            oldest = self._oldest.get((segment, int(lane), int(state)), self._wall())
            before = found.get(key, JobDepth(0, inf))
            found[key] = JobDepth(before.number + number, min(before.oldest_at, oldest))
        return found

    def tick(self) -> None:
        """Lets deadlines pass, makes due what was scheduled, and gives up a disk that does not answer."""
        self._file.watch()
        now = self._wall()
        if not self._is_ticking and not self._file.is_quiet(now):
            self._is_ticking, self._changes = True, self._file.changes
            self._file.submit(lambda db: self._claims.tick(db, now), "acknowledged", self._ticked)

    @property
    def is_well(self) -> bool:
        return self._file.is_well

    async def backup(self, path: str) -> str | None:
        """Copies the file to `path`, which must not exist, while jobs go on; returns an error message or None."""
        return await self._file.backup(path)

    async def aclose(self) -> None:
        await self._file.aclose()

    def _follow(self, db: sqlite3.Connection, ended: Job, now: float) -> None:
        """Accepts what a job's end brings with it, in the file's thread."""
        for new in self._following(ended):
            self._acceptance.accept(db, new, now, next(self._pieces.numbers))

    def _ticked(self, ticked: Any) -> None:
        self._is_ticking = False
        if ticked is not FAILED:
            self._oldest, quiet_until = ticked
            self._file.note_quiet(quiet_until, self._changes)


# --- its dead letters; files, logs, responses and runs are beside their products ---

LETTERS_AT_ONCE = 100
"""The letters that are removed in one step, after which others have their turn."""


class SqliteDeadLetters:
    """Implements `gateway.products.jobs.dead_letters.rules.DeadLetters`."""

    def __init__(
        self, file: DurableFile, pieces: SqlitePieces, acceptance: SqliteAcceptance, wall: Callable[[], float]
    ) -> None:
        self._file = file
        self._pieces = pieces
        self._acceptance = acceptance
        self._wall = wall

    async def groups(self, samples: int, after: str | None = None) -> Sequence[DeadGroup]:
        return await self._file.read(lambda db: dead_rows.groups(db, samples, after))

    async def page(self, page: LetterPage) -> Sequence[DeadLetter]:
        return await self._file.read(lambda db: dead_rows.page_of(db, page))

    async def find(self, letter_id: str) -> DeadLetter | None:
        return await self._file.read(lambda db: dead_rows.find(db, letter_id))

    async def payload(self, letter_id: str) -> bytes | None:
        return await self._file.read(lambda db: dead_rows.payload(db, letter_id))

    async def redrive(self, work: ClaimedWork, letter_id: str, number: int, new: NewJob) -> RedriveResult:
        now, taken = self._wall(), next(self._pieces.numbers)

        def begin(db: sqlite3.Connection) -> RedriveResult:
            row = self._pieces.claimed(db, work)
            if row is None:
                return RedriveResult(NOT_OURS, is_done=False)
            letter = dead_rows.find(db, letter_id)
            begun = None if letter is None else begin_redrive(letter, work.job.id, number, new.job.id)
            if letter is not None and begun is not None:
                dead_rows.change(db, letter, begun)
                self._acceptance.accept(db, new, now, taken)
                sqlite_rows.keep(db, row, transitions.one_more(row.job))
            return RedriveResult(written(row.job), is_done=begun is not None)

        return await self._file.write(begin)

    async def purge(self, letter_ids: Sequence[str]) -> int:
        return await self._file.write(lambda db: _purge(db, letter_ids))

    async def trim(self, before: float, max_bytes: int, most: int) -> int:
        return await self._file.write(lambda db: _trim(db, before, max_bytes, most))


def _purge(db: sqlite3.Connection, letter_ids: Sequence[str], count: int = 0) -> int | Rest:
    count += dead_rows.purge(db, letter_ids[:LETTERS_AT_ONCE])
    rest = letter_ids[LETTERS_AT_ONCE:]
    return Rest(lambda db: _purge(db, rest, count)) if rest else count


def _trim(db: sqlite3.Connection, before: float, max_bytes: int, most: int, count: int = 0) -> int | Rest:
    step = min(most - count, LETTERS_AT_ONCE)
    done = dead_rows.trim(db, before, max_bytes, step)
    count += done
    return count if done < step or count == most else Rest(lambda db: _trim(db, before, max_bytes, most, count))
