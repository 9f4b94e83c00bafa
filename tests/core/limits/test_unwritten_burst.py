"""How many requests of a configured rate go at once."""

from __future__ import annotations

import pytest

from gateway.core.limits import limit_table
from gateway.core.limits.bucket import Cost
from gateway.core.limits.headers import Learned, Reading
from gateway.core.limits.learning import AGAIN_S, UNREFUSED_S
from gateway.core.limits.limit_table import Limits, LimitSet

RPM = 600.0


def level(limits: LimitSet, now: float = 0.0) -> float:
    """What is free of the requests per minute."""
    return next(row.level for row in limits.table.rows(now) if row.name == "requests_per_min")


def limits_of(burst: float | None = None) -> LimitSet:
    """As a target of a config has them."""
    return LimitSet(Limits(requests_per_min=RPM, request_burst=burst, unstated_burst_s=10.0), 0.0)


def test_a_seconds_worth_goes_at_once_until_more_is_known_to() -> None:
    """A sixtieth of the minute's; then the rate."""
    limits = limits_of()

    assert level(limits) == 10
    limits.take(Cost(10), 0.0)
    assert limits.wait_s(Cost(), 0.0) == pytest.approx(60 / RPM)


def drain(limits: LimitSet, now: float) -> int:
    """So many calls go at one moment."""
    count = 0
    while limits.wait_s(Cost(), now) == 0.0:
        limits.take(Cost(), now)
        count += 1
    return count


def test_while_nobody_is_refused_more_go_up_to_ten_seconds_worth() -> None:
    """Twice as many more each time, as soon as those before have been let in."""
    limits, now, let_in = limits_of(), 0.0, 0
    went = [drain(limits, now)]
    assert not limit_table.grow_burst(limits, now, let_in, went[0])
    for _ in range(20):
        let_in += went[-1]
        if limit_table.grow_burst(limits, now, let_in, 0):
            went.append(drain(limits, now))

    assert went[:4] == [10, 1, 2, 4]
    assert sum(went) == 100
    assert max(more / sum(went[: place + 1]) for place, more in enumerate(went[1:])) <= 0.5
    assert not limit_table.grow_burst(limits, now + 1000, 1000, 0)


def test_whoever_was_not_refused_within_a_moment_was_let_in() -> None:
    """However long answers take."""
    limits, found = limits_of(), []
    for now in (0.0, 0.1, UNREFUSED_S - 0.01, UNREFUSED_S + 0.01):
        drain(limits, now)
        found.append(limit_table.grow_burst(limits, now, 0, 10))

    assert found == [False, False, False, True]


def test_nothing_grows_while_something_is_left() -> None:
    """Another limit is in the way."""
    limits = limits_of()
    limits.take(Cost(5), 0.0)

    assert not limit_table.grow_burst(limits, 0.0, 0, 0)
    assert not limit_table.grow_burst(limits, 1.0, 100, 0)
    assert level(limits, 1.0) == 10


def test_each_refusal_says_one_call_less_and_then_it_is_tried_seldom() -> None:
    """Not below a fifth of a second's worth; what goes on being refused has another cause."""
    limits = limits_of()
    drain(limits, 0.0)

    assert [limit_table.burst_refused(limits, 0.01, is_first=number == 0) for number in range(10)] == [True] * 8 + [
        False
    ] * 2
    assert level(limits, 5.0) == 2
    grown_at = []
    for tenth in range(50, 300):
        drain(limits, tenth / 10)
        if limit_table.grow_burst(limits, tenth / 10, 0, 0):
            grown_at.append(tenth / 10)
            limit_table.burst_refused(limits, tenth / 10, is_first=True)
    assert grown_at == pytest.approx([AGAIN_S], abs=1.0)


def test_refusals_flight_after_flight_are_no_matter_of_the_burst() -> None:
    """A rate that is too high refuses however many go at once."""
    limits = limits_of()

    found = [limit_table.burst_refused(limits, number / 10, is_first=True) for number in range(5)]

    assert found == [True, True, True, False, False]


def test_what_another_replica_has_found_holds_here() -> None:
    """And is not tried again at once."""
    limits = limits_of()

    limit_table.adopt_burst(limits, 4.0, 0.0)

    assert level(limits) == 4
    drain(limits, 0.0)
    assert not limit_table.grow_burst(limits, 1.0, 100, 0)


@pytest.mark.parametrize("burst", [5.0, 600.0])
def test_what_is_written_down_wins(burst: float) -> None:
    """More or less, and headers change nothing about it."""
    limits = limits_of(burst)
    assert level(limits) == burst

    limit_table.learn(limits, Learned(requests=Reading(RPM, 599.0)), 1.0)

    assert level(limits, 1.0) == pytest.approx(burst, abs=1)


def test_what_headers_say_is_left_goes_at_once() -> None:
    """The provider's bucket holds a minute's worth: so does ours, from its first answer on."""
    limits = limits_of()

    limit_table.learn(limits, Learned(requests=Reading(RPM, 599.0)), 1.0)

    assert level(limits, 1.0) >= 500
    limit_table.learn(limits, Learned(requests=Reading(RPM, 40.0)), 2.0)
    assert level(limits, 2.0) <= 41


def test_a_key_has_a_minutes_worth() -> None:
    """Its limit is the operator's promise to a caller, not a guess at a provider's."""
    assert level(LimitSet(Limits(requests_per_min=RPM), 0.0)) == RPM


def test_a_new_burst_is_in_force_at_once() -> None:
    """After a reload, and back."""
    limits = limits_of(600.0)

    limits.table.configure(Limits(requests_per_min=RPM, unstated_burst_s=10.0), 0.0)
    assert level(limits) == 10
    limits.table.configure(Limits(requests_per_min=RPM, request_burst=300.0, unstated_burst_s=10.0), 0.0)
    assert level(limits, 60.0) == 300


def test_a_lower_rate_in_headers_is_no_word_on_how_many_go_at_once() -> None:
    """Nor is it when another replica has heard it: what is left was not told."""
    limits = limits_of()

    limit_table.learn(limits, Learned(requests=Reading(RPM / 2)), 1.0)

    assert level(limits, 60.0) == 5
    limit_table.learn(limits, Learned(requests=Reading(RPM / 2, 299.0)), 60.0)
    assert level(limits, 120.0) == 300
