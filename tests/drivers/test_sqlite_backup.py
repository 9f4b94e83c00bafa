"""A copy of the state file, made while the store is in use: whole, usable, and nobody waits for it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from gateway.drivers import sqlite
from tests.support.conformance import KIB, ROOMY, Wall, digest, kept, settle
from tests.support.sqlite_support import Disk, connect_hastily
from tests.support.stores import SqliteStore


def opened(path: Path, disk: Disk | None = None) -> SqliteStore:
    return SqliteStore(str(path), Wall(), ROOMY, connect=disk.connect if disk else connect_hastily)


async def fill(store: SqliteStore, first: int, count: int) -> None:
    """So many answers of 2 KiB."""
    for number in range(first, first + count):
        await settle(store.answers.put(digest(str(number)), kept(bytes(2 * KIB), now=Wall()())))


async def held(path: Path, count: int) -> int:
    """How many of the first so many answers a store on this file knows."""
    store = opened(path)
    found = [await settle(store.answers.get(digest(str(number)), "default")) for number in range(count)]
    await store.aclose()
    return sum(one is not None for one in found)


async def test_a_copy_is_a_state_file_of_its_own(tmp_path: Path) -> None:
    """One file without a log, for its owner's eyes, sound, and a store that opens it knows all that the first knew."""
    store, copy = opened(tmp_path / "state.db"), tmp_path / "copy.db"
    await fill(store, 0, 40)

    assert await store.backup(str(copy)) is None
    await store.aclose()

    assert [name for name in sorted(os.listdir(tmp_path)) if name.startswith("copy")] == ["copy.db"]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with sqlite3.connect(copy) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
    assert await held(copy, 40) == 40


async def test_calls_go_on_while_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads and writes are done between its pages, and what was written meanwhile is in the copy."""
    monkeypatch.setattr(sqlite, "COPIED_PAGES", 1)
    store, copy = opened(tmp_path / "state.db"), tmp_path / "copy.db"
    await fill(store, 0, 100)

    copying = asyncio.ensure_future(store.backup(str(copy)))
    await asyncio.sleep(0)
    await fill(store, 100, 20)
    assert await settle(store.answers.get(digest("7"), "default")) is not None
    came_between = not copying.done()
    assert await copying is None
    await store.aclose()

    assert came_between
    assert await held(copy, 120) == 120


async def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    """What went wrong is said, and the store goes on."""
    store, copy = opened(tmp_path / "state.db"), tmp_path / "copy.db"
    copy.write_text("mine")

    problem = await store.backup(str(copy))
    await fill(store, 0, 1)
    await store.aclose()

    assert "exists" in str(problem)
    assert copy.read_text() == "mine"


async def test_a_store_that_has_ended_says_so(tmp_path: Path) -> None:
    """Nobody waits for a copy that nobody makes."""
    store = opened(tmp_path / "state.db")
    await store.aclose()

    assert await store.backup(str(tmp_path / "copy.db")) == "the gateway is stopping"


async def test_an_end_in_the_middle_lets_the_copy_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for before the end is there after it."""
    monkeypatch.setattr(sqlite, "COPIED_PAGES", 1)
    store, copy = opened(tmp_path / "state.db"), tmp_path / "copy.db"
    await fill(store, 0, 50)
    copying = asyncio.ensure_future(store.backup(str(copy)))
    await asyncio.sleep(0)
    await store.aclose()

    assert await copying is None
    assert await held(copy, 50) == 50
