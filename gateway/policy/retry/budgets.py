"""What retries and money may still be spent: of a target, of a key, on one call.

Two limits on retries, each for what the other does not see: `RetryBudget` (Envoy) bounds how many are in flight next to
first attempts, `RetryTokens` (AWS SDKs, standard mode) how many go on failing. Their numbers come from `Retries` with each
question, so a reload changes them and keeps what is spent. It must not know calls or the loop that retries. Invariants:
retries in flight, when one is taken, are at most the larger of the two bounds; tokens stay between 0 and the capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.policy.retry.rules import CostRule
from gateway.policy.snapshot import Rates

UNSEEN_OUTPUT_TOKENS = 4096
"""What an answer may have where the caller sets no bound and none of the model's answers was seen."""
SEEN_ANSWERS = 5
"""From so many answers on what is usual is known."""
OF_BUDGET = 0.1
"""A call whose usual answer is known reserves no more than this part of the budget, unless that is usual."""
SUCCESS_TOKENS = 1.0
"""What a success gives back that took no retry."""


class RetryBudget:
    """The retries in flight at one target: a share of the calls in flight there, and a few in any case."""

    __slots__ = ("in_flight",)

    def __init__(self) -> None:
        self.in_flight = 0

    def allows(self, active: int, percent: float, min_concurrent: int) -> bool:
        """Whether one more may go where `active` calls are in flight, retries among them."""
        return self.in_flight < min_concurrent or (self.in_flight + 1) * 100 <= percent * active

    def take(self) -> None:
        """A retry goes."""
        self.in_flight += 1

    def give_back(self) -> None:
        """A retry has ended, whatever came of it; once for each that was taken."""
        self.in_flight -= 1


class RetryTokens:
    """One target's bucket of retry tokens: retries empty it, only successes fill it."""

    __slots__ = ("spent",)

    def __init__(self) -> None:
        self.spent = 0.0
        """So many of the capacity are gone."""

    def level(self, capacity: float) -> float:
        """The tokens left of `capacity`."""
        return max(0.0, capacity - self.spent)

    def allows(self, cost: float, capacity: float) -> bool:
        """Whether a retry of this cost may go."""
        return self.spent + cost <= capacity

    def take(self, cost: float) -> None:
        """A retry goes."""
        self.spent += cost

    def refund(self, taken: float = 0.0) -> None:
        """A call succeeded here; `taken` is what its retries here took, 0.0: it needed none."""
        if self.spent:
            self.spent = max(0.0, self.spent - (taken or SUCCESS_TOKENS))


class Retry:
    """One retry, from its booking to its end: what it takes of a target's two budgets."""

    __slots__ = ("_bucket", "_budget", "_is_open", "tokens")

    def __init__(self, budget: RetryBudget, bucket: RetryTokens, tokens: float) -> None:
        budget.take()
        bucket.take(tokens)
        self._budget = budget
        self._bucket = bucket
        self._is_open = True
        self.tokens = tokens
        """What a success gives back."""

    def is_for(self, budget: RetryBudget) -> bool:
        """Whether this is the budget that it takes from."""
        return self._budget is budget

    def end(self) -> None:
        """It is not in flight any more; a second time does nothing."""
        if self._is_open:
            self._is_open = False
            self._budget.give_back()

    def cancel(self) -> None:
        """It was never sent."""
        if self._is_open:
            self._bucket.refund(self.tokens)
        self.end()


class Spending:
    """US dollars by key on the present UTC day, `int(wall // 86400)`; another day forgets them all.

    As many entries as the config has keys.
    """

    __slots__ = ("_day", "_usd")

    def __init__(self) -> None:
        self._day = 0
        self._usd: dict[str, float] = {}

    def spent(self, key: str, day: int) -> float:
        """What the key has spent that day."""
        return self._usd.get(key, 0.0) if day == self._day else 0.0

    def add(self, key: str, usd: float, day: int) -> None:
        """Counts money; less than 0: a correction of what was counted before."""
        if day != self._day:
            self._day = day
            self._usd.clear()
        self._usd[key] = max(0.0, self._usd.get(key, 0.0) + usd)


@dataclass(slots=True)
class Reserved:
    """US dollars of a key's budget that a call has taken ahead, on a UTC day; more with each attempt that needs more.

    Copies of a call, which make its attempts elsewhere, have the same one; the call gives it back.
    """

    day: int
    usd: float
    is_charged: bool = False
    """All of it is spent when the call ends, if not more: what its answer will use is not known then."""


@dataclass(frozen=True, slots=True)
class Price:
    """What an attempt may cost, in US dollars: reckoned with `most`, where others run beside it, and `usual`."""

    most: float
    usual: float


FREE = Price(0.0, 0.0)


def price_of(
    input_usd: float, output_usd: float, usual_tokens: int, max_tokens: int | None, budget_usd: float, *, is_known: bool
) -> Price:
    """The price of a call whose input costs `input_usd`, and each token of its answer `output_usd`.

    As long as it is not known how long answers are, a call is reckoned with the bound that its caller has set. From then on
    with what is usual (a high percentile), but so much of the bound as is a small part of the budget: a caller whose answers
    are short for a while cannot send many long ones at once.
    """
    bound = UNSEEN_OUTPUT_TOKENS if max_tokens is None else max_tokens
    usual = input_usd + min(bound, usual_tokens) * output_usd
    worst = input_usd + bound * output_usd
    if not is_known:
        return Price(worst, usual)
    if max_tokens is None:
        usual = input_usd + usual_tokens * output_usd
    return Price(max(usual, min(worst, OF_BUDGET * budget_usd)), usual)


def fits_budget(budget_usd: float, spent_usd: float, reserved_usd: float, price: Price) -> bool:
    """Whether a call may go beside what is spent and what calls in flight have reserved (0.0: none is in flight).

    Alone it is reckoned with what is usual, and the first call of a day may go whatever it costs.
    """
    if reserved_usd > 0:
        return spent_usd + reserved_usd + price.most <= budget_usd
    return spent_usd <= 0 or spent_usd + min(price.most, price.usual) <= budget_usd


def allows_spending(budget_usd: float | None, spent_usd: float, extra_usd: float) -> bool:
    """Whether `extra_usd` more may be spent; what costs nothing always may. None: no budget."""
    return budget_usd is None or extra_usd <= 0 or spent_usd + extra_usd <= budget_usd


def attempts_by_cost(rules: Sequence[CostRule], usd: float | None, otherwise: int) -> int:
    """The attempts of the first rule whose range, its lower end included, has the price; `otherwise`: none, or no price."""
    if usd is None:
        return otherwise
    for rule in rules:
        is_dear = rule.above_usd is None or usd >= rule.above_usd
        if is_dear and (rule.below_usd is None or usd < rule.below_usd):
            return rule.attempts
    return otherwise


def cost_usd(rates: Rates | None, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float | None:
    """What these tokens cost, `cached_tokens` being part of the input; None: not priced."""
    if rates is None:
        return None
    fresh = input_tokens - cached_tokens
    return fresh * rates.input_usd + cached_tokens * rates.cached_input_usd + output_tokens * rates.output_usd
