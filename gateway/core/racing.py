"""Two attempts of one call at once: hedging (`Hedges`), moving a call (`Failover`), and who decides to move it (`Suspects`).

`Suspects` looks at open attempts that get no answer: it finds calls that have waited too long, and targets that are silent.

    look ── the first event of a stream is late ──────────────── its attempt ends
         ── the remaining time is needed for another target ───── the call moves on
         ── a target is suspect: its breaker opens ───────────── the calls that hang there move on, a few at a time

The attempts are inspected a few times a second, so a call that is answered soon pays nothing for it. `health/` decides,
`Failover` moves the calls. Invariants: no call is moved without another target to go to, and no attempt ends just because
its target is suspect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

from gateway.core.admission.admission import Admission
from gateway.core.admission.planner import token_cost
from gateway.core.answers import (
    AttemptDeadlines,
    OpenAttempts,
    Task,
    clocks_of,
    dispatch,
)
from gateway.core.balancing import Hedging
from gateway.core.call import Call, ErrorAnswer, Opened, Stream, Whole
from gateway.core.clock import Clock
from gateway.core.errors import GatewayError
from gateway.core.health.breaker import Breaker
from gateway.core.health.detector import (
    FIRST_WINDOW,
    Responsiveness,
    SilentAttempt,
    StallMoves,
    Suspicion,
    is_suspect,
)
from gateway.core.health.times import (
    UNKNOWN,
    Latency,
    UsualTimes,
    first_event_s,
    probe_s,
    room_s,
    silence_s,
    stall_s,
    trial_s,
    usual_of,
)
from gateway.core.ledger import cost_usd, streamed_usage, whole_usage
from gateway.core.limits.reservation import Reservation, enter
from gateway.core.limits.target_limits import Gate
from gateway.core.ports import Meter
from gateway.core.retry import Attempt, attempts_apart, is_final
from gateway.core.retry_budgets import Retry
from gateway.core.snapshot import Target
from gateway.core.types import LANES, Clocks, ErrorClass, Phase, UpstreamFailed, Usage

# --- hedging: a second attempt where the first is late, and the end of the one that is not needed ---


CANCELLED = "cancelled"
"""The error class of an attempt that was stopped because its answer is not needed; no breaker counts it as a failure."""

Learn = Callable[[Call, Attempt, ErrorAnswer | UpstreamFailed], None]
"""Called when an attempt fails while another goes on."""


@dataclass(slots=True, eq=False)
class Racer:
    """One running attempt."""

    attempt: Attempt
    task: asyncio.Task[Opened]


class Hedges:
    """Makes second attempts. One per process; holds no state of any call.

        first ── answers in time
        first ── is late ── second, at another target ── the first usable answer of the two; the other is called off

    What follows a failure is not known here. Each attempt has a task and a reservation of its own; in the end the deciding
    attempt is the last one in the call's ledger. Invariants: the second never waits for its turn; however the race ends, no
    task runs on, the loser's connection is closed and what it reserved is settled.
    """

    __slots__ = ("_admission", "_clock", "_learn", "_meter", "_watch")

    def __init__(self, clock: Clock, meter: Meter, admission: Admission, watch: AttemptDeadlines, learn: Learn) -> None:
        self._clock = clock
        self._meter = meter
        self._admission = admission
        self._watch = watch
        self._learn = learn

    def late_after_s(self, call: Call, attempt: Attempt, hedging: Hedging) -> float | None:
        """Returns the seconds after which an attempt that begins now is late; None: too few are measured, or it is a retry."""
        if attempt.reservation is None or any(not one.is_refused for one in call.attempts):
            return None
        usual_s = _times(call, attempt.reservation).quantile(hedging.percentile / 100, hedging.min_samples)
        return None if usual_s is None else max(usual_s, hedging.at_least_s)

    async def race(self, call: Call, attempt: Attempt, late_after_s: float) -> Racer:
        """Makes the attempt, and a second one when it is late; returns the deciding one, ended.

        Its task has the answer or raises UpstreamFailed, as `dispatch` does. Cancelling this stops both attempts.
        """
        winner = self._start(call, attempt)
        running = [winner]
        second: Racer | None = None
        try:
            await self._until_late(winner.task, late_after_s)
            # A call that has moved meanwhile has its second attempt already.
            second = None if winner.task.done() or attempt.is_stalled else self._second(call, attempt)
            if second is not None:
                running.append(second)
                # Two attempts at one target wait for the same cause. With two targets the first attempt keeps its place, and
                # the second gives way when the call has to move on to a third.
                is_spared = second.attempt.target.name != attempt.target.name
                self._watch.pair(winner.task, second.attempt, is_spared=is_spared)
                self._watch.pair(second.task, attempt, is_spared=False)
            winner = await self._deciding(call, running)
            for loser in [racer for racer in running if racer is not winner]:
                await self._call_off(call, loser, is_first=loser is not second)
        except BaseException:  # the client has left, or a defect of ours
            winner, *others = running
            winner.task.cancel()
            for racer in others:
                await self._call_off(call, racer, is_first=False)
            await _close(winner.task)
            if winner.attempt not in call.attempts:  # it had not begun, so nobody else gives back what it reserved
                self._admission.outcomes.cancelled(winner.attempt, CANCELLED)
            raise
        finally:
            if second is not None:
                second.attempt.beside = None
                if winner is second:
                    _list_last(call.attempts, second.attempt)
        return winner

    def _start(self, call: Call, attempt: Attempt) -> Racer:
        opening = dispatch(call, attempt, self._clock, self._watch)
        return Racer(attempt, asyncio.get_running_loop().create_task(opening))

    async def _until_late(self, task: asyncio.Task[Opened], seconds: float) -> None:
        """Waits until the attempt has ended, or `seconds` have passed."""
        late: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_at(self._clock.monotonic() + seconds, partial(late.set_result, None))
        try:
            await asyncio.wait((task, late), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()

    async def _deciding(self, call: Call, running: list[Racer]) -> Racer:
        """Returns the deciding attempt: the first with a usable answer, else the last to fail. Removes others that failed."""
        first = running[0]
        while True:
            await asyncio.wait([racer.task for racer in running], return_when=asyncio.FIRST_COMPLETED)
            for racer in [racer for racer in running if racer.task.done()]:
                failure = _failure(racer.task)
                if failure is None or len(running) == 1:
                    return racer
                running.remove(racer)
                self._learn(call, racer.attempt, failure)
                if racer is not first:  # the first attempt goes on alone
                    racer.attempt.beside = None
                    self._watch.part(first.task)

    def _second(self, call: Call, first: Attempt) -> Racer | None:
        """Starts a second attempt at another target that is free now, else at the same one; None: no room, or denied."""
        budgets = self._admission.retries.of(call)
        if self._clock.monotonic() >= call.request.deadline or budgets.attempts() < 2:
            return None
        denied = budgets.denies_money()
        full: list[Target] = []
        for one in self._places(call, first.target) if denied is None else ():
            reason = budgets.denies(one, first)
            attempt = self._reserve(call, first, one) if reason is None else None
            if attempt is None and reason is None:
                full.append(one)
            if attempt is not None:
                self._admission.planner.note_skips(call, full)
                attempt.beside = first
                return self._start(call, attempt)
            denied = denied or reason
        if denied is not None:
            self._meter.retry_denied(denied)
        return None

    def _places(self, call: Call, target: Target) -> list[Target]:
        """Returns the targets for a second attempt: those whose last call succeeded first, the first attempt's own last."""
        plan = self._admission.planner.plan(call)
        own = sorted(plan.own, key=lambda one: one.order)
        elsewhere = [one for one in (*own, *plan.others) if one.name != target.name]
        # The sort is stable, so the plan's order holds among targets of one kind.
        elsewhere.sort(key=lambda one: self._admission.gates.line(one, call).gate.health.breaker.failures_in_a_row > 0)
        return [*elsewhere, target]

    def _reserve(self, call: Call, first: Attempt, target: Target) -> Attempt | None:
        """Returns an attempt if the target has room now, else None. The reserve and probes are left to first attempts."""
        line, rank = self._admission.gates.line(target, call), LANES.index(call.request.lane)
        gate = line.gate
        health = gate.health
        if not health.is_clear or not line.waiters.is_free_for(rank):
            return None
        now = self._clock.monotonic()
        if now > self._admission.planner.latest_start(call, gate):
            return None
        reservation = enter(
            gate,
            call.estimate,
            call.request.max_tokens,
            now,
            call.route.model.holding.reserve_percent,
            rank,
            answers=call.request.endpoint.tokens == "both",
        )
        if reservation is None:
            return None
        reservation.retry = Retry(health.retries, health.tokens, token_cost(call.route.model.retries, first, target))
        return Attempt(target, now, reservation=reservation)

    async def _call_off(self, call: Call, racer: Racer, *, is_first: bool) -> None:
        """Stops an attempt that is not needed: closes its connection, settles what it reserved, and estimates its cost."""
        racer.task.cancel()
        attempt, now = racer.attempt, self._clock.monotonic()
        if is_first and attempt.reservation is not None:
            # The first attempt would have taken even longer. Without such times the percentile would sink with each hedge,
            # and ever more attempts would seem late. A stopped second attempt has had no time to tell anything.
            _times(call, attempt.reservation).observe(now - attempt.reservation.at, now)
        self._admission.outcomes.cancelled(attempt, CANCELLED)
        try:
            await _close(racer.task)
        finally:
            usage = _usage_of_loser(call, racer)
            used = usage or self._admission.costs.usage_by(call, attempt, now)
            _end(attempt, cost_usd(call, attempt.target, used), now)
            attempt.is_cost_reported = not used.estimated


def _times(call: Call, reservation: Reservation) -> Latency:
    return reservation.gate.health.responsiveness.times(stream=call.request.stream, thinks=call.request.thinks)


def _failure(task: asyncio.Task[Opened]) -> ErrorAnswer | UpstreamFailed | None:
    """Returns the failure of an attempt that has ended; None: it succeeded, or no other attempt would do better."""
    if task.cancelled():
        return None
    error = task.exception()
    if error is not None:
        return error if isinstance(error, UpstreamFailed) else None
    opened = task.result()
    return opened if isinstance(opened, ErrorAnswer) else None


def _usage_of_loser(call: Call, racer: Racer) -> Usage | None:
    """Returns the usage of an answer that came and is not needed; None: none came, or an error."""
    if racer.task.cancelled() or racer.task.exception() is not None:
        return None
    opened = racer.task.result()
    if isinstance(opened, ErrorAnswer):
        return None
    if isinstance(opened, Whole):
        return whole_usage(call, racer.attempt, opened.usage, opened.body)
    return streamed_usage(call, racer.attempt, CANCELLED, *opened.relay.account())


async def _close(task: asyncio.Task[Opened]) -> None:
    """Stops the attempt and closes the answer that it may already have."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled() and task.exception() is None:
        opened = task.result()
        if isinstance(opened, Stream):
            await opened.relay.aclose()


def _end(attempt: Attempt, usd: float | None, now: float) -> None:
    attempt.ended_at = now
    attempt.status = None
    attempt.error_class = CANCELLED
    attempt.cost_usd = usd


# --- moving a call: another attempt at another target, while the first one, which hangs, stays open ---


Ended = Callable[[bool], None]
"""Called when a move has ended; the argument is true if it ended with an answer."""
log = logging.getLogger("gateway")


@dataclass(slots=True, eq=False)
class Move:
    """The attempts that a call makes elsewhere, one after the other, beside one that has stalled."""

    stalled: Attempt
    left: Attempt
    """What the stalled attempt counts as for those of the move: one that has failed, so that the rules after a failure hold."""
    task: asyncio.Task[None] | None = None
    opened: Opened | None = None
    """The answer that it got, once there is one for the client."""
    denied: str | None = None
    """Why another attempt that would have been made was not."""


class Failover:
    """Moves calls. One per process.

        first ── hangs ── moved: second, at targets not tried by the call ── the first usable answer of the two serves

    The first goes on in the call's own task. The second has a task of its own; it is served like any call whose attempt has
    failed, with retries and waits of its own. This must not know which target is suspect, nor why a call moves. Invariants:
    a call has at most one move at a time; however the call ends, the second's task ends too, its connection is closed and
    what it reserved is settled.
    """

    __slots__ = ("_admission", "_clock", "_moves", "_serve", "_watch")

    def __init__(
        self,
        clock: Clock,
        admission: Admission,
        watch: AttemptDeadlines,
        serve: Callable[[Call, Move], Awaitable[Opened]],
    ) -> None:
        """`serve` makes the attempts of a move, or raises GatewayError."""
        self._clock = clock
        self._admission = admission
        self._watch = watch
        self._serve = serve
        self._moves: dict[Attempt, Move] = {}
        """By the attempt that has stalled."""

    def places(self, call: Call, attempt: Attempt) -> Sequence[Target]:
        """Returns the untried targets that the call may use now under its cost rules, while this attempt of it hangs; empty: it
        stays where it is."""
        places = self._admission.planner.untried(call, attempt)
        if not places:
            return ()
        budgets = self._admission.retries.of(call, attempt)
        made = [one for one in attempts_apart(call.attempts, attempt) if not one.is_refused]
        if len(made) >= budgets.attempts():
            return ()
        return () if budgets.denies_money() is not None else places

    def begin(self, call: Call, attempt: Attempt, task: Task, ended: Ended | None = None) -> None:
        """Starts another attempt, at one of the `places`, of a call of which this one hangs in `task`."""
        left = replace(
            attempt,
            reservation=None,
            ended_at=self._clock.monotonic(),
            status=None,
            error_class=ErrorClass.TIMEOUT,
            phase=Phase.SENT,
            never_again=True,
        )
        attempt.is_stalled = True
        move = self._moves[attempt] = Move(attempt, left)
        move.task = asyncio.get_running_loop().create_task(self._make(call, move, task))
        if ended is not None:  # by the task, not in it: one that is called off at once never runs
            move.task.add_done_callback(lambda _: ended(move.opened is not None))

    async def outcome(self, call: Call, attempt: Attempt) -> Opened | None:
        """Returns the answer of the move, now that the attempt that had stalled has failed; None: it got none."""
        move = self._moves.get(attempt)
        if move is None or move.task is None:
            return None
        try:
            await asyncio.wait((move.task,))
        except BaseException:  # the client has left
            await self.abandon(call, attempt)
            raise
        self._part(call, move)
        return move.opened

    def cancel(self, call: Call, attempt: Attempt) -> None:
        """Ends the move because the attempt that had stalled has an answer: that stays the last in the ledger."""
        move = self._moves.get(attempt)
        if move is None or move.task is None:
            return
        move.task.cancel()
        self._end(call, move)
        move.denied = None  # nothing was missing
        self._part(call, move)
        _list_last(call.attempts, attempt)

    async def abandon(self, call: Call, attempt: Attempt) -> None:
        """Ends the move, because the client has left."""
        move = self._moves.get(attempt)
        if move is None or move.task is None:
            return
        self.cancel(call, attempt)
        # The answer may have come before the cancellation: then its relay is open.
        await asyncio.wait((move.task,))
        if isinstance(move.opened, Stream):
            await move.opened.relay.aclose()

    async def _make(self, call: Call, move: Move, task: Task) -> None:
        try:
            opened = await self._serve(call, move)
            # The stalled attempt goes on, so its target may still serve the call.
            plan = self._admission.planner.plan(call)
            if not isinstance(opened, ErrorAnswer) or is_final(call.attempts, plan, call.route.model.retries):
                move.opened = opened
        except GatewayError:
            pass  # the stalled attempt goes on
        except Exception:
            log.exception("moving a call failed")
            self._end(call, move)
            return
        if move.opened is not None:
            # The call's own task wakes as if it were late, and finds this answer by `outcome`.
            self._watch.expire(task)
            return
        stalled = move.stalled
        if stalled.is_stalled and stalled.ended_at is None:  # it still hangs, and may move again
            self._part(call, move)
            _list_last(call.attempts, stalled)

    def _part(self, call: Call, move: Move) -> None:
        """Ends a move: what it has made are attempts of the call like any others."""
        stalled = move.stalled
        self._moves.pop(stalled, None)
        stalled.is_stalled = False
        for one in call.attempts:
            if one.beside is stalled:
                one.beside = None
        if move.denied is not None and call.denied is None:
            call.own_setbacks().deny(move.denied)

    def _end(self, call: Call, move: Move) -> None:
        """Ends what a move has under way, which is not needed: settles what it reserved, and estimates its cost."""
        for one in call.attempts:
            if one.beside is not move.stalled:
                continue
            self._admission.outcomes.cancelled(one, CANCELLED)
            if one.ended_at is None:
                _end(one, self._admission.costs.usd(call, one.target), self._clock.monotonic())


def _list_last(ledger: list[Attempt], attempt: Attempt) -> None:
    """Lists an attempt behind all others: it decides how its call goes on."""
    if attempt in ledger:  # else its target could not be told the call
        ledger.remove(attempt)
        ledger.append(attempt)


LOOK_AFTER_S = 1.0
"""Attempts younger than this are not looked at, in seconds."""
STAYS_S = 2.0
"""A call that had no other target, or was refused there, is not asked to move again for this long, in seconds."""
RETRIP_S = 30.0
"""A breaker that was closed although its target is still suspect is opened again after this time, in seconds."""
FORGET_S = 3600.0
"""A target at which no call has waited for this long is forgotten, in seconds."""
health_log = logging.getLogger("gateway.health")


class Hanging(NamedTuple):
    """One open attempt that is older than LOOK_AFTER_S."""

    task: Task
    ends_at: float
    attempt: Attempt
    call: Call
    usual: UsualTimes
    clocks: Clocks
    silent_s: float


@dataclass(slots=True)
class Suspect:
    """The state of a suspect target. Times are monotonic seconds."""

    breaker: Breaker
    since: float
    tripped_at: float = -inf
    """The time at which the suspicion opened the target's breaker."""
    waited_at: float = -inf
    """The time at which a call last waited at the target."""


class Suspects:
    """Watches the open attempts of all calls. One per process."""

    __slots__ = ("_admission", "_clock", "_draw", "_known", "_moves", "_stay_until", "_suspects", "_watch")

    def __init__(
        self, clock: Clock, admission: Admission, watch: AttemptDeadlines, moves: Failover, draw: Callable[[], float]
    ) -> None:
        """`draw` gives uniform numbers from [0, 1)."""
        self._clock = clock
        self._admission = admission
        self._watch = watch
        self._moves = moves
        self._draw = draw
        self._suspects: dict[Responsiveness, Suspect] = {}
        self._stay_until: dict[Task, float] = {}
        self._known: dict[tuple[Responsiveness, bool, bool], UsualTimes] = {}  # of this look

    def look(self, opens: OpenAttempts, now: float) -> None:
        """Judges all open attempts; called a few times a second while there are any."""
        self._known.clear()
        self._stay_until = {task: until for task, until in self._stay_until.items() if until > now and task in opens}
        groups: dict[Responsiveness, tuple[Gate, list[Hanging]]] = {}
        for task, (ends_at, attempt, call) in opens.items():
            reservation = attempt.reservation
            if reservation is not None and now - attempt.started_at >= LOOK_AFTER_S:
                gate = reservation.gate
                _, group = groups.setdefault(gate.health.responsiveness, (gate, []))
                group.append(self._hanging(gate, task, ends_at, attempt, call, now))
        for responsiveness, suspect in [*self._suspects.items()]:
            if responsiveness.unserved_s(now) < now - suspect.since:
                # The target has served somebody since it became suspect.
                self._clear(responsiveness, suspect)
            elif responsiveness in groups:
                suspect.waited_at = now
            elif now - suspect.waited_at > FORGET_S:
                del self._suspects[responsiveness]
                responsiveness.suspicion = None
        for gate, group in groups.values():
            self._look_at(gate, group, now)

    def _hanging(self, gate: Gate, task: Task, ends_at: float, attempt: Attempt, call: Call, now: float) -> Hanging:
        usual, clocks = self._usual(gate.health.responsiveness, call), clocks_of(attempt.target, call)
        return Hanging(task, ends_at, attempt, call, usual, clocks, now - attempt.answered_at)

    def _look_at(self, gate: Gate, group: Sequence[Hanging], now: float) -> None:
        for one in group:
            if one.call.request.stream and one.clocks.first_event_s is None:
                limit_s = first_event_s(one.usual, thinks=self._thinks(gate, one.call)) + one.clocks.connect_s
                self._watch.shorten(one.task, one.attempt.started_at + limit_s)
        # Only a few may move at a time: those that have waited longest go first.
        oldest_first = sorted(group, key=lambda one: one.call.request.received_at)
        witnesses = [one for one in oldest_first if one.clocks.suspect_in_flight]
        trial_after_s = self._look_for_silence(gate, witnesses, now)
        responsiveness = gate.health.responsiveness
        suspicion, stalls = responsiveness.suspicion, responsiveness.stall_moves
        for one in oldest_first:
            if _is_probe(one, gate):
                if self._has_probed(one, gate) or self._needs_room(one, gate, now):
                    self._move(one, now, stalls)
            elif suspicion is not None and suspicion.free and _hangs(one):
                self._move(one, now, suspicion)
            elif self._needs_room(one, gate, now) or (
                suspicion is None and _stalls(one, trial_after_s) and stalls.has_room(responsiveness.answers)
            ):
                self._move(one, now, stalls)

    def _look_for_silence(self, gate: Gate, witnesses: Sequence[Hanging], now: float) -> float:
        """Makes the target suspect if several calls hang there.

        Returns the seconds of silence after which a call tries another target though nothing is known of such calls; inf: none.
        """
        responsiveness = gate.health.responsiveness
        unserved_s = responsiveness.unserved_s(now)
        if not witnesses:
            return inf
        deadlines = [
            one.call.request.deadline - one.call.request.received_at
            for one in witnesses
            if one.call.request.deadline_is_callers
        ]
        shortest_s = min(deadlines, default=inf)
        at_least = min([one.clocks.suspect_in_flight for one in witnesses])
        waiting = [
            SilentAttempt(one.attempt.started_at, one.silent_s, self._patience_s(one, gate, shortest_s))
            for one in witnesses
        ]
        why = is_suspect(waiting, at_least, unserved_s)
        trial_after_s = inf
        if why is None:
            tries = [
                waits._replace(
                    usual_s=trial_s(
                        one.usual, waits.usual_s, stream=one.call.request.stream, thinks=self._thinks(gate, one.call)
                    )
                )
                for one, waits in zip(witnesses, waiting, strict=True)
            ]
            is_proven = responsiveness.stall_moves.proof_at > now - unserved_s
            trial = is_suspect(tries, 1 if is_proven else min(at_least, FIRST_WINDOW), unserved_s, least_span_s=0.0)
            if is_proven:
                why = trial
            elif trial is not None:
                trial_after_s = min([one.usual_s for one in tries])
        if why is not None:
            self._suspect(gate, why, witnesses, now)
        return trial_after_s

    def _usual(self, responsiveness: Responsiveness, call: Call) -> UsualTimes:
        kind = (responsiveness, call.request.stream, call.request.thinks)
        usual = self._known.get(kind)
        if usual is None:
            usual = self._known[kind] = usual_of(
                responsiveness.times(stream=call.request.stream, thinks=call.request.thinks)
            )
        return usual

    def _thinks(self, gate: Gate, call: Call) -> bool:
        return call.request.thinks or gate.health.responsiveness.thinks

    def _patience_s(self, one: Hanging, gate: Gate, shortest_s: float) -> float:
        return silence_s(
            one.usual,
            one.clocks.suspect_factor,
            stream=one.call.request.stream,
            thinks=self._thinks(gate, one.call),
            shortest_deadline_s=shortest_s,
        )

    def _needs_room(self, one: Hanging, gate: Gate, now: float) -> bool:
        """Returns whether the call must move now to leave its untried targets the time that they need.

        Where its caller has set no deadline, the usual patience counts, and a stream ends by its first event's own limit.
        """
        call = one.call
        if (call.request.stream and not call.request.deadline_is_callers) or len(call.route.model.plan) < 2:
            return False
        started_at = one.attempt.started_at
        met = {attempt.target.name for attempt in attempts_apart(call.attempts, one.attempt)}
        following = next((target for target in call.route.model.plan if target.name not in met), None)
        if following is None:
            return False
        responsiveness = self._admission.gates.responsiveness_of(following, call)
        after = UNKNOWN if responsiveness is None else self._usual(responsiveness, call)
        thinks = self._thinks(gate, call)
        patience_s = call.request.deadline - (
            started_at if call.request.deadline_is_callers else call.request.received_at
        )
        return now - started_at >= room_s(patience_s, one.usual, after, thinks=thinks)

    def _has_probed(self, one: Hanging, gate: Gate) -> bool:
        """Returns whether the probe has waited long enough to show that a silent target still is silent."""
        health = gate.health
        if health.responsiveness.suspicion is None and health.responsiveness.last_failure != ErrorClass.TIMEOUT:
            return False
        return one.silent_s >= probe_s(
            one.usual, health.target_breaker.ejections_at(self._clock.monotonic()), thinks=self._thinks(gate, one.call)
        )

    def _suspect(self, gate: Gate, why: str, group: Sequence[Hanging], now: float) -> None:
        """Opens the breaker of a silent target, if any of the calls that hang there could be served elsewhere."""
        responsiveness, breaker = gate.health.responsiveness, gate.health.target_breaker
        suspect = self._suspects.get(responsiveness)
        if suspect is None:
            responsiveness.suspicion = Suspicion(why, now)
            suspect = self._suspects[responsiveness] = Suspect(breaker, now, waited_at=now)
            health_log.warning("%s is suspect: %s", breaker.name, why)
        if now - suspect.tripped_at >= RETRIP_S and any(self._can_move(one, now) for one in group):
            suspect.tripped_at = now
            breaker.trip(f"suspect: {why}", now, self._draw())

    def _can_move(self, one: Hanging, now: float) -> bool:
        if self._stay_until.get(one.task, -inf) > now:
            return False
        beside = self._watch.beside(one.task)
        places = self._moves.places(one.call, one.attempt)
        if beside is not None:
            places = [place for place in places if place.name != beside.target.name]
        if places:
            return True
        self._stay_until[one.task] = now + STAYS_S
        return False

    def _move(self, one: Hanging, now: float, bound: Suspicion | StallMoves) -> None:
        """Moves the call to another target, if it can. A call that has already moved gives up the target that it is at now."""
        call = one.call
        if one.attempt.is_stalled or self._watch.is_spared(one.task):
            return
        if not self._can_move(one, now):
            return
        if one.attempt.beside is not None or self._watch.beside(one.task) is not None:
            # The call has two attempts already: this one ends, and no third begins beside the other.
            self._watch.expire(one.task)
            return
        self._stay_until[one.task] = now + STAYS_S  # if nothing comes of it
        bound.moved()
        if isinstance(bound, Suspicion):
            self._moves.begin(call, one.attempt, one.task, lambda is_answered: bound.ended(is_answered=is_answered))
        else:
            waited_s = now - one.attempt.started_at
            self._moves.begin(
                call, one.attempt, one.task, partial(self._prove, bound, now, waited_s / one.clocks.suspect_factor)
            )

    def _prove(self, moves: StallMoves, moved_at: float, soon_s: float, is_answered: bool) -> None:
        """Notes the end of a move: an answer in a small part of the time that the first attempt had hung proves it right."""
        now = self._clock.monotonic()
        if is_answered and now - moved_at <= soon_s:
            moves.proved(now)

    def _clear(self, responsiveness: Responsiveness, suspect: Suspect) -> None:
        """Clears the suspicion because the target has answered a call: it may be tried at once."""
        del self._suspects[responsiveness]
        responsiveness.suspicion = None
        breaker = suspect.breaker
        health_log.warning("%s is no longer suspect: it has answered", breaker.name)
        breaker.probe_soon(self._clock.monotonic())


def _hangs(one: Hanging) -> bool:
    """Returns whether the call moves on when its target is suspect."""
    return one.silent_s >= LOOK_AFTER_S and one.clocks.suspect_in_flight > 0


def _stalls(one: Hanging, trial_after_s: float) -> bool:
    """Returns whether the call is to try another target, though its own is not suspect. Streams have a limit of their own."""
    if one.clocks.suspect_in_flight == 0 or one.call.request.stream:
        return False
    is_unknown = one.usual.late_s is None and not one.call.request.thinks
    return one.silent_s >= (trial_after_s if is_unknown else stall_s(one.usual, one.clocks.suspect_factor))


def _is_probe(one: Hanging, gate: Gate) -> bool:
    """Returns whether the call is one of the probes that try the target again."""
    breakers = (gate.health.breaker, gate.health.target_breaker)
    started_at = one.attempt.started_at
    return any(breaker.state == "half_open" and started_at >= breaker.probe_at for breaker in breakers)
