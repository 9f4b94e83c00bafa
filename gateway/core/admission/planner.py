"""Where a call may go: the targets that can do what it needs, in the order in which it tries them, and which are in service.

It must not reserve anything or wait. Invariant: a target whose breaker keeps the call out is never offered, unless the call
has the time to wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import takewhile
from math import inf
from typing import Any

from gateway.core.admission.gates import Gates
from gateway.core.balancing import Tiers
from gateway.core.call import Call, upstream_model
from gateway.core.clock import Clock
from gateway.core.errors import CircuitOpen, InvalidRequest, NotFound
from gateway.core.health.times import USUAL_TIMES_MIN_SAMPLES, needed_s
from gateway.core.limits.estimate import estimate_input_tokens
from gateway.core.limits.target_limits import Gate, GateState
from gateway.core.openai.sse import json_object
from gateway.core.openai.usage import (
    CONTEXT_WINDOW,
    SURELY_TOO_LONG,
    count_answers,
    count_prompts,
    lacks,
    needs_of,
)
from gateway.core.retry import Attempt, Plan, attempts_apart
from gateway.core.snapshot import Target
from gateway.core.types import LANES, ErrorClass, How, Skip, SkipReason

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
                setbacks = call.meet()
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


def is_moving(call: Call) -> bool:
    """Returns whether one of the call's attempts has stalled, and others are made beside it."""
    return any(one.is_stalled for one in call.attempts)


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


def answers_of(call: Call) -> int:
    """Returns how many answers the call pays for."""
    if call.request.endpoint.request != "json":
        return 1
    if call.request.large is not None and call.request.large.tokens >= 0:
        return call.request.large.answers
    return count_answers(call.parsed or json_object(call.request.body) or {})


def opens_at(call: Call, target: Target) -> float:
    """Returns the moment before which the call does not go to the target again, as it was refused there; 0.0: it was not."""
    return max([attempt.retry_at for attempt in call.attempts if attempt.target.name == target.name], default=0.0)


def estimate_of(call: Call) -> int:
    """The input tokens of the call, uncorrected; 0 where it has none. Counted once."""
    if call.estimate < 0:
        call.estimate = 0
        if call.request.endpoint.tokens == "none" or call.request.endpoint.request != "json":
            return 0
        if call.request.large is not None and call.request.large.tokens >= 0:
            call.estimate = call.request.large.tokens
        else:
            parsed = call.parsed or json_object(call.request.body)
            if parsed is not None:
                target = call.route.model.targets[0]
                find_tokenizer = target.counting.exact_tokens
                count = find_tokenizer(upstream_model(call, target)) if find_tokenizer is not None else None
                call.estimate = estimate_input_tokens(call.request.body, parsed, count)
    return call.estimate
