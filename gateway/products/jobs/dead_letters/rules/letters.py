"""What becomes of a dead letter, whichever store keeps it: small steps from one letter to the next, without storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.products.jobs.dead_letters.rules.jobs_dead_letters import (
    MOST_MESSAGE,
    MOST_TRAIL,
    REPLAYS,
    TRAIL,
    DeadLetter,
    LetterKind,
    LetterState,
    derived_letter_id,
    template_of,
)
from gateway.products.jobs.model.job import Job, JobEnd, JobError, JobKind, JobState


def with_failure(marks: Mapping[str, Any], error: JobError) -> Mapping[str, Any]:
    """Returns the marks of a job with one more failed attempt in its trail."""
    trail = [*marks.get(TRAIL, ()), list(error._replace(message=error.message[:MOST_MESSAGE]))]
    return {**marks, TRAIL: trail if len(trail) <= MOST_TRAIL else [trail[0], *trail[-MOST_TRAIL + 1 :]]}


def letter_of_job(ended: Job, end: JobEnd, payload_bytes: int) -> DeadLetter | None:
    """Returns the dead letter that a job becomes at its end; None: none.

    A delivery becomes one whenever it was not delivered; a replay never: its letter is there already.
    """
    is_lost = ended.kind is JobKind.DELIVERY and ended.state in (JobState.FAILED, JobState.EXPIRED)
    if not (end.is_dead or is_lost) or REPLAYS in ended.about or ended.ended_at is None:
        return None
    error = ended.last_error or JobError("not_delivered", "its time was over", ended.ended_at)
    trail = [JobError(*one) for one in ended.marks.get(TRAIL, ())] or [error]
    is_delivery = ended.kind is JobKind.DELIVERY
    return DeadLetter(
        id=derived_letter_id(ended.id, None),
        kind=LetterKind.DELIVERY if is_delivery else LetterKind.CALL,
        job_id=ended.id,
        line=None,
        tenant=ended.tenant,
        model=ended.segment if is_delivery else ended.model,
        error=error._replace(message=error.message[:MOST_MESSAGE]),
        error_class=error.error_class,
        template=template_of(error.message),
        at=ended.ended_at,
        first_failed_at=trail[0].at,
        attempts=ended.attempts,
        trail=trail,
        cost_usd=sum(one.cost_usd for one in trail),
        bytes=payload_bytes,
        is_replayable=payload_bytes > 0,
    )


def replaying(letter: DeadLetter, replay_id: str, number: int, new_job: str) -> DeadLetter | None:
    """Returns the letter as its `number`-th replay begins; None: it is not to begin."""
    if not letter.is_replayable or letter.replays != number - 1:
        return None
    if letter.state not in (LetterState.DEAD, LetterState.REPLAYED_FAILED):
        return None
    state = LetterState.REPLAYING
    return replace(letter, state=state, replays=number, replay_id=replay_id, replay_job=new_job)


def replayed(letter: DeadLetter, ended: Job) -> DeadLetter:
    """Returns the letter after the end of the job that ran it again."""
    if letter.replay_job != ended.id or letter.state is not LetterState.REPLAYING:
        return letter
    trail = [JobError(*one) for one in ended.marks.get(TRAIL, ())]
    told = replace(
        letter,
        attempts=letter.attempts + ended.attempts,
        cost_usd=letter.cost_usd + max(ended.tally.cost_usd, sum(one.cost_usd for one in trail)),
        trail=[*letter.trail, *trail][-MOST_TRAIL:],
    )
    if ended.state is JobState.SUCCEEDED:
        return replace(told, state=LetterState.REPLAYED_OK, is_replayable=False, bytes=0)
    return replace(told, state=LetterState.REPLAYED_FAILED, error=ended.last_error or letter.error)


def stripped(letter: DeadLetter) -> DeadLetter:
    """Returns the letter without its payload: it can be looked at, but not be run again."""
    return replace(letter, bytes=0, is_replayable=False)
