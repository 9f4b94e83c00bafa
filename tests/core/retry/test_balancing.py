"""The order of a model's targets: every one once, tier by tier, and fair within a tier."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.balancing import Choice, Tiers, arrange
from gateway.core.health.times import FORGET_S, Latency
from gateway.core.snapshot import Target
from gateway.core.types import Clocks, Upstream
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)
CLOCKS = Clocks(1, 1, 1, 1, 1)
CHOICES: tuple[Choice, ...] = get_args(Choice)


@dataclass
class State:
    """Of one target."""

    in_flight: int = 0
    capacity: float | None = None
    latency: Latency = field(default_factory=Latency)


def target(name: str, weight: float = 1.0, order: int = 1) -> Target:
    return Target(name, "p", None, cast("Upstream", None), CLOCKS, weight=weight, order=order)


def measured(first_byte_s: float, in_flight: int = 0) -> State:
    """At time 0."""
    state = State(in_flight)
    state.latency.observe(first_byte_s, 0.0)
    return state


def names(targets: Sequence[Target]) -> str:
    return "".join([target.name for target in targets])


def finder(states: dict[str, State]) -> Callable[[Target], State]:
    return lambda target: states[target.name]


def firsts(targets: Sequence[Target], choice: Choice, states: dict[str, State], calls: int = 4000) -> Counter[str]:
    """How often each comes first where nothing changes between calls."""
    tiers, draw = Tiers(targets), random.Random(1).random
    return Counter([tiers.arrange(choice, finder(states), 0.0, draw)[0].name for _ in range(calls)])


@st.composite
def models(draw: st.DrawFn) -> tuple[list[Target], dict[str, State]]:
    """Up to eight targets in any tiers and any state."""
    targets, states = [], {}
    for name in "abcdefgh"[: draw(st.integers(0, 8))]:
        targets.append(target(name, draw(st.floats(0.01, 100.0)), draw(st.integers(1, 3))))
        states[name] = State(draw(st.integers(0, 50)), draw(st.none() | st.floats(0.5, 100.0)))
        for took_s in draw(st.lists(st.floats(0.0, 100.0), max_size=3)):
            states[name].latency.observe(took_s, 0.0)
    return targets, states


@BOUNDED
@given(models(), st.sampled_from(CHOICES), st.floats(0.0, 1000.0), st.integers())
def test_every_target_comes_once_and_none_before_a_lower_tier(
    model: tuple[list[Target], dict[str, State]], choice: Choice, now: float, seed: int
) -> None:
    """Whatever the choice and the state of the targets."""
    targets, states = model

    arranged = arrange(targets, choice, finder(states), now, random.Random(seed).random)

    orders = [target.order for target in arranged]
    assert sorted(names(arranged)) == sorted(names(targets))
    assert orders == sorted(orders)


@BOUNDED
@given(models(), st.sampled_from(CHOICES), st.integers())
def test_tiers_made_before_give_the_same_order(
    model: tuple[list[Target], dict[str, State]], choice: Choice, seed: int
) -> None:
    """What is prepared once decides as what is not."""
    targets, states = model

    prepared = Tiers(targets).arrange(choice, finder(states), 5.0, random.Random(seed).random)

    assert list(prepared) == list(arrange(targets, choice, finder(states), 5.0, random.Random(seed).random))


@pytest.mark.parametrize("choice", CHOICES)
def test_one_target_is_not_looked_at(choice: Choice) -> None:
    """Neither its state nor a draw: there is nothing to choose. The same where each tier has one."""
    one, two = (target("a"),), (target("b", order=2), target("a"))

    def fail(*_: object) -> State:
        raise AssertionError("asked")

    never = cast("Callable[[], float]", fail)
    assert arrange(one, choice, fail, 0.0, never) is one
    assert Tiers(one).arrange(choice, fail, 0.0, never) == one
    assert names(Tiers(two).arrange(choice, fail, 0.0, never)) == "ab"


def test_in_order_is_as_listed_within_a_tier() -> None:
    """Tiers first."""
    targets = [target("a", order=2), target("b"), target("c", order=2), target("d")]

    assert names(Tiers(targets).arrange("in_order", finder({}), 0.0, random.random)) == "bdac"


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.floats(0.2, 5.0), min_size=2, max_size=4), st.integers(0, 1000))
def test_the_first_place_is_shared_by_weight(weights: list[float], seed: int) -> None:
    """Within four standard deviations of each share."""
    targets = [target(name, weight) for name, weight in zip("abcd", weights, strict=False)]
    tiers, draw, calls = Tiers(targets), random.Random(seed).random, 2000

    counts = Counter([tiers.arrange("weighted", finder({}), 0.0, draw)[0].name for _ in range(calls)])

    for one in targets:
        share = one.weight / sum(weights)
        assert abs(counts[one.name] - share * calls) <= 4.5 * (calls * share * (1 - share)) ** 0.5 + 1


def test_who_is_left_shares_the_second_place_by_weight() -> None:
    """So the calls of a target that is down are spread as the weights say, not all to the next in the list."""
    tiers, draw = Tiers([target("a", 2.0), target("b", 3.0), target("c", 1.0)]), random.Random(1).random

    arranged = [names(tiers.arrange("weighted", finder({}), 0.0, draw)) for _ in range(12_000)]
    behind_a = Counter([order[1] for order in arranged if order[0] == "a"])

    assert behind_a["b"] / behind_a["c"] == pytest.approx(3.0, rel=0.1)


def test_the_least_loaded_is_the_one_with_the_most_room_for_its_size() -> None:
    """By capacity times weight; the others follow in turn."""
    targets = [target("a"), target("b"), target("c", weight=2.0)]
    states = {"a": State(4, 10.0), "b": State(19, 100.0), "c": State(5, 10.0)}

    assert names(Tiers(targets).arrange("least_loaded", finder(states), 0.0, random.random)) == "bca"


def test_the_largest_is_first_where_nobody_has_calls() -> None:
    """The call that is to be placed counts, too."""
    targets = [target("a"), target("b"), target("c")]
    states = {"a": State(0, 10.0), "b": State(0, 100.0), "c": State(0, 50.0)}

    assert names(Tiers(targets).arrange("least_loaded", finder(states), 0.0, random.random)) == "bca"


@pytest.mark.parametrize(
    ("capacities", "expected"),
    [
        pytest.param((None, None), {"a": 11, "b": 11}, id="nobody's is known: by calls alone"),
        pytest.param((10.0, 100.0), {"a": 2, "b": 20}, id="by capacity"),
        pytest.param((None, 100.0), {"a": 11, "b": 11}, id="who nobody bounds is as large as the other"),
    ],
)
def test_the_least_loaded_equalises(capacities: tuple[float | None, float | None], expected: dict[str, int]) -> None:
    """Calls that stay fill all targets to the same degree, from whatever state."""
    targets = [target("a"), target("b")]
    states = {"a": State(2, capacities[0]), "b": State(0, capacities[1])}
    tiers, draw = Tiers(targets), random.Random(1).random

    for _ in range(20):
        states[tiers.arrange("least_loaded", finder(states), 0.0, draw)[0].name].in_flight += 1

    assert {name: state.in_flight for name, state in states.items()} == expected


@rows("choice", ["least_loaded", "fastest"])
@rows("count", [2, 3, 5])
def test_equals_are_chosen_equally_often(choice: Choice, count: int) -> None:
    """At low load nobody is first by its place in the list."""
    targets = [target(name) for name in "abcde"[:count]]
    states = {target.name: measured(1.0) for target in targets}

    counts = firsts(targets, choice, states)

    assert all(abs(counts[one.name] - 4000 / count) < 200 for one in targets)


@BOUNDED
@given(models(), st.floats(0.0, 1000.0), st.integers())
def test_of_two_the_worse_is_never_first(model: tuple[list[Target], dict[str, State]], now: float, seed: int) -> None:
    """Power of two choices: of two targets the better one, of more never the worst."""
    targets, states = model
    one_tier = [target(one.name, one.weight) for one in targets]

    def expected_s(one: Target) -> float:
        state = states[one.name]
        if state.in_flight:
            return (state.latency.peak_ewma(now) or 3600.0) * (state.in_flight + 1) / one.weight
        return state.latency.hoped(now) / one.weight

    arranged = arrange(one_tier, "fastest", finder(states), now, random.Random(seed).random)

    if len(arranged) > 1:
        worst = max([expected_s(one) for one in arranged])
        assert expected_s(arranged[0]) < worst or expected_s(arranged[-1]) == worst
        assert all(expected_s(arranged[i]) <= max(map(expected_s, arranged[i + 1 :])) for i in range(len(arranged) - 1))


def test_the_fastest_is_first_often_and_draws_no_herd() -> None:
    """Of three the best comes first when it is one of the two drawn, the second best when it is not."""
    targets = [target("a"), target("b"), target("c")]
    states = {"a": measured(1.0), "b": measured(2.0), "c": measured(3.0)}

    counts = firsts(targets, "fastest", states)

    assert counts["a"] == pytest.approx(4000 * 2 / 3, rel=0.05)
    assert counts["b"] == pytest.approx(4000 / 3, rel=0.1)
    assert counts["c"] == 0


def test_weight_and_queue_count_among_the_fastest() -> None:
    """Twice as fast is outweighed by three times the calls, or by a third of the weight."""
    quick, slow = target("a"), target("b")

    assert firsts([quick, slow], "fastest", {"a": measured(1.0, 1), "b": measured(2.0, 1)}) == {"a": 4000}
    assert firsts([quick, slow], "fastest", {"a": measured(1.0, 5), "b": measured(2.0, 1)}) == {"b": 4000}
    heavy = target("b", weight=3.0)
    assert firsts([quick, heavy], "fastest", {"a": measured(1.0, 1), "b": measured(2.0, 1)}) == {"b": 4000}


def test_a_target_that_was_never_measured_is_tried_by_one_call() -> None:
    """Until it has answered the others go where answers are known to come from; and where nobody is known, to all."""
    targets = [target("a"), target("b")]

    assert firsts(targets, "fastest", {"a": measured(0.1), "b": State()}) == {"b": 4000}
    assert firsts(targets, "fastest", {"a": measured(30.0, 50), "b": State(1)}) == {"a": 4000}
    assert firsts(targets, "fastest", {"a": State(2), "b": State(1)}) == {"b": 4000}


@pytest.mark.parametrize("calls_per_s", [0.2, 20.0])
def test_a_slow_target_gets_little_but_not_nothing(calls_per_s: float) -> None:
    """So that somebody notices when it is quick again: then it gets its half."""
    targets = [target("a"), target("b")]
    states = {"a": State(), "b": State()}
    took_s = {"a": 0.5, "b": 5.0}

    def share_of_b(begins_at: float, seconds: float) -> float:
        tiers, draw = Tiers(targets), random.Random(1).random
        ends: list[tuple[float, str]] = []
        counts: Counter[str] = Counter()
        for i in range(int(seconds * calls_per_s)):
            now = begins_at + i / calls_per_s
            for end in sorted([end for end in ends if end[0] <= now]):
                ends.remove(end)
                states[end[1]].in_flight -= 1
                states[end[1]].latency.observe(took_s[end[1]], end[0])
            name = tiers.arrange("fastest", finder(states), now, draw)[0].name
            counts[name] += 1
            states[name].in_flight += 1
            ends.append((now + took_s[name], name))
        for end in ends:
            states[end[1]].in_flight -= 1
        return counts["b"] / counts.total()

    while_slow = share_of_b(0.0, 10 * FORGET_S)
    took_s["b"] = 0.5
    share_of_b(10 * FORGET_S, 10 * FORGET_S)
    once_quick = share_of_b(20 * FORGET_S, 10 * FORGET_S)

    assert 0.002 < while_slow < 0.15
    assert 0.25 < once_quick < 0.75
