"""Stores of jobs on real servers, on the clock of the test, each with a namespace of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from secrets import token_hex

from redis import Redis

from gateway.core.clock import SharedClock
from gateway.core.types import Lane, SharedState
from gateway.drivers.redis.link import Link
from gateway.drivers.redis.partitions import JobDurability
from gateway.products.jobs.model import Following, Job, JobDepth, JobPage, JobQuery, nothing_follows
from gateway.products.jobs.redis import RedisJobStore, partitions_of
from gateway.products.jobs.response_store import KeptBounds
from gateway.products.jobs.transitions import OpenBounds
from tests.support.redis_support import Lent

PATIENT_S = 5.0


class PromptJobStore(RedisJobStore):
    """One that looks at everything each time, and whose ticks are over when something is read."""

    async def find(self, job_id: str, tenant: str | None) -> Job | None:
        await self.settled()
        return await super().find(job_id, tenant)

    async def list_jobs(self, query: JobQuery) -> JobPage:
        await self.settled()
        return await super().list_jobs(query)

    def is_patient(self, *, yes: bool) -> None:
        """Whether it asks again where nobody answers."""
        self._partitions.patience_s = PATIENT_S if yes else 0.0

    async def look(self) -> Mapping[tuple[str, Lane, str], JobDepth]:
        """How much waits and runs, now."""
        await self._claims.look()
        return self.depth()


class Hearing(Lent):
    """One that hears what other replicas tell."""

    async def subscribe(self, channel: bytes, heard: Callable[[bytes], None], joined: Callable[[], None]) -> None:
        await self._lender.subscribe(channel, heard, joined)


class JobLender:
    """Makes stores over one link: new ones, or replicas of the last."""

    def __init__(self, link: Link, url: str, partitions: int) -> None:
        self.link = link
        self.url = url
        self.partitions = partitions
        self.links: list[Lent] = []
        self._name = token_hex(6)
        self._numbers = count()

    def lend(self, namespace: str) -> Lent:
        self.links.append(Hearing(self.link, SharedState(self.url, namespace=namespace, timeout_s=PATIENT_S)))
        return self.links[-1]

    def make(
        self,
        bounds: OpenBounds | None = None,
        wall: Callable[[], float] | None = None,
        following: Following = nothing_follows,
        *,
        kept_bounds: KeptBounds | None = None,
        clock: SharedClock | None = None,
        is_replica: bool = False,
        lease_s: float = 15.0,
    ) -> PromptJobStore:
        """An empty store, or one that shares what the last has."""
        number = next(self._numbers)
        if not is_replica:
            self.namespace = f"{self._name}-{number}"
        link = self.lend(self.namespace)
        durability = JobDurability(link, (), "fast")
        durability.durability_lag_s, durability._promise = 0.0, "as told"
        store = PromptJobStore(
            [link], self.partitions, f"replica-{number}", durability, bounds, following, kept_bounds=kept_bounds,
            clock=clock, wall=wall, lease_s=lease_s, is_hasty=True,
        )  # fmt: skip
        store.is_patient(yes=False)
        return store


@asynccontextmanager
async def job_lender(url: str) -> AsyncIterator[JobLender]:
    """One whose link is up."""
    link = Link(SharedState(url, namespace="job-lender", timeout_s=PATIENT_S))
    await link.start()
    try:
        yield JobLender(link, url, await partitions_of(link, is_cluster="+cluster" in url))
    finally:
        await link.aclose()


def end_leases(url: str, namespace: str) -> None:
    """Makes all claims as old as if nobody had been heard of for a lease."""
    with Redis.from_url(url) as client:
        for workers in client.scan_iter(match=f"{namespace}:*:workers", count=1000):
            client.delete(workers)
        for key in client.scan_iter(match=f"{namespace}:*:r:*", count=1000):
            for pending in client.xpending_range(key, "workers", "-", "+", 1000):
                entry, worker = pending["message_id"], pending["consumer"]
                client.xclaim(key, "workers", worker, 0, [entry], idle=15_001, justid=True)
