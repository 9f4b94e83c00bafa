"""A call's way through a gate: when it may go, what it takes, and what its time has come for.

    enter        the usual way: what the call costs is taken in one visit, or the call has to wait
    admit, take  the way of a call that waits in a queue: `admit` says 0.0, then `take`; `reserve` does both
    wait_for, ready_at      questions, which change nothing

It must not know calls, lanes' order or queues. Invariant: a grant is given only when limits, pauses, the search for a rate, the
cap and the breakers all let the call go.
"""

from __future__ import annotations

from math import inf, sqrt

from gateway.core.health.target_health.target_health.target_health import Permit
from gateway.core.limits.bucket.bucket import take_all
from gateway.core.limits.estimate.cost import NOTHING, Cost, charged_output
from gateway.core.limits.reservation.grant import Grant
from gateway.core.limits.table.limit_table import levels
from gateway.core.limits.target_limits.gate.gate import ESTIMATE_TOLERANCE, MARGIN, Gate
from gateway.core.limits.target_limits.gate.pauses import RESUME_S, ResumeCap

LEARN_EVERY_S = 0.005
"""Headers of answers to calls that went closer together teach nothing new."""


def enter(
    gate: Gate,
    estimate: int,
    max_tokens: int | None,
    now: float,
    keep_percent: float = 0.0,
    rank: int = 1,
    *,
    answers: bool = True,
) -> Grant | None:
    """Takes what a call of so many input tokens (as estimated, uncorrected) costs; returns None if it may not go now.

    An estimate of 0 or less: tokens are not counted. `answers` is False for calls whose answer has no tokens.
    """
    health, pauses = gate.health, gate.pauses
    breaker = health.breaker
    if not gate.is_plain or not breaker.is_clear or not health.account.breaker.is_clear:
        return _enter_slowly(gate, estimate, max_tokens, now, keep_percent, rank, answers=answers)
    # From here on `gate.cost_of`, `admit` and `take` as they come out where limits alone decide: what every call pays.
    margin = 0.0
    input_tokens = output_tokens = 0
    if estimate > 0 and gate.counts_tokens:
        calibration, counting = gate.calibration, gate.counting
        input_tokens = round(estimate * calibration.ratio) or 1
        if answers:
            expected = calibration.expected_output
            if max_tokens is not None and max_tokens < expected:
                expected = max_tokens
            output_tokens = charged_output(counting.charge, input_tokens, max_tokens, expected)
            if counting.charge == "input":
                output_tokens = expected
        else:
            output_tokens = charged_output(counting.charge, input_tokens, None, 0)
        if calibration.error:
            margin = MARGIN * calibration.error * sqrt(gate.squares + input_tokens * input_tokens)
    limits = gate.limits
    table = limits.table
    buckets = table.buckets
    tokens = input_tokens + output_tokens
    cost = tuple.__new__(Cost, (1, input_tokens, output_tokens))  # as Cost(…), without a call of Python's
    amounts: tuple[float, ...] = (1, input_tokens, output_tokens, tokens)
    if tokens > table.smallest:
        cost = limits.shrink(cost, ESTIMATE_TOLERANCE)
        amounts = (*cost, cost.input_tokens + cost.output_tokens)
    if buckets is None or not take_all(buckets, limits.taken, amounts, margin, now, keep_percent):
        return _enter_slowly(gate, estimate, max_tokens, now, keep_percent, rank, answers=answers)
    gate.in_flight += 1
    pauses.sent_in_epoch += 1
    pauses.probed_at = gate.used_at = now
    gate.squares += cost.input_tokens * cost.input_tokens
    mark = _sample(gate, now) if now >= gate.learns_from else None
    permit = tuple.__new__(Permit, (breaker.take(now), None))
    return Grant(gate, cost, now, mark, estimate, max_tokens, permit)


def _enter_slowly(
    gate: Gate, estimate: int, max_tokens: int | None, now: float, keep_percent: float, rank: int, *, answers: bool
) -> Grant | None:
    counted = estimate if gate.counts_tokens and estimate > 0 else 0
    cost = gate.cost_of(counted, max_tokens, answers=answers)
    grant = reserve(gate, cost, now, keep_percent, estimate=estimate, max_tokens=max_tokens, rank=rank)
    gate.review(now)
    return grant


def reserve(
    gate: Gate,
    cost: Cost,
    now: float,
    keep_percent: float = 0.0,
    *,
    estimate: int = 0,
    max_tokens: int | None = None,
    rank: int = 1,
) -> Grant | None:
    """Takes what the call costs; returns None if it may not go now."""
    if admit(gate, cost, now, keep_percent, rank=rank) != 0.0:
        return None
    return take(gate, cost, now, estimate, max_tokens)


def admit(
    gate: Gate,
    cost: Cost,
    now: float,
    keep_percent: float = 0.0,
    keep_requests: float = 0.0,
    keep_tokens: float = 0.0,
    rank: int = 1,
) -> float | None:
    """Brings about what a call that wants to go has its time come for; returns the seconds of `wait_for`.

    A pause that is over ends, behind the resume cap; a breaker whose time is over begins to probe; what the call lacks of
    shared limits is asked for; a guess that is in its way may grow.
    """
    pauses = gate.pauses
    paused_until = pauses.ends_at
    if paused_until > now:
        return paused_until - now
    if pauses.is_resume_due:
        _resume(gate, now, paused_until)
    pauses.end_probing(now)
    keep = keep_tokens + gate.margin(cost) if gate.counts_tokens else keep_tokens
    wait_s = gate.limits.want(cost, now, keep_percent, keep, keep_requests)
    if wait_s == inf:
        return inf
    if wait_s != 0.0:
        levels.grow_burst(gate.limits, now, gate.discovery.let_in, gate.in_flight, keep_percent, keep_requests)
    if gate.discovery.search is not None:
        gate.discovery.search.want(now)
    if not gate.health.is_clear:
        gate.health.admit(now, rank)
    return wait_for(gate, cost, now, keep_percent, keep_requests, keep_tokens, rank)


def take(gate: Gate, cost: Cost, now: float, estimate: int = 0, max_tokens: int | None = None) -> Grant:
    """Takes what the call costs; only to be called when `admit` has said 0.0."""
    gate.limits.take(cost, now)
    if gate.discovery.search is not None:
        gate.discovery.search.take(now)
    pauses = gate.pauses
    if pauses.resume_cap is not None:
        pauses.resume_cap.take(
            1.0 if pauses.resume_cap.counts_requests else cost.input_tokens + cost.output_tokens, now
        )
        if pauses.resume_cap.is_over(now):
            pauses.resume_cap = None
    gate.in_flight += 1
    pauses.sent_in_epoch += 1
    pauses.probed_at = gate.used_at = now
    gate.squares += cost.input_tokens * cost.input_tokens
    mark = _sample(gate, now) if now >= gate.learns_from else None
    return Grant(gate, cost, now, mark, estimate, max_tokens, gate.health.take(now))


def wait_for(
    gate: Gate,
    cost: Cost,
    now: float,
    keep_percent: float = 0.0,
    keep_requests: float = 0.0,
    keep_tokens: float = 0.0,
    rank: int = 1,
) -> float | None:
    """Returns the seconds until a call may go, as things stand: 0.0 now, inf never, None when one in flight has to end first.

    A question, which changes nothing. Whoever has a call that wants to go says so by `admit`.
    """
    paused_until = gate.pauses.ends_at
    if paused_until > now:
        return paused_until - now
    if gate.counts_tokens:
        keep_tokens += gate.margin(cost)
    wait_s = gate.limits.wait_s(cost, now, keep_percent, keep_tokens, keep_requests)
    if wait_s == inf:
        return inf
    if gate.discovery.search is not None:
        wait_s = _longer(wait_s, gate.discovery.search.wait_s(now))
    if gate.pauses.resume_cap is not None:
        wait_s = _longer(wait_s, gate.pauses.resume_cap.wait_s(now))
    wait_s = _longer(wait_s, gate.pauses.probe_wait_s(now))
    if not gate.health.is_clear:
        health_s = gate.health.wait_s(now, rank)
        wait_s = _longer(wait_s, None if health_s == inf else health_s)  # inf: until a person says so
    return None if gate.is_full else wait_s


def ready_at(gate: Gate, cost: Cost, now: float, ahead: Cost = NOTHING, keep_percent: float = 0.0) -> float:
    """Returns when the call may go after `ahead` (the sum of those before it), as far as can be told; inf: never."""
    if gate.pauses.quota_until > now:
        return inf
    burst, search = gate.limits.table.burst, gate.discovery.search
    if burst is not None and burst.may_be_more:
        ahead = ahead._replace(requests=max(0.0, ahead.requests - burst.may_be_more))
    moment = gate.limits.ready_at(cost, now, ahead, keep_percent)
    if search is not None and search.has_measured and not gate.discovery.is_distrusted:
        moment = max(moment, search.ready_at(now, ahead.requests))
    if gate.cap is not None and gate.is_full:
        moment = max(moment, now + (ahead.requests + 1) * gate.answer_s / gate.cap.cap)
    paused_until = gate.pauses.until
    if paused_until > now:
        moment = max(moment, paused_until + gate.limits.drain_s(ahead))
    return moment if gate.health.is_clear else max(moment, gate.health.probe_at(now))


def _sample(gate: Gate, now: float) -> tuple[float, ...] | None:
    """Notes of one call in LEARN_EVERY_S how busy the target is; returns what makes its answer's headers exact."""
    gate.learns_from = now + LEARN_EVERY_S
    if gate.in_flight > gate.health.busiest(now):
        gate.health.was_busy(gate.in_flight, now)
    return gate.limits.mark() if gate.counting.learns else None


def _resume(gate: Gate, now: float, paused_until: float) -> None:
    """Ends a pause so that no herd follows; long after it there is none to fear."""
    gate.pauses.is_resume_due = False
    table = gate.limits.table
    if table.burst is not None and table.burst.is_news and gate.news is not None:
        table.burst.is_news = False
        gate.news.burst(gate.name, table.burst.burst, now)
    if now - paused_until > RESUME_S:
        return
    levels.hold_back(gate.limits, now)
    if gate.discovery.search is not None:
        gate.discovery.search.resumed(now)
    for counts_requests in (True, False):  # tokens where nobody counts requests
        rate_per_s = table.refills_per_s(requests=counts_requests)
        if rate_per_s < inf:
            gate.pauses.resume_cap = ResumeCap(rate_per_s, now, counts_requests=counts_requests)
            return


def _longer(one_s: float | None, other_s: float | None) -> float | None:
    return None if one_s is None or other_s is None else max(one_s, other_s)
