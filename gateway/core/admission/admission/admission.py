"""Admission: which target a call may go to now, and what becomes of it when there is none.

    admit -> (an attempt) -> outcomes: answered | refused | failed -> … -> settle

The usual case, a target with room and nobody waiting, is settled without an await; of the others `waiting.py` makes the best.
What an attempt took is given back in `outcomes.py`. Runtime state (gates, lines, the levels of keys) lives here under stable
names, so a reload changes numbers and nothing else. Invariant: `call.grant` is all that a call has of its target's limits.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from math import inf
from typing import Any

from gateway.core.admission.admission.candidates import RANKS, Planner, estimate_of, opens_at
from gateway.core.admission.gates import Gates
from gateway.core.admission.keys import KeyBudgets, KeyLimits, RetryBudgets
from gateway.core.admission.outcomes import AttemptOutcomes, HealthPropagation
from gateway.core.admission.queue.queue import DelayQueue
from gateway.core.admission.queue.waiting import Waiting
from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.errors import MAX_RETRY_AFTER_S, DeadlineExceeded
from gateway.core.ledger import CostEstimates
from gateway.core.limits.headers import SUMMED_LIMITS
from gateway.core.limits.reservation import enter
from gateway.core.openai.usage import costs_nothing
from gateway.core.ports import Leases, Meter
from gateway.core.snapshot import PolicySnapshot, Target
from gateway.core.types import RawHeaders
from gateway.fleet.leases.leases import Sharing

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
        leases: Leases | None = None,
    ) -> None:
        """`draw` gives uniform numbers from [0, 1); with `leases` other replicas use the same limits."""
        self._clock = clock
        self.queue = DelayQueue(clock, policy.queue)
        self.sharing = None if leases is None else Sharing(clock, leases, self.queue, draw)
        self.gates = Gates(clock, self.queue, self.sharing)
        self.health = HealthPropagation(clock, meter, self.gates, self.queue, draw)
        self.gates.on_change = self.health.changed
        self.gates.on_rate = self.health.rate_found
        self.gates.install(policy)
        self.planner = Planner(clock, self.gates, draw)
        self.keys = KeyLimits(self.sharing)
        self.budgets = KeyBudgets(clock, self.sharing)
        self.keys.install(policy, clock.monotonic())
        self.costs = CostEstimates(self.gates)
        self.retries = RetryBudgets(clock, self.gates, self.budgets, self.costs)
        self.outcomes = AttemptOutcomes(clock, self.gates, self.health, self.keys, self.retries, draw)
        self.waiting = Waiting(clock, meter, self.gates, self.queue, self.planner, self.health, self.retries)

    def install(self, policy: PolicySnapshot) -> None:
        """Puts a policy's numbers in force; levels, pauses and who waits stay."""
        self.queue.configure(policy.queue)
        self.gates.install(policy)
        self.keys.install(policy, self._clock.monotonic())
        self.queue.freed_all()

    def back_in_s(self, call: Call) -> float:
        """Returns after how many seconds a call that failed may find its targets well, spread so that not all come at once.

        That is behind the next probe of the target that is probed first, and no sooner than the SDK would come by itself;
        the last digits of the time serve as the draw.
        """
        now = self._clock.monotonic()
        out = {attempt.target for attempt in call.attempts if attempt.never_again}
        left = [one for one in call.model.plan if one.name not in out] or call.model.plan
        probed_s = min([self.gates.line(one, call).gate.health.probe_at(now) for one in left]) - now
        probed_s = max(probed_s, 0.0) if probed_s < inf else MAX_RETRY_AFTER_S
        back_after_s = min(BACK_AFTER_S * 2.0 ** min(call.sdk_retry, 10), LONGEST_BACK_AFTER_S)
        return max(probed_s + BACK_AFTER_S, back_after_s) + BACK_AFTER_S * (now * 1e4 % 1.0)

    def limits_together(self, call: Call, headers: RawHeaders) -> Iterator[tuple[bytes, bytes]]:
        """Yields each header of an answer that tells a limit with the sum of that limit of all targets, where all have one.

        Who paces calls by what one target tells would use that one alone. What is left, and when more is, has no sum that
        holds: a call waits here, or goes where there is room.
        """
        for name, _ in headers:
            limit = SUMMED_LIMITS.get(name)
            if limit is not None:
                tables = [self.gates.line(target, call).gate.limits.table for target in call.model.plan]
                found = [known.amount for table in tables if (known := table.find(limit)) is not None]
                if len(found) == len(tables):
                    yield name, b"%d" % sum(found)

    async def enter(self, call: Call, targets: Sequence[Target] | None = None) -> Target:
        """Does what `admit` does, and waits for what that returns."""
        entered = self.admit(call, targets)
        return entered if isinstance(entered, Target) else await entered

    def admit(self, call: Call, targets: Sequence[Target] | None = None) -> Target | Coroutine[Any, Any, Target]:
        """The target that the call may go to now, reserved as `call.grant`: the first of `targets` that has room.

        None: of its plan. Where none has, or the call's key has to be asked, what leads to one is to be awaited: in the
        delay queue, if it must be. Both raise GatewayError when the call cannot be served in time, or at all.
        """
        now = self._clock.monotonic()
        if call.seq <= 0:
            if now >= call.deadline:
                raise DeadlineExceeded("The deadline passed before the call could be sent anywhere; give it more time.")
            call.seq = -call.seq or self.queue.next_seq()
            if call.key.budget_usd_per_day is not None or call.key.name in self.keys.sets:
                return self._enter_with_key(call, targets, now)
        model = call.model
        if call.endpoint.request == "any":
            return model.plan[0]  # of another kind: no model's limits
        if targets is None:
            is_restricted = model.restricts or call.endpoint.name in model.converted
            if is_restricted or (model.tiers.has_choice and model.choice != "in_order"):
                targets = self.planner.own_targets(call, now)
            else:  # whatever it asks for
                targets = model.tiers.listed
        rank = RANKS[call.lane]
        keep_percent = model.holding.reserve_percent if rank > _INTERACTIVE else 0.0
        own = model.targets
        for target in targets:
            line = self.gates.line(target, call)
            gate = line.gate
            if (not line.waiters.busy or line.waiters.is_free_for(rank)) and (
                not call.attempts
                or (target in own and opens_at(call, target) <= now <= self.planner.latest_start(call, gate))
            ):
                if gate.has_token_limit and call.estimate < 0:
                    estimate_of(call)
                grant = enter(
                    gate,
                    call.estimate,
                    call.max_tokens,
                    now,
                    keep_percent,
                    rank,
                    answers=call.endpoint.tokens == "both",
                )
                if grant is not None:
                    call.grant = grant
                    if call.attempts or call.retry is not None:
                        self.retries.hand_over(call, grant, target)
                    call.parsed = None
                    return target
            if target is not targets[-1]:
                self.planner.note_skips(call, (target,))
        if not call.attempts:
            targets = [*targets, *self.planner.plan(call).others]
        return self.waiting.find_room(call, targets, keep_percent, now)

    async def _enter_with_key(self, call: Call, targets: Sequence[Target] | None, now: float) -> Target:
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
        if now >= call.deadline:
            raise DeadlineExceeded("The deadline passed before the call could be sent anywhere; give it more time.")
        call.seq = -call.seq or self.queue.next_seq()
        if call.key.budget_usd_per_day is not None or call.key.name in self.keys.sets:
            await self._take_of_key(call, now)

    async def _take_of_key(self, call: Call, now: float) -> None:
        if call.key.budget_usd_per_day is not None and not costs_nothing(call.endpoint, call.method, call.path):
            self.costs.refuse_unpriced(call)
            await self.budgets.reserve(call, self.costs.price(call, call.key.budget_usd_per_day))
        if call.key.name in self.keys.sets:
            cost = self.keys.cost_of(call, estimate_of(call))
            # What the key lacks here, other replicas may have left.
            if not self.keys.try_enter(call, cost, now) and not await self.keys.fetch(call, cost, self._clock):
                self.keys.refuse(call, cost, self._clock.monotonic())
