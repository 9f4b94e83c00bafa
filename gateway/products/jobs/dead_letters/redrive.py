"""Redrives of dead letters: what an operator asks for, which letters are meant, and the jobs that run them again.

First a redrive as data, and the jobs for one letter; then the factory, which fetches what was to be done from where it is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import orjson

from gateway.core.clock import Clock
from gateway.core.errors import InvalidRequest
from gateway.products.jobs.dead_letters.rules import (
    CLASS,
    REDRIVES,
    DeadGroup,
    DeadLetter,
    LetterKind,
    LetterPage,
    LetterState,
)
from gateway.products.jobs.lines import read_line
from gateway.products.jobs.model import (
    DELIVERY,
    DELIVERY_DEADLINE_S,
    JOB,
    MESSAGE_ID,
    Job,
    JobKind,
    JobState,
    Mark,
    NewJob,
    Stage,
    Tally,
    derived_redrive_id,
)
from gateway.products.jobs.request import IDEMPOTENCY_KEY
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.store import Blobs, JobStore

SEGMENT: Final = "replays"
"""The segment of redrives themselves; what they begin goes into the segment that it was in."""
LASTS_S: Final = 7 * 86_400.0
"""A redrive that is not through by then ends."""
USUAL_RATE: Final = 5.0
MOST_RATE: Final = 1000.0
_FILTER: Final = ("id", "group", "kind", "class", "model", "tenant")
_NOT_AGAIN: Final = ("dedupe_key", "debounce", IDEMPOTENCY_KEY)
"""Under its key a call would get the answer again of which it died."""


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which dead letters are meant: those that fit all that is said."""

    id: str | None = None
    group: str | None = None
    kind: str | None = None
    error_class: str | None = None
    model: str | None = None
    tenant: str | None = None
    job_id: str | None = None
    """The job that letters are of, or the batch that their lines are of."""
    before: float | None = None
    """They became dead before, in wall-clock seconds."""

    def may_have(self, group: DeadGroup) -> bool:
        """Returns whether letters of a group can be meant."""
        return (
            self.group in (None, group.id)
            and self.kind in (None, str(group.kind))
            and self.error_class in (None, group.error_class)
            and self.model in (None, group.model)
        )

    def has(self, letter: DeadLetter) -> bool:
        """Returns whether a letter of such a group is meant."""
        return (
            self.id in (None, letter.id)
            and self.tenant in (None, letter.tenant)
            and self.job_id in (None, letter.job_id)
            and (self.before is None or letter.at < self.before)
        )


@dataclass(frozen=True, slots=True)
class Redrive:
    """What a redrive does; operators know it as a replay, and so do the formats of what is stored."""

    filter: LetterFilter = field(default_factory=LetterFilter)
    rate: float = USUAL_RATE
    """Letters a second."""
    to_model: str = ""
    """Calls and lines go to this model; empty: to the one that they named."""
    most: int | None = None
    """The most letters of the redrive."""


def read_filter(fields: Mapping[str, Any], now: float) -> LetterFilter:
    """Reads the fields of a filter. Raises InvalidRequest."""
    found: dict[str, Any] = {}
    for name in _FILTER:
        value = fields.get(name)
        if value is not None and (not isinstance(value, str) or not value or len(value) > 256):
            raise InvalidRequest(f"The field '{name}' must be a text of 1 to 256 characters.", param=name)
        found["error_class" if name == "class" else name] = value
    if found["kind"] is not None and found["kind"] not in list(LetterKind):
        raise InvalidRequest(f"The field 'kind' must be one of: {', '.join(LetterKind)}.", param="kind")
    older_s = fields.get("older_than_s")
    if older_s is not None:
        found["before"] = now - _number(older_s, "older_than_s", 0.0, 10.0**9)
    return LetterFilter(**found)


def read_redrive(fields: Mapping[str, Any], now: float) -> Redrive:
    """Reads what a redrive is to do. Raises InvalidRequest."""
    to_model, most = fields.get("to_model"), fields.get("max")
    to_model = "" if to_model is None else to_model
    if not isinstance(to_model, str) or len(to_model) > 256:
        raise InvalidRequest("The field 'to_model' must be the name of a model.", param="to_model")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise InvalidRequest("The field 'max' must be a whole number of 1 or more.", param="max")
    rate = fields.get("rate")
    rate = USUAL_RATE if rate is None else _number(rate, "rate", 0.001, MOST_RATE)
    return Redrive(read_filter(fields, now), rate, to_model, most)


def redrive_job(id: str, spec: Redrive, now: float) -> NewJob:
    """Returns the job that carries out a redrive."""
    job = Job(
        id=id,
        kind=JobKind.REDRIVE,
        tenant="",
        key="",
        lane="background",
        segment=SEGMENT,
        is_urgent=False,
        model=spec.to_model,
        state=JobState.QUEUED,
        created_at=now,
        run_at=now,
        deadline=now + LASTS_S,
        max_attempts=1_000_000,
        about={"replay": asdict(spec)},
    )
    return NewJob(job)


def redrive_of(job: Job) -> Redrive:
    """Returns what a redrive is to do."""
    fields = dict(job.about["replay"])
    return Redrive(**{**fields, "filter": LetterFilter(**fields["filter"])})


def is_due(letter: DeadLetter, redrive: Job) -> bool:
    """Returns whether a redrive is to begin with a letter: not with one that it has redriven before, or that came after it."""
    return (
        letter.is_replayable
        and letter.state in (LetterState.DEAD, LetterState.REDRIVE_FAILED)
        and letter.replay_id != redrive.id
        and letter.at <= redrive.created_at
    )


def redrive_id_of(letter: DeadLetter, number: int) -> str:
    """Returns the id of the job that redrives a letter for the `number`-th time."""
    mark: Mark = DELIVERY if letter.kind is LetterKind.DELIVERY else JOB
    return derived_redrive_id(mark, letter.id, number)


def why_not_again(job: Job, letter: DeadLetter | None) -> str:
    """Returns why a job, with its dead letter, cannot be tried again, and what to do instead; empty: it can."""
    if letter is not None:
        if letter.state is LetterState.REDRIVING:
            return f"is tried again already, as {letter.replay_job}"
        if letter.state is LetterState.REDRIVEN:
            return f"has been tried again with success, as {letter.replay_job}"
        if letter.kind in (LetterKind.RESPONSE, LetterKind.RUN):
            return f"cannot be tried again, as no {letter.kind} is: send it anew"
        return "" if letter.is_replayable else "cannot be tried again: its request is kept no more; send it anew"
    if not job.state.is_end:
        return f"has not failed: it is {job.state}"
    if job.state is JobState.SUCCEEDED:
        failed = (
            "; its failed lines are in its error file, and none of them is a dead letter that can be tried again"
            if job.tally.failed
            else ""
        )
        return f"has not failed: it is {job.state}{failed}"
    if job.state is JobState.FAILED:
        detail = "" if job.last_error is None else f" ({job.last_error.error_class})"
        return f"has failed by what it asked for{detail}, or its dead letter was purged: send it anew, mended"
    return f"has not failed: it is {job.state}; send it anew"


def job_for_redrive(
    dead_letter: DeadLetter, original: Job, payload: bytes, spec: Redrive, now: float, lasts_s: float
) -> NewJob | None:
    """Returns the job that runs a call or a delivery again; None: it cannot be sent to another model."""
    about = {name: value for name, value in original.about.items() if name not in _NOT_AGAIN}
    model = original.model
    if dead_letter.kind is LetterKind.DELIVERY:
        about[MESSAGE_ID] = original.about.get(MESSAGE_ID, original.id)
        lasts_s = DELIVERY_DEADLINE_S
    elif spec.to_model:
        payload_to_send = _with_model(payload, spec.to_model)
        if payload_to_send is None:
            return None
        payload, model = payload_to_send, spec.to_model
    job = replace(
        original,
        id=redrive_id_of(dead_letter, dead_letter.replays + 1),
        model=model,
        state=JobState.QUEUED,
        created_at=now,
        run_at=now,
        deadline=now + lasts_s,
        about={**about, REDRIVES: dead_letter.id, CLASS: dead_letter.error_class},
        ends_as=None,
        is_paused=False,
        attempts=0,
        started_at=None,
        ended_at=None,
        tally=Tally(),
        last_error=None,
        marks={},
        revision=0,
        parent="",
    )
    return NewJob(job, payload)


def line_again(
    letter: DeadLetter, text: bytes, spec: Redrive, now: float, lasts_s: float, attempts: int
) -> NewJob | None:
    """Returns the call that runs a line of a batch again; None: its text is no line, or can't be sent to another model."""
    try:
        custom_id, body, *_ = read_line(text)
    except ValueError:
        return None
    sent: bytes | None = bytes(body)
    if spec.to_model:
        sent = _with_model(bytes(body), spec.to_model)
    if sent is None:
        return None
    source = letter.source
    job = Job(
        id=redrive_id_of(letter, letter.replays + 1),
        kind=JobKind.CALL,
        tenant=letter.tenant,
        key=source["key"],
        lane=source["lane"],
        segment=source["segment"],
        is_urgent=False,
        model=spec.to_model or letter.model,
        state=JobState.QUEUED,
        created_at=now,
        run_at=now,
        deadline=now + lasts_s,
        max_attempts=attempts,
        about={
            "endpoint": source["endpoint"],
            "headers": [["content-type", "application/json"]],
            "metadata": {"batch_id": letter.job_id, "custom_id": custom_id[:512]},
            REDRIVES: letter.id,
            CLASS: letter.error_class,
        },
        stage=Stage.RUN,
    )
    return NewJob(job, sent)


def _with_model(body: bytes, model: str) -> bytes | None:
    try:
        fields = orjson.loads(body)
    except ValueError:
        return None
    return orjson.dumps({**fields, "model": model}) if isinstance(fields, dict) else None


def _number(value: object, name: str, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidRequest(f"The field '{name}' must be a number from {least:g} to {most:g}.", param=name)
    return float(value)


# --- a letter on its way to be run again ---

AT_ONCE = 100
"""The letters of a page."""


class RedriveFactory:
    """Makes the jobs that run dead letters again.

    What was to be done is fetched from where it is.
    """

    def __init__(self, store: JobStore, blobs: Blobs, clock: Clock, rules: Callable[[], JobRules]) -> None:
        self._store = store
        self._blobs = blobs
        self._clock = clock
        self._rules = rules

    async def job_of(self, letter: DeadLetter, spec: Redrive) -> NewJob | None:
        """Returns the job for the next redrive of a letter; None: it cannot be run. Raises JobsUnavailable."""
        rules, now = self._rules(), self._clock.wall()
        if letter.line is not None:
            text = await self._line(letter)
            return None if text is None else line_again(letter, text, spec, now, rules.deadline_s, rules.attempts)
        original = await self._store.find(letter.job_id, None)
        payload = await self._store.dead.payload(letter.id)
        if original is None or payload is None:
            return None
        return job_for_redrive(letter, original, payload, spec, now, rules.deadline_s)

    async def payload(self, letter: DeadLetter) -> bytes | None:
        """Returns what was to be done; None: it is gone. Raises JobsUnavailable."""
        return await self._store.dead.payload(letter.id) if letter.line is None else await self._line(letter)

    async def _line(self, letter: DeadLetter) -> bytes | None:
        source = letter.source
        try:
            parts = self._blobs.read(source["blob"], source["offset"], source["length"])
            text = b"".join([part async for part in parts])
        except FileNotFoundError:
            return None
        return text if len(text) == source["length"] else None


async def letters_of(store: JobStore, chosen: LetterFilter) -> AsyncGenerator[DeadLetter]:
    """Yields the open letters that are meant, group by group, the largest groups and the oldest letters first.

    Raises JobsUnavailable.
    """
    if chosen.id is not None:
        letter = await store.dead.find(chosen.id)
        if letter is not None and letter.is_open and _fits(letter, chosen):
            yield letter
        return
    largest = await store.dead.groups(0)
    for group in largest:
        async for letter in _letters_in(store, group, chosen):
            yield letter
    done, last = {group.id for group in largest}, ""
    while some := await store.dead.groups(0, last):  # there may be as many groups as letters
        for group in some:
            if group.id not in done:
                async for letter in _letters_in(store, group, chosen):
                    yield letter
        last = some[-1].id


async def _letters_in(store: JobStore, group: DeadGroup, chosen: LetterFilter) -> AsyncIterator[DeadLetter]:
    after = (-1.0, "")
    while chosen.may_have(group) and (page := await store.dead.page(LetterPage(group.id, after, AT_ONCE))):
        for letter in page:
            if chosen.has(letter):
                yield letter
        after = (page[-1].at, page[-1].id)


def _fits(letter: DeadLetter, chosen: LetterFilter) -> bool:
    return (
        chosen.has(letter)
        and chosen.group in (None, letter.group)
        and chosen.kind in (None, str(letter.kind))
        and chosen.error_class in (None, letter.error_class)
        and chosen.model in (None, letter.model)
    )
