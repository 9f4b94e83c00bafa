"""The limits on retries and money: of a target, of a key, and of one call.

Two limits on retries, each for what the other does not see: `RetryBudget` (Envoy) bounds how many are in flight next to
first attempts, `RetryTokens` (AWS SDKs, standard mode) how many go on failing. Their numbers come from `Retries` with each
question, so a reload changes them and keeps what is spent. It must not know calls or the loop that retries. Invariants:
retries in flight, when one is taken, are at most the larger of the two bounds; tokens stay between 0 and the capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from gateway.core.balancing import CostRule
from gateway.core.openai.media import NO_EXTRAS, Extras
from gateway.core.snapshot import Rates

UNSEEN_OUTPUT_TOKENS = 4096
"""The output tokens reckoned with where the caller sets no bound and none of the model's answers has been seen."""
SEEN_ANSWERS = 5
"""The length of a model's answers counts as known after this number of answers."""
OF_BUDGET = 0.1
"""A call whose usual price is known reserves at most this part of the budget, unless its usual price is higher."""
TOKENS_PER_S = 5.0
"""The retry tokens that a second gives back, whatever else happens."""
SUCCESS_TOKENS = 1.0
"""The retry tokens that a success without retries gives back."""


class RetryBudget:
    """The retries in flight at one target: a share of the calls in flight there, and a few in any case."""

    __slots__ = ("in_flight",)

    def __init__(self) -> None:
        self.in_flight = 0

    def allows(self, active: int, percent: float, min_concurrent: int) -> bool:
        """Returns whether one more retry may start while `active` calls are in flight, retries among them."""
        return self.in_flight < min_concurrent or (self.in_flight + 1) * 100 <= percent * active

    def take(self) -> None:
        """Counts a retry that starts."""
        self.in_flight += 1

    def give_back(self) -> None:
        """Counts a retry that has ended, successful or not; to be called once for each `take`."""
        self.in_flight -= 1


class RetryTokens:
    """One target's bucket of retry tokens: retries empty it, successes fill it, and time a little."""

    __slots__ = ("_filled_at", "spent")

    def __init__(self) -> None:
        self.spent = 0.0
        """The tokens taken and not given back yet."""
        self._filled_at = -inf

    def fill(self, now: float) -> None:
        """Gives back what time does: with nothing left, about one retry a second may go, so none waits for ever."""
        # The first look only sets the clock: since -inf all would be given back.
        if self.spent and self._filled_at > -inf:
            self.spent = max(0.0, self.spent - (now - self._filled_at) * TOKENS_PER_S)
        self._filled_at = now

    def level(self, capacity: float) -> float:
        """Returns the tokens left of `capacity`."""
        return max(0.0, capacity - self.spent)

    def allows(self, cost: float, capacity: float) -> bool:
        """Returns whether a retry of this cost may start."""
        return self.spent + cost <= capacity

    def take(self, cost: float) -> None:
        """Takes the tokens of a retry that starts."""
        self.spent += cost

    def refund(self, taken: float = 0.0) -> None:
        """Gives tokens back after a success; `taken` is what the call's retries took at this target, 0.0 if it had none."""
        if self.spent:
            self.spent = max(0.0, self.spent - (taken or SUCCESS_TOKENS))


class Retry:
    """One retry, from its booking to its end: its share of a target's two budgets."""

    __slots__ = ("_bucket", "_budget", "_is_open", "tokens")

    def __init__(self, budget: RetryBudget, bucket: RetryTokens, tokens: float) -> None:
        budget.take()
        bucket.take(tokens)
        self._budget = budget
        self._bucket = bucket
        self._is_open = True
        self.tokens = tokens
        """The retry tokens that a success of this retry gives back."""

    def is_for(self, budget: RetryBudget) -> bool:
        """Returns whether this retry counts in `budget`."""
        return self._budget is budget

    def end(self) -> None:
        """Ends the retry: it is no longer in flight. A second call does nothing."""
        if self._is_open:
            self._is_open = False
            self._budget.give_back()

    def cancel(self) -> None:
        """Ends a retry that was never sent, and gives its tokens back."""
        if self._is_open:
            # Before the end: once closed, no second call gives the tokens back again.
            self._bucket.refund(self.tokens)
        self.end()


class Spending:
    """US dollars spent by each key on one UTC day, `int(wall // 86400)`, and on the one that was counted before.

    Days do not only pass: where the machine's time is set ahead, and back again, no key may spend its budget anew. It has at
    most twice as many entries as the config has keys.
    """

    __slots__ = ("_before", "_day", "_usd")

    def __init__(self) -> None:
        self._day = 0
        self._usd: dict[str, float] = {}
        self._before: tuple[int, dict[str, float]] = (0, {})

    def spent(self, key: str, day: int) -> float:
        """Returns the US dollars that the key has spent on `day`."""
        if day == self._day:
            return self._usd.get(key, 0.0)
        return self._before[1].get(key, 0.0) if day == self._before[0] else 0.0

    def add(self, key: str, usd: float, day: int) -> None:
        """Adds to the key's spending on `day`; a negative amount corrects what was added before."""
        if day != self._day:
            known = self._before if day == self._before[0] else (day, {})
            self._before = self._day, self._usd
            self._day, self._usd = known
        self._usd[key] = max(0.0, self._usd.get(key, 0.0) + usd)


@dataclass(slots=True)
class Reserved:
    """US dollars of a key's budget that a call has reserved on one UTC day; it grows with the attempts that need more.

    Copies of a call, which make its attempts elsewhere, share this object; the call itself gives the money back.
    """

    day: int
    usd: float
    is_charged: bool = False
    """The whole reservation counts as spent when the call ends, because the usage of its answer will not be known then."""


@dataclass(frozen=True, slots=True)
class Price:
    """The price of an attempt in US dollars."""

    most: float
    """The US dollars that are reserved while it is in flight."""
    usual: float
    worst: float
    """The US dollars with answers as long as its caller allows; where that is not said, as `usual`."""


FREE = Price(0.0, 0.0, 0.0)


def dearest(prices: Sequence[Price]) -> Price:
    """Returns the price of an attempt at whichever of several targets is the dearest in each respect; FREE: there is none."""
    if not prices:
        return FREE
    return Price(
        max([one.most for one in prices]), max([one.usual for one in prices]), max([one.worst for one in prices])
    )


def price_of(
    input_usd: float,
    output_usd: float,
    usual_tokens: int,
    max_tokens: int | None,
    budget_usd: float,
    *,
    answers: int = 1,
    is_known: bool,
) -> Price:
    """Returns the price of a call whose input costs `input_usd`, and each token of its answers `output_usd`.

    `usual_tokens` are those of one answer, `max_tokens` is the bound of all `answers` together.

    Until the usual length of answers is known, a call is reckoned with the bound that its caller has set. From then on it is
    reckoned with the usual length (a high percentile), or with the part of the bound that is a small part of the budget, if
    that is more: a caller whose answers have been short for a while cannot send many long ones at once.
    """
    bound = UNSEEN_OUTPUT_TOKENS * answers if max_tokens is None else max_tokens
    usual_tokens *= answers
    usual = input_usd + min(bound, usual_tokens) * output_usd
    most = worst = input_usd + bound * output_usd
    if is_known:
        usual = usual if max_tokens is not None else input_usd + usual_tokens * output_usd
        most = max(usual, min(worst, OF_BUDGET * budget_usd))
    return Price(most, usual, usual if max_tokens is None else worst)


def fits_budget(
    budget_usd: float, spent_usd: float, reserved_usd: float, price: Price, *, allows_overspend: bool = False
) -> bool:
    """Returns whether a call fits beside the money that is spent and the money reserved by calls in flight (0.0: none is).

    A call alone may cost what is left, and nobody more. `allows_overspend`: it goes by its usual price, though it may cost
    more, and the first of a day whatever it costs.
    """
    left_usd = budget_usd - spent_usd - reserved_usd
    if not allows_overspend:
        return (max(price.most, price.worst) if reserved_usd > 0 else price.worst) <= left_usd
    if reserved_usd > 0:
        return price.most <= left_usd
    return spent_usd <= 0 or min(price.most, price.usual) <= left_usd


def allows_spending(budget_usd: float | None, spent_usd: float, extra_usd: float) -> bool:
    """Returns whether `extra_usd` more may be spent, which is always true of 0; `budget_usd` None: there is no budget."""
    return budget_usd is None or extra_usd <= 0 or spent_usd + extra_usd <= budget_usd


def attempts_by_cost(rules: Sequence[CostRule], usd: float | None, otherwise: int) -> int:
    """Returns the attempts of the first rule whose range includes the price; `otherwise` if none does or there is no price."""
    if usd is None:
        return otherwise
    for rule in rules:
        is_dear = rule.above_usd is None or usd >= rule.above_usd
        if is_dear and (rule.below_usd is None or usd < rule.below_usd):
            return rule.attempts
    return otherwise


def dearest_usd(rates: Rates, input_tokens: float, tier: str = "", extras: Extras = NO_EXTRAS) -> tuple[float, float]:
    """Returns the highest prices that a call of this size may meet: of its input, with what a call and its searches cost by
    themselves, and of a token of output.

    It may be served at the `tier` that it asks for or as usual, and be complete when the next price holds; what it makes may
    be sound or pictures, where the model makes any. `input_tokens` are of all input, the files of `extras` among them.
    """
    known = [one.at(input_tokens, word) for one in (rates, rates.soon) if one is not None for word in {"", tier}]
    made = [
        usd
        for one in known
        for usd in (
            one.output_usd,
            one.audio_output_usd,
            one.image_output_usd,
            one.video_output_usd,
            one.reasoning_usd,
        )
        if usd is not None
    ]
    return max([_dearest_input_usd(one, input_tokens, extras) for one in known]), max(made)


def _dearest_input_usd(rates: Rates, input_tokens: float, extras: Extras) -> float:
    """Returns the highest price of an input at these rates, with what a call and its searches cost by themselves.

    A price of writes for an hour shows that the provider writes for those who ask it to; others write unasked (OpenAI).
    """
    token_usd = rates.input_usd
    if rates.cache_write_usd is not None and (extras.writes_cache or rates.cache_write_1h_usd is None):
        token_usd = max(token_usd, rates.cache_write_usd)
    if rates.cache_write_1h_usd is not None and extras.writes_cache_1h:
        token_usd = max(token_usd, rates.cache_write_1h_usd)
    usd = input_tokens * token_usd + extras.searches * rates.search_usd + rates.request_usd
    for tokens, own_usd in (
        (extras.audio, rates.audio_input_usd),
        (extras.image + extras.document, rates.image_input_usd),
        (extras.video, rates.video_input_usd),
    ):
        if own_usd is not None and own_usd > token_usd:
            usd += tokens * (own_usd - token_usd)
    return usd
