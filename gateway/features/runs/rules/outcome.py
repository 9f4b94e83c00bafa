"""What has become of a run: as somebody told, else as its calls show by the rules of its workflow."""

from __future__ import annotations

from dataclasses import replace

from gateway.features.runs.rules.run import RunChange, RunRecord
from gateway.features.runs.rules.workflow import IDLE_S, RunOutcome, WorkflowRules

TOLD_OUTCOMES = (RunOutcome.SUCCEEDED, RunOutcome.FAILED)
"""What callers may tell."""


def outcome_of(record: RunRecord, rules: WorkflowRules | None, now: float) -> RunOutcome:
    """Returns what has become of the run by `now`, in wall-clock seconds; `rules` are None for an undeclared workflow."""
    so_far = record.so_far
    if so_far.outcome is not None:
        return RunOutcome(so_far.outcome.word)
    if rules is not None and rules.ends == "last_task" and rules.tasks and _is_ok(so_far, rules.tasks[-1]):
        return RunOutcome.SUCCEEDED
    if not is_over(so_far, rules, now):
        return RunOutcome.RUNNING
    if rules is None:
        return RunOutcome.UNKNOWN
    if any(task.last is not None and not task.last.is_ok for task in so_far.tasks.values()):
        return RunOutcome.FAILED
    has_good = any(task.last is not None for task in so_far.tasks.values())
    return RunOutcome.SUCCEEDED if rules.ends == "idle" and has_good else RunOutcome.ABANDONED


def is_over(so_far: RunChange, rules: WorkflowRules | None, now: float) -> bool:
    """Tells whether no more is expected of a run: nothing came for long enough, or its deadline has passed."""
    now_ms = now * 1000
    idle_s = IDLE_S if rules is None else rules.idle_s
    if now_ms - so_far.last_ms >= idle_s * 1000:
        return True
    return rules is not None and rules.deadline_s is not None and now_ms - so_far.first_ms >= rules.deadline_s * 1000


def is_rescued(record: RunRecord, outcome: RunOutcome) -> bool:
    """Tells whether the run succeeded although an attempt of its calls went wrong: what it has the gateway for."""
    return outcome is RunOutcome.SUCCEEDED and record.has_bad_attempts


def use_of(record: RunRecord) -> str:
    """Returns the word on whether somebody could use what came of the run: `usable`, `unusable`; empty: nobody spoke of it.

    Who tells that a run has succeeded or failed, and says nothing of its use, means it so.
    """
    so_far = record.so_far
    if so_far.usable is not None:
        return "usable" if so_far.usable.word else "unusable"
    if so_far.outcome is None or so_far.outcome.word not in TOLD_OUTCOMES:
        return ""
    return "usable" if so_far.outcome.word == RunOutcome.SUCCEEDED else "unusable"


def count_once(record: RunRecord, outcome: RunOutcome) -> RunRecord | None:
    """Returns the record as counted under its outcome and use; None: it is counted so already, or has not ended.

    Whoever keeps what is returned in place of `record`, and nobody else, counts the run.
    """
    counted = record.counted if outcome is RunOutcome.RUNNING else str(outcome)
    used = use_of(record)
    if (counted, used) == (record.counted, record.used):
        return None
    return replace(record, counted=counted, used=used)


def _is_ok(so_far: RunChange, task: str) -> bool:
    found = so_far.tasks.get(task)
    return found is not None and found.last is not None and found.last.is_ok
