"""Admission: which target a call may go to now, and what becomes of it when there is none.

    admit -> (an attempt) -> gates: answered | refused | failed -> … -> settle

The usual case, a target with room and nobody waiting, is settled without an await in `admit`; for the others `Waiting`
finds a fallback, a place in the delay queue, or the reason of a refusal, which comes last. What an attempt took is given
back in `gates.py`. Runtime state (gates, lines, the levels of keys) lives here under stable names, so a reload changes
numbers and nothing else. Invariant: an attempt's reservation is all that its call has of the target's limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from math import inf
from typing import Any

from gateway.core.admission.fair_queue import Verdict, decide
from gateway.core.admission.gates import AttemptOutcomes, Gates, HealthPropagation, estimate_of, opens_at, traits_of
from gateway.core.admission.keys import KeyBudgets, KeyLimits
from gateway.core.admission.planner import RANKS, Planner, RetryBudgets
from gateway.core.admission.queue import DelayQueue, Held, Left, Option
from gateway.core.call import Call, earlier_tries_of
from gateway.core.clock import Clock
from gateway.core.errors import (
    MAX_RETRY_AFTER_S,
    CircuitOpen,
    DeadlineExceeded,
    GatewayError,
    InternalError,
    QueueDeadlineExceeded,
    QueueFull,
    QuotaExhausted,
    RequestExceedsLimits,
    WaitTooLong,
)
from gateway.core.ledger import CostEstimates
from gateway.core.limits.headers import SUMMED_LIMITS
from gateway.core.limits.reservation import Reservation, enter
from gateway.core.limits.target_limits import LONGEST_BACKOFF_S
from gateway.core.openai.usage import costs_nothing
from gateway.core.ports import LimitSource, Meter
from gateway.core.retry import Attempt
from gateway.core.retry_budgets import Retry
from gateway.core.snapshot import PolicySnapshot, Target
from gateway.core.types import RawHeaders, SkipReason
from gateway.core.waiting import waiting_for

_INTERACTIVE = RANKS["interactive"]


BACK_AFTER_S, LONGEST_BACK_AFTER_S = 0.5, 8.0
"""Seconds after which a call comes back, doubled with each of its SDK's retries: openai-python's own pauses."""


class Admission:
    """Lets calls through to their targets, each at the first moment it fits."""

    def __init__(
        self,
        clock: Clock,
        meter: Meter,
        policy: PolicySnapshot,
        draw: Callable[[], float],
        queue: DelayQueue | None = None,
        limit_source: LimitSource | None = None,
    ) -> None:
        """`draw` gives uniform numbers from [0, 1). With `limit_source` other replicas use the same limits; who waits for
        them does so in `queue`, which is made here if None.
        """
        self._clock = clock
        self.queue = DelayQueue(clock, policy.queue) if queue is None else queue
        self.gates = Gates(clock, self.queue, limit_source)
        self.health = HealthPropagation(clock, meter, self.gates, self.queue, draw)
        # Before the first `install`: each gate takes these two over when it is made.
        self.gates.on_change = self.health.changed
        self.gates.on_rate = self.health.rate_found
        self.gates.install(policy)
        self.planner = Planner(clock, self.gates, draw)
        self.keys = KeyLimits(limit_source)
        self.budgets = KeyBudgets(clock, limit_source)
        self.keys.install(policy, clock.monotonic())
        self.costs = CostEstimates(self.gates)
        self.retries = RetryBudgets(clock, self.gates, self.budgets, self.costs)
        self.outcomes = AttemptOutcomes(clock, self.gates, self.health, self.keys, draw)
        self.waiting = Waiting(clock, meter, self.gates, self.queue, self.planner, self.health, self.retries)

    def install(self, policy: PolicySnapshot) -> None:
        """Puts a policy's numbers in force; levels, pauses and who waits stay."""
        self.queue.configure(policy.queue)
        self.gates.install(policy)
        self.keys.install(policy, self._clock.monotonic())
        # Last: only by the new numbers does it show who may go now.
        self.queue.freed_all()

    def back_in_s(self, call: Call) -> float:
        """Returns after how many seconds a call that failed may find its targets well, spread so that not all come at once.

        That is behind the next probe of the target that is probed first, and no sooner than the SDK would come by itself;
        the last digits of the time serve as the draw.
        """
        now = self._clock.monotonic()
        out = {attempt.target.name for attempt in call.attempts if attempt.never_again}
        left = [one for one in call.route.model.plan if one.name not in out] or call.route.model.plan
        probed_s = min([self.gates.line(one, call).gate.health.probe_at(now) for one in left]) - now
        # inf: all were put out of service by hand, and nobody knows for how long.
        probed_s = max(probed_s, 0.0) if probed_s < inf else MAX_RETRY_AFTER_S
        back_after_s = min(BACK_AFTER_S * 2.0 ** min(earlier_tries_of(call), 10), LONGEST_BACK_AFTER_S)
        return max(probed_s + BACK_AFTER_S, back_after_s) + BACK_AFTER_S * (now * 1e4 % 1.0)

    def limits_together(self, call: Call, headers: RawHeaders) -> Iterator[tuple[bytes, bytes]]:
        """Yields each header of an answer that states a limit with the sum of that limit of all targets, where all have one.

        Who paces calls by what one target tells would use that one alone. What is left, and when more is, has no sum that
        holds: a call waits here, or goes where there is room.
        """
        for name, _ in headers:
            limit = SUMMED_LIMITS.get(name)
            if limit is not None:
                tables = [self.gates.line(target, call).gate.limits.table for target in call.route.model.plan]
                found = [known.amount for table in tables if (known := table.find(limit)) is not None]
                if len(found) == len(tables):
                    yield name, b"%d" % sum(found)

    async def enter(
        self,
        call: Call,
        targets: Sequence[Target] | None = None,
        failed: Attempt | None = None,
        retry: Retry | None = None,
    ) -> Attempt:
        """Does what `admit` does, and waits for what that returns; a `retry` that is not made is cancelled."""
        try:
            entered = self.admit(call, targets, failed, retry)
            return entered if isinstance(entered, Attempt) else await entered
        except BaseException:
            if retry is not None:
                retry.cancel()
            raise

    def admit(
        self,
        call: Call,
        targets: Sequence[Target] | None = None,
        failed: Attempt | None = None,
        retry: Retry | None = None,
    ) -> Attempt | Coroutine[Any, Any, Attempt]:
        """The attempt that the call may make now, with its reservation: at the first of `targets` that has room.

        None: of its plan. Where none has, or the call's key has to be asked, what leads to one is to be awaited: in the
        delay queue, if it must be. Both raise GatewayError when the call cannot be served in time, or at all. `failed` is the
        attempt after which it goes there, `retry` what was booked for that, which becomes the reservation's.
        """
        request = call.request
        now = self._clock.monotonic()
        if call.seq <= 0:  # its first attempt: later ones have passed the key
            if now >= request.deadline:
                raise DeadlineExceeded("The deadline passed before the call could be sent anywhere; give it more time.")
            # Below 0 it is the age of the call that this one repeats, whose place it keeps.
            call.seq = -call.seq or self.queue.next_seq()
            if call.route.key.budget_usd_per_day is not None or call.route.key.name in self.keys.sets:
                return self._enter_with_key(call, targets, now)
        model = call.route.model
        if request.endpoint.request == "any":
            return Attempt(model.plan[0], now)  # of another kind: no model's limits
        if targets is None:
            is_restricted = model.restricts or request.endpoint.name in model.converted
            if is_restricted or (model.tiers.has_choice and model.choice != "in_order"):
                targets = self.planner.own_targets(call, now)
            else:  # whatever it asks for
                targets = model.tiers.listed
        rank = RANKS[request.lane]
        keep_percent = model.holding.reserve_percent if rank > _INTERACTIVE else 0.0
        own = model.targets
        for target in targets:
            line = self.gates.line(target, call)
            gate = line.gate
            # Nobody who waits there goes first; and where the call has failed before, its own pause there is over.
            if (not line.waiters.busy or line.waiters.is_free_for(rank)) and (
                not call.attempts
                or (target in own and opens_at(call, target) <= now <= self.planner.latest_start(call, gate))
            ):
                if gate.has_token_limit and call.estimate < 0:
                    estimate_of(call)
                reservation = enter(
                    gate,
                    call.estimate,
                    request.max_tokens,
                    now,
                    keep_percent,
                    rank,
                    answers=request.endpoint.tokens == "both",
                )
                if reservation is not None:
                    if call.attempts or retry is not None:
                        self.retries.hand_over(call, reservation, target, retry)
                    call.parsed = None
                    return Attempt(target, now, reservation=reservation)
            if target is not targets[-1]:  # what kept it out of the last one, `find_room` notes
                self.planner.note_skips(call, (target,))
        if not call.attempts:  # the fallbacks are in question, too; a retry has them in its targets
            targets = [*targets, *self.planner.plan(call).others]
        return self.waiting.find_room(call, targets, keep_percent, now, failed, retry)

    async def _enter_with_key(self, call: Call, targets: Sequence[Target] | None, now: float) -> Attempt:
        """`admit`, once the call's key has let it in. Raises KeyRateLimited, BudgetExceeded, BudgetReserved."""
        await self._take_of_key(call, now)
        return await self.enter(call, targets)

    async def ask_key(self, call: Call) -> None:
        """Lets a call in as far as its key is concerned; `admit` does not ask that again.

        Raises DeadlineExceeded, KeyRateLimited, BudgetExceeded, BudgetReserved.
        """
        now = self._clock.monotonic()
        if call.seq > 0:
            return
        if now >= call.request.deadline:
            raise DeadlineExceeded("The deadline passed before the call could be sent anywhere; give it more time.")
        call.seq = -call.seq or self.queue.next_seq()
        if call.route.key.budget_usd_per_day is not None or call.route.key.name in self.keys.sets:
            await self._take_of_key(call, now)

    async def _take_of_key(self, call: Call, now: float) -> None:
        key = call.route.key
        if key.budget_usd_per_day is not None and not costs_nothing(
            call.request.endpoint, call.request.method, call.request.path
        ):
            self.costs.refuse_unpriced(call)
            await self.budgets.reserve(call, self.costs.price(call, key.budget_usd_per_day))
        if key.name in self.keys.sets:
            cost = self.keys.cost_of(call, estimate_of(call))
            # What the key lacks here, other replicas may have left.
            if not self.keys.try_enter(call, cost, now) and not await self.keys.fetch(call, cost, self._clock):
                self.keys.refuse(call, cost, self._clock.monotonic())


# --- calls that no target has room for at once ---

MOST_SHOWN = 10
"""The most targets that could not take a call, in the message of its refusal."""


class Waiting:
    """Finds room for calls that cannot go at once. Holds no state of any call.

        targets in service -> when each is free -> decide -> served | held -> its turn, or the reason why there is none
                                                          | refused, with the time at which another try will succeed

    `decide` of `fair_queue.py` decides, this acts.
    """

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
        """Returns the comment for the client of a stream that waits: one line of text."""
        held = call.held
        if held is not None:
            eta_s = held.eta_s(self._clock.monotonic())
            eta = b" eta_ms=%d" % (eta_s * 1000) if eta_s < inf else b""
            return b"queued position=%d%b" % (held.position(), eta)
        return waiting_for(call)

    async def find_room(
        self,
        call: Call,
        targets: Sequence[Target],
        keep_percent: float,
        now: float,
        failed: Attempt | None,
        retry: Retry | None,
    ) -> Attempt:
        """Returns the attempt that the call may make, with its reservation, once there is room.

        Raises GatewayError when there is none in time, or none at all.
        """
        everything, rank = targets, RANKS[call.request.lane]
        try:
            while True:
                targets, patience_s = self._planner.usable(call, everything, now)
                options = self._options(call, targets, keep_percent)
                own = sum([target in call.route.model.targets for target in targets])
                ready_at = [_ready_at(call, option, now) for option in options]
                in_time = [at if at <= option.latest else inf for at, option in zip(ready_at, options, strict=True)]
                gives_up_at = min(call.request.deadline, now + patience_s)
                prefer_until = (
                    call.request.received_at + call.route.model.holding.prefer_primary_for_s[call.request.lane]
                )
                if not any(option.line.gate.health.is_clear for option in options[:own]):
                    prefer_until = now  # a target that is only just being tried again is nothing to wait for
                decision = decide(in_time, own, now, gives_up_at, prefer_until)
                if decision.verdict is Verdict.REFUSE:
                    raise too_late(call, options, ready_at, now)
                if decision.verdict is Verdict.SERVE:
                    option = options[decision.choice]
                    is_free = option.line.waiters.is_free_for(rank)
                    reservation = option.reserve(now, rank, traits_of(call)) if is_free else None
                    if reservation is not None:
                        return self._let_go(call, reservation, targets[decision.choice], everything, retry)
                # HOLD; or it was predicted free and is not (nobody knows how long a slot is held): that is waited for as well.
                is_narrow = own > 0 and (decision.verdict is Verdict.HOLD or 0 <= decision.choice < own)
                near = options[:own] if is_narrow else options
                likely = min(near, key=lambda option: in_time[option.index])
                until = min(gives_up_at, max([option.latest for option in options]))
                beyond = options[own:] if is_narrow else ()
                held = await self._hold(call, near, likely, beyond, prefer_until, until, failed)
                if held.grant is not None and held.option is not None:
                    return self._let_go(call, held.grant, targets[held.option.index], everything, retry)
                now = self._clock.monotonic()
                if held.left is Left.SHUT:
                    continue  # its targets went out of service; they may be back by now, else this says what keeps them
                # Past `latest` an answer would come after the deadline, past the patience all its targets stay out of service.
                if held.left is Left.EXPIRED and until < gives_up_at:
                    raise too_late(call, options, [_ready_at(call, option, now) for option in options], now)
                if held.left is Left.EXPIRED and until < call.request.deadline:
                    self._planner.usable(call, targets, now)  # which may say why
                raise refusal_after_wait(held, call)  # displaced, never fits, at its deadline, or a defect
        except GatewayError as refusal:
            self._planner.note_skips(call, everything)
            if not isinstance(refusal, CircuitOpen):  # which tells more of each
                refusal.message += _skipped(call)
            raise

    def _options(self, call: Call, targets: Sequence[Target], keep_percent: float) -> list[Option]:
        """Returns the targets as the queue sees them: their lines, and what the call costs each."""
        estimate = estimate_of(call)  # even where no limit counts tokens: the shares of tenants do
        # Its tokens are counted, and a call may wait for long: the memory is not needed meanwhile.
        call.parsed = None
        options = []
        for index, target in enumerate(targets):
            line = self._gates.line(target, call)
            cost = line.gate.cost_of(estimate, call.request.max_tokens, answers=call.request.endpoint.tokens == "both")
            latest = self._planner.latest_start(call, line.gate)
            at = opens_at(call, target)
            is_again = (
                at > 0.0 and sum([one.retry_at > 0.0 for one in call.attempts if one.target.name == target.name]) > 1
            )
            yields_until = at + LONGEST_BACKOFF_S if is_again else at
            option = Option(
                index, line, cost, keep_percent, estimate, call.request.max_tokens, latest, at, yields_until
            )
            options.append(option)
        return options

    def _let_go(
        self,
        call: Call,
        reservation: Reservation,
        target: Target,
        everything: Sequence[Target],
        retry: Retry | None,
    ) -> Attempt:
        at, planner = everything.index(target), self._planner
        planner.forget_skips(call, everything[at:])
        planner.note_skips(call, everything[:at])
        if not call.attempts and target not in call.route.model.targets:
            planner.note_left_out(call, everything, target, SkipReason.UNSUPPORTED)
        if call.attempts or retry is not None:
            self._retries.hand_over(call, reservation, target, retry)
        return Attempt(target, self._clock.monotonic(), reservation=reservation)

    async def _hold(
        self,
        call: Call,
        options: Sequence[Option],
        likely: Option,
        fallback_options: Sequence[Option],
        widen_at: float,
        until: float,
        failed: Attempt | None,
    ) -> Held:
        """Waits until the queue lets the call through, or gives it up; `left` of the result says which."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        since = self._clock.monotonic()
        held = Held(
            call.seq,
            call.request.lane,
            call.request.tenant,
            call.request.received_at,
            model=call.route.model.name,
            size=len(call.request.body),
            deadline=until,
            # A cancelled call has a future that is done, and `set_result` on that would raise.
            wake=lambda: None if turn.done() else turn.set_result(None),
        )
        is_back = bool(call.attempts)  # it was let in before: there is room for it
        if not is_back and not self._queue.make_room(held):
            wait_s = likely.line.ready_at(likely, held.rank, held.tenant, since) - since
            raise QueueFull(
                "The gateway's queue is full; send less at a time, or raise max_calls and max_bytes in queue.yaml.",
                retry_after_s=min(30.0, max(1.0, wait_s)),
            )
        # Who has just found a target still failing goes behind the others: they find out next.
        held.has_tried = failed is not None and failed.is_trial
        is_back = is_back and not held.has_tried
        self._queue.hold(held, options, likely, is_back=is_back, fallback_options=fallback_options, widen_at=widen_at)
        # Beside an attempt that has stalled the call waits for that one as well: this is no delay of its own.
        is_beside = any(one.is_stalled for one in call.attempts)
        setbacks = call.own_setbacks()
        if not is_beside:
            setbacks.held = held
        try:
            await turn
        except BaseException:  # cancelled, perhaps just when its turn had come
            self._queue.leave(held)
            if held.grant is not None:
                held.grant.cancel(self._clock.monotonic())
                self._health.freed(held.grant.gate.name)
            raise
        finally:
            waited_s = self._clock.monotonic() - since
            if not is_beside:
                setbacks.held = None
                setbacks.queue_s += waited_s
            self._meter.waited(call.request.lane, waited_s)
        return held


def take_age(call: Call, original: Call) -> None:
    """Has a call take on the age of the one that it repeats, once it enters; that one may not have entered itself."""
    call.seq = -abs(original.seq)


def _skipped(call: Call) -> str:
    """Returns a sentence on the targets that could not take the call, where there are several; else nothing."""
    skips = [*(call.skips or {}).values()]
    if len(skips) < 2:
        return ""
    shown = [f"{one.target} ({one.reason})" for one in skips[:MOST_SHOWN]]
    more = [f"+{len(skips) - MOST_SHOWN} more"] if len(skips) > MOST_SHOWN else []
    return f" Skipped: {', '.join([*shown, *more])}."


def _ready_at(call: Call, option: Option, now: float) -> float:
    rank, is_back = RANKS[call.request.lane], bool(call.attempts)
    return option.line.ready_at(option, rank, call.request.tenant, now, call=call.seq, is_back=is_back)


# --- the error of a call that is not let through: why, and when another try will be served ---


EARLY_S = 0.05
"""Seconds by which the `retry-after` of a refusal is before the turn that is promised to the call."""


def refusal_after_wait(held: Held, call: Call) -> GatewayError:
    """Returns why a call waits no more that was not let through. Targets that went out of service say so themselves."""
    waited = f"{call.queue_s:.1f} s"
    if held.left is Left.EXPIRED:
        message = f"The deadline passed after {waited} in the queue; no target was free in time. Come back later, or "
        return QueueDeadlineExceeded(f"{message}{_longer_wait(call)}.")
    if held.left is Left.DISPLACED:
        return QueueFull("The gateway's queue is full, and more urgent calls came.", retry_after_s=1.0)
    if held.left is Left.NEVER_FITS:
        message = f"After {waited} in the queue, the limits of all targets are too small for this call."
        return RequestExceedsLimits(message)
    return InternalError()


def _longer_wait(call: Call) -> str:
    """Returns what its client can do that a call waits for longer."""
    if call.request.deadline_is_callers:
        return "set a longer timeout"
    return "say how long it may wait: by the header 'x-gateway-deadline-ms', or the timeout of an SDK that sends it"


def too_late(call: Call, options: Sequence[Option], ready_at: Sequence[float], now: float) -> GatewayError:
    """Returns why a call is not held, with the time at which another try will be served."""
    soonest = min(ready_at)
    option = options[ready_at.index(soonest)]
    gate = option.line.gate
    if soonest == inf:
        return _never(call, options, now)
    patience_s = call.request.deadline - call.request.received_at
    # All come back a little before their turn, by the same time, and so in the order of their turns. A call that the target has
    # asked to wait for itself alone has no place among those.
    turn = soonest if option.opens_at == soonest else gate.limits.promise(option.cost, soonest)
    limit = gate.blocking(option.cost, now, option.keep_percent)
    left = f"this call has {patience_s:g} s"
    answer_s = call.request.deadline - option.latest
    if answer_s > 0:
        left = (
            f"an answer takes about {answer_s:.1f} s, but {left}, of which {call.request.deadline - now:.1f} s are left"
        )
    return WaitTooLong(
        f"The next free turn at {gate.name} ({limit}) is {soonest - now:.1f} s away, and {left}; "
        f"come back later, or {_longer_wait(call)}.",
        retry_after_s=max(turn - min(patience_s / 2, EARLY_S) - now, 0.05),
        limit=f"{gate.name} {limit}",
    )


def _never(call: Call, options: Sequence[Option], now: float) -> GatewayError:
    """Returns why no wait would help the call."""
    reset_s = _reset_s(options, now)
    if reset_s is not None:
        message = f"The account's quota is spent at every target of '{call.request.model_name}'; add credit, or another target."
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
