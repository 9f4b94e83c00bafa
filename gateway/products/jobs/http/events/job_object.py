"""A job as its owner sees it: the JSON object of `/v1/jobs`, and its events."""

from __future__ import annotations

from typing import Any, Final

from gateway.products.jobs.model.job import Job, JobKind, JobPage, JobState
from gateway.products.jobs.model.list_page import list_page
from gateway.products.pipelines.rules.carried import CURRENT, SETTLED

POLL_AFTER_S: Final = 2.0
"""Told to those who poll a job that is not at its end."""


def show_job(job: Job) -> dict[str, Any]:
    """Returns the job object. Times are seconds since 1970, money is US dollars."""
    tally, error = job.tally, job.last_error
    if job.kind is JobKind.RUN and not job.state.is_end:
        tally = tally._replace(completed=job.marks.get(SETTLED, 0))
    done = tally.completed + tally.failed
    return {
        "id": job.id,
        "object": "job",
        "kind": str(job.kind),
        "status": str(job.state),
        "stage": _stage(job),
        "is_paused": job.is_paused,
        "endpoint": job.about.get("endpoint"),
        "model": job.model or None,
        "lane": job.lane,
        "priority": job.about.get("priority"),
        "created_at": int(job.created_at),
        "run_at": int(job.run_at),
        "started_at": _whole(job.started_at),
        "finished_at": _whole(job.ended_at),
        "deadline": int(job.deadline),
        "attempts": {"made": job.attempts, "max": job.max_attempts},
        "progress": {
            "total": tally.total,
            "done": tally.completed,
            "failed": tally.failed,
            "percent": round(100 * done / tally.total, 1) if tally.total else 0.0,
        },
        "last_error": None
        if error is None
        else {"class": error.error_class, "message": error.message, "at": int(error.at)},
        "result": {"url": f"/v1/jobs/{job.id}/result"} if _may_have_answer(job) else None,
        "usage": {
            "input_tokens": tally.input_tokens,
            "input_tokens_details": {"cached_tokens": tally.cached_tokens},
            "output_tokens": tally.output_tokens,
            "total_tokens": tally.input_tokens + tally.output_tokens,
        },
        "cost_usd": round(tally.cost_usd, 8),
        "metadata": job.about.get("metadata") or {},
    }


def _stage(job: Job) -> str | None:
    """Returns the part of its life that a batch is in, or the steps of a run that are under way."""
    if job.kind is JobKind.BATCH:
        return str(job.stage)
    if job.kind is JobKind.RUN and not job.state.is_end:
        return ", ".join(job.marks.get(CURRENT, ())) or None
    return None


def show_page(page: JobPage) -> dict[str, Any]:
    """Returns a page of job objects."""
    return list_page([show_job(job) for job in page.jobs], has_more=page.has_more)


def _may_have_answer(job: Job) -> bool:
    """Tells whether the job is of the kind that has an answer, and has come to its end by itself; a batch has files."""
    kinds = JobKind.CALL, JobKind.RUN, JobKind.RESPONSE
    return job.kind in kinds and job.state in (JobState.SUCCEEDED, JobState.FAILED)


def _whole(at: float | None) -> int | None:
    return None if at is None else int(at)
