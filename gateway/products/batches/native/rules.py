"""Parts: some lines of a batch that a provider's own Batch API works on, from their upload to their last trace.

In this order: which lines may go to whose API; what may become known of a part; and the life of a part, in which each event
makes one part of another. Nothing here knows storage or HTTP. Invariants: `here` is the end, in which every line without a
result runs through the gateway; a batch is asked for a second time only after the provider has refused the first, or has
shown none and has no file for it (where lines go along, has shown none for INLINE_SETTLED_S, and no other that may be it);
no event, however often it comes, keeps a part that is wanted back for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from gateway.core.snapshot import CHECKS_ANSWERS, PolicySnapshot, Provider, Target
from gateway.products.batches.input import key_named
from gateway.products.batches.native.formats import RemoteBatch
from gateway.products.batches.output import ENDPOINT, MODELS
from gateway.products.jobs.model import ChunkPlan, Job
from gateway.products.jobs.rules import BatchRules, has_batch_api, may_take

# --- the lines that may go to a provider's own Batch API, and to whose; asked again before each part is sent ---

ENDPOINTS: Final = frozenset(
    f"/v1/{name}"
    for name in ("chat/completions", "responses", "embeddings", "completions", "moderations", "images/generations")
)
"""The endpoints that some provider's Batch API takes; one that does not take all of them refuses the part, which then runs
here.

Source: https://platform.openai.com/docs/api-reference/batch/create
"""
INLINE_ENDPOINTS: Final = frozenset(("/v1/messages", "/v1/chat/completions", "/v1/responses"))
"""The endpoints whose lines go to Anthropic's Message Batches, as messages whatever they were.

Source: https://platform.claude.com/docs/en/api/messages/batches/create
"""
CHECKED_ENDPOINTS: Final = frozenset(("/v1/chat/completions", "/v1/responses", "/v1/messages"))
"""The endpoints whose answers may have to keep a schema."""
MOST_PARTS: Final = 64
"""The most parts of one batch at providers at a time."""


class NoPart(Exception):
    """Lines cannot go to a provider's Batch API. The message says why."""


def plan_parts(
    policy: PolicySnapshot, job: Job, models: Sequence[str], total: int, rules: BatchRules
) -> ChunkPlan | None:
    """Returns the division of a batch whose chunks go to providers as parts; None: it runs here."""
    native = rules.native
    if not rules.goes_native or total < native.min_lines or len(models) != 1:
        return None
    try:
        targets_of(policy, job, models[0], rules)
    except NoPart:
        return None
    parts = -(-total // native.part_lines)
    return ChunkPlan(total, -(-total // parts), min(MOST_PARTS, max(parts, rules.parallel_chunks)))


def target_of(policy: PolicySnapshot, job: Job, chunk: int, rules: BatchRules) -> Target:
    """Returns the target whose provider gets a chunk, by the weights of the split. Raises NoPart."""
    models = job.marks.get(MODELS, ())
    if not rules.goes_native or len(models) != 1:
        raise NoPart("the policy does not ask for it any more")
    if key_named(policy, job.key) is None:
        raise NoPart(f"the key '{job.key}' is no longer there")
    targets = targets_of(policy, job, models[0], rules)
    return targets[_turn([weight_of(policy, one, rules.native.split) for one in targets], chunk)]


def targets_of(policy: PolicySnapshot, job: Job, model_name: str, rules: BatchRules) -> list[Target]:
    """Returns the targets of a model whose providers may get parts of it, at least one. Raises NoPart."""
    if job.about[ENDPOINT] not in ENDPOINTS | INLINE_ENDPOINTS:
        raise NoPart(f"no provider's Batch API has {job.about[ENDPOINT]}")
    model = policy.find_model(model_name)
    if model is not None and CHECKS_ANSWERS.of(model) and job.about[ENDPOINT] in CHECKED_ENDPOINTS:
        raise NoPart(f"the answers of '{model_name}' are checked (output), which is done call by call")
    own = [one for one in model.targets if may_take(policy.providers[one.provider])] if model is not None else []
    if not own:
        raise NoPart(f"no provider of '{model_name}' has an api_key in the config")
    own = [one for one in own if _has(policy.providers[one.provider], one, str(job.about[ENDPOINT]))]
    if not own:
        raise NoPart(
            f"no provider of '{model_name}' has {job.about[ENDPOINT]} itself: such calls are converted one by one"
        )
    split = rules.native.split
    found = [one for one in own if weight_of(policy, one, split)] if split else own[:1]
    if not found:
        raise NoPart(f"no provider of '{model_name}' is in native.split")
    return found


def is_inline(provider: Provider) -> bool:
    """Returns whether the provider takes lines along with the request for their batch: Anthropic's Message Batches."""
    return provider.dialect == "anthropic"


def model_at(target: Target, job: Job) -> str:
    """Returns what the target's provider calls the one model of a batch."""
    model = str(job.marks[MODELS][0])
    return target.model or (model.removeprefix(target.strip) if target.strip else model)


def _has(provider: Provider, target: Target, endpoint: str) -> bool:
    """Returns whether the provider's Batch API takes lines of this endpoint."""
    if is_inline(provider):
        return endpoint in INLINE_ENDPOINTS
    return (
        has_batch_api(provider)
        and endpoint in ENDPOINTS
        and endpoint.removeprefix("/v1") not in target.converters_by_path
    )


def weight_of(policy: PolicySnapshot, target: Target, split: Mapping[str, int]) -> int:
    """Returns the weight of a target's provider, which a split names by its name in the config."""
    provider = policy.providers[target.provider]
    return split.get(provider.group or provider.name, 0) if split else 1


def _turn(weights: Sequence[int], number: int) -> int:
    """Returns whose turn the `number`-th is: each so often as its weight, spread evenly."""
    taken = [0] * len(weights)
    for _ in range(number % sum(weights)):
        taken[_next(weights, taken)] += 1
    return _next(weights, taken)


def _next(weights: Sequence[int], taken: Sequence[int]) -> int:
    return min(range(len(weights)), key=lambda one: ((taken[one] + 1) / weights[one], one))


# --- events: what may become known of a part at a provider; nothing else makes one part of another ---


class UploadedFile(NamedTuple):
    """The provider has the input file."""

    id: str


class BatchThere(NamedTuple):
    """The provider has shown the batch."""

    batch: RemoteBatch


class NotListed(NamedTuple):
    """The provider's list does not have what was looked for."""


class Unsure(NamedTuple):
    """The provider's list has what may be what was looked for; that is not known yet."""

    why: str


class Gone(NamedTuple):
    """The provider knows nothing under that id."""


class Failed(NamedTuple):
    """There was no answer, or none to go by: what was asked may have been done."""

    why: str
    retry_after_s: float = 0.0


class Unsent(NamedTuple):
    """It was not asked: there was no connection, or the moment to ask had passed."""

    why: str


class Refused(NamedTuple):
    """The provider will not do it, and has not."""

    why: str
    is_full: bool = False
    """It has no room now."""


class Done(NamedTuple):
    """What the phase is for has been done: the batch was asked to stop, its input is gone, its answers are committed,
    its files are gone."""


PartEvent = UploadedFile | BatchThere | NotListed | Unsure | Gone | Failed | Unsent | Refused | Done


# --- the life of a part ---

SENT_WITHIN_S: Final = 10.0
"""A batch is asked for within these seconds after it was noted that it will be, or not at all."""
SETTLED_S: Final = 120.0
"""Seconds after the first look in vain for a batch that was to be asked for: it is there, or on no way there. That is
SENT_WITHIN_S, the minute that the provider has for its answer, and as much for lists that lag and clocks that differ.
"""

INLINE_SENT_S: Final = 120.0
"""Lines that go along with the request for their batch have all been sent so long after the note, or never will be: what is
not whole asks for nothing."""
INLINE_SETTLED_S: Final = 600.0
"""As SETTLED_S where there is no file to remove, so that the list alone has to decide: INLINE_SENT_S, the minute for the
answer, and seven more for what lags and differs. A batch has a day; it can wait so long."""
UNSURE_LOOKS: Final = 15
"""The looks, a minute apart, at what may be the batch of a part that is wanted back, and does not say so."""

EMPTY_LOOKS: Final = 2
"""The looks in vain for what was asked for before it is asked for again: a list may lag behind."""
LOOK_AGAIN_S: Final = 15.0
CANCEL_POLL_S, CANCEL_AGAIN_S = 10.0, 60.0
CANCEL_WAIT_S: Final = 900.0
"""OpenAI gives a cancelled batch back within 10 minutes; after so long it is given up."""
MOST_POLL_S: Final = 300.0
FULL_S: Final = 300.0
"""The wait for room in a provider's queue."""
MOST_TROUBLES, MOST_TIDYING = 8, 3
MOST_REFUSALS: Final = 2
"""Refusals after which a batch is asked for again: a file that was just uploaded may not be ready yet."""
REFUSED_S: Final = 20.0
WITHOUT_FILES: Final = 10
"""The looks within which a batch that says it is completed has to say where its answers are."""
WITHOUT_ANSWERS: Final = 3
"""The looks at a batch that stopped, and says that nothing was done: some were wrong about that."""
VANISHED: Final = 5
"""The looks at a batch that is not there after which it is looked for in the list; gone from there, too, it is given up."""
GONE_FILES: Final = 4
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 300.0


class PartPhase(StrEnum):
    """How far a part has come."""

    UPLOADING = "uploading"
    CREATING = "creating"
    RECALLING = "recalling"
    WORKING = "working"
    CANCELLING = "cancelling"
    FETCHING = "fetching"
    TIDYING = "tidying"
    HERE = "here"


@dataclass(frozen=True, slots=True)
class Part:
    """One part, as a mark of its batch keeps it. Times are wall-clock seconds.

        uploading -> creating -> working (-> cancelling) -> fetching -> tidying -> here
            ^           |
            '-- recalling, where it cannot be told whether the batch was asked for

        creating -> working (-> cancelling) -> fetching -> tidying -> here
            where lines go along with the request (`is_inline`)

    What is about to be asked of the provider is noted first (`asked`), so that whoever finds the note after a crash looks
    whether it was done before it is done again. A worker that has stood still may go on and ask when nobody expects it any
    more: so it asks within SENT_WITHIN_S of its note or not at all, nobody concludes from a list that it has not before
    SETTLED_S have passed, and then the input file is removed, without which no batch can be made any more, and looked once
    more.
    """

    name: str
    """Its name, which the provider's lists show apart from all others; each submission has its own."""
    target: str
    provider: str
    model: str
    """The provider's name of it."""
    phase: PartPhase
    since: float
    """When the phase began."""
    due: float
    """When there is something to do."""
    is_asked: bool = False
    """The thing of this phase has been asked of the provider, or was about to be when a worker died."""
    submission: int = 1
    file: str = ""
    batch: str = ""
    output: str = ""
    errors: str = ""
    misses: int = 0
    """Looks in a row that found nothing, or not enough."""
    unseen_at: float = 0.0
    """When it was first looked for in vain."""
    troubles: int = 0
    """Requests in a row that came to nothing."""
    refusals: int = 0
    is_wanted: bool = False
    """Its lines are wanted back."""
    why: str = ""
    """Why its lines run here, where they do."""
    is_inline: bool = False
    """Its lines go along with the request for the batch, and the provider keeps no files of it."""
    lines: int = 0
    """The number of lines that went along: by it the batch is looked for."""
    charged_usd: float = 0.0
    """Booked ahead on its key's budget of `charged_day` (days since 1970, UTC)."""
    charged_day: int = 0

    @property
    def origin(self) -> str:
        """Returns what the names of all of its submissions begin with."""
        return self.name.rpartition("-")[0]

    @property
    def is_over(self) -> bool:
        """Returns whether the provider has nothing more to do with it."""
        return self.phase is PartPhase.HERE

    @property
    def filename(self) -> str:
        return f"gateway-{self.name}.jsonl"


def new_part(
    job_id: str, chunk: int, target: str, provider: str, model: str, now: float, *, is_inline: bool = False
) -> Part:
    """Returns a part that the provider does not know."""
    phase = PartPhase.CREATING if is_inline else PartPhase.UPLOADING
    return Part(_name(job_id, chunk, 1), target, provider, model, phase, now, now, is_inline=is_inline)


def to_mark(part: Part) -> dict[str, Any]:
    """Returns the part as JSON, without what is empty."""
    if part.is_over:
        return {"phase": str(part.phase), "why": part.why}
    fields = {**asdict(part), "phase": str(part.phase)}
    return {name: value for name, value in fields.items() if value or name in ("due", "since")}


def of_mark(mark: dict[str, Any]) -> Part:
    empty = {"name": "", "target": "", "provider": "", "model": "", "since": 0.0, "due": 0.0}
    return Part(**{**empty, **mark, "phase": PartPhase(mark["phase"])})


def mark_queried(part: Part, lines: int = 0) -> Part:
    """Returns the part once its phase's thing is about to be asked of the provider, `lines` of it with the request."""
    return replace(part, is_asked=True, misses=0, unseen_at=0.0, lines=lines)


def recall(part: Part, now: float, why: str) -> Part:
    """Returns the part once its lines are wanted back: what the provider may have is looked for, stopped and fetched."""
    if part.is_wanted or part.is_over:
        return part
    part = replace(part, is_wanted=True, why=part.why or why, troubles=0)
    if part.phase is PartPhase.UPLOADING or (part.phase is PartPhase.CREATING and not part.is_asked):
        return _to(part, PartPhase.TIDYING, now)
    return _to(part, PartPhase.CANCELLING, now) if part.phase is PartPhase.WORKING else replace(part, due=now)


def given_up(part: Part, why: str) -> Part:
    """Returns the part at its end: there is no way to the provider any more."""
    return replace(part, phase=PartPhase.HERE, why=part.why or why)


def advanced(part: Part, event: PartEvent, now: float, least_poll_s: float) -> Part:
    """Returns the part after an event."""
    if part.is_over:
        return part
    match event:
        case UploadedFile(id):
            is_next = part.phase is PartPhase.UPLOADING
            return _to(replace(part, file=id), PartPhase.CREATING, now) if is_next else part
        case BatchThere(batch):
            return _seen(part, batch, now, least_poll_s)
        case NotListed():
            return _not_listed(part, now)
        case Unsure(why):
            return _unsure(part, why, now, least_poll_s)
        case Gone():
            return _gone(part, now, least_poll_s)
        case Failed():
            return _failed(part, event, now)
        case Unsent(why):
            return _failed(replace(part, is_asked=False), Failed(why), now)
        case Refused():
            return _refused(part, event, now)
        case Done():
            return _done(part, now)


def _name(job_id: str, chunk: int, submission: int) -> str:
    return f"{job_id}-{chunk}-{submission}"


def _to(part: Part, phase: PartPhase, now: float, why: str = "", in_s: float = 0.0) -> Part:
    why = part.why or why
    fresh = replace(part, phase=phase, since=now, due=now + in_s, why=why)
    return replace(fresh, is_asked=False, misses=0, unseen_at=0.0, troubles=0)


def _seen(part: Part, batch: RemoteBatch, now: float, least_poll_s: float) -> Part:
    is_new = part.phase in (PartPhase.CREATING, PartPhase.RECALLING)
    if not is_new and part.phase not in (PartPhase.WORKING, PartPhase.CANCELLING):
        return part
    if is_new:
        part = _to(part, PartPhase.CANCELLING if part.is_wanted else PartPhase.WORKING, now)
    part = replace(part, batch=batch.id, troubles=0)
    if batch.is_over:
        return _ended(part, batch, now, least_poll_s)
    if part.phase is PartPhase.WORKING:
        return replace(part, misses=0, due=now + min(max((now - part.since) / 8, least_poll_s), MOST_POLL_S))
    if now - part.since >= CANCEL_WAIT_S:
        return _to(part, PartPhase.TIDYING, now)
    if batch.status == "cancelling" or not part.is_asked:
        return replace(part, due=now + CANCEL_POLL_S * part.is_asked)
    return replace(part, is_asked=False, due=now + CANCEL_AGAIN_S)  # the request did not arrive


def _ended(part: Part, batch: RemoteBatch, now: float, least_poll_s: float) -> Part:
    why = f"the provider's batch has {batch.status}" if batch.status != "completed" else ""
    if batch.status == "failed":
        if batch.is_full and not part.is_wanted:
            return _to(_renamed(part), PartPhase.CREATING, now, in_s=FULL_S)  # another batch of the same file
        why = f"the provider's batch has failed: {batch.code or 'no reason given'} {batch.message}".strip()
    is_unreported = not batch.output and (batch.completed > 0 or not batch.errors)
    looks = WITHOUT_FILES if batch.status == "completed" or batch.completed else WITHOUT_ANSWERS
    if is_unreported and batch.status != "failed" and part.misses + 1 < looks:
        wait_s = CANCEL_POLL_S if part.is_wanted else least_poll_s
        return replace(part, misses=part.misses + 1, due=now + wait_s)
    part = replace(part, output=batch.output, errors=batch.errors)
    return _to(part, PartPhase.FETCHING if batch.output or batch.errors else PartPhase.TIDYING, now, why)


def _renamed(part: Part) -> Part:
    job_id, chunk, _ = part.name.rsplit("-", 2)
    submission = part.submission + 1
    return replace(part, name=_name(job_id, int(chunk), submission), submission=submission, batch="")


def _not_listed(part: Part, now: float) -> Part:
    match part.phase:
        case PartPhase.UPLOADING:
            wait_s = 0.0
        case PartPhase.CREATING:
            wait_s = INLINE_SETTLED_S if part.is_inline else SETTLED_S
        case PartPhase.RECALLING if part.is_wanted:
            return _to(part, PartPhase.TIDYING, now)
        case PartPhase.RECALLING:  # nothing can be made of that file any more
            return _to(replace(_renamed(part), file=""), PartPhase.UPLOADING, now)
        case _:
            return _to(part, PartPhase.TIDYING, now, "the provider's batch is gone")
    part = replace(part, misses=part.misses + 1, unseen_at=part.unseen_at or now)
    if part.misses < EMPTY_LOOKS or now - part.unseen_at < wait_s:
        return replace(part, troubles=0, due=now + LOOK_AGAIN_S)
    if part.phase is PartPhase.CREATING and not part.is_inline:
        return _to(part, PartPhase.RECALLING, now)
    if part.phase is PartPhase.CREATING:
        return _to(part, PartPhase.TIDYING, now) if part.is_wanted else _to(_renamed(part), PartPhase.CREATING, now)
    return replace(part, is_asked=False, misses=0, unseen_at=0.0, due=now)


def _unsure(part: Part, why: str, now: float, least_poll_s: float) -> Part:
    """Returns the part after a look at what may be its batch; one that is wanted back is waited for so long and no longer."""
    if not part.is_wanted:
        wait_s = min(max((now - part.since) / 8, least_poll_s), MOST_POLL_S)
        return replace(part, troubles=0, unseen_at=part.unseen_at or now, due=now + wait_s)
    troubles = part.troubles + 1
    if troubles >= UNSURE_LOOKS:
        return _to(part, PartPhase.TIDYING, now, why)
    return replace(part, troubles=troubles, unseen_at=part.unseen_at or now, due=now + CANCEL_AGAIN_S)


def _gone(part: Part, now: float, least_poll_s: float) -> Part:
    if part.phase in (PartPhase.WORKING, PartPhase.CANCELLING) and part.misses < 2 * VANISHED:
        return replace(part, misses=part.misses + 1, due=now + max(least_poll_s, CANCEL_AGAIN_S))
    if part.phase is PartPhase.FETCHING and part.misses + 1 < GONE_FILES:
        return replace(part, misses=part.misses + 1, due=now + CANCEL_AGAIN_S)
    if part.phase in (PartPhase.TIDYING, PartPhase.RECALLING):
        return _done(part, now)
    return _to(part, PartPhase.TIDYING, now, "the provider does not know it")


def _failed(part: Part, event: Failed, now: float) -> Part:
    troubles = part.troubles + 1
    if part.phase is PartPhase.TIDYING and troubles >= MOST_TIDYING:
        return _done(part, now)  # files that stay behind are removed by the provider one day
    is_paid_for = part.phase not in (PartPhase.UPLOADING, PartPhase.TIDYING) and (
        part.is_asked or part.phase is not PartPhase.CREATING
    )
    if troubles >= MOST_TROUBLES and (part.is_wanted or not is_paid_for):
        return _to(part, PartPhase.TIDYING, now, event.why)
    wait_s = max(min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(troubles - 1, 16)), event.retry_after_s)
    return replace(part, troubles=troubles, due=now + min(wait_s, _LONGEST_WAIT_S))


def _refused(part: Part, event: Refused, now: float) -> Part:
    if part.phase is PartPhase.CANCELLING:
        return replace(part, is_asked=True, due=now)  # it has ended meanwhile: a look will tell
    if part.phase in (PartPhase.WORKING, PartPhase.FETCHING):
        return _failed(part, Failed(event.why), now)
    if part.phase is PartPhase.RECALLING:
        return _done(part, now)
    if part.phase is PartPhase.CREATING and not part.is_wanted:
        if event.is_full:
            return replace(part, is_asked=False, due=now + FULL_S)
        if part.refusals < MOST_REFUSALS and not part.is_inline:
            return replace(part, is_asked=False, refusals=part.refusals + 1, due=now + REFUSED_S)
    if part.phase is PartPhase.TIDYING:
        return _done(part, now)
    return _to(part, PartPhase.TIDYING, now, event.why)


def _done(part: Part, now: float) -> Part:
    if part.phase is PartPhase.CANCELLING:
        return replace(part, is_asked=True, due=now)
    if part.phase is PartPhase.RECALLING:
        return replace(part, is_asked=True, due=now + LOOK_AGAIN_S)
    if part.phase is PartPhase.FETCHING:
        return _to(part, PartPhase.TIDYING, now)
    return replace(part, phase=PartPhase.HERE) if part.phase is PartPhase.TIDYING else part
