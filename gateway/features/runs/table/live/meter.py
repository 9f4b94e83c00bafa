"""Who counts what becomes of runs."""

from __future__ import annotations

from typing import Protocol

from gateway.features.runs.rules.run import RunRecord
from gateway.features.runs.rules.workflow import RunOutcome


class RunMeter(Protocol):
    """The sink of what is counted of runs. Every method is cheap and synchronous, and never raises."""

    def run_ended(self, record: RunRecord, workflow: str, outcome: RunOutcome, before: str) -> None:
        """Counts a run under its outcome; `workflow` is a label, `before` the outcome it was counted under; empty: none."""
        ...

    def run_used(self, workflow: str, *, is_usable: bool, is_first: bool) -> None:
        """Counts the word on whether somebody could use what came of a run; `is_first`: there was none before."""
        ...

    def runs_lost(self, number: int) -> None:
        """Counts runs that were forgotten before their time for want of room."""
        ...


class NoMeter:
    """Counts nothing."""

    def run_ended(self, record: RunRecord, workflow: str, outcome: RunOutcome, before: str) -> None: ...

    def run_used(self, workflow: str, *, is_usable: bool, is_first: bool) -> None: ...

    def runs_lost(self, number: int) -> None: ...
