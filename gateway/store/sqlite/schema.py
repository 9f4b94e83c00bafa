"""The file of the sqlite store: how it is opened, its tables and the size of their rows, and its migrations.

It knows tables, and must not know what they are for. Invariants: there is one connection, which has the file for itself; a
file of another application or a newer release is left as it is; a migration is done as a whole or not at all.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from gateway.errors import StoreUnusable

Connect = Callable[..., sqlite3.Connection]

PAGE_BYTES = 4096
ROW_BYTES = 256
"""About the bytes that a row takes besides its columns: its places in the indexes."""
APPLICATION_ID = 0x4C4C4757
"""The application id in the header of the gateway's files: `LLGW`."""
LOCK_WAIT_S = 0.5
"""Seconds to wait for the lock: a process that is just ending may still hold it."""
CHECKED_BYTES = 64 * 1024 * 1024
"""A file up to this size is checked page by page when it is opened; a larger one would delay the start."""

_SETTINGS = (
    # No second connection, ever: sqlite before 3.51.3 can lose a commit when two of them write and checkpoint. It also
    # means that whoever opens the file knows that everybody who had it before is dead.
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA recursive_triggers = ON",  # so that what is replaced is counted as gone
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cache_size = -8192",
    "PRAGMA wal_autocheckpoint = 1000",
    "PRAGMA journal_size_limit = 8388608",
)


def _counted(table: str, name: str) -> tuple[str, ...]:
    """Returns triggers that keep `totals` true; unlike counters of the process they are rolled back with a transaction."""
    new, old = name.format("NEW"), name.format("OLD")
    added = f"INSERT INTO totals VALUES ({new}, 1, NEW.bytes)"  # noqa: S608 - names from below
    counted = "ON CONFLICT (name) DO UPDATE SET entries = entries + 1, bytes = bytes + excluded.bytes"
    removed = f"UPDATE totals SET entries = entries - 1, bytes = bytes - OLD.bytes WHERE name = {old}"  # noqa: S608
    return (
        f"CREATE TRIGGER {table}_in AFTER INSERT ON {table} BEGIN {added} {counted}; END",
        f"CREATE TRIGGER {table}_out AFTER DELETE ON {table} BEGIN {removed}; END",
    )


_FIRST = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO meta VALUES ('starts', 0), ('probes', 0)",
    "CREATE TABLE totals (name TEXT PRIMARY KEY, entries INTEGER NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID",
    # What is read to find or to drop a row comes before its body: long bodies lie on pages of their own.
    "CREATE TABLE records (id INTEGER PRIMARY KEY, record BLOB NOT NULL UNIQUE, fingerprint BLOB NOT NULL, "
    "expires REAL NOT NULL, bytes INTEGER NOT NULL, about BLOB NOT NULL, body BLOB NOT NULL)",
    "CREATE INDEX records_expires ON records (expires)",
    *_counted("records", "'records'"),
    "CREATE TABLE answers (id INTEGER PRIMARY KEY, key BLOB NOT NULL, grp TEXT NOT NULL, tenant TEXT NOT NULL, "
    "model TEXT NOT NULL, used INTEGER NOT NULL, expires REAL NOT NULL, bytes INTEGER NOT NULL, about BLOB NOT NULL, "
    "body BLOB NOT NULL, UNIQUE (key, grp))",
    "CREATE INDEX answers_used ON answers (grp, used)",
    "CREATE INDEX answers_expires ON answers (expires)",
    "CREATE INDEX answers_owner ON answers (tenant, model)",
    *_counted("answers", "'answers/' || {}.grp"),
    "CREATE TABLE vectors (id INTEGER PRIMARY KEY, partition BLOB NOT NULL, key BLOB NOT NULL, tenant TEXT NOT NULL, "
    "model TEXT NOT NULL, stored REAL NOT NULL, expires REAL NOT NULL, bytes INTEGER NOT NULL, facts BLOB NOT NULL, "
    "vector BLOB NOT NULL, UNIQUE (partition, key))",
    "CREATE INDEX vectors_partition ON vectors (partition)",
    "CREATE INDEX vectors_key ON vectors (key)",
    "CREATE INDEX vectors_expires ON vectors (expires)",
    "CREATE INDEX vectors_owner ON vectors (tenant, model)",
    *_counted("vectors", "'vectors'"),
    "CREATE TABLE partitions (partition BLOB PRIMARY KEY, entries INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TRIGGER partitions_in AFTER INSERT ON vectors BEGIN INSERT INTO partitions VALUES (NEW.partition, 1) "
    "ON CONFLICT (partition) DO UPDATE SET entries = entries + 1; END",
    "CREATE TRIGGER partitions_out AFTER DELETE ON vectors BEGIN "
    "UPDATE partitions SET entries = entries - 1 WHERE partition = OLD.partition; "
    "DELETE FROM partitions WHERE partition = OLD.partition AND entries <= 0; END",
)

_OBJECTS = (
    "CREATE TABLE objects (id INTEGER PRIMARY KEY, object BLOB NOT NULL UNIQUE, tenant TEXT NOT NULL, used REAL NOT NULL)",
    "CREATE INDEX objects_used ON objects (used)",
    "CREATE TRIGGER objects_in AFTER INSERT ON objects BEGIN INSERT INTO totals VALUES ('objects', 1, 0) "
    "ON CONFLICT (name) DO UPDATE SET entries = entries + 1; END",
    "CREATE TRIGGER objects_out AFTER DELETE ON objects BEGIN "
    "UPDATE totals SET entries = entries - 1 WHERE name = 'objects'; END",
)

_SHARES = (
    # Whose a record is, so that one tenant's take nobody else's room; of those that were there before, nobody's.
    "ALTER TABLE records ADD COLUMN tenant TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX records_tenant ON records (tenant, id)",
    "CREATE TABLE shares (tenant TEXT PRIMARY KEY, entries INTEGER NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO shares SELECT tenant, COUNT(*), SUM(bytes) FROM records GROUP BY tenant",
    "CREATE TRIGGER shares_in AFTER INSERT ON records BEGIN INSERT INTO shares VALUES (NEW.tenant, 1, NEW.bytes) "
    "ON CONFLICT (tenant) DO UPDATE SET entries = entries + 1, bytes = bytes + excluded.bytes; END",
    "CREATE TRIGGER shares_out AFTER DELETE ON records BEGIN "
    "UPDATE shares SET entries = entries - 1, bytes = bytes - OLD.bytes WHERE tenant = OLD.tenant; "
    "DELETE FROM shares WHERE tenant = OLD.tenant AND entries <= 0; END",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST, _OBJECTS, _SHARES)
"""The n-th migration brings a file from version n to n + 1; a new file has version 0. Released ones never change."""


def open_file(
    path: str, *, connect: Connect = sqlite3.connect, migrations: Sequence[Sequence[str]] = MIGRATIONS
) -> tuple[sqlite3.Connection, int]:
    """Opens the file; returns the connection and how often the file has been opened. Raises StoreUnusable."""
    db: sqlite3.Connection | None = None
    try:
        _make(path)
        db = connect(path, timeout=LOCK_WAIT_S, isolation_level=None)
        for setting in _SETTINGS:
            db.execute(setting)
        version = _version_of(db, path, len(migrations))
        _look_through(db, path)  # up to here nothing is written
        _make_ours(db, path, is_new=version == 0)
        return db, _begin(db, version, migrations)
    except (sqlite3.Error, OSError) as error:
        _close(db)
        raise StoreUnusable(f"state file {path}: {_said(error)}. {_remedy(path, error)}") from error
    except BaseException:
        _close(db)
        raise


def open_to_read(path: str, *, connect: Connect = sqlite3.connect) -> sqlite3.Connection | None:
    """Returns a connection that only reads, None where that fails too: a disk that rejects writes may still be read."""
    db: sqlite3.Connection | None = None
    try:
        os.stat(path)  # else it would be made
        db = connect(path, timeout=LOCK_WAIT_S, isolation_level=None)
        for setting in (*_SETTINGS, "PRAGMA query_only = ON"):
            db.execute(setting)
        _version_of(db, path, len(MIGRATIONS))
    except (sqlite3.Error, OSError, StoreUnusable):
        _close(db)
        return None
    return db


def damage_of(path: str) -> str | None:
    """Returns the damage of a file that is not in use; None: every page of it is sound."""
    try:
        with closing(sqlite3.connect(path)) as db:
            (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        return str(error)
    return None if found == "ok" else str(found)


def _close(db: sqlite3.Connection | None) -> None:
    if db is not None:
        db.close()


def _make(path: str) -> None:
    """Creates the file readable by its user only.

    An existing file is not opened: closing it would drop sqlite's lock (https://www.sqlite.org/howtocorrupt.html).
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _make_ours(db: sqlite3.Connection, path: str, *, is_new: bool) -> None:
    if stat.S_IMODE(os.stat(path).st_mode) != 0o600:
        os.chmod(path, 0o600)
    if is_new:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreUnusable(f"state file {path}: no write-ahead log is possible there. Put it on a local disk.")


def _begin(db: sqlite3.Connection, version: int, migrations: Sequence[Sequence[str]]) -> int:
    """Applies the missing migrations and counts the start; returns the number of starts."""
    db.execute("BEGIN IMMEDIATE")
    for statement in (one for step in migrations[version:] for one in step):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {len(migrations)}")
    ((starts,),) = db.execute("UPDATE meta SET value = value + 1 WHERE name = 'starts' RETURNING value").fetchall()
    db.execute("COMMIT")
    return int(starts)


def _version_of(db: sqlite3.Connection, path: str, newest: int) -> int:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and (tables or version):
        raise StoreUnusable(f"state file {path}: it belongs to another program. Name another file under `state`.")
    if version > newest:
        raise StoreUnusable(
            f"state file {path}: a newer gateway has made it (version {version}, this one knows {newest}). "
            "Run that one, or name another file under `state`."
        )
    return int(version)


def _look_through(db: sqlite3.Connection, path: str) -> None:
    if os.path.getsize(path) <= CHECKED_BYTES:
        (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(f"database disk image is malformed: {found}")


def _said(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _remedy(path: str, error: Exception) -> str:
    """Returns the sentence that tells an operator what to do."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        return "It is a folder: name a file in it."
    if not os.path.isdir(folder) and not isinstance(error, PermissionError):
        return f"Make the folder {folder} first."
    if "locked" in str(error):
        return "Another process has it open: give each its own file."
    if not os.access(folder, os.W_OK) or not os.access(path, os.R_OK | os.W_OK):
        return f"This user has to be able to read and write it, and its folder {folder}."
    if type(error) is sqlite3.DatabaseError:
        return (
            "Put a backup in its place (`gateway state backup FILE` makes one), or try `sqlite3 FILE .recover`. Moved away, "
            "with the -wal file beside it, it is replaced by an empty one: then answers that were kept are paid for again, "
            "and a repeated Idempotency-Key runs again."
        )
    return "There has to be room on a disk that works."


def taken(*columns: bytes) -> int:
    """Returns about the bytes of the file that a row takes: a long one fills whole pages, short ones share a page."""
    size = sum(map(len, columns))
    if size < PAGE_BYTES // 2:
        return ROW_BYTES + PAGE_BYTES // (PAGE_BYTES // (size + 1))
    return ROW_BYTES + -(-size // PAGE_BYTES) * PAGE_BYTES
