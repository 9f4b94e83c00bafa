"""What the store of jobs takes of a Redis: memory and time per job where there are a million, operations per line of a batch.

`JOB_SIZE` sets another number of jobs. Times are those that the server itself counts: of each command, without the way there.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.core.types import SharedState
from gateway.products.jobs.model import (
    FINALISE,
    ChunkPlan,
    ClaimedWork,
    ClaimRequest,
    JobQuery,
    JobState,
    LineResult,
    nothing_follows,
)
from gateway.products.jobs.redis import RedisJobStore, open_store
from gateway.products.jobs.transitions import OpenBounds
from tests.products.jobs import crowd
from tests.soak.conftest import Report
from tests.support.job_stores import Jobs, chunk
from tests.support.redis_servers import RedisServer, redis_server

pytestmark = pytest.mark.soak

JOBS = int(os.environ.get("JOB_SIZE", "1000000"))
AT_ONCE, CLAIMS = 100, 200
JOB_BYTES, CLAIM_US, SLOW_US = 1229, 2000, 10_000
MOST_SLOW = 3
"""Of some thousands: the server's clock counts the time in which a busy machine does not let it run."""
LINES, PER_S, PARALLEL, PER_CHUNK, BEAT_S = 5_000, 500, 4, 100, 0.025
OPERATIONS_PER_LINE = 0.2
IDLE_S = 10


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server("--slowlog-log-slower-than", str(SLOW_US), "--slowlog-max-len", "100000") as one:
        yield one


async def opened(server: RedisServer, replica: str = "r1") -> RedisJobStore:
    shared = SharedState(server.url, namespace="gateway")
    bounds = OpenBounds(2 * JOBS + 10, 2 * JOBS + 10)
    return await open_store(shared, replica, None, bounds, "fsync", nothing_follows)


def spent(server: RedisServer) -> dict[str, tuple[int, int]]:
    """Calls and microseconds by command."""
    with server.client() as client:
        stats: dict[str, Any] = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): (one["calls"], one["usec"]) for name, one in stats.items()}


def operations(server: RedisServer) -> int:
    """Commands that a store has sent: what its scripts do themselves is not among them, nor what is asked here."""
    sent = ("evalsha", "eval", "ping", "wait", "waitaof")
    return sum(calls for name, (calls, _) in spent(server).items() if name in sent)


async def test_a_million_jobs(server: RedisServer, report: Report) -> None:
    """Bytes of each besides its payload; how long claims, lists, looks and the taking of more are at work."""
    store = await opened(server)
    jobs = Jobs(store, time.time)  # type: ignore[arg-type]  # its clock
    before = used(server)
    began = time.monotonic()
    for first in range(0, JOBS, AT_ONCE):
        await store.accept([crowd.new(jobs, first + one) for one in range(AT_ONCE)])
    filled_s = time.monotonic() - began
    each = (used(server) - before) / JOBS - crowd.PAYLOAD_BYTES
    server.do("CONFIG", "RESETSTAT")
    server.do("SLOWLOG", "RESET")
    figures = []
    for name, ask in (
        ("claim of one", lambda: store.claim([ClaimRequest("fast", 1)])),
        ("claim of fifty", lambda: store.claim([ClaimRequest("fast", 50), ClaimRequest("slow", 1)])),
        ("a page", lambda: store.list_jobs(JobQuery("tenant-3"))),
        ("everybody's page", lambda: store.list_jobs(JobQuery(None))),
        ("one more", jobs.call),
        ("a look", store._claims.look),
    ):
        server.do("CONFIG", "RESETSTAT")
        for _ in range(CLAIMS):
            if name == "a look":
                store._claims._looked_at = [-1e9]
            await ask()
        calls, usec = spent(server)["evalsha"]
        figures.append((name, usec / calls))
    slow = server.do("SLOWLOG", "LEN")
    report(
        f"{JOBS} jobs: {each:.0f} bytes each besides the payload, taken at {JOBS / filled_s:.0f}/s by {AT_ONCE}; on the server "
        + ", ".join(f"{name} {us:.0f} us" for name, us in figures)
        + f"; {slow} operations above {SLOW_US // 1000} ms"
    )
    await store.aclose()
    assert each <= JOB_BYTES
    assert figures[0][1] <= CLAIM_US
    assert slow <= MOST_SLOW


async def test_operations_per_line_of_a_batch(server: RedisServer, report: Report) -> None:
    """Chunks side by side commit on one beat, as the worker does; claims, renewals and ends are counted, too."""
    store = await opened(server)
    jobs = Jobs(store, time.time)  # type: ignore[arg-type]  # its clock
    await jobs.batch()
    check = await jobs.claim()
    before = operations(server)
    await store.begin_lines(check, ChunkPlan(LINES, PER_CHUNK, PARALLEL), {})
    began = time.monotonic()
    while (await jobs.get(check.job.id)).tally.completed < LINES:
        works = [work for work in await store.claim([ClaimRequest("fast", PARALLEL)]) if work.piece != FINALISE]
        await asyncio.gather(*[run_chunk(store, work) for work in works])
    seconds = time.monotonic() - began
    done = operations(server) - before
    (final,) = await store.claim([ClaimRequest("fast", 1)])
    await jobs.finish(final, JobState.SUCCEEDED)
    report(f"{LINES} lines at {LINES / seconds:.0f}/s: {done / LINES:.3f} operations of the Redis per line")
    await store.aclose()
    assert done / LINES <= OPERATIONS_PER_LINE


async def run_chunk(store: RedisJobStore, work: ClaimedWork) -> None:
    """Lines at the chunk's part of the rate, committed on the beat."""
    began, first, done = time.monotonic(), work.piece * PER_CHUNK, 0
    while done < PER_CHUNK:
        await asyncio.sleep(BEAT_S - time.monotonic() % BEAT_S)
        until = min(PER_CHUNK, int((time.monotonic() - began) * PER_S / PARALLEL))
        lines = [LineResult(first + line, False, b"x" * 500) for line in range(done, until)]
        if lines:
            assert (await store.commit(work, lines)).is_ours
        done = until
    assert (await store.complete_chunk(work, chunk(work.piece))).is_ours


async def test_a_store_that_nobody_uses_asks_once_a_second(server: RedisServer, report: Report) -> None:
    """A worker's claim each second is all: it promotes, takes over, lets deadlines pass and counts."""
    store = await opened(server)
    await store.claim([ClaimRequest("fast", 1)])
    before = operations(server)
    for _ in range(IDLE_S):
        await store.claim([ClaimRequest("fast", 10), ClaimRequest("slow", 10)])
        store.tick()
        await asyncio.sleep(1.0)
    done = operations(server) - before
    report(f"{done} operations in {IDLE_S} seconds without work")
    await store.aclose()
    assert done <= IDLE_S + 1


def used(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("memory")["used_memory"])
