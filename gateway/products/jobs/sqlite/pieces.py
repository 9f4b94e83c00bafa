"""The pieces of jobs in the file: when they are ready, and what follows when one of them is done.

Used by the file's thread, in transactions. The same steps as in `gateway.products.jobs.transitions.pieces`, in SQL.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from itertools import count

from gateway.core.types.words import LANES
from gateway.products.jobs.dead_letters.sqlite import dead_rows
from gateway.products.jobs.model.job import (
    FINALISE,
    RUN_PIECE,
    ClaimedWork,
    Job,
    JobEnd,
    JobFlag,
    JobKind,
    JobState,
    Stage,
)
from gateway.products.jobs.model.lines import ChunkPlan, ChunkResult
from gateway.products.jobs.sqlite_rows import job_rows
from gateway.products.jobs.sqlite_rows.job_rows import JobRow
from gateway.products.jobs.sqlite_rows.schema import CLAIMED, LATER, READY, STATES, WITHHELD
from gateway.products.jobs.transitions import transitions


class SqlitePieces:
    """Moves pieces from state to state; `readied` counts those that became ready, `numbers` are turns and fences.

    `follow` is called with each job at its end, in the transaction of that end.
    """

    def __init__(self, follow: Callable[[sqlite3.Connection, Job, float], None]) -> None:
        self._follow = follow
        self.numbers = count(1)
        self.readied = 0

    def open(self, db: sqlite3.Connection, starts: int, now: float) -> None:
        """Makes ready again, in its old place, what workers had that are dead now; `starts` counts the openings."""
        # neither turns nor fences ever go back, whatever was before; a copy of the file may have been opened less often
        self.numbers = count(max(starts << 32, next(self.numbers)))
        held = db.execute(  # without the index named, all pieces would be searched
            "SELECT DISTINCT job FROM pieces INDEXED BY pieces_claimed "
            "JOIN jobs ON jobs.seq = pieces.job "
            f"WHERE pieces.state = {CLAIMED} AND jobs.held"
        ).fetchall()
        db.execute(f"UPDATE pieces SET state = {READY} WHERE state = {CLAIMED}")
        for (seq,) in held:
            row = job_rows.get(db, seq)
            self._withhold(db, row, now)
            self.stop_if_asked(db, row, now)

    def claimed(self, db: sqlite3.Connection, work: ClaimedWork) -> JobRow | None:
        """Returns the job of a claim that holds."""
        row = job_rows.find(db, work.job.id)
        if row is None:
            return None
        held = db.execute(
            f"SELECT 1 FROM pieces WHERE job = ? AND piece = ? AND state = {CLAIMED} AND fence = ?",
            (row.seq, work.piece, work.fence),
        ).fetchone()
        return None if held is None else row

    def put(
        self, db: sqlite3.Connection, row: JobRow, piece: int, ready_at: float, now: float, claims: int = 0
    ) -> None:
        """Makes a piece wait, behind all that became ready at the same time."""
        state = STATES.index(transitions.waiting(row.job, piece, ready_at, now))
        db.execute(
            "REPLACE INTO pieces (job, piece, segment, rank, state, ready_at, turn, claims, fence) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
            (row.seq, piece, row.job.segment, rank_of(row.job), state, ready_at, next(self.numbers), claims),
        )
        self.readied += state == READY

    def promote(self, db: sqlite3.Connection, now: float, most: int) -> int:
        """Makes ready what has waited for its time, at most so many pieces; returns how many."""
        waiting = db.execute("SELECT name FROM totals WHERE name LIKE ? AND entries > 0", (f"%/{LATER}",)).fetchall()
        due: list[tuple[int, int]] = []
        for (name,) in waiting:
            segment, lane, _ = name.rsplit("/", 2)
            for rank in (2 * int(lane), 2 * int(lane) + 1):
                due += db.execute(
                    f"SELECT job, piece FROM pieces WHERE state = {LATER} AND segment = ? AND rank = ? "
                    "AND ready_at <= ? ORDER BY ready_at LIMIT ?",
                    (segment, rank, now, most - len(due)),
                ).fetchall()
        for seq, piece in due:
            db.execute("UPDATE pieces SET state = ? WHERE job = ? AND piece = ?", (READY, seq, piece))
            row = job_rows.get(db, seq)
            job_rows.keep(db, row, transitions.due(row.job))
        self.readied += len(due)
        return len(due)

    def begin(
        self, db: sqlite3.Connection, row: JobRow, plan: ChunkPlan, marks: Mapping[str, object], now: float
    ) -> None:
        """Puts the first chunks of a checked batch in the place of CHECK."""
        self._drop_all(db, row)
        db.execute("REPLACE INTO plans (job, total, lines, parallel, next) VALUES (?, ?, ?, ?, 0)", (row.seq, *plan))
        job_rows.keep(db, row, transitions.begun(row.job, plan, marks))
        self._go_on(db, row, now)

    def complete(self, db: sqlite3.Connection, row: JobRow, result: ChunkResult, now: float) -> None:
        """Puts the next chunk in the place of a complete one, or FINALISE in the place of the last."""
        db.execute("DELETE FROM pieces WHERE job = ? AND piece = ?", (row.seq, result.chunk))
        db.execute("DELETE FROM lines WHERE job = ? AND chunk = ?", (row.seq, result.chunk))
        db.execute("REPLACE INTO chunks VALUES (?, ?, ?, ?, ?, ?)", (row.seq, *result))
        self._go_on(db, row, now)

    def end(self, db: sqlite3.Connection, row: JobRow, end: JobEnd, now: float) -> None:
        """Ends a job: what it needed on its way goes."""
        job_rows.keep(db, row, transitions.ended(row.job, end, now))
        if end.answer is not None:
            job_rows.put_answer(db, row, end.answer)
        if not transitions.keeps_payload(row.job, end.state):
            job_rows.drop_payload(db, row)
        for column in ("output", "errors"):
            db.execute(
                f"INSERT OR IGNORE INTO garbage SELECT {column} FROM chunks WHERE job = ? AND {column} != ''",
                (row.seq,),
            )
        self._drop_all(db, row)
        for table in ("lines", "chunks", "plans"):
            db.execute(f"DELETE FROM {table} WHERE job = ?", (row.seq,))
        dead_rows.ended(db, row, end)
        self._follow(db, row.job, now)
        parent = job_rows.find(db, row.job.parent) if row.job.parent else None
        if parent is not None:
            self._child_ended(db, parent, now)

    def park(self, db: sqlite3.Connection, row: JobRow, now: float) -> None:
        """Has a claimed run wait for its children, or look at them again at once where there is news."""
        has_news = self._has(db, row, "news = 1")
        self._drop_all(db, row)
        if has_news:
            self.put(db, row, RUN_PIECE, now, now)
        else:
            job_rows.keep(db, row, transitions.parked(row.job))

    def _child_ended(self, db: sqlite3.Connection, row: JobRow, now: float) -> None:
        """Has a run look at its children: at once where it is parked, after its claim where it is claimed."""
        if row.job.state is JobState.WAITING:
            job_rows.keep(db, row, transitions.woken(row.job))
            self.put(db, row, RUN_PIECE, now, now)
        elif not row.job.state.is_end:
            db.execute(f"UPDATE pieces SET news = 1 WHERE job = ? AND state = {CLAIMED}", (row.seq,))

    def flag(self, db: sqlite3.Connection, row: JobRow, flag: JobFlag, now: float) -> None:
        """Does what is asked of a job that has not ended."""
        if flag is JobFlag.CANCEL:
            self.stop(db, row, JobState.CANCELLED, now)
        else:
            job_rows.keep(db, row, transitions.changed(row.job, is_paused=flag is JobFlag.PAUSE))
            self._withhold(db, row, now)

    def stop(self, db: sqlite3.Connection, row: JobRow, as_state: JobState, now: float) -> None:
        """Stops a job, unless it is to stop already."""
        if row.job.ends_as is None:
            job_rows.keep(db, row, transitions.stopping(row.job, as_state, now))
            if transitions.goes_on_to_stop(row.job):
                self._hasten(db, row, now)
                return
            self._withhold(db, row, now)
            self.stop_if_asked(db, row, now)

    def stop_if_asked(self, db: sqlite3.Connection, row: JobRow, now: float) -> None:
        """Ends a job that is to stop, or sends a batch on to FINALISE, if no piece of it is claimed any more."""
        job = row.job
        if job.ends_as is None or job.state.is_end:
            return
        if self._has(db, row, f"state = {CLAIMED}") or self._has(db, row, f"piece = {FINALISE}"):
            return
        if job.kind is JobKind.BATCH:
            self._finalise(db, row, now)
        elif not transitions.goes_on_to_stop(job):
            self.end(db, row, JobEnd(job.ends_as), now)

    def _hasten(self, db: sqlite3.Connection, row: JobRow, now: float) -> None:
        """Has a run that is to stop looked at as soon as can be, parked, paused or put off as it may be."""
        self._child_ended(db, row, now)
        query = f"SELECT piece, claims FROM pieces WHERE job = ? AND state IN ({LATER}, {WITHHELD})"
        for piece, claims in db.execute(query, (row.seq,)).fetchall():
            self.put(db, row, piece, now, now, claims=claims)

    def _withhold(self, db: sqlite3.Connection, row: JobRow, now: float) -> None:
        """Withholds the waiting pieces of a job that is paused or to stop, and gives back those of one that is not."""
        waiting = db.execute(
            f"SELECT piece, ready_at, state FROM pieces WHERE job = ? AND state != {CLAIMED}",
            (row.seq,),
        ).fetchall()
        for piece, ready_at, before in waiting:
            state = STATES.index(transitions.waiting(row.job, piece, ready_at, now))
            if state != before:
                db.execute("UPDATE pieces SET state = ? WHERE job = ? AND piece = ?", (state, row.seq, piece))
            if state == READY:
                job_rows.keep(db, row, transitions.due(row.job))
                self.readied += before != READY

    def _go_on(self, db: sqlite3.Connection, row: JobRow, now: float) -> None:
        """Puts chunks until enough of them wait or run; FINALISE when there is none left, or the job is to stop."""
        plan = db.execute("SELECT total, lines, parallel, next FROM plans WHERE job = ?", (row.seq,)).fetchone()
        (there,) = db.execute("SELECT count(*) FROM pieces WHERE job = ?", (row.seq,)).fetchone()
        if row.job.ends_as is None and plan is not None:
            total, lines, parallel, chunk = plan
            until = min(ChunkPlan(total, lines, parallel).chunks, chunk + max(0, parallel - there))
            for number in range(chunk, until):
                self.put(db, row, number, now, now)
            db.execute("UPDATE plans SET next = ? WHERE job = ?", (until, row.seq))
            there += until - chunk
        self.stop_if_asked(db, row, now)
        if not there and row.job.stage is not Stage.FINALISE:
            self._finalise(db, row, now)

    def _finalise(self, db: sqlite3.Connection, row: JobRow, now: float) -> None:
        self._drop_all(db, row)
        job_rows.keep(db, row, transitions.finalising(row.job))
        self.put(db, row, FINALISE, now, now)

    @staticmethod
    def _drop_all(db: sqlite3.Connection, row: JobRow) -> None:
        db.execute("DELETE FROM pieces WHERE job = ?", (row.seq,))

    @staticmethod
    def _has(db: sqlite3.Connection, row: JobRow, condition: str) -> bool:
        query = f"SELECT 1 FROM pieces WHERE job = ? AND {condition} LIMIT 1"
        return db.execute(query, (row.seq,)).fetchone() is not None


def rank_of(job: Job) -> int:
    """Returns the rank of a job's pieces among all: its lane's, and the urgent first."""
    return 2 * LANES.index(job.lane) + (not job.is_urgent)
