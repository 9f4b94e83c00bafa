"""Runs of pipelines: what a run carries and notes, JSON Schemas, and the values that decisions are made of; in this order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple

import orjson

from gateway.core.openai.usage import text_tokens
from gateway.core.snapshot import PolicySnapshot
from gateway.drivers.json_schema import MOST_BYTES, SchemaUnusable, compile_schema, is_installed
from gateway.products.jobs.calls import RUN_BUDGET_EXCEEDED
from gateway.products.jobs.rules import JobRules, SegmentRules
from gateway.products.pipelines.compile import MOST_ITEMS, CallEndpoint, PipelinePlan, Step, compile_plan
from gateway.products.pipelines.templates import MOST_WORK, NEEDS_EXTRA, Count, Hurry, Path, StepFilling, Work

# --- a run: its input, the source of the plan that it began with, and its notes on its way ---

PIPELINE_NAME: Final = "pipeline"
"""In `about` of a run: the name of its pipeline."""
DIGEST: Final = "digest"
"""In `about` of a run: that of its plan."""
STEPS: Final = "steps"
"""In `marks` of a run: by step, the latest part of it that has begun."""
PART: Final = "part"
"""In `about` of a child: which part of its step it is."""
ITEMS: Final = "items"
"""In `about` of a child with items: how many there are, those of which nothing is asked among them."""
UNASKED: Final = "unasked"
"""In `about` of a child with items: how many have failed before they were asked."""
AT_ONCE: Final = "max_concurrency"
"""In `about` of a child with items: so many of them run at a time."""
RETRIES: Final = "retries"
"""In `about` of a child: how often it is tried again; absent: as its model's rules say."""


class RunPayload(NamedTuple):
    """The payload of a run.

    The source is in the run's payload, so that it goes on by it on any gateway, whatever the files say there.
    """

    name: str
    source: Mapping[str, Any]
    input: Any
    endpoint: str
    """Where it was asked for, such as `/v1/chat/completions`: its answer has that form."""

    def packed(self) -> bytes:
        return orjson.dumps(self._asdict())


def read_payload(data: bytes) -> RunPayload:
    try:
        return RunPayload(**orjson.loads(data))
    except TypeError:
        raise ValueError("the payload is not that of a run") from None


def plan_of(payload: RunPayload) -> PipelinePlan:
    """Returns the plan of a run. Raises ValueError where this process cannot compile it, such as without a package."""
    plan, problems = compile_plan(payload.name, payload.source)
    if plan is None:
        raise ValueError(problems[0].message)
    return plan


RUNS: Final = "(runs)"
"""The segment of runs: they only decide, so that none of them waits for a call to end."""
RUNS_AT_ONCE: Final = 50
MOST_INPUT_BYTES: Final = 1 << 30


def run_segment() -> SegmentRules:
    return SegmentRules(RUNS, concurrency=RUNS_AT_ONCE)


def rules_of_items(rules: JobRules, about: Mapping[str, Any]) -> JobRules:
    """Returns the rules of a step's items, from those of their model: as many at a time as the step says, and here."""
    batches = replace(
        rules.batches,
        run="flex" if rules.batches.asks_for_flex else "here",
        max_lines=MOST_ITEMS,
        max_bytes=MOST_INPUT_BYTES,
        mixed_models=True,
        most_at_once=about[AT_ONCE],
    )
    if RETRIES in about:
        return replace(rules, batches=batches, attempts=about[RETRIES] + 1, by_cost=())
    return replace(rules, batches=batches)


def count_of(policy: PolicySnapshot, name: str) -> Count:
    """Returns what counts the tokens of a model: its tokenizer where that is loaded, else what texts of their kind have."""
    model = policy.find_model(name)
    for target in model.targets if model is not None else ():
        find = target.counting.exact_tokens
        exact = None if find is None else find(target.model or name)
        if exact is not None:
            return exact
    return text_tokens


# --- JSON Schemas of pipelines: those of answers; whether one can be used, and whether a value fits it ---

MOST_SCHEMA_BYTES: Final = MOST_BYTES
_NAMING: Final = ("$id", "$ref", "$dynamicRef", "$recursiveRef")
MOST_VISITS: Final = 500_000.0
"""The most visits of values by the schema: some tens of milliseconds."""


def schema_problem(schema: object) -> str:
    """Returns what is wrong with a schema; empty: nothing is."""
    if not is_installed():
        return NEEDS_EXTRA
    if not isinstance(schema, dict):
        return "is no JSON Schema: a mapping is expected"
    try:
        compile_schema(orjson.dumps(schema))
    except SchemaUnusable as error:
        return f"cannot be used as a schema: {error}"
    return ""


def input_problem(schema: Mapping[str, Any]) -> tuple[Path, str] | None:
    """Returns what is wrong with the schema of an input, and where in it; None: nothing is.

    A schema of answers may be checked at any length by a process of its own. An input is checked where its caller waits, so
    that the work of that has to be known: where a reference leads, whatever `$id` is around it, it is not.
    """
    problem = schema_problem(schema)
    if problem:
        return (), problem
    if not compile_schema(orjson.dumps(schema)).is_heavy(b"{}", MOST_VISITS):
        return None
    inner = next((path for path, name, _ in _named(schema) if name == "$id" and len(path) > 1), None)
    if inner is not None:
        return inner, (
            "gives a part of the schema a place of its own, so that where a `$ref` leads is not known, and no input would be "
            "accepted: leave it out, and refer to the part as #/$defs/NAME"
        )
    outside = next((path for path, name, value in _named(schema) if name != "$id" and not value.startswith("#")), None)
    if outside is not None:
        return outside, (
            "leads out of the schema, so that no input would be accepted: put what it refers to into `$defs`, and refer to it "
            "as #/$defs/NAME"
        )
    return (), "is too much work to be checked, so that no input would be accepted: have fewer ways through it"


def _named(schema: object) -> Iterator[tuple[Path, str, str]]:
    """Yields the places of names and references in a schema, with which it is and what it says."""
    todo: list[tuple[Path, object]] = [((), schema)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, dict):
            for name, inner in value.items():
                todo.append(((*path, name), inner))
                if name in _NAMING and isinstance(inner, str):
                    yield (*path, name), name, inner
        elif isinstance(value, list):
            todo.extend(((*path, index), inner) for index, inner in enumerate(value))


def misfit_of(schema: Mapping[str, Any], value: object) -> tuple[str, str] | None:
    """Returns where a value does not fit a schema, as a path such as `document.title`, and why; None: it fits."""
    compiled = compile_schema(orjson.dumps(schema))
    try:
        is_heavy = compiled.is_heavy(orjson.dumps(value), MOST_VISITS)
    except orjson.JSONEncodeError:  # deeper than it writes
        is_heavy = True
    if is_heavy:
        return "", "is too large, or nested too deep, to be checked by this schema"
    if compiled.accepts(value):
        return None
    rule, pointer = compiled.first_error(value)
    where = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    if rule == "required" and not where and isinstance(value, dict):
        return next((name for name in schema.get("required", ()) if name not in value), ""), "is missing"
    return ".".join(where), f"does not fit the rule `{rule}` of the schema"


def with_defaults(schema: Mapping[str, Any] | None, value: Any) -> Any:
    """Returns an object with the defaults of the schema's properties in place of those that are missing."""
    properties = (schema or {}).get("properties")
    if not isinstance(value, dict) or not isinstance(properties, dict):
        return value
    defaults = {name: one["default"] for name, one in properties.items() if isinstance(one, dict) and "default" in one}
    return {**defaults, **value}


# --- a run as it is decided upon: how its steps stand, what begins next, and why something has failed ---

VALUE_MISSING: Final = "value_missing"
TOO_MANY_FAILED: Final = "too_many_failed"
TOO_MANY_ITEMS: Final = "too_many_items"
TOO_MUCH_WORK: Final = "too_much_work"
BEYOND_REPAIR: Final = frozenset(("cancelled", "expired", "batch_cancelled", "batch_expired", RUN_BUDGET_EXCEEDED))
"""Classes of errors that no other request would get around."""


class StepPart(IntEnum):
    """The parts of a step, each of which is one child of the run, and begins once at most; in this order."""

    FIRST = 1
    REPAIR = 2
    """A model is asked to change the request; with items the requests of those that have failed."""
    SECOND = 3
    """The changed request, or requests."""


class StepPhase(StrEnum):
    """How far a part has come."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class StepError(NamedTuple):
    """Why a step, or a run, has failed."""

    error_class: str
    message: str
    step: str = ""


@dataclass(frozen=True, slots=True)
class StepState:
    """How a step stands: its latest part."""

    part: StepPart
    phase: StepPhase
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The values of the step once it is done."""
    failed: int = 0
    total: int = 1
    """The number of its items."""
    error: StepError | None = None
    """The error of the part that has failed; of REPAIR and SECOND that of the first. With items: that of one which has failed.
    """
    answer: bytes = field(default=b"", repr=False)
    """The answer of REPAIR."""
    failures: Mapping[int, StepError] = field(default_factory=dict, repr=False)
    """With items, the failures of FIRST and REPAIR: why those have failed whose requests may be repaired, by their numbers."""
    answers: Mapping[int, Any] = field(default_factory=dict, repr=False)
    """With items, the answers of REPAIR: those of who was asked to change requests, by the numbers of the items."""

    @property
    def is_lost(self) -> bool:
        """Returns whether nothing has come of it, where it is the last that becomes of its step."""
        return self.phase is StepPhase.FAILED or (self.part is StepPart.REPAIR and self.failed == self.total)


@dataclass(frozen=True, slots=True)
class RunStates:
    """A run as it stands."""

    input: Any
    steps: Mapping[str, StepState]
    """The states of the steps that have begun."""
    spent_usd: float = 0.0
    count: Callable[[str], Count] = field(default=lambda _model: lambda text: len(text) / 4, repr=False)
    """Gives what counts the tokens of a model."""
    most_work: int = MOST_WORK
    """The most work of putting a step together, as `Work` counts it."""

    hurry: Hurry | None = field(default=None, repr=False, compare=False)
    """Counts what is done while others wait; None: nobody does."""

    def filling(self, model: str) -> StepFilling:
        """Returns what a step is filled with whose texts are divided by the tokens of this model."""
        return StepFilling(self.count(model), Work(self.most_work, self.hurry))


class StepStart(NamedTuple):
    """A part of a step that begins."""

    step: Step
    part: StepPart
    endpoint: CallEndpoint
    requests: Sequence[Mapping[str, Any] | None]
    """One body; of a step with `for_each` one for each item, None for an item of which nothing is asked."""
    models: Sequence[str]
    """The models that they ask for, each once."""
    failed: int = 0
    """The number of items of which nothing is asked: those that have failed, such as because a value is missing."""

    @property
    def most_failed(self) -> int | None:
        """Returns how many of the requests to items may fail before no further one is of use; None: all of them."""
        rule = self.step.on_failure
        if rule.model and self.part is StepPart.FIRST:
            return None  # they may be repaired
        most = rule.most_failed(len(self.requests))
        return None if most is None else most - self.failed


class Start(NamedTuple):
    """These begin, beside what runs."""

    steps: Sequence[StepStart]


class Wait(NamedTuple):
    """Something runs, and nothing can begin before it has ended."""


class RunFinished(NamedTuple):
    """All steps are settled."""

    output: Any


class RunFailed(NamedTuple):
    """The run has failed; what still runs of it is of no use."""

    why: StepError


Decision = Start | Wait | RunFinished | RunFailed


class StepFailed(Exception):
    """A step has failed for good."""

    def __init__(self, error: StepError) -> None:
        super().__init__(error.message)
        self.error = error


class TooLarge(StepFailed):
    """All of a step is too large, not the request of one item."""
