"""Opens the store of jobs and the store of blobs that the config names."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from typing import Literal

from gateway.drivers.blobs.directory.directory import DirectoryBlobs
from gateway.fleet.lease.lease.shared_state import SharedState
from gateway.products.jobs.model.job import Following, nothing_follows
from gateway.products.jobs.store.blobs import Blobs
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.transitions.transitions import OpenBounds
from gateway.products.responses.log.shared_logs.bounds import KeptBounds

log = logging.getLogger("gateway.jobs")


def open_jobs(
    path: str,
    wall: Callable[[], float],
    in_all: int,
    per_tenant: int,
    following: Following = nothing_follows,
    kept_bounds: KeptBounds | None = None,
) -> JobStore:
    """Returns the store of jobs in the file; `following` says what their ends bring with them. Raises StoreUnusable."""
    from gateway.products.jobs.sqlite_store.store import SqliteJobStore  # a gateway without jobs does not load it

    is_new = not has_jobs(path)
    bounds = OpenBounds(in_all, per_tenant)
    store = SqliteJobStore(path, wall, bounds, following=following, kept_bounds=kept_bounds)
    log.info("jobs are kept in %s%s", path, ", which is new" if is_new else "")
    return store


async def open_redis_jobs(
    shared: SharedState,
    *,
    replica: str,
    wall: Callable[[], float] | None = None,
    in_all: int,
    per_tenant: int,
    accept: Literal["fsync", "replicated", "fast"] = "fsync",
    following: Following = nothing_follows,
    kept_bounds: KeptBounds | None = None,
) -> JobStore:
    """Returns the store of jobs in a Redis, over links of its own, in the running event loop. Raises StoreUnusable.

    `replica` names this process among those that share the work. `wall` is for tests: without it the Redis's clock counts,
    which is the only one that replicas have in common. `accept` says what must be true before jobs are acknowledged.
    """
    from gateway.products.jobs.redis.opening import open_store  # as above

    return await open_store(shared, replica, wall, OpenBounds(in_all, per_tenant), accept, following, kept_bounds)


def open_blobs(folder: str, min_free_bytes: int) -> Blobs:
    """Returns the store of blobs in a folder, which is made when the first is written."""
    return DirectoryBlobs(folder, min_free_bytes=min_free_bytes)


def open_redis_blobs(shared: SharedState, accept: Literal["fsync", "replicated", "fast"]) -> Blobs:
    """Returns the store of blobs in a Redis, which connects when it is first used; `accept` as for jobs.

    On one server a job is behind the blobs that it names, and waits for both. On a cluster it may be on another, and after a
    failover it may be on a new master that never had the blob: there blobs are waited for themselves.
    """
    from gateway.drivers.blobs_redis import RedisBlobs  # a gateway without a Redis does not load it
    from gateway.products.jobs.redis_partitions.durability import BlobDurability  # as above

    is_apart = "+cluster:" in shared.url or accept == "replicated"
    return RedisBlobs(shared, safety=BlobDurability(shared, accept) if is_apart and accept != "fast" else None)


def has_jobs(path: str) -> bool:
    """Returns whether jobs were kept there before."""
    return os.path.exists(path)


def no_jobs(wall: Callable[[], float]) -> JobStore:
    """Returns an empty store, to look into where there is no file yet."""
    from gateway.products.jobs.memory.store import MemoryJobStore  # as above

    return MemoryJobStore(wall)


def copier_of(store: JobStore) -> tuple[str, Callable[[str], Awaitable[str | None]]] | None:
    """Returns the path of the store's file, and what copies it to another path; None: it is in no file."""
    from gateway.products.jobs.sqlite_store.store import SqliteJobStore  # as above

    return (store.path, store.backup) if isinstance(store, SqliteJobStore) else None
