"""How many requests of a configured rate go at once."""

from __future__ import annotations

import pytest

from gateway.policy.hints import Learned, Reading
from gateway.policy.limits import Cost, LimitSet
from gateway.policy.snapshot import Limits

RPM = 600.0


def level(limits: LimitSet, now: float = 0.0) -> float:
    """What is free of the requests per minute."""
    return next(row.level for row in limits.rows(now) if row.name == "requests_per_min")


def limits_of(burst: float | None = None) -> LimitSet:
    """As a target of a config has them."""
    return LimitSet(Limits(requests_per_min=RPM, request_burst=burst, untold_burst_s=10.0), 0.0)


def test_ten_seconds_worth_go_at_once_where_nobody_says_more() -> None:
    """A sixth of the minute's; then the rate."""
    limits = limits_of()

    assert level(limits) == 100
    limits.take(Cost(100), 0.0)
    assert limits.wait_s(Cost(), 0.0) == pytest.approx(60 / RPM)


@pytest.mark.parametrize("burst", [5.0, 600.0])
def test_what_is_written_down_wins(burst: float) -> None:
    """More or less, and headers change nothing about it."""
    limits = limits_of(burst)
    assert level(limits) == burst

    limits.learn(Learned(requests=Reading(RPM, 599.0)), 1.0)

    assert level(limits, 1.0) == pytest.approx(burst, abs=1)


def test_what_headers_say_is_left_goes_at_once() -> None:
    """The provider's bucket holds a minute's worth: so does ours, from its first answer on."""
    limits = limits_of()

    limits.learn(Learned(requests=Reading(RPM, 599.0)), 1.0)

    assert level(limits, 1.0) >= 500
    limits.learn(Learned(requests=Reading(RPM, 40.0)), 2.0)
    assert level(limits, 2.0) <= 41


def test_a_key_has_a_minutes_worth() -> None:
    """Its limit is the operator's promise to a caller, not a guess at a provider's."""
    assert level(LimitSet(Limits(requests_per_min=RPM), 0.0)) == RPM


def test_a_new_burst_is_in_force_at_once() -> None:
    """After a reload, and back."""
    limits = limits_of(600.0)

    limits.configure(Limits(requests_per_min=RPM, untold_burst_s=10.0), 0.0)
    assert level(limits) == 100
    limits.configure(Limits(requests_per_min=RPM, request_burst=300.0, untold_burst_s=10.0), 0.0)
    assert level(limits, 60.0) == 300


def test_a_lower_rate_in_headers_is_no_word_on_how_many_go_at_once() -> None:
    """Nor is it when another replica has heard it: what is left was not told."""
    limits = limits_of()

    limits.learn(Learned(requests=Reading(RPM / 2)), 1.0)

    assert level(limits, 60.0) == 50
    limits.learn(Learned(requests=Reading(RPM / 2, 299.0)), 60.0)
    assert level(limits, 120.0) == 300
