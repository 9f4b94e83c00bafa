"""The store of jobs in the Redis that replicas share: jobs outlive every process, and replicas share the work.

Each method is one script, or a look and a script; `lua/` has the hot steps, `RedisSteps` takes the others by
`transitions.PieceMachine`. A claim is a lease: who does not renew it loses the piece to another replica, and whatever it
still writes changes nothing. Unlike the other ports in Redis this one never pretends: where the Redis does not answer, every
method raises JobsUnavailable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from typing import Final

from gateway.core.clock import SharedClock
from gateway.core.errors import StoreUnusable
from gateway.core.types import Lane, SharedState
from gateway.drivers.durability import Accept, JobsUnavailable
from gateway.drivers.redis.link import BackgroundTasks, Link, StoreGone
from gateway.drivers.redis.partitions import MOST_PARTITIONS, JobDurability, JobPartitions
from gateway.installed import is_installed
from gateway.products.jobs import redis_acceptance as acceptance
from gateway.products.jobs import redis_records as records
from gateway.products.jobs.dead_letters.redis import RedisDeadLetters
from gateway.products.jobs.dead_letters.rules import DeadLetter
from gateway.products.jobs.model import (
    Accepted,
    ChunkPlan,
    ChunkResult,
    ClaimedWork,
    ClaimRequest,
    Following,
    Job,
    JobDepth,
    JobEnd,
    JobError,
    JobFlag,
    JobPage,
    JobQuery,
    LineResult,
    NewJob,
    StoredAnswer,
    WriteResult,
    nothing_follows,
)
from gateway.products.jobs.redis_acceptance import (
    CancellableClaims,
    JobPlaces,
    RedisAcceptance,
    RedisCommits,
    RedisWrites,
)
from gateway.products.jobs.redis_claims import RedisClaims, RedisSteps
from gateway.products.jobs.redis_files import RedisJobFiles
from gateway.products.jobs.redis_responses import RedisEventLogs, RedisKeptResponses
from gateway.products.jobs.response_store import KeptBounds
from gateway.products.jobs.transitions import OpenBounds

HAS_RUNS: Final = is_installed("gateway.features.runs")
if HAS_RUNS:
    from gateway.features.runs.redis import RedisRuns

LEASE_S = 15.0
CHECK_S = 600.0
"""Seconds after which the settings of the Redis are looked at again."""
RECHECK_S = 5.0
"""The same while they are such that jobs are refused: somebody may be about to mend them."""
LAST_S = 5.0
"""Seconds that what is under way has at the end."""
log = logging.getLogger("gateway.jobs")


class RedisJobStore:
    """Implements `gateway.products.jobs.store.JobStore` in one event loop, on links that are up; `opening` makes it."""

    def __init__(
        self,
        links: Sequence[Link],
        partitions: int,
        replica: str,
        durability: JobDurability,
        bounds: OpenBounds | None = None,
        following: Following = nothing_follows,
        *,
        kept_bounds: KeptBounds | None = None,
        clock: SharedClock | None = None,
        wall: Callable[[], float] | None = None,
        lease_s: float = LEASE_S,
        is_hasty: bool = False,
    ) -> None:
        """`links[0]` is the one for scripts; `clock` follows the server's from now on, and times given here are by it. In tests
        `wall` replaces both, and `is_hasty` has every look do all.

        The bound of open jobs in all is exact with one partition; with several it counts those of the others as of a
        second ago. That of a tenant is always exact.
        """
        self.lease_s = lease_s
        self._links = links
        self._durability = durability
        self._wakes: list[Callable[[], None]] = []
        self._partitions = JobPartitions(links[0], partitions, wall, self._ready, durability, clock)
        self._steps = RedisSteps(self._partitions, following)
        self._claims = RedisClaims(self._partitions, self._steps, replica, lease_s, is_hasty=is_hasty)
        self._background = BackgroundTasks()
        elsewhere = self._claims.open_elsewhere
        bounds = bounds or OpenBounds()
        self._acceptance = RedisAcceptance(self._partitions, bounds, elsewhere, self._stop, self._background)
        self.files = RedisJobFiles(self._partitions, self._refuse_if_unfit, lambda: durability.durability_lag_s)
        self._places = JobPlaces(self._partitions)
        kept_bounds = kept_bounds or KeptBounds()
        self.events = RedisEventLogs(self._partitions, self._places, self._background, replica, kept_bounds)
        if HAS_RUNS:
            self.runs = RedisRuns(self._partitions, self._refuse_if_unfit, kept_bounds.run_bytes)
        self.responses = RedisKeptResponses(self._partitions, self._refuse_if_unfit, kept_bounds)
        self._writes = RedisWrites(self._partitions, self._steps, self._places)
        self.dead = RedisDeadLetters(self._partitions, self._steps, self._writes)
        self._cancellable = CancellableClaims(self._claims, self._writes, self._places, self._background)
        self._commits = RedisCommits(self._partitions, self._background)
        self._ticking: asyncio.Task[None] | None = None
        self._checked_at = time.monotonic()
        self._connections = links[0].connections
        """The connections that had been made when the settings were looked at: behind another one there may be another server.
        """
        self._problem = ""

    @property
    def durability(self) -> str:
        """Returns what is true when `accept` returns, or what there is where it refuses new jobs for want of that."""
        return self._durability.durability

    @property
    def durability_lag_s(self) -> float:
        return self._durability.durability_lag_s

    @property
    def is_well(self) -> bool:
        """Returns whether jobs are expected to be kept: the last answer of the Redis came, and it may keep jobs."""
        return self._partitions.is_well and not self._problem

    async def accept(self, jobs: Sequence[NewJob]) -> Sequence[Accepted]:
        """Takes jobs, durably; all or none of those of one tenant. Raises TooManyJobs above a bound of open jobs."""
        if self._connections != self._links[0].connections:
            await self._look_at_settings()
        self._refuse_if_unfit()
        return await self._acceptance.accept(jobs)

    async def claim(self, asks: Sequence[ClaimRequest]) -> Sequence[ClaimedWork]:
        """Gives pieces that are due, and those whose workers gave no sign for a lease: of the highest lane first."""
        return await self._cancellable.claim(asks)

    async def renew(self, works: Sequence[ClaimedWork]) -> Sequence[WriteResult]:
        return await self._claims.renew(works)

    async def give_back(
        self, work: ClaimedWork, *, run_at: float | None, error: JobError | None = None, is_attempt: bool
    ) -> WriteResult:
        return await self._writes.give_back(work, run_at, error, is_attempt=is_attempt)

    async def park(self, work: ClaimedWork, children: Sequence[NewJob], progress: Mapping[str, object]) -> WriteResult:
        return await self._writes.park(work, children, progress)

    async def begin_lines(self, work: ClaimedWork, plan: ChunkPlan, marks: Mapping[str, object]) -> WriteResult:
        return await self._writes.begin_lines(work, plan, marks)

    async def commit(
        self, work: ClaimedWork, results: Sequence[LineResult], dead: Sequence[DeadLetter] = ()
    ) -> WriteResult:
        """Keeps the results of lines of a claimed chunk; of a line that has one the first stays, and counts."""
        return await self._commits.commit(work, results, dead)

    async def results(self, work: ClaimedWork) -> Sequence[LineResult]:
        return await self._places.lines(self._partitions.of_fence(work.fence), work.job.id, [work.piece])

    async def note(self, work: ClaimedWork, marks: Mapping[str, object]) -> WriteResult:
        return await self._writes.note(work, marks)

    async def complete_chunk(self, work: ClaimedWork, result: ChunkResult) -> WriteResult:
        return await self._writes.complete_chunk(work, result)

    async def chunk_results(self, job_id: str) -> Sequence[ChunkResult]:
        partition = await self._places.find(job_id, None)
        return [] if partition is None else await self._places.chunks(partition, job_id)

    async def open_results(self, work: ClaimedWork) -> Sequence[LineResult]:
        partition = self._partitions.of_fence(work.fence)
        return await self._places.lines(partition, work.job.id, await self._places.open_chunks(partition, work.job.id))

    async def finish(self, work: ClaimedWork, end: JobEnd, following: Sequence[NewJob] = ()) -> WriteResult:
        """Ends a job, and accepts those that follow from its end, whatever the bounds, in one step.

        They are kept beside it: a job that follows is of the same tenant, or of none.
        """
        return await self._writes.finish(work, end, following)

    async def flag(self, job_id: str, tenant: str | None, flag: JobFlag) -> Job | None:
        """Asks something of a job, durably; an ended job stays as it is."""
        partition = await self._places.find(job_id, tenant)
        if partition is None:
            return None

        async def write(_is_again: bool) -> Job | None:  # as `retry_until_known` calls it
            return await self._steps.flag(partition, job_id, tenant, flag)

        return await self._partitions.retry_until_known(write)

    async def find(self, job_id: str, tenant: str | None) -> Job | None:
        row = await self._places.row(job_id, tenant, b"s")
        return None if row is None else records.read_job(job_id, row[0])

    async def answer(self, job_id: str, tenant: str | None) -> StoredAnswer | None:
        row = await self._places.row(job_id, tenant, b"s", b"a", b"y")
        return None if row is None or row[1] is None else records.read_answer(row[1], row[2])

    async def list_jobs(self, query: JobQuery) -> JobPage:
        if query.after is None:
            return await acceptance.page_of(self._partitions, query, None)
        row = await self._places.row(query.after, query.tenant, b"s")
        return (
            JobPage([], has_more=False)
            if row is None
            else await acceptance.page_of(self._partitions, query, records.seq_of(row[0]))
        )

    async def learn_time(self) -> None:
        """Sets the clock to the server's time. Raises JobsUnavailable."""
        await self._steps.look(0, [])

    async def identity(self) -> str:
        """Returns what distinguishes the jobs of this namespace from all others."""
        key = self._links[0].slot_key("jobs", "all") + b":identity"
        await self._partitions.command(b"SET", key, token_hex(8), b"NX")
        identity: bytes = await self._partitions.command(b"GET", key)
        return identity.decode()

    async def forget_ended(self, before: float, most: int) -> int:
        return await acceptance.forget_ended(self._partitions, before, most)

    def on_ready(self, wake: Callable[[], None]) -> None:
        """Registers `wake`, called when work became ready by this replica; what others make ready the next claim finds."""
        self._wakes.append(wake)

    def depth(self) -> Mapping[tuple[str, Lane, str], JobDepth]:
        """Returns what waits and runs, as of the last look."""
        return self._claims.depth()

    def tick(self) -> None:
        """Lets time do what is due where no claim did it in the last second, and looks at the settings now and then."""
        if not self._partitions.is_closed and (self._ticking is None or self._ticking.done()):
            self._ticking = self._background.start(self._tick())

    async def settled(self) -> None:
        """Returns when what the last tick began is done."""
        if self._ticking is not None:
            await asyncio.wait([self._ticking])

    async def aclose(self) -> None:
        """Waits for what is under way, and takes nothing more."""
        if not self._partitions.is_closed:
            await self.events.aclose()
            await self._background.aclose(LAST_S)
            self._partitions.is_closed = True
            await asyncio.gather(*[link.aclose() for link in self._links])

    async def _tick(self) -> None:
        with suppress(JobsUnavailable):
            if self._claims.is_silent():
                await self._claims.look()
            is_troubled = self._problem or self._durability.shortage
            if time.monotonic() - self._checked_at > (RECHECK_S if is_troubled else CHECK_S):
                self._checked_at = time.monotonic()
                await self._claims.tidy()
                await self._look_at_settings()
                # whether writes can be made as safe again as they should be is found out by one
                mark = self._partitions.mark(0)
                if self._durability.shortage and mark is not None:
                    await self._partitions.command(b"SET", mark, b"", b"PX", 30_000)
                    await self._partitions.settle([mark])
            elif self._connections != self._links[0].connections:
                await self._look_at_settings()

    async def _look_at_settings(self) -> None:
        connections = self._links[0].connections
        try:
            await self._durability.check()
        except StoreUnusable as error:
            if str(error) != self._problem:
                log.error("jobs are off: %s", error)  # noqa: TRY400  # the sentence says it all
            self._problem, self._connections = str(error), connections
            return
        self._connections = connections
        if self._problem:
            log.warning("jobs are on again")
        self._problem = ""

    async def _stop(self, partition: int, job_id: str) -> None:
        """Stops a job of which whoever sent it does not know."""
        await self._steps.flag(partition, job_id, None, JobFlag.CANCEL)

    def _refuse_if_unfit(self) -> None:
        if self._problem:
            raise JobsUnavailable(f"Jobs cannot be kept now: {self._problem}.")

    def _ready(self) -> None:
        for wake in self._wakes:
            wake()


# --- the store is opened: its links, its settings, and how many partitions it has ---

TIMEOUT_S: Final = 2.0
"""The time-out of a script about jobs: longer than that of limits, whose link it does not share."""
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
    clock: SharedClock | None = None,
) -> RedisJobStore:
    """Returns the store, connected, with its clock at the server's time. Raises StoreUnusable."""
    patient = replace(shared, timeout_s=max(TIMEOUT_S, shared.timeout_s), connections=CONNECTIONS)
    links = [Link(patient), Link(replace(patient, connections=1))]
    try:
        for link in links:
            await link.start()
        partitions = await partitions_of(links[0], is_cluster="+cluster:" in shared.url)
        keys = [links[1].slot_key("jobs", str(partition)) + b":sync" for partition in range(partitions)]
        durability = JobDurability(links[1], keys, accept)
        await durability.check()
        store = RedisJobStore(
            links, partitions, replica, durability, bounds, following, kept_bounds=kept_bounds, clock=clock, wall=wall
        )
        await store.learn_time()
    except BaseException as error:
        reason = links[0].reason or error  # once it is closed, that is the reason
        for link in links:
            await link.aclose()
        if isinstance(error, JobsUnavailable | StoreGone):
            raise StoreUnusable(f"the Redis for jobs cannot be used: {reason}") from error
        raise
    return store


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
