"""The port of runs: the steps that were paid for, with their answers, and what runs add up to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.features.runs.step.step import RunChanged, RunPage, RunQuery, RunToChange, StepAbout, StoredRun, StoredStep


class Runs(Protocol):
    """The runs with steps or pipelines, in a store of jobs. Every method raises JobsUnavailable.

    Each tenant's are bounded in bytes: to make room those of its runs go first that were touched least lately; where one run
    alone is larger, its oldest steps. What goes so is counted in `early`, and the first is logged.
    """

    @property
    def early(self) -> int:
        """Returns how many runs, and steps of runs that stay, this process has removed for want of room since its start."""
        ...

    async def find_step(self, tenant: str, run: str, step: str) -> StoredStep | None:
        """Returns a step; None: there is none, or it is past its `keep_until`."""
        ...

    async def keep_step(self, step: StoredStep, *, replaces: bool = False) -> StoredStep:
        """Keeps a step, durably; returns the one that is kept: the first stays, unless this one `replaces` it.

        Raises StepTooLarge for one that is beyond a tenant's room.
        """
        ...

    async def change(self, changes: Sequence[RunToChange]) -> Sequence[RunChanged | None]:
        """Adds to the records of runs, and closes those that have ended, each in one step, durably.

        None in the result: there is no such run, and no change that could begin one. What changes twice is counted twice:
        whoever is told that a change failed, and that nobody knows whether it was done (OutcomeUnknown), may count it again.
        """
        ...

    async def find(self, tenant: str, run: str) -> tuple[StoredRun, Sequence[StepAbout]] | None:
        """Returns a run with its steps, without their bodies, in the order in which they were kept; None: there is none."""
        ...

    async def list_runs(self, query: RunQuery) -> RunPage:
        """Returns a page of runs, the newest first; an empty one behind a run that is not there."""
        ...

    async def forget(self, tenant: str, run: str) -> bool:
        """Forgets a run and its steps; returns whether there was one."""
        ...

    async def trim(self, before: float, most: int) -> int:
        """Forgets runs that were last touched before `before`, at most `most` of them; returns how many."""
        ...
