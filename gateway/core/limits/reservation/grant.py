"""What one attempt has taken from its gate, and how it ends: what the end gives back, and what it teaches.

    finish                                a whole answer has come, and with it the end: most calls
    answered -> settle                    a stream's first event, and its end; an error that is an answer
    refusal.refused                       a 429, or an account that is spent
    failed, cancel                        it came to nothing; it was never sent

It must not know calls or queues. Invariant: every grant ends in exactly one `finish`, `settle`, `failed`, `cancel` or refusal;
whatever comes behind that changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from gateway.core.health.target_health.target_health.target_health import UNHEALTHY, Permit
from gateway.core.limits.estimate.cost import NOTHING, Cost, charged_output
from gateway.core.limits.headers.provider_headers import read_limit_headers
from gateway.core.limits.target_limits.gate.gate import Gate
from gateway.core.retry_budgets import Retry
from gateway.core.types.exchange import RawHeaders
from gateway.core.types.words import Usage

PENALTY_S = 5.0
"""A target that has just failed is taken to be so much slower, where the fastest is looked for."""


class Grant:
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
        self.epoch = gate.pauses.epoch
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
        """It has not ended."""
        self.is_told = False
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
        health, heard = gate.health, gate.health.heard
        is_known = self.is_judged or self.permit.account is not None or not health.is_clear
        if is_known or not gate.is_plain or not self.is_open or thinks or heard.thinks:
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
        heard.whole_answer.observe(took_s, now)
        gate.answer_s += (took_s - gate.answer_s) * (0.1 if gate.answer_s else 1.0)
        self.is_judged = self.is_told = True
        health.breaker.succeeded(self.permit.own, now, None)
        if usage is None or not self.estimate or limits.table.buckets is None:  # these headers may have changed them
            self.settle(usage, now)
            return
        self.is_open = False
        gate.in_flight -= 1
        if self.epoch == pauses.epoch:
            pauses.sent_in_epoch -= 1
        if self.retry is not None:
            self.retry.end()
        cost, counting = self.cost, gate.counting
        gate.squares = max(0.0, gate.squares - cost.input_tokens * cost.input_tokens) if gate.in_flight else 0.0
        tokens, output_tokens = usage.input, usage.output
        if counting.excludes_cached:
            tokens = max(0, tokens - usage.cached)
        if counting.charge != "input":
            output_tokens = charged_output(counting.charge, tokens, self.max_tokens, output_tokens)
        if tokens + output_tokens > limits.table.smallest:
            shrunk = limits.shrink(Cost(1, tokens, output_tokens), inf)
            limits.settle_tokens(cost, shrunk.input_tokens, shrunk.output_tokens, now, self.at)
        else:
            limits.settle_tokens(cost, tokens, output_tokens, now, self.at)
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
        if self.epoch == gate.pauses.epoch:
            gate.pauses.refusals_in_a_row = 0
        if self.mark is not None:
            gate.learn(read_limit_headers(headers, wall_now, gate.counting.kind), self.at, self.mark, now)
        if is_error:
            return
        took_s = now - self.at
        if is_stream:
            self.first_byte_s = took_s
        if thinks or health.heard.thinks:
            health.heard.times(stream=is_stream, thinks=True).observe(took_s, now)
        elif is_stream:
            health.first_byte.observe(took_s, now)
        else:
            health.whole_answer.observe(took_s, now)
        if not is_stream or health.is_probed:  # a probe's first event is news enough
            self._succeeded(now)
        gate.answer_s += (took_s - gate.answer_s) * (0.1 if gate.answer_s else 1.0)
        self.is_told = True
        if discovery.search is not None:
            discovery.search.succeeded(self.at, now)
            if discovery.is_distrusted and discovery.trust_if_confirmed(gate.limits.table.refills_per_s(requests=True)):
                gate.review_rate(now)
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
            if not self.is_told and gate.discovery.search is not None:
                gate.discovery.search.give_back(now)
            gate.limits.unsend(self.cost)
        self.is_told = True
        self.forget(now)
        self.end(NOTHING, now)

    def judge(self, error_class: str | None, now: float, u: float) -> None:
        """Tells the breakers how the attempt went, as far as that speaks of the target's health; once.

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
        gate.squares = max(0.0, gate.squares - tokens * tokens) if gate.in_flight else 0.0
        if self.epoch == gate.pauses.epoch:
            gate.pauses.sent_in_epoch -= 1
        if gate.discovery.search is not None and not self.is_told:
            gate.discovery.search.left(now)
        gate.limits.settle(self.cost, actual, now, self.at)

    def _succeeded(self, now: float) -> None:
        if not self.is_judged:
            self.is_judged = True
            self.gate.health.succeeded(self.permit, now, self.first_byte_s)
