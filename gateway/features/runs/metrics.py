"""What calls add to the numbers of workflows, and what becomes of runs.

Labels are declared names, or `other`: however many names callers make up, there is one series more than was declared.
"""

from __future__ import annotations

from gateway.core.call import CallMetrics, CallRecord
from gateway.core.metrics import RUN_SECONDS, USD, Counts, Distribution, Labels, Levels
from gateway.features.outcome import OUTCOME
from gateway.features.runs.rules import OTHER, PER_USD, RunOutcome, RunRecord
from gateway.features.runs.step import PART

MOST_UNKNOWN = 10_000
GOOD_TASK: Labels = ("task", "true")
BAD_TASK: Labels = ("task", "false")


class RunCounter(CallMetrics):
    """Counts calls of workflows, and runs."""

    after = "lossy_fields_total"

    def __init__(self) -> None:
        self.workflow_calls = Counts(
            "workflow_calls_total", "Calls of workflows, by how they ended.", "workflow", "task", "result"
        )
        self.workflow_runs = Counts(
            "workflow_runs_total", "Runs that have ended, by how, once each.", "workflow", "outcome"
        )
        self.workflow_rescued = Counts(
            "workflow_rescued_runs_total",
            "Of those, that succeeded although an attempt of a call went wrong.",
            "workflow",
        )
        self.workflow_corrected = Counts(
            "workflow_runs_corrected_total", "Runs of which another word came later.", "workflow", "was", "now"
        )
        self.workflow_used = Counts(
            "workflow_used_total", "Runs of which somebody told whether they could be used.", "workflow", "usable"
        )
        self.workflow_cost = Counts(
            "workflow_cost_usd_total", "US dollars that calls of workflows have cost.", "workflow", "task"
        )
        self.workflow_saved = Counts("workflow_saved_usd_total", "US dollars that caches saved.", "workflow")
        self.workflow_seconds = Distribution(
            "workflow_run_seconds", "From a run's first call to its last.", RUN_SECONDS, "workflow"
        )
        self.workflow_run_cost = Distribution(
            "workflow_run_cost_usd", "US dollars that a run has cost, failed attempts included.", USD, "workflow"
        )
        self.workflow_unknown = Levels(
            "workflow_unknown_names", "Names of workflows and tasks that calls have used and nobody has declared."
        )
        self.workflow_lost = Counts(
            "workflow_runs_forgotten_total", "Runs that were forgotten before their time for want of room."
        )
        self.success = Counts(
            "success_ratio_total", "Calls of runs, runs, and runs told of, by whether they were good.", "level", "ok"
        )
        self._unknown: set[int] = set()
        self._good: dict[Labels, Labels] = {}
        self._bad: dict[Labels, Labels] = {}
        """Labels with the result, by workflow and task."""

    def count(self, record: CallRecord) -> None:
        """Counts a call that is a part of a workflow or a run."""
        part = PART.find(record.call)
        if part is None:
            return
        labels, is_ok = part.labels, record.outcome == "ok"
        known = self._good if is_ok else self._bad
        series = known.get(labels)
        if series is None:
            series = known[labels] = *labels, "ok" if is_ok else "bad"
        self.workflow_calls.totals[series] += 1
        self.success.totals[GOOD_TASK if is_ok else BAD_TASK] += 1
        if record.cost_usd:
            self.workflow_cost.totals[labels] += record.cost_usd
        outcome = OUTCOME.find(record.call)
        if outcome is not None and outcome.saved_usd:
            self.workflow_saved.totals[labels[:1]] += outcome.saved_usd
        if labels[1] == OTHER:
            # Hashes of names are remembered, not the names: they are callers' own, and may be many.
            name = ("", part.workflow) if labels[0] == OTHER else (part.workflow, part.task)
            if name[1] and len(self._unknown) < MOST_UNKNOWN:
                self._unknown.add(hash(name))
                self.workflow_unknown.values[()] = len(self._unknown)

    def run_ended(self, record: RunRecord, workflow: str, outcome: RunOutcome, before: str) -> None:
        """Counts a run under its outcome; `workflow` is a label, `before` the outcome it was counted under; empty: none."""
        if before:
            self.workflow_corrected.totals[workflow, before, str(outcome)] += 1
            return
        self.workflow_runs.totals[workflow, str(outcome)] += 1
        if outcome is RunOutcome.SUCCEEDED and record.has_bad_attempts:
            self.workflow_rescued.totals[(workflow,)] += 1
        self.workflow_seconds.observe((workflow,), record.seconds)
        total = record.so_far.total
        self.workflow_run_cost.observe((workflow,), (total.cost + total.wasted) / PER_USD)
        if outcome not in (RunOutcome.UNKNOWN, RunOutcome.CANCELLED):
            self.success.totals["workflow", "true" if outcome is RunOutcome.SUCCEEDED else "false"] += 1

    def run_used(self, workflow: str, *, is_usable: bool, is_first: bool) -> None:
        """Counts the word on whether somebody could use what came of a run; `is_first`: there was none before."""
        usable = "true" if is_usable else "false"
        if is_first:
            self.workflow_used.totals[workflow, usable] += 1
            self.success.totals["business", usable] += 1
        else:
            words = ("unusable", "usable") if is_usable else ("usable", "unusable")
            self.workflow_corrected.totals[(workflow, *words)] += 1

    def runs_lost(self, number: int) -> None:
        """Counts runs that were forgotten before their time for want of room."""
        self.workflow_lost.totals[()] += number
