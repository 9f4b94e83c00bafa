"""The rows of the semantic index in the file, from which the index is rebuilt after a restart.

Invariants: a partition keeps to its bound with every write; reading a large partition lets other jobs run in between.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from gateway.core.ports import Later
from gateway.drivers.sqlite import FileThread, Rest, taken
from gateway.drivers.sqlite_answers import forget, matching
from gateway.features.semantic.store import VectorRow

ROWS_AT_ONCE = 1_000
"""Rows read in one step, which takes some milliseconds."""


class SqliteVectors:
    """Implements `gateway.features.semantic.store.Vectors`."""

    def __init__(self, thread: FileThread, wall: Callable[[], float], most: int) -> None:
        self._thread = thread
        self._wall = wall
        self._most = most

    def configure(self, most: int) -> None:
        self._most = most

    def add(self, row: VectorRow) -> None:
        size, most = taken(row.id, row.partition, row.facts, row.vector), self._most
        self._thread.queue_write(lambda db: _write(db, row, size, most), size)

    def load(self, partition: bytes, most: int) -> Later[Sequence[VectorRow]]:
        now = self._wall()
        nothing: list[VectorRow] = []
        return self._thread.later(lambda db: _read(db, partition, most, now, []), nothing)

    def remove(self, partition: bytes, ids: Sequence[bytes]) -> None:
        rows = [(partition, one) for one in ids]
        self._thread.queue_write(
            lambda db: db.executemany("DELETE FROM vectors WHERE partition = ? AND key = ?", rows), 100 * len(rows)
        )

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> Later[int]:
        where, values = matching(key, model, tenant)
        return self._thread.later(lambda db: forget(db, "vectors", where, values), 0, "durable")


def _write(db: sqlite3.Connection, row: VectorRow, size: int, most: int) -> None:
    db.execute(
        "REPLACE INTO vectors (partition, key, tenant, model, stored, expires, bytes, facts, vector) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (row.partition, row.id, row.tenant, row.model, row.stored_at, row.expires_at, size, row.facts, row.vector),
    )
    (entries,) = db.execute("SELECT entries FROM partitions WHERE partition = ?", (row.partition,)).fetchone()
    if entries > most:  # a little more than need be, so that not every write has to
        db.execute(
            "DELETE FROM vectors WHERE id IN (SELECT id FROM vectors WHERE partition = ? ORDER BY id LIMIT ?)",
            (row.partition, entries - most + most // 64),
        )


def _read(
    db: sqlite3.Connection, partition: bytes, most: int, now: float, found: list[VectorRow], before: int = 2**62
) -> list[VectorRow] | Rest:
    """Returns the newest rows in order, or the rest of the work; `found` are the rows read so far, newest first."""
    wanted = min(ROWS_AT_ONCE, most - len(found))
    rows = db.execute(
        "SELECT id, key, tenant, model, stored, expires, facts, vector FROM vectors "
        "WHERE partition = ? AND id < ? ORDER BY id DESC LIMIT ?",
        (partition, before, wanted),
    ).fetchall()
    read = [
        VectorRow(key, partition, vector, facts, model, tenant, stored, expires)
        for _, key, tenant, model, stored, expires, facts, vector in rows
        if expires > now
    ]
    found = found + read
    if len(rows) < wanted or len(found) >= most:
        return found[::-1]
    return Rest(lambda db: _read(db, partition, most, now, found, rows[-1][0]))
