"""The gate of one target: when a call may go there, and what its answers teach.

    enter -> finish                                                     the usual case: a whole answer, one visit each way
    admit -> take, or reserve (both in one) -> answered | refused -> settle        (or reserve -> cancel: it was never sent)

Limits, the pause a provider asked for, a spent quota, a rate nobody tells and a cap that follows latency, all behind one
question. It must not know calls, lanes or queues. Invariants: every grant ends in exactly one `settle` or `cancel`; during
a pause nothing is granted, and a pause never moves back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from math import inf, sqrt
from typing import Protocol

from gateway.exchange import RawHeaders
from gateway.policy.errors.classify import Diagnosis
from gateway.policy.health.latency import Latency
from gateway.policy.health.rules import BreakerRules
from gateway.policy.health.target_health import UNHEALTHY, Account, Permit, TargetHealth
from gateway.policy.limits.bucket import take_all
from gateway.policy.limits.estimate import Calibration, charge, charged_output
from gateway.policy.limits.idle_gates import IdleGateState
from gateway.policy.limits.latency_cap import AdaptiveCap
from gateway.policy.limits.limits import NOTHING, Cost, LimitRow, LimitSet, ShareOut
from gateway.policy.limits.provider_headers import Learned, Reading, read_limit_headers
from gateway.policy.limits.ramp import RAMP_S, Pause, Ramp
from gateway.policy.limits.rate_search import RateSearch
from gateway.policy.limits.rules import Limits
from gateway.policy.limits.stray_refusals import Strays
from gateway.policy.retry.budgets import Retry
from gateway.policy.snapshot import Counting
from gateway.provider_errors import ErrorClass
from gateway.words import Lane, Usage

LEARN_EVERY_S = 0.005
"""Headers of answers to calls that went closer together teach nothing new."""
QUOTA_PROBE_S = 60.0
"""A spent quota is not tried again before, whatever resets (of other limits) its headers tell."""
QUOTA_LONGEST_S = 1800.0
"""However far away its reset is: somebody may have added credit."""
LONGEST_HOLD_S = 3600.0
"""A rate limit that asks for more is no rate limit, but a spent quota (providers.md, 0.2)."""
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.05, 8.0
ESTIMATE_TOLERANCE = 1.25
"""A call whose estimate is above a limit by less than this may still fit."""
MARGIN = 3.75
"""Of the mean error of estimates, left over for those in flight: three standard deviations (1.25 mean errors each)."""
PENALTY_S = 5.0
"""A target that has just failed is taken to be so much slower, where the fastest is looked for."""
REFUSED_WITHIN_S = 1.0
"""A target that was paused again and again without one success between is asked by one call at a time, for so long each."""
ASSUMED = 100.0
"""Calls per second to search from, where only tokens are told."""
_UNEXPLAINED = 0.1  # share of refusals above which known limits are not believed any more
_FADE = 0.02
BURST = "requests_at_once"
"""By this name replicas tell each other how many go at once, where nobody else tells."""
_READING_OF = {  # keep in step with `Learned.by_limit`
    "requests_per_min": "requests",
    "requests_per_day": "requests_per_day",
    "tokens_per_min": "tokens",
    "input_tokens_per_min": "input_tokens",
    "output_tokens_per_min": "output_tokens",
}
_LEAST_SHARE = 0.25


class Refusal(Enum):
    """What a 429 means for the call that got it."""

    WAIT = "wait"
    """The target is paused; the call goes back to the head of its queue."""
    NEVER_FITS = "never fits"
    """It asks for more than the limit ever holds there."""
    EXHAUSTED = "exhausted"
    """The account is spent until its reset."""


class GateState(Enum):
    """What a gate is about, as far as calls are concerned; of several that hold, the first in this table.

    | state     | why                                    | what goes                          | until                        |
    |-----------|----------------------------------------|------------------------------------|------------------------------|
    | SPENT     | the account has no quota left          | nothing                            | its reset, or half an hour   |
    | PAUSED    | a refusal asked for it, or a back-off  | nothing                            | the latest of all hints      |
    | RESUMING  | a pause is over                        | at most 1.2 times the rate         | 1 s behind the first call    |
    | PROBING   | refused in several epochs, served in   | one call at a time, 1 s each       | one is not refused           |
    |           | none between                           |                                    |                              |
    | SEARCHING | nobody tells a rate that is believed   | what the search for a rate allows  | a limit is told, and holds   |
    | NORMAL    | none of these                          | what the limits allow              |                              |

    A cap that follows latency, and the breakers, hold calls up besides, in any state.
    """

    SPENT = "spent"
    PAUSED = "paused"
    RESUMING = "resuming"
    PROBING = "probing"
    SEARCHING = "searching"
    NORMAL = "normal"


class GateNews(Protocol):
    """Who carries to other replicas what this one has learned. Sync, and cheap."""

    def paused(self, gate: Gate, left_s: float, now: float) -> None:
        """Nothing goes there for so long."""
        ...

    def exhausted(self, gate: Gate, left_s: float, now: float) -> None:
        """Its account is spent for so long."""
        ...

    def learned(self, gate: Gate, learned: Learned, now: float) -> None:
        """An answer has told limits."""
        ...

    def burst(self, gate: Gate, burst: float, now: float) -> None:
        """Refusals have told how many requests it takes at once."""
        ...


class Grant:
    """What one attempt has taken from its gate. `estimate` are the input tokens as estimated, uncorrected; 0: not counted.

    It ends exactly once.
    """

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
        "is_told",
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
        self.epoch = gate.epoch
        self.estimate = estimate
        self.max_tokens = max_tokens
        self.permit = permit
        self.headers: RawHeaders | None = None
        """Those of a whole answer that has come: `finish` is told of it. None: there is none yet, or `answered` was told."""
        self.is_judged = False
        """The breakers know how it went."""
        self.first_byte_s: float | None = None
        """Until a stream's first event: how quick the target is. A whole answer's time grows with its length."""
        self.is_again = False
        """The call had failed here before."""
        self.retry: Retry | None = None
        """What it has taken of the retry budgets."""
        self.is_open = True
        self.is_told = False
        """The search for a rate knows how it ended."""


class Gate:
    """One target's limits, levels and pauses; kept over reloads under the target's name."""

    __slots__ = (
        "_cap",
        "_has_streams",
        "_is_distrusted",
        "_learns_from",
        "_let_in",
        "_pause",
        "_probed_at",
        "_ramp",
        "_refusals_in_a_row",
        "_refused_share",
        "_resume_due",
        "_search",
        "_sent_since_refusal",
        "_squares",
        "_strays",
        "answer_s",
        "calibration",
        "counting",
        "counts_tokens",
        "epoch",
        "exhausted_until",
        "in_flight",
        "is_plain",
        "limits",
        "name",
        "news",
        "paused",
        "used_at",
        "vitals",
    )

    def __init__(
        self,
        name: str,
        limits: Limits,
        counting: Counting,
        now: float,
        vitals: TargetHealth | None = None,
        share_out: ShareOut | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        """Without `vitals` it has breakers of its own, under the built-in rules; with `share_out` replicas share its limits.

        `calibration` is that of the same model at the same target, for another caller.
        """
        self.name = name
        rules = BreakerRules()
        self.vitals = vitals or TargetHealth(name, Account(name, rules, now), rules, now, None)
        self.limits = LimitSet(Limits(), now, counting.style, counting.arrival_lag_s, share_out)
        self.calibration = calibration or Calibration(counting.first_output_tokens)
        self.answer_s = 0.0
        """From a grant to the answer, a running mean."""
        self.in_flight = 0
        self.used_at = now
        """When a call went there last."""
        self.epoch = 0
        """Counts the refusals that ended an epoch: the calls of one epoch were sent before they could learn of it."""
        self.exhausted_until = -inf
        self.paused = 0
        """How often it was paused, for the metrics."""
        self.is_plain = False
        """Limits alone, all of them buckets of our own, say whether a call may go: no pause or what follows one, no search for
        a rate, no cap, no probes. What the breakers say is not in it."""
        self.news: GateNews | None = None
        """Where there are other replicas."""
        self._pause = Pause()
        self._search: RateSearch | None = None
        self._cap: AdaptiveCap | None = None
        self._ramp: Ramp | None = None
        self._is_distrusted = False
        self._resume_due = False
        self._refusals_in_a_row = 0  # of epochs, with no success between
        self._sent_since_refusal = 0  # of those, calls of this epoch that have not ended
        self._probed_at = -inf
        self._squares = 0.0
        self._has_streams = False
        self._learns_from = -inf
        self._refused_share = 0.0
        self._let_in = 0  # calls since the last refusal
        self._strays = Strays()
        self.configure(limits, counting, now)

    def configure(self, limits: Limits, counting: Counting, now: float) -> None:
        """Puts the operator's numbers in force; levels, pauses and what was learned stay. A spent quota is tried again."""
        self.exhausted_until = -inf
        self.counting = counting
        self.calibration.expect(counting.first_output_tokens)
        if counting.charge == "input":  # what it calls tokens per minute counts the input alone
            inputs = limits.input_tokens_per_min
            inputs = limits.tokens_per_min if inputs is None else inputs
            limits = replace(limits, tokens_per_min=None, input_tokens_per_min=inputs)
        self.is_plain = False
        self.limits.configure(limits, now, counting.style)
        if not counting.adaptive:
            self._cap = None
        elif self._cap is None:
            self._cap = AdaptiveCap()
        self._look_again(now)

    def _review(self, now: float) -> None:
        """Looks whether the short way is open again. Whatever shuts it does so at once."""
        is_normal = self.state(now) is GateState.NORMAL
        self.is_plain = is_normal and self._cap is None and self.limits.buckets is not None

    def state(self, now: float) -> GateState:
        """Which row of the table it is in."""
        if self.exhausted_until > now:
            return GateState.SPENT
        if self._pause.until > now:
            return GateState.PAUSED
        if self._resume_due or self._ramp is not None:
            return GateState.RESUMING
        if self._refusals_in_a_row > 1:
            return GateState.PROBING
        return GateState.NORMAL if self._search is None else GateState.SEARCHING

    @property
    def paused_until(self) -> float:
        """When it may be used again (monotonic seconds); in the past: it may."""
        return max(self._pause.until, self.exhausted_until)

    def is_shut(self, lane: Lane, now: float) -> bool:
        """Whether a call of this lane had better not wait here: no quota, or an open breaker that it has no time for."""
        if self.exhausted_until > now:
            return True
        probe_at = self.vitals.probe_at(now)
        return probe_at == inf or (probe_at > now and not self.vitals.breaker.rules.hold_for_s[lane])

    def cost_of(self, estimate: int, max_tokens: int | None, *, answers: bool = True) -> Cost:
        """What a call of so many input tokens (as estimated, uncorrected) is charged here when it is admitted.

        `answers` is False for calls whose answer has no tokens.
        """
        if not estimate:
            return Cost()
        tokens = self.calibration.input_estimate(estimate)
        expected = self.calibration.output_estimate(max_tokens) if answers else 0
        return self.limits.shrink(self._charge(tokens, max_tokens if answers else None, expected), ESTIMATE_TOLERANCE)

    @property
    def capacity(self) -> float | None:
        """How many calls it can serve at a time, as far as anybody knows (its rate times its time: Little's law)."""
        most = self._cap.cap if self._cap is not None else self.limits.concurrency
        rate_per_s = self.limits.refills_per_s(requests=True) if most is None else inf
        return most if rate_per_s == inf else rate_per_s * max(self.answer_s, 0.01)

    @property
    def latency(self) -> Latency:
        """Its times to first byte; where it serves no streams, those of whole answers."""
        vitals = self.vitals
        if vitals.first_byte.count:
            return vitals.first_byte
        thought = vitals.heard.thought()
        if thought and not vitals.whole_answer.count:
            return thought[True] if True in thought else thought[False]
        return vitals.whole_answer

    def wait_s(
        self,
        cost: Cost,
        now: float,
        keep_percent: float = 0.0,
        keep_requests: float = 0.0,
        keep_tokens: float = 0.0,
        rank: int = 1,
    ) -> float | None:
        """Seconds until a call may go, as things stand: 0.0 now, inf never, None when a call in flight has to end first.

        A question, which changes nothing. Whoever has a call that wants to go says so by `admit`.
        """
        paused_until = self.paused_until
        if paused_until > now:
            return paused_until - now
        if self.counts_tokens:
            keep_tokens += self._margin(cost)
        wait_s = self.limits.wait_s(cost, now, keep_percent, keep_tokens, keep_requests)
        if self._search is not None and wait_s != inf:
            wait_s = _longer(wait_s, self._search.wait_s(now))
        if self._ramp is not None and wait_s != inf:
            wait_s = _longer(wait_s, self._ramp.wait_s(now))
        if wait_s == inf:
            return inf
        if self._refusals_in_a_row > 1 and self._sent_since_refusal:
            wait_s = _longer(wait_s, max(0.0, self._probed_at + REFUSED_WITHIN_S - now))
        if not self.vitals.is_clear:
            vitals_s = self.vitals.wait_s(now, rank)
            wait_s = _longer(wait_s, None if vitals_s == inf else vitals_s)  # inf: until a person says so
        return None if self._is_full() else wait_s

    def admit(
        self,
        cost: Cost,
        now: float,
        keep_percent: float = 0.0,
        keep_requests: float = 0.0,
        keep_tokens: float = 0.0,
        rank: int = 1,
    ) -> float | None:
        """A call wants to go, for which this brings about what its time has come for; then the answer is as of `wait_s`.

        A pause that is over ends, behind a ramp; a breaker whose time is over begins to probe; what the call lacks of shared
        limits is asked for; a guess that is in its way may grow.
        """
        paused_until = self.paused_until
        if paused_until > now:
            return paused_until - now
        if self._resume_due:
            self._resume(now, paused_until)
        if self._refusals_in_a_row > 1 and self._sent_since_refusal and now - self._probed_at >= REFUSED_WITHIN_S:
            # A refusal comes fast; a probe that was not refused after a while has been let in, however long the answer takes.
            self._refusals_in_a_row = 1
        keep = keep_tokens + self._margin(cost) if self.counts_tokens else keep_tokens
        wait_s = self.limits.want(cost, now, keep_percent, keep, keep_requests)
        if wait_s == inf:
            return inf
        if wait_s != 0.0:
            self.limits.grow(now, self._let_in, self.in_flight, keep_percent, keep_requests)
        if self._search is not None:
            self._search.want(now)
        if not self.vitals.is_clear:
            self.vitals.admit(now, rank)
        return self.wait_s(cost, now, keep_percent, keep_requests, keep_tokens, rank)

    def enter(
        self,
        estimate: int,
        max_tokens: int | None,
        now: float,
        keep_percent: float = 0.0,
        rank: int = 1,
        *,
        answers: bool = True,
    ) -> Grant | None:
        """Takes what a call of so many input tokens (as estimated, uncorrected) costs, if it may go now: `cost_of` and
        `reserve` in one.

        0 or less: they are not counted. `answers` is False for calls whose answer has no tokens.
        """
        vitals = self.vitals
        breaker = vitals.breaker
        if not self.is_plain or keep_percent or not breaker.is_clear or not vitals.account.breaker.is_clear:
            return self._enter_slowly(estimate, max_tokens, now, keep_percent, rank, answers=answers)
        margin = 0.0
        input_tokens = output_tokens = 0
        if estimate > 0 and self.counts_tokens:
            calibration, counting = self.calibration, self.counting
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
                margin = MARGIN * calibration.error * sqrt(self._squares + input_tokens * input_tokens)
        limits = self.limits
        buckets = limits.buckets
        tokens: float = input_tokens + output_tokens
        cost = tuple.__new__(Cost, (1, input_tokens, output_tokens))  # as Cost(…), without a call of Python's
        if tokens > limits.smallest:
            cost = limits.shrink(cost, ESTIMATE_TOLERANCE)
            tokens = cost.input_tokens + cost.output_tokens
        if buckets is None or not take_all(buckets, limits.taken, (*cost, tokens), margin, now):
            return self._enter_slowly(estimate, max_tokens, now, keep_percent, rank, answers=answers)
        self.in_flight += 1
        self._sent_since_refusal += 1
        self._probed_at = self.used_at = now
        self._squares += cost.input_tokens * cost.input_tokens
        mark = self._sample(now) if now >= self._learns_from else None
        permit = tuple.__new__(Permit, (breaker.take(now), None))
        return Grant(self, cost, now, mark, estimate, max_tokens, permit)

    def _enter_slowly(
        self, estimate: int, max_tokens: int | None, now: float, keep_percent: float, rank: int, *, answers: bool
    ) -> Grant | None:
        counted = estimate if self.counts_tokens and estimate > 0 else 0
        cost = self.cost_of(counted, max_tokens, answers=answers)
        grant = self.reserve(cost, now, keep_percent, estimate=estimate, max_tokens=max_tokens, rank=rank)
        self._review(now)
        return grant

    def reserve(
        self,
        cost: Cost,
        now: float,
        keep_percent: float = 0.0,
        *,
        estimate: int = 0,
        max_tokens: int | None = None,
        rank: int = 1,
    ) -> Grant | None:
        """Takes what the call costs, if it may go now."""
        if self.admit(cost, now, keep_percent, rank=rank) != 0.0:
            return None
        return self.take(cost, now, estimate, max_tokens)

    def take(self, cost: Cost, now: float, estimate: int = 0, max_tokens: int | None = None) -> Grant:
        """Takes what the call costs; only to be called when `admit` has said 0.0."""
        self.limits.take(cost, now)
        if self._search is not None:
            self._search.take(now)
        if self._ramp is not None:
            self._ramp.take(1.0 if self._ramp.counts_requests else cost.input_tokens + cost.output_tokens, now)
            if self._ramp.is_over(now):
                self._ramp = None
        self.in_flight += 1
        self._sent_since_refusal += 1
        self._probed_at = self.used_at = now
        self._squares += cost.input_tokens * cost.input_tokens
        mark = self._sample(now) if now >= self._learns_from else None
        return Grant(self, cost, now, mark, estimate, max_tokens, self.vitals.take(now))

    def _sample(self, now: float) -> tuple[float, ...] | None:
        """What one call in LEARN_EVERY_S is asked besides: how busy it is here, and how its answer's headers are to be read."""
        self._learns_from = now + LEARN_EVERY_S
        if self.in_flight > self.vitals.busiest(now):
            self.vitals.was_busy(self.in_flight, now)
        return self.limits.mark() if self.counting.learns else None

    def ready_at(self, cost: Cost, now: float, ahead: Cost = NOTHING, keep_percent: float = 0.0) -> float:
        """When the call may go after `ahead` (the sum of those before it), as far as can be told; inf: never."""
        if self.exhausted_until > now:
            return inf
        untold = self.limits.untold
        if untold is not None and untold.may_be_more:
            ahead = ahead._replace(requests=max(0.0, ahead.requests - untold.may_be_more))
        ready_at = self.limits.ready_at(cost, now, ahead, keep_percent)
        if self._search is not None and self._search.has_measured and not self._is_distrusted:
            ready_at = max(ready_at, self._search.ready_at(now, ahead.requests))
        if self._cap is not None and self._is_full():
            ready_at = max(ready_at, now + (ahead.requests + 1) * self.answer_s / self._cap.cap)
        paused_until = self._pause.until
        if paused_until > now:
            ready_at = max(ready_at, paused_until + self.limits.drain_s(ahead))
        return ready_at if self.vitals.is_clear else max(ready_at, self.vitals.probe_at(now))

    def cancel(self, grant: Grant, now: float) -> None:
        """Gives everything back: nothing was sent."""
        if grant.is_open and not grant.is_told and self._search is not None:
            self._search.give_back(now)
        grant.is_told = True
        if grant.is_open:
            self.limits.unsend(grant.cost)
        self._forget(grant, now)
        self._end(grant, NOTHING, now)

    def answered(
        self,
        grant: Grant,
        headers: RawHeaders,
        now: float,
        wall_now: float,
        *,
        is_stream: bool = False,
        is_error: bool = False,
        thinks: bool = False,
    ) -> None:
        """The provider let the call in; its limit headers correct levels and capacities.

        An error comes faster than any answer: it teaches nothing else.
        """
        self._let_in += 1
        if grant.epoch == self.epoch:
            self._refusals_in_a_row = 0
        if grant.mark is not None:
            self._learn(read_limit_headers(headers, wall_now, self.counting.kind), grant, now)
        if is_error:
            return
        took_s = now - grant.at
        vitals = self.vitals
        if is_stream:
            grant.first_byte_s = took_s
        if thinks or vitals.heard.thinks:
            vitals.heard.times(stream=is_stream, thinks=True).observe(took_s, now)
        elif is_stream:
            vitals.first_byte.observe(took_s, now)
        else:
            vitals.whole_answer.observe(took_s, now)
        if not is_stream or vitals.is_probed:  # a probe's first event is news enough
            self._succeeded(grant, now)
        self.answer_s += (took_s - self.answer_s) * (0.1 if self.answer_s else 1.0)
        grant.is_told = True
        if self._search is not None:
            self._search.succeeded(grant.at, now)
            if self._is_distrusted and self._search.rate_per_s > self.limits.refills_per_s(requests=True):
                self._is_distrusted = False
                self._look_again(now)
        if self._cap is not None and is_stream:
            self._has_streams = True
            self._cap.observe(took_s, self.in_flight)

    def refused(self, grant: Grant, diagnosis: Diagnosis, headers: RawHeaders, now: float, wall_now: float) -> Refusal:
        """The provider refused the call for its rate or its account: settles the grant and pauses the target.

        The latest of all hints wins. A refused call keeps what it took of the requests, because most providers count it;
        its tokens only where no header tells the level, and once for all calls of one epoch: whatever made our level too
        high (a provider's clock starts with the first arrival, ours with the first dispatch) is so put right.
        """
        self._forget(grant, now)
        if diagnosis.never_fits:
            self.cancel(grant, now)
            return Refusal.NEVER_FITS
        delay_s = diagnosis.delay_s
        learned = read_limit_headers(headers, wall_now, self.counting.kind) if self.counting.learns else None
        self._learn(learned, grant, now)
        keeps_tokens = (
            diagnosis.error_class == ErrorClass.RATE_LIMIT_TOKENS
            and learned is None
            and grant.epoch == self.epoch
            and not self._refusals_in_a_row
        )
        is_exhausted = diagnosis.error_class == ErrorClass.QUOTA_EXHAUSTED or (delay_s or 0.0) > LONGEST_HOLD_S
        grant.is_told = not is_exhausted
        self._end(grant, grant.cost if keeps_tokens else Cost(grant.cost.requests, 0, 0), now)
        if is_exhausted:
            self.exhaust(delay_s, now)
            return Refusal.EXHAUSTED
        self._slow_down(grant, delay_s, now, is_for_tokens=diagnosis.error_class == ErrorClass.RATE_LIMIT_TOKENS)
        return Refusal.WAIT

    def exhaust(self, delay_s: float | None, now: float) -> None:
        """The account is spent, for so long as far as anybody knows."""
        self._spend_until(now + min(max(delay_s or 0.0, QUOTA_PROBE_S), QUOTA_LONGEST_S))
        if self.news is not None:
            self.news.exhausted(self, self.exhausted_until - now, now)

    def told_exhausted(self, left_s: float, now: float) -> None:
        """Another replica has found the account spent, for so long."""
        until = now + min(left_s, QUOTA_LONGEST_S)
        if until > self.exhausted_until:
            self._spend_until(until)

    def told_pause(self, left_s: float, now: float) -> None:
        """Another replica was asked to leave it alone for so long."""
        until = now + min(left_s, LONGEST_HOLD_S)
        if until > self._pause.until:
            self._wait_until(until, now)

    def told_limit(self, name: str, amount: float, period_s: float, now: float) -> None:
        """Another replica has learned of a limit, of so much in so many seconds; nothing of what is left of it."""
        if name == BURST:
            self.limits.hear_burst(amount, now)
        elif self.counting.learns and name in _READING_OF:
            told = Learned()
            setattr(told, _READING_OF[name], Reading(amount, period_s=period_s))
            self.limits.learn(told, now)
            self._look_again(now)

    def leave_alone(self, delay_s: float, now: float) -> None:
        """The provider has asked for it, though not for a rate: nothing goes there before, or for half an hour."""
        self._hold_off(now + min(delay_s, QUOTA_LONGEST_S), now)

    def resume(self) -> None:
        """By hand: whatever it was left alone for is over."""
        self._pause.end()
        self.exhausted_until = -inf
        self._refusals_in_a_row = 0

    def kept(self, now: float) -> IdleGateState | None:
        """What is to be known of it when it is used again; None: nothing. Only to be asked when no call is in flight."""
        used = self.limits.used(now)
        if self.paused_until <= now and not used:
            return None
        return IdleGateState(now, self._pause.until, self.exhausted_until, self._refusals_in_a_row, used)

    def remember(self, kept: IdleGateState, now: float) -> None:
        """It is used again, under the same name; a quota that was spent is spent until it resets."""
        self.limits.use_again(kept.used, now)
        self._refusals_in_a_row = kept.refusals
        self.is_plain = False
        if kept.paused_until > now:
            self._wait_until(kept.paused_until, now)
        if kept.exhausted_until > now:
            self._spend_until(kept.exhausted_until)

    def finish(
        self,
        grant: Grant,
        headers: RawHeaders,
        usage: Usage | None,
        now: float,
        wall_now: Callable[[], float],
        *,
        thinks: bool = False,
    ) -> None:
        """A whole answer has come, and with it the call's end: `answered`, `judge` and `settle` in one."""
        vitals, heard = self.vitals, self.vitals.heard
        is_known = grant.is_judged or grant.permit.account is not None or not vitals.is_clear
        if is_known or not self.is_plain or not grant.is_open or thinks or heard.thinks:
            self.answered(grant, headers, now, wall_now(), thinks=thinks)
            self.settle(grant, usage, now)
            return
        self._let_in += 1
        if grant.epoch == self.epoch:
            self._refusals_in_a_row = 0
        if grant.mark is not None:
            self._learn(read_limit_headers(headers, wall_now(), self.counting.kind), grant, now)
        took_s = now - grant.at
        heard.whole_answer.observe(took_s, now)
        self.answer_s += (took_s - self.answer_s) * (0.1 if self.answer_s else 1.0)
        grant.is_judged = grant.is_told = True
        vitals.breaker.succeeded(grant.permit.own, now, None)
        if usage is None or not grant.estimate or self.limits.buckets is None:  # these headers may have changed them
            self.settle(grant, usage, now)
            return
        grant.is_open = False
        self.in_flight -= 1
        if grant.epoch == self.epoch:
            self._sent_since_refusal -= 1
        if grant.retry is not None:
            grant.retry.end()
        cost, counting = grant.cost, self.counting
        self._squares = max(0.0, self._squares - cost.input_tokens * cost.input_tokens) if self.in_flight else 0.0
        tokens, output_tokens = usage.input, usage.output
        if counting.excludes_cached:
            tokens = max(0, tokens - usage.cached)
        if counting.charge != "input":
            output_tokens = charged_output(counting.charge, tokens, grant.max_tokens, output_tokens)
        if tokens + output_tokens > self.limits.smallest:
            _, *shrunk = self.limits.shrink(Cost(1, tokens, output_tokens), inf)
            self.limits.settle_tokens(cost, shrunk[0], shrunk[1], now, grant.at)
        else:
            self.limits.settle_tokens(cost, tokens, output_tokens, now, grant.at)
        if not usage.estimated:
            self.calibration.observe(grant.estimate, usage.input, usage.output)

    def settle(self, grant: Grant, usage: Usage | None, now: float) -> None:
        """The attempt has ended: corrects the reservation to what was used (None: nobody knows, it stands)."""
        if not grant.is_open:
            return
        if self._cap is not None and not self._has_streams and usage is not None and usage.output:
            self._cap.observe((now - grant.at) / usage.output, self.in_flight)  # seconds per token: the next best
        if usage is None or not grant.estimate:
            self._end(grant, grant.cost, now)
            return
        charged = self._charge(usage.input, grant.max_tokens, usage.output, usage.cached)
        self._end(grant, self.limits.shrink(charged, inf), now)
        if not usage.estimated:
            self.calibration.observe(grant.estimate, usage.input, usage.output)

    def failed(self, grant: Grant, now: float, *, is_overload: bool) -> None:
        """The attempt came to nothing, but not for its rate. Its request counts, its tokens do not."""
        if self._cap is not None and is_overload:
            self._cap.dropped()
        self._forget(grant, now)
        self._end(grant, Cost(grant.cost.requests, 0, 0), now)

    def judge(self, grant: Grant, error_class: str | None, now: float, u: float) -> None:
        """Tells the breakers how an attempt went, as far as that speaks of the target's health; once."""
        if grant.is_judged:
            return
        if error_class is None:
            self._succeeded(grant, now)
        elif grant.retry is not None and grant.is_again and not self.vitals.is_probed:
            self._forget(grant, now)  # one request that always fails is no outage, however often it is tried
        elif error_class in UNHEALTHY:
            grant.is_judged = True
            self.latency.penalise(PENALTY_S, now)
            self.vitals.failed(grant.permit, now, u, error_class)
        else:
            self._forget(grant, now)

    def is_late(self, grant: Grant, now: float) -> bool:
        """Whether the call has waited longer than is usual here, whoever lost patience."""
        return now - grant.at >= self.vitals.breaker.slow_after_s

    def rows(self, now: float) -> list[LimitRow]:
        """Every limit, known, found or adaptive, for `/admin/limits` and the gauges."""
        rows = self.limits.rows(now)
        if self._search is not None:
            per_min = self._search.rate_per_s * 60
            name = "found_requests_per_min"
            rows.append(LimitRow(name, per_min, per_min, "learned", self._search.wait_s(now)))
        if self._cap is not None:
            cap = self._cap.cap
            rows.append(
                LimitRow("found_concurrency", cap - self.in_flight, cap, "learned", None if self._is_full() else 0.0)
            )
        return rows

    def blocking(self, cost: Cost, now: float, keep_percent: float = 0.0) -> str:
        """The name of what holds the call up."""
        if self.exhausted_until > now:
            return "quota"
        if self._pause.until > now:
            return "pause"
        return self.limits.which(cost, now, keep_percent) or ("rate" if self._search is not None else "concurrency")

    def _margin(self, cost: Cost) -> float:
        """Input tokens to leave over, because the estimates of those in flight may be too low, all of them together.

        Estimates err independently, so it grows with the root of the sum of their squares.
        """
        error = self.calibration.error
        return MARGIN * error * sqrt(self._squares + cost.input_tokens * cost.input_tokens) if error else 0.0

    def _charge(self, tokens: int, max_tokens: int | None, output: int, cached: int = 0) -> Cost:
        counting = self.counting
        cost = charge(
            counting.charge, tokens, max_tokens, output, cached=cached, excludes_cached=counting.excludes_cached
        )
        return cost._replace(output_tokens=output) if counting.charge == "input" else cost

    def _succeeded(self, grant: Grant, now: float) -> None:
        if not grant.is_judged:
            grant.is_judged = True
            self.vitals.succeeded(grant.permit, now, grant.first_byte_s)

    def _forget(self, grant: Grant, now: float) -> None:
        if not grant.is_judged:
            grant.is_judged = True
            self.vitals.forget(grant.permit, now)

    def _end(self, grant: Grant, actual: Cost, now: float) -> None:
        if not grant.is_open:
            return
        grant.is_open = False
        self.in_flight -= 1
        if grant.retry is not None:
            grant.retry.end()
        tokens = grant.cost.input_tokens
        self._squares = max(0.0, self._squares - tokens * tokens) if self.in_flight else 0.0
        if grant.epoch == self.epoch:
            self._sent_since_refusal -= 1
        if self._search is not None and not grant.is_told:
            self._search.left(now)
        self.limits.settle(grant.cost, actual, now, grant.at)

    def _slow_down(self, grant: Grant, delay_s: float | None, now: float, *, is_for_tokens: bool) -> None:
        """Pauses for as long as was asked; where nobody says, for longer each time, and the rate is searched for.

        A refusal that comes whatever the rate, as some do there beyond doubt, is no reason to leave the others waiting:
        the call alone goes again.
        """
        self.is_plain = False
        let_in, self._let_in = self._let_in, 0
        self._refused_share *= (1 - _FADE) ** let_in
        if self._is_stray(grant, let_in, now):
            return
        is_first_of_epoch = grant.epoch == self.epoch
        if is_first_of_epoch:
            self.epoch += 1
            self._sent_since_refusal = 0
            self._refusals_in_a_row += 1
        if is_for_tokens or not self.limits.burst_refused(now, is_first=is_first_of_epoch):
            self._refused_share += (1 - self._refused_share) * _FADE  # else too many went at once: no word on the rate
        own_s = min(FIRST_BACKOFF_S * 2 ** min(self._refusals_in_a_row - 1, 10), LONGEST_BACKOFF_S)
        if delay_s is not None:  # one that asks for no time at all, again and again, is not taken at its word
            self._hold_off(now + (delay_s if self._refusals_in_a_row < 2 else max(delay_s, min(own_s, 1.0))), now)
        if self._search is not None:
            self._look_elsewhere(self._search, now)
            return
        if delay_s is None and is_first_of_epoch:
            self._hold_off(now + own_s, now)
        if self._refused_share > _UNEXPLAINED and self._refusals_in_a_row == 1 and self.counting.learns:
            # It does serve us, but not as much as we were told: somebody else uses the account, or the config is wrong.
            self._is_distrusted = True
            self._search = RateSearch(now, strays=self._strays)
            told = self.limits.refills_per_s(requests=True)
            self._search.assume(told if told < inf else ASSUMED, now)
            self._search.refused(now, now)

    def _is_stray(self, grant: Grant, let_in: int, now: float) -> bool:
        """Whether the refusal is beyond doubt one of those that come at any rate. Tells the search of it, whatever it is."""
        strays = self._strays
        if self._search is not None:
            is_limit = self._search.refused(grant.at, now)
        elif grant.epoch == self.epoch:
            strays.accepted = let_in
            is_limit = strays.refused(has_room=True)  # by all that is known there was
        else:
            return False
        return not is_limit and strays.are_proven

    def _look_elsewhere(self, search: RateSearch, now: float) -> None:
        """Going slower than a fourth of what was told does not help: it is not our rate that they are refused for."""
        told = self.limits.refills_per_s(requests=True)
        if self._is_distrusted and search.rate_per_s < _LEAST_SHARE * (told if told < inf else ASSUMED):
            self._is_distrusted, self._refused_share = False, 0.0
            self._look_again(now)

    def _hold_off(self, until: float, now: float) -> None:
        self._wait_until(until, now)
        if self.news is not None and now < until < inf:
            self.news.paused(self, until - now, now)

    def _spend_until(self, until: float) -> None:
        self.exhausted_until = until
        self.is_plain = False
        self.epoch += 1  # at its end one call goes first
        self._sent_since_refusal = 0
        self._refusals_in_a_row = max(self._refusals_in_a_row, 2)

    def _wait_until(self, until: float, now: float) -> None:
        if self._pause.until <= now < until:
            self.paused += 1
        self._pause.extend(until)
        self._resume_due = True
        self.is_plain = False

    def _resume(self, now: float, paused_until: float) -> None:
        """The pause is over: no herd. Long after it there is none to fear."""
        self._resume_due = False
        untold = self.limits.untold
        if untold is not None and untold.is_news and self.news is not None:
            untold.is_news = False
            self.news.burst(self, untold.burst, now)
        if now - paused_until > RAMP_S:
            return
        self.limits.slow_start(now)
        if self._search is not None:
            self._search.resumed(now)
        for counts_requests in (True, False):  # tokens where nobody counts requests
            rate_per_s = self.limits.refills_per_s(requests=counts_requests)
            if rate_per_s < inf:
                self._ramp = Ramp(rate_per_s, now, counts_requests=counts_requests)
                return

    def _is_full(self) -> bool:
        return self._cap is not None and self.in_flight >= self._cap.cap

    def _learn(self, learned: Learned | None, grant: Grant, now: float) -> None:
        if learned is not None:
            self.limits.learn(learned, now, grant.at, grant.mark)
            self._look_again(now)
            if self.news is not None:
                self.news.learned(self, learned, now)

    def _look_again(self, now: float) -> None:
        """What is known has changed: search only where nobody tells a rate."""
        self.counts_tokens = self.limits.knows("tokens_per_min", "input_tokens_per_min", "output_tokens_per_min")
        is_told = self.counts_tokens or self.limits.knows("requests_per_min")
        if not self.counting.learns or (is_told and not self._is_distrusted):
            self._search = None
        elif self._search is None:
            self._search = RateSearch(now, strays=self._strays)
            self.is_plain = False


def _longer(one_s: float | None, other_s: float | None) -> float | None:
    return None if one_s is None or other_s is None else max(one_s, other_s)
