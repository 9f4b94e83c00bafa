"""The brake of batches: where line after line fails for what an operator has to mend, the rest is not burnt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.products.batches.output import marks
from gateway.products.jobs.model.job import Job
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.worker.running import RunningWork

FIRST_PROBE_S, LAST_PROBE_S = 30.0, 900.0
"""Seconds until a braked batch tries one line: the first delay, doubled with each failure up to the second."""


@dataclass(slots=True)
class Brake:
    """The brake of one batch in this process."""

    in_a_row: int = 0
    error_class: str = ""
    """Why it is on; empty: it is off."""
    noted: str = ""
    """What the batch's mark says of it."""
    probe_s: float = FIRST_PROBE_S

    @property
    def is_on(self) -> bool:
        """Tells whether only single lines are tried."""
        return bool(self.error_class)

    def succeeded(self) -> None:
        """Notes a line that did not fail so: everything goes on."""
        self.in_a_row, self.error_class, self.probe_s = 0, "", FIRST_PROBE_S

    def failed(self, error_class: str, after: int, began_at_s: float = 0.0) -> None:
        """Notes a line that failed with a class of the brake's; `after` so many in a row it is on.

        `began_at_s` is the `probe_s` under which the line began as a probe: of several only one doubles it, and lines that
        were under way when the brake went on do not.
        """
        if self.is_on and began_at_s == self.probe_s:
            self.probe_s = min(LAST_PROBE_S, 2 * self.probe_s)
        self.in_a_row += 1
        if self.in_a_row >= after:
            self.error_class = error_class


class Brakes:
    """The brakes of the batches that this process works on."""

    def __init__(self) -> None:
        self._brakes: dict[str, Brake] = {}

    def of(self, job: Job) -> Brake:
        """Returns the brake of a batch; one that is new here is on if the batch's mark says so, of whatever process."""
        noted = job.marks.get(marks.BRAKED_BY, "")
        return self._brakes.setdefault(job.id, Brake(error_class=noted, noted=noted))

    @property
    def job_ids(self) -> Sequence[str]:
        """Returns the ids of the batches that have one."""
        return list(self._brakes)

    async def note(self, store: JobStore, running: RunningWork) -> None:
        """Has the batch's mark say what its brake does, where that has changed: it is shown by any process."""
        brake = self.of(running.work.job)
        if (told := brake.error_class) != brake.noted:
            brake.noted = told
            await running.write(lambda: store.note(running.work, {marks.BRAKED_BY: told or None}))

    def forget(self, job_id: str) -> None:
        """Forgets a batch that has ended."""
        self._brakes.pop(job_id, None)
