"""A response in the background as its caller sees it before its answer is there, and where there never is one.

Source: OpenAI's API reference, the response object; what it repeats of its request is what the gateway knows of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import orjson

from gateway.products.jobs.model.job import Job, JobState
from gateway.products.responses.rules.response_object.stored_response import ASKED, ECHO, STATUS

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

STREAMS: Final = "stream"
STORES: Final = "store"
PREVIOUS: Final = "previous"
GENERATION: Final = "generation"
"""In `marks` of such a job: the number of the last run of the model whose events may have been seen, from 0."""
MOST_ECHO_BYTES: Final = 16_384
"""What is longer of a request is repeated by its answer only."""

ECHOED: Final[Mapping[str, Any]] = {
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""What a response repeats of its request, with the values of a request that says nothing."""
_OF_JOB: Final[Mapping[JobState, Status]] = {
    JobState.SCHEDULED: "queued",
    JobState.QUEUED: "queued",
    JobState.RUNNING: "in_progress",
    JobState.SUCCEEDED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
    JobState.EXPIRED: "failed",
}
LATE: Final[Mapping[str, str]] = {"code": "server_error", "message": "The response was not ready before its deadline."}


def echo_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is kept of a request to be repeated, the smallest fields first, as many as fit."""
    asked = {name: body[name] for name in ECHOED if body.get(name) is not None}
    sizes = sorted((len(orjson.dumps(value)), name) for name, value in asked.items())
    kept, left = {}, MOST_ECHO_BYTES
    for size, name in sizes:
        left -= size + len(name)
        if left < 0:
            break
        kept[name] = asked[name]
    return kept


def own_fields(job: Job) -> dict[str, Any]:
    """Returns the fields of a response that are the gateway's to say, whatever the provider says in them."""
    asked = job.about[ASKED]
    return {
        "id": job.id,
        "created_at": int(job.created_at),
        "background": True,
        "store": asked[STORES],
        "previous_response_id": asked[PREVIOUS] or None,
    }


def status_of(job: Job) -> Status:
    """Returns the status of a job of kind `response` in the words of responses."""
    status: Status = job.marks.get(STATUS) or _OF_JOB[job.state]
    return status


def begun(job: Job, status: Status) -> dict[str, Any]:
    """Returns the response without an answer."""
    made = {
        "id": job.id,
        "object": "response",
        "created_at": int(job.created_at),
        "status": status,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": job.model,
        "output": [],
        "usage": None,
    }
    return {**made, **ECHOED, **job.about[ASKED][ECHO], **own_fields(job)}


def ended(response: Mapping[str, Any], status: Status, error: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the response at an end that is not the provider's."""
    return {**response, "status": status, "error": error}


def shown(job: Job) -> dict[str, Any]:
    """Returns the response of a job whose answer is not kept: it has not ended, or has ended without one."""
    error = None
    if job.state is JobState.EXPIRED:
        error = LATE
    elif job.state is JobState.FAILED and job.last_error is not None:
        error = {"code": "server_error", "message": job.last_error.message}
    return ended(begun(job, status_of(job)), status_of(job), error)
