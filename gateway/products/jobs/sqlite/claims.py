"""Claims of pieces in the file, and what time does to jobs: they become due, and their deadlines pass."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.products.jobs.dead_letters.rules.jobs_dead_letters import DeadLetter
from gateway.products.jobs.dead_letters.sqlite import dead_rows
from gateway.products.jobs.model.job import (
    CHECK,
    ClaimAsk,
    ClaimedWork,
    JobEnd,
    JobError,
    JobKind,
    JobState,
    WriteResult,
)
from gateway.products.jobs.model.lines import ChunkPlan, ChunkResult, LineResult
from gateway.products.jobs.sqlite.pieces import SqlitePieces
from gateway.products.jobs.sqlite_rows import job_rows
from gateway.products.jobs.sqlite_rows.jobs import Rest
from gateway.products.jobs.sqlite_rows.schema import CLAIMED, LATER, READY
from gateway.products.jobs.transitions import transitions
from gateway.products.jobs.transitions.transitions import NOT_OURS, written

STEP = 200
"""Jobs that time changes in one step, after which others have their turn."""
MOST_LOOKS = 64
"""A claim that meets jobs whose deadlines have passed looks so often for others, at most."""
CURSOR_S = 3600.0
"""A removed file keeps its place in lists for so long."""
FREE_PAGES, FREED_PAGES = 2048, 128
"""Unused pages (16 MiB) left for new rows, or a quarter of the file, if more; pages given back to the system in one step."""

HELD = (
    "SELECT jobs.seq, jobs.held FROM jobs JOIN pieces ON pieces.job = jobs.seq "
    f"WHERE jobs.id = ? AND pieces.piece = ? AND pieces.state = {CLAIMED} AND pieces.fence = ?"
)
"""The number of a claim's job, and whether it is paused or to stop, if the claim holds: job, piece, fence."""

LONGEST_QUIET_S = 30.0
"""So often at least it is looked what else is due, such as dedupe keys to be forgotten."""
Oldest = Mapping[tuple[str, int, int], float]
"""When the oldest of the pieces was or is ready, by segment, lane and state."""


class Ticked(NamedTuple):
    """What is known after time has passed."""

    oldest: Oldest
    quiet_until: float
    """Until then nothing is ready or becomes due, as long as nothing is written."""


class SqliteClaims:
    """Gives pieces to workers, and takes their results, in the file's thread."""

    def __init__(self, pieces: SqlitePieces) -> None:
        self._pieces = pieces

    def claim(
        self, db: sqlite3.Connection, asks: Sequence[ClaimAsk], now: float, fences: list[int]
    ) -> list[ClaimedWork]:
        """Claims the first of what is ready, and notes the fences in `fences`."""
        self._pieces.promote(db, now, STEP)
        works: list[ClaimedWork] = []
        for ask in asks:
            left = ask.most
            for _ in range(MOST_LOOKS):
                given = self._claim_some(db, ask.segment, left, now)
                works += [work for work in given if work is not None]
                left -= len(given) - (None in given)
                if None not in given:
                    break
        fences += [work.fence for work in works]
        return works

    def _claim_some(self, db: sqlite3.Connection, segment: str, most: int, now: float) -> list[ClaimedWork | None]:
        """Claims the first pieces of a segment; None at the end: a deadline had passed, and others may be first now."""
        ready = db.execute(
            f"SELECT job, piece, claims FROM pieces WHERE segment = ? AND state = {READY} "
            "ORDER BY rank, ready_at, turn LIMIT ?",
            (segment, most),
        ).fetchall()
        given: list[ClaimedWork | None] = []
        for seq, piece, claims in ready:
            row = job_rows.get(db, seq)
            if transitions.is_overdue(row.job, now):
                self._pieces.stop(db, row, JobState.EXPIRED, now)
                return [*given, None]
            fence = next(self._pieces.numbers)
            db.execute(
                f"UPDATE pieces SET state = {CLAIMED}, fence = ?, claims = claims + 1, news = 0 "
                "WHERE job = ? AND piece = ?",
                (fence, seq, piece),
            )
            job_rows.keep(db, row, transitions.started(row.job, now))
            given.append(ClaimedWork(row.job, piece, fence, claims + 1, job_rows.payload_of(db, row)))
        return given

    def unclaim(self, db: sqlite3.Connection, fences: Sequence[int]) -> None:
        """Makes ready again, uncounted, what was claimed for somebody who never heard of it."""
        for fence in fences:
            found = db.execute(
                f"SELECT job, piece, ready_at, claims FROM pieces WHERE state = {CLAIMED} AND fence = ?",
                (fence,),
            ).fetchone()
            if found is not None:
                seq, piece, ready_at, claims = found
                row = job_rows.get(db, seq)
                self._pieces.put(db, row, piece, ready_at, ready_at, claims=claims - 1)
                self._pieces.stop_if_asked(db, row, ready_at)

    def renew(self, db: sqlite3.Connection, works: Sequence[ClaimedWork]) -> list[WriteResult]:
        """Says what has been asked of the jobs."""
        return [self._renew(db, work) for work in works]

    @staticmethod
    def _renew(db: sqlite3.Connection, work: ClaimedWork) -> WriteResult:
        """Asked every second for all that runs: only a job that is paused or to stop is read whole."""
        found = db.execute(HELD, (work.job.id, work.piece, work.fence)).fetchone()
        if found is None:
            return NOT_OURS
        seq, is_held = found
        return written(job_rows.get(db, seq).job) if is_held else WriteResult(True)

    def give_back(
        self, db: sqlite3.Connection, work: ClaimedWork, at: float, now: float, error: JobError | None, is_attempt: bool
    ) -> WriteResult:
        """Ends a claim without a result."""
        row = self._pieces.claimed(db, work)
        if row is None:
            return NOT_OURS
        (claims,) = db.execute(
            "SELECT claims FROM pieces WHERE job = ? AND piece = ?", (row.seq, work.piece)
        ).fetchone()
        job_rows.keep(db, row, transitions.tried(row.job, error, is_attempt=is_attempt))
        self._pieces.put(db, row, work.piece, max(now, at), now, claims=max(0, claims - 1))
        self._pieces.stop_if_asked(db, row, now)
        return written(row.job)

    def park(self, db: sqlite3.Connection, work: ClaimedWork, marks: Mapping[str, object], now: float) -> WriteResult:
        """Ends the claim of a run, which waits for its children from now on."""
        row = self._pieces.claimed(db, work)
        if row is None or row.job.kind is not JobKind.RUN:
            return NOT_OURS
        job_rows.keep(db, row, transitions.noted(row.job, marks))
        self._pieces.park(db, row, now)
        return written(row.job)

    def begin_lines(
        self, db: sqlite3.Connection, work: ClaimedWork, plan: ChunkPlan, marks: Mapping[str, object], now: float
    ) -> WriteResult:
        """Ends the claim of CHECK."""
        row = self._pieces.claimed(db, work)
        if row is None or work.piece != CHECK:
            return NOT_OURS
        self._pieces.begin(db, row, plan, marks, now)
        return written(row.job)

    def commit(
        self, db: sqlite3.Connection, work: ClaimedWork, results: Sequence[LineResult], dead: Sequence[DeadLetter]
    ) -> WriteResult:
        """Keeps the first result of each line, and counts it."""
        row = self._pieces.claimed(db, work)
        if row is None:
            return NOT_OURS
        fresh = []
        for result in results:
            line, failed, text, *counts = result
            added = db.execute(
                f"INSERT OR IGNORE INTO lines (job, chunk, {job_rows.LINE_COLUMNS}) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (row.seq, work.piece, line, failed, text, *counts),
            )
            if added.rowcount == 1:
                fresh.append(result)
        if fresh:
            db.execute("UPDATE pieces SET claims = 1 WHERE job = ? AND piece = ?", (row.seq, work.piece))
            tally = transitions.counted(row.job.tally, fresh)
            job_rows.keep(db, row, transitions.changed(row.job, tally=tally))
            lines = {result.line for result in fresh}
            dead_rows.add(db, [letter for letter in dead if letter.line in lines])
        return written(row.job)

    def results(self, db: sqlite3.Connection, job_id: str, chunk: int | None = None) -> list[LineResult]:
        """Returns the results of the lines of a chunk, or of all chunks that are not complete, in the order of lines."""
        row = job_rows.find(db, job_id)
        if row is None:
            return []
        found = db.execute(
            f"SELECT {job_rows.LINE_COLUMNS} FROM lines WHERE job = ? AND (? IS NULL OR chunk = ?) "
            "ORDER BY chunk, line",
            (row.seq, chunk, chunk),
        )
        return [job_rows.line_result(line) for line in found.fetchall()]

    def chunks(self, db: sqlite3.Connection, job_id: str) -> list[ChunkResult]:
        """Returns the complete chunks of a batch, in order."""
        row = job_rows.find(db, job_id)
        if row is None:
            return []
        query = "SELECT chunk, output, output_bytes, errors, errors_bytes FROM chunks WHERE job = ? ORDER BY chunk"
        return [ChunkResult(*found) for found in db.execute(query, (row.seq,)).fetchall()]

    def note(self, db: sqlite3.Connection, work: ClaimedWork, marks: Mapping[str, object]) -> WriteResult:
        """Adds to the marks of a job."""
        row = self._pieces.claimed(db, work)
        if row is None:
            return NOT_OURS
        job_rows.keep(db, row, transitions.noted(row.job, marks))
        return written(row.job)

    def complete_chunk(self, db: sqlite3.Connection, work: ClaimedWork, result: ChunkResult, now: float) -> WriteResult:
        """Ends the claim of a chunk."""
        row = self._pieces.claimed(db, work)
        if row is None or not transitions.is_chunk(row.job, work.piece):
            return NOT_OURS
        self._pieces.complete(db, row, result, now)
        return written(row.job)

    def finish(self, db: sqlite3.Connection, work: ClaimedWork, end: JobEnd, now: float) -> WriteResult:
        """Ends a job."""
        row = self._pieces.claimed(db, work)
        if row is None:
            return NOT_OURS
        self._pieces.end(db, row, end, now)
        return written(row.job)

    def tick(self, db: sqlite3.Connection, now: float) -> Ticked | Rest:
        """Lets time pass: the rest of the work while there is much of it, then what is known."""
        due = db.execute("SELECT seq FROM jobs WHERE due <= ? ORDER BY due LIMIT ?", (now, STEP)).fetchall()
        for (seq,) in due:
            self._pieces.stop(db, job_rows.get(db, seq), JobState.EXPIRED, now)
        if len(due) == STEP or self._pieces.promote(db, now, STEP) == STEP:
            return Rest(lambda db: self.tick(db, now))
        db.execute("DELETE FROM dedupe WHERE key IN (SELECT key FROM dedupe WHERE until <= ? LIMIT ?)", (now, STEP))
        before = now - CURSOR_S
        db.execute("DELETE FROM files WHERE seq IN (SELECT seq FROM files WHERE gone < ? LIMIT ?)", (before, STEP))
        is_shrinking, oldest = _shrink(db), _oldest(db)
        return Ticked(oldest, now if is_shrinking else _quiet_until(db, oldest, now))


def _shrink(db: sqlite3.Connection) -> bool:
    """Gives some unused pages back to the system, where there are many; returns whether it did."""
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    is_much = bool(free > max(FREE_PAGES, pages // 4))
    if is_much:
        db.execute(f"PRAGMA incremental_vacuum({FREED_PAGES})").fetchall()
    return is_much


def _quiet_until(db: sqlite3.Connection, oldest: Oldest, now: float) -> float:
    (due,) = db.execute("SELECT min(due) FROM jobs WHERE due IS NOT NULL").fetchone()
    until = now + LONGEST_QUIET_S if due is None else min(now + LONGEST_QUIET_S, due)
    times = [at if state == LATER else now for (_, _, state), at in oldest.items() if state in (READY, LATER)]
    return min(until, *times, until)


def _oldest(db: sqlite3.Connection) -> Oldest:
    found: dict[tuple[str, int, int], float] = {}
    for (name,) in db.execute("SELECT name FROM totals WHERE entries > 0 AND name LIKE '%/%/%'").fetchall():
        segment, lane, state = name.rsplit("/", 2)
        times = [
            db.execute(
                "SELECT min(ready_at) FROM pieces WHERE segment = ? AND rank = ? AND state = " + str(int(state)),
                (segment, rank),
            ).fetchone()[0]
            for rank in (2 * int(lane), 2 * int(lane) + 1)
        ]
        found[segment, int(lane), int(state)] = min(time for time in times if time is not None)
    return found
