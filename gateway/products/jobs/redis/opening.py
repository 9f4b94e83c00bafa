"""Opens the store of jobs in a Redis: its links, its settings, and how many partitions it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from gateway.core.errors import StoreUnusable
from gateway.drivers.redis.link import Link, StoreGone
from gateway.fleet.lease.lease.shared_state import SharedState
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.model.job import Following
from gateway.products.jobs.redis.store import RedisJobStore
from gateway.products.jobs.redis_partitions.durability import Accept, JobDurability
from gateway.products.jobs.redis_partitions.partitions import MOST_PARTITIONS
from gateway.products.jobs.transitions.transitions import OpenBounds
from gateway.products.responses.log.shared_logs.bounds import KeptBounds

TIMEOUT_S: Final = 2.0
"""Of a script about jobs: longer than that of limits, whose link it does not share."""
CONNECTIONS: Final = 2
FORMAT: Final = 1
"""The version of the data of jobs: a store of a later one is left alone."""


async def open_store(
    shared: SharedState,
    replica: str,
    wall: Callable[[], float] | None,
    bounds: OpenBounds,
    accept: Accept,
    following: Following,
    kept_bounds: KeptBounds | None = None,
) -> RedisJobStore:
    """Returns the store, connected. Raises StoreUnusable."""
    patient = replace(shared, timeout_s=max(TIMEOUT_S, shared.timeout_s), connections=CONNECTIONS)
    links = [Link(patient), Link(replace(patient, connections=1))]
    try:
        for link in links:
            await link.start()
        partitions = await partitions_of(links[0], is_cluster="+cluster:" in shared.url)
        keys = [links[1].slot_key("jobs", str(partition)) + b":sync" for partition in range(partitions)]
        durability = JobDurability(links[1], keys, accept)
        await durability.check()
    except BaseException as error:
        reason = links[0].reason or error  # once it is closed, that is the reason
        for link in links:
            await link.aclose()
        if isinstance(error, JobsUnavailable | StoreGone):
            raise StoreUnusable(f"the Redis for jobs cannot be used: {reason}") from error
        raise
    return RedisJobStore(links, partitions, replica, durability, bounds, following, kept_bounds=kept_bounds, wall=wall)


async def partitions_of(link: Link, *, is_cluster: bool) -> int:
    """Returns how many partitions there are: as many as the first who opened it has made. Raises StoreGone, StoreUnusable."""
    key = link.slot_key("jobs", "all") + b":format"
    made = f"{FORMAT}:{MOST_PARTITIONS if is_cluster else 1}"
    await link.command(b"SET", key, made, b"NX")
    version, _, number = (await link.command(b"GET", key)).decode().partition(":")
    if int(version) > FORMAT:
        raise StoreUnusable(
            f"the jobs in this Redis are of a later release (format {version}): run that one, or give jobs another namespace"
        )
    return int(number)
