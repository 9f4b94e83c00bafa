"""What the calls of a key may still spend today. It is only asked where a key has a budget.

    reserve (what the call may cost at most) -> allows, for each further attempt -> spent (what it has cost)

It must not know targets. Invariant: what a call reserved is taken back exactly once, when the call is settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.errors import BudgetExceeded, BudgetReserved
from gateway.core.retry_budgets import Price, Reserved, Spending, allows_spending, fits_budget
from gateway.core.snapshot.snapshot.snapshot import Key
from gateway.fleet.leases.leases import Sharing
from gateway.fleet.parts.shared_sum.shared_sum import FleetSum

DAY_S = 86_400
LEARN_S = 0.05
COME_BACK_S = 2.0
"""The seconds after which a key's calls in flight may have left some of its budget."""
UNTOLD_PART = 0.05
"""The part of a budget that all replicas together may reserve before they have told each other."""


@dataclass(slots=True)
class Flying:
    """What the calls in flight of one key have reserved on one day."""

    day: int
    calls: int = 0
    usd: float = 0.0


class KeyBudgets:
    """US dollars spent by each key on the present day (UTC), and reserved by its calls in flight; with `sharing`, by those
    of all replicas together.

    A replica tells what it reserves before the calls go, and so hears what the others have, unless it is next to nothing:
    the store puts everybody in line. Invariant: what a call reserved is taken back exactly once, when the call is settled.
    """

    __slots__ = ("_clock", "_flying", "_sharing", "_spending", "_tallies")

    def __init__(self, clock: Clock, sharing: Sharing | None = None) -> None:
        self._clock = clock
        self._sharing = sharing
        self._spending = Spending()
        self._flying: dict[str, Flying] = {}
        """What is reserved of each key, while it has calls in flight."""
        self._tallies: dict[str, tuple[int, FleetSum]] = {}
        """What all replicas have spent of each key, and on which day."""

    async def reserve(self, call: Call, price: Price) -> None:
        """Takes ahead what the call may cost. Raises BudgetExceeded, or BudgetReserved where it is worth coming back soon."""
        budget_usd = call.key.budget_usd_per_day
        if budget_usd is None:
            return
        sharing = self._sharing
        if sharing is not None:
            tally = self._tally(sharing, call.key.name)
            if not tally.is_known:
                await sharing.learn(tally, self._clock.monotonic() + LEARN_S)
        self._check(call, budget_usd, price)
        self._take(call, price.most)
        if sharing is not None and not await self._is_agreed(sharing, call, budget_usd, price):
            self.spent(call, 0.0)
            self._check(call, budget_usd, price)
            self._refuse(call, budget_usd, price, is_for_now=True)

    def _check(self, call: Call, budget_usd: float, price: Price) -> None:
        """Raises BudgetExceeded when it does not fit."""
        flying_usd = self._flying_usd(call.key.name)
        spent_usd = max(0.0, self._spent(call.key.name) - flying_usd)
        if spent_usd < budget_usd and fits_budget(budget_usd, spent_usd, flying_usd, price):
            return
        is_for_now = flying_usd > 0 and spent_usd < budget_usd and fits_budget(budget_usd, spent_usd, 0.0, price)
        self._refuse(call, budget_usd, price, is_for_now=is_for_now)

    def _refuse(self, call: Call, budget_usd: float, price: Price, *, is_for_now: bool) -> NoReturn:
        name = call.key.name
        if is_for_now:
            raise BudgetReserved(
                f"What the key '{name}' may still spend of its ${budget_usd:g} for today (UTC) is reserved by its calls in "
                "flight; try again when they have ended, or set max_tokens: less is reserved then.",
                retry_after_s=COME_BACK_S,
            )
        spent_usd = self._spent(name)
        why = "" if spent_usd >= budget_usd else f" What is left does not pay for this call (about ${price.usual:.2g})."
        raise BudgetExceeded(
            f"The key '{name}' has spent its budget of ${budget_usd:g} for today (UTC); raise "
            f"budget_usd_per_day, or wait for tomorrow.{why}",
            retry_after_s=DAY_S - self._clock.wall() % DAY_S,
        )

    async def _is_agreed(self, sharing: Sharing, call: Call, budget_usd: float, price: Price) -> bool:
        """Returns whether what the call took fits what all replicas have; where the store says nothing, this one's part."""
        name = call.key.name
        tally = self._tally(sharing, name)
        if tally.untold <= budget_usd * UNTOLD_PART / sharing.replicas:
            return True
        has_told = await sharing.tell(tally, self._clock.monotonic() + LEARN_S)
        own_usd = 0.0 if call.reserved is None else call.reserved.usd
        if has_told:
            others_usd = self._flying_usd(name) - own_usd
            return fits_budget(budget_usd, max(0.0, tally.read() - own_usd - others_usd), others_usd, price)
        left_usd = budget_usd - (tally.read() - tally.untold)
        return tally.untold <= left_usd / sharing.replicas or tally.read() <= own_usd

    def allows(self, call: Call, usd: float) -> bool:
        """Reserves what the call may cost in all, if its key allows that; returns whether it does."""
        budget_usd = call.key.budget_usd_per_day
        if budget_usd is None:
            return True
        reserved = call.reserved
        own_usd = reserved.usd if reserved is not None and reserved.day == self.today() else 0.0
        if not allows_spending(budget_usd, self._spent(call.key.name) - own_usd, usd):
            return False
        if reserved is None:
            self._take(call, usd)
        elif usd > own_usd and reserved.day == self.today():
            self._flying[call.key.name].usd += usd - own_usd
            self._add(call.key.name, usd - own_usd)
            reserved.usd = usd
        return True

    def spent(self, call: Call, usd: float) -> None:
        """The call has cost so much, whatever it has reserved, unless all of that is charged."""
        if call.key.budget_usd_per_day is None:
            return
        reserved, call.reserved = call.reserved, None
        if reserved is not None:
            if reserved.is_charged:
                usd = max(usd, reserved.usd)
            if reserved.day == self.today():
                usd -= reserved.usd
            self._land(call.key.name, reserved)
        self._add(call.key.name, usd)

    def is_spent(self, key: Key) -> bool:
        """Tells whether the key has nothing left for today."""
        return key.budget_usd_per_day is not None and self._spent(key.name) >= key.budget_usd_per_day

    def paid(self, key: Key, usd: float) -> None:
        """Books what was paid without a call, such as lines of a batch at a provider's own Batch API."""
        if key.budget_usd_per_day is not None:
            self._add(key.name, usd)

    @property
    def outlives(self) -> bool:
        """Tells whether what is booked is known to whoever comes after this process."""
        return self._sharing is not None

    async def charge(self, key: Key, usd: float) -> int | None:
        """Books ahead what is going to be paid without a call; returns the day. None: that is more than is left."""
        day, budget_usd, sharing = self.today(), key.budget_usd_per_day, self._sharing
        tally = None if sharing is None or budget_usd is None else self._tally(sharing, key.name)
        if sharing is not None and tally is not None:  # what was heard last may be minutes old
            await sharing.learn(tally, self._clock.monotonic() + LEARN_S, afresh=True)
        if not allows_spending(budget_usd, self._spent(key.name), usd):
            return None
        self._add(key.name, usd)
        if sharing is None or tally is None or budget_usd is None:
            return day
        if await sharing.tell(tally, self._clock.monotonic() + LEARN_S) and tally.read() <= budget_usd:
            return day
        self.correct(key.name, day, -usd)  # too much with what the others have, or nobody says: it can wait
        return None

    def correct(self, key: str, day: int, usd: float) -> None:
        """Corrects what was charged on a day by so much (below 0: less was spent). A day that is over gives nothing back."""
        if day == self.today() or usd > 0:
            self._add(key, usd)

    def _take(self, call: Call, usd: float) -> None:
        name, day = call.key.name, self.today()
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
        if self._sharing is None:
            self._spending.add(name, usd, self.today())
        else:
            self._tally(self._sharing, name).add(usd)

    def _spent(self, key: str) -> float:
        if self._sharing is None:
            return self._spending.spent(key, self.today())
        tally = self._tally(self._sharing, key)
        # Where nothing is known of the others, each may spend its part: as if all had spent what it has.
        return tally.read() if tally.is_known else tally.read() * self._sharing.replicas

    def _tally(self, sharing: Sharing, key: str) -> FleetSum:
        day, known = self.today(), self._tallies.get(key)
        if known is not None and known[0] == day:
            return known[1]
        if known is not None:
            sharing.forget(known[1])
        tally = sharing.tally(key, f"usd|{day}")
        self._tallies[key] = day, tally
        return tally

    def today(self) -> int:
        """The present day (UTC)."""
        return int(self._clock.wall() // DAY_S)
