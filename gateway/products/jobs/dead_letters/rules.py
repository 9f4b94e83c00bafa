"""Dead letters as data: what is kept of work that failed for good, so that an operator can look at it and have it run again.

In this order: letters and groups; the port; and what becomes of a letter. A dead letter refers to a job, or to one line of a
batch; what was to be done stays where it is. Letters that look the same are a group: of the same kind, class and model, with
messages that differ in numbers and names only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol

import orjson

from gateway.products.jobs.model import (
    DEAD_LETTER,
    DRAW_BYTES,
    ClaimedWork,
    Job,
    JobEnd,
    JobError,
    JobKind,
    JobState,
    NewJob,
    WriteResult,
    new_id,
)

REDRIVES: Final = "replays"
"""In `about` of a job: the id of the dead letter that it runs again."""
CLASS: Final = "letter_class"
"""In `about` of a job that redrives: the class of its letter."""
TRAIL: Final = "trail"
"""In `marks` of a job: its failed attempts so far."""
POISON: Final = "worker_crashed"
"""The class of what has killed its workers again and again."""
DEAD_CLASSES: Final = frozenset(("context_length_exceeded", "output_invalid"))
"""Classes of failures, beside those of the brake, that an operator can mend: by another model, limit or schema."""
_REDRIVABLE: Final = (JobKind.CALL, JobKind.DELIVERY)
MOST_TRAIL: Final = 10
"""Attempts of a trail: the first and the last ones."""
MOST_MESSAGE, MOST_TEMPLATE = 500, 120
"""Characters of a message that are kept, and of it those that groups are told apart by."""
_MASKS: Final = (
    (re.compile(r"\"[^\"]*\"|'[^']*'|`[^`]*`|“[^”]*”"), '"…"'),
    (re.compile(r"https?://\S+"), "<url>"),
    (re.compile(r"\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{6,}"), "<id>"),
    (re.compile(r"\b[a-fA-F]{16,}\b|\b\d{8}(?:-\d{4}){3}-\d{12}\b"), "<id>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "#"),
)


class LetterKind(StrEnum):
    """What has failed."""

    CALL = "call"
    RESPONSE = "response"
    """A response in the background; it is not run again."""
    RUN = "run"
    """A run of a pipeline; it is not run again."""
    DELIVERY = "delivery"
    LINE = "line"
    """One line of a batch."""


class LetterState(StrEnum):
    """What has become of a dead letter."""

    DEAD = "dead"
    REDRIVING = "replaying"
    REDRIVEN = "replayed_ok"
    """Its redrive succeeded: it is in no group any more, and is only kept to be looked at."""
    REDRIVE_FAILED = "replayed_failed"
    """Its redrive has failed: it may be redriven once more."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter as a store has it. Times are wall-clock seconds, money is US dollars."""

    id: str
    kind: LetterKind
    job_id: str
    line: int | None
    """The number of the line from 0; None: the letter is about the whole job."""
    tenant: str
    model: str
    """The model as the caller named it; of a delivery the segment of its webhook."""
    error: JobError
    """The last failure, at its first end or at the end of its last redrive."""
    error_class: str
    """The class of the failure that made it a dead letter, as its template: they never change."""
    template: str
    at: float
    """When it became a dead letter."""
    first_failed_at: float
    attempts: int
    trail: Sequence[JobError] = ()
    cost_usd: float = 0.0
    bytes: int = 0
    """The bytes of the payload that a store keeps for it."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """Where the text of a line is: a blob, and a part of it."""
    state: LetterState = LetterState.DEAD
    is_replayable: bool = True
    """What was to be done is still there, as far as the store knows."""
    replays: int = 0
    replay_id: str = ""
    """The redrive that had it run last."""
    replay_job: str = ""
    """The job that runs it again, or did so last."""

    @property
    def group(self) -> str:
        """Returns the id of its group."""
        parts = "\0".join((self.kind, self.error_class, self.model, self.template))
        return blake2b(parts.encode(), digest_size=8).hexdigest()

    @property
    def is_open(self) -> bool:
        """Returns whether it is counted in its group: it has not been redriven with success."""
        return self.state is not LetterState.REDRIVEN

    @property
    def holds_job(self) -> bool:
        """Returns whether its job must not be forgotten, because its payload is still needed."""
        return self.is_open and self.is_replayable and self.line is None


class DeadGroup(NamedTuple):
    """Dead letters that look the same."""

    id: str
    kind: LetterKind
    error_class: str
    model: str
    template: str
    number: int
    bytes: int
    oldest_at: float
    newest_at: float
    samples: Sequence[DeadLetter] = ()
    """The newest ones."""


class LetterPage(NamedTuple):
    """Which dead letters of a group to list, oldest first."""

    group: str
    after: tuple[float, str] = (-1.0, "")
    """`at` and id of the last one of the page before, which may have gone meanwhile."""
    limit: int = 20


class RedriveResult(NamedTuple):
    """A store's answer to a redrive of one dead letter."""

    write: WriteResult
    """About the claim of the job that redrives."""
    is_done: bool
    """The letter is marked, and its new job accepted; False: it is gone, cannot be redriven, or has been already."""


def template_of(message: str) -> str:
    """Returns a message without what differs from case to case: quoted names, addresses, ids and numbers."""
    text = " ".join(message[: 4 * MOST_MESSAGE].split())
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text[:MOST_TEMPLATE]


def derived_letter_id(job_id: str, line: int | None) -> str:
    """Returns the id of the dead letter of a job, or of one line of it, always the same."""
    source = job_id if line is None else f"{job_id}\0{line}"
    return new_id(DEAD_LETTER, blake2b(source.encode(), digest_size=DRAW_BYTES, person=b"dead letter").digest())


def letter_of_line(
    job: Job, line: int, model: str, source: Mapping[str, Any], error: JobError, attempts: int
) -> DeadLetter:
    """Returns the dead letter of one line of a batch, whose text is at `source`."""
    error = error._replace(message=error.message[:MOST_MESSAGE])
    return DeadLetter(
        id=derived_letter_id(job.id, line),
        kind=LetterKind.LINE,
        job_id=job.id,
        line=line,
        tenant=job.tenant,
        model=model or job.model,
        error=error,
        error_class=error.error_class,
        template=template_of(error.message),
        at=error.at,
        first_failed_at=error.at,
        attempts=attempts,
        trail=[error],
        cost_usd=error.cost_usd,
        source=source,
    )


def pack(letter: DeadLetter) -> bytes:
    """Returns the letter as JSON."""
    fields = asdict(letter)
    fields["error"], fields["trail"] = list(letter.error), [list(one) for one in letter.trail]
    return orjson.dumps(fields)


def unpack(data: bytes) -> DeadLetter:
    """Returns the letter that `pack` was given."""
    fields = orjson.loads(data)
    fields["kind"], fields["state"] = LetterKind(fields["kind"]), LetterState(fields["state"])
    fields["error"] = JobError(*fields["error"])
    fields["trail"] = [JobError(*one) for one in fields["trail"]]
    return DeadLetter(**fields)


# --- the port of dead letters ---


class DeadLetters(Protocol):
    """The dead letters of a store of jobs. Every method raises JobsUnavailable.

    They come by the ends of jobs (`letter_of_job`) and by `commit`. A job whose letter `holds_job` is not forgotten.
    """

    async def groups(self, samples: int, after: str | None = None) -> Sequence[DeadGroup]:
        """Returns the largest groups, in that order, with their newest `samples` letters; or the next by id, `after` one."""
        ...

    async def page(self, page: LetterPage) -> Sequence[DeadLetter]:
        """Returns the letters of a group that are open, by (`at`, id)."""
        ...

    async def find(self, letter_id: str) -> DeadLetter | None:
        """Returns a letter, also one that was redriven with success."""
        ...

    async def payload(self, letter_id: str) -> bytes | None:
        """Returns the payload of a letter's job; None: it is not kept, or the letter is about a line."""
        ...

    async def redrive(self, work: ClaimedWork, letter_id: str, number: int, new: NewJob) -> RedriveResult:
        """Marks a letter as being redriven for the `number`-th time and accepts its new job, whatever the bounds, in one step.

        `work` is the claim of the redrive, whose job's `tally.total` grows by one with it. The end of the new job, which names
        the letter in its `about`, writes the outcome into the letter, in the step of that end, however it comes.
        """
        ...

    async def purge(self, letter_ids: Sequence[str]) -> int:
        """Removes letters; returns how many there were."""
        ...

    async def trim(self, before: float, max_bytes: int, most: int) -> int:
        """Removes letters with an `at` before `before`, and of the oldest others the payloads, until the rest are within
        `max_bytes`; at most `most` letters, and returns how many.
        """
        ...


# --- what becomes of a letter, whichever store keeps it: small steps from one letter to the next ---


def with_failure(marks: Mapping[str, Any], error: JobError) -> Mapping[str, Any]:
    """Returns the marks of a job with one more failed attempt in its trail."""
    trail = [*marks.get(TRAIL, ()), list(error._replace(message=error.message[:MOST_MESSAGE]))]
    return {**marks, TRAIL: trail if len(trail) <= MOST_TRAIL else [trail[0], *trail[-MOST_TRAIL + 1 :]]}


def is_dead_class(job: Job, error_class: str, brake_classes: Collection[str]) -> bool:
    """Returns whether a job, or a line of it, that failed so for good becomes a dead letter.

    An answer that breaks its schema is the run's to judge, where a run has asked for it.
    """
    return error_class in brake_classes or (error_class in DEAD_CLASSES and not job.parent)


def letter_of_job(ended: Job, end: JobEnd, payload_bytes: int) -> DeadLetter | None:
    """Returns the dead letter that a job becomes at its end; None: none.

    A delivery becomes one whenever it was not delivered; a redrive never: its letter is there already.
    """
    is_lost = ended.kind is JobKind.DELIVERY and ended.state in (JobState.FAILED, JobState.EXPIRED)
    if not (end.is_dead or is_lost) or REDRIVES in ended.about or ended.ended_at is None:
        return None
    error = ended.last_error or JobError("not_delivered", "its time was over", ended.ended_at)
    trail = [JobError(*one) for one in ended.marks.get(TRAIL, ())] or [error]
    is_delivery = ended.kind is JobKind.DELIVERY
    kept_bytes = payload_bytes if ended.kind in _REDRIVABLE else 0
    return DeadLetter(
        id=derived_letter_id(ended.id, None),
        kind=LetterKind(ended.kind),
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
        bytes=kept_bytes,
        is_replayable=kept_bytes > 0,
    )


def begin_redrive(letter: DeadLetter, redrive_id: str, number: int, new_job: str) -> DeadLetter | None:
    """Returns the letter as its `number`-th redrive begins; None: it is not to begin."""
    if not letter.is_replayable or letter.replays != number - 1:
        return None
    if letter.state not in (LetterState.DEAD, LetterState.REDRIVE_FAILED):
        return None
    state = LetterState.REDRIVING
    return replace(letter, state=state, replays=number, replay_id=redrive_id, replay_job=new_job)


def end_redrive(letter: DeadLetter, ended: Job) -> DeadLetter:
    """Returns the letter after the end of the job that ran it again."""
    if letter.replay_job != ended.id or letter.state is not LetterState.REDRIVING:
        return letter
    trail = [JobError(*one) for one in ended.marks.get(TRAIL, ())]
    updated = replace(
        letter,
        attempts=letter.attempts + ended.attempts,
        cost_usd=letter.cost_usd + max(ended.tally.cost_usd, sum(one.cost_usd for one in trail)),
        trail=[*letter.trail, *trail][-MOST_TRAIL:],
    )
    if ended.state is JobState.SUCCEEDED:
        return replace(updated, state=LetterState.REDRIVEN, is_replayable=False, bytes=0)
    return replace(updated, state=LetterState.REDRIVE_FAILED, error=ended.last_error or letter.error)


def stripped(letter: DeadLetter) -> DeadLetter:
    """Returns the letter without its payload: it can be looked at, but not be run again."""
    return replace(letter, bytes=0, is_replayable=False)
