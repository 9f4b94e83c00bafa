"""A run of five steps whose process is killed before and after its writes to a store that others share, in virtual time.

Each use of the store in memory is tried in `test_pipeline_runs`, real processes in the soak.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.core.call import Call, Reply
from gateway.features.runs.rules import PER_USD, RunPart, units
from gateway.features.runs.step import OTHERS, PART
from gateway.features.runs.table import DurableRuns, RunTable
from gateway.products.jobs.model import Job, JobQuery, JobState, WriteResult
from gateway.products.jobs.runner import run_of
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.worker import JobWorker, Write
from tests.support.redis_servers import RedisServer
from tests.support.runs import CALL_USD, RUN_ID, STAGES, Ledger, RunProcess, call, prompt_of, run_process, stages_say
from tests.support.town import Town, View, Where, town
from tests.support.virtual import LoopClock, run

STEPS = {f"s{n}": call(f"s{n}" + (f" {{{{ steps.s{n - 1}.text }}}}" if n else "")) for n in range(5)}


class DyingView(View):
    """A process that dies at its n-th use of a method, before or after it."""

    def __init__(self, town: Town, name: str, number: int, *, after: bool) -> None:
        super().__init__(town.kept, town.over)
        self._name = name
        self._left = number
        self._after = after

    def asking(self, name: str, method: Callable[[], Any]) -> Callable[..., Any]:
        ask = super().asking(name, method)

        async def asked(*given: Any, **named: Any) -> Any:
            if name == self._name:
                self._left -= 1
                if not self._left:
                    self.dies_before, self.dies_after = ("", name) if self._after else (name, "")
            return await ask(*given, **named)

        return asked


@pytest.mark.parametrize("store", ["sqlite", "redis"])
@pytest.mark.parametrize("name", ["park", "finish"])
def test_a_kill_at_a_write_pays_one_step_again_at_most(
    store: str,
    name: str,
    tmp_path: Path,
    _redis_process: RedisServer,  # noqa: PT019 - its URL is used
) -> None:
    """The second and the fifth, before and after; each step is there once, and the run ends once."""

    async def told(clock: LoopClock, number: int, *, after: bool) -> None:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        async with town(store, clock, Where(folder, _redis_process.url)) as here:
            ledger = Ledger(lambda prompt, _time: prompt[:2])
            process = run_process(here, ledger, DyingView(here, name, number, after=after))
            await process.accept_run({"steps": STEPS}, None)
            await here.dies(process)
            other = run_process(here, ledger)
            done = await other.end_of(RUN_ID)

            assert (done.state, await other.text_of(done)) == (JobState.SUCCEEDED, "s4")
            assert len(ledger.asked) == 5
            assert sum(ledger.asked.values()) <= 5 + 1
            children = (await other.store.list_jobs(JobQuery("t", parent=RUN_ID, limit=100))).jobs
            assert [child.state for child in children] == [JobState.SUCCEEDED] * 5

    for number in (2, 5):
        for after in (False, True):
            run(partial(told, number=number, after=after))


class SummedProcess(RunProcess):
    """A process that adds up what the calls of its run cost."""

    def make_worker(self) -> JobWorker:
        async def store() -> JobStore:
            return self.store

        self.table = RunTable(self.clock, dict)
        self.table.durable = DurableRuns(store, store)
        return super().make_worker()

    def write(self, job: Job, write: Write) -> Awaitable[WriteResult]:
        """Writes behind the sum of the job's run."""
        return self.table.write_behind(job.tenant, run_of(job), write)

    async def serve(self, call: Call) -> Reply:
        """Answers all calls; a provider bills what it is asked, whoever is there to hear the answer."""
        seen: Any = call
        part = RunPart("", seen.request.step.run, seen.request.step.step, OTHERS, None, is_durable=True)
        part.lost_tries = seen.request.lost_tries
        stored, began_at = seen.request, self.clock.monotonic()
        usd = 0.0 if self.ledger.say(prompt_of(stored), 0) == 400 else CALL_USD
        self.ledger.billed_usd += usd
        reply = await super().serve(call)
        seen.slots, seen.request = {PART: part}, SimpleNamespace(tenant="t", received_at=began_at)
        self.table.settled(call, "ok", usd, 0.0)
        seen.request = stored
        return reply


@pytest.mark.parametrize(
    ("store", "replicas", "kills"),
    [("sqlite", 1, (1, 2)), ("sqlite", 1, (4, 12, 31)), ("redis", 1, (4, 12, 31)), ("redis", 2, ())],
)
def test_the_sum_of_a_run_outlives_its_processes(
    store: str,
    replicas: int,
    kills: tuple[int, ...],
    tmp_path: Path,
    _redis_process: RedisServer,  # noqa: PT019 - its URL is used
) -> None:
    """What was paid before a kill is in it; of several replicas it is one sum. Nobody ticks: there is no time for it."""

    async def told(clock: LoopClock) -> None:
        async with town(store, clock, Where(tmp_path, _redis_process.url)) as here:
            ledger = Ledger(stages_say(30))

            def process() -> SummedProcess:
                return cast("SummedProcess", run_process(here, ledger, kind=SummedProcess))

            alive = [process() for _ in range(replicas)]
            await alive[0].accept_run(STAGES, {"document": "un contrato"})
            for paid in kills:
                while ledger.billed_usd < paid * CALL_USD:  # noqa: ASYNC110 - time is virtual
                    await asyncio.sleep(0.01)
                await here.kill(alive.pop(0))
                alive.append(process())
            done = await alive[0].end_of(RUN_ID)
            found = await alive[0].table.get("t", RUN_ID)

            assert found is not None
            total = found.so_far.total
            assert done.state is JobState.SUCCEEDED
            assert total.cost == units(done.tally.cost_usd) == units(35 * CALL_USD)
            assert (total.cost + total.wasted) / PER_USD == pytest.approx(
                ledger.billed_usd, rel=0.1
            )  # waste is estimated

    run(told)
