"""Runs that replicas share: added by all at once, each change once, whatever answers are lost."""

from __future__ import annotations

import asyncio

import pytest

from gateway.features.runs.rules import RunOutcome, RunRecord, RunsUnavailable, count_once
from tests.support.conformance import ROOMY, Wall
from tests.support.redis_support import Lender
from tests.support.run_changes import one_call

NOW = 1_800_000_000.0


def stays(_record: RunRecord) -> None:
    return None


def closes(record: RunRecord) -> RunRecord | None:
    return count_once(record, RunOutcome.SUCCEEDED)


async def test_replicas_that_change_a_run_at_once_lose_nothing_and_count_it_once(lends: Lender, wall: Wall) -> None:
    one, other = (lends.replica(ROOMY, wall, now=wall, namespace="runs-at-once") for _ in range(2))
    asked = [
        store.runs.merge("team", "2026/4711[1]", one_call(f"t{n % 3}", NOW + n, cost_usd=0.25), closes)
        for n in range(10)
        for store in (one, other)
    ]
    seen = [found for found in await asyncio.gather(*asked) if found is not None]
    assert sum(before.counted != after.counted for before, after in seen) == 1
    for store in (one, other):
        record = await store.runs.get("team", "2026/4711[1]")
        assert record is not None
        assert (record.so_far.total.calls, record.so_far.total.cost_usd) == (20, 5.0)
        assert [found.run for found in await store.runs.last("team", 10)] == ["2026/4711[1]"]
        assert await store.runs.get("others", "2026/4711[1]") is None
    assert await other.runs.merge("team", "none", None, stays) is None
    assert await other.runs.forget("team", "2026/4711[1]")
    assert not await one.runs.forget("team", "2026/4711[1]")
    assert await one.runs.last(None, 10) == []


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_change_whose_answer_was_lost_is_added_once(lends: Lender, wall: Wall, is_done: bool) -> None:
    store, other = (lends.replica(ROOMY, wall, now=wall, namespace=f"runs-lost-{is_done}") for _ in range(2))
    link = lends.links[-2]
    await store.runs.merge("team", "r", one_call("a", NOW), stays)
    change = one_call("a", NOW + 1)
    if is_done:
        link.unheard.add("runs_swap")
    else:
        link.refused.add("runs_swap")
    with pytest.raises(RunsUnavailable) as trouble:
        await store.runs.merge("team", "r", change, stays)
    assert trouble.value.is_kept is is_done
    link.unheard.clear()
    link.refused.clear()
    await other.runs.merge("team", "r", one_call("b", NOW + 2), stays)
    found = await store.runs.merge("team", "r", None if is_done else change, stays)
    assert found is not None
    assert found[1].so_far.total.calls == 3


async def test_a_store_that_is_away_says_so(lends: Lender, wall: Wall) -> None:
    store = lends.replica(ROOMY, wall, now=wall, namespace="runs-away")
    lends.links[-1].go(away=True)
    for asked in (
        store.runs.merge("team", "r", one_call("a", NOW), stays),
        store.runs.get("team", "r"),
        store.runs.last(None, 5),
        store.runs.forget("team", "r"),
    ):
        with pytest.raises(RunsUnavailable):
            await asked
