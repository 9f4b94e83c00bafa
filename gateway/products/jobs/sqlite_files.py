"""The files of the Files API in the jobs file, and the blobs that nobody needs any more."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence

from gateway.drivers.durable_file import DurableFile
from gateway.products.jobs.model import FileQuery, StoredFile

_COLUMNS = "id, tenant, purpose, filename, bytes, created, expires, blob"
_IS_THERE = "gone IS NULL AND (expires IS NULL OR expires > ?)"
_ADD = (
    f"INSERT INTO files ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
    "tenant = excluded.tenant, purpose = excluded.purpose, filename = excluded.filename, bytes = excluded.bytes, "
    "created = excluded.created, expires = excluded.expires, blob = excluded.blob, gone = NULL"
)
_WAS_REMOVED = "SELECT 1 FROM files WHERE id = ? AND gone IS NOT NULL AND (expires IS NULL OR gone < expires)"
"""Not for its age: whoever removed it does not want it again."""
_EXPIRED_BYTES = (
    "SELECT coalesce(sum(bytes), 0) FROM files INDEXED BY files_expires "
    "WHERE gone IS NULL AND expires <= ? AND (? = '' OR tenant = ?)"
)
"""The bytes of files that have expired, but still count: `find_garbage` sees to them."""
_IS_USED = (
    "SELECT EXISTS (SELECT 1 FROM files WHERE blob = ? AND gone IS NULL) OR "
    "EXISTS (SELECT 1 FROM jobs WHERE reads = ? AND reads != '' AND ended IS NULL) OR "
    "EXISTS (SELECT 1 FROM garbage WHERE blob = ?)"
)
_GARBAGE = (
    "SELECT blob FROM garbage WHERE "
    f"NOT EXISTS (SELECT 1 FROM files WHERE files.blob = garbage.blob AND {_IS_THERE}) AND "
    "NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.reads = garbage.blob AND reads != '' AND ended IS NULL) LIMIT ?"
)


def add(db: sqlite3.Connection, file: StoredFile) -> None:
    """Keeps a file; the blob of one that it replaces is garbage, unless it is the same, or its own if that was removed."""
    if db.execute(_WAS_REMOVED, (file.id,)).fetchone() is not None:
        _discard(db, file.blob)
        return
    old = db.execute("SELECT blob FROM files WHERE id = ? AND gone IS NULL", (file.id,)).fetchone()
    if old is not None and old[0] != file.blob:
        _discard(db, old[0])
    about = (file.id, file.tenant, file.purpose, file.filename, file.bytes, file.created_at, file.expires_at, file.blob)
    db.execute(_ADD, about)


def take_back(db: sqlite3.Connection, file: StoredFile) -> None:
    """Removes a file whose caller got a refusal, or no answer: the caller removes its blob."""
    db.execute("DELETE FROM files WHERE id = ? AND created = ?", (file.id, file.created_at))


def find(db: sqlite3.Connection, file_id: str, tenant: str, now: float) -> StoredFile | None:
    query = f"SELECT {_COLUMNS} FROM files WHERE id = ? AND tenant = ? AND {_IS_THERE}"
    row = db.execute(query, (file_id, tenant, now)).fetchone()
    return None if row is None else StoredFile(*row)


def page_of(db: sqlite3.Connection, query: FileQuery, now: float) -> tuple[Sequence[StoredFile], bool]:
    after = 2**62 if query.is_newest_first else -1
    if query.after is not None:
        found = db.execute("SELECT seq FROM files WHERE id = ? AND tenant = ?", (query.after, query.tenant)).fetchone()
        if found is None:
            return [], False
        after = found[0]
    way, order = ("<", "DESC") if query.is_newest_first else (">", "ASC")
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM files WHERE tenant = ? AND seq {way} ? AND {_IS_THERE} "
        f"AND (? IS NULL OR purpose = ?) ORDER BY seq {order} LIMIT ?",
        (query.tenant, after, now, query.purpose, query.purpose, query.limit + 1),
    ).fetchall()
    return [StoredFile(*row) for row in rows[: query.limit]], len(rows) > query.limit


def remove(db: sqlite3.Connection, file_id: str, tenant: str, now: float) -> bool:
    file = find(db, file_id, tenant, now)
    if file is None:
        return False
    db.execute("UPDATE files SET gone = ? WHERE id = ?", (now, file_id))
    _discard(db, file.blob)
    return True


def bytes_of(db: sqlite3.Connection, tenant: str | None, now: float) -> int:
    whose = "" if tenant is None else tenant
    found = db.execute("SELECT bytes FROM file_bytes WHERE tenant = ?", (whose,)).fetchone() or (0,)
    return int(found[0]) - int(db.execute(_EXPIRED_BYTES, (now, whose, whose)).fetchone()[0])


def find_garbage(db: sqlite3.Connection, most: int, now: float) -> list[str]:
    expired = db.execute(
        "SELECT seq, blob FROM files WHERE gone IS NULL AND expires <= ? LIMIT ?", (now, most)
    ).fetchall()
    for seq, blob in expired:
        db.execute("UPDATE files SET gone = ? WHERE seq = ?", (now, seq))
        _discard(db, blob)
    return [blob for (blob,) in db.execute(_GARBAGE, (now, most)).fetchall()]


def forget_garbage(db: sqlite3.Connection, names: Sequence[str]) -> None:
    db.executemany("DELETE FROM garbage WHERE blob = ?", [(name,) for name in names])


def used_of(db: sqlite3.Connection, names: Sequence[str]) -> set[str]:
    return {name for name in names if db.execute(_IS_USED, (name, name, name)).fetchone()[0]}


def _discard(db: sqlite3.Connection, blob: str) -> None:
    if blob:
        db.execute("INSERT OR IGNORE INTO garbage VALUES (?)", (blob,))


# --- the port, asked from the event loop ---


class SqliteJobFiles:
    """Implements `gateway.products.jobs.store.JobFiles`."""

    def __init__(self, file: DurableFile, wall: Callable[[], float]) -> None:
        self._file = file
        self._wall = wall

    async def add(self, file: StoredFile) -> None:
        await self._file.write(
            lambda db: add(db, file),
            undo=lambda db: take_back(db, file),
            is_undone_unacknowledged=True,
        )

    async def find(self, file_id: str, tenant: str) -> StoredFile | None:
        now = self._wall()
        return await self._file.read(lambda db: find(db, file_id, tenant, now))

    async def page(self, query: FileQuery) -> tuple[Sequence[StoredFile], bool]:
        now = self._wall()
        return await self._file.read(lambda db: page_of(db, query, now))

    async def remove(self, file_id: str, tenant: str) -> bool:
        now = self._wall()
        return await self._file.write(lambda db: remove(db, file_id, tenant, now))

    async def bytes_of(self, tenant: str | None) -> int:
        now = self._wall()
        return await self._file.read(lambda db: bytes_of(db, tenant, now))

    async def find_garbage(self, most: int) -> Sequence[str]:
        now = self._wall()
        return await self._file.write(lambda db: find_garbage(db, most, now))

    async def forget_garbage(self, names: Sequence[str]) -> None:
        await self._file.write(lambda db: forget_garbage(db, names))

    async def used(self, names: Sequence[str]) -> Collection[str]:
        return await self._file.read(lambda db: used_of(db, names))
