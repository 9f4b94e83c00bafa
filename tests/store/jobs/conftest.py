"""The stores of jobs that the suite runs on: a new one on every call, closed when the test is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.products.jobs.memory import MemoryJobStore
from gateway.products.jobs.sqlite_store.store import SqliteJobStore
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.transitions.transitions import OpenBounds
from gateway.products.responses.log.shared_logs import KeptBounds
from tests.store.conformance import Wall
from tests.store.jobs.redis_support import JobLender, job_lender
from tests.store.jobs.support import Jobs, MakeJobStore
from tests.store.sqlite_support import connect_hastily

STORES = ["memory", "sqlite", "redis"]


@pytest.fixture
async def job_lends(redis_url: str) -> AsyncIterator[JobLender]:
    """Makes stores on one server."""
    async with job_lender(redis_url) as lends:
        yield lends


@pytest.fixture(params=STORES)
async def make_store(request: pytest.FixtureRequest, tmp_path: Path, wall: Wall) -> AsyncIterator[MakeJobStore]:
    """Makes stores of one implementation."""
    made: list[JobStore] = []
    context = AsyncExitStack()
    lends = None
    if request.param == "redis":
        lends = await context.enter_async_context(job_lender(request.getfixturevalue("redis_url")))

    def make(bounds: OpenBounds, kept_bounds: KeptBounds | None = None) -> JobStore:
        if request.param == "memory":
            made.append(MemoryJobStore(wall, bounds, kept_bounds=kept_bounds))
        elif lends is not None:
            made.append(lends.make(bounds, wall, kept_bounds=kept_bounds))
        else:
            path = str(tmp_path / f"jobs-{len(made)}.db")
            made.append(SqliteJobStore(path, wall, bounds, kept_bounds=kept_bounds, connect=connect_hastily))
        return made[-1]

    yield make
    for store in made:
        await store.aclose()
    await context.aclose()


@pytest.fixture
def jobs(make_store: MakeJobStore, wall: Wall) -> Jobs:
    """An empty store with room for everything."""
    return Jobs(make_store(OpenBounds()), wall)
