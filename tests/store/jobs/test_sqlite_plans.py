"""How SQLite finds what is asked for often: by an index, whatever waits besides. Counted, not timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.policy.jobs.dead_letters import LetterPage
from gateway.policy.jobs.job import ClaimAsk, JobFlag, JobQuery, JobState
from gateway.store.jobs.sqlite.store import SqliteJobStore
from tests.store.conformance import Wall
from tests.store.jobs.support import DAY_S, ERROR, Jobs, ids
from tests.store.sqlite_support import Disk


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


async def test_no_query_scans_a_table(tmp_path: Path, wall: Wall, disk: Disk) -> None:
    """Of jobs, payloads, pieces or files, in the whole life of jobs and batches, a start among it."""
    path = str(tmp_path / "jobs.db")
    jobs = Jobs(SqliteJobStore(path, wall, connect=disk.connect), wall)
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
        await jobs.tick(DAY_S)
        await store.list_jobs(JobQuery("t"))
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
        jobs.store = SqliteJobStore(path, wall, connect=disk.connect)
        await jobs.finish(await jobs.until_finalise())
    await jobs.store.aclose()

    assert scans(path, disk) == []


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
        works = await store.claim([ClaimAsk("fast", 5)])
        counts.append(len(disk.statements))
        assert len(set(ids(works))) == 5
    await store.aclose()

    assert counts[0] == counts[1]


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
