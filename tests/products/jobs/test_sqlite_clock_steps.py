"""The machine's time was set under a process with files: the next process finds what waits there as long from its time."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.drivers.sqlite_file import FileKind
from gateway.drivers.sqlite_store import STATE_FILE
from gateway.products.jobs.model import JobState
from gateway.products.jobs.sqlite_rows import JOBS_FILE
from gateway.products.jobs.sqlite_store import SqliteJobStore
from tests.support.conformance import ROOMY, Wall, digest, kept, row, settle
from tests.support.job_stores import DAY_S, Jobs, key
from tests.support.sqlite_support import connect_hastily
from tests.support.stores import SqliteStore

STEPS = [-600.0, 600.0, 366 * DAY_S]
"""Seconds by which the time is set ahead."""
NO_TIMES = {("lines", "cost")}


class Lives(Jobs):
    """A store of jobs in a file, and the processes that have it one after the other."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.ahead_s = 0.0
        super().__init__(self._opened(Wall()), self.wall)

    def _opened(self, wall: Wall) -> SqliteJobStore:
        self.wall = wall
        return SqliteJobStore(self.path, wall, ahead=lambda: self.ahead_s, connect=connect_hastily)

    async def set_time(self, step_s: float) -> None:
        """Sets the machine's time, of which the clock of the process hears nothing."""
        self.ahead_s -= step_s
        await self.tick()

    async def restart(self) -> None:
        """Ends the process; the next begins with the machine's time."""
        await self.store.aclose()
        wall = Wall()
        wall.now = self.wall() - self.ahead_s
        self.ahead_s = 0.0
        self.store = self._opened(wall)


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[Lives]:
    lives = Lives(str(tmp_path / "jobs.db"))
    yield lives
    await lives.store.aclose()


@pytest.mark.parametrize("step_s", STEPS)
async def test_jobs_wait_on_after_a_restart(jobs: Lives, step_s: float) -> None:
    """Neither is one due that is to wait, nor has a deadline passed; and they show times by the new clock."""
    now = jobs.wall()
    later = await jobs.call(state=JobState.SCHEDULED, run_at=now + 60, deadline=now + 360)
    held = await jobs.call(deadline=now + 300)
    await jobs.set_time(step_s)
    await jobs.restart()

    assert jobs.wall() == now + step_s
    found = await jobs.get(later.id)
    times = (found.created_at, found.run_at, found.deadline)
    assert times == pytest.approx((now + step_s, now + step_s + 60, now + step_s + 360), abs=1e-3)
    await jobs.tick(59.0)
    assert [work.job.id for work in await jobs.claim_all()] == [held.id]
    await jobs.tick(2.0)
    assert [work.job.id for work in await jobs.claim_all()] == [later.id]
    assert (await jobs.get(held.id)).ends_as is None
    await jobs.tick(240.0)
    assert (await jobs.get(held.id)).ends_as is JobState.EXPIRED


@pytest.mark.parametrize("step_s", STEPS)
async def test_what_has_ended_is_kept_as_long_as_it_was_to_be(jobs: Lives, step_s: float) -> None:
    """Jobs, the keys that they are known by, files and responses."""
    more = {"dedupe_key": key("d"), "dedupe_until": jobs.wall() + 100}
    ended = (await jobs.accept(jobs.new(more=more))).job
    await jobs.finish(await jobs.claim())
    await jobs.store.files.add(jobs.file("file-1", expires_at=jobs.wall() + 100))
    await jobs.store.responses.put(jobs.response("resp-1", keep_until=jobs.wall() + 100))
    await jobs.set_time(step_s)
    await jobs.restart()
    jobs.wall.advance(99)

    assert await jobs.store.forget_ended(jobs.wall() - 100, 10) == 0
    assert (await jobs.accept(jobs.new(more=more))).job.id == ended.id
    assert await jobs.store.files.find("file-1", "t")
    assert await jobs.store.responses.find("resp-1", "t")
    jobs.wall.advance(2)
    assert await jobs.store.files.find("file-1", "t") is None
    assert await jobs.store.responses.find("resp-1", "t") is None
    assert (await jobs.accept(jobs.new(more=more))).job.id != ended.id
    assert await jobs.store.forget_ended(jobs.wall() - 100, 10) == 1


async def test_a_time_that_is_set_again_counts_once(jobs: Lives) -> None:
    """What was noted last is what holds; a restart without a step moves nothing."""
    now = jobs.wall()
    job = await jobs.call(state=JobState.SCHEDULED, run_at=now + 60)
    await jobs.set_time(-600.0)
    await jobs.set_time(900.0)
    await jobs.restart()
    await jobs.restart()

    assert (await jobs.get(job.id)).run_at == pytest.approx(now + 360, abs=1e-3)
    assert jobs.wall() == now + 300


@pytest.mark.parametrize("step_s", STEPS)
async def test_kept_answers_grow_as_old_as_they_would_have(tmp_path: Path, step_s: float) -> None:
    """Answers under an Idempotency-Key, of the exact cache and of the semantic one."""
    path, wall, ahead = str(tmp_path / "state.db"), Wall(), [0.0]
    record, asked, name, partition = (digest(one) for one in ("record", "request", "key", "partition"))

    def opened() -> SqliteStore:
        return SqliteStore(path, wall, ROOMY, ahead=lambda: ahead[0], connect=connect_hastily)

    store = opened()
    answer = kept(b"answer", now=wall(), fresh_s=100)
    claim = await settle(store.records.claim(record, asked, 30.0))
    assert await settle(store.records.complete(record, claim.fence, answer))
    store.answers.put(name, answer)
    store.vectors.add(row(1, now=wall(), partition=partition, ttl_s=100))
    ahead[0] = -step_s
    store.tick()
    await store.aclose()
    wall, ahead = Wall(), [0.0]
    wall.advance(step_s + 99)
    store = opened()

    by = replace(
        answer,
        stored_at=answer.stored_at + step_s,
        fresh_until=answer.fresh_until + step_s,
        stale_until=answer.stale_until + step_s,
    )
    assert (await settle(store.records.claim(record, asked, 30.0))).kept == by
    assert await settle(store.answers.get(name, "default")) == by
    vectors = await settle(store.vectors.load(partition, 10))
    assert [(one.id, one.expires_at) for one in vectors] == [(digest(1), by.fresh_until)]
    wall.advance(2)
    assert (await settle(store.records.claim(record, asked, 30.0))).kept is None
    assert await settle(store.answers.get(name, "default")) is None
    await store.aclose()


@pytest.mark.parametrize("kind", [JOBS_FILE, STATE_FILE])
def test_no_time_in_a_file_is_left_behind(kind: FileKind) -> None:
    """A column of times that is added is to be moved, too."""
    with closing(sqlite3.connect(":memory:")) as db:
        for statement in (one for step in kind.migrations for one in step):
            db.execute(statement)
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        columns = {
            (table, one[1]) for table in tables for one in db.execute(f"PRAGMA table_info({table})") if one[2] == "REAL"
        }
        for statement in kind.moves:
            db.execute(statement, {"by_s": 1.0})
    moved = {
        (statement.split()[1], column)
        for statement in kind.moves
        for column in re.findall(r"(\w+) = \w+ \+ :by_s", statement)
    }

    assert moved == columns - NO_TIMES
