"""Runs of pipelines that a store or a worker stops: what has become of them is told once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import Mock

import pytest

from gateway.features.run_port import RunEnd, RunPort
from gateway.features.runs.rules import RunRecord, begun, end_change, outcome_of, use_of
from gateway.products.jobs.model import JobFlag, JobState
from gateway.products.jobs.upkeep import CountedEnds
from tests.support.memory_store.store import MemoryJobStore
from tests.support.runs import RUN_ID, Ledger, call, run_process
from tests.support.town import Town, Where, town
from tests.support.virtual import LoopClock, run


@pytest.mark.parametrize(
    ("has_begun", "state", "outcome"),
    [
        (False, JobState.CANCELLED, "cancelled"),
        (True, JobState.CANCELLED, "cancelled"),
        (True, JobState.EXPIRED, "failed"),
    ],
)
def test_a_run_that_is_stopped_is_told_of_once(*, has_begun: bool, state: JobState, outcome: str) -> None:
    """Before it began by the store, afterwards by its worker; one whose time is over has failed."""
    records: list[RunRecord] = []

    class Ends(RunPort):
        def run_ended(self, tenant: str, run: str, end: RunEnd) -> None:
            records.append(begun(tenant, run, end_change(end)))

    async def story(here: Town, clock: LoopClock) -> None:
        ends = CountedEnds(lambda _job: (), Mock(), Ends())
        ends.start()
        here.kept.store = MemoryJobStore(clock.wall, following=ends)
        process = run_process(here, Ledger(lambda _prompt, _time: 500.0))
        begins_at = clock.wall() + (0.0 if has_begun else 100.0)
        await process.accept_run({"steps": {"a": call("a")}}, None, run_at=begins_at, deadline=clock.wall() + 300)
        await asyncio.sleep(5)
        if state is JobState.CANCELLED:
            for _ in range(2):
                await process.store.flag(RUN_ID, "t", JobFlag.CANCEL)
        done = await process.end_of(RUN_ID)
        await asyncio.sleep(1)

        assert done.state is state
        ((record,)) = records
        assert (record.tenant, record.run, record.workflow) == ("t", RUN_ID, "pipelines/p")
        assert (outcome_of(record, None, clock.wall()), use_of(record) == "") == (outcome, outcome == "cancelled")

    async def whole(clock: LoopClock) -> None:
        async with town("memory", clock, Where(Path(), "")) as one:
            await story(one, clock)

    run(whole)
