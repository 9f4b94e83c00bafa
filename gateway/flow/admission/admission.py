"""Admission: which target a call may go to now, and what becomes of it when there is none.

    enter -> (an attempt) -> answered | refused | failed -> … -> settle

The usual case, a target with room and nobody waiting, is settled without an await. Otherwise the call is held in the delay
queue, or refused at once with the time at which another try will succeed. Runtime state (gates, lines, the levels of keys)
lives here under stable names, so a reload changes numbers and nothing else. Invariant: whatever an attempt took from a gate
is settled exactly once, and so is what the call took from its key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any

from gateway.call import Call
from gateway.clock import Clock
from gateway.errors import DeadlineExceeded, QueueFull
from gateway.exchange import RawHeaders
from gateway.flow.admission.budgets import CallBudgets, KeyBudgets, token_cost
from gateway.flow.admission.candidates import RANKS, Planner, estimate_of
from gateway.flow.admission.gates import Gates
from gateway.flow.admission.health import HealthPropagation
from gateway.flow.admission.held import Held, Left, Line, Option
from gateway.flow.admission.key_limits import KeyLimits
from gateway.flow.admission.queue import DelayQueue
from gateway.flow.admission.refusals import left_without_turn, too_late
from gateway.flow.fleet.leases import Sharing
from gateway.flow.keepalive import waiting_for
from gateway.policy.admission.hold_or_refuse import Verdict, decide
from gateway.policy.errors.classify import Diagnosis
from gateway.policy.health.first_byte_wait import is_deserted, is_evidence, usual_of
from gateway.policy.health.signs_of_life import Heard
from gateway.policy.health.target_health import CLIENT_GONE
from gateway.policy.limits.gate import Grant, Refusal
from gateway.policy.limits.limits import Cost
from gateway.policy.openai.free_endpoints import costs_nothing
from gateway.policy.retry.budgets import FREE, SEEN_ANSWERS, Price, Retry, cost_usd, price_of
from gateway.policy.route_plan import upstream_model
from gateway.policy.snapshot import PolicySnapshot, Target
from gateway.ports import Leases, Meter
from gateway.provider_errors import ErrorClass, Phase
from gateway.words import Usage

CALLERS_DEADLINE = "callers_deadline"
_INTERACTIVE = RANKS["interactive"]
_NO_DIAGNOSIS = Diagnosis(ErrorClass.UNKNOWN)
_WATCH_GRAIN_S = 0.06  # the watch looks every 50 ms


class Admission:
    """Lets calls through to their targets, each at the first moment it fits."""

    def __init__(
        self,
        clock: Clock,
        meter: Meter,
        policy: PolicySnapshot,
        draw: Callable[[], float],
        leases: Leases | None = None,
    ) -> None:
        """`draw` gives uniform numbers from [0, 1); with `leases` other replicas use the same limits."""
        self._clock = clock
        self._meter = meter
        self._draw = draw
        self.queue = DelayQueue(clock, policy.queue)
        self.sharing = None if leases is None else Sharing(clock, leases, self.queue, draw)
        self.gates = Gates(clock, self.queue, policy, self._breaker_changed, self.sharing)
        self.outages = HealthPropagation(clock, meter, self.gates, self.queue, draw)
        self.planner = Planner(clock, self.gates, draw)
        self.keys = KeyLimits(self.sharing)
        self.budgets = KeyBudgets(clock, self.sharing)
        self.keys.install(policy, clock.monotonic())

    def install(self, policy: PolicySnapshot) -> None:
        """Puts a policy's numbers in force; levels, pauses and who waits stay."""
        self.queue.configure(policy.queue)
        self.gates.install(policy)
        self.keys.install(policy, self._clock.monotonic())
        self.queue.freed_all()

    async def enter(self, call: Call, targets: Sequence[Target] | None = None) -> Target:
        """As `admit`, for those who can wait for it."""
        entered = self.admit(call, targets)
        return entered if isinstance(entered, Target) else await entered

    def admit(self, call: Call, targets: Sequence[Target] | None = None) -> Target | Coroutine[Any, Any, Target]:
        """The target that the call may go to now, reserved as `call.grant`: the first of `targets` that has room.

        None: of its plan. Where none has, or the call's key has to be asked, what leads to one is to be awaited: in the
        delay queue, if it must be. Both raise GatewayError when the call cannot be served in time, or at all.
        """
        now = self._clock.monotonic()
        if not call.seq:
            if now >= call.deadline:
                raise DeadlineExceeded("The deadline passed before the call could be sent anywhere; give it more time.")
            call.seq = call.original_seq or self.queue.next_seq()
            if call.key.budget_usd_per_day is not None or call.key.name in self.keys.sets:
                return self._enter_with_key(call, targets, now)
        model = call.model
        if call.endpoint.request == "any":
            return model.plan[0]  # of another kind: no model's limits
        if targets is None:
            is_given = not model.restricts and (model.choice == "in_order" or not model.tiers.has_choice)
            targets = model.tiers.listed if is_given else self.planner.own_targets(call, now)
        rank = RANKS[call.lane]
        keep_percent = model.holding.reserve_percent if rank > _INTERACTIVE else 0.0
        own = model.targets
        for target in targets:
            line = self.gates.line(target, call)
            if (not line.lineup.busy or line.lineup.is_free_for(rank)) and (not call.attempts or target in own):
                gate = line.gate
                if gate.counts_tokens and call.estimate < 0:
                    estimate_of(call)
                grant = gate.enter(
                    call.estimate, call.max_tokens, now, keep_percent, rank, answers=call.endpoint.tokens == "both"
                )
                if grant is not None:
                    call.grant = grant
                    if call.attempts or call.retry is not None:
                        self._comes_again(call, grant, target)
                    call.parsed = None
                    return target
        if not call.attempts:
            targets = [*targets, *self.planner.plan(call).others]
        return self._wait(call, targets, keep_percent, now)

    async def _enter_with_key(self, call: Call, targets: Sequence[Target] | None, now: float) -> Target:
        """`admit`, once the call's key has let it in. Raises KeyRateLimited, BudgetExceeded, BudgetReserved."""
        if call.key.budget_usd_per_day is not None and not costs_nothing(call.endpoint, call.method, call.path):
            await self.budgets.reserve(call, self._price(call, call.key.budget_usd_per_day))
        if call.key.name in self.keys.sets:
            cost = self.keys.cost_of(call, estimate_of(call))
            if not self.keys.try_enter(call, cost, now):
                await self._fetch_for_key(call, cost)
        return await self.enter(call, targets)

    async def _fetch_for_key(self, call: Call, cost: Cost) -> None:
        """Takes what the call costs its key from what other replicas leave. Raises KeyRateLimited."""
        if not await self.keys.fetch(call, cost, self._clock):
            self.keys.refuse(call, cost, self._clock.monotonic())

    def answered(self, call: Call, headers: RawHeaders, *, is_error: bool = False) -> None:
        """The target has let the call in, whatever else it says."""
        grant = call.grant
        if grant is not None:
            now = self._clock.monotonic()
            wall_now = self._clock.wall()
            grant.gate.answered(
                grant, headers, now, wall_now, is_stream=call.stream, is_error=is_error, thinks=call.thinks
            )
            if not is_error:
                grant.gate.vitals.tokens.refund(0.0 if grant.retry is None else grant.retry.tokens)
            self._freed(grant.gate.name)

    def refused(self, call: Call, diagnosis: Diagnosis, headers: RawHeaders) -> Refusal:
        """The target has refused the call for its rate or its account; says what that means for the call."""
        grant, call.grant = call.grant, None
        if grant is None:
            return Refusal.EXHAUSTED
        now = self._clock.monotonic()
        gate = grant.gate
        refusal = gate.refused(grant, diagnosis, headers, now, self._clock.wall())
        if refusal is Refusal.EXHAUSTED:
            self.outages.exhausted(gate, diagnosis, now)
        else:
            self.outages.told_to_wait(gate, diagnosis, now)
            self._freed(gate.name)
        return refusal

    def failed(
        self,
        call: Call,
        error_class: ErrorClass,
        phase: Phase,
        diagnosis: Diagnosis = _NO_DIAGNOSIS,
        *,
        fault: str | None = None,
    ) -> None:
        """The attempt came to nothing; with a `diagnosis` the target did answer, with an error.

        A `fault` is the operator's to mend, and every call meets it: the target is left alone at once.
        """
        grant, call.grant = call.grant, None
        if grant is None:
            return
        now = self._clock.monotonic()
        gate = grant.gate
        gate.judge(grant, self._blamed(call, grant, error_class, now), now, self._draw())
        if phase is Phase.NOTHING_SENT:
            gate.cancel(grant, now)
        else:
            gate.failed(grant, now, is_overload=error_class is ErrorClass.TIMEOUT)
        if fault is not None:
            gate.vitals.breaker.trip(fault, now, self._draw())
        if error_class is ErrorClass.AUTH:
            self.outages.credential_refused(gate, now)
        elif error_class is ErrorClass.MODEL_NOT_FOUND:
            self.outages.model_missing(gate, [self.gates.line(one, call).gate for one in call.model.plan], now)
        # Whose credential is refused is told so; that the server wants to be left alone by him concerns nobody else.
        if diagnosis.delay_s is not None and (error_class is not ErrorClass.AUTH or self.gates.pays(gate)):
            gate.leave_alone(diagnosis.delay_s, now)
            self.outages.told_to_wait(gate, diagnosis, now)
        self._freed(gate.name)

    def ended(self, call: Call, outcome: str) -> None:
        """The answer that was relayed has ended; `outcome` is `ok`, what went wrong, or who left."""
        grant = call.grant
        if grant is not None:
            grant.gate.judge(grant, None if outcome == "ok" else outcome, self._clock.monotonic(), self._draw())

    def cancelled(self, call: Call, why: str) -> None:
        """The attempt is given up while the call goes on, which is nobody's failure; what it took of the limits stands."""
        grant, call.grant = call.grant, None
        self._drop_booking(call)
        if grant is not None:
            now = self._clock.monotonic()
            grant.gate.judge(grant, why, now, 0.0)
            grant.gate.settle(grant, None, now)
            self._freed(grant.gate.name)

    def call_budgets(self, call: Call) -> CallBudgets:
        """What its retries may take, where another attempt costs what one at its first target does."""
        gates = {one.name: self.gates.line(one, call).gate for one in (*call.model.plan, *call.model.context_plan)}
        return CallBudgets(call, self.cost_usd(call, call.model.plan[0]), gates, self.budgets, self._clock.monotonic())

    def heard_of(self, call: Call, target: Target) -> Heard:
        """What is heard of the target."""
        return self.gates.line(target, call).gate.vitals.heard

    def book_retry(self, call: Call, targets: Sequence[Target], budgets: CallBudgets) -> bool:
        """Takes what a retry at the first of these costs its retry budgets; False: they are spent by now."""
        last = call.attempts[-1]
        self._drop_booking(call)
        if budgets.denies(targets[0], last) is not None:
            return False
        if last.phase is not Phase.NOTHING_SENT:
            vitals = self.gates.line(targets[0], call).gate.vitals
            call.retry = Retry(vitals.retries, vitals.tokens, token_cost(call.model.retries, last, targets[0]))
        return True

    def cost_usd(self, call: Call, target: Target) -> float | None:
        """What an attempt at the target is estimated to cost; None: not priced."""
        usage = self.expected_usage(call, target)
        return cost_usd(target.find_rates(upstream_model(call, target)), usage.input, usage.output)

    def expected_usage(self, call: Call, target: Target) -> Usage:
        """What an attempt at the target is estimated to use."""
        learned = self.gates.line(target, call).gate.calibration
        output = learned.output_estimate(call.max_tokens) if call.endpoint.tokens == "both" else 0
        return Usage(learned.input_estimate(estimate_of(call)), output, estimated=True)

    def _price(self, call: Call, budget_usd: float) -> Price:
        """What the call may cost its key: at the dearest of the model's own targets, where some are priced."""
        prices = []
        for target in call.model.targets if call.endpoint.request != "any" and call.endpoint.tokens != "none" else ():
            rates = target.find_rates(upstream_model(call, target))
            if rates is not None:
                learned = self.gates.line(target, call).gate.calibration
                price = price_of(
                    learned.input_bound(estimate_of(call)) * rates.input_usd,
                    rates.output_usd if call.endpoint.tokens == "both" else 0.0,
                    learned.output_estimate(None),
                    call.max_tokens,
                    budget_usd,
                    is_known=learned.answers_seen >= SEEN_ANSWERS,
                )
                prices.append(price)
        return max(prices, key=lambda price: price.most, default=FREE)

    def _drop_booking(self, call: Call) -> None:
        retry, call.retry = call.retry, None
        if retry is not None:
            retry.cancel()

    def _let_go(self, call: Call, grant: Grant, target: Target) -> None:
        call.grant = grant
        if call.attempts or call.retry is not None:
            self._comes_again(call, grant, target)

    def _comes_again(self, call: Call, grant: Grant, target: Target) -> None:
        """The call has failed before, or been refused: its grant knows, and takes over what the retry was booked with."""
        retry, call.retry = call.retry, None
        if retry is not None and not retry.is_for(grant.gate.vitals.retries):
            retry.cancel()  # it goes elsewhere
            retry = None
        grant.retry = retry
        grant.is_again = any(one.target == target.name and not one.is_refused for one in call.attempts)

    def _blamed(self, call: Call, grant: Grant, error_class: ErrorClass, now: float) -> str:
        """What the target is to blame for: not for a deadline that was shorter than its usual time."""
        if error_class is not ErrorClass.TIMEOUT:
            return error_class
        is_callers = call.deadline_is_callers and now >= call.deadline - _WATCH_GRAIN_S
        if not is_callers and call.move is None:
            return error_class
        vitals = grant.gate.vitals
        unserved_s = 0.0 if call.move is None else vitals.heard.unserved_s(now)
        usual = usual_of(vitals.heard.times(stream=call.stream, thinks=call.thinks))
        thinks = call.thinks or vitals.heard.thinks
        is_silent = is_evidence(now - call.attempts[-1].heard_at, usual, thinks=thinks, unserved_s=unserved_s)
        return error_class if is_silent or vitals.is_probed or grant.gate.is_late(grant, now) else CALLERS_DEADLINE

    def answered_whole(self, call: Call, headers: RawHeaders) -> None:
        """As `answered`, of a whole answer after which the call is settled at once: the gate hears of both in one."""
        if call.grant is not None:
            call.grant.headers = headers

    def settle(self, call: Call, usage: Usage | None) -> None:
        """The call has ended: corrects what it took to what it used. None: nobody knows, or nothing."""
        grant, call.grant = call.grant, None
        if call.retry is not None:
            self._drop_booking(call)
        if grant is not None:
            now = self._clock.monotonic()
            gate = grant.gate
            if grant.headers is not None:
                gate.finish(grant, grant.headers, usage, now, self._clock.wall, thinks=call.thinks)
                if gate.vitals.tokens.spent:
                    gate.vitals.tokens.refund(0.0 if grant.retry is None else grant.retry.tokens)
            else:
                if not grant.is_judged:
                    self._judge_unended(call, grant, now)
                gate.settle(grant, usage, now)
            line = self.gates.lines.get(gate.name)
            if line is not None and (line.lineup.busy or self.gates.callers):
                self._freed(gate.name)
        if call.key_cost is not None:
            self.keys.settle(call, usage, self._clock.monotonic())

    def _judge_unended(self, call: Call, grant: Grant, now: float) -> None:
        """Every attempt that ended by itself has been judged. Its client has left: mostly nobody's fault."""
        gate = grant.gate
        last = call.attempts[-1] if call.attempts else None
        if call.outcome != CLIENT_GONE or last is None or last.ended_at is not None:
            gate.judge(grant, CLIENT_GONE, now, 0.0)
            return
        usual = usual_of(gate.vitals.heard.times(stream=call.stream, thinks=call.thinks))
        is_silent = is_deserted(now - last.heard_at, usual, thinks=call.thinks or gate.vitals.heard.thinks)
        gate.judge(grant, ErrorClass.TIMEOUT if is_silent else CLIENT_GONE, now, self._draw())

    def price_unfinished(self, call: Call) -> None:
        """The call is given up while an attempt is in flight: somebody works on it, and wants to be paid."""
        last = call.attempts[-1] if call.attempts else None
        if last is None or last.ended_at is not None or last.cost_usd is not None:
            return
        target = next((one for one in (*call.model.plan, *call.model.context_plan) if one.name == last.target), None)
        if target is not None:
            last.cost_usd = self.cost_usd(call, target)

    def describe(self, call: Call) -> bytes:
        """What a stream that waits is told."""
        held = call.held
        if held is not None:
            eta_s = held.eta_s(self._clock.monotonic())
            eta = b" eta_ms=%d" % (eta_s * 1000) if eta_s < inf else b""
            return b"queued position=%d%b" % (held.position(), eta)
        return waiting_for(call)

    def _breaker_changed(self, name: str, state: str, reason: str) -> None:
        self.outages.changed(name, state, reason)

    async def _wait(self, call: Call, targets: Sequence[Target], keep_percent: float, now: float) -> Target:
        """No target is free at once: use a fallback, hold the call, or refuse it."""
        rank = RANKS[call.lane]
        targets, patience_s = self.planner.usable(call, targets, now)
        estimate = estimate_of(call)  # even where no limit counts tokens: the shares of tenants do
        call.parsed = None
        options = []
        for index, target in enumerate(targets):
            line = self.gates.line(target, call)
            options.append(Option(index, line, self._cost(call, line), keep_percent, estimate, call.max_tokens))
        own = sum([target in call.model.targets for target in targets])
        is_back = bool(call.attempts)
        ready_at = [option.line.ready_at(option, rank, call.tenant, now, is_back=is_back) for option in options]
        latest = min(call.deadline, now + patience_s)
        if call.deadline_is_callers:  # an answer has to begin by then
            latest -= min([option.line.gate.answer_s for option in options])
        prefer_until = call.received_at + call.model.holding.prefer_primary_for_s[call.lane]
        if not any(option.line.gate.vitals.is_clear for option in options[:own]):
            prefer_until = now  # a target that is only just being tried again is nothing to wait for
        decision = decide(ready_at, own, now, latest, prefer_until)
        if decision.verdict is Verdict.REFUSE:
            raise too_late(call, options, ready_at, now)
        if decision.verdict is Verdict.SERVE:
            option = options[decision.choice]
            grant = option.reserve(now, rank) if option.line.lineup.is_free_for(rank) else None
            if grant is not None:
                self._let_go(call, grant, targets[decision.choice])
                return targets[decision.choice]
        # What was predicted free and is not (a slot of which nobody knows how long it is held) is waited for as well.
        is_narrow = own > 0 and (decision.verdict is Verdict.HOLD or 0 <= decision.choice < own)
        near = options[:own] if is_narrow else options
        home = min(near, key=lambda option: ready_at[option.index])
        until = min(call.deadline, now + patience_s)
        held = await self._hold(call, near, home, options[own:] if is_narrow else (), prefer_until, until)
        if held.grant is None or held.option is None:
            if held.left is Left.SHUT or (held.left is Left.EXPIRED and until < call.deadline):
                targets, _ = self.planner.usable(call, targets, self._clock.monotonic())  # which may say why
            raise left_without_turn(held, call, options, self._clock.monotonic())
        self._let_go(call, held.grant, targets[held.option.index])
        return targets[held.option.index]

    async def _hold(
        self,
        call: Call,
        options: Sequence[Option],
        home: Option,
        wider: Sequence[Option],
        widen_at: float,
        until: float,
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
            deadline=until,
            wake=lambda: None if turn.done() else turn.set_result(None),
        )
        is_back = bool(call.attempts)  # it was let in before: there is room for it
        if not is_back and not self.queue.make_room(held):
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
        return line.gate.cost_of(estimate_of(call), call.max_tokens, answers=answers)

    def _freed(self, name: str) -> None:
        line = self.gates.lines.get(name)
        if line is not None:
            self.queue.freed(line)
            if self.gates.callers and line.gate.vitals.is_probed:
                self.outages.probed(line.gate)
