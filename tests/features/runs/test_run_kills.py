"""A run of five steps whose process is killed before and after its writes to a store that others share, in virtual time.

Each use of the store in memory is tried in `test_pipeline_runs`, real processes in the soak.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.products.jobs.model import JobQuery, JobState
from tests.support.redis_servers import RedisServer
from tests.support.runs import RUN_ID, Ledger, call, run_process
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
