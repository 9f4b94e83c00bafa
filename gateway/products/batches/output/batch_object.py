"""Batches as the Batch API shows them: https://platform.openai.com/docs/api-reference/batch/object.

Every field is there, null where there is nothing to tell: SDKs of some languages know no absent ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.products.batches.input.lines import LineProblem
from gateway.products.batches.output import marks as names
from gateway.products.jobs.model.job import Job, JobState, Stage, Tally

ENDED: Final[Mapping[JobState, str]] = {
    JobState.SUCCEEDED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
    JobState.EXPIRED: "expired",
}


def batch_object(job: Job) -> dict[str, Any]:
    """Returns a job of kind `batch` as JSON."""
    status, about, marks = batch_status(job), job.about, job.marks
    ended_at = {ENDED[job.state]: job.ended_at} if job.state.is_end else {}
    errors = marks.get(names.ERRORS)
    return {
        "id": job.id,
        "object": "batch",
        "endpoint": about[names.ENDPOINT],
        "model": job.model or _only(marks.get(names.MODELS)),
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": about[names.INPUT_FILE],
        "completion_window": about[names.WINDOW],
        "status": status,
        "output_file_id": marks.get(names.OUTPUT_FILE),
        "error_file_id": marks.get(names.ERROR_FILE),
        "created_at": int(job.created_at),
        "in_progress_at": _whole(marks.get(names.IN_PROGRESS_AT)),
        "expires_at": int(job.deadline),
        "finalizing_at": _whole(marks.get(names.FINALIZING_AT)),
        "completed_at": _whole(ended_at.get("completed")),
        "failed_at": _whole(ended_at.get("failed")),
        "expired_at": _whole(ended_at.get("expired")),
        "cancelling_at": _whole(marks.get(names.CANCELLING_AT)),
        "cancelled_at": _whole(ended_at.get("cancelled")),
        "request_counts": {"total": job.tally.total, "completed": job.tally.completed, "failed": job.tally.failed},
        "usage": _usage(job.tally),
        "metadata": about.get(names.METADATA) or None,
    }


def batch_status(job: Job) -> str:
    """Returns OpenAI's word for how far a batch has come."""
    if job.state.is_end:
        return ENDED[job.state]
    if job.ends_as is JobState.CANCELLED:
        return "cancelling"
    if job.stage is Stage.CHECK:
        return "validating"
    return "finalizing" if job.stage is Stage.FINALISE else "in_progress"


def problem_objects(problems: Sequence[LineProblem]) -> list[dict[str, Any]]:
    """Returns what is wrong with a batch's input as its mark `errors` has it."""
    return [{"code": one.code, "message": one.message, "param": one.param, "line": one.line} for one in problems]


def _usage(tally: Tally) -> dict[str, Any]:
    return {
        "input_tokens": tally.input_tokens,
        "input_tokens_details": {"cached_tokens": tally.cached_tokens},
        "output_tokens": tally.output_tokens,
        "output_tokens_details": {"reasoning_tokens": tally.reasoning_tokens},
        "total_tokens": tally.input_tokens + tally.output_tokens,
    }


def _only(models: object) -> str | None:
    return models[0] if isinstance(models, list) and len(models) == 1 else None


def _whole(at: float | None) -> int | None:
    return None if at is None else int(at)
