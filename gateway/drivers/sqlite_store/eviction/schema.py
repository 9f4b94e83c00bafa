"""The tables of the state file, and the size of their rows.

It knows tables, and must not know what they are for.
"""

from __future__ import annotations

from gateway.drivers.sqlite_store.opening import FileKind

PAGE_BYTES = 4096
ROW_BYTES = 256
"""About the bytes that a row takes besides its columns: its places in the indexes."""
APPLICATION_ID = 0x4C4C4757
"""The application id in the header of the gateway's files: `LLGW`."""


def _counted(table: str, name: str) -> tuple[str, ...]:
    """Returns triggers that keep `totals` true; unlike counters of the process they are rolled back with a transaction."""
    new, old = name.format("NEW"), name.format("OLD")
    added = f"INSERT INTO totals VALUES ({new}, 1, NEW.bytes)"
    counted = "ON CONFLICT (name) DO UPDATE SET entries = entries + 1, bytes = bytes + excluded.bytes"
    removed = f"UPDATE totals SET entries = entries - 1, bytes = bytes - OLD.bytes WHERE name = {old}"
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

STATE_FILE = FileKind(
    name="state file",
    setting="`state`",
    application_id=APPLICATION_ID,
    migrations=(_FIRST, _OBJECTS, _SHARES),
    when_damaged="Put a backup in its place (`gateway state backup FILE` makes one), without the -wal file beside it, or try "
    "`sqlite3 FILE .recover`. Moved away, with the -wal file, it is replaced by an empty one: then answers that were kept are "
    "paid for again, and a repeated Idempotency-Key runs again.",
    when_failing="Calls go on; what they would leave for others is kept in memory only, until the file works again. "
    "There has to be room on a disk that works; a broken file is to be replaced by a backup, or moved away.",
    when_stalled="calls go on without it.",
    when_replaced="Stop the gateway first, or purge through its admin interface.",
)


def taken(*columns: bytes) -> int:
    """Returns about the bytes of the file that a row takes: a long one fills whole pages, short ones share a page."""
    size = sum(map(len, columns))
    if size < PAGE_BYTES // 2:
        return ROW_BYTES + PAGE_BYTES // (PAGE_BYTES // (size + 1))
    return ROW_BYTES + -(-size // PAGE_BYTES) * PAGE_BYTES
