"""Opens the store that the config names; a process loads only the client of its own store."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from gateway.core.clock import Clock
from gateway.core.ports import SharedStore, Store
from gateway.core.snapshot.snapshot import PolicySnapshot
from gateway.drivers.memory_store import MemoryStore

if TYPE_CHECKING:
    from gateway.drivers.sqlite_store.store import SqliteStore

SWITCH_S = 0.0005
"""A busy event loop lets the store's thread in after so long; with Python's own 5 ms each of its steps would take that."""


class OpenedStore(NamedTuple):
    """The store of a process."""

    store: Store
    shared: SharedStore | None = None
    """The same store where replicas share it."""
    sqlite: SqliteStore | None = None
    """The same store where it is a file."""


def open_store(policy: PolicySnapshot, path: str | None, clock: Clock) -> OpenedStore:
    """Returns the store of the policy; `path` is that of a SQLite file. Raises StoreUnusable."""
    wall = clock.wall
    if policy.shared is not None:
        from gateway.drivers.redis_store.store import RedisStore  # a process without replicas does not load the client

        shared = RedisStore(policy.shared, wall, policy.store)
        return OpenedStore(shared, shared)
    if path is None:
        return OpenedStore(MemoryStore(policy.store, wall))
    from gateway.drivers.sqlite_store.store import SqliteStore  # as above

    sys.setswitchinterval(SWITCH_S)
    sqlite = SqliteStore(path, wall, policy.store, ahead=lambda: clock.ahead_s)
    return OpenedStore(sqlite, sqlite=sqlite)
