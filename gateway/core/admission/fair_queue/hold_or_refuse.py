"""What becomes of a call now: serve it, hold it, use a fallback, or refuse it at once.

A pure function of predicted moments; it must not know gates, limits or who else waits. Invariants: nothing is held that is
predicted to come too late, nothing is refused that is predicted to come in time, and the choice is never later than needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import inf
from typing import NamedTuple


class Verdict(Enum):
    """What to do with the call."""

    SERVE = "serve"
    """Now, at the target number `choice`."""
    HOLD = "hold"
    """For the model's own targets, as long as these are preferred."""
    HOLD_ANYWHERE = "hold anywhere"
    """For whichever target of the plan frees first."""
    REFUSE = "refuse"
    """It would be too late: its turn comes at `ready_at` (inf: never)."""


class Decision(NamedTuple):
    """`ready_at` is when its turn will be (monotonic seconds)."""

    verdict: Verdict
    ready_at: float
    choice: int = -1


def decide(ready_at: Sequence[float], own: int, now: float, deadline: float, prefer_primary_until: float) -> Decision:
    """`ready_at` are the moments when each target of the plan could take the call, the model's `own` ones first.

    A fallback is used when the model's own targets are not predicted free until `prefer_primary_until`. `deadline` is the
    last moment at which the call may go.
    """
    own_at = min(ready_at[:own], default=inf)
    other_at = min(ready_at[own:], default=inf)
    if own_at <= now:
        return Decision(Verdict.SERVE, now, _first(ready_at, now))
    if own_at <= min(prefer_primary_until, deadline) and own_at < inf:
        return Decision(Verdict.HOLD, own_at)
    if other_at <= now:
        return Decision(Verdict.SERVE, now, _first(ready_at, now))
    soonest = min(own_at, other_at)
    if soonest <= deadline and soonest < inf:
        return Decision(Verdict.HOLD_ANYWHERE, soonest)
    return Decision(Verdict.REFUSE, soonest)


def _first(ready_at: Sequence[float], now: float) -> int:
    return next(index for index, at in enumerate(ready_at) if at <= now)
