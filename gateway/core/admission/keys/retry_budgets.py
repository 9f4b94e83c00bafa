"""What the retries of a call may take: of its targets' retry budgets, of its key's money, and of its own attempts.

    of (the answers to `core/retry/retry.py`'s questions) -> book -> hand_over (to the grant of the retry) | cancel

It is only asked when an attempt has failed. Invariant: what was booked is handed to exactly one grant, or cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.admission.gates.gates import Gates
from gateway.core.admission.keys.key_budgets import KeyBudgets
from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.ledger.costs import CostEstimates
from gateway.core.limits.reservation.grant import Grant
from gateway.core.limits.target_limits.gate.gate import Gate
from gateway.core.retry.balancing.rules import Retries
from gateway.core.retry.retry import Doubt
from gateway.core.retry_budgets import Retry, attempts_by_cost
from gateway.core.snapshot.snapshot.snapshot import Target
from gateway.core.types.provider_errors import ErrorClass, Phase
from gateway.core.types.words import Attempt


class RetryBudgets:
    """Books retries. Holds no state of any call but what is in it."""

    __slots__ = ("_clock", "_costs", "_gates", "_keys")

    def __init__(self, clock: Clock, gates: Gates, keys: KeyBudgets, costs: CostEstimates) -> None:
        self._clock = clock
        self._gates = gates
        self._keys = keys
        self._costs = costs

    def of(self, call: Call) -> CallBudgets:
        """Returns what the call's retries may take, where another attempt costs what one at its first target does."""
        gates = {one.name: self._gates.line(one, call).gate for one in (*call.model.plan, *call.model.context_plan)}
        attempt_usd = self._costs.usd(call, call.model.plan[0])
        return CallBudgets(call, attempt_usd, gates, self._keys, self._clock.monotonic())

    def book(self, call: Call, targets: Sequence[Target], budgets: CallBudgets) -> bool:
        """Takes what a retry at the first of these costs its retry budgets; False: they are spent by now."""
        last = call.attempts[-1]
        self.cancel(call)
        if budgets.denies(targets[0], last) is not None:
            return False
        if last.phase is not Phase.NOTHING_SENT:
            health = self._gates.line(targets[0], call).gate.health
            call.retry = Retry(health.retries, health.tokens, token_cost(call.model.retries, last, targets[0]))
        return True

    def cancel(self, call: Call) -> None:
        """Gives back what was booked for a retry that is not made."""
        retry, call.retry = call.retry, None
        if retry is not None:
            retry.cancel()

    def hand_over(self, call: Call, grant: Grant, target: Target) -> None:
        """Hands what was booked to the grant of the next attempt, which learns whether the call has failed there before."""
        retry, call.retry = call.retry, None
        if retry is not None and not retry.is_for(grant.gate.health.retries):
            retry.cancel()  # it goes elsewhere
            retry = None
        grant.retry = retry
        grant.is_again = any(one.target == target.name and not one.is_refused for one in call.attempts)


class CallBudgets:
    """What the retries of one call may take. Implements `retry.Budgets`."""

    __slots__ = ("_attempt_usd", "_call", "_gates", "_keys", "_now", "_retries")

    def __init__(
        self, call: Call, attempt_usd: float | None, gates: dict[str, Gate], keys: KeyBudgets, now: float
    ) -> None:
        """`attempt_usd` is what another attempt is estimated to cost (None: not priced), `gates` are by target name."""
        self._now = now
        self._call = call
        self._retries = call.model.retries
        self._attempt_usd = attempt_usd
        self._gates = gates
        self._keys = keys

    def denies(self, target: Target, last: Attempt) -> str | None:
        """Returns `budget` or `tokens` when too much is being retried there, None when the target may be tried again.

        A connection that carried nothing has cost nobody anything.
        """
        if last.phase is Phase.NOTHING_SENT:
            return None
        gate, retries = self._gates[target.name], self._retries
        health = gate.health
        active = max(gate.in_flight, int(health.busiest(self._now)))
        if not health.retries.allows(active, retries.budget_percent_of_active, retries.budget_min_concurrent):
            return "budget"
        return None if health.tokens.allows(token_cost(retries, last, target), retries.tokens) else "tokens"

    def doubt(self, target: Target) -> Doubt | None:
        """Returns what failed calls have found out of the target; None: too few have tried, it may be tried."""
        return self._gates[target.name].health.doubt(self._now)

    def denies_money(self) -> str | None:
        """Returns `money` or `key_budget` when another attempt would cost too much, else None."""
        usd, most = self._attempt_usd, self._retries.max_usd_per_call
        if usd is None:
            return None
        spent = sum([attempt.cost_usd or 0.0 for attempt in self._call.attempts])
        if most is not None and spent + usd > most:
            return "money"
        return None if self._keys.allows(self._call, spent + usd) else "key_budget"

    def attempts(self) -> int:
        """Returns how many attempts the call may make, by what one costs."""
        return attempts_by_cost(self._retries.by_cost, self._attempt_usd, self._retries.attempts)


def token_cost(retries: Retries, last: Attempt, target: Target) -> float:
    """Returns the retry tokens that another try at the target takes after such a failure: more after a timeout, the dearer one.

    Silence elsewhere is not this target's doing, and costs it nothing.
    """
    if last.phase is Phase.NOTHING_SENT or (last.error_class == ErrorClass.TIMEOUT and last.target != target.name):
        return 0.0
    return retries.timeout_tokens if last.error_class == ErrorClass.TIMEOUT else retries.retry_tokens
