"""What is said to a call that is not let through: why, and when another try will be served."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from gateway.core.admission.queue.queue.held import Held, Left, Option
from gateway.core.call import Call
from gateway.core.errors import (
    GatewayError,
    InternalError,
    QueueDeadlineExceeded,
    QueueFull,
    QuotaExhausted,
    RequestExceedsLimits,
    WaitTooLong,
)

EARLY_S = 0.05
"""A call that was refused is told to come back so many seconds before the turn that is promised to it."""
MOST_PROMISED_S = 60.0
"""Room is promised to refused calls for no longer: not all of them come back."""


def refusal_after_wait(held: Held, call: Call) -> GatewayError:
    """Returns why a call waits no more that was not let through. Targets that went out of service say so themselves."""
    waited = f"{call.queue_s:.1f} s"
    if held.left is Left.EXPIRED:
        return QueueDeadlineExceeded(f"The deadline passed after {waited} in the queue; no target was free in time.")
    if held.left is Left.DISPLACED:
        return QueueFull("The gateway's queue is full, and more urgent calls came.", retry_after_s=1.0)
    if held.left is Left.NEVER_FITS:
        message = f"After {waited} in the queue, the limits of all targets are too small for this call."
        return RequestExceedsLimits(message)
    return InternalError()


def too_late(call: Call, options: Sequence[Option], ready_at: Sequence[float], now: float) -> GatewayError:
    """Returns why a call is not held, with the time at which another try will be served."""
    soonest = min(ready_at)
    option = options[ready_at.index(soonest)]
    gate = option.line.gate
    if soonest == inf:
        return _never(call, options, now)
    patience_s = call.deadline - call.received_at
    # The room until then is promised to those who were refused before. All are told to come a little before their turn,
    # by the same time, so that they come back in the order of their turns.
    turn = min(max(soonest, option.line.promised_until), soonest + MOST_PROMISED_S)
    option.line.promised_until = turn + gate.limits.drain_s(option.cost)
    limit = gate.blocking(option.cost, now, option.keep_percent)
    return WaitTooLong(
        f"The next free turn at {gate.name} ({limit}) is {soonest - now:.1f} s away, and this call has {patience_s:g} s; "
        "come back later, or set a longer timeout.",
        retry_after_s=max(turn - min(patience_s / 2, EARLY_S) - now, 0.05),
        limit=f"{gate.name} {limit}",
    )


def _never(call: Call, options: Sequence[Option], now: float) -> GatewayError:
    """Returns why no wait would help the call."""
    reset_s = _reset_s(options, now)
    if reset_s is not None:
        message = f"The account's quota is spent at every target of '{call.model_name}'; add credit, or another target."
        return QuotaExhausted(message, retry_after_s=reset_s)
    option = options[0]
    gate, tokens = option.line.gate, option.cost.input_tokens + option.cost.output_tokens
    limit = gate.limits.which(option.cost, now) or "its limits"
    return RequestExceedsLimits(
        f"This call is estimated at {tokens:.0f} tokens, more than {limit} of {gate.name} ever holds; send a smaller "
        "request, or lower its max_tokens.",
        limit=f"{gate.name} {limit}",
    )


def _reset_s(options: Sequence[Option], now: float) -> float | None:
    """Returns the seconds until the first spent quota is tried again; None: none is spent."""
    resets = [option.line.gate.pauses.quota_until for option in options]
    return min((at - now for at in resets if at > now), default=None)
