"""What `retries.yaml` says, compiled: how often a call is tried, what each class of error deserves, and what that may cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gateway.errors import ErrorClass


class Action(Enum):
    """What an error class deserves."""

    RETRY = "retry"
    """Another of the model's own targets at once, or the same one after a backoff; then the fallbacks."""
    HOLD = "hold"
    """The delay queue's business: the target is paused, the call goes back to the head of its queue."""
    NEXT_TARGET = "next_target"
    """Never again at this target; another one may do."""
    CONTEXT_FALLBACKS = "context_fallbacks"
    """Only a model with a larger context window can help."""
    PASS_THROUGH = "pass_through"  # noqa: S105  # an action, not a password
    """The answer would be the same everywhere: the client gets it."""


@dataclass(frozen=True, slots=True)
class ClassRule:
    """What an error class deserves; so many `attempts` at the model's own targets may fail with it."""

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
    """So many attempts for calls whose attempt is estimated to cost more than `above_usd` and less than `below_usd`."""

    attempts: int
    above_usd: float | None = None
    below_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Hedging:
    """A second attempt where the first is late: after this percentile of the target's time to first byte."""

    percentile: float = 95.0
    at_least_s: float = 0.25
    """Never sooner."""
    min_samples: int = 20
    """Not before so many answers were measured."""


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
    ErrorClass.CONFLICT: ClassRule(_P),
    ErrorClass.UNKNOWN: ClassRule(_N),
}


@dataclass(frozen=True, slots=True)
class Retries:
    """One set of `retries.yaml`."""

    attempts: int = 4
    """Per call, over all targets, the first included; those that a rate limit refused are not counted."""
    backoff: Backoff = Backoff()
    budget_percent_of_active: float = 20.0
    """Retries in flight at a target, of the calls in flight there of late (Envoy's retry budget) ..."""
    budget_min_concurrent: int = 3
    """... but so many in any case. A failure waits for its turn a moment, then it passes through."""
    tokens: float = 500.0
    """Retry tokens of a target (AWS SDKs, standard mode): a retry takes `retry_tokens`, a success gives some back."""
    retry_tokens: float = 5.0
    timeout_tokens: float = 10.0
    by_class: Mapping[str, ClassRule] = field(default_factory=lambda: BUILT_IN_RULES)
    """For every class."""
    by_cost: tuple[CostRule, ...] = (
        CostRule(2, above_usd=0.25),
        CostRule(5, above_usd=0.0001, below_usd=0.01),
        CostRule(10, below_usd=0.0001),
    )
    """The first that matches decides instead of `attempts`; a call whose price is not known has `attempts`."""
    max_usd_per_call: float | None = None
    """What all attempts of one call may cost together, as estimated; the first is always made."""
    hedging: Hedging | None = None
