"""How jobs come into the file: one of a kind under a dedupe key, in the place of another under a debounce key, or new."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from gateway.products.jobs.model.errors import TooManyJobs
from gateway.products.jobs.model.job import Accepted, Job, JobState, NewJob
from gateway.products.jobs.sqlite.pieces import SqlitePieces
from gateway.products.jobs.sqlite_rows import job_rows
from gateway.products.jobs.sqlite_rows.job_rows import JobRow
from gateway.products.jobs.sqlite_rows.schema import OPEN
from gateway.products.jobs.transitions import transitions
from gateway.products.jobs.transitions.transitions import OpenBounds

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
"""With the revision of the job that has its place."""


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
        before = Replaced(row.job, job_rows.payload_of(db, row), reads)
        job_rows.keep(db, row, transitions.debounced(row.job, new, now))
        job_rows.put_payload(db, row, new.payload)
        db.execute("UPDATE jobs SET reads = ? WHERE seq = ?", (new.reads, row.seq))
        db.execute("DELETE FROM pieces WHERE job = ?", (row.seq,))
        if replaced is not None:
            replaced.append((before, row.job.revision))
        return self._begin(db, row, new, now, times)

    def _insert(self, db: sqlite3.Connection, new: NewJob, now: float, taken: int) -> Accepted:
        """Takes a job that nothing which is there stands for."""
        row = job_rows.insert(db, transitions.taken_in(new.job, now), new.payload, new.reads, taken)
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
        """Removes what came under the number `taken`: whoever sent it was told that it was not taken.

        What it had replaced has its place again, unless it has been replaced once more, or has begun.
        """
        for before, revision in reversed(replaced):
            row = job_rows.find(db, before.job.id)
            if row is not None and row.job.revision == revision:
                job_rows.keep(db, row, replace(before.job, revision=revision + 1))
                job_rows.put_payload(db, row, before.payload)
                db.execute("UPDATE jobs SET reads = ? WHERE seq = ?", (before.reads, row.seq))
                for (piece,) in db.execute("SELECT piece FROM pieces WHERE job = ?", (row.seq,)).fetchall():
                    self._pieces.put(db, row, piece, before.job.run_at, now)
                db.execute("UPDATE debounce SET times = times - 1 WHERE job = ?", (row.seq,))
                for new in jobs:
                    db.execute("DELETE FROM dedupe WHERE key = ? AND job = ?", (new.dedupe_key, row.seq))
        for new in jobs:
            found = db.execute("SELECT seq FROM jobs WHERE id = ? AND taken = ?", (new.job.id, taken)).fetchone()
            if found is not None:
                job_rows.remove(db, found[0])

    @staticmethod
    def _known(db: sqlite3.Connection, new: NewJob, now: float) -> Accepted | None:
        """Returns the answer to a job that is there already."""
        if new.dedupe_key:
            query = "SELECT job, fingerprint FROM dedupe WHERE key = ? AND until > ?"
            found = db.execute(query, (new.dedupe_key, now)).fetchone()
            if found is not None:
                row = job_rows.get(db, found[0])
                return Accepted(row.job, is_new=False, is_conflict=found[1] != new.fingerprint)
        there = job_rows.find(db, new.job.id)
        return None if there is None else Accepted(there.job, is_new=False)

    @staticmethod
    def _scheduled(db: sqlite3.Connection, new: NewJob) -> tuple[JobRow, int] | None:
        """Returns the scheduled job whose place the new one takes, and how many payloads it has replaced."""
        if not new.debounce_key:
            return None
        found = db.execute(_SCHEDULED, (new.debounce_key, JobState.SCHEDULED)).fetchone()
        return None if found is None else (job_rows.get(db, found[0]), found[1])
