"""How a target is doing: its breaker and its account's, together."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.health.detector import BreakerRules, Suspicion
from gateway.core.health.target_health import LONG_S, PROBE_PATIENCE_S, Account, Doubt, Permit, TargetHealth

RULES = BreakerRules(consecutive_failures=3, open_s=10.0, jitter_percent=0.0, probes=2, ramp_s=5.0)
BACKGROUND, INTERACTIVE = 3, 1
NOW = 1000.0


def new_vitals(account: Account | None = None, name: str = "p/m") -> TargetHealth:
    return TargetHealth(name, account or Account("p", RULES, NOW), RULES, NOW, None)


def fail(health: TargetHealth, times: int, now: float = NOW) -> None:
    for _ in range(times):
        health.failed(health.take(now), now, 0.0, "timeout")


def test_a_healthy_target_is_clear() -> None:
    """That is all the hot path has to ask."""
    health = new_vitals()

    assert health.is_clear
    assert health.admit(NOW, INTERACTIVE) == 0.0
    assert health.is_open_to(INTERACTIVE, NOW)
    assert health.probe_at(NOW) == NOW


def test_an_open_target_tells_when_it_is_tried_again() -> None:
    """Calls are let through again as probes, the lowest lane first."""
    health = new_vitals()
    fail(health, 3)

    assert not health.is_clear
    assert health.admit(NOW, INTERACTIVE) == pytest.approx(10.0)
    assert health.probe_at(NOW) == pytest.approx(NOW + 10)
    assert not health.is_open_to(INTERACTIVE, NOW)
    assert health.is_open_to(INTERACTIVE, NOW + 10 - PROBE_PATIENCE_S)
    assert health.admit(NOW + 10, BACKGROUND) == 0.0
    assert health.admit(NOW + 10, INTERACTIVE) == pytest.approx(0.2)


def test_while_a_probe_is_out_others_wait_for_it() -> None:
    """Nobody can say how long; who cannot wait goes elsewhere."""
    health = new_vitals()
    fail(health, 3)
    now = NOW + 11
    health.admit(now, BACKGROUND)
    health.take(now)

    assert health.admit(now, BACKGROUND) is None
    assert not health.is_open_to(BACKGROUND, now)


def test_an_open_account_closes_all_of_its_targets() -> None:
    """The later of the two is waited for, and the account's reason is told."""
    account = Account("p", RULES, NOW)
    one, other = new_vitals(account), new_vitals(account, "p/n")
    account.breaker.trip("its credential is refused", NOW, 0.0)

    for health in (one, other):
        assert health.admit(NOW, INTERACTIVE) == pytest.approx(10.0)
        assert health.reason == "account p: its credential is refused"
    fail(one, 3, NOW)
    assert one.probe_at(NOW) == pytest.approx(NOW + 10)


def test_one_probe_speaks_for_the_target_and_its_account() -> None:
    """A success there closes both, by and by."""
    account = Account("p", RULES, NOW)
    account.is_refused = True
    account.breaker.trip("its credential is refused", NOW, 0.0)
    health = new_vitals(account)

    for step in range(2):
        now = NOW + 11 + step
        assert health.admit(now, BACKGROUND) == 0.0
        health.succeeded(health.take(now), now, None)

    assert account.breaker.state == "closed"
    assert not account.is_refused


def test_a_failed_probe_opens_both_again() -> None:
    """Whoever was half open."""
    account = Account("p", RULES, NOW)
    account.breaker.trip("all 2 targets in use are open", NOW, 0.0)
    health = new_vitals(account)
    fail(health, 3)
    now = NOW + 11
    assert health.admit(now, BACKGROUND) == 0.0

    health.failed(health.take(now), now, 0.0, "timeout")

    assert (health.breaker.state, account.breaker.state) == ("open", "open")


def test_what_is_set_by_hand_waits_for_a_hand() -> None:
    """It is never left by itself."""
    health = new_vitals()
    health.breaker.force("drained", NOW)

    assert health.admit(NOW + 1e6, BACKGROUND) == inf
    assert health.probe_at(NOW) == inf
    assert not health.is_open_to(BACKGROUND, NOW + 1e6)
    assert health.reason == "drained by hand"


def test_a_ramp_is_open_to_everybody() -> None:
    """Closed, but not all at once: it is a matter of rates, and worth waiting for."""
    health = new_vitals()
    fail(health, 3)
    now = NOW + 12
    for _ in range(2):
        health.admit(now, BACKGROUND)
        health.succeeded(health.take(now), now, None)

    assert health.breaker.state == "closed"
    assert not health.is_clear
    for _ in range(20):
        health.take(now)
    assert (health.wait_s(now, INTERACTIVE) or 0.0) > 0
    assert health.is_open_to(INTERACTIVE, now)
    assert health.admit(now + RULES.ramp_s, INTERACTIVE) == 0.0
    assert health.is_clear


def test_permits_of_before_an_ejection_count_no_more() -> None:
    """Calls that were under way when it opened say nothing of the present."""
    account = Account("p", RULES, NOW)
    health = new_vitals(account)
    early = [health.take(NOW) for _ in range(5)]
    fail(health, 3)

    for permit in early[:3]:
        health.failed(permit, NOW + 1, 0.0, "timeout")
    health.succeeded(early[3], NOW + 1, None)
    health.forget(early[4], NOW + 1)

    assert health.breaker.ejections == 1
    assert health.breaker.state == "open"


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_every_permit_that_is_given_back_leaves_nothing(seed: int) -> None:
    """In any order and with any news; and probes out are never more than allowed, of the target and of its account."""
    draw = Random(seed)
    account = Account("p", RULES, NOW)
    pair = [new_vitals(account), new_vitals(account, "p/n")]
    out: list[tuple[TargetHealth, Permit]] = []
    now = NOW
    for _ in range(200):
        now += draw.choice([0.0, 0.01, 1.0, 8.0])
        health = draw.choice(pair)
        fate = draw.random()
        if fate < 0.02:
            account.breaker.trip("its credential is refused", now, draw.random())
        elif fate < 0.5 and health.admit(now, draw.randrange(4)) == 0.0:
            out.append((health, health.take(now)))
        elif out:
            _give_back(draw, *out.pop(draw.randrange(len(out))), now)
        for breaker in (pair[0].breaker, pair[1].breaker, account.breaker):
            assert 0 <= breaker.probes_out <= RULES.probes
    while out:
        _give_back(draw, *out.pop(), now)

    for breaker in (pair[0].breaker, pair[1].breaker, account.breaker):
        assert breaker.probes_out == 0


def _give_back(draw: Random, health: TargetHealth, permit: Permit, now: float) -> None:
    news = draw.randrange(3)
    if news == 0:
        health.succeeded(permit, now, None)
    elif news == 1:
        health.failed(permit, now, draw.random(), "timeout")
    else:
        health.forget(permit, now)


def test_what_serves_some_calls_is_better_than_nothing() -> None:
    """A target that opened with most of its calls served is trusted again where nothing else is left; a dead one is not."""
    shaky, dead = new_vitals(), new_vitals()
    for _ in range(6):
        shaky.succeeded(shaky.take(NOW), NOW, None)
    fail(shaky, 3)
    fail(dead, 3)
    assert [health.is_clear for health in (shaky, dead)] == [False, False]

    assert [health.close_in_panic(NOW) for health in (shaky, dead)] == [True, False]

    assert [health.is_clear for health in (shaky, dead)] == [True, False]


def test_what_a_person_has_opened_is_not_trusted_by_itself() -> None:
    """Nor what its account's breaker keeps closed."""
    health = new_vitals()
    health.breaker.force("open", NOW)

    assert not health.close_in_panic(NOW)


def test_where_nobody_was_served_lately_a_few_find_out() -> None:
    """As many as open the breaker, those that have failed there included; an answer ends the doubt, and so does the breaker."""
    health = new_vitals()
    health.responsiveness.trials.update({1: NOW - 3.0, 2: NOW - 1.0})
    assert health.doubt(NOW) is None
    fail(health, 1)
    assert health.doubt(NOW) == Doubt(NOW - 3.0, has_failed=False)

    health.responsiveness.whole_answer.observe(1.0, NOW)
    assert health.doubt(NOW) is None
    assert health.doubt(NOW + LONG_S) is not None
    fail(health, 1)
    assert health.doubt(NOW) is not None

    fail(health, 1)
    assert health.breaker.state == "open"
    assert health.doubt(NOW) is None


def test_a_silent_target_is_tried_by_one_that_has_failed_at_a_time() -> None:
    """Nobody is heard there: that is as good as a few failures."""
    health = new_vitals()
    health.responsiveness.suspicion = Suspicion("silent", NOW)
    assert health.doubt(NOW) is None
    health.responsiveness.trials[1] = NOW
    assert health.doubt(NOW) == Doubt(NOW, has_failed=True)


def test_without_a_breaker_nothing_is_in_doubt() -> None:
    """Nobody wants to know."""
    rules = BreakerRules(is_enabled=False)
    health = TargetHealth("p/m", Account("p", rules, NOW), rules, NOW, None)
    health.responsiveness.trials.update(dict.fromkeys(range(100), NOW))

    assert health.doubt(NOW) is None
