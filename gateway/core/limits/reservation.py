"""What one attempt takes from its gate, and how it ends: what the end gives back, and what it teaches.

    finish                                a whole answer has come, and with it the end: most calls
    answered -> settle                    a stream's first event, and its end; an error that is an answer
    refused                               a 429, or an account that is spent
    failed, cancel                        it came to nothing; it was never sent

First the reservation, then the way through a gate by which a call gets one (`enter`; for calls that wait in a queue `admit`
and `take`, or `reserve` for both), and last what a 429 means (`refused`). It must not know calls or queues. Invariants: a
grant is given only when limits, pauses, the search for a rate, the cap and the breakers all let the call go; every grant
ends in exactly one `finish`, `settle`, `failed`, `cancel` or refusal, and whatever comes behind that changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from math import inf, sqrt

from gateway.core.error_tables import Diagnosis
from gateway.core.health.target_health import UNHEALTHY, Permit
from gateway.core.limits import limit_table
from gateway.core.limits.bucket import NOTHING, Cost, charged_output, settle_all, take_all
from gateway.core.limits.headers import read_limit_headers
from gateway.core.limits.target_limits import (
    ESTIMATE_TOLERANCE,
    LONGEST_HOLD_S,
    MARGIN,
    RESUME_S,
    CallTraits,
    Gate,
    ResumeCap,
)
from gateway.core.retry_budgets import Retry
from gateway.core.types import LANES, ErrorClass, RawHeaders, Usage

PENALTY_S = 5.0
"""The seconds by which a target that has just failed is taken to be slower, where the fastest is looked for."""


class Reservation:
    """What one attempt has taken. `estimate` are the input tokens as estimated, uncorrected; 0: not counted."""

    __slots__ = (
        "at",
        "cost",
        "epoch",
        "estimate",
        "first_byte_s",
        "gate",
        "headers",
        "is_again",
        "is_judged",
        "is_open",
        "is_reported",
        "is_trial",
        "mark",
        "max_tokens",
        "permit",
        "retry",
    )

    def __init__(
        self,
        gate: Gate,
        cost: Cost,
        at: float,
        mark: tuple[float, ...] | None,
        estimate: int,
        max_tokens: int | None,
        permit: Permit,
    ) -> None:
        self.gate = gate
        self.cost = cost
        self.at = at
        self.mark = mark
        self.epoch = gate.pauses.epoch
        self.estimate = estimate
        self.max_tokens = max_tokens
        self.permit = permit
        self.headers: RawHeaders | None = None
        """The headers of a whole answer that has come, for `finish`. None: there is none yet, or `answered` has had them."""
        self.is_judged = False
        """The breakers know how it went."""
        self.first_byte_s: float | None = None
        """Seconds until a stream's first event: how quick the target is. A whole answer's time grows with its length."""
        self.is_again = False
        """The call had failed here before."""
        self.retry: Retry | None = None
        """The part of the retry budgets that it has taken."""
        self.is_open = True
        """It has not ended."""
        self.is_trial = False
        """It finds out whether a target in trouble serves again."""
        self.is_reported = False
        """The search for a rate knows how it ended."""

    def finish(
        self,
        headers: RawHeaders,
        usage: Usage | None,
        now: float,
        wall_now: Callable[[], float],
        *,
        thinks: bool = False,
    ) -> None:
        """Ends the attempt with a whole answer that has come: `answered`, `judge` and `settle` in one."""
        gate = self.gate
        health, responsiveness = gate.health, gate.health.responsiveness
        breaker = health.breaker
        is_clear = breaker.is_clear and health.account.breaker.is_clear and self.permit.account is None
        if (
            not is_clear
            or self.is_judged
            or not gate.fast_path_open
            or not self.is_open
            or thinks
            or responsiveness.thinks
        ):
            self.answered(headers, now, wall_now(), thinks=thinks)
            self.settle(usage, now)
            return
        # From here on the three as they come out where limits alone decide: what every call pays.
        pauses, limits = gate.pauses, gate.limits
        gate.discovery.let_in += 1
        if self.epoch == pauses.epoch:
            pauses.refusals_in_a_row = 0
        if self.mark is not None:
            gate.learn(read_limit_headers(headers, wall_now(), gate.counting.kind), self.at, self.mark, now)
        took_s = now - self.at
        gate.answer_s += (took_s - gate.answer_s) * (0.1 if gate.answer_s else 1.0)
        self.is_judged = self.is_reported = True
        breaker.succeeded(self.permit.own, now, None)
        buckets = limits.table.buckets  # these headers may have changed them
        if usage is None or not self.estimate or buckets is None:
            responsiveness.whole_answer.observe(took_s, now)
            self.settle(usage, now)
            return
        self.is_open = False
        gate.in_flight -= 1
        if self.epoch == pauses.epoch:
            pauses.sent_in_epoch -= 1
        if self.retry is not None:
            self.retry.end()
        counting = gate.counting
        requests, reserved_input, reserved_output = self.cost
        gate.squares = max(0.0, gate.squares - reserved_input * reserved_input) if gate.in_flight else 0.0
        input_tokens, output_tokens = usage.input, usage.output
        if counting.excludes_cached:
            input_tokens = max(0, input_tokens - usage.cached)
        if counting.charge != "input":
            output_tokens = charged_output(counting.charge, input_tokens, self.max_tokens, output_tokens)
        actual: tuple[float, float, float] = (requests, input_tokens, output_tokens)
        if input_tokens + output_tokens > limits.table.smallest:
            actual = limits.shrink(Cost(*actual), inf)
        reserved = (requests, reserved_input, reserved_output, reserved_input + reserved_output)
        settle_all(buckets, reserved, (*actual, actual[1] + actual[2]), now, self.at)
        responsiveness.whole_answer.observe(took_s, now)
        if not usage.estimated:
            gate.calibration.observe(self.estimate, usage.input, usage.output)

    def answered(
        self,
        headers: RawHeaders,
        now: float,
        wall_now: float,
        *,
        is_stream: bool = False,
        is_error: bool = False,
        thinks: bool = False,
    ) -> None:
        """Notes that the provider has let the call in; its limit headers correct levels and capacities.

        An error comes faster than any answer: it teaches nothing else.
        """
        gate = self.gate
        discovery, health = gate.discovery, gate.health
        discovery.let_in += 1
        # A call from before the last refusal shows nothing of the time since.
        if self.epoch == gate.pauses.epoch:
            gate.pauses.refusals_in_a_row = 0
        if self.mark is not None:
            gate.learn(read_limit_headers(headers, wall_now, gate.counting.kind), self.at, self.mark, now)
        if is_error:
            return
        took_s = now - self.at
        if is_stream:
            self.first_byte_s = took_s
        if thinks or health.responsiveness.thinks:
            health.responsiveness.times(stream=is_stream, thinks=True).observe(took_s, now)
        elif is_stream:
            health.first_byte.observe(took_s, now)
        else:
            health.whole_answer.observe(took_s, now)
        if not is_stream or health.is_probed:  # a probe's first event is news enough
            self._succeeded(now)
        gate.answer_s += (took_s - gate.answer_s) * (0.1 if gate.answer_s else 1.0)
        self.is_reported = True
        if discovery.search is not None:
            discovery.search.succeeded(self.at, now)
            refills_per_s = gate.limits.table.refills_per_s(requests=True)
            if discovery.is_distrusted and discovery.trust_if_confirmed(refills_per_s, now):
                gate.review_rate(now)
            gate.review_found()
        if gate.cap is not None and is_stream:
            gate.has_streams = True
            gate.cap.observe(took_s, gate.in_flight)

    def settle(self, usage: Usage | None, now: float) -> None:
        """Ends the attempt: corrects the reservation to what was used (None: nobody knows, it stands)."""
        if not self.is_open:
            return
        gate = self.gate
        if gate.cap is not None and not gate.has_streams and usage is not None and usage.output:
            gate.cap.observe((now - self.at) / usage.output, gate.in_flight)  # seconds per token: the next best
        if usage is None or not self.estimate:
            self.end(self.cost, now)
            return
        charged = gate.charge(usage.input, self.max_tokens, usage.output, usage.cached)
        self.end(gate.limits.shrink(charged, inf), now)
        if not usage.estimated:
            gate.calibration.observe(self.estimate, usage.input, usage.output)

    def failed(self, now: float, *, is_overload: bool) -> None:
        """Ends an attempt that came to nothing, but not for its rate. Its request counts, its tokens do not."""
        if self.gate.cap is not None and is_overload:
            self.gate.cap.dropped()
        self.forget(now)
        self.end(Cost(self.cost.requests, 0, 0), now)

    def cancel(self, now: float) -> None:
        """Ends an attempt of which nothing was sent: gives everything back."""
        gate = self.gate
        if self.is_open:
            if not self.is_reported and gate.discovery.search is not None:
                gate.discovery.search.give_back(now)
            gate.limits.unsend(self.cost)
        self.is_reported = True
        self.forget(now)
        self.end(NOTHING, now)

    def judge(self, error_class: str | None, now: float, u: float) -> None:
        """Reports to the breakers how the attempt went, as far as that speaks of the target's health; once.

        `error_class` None: well. `u` is a uniform draw from [0, 1).
        """
        if self.is_judged:
            return
        gate = self.gate
        if error_class is None:
            self._succeeded(now)
        elif self.retry is not None and self.is_again and not gate.health.is_probed:
            self.forget(now)  # one request that always fails is no outage, however often it is tried
        elif error_class in UNHEALTHY:
            self.is_judged = True
            gate.health.latency.penalise(PENALTY_S, now)
            gate.health.failed(self.permit, now, u, error_class)
        else:
            self.forget(now)

    def is_late(self, now: float) -> bool:
        """Returns whether the call has waited longer than is usual here, whoever lost patience."""
        return now - self.at >= self.gate.health.breaker.slow_after_s

    def forget(self, now: float) -> None:
        """Gives the breakers' permit back without news, unless they know already how it went."""
        if not self.is_judged:
            self.is_judged = True
            self.gate.health.forget(self.permit, now)

    def end(self, actual: Cost, now: float) -> None:
        """Gives back to the limits what the attempt took beyond `actual`; the first end counts."""
        if not self.is_open:
            return
        gate, tokens = self.gate, self.cost.input_tokens
        self.is_open = False
        gate.in_flight -= 1
        if self.retry is not None:
            self.retry.end()
        # With nothing in flight the sum is 0: what rounding has left of it goes.
        gate.squares = max(0.0, gate.squares - tokens * tokens) if gate.in_flight else 0.0
        if self.epoch == gate.pauses.epoch:
            gate.pauses.sent_in_epoch -= 1
        if gate.discovery.search is not None and not self.is_reported:
            gate.discovery.search.left(now)
        gate.limits.settle(self.cost, actual, now, self.at)

    def _succeeded(self, now: float) -> None:
        if not self.is_judged:
            self.is_judged = True
            self.gate.health.succeeded(self.permit, now, self.first_byte_s)


# --- a call's way through a gate ---


_URGENT = LANES.index("interactive")
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
) -> Reservation | None:
    """Takes what a call of so many input tokens (as estimated, uncorrected) costs; returns None if it may not go now.

    An estimate of 0 or less: tokens are not counted. `answers` is False for calls whose answer has no tokens.
    """
    health, pauses = gate.health, gate.pauses
    breaker = health.breaker
    if not gate.fast_path_open or not breaker.is_clear or not health.account.breaker.is_clear:
        return _enter_slowly(gate, estimate, max_tokens, now, keep_percent, rank, answers=answers)
    # From here on `gate.cost_of`, `admit` and `take` as they come out where limits alone decide: what every call pays.
    if keep_percent:
        kept_percent = gate.reserve_percent(keep_percent, now)
    else:
        kept_percent, gate.urgent_at = 0.0, now
    margin = 0.0
    input_tokens = output_tokens = 0
    if estimate > 0 and gate.has_token_limit:
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
    # A limit is in the way, or not all are plain buckets of our own: the slow way makes sure, and asks for what is lacking.
    if buckets is None or not take_all(buckets, limits.taken, amounts, margin, now, kept_percent):
        return _enter_slowly(gate, estimate, max_tokens, now, keep_percent, rank, answers=answers)
    gate.in_flight += 1
    pauses.sent_in_epoch += 1
    pauses.probed_at = gate.used_at = now
    gate.squares += cost.input_tokens * cost.input_tokens
    mark = _sample(gate, now) if now >= gate.learns_from else None
    permit = tuple.__new__(Permit, (breaker.take(now), None))
    return Reservation(gate, cost, now, mark, estimate, max_tokens, permit)


def _enter_slowly(
    gate: Gate, estimate: int, max_tokens: int | None, now: float, keep_percent: float, rank: int, *, answers: bool
) -> Reservation | None:
    counted = estimate if gate.has_token_limit and estimate > 0 else 0
    cost = gate.cost_of(counted, max_tokens, answers=answers)
    grant = reserve(gate, cost, now, keep_percent, estimate=estimate, max_tokens=max_tokens, rank=rank)
    # Afterwards: this call may have ended a pause, and the next one can take the short way.
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
) -> Reservation | None:
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
    traits: CallTraits | None = None,
) -> float | None:
    """Brings about what a call that wants to go has its time come for; returns the seconds of `wait_for`.

    A pause that is over ends, behind the resume cap; a breaker whose time is over begins to probe; what the call lacks of
    shared limits is asked for; a guess that is in its way may grow. Without `traits` the call waits for a pause's end.
    """
    pauses = gate.pauses
    pauses.end_probing(now)
    paused_s = pauses.wait_s(traits, now)
    if paused_s > 0.0:
        return paused_s
    paused_until = pauses.ends_at
    if pauses.is_resume_due and paused_until <= now:
        _resume(gate, now, paused_until)
    if rank <= _URGENT:
        gate.urgent_at = now
    keep = keep_tokens + gate.margin(cost) if gate.has_token_limit else keep_tokens
    kept_percent = gate.reserve_percent(keep_percent, now)
    wait_s = gate.limits.want(cost, now, kept_percent, keep, keep_requests)
    if wait_s != 0.0 and limit_table.forget_stale(gate.limits, now):
        gate.review_rate(now)
        wait_s = gate.limits.want(cost, now, kept_percent, keep, keep_requests)
    if wait_s == inf:
        return inf
    if wait_s != 0.0:
        limit_table.grow_burst(gate.limits, now, gate.discovery.let_in, gate.in_flight, kept_percent, keep_requests)
    if gate.discovery.search is not None:
        gate.discovery.search.want(now)
    if not gate.health.is_clear:
        gate.health.admit(now, rank)
    return wait_for(gate, cost, now, keep_percent, keep_requests, keep_tokens, rank, traits)


def take(gate: Gate, cost: Cost, now: float, estimate: int = 0, max_tokens: int | None = None) -> Reservation:
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
    reservation = Reservation(gate, cost, now, mark, estimate, max_tokens, gate.health.take(now))
    reservation.is_trial = not gate.health.is_clear and gate.health.is_on_trial
    return reservation


def wait_for(
    gate: Gate,
    cost: Cost,
    now: float,
    keep_percent: float = 0.0,
    keep_requests: float = 0.0,
    keep_tokens: float = 0.0,
    rank: int = 1,
    traits: CallTraits | None = None,
) -> float | None:
    """Returns the seconds until a call may go, as things stand: 0.0 now, inf never, None when one in flight has to end first.

    A question, which changes nothing. Whoever has a call that wants to go says so by `admit`.
    """
    paused_s = gate.pauses.wait_s(traits, now)
    if paused_s > 0.0:
        return paused_s
    if gate.has_token_limit:
        keep_tokens += gate.margin(cost)
    kept_percent = gate.reserve_percent(keep_percent, now)
    wait_s = gate.limits.wait_s(cost, now, kept_percent, keep_tokens, keep_requests)
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


def ready_at(
    gate: Gate,
    cost: Cost,
    now: float,
    ahead: Cost = NOTHING,
    keep_percent: float = 0.0,
    traits: CallTraits | None = None,
) -> float:
    """Estimates when the call may go after `ahead` (the sum of those before it); inf: never."""
    if gate.pauses.quota_until > now:
        return inf
    burst, search = gate.limits.table.burst, gate.discovery.search
    if burst is not None and burst.may_be_more:
        ahead = ahead._replace(requests=max(0.0, ahead.requests - burst.may_be_more))
    moment = gate.limits.ready_at(cost, now, ahead, gate.reserve_percent(keep_percent, now))
    if search is not None and search.has_measured:
        moment = max(moment, search.ready_at(now, ahead.requests))
    if gate.cap is not None and gate.is_full:
        moment = max(moment, now + (ahead.requests + 1) * gate.answer_s / gate.cap.cap)
    paused_s = gate.pauses.wait_s(traits, now)
    if paused_s > 0.0:
        moment = max(moment, now + paused_s + gate.limits.drain_s(ahead))
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
    limit_table.hold_back(gate.limits, now)
    if gate.discovery.search is not None:
        gate.discovery.search.resumed(now)
    for counts_requests in (True, False):  # tokens where nobody counts requests
        rate_per_s = table.refills_per_s(requests=counts_requests)
        if rate_per_s < inf:
            gate.pauses.resume_cap = ResumeCap(rate_per_s, now, counts_requests=counts_requests)
            return


def _longer(one_s: float | None, other_s: float | None) -> float | None:
    return None if one_s is None or other_s is None else max(one_s, other_s)


# --- a 429: what it means for the call, for the target's pauses, and for what is believed of its limits ---


class Refusal(Enum):
    """What a 429 means for the call that got it."""

    WAIT = "wait"
    """The target is paused; the call goes back to the head of its queue."""
    NEVER_FITS = "never fits"
    """It asks for more than the limit ever holds there."""
    EXHAUSTED = "exhausted"
    """The account is spent until its reset."""


def refused(
    grant: Reservation,
    diagnosis: Diagnosis,
    headers: RawHeaders,
    now: float,
    wall_now: float,
    traits: CallTraits | None = None,
) -> Refusal:
    """Ends an attempt that the provider refused for its rate or its account, and pauses the target.

    The latest of all hints wins. A refused call keeps what it took of the requests, because most providers count it;
    its tokens only where no header tells the level, and once for all calls of one epoch: whatever made our level too
    high (a provider's clock starts with the first arrival, ours with the first dispatch) is so put right.
    With `traits` the pause is for calls like this one until others are refused, too; where those are let in, for this call.

    Invariants: all refusals of one epoch lengthen a pause once; a refusal that comes whatever the rate pauses nobody.
    """
    gate = grant.gate
    grant.forget(now)
    if diagnosis.never_fits:
        grant.cancel(now)
        return Refusal.NEVER_FITS
    delay_s, is_for_tokens = diagnosis.delay_s, diagnosis.error_class == ErrorClass.RATE_LIMIT_TOKENS
    learned = read_limit_headers(headers, wall_now, gate.counting.kind) if gate.counting.learns else None
    gate.learn(learned, grant.at, grant.mark, now)
    # Before `_slow_down`, which begins a new epoch.
    is_first = grant.epoch == gate.pauses.epoch and not gate.pauses.refusals_in_a_row
    is_apart = traits is not None and gate.pauses.refusals is not None and gate.pauses.refusals.is_apart(traits)
    is_look = traits is not None and gate.pauses.is_in_doubt(grant.epoch, now)
    keeps_tokens = is_for_tokens and learned is None and is_first and not is_apart
    is_exhausted = diagnosis.error_class == ErrorClass.QUOTA_EXHAUSTED or (delay_s or 0.0) > LONGEST_HOLD_S
    grant.is_reported = not is_exhausted and not is_apart and not is_look
    grant.end(grant.cost if keeps_tokens else Cost(grant.cost.requests, 0, 0), now)
    if is_exhausted:
        gate.exhaust(delay_s, now)
        return Refusal.EXHAUSTED
    if not is_apart:
        is_explained = learned is not None and learned.is_used_up  # by a limit, so it concerns all calls
        traits = None if is_explained else traits
        _slow_down(grant, delay_s, now, traits, is_for_tokens=is_for_tokens, is_explained=is_explained, is_look=is_look)
        gate.review(now)
    return Refusal.WAIT


def _slow_down(
    grant: Reservation,
    delay_s: float | None,
    now: float,
    traits: CallTraits | None,
    *,
    is_for_tokens: bool,
    is_explained: bool,
    is_look: bool,
) -> None:
    """Pauses for as long as was asked; where nobody says, for longer each time, and the rate is searched for.

    A call that looked whether a pause concerns it was sent against the provider's word: that is no news of the rate.
    """
    gate = grant.gate
    pauses, discovery = gate.pauses, gate.discovery
    is_limit = is_look or discovery.refused(
        grant.at,
        now,
        is_current=grant.epoch == pauses.epoch,
        is_explained=is_explained,
        is_timed=delay_s is not None,
    )
    if not is_limit:
        return  # it comes whatever the rate: no reason to leave the others waiting, the call alone goes again
    is_again = traits is not None and pauses.suspect(traits, grant.epoch)
    is_first = pauses.refused(grant.epoch, is_again=is_again)
    if is_explained or is_look:
        pass  # headers say so, and have set the level; or it was no try of the rate
    elif is_for_tokens or not limit_table.burst_refused(
        gate.limits, now, is_first=is_first, in_flight=gate.in_flight + 1
    ):
        discovery.count_unexplained()  # else too many went at once: no word on the rate
    if delay_s is not None:
        paused_s = pauses.believed_s(delay_s)
        is_lone = traits is not None and pauses.refusals is not None and pauses.refusals.is_lone(traits)
        gate.pause(paused_s, now, is_sure=not is_lone)
        if traits is not None:
            pauses.ask_until(now + paused_s, now)
    if discovery.search is not None:
        gate.review_found()
        return
    if delay_s is None and is_first:
        gate.pause(pauses.backoff_s, now)
    if discovery.is_unexplained and pauses.refusals_in_a_row == 1 and gate.counting.learns:
        # It does serve us, but not as much as stated: somebody else uses the account, or the config is wrong.
        discovery.distrust(now)
