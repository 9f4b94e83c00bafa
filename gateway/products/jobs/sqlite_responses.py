"""Responses in the jobs file: logs as rows, the port of logs, kept responses as rows, and their port; in this order.

What is searched of kept responses is in `responses`, in the order in which they were put, and their bodies apart.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from gateway.drivers.durable_file import DurableFile
from gateway.drivers.sqlite import Rest
from gateway.products.jobs import sqlite_rows
from gateway.products.jobs.model import ClaimedWork, JobState, WriteResult
from gateway.products.jobs.response_store import (
    REMOVED_S,
    EarlyResponses,
    KeptBounds,
    LogPage,
    LogPart,
    LogWatchers,
    StoredResponse,
    place_in_log,
)
from gateway.products.jobs.sqlite import HELD
from gateway.products.jobs.transitions import NOT_OURS, written

# --- the logs as rows: what is there of one in a row of `event_logs`, its parts in `events` ---

_KEEP = "REPLACE INTO event_logs (job, fence, next, bytes, cut) VALUES (?, ?, ?, ?, ?)"


def append(db: sqlite3.Connection, work: ClaimedWork, part: LogPart, bounds: KeptBounds) -> WriteResult:
    """Adds a part to the log of a claim that holds; the first of a new generation takes the place of the last one."""
    found = db.execute(HELD, (work.job.id, work.piece, work.fence)).fetchone()
    if found is None:
        return NOT_OURS
    seq, is_held = found
    log = db.execute("SELECT fence, next, bytes, cut FROM event_logs WHERE job = ?", (seq,)).fetchone()
    if log is None or log[0] != work.fence:
        if log is not None:
            db.execute("DELETE FROM events WHERE job = ?", (seq,))
        log = (work.fence, 0, 0, 0)
    _, next_event, size, is_cut = log
    place = "there" if is_cut else place_in_log(part, next_event, size, bounds)
    if place == "next":
        values = (seq, part.last, part.first, part.frames)
        db.execute("INSERT INTO events (job, last, first, frames) VALUES (?, ?, ?, ?)", values)
        db.execute(_KEEP, (seq, work.fence, part.last + 1, size + len(part.frames), 0))
    elif place == "cut":
        db.execute("DELETE FROM events WHERE job = ?", (seq,))
        db.execute(_KEEP, (seq, work.fence, 0, 0, 1))
    return written(sqlite_rows.get(db, seq).job) if is_held else WriteResult(True)


def read(db: sqlite3.Connection, job_id: str, tenant: str, after: int, most_bytes: int) -> LogPage | None:
    """Returns the parts with events behind `after`, until they are too many bytes."""
    job = db.execute("SELECT seq, state FROM jobs WHERE id = ? AND tenant = ?", (job_id, tenant)).fetchone()
    if job is None:
        return None
    seq, has_ended = job[0], JobState(job[1]).is_end
    log = db.execute("SELECT fence, cut FROM event_logs WHERE job = ?", (seq,)).fetchone()
    if log is None:
        return LogPage(0, [], has_ended=has_ended)
    parts: list[LogPart] = []
    query = "SELECT first, last, frames FROM events WHERE job = ? AND last > ? ORDER BY last"
    for first, last, frames in db.execute(query, (seq, after)):
        most_bytes -= len(frames)
        if parts and most_bytes < 0:
            break
        parts.append(LogPart(first, last, frames))
    return LogPage(log[0], parts, bool(log[1]), has_ended)


def drop(db: sqlite3.Connection, job_id: str) -> None:
    row = db.execute("SELECT seq FROM jobs WHERE id = ?", (job_id,)).fetchone()
    for table in ("events", "event_logs") if row is not None else ():
        db.execute(f"DELETE FROM {table} WHERE job = ?", row)


# --- the logs, asked from the event loop ---


class SqliteEventLogs:
    """Implements `gateway.products.jobs.response_store.EventLogs`.

    A loss of power may take the end of a log with it, as it takes the worker: whoever takes over begins another generation.
    """

    def __init__(self, file: DurableFile, bounds: KeptBounds) -> None:
        self._file = file
        self._bounds = bounds
        self._watchers = LogWatchers()

    @property
    def every_s(self) -> float:
        return 0.5  # the file is this process's alone, and whoever reads here does not wait for it

    async def append(self, work: ClaimedWork, part: LogPart) -> WriteResult:
        result = await self._file.note(lambda db: append(db, work, part, self._bounds))
        self._watchers.wake(work.job.id)
        return result

    async def read(self, job_id: str, tenant: str, after: int, most_bytes: int = 1024 * 1024) -> LogPage | None:
        return await self._file.read(lambda db: read(db, job_id, tenant, after, most_bytes))

    async def drop(self, job_id: str) -> None:
        await self._file.write(lambda db: drop(db, job_id))
        self._watchers.wake(job_id)

    def watch(self, job_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        return self._watchers.watch(job_id, wake)


STEP = 100
"""Responses that are forgotten before others have their turn."""
_WAS_REMOVED = "SELECT 1 FROM removed_responses WHERE tenant = ? AND id = ? AND until > ?"
_REMOVED = "REPLACE INTO removed_responses (tenant, id, until) VALUES (?, ?, ?)"
_PUT = "INSERT INTO responses (tenant, id, created, keep_until, previous, bytes) VALUES (?, ?, ?, ?, ?, ?)"
_FIND = (
    "SELECT created, keep_until, previous, body, input FROM responses JOIN response_bodies ON response = seq "
    "WHERE tenant = ? AND id = ? AND keep_until > ?"
)


def put(db: sqlite3.Connection, response: StoredResponse, now: float, bounds: KeptBounds) -> int | Rest:
    """Keeps a response, unless it was removed; returns how many went early for it."""
    tenant, name = response.tenant, response.id
    if db.execute(_WAS_REMOVED, (tenant, name, now)).fetchone() is not None:
        return 0
    _forget(db, tenant, name)
    if response.bytes > bounds.tenant_bytes:
        return 1
    about = (tenant, name, response.created_at, response.keep_until, response.previous_id, response.bytes)
    seq = db.execute(_PUT, about).lastrowid
    db.execute("INSERT INTO response_bodies VALUES (?, ?, ?)", (seq, response.body, response.input_items))
    return _make_room(db, tenant, bounds, 0)


def _make_room(db: sqlite3.Connection, tenant: str, bounds: KeptBounds, early: int) -> int | Rest:
    """Forgets those of a tenant that were put first, `early` in earlier steps."""
    kept = db.execute("SELECT bytes FROM response_bytes WHERE tenant = ?", (tenant,)).fetchone() or (0,)
    excess, gone = kept[0] - bounds.tenant_bytes, 0
    if excess <= 0:
        return early
    first = "SELECT seq, bytes FROM responses WHERE tenant = ? ORDER BY seq LIMIT ?"
    for seq, size in db.execute(first, (tenant, STEP)).fetchall():
        if excess <= 0:
            break
        _erase(db, seq)
        excess, gone = excess - size, gone + 1
    if excess <= 0:
        return early + gone
    return Rest(lambda db: _make_room(db, tenant, bounds, early + gone))


def find(db: sqlite3.Connection, name: str, tenant: str, now: float) -> StoredResponse | None:
    row = db.execute(_FIND, (tenant, name, now)).fetchone()
    return None if row is None else _response(name, tenant, row)


def chain(
    db: sqlite3.Connection, name: str, tenant: str, most: int, most_bytes: int, now: float
) -> list[StoredResponse]:
    found: dict[str, StoredResponse] = {}
    while len(found) < most and most_bytes >= 0 and name not in found:
        response = find(db, name, tenant, now)
        if response is None:
            break
        found[name] = response
        most_bytes -= response.bytes
        name = response.previous_id
    return list(found.values())


def remove(db: sqlite3.Connection, name: str, tenant: str, now: float, *, is_expected: bool) -> bool:
    """Forgets a response, which is not kept again for a while; returns whether there was one."""
    there = "SELECT 1 FROM responses WHERE tenant = ? AND id = ? AND keep_until > ?"
    was_there = db.execute(there, (tenant, name, now)).fetchone() is not None
    if was_there or is_expected:
        db.execute(_REMOVED, (tenant, name, now + REMOVED_S))
    _forget(db, tenant, name)
    return was_there


def trim(db: sqlite3.Connection, most: int, now: float, gone: int = 0) -> int | Rest:
    """Forgets responses whose time is over, `gone` in earlier steps; returns how many."""
    past = "SELECT tenant, id FROM removed_responses WHERE until <= ? LIMIT ?"
    for name in db.execute(past, (now, STEP)).fetchall():
        db.execute("DELETE FROM removed_responses WHERE tenant = ? AND id = ?", name)
    over = "SELECT seq FROM responses WHERE keep_until <= ? ORDER BY keep_until LIMIT ?"
    rows = db.execute(over, (now, min(STEP, most - gone))).fetchall()
    for (seq,) in rows:
        _erase(db, seq)
    gone += len(rows)
    return gone if gone == most or len(rows) < STEP else Rest(lambda db: trim(db, most, now, gone))


def _forget(db: sqlite3.Connection, tenant: str, name: str) -> None:
    row = db.execute("SELECT seq FROM responses WHERE tenant = ? AND id = ?", (tenant, name)).fetchone()
    if row is not None:
        _erase(db, row[0])


def _erase(db: sqlite3.Connection, seq: int) -> None:
    db.execute("DELETE FROM response_bodies WHERE response = ?", (seq,))
    db.execute("DELETE FROM responses WHERE seq = ?", (seq,))


def _response(name: str, tenant: str, row: tuple[Any, ...]) -> StoredResponse:
    created, keep_until, previous, body, items = row
    return StoredResponse(name, tenant, created, keep_until, previous, body, items)


# --- the kept responses, asked from the event loop ---


class SqliteKeptResponses:
    """Implements `gateway.products.jobs.response_store.KeptResponses`."""

    def __init__(self, file: DurableFile, wall: Callable[[], float], bounds: KeptBounds) -> None:
        self._file = file
        self._wall = wall
        self._bounds = bounds
        self._early = EarlyResponses(bounds)

    @property
    def early(self) -> int:
        return self._early.count

    async def put(self, response: StoredResponse) -> None:
        now = self._wall()
        self._early.note(await self._file.write(lambda db: put(db, response, now, self._bounds)))

    async def find(self, response_id: str, tenant: str) -> StoredResponse | None:
        now = self._wall()
        return await self._file.read(lambda db: find(db, response_id, tenant, now))

    async def chain(
        self, response_id: str, tenant: str, most: int, most_bytes: int = 8 * 1024 * 1024
    ) -> Sequence[StoredResponse]:
        now = self._wall()
        return await self._file.read(lambda db: chain(db, response_id, tenant, most, most_bytes, now))

    async def remove(self, response_id: str, tenant: str, *, is_expected: bool = False) -> bool:
        now = self._wall()
        return await self._file.write(lambda db: remove(db, response_id, tenant, now, is_expected=is_expected))

    async def trim(self, most: int) -> int:
        now = self._wall()
        return await self._file.write(lambda db: trim(db, most, now))
