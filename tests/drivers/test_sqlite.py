"""The store in a file: what survives, what is refused at the start, and what it costs those who use it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import pytest

from gateway.core.errors import StoreUnusable
from gateway.core.types import StoreBounds
from gateway.drivers import sqlite, sqlite_store
from gateway.drivers import sqlite_answers as answers
from gateway.drivers.memory import about, restored
from gateway.drivers.sqlite_file import open_file
from gateway.drivers.sqlite_store import STATE_FILE
from tests.support.conformance import KIB, ROOMY, Wall, digest, entries, kept, row, settle, ticked
from tests.support.sqlite_support import Disk, connect_hastily
from tests.support.stores import SqliteStore

RECORD, ASKED, KEY, PARTITION = digest("record"), digest("request"), digest("key"), digest("partition")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state.db")


@pytest.fixture
def wall() -> Wall:
    return Wall()


def opened(path: str, wall: Callable[[], float], bounds: StoreBounds = ROOMY, disk: Disk | None = None) -> SqliteStore:
    return SqliteStore(path, wall, bounds, connect=disk.connect if disk else connect_hastily)


async def hold(store: SqliteStore, record: bytes = RECORD) -> int:
    claim = await settle(store.records.claim(record, ASKED, 30.0))
    assert claim.state == "claimed"
    return claim.fence


# What survives.


async def test_what_was_taken_is_there_after_a_restart(path: str, wall: Wall) -> None:
    """Records, answers and vectors, those that were only queued when it closed among them."""
    store = opened(path, wall)
    done, answer, vector = (
        kept(b"done", now=wall()),
        kept(b"answer", now=wall()),
        row(1, now=wall(), partition=PARTITION),
    )
    assert await settle(store.records.complete(RECORD, await hold(store), done))
    store.answers.put(KEY, answer)
    store.vectors.add(vector)
    await store.aclose()

    store = opened(path, wall)

    claim = await settle(store.records.claim(RECORD, ASKED, 30.0))
    assert (claim.state, claim.kept) == ("done", done)
    assert await settle(store.answers.get(KEY, "default")) == answer
    assert await settle(store.vectors.load(PARTITION, 10)) == [vector]
    assert {use: one["entries"] for use, one in store.stats().items()} == {"answers": 1, "records": 1, "vectors": 1}
    await store.aclose()


async def test_what_ran_when_a_process_ended_is_free_in_the_next(path: str, wall: Wall) -> None:
    """At once, whatever lease is left; and the fence is higher than every one before."""
    store = opened(path, wall)
    fence = await hold(store)
    await store.aclose()

    store = opened(path, wall)

    assert await hold(store) > fence
    assert not await settle(store.records.complete(RECORD, fence, kept(now=wall())))
    await store.aclose()


async def test_after_the_end_it_is_empty_and_raises_nothing(path: str, wall: Wall) -> None:
    """A call that outlives the store is served as if there were none."""
    store = opened(path, wall)
    store.answers.put(KEY, kept(bytes(700 * KIB), now=wall()))
    await store.aclose()

    await store.aclose()
    store.tick()

    assert await settle(store.answers.get(KEY, "default")) is None
    assert await settle(store.records.complete(RECORD, await hold(store), kept(now=wall())))
    assert await settle(store.answers.forget()) == 0


async def test_only_its_owner_may_read_it(path: str, wall: Wall) -> None:
    """Neither the file nor its log, and not an older file either."""
    store = opened(path, wall)
    modes = [stat.S_IMODE(os.stat(one).st_mode) for one in (path, path + "-wal")]
    await store.aclose()
    os.chmod(path, 0o644)
    await opened(path, wall).aclose()

    assert modes == [0o600, 0o600]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_field_that_another_release_knows_does_no_harm() -> None:
    """One that is gone is left out, one that is new has its default."""
    answer = kept(b"body", now=1.5)
    known = orjson.loads(about(answer))
    del known["cost_usd"]

    assert restored(orjson.dumps({**known, "colour": "blue"}), b"body") == answer


# What is refused at the start.


def refusal(path: str) -> str:
    with pytest.raises(StoreUnusable) as refused:
        opened(path, Wall())
    assert path in str(refused.value)
    return str(refused.value)


async def test_a_file_that_another_has_open_is_refused(path: str, wall: Wall) -> None:
    """There is never a second connection; the first one notices nothing."""
    store = opened(path, wall)

    message = refusal(path)

    assert "Another process has it open" in message
    assert await hold(store)
    await store.aclose()


def test_a_folder_is_refused(tmp_path: Path) -> None:
    """A file has to be named."""
    assert "name a file in it" in refusal(str(tmp_path))


def test_a_missing_folder_is_not_made(tmp_path: Path) -> None:
    """It may be a disk that is not mounted."""
    assert f"Make the folder {tmp_path / 'none'} first" in refusal(str(tmp_path / "none" / "state.db"))


@pytest.mark.parametrize("damage", [b"this is no database, and long enough to tell" * 40, None])
def test_a_damaged_file_is_refused_and_left_as_it_is(path: str, damage: bytes | None) -> None:
    """One that never was ours, and one of whose pages some were overwritten."""
    if damage is None:
        db, _ = open_file(path, STATE_FILE, connect=connect_hastily)
        db.close()
        whole = Path(path).read_bytes()
        damage = whole[:4096] + b"\xa5" * (len(whole) - 4096)
    Path(path).write_bytes(damage)

    assert "gateway state backup FILE" in refusal(path)
    assert Path(path).read_bytes() == damage


def test_a_file_of_another_program_is_refused(path: str) -> None:
    """Nothing is written into it."""
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE customers (name TEXT)")
    db.close()
    before = Path(path).read_bytes()

    assert "belongs to another program" in refusal(path)
    assert Path(path).read_bytes() == before


def test_a_file_of_a_newer_release_is_refused(path: str) -> None:
    """With both versions, and what to do."""
    db, _ = open_file(path, STATE_FILE, connect=connect_hastily)
    db.execute("PRAGMA user_version = 99")
    db.close()

    assert f"a newer gateway has made it (version 99, this one knows {len(STATE_FILE.migrations)})" in refusal(path)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_without_permission_is_refused(is_there: bool) -> None:
    """One that may not be read, and one that may not be made: its user is told what it has to be allowed."""
    with TemporaryDirectory() as folder:
        path = os.path.join(folder, "state.db")
        if is_there:
            Path(path).touch()
            os.chmod(path, 0o000)
        os.chmod(folder, 0o555)  # noqa: S103 - so that another user finds the file at all

        message = said_to_nobody(lambda: opened(path, Wall()))

        os.chmod(folder, 0o700)
    assert f"state file {path}" in message
    assert "has to be able to read and write it" in message


def said_to_nobody(work: Callable[[], object]) -> str:
    """How it is refused to a user who may do less than root, in a process of its own."""
    readable, writable = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            work()
        except StoreUnusable as refused:
            os.write(writable, str(refused).encode())
        finally:
            os._exit(0)
    os.close(writable)
    with open(readable) as said:
        message = said.read()
    os.waitpid(pid, 0)
    return message


# Versions.


def test_a_file_of_version_0_becomes_ours(path: str) -> None:
    """One that was begun, and never filled: the process died while it made it."""
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA application_id = {sqlite_store.APPLICATION_ID}")
    db.close()

    db, starts = open_file(path, STATE_FILE, connect=connect_hastily)

    assert starts == 1
    assert db.execute("PRAGMA user_version").fetchone() == (len(STATE_FILE.migrations),)
    db.close()


async def test_an_older_file_is_brought_up_to_date(path: str, wall: Wall) -> None:
    """With all that is in it, and only once."""
    store = opened(path, wall)
    assert await settle(store.records.complete(RECORD, await hold(store), kept(now=wall())))
    await store.aclose()
    newer = (*STATE_FILE.migrations, ("ALTER TABLE records ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'",))

    for _ in range(2):
        db, _ = open_file(path, replace(STATE_FILE, migrations=newer), connect=connect_hastily)
        found = db.execute("SELECT record, colour FROM records").fetchall()
        version = db.execute("PRAGMA user_version").fetchone()
        db.close()

        assert (found, version) == ([(RECORD, "blue")], (len(newer),))


async def test_records_of_an_older_file_are_nobodys_and_make_room_first(path: str, wall: Wall) -> None:
    """Whose they were was not known; what they take was, and counts from the first moment."""
    before = STATE_FILE.migrations[: STATE_FILE.migrations.index(sqlite_store._SHARES)]
    db, _ = open_file(path, replace(STATE_FILE, migrations=before), connect=connect_hastily)
    for number in range(50):
        old = (digest(number), b"f" * 32, wall() + 600, 8192, b"", b"")
        db.execute(
            "INSERT INTO records (record, fingerprint, expires, bytes, about, body) VALUES (?, ?, ?, ?, ?, ?)", old
        )
    db.close()

    store = opened(path, wall, bounds=replace(ROOMY, records=51 * 8192))
    for number in range(10):
        record = digest("new", number)
        answer = kept(bytes(8000), now=wall(), fresh_s=600.0)
        assert await settle(store.records.complete(record, await hold(store, record=record), answer))
    await store.aclose()

    db, _ = open_file(path, STATE_FILE, connect=connect_hastily)
    shares = dict(db.execute("SELECT tenant, entries FROM shares").fetchall())
    summed = dict(db.execute("SELECT tenant, COUNT(*) FROM records GROUP BY tenant").fetchall())
    db.close()
    assert shares == summed
    assert shares["t"] == 10
    assert shares[""] < 45


def test_a_migration_that_fails_changes_nothing(path: str) -> None:
    """Not even its first half; the older release can go on with the file."""
    db, _ = open_file(path, STATE_FILE, connect=connect_hastily)
    db.close()
    newer = (
        *STATE_FILE.migrations,
        ("ALTER TABLE records ADD COLUMN colour TEXT", "ALTER TABLE nothing ADD COLUMN x"),
    )

    with pytest.raises(StoreUnusable):
        open_file(path, replace(STATE_FILE, migrations=newer), connect=connect_hastily)

    db, starts = open_file(path, STATE_FILE, connect=connect_hastily)
    assert starts == 2
    assert "colour" not in [name for _, name, *_ in db.execute("PRAGMA table_info(records)")]
    db.close()


# What it costs.


async def test_a_hot_answer_is_there_at_once(path: str, wall: Wall) -> None:
    """The file is not asked, and a thousand hits write nothing."""
    disk = Disk()
    store = opened(path, wall, disk=disk)
    store.answers.put(KEY, kept(b"hot", now=wall()))
    await ticked(store, 1)
    asked = len(disk.statements)

    found = [store.answers.get(KEY, "default") for _ in range(1000)]

    assert not any(isinstance(one, asyncio.Future) for one in found)
    assert len(disk.statements) == asked
    store.tick()
    await ticked(store, 1)
    assert disk.count("UPDATE answers SET used") <= 1
    await store.aclose()


async def test_what_fell_out_of_memory_is_in_the_file(path: str, wall: Wall) -> None:
    """And hot again from then on."""
    store = opened(path, wall, replace(ROOMY, answers={"default": 256 * KIB}))
    for number in range(20):
        store.answers.put(digest(number), kept(bytes(8 * KIB), now=wall()))

    first = store.answers.get(digest(0), "default")
    assert isinstance(first, asyncio.Future)
    assert await first is not None
    assert not isinstance(store.answers.get(digest(0), "default"), asyncio.Future)
    await store.aclose()


async def test_what_was_used_is_known_after_a_restart(path: str, wall: Wall) -> None:
    """The oldest answer, read once, outlives those that were not."""
    bounds = replace(ROOMY, answers={"default": 256 * KIB})
    store = opened(path, wall, bounds)
    for number in range(15):
        store.answers.put(digest(number), kept(bytes(8 * KIB), now=wall()))
    assert await settle(store.answers.get(digest(0), "default")) is not None
    await store.aclose()

    store = opened(path, wall, bounds)
    for number in range(15, 30):
        store.answers.put(digest(number), kept(bytes(8 * KIB), now=wall()))
    there = [number for number in range(15) if await settle(store.answers.get(digest(number), "default"))]

    assert 0 in there
    assert 1 not in there
    await store.aclose()


async def test_what_is_put_while_the_file_is_asked_is_not_overwritten_by_it(path: str, wall: Wall) -> None:
    """The newer answer stays hot, and is what is given."""
    store = opened(path, wall)
    store.answers.put(KEY, kept(b"old", now=wall()))
    await store.aclose()
    store = opened(path, wall)

    asking = store.answers.get(KEY, "default")
    store.answers.put(KEY, kept(b"new", now=wall()))

    for later in (asking, store.answers.get(KEY, "default")):
        found = await settle(later)
        assert found is not None
        assert found.body == b"new"
    await store.aclose()


async def test_a_log_that_has_become_long_is_begun_anew(path: str, wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever kept sqlite from doing so by itself."""
    monkeypatch.setattr(sqlite, "LOG_BYTES", 500 * KIB)
    store = opened(path, wall)
    await ticked(store, 1)
    before = size_of(path + "-wal")

    store.answers.put(KEY, kept(bytes(700 * KIB), now=wall()))
    await ticked(store, 2)

    assert 0 < before < 500 * KIB
    assert size_of(path + "-wal") < before
    await store.aclose()


async def test_all_partitions_together_are_bounded(path: str, wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no end to partitions: the oldest rows of all go."""
    monkeypatch.setattr(sqlite_store, "VECTOR_BYTES", 64 * KIB)
    store = opened(path, wall)

    for number in range(500):
        store.vectors.add(row(number, now=wall(), partition=digest("partition", number)))
    await ticked(store, 1)

    assert 100 < entries(store, "vectors") < 300
    assert store.stats()["vectors"]["bytes"] <= 64 * KIB
    assert [one.id for one in await settle(store.vectors.load(digest("partition", 499), 10))] == [digest(499)]
    await store.aclose()


async def test_a_lowered_bound_is_met_in_steps(path: str, wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    """No transaction drops more than some; a tick goes on until it is met."""
    monkeypatch.setattr(sqlite_store, "ROWS_AT_ONCE", 5)
    monkeypatch.setattr(sqlite_store, "STEPS", 2)
    disk = Disk()
    store = opened(path, wall, disk=disk)
    for number in range(100):
        store.answers.put(digest(number), kept(bytes(8 * KIB), now=wall()))
    await ticked(store, 1)
    disk.statements.clear()

    store.configure(replace(ROOMY, answers={"default": 0}))
    await ticked(store, 30)

    assert entries(store, "answers") == 0
    assert disk.count("COMMIT") >= 8
    await store.aclose()


async def test_many_completions_are_one_transaction(path: str, wall: Wall) -> None:
    """The disk is asked to be sure once for all that came together, and not at all for caches."""
    disk = Disk()
    store = opened(path, wall, disk=disk)
    fences = [await hold(store, digest(number)) for number in range(50)]
    gate = held_back(disk, "REPLACE INTO answers")
    store.answers.put(KEY, kept(now=wall()))
    await gate.reached()
    disk.statements.clear()

    completing = [
        store.records.complete(digest(number), fence, kept(now=wall())) for number, fence in enumerate(fences)
    ]
    gate.open()
    results = [await settle(one) for one in completing]

    assert results == [True] * 50
    assert disk.count("PRAGMA synchronous = FULL") == 1
    assert disk.count("COMMIT") == 2
    assert disk.opened == 1
    store.answers.put(KEY, kept(now=wall()))
    await ticked(store, 1)
    assert disk.count("PRAGMA synchronous = NORMAL") == 1
    await store.aclose()


class Gate:
    """Holds the disk back at a statement."""

    def __init__(self) -> None:
        self._reached, self._open = threading.Event(), threading.Event()

    def wait(self) -> None:
        self._reached.set()
        assert self._open.wait(20)

    async def reached(self) -> None:
        """The disk has come to it."""
        assert await asyncio.get_running_loop().run_in_executor(None, self._reached.wait, 20)

    def open(self) -> None:
        self._open.set()


def held_back(disk: Disk, statement: str) -> Gate:
    """From now on the disk stops at such statements, until the gate is opened."""
    gate = Gate()

    def before(sql: str) -> None:
        if sql.startswith(statement):
            gate.wait()

    disk.before = before
    return gate


async def test_nobody_is_shown_an_answer_before_the_disk_has_it(path: str, wall: Wall) -> None:
    """Who completes and who asks for it wait for the same commit."""
    disk = Disk()
    store = opened(path, wall, disk=disk)
    fence = await hold(store)
    gate = held_back(disk, "COMMIT")

    completing = asyncio.ensure_future(settle(store.records.complete(RECORD, fence, kept(now=wall()))))
    await gate.reached()
    asking = asyncio.ensure_future(settle(store.records.claim(RECORD, ASKED, 30.0)))
    await asyncio.sleep(0)
    before = completing.done(), asking.done()
    gate.open()

    assert before == (False, False)
    assert await completing
    assert (await asking).state == "done"
    await store.aclose()


async def test_those_who_claim_at_once_are_told_one_story(path: str, wall: Wall) -> None:
    """One of fifty runs, though the file is asked before anybody may; another request under the key is a mismatch."""
    store = opened(path, wall)

    later = [store.records.claim(RECORD, ASKED, 30.0) for _ in range(50)]
    other = store.records.claim(RECORD, digest("other"), 30.0)
    states = [(await settle(one)).state for one in later]

    assert (states.count("claimed"), states.count("running")) == (1, 49)
    assert (await settle(other)).state == "mismatch"
    await store.aclose()


async def test_who_leaves_while_it_claims_holds_nothing(path: str, wall: Wall) -> None:
    """The next in line runs, and does not wait for a lease of somebody who has gone."""
    store = opened(path, wall)

    leaving = store.records.claim(RECORD, ASKED, 30.0)
    second = store.records.claim(RECORD, ASKED, 30.0)
    third = store.records.claim(RECORD, ASKED, 30.0)
    assert isinstance(leaving, asyncio.Future)
    leaving.cancel()

    assert [(await settle(one)).state for one in (second, third)] == ["claimed", "running"]
    await store.aclose()


async def test_who_leaves_after_the_one_before_has_left_holds_nothing_either(path: str, wall: Wall) -> None:
    """It had just begun to ask in the other's stead."""
    store = opened(path, wall)

    first, second = (store.records.claim(RECORD, ASKED, 30.0) for _ in range(2))
    assert isinstance(first, asyncio.Future)
    assert isinstance(second, asyncio.Future)
    first.add_done_callback(lambda _: asyncio.get_running_loop().call_soon(second.cancel))
    first.cancel()
    await ticked(store, 1)
    second.cancel()
    await ticked(store, 1)

    assert await hold(store)
    await store.aclose()


async def test_a_holder_that_comes_back_while_the_file_is_asked_keeps_its_record(path: str, wall: Wall) -> None:
    """Its lease had ended, and it renews before the next one has it: there are never two."""
    store = opened(path, wall)
    fence = await hold(store)
    wall.advance(31.0)

    asking = store.records.claim(RECORD, ASKED, 30.0)
    renewed = await settle(store.records.renew(RECORD, fence, 30.0))

    assert renewed
    assert (await settle(asking)).state == "running"
    await store.aclose()


async def test_cache_writes_are_dropped_when_the_disk_is_too_slow(
    path: str, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded, and the drops are counted; what is dropped is still hot."""
    monkeypatch.setattr(sqlite, "QUEUED_BYTES", 64 * KIB)
    disk = Disk()
    store = opened(path, wall, disk=disk)
    gate = held_back(disk, "COMMIT")

    for number in range(20):
        assert store.answers.put(digest(number), kept(bytes(8 * KIB), now=wall())) is None
    dropped = store.dropped
    gate.open()
    await ticked(store, 1)

    assert dropped == 15
    assert entries(store, "answers") == 5
    assert not isinstance(store.answers.get(digest(19), "default"), asyncio.Future)
    store.answers.put(KEY, kept(now=wall()))
    await ticked(store, 1)
    assert (store.dropped, entries(store, "answers")) == (15, 6)
    await store.aclose()


async def test_what_cannot_be_stored_is_nobody_elses_trouble(
    path: str, wall: Wall, caplog: pytest.LogCaptureFixture
) -> None:
    """A text that is no text fails alone; the others of its transaction are written."""
    store = opened(path, wall)

    store.answers.put(KEY, kept(now=wall()))
    for number in range(3):
        store.vectors.add(row(number, now=wall(), partition=PARTITION, tenant="\ud800"))
    completed = store.records.complete(RECORD, await hold(store), kept(now=wall()))

    assert await settle(completed)
    await ticked(store, 1)
    assert {use: one["entries"] for use, one in store.stats().items()} == {"answers": 1, "records": 1, "vectors": 0}
    assert len([one for one in caplog.records if "could not be stored" in one.getMessage()]) == 1
    assert store.is_well
    await store.aclose()


async def test_a_large_partition_is_read_while_others_have_their_turn(path: str, wall: Wall) -> None:
    """A claim that came after the load is answered before it."""
    store = opened(path, wall)
    for number in range(2500):
        store.vectors.add(row(number, now=wall(), partition=PARTITION))
    await ticked(store, 1)
    order: list[str] = []

    async def note(name: str, later: object) -> object:
        result = await later if isinstance(later, asyncio.Future) else later
        order.append(name)
        return result

    loading = note("load", store.vectors.load(PARTITION, 50_000))
    claiming = note("claim", store.records.claim(RECORD, ASKED, 30.0))
    rows, _ = await asyncio.gather(loading, claiming)

    assert order == ["claim", "load"]
    assert isinstance(rows, list)
    assert [one.id for one in rows] == [digest(number) for number in range(2500)]
    await store.aclose()


async def test_a_purge_is_whole_though_it_is_done_in_steps(
    path: str, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts all, leaves what came after, and what was read meanwhile is not hot afterwards."""
    monkeypatch.setattr(answers, "ROWS_AT_ONCE", 10)
    store = opened(path, wall, replace(ROOMY, answers={"default": 1024 * KIB}))
    for number in range(95):
        store.answers.put(digest(number), kept(bytes(4 * KIB), now=wall(), tenant="a" if number else "b"))
    await ticked(store, 1)

    purging = store.answers.forget(tenant="a")
    reading = store.answers.get(digest(94), "default")
    count = await settle(purging)
    await settle(reading)

    assert count == 94
    assert await settle(store.answers.get(digest(94), "default")) is None
    assert await settle(store.answers.get(digest(0), "default")) is not None
    await store.aclose()


def size_of(path: str) -> int:
    return os.path.getsize(path)


async def test_the_file_does_not_grow_without_bound(path: str, wall: Wall) -> None:
    """What comes fills the room of what went; its log stays short; and what is purged is given back to the disk."""
    store = opened(path, wall, replace(ROOMY, answers={"default": 3 * KIB * KIB}))

    async def churn(start: int) -> int:
        for number in range(start, start + 700):
            store.answers.put(digest(number), kept(os.urandom(12 * KIB), now=wall()))
            if number % 200 == 0:
                await ticked(store, 1)
        await ticked(store, 3)
        return size_of(path)

    first, second = await churn(0), await churn(700)  # some bytes more than the bound: a transaction's worth
    log = size_of(path + "-wal")
    await settle(store.answers.forget())
    for _ in range(40):
        await ticked(store, 1)
    await store.aclose()

    assert max(first, second) <= 6 * KIB * KIB
    assert log <= 16 * KIB * KIB
    assert size_of(path) <= second // 2
