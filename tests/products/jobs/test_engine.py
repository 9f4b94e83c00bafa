"""The engine of durable work: one store, opened once, whoever asks for it and leaves again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.core.errors import StoreUnusable
from gateway.drivers.durability import JobsUnavailable
from gateway.products.jobs.store import JobStore, no_jobs
from gateway.products.jobs.worker import RETRY_S, JobEngine
from tests.support.flow import FakeClock
from tests.support.memory_store.store import MemoryJobStore


class Opening:
    """A store that takes long to open."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.go_on = asyncio.Event()
        self.stores: list[JobStore] = []
        self.problem = ""
        self.engine = JobEngine(self.open, lambda: True, None, self.clock, waits=False)

    async def open(self) -> JobStore:
        """Stands for a file, or a server."""
        await self.go_on.wait()
        if self.problem:
            raise StoreUnusable(self.problem)
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


async def test_a_store_that_cannot_be_opened_is_opened_later_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    """The start waits for none that is far away; the log tells once of the trouble and once of its end."""
    caplog.set_level(logging.WARNING, logger="gateway.jobs")
    opening = Opening()
    engine = opening.engine
    await engine.start()
    assert engine.health() == "opening"
    opening.problem = "the Redis evicts: set maxmemory-policy noeviction"
    opening.go_on.set()
    with pytest.raises(JobsUnavailable):
        await engine.store()
    for _ in range(2 * int(RETRY_S)):
        opening.clock.advance(1.0)
        engine.tick()
        await asyncio.sleep(0.001)
    assert engine.health() == "unavailable"

    opening.problem = ""
    opening.clock.advance(RETRY_S)
    engine.tick()
    await engine.store()

    assert engine.health() == opening.stores[0].durability
    assert caplog.messages == ["jobs are off: the Redis evicts: set maxmemory-policy noeviction", "jobs are on again"]
    await engine.drain(0.0)


async def test_nothing_is_opened_by_the_clock_that_nobody_wants() -> None:
    """A gateway without jobs stays without them."""
    opening = Opening()
    engine = JobEngine(opening.open, lambda: False, None, opening.clock)
    await engine.start()
    engine.tick()
    await asyncio.sleep(0)

    assert engine.health() == "not used yet"
    await engine.drain(0.0)


async def test_an_opening_that_fails_in_a_way_nobody_has_thought_of_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """In the log, once, and in `/readyz`."""
    clock = FakeClock()

    async def fail() -> JobStore:
        raise ValueError("odd")

    engine = JobEngine(fail, lambda: True, None, clock, waits=False)
    for _ in range(2):
        with pytest.raises(JobsUnavailable, match="the log of the gateway says why"):
            await engine.store()
        clock.advance(RETRY_S + 1)

    assert engine.health() == "unavailable"
    assert [record.getMessage() for record in caplog.records] == ["jobs are off"]


async def test_whoever_reads_before_there_are_jobs_finds_an_empty_store_that_ends_with_the_engine() -> None:
    """No file is made for that."""
    opening = Opening()
    engine = JobEngine(opening.open, lambda: False, None, opening.clock, lambda: no_jobs(opening.clock.wall))

    store = await engine.reader()

    assert await store.find("job_1", "tenant") is None
    assert await engine.reader() is store
    await engine.drain(0.0)
    assert opening.stores == []
    with pytest.raises(JobsUnavailable):
        await store.find("job_1", "tenant")
    with pytest.raises(JobsUnavailable):
        await engine.reader()


async def test_an_empty_store_that_cannot_be_opened_is_opened_for_the_next_reader() -> None:
    """One failure is not for ever."""
    opening = Opening()
    found: list[Exception | JobStore] = [StoreUnusable("no memory"), MemoryJobStore(opening.clock.wall)]

    def nothing() -> JobStore:
        one = found.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    engine = JobEngine(opening.open, lambda: False, None, opening.clock, nothing)

    with pytest.raises(JobsUnavailable):
        await engine.reader()
    assert isinstance(await engine.reader(), MemoryJobStore)
    await engine.drain(0.0)
