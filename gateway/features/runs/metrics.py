"""What calls add to the numbers of workflows, and what becomes of runs. Implements `RunMeter`.

Labels are declared names, or `other`: however many names callers make up, there is one series more than was declared.
"""

from __future__ import annotations

from gateway.core.call import CallRecord
from gateway.core.metrics import Labels, Metrics
from gateway.core.types import Lane
from gateway.features.runs.rules import OTHER, PER_USD, RunOutcome, RunRecord

MOST_UNKNOWN = 10_000
GOOD_TASK: Labels = ("task", "true")
BAD_TASK: Labels = ("task", "false")
RECOVER_WITHIN_S: dict[Lane, float] = {"critical": 30.0, "interactive": 30.0, "batch": 600.0, "background": 21_600.0}
"""Seconds after its first failed attempt within which a call of the lane is to have its answer: seconds, minutes, hours."""


class RunCounter:
    """Counts calls of workflows, runs and recoveries."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._unknown: set[int] = set()
        self._good: dict[Labels, Labels] = {}
        self._bad: dict[Labels, Labels] = {}
        """Labels with the result, by workflow and task."""

    def count(self, record: CallRecord) -> None:
        """Counts a call that is a part of a workflow or a run."""
        call, part, metrics = record.call, record.call.part, self._metrics
        if part is None:
            return
        labels, is_ok = part.labels, record.outcome == "ok"
        known = self._good if is_ok else self._bad
        series = known.get(labels)
        if series is None:
            series = known[labels] = *labels, "ok" if is_ok else "bad"
        metrics.workflow_calls.totals[series] += 1
        metrics.success.totals[GOOD_TASK if is_ok else BAD_TASK] += 1
        if record.cost_usd:
            metrics.workflow_cost.totals[labels] += record.cost_usd
        if call.replay is not None and call.replay.saved_usd:
            metrics.workflow_saved.totals[labels[:1]] += call.replay.saved_usd
        if labels[1] == OTHER:
            # Hashes of names are remembered, not the names: they are callers' own, and may be many.
            name = ("", part.workflow) if labels[0] == OTHER else (part.workflow, part.task)
            if name[1] and len(self._unknown) < MOST_UNKNOWN:
                self._unknown.add(hash(name))
                self._metrics.workflow_unknown.values[()] = len(self._unknown)

    def recovered(self, record: CallRecord) -> None:
        """Counts a call that has a good answer after an attempt of it has failed: how long that took, and was to take."""
        call = record.call
        failed_at = next((one.ended_at for one in call.attempts if one.error_class is not None), None)
        if failed_at is None:
            return
        took_s = max(0.0, call.received_at + record.duration_s - failed_at)
        self._metrics.recovery.observe((call.lane,), took_s)
        in_time = "true" if took_s <= RECOVER_WITHIN_S[call.lane] else "false"
        self._metrics.recoveries.totals[call.lane, in_time] += 1

    def run_ended(self, record: RunRecord, workflow: str, outcome: RunOutcome, before: str) -> None:
        """Counts a run under its outcome; `workflow` is a label, `before` the outcome it was counted under; empty: none."""
        metrics = self._metrics
        if before:
            metrics.workflow_corrected.totals[workflow, before, str(outcome)] += 1
            return
        metrics.workflow_runs.totals[workflow, str(outcome)] += 1
        if outcome is RunOutcome.SUCCEEDED and record.has_bad_attempts:
            metrics.workflow_rescued.totals[(workflow,)] += 1
        metrics.workflow_seconds.observe((workflow,), record.seconds)
        total = record.so_far.total
        metrics.workflow_run_cost.observe((workflow,), (total.cost + total.wasted) / PER_USD)
        if outcome not in (RunOutcome.UNKNOWN, RunOutcome.CANCELLED):
            metrics.success.totals["workflow", "true" if outcome is RunOutcome.SUCCEEDED else "false"] += 1

    def run_used(self, workflow: str, *, is_usable: bool, is_first: bool) -> None:
        """Counts the word on whether somebody could use what came of a run; `is_first`: there was none before."""
        usable = "true" if is_usable else "false"
        if is_first:
            self._metrics.workflow_used.totals[workflow, usable] += 1
            self._metrics.success.totals["business", usable] += 1
        else:
            words = ("unusable", "usable") if is_usable else ("usable", "unusable")
            self._metrics.workflow_corrected.totals[(workflow, *words)] += 1

    def runs_lost(self, number: int) -> None:
        """Counts runs that were forgotten before their time for want of room."""
        self._metrics.workflow_lost.totals[()] += number
