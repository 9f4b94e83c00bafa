"""Runs as data: what their calls add up to, how they are kept, the rules of workflows, and what has become of a run.

In this order: refusals; a run's sums; runs as JSON; workflows; outcomes. A run is what its calls, replayed steps and outcomes
add up to, whoever has counted them, in whatever order. Everything is a sum, an earliest or latest time, or the last word on
something; so changes may be added in any order and in any grouping, and replicas that each know a part agree when they put
their parts together. Money is counted in whole trillionths of a dollar, times in whole milliseconds: what is added up does not
depend on the order either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Generic, Literal, NamedTuple, Self, TypeVar

import orjson

from gateway.core.errors import AdmissionDenied, GatewayError
from gateway.core.snapshot import Setting
from gateway.core.types import ErrorClass
from gateway.features.run_port import RunEnd, ServedLines

# --- refusals: runs that cannot be read, and calls of runs that have had enough ---


class RunsUnavailable(GatewayError):
    """Runs cannot be read or changed now; calls go on, and what they add is counted later."""

    status = 503
    should_retry: bool | None = True
    retry_after_s = 5.0
    code = "runs_unavailable"

    def __init__(self, message: str, *, is_kept: bool = False) -> None:
        """`is_kept`: the change that was to be added need not be brought again; whoever keeps runs finds out about it."""
        super().__init__(message)
        self.is_kept = is_kept


class RunBudgetExceeded(AdmissionDenied):
    """The run has cost, or called, as much as its workflow allows; to come again would change nothing."""

    status = 429
    type = "rate_limit_error"
    should_retry: bool | None = False
    code = "run_budget_exceeded"
    is_final = True


class RunBudgetReserved(RunBudgetExceeded):
    """What is left of the run's money is reserved by its calls in flight; when they have ended, some of it may be left."""

    should_retry = True
    is_final = False


PER_USD = 1_000_000_000_000
"""Units of money per US dollar. A price with up to six places per million tokens comes out even."""
MOST_TASKS = 40
"""Tasks of one run that are kept apart; of more, those whose names sort last are counted together as `MORE_TASKS`."""
MORE_TASKS = "~more"

T = TypeVar("T")
W = TypeVar("W", bound=tuple[object, ...])


def units(usd: float | None) -> int:
    """Returns an amount of US dollars in units of money; None, not priced, is nothing."""
    return int(usd * PER_USD + 0.5) if usd else 0  # `round` takes three times as long


class LastWrite(NamedTuple, Generic[T]):
    """A word on something, and when it was said, in wall-clock milliseconds. The later holds; at the same time, the greater."""

    at_ms: int
    word: T


class TaskWord(NamedTuple):
    """How the last call of a task has ended."""

    at_ms: int
    is_ok: bool
    error_class: str = ""
    """The error class of one that has failed."""


@dataclass(frozen=True, slots=True)
class TaskSum:
    """What the calls of one task add up to."""

    calls: int = 0
    bad_calls: int = 0
    """Those that ended without a good answer, whatever became of the task later."""
    attempts: int = 0
    bad_attempts: int = 0
    cached: int = 0
    """Calls that no provider was asked for: cached answers, replayed steps."""
    cost: int = 0
    """The cost of answers, in units of money."""
    wasted: int = 0
    """The cost of attempts that came to nothing, as estimated, in units of money."""
    saved: int = 0
    """The cost that the cached ones would have had, in units of money."""
    input_tokens: int = 0
    output_tokens: int = 0
    last: TaskWord | None = None
    """None: no call has ended yet."""
    replayed: int = 0
    """The number of the calls that were given the answer of a kept step."""

    @property
    def cost_usd(self) -> float:
        """Returns what its answers have cost, in US dollars."""
        return self.cost / PER_USD

    def __add__(self, other: Self) -> TaskSum:
        return TaskSum(
            self.calls + other.calls,
            self.bad_calls + other.bad_calls,
            self.attempts + other.attempts,
            self.bad_attempts + other.bad_attempts,
            self.cached + other.cached,
            self.cost + other.cost,
            self.wasted + other.wasted,
            self.saved + other.saved,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            _later(self.last, other.last),
            self.replayed + other.replayed,
        )


@dataclass(frozen=True, slots=True)
class RunChange:
    """What is added to a run: by one call, one given outcome, one replayed step, or any number of them together."""

    first_ms: int
    """When the first of it happened, in wall-clock milliseconds."""
    last_ms: int
    tasks: Mapping[str, TaskSum] = field(default_factory=dict)
    """The sums of tasks by name; the empty one for calls that name no task."""
    workflow: LastWrite[str] | None = None
    outcome: LastWrite[str] | None = None
    """The outcome that a caller has given: `succeeded` or `failed`."""
    usable: LastWrite[bool] | None = None
    """The word of a caller on whether somebody could use what came of the run."""
    value_usd: LastWrite[float] | None = None
    """The word of a caller on what it was worth, in US dollars."""

    def __add__(self, other: Self) -> RunChange:
        return RunChange(
            min(self.first_ms, other.first_ms),
            max(self.last_ms, other.last_ms),
            _sums(self.tasks, other.tasks),
            _later(self.workflow, other.workflow),
            _later(self.outcome, other.outcome),
            _later(self.usable, other.usable),
            _later(self.value_usd, other.value_usd),
        )

    def after(self, known: Self) -> Self:
        """Returns it with its words said later than those that are known: the last one holds, whatever the clocks say."""
        return replace(
            self,
            workflow=newer_than(known.workflow, self.workflow),
            outcome=newer_than(known.outcome, self.outcome),
            usable=newer_than(known.usable, self.usable),
            value_usd=newer_than(known.value_usd, self.value_usd),
        )

    @property
    def total(self) -> TaskSum:
        return sum(self.tasks.values(), TaskSum())


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run, as far as it is known."""

    tenant: str
    run: str
    """Its id, as the caller named it; two tenants may use the same."""
    so_far: RunChange
    counted: str = ""
    """The outcome under which it has been counted in the metrics; empty: it has not."""
    used: str = ""
    """The word on its use, `usable` or `unusable`, that has been counted; empty: none has."""

    @property
    def workflow(self) -> str:
        """Returns its workflow's name; empty: nobody named one."""
        return "" if self.so_far.workflow is None else self.so_far.workflow.word

    @property
    def seconds(self) -> float:
        """Returns the seconds from its first call to its last."""
        return (self.so_far.last_ms - self.so_far.first_ms) / 1000

    @property
    def has_bad_attempts(self) -> bool:
        """Returns whether an attempt of its calls went wrong."""
        return any(task.bad_attempts for task in self.so_far.tasks.values())


def merged(record: RunRecord, change: RunChange) -> RunRecord:
    """Returns the record with the change added. The order of changes makes no difference."""
    return replace(record, so_far=record.so_far + change)


def begun(tenant: str, run: str, change: RunChange) -> RunRecord:
    """Returns the record of a run of which nothing else is known."""
    return RunRecord(tenant, run, change)


def label_change(
    at: float,
    *,
    workflow: str = "",
    outcome: str | None = None,
    usable: bool | None = None,
    value_usd: float | None = None,
) -> RunChange:
    """Returns what a caller's word on a run adds, `at` being wall-clock seconds; what is None was not spoken of."""
    at_ms = round(at * 1000)
    return RunChange(
        at_ms,
        at_ms,
        workflow=LastWrite(at_ms, workflow) if workflow else None,
        outcome=None if outcome is None else LastWrite(at_ms, outcome),
        usable=None if usable is None else LastWrite(at_ms, usable),
        value_usd=None if value_usd is None else LastWrite(at_ms, value_usd),
    )


def end_change(end: RunEnd) -> RunChange:
    """Returns what the end of a run of a pipeline adds to it."""
    return label_change(end.at, workflow=end.workflow, outcome=end.outcome)


def lines_change(lines: ServedLines) -> RunChange:
    """Returns what lines that another has served add to the run of their batch."""
    at_ms, number = round(lines.at * 1000), len(lines.costs_usd)
    total = TaskSum(
        *(number, lines.failed, number, lines.failed),
        cost=sum(map(units, lines.costs_usd)),
        input_tokens=lines.input_tokens,
        output_tokens=lines.output_tokens,
        last=TaskWord(at_ms, lines.is_last_ok, "" if lines.is_last_ok else ErrorClass.UNKNOWN),
    )
    workflow = LastWrite(at_ms, lines.words.workflow) if lines.words.workflow else None
    return RunChange(at_ms, at_ms, {lines.words.task: total}, workflow)


def newer_than(known: LastWrite[T] | None, write: LastWrite[T] | None) -> LastWrite[T] | None:
    """Returns a word as said later than the one that is known; the same again is no later word."""
    if write is None or known is None or write.at_ms > known.at_ms or write.word == known.word:
        return write
    return LastWrite(known.at_ms + 1, write.word)


def _later(one: W | None, other: W | None) -> W | None:
    if one is None or other is None:
        return one or other
    return max(one, other)


def _sums(one: Mapping[str, TaskSum], other: Mapping[str, TaskSum]) -> Mapping[str, TaskSum]:
    if not other:
        return one
    sums = dict(one)
    for name, added in other.items():
        known = sums.get(name)
        sums[name] = added if known is None else known + added
    return bounded(sums)


def bounded(sums: dict[str, TaskSum]) -> dict[str, TaskSum]:
    """Returns at most `MOST_TASKS` tasks of one run, those whose names sort first apart.

    A name that is left out once would be left out for ever, whatever comes when.
    """
    if len(sums) <= MOST_TASKS:
        return sums
    names = sorted(name for name in sums if name != MORE_TASKS)
    kept, left = names[: MOST_TASKS - 1], names[MOST_TASKS - 1 :]
    more: Iterable[TaskSum] = (sums[name] for name in (*left, *([MORE_TASKS] if MORE_TASKS in sums else ())))
    return {**{name: sums[name] for name in kept}, MORE_TASKS: sum(more, TaskSum())}


# --- runs as JSON, to be kept ---


def encode_run(record: RunRecord) -> bytes:
    """Returns a run as JSON.

    Lists instead of objects, and times relative to the run's first, so that one of 20 tasks fits in 1.5 kB.
    """
    return orjson.dumps([record.tenant, record.run, record.counted, record.used, _change(record.so_far)])


def decode_run(raw: bytes) -> RunRecord:
    """Returns the record. Raises ValueError for anything that is none."""
    try:
        tenant, run, counted, used, change = orjson.loads(raw)
        return RunRecord(tenant, run, _read_change(change), counted, used)
    except (AttributeError, LookupError, TypeError) as broken:
        raise ValueError("this is no record of a run") from broken


def _change(change: RunChange) -> list[Any]:
    first_ms = change.first_ms
    words = (change.workflow, change.outcome, change.usable, change.value_usd)
    return [
        first_ms,
        change.last_ms - first_ms,
        {name: _task(task, first_ms) for name, task in change.tasks.items()},
        *([] if not any(words) else [_packed_write(word, first_ms) for word in words]),
    ]


def _task(task: TaskSum, first_ms: int) -> list[Any]:
    numbers = [
        *(task.calls, task.bad_calls, task.attempts, task.bad_attempts),
        [task.cached, task.replayed] if task.replayed else task.cached,
        *(task.cost, task.wasted, task.saved, task.input_tokens, task.output_tokens),
    ]
    last = task.last
    if last is None:
        return numbers
    return [*numbers, last.at_ms - first_ms, *([] if last.is_ok else [last.error_class])]


def _packed_write(write: LastWrite[Any] | None, first_ms: int) -> list[Any] | None:
    return None if write is None else [write.at_ms - first_ms, write.word]


def _read_change(fields: list[Any]) -> RunChange:
    first_ms, span_ms, tasks, *words = fields
    workflow, outcome, usable, value_usd = (_read_write(word, first_ms) for word in words or [None] * 4)
    return RunChange(
        first_ms,
        first_ms + span_ms,
        {name: _read_task(task, first_ms) for name, task in tasks.items()},
        *(workflow, outcome, usable, value_usd),
    )


def _read_task(task: list[Any], first_ms: int) -> TaskSum:
    if not 10 <= len(task) <= 12:
        raise ValueError("this is no sum of a task")
    last = None
    if len(task) > 10:
        last = TaskWord(first_ms + task[10], len(task) == 11, *task[11:])
    calls, bad_calls, attempts, bad_attempts, served, *rest = task[:10]
    cost, wasted, saved, input_tokens, output_tokens = rest
    cached, replayed = served if isinstance(served, list) else (served, 0)
    return TaskSum(
        *(calls, bad_calls, attempts, bad_attempts, cached),
        *(cost, wasted, saved, input_tokens, output_tokens),
        *(last, replayed),
    )


def _read_write(fields: list[Any] | None, first_ms: int) -> LastWrite[Any] | None:
    return None if fields is None else LastWrite(first_ms + fields[0], fields[1])


# --- workflows and their runs: the rules of a workflow, the outcomes of a run, and the part that a call is ---

OTHER = "other"
"""The name in place of one that is not declared."""
IDLE_S = 300.0


class RunOutcome(StrEnum):
    """What has become of a run."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"
    """Idle before its end, and its last calls were good."""
    CANCELLED = "cancelled"
    """Somebody had a run of a pipeline stopped."""
    UNKNOWN = "unknown"
    """The run is over, nobody has given its outcome, and its workflow is not declared."""


Ends = Literal["last_task", "told", "idle"]


@dataclass(frozen=True, slots=True)
class WorkflowRules:
    """One workflow as it is declared in workflows.yaml."""

    name: str
    tasks: tuple[str, ...] = ()
    """The tasks in order; the last one ends a run."""
    ends: Ends = "last_task"
    idle_s: float = IDLE_S
    """Without a call for so long, a run is over."""
    slo: float | None = None
    """The part of runs that are to succeed, 0 to 1."""
    deadline_s: float | None = None
    """A run that has not ended so long after its first call is over."""
    usd_per_run: float | None = None
    """The most that the calls of one run cost together, in US dollars."""
    max_calls_per_run: int | None = None
    reserves: bool = True
    """Calls in flight count towards `usd_per_run` with what they may cost; False: only what was spent does."""
    labels: Mapping[str, tuple[str, str]] = field(init=False, repr=False, compare=False)
    """By task, its names in the metrics."""

    has_budget: bool = field(init=False, repr=False, compare=False)
    """Calls of a run may be refused for what the run has had."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", {task: (self.name, task) for task in self.tasks})
        object.__setattr__(self, "has_budget", self.usd_per_run is not None or self.max_calls_per_run is not None)


Workflows = Mapping[str, WorkflowRules]
WORKFLOWS: Final[Setting[Workflows]] = Setting("workflows", {})
"""The workflows that are declared, by name."""
KEY_WORKFLOW: Final[Setting[str]] = Setting("workflow", "")
"""The workflow that all calls of a key are a part of, whatever they say; empty: as they say."""


@dataclass(frozen=True, slots=True)
class StepRequest:
    """The step that a call is."""

    run: str
    step: str
    reruns: bool
    """A step that is asked another question than before is run again, and the new answer takes the place of the old one."""


@dataclass(slots=True)
class RunPart:
    """Which part of which run a call is."""

    workflow: str
    """The workflow as the call named it; empty: it did not."""
    run: str
    """Empty: it counts for its workflow, and for no run."""
    task: str
    labels: tuple[str, str]
    """The labels of workflow and task, for metrics: declared names, or `other`."""
    rules: WorkflowRules | None
    """None: the workflow is not declared."""
    outcome: str = ""
    """The outcome that its caller gives the run with this call."""
    is_durable: bool = False
    """Its run is kept where its steps are."""
    is_in: bool = False
    """It counts as one of the run's calls in flight."""
    reserved: int = 0
    """The part of the run's money that it has reserved, in units of money."""
    lost_tries: int = 0
    """Earlier tries of it that may have been paid for and whose end nobody has seen: their process died."""
    step: StepRequest | None = None
    """The step of its run that it is; None: it is none."""


# --- outcomes: as a caller has given one, else as a run's calls show by the rules of its workflow ---

CALLER_OUTCOMES = (RunOutcome.SUCCEEDED, RunOutcome.FAILED)
"""The outcomes that callers may give."""


def outcome_of(record: RunRecord, rules: WorkflowRules | None, now: float) -> RunOutcome:
    """Returns what has become of the run by `now`, in wall-clock seconds; `rules` are None for an undeclared workflow."""
    so_far = record.so_far
    if so_far.outcome is not None:
        return RunOutcome(so_far.outcome.word)
    if rules is not None and rules.ends == "last_task" and rules.tasks and _is_ok(so_far, rules.tasks[-1]):
        return RunOutcome.SUCCEEDED
    if not is_over(so_far, rules, now):
        return RunOutcome.RUNNING
    if rules is None:
        return RunOutcome.UNKNOWN
    if any(task.last is not None and not task.last.is_ok for task in so_far.tasks.values()):
        return RunOutcome.FAILED
    has_good = any(task.last is not None for task in so_far.tasks.values())
    return RunOutcome.SUCCEEDED if rules.ends == "idle" and has_good else RunOutcome.ABANDONED


def is_over(so_far: RunChange, rules: WorkflowRules | None, now: float) -> bool:
    """Returns whether no more is expected of a run: nothing came for long enough, or its deadline has passed."""
    now_ms = now * 1000
    idle_s = IDLE_S if rules is None else rules.idle_s
    if now_ms - so_far.last_ms >= idle_s * 1000:
        return True
    return rules is not None and rules.deadline_s is not None and now_ms - so_far.first_ms >= rules.deadline_s * 1000


def is_rescued(record: RunRecord, outcome: RunOutcome) -> bool:
    """Returns whether the run succeeded although an attempt of its calls went wrong: what it has the gateway for."""
    return outcome is RunOutcome.SUCCEEDED and record.has_bad_attempts


def use_of(record: RunRecord) -> str:
    """Returns the word on whether somebody could use what came of the run: `usable`, `unusable`; empty: nobody spoke of it.

    Who tells that a run has succeeded or failed, and says nothing of its use, means it so.
    """
    so_far = record.so_far
    if so_far.usable is not None:
        return "usable" if so_far.usable.word else "unusable"
    if so_far.outcome is None or so_far.outcome.word not in CALLER_OUTCOMES:
        return ""
    return "usable" if so_far.outcome.word == RunOutcome.SUCCEEDED else "unusable"


def count_once(record: RunRecord, outcome: RunOutcome) -> RunRecord | None:
    """Returns the record as counted under its outcome and use; None: it is counted so already, or has not ended.

    Whoever keeps what is returned in place of `record`, and nobody else, counts the run.
    """
    counted = record.counted if outcome is RunOutcome.RUNNING else str(outcome)
    used = use_of(record)
    if (counted, used) == (record.counted, record.used):
        return None
    return replace(record, counted=counted, used=used)


def _is_ok(so_far: RunChange, task: str) -> bool:
    found = so_far.tasks.get(task)
    return found is not None and found.last is not None and found.last.is_ok
