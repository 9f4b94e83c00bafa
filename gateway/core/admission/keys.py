"""Limits and budgets of keys: first `KeyBudgets`, then `KeyLimits`.

    reserve (what the call may cost at most) -> allows, for each further attempt -> spent (what it has cost)

It must not know targets. Invariant: what a call reserved is taken back exactly once, when the call is settled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import NoReturn

from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.errors import BudgetExceeded, BudgetReserved, KeyRateLimited
from gateway.core.limits.bucket import Cost
from gateway.core.limits.limit_table import Limits, LimitSet
from gateway.core.ports import LimitSource, SharedSum
from gateway.core.retry_budgets import Price, Reserved, Spending, allows_spending, fits_budget
from gateway.core.snapshot import Key, PolicySnapshot
from gateway.core.types import Usage

DAY_S = 86_400
LEARN_S = 0.05
COME_BACK_S = 2.0
"""The seconds after which a key's calls in flight may have left some of its budget."""
SPENT_PART = 0.05
"""A budget of which no more than this part is left counts as spent in the log: few calls fit into the rest."""
UNTOLD_PART = 0.05
"""The part of a budget that all replicas together may reserve before they know of each other."""
log = logging.getLogger("gateway")


@dataclass(slots=True)
class Flying:
    """What the calls in flight of one key have reserved on one day."""

    day: int
    calls: int = 0
    usd: float = 0.0


class KeyBudgets:
    """US dollars spent by each key on the present day (UTC), and reserved by its calls in flight; with `limit_source`, by those
    of all replicas together.

    A replica reports what it reserves before the calls go, and learns what the others have, unless it is next to nothing:
    the store puts everybody in line. Invariant: what a call reserved is taken back exactly once, when the call is settled.
    """

    __slots__ = ("_clock", "_exhausted", "_flying", "_limit_source", "_spending", "_tallies")

    def __init__(self, clock: Clock, limit_source: LimitSource | None = None) -> None:
        self._clock = clock
        self._limit_source = limit_source
        self._spending = Spending()
        self._flying: dict[str, Flying] = {}
        """The reservations of each key that has calls in flight."""
        self._tallies: dict[str, tuple[int, SharedSum]] = {}
        """The money that all replicas have spent of each key, and on which day."""
        self._exhausted: dict[str, tuple[int, float, bool]] = {}
        """The keys that were refused something for want of money: on which day, what their budget was, and whether next to
        nothing of it was left."""

    async def reserve(self, call: Call, price: Price) -> None:
        """Takes ahead what the call may cost. Raises BudgetExceeded, or BudgetReserved where it is worth coming back soon."""
        budget_usd = call.route.key.budget_usd_per_day
        if budget_usd is None:
            return
        source = self._limit_source
        if source is not None:
            tally = self._tally(source, call.route.key.name)
            if not tally.is_known:
                await tally.learn(self._clock.monotonic() + LEARN_S)
        self._check(call, budget_usd, price)
        # Before the wait for the store: the key's other calls must count this one meanwhile.
        self._take(call, price.most)
        if source is not None and not await self._is_agreed(source, call, budget_usd, price):
            self.spent(call, 0.0)
            # Again, by what is known of the others now: this tells a budget that is spent from one that is only reserved.
            self._check(call, budget_usd, price)
            self._refuse(call, budget_usd, price, is_for_now=True)

    def _check(self, call: Call, budget_usd: float, price: Price) -> None:
        flying_usd = self._flying_usd(call.route.key.name)
        spent_usd = max(0.0, self._spent(call.route.key.name) - flying_usd)
        if spent_usd < budget_usd and _fits(call.route.key, spent_usd, flying_usd, price):
            return
        is_for_now = flying_usd > 0 and spent_usd < budget_usd and _fits(call.route.key, spent_usd, 0.0, price)
        self._refuse(call, budget_usd, price, is_for_now=is_for_now)

    def _refuse(self, call: Call, budget_usd: float, price: Price, *, is_for_now: bool) -> NoReturn:
        name = call.route.key.name
        if is_for_now:
            raise BudgetReserved(
                f"What the key '{name}' may still spend of its ${budget_usd:g} for today (UTC) is reserved by its calls in "
                "flight; try again when they have ended, or set max_tokens: less is reserved then.",
                retry_after_s=COME_BACK_S,
            )
        self._note_exhausted(call.route.key, budget_usd)
        spent_usd = self._spent(name)
        if spent_usd >= budget_usd:
            what = f"The key '{name}' has spent its budget of ${budget_usd:g} for today (UTC)"
            remedy = "raise budget_usd_per_day, or wait for tomorrow"
        else:
            usd = price.usual if call.route.key.allow_overspend else price.worst
            what = (
                f"The key '{name}' has ${budget_usd - spent_usd:.3g} left of its budget of ${budget_usd:g} for today (UTC), "
                f"and this call may cost ${usd:.3g}"
            )
            remedy = f"{_cheaper(call)}, raise budget_usd_per_day, or wait for tomorrow"
            if usd > budget_usd and not call.route.key.allow_overspend:
                remedy = f"{_cheaper(call)}, or raise budget_usd_per_day: a new day has no more"
        raise BudgetExceeded(f"{what}; {remedy}.", retry_after_s=DAY_S - self._clock.wall() % DAY_S)

    async def _is_agreed(self, source: LimitSource, call: Call, budget_usd: float, price: Price) -> bool:
        """Returns whether what the call took fits what all replicas have; where the store does not answer, this one's part."""
        name = call.route.key.name
        tally = self._tally(source, name)
        if tally.unreported <= budget_usd * UNTOLD_PART / source.replicas:
            return True
        is_reported = await tally.report(self._clock.monotonic() + LEARN_S)
        own_usd = 0.0 if call.reserved is None else call.reserved.usd
        if is_reported:
            others_usd = self._flying_usd(name) - own_usd
            return _fits(call.route.key, max(0.0, tally.read() - own_usd - others_usd), others_usd, price)
        left_usd = budget_usd - (tally.read() - tally.unreported)
        # Nobody knows the others' part: the call fits this replica's own, or nothing else of the budget is known to be used.
        return tally.unreported <= left_usd / source.replicas or tally.read() <= own_usd

    def allows(self, call: Call, usd: float) -> bool:
        """Reserves what the call may cost in all, if its key allows that; returns whether it does."""
        budget_usd = call.route.key.budget_usd_per_day
        if budget_usd is None:
            return True
        reserved = call.reserved
        own_usd = reserved.usd if reserved is not None and reserved.day == self.today() else 0.0
        if not allows_spending(budget_usd, self._spent(call.route.key.name) - own_usd, usd):
            return False
        if reserved is None:
            self._take(call, usd)
        elif usd > own_usd and reserved.day == self.today():
            self._flying[call.route.key.name].usd += usd - own_usd
            self._add(call.route.key.name, usd - own_usd)
            reserved.usd = usd
        return True

    def share(self, call: Call, made_for_it: Call) -> None:
        """Has a call own what another one that was made for it has reserved, if it had reserved nothing before."""
        call.reserved = call.reserved or made_for_it.reserved

    def spent(self, call: Call, usd: float) -> None:
        """The call has cost so much, whatever it has reserved, unless all of that is charged."""
        if call.route.key.budget_usd_per_day is None:
            return
        reserved, call.reserved = call.reserved, None
        if reserved is not None:
            if reserved.is_charged:
                usd = max(usd, reserved.usd)
            # A day that is over keeps what was reserved on it: the cost is today's.
            if reserved.day == self.today():
                usd -= reserved.usd
            self._land(call.route.key.name, reserved)
        self._add(call.route.key.name, usd)

    def spent_today(self, key: Key) -> float:
        """Returns the US dollars that the key has spent today, with what its calls in flight have reserved."""
        return self._spent(key.name)

    def of_keys(self, policy: PolicySnapshot) -> Iterator[tuple[str, float, float]]:
        """Yields each key that has a budget, with that and what is left of it today beside what is reserved, in US dollars."""
        for key in policy.keys.values():
            if key.budget_usd_per_day is not None:
                yield key.name, key.budget_usd_per_day, max(0.0, key.budget_usd_per_day - self._spent(key.name))

    def tick(self, policy: PolicySnapshot) -> None:
        """Logs which budgets are open again, about once a second: the day is over, or a reload has raised them."""
        if not self._exhausted:
            return
        budgets = {key.name: key.budget_usd_per_day for key in policy.keys.values()}
        for name, (day, usd, was_spent) in list(self._exhausted.items()):
            new_usd = budgets.get(name, usd)
            if name in budgets and new_usd is not None and new_usd <= usd and day == self.today():
                continue
            del self._exhausted[name]
            if name in budgets and was_spent:
                now = "it has no budget any more" if new_usd is None else f"its budget is ${new_usd:g} for today (UTC)"
                log.info("the key '%s' may spend again: %s", name, now)

    def _note_exhausted(self, key: Key, budget_usd: float) -> None:
        """Logs that a key is refused something for want of money, once a day and budget, and once more where it had much left
        then and has next to nothing now."""
        left_usd = max(0.0, budget_usd - self._spent(key.name))
        is_spent = left_usd <= budget_usd * SPENT_PART
        known = self._exhausted.get(key.name)
        if known is not None and (known[2] or not is_spent):
            return
        self._exhausted[key.name] = self.today(), budget_usd, is_spent
        what = "has spent its budget" if is_spent else "is refused a call that may cost more than its budget allows"
        log.warning("the key '%s' %s: $%.3g of $%g for today (UTC) is left", key.name, what, left_usd, budget_usd)

    def is_spent(self, key: Key) -> bool:
        """Returns whether the key has nothing left for today."""
        return key.budget_usd_per_day is not None and self._spent(key.name) >= key.budget_usd_per_day

    def paid(self, key: Key, usd: float) -> None:
        """Books what was paid without a call."""
        if key.budget_usd_per_day is not None:
            self._add(key.name, usd)

    @property
    def outlives(self) -> bool:
        """Returns whether what is booked is known to whoever comes after this process."""
        return self._limit_source is not None

    async def charge(self, key: Key, usd: float) -> int | None:
        """Books ahead what is going to be paid without a call; returns the day. None: that is more than is left."""
        day, budget_usd, source = self.today(), key.budget_usd_per_day, self._limit_source
        tally = None if source is None or budget_usd is None else self._tally(source, key.name)
        if tally is not None:  # the last known sum may be minutes old
            await tally.learn(self._clock.monotonic() + LEARN_S, afresh=True)
        if not allows_spending(budget_usd, self._spent(key.name), usd):
            self._note_exhausted(key, budget_usd or 0.0)
            return None
        self._add(key.name, usd)
        if tally is None or budget_usd is None:
            return day
        if await tally.report(self._clock.monotonic() + LEARN_S) and tally.read() <= budget_usd:
            return day
        self.correct(key.name, day, -usd)  # too much with what the others have, or nobody says: it can wait
        return None

    def correct(self, key: str, day: int, usd: float) -> None:
        """Corrects what was charged on a day by so much (below 0: less was spent). A day that is over gives nothing back."""
        if day == self.today() or usd > 0:
            self._add(key, usd)

    def _take(self, call: Call, usd: float) -> None:
        name, day = call.route.key.name, self.today()
        call.reserved = Reserved(day, usd)
        flying = self._flying.get(name)
        if flying is None or flying.day != day:
            flying = self._flying[name] = Flying(day)
        flying.calls += 1
        flying.usd += usd
        self._add(name, usd)

    def _land(self, name: str, reserved: Reserved) -> None:
        flying = self._flying.get(name)
        if flying is None or flying.day != reserved.day:
            return
        flying.calls -= 1
        flying.usd -= reserved.usd
        if not flying.calls:
            del self._flying[name]  # what rounding has left of it, too

    def _flying_usd(self, name: str) -> float:
        flying = self._flying.get(name)
        return 0.0 if flying is None or flying.day != self.today() else max(0.0, flying.usd)

    def _add(self, name: str, usd: float) -> None:
        if not usd:
            return
        if self._limit_source is None:
            self._spending.add(name, usd, self.today())
        else:
            self._tally(self._limit_source, name).add(usd)

    def _spent(self, key: str) -> float:
        if self._limit_source is None:
            return self._spending.spent(key, self.today())
        tally = self._tally(self._limit_source, key)
        # Where nothing is known of the others, each may spend its part: as if all had spent what it has.
        return tally.read() if tally.is_known else tally.read() * self._limit_source.replicas

    def _tally(self, source: LimitSource, key: str) -> SharedSum:
        day, known = self.today(), self._tallies.get(key)
        if known is not None and known[0] == day:
            return known[1]
        if known is not None:
            known[1].forget()
        tally = source.sum_of(key, f"usd|{day}")
        self._tallies[key] = day, tally
        return tally

    def today(self) -> int:
        """The present day (UTC)."""
        return int(self._clock.wall() // DAY_S)


def _cheaper(call: Call) -> str:
    """Returns what makes such a call cost less."""
    if call.request.endpoint.tokens != "both":
        return "ask for less"
    return "set max_tokens" if call.request.max_tokens is None else "set a smaller max_tokens"


def _fits(key: Key, spent_usd: float, reserved_usd: float, price: Price) -> bool:
    budget_usd = inf if key.budget_usd_per_day is None else key.budget_usd_per_day
    return fits_budget(budget_usd, spent_usd, reserved_usd, price, allows_overspend=key.allow_overspend)


# --- limits: what each key may use, whatever target serves it ---


FETCH_S = 0.05
"""Seconds for which other replicas are asked for more; one round trip in any case."""
FIRST_OUTPUT_TOKENS = 512
"""The tokens that are taken for an answer of which nobody knows how long it will be."""


class KeyLimits:
    """The levels of all keys that have limits, by the key's name; they survive a reload.

    A key over its own limit gets a 429: that is the operator's wish. Invariant: what a call took is corrected exactly once,
    when the call has ended.
    """

    __slots__ = ("_limit_source", "sets")

    def __init__(self, limit_source: LimitSource | None = None) -> None:
        """With `limit_source` replicas share them."""
        self._limit_source = limit_source
        self.sets: dict[str, LimitSet] = {}

    def install(self, policy: PolicySnapshot, now: float) -> None:
        """Puts a policy's numbers in force."""
        limited = {key.name: key.limits for key in policy.keys.values() if key.limits != Limits()}
        for name in [name for name in self.sets if name not in limited]:
            self.sets.pop(name).table.retire()
        for name, limits in limited.items():
            known = self.sets.get(name)
            if known is None:
                share_out = None if self._limit_source is None else self._limit_source.of_key(name)
                self.sets[name] = LimitSet(limits, now, share_out=share_out)
            else:
                known.table.configure(limits, now)

    def cost_of(self, call: Call, estimate: int) -> Cost:
        """Returns what the call is expected to use."""
        expected = (
            FIRST_OUTPUT_TOKENS
            if call.request.max_tokens is None
            else min(call.request.max_tokens, FIRST_OUTPUT_TOKENS)
        )
        output = expected if call.request.endpoint.tokens == "both" else 0
        return self.sets[call.route.key.name].shrink(Cost(1, estimate, output), inf)

    def try_enter(self, call: Call, cost: Cost, now: float) -> bool:
        """Takes what the call is expected to use, if it is there."""
        if self.sets[call.route.key.name].reserve(cost, now) != 0.0:
            return False
        call.key_cost = cost
        call.key_cost_at = now
        return True

    async def fetch(self, call: Call, cost: Cost, clock: Clock) -> bool:
        """Asks the other replicas' store for what the key lacks here, and take that; False: there is no more for it now.

        A part of the limit that is not held here is no reason to refuse anybody.
        """
        source, ends_at = self._limit_source, clock.monotonic() + FETCH_S
        while source is not None and clock.monotonic() < ends_at:
            is_fetched = await source.fetch(call.route.key.name, cost, ends_at)
            # A reload may have taken the key's limits away during the wait.
            if call.route.key.name not in self.sets or self.try_enter(call, cost, clock.monotonic()):
                return True
            if not is_fetched:
                break
        return False

    def refuse(self, call: Call, cost: Cost, now: float) -> NoReturn:
        limits = self.sets[call.route.key.name]
        wait_s = limits.wait_s(cost, now)
        if wait_s is None:  # a slot, of which nobody knows, or a share
            wait_s = max(limits.ready_at(cost, now) - now, 0.0) or 1.0
        name = limits.which(cost, now)
        raise KeyRateLimited(
            f"The key '{call.route.key.name}' has reached its own limit, {name}; slow down, or have it raised in the config.",
            retry_after_s=limits.promise(cost, now + wait_s) - now,
            limit=f"{call.route.key.name} {name}",
        )

    def charge(self, call: Call, usage: Usage, now: float) -> None:
        """Takes what a call that goes on has used beyond what it took, so that its end corrects only what is left."""
        limits = self.sets.get(call.route.key.name)
        if limits is not None and call.key_cost is not None:
            limits.charge(Cost(0, usage.input, usage.output), now)
            cost = call.key_cost
            call.key_cost = cost._replace(
                input_tokens=cost.input_tokens + usage.input, output_tokens=cost.output_tokens + usage.output
            )

    def settle(self, call: Call, usage: Usage | None, now: float) -> None:
        """Corrects what the call took to what it used."""
        cost, call.key_cost = call.key_cost, None
        limits = self.sets.get(call.route.key.name)
        if cost is not None and limits is not None:
            actual = Cost(1, 0, 0) if usage is None else Cost(1, usage.input, usage.output)
            limits.settle(cost, actual, now, call.key_cost_at)
