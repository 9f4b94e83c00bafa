"""The room that the runs of each tenant have, and the count of those that went before their time for want of it."""

from __future__ import annotations

import logging

from gateway.features.runs.step.step import StoredStep
from gateway.features.runs.step.step_errors import StepTooLarge

log = logging.getLogger("gateway.runs")


class RunRoom:
    """The room in one store."""

    __slots__ = ("_has_warned", "bytes", "early")

    def __init__(self, most_bytes: int) -> None:
        self.bytes = most_bytes
        self.early = 0
        """So many runs, and steps of runs that stay, were removed early since the start."""
        self._has_warned = False

    def check(self, step: StoredStep) -> None:
        """Raises StepTooLarge for a step that would not fit if it were alone."""
        if step.about.size > self.bytes:
            raise StepTooLarge(
                f"The answer of step '{step.about.step}' has {step.about.bytes} bytes; all runs of one tenant together have "
                f"room for {self.bytes}."
            )

    def note(self, count: int) -> None:
        """Counts what was removed, and logs the first."""
        self.early += count
        if count and not self._has_warned:
            self._has_warned = True
            log.warning(
                "No room for all steps that are to be replayed: a tenant's oldest runs are forgotten early, and their steps "
                "would be paid for again. Raise jobs.max_run_bytes_per_tenant (now %d); DELETE /v1/runs/{id} forgets a run "
                "that is done with.",
                self.bytes,
            )
