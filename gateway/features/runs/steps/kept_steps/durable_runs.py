"""The runs in the store of jobs, as the runs of the process see them, and the steps of a run, to be shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from gateway.features.runs.rules.errors import RunsUnavailable
from gateway.features.runs.rules.run import RunChange, RunRecord
from gateway.features.runs.step.step import Close, RunQuery, RunToChange, StepAbout, nobody_waits
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.store.jobs import JobStore

AT_ONCE = 500
GONE = "Runs with steps cannot be read or changed now; the log of the gateway says why."


class DurableRuns:
    """Implements `gateway.core.ports.KeptRuns`."""

    def __init__(self, store: Callable[[], Awaitable[JobStore]], reader: Callable[[], Awaitable[JobStore]]) -> None:
        """`store` opens the store of jobs, `reader` what there is to look into; both raise JobsUnavailable."""
        self._store = store
        self._reader = reader

    async def merge(
        self,
        tenant: str,
        run: str,
        change: RunChange | None,
        close: Close,
        written: Callable[[], None] = nobody_waits,
    ) -> tuple[RunRecord, RunRecord] | None:
        """Adds a change, and closes the run if it has ended, in one step. Raises RunsUnavailable."""
        try:
            (result,) = await (await self._store()).runs.change([RunToChange(tenant, run, change, close, written)])
        except JobsUnavailable as trouble:
            raise RunsUnavailable(GONE) from trouble
        return result

    async def get(self, tenant: str, run: str) -> RunRecord | None:
        """Returns the run; None: there is none. Raises RunsUnavailable."""
        try:
            found = await (await self._reader()).runs.find(tenant, run)
        except JobsUnavailable as trouble:
            raise RunsUnavailable(GONE) from trouble
        return None if found is None else found[0].record

    async def forget(self, tenant: str, run: str) -> bool:
        """Forgets the run with its steps; returns whether there was one. Raises RunsUnavailable."""
        try:
            return await (await self._reader()).runs.forget(tenant, run)
        except JobsUnavailable as trouble:
            raise RunsUnavailable(GONE) from trouble

    async def last(self, tenant: str | None, most: int) -> Sequence[RunRecord]:
        """Returns the newest runs of a tenant, or of all. Raises RunsUnavailable."""
        found: list[RunRecord] = []
        after: tuple[str, str] | None = None
        try:
            runs = (await self._reader()).runs
            while len(found) < most:
                page = await runs.list_runs(RunQuery(tenant, min(AT_ONCE, most - len(found)), after))
                found += [run.record for run in page.runs]
                if not page.has_more:
                    break
                after = found[-1].tenant, found[-1].run
        except JobsUnavailable as trouble:
            raise RunsUnavailable(GONE) from trouble
        return found

    async def steps(self, tenant: str, run: str) -> Sequence[StepAbout]:
        """Returns the steps of a run, in the order in which they were kept. Raises RunsUnavailable."""
        try:
            found = await (await self._reader()).runs.find(tenant, run)
        except JobsUnavailable as trouble:
            raise RunsUnavailable(GONE) from trouble
        return () if found is None else found[1]
