"""What was deleted cannot be read any more, neither in the file nor in its log, while the gateway runs on."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.drivers.sqlite import LOG_S
from gateway.products.jobs.model import JobEnd, JobState, StoredAnswer
from gateway.products.jobs.sqlite_store import SqliteJobStore
from tests.features.runs.test_run_store import step
from tests.support.conformance import ROOMY, Wall, digest, kept, settle
from tests.support.job_stores import DAY_S, ERROR, Jobs, part
from tests.support.sqlite_support import Monotonic, connect_hastily
from tests.support.stores import SqliteStore

ROWS = 40
"""Of each kind: enough for pages to be split and joined."""


def body(word: str, number: int) -> bytes:
    """One that shares a page with others, or one that fills several."""
    return f"{word}-{number} ".encode() * (3 if number % 2 else 2000)


def readable(path: str, word: str) -> dict[str, int]:
    """How often a word can be read in the file, and in its log."""
    return {name: Path(path + name).read_bytes().count(word.encode()) for name in ("", "-wal")}


def connect_freely(path: str, **options: Any) -> sqlite3.Connection:
    """As an sqlite does that was not built with SQLITE_SECURE_DELETE."""
    db = connect_hastily(path, **options)
    db.execute("PRAGMA secure_delete = OFF")
    return db


async def pass_time(jobs: Jobs, monotonic: Monotonic) -> None:
    """Lets as much time pass as a log may hold what was deleted."""
    monotonic.now += LOG_S
    await jobs.tick()
    await jobs.tick()


async def answer(jobs: Jobs, word: str, number: int) -> str:
    """Runs a job; returns its id."""
    work = await jobs.running_call(payload=body(word, number))
    await jobs.finish(work, answer=StoredAnswer(200, [], body(word, number)))
    return work.job.id


async def forget_jobs(jobs: Jobs) -> None:
    for number in range(ROWS):
        await answer(jobs, "secret", number)
    jobs.wall.advance(DAY_S)
    for number in range(ROWS):
        await answer(jobs, "stays", number)
    await jobs.store.forget_ended(jobs.wall() - 1, 1000)


async def remove_responses(jobs: Jobs) -> None:
    for word in ("secret", "stays"):
        for number in range(ROWS):
            await jobs.store.responses.put(jobs.response(f"{word[1:]}{number}", body=body(word, number)))
    for number in range(ROWS):
        await jobs.store.responses.remove(f"ecret{number}", "t")


async def drop_events(jobs: Jobs) -> None:
    for word in ("secret", "stays"):
        work = await jobs.running_response(id=word[1:])
        for number in range(ROWS):
            await jobs.store.events.append(work, part(number, text=body(word, number).decode()))
    await jobs.store.events.drop("ecret")


async def forget_run(jobs: Jobs) -> None:
    for word in ("secret", "stays"):
        for number in range(ROWS):
            await jobs.store.runs.keep_step(step(jobs, str(number), body(word, number), run=word))
    await jobs.store.runs.forget("t", "secret")


async def purge_letters(jobs: Jobs) -> None:
    for word in ("secret", "stays"):
        for number in range(ROWS):
            work = await jobs.running_call(payload=body(word, number), model=word)
            await jobs.store.finish(work, JobEnd(JobState.FAILED, error=ERROR, is_dead=True))
    (group,) = [group for group in await jobs.store.dead.groups(ROWS) if group.model == "secret"]
    assert await jobs.store.dead.purge([letter.id for letter in group.samples]) == ROWS
    jobs.wall.advance(DAY_S)
    await jobs.store.forget_ended(jobs.wall(), 1000)


@pytest.mark.parametrize("delete", [forget_jobs, remove_responses, drop_events, forget_run, purge_letters])
async def test_what_was_deleted_is_in_no_file_soon_after(
    tmp_path: Path, wall: Wall, delete: Callable[[Jobs], Awaitable[None]]
) -> None:
    """By age or on request: neither in the jobs file nor in its log, whoever built sqlite; all else is there."""
    path, monotonic = str(tmp_path / "jobs.db"), Monotonic()
    store = SqliteJobStore(path, wall, connect=connect_freely, monotonic=monotonic)
    jobs = Jobs(store, wall)
    await delete(jobs)

    await pass_time(jobs, monotonic)

    assert readable(path, "secret") == {"": 0, "-wal": 0}
    assert readable(path, "stays")[""] > ROWS
    await store.aclose()


async def test_a_purged_answer_is_in_no_file_soon_after(tmp_path: Path, wall: Wall) -> None:
    """The same of the state file, whose caches hold prompts' answers."""
    path, monotonic = str(tmp_path / "state.db"), Monotonic()
    store = SqliteStore(path, wall, ROOMY, connect=connect_freely, monotonic=monotonic)
    for model in ("stays", "secret"):
        for number in range(ROWS):
            store.answers.put(digest(model, number), kept(body(model, number), now=wall(), model=model))
    assert await settle(store.answers.forget(model="secret")) == ROWS

    monotonic.now += LOG_S
    store.tick()
    await settle(store.answers.get(digest("nobody's"), "default"))

    assert readable(path, "secret") == {"": 0, "-wal": 0}
    assert readable(path, "stays")[""] > ROWS
    await store.aclose()
