"""Lists of jobs in the file, and the jobs that are forgotten; long work in steps, between which others have their turn."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from gateway.products.jobs.model.job import Job, JobKind, JobPage, JobQuery
from gateway.products.jobs.sqlite_rows import job_rows
from gateway.products.jobs.sqlite_rows.jobs import Rest
from gateway.products.jobs.transitions import transitions

ROWS_AT_ONCE = 500
"""Rows that one step of a list looks at."""
FORGOTTEN_AT_ONCE = 100
_PAST = (
    "SELECT seq FROM jobs WHERE ended < ? AND dead = 0 AND (parent = '' OR NOT EXISTS "
    "(SELECT 1 FROM jobs AS run WHERE run.id = jobs.parent AND run.ended IS NULL)) ORDER BY ended LIMIT ?"
)
"""A run whose children are older than jobs are kept is rare: they are few that are looked at in vain."""


def page_of(db: sqlite3.Connection, query: JobQuery) -> JobPage | Rest:
    """Returns a page of jobs, newest first; an empty one behind an id that is not there."""
    before = 2**62
    if query.after is not None:
        after = job_rows.find(db, query.after, query.tenant)
        if after is None:
            return JobPage([], has_more=False)
        before = after.seq
    return _go_on(db, query, before, [])


def _go_on(db: sqlite3.Connection, query: JobQuery, before: int, found: Sequence[Job]) -> JobPage | Rest:
    is_plain = not (query.states or query.metadata or query.parent is not None) and (
        query.tenant is not None or query.kind is None
    )
    step = query.limit + 1 if is_plain else ROWS_AT_ONCE
    rows = _rows(db, query, before, step)
    fitting = [row for row in rows if not query.states or row[4] in query.states]
    jobs = list(found)
    for row in fitting:
        job = job_rows.job_row(row).job
        if transitions.matches(job, query):
            jobs.append(job)
            if len(jobs) > query.limit:
                return JobPage(jobs[: query.limit], has_more=True)
    if len(rows) < step:
        return JobPage(jobs, has_more=False)
    return Rest(lambda db: _go_on(db, query, rows[-1][0], jobs))


def _rows(db: sqlite3.Connection, query: JobQuery, before: int, most: int) -> list[Any]:
    """Returns the next rows of the run or the tenant; the index has those by kind."""
    if query.parent:
        of_run = job_rows.select("parent = ? AND parent != '' AND tenant = coalesce(?, tenant) AND seq < ?")
        return db.execute(of_run, (query.parent, query.tenant, before, most)).fetchall()
    if query.tenant is None:
        return db.execute(job_rows.select("seq < ?"), (before, most)).fetchall()
    one_kind = job_rows.select("tenant = ? AND kind = ? AND seq < ?")
    kinds = JobKind if query.kind is None else [query.kind]
    rows = [row for kind in kinds for row in db.execute(one_kind, (query.tenant, kind, before, most)).fetchall()]
    return sorted(rows, key=lambda row: -row[0])[:most]


def identity_of(db: sqlite3.Connection) -> str:
    """Returns what tells this file from all others."""
    return str(db.execute("SELECT value FROM meta WHERE name = 'identity'").fetchone()[0])


def forget_ended(db: sqlite3.Connection, before: float, most: int, count: int = 0) -> int | Rest:
    """Forgets the jobs that ended first, before `before`; `count` were forgotten in earlier steps."""
    step = min(most - count, FORGOTTEN_AT_ONCE)
    gone = db.execute(_PAST, (before, step)).fetchall()
    for (seq,) in gone:
        job_rows.remove(db, seq)
    count += len(gone)
    if not gone or count == most:
        return count
    return Rest(lambda db: forget_ended(db, before, most, count))
