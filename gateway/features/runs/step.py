"""What a request says of its run and its step, and a step as data: its answer, kept so that nobody pays for it twice. Pure.

In order: the part of a run that a request names (headers, `baggage`, `metadata`), the stored step and the changes of a run, the
port of their stores, the errors, and the step that a request asks for.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote

from gateway.core.call import Call, Slot
from gateway.core.errors import CallerFault, GatewayError, InvalidRequest
from gateway.core.snapshot import Key
from gateway.core.types import RawHeaders, Usage
from gateway.features.identity import digest, fingerprint, owner_of
from gateway.features.run_port import RunWords
from gateway.features.runs.rules import (
    CALLER_OUTCOMES,
    KEY_WORKFLOW,
    OTHER,
    RunChange,
    RunOutcome,
    RunPart,
    RunRecord,
    StepRequest,
    WorkflowRules,
    Workflows,
    begun,
    merged,
)

# --- the part of a run that a request names: in headers, in `baggage`, or in its body's `metadata` ---

WORKFLOW, RUN, TASK = b"x-gateway-workflow", b"x-gateway-run", b"x-gateway-task"
STEP, OUTCOME, BAGGAGE = b"x-gateway-step", b"x-gateway-run-outcome", b"baggage"
HEADERS = frozenset((WORKFLOW, RUN, TASK, STEP, OUTCOME))
OTHERS = OTHER, OTHER
PART: Final[Slot[RunPart]] = Slot("part")
"""Which part of which run a call is, and which step; absent: of none, as far as it has said."""
T = TypeVar("T")
ID_CHARS = "A-Z a-z 0-9 . _ : / [ ] -"
_ID = re.compile(r"[A-Za-z0-9._:/[\]-]{1,128}")
_RAW_ID = re.compile(rb"[A-Za-z0-9._:/[\]-]{1,128}")
_OWN_MEMBER = re.compile(rb"(?i)x-gateway-")
_INDEX = re.compile(r"(.+)\[\d+\]")


def is_id(text: object) -> bool:
    """Returns whether it can name a workflow, a run, a task or a step."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def task_of_step(step: str) -> str:
    """Returns the task of which the step is one: `summarise` of `summarise[3]`."""
    indexed = _INDEX.fullmatch(step)
    return step if indexed is None else indexed[1]


def run_words(index: Mapping[bytes, bytes], metadata: object = None) -> RunWords:
    """Returns what a call says: its headers first, then its baggage, then the `metadata` of its body.

    Raises InvalidRequest for a name that is none, but not for one in `metadata`: there it may mean something else.
    """
    workflow, run, task, step = index.get(WORKFLOW), index.get(RUN), index.get(TASK), index.get(STEP)
    words = RunWords(
        "" if workflow is None else _name(WORKFLOW, workflow),
        "" if run is None else _name(RUN, run),
        "" if task is None else _name(TASK, task),
    )
    if task is None and step is not None:
        words = words._replace(task=task_of_step(_name(STEP, step)))
    baggage = index.get(BAGGAGE)
    if baggage is not None and _OWN_MEMBER.search(baggage) is not None:
        words = RunWords(*(header or found for header, found in zip(words, _in_baggage(baggage), strict=True)))
    if isinstance(metadata, dict) and not all(words):
        words = RunWords(
            *(header or _in_metadata(metadata, name) for header, name in zip(words, words._fields, strict=True))
        )
    return words


def part_of(words: RunWords, workflows: Workflows, fixed: str = "") -> RunPart | None:
    """Returns the part that a call with these words is; None: of nothing. `fixed` is its key's workflow, which holds."""
    workflow = fixed or words.workflow
    if not (workflow or words.run or words.task):
        return None
    rules = workflows.get(workflow)
    labels = OTHERS if rules is None else rules.labels.get(words.task) or (workflow, OTHER)
    return RunPart(workflow, words.run, words.task, labels, rules)


def part_of_step(words: RunWords, workflows: Workflows, usd_per_run: float | None) -> RunPart:
    """Returns the part of its run that the call for a step of a pipeline is, whose run may cost at most `usd_per_run`.

    The pipeline is a workflow, and may be declared as one. What has begun of a run is paid for: its calls are let in while it
    has cost less than it may, and reserve nothing.
    """
    declared = workflows.get(words.workflow)
    rules = WorkflowRules(words.workflow) if declared is None else declared
    bounds = [one for one in (rules.usd_per_run, usd_per_run) if one is not None]
    if bounds:
        rules = replace(rules, usd_per_run=min(bounds), reserves=False)
    labels = OTHERS if declared is None else declared.labels.get(words.task) or (words.workflow, OTHER)
    return RunPart(words.workflow, words.run, words.task, labels, rules)


def outcome_in(index: Mapping[bytes, bytes], part: RunPart | None) -> str:
    """Returns the outcome that a call's header gives its run; empty: none. Raises InvalidRequest."""
    value = index.get(OUTCOME)
    if value is None:
        return ""
    outcome = read_outcome(value.decode("latin-1"), "header 'x-gateway-run-outcome'")
    if part is None or not part.run:
        raise InvalidRequest(
            "The header 'x-gateway-run-outcome' needs the run of which it speaks: send 'x-gateway-run', too.",
            param="x-gateway-run",
            code="missing_field",
        )
    return outcome


def read_outcome(value: object, source: str) -> RunOutcome:
    """Returns the outcome that a caller gives. Raises InvalidRequest, naming where it stands."""
    outcome = next((one for one in CALLER_OUTCOMES if one == value), None)
    if outcome is None:
        raise InvalidRequest(f"The {source} must be 'succeeded' or 'failed'.", param="outcome", code="invalid_value")
    return outcome


def without_own_members(baggage: bytes) -> bytes:
    """Returns the baggage without what is meant for the gateway; it may be empty then."""
    members = (member.strip() for member in baggage.split(b","))
    return b",".join(member for member in members if member.partition(b"=")[0].strip().lower() not in HEADERS)


def _name(header: bytes, value: bytes) -> str:
    if _RAW_ID.fullmatch(value) is None:
        name = header.decode()
        raise InvalidRequest(
            f"The header '{name}' must have 1 to 128 of {ID_CHARS}; leave it out, or put other characters as one of these.",
            param=name,
            code="invalid_value",
        )
    return value.decode()


def _in_baggage(baggage: bytes) -> RunWords:
    found: dict[bytes, str] = {}
    for member in baggage.split(b","):
        name, is_there, value = member.partition(b";")[0].partition(b"=")
        name = name.strip().lower()
        if is_there and name in HEADERS:
            text = unquote(value.strip().decode("latin-1"))
            if not is_id(text):
                raise InvalidRequest(
                    f"The member '{name.decode()}' of the header 'baggage' must have 1 to 128 of {ID_CHARS}, "
                    "percent-encoded where baggage wants it.",
                    param="baggage",
                    code="invalid_value",
                )
            found[name] = text
    task = found.get(TASK) or (task_of_step(found[STEP]) if STEP in found else "")
    return RunWords(found.get(WORKFLOW, ""), found.get(RUN, ""), task)


def _in_metadata(metadata: Mapping[str, object], name: str) -> str:
    value = metadata.get(name)
    return value if isinstance(value, str) and is_id(value) else ""


MOST_NAMES = 1024
"""The most names that are remembered; when there are more, it begins anew."""


class RunParts:
    """The parts that calls say they are, under one policy: names that come again are not read again.

    Invariant: what is remembered was read from the same header values, and is bounded: at most `MOST_NAMES` of each.

    Source: W3C Baggage (members `name=value;properties`, values percent-encoded).
    """

    __slots__ = ("_names", "_runs", "workflows")

    def __init__(self, workflows: Workflows) -> None:
        self.workflows = workflows
        self._names: dict[tuple[str, bytes | None, bytes | None, bytes | None], RunPart] = {}
        """By a key's workflow and the headers that name workflow, task and step, what they make of whatever run."""
        self._runs: dict[bytes, str] = {}

    def remembered(self) -> int:
        return len(self._names) + len(self._runs)

    def find(self, key: Key, index: Mapping[bytes, bytes], metadata: object) -> RunPart | None:
        """Returns the part; None: it is of no run and no workflow. Raises InvalidRequest, naming the header and the remedy."""
        raw = index.get(RUN)
        if raw is None or metadata is not None or BAGGAGE in index:
            part = part_of(run_words(index, metadata), self.workflows, KEY_WORKFLOW.of(key))
        else:
            run = self._runs.get(raw) or self._read_run(raw, index)
            names = KEY_WORKFLOW.of(key), index.get(WORKFLOW), index.get(TASK), index.get(STEP)
            named = self._names.get(names) or self._read_names(names, index)
            part = RunPart(named.workflow, run, named.task, named.labels, named.rules)
        if OUTCOME in index:
            outcome = outcome_in(index, part)
            if part is not None:
                part.outcome = outcome
        return part

    def _read_run(self, raw: bytes, index: Mapping[bytes, bytes]) -> str:
        run = run_words(index).run
        if len(self._runs) >= MOST_NAMES:
            self._runs.clear()
        self._runs[raw] = run
        return run

    def _read_names(
        self, names: tuple[str, bytes | None, bytes | None, bytes | None], index: Mapping[bytes, bytes]
    ) -> RunPart:
        part = part_of(run_words(index), self.workflows, names[0])
        if part is None:
            raise ValueError("the names of a part that has no run")
        if len(self._names) >= MOST_NAMES:
            self._names.clear()
        self._names[names] = part
        return part


def without_own_baggage(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Returns the headers that go to a provider, with nothing in their baggage that is meant for the gateway."""
    kept = ((name, without_own_members(value) if name == BAGGAGE else value) for name, value in headers)
    return [header for header in kept if header != (BAGGAGE, b"")]


KEPT_STEP = "step"
"""The layer of reuse that gives the answers of kept steps."""
RUN_BYTES = 1024
STEP_BYTES = 256
"""The bytes that a run, or a step, is reckoned with besides the bytes of its answer."""


@dataclass(frozen=True, slots=True)
class StepAbout:
    """All of a step but its answer's body. Times are wall-clock seconds."""

    tenant: str
    run: str
    step: str
    fingerprint: bytes
    """The digest of all that a repetition must repeat, 32 bytes."""
    status: int
    headers: Sequence[tuple[bytes, bytes]]
    """Those of the answer that belong to it, and not to the one call that it was given to."""
    is_stream: bool
    endpoint: str
    usage: Usage | None
    cost_usd: float | None
    """The cost of the first call; None: it has no price."""
    model: str
    target: str
    source: str
    """The id of the call that it was paid for by."""
    outcome: str
    created_at: float
    keep_until: float
    bytes: int
    """The bytes of the body."""

    @property
    def size(self) -> int:
        """Returns the bytes that it counts with."""
        return STEP_BYTES + self.bytes + sum(len(name) + len(value) for name, value in self.headers)


class StoredStep(NamedTuple):
    """A step with its answer's body, as the first client got it."""

    about: StepAbout
    body: bytes


class StoredRun(NamedTuple):
    """A run in a store."""

    record: RunRecord
    created_at: float
    """When it came into the store, in wall-clock seconds."""
    touched_at: float
    """When something of it was last kept."""
    bytes: int
    steps: int
    """The number of steps that are kept."""


Close = Callable[[RunRecord], RunRecord | None]
"""Returns the record as counted under its outcome, if it has ended and is not counted so; None: it stays as it is."""


def stays_open(_record: RunRecord) -> None:
    """A run that nobody counts."""


def nobody_waits() -> None:
    """A change behind which nothing is to be written."""


class WriteBehindSum(Protocol):
    """Writes something behind the sum of a run, so that whoever finds it finds what it has cost, whenever the process dies."""

    async def __call__(self, tenant: str, run: str, write: Callable[[], Awaitable[T]]) -> T:
        """Stores what is known of the run here, writes, and returns what `write` returns."""
        ...


def show_step(about: StepAbout) -> dict[str, object]:
    """Returns a step as its caller sees it."""
    usage = about.usage
    return {
        "step": about.step,
        "status": about.status,
        "model": about.model,
        "target": about.target or None,
        "usage": None if usage is None else {"input_tokens": usage.input, "output_tokens": usage.output},
        "cost_usd": about.cost_usd,
        "bytes": about.bytes,
        "kept_at": about.created_at,
        "kept_until": about.keep_until,
    }


class RunToChange(NamedTuple):
    """What is to be added to a run."""

    tenant: str
    run: str
    change: RunChange | None
    """None: nothing; the run is only looked at, to be closed."""
    close: Close = stays_open
    written: Callable[[], None] = nobody_waits
    """Called as soon as what the same process writes of the run from now on is written behind this change, which need not be
    durable by then; perhaps never, where nothing is changed or the change fails."""


class RunChanged(NamedTuple):
    """A run's record before it was closed, and as it is kept."""

    before: RunRecord
    after: RunRecord


class RunQuery(NamedTuple):
    """Asks for runs, the newest first."""

    tenant: str | None
    """None: everybody's."""
    limit: int
    after: tuple[str, str] | None = None
    """Tenant and id of the last run of the page before."""
    workflow: str | None = None
    matches: Callable[[RunRecord], bool] | None = None
    """Returns whether a run is wanted, such as those of an outcome; called in any thread."""


class RunPage(NamedTuple):
    """A page of runs."""

    runs: Sequence[StoredRun]
    has_more: bool


def step_change(about: StepAbout) -> RunChange:
    """Returns what a kept step says of its run by itself: that it was there then. What it cost stands with its call."""
    at_ms = round(about.created_at * 1000)
    return RunChange(at_ms, at_ms)


def changed(kept: RunRecord | None, wanted: RunToChange) -> RunChanged | None:
    """Returns what becomes of a run that is kept as `kept`; None: it is not there, and nothing is added that begins it."""
    before = kept
    if wanted.change is not None:
        before = begun(wanted.tenant, wanted.run, wanted.change) if kept is None else merged(kept, wanted.change)
    return None if before is None else RunChanged(before, wanted.close(before) or before)


def is_wanted(record: RunRecord, query: RunQuery) -> bool:
    """Returns whether a run belongs into the list."""
    if query.workflow is not None and record.workflow != query.workflow:
        return False
    return query.matches is None or query.matches(record)


# --- the port of runs: the steps that were paid for, with their answers, and what runs add up to ---


class Runs(Protocol):
    """The runs with steps or pipelines, in a store of jobs. Every method raises JobsUnavailable.

    Each tenant's are bounded in bytes: to make room those of its runs go first that were touched least lately; where one run
    alone is larger, its oldest steps. What goes so is counted in `early`, and the first is logged.
    """

    @property
    def early(self) -> int:
        """Returns how many runs, and steps of runs that stay, this process has removed for want of room since its start."""
        ...

    async def find_step(self, tenant: str, run: str, step: str) -> StoredStep | None:
        """Returns a step; None: there is none, or it is past its `keep_until`."""
        ...

    async def keep_step(self, step: StoredStep, *, replaces: bool = False) -> StoredStep:
        """Keeps a step, durably; returns the one that is kept: the first stays, unless this one `replaces` it.

        Raises StepTooLarge for one that is beyond a tenant's room.
        """
        ...

    async def change(self, changes: Sequence[RunToChange]) -> Sequence[RunChanged | None]:
        """Adds to the records of runs, and closes those that have ended, each in one step, durably.

        None in the result: there is no such run, and no change that could begin one. What changes twice is counted twice:
        whoever is told that a change failed, and that nobody knows whether it was done (OutcomeUnknown), may count it again.
        """
        ...

    async def find(self, tenant: str, run: str) -> tuple[StoredRun, Sequence[StepAbout]] | None:
        """Returns a run with its steps, without their bodies, in the order in which they were kept; None: there is none."""
        ...

    async def list_runs(self, query: RunQuery) -> RunPage:
        """Returns a page of runs, the newest first; an empty one behind a run that is not there."""
        ...

    async def forget(self, tenant: str, run: str) -> bool:
        """Forgets a run and its steps; returns whether there was one."""
        ...

    async def trim(self, before: float, most: int) -> int:
        """Forgets runs that were last touched before `before`, at most `most` of them; returns how many."""
        ...


class DurableStore(Protocol):
    """A store of jobs, as far as runs are concerned."""

    @property
    def runs(self) -> Runs:
        """Returns the runs of this store."""
        ...

    @property
    def is_well(self) -> bool:
        """Returns whether what is to be kept now can be."""
        ...


# --- refusals of requests about steps of runs, in OpenAI's shape ---


class StepChanged(CallerFault):
    """The step of this run was asked another question before."""

    status = 422
    code = "step_changed"


class StepTooLarge(GatewayError):
    """The step's answer is larger than one may be that is kept; it is not given, and asking again would be paid again."""

    status = 502
    should_retry: bool | None = False
    code = "step_too_large"


class StepRunning(CallerFault):
    """The step is being run for somebody else; its answer is there later."""

    status = 409
    should_retry: bool | None = True
    retry_after_s: float | None = 1.0
    code = "step_in_progress"


# --- the step that a request asks for: read from its headers, and under which ids it is known ---

ON_CHANGE = b"x-gateway-step-on-change"
REPLAYED = (b"x-gateway-step-replayed", b"true")


def read_step(index: Mapping[bytes, bytes], run: str) -> StepRequest:
    """Returns the step of a call that names one; `run` is the run that it names, empty for none. Raises InvalidRequest."""
    if b"prefer" in index and b"respond-async" in index[b"prefer"].lower():
        raise not_a_step("'Prefer: respond-async'", "prefer")
    step = index[STEP].decode("latin-1")
    if not is_id(step):
        raise InvalidRequest(
            f"The header 'x-gateway-step' must have 1 to 128 of {ID_CHARS}.",
            param="x-gateway-step",
            code="invalid_value",
        )
    if not run:
        raise InvalidRequest(
            "The header 'x-gateway-step' needs the run whose step it is: send 'x-gateway-run', too.",
            param="x-gateway-run",
            code="missing_field",
        )
    on_change = index.get(ON_CHANGE, b"refuse")
    if on_change not in (b"refuse", b"rerun"):
        raise InvalidRequest(
            "The header 'x-gateway-step-on-change' must be 'refuse' or 'rerun'.",
            param=ON_CHANGE.decode(),
            code="invalid_value",
        )
    return StepRequest(run, step, on_change == b"rerun")


def not_a_step(what: str, param: str) -> InvalidRequest:
    """Returns the error for a call that becomes a job and names a step: its answer is not there to be kept with it."""
    return InvalidRequest(
        f"A step is answered here, and no job: send {what} with an Idempotency-Key, or 'x-gateway-step' without it.",
        param=param,
        code="step_not_async",
    )


def no_step() -> InvalidRequest:
    """Returns the refusal of a step where there is no call whose answer could be kept."""
    return InvalidRequest(
        "The header 'x-gateway-step' is for calls of models, which are answered at once: send this request without it. Jobs "
        "and batches are made once with an 'Idempotency-Key'.",
        param=STEP.decode(),
        code="no_step",
    )


def step_record(tenant: str, ask: StepRequest) -> bytes:
    """Returns the id of the record by which a step is claimed while it runs, as that of an `Idempotency-Key`."""
    return (
        digest(b"step", tenant.encode(), ask.run.encode(), ask.step.encode()) + digest(b"tenant", tenant.encode())[:8]
    )


def step_fingerprint(call: Call) -> bytes:
    """Returns the digest of all that a repetition of a step must repeat: who asks, the path, and the whole body."""
    return digest(fingerprint(call), owner_of(call))
