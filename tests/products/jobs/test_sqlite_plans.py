"""How SQLite finds what is asked for often: by an index, whatever waits besides. Counted, not timed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.features.runs.rules import label_change
from gateway.features.runs.step import RunQuery, RunToChange
from gateway.products.jobs.dead_letters.rules import LetterPage
from gateway.products.jobs.model import ClaimRequest, JobFlag, JobKind, JobQuery, JobState
from gateway.products.jobs.response_store import KeptBounds
from gateway.products.jobs.sqlite_store import SqliteJobStore
from tests.features.runs.test_run_store import room, step
from tests.support.conformance import Wall
from tests.support.job_stores import DAY_S, ERROR, Jobs, ids, part
from tests.support.sqlite_support import Disk


@pytest.fixture
def disk() -> Disk:
    return Disk()


async def test_a_new_job_is_looked_for_once(tmp_path: Path, wall: Wall, disk: Disk) -> None:
    """Whether it is there already is not asked again when it is written: thousands are taken in a second."""
    jobs = Jobs(SqliteJobStore(str(tmp_path / "jobs.db"), wall, connect=disk.connect), wall)
    await jobs.call()
    disk.statements.clear()

    await jobs.call()
    await jobs.store.aclose()

    assert len([sql for sql in disk.statements if "FROM jobs WHERE id" in sql]) == 1
    assert not [sql for sql in disk.statements if "DELETE FROM payloads" in sql]


TIGHT = KeptBounds(log_bytes=100, tenant_bytes=100)


async def keep_responses(jobs: Jobs) -> None:
    """All that happens to logs and responses, want of room among it."""
    store = jobs.store
    for _ in range(2):
        work = await jobs.running_response()
        for number in range(6):
            await store.events.append(work, part(number))
        await store.events.read(work.job.id, "t", 0)
        await jobs.give_back(work)
        again = await jobs.claim()
        await store.events.append(again, part(0))
        await jobs.finish(again)
        await store.events.drop(again.job.id)
        for number in range(5):
            await store.responses.put(jobs.response(f"r{number}", body=b"x" * 30, previous_id=f"r{number - 1}"))
        await store.responses.chain("r4", "t", 10)
        await store.responses.remove("r4", "t")
        jobs.wall.advance(DAY_S)
        await store.responses.trim(10)


async def test_no_query_scans_a_table(tmp_path: Path, wall: Wall, disk: Disk) -> None:
    """Of jobs, payloads, pieces or files, in the whole life of jobs and batches, a start among it."""
    path = str(tmp_path / "jobs.db")
    jobs = Jobs(SqliteJobStore(path, wall, connect=disk.connect, kept_bounds=TIGHT), wall)
    for _ in range(2):
        store = jobs.store
        await jobs.finish(await jobs.running_call())
        await jobs.running_batch()
        await jobs.finish(await jobs.until_finalise())
        paused = await jobs.call(run_at=wall() + 10)
        await store.flag(paused.id, "t", JobFlag.PAUSE)
        await store.flag(paused.id, "t", JobFlag.RESUME)
        await jobs.call(deadline=wall() + 5)
        await store.files.add(jobs.file("f1"))
        await store.files.remove("f1", "t")
        await jobs.take_garbage(10)
        await store.files.used(["files/f1"])
        await store.files.bytes_of("t")
        await store.identity()
        await keep_responses(jobs)
        await jobs.tick(DAY_S)
        await run_and_child(jobs)
        await store.list_jobs(JobQuery("t"))
        await use_runs(jobs)
        await jobs.finish(await jobs.running_call(), JobState.FAILED, error=ERROR, is_dead=True)
        for group in await store.dead.groups(5):
            letters = await store.dead.page(LetterPage(group.id))
            await store.dead.payload(letters[0].id)
        await store.dead.trim(0.0, 0, 10)
        await store.dead.trim(wall() + 1, 0, 10)
        await store.forget_ended(wall() + 1, 10)
        await jobs.running_batch()
        await jobs.claim_all()
        await jobs.tick()
        await store.aclose()
        jobs.store = SqliteJobStore(path, wall, connect=disk.connect, kept_bounds=TIGHT)
        await jobs.finish(await jobs.until_finalise())
    await jobs.store.aclose()

    assert scans(path, disk) == []


async def use_runs(jobs: Jobs) -> None:
    """Everything that is asked of runs, with too little room for them."""
    runs = jobs.store.runs
    room(jobs, 4000)
    for number in range(4):
        await runs.keep_step(step(jobs, f"step-{number}", bytes(1000)))
        await runs.keep_step(step(jobs, run=f"order-{number}"))
    await runs.change([RunToChange("t", "order-9", label_change(jobs.wall(), workflow="w"))])
    await runs.find_step("t", "order-3", "extract")
    await runs.find("t", "order-3")
    for tenant in ("t", None):
        await runs.list_runs(RunQuery(tenant, 10, ("t", "order-9"), "w"))
    assert runs.early > 1
    await runs.forget("t", "order-9")
    await runs.trim(jobs.wall() + 1, 10)


async def run_and_child(jobs: Jobs) -> None:
    """A run that waits, is cancelled, and waits again for its children, which are listed."""
    run = await jobs.accept(jobs.new(kind=JobKind.RUN))
    for _ in range(2):
        work = await jobs.claim()
        await jobs.store.park(work, [jobs.new(parent=work.job.id)], {})
        await jobs.finish(await jobs.claim())
        await jobs.store.list_jobs(JobQuery("t", parent=work.job.id))
    await jobs.store.park(await jobs.claim(), [], {})
    await jobs.store.flag(run.job.id, "t", JobFlag.CANCEL)
    await jobs.give_back(await jobs.claim())
    await jobs.finish(await jobs.claim(), JobState.CANCELLED)


def scans(path: str, disk: Disk) -> list[str]:
    """The statements that read a table, or an index that is not partial, from one end to the other."""
    found = []
    db = disk.connect(path)
    for sql in {sql for sql in disk.statements if sql.startswith(("SELECT", "UPDATE", "DELETE"))}:
        plan = db.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * sql.count("?")).fetchall()
        is_scan = [row[3] for row in plan if row[3].startswith("SCAN") and not row[3].endswith(SMALL)]
        found += [f"{sql}: {is_scan}"] if is_scan else []
    db.close()
    return found


SMALL = ("pieces_claimed", "totals", "garbage", "sqlite_master", "dead_groups", "dead_bytes", "CONSTANT ROW")
"""What there is little of."""


async def test_a_claim_reads_what_it_gives(tmp_path: Path, wall: Wall, disk: Disk) -> None:
    """As many statements with a thousand pieces in its way as with ten."""
    store = SqliteJobStore(str(tmp_path / "jobs.db"), wall, connect=disk.connect)
    jobs = Jobs(store, wall)
    counts = []
    for number in (10, 1000):
        await store.accept([jobs.new() for _ in range(number)])
        await store.accept([jobs.new(run_at=wall() + DAY_S) for _ in range(number)])
        disk.statements.clear()
        works = await store.claim([ClaimRequest("fast", 5)])
        counts.append(len(disk.statements))
        assert len(set(ids(works))) == 5
    await store.aclose()

    assert counts[0] == counts[1]


async def test_responses_cost_the_same_however_many_there_are(tmp_path: Path, wall: Wall, disk: Disk) -> None:
    """As many steps of SQLite's machine for each of them with a thousand of a tenant as with ten, want of room among it."""
    bounds = KeptBounds(tenant_bytes=1_000_000)
    store = SqliteJobStore(str(tmp_path / "jobs.db"), wall, connect=disk.connect, kept_bounds=bounds)
    jobs, counts = Jobs(store, wall), []
    body = b"x" * 998
    for number in (10, 1000):
        await asyncio.gather(*(store.responses.put(jobs.response(f"r{one}", body=body)) for one in range(number)))
        disk.statements.clear()
        await store.responses.put(jobs.response(f"new{number}", body=body))
        await store.responses.find(f"r{number - 1}", "t")
        await store.responses.remove(f"r{number - 1}", "t")
        await store.responses.trim(10)
        counts.append(len(disk.statements))
    assert store.responses.early == 1
    assert counts[1] - counts[0] <= 4  # the one that made room
    await store.aclose()


async def test_a_store_that_waits_asks_nothing_of_the_disk(tmp_path: Path, wall: Wall, disk: Disk) -> None:
    """Until something is due, or half a minute is over; and what is written meanwhile is found at once."""
    store = SqliteJobStore(str(tmp_path / "jobs.db"), wall, connect=disk.connect)
    jobs = Jobs(store, wall)
    await jobs.call(id="tomorrow", run_at=wall() + DAY_S)
    await jobs.call(id="soon", run_at=wall() + 40)
    for _ in range(2):
        await jobs.tick()
    disk.statements.clear()
    for _ in range(29):
        wall.advance(1)
        store.tick()
        assert await jobs.claim_all() == []
    assert disk.statements == []

    await jobs.call(id="now")
    assert ids(await jobs.claim_all()) == ["now"]
    await jobs.tick(1)
    disk.statements.clear()
    await jobs.tick(10)
    assert disk.statements != []
    assert ids(await jobs.claim_all()) == ["soon"]
    await store.aclose()
