"""What becomes of a job, whichever store keeps it: small steps from one job to the next, without storage.

Invariants: an end never changes; the revision grows with every step that changes a job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from gateway.products.jobs.dead_letters.rules import with_failure
from gateway.products.jobs.model import (
    FINALISE,
    ChunkPlan,
    Job,
    JobEnd,
    JobError,
    JobKind,
    JobQuery,
    JobState,
    LineResult,
    NewJob,
    Stage,
    Tally,
    TooManyJobs,
    WriteResult,
    job_status,
)
from gateway.products.responses.rules.response_object import ASKED, ECHO, STATUS

PieceState = Literal["ready", "later", "claimed", "withheld"]
"""A piece is claimable, waits for its time, is with a worker, or is withheld because its job is paused or to stop."""

NOT_OURS = WriteResult(is_ours=False)
MOST_GROUPS = 1000
"""Groups of dead letters that are listed."""
GROUPS_AT_ONCE = 250
"""Of a walk through all groups."""
PAYLOAD_KEPT = (JobState.FAILED, JobState.EXPIRED)
"""The payloads of jobs that end so are kept until the jobs are forgotten, so that they can be run again."""


def keeps_payload(job: Job, state: JobState) -> bool:
    """Tells whether the payload of a job that ends so is kept; nobody runs a response again, whose input is kept elsewhere."""
    return state in PAYLOAD_KEPT and job.kind is not JobKind.RESPONSE


class OpenBounds(NamedTuple):
    """How many jobs may be open, which are those that have not ended."""

    in_all: int = 1_000_000
    per_tenant: int = 100_000

    def refusal(self, open_in_all: int, open_of_tenant: int) -> TooManyJobs | None:
        """Returns the refusal of jobs with which so many would be open; None: they may be."""
        if open_of_tenant > self.per_tenant:
            return TooManyJobs(
                f"This tenant may have {self.per_tenant} open jobs. Wait until some have ended, or cancel some.",
                limit="jobs per tenant",
            )
        if open_in_all > self.in_all:
            return TooManyJobs(
                f"This gateway takes {self.in_all} open jobs. Wait until some have ended.", limit="jobs in all"
            )
        return None


def changed(job: Job, **fields: Any) -> Job:
    """Returns the job with other values, one revision further; the same job where nothing differs."""
    if all(getattr(job, name) == value for name, value in fields.items()):
        return job
    return replace(job, **fields, revision=job.revision + 1)


def unlike(jobs: Sequence[NewJob]) -> list[NewJob]:
    """Returns those that repeat none of those before them: neither its id nor one of its keys."""
    names: set[str | bytes] = set()
    found = []
    for new in jobs:
        own: set[str | bytes] = {new.job.id, new.dedupe_key, new.debounce_key}
        own.discard(b"")
        if not own & names:
            found.append(new)
        names |= own
    return found


def taken_in(job: Job, now: float) -> Job:
    """Returns a new job as a store keeps it: by the store's clock it is due or not."""
    state = JobState.SCHEDULED if job.run_at > now else JobState.QUEUED
    return job if job.state is state else replace(job, state=state)


def debounced(old: Job, new: NewJob, now: float) -> Job:
    """Returns the job that takes the place of a scheduled one with the same debounce key, and keeps its id."""
    run_at = min(now + new.debounce_wait_s, old.created_at + new.debounce_max_s)
    job = replace(
        new.job,
        id=old.id,
        created_at=old.created_at,
        run_at=run_at,
        is_paused=old.is_paused,
        revision=old.revision + 1,
    )
    return taken_in(job, now)


def begun(job: Job, plan: ChunkPlan, marks: Mapping[str, object]) -> Job:
    """Returns a batch that has been checked."""
    tally = job.tally._replace(total=plan.total)
    return changed(job, stage=Stage.RUN, marks={**job.marks, **marks}, tally=tally)


def due(job: Job) -> Job:
    """Returns the job once its time has come."""
    return changed(job, state=JobState.QUEUED) if job.state is JobState.SCHEDULED else job


def started(job: Job, now: float) -> Job:
    """Returns the job after a claim: the first one starts it."""
    if job.state is JobState.RUNNING:
        return job
    return changed(job, state=JobState.RUNNING, started_at=now if job.started_at is None else job.started_at)


def tried(job: Job, error: JobError | None, *, is_attempt: bool) -> Job:
    """Returns the job after a claim that came to nothing."""
    marks = with_failure(job.marks, error) if error is not None and is_attempt else job.marks
    return changed(job, attempts=job.attempts + is_attempt, last_error=error or job.last_error, marks=marks)


def stopping(job: Job, ends_as: JobState, now: float) -> Job:
    """Returns the job once it is to stop; that it is to be cancelled has its time in `marks`, as a batch shows it."""
    marks = {**job.marks, "cancelling_at": now} if ends_as is JobState.CANCELLED else job.marks
    return changed(job, ends_as=ends_as, marks=marks)


def noted(job: Job, marks: Mapping[str, object]) -> Job:
    """Returns the job with these marks, without those that are None."""
    merged = {**job.marks, **marks}
    return changed(job, marks={name: mark for name, mark in merged.items() if mark is not None})


def fitting(run: Job, children: Sequence[NewJob]) -> Sequence[NewJob]:
    """Returns the children of a run. Raises ValueError where one is another's, or another tenant's."""
    for new in children:
        if new.job.parent != run.id or new.job.tenant != run.tenant:
            raise ValueError(f"{new.job.id} is no child of {run.id}")
    return children


def parked(job: Job) -> Job:
    """Returns a run that waits for its children."""
    return changed(job, state=JobState.WAITING)


def woken(job: Job) -> Job:
    """Returns a run that has waited, and is to be looked at."""
    return changed(job, state=JobState.RUNNING)


def goes_on_to_stop(job: Job) -> bool:
    """Tells whether a job that is to stop does not end by that: its worker ends it, once it has seen to its children."""
    return job.kind is JobKind.RUN and job.started_at is not None


def one_more(job: Job) -> Job:
    """Returns a replay that has begun one more job."""
    return changed(job, tally=job.tally._replace(total=job.tally.total + 1))


def finalising(job: Job) -> Job:
    """Returns a batch whose lines are done, or shall not be."""
    return changed(due(job), stage=Stage.FINALISE)


def ended(job: Job, end: JobEnd, now: float) -> Job:
    """Returns the job at its end."""
    marks = with_failure(job.marks, end.error) if end.error is not None and job.kind is not JobKind.BATCH else job.marks
    return changed(
        job,
        state=end.state,
        ended_at=now,
        attempts=job.attempts + end.is_attempt,
        last_error=end.error or job.last_error,
        tally=end.tally or job.tally,
        marks={**marks, **end.marks},
        about=_about_ended(job, end),
    )


def _about_ended(job: Job, end: JobEnd) -> Mapping[str, Any]:
    """Returns what was asked; of a response that is kept it no longer repeats what the caller wrote: that goes with it."""
    if job.kind is not JobKind.RESPONSE or STATUS not in end.marks:
        return job.about
    return {**job.about, ASKED: {**job.about.get(ASKED, {}), ECHO: {}}}


def counted(tally: Tally, results: Sequence[LineResult]) -> Tally:
    """Returns the tally with these results in it, which have not been counted before."""
    failed = sum(result.is_failed for result in results)
    return tally._replace(
        completed=tally.completed + len(results) - failed,
        failed=tally.failed + failed,
        input_tokens=tally.input_tokens + sum(result.input_tokens for result in results),
        cached_tokens=tally.cached_tokens + sum(result.cached_tokens for result in results),
        output_tokens=tally.output_tokens + sum(result.output_tokens for result in results),
        cost_usd=tally.cost_usd + sum(result.cost_usd for result in results),
        reasoning_tokens=tally.reasoning_tokens + sum(result.reasoning_tokens for result in results),
    )


def is_past_stopping(job: Job) -> bool:
    """Tells whether a deadline has no say any more: the job has ended, is to stop, or is being put together."""
    return job.state.is_end or job.ends_as is not None or (job.kind is JobKind.BATCH and job.stage is Stage.FINALISE)


def is_overdue(job: Job, now: float) -> bool:
    """Tells whether the deadline has passed of a job with which it has a say."""
    return job.deadline <= now and not is_past_stopping(job)


def is_chunk(job: Job, piece: int) -> bool:
    """Tells whether a piece is a chunk of a batch."""
    return job.kind is JobKind.BATCH and piece >= 0


def waiting(job: Job, piece: int, ready_at: float, now: float) -> PieceState:
    """Returns the state of a piece that nobody has."""
    if _is_withheld(job, piece):
        return "withheld"
    return "later" if ready_at > now else "ready"


def _is_withheld(job: Job, piece: int) -> bool:
    if job.kind is JobKind.RUN:
        return job.is_paused and job.ends_as is None
    return piece != FINALISE and (job.is_paused or job.ends_as is not None)


def written(job: Job) -> WriteResult:
    """Returns the answer to a write about a claim that holds."""
    return WriteResult(True, job.ends_as, job.is_paused)


def matches(job: Job, query: JobQuery) -> bool:
    """Tells whether a job of the right tenant is one that the query asks for."""
    metadata = job.about.get("metadata") or {}
    return (
        query.kind in (None, job.kind)
        and query.parent in (None, job.parent)
        and (not query.statuses or job_status(job) in query.statuses)
        and all(metadata.get(name) == value for name, value in query.metadata.items())
    )
