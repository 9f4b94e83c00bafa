"""The breaker on a virtual clock: when it opens, what it lets through while it is open, and that it always comes back."""

from __future__ import annotations

import gc
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.core.health.breaker import LEAVE_S, Breaker
from gateway.core.health.detector import BreakerRules, account_rules
from gateway.fleet.breakers import FleetView
from tests.rows import rows
from tests.sweeps import sampled

BOUNDED = settings(max_examples=25, stateful_step_count=50, deadline=None, derandomize=True)
RULES = BreakerRules(open_s=10.0)
CRITICAL, INTERACTIVE, BATCH, BACKGROUND = range(4)


@dataclass
class Site:
    """Calls come at `per_s`; the target answers each after `takes_s`, and fails a share of `fails(sent_at)` of them."""

    per_s: float
    takes_s: float = 0.2
    fails: Callable[[float], float] = lambda _at: 0.0
    first_byte_s: Callable[[float], float] = lambda _at: 0.1
    rules: BreakerRules = RULES
    rank: int = BACKGROUND
    seed: int = 1
    now: float = 0.0
    sent: list[float] = field(default_factory=list)
    moves: list[tuple[float, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._ends: list[tuple[float, int, bool, float]] = []
        self.breaker = Breaker("site", self.rules, 0.0, lambda _name, to, why: self.moves.append((self.now, to, why)))

    def run(self, seconds: float) -> Site:
        """Traffic for so long."""
        ends_at = self.now + seconds
        next_at = self.now
        while next_at < ends_at:
            self._end_until(next_at)
            self.now = next_at
            self._arrive()
            next_at += 1 / self.per_s
        self._end_until(ends_at)
        self.now = ends_at
        return self

    def openings(self) -> int:
        return self.breaker.transitions["open"]

    def sent_between(self, begin: float, end: float) -> int:
        return sum(begin <= at < end for at in self.sent)

    def moved_at(self, to: str, after: float = 0.0) -> float:
        return next((at for at, state, _ in self.moves if state == to and at >= after), inf)

    def _arrive(self) -> None:
        breaker, now = self.breaker, self.now
        if not breaker.is_clear:
            wait_s = breaker.admit(now, self.rank)
            assert wait_s is None or wait_s >= 0
            if wait_s != 0.0:
                return
        self.sent.append(now)
        fails = self._draw.random() < self.fails(now)
        heapq.heappush(self._ends, (now + self.takes_s, breaker.take(now), fails, self.first_byte_s(now)))

    def _end_until(self, until: float) -> None:
        while self._ends and self._ends[0][0] <= until:
            self.now, permit, fails, first_byte_s = heapq.heappop(self._ends)
            if fails:
                self.breaker.failed(permit, self.now, self._draw.random(), "timeout")
            else:
                self.breaker.succeeded(permit, self.now, first_byte_s)


def between(begin: float, end: float, share: float = 1.0, otherwise: float = 0.0) -> Callable[[float], float]:
    """An outage."""
    return lambda at: share if begin <= at < end else otherwise


def fail(breaker: Breaker, times: int, now: float) -> None:
    for _ in range(times):
        breaker.failed(breaker.take(now), now, 0.0, "timeout")


def serve(breaker: Breaker, times: int, now: float, first_byte_s: float | None = 0.1) -> None:
    for _ in range(times):
        breaker.succeeded(breaker.take(now), now, first_byte_s)


def opened(rules: BreakerRules = RULES, now: float = 0.0) -> Breaker:
    breaker = Breaker("site", rules, now)
    fail(breaker, rules.consecutive_failures, now)
    assert breaker.state == "open"
    return breaker


def half_opened(rules: BreakerRules = RULES) -> tuple[Breaker, float]:
    breaker = opened(rules)
    now = breaker.probe_at
    assert breaker.admit(now, BACKGROUND) == 0.0
    return breaker, now


# What opens it


def test_five_failures_in_a_row_open_it() -> None:
    """Nobody needs more where failures are not usual; the reason says what happened."""
    breaker = Breaker("site", RULES, 0.0)
    fail(breaker, 4, 1.0)
    assert (breaker.state, breaker.is_clear) == ("closed", True)

    fail(breaker, 1, 1.0)

    assert (breaker.state, breaker.is_clear, breaker.opened_at) == ("open", False, 1.0)
    assert breaker.reason == "5 failures in a row (timeout)"


def test_a_success_breaks_the_row() -> None:
    """Failures in a row means in a row."""
    breaker = Breaker("site", replace(RULES, min_calls=100), 0.0)

    for _ in range(4):
        fail(breaker, 4, 1.0)
        serve(breaker, 3, 1.0)

    assert breaker.state == "closed"


def test_a_healthy_target_that_dies_is_left_after_five_failures() -> None:
    """However many successes came before, as long as not more calls than these may still be well."""
    site = Site(per_s=10, fails=between(300, inf)).run(310)

    failed = site.sent_between(300, site.moved_at("open") - site.takes_s + 1e-6)
    assert failed == 5


@pytest.mark.parametrize(
    ("per_s", "share"), sampled(product([500.0, 20.0, 0.5], [0.05, 0.1]), lambda per_s, share: share == 0.1)
)
def test_random_errors_do_not_open_it(share: float, per_s: float) -> None:
    """5 % or 10 % failures over 10^5 calls, from the first one on: at any traffic it is not opened once."""
    site = Site(per_s=per_s, fails=lambda _at: share).run(1e5 / per_s)

    assert len(site.sent) >= 1e5 - 1
    assert site.openings() == 0


@rows("seed", range(20))
def test_a_fresh_breaker_bears_random_errors(seed: int) -> None:
    """Before anything was learned, too."""
    assert Site(per_s=50, fails=lambda _at: 0.05, seed=seed).run(20).openings() == 0


def test_a_target_that_has_become_worse_for_good_is_borne_in_the_end() -> None:
    """A quarter failing opens it at first; once that is the rule it stays closed."""
    site = Site(per_s=10, fails=between(600, inf, 0.25)).run(2 * 3600)
    assert site.openings() > 0

    before = site.openings()
    site.run(3600)

    assert site.openings() == before


@rows(("per_s", "share"), [(500.0, 0.5), (500.0, 0.6), (20.0, 0.5), (20.0, 0.6), (1.0, 0.6)])
def test_half_of_the_calls_failing_opens_it_within_a_window(per_s: float, share: float) -> None:
    """Or more, after health."""
    well_s = max(120, 1200 / per_s)

    site = Site(per_s=per_s, fails=between(well_s, inf, share)).run(well_s + 60)

    assert well_s < site.moved_at("open") <= well_s + 60


def test_the_rate_opens_it_where_no_failures_are_in_a_row() -> None:
    """Two of three fail, never three in a row; the share and the count are the reason."""
    breaker = Breaker("site", RULES, 0.0)
    for second in range(10):
        fail(breaker, 2, float(second))
        serve(breaker, 1, float(second))

    assert breaker.state == "open"
    assert breaker.reason == "70 % of 20 calls failed in 10 s (timeout)"


def test_a_rate_of_few_calls_says_nothing() -> None:
    """Below the minimum of calls the rate is not looked at."""
    breaker = Breaker("site", replace(RULES, min_calls=100), 0.0)
    for _ in range(33):
        fail(breaker, 2, 1.0)
        serve(breaker, 1, 1.0)

    assert breaker.state == "closed"
    assert breaker.failure_rate(1.0) == pytest.approx(2 / 3)
    assert breaker.outcomes_in_window(1.0) == (99, 66)


def test_what_has_left_the_window_does_not_count() -> None:
    """Old failures are forgotten with their bucket."""
    breaker = Breaker("site", RULES, 0.0)
    for _ in range(4):
        fail(breaker, 4, 1.0)
        serve(breaker, 1, 1.0)
    assert breaker.failure_rate(59.0) == 0.8

    assert breaker.failure_rate(66.0) == 0.0


def test_what_is_usual_here_may_be_chance() -> None:
    """Where 15 % fail anyhow, 65 % of 20 calls may be chance, 65 % of 40 are not."""
    breaker = Breaker("site", RULES, 0.0)
    for second in range(800):
        fail(breaker, 3, float(second))
        serve(breaker, 17, float(second))
    assert breaker.baseline.failure_share == pytest.approx(0.15)
    breaker.failure_rate(900.0)

    for _ in range(7):
        fail(breaker, 2, 901.0)
        serve(breaker, 1, 901.0)
    assert breaker.is_clear

    for _ in range(7):
        fail(breaker, 2, 901.0)
        serve(breaker, 1, 901.0)
    assert breaker.state == "open"


def test_what_came_before_a_row_of_failures_is_learned() -> None:
    """10 % of a hundred calls; the row itself is not, nor anything while it is disabled."""
    shares = []
    for rules in (RULES, replace(RULES, is_enabled=False)):
        breaker = Breaker("site", rules, 0.0)
        for _ in range(10):
            fail(breaker, 1, 1.0)
            serve(breaker, 9, 1.0)
        fail(breaker, 20, 1.0)
        shares.append(breaker.baseline.failure_share)

    assert shares == pytest.approx([0.1, 0.0])


def test_calls_of_minutes_are_judged_over_a_longer_window() -> None:
    """Calls of five minutes, five a minute, two of three failing in turn: only a window longer than they are sees that."""
    outcomes = [index % 3 != 0 for index in range(1000)]
    breaker = Breaker("site", RULES, 0.0)
    for index in range(200):
        now = 12.0 * index
        breaker.succeeded(breaker.take(now - 300 if now > 300 else 0.0), now, 1.0)
    begin = 12.0 * 200

    for index, fails in enumerate(outcomes):
        now = begin + 12.0 * index
        permit = breaker.take(now - 300)
        if fails:
            breaker.failed(permit, now, 0.5, "timeout")
        else:
            breaker.succeeded(permit, now, 1.0)
        if breaker.state == "open":
            break

    assert breaker.state == "open"
    assert breaker.opened_at - begin <= 600
    assert breaker.reason == "52 % of 21 calls failed in 250 s (timeout)"


def test_healthy_calls_of_minutes_do_not_open_it() -> None:
    """A target whose calls all take five minutes, and whose first byte takes one, is well."""
    site = Site(per_s=2, takes_s=300.0, first_byte_s=lambda _at: 60.0).run(3 * 3600)

    assert site.openings() == 0


def test_slow_first_bytes_open_it() -> None:
    """Usually 0.5 s, now 30 s."""
    site = Site(per_s=20, first_byte_s=lambda at: 30.0 if at >= 600 else 0.5).run(660)

    assert 600 < site.moved_at("open") <= 660
    assert "calls got their first byte after more than 10 s" in site.moves[0][2]


def test_what_is_usually_slow_does_not_open_it() -> None:
    """A reasoning model's first byte comes after 40 s, now and then 80: four times its usual time is far from it."""
    site = Site(per_s=5, first_byte_s=lambda at: 80.0 if 600 < at < 1200 else 40.0).run(1800)

    assert site.openings() == 0


def test_slower_for_good_becomes_usual() -> None:
    """A target whose first byte comes after 15 s instead of 1 s from now on is not ejected for ever."""
    site = Site(per_s=5, first_byte_s=lambda at: 15.0 if at >= 600 else 1.0).run(3600)
    assert site.openings() > 0

    before = site.openings()
    site.run(3600)

    assert site.openings() == before


def test_an_outage_is_never_usual() -> None:
    """After days of 60 % failures they still open it."""
    site = Site(per_s=5, fails=lambda _at: 0.6).run(6 * 3600)
    before = site.openings()

    site.run(3600)

    assert site.openings() > before + 10
    assert site.breaker.baseline.failure_share <= 0.25


# Open


def test_a_dead_target_is_asked_a_few_times_a_minute() -> None:
    """500 calls a second for ten minutes: no minute after the opening sees more than ten."""
    site = Site(per_s=500, takes_s=0.05, fails=between(5, inf)).run(605)
    begin = site.moved_at("open")

    minutes = [site.sent_between(begin + 60 * k, begin + 60 * k + 60) for k in range(10)]

    assert max(minutes) <= 10
    assert min(minutes) >= 1


def test_the_open_time_doubles_up_to_its_cap() -> None:
    """10, 20, 40, 60, 60 s without jitter."""
    breaker, times = opened(replace(RULES, jitter_percent=0.0)), []
    for _ in range(5):
        times.append(breaker.probe_at - breaker.opened_at)
        now = breaker.probe_at
        assert breaker.admit(now, BACKGROUND) == 0.0
        breaker.failed(breaker.take(now), now + 1, 0.5, "timeout")

    assert times == [10, 20, 40, 60, 60]
    assert breaker.reason == "a probe failed (timeout)"
    assert breaker.ejections == 6


@given(u=st.floats(0, 1, exclude_max=True), percent=st.floats(0, 100))
@BOUNDED
def test_jitter_only_shortens_the_open_time(u: float, percent: float) -> None:
    """Never longer than promised, never shorter than the jitter allows."""
    breaker = Breaker("site", replace(RULES, jitter_percent=percent), 0.0)
    for _ in range(5):
        breaker.failed(breaker.take(0.0), 0.0, u, "timeout")

    assert 10 * (1 - percent / 100) - 1e-9 <= breaker.probe_at <= 10


def test_while_open_it_tells_the_time_of_the_probe() -> None:
    """So that whoever waits can be woken then."""
    breaker = opened(replace(RULES, jitter_percent=0.0))

    assert breaker.admit(4.0, BACKGROUND) == 6.0
    assert breaker.admit(10.0, BACKGROUND) == 0.0
    assert breaker.state == "half_open"


def test_health_is_rewarded() -> None:
    """An ejection is forgotten for each minute of health: the next one is as short as the first."""
    breaker, now = half_opened(replace(RULES, jitter_percent=0.0))
    for _ in range(3):
        serve(breaker, 1, now)
    assert breaker.ejections == 1

    assert breaker.ejections_at(now + 59) == 1
    assert breaker.ejections_at(now + 61) == 0
    breaker.trip("ill", now + 61, 0.0)
    assert breaker.probe_at == now + 61 + RULES.open_s

    fail(breaker, 5, now + 61)
    assert breaker.probe_at - breaker.opened_at == 10


def test_an_opening_soon_after_is_longer() -> None:
    """A target that flaps is left alone for longer each time."""
    breaker, now = half_opened(replace(RULES, jitter_percent=0.0))
    serve(breaker, 3, now)

    fail(breaker, 5, now + 5)

    assert breaker.probe_at - breaker.opened_at == 20


# Half open


def test_probes_grow_with_success() -> None:
    """One, two, three at a time; three successes close it."""
    breaker, now = half_opened(replace(RULES, probes=4))
    permits = [breaker.take(now)]
    assert breaker.admit(now, BACKGROUND) is None

    breaker.succeeded(permits.pop(), now, None)
    for _ in range(2):
        assert breaker.admit(now, BACKGROUND) == 0.0
        permits.append(breaker.take(now))
    assert breaker.admit(now, BACKGROUND) is None
    for _ in range(2):
        breaker.succeeded(permits.pop(), now, None)
    assert breaker.state == "half_open"

    serve(breaker, 1, now)

    assert (breaker.state, breaker.reason) == ("closed", "4 probes succeeded")


def test_the_least_urgent_calls_probe_first() -> None:
    """Each lane leaves the one below 0.1 s; when nobody came for longer, nobody waits."""
    breaker, now = half_opened()

    waits = [breaker.admit(now, rank) for rank in (CRITICAL, INTERACTIVE, BATCH, BACKGROUND)]
    later = [breaker.admit(now + 0.2, rank) for rank in (CRITICAL, INTERACTIVE, BATCH, BACKGROUND)]

    assert waits == pytest.approx([0.3, 0.2, 0.1, 0.0])
    assert later == pytest.approx([0.1, 0.0, 0.0, 0.0])
    assert opened().wait_s(100.0, CRITICAL) == 0.0


def test_a_forgotten_probe_frees_its_permit() -> None:
    """A 429 or a client who left says nothing: the next call probes."""
    breaker, now = half_opened()
    permit = breaker.take(now)
    assert breaker.admit(now, BACKGROUND) is None

    breaker.forget(permit, now + 1)

    assert breaker.state == "half_open"
    assert breaker.admit(now + 1, BACKGROUND) == 0.0


def test_calls_sent_before_the_opening_are_no_probes() -> None:
    """Their late ends neither close it, nor open it again, nor free a permit."""
    breaker = Breaker("site", RULES, 0.0)
    early = [breaker.take(0.0) for _ in range(9)]
    fail(breaker, 9, 1.0)
    now = breaker.probe_at
    assert breaker.admit(now, BACKGROUND) == 0.0
    probe = breaker.take(now)

    for permit in early[:3]:
        breaker.succeeded(permit, now, 0.1)
        breaker.failed(permit, now, 0.5, "timeout")
        breaker.forget(permit, now)
    assert (breaker.state, breaker.admit(now, BACKGROUND)) == ("half_open", None)
    breaker.succeeded(probe, now, 0.1)
    serve(breaker, 2, now)
    for permit in early[3:]:
        breaker.failed(permit, now, 0.5, "timeout")

    assert breaker.state == "closed"


def test_a_call_that_was_sent_all_the_same_while_open_is_no_probe() -> None:
    """Whoever goes without asking (nothing else is left) neither decides nor frees a permit."""
    breaker = opened()
    stray = breaker.take(1.0)
    breaker.admit(breaker.probe_at, BACKGROUND)
    breaker.take(breaker.probe_at)

    breaker.forget(stray, 11.0)
    breaker.failed(stray, 11.0, 0.5, "timeout")

    assert (breaker.state, breaker.admit(11.0, BACKGROUND)) == ("half_open", None)


def test_once_closed_it_starts_afresh() -> None:
    """The failures that opened it are forgotten: it takes as many again."""
    breaker, now = half_opened()
    serve(breaker, 3, now)

    fail(breaker, 4, now + 1)
    assert breaker.transitions["open"] == 1

    fail(breaker, 1, now + 1)
    assert breaker.transitions["open"] == 2


def test_a_blip_while_more_calls_are_out_is_borne() -> None:
    """200 calls fail within a second while 200 others are still out: these may all be well, and are."""
    assert Site(per_s=200, takes_s=2.0, fails=between(100, 101)).run(130).openings() == 0


@pytest.mark.parametrize("failures", [5, 40])
def test_failures_that_come_back_before_successes_are_no_run(failures: int) -> None:
    """Of 100 calls sent at once some fail fast; the others are still at work, and no reason to leave the target alone."""
    breaker = Breaker("site", RULES, 0.0)
    permits = [breaker.take(0.0) for _ in range(100)]

    for permit in permits[:failures]:
        breaker.failed(permit, 0.02, 0.5, "timeout")
    assert breaker.state == "closed"
    for permit in permits[failures:]:
        breaker.succeeded(permit, 2.0, None)

    assert breaker.state == "closed"


def test_once_most_of_a_burst_has_failed_it_opens() -> None:
    """When no more are out than have failed in a row, the rest is not waited for."""
    breaker = Breaker("site", RULES, 0.0)
    for permit in [breaker.take(0.0) for _ in range(100)][:51]:
        breaker.failed(permit, 0.02, 0.5, "timeout")

    assert breaker.state == "open"


@pytest.mark.parametrize("outage_s", [5, 60, 600])
def test_it_is_back_one_probe_interval_after_the_target(outage_s: float) -> None:
    """And the time that the probes take; then everything flows within the ramp."""
    site = Site(per_s=50, fails=between(60, 60 + outage_s)).run(60 + outage_s + 90)
    healed_at = 60 + outage_s

    closed_at = site.moved_at("closed", healed_at)
    assert closed_at - healed_at <= RULES.max_open_s + 4 * site.takes_s

    site.run(RULES.ramp_s)
    assert site.breaker.is_clear


# The ramp


def test_traffic_grows_after_recovery() -> None:
    """From a few calls a second to the usual 100, doubled each second, ever more."""
    site = Site(per_s=100, fails=between(60, 65)).run(120)
    begin = site.moved_at("closed")

    seconds = [site.sent_between(begin + k, begin + k + 1) for k in range(12)]

    assert 3 <= seconds[0] <= 30
    assert seconds[:9] == sorted(seconds[:9])
    assert 40 <= seconds[1] <= 70
    assert seconds[11] == 100


def test_the_ramp_does_not_stall_low_traffic() -> None:
    """Two calls a second are let through at once, whatever the ramp; each lane the same."""
    site = Site(per_s=2, fails=between(60, 70), rank=CRITICAL).run(120)
    begin = site.moved_at("closed")

    assert site.sent_between(begin, begin + 10) == 20


def test_without_a_ramp_it_is_trusted_at_once() -> None:
    """`ramp: 0s`."""
    breaker, now = half_opened(replace(RULES, ramp_s=0.0))

    serve(breaker, 3, now)

    assert breaker.is_clear


# By hand, and by rules


def test_open_by_hand_stays_until_undone() -> None:
    """No probe goes, however long; then probes decide."""
    breaker = Breaker("site", RULES, 0.0)
    breaker.force("open", 1.0)

    assert (breaker.state, breaker.reason, breaker.is_by_hand) == ("open", "opened by hand", True)
    assert breaker.admit(1e6, BACKGROUND) == inf
    breaker.force(None, 2e6)
    assert (breaker.state, breaker.is_by_hand) == ("half_open", False)
    assert breaker.admit(2e6, BACKGROUND) == 0.0


def test_drained_lets_nothing_new_through() -> None:
    """Calls in flight end as they like; closing by hand trusts it at once."""
    breaker = Breaker("site", RULES, 0.0)
    permit = breaker.take(0.0)
    breaker.force("drained", 1.0)
    breaker.succeeded(permit, 2.0, 0.1)

    assert (breaker.state, breaker.admit(1e6, BACKGROUND)) == ("drained", inf)
    breaker.force("closed", 1e6)
    assert (breaker.state, breaker.is_clear, breaker.is_by_hand) == ("closed", True, False)
    breaker.force("open", 1e6)
    assert breaker.state == "open"


def test_closed_by_hand_it_forgets_what_was() -> None:
    """Its ejections, and the calls sent before: they are no evidence any more."""
    breaker = Breaker("site", RULES, 0.0)
    early = [breaker.take(0.0) for _ in range(5)]
    fail(breaker, 5, 1.0)

    breaker.force("closed", 2.0)
    for permit in early:
        breaker.failed(permit, 3.0, 0.0, "timeout")

    assert breaker.is_clear
    assert breaker.ejections == 0


def test_undoing_what_was_not_done_by_hand_does_nothing() -> None:
    """An opening for failures is not undone by it."""
    breaker = opened()

    breaker.force(None, 1.0)

    assert breaker.state == "open"


def test_its_owner_may_trip_it() -> None:
    """Whatever the shares, closed or half open, but not while it is open or held by hand; it comes back like from any other."""
    breaker = Breaker("site", RULES, 0.0)
    breaker.trip("its credential is refused", 1.0, 0.5)
    assert (breaker.state, breaker.reason, breaker.probe_at) == ("open", "its credential is refused", 10.0)

    breaker.trip("again", 2.0, 0.5)
    assert breaker.opened_at == 1.0
    breaker.force("drained", 3.0)
    breaker.trip("again", 4.0, 0.5)
    assert breaker.reason == "drained by hand"


def test_what_is_late_here_can_be_asked() -> None:
    """For failures that took so long: nothing known, the longest time; then four times the usual one, within bounds."""
    breaker = Breaker("site", RULES, 0.0)
    assert breaker.slow_after_s == 120.0

    serve(breaker, 50, 1.0, 5.0)
    serve(breaker, 1, 100.0, 5.0)

    assert breaker.slow_after_s == 20.0
    assert breaker.baseline.first_byte_s == 5.0


def test_disabled_it_never_opens_but_by_hand() -> None:
    """Disabling closes it; an operator's hand still holds."""
    breaker = opened()
    off = replace(RULES, is_enabled=False)

    breaker.configure(off, 1.0)
    assert breaker.is_clear
    fail(breaker, 100, 1.0)
    serve(breaker, 100, 1.0, 300.0)
    assert breaker.is_clear

    breaker.force("drained", 2.0)
    breaker.configure(off, 3.0)
    assert breaker.state == "drained"
    breaker.force(None, 4.0)
    assert breaker.is_clear


def test_a_reload_keeps_the_state() -> None:
    """Only the numbers change."""
    breaker, now = half_opened()
    breaker.configure(replace(RULES, probes=1), now)

    serve(breaker, 1, now)

    assert breaker.state == "closed"


def test_transitions_are_told_and_counted() -> None:
    """For metrics and the log, with the reason."""
    site = Site(per_s=10, fails=between(10, 12)).run(60)

    assert [to for _, to, _ in site.moves] == ["open", "half_open", "closed"]
    assert [why for _, _, why in site.moves] == [
        "5 failures in a row (timeout)",
        site.moves[1][2],
        "3 probes succeeded",
    ]
    assert site.moves[1][2].startswith("open for ")
    assert site.breaker.transitions == {"closed": 1, "open": 1, "half_open": 1, "drained": 0}


def test_pybreaker_holds_the_state_and_its_clock_never_moves_it() -> None:
    """Ours and its state agree; its own timer is years away. A breaker that is closed needs none."""
    breaker = opened()
    circuit = breaker._circuit

    assert circuit is not None
    assert circuit.current_state == "open"
    assert circuit.reset_timeout > 1e8
    breaker.admit(breaker.probe_at, BACKGROUND)
    assert breaker._circuit is circuit
    assert circuit.current_state == "half-open"
    serve(breaker, 3, breaker.probe_at)
    assert breaker.state == "closed"
    assert breaker._circuit is None


@rows("state", ["never opened", "open", "half open", "closed again", "drained"])
def test_a_breaker_that_is_dropped_is_gone_at_once(state: str) -> None:
    """Without the garbage collector: one that had to look for thousands of them would stop the loop."""
    gc.collect()
    breaker = Breaker("site", RULES, 0.0) if state == "never opened" else opened()
    if state in ("half open", "closed again"):
        breaker.admit(breaker.probe_at, BACKGROUND)
    if state == "closed again":
        serve(breaker, 3, breaker.probe_at)
    if state == "drained":
        breaker.force("drained", 100.0)

    breaker.retire()
    del breaker

    assert gc.collect() == 0


def test_an_account_bears_more_than_a_target() -> None:
    """The failures that open one of its targets do not open it."""
    breaker = Breaker("account", account_rules(RULES), 0.0)

    fail(breaker, 9, 1.0)
    assert breaker.is_clear

    fail(breaker, 1, 1.0)
    assert breaker.state == "open"


# Other replicas


def shared(rules: BreakerRules = RULES) -> tuple[Breaker, list[float]]:
    """One that has to ask for leave, and how often it has asked."""
    breaker, asked = Breaker("site", replace(rules, jitter_percent=0.0), 0.0), []
    breaker.ask_leave = lambda one: asked.append(one.probe_at)
    return breaker, asked


def due(rules: BreakerRules = RULES) -> tuple[Breaker, list[float], float]:
    """Its time is over, and it has asked."""
    breaker, asked = shared(rules)
    fail(breaker, rules.consecutive_failures, 0.0)
    now = breaker.probe_at
    assert asked == []
    assert breaker.admit(now, BACKGROUND) == pytest.approx(LEAVE_S)
    return breaker, asked, now


def test_it_asks_for_leave_to_probe_once_and_stays_open_until_it_has_it() -> None:
    """Its answer takes a moment: nobody is let through meanwhile, and nobody asks again."""
    breaker, asked, now = due()
    for rank in (CRITICAL, BACKGROUND):
        assert breaker.admit(now + 0.1, rank) == pytest.approx(LEAVE_S - 0.1)
    assert (breaker.state, len(asked)) == ("open", 1)

    assert FleetView(breaker).grant_leave(now + 0.15)

    assert (breaker.state, breaker.is_news) == ("half_open", False)
    assert breaker.admit(now + 0.15, BACKGROUND) == 0.0
    assert breaker.admit(now + 0.15, CRITICAL) == pytest.approx(0.15)  # its turn counts from when it was due


def test_leave_may_be_given_at_once() -> None:
    """Where nobody else can be asked: the very call that asks is the probe."""
    breaker, _ = shared()
    breaker.ask_leave = lambda one: FleetView(one).grant_leave(10.0)
    fail(breaker, 5, 0.0)

    assert breaker.admit(10.0, BACKGROUND) == 0.0
    assert breaker.state == "half_open"


def test_an_answer_that_is_lost_is_asked_for_again() -> None:
    """Nothing is waited for longer than it may take."""
    breaker, asked, now = due()

    assert breaker.admit(now + LEAVE_S, BACKGROUND) == pytest.approx(LEAVE_S)

    assert len(asked) == 2


def test_where_somebody_else_probes_it_stays_open_and_looks_again() -> None:
    """At the time it is told."""
    breaker, asked, now = due()

    assert FleetView(breaker).retry_probe_at(now + 0.4, now)

    assert breaker.state == "open"
    assert breaker.admit(now, BACKGROUND) == pytest.approx(0.4)
    assert breaker.admit(now + 0.4, BACKGROUND) == pytest.approx(LEAVE_S)
    assert len(asked) == 2


def test_leave_that_comes_too_late_is_of_no_use() -> None:
    """It was closed, or told to stay open, meanwhile."""
    breaker, _, now = due()
    FleetView(breaker).peer_opened(now + 5, 1, "a probe failed", now)
    assert not FleetView(breaker).grant_leave(now)
    assert not FleetView(breaker).retry_probe_at(now + 0.4, now)
    assert breaker.admit(now, BACKGROUND) == pytest.approx(5.0)

    FleetView(breaker).peer_closed("3 probes succeeded", now)
    assert not FleetView(breaker).grant_leave(now)
    assert not FleetView(breaker).retry_probe_at(now + 0.4, now)
    assert breaker.state == "closed"


def test_leave_that_nobody_used_lets_one_more_through_while_it_is_asked_for_again() -> None:
    """However few calls there are, one of them finds out; if somebody else probes by now, it was the only one."""
    breaker, asked, now = due()
    FleetView(breaker).grant_leave(now)
    FleetView(breaker).return_permit()

    assert breaker.admit(now + 60, BACKGROUND) == 0.0
    assert len(asked) == 2
    permit = breaker.take(now + 60)
    assert FleetView(breaker).retry_probe_at(now + 61, now + 60)
    assert (breaker.state, breaker.admit(now + 60, BACKGROUND)) == ("half_open", None)

    breaker.forget(permit, now + 60)
    assert breaker.admit(now + 60, BACKGROUND) == 0.0
    assert FleetView(breaker).retry_probe_at(now + 61, now + 60)
    assert (breaker.state, breaker.probe_at, breaker.ejections) == ("open", now + 61, 1)


def test_told_open_it_opens_with_the_reason() -> None:
    """Until then, and it is no news of its own; what was seen there counts as what was seen."""
    breaker, _ = shared()
    serve(breaker, 5, 0.0)

    FleetView(breaker).peer_opened(8.0, 3, "5 failures in a row (timeout)", 1.0, rate=0.9)

    assert (breaker.state, breaker.probe_at, breaker.ejections) == ("open", 8.0, 3)
    assert breaker.reason == "told by another replica: 5 failures in a row (timeout)"
    assert not breaker.is_news
    assert breaker.failure_rate(1.0) == 0.9

    assert breaker.admit(8.0, BACKGROUND)
    assert FleetView(breaker).grant_leave(8.0)
    fail(breaker, 1, 8.0)
    assert breaker.failure_rate(8.0) == 0.9
    breaker.trust("nothing else is left", 9.0)
    fail(breaker, 5, 9.0)
    assert breaker.failure_rate(9.0) == 1.0


def test_where_nothing_failed_the_word_is_taken_for_a_short_time_only() -> None:
    """However often it is said; where the own probe fails it was right, and holds as it was told: no news, no ejection more."""
    for is_well in (True, False):
        breaker, asked = shared()
        FleetView(breaker).peer_opened(50.0, 4, "a probe failed", 1.0)
        assert breaker.probe_at == 1.0 + RULES.open_s
        assert not FleetView(breaker).peer_opened(60.0, 5, "a probe failed", 5.0)
        assert breaker.probe_at == 1.0 + RULES.open_s

        now = breaker.probe_at
        breaker.admit(now, BACKGROUND)
        assert len(asked) == 1
        FleetView(breaker).grant_leave(now)
        if is_well:
            serve(breaker, RULES.probes, now)
            assert (breaker.state, breaker.is_news) == ("closed", True)
            assert not FleetView(breaker).peer_opened(now + 50, 6, "a probe failed", now + 1)
            fail(breaker, 1, now + 2)
            FleetView(breaker).peer_opened(now + 50, 6, "a probe failed", now + 3)
            assert breaker.transitions["open"] == 2
        else:
            fail(breaker, 1, now)
            assert (breaker.state, breaker.is_news, breaker.probe_at, breaker.ejections) == ("open", False, 60.0, 5)
            assert FleetView(breaker).peer_opened(65.0, 6, "a probe failed", now + 10)
            assert breaker.probe_at == 65.0


def test_what_its_own_probes_have_proved_holds_while_it_is_said_and_nothing_fails() -> None:
    """Long after it was last said the word counts again."""
    breaker, _, now = due()
    FleetView(breaker).grant_leave(now)
    serve(breaker, RULES.probes, now)
    for _ in range(5):
        now += 1.5 * RULES.max_open_s
        FleetView(breaker).peer_opened(now + 10, 1, "ill", now)
        assert breaker.state == "closed"

    FleetView(breaker).peer_opened(now + 3 * RULES.max_open_s + 10, 1, "ill", now + 3 * RULES.max_open_s)
    assert breaker.transitions["open"] == 2


def test_who_gives_its_leave_back_still_only_knows_what_was_told() -> None:
    """Somebody else tries it meanwhile; its own probe comes later, and is no ejection either."""
    breaker, _ = shared()
    FleetView(breaker).peer_opened(50.0, 4, "ill", 1.0)
    now = breaker.probe_at
    breaker.admit(now, BACKGROUND)
    FleetView(breaker).grant_leave(now)
    FleetView(breaker).retry_probe_at(now + 1.0, now)
    assert breaker.probe_at == now + 1.0

    breaker.admit(now + 1.0, BACKGROUND)
    FleetView(breaker).grant_leave(now + 1.0)
    fail(breaker, 1, now + 1.0)
    assert (breaker.probe_at, breaker.ejections) == (50.0, 4)


@pytest.mark.parametrize(("served", "failed", "opens"), [(20, 0, False), (19, 0, True), (16, 4, False), (14, 6, True)])
def test_who_saw_much_that_was_well_knows_better(served: int, failed: int, opens: bool) -> None:
    """Enough calls in the window, and less than half of the failures that would open it."""
    breaker, _ = shared()
    for _ in range(failed):
        fail(breaker, 1, 1.0)
        serve(breaker, 2, 1.0)
    serve(breaker, served - 2 * failed, 1.0)

    FleetView(breaker).peer_opened(8.0, 1, "ill", 2.0)

    assert (breaker.state == "open") == opens


def test_evidence_of_long_ago_is_none() -> None:
    """What has left the window says nothing of now."""
    breaker, _ = shared()
    serve(breaker, 100, 1.0)

    FleetView(breaker).peer_opened(1000.0, 1, "ill", 999.0)

    assert breaker.state == "open"


def test_a_probe_that_succeeded_knows_better_too() -> None:
    """One that only waits for probes takes the word."""
    for served, state in ((0, "open"), (1, "half_open")):
        breaker, _, now = due()
        FleetView(breaker).grant_leave(now)
        serve(breaker, served, now)

        FleetView(breaker).peer_opened(now + 5, 1, "ill", now)

        assert breaker.state == state


def test_open_it_stays_so_for_the_longest() -> None:
    """Never for less than it is, nor for more than its own rules allow."""
    breaker, _ = shared()
    fail(breaker, 5, 0.0)
    FleetView(breaker).peer_opened(8.0, 1, "ill", 1.0)
    assert breaker.probe_at == 10.0
    FleetView(breaker).peer_opened(25.0, 1, "ill", 1.0)
    assert (breaker.probe_at, breaker.reason) == (25.0, "5 failures in a row (timeout)")

    FleetView(breaker).peer_opened(1e9, 1, "ill", 1.0)

    assert breaker.probe_at == 61.0


def test_told_closed_it_is_trusted_again_behind_a_ramp() -> None:
    """Open or half open; one that is closed stays as it is."""
    for breaker in (due()[0], half_opened()[0]):
        FleetView(breaker).peer_closed("3 probes succeeded", 20.0)
        assert (breaker.state, breaker.is_clear, breaker.is_news) == ("closed", False, False)
        assert breaker.reason == "told by another replica: 3 probes succeeded"

    fresh, _ = shared()
    FleetView(fresh).peer_closed("3 probes succeeded", 20.0)
    assert fresh.is_clear
    assert fresh.transitions["closed"] == 0


def test_what_was_set_by_hand_or_disabled_is_not_for_others_to_change() -> None:
    """Neither way."""
    breaker, _ = shared()
    breaker.force("drained", 1.0)
    FleetView(breaker).peer_closed("well", 2.0)
    FleetView(breaker).peer_opened(5.0, 1, "ill", 2.0)
    assert (breaker.state, breaker.probe_at) == ("drained", inf)

    off, _ = shared(replace(RULES, is_enabled=False))
    FleetView(off).peer_opened(5.0, 1, "ill", 2.0)
    assert off.is_clear


def test_only_what_was_found_out_here_is_news() -> None:
    """Ejections and closings by probes; not a person's hand, an owner's trust, rules, or hearsay."""
    moves: list[tuple[str, bool]] = []
    breaker = Breaker("site", RULES, 0.0, lambda _name, to, _why: moves.append((to, breaker.is_news)))
    fail(breaker, 5, 0.0)
    assert breaker.admit(100.0, BACKGROUND) == 0.0
    serve(breaker, 3, 100.0)
    breaker.trip("refused", 101.0, 0.0)
    breaker.trust("nothing else is left", 102.0)
    breaker.force("open", 103.0)
    breaker.force("closed", 104.0)

    assert moves == [
        ("open", True),
        ("half_open", False),
        ("closed", True),
        ("open", True),
        ("closed", False),
        ("open", False),
        ("closed", False),
    ]


def test_undone_by_hand_one_of_all_tries() -> None:
    """It asks for leave like any other."""
    breaker, asked = shared()
    breaker.force("drained", 1.0)
    breaker.force(None, 2.0)

    assert (breaker.state, breaker.is_by_hand) == ("open", False)
    assert breaker.admit(2.0, BACKGROUND) == pytest.approx(LEAVE_S)
    assert len(asked) == 1


@BOUNDED
class Course(RuleBasedStateMachine):
    """Any order of calls, outcomes, pauses and hands: the invariants of the breaker hold, and it is always left again."""

    @initialize(probes=st.integers(1, 5), ramp_s=st.sampled_from([0.0, 10.0]))
    def begin(self, probes: int, ramp_s: float) -> None:
        self.now = 0.0
        self.rules_now = replace(RULES, probes=probes, ramp_s=ramp_s)
        self.breaker = Breaker("site", self.rules_now, 0.0)
        self.flying: list[tuple[int, int]] = []  # permit, number of the half-open period it probes in or -1

    def probing(self) -> int:
        return self.breaker.transitions["half_open"] if self.breaker.state == "half_open" else -1

    @rule(rank=st.integers(0, 3), times=st.integers(1, 6))
    def call(self, rank: int, times: int) -> None:
        for _ in range(times):
            if self.breaker.admit(self.now, rank) == 0.0:
                self.flying.append((self.breaker.take(self.now), self.probing()))

    @rule(which=st.randoms(use_true_random=False), outcome=st.sampled_from(["served", "failed", "forgotten"]))
    def end(self, which: random.Random, outcome: str) -> None:
        if not self.flying:
            return
        permit, _ = self.flying.pop(which.randrange(len(self.flying)))
        if outcome == "served":
            self.breaker.succeeded(permit, self.now, 0.1)
        elif outcome == "failed":
            self.breaker.failed(permit, self.now, which.random(), "timeout")
        else:
            self.breaker.forget(permit, self.now)

    @rule(times=st.integers(1, 8))
    def outage(self, times: int) -> None:
        for permit, _ in self.flying[:times]:
            self.breaker.failed(permit, self.now, 0.5, "connection")
        del self.flying[:times]

    @rule(seconds=st.floats(0, 90))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(to=st.sampled_from(["open", "closed", "drained", None]), certainly=st.integers(0, 3))
    def hand(self, to: str | None, certainly: int) -> None:
        if certainly == 0:
            self.breaker.force(to, self.now)  # type: ignore[arg-type]  # these are its words

    @invariant()
    def probes_are_capped(self) -> None:
        period = self.probing()
        probes = sum(probing == period for _, probing in self.flying) if period >= 0 else 0
        assert probes <= self.rules_now.probes

    @invariant()
    def waits_are_true(self) -> None:
        for rank in range(4):
            wait_s = self.breaker.admit(self.now, rank)
            assert wait_s is None or wait_s >= 0
            assert (wait_s == inf) == self.breaker.is_by_hand
            if wait_s is None:
                assert any(probing == self.probing() for _, probing in self.flying)

    @invariant()
    def clear_means_closed(self) -> None:
        if self.breaker.is_clear:
            assert self.breaker.state == "closed"
        assert (self.breaker.state == "drained") <= self.breaker.is_by_hand

    def teardown(self) -> None:
        """Liveness: once the target is well again, so is the breaker, after a few calls."""
        if not hasattr(self, "breaker"):
            return
        if self.breaker.is_by_hand:
            self.breaker.force(None, self.now)
        for permit, _ in self.flying:
            self.breaker.forget(permit, self.now)
        for _ in range(40):
            wait_s = self.breaker.admit(self.now, INTERACTIVE)
            assert wait_s is not None
            self.now += wait_s
            if self.breaker.admit(self.now, INTERACTIVE) == 0.0:
                self.breaker.succeeded(self.breaker.take(self.now), self.now, 0.1)
        self.breaker.admit(self.now + 10, INTERACTIVE)
        assert self.breaker.is_clear


TestCourse = Course.TestCase


class SharedCourse(Course):
    """The same with other replicas, who have the leave or not, lose answers, and tell what they like."""

    @initialize(probes=st.integers(1, 5), ramp_s=st.sampled_from([0.0, 10.0]))
    def begin(self, probes: int, ramp_s: float) -> None:
        super().begin(probes, ramp_s)
        self.asks = 0
        self.breaker.ask_leave = self.ask

    def ask(self, breaker: Breaker) -> None:
        assert breaker is self.breaker
        self.asks += 1

    @rule(is_ours=st.booleans(), wait_s=st.floats(0.01, 1.0))
    def answer(self, is_ours: bool, wait_s: float) -> None:
        """To an ask of late or of long ago."""
        if self.asks:
            self.asks -= 1
            if is_ours:
                FleetView(self.breaker).grant_leave(self.now)
            else:
                FleetView(self.breaker).retry_probe_at(self.now + wait_s, self.now)

    @rule()
    def lapse(self) -> None:
        if self.breaker.state == "half_open" and not self.breaker.probes_out:
            FleetView(self.breaker).return_permit()

    @rule(left_s=st.floats(-1, 1e4), ejections=st.integers(0, 255), rate=st.floats(0, 1))
    def peer_opened(self, left_s: float, ejections: int, rate: float) -> None:
        before = self.breaker.probe_at
        is_due = self.breaker.state != "open" or before <= self.now or self.asks
        FleetView(self.breaker).peer_opened(self.now + left_s, ejections, "ill", self.now, rate)
        assert is_due or self.breaker.probe_at >= before
        assert (
            self.breaker.is_by_hand
            or self.breaker.probe_at in (before, inf)
            or (self.breaker.probe_at <= self.now + self.rules_now.max_open_s)
        )

    @rule()
    def peer_closed(self) -> None:
        FleetView(self.breaker).peer_closed("well", self.now)
        assert self.breaker.is_by_hand or self.breaker.state == "closed"

    def teardown(self) -> None:
        """Liveness: it comes back as soon as it has its turn, and if nobody can say whose it is."""
        if hasattr(self, "breaker"):
            self.breaker.ask_leave = lambda breaker: FleetView(breaker).grant_leave(self.now)
        super().teardown()


TestSharedCourse = SharedCourse.TestCase
TestSharedCourse.settings = BOUNDED


class Twins(RuleBasedStateMachine):
    """Two breakers that meet the same: one is asked all day long, the other never. They go the same way."""

    @initialize(is_shared=st.booleans(), ramp_s=st.sampled_from([0.0, 10.0]), window_s=st.sampled_from([5.0, 60.0]))
    def begin(self, is_shared: bool, ramp_s: float, window_s: float) -> None:
        self.now = 0.0
        self.told: tuple[list[str], list[str]] = ([], [])
        self.pair = [
            Breaker(
                "site",
                replace(RULES, ramp_s=ramp_s, window_s=window_s),
                0.0,
                lambda *move, to=to: to.append(repr(move)),
            )
            for to in self.told
        ]
        self.asks = 0
        if is_shared:
            self.pair[0].ask_leave = self.count_ask
            self.pair[1].ask_leave = lambda _breaker: None

    def count_ask(self, _breaker: Breaker) -> None:
        self.asks += 1

    def look(self) -> None:
        """Every question, of the first alone."""
        asked = self.pair[0]
        for now in (self.now, self.now + 0.3, self.now + 100.0):
            for rank in range(4):
                asked.wait_s(now, rank)
            asked.failure_rate(now)
            asked.outcomes_in_window(now)
            asked.ejections_at(now)
            asked.has_own_evidence(now)
            asked.is_ramping(now)
        _ = (
            asked.probe_at,
            asked.slow_after_s,
            asked.is_by_hand,
            asked.probes_out,
            asked.transitions,
            asked.failures_in_a_row,
        )

    @rule(rank=st.integers(0, 3), times=st.integers(1, 30), outcome=st.sampled_from(["served", "failed", "forgotten"]))
    def calls(self, rank: int, times: int, outcome: str) -> None:
        for _ in range(times):
            self.look()
            asks = self.asks
            waits = [breaker.admit(self.now, rank) for breaker in self.pair]
            assert waits[0] == waits[1]
            assert asks == self.asks or self.pair[0].state != "closed"
            if waits[0] != 0.0:
                return
            for breaker in self.pair:
                permit = breaker.take(self.now)
                if outcome == "served":
                    breaker.succeeded(permit, self.now + 0.1, 0.1)
                elif outcome == "failed":
                    breaker.failed(permit, self.now + 0.1, 0.5, "timeout")
                else:
                    breaker.forget(permit, self.now)

    @rule(seconds=st.floats(0, 90))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(is_ours=st.booleans())
    def answer(self, is_ours: bool) -> None:
        for breaker in self.pair:
            if is_ours:
                FleetView(breaker).grant_leave(self.now)
            else:
                FleetView(breaker).retry_probe_at(self.now + 0.5, self.now)

    @rule(left_s=st.floats(0, 100), is_open=st.booleans())
    def report(self, left_s: float, is_open: bool) -> None:
        for breaker in self.pair:
            if is_open:
                FleetView(breaker).peer_opened(self.now + left_s, 2, "ill", self.now, 0.7)
            else:
                FleetView(breaker).peer_closed("well", self.now)

    @rule(to=st.sampled_from(["open", "closed", "drained", None]), certainly=st.integers(0, 3))
    def hand(self, to: str | None, certainly: int) -> None:
        if certainly == 0:
            for breaker in self.pair:
                breaker.force(to, self.now)  # type: ignore[arg-type]  # these are its words

    @invariant()
    def they_are_alike(self) -> None:
        self.look()
        asked, left_alone = self.pair
        assert self.told[0] == self.told[1]
        assert (asked.state, asked.is_clear, asked.ejections, asked.slow_after_s, asked.probe_at) == (
            left_alone.state,
            left_alone.is_clear,
            left_alone.ejections,
            left_alone.slow_after_s,
            left_alone.probe_at,
        )
        assert all(breaker.state == breaker.phase.state for breaker in self.pair)


TestTwins = Twins.TestCase
TestTwins.settings = BOUNDED


def test_to_be_asked_neither_opens_half_nor_asks_the_fleet() -> None:
    """The time of an open breaker is over: only a call that wants to go changes anything."""
    breaker, asked = shared()
    fail(breaker, 5, 0.0)
    now = breaker.probe_at

    assert [breaker.wait_s(now, BACKGROUND) for _ in range(3)] == [0.0] * 3
    assert (breaker.state, asked) == ("open", [])

    breaker.ask_leave = None
    assert breaker.wait_s(now, BACKGROUND) == 0.0
    assert breaker.transitions["half_open"] == 0
    assert breaker.admit(now, BACKGROUND) == 0.0
    assert breaker.transitions["half_open"] == 1
