"""The compiled `retries.yaml`: how often a call is tried, the action for each error class, and the limits on retries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gateway.core.types.provider_errors import ErrorClass


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
    """Gives the client the error, which would be the same everywhere."""


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
    ErrorClass.CONFLICT: ClassRule(_P),
    ErrorClass.UNKNOWN: ClassRule(_N),
}


@dataclass(frozen=True, slots=True)
class Retries:
    """One set of `retries.yaml`."""

    attempts: int = 4
    """The attempts per call over all targets, the first included; attempts refused by a rate limit do not count."""
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
