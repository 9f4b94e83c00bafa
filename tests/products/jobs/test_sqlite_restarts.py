"""A jobs file that is opened again: after an orderly end, after kill -9, by another release, or by the wrong program."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import re
import shutil
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.errors import StoreUnusable
from gateway.core.types import StoreBounds
from gateway.drivers.sqlite_file import open_file
from gateway.drivers.sqlite_store import STATE_FILE
from gateway.products.jobs.model import FINALISE, JobFlag, JobQuery, JobState
from gateway.products.jobs.response_store import LogPage
from gateway.products.jobs.sqlite_rows import APPLICATION_ID, JOBS_FILE
from gateway.products.jobs.sqlite_store import SqliteJobStore
from tests.products.jobs.telling import check_told, run_the_rest, worker
from tests.support.conformance import Wall
from tests.support.job_stores import ANSWER, DAY_S, OURS, STALE, Jobs, chunk, ids, key, line, part, pieces
from tests.support.sqlite_support import Disk, connect_hastily, exit_code, in_a_child
from tests.support.stores import SqliteStore


class Restarts(Jobs):
    """A store that can be closed and opened again."""

    def __init__(self, path: str, wall: Wall) -> None:
        self.path = path
        super().__init__(SqliteJobStore(path, wall, connect=connect_hastily), wall)

    async def restart(self) -> None:
        await self.store.aclose()
        self.store = SqliteJobStore(self.path, self.wall, connect=connect_hastily)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
async def jobs(path: str, wall: Wall) -> AsyncIterator[Restarts]:
    made = Restarts(path, wall)
    yield made
    await made.store.aclose()


async def test_a_file_of_an_older_gateway_is_brought_up_and_an_older_one_refuses_it(jobs: Restarts) -> None:
    """With what is in it: lines without the counts that came later, and the bytes of its files."""
    await jobs.store.aclose()
    os.unlink(jobs.path)
    old = replace(JOBS_FILE, migrations=JOBS_FILE.migrations[:1])
    db, _ = open_file(jobs.path, old)
    for number, gone in ((1, None), (2, 5.0), (3, None)):
        values = (f"f{number}", f"t{number % 2}", "batch", "a.jsonl", 10**number, 1.0, None, f"files/f{number}", gone)
        names = "id, tenant, purpose, filename, bytes, created, expires, blob, gone"
        db.execute(f"INSERT INTO files ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    db.execute("INSERT INTO lines VALUES (1, 0, 0, 0, 1, 2, 3, 0.5, 'x')")
    db.close()

    await jobs.restart()

    assert [await jobs.store.files.bytes_of(tenant) for tenant in ("t1", "t0", None)] == [1010, 0, 1010]
    identity = await jobs.store.identity()
    await jobs.store.files.remove("f1", "t1")
    assert await jobs.store.files.bytes_of(None) == 1000
    await jobs.restart()
    assert await jobs.store.identity() == identity
    await jobs.store.aclose()
    with pytest.raises(StoreUnusable, match="a newer gateway has made it"):
        open_file(jobs.path, old)
    await jobs.restart()


async def test_everything_is_there_again(jobs: Restarts) -> None:
    """Jobs with their payloads and answers, files, keys, flags, and what was garbage."""
    await jobs.finish(await jobs.running_call(), answer=ANSWER)
    named = {"dedupe_key": key("d"), "dedupe_until": jobs.wall() + DAY_S}
    waiting = await jobs.accept(jobs.new(payload=b"waiting", more=named))
    paused = await jobs.call()
    await jobs.store.flag(paused.id, "t", JobFlag.PAUSE)
    later = await jobs.call(run_at=jobs.wall() + 60)
    await jobs.store.files.add(jobs.file("f1"))
    await jobs.store.files.remove("f1", "t")
    await jobs.store.files.add(jobs.file("f2"))
    before = (await jobs.store.list_jobs(JobQuery(None))).jobs

    await jobs.restart()

    assert (await jobs.store.list_jobs(JobQuery(None))).jobs == before
    assert await jobs.store.answer(before[-1].id, "t") == ANSWER
    assert (await jobs.accept(jobs.new(payload=b"waiting", more=named))).job == waiting.job
    assert jobs.numbers() == {"ready": 1, "later": 2}
    assert [work.payload for work in await jobs.claim_all()] == [b"waiting"]
    assert await jobs.store.files.find("f2", "t") == jobs.file("f2")
    assert await jobs.take_garbage(10) == ["files/f1"]
    await jobs.tick(60)
    assert ids(await jobs.claim_all()) == [later.id]


async def test_logs_and_responses_are_there_again(jobs: Restarts) -> None:
    """A log is of the dead worker until the next one begins another; what was removed stays so."""
    dead = await jobs.running_response(id="r1")
    for number in range(3):
        await jobs.store.events.append(dead, part(number))
    for one in (jobs.response("r0"), jobs.response("small", previous_id="r0"), jobs.response("gone")):
        await jobs.store.responses.put(one)
    await jobs.store.responses.remove("gone", "t")

    await jobs.restart()

    assert await jobs.log("r1") == LogPage(dead.fence, [part(number) for number in range(3)])
    again = await jobs.claim()
    assert again.fence > dead.fence
    assert await jobs.store.events.append(dead, part(3)) == STALE
    assert await jobs.store.events.append(again, part(0, text="again")) == OURS
    assert await jobs.log("r1") == LogPage(again.fence, [part(0, text="again")])
    await jobs.store.responses.put(jobs.response("gone"))
    assert await jobs.store.responses.find("gone", "t") is None
    assert [one.id for one in await jobs.store.responses.chain("small", "t", 3)] == ["small", "r0"]


async def test_what_dead_workers_had_is_ready_again_in_its_old_place(jobs: Restarts) -> None:
    """It counts as a claim, and their writes come too late."""
    old = await jobs.running_call()
    await jobs.call(id="behind")
    await jobs.restart()
    first, second = await jobs.claim_all()

    assert (first.job.id, first.claims, second.job.id) == (old.job.id, 2, "behind")
    assert first.fence > old.fence
    assert await jobs.store.renew([old, first]) == [STALE, OURS]
    assert await jobs.finish(old, JobState.FAILED) == STALE


async def test_a_chunk_goes_on_where_it_was(jobs: Restarts) -> None:
    """Its lines, the plan, and the chunks that are complete outlive the process."""
    job = await jobs.running_batch(total=6, per_chunk=2, parallel=2)
    first, second = await jobs.claim_all()
    await jobs.run_chunk(first)
    await jobs.store.commit(second, [line(2)])
    await jobs.restart()
    again, third = await jobs.claim_all()

    assert pieces([again, third]) == [1, 2]
    assert again.claims == 2, "its worker brought a line, and has died with the rest"
    assert await jobs.store.results(again) == [line(2)]
    assert await jobs.store.chunk_results(job.id) == [chunk(0)]
    assert (await jobs.get(job.id)).tally.completed == 3


async def test_what_was_to_stop_stops_when_its_worker_is_dead(jobs: Restarts) -> None:
    """A call ends, a batch is put together; what was paused stays paused."""
    call = await jobs.running_call()
    batch = await jobs.running_batch()
    await jobs.claim_all()
    paused = await jobs.running_call()
    for one in (call.job, batch):
        await jobs.store.flag(one.id, "t", JobFlag.CANCEL)
    await jobs.store.flag(paused.job.id, "t", JobFlag.PAUSE)
    await jobs.restart()

    assert (await jobs.get(call.job.id)).state is JobState.CANCELLED
    assert [(work.job.id, work.piece) for work in await jobs.claim_all()] == [(batch.id, FINALISE)]
    await jobs.store.flag(paused.job.id, "t", JobFlag.RESUME)
    assert ids(await jobs.claim_all()) == [paused.job.id]


async def test_a_finalise_of_a_dead_worker_is_given_again(jobs: Restarts) -> None:
    """Also of a batch that is to stop."""
    batch = await jobs.running_batch()
    await jobs.store.flag(batch.id, "t", JobFlag.CANCEL)
    await jobs.claim()
    await jobs.restart()

    assert pieces(await jobs.claim_all()) == [FINALISE]


async def test_one_process_has_the_file(jobs: Restarts) -> None:
    """A second one is told what to do."""
    with pytest.raises(StoreUnusable, match="Another process has it open"):
        SqliteJobStore(jobs.path, jobs.wall)


def refusal(path: str) -> str:
    with pytest.raises(StoreUnusable) as refused:
        SqliteJobStore(path, Wall(), connect=connect_hastily)
    assert f"jobs file {path}" in str(refused.value)
    return str(refused.value)


def test_a_file_of_a_newer_release_is_refused(path: str) -> None:
    """With both versions, and what to do; nothing is written."""
    db, _ = open_file(path, JOBS_FILE, connect=connect_hastily)
    db.execute("PRAGMA user_version = 99")
    db.close()
    before = Path(path).read_bytes()

    assert f"(version 99, this one knows {len(JOBS_FILE.migrations)})" in refusal(path)
    assert Path(path).read_bytes() == before


def test_a_state_file_is_no_jobs_file(path: str) -> None:
    """Nor the other way round."""
    db, _ = open_file(path, STATE_FILE, connect=connect_hastily)
    db.close()

    assert "another program. Name another file under `jobs.store`" in refusal(path)
    assert STATE_FILE.application_id != APPLICATION_ID


def test_a_damaged_file_is_refused_with_the_remedy(path: str) -> None:
    """And left as it is."""
    db, _ = open_file(path, JOBS_FILE, connect=connect_hastily)
    db.close()
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[:8192] + b"\xa5" * (len(whole) - 8192))
    before = Path(path).read_bytes()

    assert "Put a backup in its place" in refusal(path)
    assert Path(path).read_bytes() == before


async def test_a_copy_is_not_mixed_with_the_log_of_the_file_that_was_there(jobs: Restarts, tmp_path: Path) -> None:
    """As a killed gateway leaves it: sqlite would lay that log over the copy, and damage it."""
    put_back, killed = f"{tmp_path}/put-back.db", f"{tmp_path}/killed.db"
    await jobs.call(id="kept")
    assert await jobs.store.backup(put_back) is None  # type: ignore[attr-defined]  # a file can be copied
    await jobs.call(id="later")
    shutil.copy(jobs.path, killed)
    for path in (put_back, killed):
        shutil.copy(f"{jobs.path}-wal", f"{path}-wal")
    before = bytes_of(put_back)

    assert f"Remove {put_back}-wal" in refusal(put_back)
    assert bytes_of(put_back) == before
    os.unlink(f"{put_back}-wal")
    assert [await job_ids(path, jobs.wall) for path in (put_back, killed)] == [["kept"], ["later", "kept"]]


def bytes_of(path: str) -> tuple[bytes, bytes]:
    """The file's, and its log's."""
    return Path(path).read_bytes(), Path(f"{path}-wal").read_bytes()


async def job_ids(path: str, wall: Wall) -> list[str]:
    store = SqliteJobStore(path, wall, connect=connect_hastily)
    try:
        return [job.id for job in (await store.list_jobs(JobQuery(None))).jobs]
    finally:
        await store.aclose()


def test_a_volume_that_is_mounted_read_only_is_named(small_disk: Path) -> None:
    """The system says only that there was an error."""
    path = str(small_disk / "jobs.db")
    db, _ = open_file(path, JOBS_FILE, connect=connect_hastily)
    db.close()
    remount_read_only(small_disk)

    assert "Its volume is mounted read-only: mount it writable" in refusal(path)


def remount_read_only(folder: Path) -> None:
    read_only, again = 1, 32
    assert ctypes.CDLL(None).mount(None, bytes(folder), None, read_only | again, None) == 0


def test_a_missing_folder_is_not_made(tmp_path: Path) -> None:
    """It may be a disk that is not mounted."""
    assert f"Make the folder {tmp_path / 'none'} first" in refusal(str(tmp_path / "none" / "jobs.db"))


async def test_an_older_file_is_brought_up_to_date(jobs: Restarts) -> None:
    """With all that is in it; an older release refuses it from then on."""
    await jobs.call(id="old")
    await jobs.store.aclose()
    newer = replace(JOBS_FILE, migrations=(*JOBS_FILE.migrations, ("ALTER TABLE jobs ADD COLUMN colour TEXT",)))
    db, starts = open_file(jobs.path, newer, connect=connect_hastily)
    found = db.execute("SELECT id, colour FROM jobs").fetchall()
    db.close()

    assert (starts, found) == (2, [("old", None)])
    assert "a newer gateway has made it" in refusal(jobs.path)


async def test_every_write_is_synced_and_what_arrives_together_is_one(path: str, wall: Wall) -> None:
    """One transaction, and so one fsync, for jobs that come while another is written."""
    disk = Disk()
    jobs = Jobs(SqliteJobStore(path, wall, connect=disk.connect), wall)
    disk.statements.clear()
    await asyncio.gather(*(jobs.call() for _ in range(200)))
    commits = disk.count("COMMIT")
    synced = [sql for sql in disk.statements if sql.startswith(("PRAGMA synchronous", "COMMIT"))]
    await jobs.store.aclose()

    assert commits <= 20
    assert synced[0] == "PRAGMA synchronous = FULL"
    assert "PRAGMA synchronous = NORMAL" not in synced


async def test_an_idle_store_writes_nothing(path: str, wall: Wall) -> None:
    """A tick is one look at the file."""
    disk = Disk()
    jobs = Jobs(SqliteJobStore(path, wall, connect=disk.connect), wall)
    await jobs.call(run_at=wall() + DAY_S)
    await jobs.tick(1)
    before = os.stat(path + "-wal")
    disk.statements.clear()
    for _ in range(10):
        jobs.wall.advance(1)
        jobs.store.tick()
        await jobs.store.find("nobody's", None)
    after = os.stat(path + "-wal")
    await jobs.store.aclose()

    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert disk.count("COMMIT") <= 10


# A process that dies.


def test_what_was_acknowledged_survives_kill_9(path: str) -> None:
    """Ten times at a random moment, in the middle of accepts, commits and ends: nothing is lost, nothing is there twice."""
    draw = random.Random(7)
    told: list[str] = []
    for life in range(10):
        readable, writable = os.pipe()
        pid = in_a_child(worker(path, life, writable))
        os.close(writable)
        with open(readable) as lines:
            for _ in range(draw.randrange(1, 150)):
                told.append(lines.readline())
            os.kill(pid, signal.SIGKILL)
            told += [one for one in lines if one.endswith("\n")]
        assert exit_code(pid) == -signal.SIGKILL

    asyncio.run(check_told(path, [one.split() for one in told]))
    asyncio.run(run_the_rest(path))
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()


DAMAGES = (
    "DELETE FROM meta WHERE name = 'starts'",
    "UPDATE jobs SET state = 'odd'",
    "DROP TABLE totals",
    "DROP TABLE pieces",
)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_odd_rows_are_refused_with_the_remedy(path: str, damage: str) -> None:
    """As other damage is, or they harm nobody: no error of another kind leaves the opening."""
    store = SqliteJobStore(path, Wall())
    await store.aclose()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(damage)
    try:
        store = SqliteJobStore(path, Wall())
    except StoreUnusable as error:
        assert JOBS_FILE.when_damaged in str(error)  # noqa: PT017  # some of these may be opened
    else:
        await store.aclose()
        assert "jobs" in damage


def test_an_odd_row_of_the_state_file_is_refused_with_the_remedy(path: str) -> None:
    """It was a traceback."""
    with closing(open_file(path, STATE_FILE)[0]):
        pass
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM meta WHERE name = 'starts'")
    with pytest.raises(StoreUnusable, match=re.escape(STATE_FILE.when_damaged)):
        SqliteStore(path, Wall(), StoreBounds({}, 1000))
