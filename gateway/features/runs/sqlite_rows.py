"""The runs in the jobs file, and their steps: what is searched lies apart from the bodies of answers."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from gateway.features.runs.rules import RunRecord, begun, decode_run, encode_run
from gateway.features.runs.step import (
    RUN_BYTES,
    RunChanged,
    RunPage,
    RunQuery,
    RunToChange,
    StepAbout,
    StoredRun,
    StoredStep,
    changed,
    is_wanted,
    step_change,
)
from gateway.features.runs.store import decode_step, encode_step

LOOKED_AT: Final = 500
"""Runs of one look of a list that leaves some out."""
_COLUMNS = "seq, tenant, run, created, touched, bytes, steps, record"
_STEP = "SELECT steps.seq, about, body FROM steps JOIN step_bodies USING (seq) WHERE run = ? AND step = ? AND until > ?"
_OLDEST_RUN = "SELECT seq, bytes FROM runs WHERE tenant = ? AND seq != ? ORDER BY touched, seq LIMIT 1"
_OLDEST_STEP = "SELECT seq, bytes FROM steps WHERE run = ? AND step != ? ORDER BY seq LIMIT 1"
_TOUCH = (
    "INSERT INTO runs (tenant, run, created, touched, bytes, steps, record) VALUES (?, ?, ?, ?, ?, 0, ?) "
    "ON CONFLICT (tenant, run) DO UPDATE SET touched = excluded.touched RETURNING seq"
)


def find_step(db: sqlite3.Connection, tenant: str, run: str, step: str, now: float) -> StoredStep | None:
    found = db.execute("SELECT seq FROM runs WHERE tenant = ? AND run = ?", (tenant, run)).fetchone()
    row = None if found is None else db.execute(_STEP, (found[0], step, now)).fetchone()
    return None if row is None else StoredStep(decode_step(tenant, run, step, row[1]), row[2])


def keep_step(
    db: sqlite3.Connection, step: StoredStep, now: float, most_bytes: int, *, replaces: bool
) -> tuple[StoredStep, int]:
    """Keeps a step; returns the one that is kept, and how many runs and steps had to go for it."""
    about, body = step
    if not replaces:
        first = find_step(db, about.tenant, about.run, about.step, now)
        if first is not None:
            return first, 0
    run = _touch(db, begun(about.tenant, about.run, step_change(about)), now)
    db.execute("DELETE FROM steps WHERE run = ? AND step = ?", (run, about.step))
    row = (run, about.step, about.keep_until, about.size, encode_step(about))
    seq = db.execute("INSERT INTO steps (run, step, until, bytes, about) VALUES (?, ?, ?, ?, ?)", row).lastrowid
    db.execute("INSERT INTO step_bodies VALUES (?, ?)", (seq, body))
    return step, _make_room(db, about.tenant, run, about.step, most_bytes)


def change(
    db: sqlite3.Connection, changes: Sequence[RunToChange], now: float, most_bytes: int
) -> tuple[list[RunChanged | None], int]:
    """Adds to the records of runs, and closes those that have ended; returns how many runs and steps had to go, too."""
    results: list[RunChanged | None] = []
    gone = 0
    for wanted in changes:
        result, more = _change(db, wanted, now, most_bytes)
        results.append(result)
        gone += more
    return results, gone


def find(db: sqlite3.Connection, tenant: str, run: str) -> tuple[StoredRun, Sequence[StepAbout]] | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM runs WHERE tenant = ? AND run = ?", (tenant, run)).fetchone()
    if row is None:
        return None
    steps = db.execute("SELECT step, about FROM steps WHERE run = ? ORDER BY seq", (row[0],))
    return _stored(row), [decode_step(tenant, run, step, about) for step, about in steps]


def page_of(db: sqlite3.Connection, query: RunQuery) -> RunPage:
    before = 2**62
    if query.after is not None:
        place = db.execute("SELECT seq FROM runs WHERE tenant = ? AND run = ?", query.after).fetchone()
        if place is None:
            return RunPage([], has_more=False)
        before = place[0]
    whose = "" if query.tenant is None else "tenant = ? AND "
    select = f"SELECT {_COLUMNS} FROM runs WHERE {whose}seq < ? ORDER BY seq DESC LIMIT ?"
    found: list[StoredRun] = []
    while True:
        tenant = () if query.tenant is None else (query.tenant,)
        rows = db.execute(select, (*tenant, before, LOOKED_AT)).fetchall()
        found += [run for run in map(_stored, rows) if is_wanted(run.record, query)]
        if len(found) > query.limit or len(rows) < LOOKED_AT:
            return RunPage(found[: query.limit], len(found) > query.limit)
        before = rows[-1][0]


def forget(db: sqlite3.Connection, tenant: str, run: str) -> bool:
    return db.execute("DELETE FROM runs WHERE tenant = ? AND run = ?", (tenant, run)).rowcount > 0


def trim(db: sqlite3.Connection, before: float, most: int) -> int:
    old = db.execute("SELECT seq FROM runs WHERE touched < ? ORDER BY touched LIMIT ?", (before, most)).fetchall()
    db.executemany("DELETE FROM runs WHERE seq = ?", old)
    return len(old)


def _change(db: sqlite3.Connection, wanted: RunToChange, now: float, most_bytes: int) -> tuple[RunChanged | None, int]:
    row = db.execute("SELECT record FROM runs WHERE tenant = ? AND run = ?", (wanted.tenant, wanted.run)).fetchone()
    kept = None if row is None else decode_run(row[0])
    result = changed(kept, wanted)
    if result is None or result.after == kept:
        return result, 0
    seq = _touch(db, result.after, now)
    db.execute("UPDATE runs SET record = ? WHERE seq = ?", (encode_run(result.after), seq))
    return result, _make_room(db, wanted.tenant, seq, "", most_bytes)


def _touch(db: sqlite3.Connection, record: RunRecord, now: float) -> int:
    """Returns the place of a run, begun with this record if need be."""
    row = (record.tenant, record.run, now, now, RUN_BYTES, encode_run(record))
    (seq,) = db.execute(_TOUCH, row).fetchone()
    return int(seq)


def _make_room(db: sqlite3.Connection, tenant: str, run: int, step: str, most_bytes: int) -> int:
    """Removes other runs of the tenant, then other steps of the run, the oldest first, until the rest fits."""
    gone = 0
    over = db.execute("SELECT bytes FROM run_bytes WHERE tenant = ?", (tenant,)).fetchone()[0] - most_bytes
    while over > 0 and (row := db.execute(_OLDEST_RUN, (tenant, run)).fetchone()) is not None:
        db.execute("DELETE FROM runs WHERE seq = ?", row[:1])
        over, gone = over - row[1], gone + 1
    while over > 0 and (row := db.execute(_OLDEST_STEP, (run, step)).fetchone()) is not None:
        db.execute("DELETE FROM steps WHERE seq = ?", row[:1])
        over, gone = over - row[1], gone + 1
    return gone


def _stored(row: Sequence[object]) -> StoredRun:
    _, _, _, created, touched, size, steps, record = row
    return StoredRun(decode_run(record), created, touched, size, steps)  # type: ignore[arg-type]  # as they were written
