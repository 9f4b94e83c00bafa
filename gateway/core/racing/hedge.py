"""Hedging: a second attempt where the first is late, and the end of the one that is not needed.

    first ── answers in time
    first ── is late ── second, at another target ── the first usable answer of the two; the other is called off

This module decides when and where a second attempt goes; it must not know what follows a failure. Each attempt has a task of
its own, and the second a copy of the call, so that ledger, grant and deadline are its own as well; in the end the deciding
attempt is the call's last one, and its grant the call's. Invariants: the second never waits for its turn; however the race
ends, no task runs on, the loser's connection is closed and what it reserved is settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gateway.core.admission.admission.admission import Admission
from gateway.core.admission.keys.retry_budgets import CallBudgets, token_cost
from gateway.core.answers import FirstAnswer, dispatch
from gateway.core.attempts.outgoing.deadlines import AttemptDeadlines
from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.health.times.latency import Latency
from gateway.core.limits.reservation.entry import enter
from gateway.core.limits.reservation.grant import Grant
from gateway.core.ports import Meter
from gateway.core.retry.balancing.rules import Hedging
from gateway.core.retry_budgets import Retry
from gateway.core.snapshot.snapshot.snapshot import Target
from gateway.core.types.provider_errors import UpstreamFailed
from gateway.core.types.words import LANES, Attempt

CANCELLED = "cancelled"
"""The error class of an attempt that was stopped because its answer is not needed; no breaker counts it as a failure."""

Learn = Callable[[Call, Target, FirstAnswer | UpstreamFailed], None]
"""Called when an attempt fails while another goes on; the call's last attempt and grant are those of the failure."""


@dataclass(slots=True, eq=False)
class Racer:
    """One running attempt. `call` is the call itself for the first attempt, a copy of it for the second."""

    call: Call
    target: Target
    task: asyncio.Task[FirstAnswer]


class Hedges:
    """Makes second attempts. One per process; holds no state of any call."""

    __slots__ = ("_admission", "_clock", "_learn", "_meter", "_watch")

    def __init__(self, clock: Clock, meter: Meter, admission: Admission, watch: AttemptDeadlines, learn: Learn) -> None:
        self._clock = clock
        self._meter = meter
        self._admission = admission
        self._watch = watch
        self._learn = learn

    def late_after_s(self, call: Call, hedging: Hedging) -> float | None:
        """Returns the seconds after which the attempt that begins now is late; None: too few are measured, or it is a retry."""
        if call.grant is None or any(not attempt.is_refused for attempt in call.attempts):
            return None
        usual_s = _times(call, call.grant).quantile(hedging.percentile / 100, hedging.min_samples)
        return None if usual_s is None else max(usual_s, hedging.at_least_s)

    async def race(self, call: Call, target: Target, late_after_s: float) -> Racer:
        """Makes the attempt that `call.grant` is for, and a second one when it is late; returns the deciding one, ended.

        Its task has the answer or raises UpstreamFailed, as `dispatch` does. Cancelling this stops both attempts.
        """
        call.task = None  # what is to be watched is the task of each attempt
        winner = self._start(call, target)
        running = [winner]
        second: Racer | None = None
        try:
            await self._until_late(winner.task, late_after_s)
            second = None if winner.task.done() or call.other_attempt is not None else self._second(call, target)
            if second is not None:
                running.append(second)
                # Two attempts at one target wait for the same cause. With two targets the first attempt keeps its place, and
                # the second gives way when the call has to move on to a third.
                self._watch.pair(winner.task, second.call, is_spared=second.target.name != target.name)
                self._watch.pair(second.task, call, is_spared=False)
            winner = await self._deciding(running)
            for loser in [racer for racer in running if racer is not winner]:
                await self._call_off(loser, is_first=loser is not second)
        except BaseException:  # the client has left, or a defect of ours
            winner, *others = running
            winner.task.cancel()
            for racer in others:
                await self._call_off(racer, is_first=False)
            await _close(winner.task)
            raise
        finally:
            if second is not None:
                _merge(call, second, is_last=winner is second)
        return winner

    def _start(self, call: Call, target: Target) -> Racer:
        opening = dispatch(call, target, self._clock, self._watch)
        return Racer(call, target, asyncio.get_running_loop().create_task(opening))

    async def _until_late(self, task: asyncio.Task[FirstAnswer], seconds: float) -> None:
        """Waits until the attempt has ended, or `seconds` have passed."""
        late: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_at(self._clock.monotonic() + seconds, partial(late.set_result, None))
        try:
            await asyncio.wait((task, late), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()

    async def _deciding(self, running: list[Racer]) -> Racer:
        """Returns the deciding attempt: the first with a usable answer, else the last to fail. Removes others that failed."""
        first = running[0]
        while True:
            await asyncio.wait([racer.task for racer in running], return_when=asyncio.FIRST_COMPLETED)
            for racer in [racer for racer in running if racer.task.done()]:
                failure = _failure(racer.task)
                if failure is None or len(running) == 1:
                    return racer
                running.remove(racer)
                self._learn(racer.call, racer.target, failure)
                # The first attempt goes on alone; its call will not be sent again to where the second has failed.
                if racer is not first:
                    _merge(first.call, racer, is_last=False)
                    racer.call.attempts = []
                    self._watch.part(first.task)

    def _second(self, call: Call, target: Target) -> Racer | None:
        """Starts a second attempt at another target that is free now, else at the same one; None: no room, or denied."""
        budgets = self._admission.retries.of(call)
        if self._clock.monotonic() >= call.deadline or budgets.attempts() < 2:
            return None
        denied = self._denies_money(call, target, budgets)
        for one in self._places(call, target) if denied is None else ():
            reason = budgets.denies(one, call.attempts[-1])
            grant = self._reserve(call, one) if reason is None else None
            if grant is not None:
                return self._start(replace(call, attempts=[], grant=grant, retry=None, key_cost=None), one)
            denied = denied or reason
        if denied is not None:
            self._meter.retry_denied(denied)
        return None

    def _places(self, call: Call, target: Target) -> list[Target]:
        """Returns the targets for a second attempt: those whose last call succeeded first, the first attempt's own last."""
        plan = self._admission.planner.plan(call)
        own = sorted(plan.own, key=lambda one: one.order)
        elsewhere = [one for one in (*own, *plan.others) if one.name != target.name]
        elsewhere.sort(key=lambda one: self._admission.gates.line(one, call).gate.health.breaker.failures_in_a_row > 0)
        return [*elsewhere, target]

    def _denies_money(self, call: Call, target: Target, budgets: CallBudgets) -> str | None:
        """Returns what forbids the call to pay for more than the running attempt, as estimated; None: nothing does."""
        first = call.attempts[-1]
        first.cost_usd = self._admission.costs.usd(call, target)
        denied = budgets.denies_money()
        first.cost_usd = None
        return denied

    def _reserve(self, call: Call, target: Target) -> Grant | None:
        """Returns a grant if the target has room now, else None. The reserve and probes are left to first attempts."""
        line, rank = self._admission.gates.line(target, call), LANES.index(call.lane)
        gate = line.gate
        health = gate.health
        if not health.is_clear or not line.waiters.is_free_for(rank):
            return None
        grant = enter(
            gate,
            call.estimate,
            call.max_tokens,
            self._clock.monotonic(),
            call.model.holding.reserve_percent,
            rank,
            answers=call.endpoint.tokens == "both",
        )
        if grant is not None:
            cost = token_cost(call.model.retries, call.attempts[-1], target)
            grant.retry = Retry(health.retries, health.tokens, cost)
        return grant

    async def _call_off(self, racer: Racer, *, is_first: bool) -> None:
        """Stops an attempt that is not needed: closes its connection, settles what it reserved, and estimates its cost."""
        racer.task.cancel()
        call, now = racer.call, self._clock.monotonic()
        if is_first and call.grant is not None:
            # The first attempt would have taken even longer. Without such times the percentile would sink with each hedge,
            # and ever more attempts would seem late. A stopped second attempt has had no time to tell anything.
            _times(call, call.grant).observe(now - call.grant.at, now)
        self._admission.outcomes.cancelled(call, CANCELLED)
        try:
            await _close(racer.task)
        finally:
            for attempt in call.attempts[-1:]:  # none: it had not begun
                _end(attempt, self._admission.costs.usd(call, racer.target), now)


def _times(call: Call, grant: Grant) -> Latency:
    return grant.gate.health.heard.times(stream=call.stream, thinks=call.thinks)


def _failure(task: asyncio.Task[FirstAnswer]) -> FirstAnswer | UpstreamFailed | None:
    """Returns the failure of an attempt that has ended; None: it succeeded, or no other attempt would do better."""
    if task.cancelled():
        return None
    error = task.exception()
    if error is not None:
        return error if isinstance(error, UpstreamFailed) else None
    opened = task.result()
    return None if opened.diagnosis is None else opened


async def _close(task: asyncio.Task[FirstAnswer]) -> None:
    """Stops the attempt and closes the answer that it may already have."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled() and task.exception() is None:
        relay = task.result().relay
        if relay is not None:
            await relay.aclose()


def _end(attempt: Attempt, cost_usd: float | None, now: float) -> None:
    attempt.ended_at = now
    attempt.status = None
    attempt.error_class = CANCELLED
    attempt.cost_usd = cost_usd


def _merge(call: Call, second: Racer, *, is_last: bool) -> None:
    """Adds the second attempt to the call's ledger: as the last one, with its grant, if it decides."""
    if is_last:
        call.attempts += second.call.attempts
        call.grant = second.call.grant
    else:
        call.attempts[-1:-1] = second.call.attempts
