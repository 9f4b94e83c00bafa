"""Budgets: retries next to first attempts, tokens that only successes bring back, money by key and day, attempts by price."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.core.balancing import CostRule, Retries
from gateway.core.ledger import usage_usd
from gateway.core.retry_budgets import (
    RetryBudget,
    RetryTokens,
    Spending,
    allows_spending,
    attempts_by_cost,
    dearest_usd,
)
from gateway.core.snapshot import Rates
from gateway.core.types import Usage, UsageParts
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)
DEFAULT = Retries()
CAPACITY = DEFAULT.tokens
RETRY, TIMEOUT = DEFAULT.retry_tokens, DEFAULT.timeout_tokens
DAY = 20_000


@rows(
    ("active", "percent", "min_concurrent", "most"),
    [
        pytest.param(0, 20.0, 3, 3, id="three in any case"),
        pytest.param(15, 20.0, 3, 3, id="a fifth is three"),
        pytest.param(19, 20.0, 3, 3, id="not rounded up"),
        pytest.param(20, 20.0, 3, 4, id="a fifth is four"),
        pytest.param(1000, 20.0, 3, 200, id="a fifth of many"),
        pytest.param(1000, 0.0, 2, 2, id="the minimum alone"),
        pytest.param(5, 0.0, 0, 0, id="none at all"),
        pytest.param(7, 100.0, 0, 7, id="all of them"),
    ],
)
def test_so_many_retries_may_be_in_flight(active: int, percent: float, min_concurrent: int, most: int) -> None:
    """The larger of the share and the minimum, exactly; one that ends makes room for one."""
    budget = RetryBudget()

    while budget.allows(active, percent, min_concurrent):
        budget.take()

    assert budget.in_flight == most
    if most:
        budget.give_back()
        assert budget.allows(active, percent, min_concurrent)


@BOUNDED
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200)), max_size=100), st.floats(0.0, 100.0), st.integers(0, 10))
def test_retries_in_flight_never_exceed_the_budget_when_one_is_taken(
    course: list[tuple[bool, int]], percent: float, min_concurrent: int
) -> None:
    """However the number of active calls moves; and whoever is refused would have exceeded it."""
    budget = RetryBudget()

    for wants, active in course:
        most = max(min_concurrent, active * percent / 100)
        if not wants:
            if budget.in_flight:
                budget.give_back()
        elif budget.allows(active, percent, min_concurrent):
            budget.take()
            assert budget.in_flight <= most + 1e-9
        else:
            assert budget.in_flight + 1 > most - 1e-9


def test_an_outage_spends_the_tokens_and_a_hundred_retries_are_all() -> None:
    """500 tokens at 5 each; timeouts at 10 are half as many."""
    for cost, most in ((RETRY, 100), (TIMEOUT, 50)):
        tokens, retries = RetryTokens(), 0
        while tokens.allows(cost, CAPACITY):
            tokens.take(cost)
            retries += 1

        assert retries == most
        assert tokens.level(CAPACITY) == 0.0


def test_successes_bring_the_tokens_back() -> None:
    """One each; after a retry what it took."""
    tokens = RetryTokens()
    while tokens.allows(RETRY, CAPACITY):
        tokens.take(RETRY)

    for _ in range(4):
        tokens.refund()
    assert not tokens.allows(RETRY, CAPACITY)

    tokens.refund()
    assert tokens.allows(RETRY, CAPACITY)

    tokens.take(RETRY)
    tokens.refund(taken=RETRY)
    assert tokens.level(CAPACITY) == 5.0


def test_a_smaller_capacity_leaves_nothing_and_a_larger_one_more() -> None:
    """A reload changes the numbers; what is spent stays spent."""
    tokens = RetryTokens()
    for _ in range(20):
        tokens.take(RETRY)

    assert tokens.level(CAPACITY) == 400.0
    assert tokens.level(50.0) == 0.0
    assert not tokens.allows(RETRY, 50.0)
    assert tokens.allows(RETRY, 105.0)


class Bucket(RuleBasedStateMachine):
    """Retries and successes in any order; each retry is refunded at most once."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = RetryTokens()
        self.taken: list[float] = []

    @rule(cost=st.sampled_from([RETRY, TIMEOUT, 137.0]))
    def retry(self, cost: float) -> None:
        """Taken only when allowed."""
        level = self.tokens.level(CAPACITY)
        assert self.tokens.allows(cost, CAPACITY) == (cost <= level)
        if cost <= level:
            self.tokens.take(cost)
            self.taken.append(cost)
            assert self.tokens.level(CAPACITY) == level - cost

    @rule()
    def succeed(self) -> None:
        """At the first attempt."""
        level = self.tokens.level(CAPACITY)
        self.tokens.refund()
        assert self.tokens.level(CAPACITY) == min(CAPACITY, level + 1)

    @precondition(lambda self: self.taken)
    @rule()
    def succeed_after_a_retry(self) -> None:
        """It has back what it took, at most a full bucket."""
        level, taken = self.tokens.level(CAPACITY), self.taken.pop()
        self.tokens.refund(taken)
        assert self.tokens.level(CAPACITY) == min(CAPACITY, level + taken)

    @invariant()
    def stays_within_bounds(self) -> None:
        """Never above the capacity, never below nothing."""
        assert 0.0 <= self.tokens.level(CAPACITY) <= CAPACITY


TestBucket = Bucket.TestCase
TestBucket.settings = settings(deadline=None, stateful_step_count=50)


def test_money_is_counted_by_key_and_day() -> None:
    """Each key for itself, and from midnight anew."""
    spending = Spending()
    spending.add("web", 1.5, DAY)
    spending.add("web", 2.0, DAY)
    spending.add("nightly", 7.0, DAY)

    assert spending.spent("web", DAY) == 3.5
    assert spending.spent("nightly", DAY) == 7.0
    assert spending.spent("other", DAY) == 0.0
    assert spending.spent("web", DAY + 1) == 0.0

    spending.add("web", 0.25, DAY + 1)
    assert spending.spent("web", DAY + 1) == 0.25
    assert spending.spent("nightly", DAY + 1) == 0.0


@pytest.mark.parametrize("days", [1, -1, 366])
def test_a_time_that_is_set_and_set_back_gives_no_budget_anew(days: int) -> None:
    """What was spent on the day is known again; on the other day, too, as long as it is the last one that was counted."""
    spending = Spending()
    spending.add("web", 9.0, DAY)
    spending.add("web", 1.0, DAY + days)

    assert [spending.spent("web", day) for day in (DAY, DAY + days)] == [9.0, 1.0]
    spending.add("web", 0.5, DAY)
    assert [spending.spent("web", day) for day in (DAY, DAY + days)] == [9.5, 1.0]


def test_a_reservation_is_corrected() -> None:
    """Less than nothing is never spent, whenever the correction comes."""
    spending = Spending()
    spending.add("web", 2.0, DAY)
    spending.add("web", -0.5, DAY)
    assert spending.spent("web", DAY) == 1.5

    spending.add("web", -1.5, DAY + 1)
    assert spending.spent("web", DAY + 1) == 0.0


@rows(
    ("budget_usd", "extra_usd", "is_allowed"),
    [
        pytest.param(None, 1e9, True, id="no budget"),
        pytest.param(20.0, 1.0, True, id="to the cent"),
        pytest.param(20.0, 1.01, False, id="a cent too much"),
        pytest.param(10.0, 0.01, False, id="more was spent than estimated"),
        pytest.param(10.0, 0.0, True, id="what costs nothing may go all the same"),
        pytest.param(0.0, 0.01, False, id="no money at all"),
    ],
)
def test_a_budget_bounds_what_a_key_spends(budget_usd: float | None, extra_usd: float, is_allowed: bool) -> None:
    """Of 19 dollars spent."""
    assert allows_spending(budget_usd, 19.0, extra_usd) is is_allowed


@BOUNDED
@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.0, 5.0), st.integers(0, 1)), max_size=60))
def test_nobody_spends_more_than_its_budget_a_day(course: list[tuple[str, float, int]]) -> None:
    """Where each asks before it spends; days only pass."""
    spending, day = Spending(), DAY

    for key, usd, days in course:
        day += days
        if allows_spending(10.0, spending.spent(key, day), usd):
            spending.add(key, usd, day)
        assert spending.spent(key, day) <= 10.0


@rows(
    ("usd", "attempts"),
    [
        pytest.param(None, 4, id="not priced"),
        pytest.param(0.0, 10, id="free"),
        pytest.param(0.00002, 10, id="an embedding"),
        pytest.param(0.0001, 5, id="the lower end counts"),
        pytest.param(0.001, 5, id="cheap"),
        pytest.param(0.01, 4, id="usual"),
        pytest.param(0.25, 2, id="at the edge"),
        pytest.param(5.0, 2, id="dear"),
    ],
)
def test_the_price_decides_how_many_attempts(usd: float | None, attempts: int) -> None:
    """By the built-in rules."""
    assert attempts_by_cost(DEFAULT.by_cost, usd, DEFAULT.attempts) == attempts


def test_the_first_rule_that_matches_counts() -> None:
    """And where none does, what is said otherwise."""
    rules = (CostRule(7, below_usd=1.0), CostRule(3, below_usd=2.0), CostRule(1, above_usd=5.0))

    assert [attempts_by_cost(rules, usd, 4) for usd in (0.5, 1.5, 3.0, 9.0)] == [7, 3, 4, 1]
    assert attempts_by_cost((CostRule(6),), 0.1, 4) == 6
    assert attempts_by_cost((), 0.1, 4) == 4


@BOUNDED
@given(st.lists(st.floats(0.0, 10.0) | st.sampled_from([0.0001, 0.01, 0.25]), min_size=2, max_size=10))
def test_dearer_calls_never_get_more_attempts(prices: list[float]) -> None:
    """By the built-in rules, at every price, their edges included."""
    attempts = [attempts_by_cost(DEFAULT.by_cost, usd, DEFAULT.attempts) for usd in sorted(prices)]

    assert all(dearer <= cheaper for cheaper, dearer in pairwise(attempts))


def test_a_price_is_tokens_times_rates() -> None:
    """What was read from the cache at its own rate; unknown is not nothing."""
    rates = Rates(input_usd=2e-6, output_usd=8e-6, cached_input_usd=1e-6)

    assert usage_usd(rates, Usage(1000, 500)) == pytest.approx(0.006)
    assert usage_usd(rates, Usage(1000, 500, 400)) == pytest.approx(0.0056)
    assert usage_usd(rates, Usage(0, 0)) == 0.0
    assert usage_usd(None, Usage(1000, 500)) is None
    written = Rates(rates.input_usd, rates.output_usd, rates.cached_input_usd, 2 * rates.input_usd)
    assert usage_usd(written, Usage(1000, 0, cache_written=400)) == pytest.approx(1400 * rates.input_usd)
    assert usage_usd(rates, Usage(1000, 0, cache_written=400)) == usage_usd(rates, Usage(1000, 0))
    longer = replace(written, cache_write_1h_usd=3 * rates.input_usd)
    hourly = Usage(1000, 0, cache_written=400, cache_written_1h=100)
    assert usage_usd(longer, hourly) == pytest.approx(1500 * rates.input_usd)
    assert usage_usd(written, hourly) == usage_usd(written, Usage(1000, 0, cache_written=400))


def test_no_usage_costs_less_than_nothing() -> None:
    """Though it counts the same tokens as video and as cached, at prices below that of text."""
    rates = Rates(10.0, 10.0, 1.0, video_input_usd=1.0)

    assert usage_usd(rates, Usage(1000, 0, 900, parts=UsageParts(video_input=900))) == 0.0


def test_what_is_sold_by_other_units_has_no_price_in_tokens() -> None:
    """A transcription of unknown length is not free; a call that costs something by itself costs that."""
    whisper = Rates(0.0, 0.0, 0.0, audio_second_usd=1e-4, least_audio_s=10.0, prices_tokens=False)

    assert usage_usd(whisper, Usage(100, 50)) is None
    assert usage_usd(whisper, Usage(100, 50, parts=UsageParts(audio_s=60.0))) == pytest.approx(0.006)
    assert usage_usd(whisper, Usage(0, 0, parts=UsageParts(audio_s=1.0))) == pytest.approx(0.001)
    assert usage_usd(replace(whisper, request_usd=0.5), Usage(0, 0)) == 0.5


def test_a_price_is_that_of_the_tier_and_of_the_length() -> None:
    """More input than the bound puts all tokens at the other price; a tier that has no price of its own is the usual one."""
    dear = Rates(2.0, 20.0, 0.2)
    flex = Rates(0.5, 5.0, 0.05, above=((100, Rates(1.0, 10.0, 0.1)),))
    rates = Rates(1.0, 10.0, 0.1, above=((100, dear),), by_tier={"flex": flex})

    assert usage_usd(rates, Usage(100, 1)) == pytest.approx(110)
    assert usage_usd(rates, Usage(101, 1)) == pytest.approx(222)
    assert usage_usd(rates, Usage(100, 1, tier="flex")) == pytest.approx(55)
    assert usage_usd(rates, Usage(101, 1, tier="flex")) == pytest.approx(111)
    assert usage_usd(rates, Usage(100, 1, tier="default")) == pytest.approx(110)


def test_the_dearest_price_that_a_call_may_meet_is_reserved() -> None:
    """Its own tier or the usual one, its length, the price that follows soon, and sound or pictures where they are made."""
    flex, priority = Rates(0.5, 5.0, 0.0), Rates(2.0, 20.0, 0.0)
    rates = Rates(1.0, 10.0, 0.1, above=((100, Rates(4.0, 12.0, 0.1)),), by_tier={"flex": flex, "priority": priority})

    assert dearest_usd(rates, 100) == (100.0, 10.0)
    assert dearest_usd(rates, 101) == (404.0, 12.0)
    assert dearest_usd(rates, 100, "flex") == (100.0, 10.0)
    assert dearest_usd(rates, 100, "priority") == (200.0, 20.0)
    assert dearest_usd(replace(rates, soon=Rates(3.0, 6.0, 0.3)), 100) == (300.0, 10.0)
    assert dearest_usd(Rates(1.0, 2.0, 0.1, request_usd=7.0), 100) == (107.0, 2.0)
    assert dearest_usd(Rates(1.0, 2.0, 0.1, image_output_usd=9.0), 100) == (100.0, 9.0)


def test_requests_of_one_call_are_priced_by_the_length_of_each() -> None:
    """A summary and the answer behind it are two; a search is billed once, beside them."""
    rates = Rates(1.0, 10.0, 0.1, search_usd=0.5, request_usd=0.25)
    rates = replace(rates, above=((100, replace(rates, input_usd=2.0, output_usd=20.0)),))
    summary, answer = Usage(90, 5), Usage(20, 3)
    usage = Usage(110, 8, parts=UsageParts(searches=1), steps=(summary, answer))
    assert usage_usd(rates, usage) == pytest.approx(110 + 80 + 0.75)
    assert usage_usd(rates, replace(usage, steps=())) == pytest.approx(220 + 160 + 0.75)
    longer = Usage(170, 8, parts=UsageParts(searches=1), steps=(replace(summary, input=150), answer))
    assert usage_usd(rates, longer) == pytest.approx(300 + 100 + 20 + 30 + 0.75)
