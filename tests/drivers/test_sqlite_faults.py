"""A disk that fails: calls go on, it is said once, what must not be lost is not lost, and it ends without a restart."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import resource
import signal
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.drivers.store import Claim
from tests.support.conformance import KIB, ROOMY, Wall, digest, entries, kept, row, settle, ticked
from tests.support.sqlite_support import Disk, Monotonic, connect_hastily, exit_code, failing, fill, in_a_child
from tests.support.stores import SqliteStore

RECORD, ASKED, KEY, PARTITION = digest("record"), digest("request"), digest("key"), digest("partition")
FULL = failing("database or disk is full", sqlite3.SQLITE_FULL, "COMMIT")
FSYNC = failing("disk I/O error", sqlite3.SQLITE_IOERR | 4 << 8, "COMMIT")
UNREADABLE = failing("disk I/O error", sqlite3.SQLITE_IOERR | 1 << 8, "SELECT", "INSERT", "DELETE")


class Bench:
    """A store on a disk that does as it is told, and a log that is read."""

    def __init__(self, path: str, log: pytest.LogCaptureFixture) -> None:
        self.path = path
        self.disk, self.wall, self.clock = Disk(), Wall(), Monotonic()
        self._log = log
        self.store = self.opened()

    def opened(self) -> SqliteStore:
        return SqliteStore(self.path, self.wall, ROOMY, connect=self.disk.connect, monotonic=self.clock)

    async def restart(self) -> None:
        await self.store.aclose()
        self.store = self.opened()

    def fail(self, before: Any) -> None:
        self.disk.before = before

    def heal(self) -> None:
        """The disk works, and it is time to try again."""
        self.fail(lambda sql: None)
        self.disk.most_pages = 0
        self.clock.now += 60.0

    async def claim(self, record: object, request: object = "request") -> Claim:
        return await settle(self.store.records.claim(digest(record), digest(request), 30.0))

    async def pay(self, record: object, body: bytes = b"paid") -> bool:
        """Run a request with a key, and keep what came of it."""
        claim = await self.claim(record)
        assert claim.state == "claimed"
        return await settle(self.store.records.complete(digest(record), claim.fence, kept(body, now=self.wall())))

    async def use(self, number: int) -> None:
        """Do a bit of everything; none of it may raise, or be without an answer."""
        assert await self.pay(("used", number))
        await settle(self.store.answers.put(digest(number), kept(bytes(8 * KIB), now=self.wall())))
        await settle(self.store.answers.get(digest("cold", number), "default"))
        await settle(self.store.vectors.add(row(number, now=self.wall(), partition=PARTITION)))
        await settle(self.store.vectors.load(PARTITION, 10))
        self.clock.now += 0.3
        self.store.tick()

    def said(self, words: str = "") -> list[str]:
        """What was warned of."""
        records = [one for one in self._log.records if one.levelno >= logging.WARNING]
        return [one.getMessage() for one in records if words in one.getMessage()]


@pytest.fixture
async def bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Bench]:
    made = Bench(str(tmp_path / "state.db"), caplog)
    yield made
    await made.store.aclose()


@pytest.mark.parametrize("fault", [FULL, FSYNC, UNREADABLE], ids=["full", "fsync", "unreadable"])
async def test_calls_go_on_and_it_is_said_once(bench: Bench, fault: Any) -> None:
    """Whatever fails; and once more when it is over, which needs no restart."""
    await bench.use(0)
    assert bench.said() == []

    bench.fail(fault)
    for number in range(1, 40):
        await bench.use(number)
    during = bench.said()
    bench.heal()
    await bench.use(40)
    await ticked(bench.store, 1)

    assert len(during) == 1
    assert bench.path in during[0]
    assert "Calls go on" in during[0]
    assert len(bench.said("works again; it misses")) == 1
    assert bench.store.is_well
    assert entries(bench.store, "records") == 41


@pytest.mark.parametrize("fault", [FULL, FSYNC, UNREADABLE], ids=["full", "fsync", "unreadable"])
async def test_nothing_is_paid_twice_while_the_disk_fails(bench: Bench, fault: Any) -> None:
    """One holder, one answer, fences that grow, a mismatch that is seen; and the file has it all when it works again."""
    bench.fail(fault)
    first = await bench.claim("record")
    while_running = [(await bench.claim("record")).state, (await bench.claim("record", "other")).state]
    assert await settle(bench.store.records.complete(digest("record"), first.fence, kept(b"paid", now=bench.wall())))
    when_done = [(await bench.claim("record")).state, (await bench.claim("record", "other")).state]
    second = await bench.claim("released")
    await settle(bench.store.records.release(digest("released"), second.fence))
    third = await bench.claim("released")

    bench.heal()
    bench.store.tick()
    await ticked(bench.store, 1)
    await bench.restart()
    after = await bench.claim("record")

    assert (first.state, while_running, when_done) == ("claimed", ["running", "mismatch"], ["done", "mismatch"])
    assert third.fence > second.fence > first.fence
    assert after.kept is not None
    assert (after.state, after.kept.body) == ("done", b"paid")


@pytest.mark.parametrize("fault", [FULL, FSYNC], ids=["full", "fsync"])
async def test_what_was_kept_before_is_read_from_a_disk_that_cannot_be_written(bench: Bench, fault: Any) -> None:
    """Nobody pays again for it, neither before the disk is tried again nor after it has failed again."""
    await bench.pay("before")
    bench.fail(fault)

    states = []
    for number in range(5):
        await bench.pay(number)
        states.append((await bench.claim("before")).state)
        bench.clock.now += 1.7

    assert not bench.store.is_well
    assert states == ["done"] * 5


async def test_a_file_that_may_not_grow_is_a_full_disk(bench: Bench) -> None:
    """As sqlite itself says it; with room, everything that was owed is written."""
    bench.disk.most_pages = 60
    for number in range(20):
        assert await bench.pay(number, os.urandom(30 * KIB))
        bench.clock.now += 0.3
    warned = bench.said()

    bench.heal()
    await bench.pay("after")
    await bench.restart()

    assert len(warned) == 1
    assert "full" in warned[0]
    assert [(await bench.claim(number)).state for number in range(20)] == ["done"] * 20


async def test_what_is_owed_is_tried_once_more_at_the_end(bench: Bench) -> None:
    """Though it is not time yet: there will be no other."""
    bench.fail(FSYNC)
    await bench.pay("record")
    bench.fail(lambda sql: None)

    await bench.restart()

    assert (await bench.claim("record")).state == "done"


async def test_a_failing_disk_is_not_asked_all_the_time(bench: Bench) -> None:
    """It is tried again after a second, then less and less often, but at least four times a minute."""
    bench.fail(FSYNC)
    for number in range(600):
        await bench.pay(number)
        bench.clock.now += 0.1

    assert 5 <= bench.disk.count("COMMIT") - 1 <= 12 + bench.disk.opened


async def test_trouble_that_comes_and_goes_is_not_told_each_time(bench: Bench) -> None:
    """A disk on the edge: small writes succeed, and large ones do not."""
    for number in range(20):
        bench.fail(FULL)
        await bench.pay(("large", number))
        bench.fail(lambda sql: None)
        bench.clock.now += 2.0
        await bench.pay(("small", number))

    assert bench.store.is_well
    assert len(bench.said("Calls go on")) == 1
    assert len(bench.said("works again; it misses")) == 1


async def test_a_purge_is_done_though_the_disk_failed(bench: Bench) -> None:
    """What was to be forgotten does not come back with the disk."""
    bench.store.answers.put(KEY, kept(now=bench.wall()))
    await ticked(bench.store, 1)
    bench.fail(FSYNC)
    await settle(bench.store.answers.forget(tenant="t"))

    bench.heal()
    await bench.pay("after")

    assert await settle(bench.store.answers.get(KEY, "default")) is None


def delete(path: str) -> None:
    Path(path).unlink()
    Path(path + "-wal").unlink()


def damage(path: str) -> None:
    """Every page of it, and the head of its log."""
    for name, size in ((path, os.path.getsize(path)), (path + "-wal", 64)):
        with open(name, "r+b") as file:
            file.write(b"\xa5" * size)


def move_away(path: str) -> None:
    os.rename(path, path + ".damaged")


async def test_a_deleted_file_is_made_anew(bench: Bench) -> None:
    """Said once; what is completed from then on is there after a restart."""
    await bench.pay("before")
    delete(bench.path)

    for number in range(3):
        await bench.use(number)
    await bench.restart()

    assert len(bench.said()) == 1
    assert "deleted or replaced" in bench.said()[0]
    assert [(await bench.claim(name)).state for name in (("used", 0), "before")] == ["done", "claimed"]


async def test_a_file_whose_folder_has_gone_is_waited_for(bench: Bench) -> None:
    """An unmounted disk, say; when it is back, everything is."""
    folder = Path(bench.path).parent
    gone = folder.rename(folder.with_name("elsewhere"))
    for number in range(5):
        await bench.use(number)
    assert not bench.store.is_well

    gone.rename(folder)
    bench.clock.now += 60.0
    await bench.use(5)
    await bench.restart()

    assert len(bench.said("Make the folder")) == 1
    assert [(await bench.claim(("used", number))).state for number in range(6)] == ["done"] * 6


async def test_a_file_found_damaged_is_moved_away_without_a_restart(bench: Bench) -> None:
    """Calls go on without it; when it is out of the way, a new one is made."""
    await bench.use(0)
    await bench.restart()
    damage(bench.path)
    bench.fail(failing("disk I/O error", sqlite3.SQLITE_IOERR, "COMMIT"))  # so that it is opened again
    await bench.use(1)
    bench.fail(lambda sql: None)

    for number in range(2, 20):
        bench.clock.now += 1.0
        await bench.use(number)
    was_well = bench.store.is_well
    move_away(bench.path)
    bench.clock.now += 60.0
    await bench.use(20)

    assert (was_well, bench.store.is_well) == (False, True)
    assert len(bench.said("Calls go on")) == 1
    assert len(bench.said("works again; it misses")) == 1


async def test_a_disk_that_says_nothing_holds_up_nobody(bench: Bench) -> None:
    """Whoever waits is answered after a while, the next ones at once; what was completed is written when it wakes up."""
    await bench.use(0)
    stuck, freed = threading.Event(), threading.Event()

    def before(sql: str) -> None:
        if sql == "COMMIT":
            stuck.set()
            assert freed.wait(20)

    first = await bench.claim("first")
    bench.fail(before)
    completing = asyncio.ensure_future(
        settle(bench.store.records.complete(digest("first"), first.fence, kept(now=bench.wall())))
    )
    assert await asyncio.get_running_loop().run_in_executor(None, stuck.wait, 20)
    waiting = asyncio.ensure_future(bench.claim("second"))
    await asyncio.sleep(0)
    bench.clock.now += 6.0
    bench.store.tick()
    answers = [await completing, (await waiting).state, (await bench.claim("first")).state]
    assert await bench.pay("third")
    bench.fail(lambda sql: None)
    freed.set()
    await bench.store.aclose()
    bench.store = bench.opened()

    assert answers == [True, "claimed", "done"]
    assert [(await bench.claim(name)).state for name in ("first", "third")] == ["done", "done"]
    assert len(bench.said("said nothing")) == 1


# A real disk, and a process that dies.


def test_a_file_size_limit_is_a_disk_that_fails(tmp_path: Path) -> None:
    """The system's own error: calls go on, and with room everything is written."""
    path = str(tmp_path / "state.db")

    async def fill() -> None:
        clock = Monotonic()
        store = SqliteStore(path, Wall(), ROOMY, connect=connect_hastily, monotonic=clock)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300 * KIB, hard))
        for number in range(20):
            assert await complete(store, number, os.urandom(30 * KIB))
        was_well = store.is_well
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        clock.now += 60.0
        assert await complete(store, 20, b"")
        assert (was_well, store.is_well) == (False, True)
        await store.aclose()

    assert exit_code(in_a_child(lambda: asyncio.run(fill()))) == 0
    assert asyncio.run(missing(path, range(21))) == []


async def complete(store: SqliteStore, number: int, body: bytes) -> bool:
    claim = await settle(store.records.claim(digest(number), ASKED, 30.0))
    return await settle(store.records.complete(digest(number), claim.fence, kept(body, now=Wall()())))


async def missing(path: str, numbers: Any) -> list[int]:
    """Those of these records that are not in the file."""
    store = SqliteStore(path, Wall(), ROOMY)
    claims = [(number, await settle(store.records.claim(digest(number), ASKED, 30.0))) for number in numbers]
    await store.aclose()
    return [number for number, claim in claims if claim.state != "done"]


async def test_a_real_disk_that_is_full(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody else fills it, and makes room again: nothing that was completed is lost, nothing was ever refused."""
    clock = Monotonic()
    store = SqliteStore(str(small_disk / "state.db"), Wall(), ROOMY, monotonic=clock)
    filler = small_disk / "filler"
    fill(filler)

    for number in range(20):
        assert await complete(store, number, os.urandom(10 * KIB))
        clock.now += 0.3
    was_well = store.is_well
    filler.unlink()
    clock.now += 60.0
    assert await complete(store, 20, b"")
    is_well = store.is_well
    await store.aclose()

    assert (was_well, is_well) == (False, True)
    assert await missing(str(small_disk / "state.db"), range(21)) == []
    assert len([one for one in caplog.records if "Calls go on" in one.getMessage()]) == 1


def test_what_was_completed_survives_kill_9(tmp_path: Path) -> None:
    """Fifteen times at a random moment; the file is whole, and what was interrupted runs again at once."""
    path, draw = str(tmp_path / "state.db"), random.Random(5)
    promised: list[int] = []

    for life in range(15):
        readable, writable = os.pipe()
        pid = in_a_child(lambda life=life, writable=writable: asyncio.run(live(path, life * 10_000, writable)))  # type: ignore[misc]  # mypy infers no lambda with a default
        os.close(writable)
        with open(readable) as told:
            for _ in range(draw.randrange(1, 120)):
                promised.append(int(told.readline()))
            os.kill(pid, signal.SIGKILL)
            promised += [int(line) for line in told if line.endswith("\n")]
        assert exit_code(pid) == -signal.SIGKILL

    assert asyncio.run(missing(path, promised)) == []
    assert asyncio.run(missing(path, [999_999])) == [999_999]
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()


async def live(path: str, first: int, writable: int) -> None:
    """Complete one record after the other, several at a time, and tell those that are kept."""
    store = SqliteStore(path, Wall(), ROOMY)
    claim = await settle(store.records.claim(digest(999_999), ASKED, 30.0))
    assert claim.state == "claimed"

    async def run(lane: int) -> None:
        for number in range(first + lane, first + 10_000, 8):
            store.answers.put(digest("answer", number), kept(bytes(2 * KIB), now=Wall()()))
            assert await complete(store, number, b"x" * (number % 5000))
            os.write(writable, b"%d\n" % number)

    await asyncio.gather(*map(run, range(8)))
