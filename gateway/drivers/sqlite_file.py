"""How a file is opened: made if it is not there, checked, migrated, and left as it is where it is not ours.

It must not know what the tables are for. Invariants: there is one connection, which has the file for itself; a file of another
application or a newer release is left as it is; a migration is done as a whole or not at all.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from gateway.core.clock import LEAST_STEP_S
from gateway.core.errors import StoreUnusable

Connect = Callable[..., sqlite3.Connection]

LOCK_WAIT_S = 0.5
"""Seconds to wait for the lock: a process that is just ending may still hold it."""
IN_MEMORY = ":memory:"
"""The name in place of a path: what is kept so has no file, and is lost when it is closed."""
CHECKED_BYTES = 64 * 1024 * 1024
"""A file up to this size is checked page by page when it is opened; a larger one would delay the start."""

_SETTINGS = (
    # No second connection, ever: sqlite before 3.51.3 can lose a commit when two of them write and checkpoint. It also
    # means that whoever opens the file knows that everybody who had it before is dead.
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA recursive_triggers = ON",  # so that what is replaced is counted as gone
    "PRAGMA trusted_schema = OFF",
    "PRAGMA secure_delete = ON",  # zeros in place of what is deleted; not every sqlite is built so
    "PRAGMA cache_size = -8192",
    "PRAGMA wal_autocheckpoint = 1000",
    "PRAGMA journal_size_limit = 8388608",
)


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file is for: its tables, and the words about it in messages and logs.

    Its tables have to have `meta`, with the rows `starts` and `probes`, and `totals`.
    """

    name: str
    """Such as "state file"."""
    setting: str
    """Where the config names it."""
    application_id: int
    """The number in the header of the file, which no other kind has."""
    migrations: Sequence[Sequence[str]]
    """The n-th brings a file from version n to n + 1; a new file has version 0. Released ones never change."""
    when_damaged: str
    """What is to be done with a damaged file, and what is lost with it."""
    when_failing: str
    """What the gateway does while the disk fails."""
    when_stalled: str
    """What the gateway does while the disk does not answer."""
    when_replaced: str
    """How to do it right, whoever deleted the file while it was in use."""
    page_bytes: int = 4096
    moves: Sequence[str] = ()
    """The statements that move all that waits or grows old in the file by `:by_s` seconds."""


def open_file(path: str, kind: FileKind, *, connect: Connect = sqlite3.connect) -> tuple[sqlite3.Connection, int]:
    """Opens the file; returns the connection and how often the file has been opened. Raises StoreUnusable."""
    db: sqlite3.Connection | None = None
    is_file = path != IN_MEMORY
    try:
        if is_file:
            _make(path)
            _refuse_log_of_another(path, kind)
        db = connect(path, timeout=LOCK_WAIT_S, isolation_level=None)
        for setting in _SETTINGS:
            db.execute(setting)
        version = _version_of(db, path, kind)
        if is_file:
            if os.path.getsize(path) <= CHECKED_BYTES:
                (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
                if found != "ok":
                    raise sqlite3.DatabaseError(f"database disk image is malformed: {found}")
            # Up to here nothing is written; from here on the file is ours.
            if stat.S_IMODE(os.stat(path).st_mode) != 0o600:
                os.chmod(path, 0o600)
            if version == 0:  # a new file: neither can be set later
                db.execute(f"PRAGMA page_size = {kind.page_bytes}")
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise StoreUnusable(
                    f"{kind.name} {path}: no write-ahead log is possible there. Put it on a local disk."
                )
        return db, _begin(db, version, kind.migrations)
    except (sqlite3.Error, OSError) as error:
        _close(db)
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise StoreUnusable(f"{kind.name} {path}: {reason}. {_remedy(path, kind, error)}") from error
    except BaseException:
        _close(db)
        raise


def move_times(db: sqlite3.Connection, kind: FileKind, ahead_s: float) -> None:
    """Moves the times in a file to a clock that is `ahead_s` ahead of the machine's: what its last process kept them by was
    so much ahead as it has noted."""
    found = db.execute("SELECT value FROM meta WHERE name = 'ahead_ms'").fetchone()
    by_s = ahead_s - (found[0] / 1000 if found else 0.0)
    if abs(by_s) >= LEAST_STEP_S:
        for statement in kind.moves:
            db.execute(statement, {"by_s": by_s})
        note_ahead(db, ahead_s)


def note_ahead(db: sqlite3.Connection, ahead_s: float) -> None:
    """Notes how far the clock, by which the times in the file are kept, is ahead of the machine's."""
    db.execute("REPLACE INTO meta VALUES ('ahead_ms', ?)", (round(ahead_s * 1000),))


def open_to_read(path: str, kind: FileKind, *, connect: Connect = sqlite3.connect) -> sqlite3.Connection | None:
    """Returns a connection that only reads, None where that fails too: a disk that rejects writes may still be read."""
    db: sqlite3.Connection | None = None
    try:
        os.stat(path)  # else it would be made
        _refuse_log_of_another(path, kind)
        db = connect(path, timeout=LOCK_WAIT_S, isolation_level=None)
        for setting in (*_SETTINGS, "PRAGMA query_only = ON"):
            db.execute(setting)
        _version_of(db, path, kind)
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


def _refuse_log_of_another(path: str, kind: FileKind) -> None:
    """Raises StoreUnusable for a copy that was put beside the write-ahead log of another file: sqlite would mix the two.

    A file that was in use says in its header that it has such a log, a copy that it has none
    (https://www.sqlite.org/fileformat.html#file_format_version_numbers).
    """
    try:
        if not os.path.getsize(f"{path}-wal"):
            return
    except FileNotFoundError:
        return
    with open(path, "rb") as file:
        versions = file.read(20)[18:]
    if versions == b"\1\1":
        raise StoreUnusable(
            f"{kind.name} {path}: it is a copy, and {path}-wal beside it belongs to the file that was there before. "
            f"Remove {path}-wal, which would damage the copy."
        )


def _begin(db: sqlite3.Connection, version: int, migrations: Sequence[Sequence[str]]) -> int:
    """Applies the missing migrations and counts the start; returns the number of starts."""
    db.execute("BEGIN IMMEDIATE")
    for statement in (one for step in migrations[version:] for one in step):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {len(migrations)}")
    counted = db.execute("UPDATE meta SET value = value + 1 WHERE name = 'starts' RETURNING value").fetchall()
    if len(counted) != 1 or not isinstance(counted[0][0], int):
        raise sqlite3.DatabaseError("its table meta does not tell how often it was opened")
    db.execute("COMMIT")
    return int(counted[0][0])


def _version_of(db: sqlite3.Connection, path: str, kind: FileKind) -> int:
    newest = len(kind.migrations)
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != kind.application_id and (tables or version):
        raise StoreUnusable(
            f"{kind.name} {path}: it belongs to another program. Name another file under {kind.setting}."
        )
    if version > newest:
        raise StoreUnusable(
            f"{kind.name} {path}: a newer gateway has made it (version {version}, this one knows {newest}). "
            f"Run that one, or name another file under {kind.setting}."
        )
    return int(version)


def _is_read_only(folder: str) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _remedy(path: str, kind: FileKind, error: Exception) -> str:
    """Returns the sentence with what an operator can do."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        return "It is a folder: name a file in it."
    if not os.path.isdir(folder) and not isinstance(error, PermissionError):
        return f"Make the folder {folder} first."
    if "locked" in str(error):
        return "Another process has it open: give each its own file."
    if _is_read_only(folder):
        return "Its volume is mounted read-only: mount it writable."
    if not os.access(folder, os.W_OK) or not os.access(path, os.R_OK | os.W_OK):
        return f"This user has to be able to read and write it, and its folder {folder}."
    if type(error) is sqlite3.DatabaseError:
        return kind.when_damaged
    return "There has to be room on a disk that works."
