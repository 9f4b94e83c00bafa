"""The stores of jobs that the suite runs on: a new one on every call, closed when the test is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.job_ports import JobStore
from gateway.store.jobs.memory.store import MemoryJobStore
from gateway.store.jobs.sqlite.store import SqliteJobStore
from gateway.store.jobs.transitions import OpenBounds
from tests.store.conformance import Wall
from tests.store.jobs.support import Jobs, MakeJobStore
from tests.store.sqlite_support import connect_hastily

STORES = ["memory", "sqlite"]


@pytest.fixture(params=STORES)
async def make_store(request: pytest.FixtureRequest, tmp_path: Path, wall: Wall) -> AsyncIterator[MakeJobStore]:
    """Makes stores of one implementation."""
    made: list[JobStore] = []

    def make(bounds: OpenBounds) -> JobStore:
        if request.param == "memory":
            made.append(MemoryJobStore(wall, bounds))
        else:
            path = str(tmp_path / f"jobs-{len(made)}.db")
            made.append(SqliteJobStore(path, wall, bounds, connect=connect_hastily))
        return made[-1]

    yield make
    for store in made:
        await store.aclose()


@pytest.fixture
def jobs(make_store: MakeJobStore, wall: Wall) -> Jobs:
    """An empty store with room for everything."""
    return Jobs(make_store(OpenBounds()), wall)
