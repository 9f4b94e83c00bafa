"""The children of a run: a job for each part of a step that begins, made of the requests that the plan has put together.

A child's id follows from the run's, the step's and the part's, so that to begin it twice begins it once. The requests of a step
with items are a blob, one a line, that a batch reads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from gateway.products.batches.output import marks
from gateway.products.jobs.model.ids import BATCH, JOB, derived_child_id
from gateway.products.jobs.model.job import CHECK, ClaimedWork, Job, JobKind, JobState, NewJob, Stage
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.service.job_service.job_service import segment_of
from gateway.products.jobs.store.blobs import Blobs
from gateway.products.pipelines.compile.compiling.plan import PATHS, PipelinePlan, Step
from gateway.products.pipelines.rules.carried import (
    AT_ONCE,
    ITEMS,
    MODEL,
    MOST_FAILED,
    OUTPUT,
    PART,
    RETRIES,
    STEP,
    UNASKED,
    USD_PER_RUN,
)
from gateway.products.pipelines.rules.states import StepPart, StepStart

HEADERS = (("content-type", "application/json"),)
FILES_LAST_S = 86_400.0
"""The answers to items are kept so long behind the run's deadline."""
PIECE_BYTES = 262_144
"""Of a blob that are gathered before they are written."""


class RunChildren:
    """Makes the children of runs."""

    def __init__(
        self,
        blobs: Blobs,
        rules_of: Callable[[Job], JobRules],
        usd_of: Callable[[NewJob], Awaitable[float | None]],
    ) -> None:
        """`rules_of` gives the rules in force for a job; `usd_of` estimates what an attempt of one costs."""
        self._blobs = blobs
        self._rules_of = rules_of
        self._usd_of = usd_of

    async def make(self, work: ClaimedWork, plan: PipelinePlan, start: StepStart, now: float) -> NewJob:
        """Returns the child that is to begin; its blob, if it has one, is kept. Raises JobsUnavailable."""
        if start.step.for_each is not None:
            return await self._batch(work, plan, start, now)
        return await self._call(work.job, plan, start, now)

    async def _call(self, run: Job, plan: PipelinePlan, start: StepStart, now: float) -> NewJob:
        (body,) = start.requests
        about = {"endpoint": PATHS[start.endpoint], "headers": HEADERS, **_about(plan, start)}
        job = replace(_child(run, start, now, JobKind.CALL), about=about, model=start.models[0])
        rules = self._rules_of(job)
        attempts = rules.attempts if start.step.retries is None else start.step.retries + 1
        new = NewJob(replace(job, max_attempts=attempts), orjson.dumps(body))
        usd = await self._usd_of(new)
        return replace(new, job=replace(new.job, segment=segment_of(rules.segments, usd)))

    async def _batch(self, work: ClaimedWork, plan: PipelinePlan, start: StepStart, now: float) -> NewJob:
        job = _child(work.job, start, now, JobKind.BATCH)
        blob = f"{marks.batch_folder(job.id)}/input.{work.fence}"
        await self._write(blob, start)
        about = {
            marks.ENDPOINT: PATHS[start.endpoint],
            marks.INPUT_FILE: "",
            marks.INPUT: blob,
            marks.WINDOW: f"{job.deadline - now:.0f}s",
            marks.METADATA: {},
            marks.OUTPUT_LASTS_S: work.job.deadline - now + FILES_LAST_S,
            marks.BROUGHT_CREDENTIAL: False,
            ITEMS: len(start.requests),
            UNASKED: start.failed,
            AT_ONCE: start.step.max_concurrency,
            **({} if start.most_failed is None else {MOST_FAILED: start.most_failed}),
            **_about(plan, start),
        }
        rules = self._rules_of(job)
        job = replace(job, about=about, stage=Stage.CHECK, segment=segment_of(rules.segments, None))
        return NewJob(replace(job, max_attempts=rules.attempts), first_piece=CHECK, reads=blob)

    async def _write(self, blob: str, start: StepStart) -> None:
        """Writes the requests of a step, one a line, each with the number of its item. Raises JobsUnavailable."""
        writer = await self._blobs.writer(blob)
        gathered = bytearray()
        try:
            for number, body in enumerate(start.requests):
                if body is None:
                    continue
                line = {"custom_id": str(number), "method": "POST", "url": PATHS[start.endpoint], "body": body}
                gathered += orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
                if len(gathered) >= PIECE_BYTES:
                    await writer.write(bytes(gathered))
                    gathered.clear()
            await writer.write(bytes(gathered))
            await writer.commit()
        finally:
            await writer.abort()


def child_id(run_id: str, step: Step, part: StepPart) -> str:
    """Returns the id of a part of a step, always the same."""
    return derived_child_id(JOB if step.for_each is None else BATCH, run_id, step.name, part)


def _child(run: Job, start: StepStart, now: float, kind: JobKind) -> Job:
    step = start.step
    return Job(
        id=child_id(run.id, step, start.part),
        kind=kind,
        tenant=run.tenant,
        key=run.key,
        lane=step.lane or run.lane,
        segment="",
        is_urgent=run.about.get("is_urgent", False),
        model="",
        state=JobState.QUEUED,
        created_at=now,
        run_at=now,
        deadline=run.deadline if step.timeout_s is None else min(run.deadline, now + step.timeout_s),
        max_attempts=1,
        about={},
        parent=run.id,
    )


def _about(plan: PipelinePlan, start: StepStart) -> Mapping[str, Any]:
    step = start.step
    told: dict[str, Any] = {STEP: step.name, PART: int(start.part), MODEL: plan.model_name}
    if plan.usd_per_run is not None:
        told[USD_PER_RUN] = plan.usd_per_run
    if step.retries is not None:
        told[RETRIES] = step.retries
    if step.output is not None and start.part is not StepPart.REPAIR:
        told[OUTPUT] = step.output
    return told
