"""The request that one line of a batch stands for."""

from __future__ import annotations

from typing import Any

from gateway.features.runs.rules.workflow import RunWords
from gateway.products.batches.output.marks import ENDPOINT
from gateway.products.batches.output.tier import with_tier
from gateway.products.jobs.calls.ports.one_call import JSON, with_version
from gateway.products.jobs.calls.ports.ports import StoredRequest
from gateway.products.jobs.model.job import Job
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.service.job_request import RUN_WORDS
from gateway.products.pipelines.steps.steps import step_of


def request_of(job: Job, rules: JobRules, now: float, id: str, body: bytes, parsed: dict[str, Any]) -> StoredRequest:
    """Returns the request of a line whose body is `body`, and says what `parsed` does; `now` is wall-clock seconds."""
    left_s = job.deadline - now
    sent = with_tier(body, rules.batches, left_s, job.about[ENDPOINT])
    return StoredRequest(
        id=id,
        endpoint=job.about[ENDPOINT],
        body=sent,
        headers=with_version(job.about[ENDPOINT], JSON),
        key=job.key,
        tenant=job.tenant,
        lane=job.lane,
        deadline_s=max(0.0, left_s),
        part=RunWords(*job.about.get(RUN_WORDS, ())),
        group_most=rules.batches.group_embeddings,
        parsed=parsed if sent is body else None,
        step=step_of(job),
    )
