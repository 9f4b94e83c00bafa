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
from gateway.installed import is_installed

# One that is not here is left out.
if is_installed("gateway.features.ownership"):
    from gateway.features.ownership.memory import MemoryObjects
    from gateway.features.ownership.store import Objects
if is_installed("gateway.features.runs"):
    from gateway.features.runs.store import RunStore
if is_installed("gateway.features.semantic"):
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
    objects: Objects | None = None
    """The owners of objects at providers; None: the product is not here."""
    vectors: Vectors | None = None
    """The rows of the semantic index; None: the product is not here."""
    shared: SharedStore | None = None
    """The same store where replicas share it."""
    runs: RunStore | None = None
    """The runs in it, where replicas share it."""
    sqlite: SqliteStore | None = None
    """The same store where it is a file."""

    def configure(self, bounds: StoreBounds) -> None:
        """Applies the bounds from now on."""
        self.store.configure(bounds)
        if self.objects is not None:
            self.objects.configure(bounds.objects)
        if self.vectors is not None:
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
    objects = MemoryObjects(bounds.objects) if is_installed("gateway.features.ownership") else None
    vectors = MemoryVectors() if is_installed("gateway.features.semantic") else None
    return OpenedStore(MemoryStore(bounds, wall), objects, vectors)


def in_file(store: SqliteStore, bounds: StoreBounds, wall: Wall) -> OpenedStore:
    """Returns the store of a file with the parts of products, which are loaded with it."""
    opened = OpenedStore(store, sqlite=store)
    if is_installed("gateway.features.semantic"):
        from gateway.features.semantic.sqlite import SqliteVectors  # a process without a file does not load it

        opened = opened._replace(vectors=SqliteVectors(store.thread, wall, bounds.vectors))
    if is_installed("gateway.features.ownership"):
        from gateway.features.ownership.sqlite import SqliteObjects  # a process without a file does not load it

        opened = opened._replace(objects=SqliteObjects(store.thread, store.file, wall, bounds.objects))
    return opened


def in_redis(store: RedisStore, bounds: StoreBounds, wall: Wall) -> OpenedStore:
    """Returns the store of a Redis with the parts of products, which are loaded with it, and which it looks after."""
    runs = None
    if is_installed("gateway.features.runs"):
        from gateway.features.runs.redis import SharedRunRecords  # a process without replicas does not load it

        runs = SharedRunRecords(store.link, store.replica_id.hex())
    opened = OpenedStore(store, shared=store, runs=runs)
    if is_installed("gateway.features.semantic"):
        from gateway.features.semantic.redis import RedisVectors  # a process without replicas does not load it

        vectors = RedisVectors(store.link, store.background, wall, store.now, bounds.vectors, store.news)
        store.add("vectors", vectors)
        opened = opened._replace(vectors=vectors)
    if is_installed("gateway.features.ownership"):
        from gateway.features.ownership.redis import RedisObjects  # a process without replicas does not load it

        objects = RedisObjects(store.link, store.background, store.now, bounds.objects)
        store.add("objects", objects)
        opened = opened._replace(objects=objects)
    return opened
