"""The engine of durable work: one store, opened once, whoever asks for it and leaves again."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gateway.job_ports import JobStore
from gateway.jobs.engine import JobEngine
from gateway.policy.jobs.errors import JobsUnavailable
from gateway.store.jobs.memory.store import MemoryJobStore
from tests.flow.support import FakeClock


class Opening:
    """A store that takes long to open."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.go_on = threading.Event()
        self.stores: list[JobStore] = []
        self.engine = JobEngine(self.open, lambda: True, None, self.clock)

    def open(self) -> JobStore:
        """Is called in a thread."""
        assert self.go_on.wait(10)
        self.stores.append(MemoryJobStore(self.clock.wall))
        return self.stores[-1]


async def test_whoever_leaves_while_the_store_opens_does_not_lose_it_for_the_others() -> None:
    """An opened file has one owner: forgotten, it would keep everybody out until the next start."""
    opening = Opening()
    first, second = (asyncio.create_task(opening.engine.store()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    opening.go_on.set()
    store = await second

    assert [store] == opening.stores
    assert await opening.engine.store() is store
    await opening.engine.drain(0.0)


async def test_a_store_that_is_open_only_at_the_end_is_closed_at_once() -> None:
    """Nothing begins in a gateway that stops, and nothing stays open."""
    opening = Opening()
    asked = asyncio.create_task(opening.engine.store())
    await asyncio.sleep(0)
    draining = asyncio.create_task(opening.engine.drain(0.0))
    await asyncio.sleep(0)
    opening.go_on.set()
    await draining

    with pytest.raises(JobsUnavailable):
        await asked
    assert opening.engine.opened is None
    with pytest.raises(JobsUnavailable):
        await opening.stores[0].accept([])
