"""What calls may still spend: the budgets of keys for a day, and what another attempt of a call may cost.

Answers `policy/retry.py`'s questions about one call. Only asked when an attempt has failed, or when a key has a budget.
"""

from __future__ import annotations

from gateway.call import Attempt, Call
from gateway.clock import Clock
from gateway.errors import BudgetExceeded, ErrorClass, Phase
from gateway.flow.sharing import Sharing
from gateway.policy.budgets import Spending, allows_spending, attempts_by_cost
from gateway.policy.gate import Gate
from gateway.policy.retry import Retries
from gateway.policy.snapshot import Target
from gateway.policy.tally import Tally

DAY_S = 86_400
LEARN_S = 0.05


class KeyBudgets:
    """US dollars spent by each key on the present day (UTC); with `sharing`, by all replicas together."""

    __slots__ = ("_clock", "_sharing", "_spending", "_tallies")

    def __init__(self, clock: Clock, sharing: Sharing | None = None) -> None:
        self._clock = clock
        self._sharing = sharing
        self._spending = Spending()
        self._tallies: dict[str, tuple[int, Tally]] = {}
        """Of each key, on its day."""

    async def learn(self, call: Call) -> None:
        """Hear what other replicas have spent, where that is not known yet: a replica has just started, or a day."""
        if self._sharing is not None:
            tally = self._tally(self._sharing, call.key.name)
            if not tally.is_known:
                await self._sharing.learn(tally, self._clock.monotonic() + LEARN_S)

    def check(self, call: Call) -> None:
        """Raises BudgetExceeded when the key has nothing left for today."""
        budget_usd = call.key.budget_usd_per_day
        if budget_usd is not None and self._spent(call.key.name) >= budget_usd:
            raise BudgetExceeded(
                f"The key '{call.key.name}' has spent its budget of ${budget_usd:g} for today (UTC); raise "
                "budget_usd_per_day, or wait for tomorrow.",
                retry_after_s=DAY_S - self._clock.wall() % DAY_S,
            )

    def allows(self, call: Call, usd: float) -> bool:
        """Whether the key may spend so much more today."""
        budget_usd = call.key.budget_usd_per_day
        return budget_usd is None or allows_spending(budget_usd, self._spent(call.key.name), usd)

    def spent(self, call: Call, usd: float) -> None:
        """The call has cost so much."""
        if call.key.budget_usd_per_day is None or not usd:
            return
        if self._sharing is None:
            self._spending.add(call.key.name, usd, self._today())
        else:
            self._tally(self._sharing, call.key.name).add(usd)

    def _spent(self, key: str) -> float:
        if self._sharing is None:
            return self._spending.spent(key, self._today())
        tally = self._tally(self._sharing, key)
        # Where nothing is known of the others, each may spend its part: as if all had spent what it has.
        return tally.total if tally.is_known else tally.total * self._sharing.replicas

    def _tally(self, sharing: Sharing, key: str) -> Tally:
        day, known = self._today(), self._tallies.get(key)
        if known is not None and known[0] == day:
            return known[1]
        if known is not None:
            sharing.forget(known[1])
        tally = sharing.tally(key, f"usd|{day}")
        self._tallies[key] = day, tally
        return tally

    def _today(self) -> int:
        return int(self._clock.wall() // DAY_S)


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
        """`budget` or `tokens` when too much is being retried there, None when the target may be tried again.

        A connection that carried nothing has cost nobody anything.
        """
        if last.phase is Phase.NOTHING_SENT:
            return None
        gate, retries = self._gates[target.name], self._retries
        vitals = gate.vitals
        active = max(gate.in_flight, int(vitals.busiest(self._now)))
        if not vitals.retries.allows(active, retries.budget_percent_of_active, retries.budget_min_concurrent):
            return "budget"
        return None if vitals.tokens.allows(token_cost(retries, last, target), retries.tokens) else "tokens"

    def denies_money(self) -> str | None:
        """`money` or `key_budget` when another attempt would cost too much."""
        usd, most = self._attempt_usd, self._retries.max_usd_per_call
        if usd is None:
            return None
        spent = sum([attempt.cost_usd or 0.0 for attempt in self._call.attempts])
        if most is not None and spent + usd > most:
            return "money"
        return None if self._keys.allows(self._call, spent + usd) else "key_budget"

    def attempts(self) -> int:
        """So many the call may make, by what one costs."""
        return attempts_by_cost(self._retries.by_cost, self._attempt_usd, self._retries.attempts)


def token_cost(retries: Retries, last: Attempt, target: Target) -> float:
    """The retry tokens that trying again at the target after such a failure takes: more after a timeout, which has cost more.

    Silence elsewhere is not this target's doing, and costs it nothing.
    """
    if last.phase is Phase.NOTHING_SENT or (last.error_class == ErrorClass.TIMEOUT and last.target != target.name):
        return 0.0
    return retries.timeout_tokens if last.error_class == ErrorClass.TIMEOUT else retries.retry_tokens
