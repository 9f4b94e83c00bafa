"""Where a call may go: the targets that can do what it needs, in the order in which it tries them, and which are in service.

First the plan (`Planner`), then what retries may take of budgets (`RetryBudgets`). It must not reserve anything of a target, or
wait. Invariant: a target whose breaker keeps the call out is never offered, unless the call has the time to wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import takewhile
from math import inf
from typing import Any

from gateway.core.admission.gates import Gates, estimate_of, is_moving, opens_at
from gateway.core.admission.keys import KeyBudgets
from gateway.core.admission.queue import WaitingLine
from gateway.core.balancing import Retries, Tiers
from gateway.core.call import Call, upstream_model
from gateway.core.clock import Clock
from gateway.core.errors import CircuitOpen, InvalidRequest, NotFound
from gateway.core.health.target_health import Doubt
from gateway.core.health.times import USUAL_TIMES_MIN_SAMPLES, needed_s
from gateway.core.ledger import CostEstimates
from gateway.core.limits.reservation import Reservation, ready_at
from gateway.core.limits.target_limits import Gate, GateState
from gateway.core.openai.bodies import CONTEXT_WINDOW, SURELY_TOO_LONG, count_answers, count_prompts, lacks, needs_of
from gateway.core.openai.sse import json_object
from gateway.core.retry import Attempt, Plan, attempts_apart
from gateway.core.retry_budgets import Retry, attempts_by_cost
from gateway.core.snapshot import Target
from gateway.core.types import LANES, ErrorClass, How, Phase, Skip, SkipReason

PROBED_AFTER_S = 0.5
"""The `retry-after` of a refusal is so long (or up to twice as long) after the moment of the next probe."""
RANKS = {lane: rank for rank, lane in enumerate(LANES)}


class Planner:
    """Plans for calls. Holds no state of any call."""

    __slots__ = ("_clock", "_draw", "_gates")

    def __init__(self, clock: Clock, gates: Gates, draw: Callable[[], float]) -> None:
        """`draw` gives uniform numbers from [0, 1)."""
        self._clock = clock
        self._gates = gates
        self._draw = draw

    def plan(self, call: Call) -> Plan:
        """Returns the targets that can do what the call needs. Raises InvalidRequest when there is none."""
        setbacks = call.setbacks
        if setbacks is None or setbacks.not_expressible is None:
            return self._able(call)
        refusals = setbacks.not_expressible
        able = Plan(*([one for one in targets if one.name not in refusals] for targets in self._able(call)))
        if not able.own and not able.others:
            first = next(iter(refusals.values()))
            raise InvalidRequest(f"{first.message}{call.route.model.skipped}", param=first.param, code=first.code)
        return able

    def _able(self, call: Call) -> Plan:
        """Returns the targets that can do what the call needs, as far as is known beforehand. Raises InvalidRequest."""
        request = call.request
        model, endpoint = call.route.model, request.endpoint.name
        if not model.restricts and endpoint not in model.converted:
            return Plan(model.targets, model.others, model.context_plan)
        missing = _missing(call, (*model.plan, *model.context_plan))
        able = Plan(
            *(
                [target for target in targets if missing[target.name] is None]
                for targets in (model.preferred.get(endpoint, model.targets), model.others, model.context_plan)
            )
        )
        if not able.own and not able.others:
            if able.context and CONTEXT_WINDOW in missing.values():
                return able._replace(own=able.context)
            needed = sorted({what for what in missing.values() if what})
            fields = {what.partition(" ")[0] for what in needed}
            raise InvalidRequest(
                f"No target of '{request.model_name}' can serve this call: it needs {', '.join(needed)}; use another model, or "
                f"send without.{model.skipped}",
                param=min(fields) if len(fields) == 1 and min(fields) in (call.parsed or ()) else None,
                code="unsupported_by_targets",
            )
        return able

    def plan_now(self, call: Call, failed: Attempt) -> Plan:
        """Returns where the call may go after this failure: to no target that is left alone, unless it has the time to wait.

        Whether the call waits for what has refused it for its rate, or gets a `retry-after`, is not decided here.
        """
        plan = self.plan(call)
        is_refused = failed.is_refused
        # These keep their places, and count for none.
        out = {attempt.target.name for attempt in call.attempts if attempt.never_again or attempt.is_stalled}
        usable = Plan(
            *([one for one in targets if one.name in out or self._is_usable(call, one, is_refused)] for targets in plan)
        )
        if any(one.name not in out for one in (*usable.own, *usable.others)):
            return usable
        waited_for = Plan(
            *([one for one in targets if not self._is_too_late(call, one, is_refused)] for targets in plan)
        )
        closed = [one for one in (*waited_for.own, *waited_for.others) if one.name not in out]
        return waited_for if self._patience_s(call, closed) > 0 else usable

    def untried(self, call: Call, attempt: Attempt) -> Sequence[Target]:
        """Returns where the call has not been up to this attempt and may go now, in its order; suspect targets are left out."""
        plan = self.plan(call)
        is_too_long = any(attempt.error_class == ErrorClass.CONTEXT_LENGTH_EXCEEDED for attempt in call.attempts)
        # Those that run beside it do not count: a call that is served elsewhere could be.
        tried = attempts_apart(call.attempts, attempt)
        met = {one.target.name for one in tried if not one.is_refused or one.never_again}
        return [
            target
            for target in (plan.context if is_too_long else (*plan.own, *plan.others))
            if target.name not in met
            and self._gates.line(target, call).gate.health.responsiveness.suspicion is None
            and self._is_usable(call, target, is_refused=False)
        ]

    def own_targets(self, call: Call, now: float) -> Sequence[Target]:
        """Returns the model's own targets that can serve the call, in the order in which it tries them."""
        model = call.route.model
        is_restricted = model.restricts or call.request.endpoint.name in model.converted
        is_restricted = is_restricted or call.not_expressible is not None
        if model.choice == "in_order" and not is_restricted:
            return model.tiers.listed
        tiers = Tiers(self._own(call), model.rank_for(call.request.endpoint.name)) if is_restricted else model.tiers
        arranged = tiers.arrange(model.choice, lambda target: self._gates.line(target, call).gate, now, self._draw)
        if len(arranged) < len(model.targets):
            self.note_left_out(call, arranged, arranged[0] if arranged else None, SkipReason.UNSUPPORTED)
        return arranged

    def _own(self, call: Call) -> Sequence[Target]:
        """Returns the model's own targets that can serve the call; what its fallbacks lack is looked for where none can."""
        if call.not_expressible is None:
            missing = _missing(call, call.route.model.targets)
            if able := [target for target in call.route.model.targets if missing[target.name] is None]:
                return able
        return self.plan(call).own

    def note_left_out(
        self, call: Call, candidates: Collection[Target], chosen: Target | None, reason: str | None = None
    ) -> None:
        """Notes the skips of targets that are no `candidates`, and that the call would try before `chosen`; None: all such."""
        model = call.route.model
        order = [*sorted(model.targets, key=model.rank_for(call.request.endpoint.name)), *model.others]
        before: Iterable[Target] = order if chosen is None else takewhile(lambda one: one.name != chosen.name, order)
        left_out = [one for one in before if one not in candidates]
        if left_out and reason is None:
            able = self.plan(call)
            self.note_skips(
                call,
                [one for one in left_out if one not in able.own and one not in able.others],
                SkipReason.UNSUPPORTED,
            )
        self.note_skips(call, left_out, reason)

    def note_skips(self, call: Call, targets: Iterable[Target], reason: str | None = None) -> None:
        """Notes that the call goes past these targets; None: the reason is what keeps it away from each now.

        Those that it has tried are in its ledger already.
        """
        met = {attempt.target.name for attempt in call.attempts}
        now = self._clock.monotonic()
        for target in targets:
            if target.name not in met:
                setbacks = call.own_setbacks()
                setbacks.skips = {} if setbacks.skips is None else setbacks.skips
                why = reason or self._skip_reason(call, target, now)
                setbacks.skips.setdefault(target.name, Skip(target.name, why, len(call.attempts)))

    def forget_skips(self, call: Call, targets: Iterable[Target]) -> None:
        """Forgets that the call went past these targets since its last attempt: it has waited for them."""
        skips = None if call.setbacks is None else call.setbacks.skips
        for target in targets if skips else ():
            if skips and target.name in skips and skips[target.name].after == len(call.attempts):
                del skips[target.name]

    def _skip_reason(self, call: Call, target: Target, now: float) -> str:
        """Returns what keeps the call away from the target, where something does; what a person has to mend goes first."""
        line = self._gates.line(target, call)
        gate, health = line.gate, line.gate.health
        breaker, account = health.breaker, health.account
        states = (breaker.state, account.breaker.state)
        if "drained" in states:
            return SkipReason.DRAINED
        if account.is_refused and account.breaker.state != "closed":
            return SkipReason.CREDENTIAL_REFUSED
        if health.responsiveness.has_lost_model and breaker.state != "closed":
            return SkipReason.MODEL_NOT_FOUND
        if gate.pauses.quota_until > now:
            return SkipReason.QUOTA_SPENT
        for state in states:
            if state != "closed":
                return SkipReason(state)
        if gate.pauses.until > now or opens_at(call, target) > now:
            return SkipReason.PAUSED
        if now > self.latest_start(call, gate):
            return SkipReason.DEADLINE
        estimate = call.estimate if gate.has_token_limit and call.estimate > 0 else 0
        cost = gate.cost_of(estimate, call.request.max_tokens, answers=call.request.endpoint.tokens == "both")
        cost = cost._replace(input_tokens=cost.input_tokens + gate.margin(cost))
        rank = RANKS[call.request.lane]
        keep_percent = call.route.model.holding.reserve_percent if rank > RANKS["interactive"] else 0.0
        limit = gate.limits.which(cost, now, gate.reserve_percent(keep_percent, now))
        if limit is not None:
            return limit
        if not health.is_clear:
            is_ramping = breaker.is_ramping(now) or account.breaker.is_ramping(now)
            return SkipReason.RAMPING if is_ramping else SkipReason.TROUBLE
        if gate.state(now) in (GateState.RESUMING, GateState.PROBING):
            return SkipReason.PAUSED
        if line.waiters.busy and not line.waiters.is_free_for(rank):
            return SkipReason.QUEUE
        return gate.blocking(cost, now)

    def usable(self, call: Call, targets: Sequence[Target], now: float) -> tuple[Sequence[Target], float]:
        """Returns the targets that are not left alone, and for how long the call may wait for one.

        Where all are, one that still serves many calls is better than none, and a credential that was refused is tried again;
        else a lane that can wait does.
        Raises CircuitOpen.
        """
        gates = [self._gates.line(target, call).gate for target in targets]
        usable = [target for target in targets if self._admits(call, target, now)]
        # Nobody knows when a spent quota comes back: a call waits for a target that is left alone rather than for that.
        spent = {target.name for target, gate in zip(targets, gates, strict=True) if gate.pauses.quota_until > now}
        if len(usable) == len(targets) or any(target.name not in spent for target in usable):
            return usable, inf
        if any(gate.health.close_in_panic(now) for gate in gates):
            return [target for target in targets if self._admits(call, target, now)], inf
        for gate in gates:
            account = gate.health.account
            if account.is_refused and gate.health.breaker.state != "drained" and not account.breaker.is_by_hand:
                account.try_again(now)
                usable = [one for one in targets if self._admits(call, one, now)]
                if usable:
                    return usable, inf
        if all(gate.health.responsiveness.has_lost_model for gate in gates):
            raise NotFound(
                f"No provider of '{call.request.model_name}' knows the model that it is configured with; tried of late: "
                f"{', '.join([gate.name for gate in gates])}. Use another model, or have its targets corrected.",
                param="model",
                code="model_not_found",
            )
        patience_s = self._patience_s(call, [target for target in targets if target.name not in spent])
        if patience_s > 0:
            return targets, patience_s
        if usable:
            return usable, inf
        soonest = min([gate.health.probe_at(now) for gate in gates])
        why = "; ".join(f"{gate.name}: {gate.health.reason}" for gate in gates)
        raise CircuitOpen(
            f"No target of '{call.request.model_name}' is in service: {why}.{call.route.model.skipped}",
            # Behind the probe, when it is known how that went, and not all at once.
            retry_after_s=None if soonest == inf else soonest - now + PROBED_AFTER_S * (1 + self._draw()),
        )

    def _patience_s(self, call: Call, targets: Sequence[Target]) -> float:
        """Returns how long the call may wait for targets that are all open; 0.0: none of them is tried again in that time."""
        now = self._clock.monotonic()
        hold_s = max([target.breaker.hold_for_s[call.request.lane] for target in targets], default=0.0)
        patience_s = min(call.request.received_at + hold_s, call.request.deadline) - now
        if hold_s <= 0 or patience_s <= 0:
            return 0.0
        gates = [self._gates.line(target, call).gate for target in targets]
        for gate in gates:
            # First, as it may bring a probe into the time that the call has; the last digits of the time are the draw.
            gate.health.probe_for_waiting(now, now * 1e4 % 1.0)
        return patience_s if any(gate.health.probe_at(now) < now + patience_s for gate in gates) else 0.0

    def latest_start(self, call: Call, gate: Gate) -> float:
        """Returns the last moment at which the call may go there, so that its answer is likely to begin by its deadline.

        inf: its caller has set none, nothing is known of the target, or another attempt of the call hangs.
        """
        request = call.request
        if not request.deadline_is_callers or is_moving(call):
            return inf
        times = gate.health.responsiveness.times(stream=request.stream, thinks=request.thinks)
        median_s = times.quantile(0.5, USUAL_TIMES_MIN_SAMPLES)
        return (
            inf if median_s is None else request.deadline - needed_s(median_s, request.deadline - request.received_at)
        )

    def _is_usable(self, call: Call, target: Target, is_refused: bool) -> bool:
        gate, now = self._gates.line(target, call).gate, self._clock.monotonic()
        if gate.health.responsiveness.suspicion is not None and is_moving(call):
            return False  # it hangs elsewhere already, and there it goes on
        return not self._is_too_late(call, target, is_refused) and self._admits(call, target, now)

    def _is_too_late(self, call: Call, target: Target, is_refused: bool) -> bool:
        """Returns whether an answer from there would come too late for the call; nobody knows when a spent quota comes back."""
        if is_refused:
            return False
        gate, now = self._gates.line(target, call).gate, self._clock.monotonic()
        ends_at, latest = gate.pauses.ends_at, self.latest_start(call, gate)
        return now > latest or ends_at > (now if gate.pauses.quota_until > now else min(latest, call.request.deadline))

    def _admits(self, call: Call, target: Target, now: float) -> bool:
        """Announces the call to the target's breakers, and returns whether none of them keeps it away.

        A breaker whose time is over begins to probe, or asks the fleet for leave: so the answer is there when the call goes.
        For a probe's turn only a few may wait.
        """
        line = self._gates.line(target, call)
        health = line.gate.health
        if health.is_clear:
            return True
        if health.is_left_alone and len(line.waiters) >= health.breaker.rules.probes:
            return False
        rank = RANKS[call.request.lane]
        health.admit(now, rank)
        return health.is_open_to(rank, now)


def _missing(call: Call, targets: Sequence[Target]) -> dict[str, str | None]:
    """Returns by target what it lacks for the call; None: it can serve it."""
    body: dict[str, Any] | None = None  # a large one is not read here: the target's own conversion refuses it
    bound = call.request.max_tokens or 0
    if call.request.large is not None and call.request.large.needs is not None:
        needs = call.request.large.needs._replace(tokens=estimate_of(call) + bound // call.request.large.answers)
    else:
        body = call.parsed or json_object(call.request.body) or {}
        needs = needs_of(body, estimate_of(call) // count_prompts(body) + bound // count_answers(body))
    return {
        target.name: lacks(needs, target.capabilities) or _too_long(call, target) or _refused(call, target, body)
        for target in targets
    }


def _too_long(call: Call, target: Target) -> str | None:
    """Returns what is missing where the model surely reads less than the call says, by what is known of it."""
    has_window = target.capabilities.context_window is not None
    if target.find_most_input is None or has_window or call.request.endpoint.has_many_texts:
        return None
    most = target.find_most_input(upstream_model(call, target))
    return CONTEXT_WINDOW if most is not None and estimate_of(call) > most * SURELY_TOO_LONG else None


def _refused(call: Call, target: Target, body: dict[str, Any] | None) -> str | None:
    """Returns the fields that the target's API does not support, and why; None: it supports all that matter."""
    find_gaps = target.gaps.get(call.request.endpoint.name)
    if find_gaps is None or body is None:
        return None
    is_strict = call.route.model.on_loss == "refuse"
    if target.edits is not None and call.request.endpoint.request == "json":
        body = target.edits.seen(body)  # what the config drops is in nobody's way
    return (
        ", ".join(f"{gap.field} ({gap.why})" for gap in find_gaps(body) if is_strict or gap.how is How.REFUSED) or None
    )


# --- retries: what they may take of targets' retry budgets, of the key's money, and of a call's own attempts ---


class RetryBudgets:
    """Books retries. Holds no state of any call.

        of (the answers to `core/retry.py`'s questions) -> book -> hand_over (to the reservation of the retry) | cancel

    It is only asked when an attempt has failed. Invariant: what was booked is handed to exactly one reservation, or cancelled.
    """

    __slots__ = ("_clock", "_costs", "_gates", "_keys")

    def __init__(self, clock: Clock, gates: Gates, keys: KeyBudgets, costs: CostEstimates) -> None:
        self._clock = clock
        self._gates = gates
        self._keys = keys
        self._costs = costs

    def of(self, call: Call, attempt: Attempt | None = None) -> CallBudgets:
        """Returns what the call's retries may take, where another attempt costs what one at its first target usually does; of a
        key's budget it reserves what it may cost at the dearest.

        With `attempt` those that run beside it do not count.
        """
        key = call.route.key
        lines = {
            one.name: self._gates.line(one, call) for one in (*call.route.model.plan, *call.route.model.context_plan)
        }
        attempt_usd = reserved_usd = self._costs.usd(call, call.route.model.plan[0])
        if key.budget_usd_per_day is not None and not key.allow_overspend:
            reserved_usd = max(attempt_usd or 0.0, self._costs.price(call, key.budget_usd_per_day).most)
        made = call.attempts if attempt is None else attempts_apart(call.attempts, attempt)
        running = [one for one in made if one.ended_at is None and one.cost_usd is None]
        spent_usd = sum([one.cost_usd or 0.0 for one in made])
        spent_usd += sum([self._costs.usd(call, one.target) or 0.0 for one in running])
        return CallBudgets(call, attempt_usd, reserved_usd, spent_usd, lines, self._keys, self._clock.monotonic())

    def book(self, call: Call, failed: Attempt, target: Target) -> Retry | None:
        """Takes what a retry at the target costs its retry budgets after this failure; None: it costs nothing there."""
        health = self._gates.line(target, call).gate.health
        # The breaker of a target in trouble bounds what goes there, and what was never sent has loaded nobody.
        if failed.phase is Phase.NOTHING_SENT or not health.is_clear:
            return None
        return Retry(health.retries, health.tokens, token_cost(call.route.model.retries, failed, target))

    def hand_over(self, call: Call, reservation: Reservation, target: Target, retry: Retry | None) -> None:
        """Hands what was booked to the next attempt's reservation, which learns whether the call has failed there before."""
        if retry is not None and not retry.is_for(reservation.gate.health.retries):
            retry.cancel()  # it goes elsewhere
            retry = None
        reservation.retry = retry
        reservation.is_again = any(one.target.name == target.name and not one.is_refused for one in call.attempts)


class CallBudgets:
    """What the retries of one call may take. Implements `retry.Budgets`."""

    __slots__ = ("_attempt_usd", "_call", "_keys", "_lines", "_now", "_reserved_usd", "_retries", "_spent_usd")

    def __init__(
        self,
        call: Call,
        attempt_usd: float | None,
        reserved_usd: float | None,
        spent_usd: float,
        lines: dict[str, WaitingLine],
        keys: KeyBudgets,
        now: float,
    ) -> None:
        """`attempt_usd` is what another attempt is estimated to cost (None: not priced), `reserved_usd` what is reserved for it
        of the key's budget, `spent_usd` what its attempts have cost, as estimated while they run, `lines` are by target name.
        """
        self._spent_usd = spent_usd
        self._reserved_usd = reserved_usd
        self._now = now
        self._call = call
        self._retries = call.route.model.retries
        self._attempt_usd = attempt_usd
        self._lines = lines
        self._keys = keys

    def denies(self, target: Target, last: Attempt) -> str | None:
        """Returns `budget` or `tokens` when too much is being retried there, None when the target may be tried again.

        A connection that carried nothing has cost nobody anything.
        """
        if last.phase is Phase.NOTHING_SENT:
            return None
        gate, retries = self._lines[target.name].gate, self._retries
        health = gate.health
        if not health.is_clear:
            return None  # what goes to a target in trouble is bounded there, call by call
        active = max(gate.in_flight, int(health.busiest(self._now)))
        if not health.retries.allows(active, retries.budget_percent_of_active, retries.budget_min_concurrent):
            return "budget"
        health.tokens.fill(self._now)
        return None if health.tokens.allows(token_cost(retries, last, target), retries.tokens) else "tokens"

    def doubt(self, target: Target) -> Doubt | None:
        """Returns what failed calls have found out of the target; None: too few have tried, it may be tried."""
        return self._lines[target.name].gate.health.doubt(self._now)

    def is_in_trouble(self, target: Target) -> bool:
        """Returns whether a breaker lets only few calls through to the target."""
        return not self._lines[target.name].gate.health.is_clear

    def ready_at(self, target: Target) -> float:
        """Returns when the target may take the call, behind those that go before one which comes back (monotonic seconds)."""
        line, call = self._lines[target.name], self._call
        cost = line.gate.cost_of(
            max(0, call.estimate), call.request.max_tokens, answers=call.request.endpoint.tokens == "both"
        )
        return ready_at(line.gate, cost, self._now, line.waiters.above(LANES.index(call.request.lane)))

    def denies_money(self) -> str | None:
        """Returns `money` or `key_budget` when another attempt would cost too much, else None."""
        usd, most = self._attempt_usd, self._retries.max_usd_per_call
        if usd is not None and most is not None and self._spent_usd + usd > most:
            return "money"
        reserved = self._reserved_usd
        return None if reserved is None or self._keys.allows(self._call, self._spent_usd + reserved) else "key_budget"

    def attempts(self) -> int:
        """Returns how many attempts the call may make, by what one costs."""
        return attempts_by_cost(self._retries.by_cost, self._attempt_usd, self._retries.attempts)


def token_cost(retries: Retries, last: Attempt, target: Target) -> float:
    """Returns the retry tokens that another try at the target takes after such a failure: more after a timeout, the dearer one.

    Silence elsewhere is not this target's doing, and costs it nothing.
    """
    if last.phase is Phase.NOTHING_SENT or (last.error_class == ErrorClass.TIMEOUT and last.target.name != target.name):
        return 0.0
    return retries.timeout_tokens if last.error_class == ErrorClass.TIMEOUT else retries.retry_tokens
