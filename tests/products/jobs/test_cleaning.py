"""What durable work leaves behind is cleared away, a little at a time."""

from __future__ import annotations

import pytest

from gateway.products.jobs.model import ClaimRequest, JobEnd, JobKind, JobState, NewJob, StoredFile
from gateway.products.jobs.upkeep import AT_ONCE, MOST_STEPS, JobCleaning
from tests.products.batches.test_batch_output import batch
from tests.support.flow import FakeClock
from tests.support.memory_blobs import MemoryBlobs
from tests.support.memory_store.store import MemoryJobStore

DAY_S = 86_400.0


async def test_old_jobs_and_blobs_that_nobody_needs_go() -> None:
    """Once they are as old as they may become; files live by their own time."""
    clock = FakeClock()
    store, blobs = MemoryJobStore(clock.wall), MemoryBlobs()
    cleaning = JobCleaning(store, blobs, clock, lambda: 7 * DAY_S)
    now = clock.wall()
    await store.accept([NewJob(batch(kind=JobKind.CALL, state=JobState.QUEUED, run_at=now, deadline=now + DAY_S))])
    (work,) = await store.claim([ClaimRequest("slow", 1)])
    await store.finish(work, JobEnd(JobState.SUCCEEDED))
    for name, expires_at in (("short", now + DAY_S), ("long", now + 30 * DAY_S)):
        writer = await blobs.writer(f"files/{name}")
        await writer.commit()
        await store.files.add(StoredFile(name, "t", "batch", "a", 1, now, expires_at, f"files/{name}"))

    await cleaning.run_once()
    assert await store.find(work.job.id, None) is not None
    clock.advance(7 * DAY_S + 1)
    await cleaning.run_once()

    assert await store.find(work.job.id, None) is None
    assert blobs.names == ["files/long"]


async def test_only_so_much_is_done_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that always has more is left to others in between."""

    asked = []

    async def forgotten(_before: float, most: int) -> int:
        asked.append(most)
        return most

    async def garbage(most: int) -> list[str]:
        asked.append(most)
        return [f"files/{number}" for number in range(most)]

    clock = FakeClock()
    store = MemoryJobStore(clock.wall)
    monkeypatch.setattr(store, "forget_ended", forgotten)
    monkeypatch.setattr(store.files, "find_garbage", garbage)

    await JobCleaning(store, MemoryBlobs(), clock, lambda: 0.0).run_once()

    assert len(asked) == 2 * MOST_STEPS
    assert AT_ONCE * MOST_STEPS * 60 * 24 > 1_000_000


async def test_what_this_process_remembers_of_a_job_goes_when_another_has_ended_it() -> None:
    """It would stay for ever: nobody here hears of the end."""
    clock = FakeClock()
    store, forgotten = MemoryJobStore(clock.wall), list[str]()
    now = clock.wall()
    await store.accept([NewJob(batch(kind=JobKind.CALL, state=JobState.QUEUED, run_at=now, deadline=now + DAY_S))])
    (work,) = await store.claim([ClaimRequest("slow", 1)])
    remembered = [work.job.id, "batch_gone"]
    cleaning = JobCleaning(store, MemoryBlobs(), clock, lambda: DAY_S, lambda: remembered, forgotten.append)

    await cleaning.run_once()
    assert forgotten == ["batch_gone"]
    await store.finish(work, JobEnd(JobState.SUCCEEDED))
    await cleaning.run_once()

    assert forgotten == ["batch_gone", work.job.id, "batch_gone"]
