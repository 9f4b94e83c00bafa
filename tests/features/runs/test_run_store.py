"""Runs and their steps in every store: what is kept, who comes first, how much, and for how long."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.types import Usage
from gateway.features.runs.rules import (
    RunChange,
    RunOutcome,
    RunRecord,
    begun,
    count_once,
    label_change,
    merged,
)
from gateway.features.runs.step import RUN_BYTES, STEP_BYTES, RunQuery, RunToChange, StepAbout, StepTooLarge, StoredStep
from tests.support.job_stores import DAY_S, Jobs, key
from tests.support.run_changes import one_call

HEADERS = [(b"content-type", b"application/json"), (b"x-caf\xe9", b"\xff")]
HEADER_BYTES = sum(len(name) + len(value) for name, value in HEADERS)


def step(jobs: Jobs, name: str = "extract", body: bytes = b'{"id":1}', **fields: Any) -> StoredStep:
    """An answer that was paid for just now."""
    usual: dict[str, Any] = {
        "tenant": "t",
        "run": "order-1",
        "step": name,
        "fingerprint": key("question"),
        "status": 200,
        "headers": HEADERS,
        "is_stream": False,
        "endpoint": "chat",
        "usage": Usage(10, 5, 3, cache_written=2, cache_written_1h=1),
        "cost_usd": 0.25,
        "model": "gpt",
        "target": "openai/gpt",
        "source": "call-1",
        "outcome": "ok",
        "created_at": jobs.wall(),
        "keep_until": jobs.wall() + 7 * DAY_S,
        "bytes": len(body),
    }
    return StoredStep(StepAbout(**{**usual, **fields}), body)


def call(jobs: Jobs, task: str = "extract", **fields: Any) -> RunChange:
    return one_call(task, jobs.wall(), cost_usd=0.25, tokens=(10, 5), **fields)


async def change(jobs: Jobs, added: RunChange | None, run: str = "order-1", tenant: str = "t") -> RunRecord | None:
    (result,) = await jobs.store.runs.change([RunToChange(tenant, run, added)])
    return None if result is None else result.after


def room(jobs: Jobs, most_bytes: int) -> None:
    """Leaves a tenant so much."""
    jobs.store.runs._room.bytes = most_bytes  # type: ignore[attr-defined]  # each store has one


async def ids(jobs: Jobs, query: RunQuery) -> list[str]:
    return [run.record.run for run in (await jobs.store.runs.list_runs(query)).runs]


# --- steps ---


async def test_a_step_is_given_as_it_was_kept(jobs: Jobs) -> None:
    """Byte for byte, and to its own tenant, run and step only."""
    kept = step(jobs, "summarise[3]", b"\0\xff\r\ndata: [DONE]\n\n", is_stream=True, usage=None, cost_usd=None)
    assert await jobs.store.runs.keep_step(kept) == kept

    runs = jobs.store.runs
    assert await runs.find_step("t", "order-1", "summarise[3]") == kept
    for other in (("t", "order-1", "summarise"), ("t", "order-2", "summarise[3]"), ("u", "order-1", "summarise[3]")):
        assert await runs.find_step(*other) is None


async def test_ids_with_the_same_letters_stay_apart(jobs: Jobs) -> None:
    """Wherever a slash stands, and whatever a tenant is called."""
    whole = [("a/b", "c", "d"), ("a", "b/c", "d"), ("a", "b", "c/d"), ("", "a/b/c", "d"), ("a:b~", "s:r", "b")]
    for number, (tenant, run, name) in enumerate(whole):
        await jobs.store.runs.keep_step(step(jobs, name, b"%d" % number, tenant=tenant, run=run))

    found = [await jobs.store.runs.find_step(*one) for one in whole]
    assert [one.body for one in found if one is not None] == [b"0", b"1", b"2", b"3", b"4"]


async def test_the_first_of_two_stays(jobs: Jobs) -> None:
    """Whoever comes second is told of it, also of those at the same time, unless it replaces it."""
    twins = [step(jobs, body=b"answer %d" % number, source=f"call-{number}") for number in range(5)]
    kept = await asyncio.gather(*map(jobs.store.runs.keep_step, twins))
    assert len({one.body for one in kept}) == 1

    other = step(jobs, body=b"another", fingerprint=key("another question"))
    assert await jobs.store.runs.keep_step(other, replaces=True) == other
    assert await jobs.store.runs.find_step("t", "order-1", "extract") == other
    found = await jobs.store.runs.find("t", "order-1")
    assert found is not None
    assert (found[0].steps, found[0].bytes) == (1, RUN_BYTES + STEP_BYTES + HEADER_BYTES + len(b"another"))


async def test_a_step_past_its_time_is_not_given_and_gives_way(jobs: Jobs) -> None:
    await jobs.store.runs.keep_step(step(jobs, keep_until=jobs.wall() + 10))
    jobs.wall.advance(10)
    assert await jobs.store.runs.find_step("t", "order-1", "extract") is None

    fresh = step(jobs, body=b"fresh")
    assert await jobs.store.runs.keep_step(fresh) == fresh


# --- records ---


async def test_a_run_adds_up_beside_its_steps(jobs: Jobs) -> None:
    """Whatever came first; its steps are listed in the order in which they were kept, without their bodies."""
    for name in ("extract", "check", "report"):
        jobs.wall.advance(1)
        await jobs.store.runs.keep_step(step(jobs, name))
        await change(jobs, call(jobs, name))
    await change(jobs, label_change(jobs.wall(), workflow="invoice", outcome="succeeded"))

    found = await jobs.store.runs.find("t", "order-1")
    assert found is not None
    run, steps = found
    assert [about.step for about in steps] == ["extract", "check", "report"]
    assert steps[2] == replace(step(jobs, "report").about, created_at=steps[2].created_at)
    assert (run.record.workflow, run.record.so_far.total.cost_usd, run.steps) == ("invoice", 0.75, 3)
    assert (run.created_at, run.touched_at) == (jobs.wall() - 2, jobs.wall())
    assert await jobs.store.runs.find("u", "order-1") is None


async def test_changes_at_the_same_time_are_all_counted(jobs: Jobs) -> None:
    """Each once, as if they had come one after the other."""
    changes = [call(jobs, f"task-{number % 3}") for number in range(12)]
    await asyncio.gather(*(change(jobs, one) for one in changes[:6]))
    await jobs.store.runs.change([RunToChange("t", "order-1", one) for one in changes[6:]])

    expected = begun("t", "order-1", changes[0])
    for one in changes[1:]:
        expected = merged(expected, one)
    assert await change(jobs, None) == expected


async def test_a_run_is_counted_by_one_of_those_who_close_it(jobs: Jobs) -> None:
    """Who reads back what it has written itself; a look at a run that is not there begins none."""

    def close(record: RunRecord) -> RunRecord | None:
        return count_once(record, RunOutcome.SUCCEEDED)

    assert await jobs.store.runs.change([RunToChange("t", "order-1", None, close)]) == [None]
    await change(jobs, call(jobs))
    looks = await asyncio.gather(
        *(jobs.store.runs.change([RunToChange("t", "order-1", None, close)]) for _ in range(4))
    )
    changed = [one for (one,) in looks if one is not None]
    assert sum(one.before.counted != one.after.counted for one in changed) == 1
    assert {one.after.counted for one in changed} == {"succeeded"}
    assert await jobs.store.runs.find("t", "order-2") is None


# --- lists ---


async def test_lists_go_from_the_newest_page_by_page(jobs: Jobs) -> None:
    """By tenant or for all, by workflow, and by what a run has come to."""
    for number in range(7):
        tenant, workflow = ("t", "u")[number % 2], ("invoice", "mail")[number % 3 > 0]
        cost = label_change(jobs.wall(), workflow=workflow, outcome=("failed", "succeeded")[number > 3])
        await change(jobs, cost, f"run-{number}", tenant)
        jobs.wall.advance(1)
    await change(jobs, call(jobs), "run-0", "t")

    assert await ids(jobs, RunQuery(None, 10)) == [f"run-{number}" for number in (6, 5, 4, 3, 2, 1, 0)]
    first = await jobs.store.runs.list_runs(RunQuery("t", 3))
    assert ([run.record.run for run in first.runs], first.has_more) == (["run-6", "run-4", "run-2"], True)
    second = await jobs.store.runs.list_runs(RunQuery("t", 3, ("t", "run-2")))
    assert ([run.record.run for run in second.runs], second.has_more) == (["run-0"], False)
    assert await ids(jobs, RunQuery(None, 10, workflow="invoice")) == ["run-6", "run-3", "run-0"]
    failed = RunQuery(
        "t", 10, matches=lambda run: run.so_far.outcome is not None and run.so_far.outcome.word == "failed"
    )
    assert await ids(jobs, failed) == ["run-2", "run-0"]
    assert await ids(jobs, RunQuery("t", 10, ("t", "never"))) == []
    assert await ids(jobs, RunQuery("nobody", 10)) == []


async def test_a_list_that_leaves_most_out_finds_the_rest(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few places are looked at in one step."""
    monkeypatch.setattr("gateway.features.runs.sqlite_rows.LOOKED_AT", 2)
    monkeypatch.setattr("gateway.features.runs.redis.ROWS_AT_ONCE", 2)
    for number in range(9):
        await change(
            jobs,
            label_change(jobs.wall(), workflow="rare" if number % 4 == 0 else "usual"),
            f"run-{number}",
            f"t{number % 3}",
        )
        jobs.wall.advance(1)

    page = await jobs.store.runs.list_runs(RunQuery(None, 2, workflow="rare"))
    assert ([run.record.run for run in page.runs], page.has_more) == (["run-8", "run-4"], True)
    page = await jobs.store.runs.list_runs(RunQuery(None, 2, ("t1", "run-4"), "rare"))
    assert ([run.record.run for run in page.runs], page.has_more) == (["run-0"], False)


# --- forgetting ---


async def test_what_is_forgotten_takes_its_steps_along(jobs: Jobs) -> None:
    """One run by its name, or those that nothing was added to for long."""
    for number in range(5):
        await jobs.store.runs.keep_step(step(jobs, run=f"order-{number}"))
        jobs.wall.advance(1)
    assert await jobs.store.runs.forget("t", "order-3")
    assert not await jobs.store.runs.forget("t", "order-3")
    assert not await jobs.store.runs.forget("u", "order-2")
    await change(jobs, call(jobs), "order-0")

    assert await jobs.store.runs.trim(jobs.wall() - 2, 1) == 1
    assert await ids(jobs, RunQuery("t", 9)) == ["order-4", "order-2", "order-0"]
    assert await jobs.store.runs.trim(jobs.wall() - 2, 9) == 1
    assert await ids(jobs, RunQuery("t", 9)) == ["order-4", "order-0"]
    assert await jobs.store.runs.find_step("t", "order-2", "extract") is None
    assert await jobs.store.runs.find_step("t", "order-0", "extract") is not None
    assert jobs.store.runs.early == 0
    again = step(jobs, run="order-3", body=b"again")
    assert await jobs.store.runs.keep_step(again) == again


async def test_the_runs_touched_least_lately_make_room(jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    """Those of the tenant who wants it, counted and said once; another's stay."""
    size = RUN_BYTES + STEP_BYTES + HEADER_BYTES + 1000
    room(jobs, 3 * size)
    await jobs.store.runs.keep_step(step(jobs, run="another's", body=bytes(1000), tenant="u"))
    for number in range(3):
        jobs.wall.advance(1)
        await jobs.store.runs.keep_step(step(jobs, run=f"order-{number}", body=bytes(1000)))
    jobs.wall.advance(1)
    await change(jobs, call(jobs), "order-0")
    assert (await ids(jobs, RunQuery("t", 9)), jobs.store.runs.early) == (["order-2", "order-1", "order-0"], 0)

    jobs.wall.advance(1)
    await jobs.store.runs.keep_step(step(jobs, run="order-3", body=bytes(1000)))
    assert (await ids(jobs, RunQuery("t", 9)), jobs.store.runs.early) == (["order-3", "order-2", "order-0"], 1)
    await change(jobs, call(jobs), "order-4")
    assert (await ids(jobs, RunQuery("t", 9)), jobs.store.runs.early) == (["order-4", "order-3", "order-0"], 2)
    assert await ids(jobs, RunQuery("u", 9)) == ["another's"]
    assert len([one for one in caplog.records if "forgotten early" in one.message]) == 1


async def test_a_run_larger_than_all_the_room_loses_its_oldest_steps(jobs: Jobs) -> None:
    """A step that does not fit alone is refused, and takes nothing else with it."""
    room(jobs, RUN_BYTES + 2 * (STEP_BYTES + HEADER_BYTES + 1000))
    for number in range(4):
        await jobs.store.runs.keep_step(step(jobs, f"part[{number}]", bytes(1000)))
    found = await jobs.store.runs.find("t", "order-1")
    assert found is not None
    assert ([about.step for about in found[1]], jobs.store.runs.early) == (["part[2]", "part[3]"], 2)
    with pytest.raises(StepTooLarge):
        await jobs.store.runs.keep_step(step(jobs, "huge", bytes(10_000)))
    assert await jobs.store.runs.find("t", "order-1") == found
