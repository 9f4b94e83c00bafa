"""The stores of the gateway, each with the parts that products have in it, as `gateway.stores` makes them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Protocol

from gateway import stores
from gateway.core.clock import Ahead, never_ahead
from gateway.core.types import SharedState, StoreBounds
from gateway.drivers import memory, redis_store, sqlite_store, store
from gateway.drivers.redis.link import Link
from gateway.drivers.sqlite_file import Connect
from gateway.features.ownership.store import Objects
from gateway.features.semantic.store import Vectors
from gateway.stores import OpenedStore


class Store(store.Store, Protocol):
    """One store with its parts."""

    objects: Objects
    vectors: Vectors


class MemoryStore(memory.MemoryStore):
    """In memory."""

    def __init__(self, bounds: StoreBounds, wall: Callable[[], float]) -> None:
        super().__init__(bounds, wall)
        self.objects, self.vectors = _parts_of(stores.in_memory(bounds, wall))

    def configure(self, bounds: StoreBounds) -> None:
        super().configure(bounds)
        _configure(self, bounds)


class SqliteStore(sqlite_store.SqliteStore):
    """In a file."""

    def __init__(
        self,
        path: str,
        wall: Callable[[], float],
        bounds: StoreBounds,
        *,
        ahead: Ahead = never_ahead,
        connect: Connect = sqlite3.connect,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(path, wall, bounds, ahead=ahead, connect=connect, monotonic=monotonic)
        self.objects, self.vectors = _parts_of(stores.in_file(self, bounds, wall))

    def configure(self, bounds: StoreBounds) -> None:
        super().configure(bounds)
        _configure(self, bounds)


class RedisStore(redis_store.RedisStore):
    """In Redis."""

    def __init__(
        self,
        shared: SharedState,
        wall: Callable[[], float],
        bounds: StoreBounds,
        *,
        now: Callable[[], float] | None = None,
        connect: Callable[[SharedState], Link] = Link,
    ) -> None:
        super().__init__(shared, wall, bounds, now=now, connect=connect)
        opened = stores.in_redis(self, bounds, wall)
        self.objects, self.vectors = _parts_of(opened)
        assert opened.runs is not None
        self.runs = opened.runs

    def configure(self, bounds: StoreBounds) -> None:
        super().configure(bounds)
        _configure(self, bounds)


def _parts_of(opened: OpenedStore) -> tuple[Objects, Vectors]:
    assert opened.objects is not None
    assert opened.vectors is not None
    return opened.objects, opened.vectors


def _configure(one: Store, bounds: StoreBounds) -> None:
    one.objects.configure(bounds.objects)
    one.vectors.configure(bounds.vectors)


def with_parts(one: Store) -> OpenedStore:
    """Returns the store as a gateway opens it."""
    return OpenedStore(one, one.objects, one.vectors)
