"""A disk that fails under the jobs file: the truth is told, nothing that was refused happens, and it ends by itself."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.drivers.durability import JobsUnavailable
from gateway.products.jobs.model import ChunkPlan, FileQuery, JobEnd, JobFlag, JobKind, JobQuery, JobState, NewJob
from gateway.products.jobs.sqlite_store import SqliteJobStore
from tests.support.conformance import Wall
from tests.support.job_stores import ANSWER, DAY_S, Jobs, chunk, ids, key, line, part
from tests.support.sqlite_support import Disk, Monotonic, failing, fill

FULL = failing("database or disk is full", sqlite3.SQLITE_FULL, "COMMIT")
FSYNC = failing("disk I/O error", sqlite3.SQLITE_IOERR | 4 << 8, "COMMIT")
UNREADABLE = failing("disk I/O error", sqlite3.SQLITE_IOERR | 1 << 8, "SELECT", "INSERT", "DELETE", "UPDATE", "REPLACE")


class FaultyJobs(Jobs):
    """A store on a disk that does as it is told, and a log that is read."""

    def __init__(self, path: str, log: pytest.LogCaptureFixture) -> None:
        self.path = path
        self.disk, self.clock = Disk(), Monotonic()
        self._log = log
        wall = Wall()
        super().__init__(self._opened(wall), wall)

    def _opened(self, wall: Wall) -> SqliteJobStore:
        return SqliteJobStore(self.path, wall, connect=self.disk.connect, monotonic=self.clock)

    async def restart(self) -> None:
        await self.store.aclose()
        self.store = self._opened(self.wall)

    def fail(self, before: Any) -> None:
        self.disk.before = before

    async def heal(self) -> None:
        """The disk works, and the next tick tries it."""
        self.fail(lambda sql: None)
        self.disk.most_pages = 0
        self.clock.now += 60.0
        await self.tick()

    @property
    def is_well(self) -> bool:
        assert isinstance(self.store, SqliteJobStore)
        return self.store.is_well

    def said(self, words: str = "") -> list[str]:
        """What was warned of."""
        records = [one for one in self._log.records if one.levelno >= logging.WARNING]
        return [one.getMessage() for one in records if words in one.getMessage()]

    @asynccontextmanager
    async def stalled(self, asking: Callable[[], Awaitable[Any]]) -> AsyncIterator[asyncio.Future[Any]]:
        """The disk says nothing to what is asked; it is given up, and the disk goes on behind the block."""
        stuck, freed = threading.Event(), threading.Event()

        def before(sql: str) -> None:
            if sql == "COMMIT":
                stuck.set()
                assert freed.wait(20)

        self.fail(before)
        asked = asyncio.ensure_future(asking())
        assert await asyncio.get_running_loop().run_in_executor(None, stuck.wait, 20)
        self.clock.now += 6.0
        self.store.tick()
        yield asked
        self.fail(lambda sql: None)
        freed.set()
        while not self.is_well:  # until the thread is heard  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)


@pytest.fixture
async def jobs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[FaultyJobs]:
    made = FaultyJobs(str(tmp_path / "jobs.db"), caplog)
    yield made
    made.fail(lambda sql: None)
    await made.store.aclose()


@contextmanager
def refused() -> Iterator[None]:
    """It is told to everybody without saying where the gateway keeps its files."""
    with pytest.raises(JobsUnavailable) as told:
        yield
    assert (told.value.status, told.value.code) == (503, "jobs_unavailable")
    assert "/" not in told.value.message
    assert told.value.retry_after_s


def writes(jobs: Jobs, work: Any, check: Any) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every method that writes, with claims that hold."""
    store = jobs.store
    return {
        "accept": lambda: store.accept([jobs.new()]),
        "claim": jobs.claim_all,
        "give back": lambda: jobs.give_back(work),
        "begin": lambda: store.begin_lines(check, ChunkPlan(2, 1, 1), {}),
        "commit": lambda: store.commit(work, [line(0)]),
        "complete": lambda: store.complete_chunk(work, chunk(0)),
        "finish": lambda: store.finish(work, JobEnd(JobState.FAILED), [jobs.new(id="following")]),
        "flag": lambda: store.flag(work.job.id, None, JobFlag.CANCEL),
        "add file": lambda: store.files.add(jobs.file("f2")),
        "remove file": lambda: store.files.remove("f1", "t"),
        "garbage": lambda: store.files.find_garbage(10),
        "forgotten": lambda: store.files.forget_garbage(["files/f1"]),
        "append": lambda: store.events.append(work, part(0)),
        "drop": lambda: store.events.drop(work.job.id),
        "put": lambda: store.responses.put(jobs.response("r2")),
        "remove": lambda: store.responses.remove("r1", "t"),
        "trim": lambda: store.responses.trim(10),
        "forget": lambda: store.forget_ended(jobs.wall() + DAY_S, 10),
    }


def reads(jobs: Jobs, work: Any) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every method that reads."""
    store = jobs.store
    return {
        "renew": lambda: store.renew([work]),
        "results": lambda: store.results(work),
        "chunks": lambda: store.chunk_results(work.job.id),
        "open": lambda: store.open_results(work),
        "find": lambda: store.find(work.job.id, None),
        "answer": lambda: store.answer(work.job.id, None),
        "list": lambda: store.list_jobs(JobQuery(None)),
        "file": lambda: store.files.find("f1", "t"),
        "files": lambda: store.files.page(FileQuery("t")),
        "bytes": lambda: store.files.bytes_of(None),
        "used": lambda: store.files.used(["files/f1"]),
        "log": lambda: store.events.read(work.job.id, "t", -1),
        "response": lambda: store.responses.find("r1", "t"),
        "chain": lambda: store.responses.chain("r1", "t", 10),
        "identity": store.identity,
    }


@pytest.mark.parametrize("fault", [FULL, FSYNC, UNREADABLE], ids=["full", "fsync", "unreadable"])
async def test_every_write_is_refused_and_changes_nothing(jobs: FaultyJobs, fault: Any) -> None:
    """Neither now nor when the disk works again; it is said once, with the path and what to do, and once that it is over."""
    await jobs.store.files.add(jobs.file("f1"))
    await jobs.store.responses.put(jobs.response("r1"))
    await jobs.running_batch(total=2)
    work = await jobs.claim()
    await jobs.batch()
    check = await jobs.claim()
    await jobs.call(id="waiting")
    before = (await jobs.store.list_jobs(JobQuery(None))).jobs

    jobs.fail(fault)
    for name, write in writes(jobs, work, check).items():
        with refused():
            await write()
        jobs.clock.now += 1.7
        assert not jobs.is_well, name
    await jobs.heal()

    assert jobs.is_well
    assert (await jobs.store.list_jobs(JobQuery(None))).jobs == before
    assert await jobs.store.renew([work, check]) == [(True, None, False)] * 2
    assert await jobs.store.results(work) == []
    assert (await jobs.store.files.page(FileQuery("t")))[0] == [jobs.file("f1")]
    assert ids(await jobs.claim_all()) == ["waiting"]
    assert (await jobs.log(work.job.id)).parts == []
    assert [one.id for name in ("r1", "r2") for one in await jobs.store.responses.chain(name, "t", 1)] == ["r1"]
    assert len(jobs.said("Jobs are refused with 503 jobs_unavailable")) == 1
    assert jobs.path in jobs.said()[0]
    assert len(jobs.said("works again; it misses")) == 1
    assert len(jobs.said()) == 2


async def test_what_cannot_be_read_is_not_said_to_be_gone(jobs: FaultyJobs) -> None:
    """A job that cannot be looked up is not a 404."""
    work = await jobs.running_call()
    jobs.fail(UNREADABLE)
    for read in reads(jobs, work).values():
        with refused():
            await read()
    await jobs.heal()

    for read in reads(jobs, work).values():
        await read()


@pytest.mark.parametrize("fault", [FULL, FSYNC], ids=["full", "fsync"])
async def test_what_was_kept_is_read_from_a_disk_that_cannot_be_written(jobs: FaultyJobs, fault: Any) -> None:
    """Answers can be fetched meanwhile."""
    work = await jobs.running_call()
    await jobs.finish(work, answer=ANSWER)
    jobs.fail(fault)
    with refused():
        await jobs.call()

    assert await jobs.store.answer(work.job.id, "t") == ANSWER
    for read in reads(jobs, work).values():
        await read()


def coming_through(jobs: FaultyJobs) -> Any:
    """For `Disk.before`: commits fail although they have been done, as when the log was written and only its fsync failed."""

    def before(sql: str) -> None:
        if sql == "COMMIT":
            jobs.fail(lambda sql: None)
            jobs.disk.last.commit()
            jobs.fail(before)
            raise sqlite3.OperationalError("disk I/O error")

    return before


async def test_a_refused_accept_does_not_appear_though_its_commit_came_through(jobs: FaultyJobs) -> None:
    """Neither as a job nor under its dedupe key, nor in the counts of open jobs; what it repeated stays."""
    named = {"dedupe_key": key("d"), "dedupe_until": jobs.wall() + DAY_S}
    old = {"dedupe_key": key("old"), "dedupe_until": jobs.wall() + DAY_S}
    await jobs.accept(jobs.new(id="old", more=old))
    jobs.fail(coming_through(jobs))
    with refused():
        await jobs.store.accept([jobs.new(id="ghost", more=named), jobs.new(more=old), jobs.new_batch(id="batch")])
    await jobs.heal()

    assert [job.id for job in (await jobs.store.list_jobs(JobQuery(None))).jobs] == ["old"]
    assert ids(await jobs.claim_all()) == ["old"]
    assert (await jobs.accept(jobs.new(id="again", more=named))).is_new
    await jobs.tick()
    assert jobs.numbers() == {"ready": 1, "claimed": 1}


async def test_nothing_stays_claimed_for_a_worker_that_was_refused(jobs: FaultyJobs) -> None:
    """Though the commit came through; it counts as no claim."""
    await jobs.call()
    jobs.fail(coming_through(jobs))
    with refused():
        await jobs.claim_all()
    await jobs.heal()

    assert (await jobs.claim()).claims == 1


@pytest.mark.parametrize("name", ["commit", "finish", "complete", "give back", "begin"])
async def test_a_refused_write_can_be_repeated_though_it_came_through(jobs: FaultyJobs, name: str) -> None:
    """Nothing is counted or begun twice: the second is a repetition, or about a claim that has ended."""
    job = await jobs.running_batch(total=2)
    work = await jobs.claim()
    await jobs.batch()
    check = await jobs.claim()
    write = writes(jobs, work, check)[name]
    jobs.fail(coming_through(jobs))
    with refused():
        await write()
    await jobs.heal()
    before = await jobs.get(job.id)
    await write()

    assert await jobs.get(job.id) == before
    assert before.tally.completed == (name == "commit")


@pytest.mark.parametrize("is_through", [False, True])
async def test_a_refused_park_is_done_once(jobs: FaultyJobs, is_through: bool) -> None:
    """With all its children, or none; so is the end of a child, which wakes the run once."""
    await jobs.accept(jobs.new(id="run", kind=JobKind.RUN))
    work = await jobs.claim()
    fault = coming_through(jobs) if is_through else FULL

    def park(child: str) -> Awaitable[object]:
        return jobs.store.park(work, [jobs.new(id=child, parent="run")], {"child": child})

    jobs.fail(fault)
    with refused():
        await park("a")
    await jobs.heal()
    assert ((await jobs.get("run")).state is JobState.WAITING) is is_through
    assert (await jobs.store.find("a", None) is not None) is is_through
    await park("a")
    child = await jobs.claim()
    jobs.fail(coming_through(jobs) if is_through else FULL)
    with refused():
        await jobs.finish(child)
    await jobs.heal()
    await jobs.finish(child)
    await jobs.store.park(await jobs.claim(), [], {})

    assert await jobs.claim_all() == []
    assert (await jobs.get("run")).marks == {"child": "a"}


async def test_a_file_that_may_not_grow_is_a_full_disk(jobs: FaultyJobs) -> None:
    """As sqlite itself says it: what is told to be there is there, the rest is not; with room it goes on."""
    jobs.disk.most_pages = 200
    accepted = []
    for number in range(20):
        try:
            accepted.append((await jobs.call(id=f"j{number}", payload=os.urandom(100_000))).id)
        except JobsUnavailable:
            jobs.clock.now += 0.3
    assert 0 < len(accepted) < 20
    assert len(jobs.said("is full")) == 1
    await jobs.heal()
    await jobs.restart()

    page = await jobs.store.list_jobs(JobQuery(None, limit=100))
    assert [job.id for job in page.jobs] == accepted[::-1]


async def test_a_real_disk_that_is_full(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody else fills it, and makes room again; no restart."""
    jobs = FaultyJobs(str(small_disk / "jobs.db"), caplog)
    accepted = [(await jobs.call()).id]
    filler = small_disk / "filler"
    fill(filler)
    refusals = 0
    for _ in range(20):
        try:
            accepted.append((await jobs.call(payload=os.urandom(10_000))).id)
        except JobsUnavailable:
            refusals += 1
            jobs.clock.now += 0.3
    filler.unlink()
    await jobs.heal()
    accepted.append((await jobs.call()).id)
    await jobs.restart()
    page = await jobs.store.list_jobs(JobQuery(None, limit=100))
    await jobs.store.aclose()

    assert refusals > 0
    assert [job.id for job in page.jobs] == accepted[::-1]


async def test_a_failing_disk_is_not_asked_all_the_time(jobs: FaultyJobs) -> None:
    """It is tried again after a second, then less and less often; the others are refused at once."""
    jobs.fail(FSYNC)
    for _ in range(300):
        with refused():
            await jobs.call()
        jobs.clock.now += 0.1

    assert 4 <= jobs.disk.count("COMMIT") <= 10 + 2 * jobs.disk.opened


async def test_a_disk_that_says_nothing_refuses_and_nothing_of_it_appears(jobs: FaultyJobs) -> None:
    """Who waits is told after a while, the next ones at once; when it wakes up, what was refused is not there."""
    async with jobs.stalled(lambda: jobs.call(id="ghost")) as asked:
        with refused():
            await asked
        with refused():
            await jobs.call(id="second")
        with refused():
            await jobs.get("ghost")
        assert not jobs.is_well
    await jobs.tick()

    assert (await jobs.store.list_jobs(JobQuery(None))).jobs == []
    assert len(jobs.said("said nothing")) == 1
    assert len(jobs.said("answers again")) == 1
    await jobs.call(id="after")
    assert ids(await jobs.claim_all()) == ["after"]


async def test_a_replacement_that_was_refused_gives_its_place_back(jobs: FaultyJobs) -> None:
    """What was scheduled before has its payload and its time again, and can be replaced anew."""
    debounced = {"debounce_key": key("d"), "debounce_wait_s": 10.0, "debounce_max_s": 60.0}

    def saved(payload: bytes) -> NewJob:
        return jobs.new(payload=payload, run_at=jobs.wall() + 10, more=debounced)

    first = (await jobs.accept(saved(b"first"))).job
    jobs.wall.advance(5)
    async with jobs.stalled(lambda: jobs.accept(saved(b"ghost"))) as asked:
        with refused():
            await asked
    await jobs.tick()

    job = await jobs.get(first.id)
    assert (job.run_at, job.state) == (first.run_at, JobState.SCHEDULED)
    assert (await jobs.accept(saved(b"last"))).debounced == 1
    await jobs.tick(20)
    assert [work.payload for work in await jobs.claim_all()] == [b"last"]


async def test_what_waits_behind_a_disk_that_says_nothing_is_never_done(jobs: FaultyJobs) -> None:
    """It was given up before it was begun."""
    await jobs.call(id="first")
    waiting: list[asyncio.Future[Any]] = []

    async def asking() -> Any:
        claimed = asyncio.ensure_future(jobs.claim_all())
        await asyncio.sleep(0)
        waiting.append(claimed)
        return await jobs.call(id="ghost")

    async with jobs.stalled(asking) as asked:
        for one in (asked, *waiting):
            with refused():
                await one
    await jobs.tick()

    assert [job.id for job in (await jobs.store.list_jobs(JobQuery(None))).jobs] == ["first"]
    assert (await jobs.claim()).claims == 1


async def test_nothing_stays_claimed_for_a_worker_that_was_cancelled(jobs: FaultyJobs) -> None:
    """While it waited for the answer."""
    await jobs.call()
    claiming = asyncio.ensure_future(jobs.claim_all())
    await asyncio.sleep(0)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await jobs.tick()
    await jobs.tick()

    assert (await jobs.claim()).claims == 1


def delete(path: str) -> None:
    Path(path).unlink()
    Path(path + "-wal").unlink()


def copy_over(copy: str, path: str) -> None:
    inode = os.stat(path).st_ino
    shutil.copyfile(copy, path)
    assert os.stat(path).st_ino == inode
    Path(path + "-wal").unlink(missing_ok=True)


async def test_a_file_whose_upload_was_cancelled_is_not_there(jobs: FaultyJobs) -> None:
    """Its bytes are removed: it would be shown, and count, without any."""
    adding = asyncio.create_task(jobs.store.files.add(jobs.file("file-1")))
    await asyncio.sleep(0)
    adding.cancel()
    await asyncio.gather(adding, return_exceptions=True)
    await jobs.tick()
    await jobs.tick()

    assert await jobs.store.files.find("file-1", "t") is None
    assert await jobs.store.files.bytes_of("t") == 0


async def test_a_deleted_file_is_made_anew(jobs: FaultyJobs) -> None:
    """Said once; fences go on behind those that were given."""
    before = await jobs.running_call()
    delete(jobs.path)
    after = await jobs.running_call()

    assert after.fence > before.fence
    assert len(jobs.said("deleted or replaced")) == 1


async def test_a_backup_in_the_place_of_a_file_in_use_goes_on(jobs: FaultyJobs) -> None:
    """Not before the other's log is gone. What had been claimed at the copy is given again: nobody would ever end it."""
    work = await jobs.running_call(id="under-way")
    copy = jobs.path + ".copy"
    assert await jobs.store.backup(copy) is None  # type: ignore[attr-defined]  # a file can be copied
    await jobs.finish(work)
    os.rename(copy, jobs.path)
    with refused():
        await jobs.call(id="too-early")
    os.unlink(jobs.path + "-wal")
    await jobs.heal()
    await jobs.call(id="new")

    works = await jobs.claim_all()

    assert ids(works) == ["under-way", "new"]
    assert min(work.fence for work in works) > work.fence
    assert len(jobs.said(f"Remove {jobs.path}-wal")) == 1


async def test_a_backup_that_is_copied_over_a_broken_file_goes_on(jobs: FaultyJobs) -> None:
    """As `cp` does it: the inode is that of before, and what the copy holds is not."""
    work = await jobs.running_call(id="under-way")
    copy = jobs.path + ".copy"
    assert await jobs.store.backup(copy) is None  # type: ignore[attr-defined]  # a file can be copied
    await jobs.finish(work)
    jobs.fail(UNREADABLE)
    with refused():
        await jobs.call(id="too-early")
    copy_over(copy, jobs.path)
    await jobs.heal()

    works = await jobs.claim_all()

    assert ids(works) == ["under-way"]
    assert min(one.fence for one in works) > work.fence


@pytest.mark.parametrize("fault", [FSYNC, FULL], ids=["fsync", "full"])
async def test_a_file_that_works_again_keeps_its_claims(jobs: FaultyJobs, fault: Any) -> None:
    """It is opened again, but it is the same."""
    work = await jobs.running_call()
    jobs.fail(fault)
    with refused():
        await jobs.call()
    await jobs.heal()

    assert await jobs.claim_all() == []
    assert (await jobs.finish(work)).is_ours
