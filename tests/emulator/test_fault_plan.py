"""Which fault a call meets."""

from __future__ import annotations

import random

import pytest

from gateway.emulator.config import Fault, FaultPlan, parse_rule


def plan(*rules: str, seed: int = 0) -> FaultPlan:
    return FaultPlan([parse_rule(rule) for rule in rules], random.Random(seed), now=100.0)


def test_a_schedule_counts_from_the_start() -> None:
    """From second 10 up to second 20, not including it."""
    scheduled = plan("e503;from_s=10;to_s=20")

    met = [scheduled.pick("m", 100.0 + elapsed) for elapsed in (9.9, 10.0, 19.9, 20.0)]

    assert [fault is not None for fault in met] == [False, True, True, False]


def test_a_probability_is_met_and_repeats_with_the_seed() -> None:
    """10 % of 10,000 calls, the same ones for the same seed."""
    first, again, other = plan("e500=0.1", seed=1), plan("e500=0.1", seed=1), plan("e500=0.1", seed=2)

    draws = [[each.pick("m", 100.0) is not None for _ in range(10_000)] for each in (first, again, other)]

    assert 900 < sum(draws[0]) < 1100
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]


def test_a_script_is_used_up_one_entry_per_call_before_the_rules() -> None:
    """A model's own script, then `*`, then the rules; `ok` is an entry too."""
    scripted = plan("e500")
    scripted.script("a", [Fault("cut", 1), None])
    scripted.script("*", [Fault("reset")])

    met = [scripted.pick("a", 100.0) for _ in range(4)]

    assert met == [Fault("cut", 1), None, Fault("reset"), Fault("e500")]
    assert scripted.waiting() == {}


def test_a_rule_can_concern_one_model() -> None:
    """Other models are not hurt."""
    one = plan("e500;model=a")

    assert one.pick("a", 100.0) == Fault("e500")
    assert one.pick("b", 100.0) is None


def test_a_rule_can_concern_one_key() -> None:
    """One credential of several is refused."""
    one = plan("e401;key=sk-b")

    assert [one.pick("m", 100.0, key) for key in ("sk-a", "sk-b", "")] == [None, Fault("e401"), None]


def test_a_rule_can_flap() -> None:
    """On for a second, off for two, counted from its beginning."""
    flapping = plan("e503;from_s=10;to_s=16;on_s=1;off_s=2")

    met = [flapping.pick("m", 100.0 + elapsed) for elapsed in (9.0, 10.0, 10.9, 11.0, 12.9, 13.0, 14.0, 16.0)]

    assert [fault is not None for fault in met] == [False, True, True, False, False, True, False, False]


def test_several_rules_mix() -> None:
    """Each takes its share of the calls that those before it left."""
    mixed = plan("e500=0.2", "cut=0.25", "refuse;from_s=50")

    kinds = [fault.kind if fault else "ok" for fault in (mixed.pick("m", 200.0) for _ in range(10_000))]

    assert {kind: round(kinds.count(kind) / 1000) for kind in set(kinds)} == {"e500": 2, "cut": 2, "ok": 6}


def test_a_fault_of_the_whole_server_has_its_time_and_concerns_no_single_call() -> None:
    """The first rule that holds says how connections fare."""
    killed = plan("refuse;from_s=10;to_s=20", "blackhole;from_s=15", "e500;from_s=15")

    assert [killed.connection_fault(100.0 + elapsed) for elapsed in (9.0, 10.0, 19.9, 20.0)] == [
        None,
        "refuse",
        "refuse",
        "blackhole",
    ]
    assert killed.pick("m", 112.0) is None
    assert killed.pick("m", 116.0) == Fault("e500")


def test_a_script_is_bounded() -> None:
    """Too long a script is refused whole."""
    scripted = plan()

    with pytest.raises(ValueError, match="at most"):
        scripted.script("a", [None] * 100_001)
    assert scripted.waiting() == {}
