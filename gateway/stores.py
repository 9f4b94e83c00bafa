"""The store that the config names, with what products keep in it: each part stands in its product's folder, and is made here.

In memory, in a file or in the Redis that replicas share; what the default store does not need is loaded with the others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from gateway.core.clock import Clock
from gateway.core.snapshot import PolicySnapshot
from gateway.core.types import StoreBounds
from gateway.drivers.memory import MemoryStore
from gateway.drivers.store import SharedStore, Store
from gateway.features.ownership.memory import MemoryObjects
from gateway.features.ownership.store import Objects
from gateway.features.runs.store import RunStore
from gateway.features.semantic.store import MemoryVectors, Vectors

if TYPE_CHECKING:
    from gateway.drivers.redis_store import RedisStore
    from gateway.drivers.sqlite_store import SqliteStore

Wall = Callable[[], float]
"""Returns seconds since the epoch."""
SWITCH_S = 0.0005
"""A busy event loop lets the store's thread in after so long; with Python's own 5 ms each of its steps would take that."""


class OpenedStore(NamedTuple):
    """The store of a process."""

    store: Store
    objects: Objects
    """The owners of objects at providers."""
    vectors: Vectors
    """The rows of the semantic index."""
    shared: SharedStore | None = None
    """The same store where replicas share it."""
    runs: RunStore | None = None
    """The runs in it, where replicas share it."""
    sqlite: SqliteStore | None = None
    """The same store where it is a file."""

    def configure(self, bounds: StoreBounds) -> None:
        """Applies the bounds from now on."""
        self.store.configure(bounds)
        self.objects.configure(bounds.objects)
        self.vectors.configure(bounds.vectors)


def open_store(policy: PolicySnapshot, path: str | None, clock: Clock) -> OpenedStore:
    """Returns the store of the policy; `path` is that of a SQLite file. Raises StoreUnusable."""
    if policy.shared is not None:
        from gateway.drivers.redis_store import RedisStore  # a process without replicas does not load the client

        return in_redis(RedisStore(policy.shared, clock.wall, policy.store), policy.store, clock.wall)
    if path is None:
        return in_memory(policy.store, clock.wall)
    from gateway.drivers.sqlite_store import SqliteStore  # a process without a file does not load it

    sys.setswitchinterval(SWITCH_S)
    store = SqliteStore(path, clock.wall, policy.store, ahead=lambda: clock.ahead_s)
    return in_file(store, policy.store, clock.wall)


def in_memory(bounds: StoreBounds, wall: Wall) -> OpenedStore:
    """Returns a store in this process's memory."""
    return OpenedStore(MemoryStore(bounds, wall), MemoryObjects(bounds.objects), MemoryVectors())


def in_file(store: SqliteStore, bounds: StoreBounds, wall: Wall) -> OpenedStore:
    """Returns the store of a file with the parts of products."""
    # Loaded with the file.
    from gateway.features.ownership.sqlite import SqliteObjects
    from gateway.features.semantic.sqlite import SqliteVectors  # loaded with the file, too

    objects = SqliteObjects(store.thread, store.file, wall, bounds.objects)
    return OpenedStore(store, objects, SqliteVectors(store.thread, wall, bounds.vectors), sqlite=store)


def in_redis(store: RedisStore, bounds: StoreBounds, wall: Wall) -> OpenedStore:
    """Returns the store of a Redis with the parts of products, which it looks after from now on."""
    # Loaded with the client.
    from gateway.features.ownership.redis import RedisObjects
    from gateway.features.runs.redis import SharedRunRecords  # loaded with the client, too
    from gateway.features.semantic.redis import RedisVectors  # loaded with the client, too

    vectors = RedisVectors(store.link, store.background, wall, store.now, bounds.vectors, store.news)
    objects = RedisObjects(store.link, store.background, store.now, bounds.objects)
    store.add("vectors", vectors)
    store.add("objects", objects)
    runs = SharedRunRecords(store.link, store.replica_id.hex())
    return OpenedStore(store, objects, vectors, shared=store, runs=runs)
