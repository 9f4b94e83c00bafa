"""What becomes of a call that no target has room for at once: a fallback, the delay queue, or a refusal.

    targets in service -> when each is free -> decide -> served | held -> its turn, or the reason why there is none
                                                      | refused, with the time at which another try will succeed

`core/admission/fair_queue.py` decides, this acts. It must not know what an attempt is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf

from gateway.core.admission.admission.candidates import RANKS, Planner, estimate_of, opens_at
from gateway.core.admission.fair_queue import Verdict, decide
from gateway.core.admission.gates import Gates
from gateway.core.admission.keys import RetryBudgets
from gateway.core.admission.outcomes import HealthPropagation, refusal_after_wait, too_late, traits_of
from gateway.core.admission.queue.queue import DelayQueue, Held, Left, Option
from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.errors import CircuitOpen, GatewayError, QueueFull
from gateway.core.limits.reservation import Reservation
from gateway.core.limits.target_limits.gate import LONGEST_BACKOFF_S
from gateway.core.ports import Meter
from gateway.core.snapshot import Target
from gateway.core.types import SkipReason
from gateway.core.waiting import waiting_for

MOST_SHOWN = 10
"""Of the targets that could not take a call, in the message of its refusal."""


class Waiting:
    """Finds room for calls that cannot go at once. Holds no state of any call."""

    __slots__ = ("_clock", "_gates", "_health", "_meter", "_planner", "_queue", "_retries")

    def __init__(
        self,
        clock: Clock,
        meter: Meter,
        gates: Gates,
        queue: DelayQueue,
        planner: Planner,
        health: HealthPropagation,
        retries: RetryBudgets,
    ) -> None:
        self._clock = clock
        self._meter = meter
        self._gates = gates
        self._queue = queue
        self._planner = planner
        self._health = health
        self._retries = retries

    def describe(self, call: Call) -> bytes:
        """Returns what the client of a stream that waits is told: one line, a comment's text."""
        held = call.held
        if held is not None:
            eta_s = held.eta_s(self._clock.monotonic())
            eta = b" eta_ms=%d" % (eta_s * 1000) if eta_s < inf else b""
            return b"queued position=%d%b" % (held.position(), eta)
        return waiting_for(call)

    async def find_room(self, call: Call, targets: Sequence[Target], keep_percent: float, now: float) -> Target:
        """Returns the target that the call may go to, once there is room, reserved as `call.grant`.

        Raises GatewayError when there is none in time, or none at all.
        """
        everything, rank = targets, RANKS[call.lane]
        try:
            while True:
                targets, patience_s = self._planner.usable(call, everything, now)
                options = self._options(call, targets, keep_percent)
                own = sum([target in call.model.targets for target in targets])
                ready_at = [_ready_at(call, option, now) for option in options]
                in_time = [at if at <= option.latest else inf for at, option in zip(ready_at, options, strict=True)]
                gives_up_at = min(call.deadline, now + patience_s)
                prefer_until = call.received_at + call.model.holding.prefer_primary_for_s[call.lane]
                if not any(option.line.gate.health.is_clear for option in options[:own]):
                    prefer_until = now  # a target that is only just being tried again is nothing to wait for
                decision = decide(in_time, own, now, gives_up_at, prefer_until)
                if decision.verdict is Verdict.REFUSE:
                    raise too_late(call, options, ready_at, now)
                if decision.verdict is Verdict.SERVE:
                    option = options[decision.choice]
                    is_free = option.line.waiters.is_free_for(rank)
                    grant = option.reserve(now, rank, traits_of(call)) if is_free else None
                    if grant is not None:
                        return self._let_go(call, grant, targets[decision.choice], everything)
                # What was predicted free and is not (a slot of which nobody knows how long it is held) is waited for as well.
                is_narrow = own > 0 and (decision.verdict is Verdict.HOLD or 0 <= decision.choice < own)
                near = options[:own] if is_narrow else options
                likely = min(near, key=lambda option: in_time[option.index])
                until = min(gives_up_at, max([option.latest for option in options]))
                held = await self._hold(call, near, likely, options[own:] if is_narrow else (), prefer_until, until)
                if held.grant is not None and held.option is not None:
                    return self._let_go(call, held.grant, targets[held.option.index], everything)
                now = self._clock.monotonic()
                if held.left is Left.SHUT:
                    continue  # its targets went out of service; they may be back by now, else this says what keeps them
                if held.left is Left.EXPIRED and until < gives_up_at:
                    raise too_late(call, options, [_ready_at(call, option, now) for option in options], now)
                if held.left is Left.EXPIRED and until < call.deadline:
                    self._planner.usable(call, targets, now)  # which may say why
                raise refusal_after_wait(held, call)
        except GatewayError as refusal:
            self._planner.note_skips(call, everything)
            if not isinstance(refusal, CircuitOpen):  # which tells more of each
                refusal.message += _skipped(call)
            raise

    def _options(self, call: Call, targets: Sequence[Target], keep_percent: float) -> list[Option]:
        """Returns the targets as the queue sees them: their lines, and what the call costs each."""
        estimate = estimate_of(call)  # even where no limit counts tokens: the shares of tenants do
        call.parsed = None
        options = []
        for index, target in enumerate(targets):
            line = self._gates.line(target, call)
            cost = line.gate.cost_of(estimate, call.max_tokens, answers=call.endpoint.tokens == "both")
            latest = self._planner.latest_start(call, line.gate)
            at = opens_at(call, target)
            is_again = at > 0.0 and sum([one.retry_at > 0.0 for one in call.attempts if one.target == target.name]) > 1
            yields_until = at + LONGEST_BACKOFF_S if is_again else at
            option = Option(index, line, cost, keep_percent, estimate, call.max_tokens, latest, at, yields_until)
            options.append(option)
        return options

    def _let_go(self, call: Call, grant: Reservation, target: Target, everything: Sequence[Target]) -> Target:
        call.grant = grant
        at, planner = everything.index(target), self._planner
        planner.forget_skips(call, everything[at:])
        planner.note_skips(call, everything[:at])
        if not call.attempts and target not in call.model.targets:
            planner.note_left_out(call, everything, target, SkipReason.UNSUPPORTED)
        if call.attempts or call.retry is not None:
            self._retries.hand_over(call, grant, target)
        return target

    async def _hold(
        self,
        call: Call,
        options: Sequence[Option],
        likely: Option,
        fallback_options: Sequence[Option],
        widen_at: float,
        until: float,
    ) -> Held:
        """Waits until the queue lets the call through, or gives it up; `left` of the result says which."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        since = self._clock.monotonic()
        held = Held(
            call.seq,
            call.lane,
            call.tenant,
            call.received_at,
            model=call.model.name,
            size=len(call.body),
            deadline=until,
            wake=lambda: None if turn.done() else turn.set_result(None),
        )
        is_back = bool(call.attempts)  # it was let in before: there is room for it
        if not is_back and not self._queue.make_room(held):
            wait_s = likely.line.ready_at(likely, held.rank, held.tenant, since) - since
            raise QueueFull(
                "The gateway's queue is full; send less at a time, or raise max_calls and max_bytes in queue.yaml.",
                retry_after_s=min(30.0, max(1.0, wait_s)),
            )
        held.has_tried = is_back and call.attempts[-1].is_trial
        is_back = is_back and not held.has_tried
        self._queue.hold(held, options, likely, is_back=is_back, fallback_options=fallback_options, widen_at=widen_at)
        call.held = held
        try:
            await turn
        except BaseException:  # cancelled, perhaps just when its turn had come
            self._queue.leave(held)
            if held.grant is not None:
                held.grant.cancel(self._clock.monotonic())
                self._health.freed(held.grant.gate.name)
            raise
        finally:
            call.held = None
            waited_s = self._clock.monotonic() - since
            call.queue_s += waited_s
            self._meter.waited(call.lane, waited_s)
        return held


def _skipped(call: Call) -> str:
    """Returns a sentence on the targets that could not take the call, where there are several; else nothing."""
    skips = [*(call.skips or {}).values()]
    if len(skips) < 2:
        return ""
    shown = [f"{one.target} ({one.reason})" for one in skips[:MOST_SHOWN]]
    more = [f"+{len(skips) - MOST_SHOWN} more"] if len(skips) > MOST_SHOWN else []
    return f" Skipped: {', '.join([*shown, *more])}."


def _ready_at(call: Call, option: Option, now: float) -> float:
    rank, is_back = RANKS[call.lane], bool(call.attempts)
    return option.line.ready_at(option, rank, call.tenant, now, call=call.seq, is_back=is_back)
