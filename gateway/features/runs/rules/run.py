"""A run as data: what its calls, replayed steps and told outcomes add up to, whoever has counted them, in whatever order.

Everything is a sum, an earliest or latest time, or the last word said on something; so changes may be added in any order and
in any grouping, and replicas that each know a part agree when they put their parts together. Money is counted in whole
trillionths of a dollar, times in whole milliseconds: what is added up does not depend on the order either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, Self, TypeVar

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


class Said(NamedTuple, Generic[T]):
    """A word on something, and when it was said, in wall-clock milliseconds. The later holds; at the same time, the greater."""

    at_ms: int
    word: T


class TaskWord(NamedTuple):
    """How the last call of a task has ended."""

    at_ms: int
    is_ok: bool
    error_class: str = ""
    """Of one that has failed."""


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
    """Of answers, in units of money."""
    wasted: int = 0
    """Of attempts that came to nothing, as estimated, in units of money."""
    saved: int = 0
    """What the cached ones would have cost, in units of money."""
    input_tokens: int = 0
    output_tokens: int = 0
    last: TaskWord | None = None
    """None: no call has ended yet."""
    replayed: int = 0
    """Of the calls those that were given the answer of a kept step."""

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
    """What is added to a run: by one call, one told outcome, one replayed step, or any number of them together."""

    first_ms: int
    """When the first of it happened, in wall-clock milliseconds."""
    last_ms: int
    tasks: Mapping[str, TaskSum] = field(default_factory=dict)
    """By name; the empty one for calls that name no task."""
    workflow: Said[str] | None = None
    outcome: Said[str] | None = None
    """As told: `succeeded` or `failed`."""
    usable: Said[bool] | None = None
    """As told: whether somebody could use what came of the run."""
    value_usd: Said[float] | None = None
    """As told: what it was worth, in US dollars."""

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
            workflow=said_after(known.workflow, self.workflow),
            outcome=said_after(known.outcome, self.outcome),
            usable=said_after(known.usable, self.usable),
            value_usd=said_after(known.value_usd, self.value_usd),
        )

    @property
    def is_told(self) -> bool:
        """Tells whether somebody has spoken of its outcome or its use."""
        return self.outcome is not None or self.usable is not None

    @property
    def total(self) -> TaskSum:
        """Returns all tasks together."""
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
        """Tells whether an attempt of its calls went wrong."""
        return any(task.bad_attempts for task in self.so_far.tasks.values())


def merged(record: RunRecord, change: RunChange) -> RunRecord:
    """Returns the record with the change added. The order of changes makes no difference."""
    return replace(record, so_far=record.so_far + change)


def begun(tenant: str, run: str, change: RunChange) -> RunRecord:
    """Returns the record of a run of which nothing else is known."""
    return RunRecord(tenant, run, change)


def one_call(
    task: str,
    at: float,
    *,
    began_at: float | None = None,
    error_class: str = "",
    attempts: int = 1,
    bad_attempts: int = 0,
    is_cached: bool = False,
    cost_usd: float | None = None,
    wasted_usd: float = 0.0,
    saved_usd: float | None = None,
    tokens: tuple[int, int] = (0, 0),
    workflow: str = "",
) -> RunChange:
    """Returns what one ended call adds: `at` is wall-clock seconds, `error_class` empty for a good one, `tokens` in and out."""
    at_ms = round(at * 1000)
    added = TaskSum(
        *(1, int(bool(error_class)), attempts, bad_attempts, int(is_cached)),
        *(units(cost_usd), units(wasted_usd), units(saved_usd)),
        *tokens,
        TaskWord(at_ms, not error_class, error_class),
    )
    first_ms = at_ms if began_at is None else min(at_ms, round(began_at * 1000))
    return RunChange(first_ms, at_ms, {task: added}, Said(at_ms, workflow) if workflow else None)


def told(
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
        workflow=Said(at_ms, workflow) if workflow else None,
        outcome=None if outcome is None else Said(at_ms, outcome),
        usable=None if usable is None else Said(at_ms, usable),
        value_usd=None if value_usd is None else Said(at_ms, value_usd),
    )


def said_after(known: Said[T] | None, said: Said[T] | None) -> Said[T] | None:
    """Returns a word as said later than the one that is known; the same again is no later word."""
    if said is None or known is None or said.at_ms > known.at_ms or said.word == known.word:
        return said
    return Said(known.at_ms + 1, said.word)


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
