"""The kept responses as rows: what is searched in `responses`, in the order in which they were put, and their bodies apart."""

from __future__ import annotations

import sqlite3
from typing import Any

from gateway.products.jobs.sqlite_rows.jobs import Rest
from gateway.products.responses.log.shared_logs.bounds import REMOVED_S, KeptBounds
from gateway.products.responses.rules.response_object.stored_response import StoredResponse

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
    """Returns a response of the tenant whose time is not over."""
    row = db.execute(_FIND, (tenant, name, now)).fetchone()
    return None if row is None else _response(name, tenant, row)


def chain(
    db: sqlite3.Connection, name: str, tenant: str, most: int, most_bytes: int, now: float
) -> list[StoredResponse]:
    """Returns the response and those that it goes on from, the latest first."""
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
