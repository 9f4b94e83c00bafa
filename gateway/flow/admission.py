"""Admission: which target a call may go to now, and what becomes of it when there is none.

    enter -> (an attempt) -> answered | refused | failed -> … -> settle

The usual case, a target with room and nobody waiting, is settled without an await. Otherwise the call is held in the delay
queue, or refused at once with the time at which another try will succeed. Runtime state (gates, lines, the levels of keys)
lives here under stable names, so a reload changes numbers and nothing else. Invariant: whatever an attempt took from a gate
is settled exactly once, and so is what the call took from its key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf

from gateway.call import LANES, Call, Usage
from gateway.clock import Clock
from gateway.errors import (
    ErrorClass,
    GatewayError,
    InternalError,
    Phase,
    QueueDeadlineExceeded,
    QueueFull,
    QuotaExhausted,
    RequestExceedsLimits,
    UpstreamFailed,
    WaitTooLong,
)
from gateway.flow.delayqueue import DelayQueue, Held, Left, Line, Option
from gateway.flow.gates import Gates
from gateway.flow.keepalive import waiting_for
from gateway.flow.keylimits import KeyLimits
from gateway.policy.decide import Verdict, decide
from gateway.policy.estimate import estimate_input_tokens
from gateway.policy.gate import Refusal
from gateway.policy.limits import Cost
from gateway.policy.plan import upstream_model
from gateway.policy.snapshot import PolicySnapshot, Target
from gateway.policy.sse import json_object
from gateway.ports import Meter, RawHeaders

EARLY_S = 0.05
"""Who was refused comes back so long before the turn that is promised to it."""
MOST_PROMISED_S = 60.0
"""Room is promised to refused calls for no longer: not all of them come back."""
_RANKS = {lane: rank for rank, lane in enumerate(LANES)}
_INTERACTIVE = _RANKS["interactive"]
_ONE_REQUEST = Cost()


class Admission:
    """Lets calls through to their targets, each at the first moment it fits."""

    def __init__(self, clock: Clock, meter: Meter, policy: PolicySnapshot) -> None:
        self._clock = clock
        self._meter = meter
        self.queue = DelayQueue(clock, policy.queue)
        self.gates = Gates(clock, self.queue, policy)
        self.keys = KeyLimits()
        self.keys.install(policy, clock.monotonic())

    def install(self, policy: PolicySnapshot) -> None:
        """Puts a policy's numbers in force; levels, pauses and who waits stay."""
        self.queue.configure(policy.queue)
        self.gates.install(policy)
        self.keys.install(policy, self._clock.monotonic())
        self.queue.freed_all()

    async def enter(self, call: Call, failed: Sequence[Target] = ()) -> Target | None:
        """The target that the call may go to now, reserved as `call.grant`; None when all of its plan have `failed`.

        Waits in the delay queue if it must. Raises GatewayError when the call cannot be served in time, or at all.
        """
        now = self._clock.monotonic()
        if not call.seq:
            call.seq = self.queue.next_seq()
            if call.key.name in self.keys.sets:
                self.keys.enter(call, self._estimate(call), now)
        if call.endpoint.request == "any":
            return None if failed else call.model.plan[0]  # of another kind: no model's limits
        rank = _RANKS[call.lane]
        keep_percent = call.model.holding.reserve_percent if rank > _INTERACTIVE else 0.0
        for target in call.model.targets:
            line = self.gates.line(target, call)
            if line.lineup.is_free_for(rank) and target not in failed:
                gate = line.gate
                cost = self._cost(call, line) if gate.counts_tokens else _ONE_REQUEST
                grant = gate.reserve(cost, now, keep_percent, estimate=call.estimate, max_tokens=call.max_tokens)
                if grant is not None:
                    call.grant = grant
                    call.parsed = None
                    return target
        targets = [target for target in call.model.plan if target not in failed]
        return await self._wait(call, targets, keep_percent, now) if targets else None

    def answered(self, call: Call, headers: RawHeaders, *, is_error: bool = False) -> None:
        """The target has let the call in, whatever else it says."""
        grant = call.grant
        if grant is not None:
            now = self._clock.monotonic()
            wall_now = self._clock.wall()
            grant.gate.answered(grant, headers, now, wall_now, is_stream=call.stream, is_error=is_error)
            self._freed(grant.gate.name)

    def refused(self, call: Call, error_class: str, status: int, headers: RawHeaders, body: bytes) -> Refusal:
        """The target has refused the call for its rate or its account; says what that means for the call."""
        grant, call.grant = call.grant, None
        if grant is None:
            return Refusal.EXHAUSTED
        now = self._clock.monotonic()
        refusal = grant.gate.refused(grant, error_class, status, headers, body, now, self._clock.wall())
        line = self.gates.lines[grant.gate.name]
        if refusal is Refusal.EXHAUSTED:
            self.queue.shut(line)
        else:
            self.queue.freed(line)
        return refusal

    def failed(self, call: Call, failure: UpstreamFailed | None = None) -> None:
        """The attempt came to nothing. Without a `failure` the target did answer, with an error."""
        grant, call.grant = call.grant, None
        if grant is None:
            return
        now = self._clock.monotonic()
        if failure is not None and failure.phase is Phase.NOTHING_SENT:
            grant.gate.cancel(grant, now)
        else:
            is_overload = failure is not None and failure.error_class is ErrorClass.TIMEOUT
            grant.gate.failed(grant, now, is_overload=is_overload)
        self._freed(grant.gate.name)

    def settle(self, call: Call, usage: Usage | None) -> None:
        """The call has ended: corrects what it took to what it used. None: nobody knows, or nothing."""
        grant, call.grant = call.grant, None
        if grant is not None:
            grant.gate.settle(grant, usage, self._clock.monotonic())
            self._freed(grant.gate.name)
        if call.key_cost is not None:
            self.keys.settle(call, usage, self._clock.monotonic())

    def describe(self, call: Call) -> bytes:
        """What a stream that waits is told."""
        held = call.held
        if held is not None:
            eta_s = held.eta_s(self._clock.monotonic())
            eta = b" eta_ms=%d" % (eta_s * 1000) if eta_s < inf else b""
            return b"queued position=%d%b" % (held.position(), eta)
        return waiting_for(call)

    async def _wait(self, call: Call, targets: Sequence[Target], keep_percent: float, now: float) -> Target:
        """No target is free at once: use a fallback, hold the call, or refuse it."""
        estimate = self._estimate(call)  # even where no limit counts tokens: the shares of tenants do
        call.parsed = None
        options = []
        for index, target in enumerate(targets):
            line = self.gates.line(target, call)
            options.append(Option(index, line, self._cost(call, line), keep_percent, estimate, call.max_tokens))
        own = sum([target in call.model.targets for target in targets])
        rank = _RANKS[call.lane]
        is_back = bool(call.attempts)
        ready_at = [option.line.ready_at(option, rank, call.tenant, now, is_back=is_back) for option in options]
        latest = call.deadline
        if call.deadline_is_callers:  # an answer has to begin by then
            latest -= min([option.line.gate.answer_s for option in options])
        prefer_until = call.received_at + call.model.holding.prefer_primary_for_s[call.lane]
        decision = decide(ready_at, own, now, latest, prefer_until)
        if decision.verdict is Verdict.REFUSE:
            raise _refusal(call, options, ready_at, now)
        if decision.verdict is Verdict.SERVE:
            option = options[decision.choice]
            grant = option.reserve(now) if option.line.lineup.is_free_for(rank) else None
            if grant is not None:
                call.grant = grant
                return targets[decision.choice]
        # What was predicted free and is not (a slot of which nobody knows how long it is held) is waited for as well.
        is_narrow = own > 0 and (decision.verdict is Verdict.HOLD or 0 <= decision.choice < own)
        near = options[:own] if is_narrow else options
        home = min(near, key=lambda option: ready_at[option.index])
        held = await self._hold(call, near, home, options[own:] if is_narrow else (), prefer_until)
        if held.grant is None or held.option is None:
            raise _left(held, call)
        call.grant = held.grant
        return targets[held.option.index]

    async def _hold(
        self, call: Call, options: Sequence[Option], home: Option, wider: Sequence[Option], widen_at: float
    ) -> Held:
        """Wait until the queue lets the call through, or gives it up; `left` of the result says which."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        since = self._clock.monotonic()
        held = Held(
            call.seq,
            call.lane,
            call.tenant,
            call.received_at,
            model=call.model.name,
            size=len(call.body),
            deadline=call.deadline,
            wake=lambda: None if turn.done() else turn.set_result(None),
        )
        is_back = bool(call.attempts)  # it was let in before: there is room for it
        if not is_back and not self.queue.has_room(held):
            wait_s = home.line.ready_at(home, held.rank, held.tenant, since) - since
            raise QueueFull(
                "The gateway's queue is full; send less at a time, or raise max_calls and max_bytes in queue.yaml.",
                retry_after_s=min(30.0, max(1.0, wait_s)),
            )
        self.queue.hold(held, options, home, is_back=is_back, wider=wider, widen_at=widen_at)
        call.held = held
        try:
            await turn
        except BaseException:  # cancelled, perhaps just when its turn had come
            self.queue.leave(held)
            if held.grant is not None:
                held.grant.gate.cancel(held.grant, self._clock.monotonic())
                self._freed(held.grant.gate.name)
            raise
        finally:
            call.held = None
            waited_s = self._clock.monotonic() - since
            call.queue_s += waited_s
            self._meter.waited(call.lane, waited_s)
        return held

    def _cost(self, call: Call, line: Line) -> Cost:
        answers = call.endpoint.tokens == "both"
        return line.gate.cost_of(self._estimate(call), call.max_tokens, answers=answers)

    def _estimate(self, call: Call) -> int:
        """The input tokens of the call, uncorrected; 0 where it has none. Counted once."""
        if call.estimate < 0:
            call.estimate = 0
            if call.endpoint.tokens != "none" and call.endpoint.request == "json":
                parsed = call.parsed or json_object(call.body)
                if parsed is not None:
                    target = call.model.targets[0]
                    find_tokenizer = target.counting.exact_tokens
                    count = find_tokenizer(upstream_model(call, target)) if find_tokenizer is not None else None
                    call.estimate = estimate_input_tokens(call.body, parsed, count)
        return call.estimate

    def _freed(self, name: str) -> None:
        line = self.gates.lines.get(name)
        if line is not None:
            self.queue.freed(line)


def _left(held: Held, call: Call) -> GatewayError:
    """Why a call waits no more that was not let through."""
    waited = f"{call.queue_s:.1f} s"
    if held.left is Left.EXPIRED:
        return QueueDeadlineExceeded(f"The deadline passed after {waited} in the queue; no target was free in time.")
    if held.left is Left.DISPLACED:
        return QueueFull("The gateway's queue is full, and more urgent calls came.", retry_after_s=1.0)
    if held.left is Left.FAILED:
        return InternalError("The gateway failed on this request; its log has the details.")
    if held.left is Left.SHUT:
        return QuotaExhausted(f"After {waited} in the queue, the account's quota is spent at every target.")
    return RequestExceedsLimits(f"After {waited} in the queue, the limits of all targets are too small for this call.")


def _refusal(call: Call, options: Sequence[Option], ready_at: Sequence[float], now: float) -> GatewayError:
    """Why a call is not held, with the time at which another try will be served."""
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
    """Nothing that is waited for would help."""
    resets = [o.line.gate.exhausted_until for o in options if o.line.gate.exhausted_until > now]
    if resets:
        message = f"The account's quota is spent at every target of '{call.model_name}'; add credit, or another target."
        return QuotaExhausted(message, retry_after_s=min(resets) - now)
    option = options[0]
    gate, tokens = option.line.gate, option.cost.input_tokens + option.cost.output_tokens
    limit = gate.limits.which(option.cost, now) or "its limits"
    return RequestExceedsLimits(
        f"This call is estimated at {tokens:.0f} tokens, more than {limit} of {gate.name} ever holds; send a smaller "
        "request, or lower its max_tokens.",
        limit=f"{gate.name} {limit}",
    )
