"""The work of the jobs file's thread: pieces, jobs that come in, and claims.

In this order: pieces that become ready and what follows from them; how jobs come in; claims of pieces, and what time does to
jobs: they become due, and their deadlines pass.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from gateway.core.types import LANES
from gateway.drivers.sqlite import Rest
from gateway.products.jobs import sqlite_rows, transitions
from gateway.products.jobs.dead_letters import sqlite as dead_rows
from gateway.products.jobs.dead_letters.rules import DeadLetter
from gateway.products.jobs.model import (
    CHECK,
    FINALISE,
    RUN_PIECE,
    Accepted,
    ChunkPlan,
    ChunkResult,
    ClaimedWork,
    ClaimRequest,
    Job,
    JobEnd,
    JobError,
    JobFlag,
    JobKind,
    JobState,
    LineResult,
    NewJob,
    Stage,
    TooManyJobs,
    WriteResult,
)
from gateway.products.jobs.sqlite_rows import CLAIMED, LATER, OPEN, READY, STATES, WITHHELD, JobRow
from gateway.products.jobs.transitions import NOT_OURS, OpenBounds, written

# --- pieces: when they are ready, and what follows when one of them is done ---


class SqlitePieces:
    """Moves pieces from state to state; `readied` counts those that became ready, `numbers` are turns and fences.

    `follow` is called with each job at its end, in the transaction of that end.

    Used by the file's thread, in transactions. The same steps as in `gateway.products.jobs.transitions`, in SQL.
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
            row = sqlite_rows.get(db, seq)
            self._withhold(db, row, now)
            self.stop_if_requested(db, row, now)

    def claimed(self, db: sqlite3.Connection, work: ClaimedWork) -> JobRow | None:
        """Returns the job of a claim that holds."""
        row = sqlite_rows.find(db, work.job.id)
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
            row = sqlite_rows.get(db, seq)
            sqlite_rows.keep(db, row, transitions.due(row.job))
        self.readied += len(due)
        return len(due)

    def begin(
        self, db: sqlite3.Connection, row: JobRow, plan: ChunkPlan, marks: Mapping[str, object], now: float
    ) -> None:
        """Puts the first chunks of a checked batch in the place of CHECK."""
        self._drop_all(db, row)
        db.execute("REPLACE INTO plans (job, total, lines, parallel, next) VALUES (?, ?, ?, ?, 0)", (row.seq, *plan))
        sqlite_rows.keep(db, row, transitions.begun(row.job, plan, marks))
        self._go_on(db, row, now)

    def complete(self, db: sqlite3.Connection, row: JobRow, result: ChunkResult, now: float) -> None:
        """Puts the next chunk in the place of a complete one, or FINALISE in the place of the last."""
        db.execute("DELETE FROM pieces WHERE job = ? AND piece = ?", (row.seq, result.chunk))
        db.execute("DELETE FROM lines WHERE job = ? AND chunk = ?", (row.seq, result.chunk))
        db.execute("REPLACE INTO chunks VALUES (?, ?, ?, ?, ?, ?)", (row.seq, *result))
        self._go_on(db, row, now)

    def end(self, db: sqlite3.Connection, row: JobRow, end: JobEnd, now: float) -> None:
        """Ends a job: what it needed on its way goes."""
        sqlite_rows.keep(db, row, transitions.ended(row.job, end, now))
        if end.answer is not None:
            sqlite_rows.put_answer(db, row, end.answer)
        if not transitions.keeps_payload(row.job, end.state):
            sqlite_rows.drop_payload(db, row)
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
        parent = sqlite_rows.find(db, row.job.parent) if row.job.parent else None
        if parent is not None:
            self._child_ended(db, parent, now)

    def park(self, db: sqlite3.Connection, row: JobRow, now: float) -> None:
        """Has a claimed run wait for its children, or look at them again at once where there is news."""
        has_news = self._has(db, row, "news = 1")
        self._drop_all(db, row)
        if has_news:
            self.put(db, row, RUN_PIECE, now, now)
        else:
            sqlite_rows.keep(db, row, transitions.parked(row.job))

    def _child_ended(self, db: sqlite3.Connection, row: JobRow, now: float) -> None:
        """Has a run look at its children: at once where it is parked, after its claim where it is claimed."""
        if row.job.state is JobState.WAITING:
            sqlite_rows.keep(db, row, transitions.woken(row.job))
            self.put(db, row, RUN_PIECE, now, now)
        elif not row.job.state.is_end:
            db.execute(f"UPDATE pieces SET news = 1 WHERE job = ? AND state = {CLAIMED}", (row.seq,))

    def flag(self, db: sqlite3.Connection, row: JobRow, flag: JobFlag, now: float) -> None:
        """Does what is asked of a job that has not ended."""
        if flag is JobFlag.CANCEL:
            self.stop(db, row, JobState.CANCELLED, now)
        else:
            sqlite_rows.keep(db, row, transitions.changed(row.job, is_paused=flag is JobFlag.PAUSE))
            self._withhold(db, row, now)

    def stop(self, db: sqlite3.Connection, row: JobRow, as_state: JobState, now: float) -> None:
        """Stops a job, unless it is to stop already."""
        if row.job.ends_as is None:
            sqlite_rows.keep(db, row, transitions.stopping(row.job, as_state, now))
            if transitions.goes_on_to_stop(row.job):
                self._hasten(db, row, now)
                return
            self._withhold(db, row, now)
            self.stop_if_requested(db, row, now)

    def stop_if_requested(self, db: sqlite3.Connection, row: JobRow, now: float) -> None:
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
                sqlite_rows.keep(db, row, transitions.due(row.job))
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
        self.stop_if_requested(db, row, now)
        if not there and row.job.stage is not Stage.FINALISE:
            self._finalise(db, row, now)

    def _finalise(self, db: sqlite3.Connection, row: JobRow, now: float) -> None:
        self._drop_all(db, row)
        sqlite_rows.keep(db, row, transitions.finalising(row.job))
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


# --- jobs that come in: one of a kind under a dedupe key, in the place of another under a debounce key, or new ---

_SCHEDULED = (
    "SELECT debounce.job, debounce.times FROM debounce JOIN jobs ON jobs.seq = debounce.job "
    "WHERE debounce.key = ? AND jobs.state = ?"
)


class Replaced(NamedTuple):
    """A scheduled job whose place another one has taken."""

    job: Job
    payload: bytes
    reads: str


Replacement = tuple[Replaced, int]
"""What was replaced, with the revision of the job that has its place."""


class SqliteAcceptance:
    """Adds to the jobs of the file, in its thread."""

    def __init__(self, pieces: SqlitePieces, bounds: OpenBounds) -> None:
        self._pieces = pieces
        self._bounds = bounds

    def accept_all(
        self, db: sqlite3.Connection, jobs: Sequence[NewJob], now: float, taken: int, replaced: list[Replacement]
    ) -> list[Accepted] | TooManyJobs:
        """Takes jobs under the number `taken`, all or none of them; none where it returns the refusal.

        What `take_back` needs of those that are replaced is noted in `replaced`.
        """
        replaced.clear()  # of an attempt that was rolled back
        unlike = transitions.unlike(jobs)
        fresh = [new for new in unlike if self._known(db, new, now) is None and self._scheduled(db, new) is None]
        opened = db.execute("SELECT entries FROM totals WHERE name = ?", (OPEN,)).fetchone() or (0,)
        tenants = [new.job.tenant for new in fresh if not new.job.parent]
        for tenant in set(tenants):
            of_tenant = db.execute("SELECT open FROM tenants WHERE tenant = ?", (tenant,)).fetchone() or (0,)
            refusal = self._bounds.refusal(opened[0] + len(tenants), of_tenant[0] + tenants.count(tenant))
            if refusal is not None:
                return refusal
        if len(fresh) == len(jobs):
            return [self._insert(db, new, now, taken) for new in jobs]
        return [self.accept(db, new, now, taken, replaced) for new in jobs]

    def accept(
        self, db: sqlite3.Connection, new: NewJob, now: float, taken: int, replaced: list[Replacement] | None = None
    ) -> Accepted:
        """Takes a job, whatever the bounds; notes in `replaced` what was in its place."""
        known = self._known(db, new, now)
        if known is not None:
            return known
        scheduled = self._scheduled(db, new)
        if scheduled is None:
            return self._insert(db, new, now, taken)
        row, times = scheduled[0], scheduled[1] + 1
        (reads,) = db.execute("SELECT reads FROM jobs WHERE seq = ?", (row.seq,)).fetchone()
        before = Replaced(row.job, sqlite_rows.payload_of(db, row), reads)
        sqlite_rows.keep(db, row, transitions.debounced(row.job, new, now))
        sqlite_rows.put_payload(db, row, new.payload)
        db.execute("UPDATE jobs SET reads = ? WHERE seq = ?", (new.reads, row.seq))
        db.execute("DELETE FROM pieces WHERE job = ?", (row.seq,))
        if replaced is not None:
            replaced.append((before, row.job.revision))
        return self._begin(db, row, new, now, times)

    def _insert(self, db: sqlite3.Connection, new: NewJob, now: float, taken: int) -> Accepted:
        """Takes a job that nothing which is there stands for."""
        row = sqlite_rows.insert(db, transitions.taken_in(new.job, now), new.payload, new.reads, taken)
        return self._begin(db, row, new, now, 0)

    def _begin(self, db: sqlite3.Connection, row: JobRow, new: NewJob, now: float, times: int) -> Accepted:
        """Has a job that was taken wait for a worker; `times` so many have had its place before."""
        self._pieces.put(db, row, new.first_piece, max(now, row.job.run_at), now)
        if new.dedupe_key:
            known_as = (new.dedupe_key, row.seq, new.fingerprint, new.dedupe_until)
            db.execute("REPLACE INTO dedupe (key, job, fingerprint, until) VALUES (?, ?, ?, ?)", known_as)
        if new.debounce_key:
            debounced = (new.debounce_key, row.seq, times)
            db.execute("REPLACE INTO debounce (key, job, times) VALUES (?, ?, ?)", debounced)
        return Accepted(row.job, is_new=not times, debounced=times)

    def take_back(
        self, db: sqlite3.Connection, jobs: Sequence[NewJob], taken: int, replaced: Sequence[Replacement], now: float
    ) -> None:
        """Removes what came under the number `taken`: whoever sent it learned that it was not taken.

        What it had replaced has its place again, unless it has been replaced once more, or has begun.
        """
        for before, revision in reversed(replaced):
            row = sqlite_rows.find(db, before.job.id)
            if row is not None and row.job.revision == revision:
                sqlite_rows.keep(db, row, replace(before.job, revision=revision + 1))
                sqlite_rows.put_payload(db, row, before.payload)
                db.execute("UPDATE jobs SET reads = ? WHERE seq = ?", (before.reads, row.seq))
                for (piece,) in db.execute("SELECT piece FROM pieces WHERE job = ?", (row.seq,)).fetchall():
                    self._pieces.put(db, row, piece, before.job.run_at, now)
                db.execute("UPDATE debounce SET times = times - 1 WHERE job = ?", (row.seq,))
                for new in jobs:
                    db.execute("DELETE FROM dedupe WHERE key = ? AND job = ?", (new.dedupe_key, row.seq))
        for new in jobs:
            found = db.execute("SELECT seq FROM jobs WHERE id = ? AND taken = ?", (new.job.id, taken)).fetchone()
            if found is not None:
                sqlite_rows.remove(db, found[0])

    @staticmethod
    def _known(db: sqlite3.Connection, new: NewJob, now: float) -> Accepted | None:
        """Returns the answer to a job that is there already."""
        if new.dedupe_key:
            query = "SELECT job, fingerprint FROM dedupe WHERE key = ? AND until > ?"
            found = db.execute(query, (new.dedupe_key, now)).fetchone()
            if found is not None:
                row = sqlite_rows.get(db, found[0])
                if row.job.state is not JobState.CANCELLED:
                    return Accepted(row.job, is_new=False, is_conflict=found[1] != new.fingerprint)
        there = sqlite_rows.find(db, new.job.id)
        return None if there is None else Accepted(there.job, is_new=False)

    @staticmethod
    def _scheduled(db: sqlite3.Connection, new: NewJob) -> tuple[JobRow, int] | None:
        """Returns the scheduled job whose place the new one takes, and how many payloads it has replaced."""
        if not new.debounce_key:
            return None
        found = db.execute(_SCHEDULED, (new.debounce_key, JobState.SCHEDULED)).fetchone()
        return None if found is None else (sqlite_rows.get(db, found[0]), found[1])


# --- claims ---

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
"""The most seconds between two looks what else is due, such as dedupe keys to be forgotten."""
Oldest = Mapping[tuple[str, int, int], float]
"""When the oldest of the pieces was or is ready, by segment, lane and state."""


class Ticked(NamedTuple):
    """What is known after time has passed."""

    oldest: Oldest
    quiet_until: float
    """The time until which nothing is ready or becomes due, as long as nothing is written."""


class SqliteClaims:
    """Gives pieces to workers, and takes their results, in the file's thread."""

    def __init__(self, pieces: SqlitePieces) -> None:
        self._pieces = pieces

    def claim(
        self, db: sqlite3.Connection, asks: Sequence[ClaimRequest], now: float, fences: list[int]
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
            row = sqlite_rows.get(db, seq)
            if transitions.is_overdue(row.job, now):
                self._pieces.stop(db, row, JobState.EXPIRED, now)
                return [*given, None]
            fence = next(self._pieces.numbers)
            db.execute(
                f"UPDATE pieces SET state = {CLAIMED}, fence = ?, claims = claims + 1, news = 0 "
                "WHERE job = ? AND piece = ?",
                (fence, seq, piece),
            )
            sqlite_rows.keep(db, row, transitions.started(row.job, now))
            given.append(ClaimedWork(row.job, piece, fence, claims + 1, sqlite_rows.payload_of(db, row)))
        return given

    def unclaim(self, db: sqlite3.Connection, fences: Sequence[int]) -> None:
        """Makes ready again, uncounted, what was claimed for somebody who never learned of it."""
        for fence in fences:
            found = db.execute(
                f"SELECT job, piece, ready_at, claims FROM pieces WHERE state = {CLAIMED} AND fence = ?",
                (fence,),
            ).fetchone()
            if found is not None:
                seq, piece, ready_at, claims = found
                row = sqlite_rows.get(db, seq)
                self._pieces.put(db, row, piece, ready_at, ready_at, claims=claims - 1)
                self._pieces.stop_if_requested(db, row, ready_at)

    def renew(self, db: sqlite3.Connection, works: Sequence[ClaimedWork]) -> list[WriteResult]:
        """Returns what has been asked of the jobs."""
        return [self._renew(db, work) for work in works]

    @staticmethod
    def _renew(db: sqlite3.Connection, work: ClaimedWork) -> WriteResult:
        """Asked every second for all that runs: only a job that is paused or to stop is read whole."""
        found = db.execute(HELD, (work.job.id, work.piece, work.fence)).fetchone()
        if found is None:
            return NOT_OURS
        seq, is_held = found
        return written(sqlite_rows.get(db, seq).job) if is_held else WriteResult(True)

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
        sqlite_rows.keep(db, row, transitions.tried(row.job, error, is_attempt=is_attempt))
        self._pieces.put(db, row, work.piece, max(now, at), now, claims=max(0, claims - 1))
        self._pieces.stop_if_requested(db, row, now)
        return written(row.job)

    def park(self, db: sqlite3.Connection, work: ClaimedWork, marks: Mapping[str, object], now: float) -> WriteResult:
        """Ends the claim of a run, which waits for its children from now on."""
        row = self._pieces.claimed(db, work)
        if row is None or row.job.kind is not JobKind.RUN:
            return NOT_OURS
        sqlite_rows.keep(db, row, transitions.noted(row.job, marks))
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
                f"INSERT OR IGNORE INTO lines (job, chunk, {sqlite_rows.LINE_COLUMNS}) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (row.seq, work.piece, line, failed, text, *counts),
            )
            if added.rowcount == 1:
                fresh.append(result)
        if fresh:
            db.execute("UPDATE pieces SET claims = 1 WHERE job = ? AND piece = ?", (row.seq, work.piece))
            tally = transitions.counted(row.job.tally, fresh)
            sqlite_rows.keep(db, row, transitions.changed(row.job, tally=tally))
            lines = {result.line for result in fresh}
            dead_rows.add(db, [letter for letter in dead if letter.line in lines])
        return written(row.job)

    def results(self, db: sqlite3.Connection, job_id: str, chunk: int | None = None) -> list[LineResult]:
        """Returns the results of the lines of a chunk, or of all chunks that are not complete, in the order of lines."""
        row = sqlite_rows.find(db, job_id)
        if row is None:
            return []
        found = db.execute(
            f"SELECT {sqlite_rows.LINE_COLUMNS} FROM lines WHERE job = ? AND (? IS NULL OR chunk = ?) "
            "ORDER BY chunk, line",
            (row.seq, chunk, chunk),
        )
        return [sqlite_rows.line_result(line) for line in found.fetchall()]

    def chunks(self, db: sqlite3.Connection, job_id: str) -> list[ChunkResult]:
        """Returns the complete chunks of a batch, in order."""
        row = sqlite_rows.find(db, job_id)
        if row is None:
            return []
        query = "SELECT chunk, output, output_bytes, errors, errors_bytes FROM chunks WHERE job = ? ORDER BY chunk"
        return [ChunkResult(*found) for found in db.execute(query, (row.seq,)).fetchall()]

    def note(self, db: sqlite3.Connection, work: ClaimedWork, marks: Mapping[str, object]) -> WriteResult:
        """Adds to the marks of a job."""
        row = self._pieces.claimed(db, work)
        if row is None:
            return NOT_OURS
        sqlite_rows.keep(db, row, transitions.noted(row.job, marks))
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
            self._pieces.stop(db, sqlite_rows.get(db, seq), JobState.EXPIRED, now)
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
