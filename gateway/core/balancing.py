"""The order in which a call tries its model's targets, and the rules of `retries.yaml`; in this order.

Targets are tried tier by tier, and within a tier as the model's `choice` says:

    in_order      as they are listed
    weighted      at random; each comes first in the share of its weight, a target that is out drops out of the sum
    least_loaded  by calls in flight for each unit of capacity and weight
    fastest       the better of two drawn at random, by expected time to first byte x queue / weight

The whole tier is ordered, not one target picked: the first may be full, paused or open. It must not know limits, breakers
or calls. Invariants: the result has every target once, and no target comes before one of a lower `order`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from math import log
from typing import Any, Generic, Literal, Protocol, TypeVar, assert_never

from gateway.core.health.times import Latency
from gateway.core.types import ErrorClass

Choice = Literal["in_order", "weighted", "least_loaded", "fastest"]
"""The way in which one of the targets of a tier is chosen."""
UNMEASURED_S = 3600.0
"""The time expected of a target without a measured answer: one call measures it, the others prefer other targets."""


class Listed(Protocol):
    """The fields of a target's entry in its model's list that balancing reads."""

    @property
    def order(self) -> int:
        """The target's tier; the lowest is tried first."""

    @property
    def weight(self) -> float:
        """The target's part of the traffic of its tier, above 0."""


class Load(Protocol):
    """The measurements of a target that balancing reads."""

    @property
    def in_flight(self) -> int:
        """The calls that the target is serving now."""

    @property
    def capacity(self) -> float | None:
        """The calls that the target can serve at a time, above 0; None: unknown."""

    @property
    def latency(self) -> Latency:
        """The target's times to first byte."""


T = TypeVar("T", bound=Listed)
LoadOf = Callable[[T], Load]
Draw = Callable[[], float]


def order_of(target: Listed) -> int:
    """Returns the rank of a target that holds for every call."""
    return target.order


class Tiers(Generic[T]):
    """A model's targets by `order`, or another rank; made once for all calls that prefer the same."""

    __slots__ = ("_tiers", "has_choice", "listed")

    def __init__(self, targets: Sequence[T], rank_of: Callable[[T], Any] = order_of) -> None:
        """Targets of one rank are a tier."""
        self.listed = tuple(sorted(targets, key=rank_of))
        """The targets with the lowest rank first, and within one rank as they were listed."""
        self._tiers = tuple([tuple(tier) for _, tier in groupby(self.listed, key=rank_of)])
        self.has_choice = len(self._tiers) < len(self.listed)
        """Some tier has more than one target."""

    def arrange(self, choice: Choice, load_of: LoadOf[T], now: float, draw: Draw) -> Sequence[T]:
        """Returns the targets in the order in which one call tries them; `draw` gives numbers in [0, 1)."""
        if choice == "in_order" or not self.has_choice:
            return self.listed
        if len(self._tiers) == 1:
            return _arrange_tier(self.listed, choice, load_of, now, draw)
        arranged: list[T] = []
        for tier in self._tiers:
            arranged += _arrange_tier(tier, choice, load_of, now, draw) if len(tier) > 1 else tier
        return arranged


def arrange(targets: Sequence[T], choice: Choice, load_of: LoadOf[T], now: float, draw: Draw) -> Sequence[T]:
    """Does the same as `Tiers.arrange` for targets whose tiers were not compiled."""
    return targets if len(targets) < 2 else Tiers(targets).arrange(choice, load_of, now, draw)


def _arrange_tier(tier: Sequence[T], choice: Choice, load_of: LoadOf[T], now: float, draw: Draw) -> Sequence[T]:
    match choice:
        case "in_order":
            return tier
        case "weighted":
            # Exponential race (Efraimidis and Spirakis): the least of Exp(weight) is each with the share of its weight.
            # A draw may be 0.0, which has no logarithm; 1.0 less the draw never is.
            return _ascending(tier, [-log(1.0 - draw()) / target.weight for target in tier], draw)
        case "least_loaded":
            return _ascending(tier, _loads(tier, load_of), draw)
        case "fastest":
            return _by_two(tier, [_expected_s(load_of(target), now) / target.weight for target in tier], draw)
    assert_never(choice)


def _loads(tier: Sequence[T], load_of: LoadOf[T]) -> list[float]:
    """Returns for each target its calls in flight, the new one included, per unit of capacity and weight."""
    scores = []
    largest = 0.0
    for target in tier:
        load = load_of(target)
        capacity = load.capacity
        if capacity is None:
            capacity = largest = largest or _largest(tier, load_of)
        scores.append((load.in_flight + 1) / (capacity * target.weight))
    return scores


def _largest(tier: Sequence[T], load_of: LoadOf[T]) -> float:
    """Returns the largest known capacity of the tier, which is assumed of targets with an unknown one."""
    return max([load_of(target).capacity or 0.0 for target in tier]) or 1.0


def _expected_s(load: Load, now: float) -> float:
    """Returns the time to first byte if the target served its calls in flight first; an idle one is judged by its best time."""
    in_flight = load.in_flight
    if not in_flight:
        return load.latency.hoped(now)
    return (load.latency.peak_ewma(now) or UNMEASURED_S) * (in_flight + 1)


def _ascending(tier: Sequence[T], scores: Sequence[float], draw: Draw) -> Sequence[T]:
    """Returns the targets with the lowest score first; a draw decides between equals."""
    if len(tier) == 2:
        one, other = scores
        is_in_order = one < other or (one == other and draw() < 0.5)
        return tier if is_in_order else (tier[1], tier[0])
    return [tier[index] for _, _, index in sorted([(score, draw(), i) for i, score in enumerate(scores)])]


def _by_two(tier: Sequence[T], scores: Sequence[float], draw: Draw) -> Sequence[T]:
    """Draws two targets at a time and takes the better: the best comes first often, the worst last, without a herd at any."""
    if len(tier) == 2:
        return _ascending(tier, scores, draw)
    rest = list(range(len(tier)))
    arranged = []
    while len(rest) > 1:
        one = int(draw() * len(rest))
        other = (one + 1 + int(draw() * (len(rest) - 1))) % len(rest)  # not the same again
        arranged.append(tier[rest.pop(one if scores[rest[one]] <= scores[rest[other]] else other)])
    arranged.append(tier[rest[0]])
    return arranged


# --- the compiled `retries.yaml`: how often a call is tried, the action for each error class, the limits on retries ---


class Action(Enum):
    """The gateway's reaction to an error class."""

    RETRY = "retry"
    """Tries another of the model's own targets at once, or the same one after a backoff; then the fallbacks."""
    HOLD = "hold"
    """Leaves the call to the delay queue: the target is paused, the call goes back to the head of its queue."""
    NEXT_TARGET = "next_target"
    """Never sends the call to this target again; another one may serve it."""
    CONTEXT_FALLBACKS = "context_fallbacks"
    """Tries only the models with a larger context window."""
    PASS_THROUGH = "pass_through"  # noqa: S105  # an action, not a password
    """Gives the client the error, which would be the same everywhere, unless a target that goes before may still serve."""


@dataclass(frozen=True, slots=True)
class ClassRule:
    """The action for an error class; `attempts` at the model's own targets may fail with it."""

    action: Action
    attempts: int = 1
    is_first_immediate: bool = False
    """The first retry has no backoff."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """`base_s * factor ** n`, at most `max_s`; with full jitter uniformly between nothing and that."""

    base_s: float = 0.1
    factor: float = 2.0
    max_s: float = 8.0
    has_jitter: bool = True


@dataclass(frozen=True, slots=True)
class CostRule:
    """The number of attempts for calls whose attempt is estimated to cost `above_usd` or more, and less than `below_usd`."""

    attempts: int
    above_usd: float | None = None
    below_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Hedging:
    """A second attempt where the first is late: after this percentile of the target's time to first byte."""

    percentile: float = 95.0
    at_least_s: float = 0.25
    """The second attempt starts no sooner than this, in seconds."""
    min_samples: int = 20
    """No attempt is hedged before this number of answers has been measured."""


_R, _N, _P = Action.RETRY, Action.NEXT_TARGET, Action.PASS_THROUGH


BUILT_IN_RULES: Mapping[str, ClassRule] = {
    ErrorClass.RATE_LIMIT_REQUESTS: ClassRule(Action.HOLD),
    ErrorClass.RATE_LIMIT_TOKENS: ClassRule(Action.HOLD),
    ErrorClass.QUOTA_EXHAUSTED: ClassRule(_N),
    ErrorClass.OVERLOADED: ClassRule(_R, 3),
    ErrorClass.SERVER_ERROR: ClassRule(_R, 3),
    ErrorClass.TIMEOUT: ClassRule(_R, 2),
    ErrorClass.CONNECTION: ClassRule(_R, 3, is_first_immediate=True),
    ErrorClass.MALFORMED_RESPONSE: ClassRule(_R, 3),
    ErrorClass.STREAM_INTERRUPTED: ClassRule(_R, 3),
    ErrorClass.CONTEXT_LENGTH_EXCEEDED: ClassRule(Action.CONTEXT_FALLBACKS),
    ErrorClass.AUTH: ClassRule(_N),
    ErrorClass.MODEL_NOT_FOUND: ClassRule(_N),
    ErrorClass.BAD_REQUEST: ClassRule(_P),
    ErrorClass.CONTENT_POLICY: ClassRule(_P),
    ErrorClass.PERMISSION: ClassRule(_P),
    ErrorClass.NOT_FOUND: ClassRule(_P),
    ErrorClass.PAYLOAD_TOO_LARGE: ClassRule(_P),
    ErrorClass.CONFLICT: ClassRule(_R, 3),
    ErrorClass.UNKNOWN: ClassRule(_N),
}


@dataclass(frozen=True, slots=True)
class Retries:
    """One set of `retries.yaml`."""

    attempts: int = 4
    """The attempts per call over all targets, the first included.

    Refusals for a rate and answers that rule out a target do not count.
    """
    backoff: Backoff = Backoff()
    budget_percent_of_active: float = 20.0
    """The retries in flight at a target may be this percentage of its recent calls in flight (Envoy's retry budget) ..."""
    budget_min_concurrent: int = 3
    """... but this number is always allowed. A failure waits a moment for its turn, then it passes through."""
    tokens: float = 500.0
    """The retry tokens of a target (AWS SDKs, standard mode): a retry takes `retry_tokens`, a success gives some back."""
    retry_tokens: float = 5.0
    timeout_tokens: float = 10.0
    by_class: Mapping[str, ClassRule] = field(default_factory=lambda: BUILT_IN_RULES)
    """The rule for each error class."""
    by_cost: tuple[CostRule, ...] = (
        CostRule(2, above_usd=0.25),
        CostRule(5, above_usd=0.0001, below_usd=0.01),
        CostRule(10, below_usd=0.0001),
    )
    """The first rule that matches a call's price replaces `attempts`; a call without a known price has `attempts`."""
    max_usd_per_call: float | None = None
    """The estimated US dollars that all attempts of one call may cost together; the first attempt is always made."""
    hedging: Hedging | None = None
