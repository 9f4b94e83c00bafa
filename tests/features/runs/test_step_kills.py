"""A step whose process is killed before and after each of its uses of a store, and so between paying and keeping."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.features.runs.rules import WORKFLOWS
from gateway.features.runs.table import DurableRuns, RunTable
from gateway.products.jobs.store import JobStore
from tests.features.reuse.test_reuse import sent
from tests.features.runs.test_run_kills import DyingView
from tests.features.runs.test_steps import REPLAYED, step
from tests.support.flow import Bench, ScriptedUpstream, whole
from tests.support.redis_servers import RedisServer
from tests.support.town import Kept, Town, View, Where, town
from tests.support.virtual import LoopClock, run

FIRST, SECOND = (b'{"choices": [{"message": {}}], "by": %d}' % number for number in (1, 2))
PAID = {
    ("runs.find_step", False): 1,
    ("runs.find_step", True): 1,
    ("runs.keep_step", False): 2,  # between paying and keeping
    ("runs.keep_step", True): 1,
}
"""How often a step is paid for, by the use of the store at which its process died, before or after it."""


SUMMED = {("runs.keep_step", False): 2, ("runs.keep_step", True): 1}
"""How often it is paid for as its run adds up, where that was written when its process died."""


class SlowSums(View):
    """A process whose sums of runs are never written, as between the two writes of a step."""

    def __init__(self, kept: Kept, over: asyncio.Event) -> None:
        super().__init__(kept, over)
        self.is_asked = asyncio.Event()

    def asking(self, name: str, method: Callable[[], Any]) -> Callable[..., Any]:
        return self._never if name == "runs.change" else super().asking(name, method)

    async def _never(self, *_given: Any) -> None:
        self.is_asked.set()
        await self._over.wait()
        raise asyncio.CancelledError


async def paid_in_sum(here: Town) -> int:
    """Returns how many calls of the run were paid for, as it adds up when everybody has put what he knows."""
    found = await View(here.kept, here.over).runs.find("web", "r1")
    assert found is not None
    total = found[0].record.so_far.total
    return int(total.calls - total.replayed)


def process(here: Town, view: View, body: bytes) -> Bench:
    """A gateway on what is kept, as this view sees it."""
    bench = Bench([ScriptedUpstream(whole(body))], clock=here.clock)

    async def opened() -> JobStore:
        return cast("JobStore", view)

    runs = RunTable(bench.clock, lambda: WORKFLOWS.of(bench.policy))
    bench.build(runs=runs)
    kept = bench.steps.kept
    runs.durable, kept.open, kept.write_behind = DurableRuns(opened, opened), opened, runs.write_behind
    return bench


def durable_step() -> dict[str, Any]:
    """A call that is a step of a run that is kept where its steps are."""
    asked = step()
    asked["part"].is_durable = True
    return asked


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_a_killed_step_is_paid_for_at_most_once_more(
    store: str,
    tmp_path: Path,
    _redis_process: RedisServer,  # noqa: PT019 - its URL is used
) -> None:
    """What was kept is given by all who come later, byte for byte."""

    async def told(clock: LoopClock, name: str, *, after: bool) -> None:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        async with town(store, clock, Where(folder, _redis_process.url)) as here:
            view = DyingView(here, name, 1, after=after)
            killed = process(here, view, FIRST)
            serving = asyncio.ensure_future(killed.serve(**durable_step()))
            await here.dies(cast("Any", view))
            assert not serving.done()

            other, third = (process(here, View(here.kept, here.over), SECOND) for _ in range(2))
            reply, body = await other.serve(**durable_step())
            again, same = await third.serve(**durable_step())
            paid = sent(killed) + sent(other)
            assert paid == PAID.get((name, after), paid) <= 2
            assert body == (SECOND if sent(other) else FIRST)
            assert (REPLAYED in reply.headers) is (sent(other) == 0)
            assert (same, REPLAYED in again.headers, sent(third)) == (body, True, 0)
            summed = await paid_in_sum(here)
            assert summed == SUMMED.get((name, after), summed)
            assert 1 <= summed <= paid

    for name in ("runs.find_step", "runs.keep_step", "runs.change"):
        for after in (False, True):
            run(partial(told, name=name, after=after))


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_no_step_is_there_before_the_sum_that_it_is_in(
    store: str,
    tmp_path: Path,
    _redis_process: RedisServer,  # noqa: PT019 - its URL is used
) -> None:
    """A kill between the two writes leaves the cost without the step, never the step without the cost."""

    async def told(clock: LoopClock) -> None:
        async with town(store, clock, Where(tmp_path, _redis_process.url)) as here:
            view = SlowSums(here.kept, here.over)
            killed = process(here, view, FIRST)
            serving = asyncio.ensure_future(killed.serve(**durable_step()))
            await asyncio.wait_for(view.is_asked.wait(), 60)
            await asyncio.sleep(1)
            view.is_dead = True

            other = process(here, View(here.kept, here.over), SECOND)
            _, body = await other.serve(**durable_step())
            assert (sent(killed), sent(other), body) == (1, 1, SECOND)
            assert await paid_in_sum(here) == 1
            here.over.set()
            await asyncio.gather(serving, return_exceptions=True)

    run(told)
