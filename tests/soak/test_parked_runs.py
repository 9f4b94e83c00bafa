"""What parked runs take in a file and in a Redis, and how soon a run is looked at after the last of a thousand children."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.core.clock import SystemClock
from gateway.core.types import SharedState
from gateway.products.jobs.model import (
    CHECK,
    FINALISE,
    ChunkPlan,
    ClaimedWork,
    ClaimRequest,
    JobEnd,
    JobKind,
    JobState,
    NewJob,
    nothing_follows,
)
from gateway.products.jobs.redis import open_store
from gateway.products.jobs.rules import SegmentRules
from gateway.products.jobs.sqlite_store import SqliteJobStore
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.transitions import OpenBounds
from gateway.products.jobs.worker import JobWorker, RunningWork
from tests.soak.conftest import Report
from tests.support.job_stores import Jobs, chunk, line
from tests.support.redis_servers import redis_server

pytestmark = pytest.mark.soak

RUNS, AT_ONCE = 10_000, 200
RUN_BYTES = 2048
CHILDREN, PER_CHUNK = 1_000, 100
SOON_S, QUIET_S = 0.05, 1.0
MARKS = {"steps": {f"step-{number}": 2 for number in range(5)}, "settled": 3}
PAYLOAD = orjson.dumps({"pipeline": "contract-report", "source": "s" * 300, "input": {"document": "d" * 100}})
"""Of a small pipeline: what is longer is paid for by its bytes."""


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncIterator[tuple[JobStore, Callable[[], int]]]:
    """A store, and how many bytes it takes where it keeps its jobs."""
    bounds = OpenBounds(10 * RUNS, 10 * RUNS)
    if kind == "sqlite":
        path = folder / "jobs.db"
        store = SqliteJobStore(str(path), time.time, bounds)

        def size() -> int:
            return sum(file.stat().st_size for file in folder.glob("jobs.db*") if not file.name.endswith("-shm"))

        yield store, size
        await store.aclose()
        return
    with redis_server() as server, server.client() as client:
        redis = await open_store(
            SharedState(server.url, namespace="gateway"), "r1", None, bounds, "fsync", nothing_follows
        )

        def used() -> int:
            keys: Any = client.scan_iter(count=1000)
            return sum(client.memory_usage(key, samples=0) for key in keys)

        yield redis, used
        await redis.aclose()


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_ten_thousand_parked_runs(kind: str, tmp_path: Path, report: Report) -> None:
    """A row each, with its marks and payload; no piece and no task."""
    async with opened(kind, tmp_path) as (store, size):
        jobs = Jobs(store, time.time)  # type: ignore[arg-type]  # its clock
        about = {"endpoint": "/v1/chat/completions", "pipeline": "contract-report", "digest": "0" * 32}
        before, tasks = size(), len(asyncio.all_tasks())
        for first in range(0, RUNS, AT_ONCE):
            names = [f"run_gw{first + number:022}" for number in range(AT_ONCE)]
            await store.accept([jobs.new(id=name, kind=JobKind.RUN, about=about, payload=PAYLOAD) for name in names])
            left = AT_ONCE
            while left:
                works = await store.claim([ClaimRequest("fast", left)])
                await asyncio.gather(*[store.park(work, [], MARKS) for work in works])
                left -= len(works)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) <= tasks
        store.tick()
        assert await store.claim([ClaimRequest("fast", 10)]) == []
        if kind == "sqlite":
            await store.aclose()
        each = (size() - before) / RUNS
        report(f"{kind}: {RUNS} parked runs take {each:.0f} bytes each, {len(PAYLOAD)} of them the payload")
    assert each <= RUN_BYTES


class Looks:
    """A worker's run that begins its children at first, and from then on is looked at whenever it is given."""

    def __init__(self, store: JobStore, *, is_batch: bool) -> None:
        self.store = store
        self.is_batch = is_batch
        self.at: list[float] = []
        self.left = 1 if is_batch else CHILDREN
        self.last_end = (0.0, 0.0)
        """When it was written, and when that was known."""
        self.is_over = asyncio.Event()

    async def run(self, running: RunningWork) -> None:
        work, store = running.work, self.store
        if work.job.kind is JobKind.RUN:
            self.at.append(time.monotonic())
            await store.park(work, self._children(work.job.id) if len(self.at) == 1 else [], {})
        elif work.piece == CHECK:
            await store.begin_lines(work, ChunkPlan(CHILDREN, PER_CHUNK, 4), {})
        elif self.is_batch and work.piece != FINALISE:
            numbers = range(work.piece * PER_CHUNK, (work.piece + 1) * PER_CHUNK)
            await store.commit(work, [line(number) for number in numbers])
            await store.complete_chunk(work, chunk(work.piece))
        else:
            await self._end(work)

    def _children(self, run_id: str) -> list[NewJob]:
        jobs = Jobs(self.store, time.time)  # type: ignore[arg-type]  # its clock
        if self.is_batch:
            return [jobs.new_batch(id="batch", parent=run_id)]
        return [jobs.new(id=f"c{number}", parent=run_id) for number in range(CHILDREN)]

    async def _end(self, work: ClaimedWork) -> None:
        began = time.monotonic()
        await self.store.finish(work, JobEnd(JobState.SUCCEEDED))
        self.last_end = (began, time.monotonic())
        self.left -= 1
        if not self.left:
            self.is_over.set()


@pytest.mark.parametrize("is_batch", [True, False], ids=["a batch", "single"])
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_a_run_is_looked_at_after_the_last_of_its_children(
    kind: str, is_batch: bool, tmp_path: Path, report: Report
) -> None:
    """At once, and then never again."""
    async with opened(kind, tmp_path) as (store, _):
        looks = Looks(store, is_batch=is_batch)
        segments = [SegmentRules("fast", concurrency=64), SegmentRules("runs")]
        worker = JobWorker(store, looks.run, SystemClock(), lambda: segments)
        worker.start()
        jobs = Jobs(store, time.time)  # type: ignore[arg-type]  # its clock
        await jobs.accept(jobs.new(kind=JobKind.RUN, id="run", segment="runs"))
        await looks.is_over.wait()
        await asyncio.sleep(QUIET_S)
        run = await jobs.get("run")
        written, known = looks.last_end
        since = [at for at in looks.at if at >= written]
        report(
            f"{kind}, {'a batch' if is_batch else f'{CHILDREN} single'}: {len(looks.at)} looks, {len(since)} of them since the "
            f"last end, {1000 * (since[-1] - known):.1f} ms after it was known"
        )
        await worker.aclose()
        assert run.state is JobState.WAITING
        assert len([at for at in since if at > known]) <= 1
        assert since[-1] - known <= SOON_S
        assert len(looks.at) == 2 or not is_batch
