"""A replica's part of a limit: it leases ahead, never gives away what it does not hold, and lives on when alone."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.limits.limit_table import LimitKind
from gateway.fleet.lease import LeaseAsk, LeaseReply
from gateway.fleet.leased_part import FORGOTTEN_S, REFRESH_S, Share
from tests.support.pool import Pool

T0 = 1000.0


class Replica:
    """A share, the store it leases from, and what it has let through."""

    def __init__(self, pool: Pool, name: str = "a", kind: LimitKind = "bucket", *, is_whole: bool = True) -> None:
        self.pool = pool
        self.name = name
        self.wakes = 0
        self.let_through: list[tuple[float, float]] = []
        self.share = Share(
            "target|t",
            "l",
            0,
            kind,
            pool.rate_per_s,
            pool.capacity,
            T0,
            window_s=pool.window_s,
            is_whole=is_whole,
            wake=self._woken,
        )

    def _woken(self, _share: Share) -> None:
        self.wakes += 1

    def ask(self, now: float, waiting: float = 0.0, *, is_lost: bool = False) -> LeaseAsk:
        """One round; of a lost one the store knows, and the share does not."""
        ask = self.share.ask(now, waiting)
        reply = self.pool.ask(self.name, ask, now)
        if is_lost:
            self.share.go_local(1, now)
            self.share.rejoin(now)
        else:
            self.share.take_reply(reply, now)
        return ask

    def go(self, now: float, cost: float = 1.0, keep: float = 0.0) -> bool:
        """A call that goes if it may."""
        if self.share.want(cost, now, keep) != 0.0:
            return False
        self.share.take(cost, now)
        self.let_through.append((now, cost))
        return True

    def go_or_ask(self, now: float, cost: float = 1.0) -> bool:
        """As a held call does: what is not there is asked for, once."""
        if self.go(now, cost):
            return True
        self.ask(now, cost)
        return self.go(now, cost)


@pytest.fixture
def pool() -> Pool:
    return Pool(capacity=100, rate_per_s=10, at=T0)


def test_what_is_not_held_waits_for_the_store(pool: Pool) -> None:
    """Nobody knows when more comes: the wait has no length, and the share asks for more, once."""
    replica = Replica(pool)

    waits = [replica.share.want(1, T0), replica.share.want(1, T0)]

    assert (waits, replica.wakes) == ([None, None], 1)
    replica.ask(T0, 1)
    assert replica.go(T0)


def test_what_exceeds_the_limit_never_fits(pool: Pool) -> None:
    """However much is leased."""
    replica = Replica(pool)

    assert replica.share.want(101, T0) == inf
    assert replica.share.ready_at(101, T0) == inf


def test_it_leases_ahead_what_its_calls_take_in_half_a_second(pool: Pool) -> None:
    """After a second with 60 calls the next ones find what they need without asking."""
    pool.capacity = pool.level = 1000.0
    replica = Replica(pool)
    for number in range(60):
        assert replica.go_or_ask(T0 + number / 60)

    replica.ask(T0 + 1)

    assert sum(replica.go(T0 + 1) for _ in range(100)) >= 15


def test_it_asks_again_before_it_runs_out(pool: Pool) -> None:
    """When half of what it leased is left, while calls still go."""
    pool.capacity = pool.level = 1000.0
    replica = Replica(pool)
    for number in range(60):
        assert replica.go_or_ask(T0 + number / 60)
    replica.ask(T0 + 1)
    replica.wakes = 0

    while not replica.wakes:
        assert replica.go(T0 + 1)

    assert replica.go(T0 + 1)


def test_what_lies_idle_is_given_back(pool: Pool) -> None:
    """All of it, once nothing has been used for long enough; then the store need not hear of it any more."""
    replica = Replica(pool)
    assert replica.go_or_ask(T0)
    now = T0
    while replica.share.is_due(now + REFRESH_S):
        now += REFRESH_S
        replica.ask(now)

    assert pool.lent == 0
    assert not replica.share.is_idle(now)
    assert replica.share.is_idle(now + FORGOTTEN_S + 0.1)
    assert now - T0 < 60


def test_a_lost_answer_changes_nothing(pool: Pool) -> None:
    """The counts go on: what was granted in it comes with the next, and what was told in it counts once."""
    replica = Replica(pool)
    assert replica.go_or_ask(T0)

    replica.share.want(5, T0)
    replica.ask(T0, 5, is_lost=True)
    replica.share.want(5, T0)
    replica.ask(T0, 5)

    assert replica.go(T0, 5)
    replica.ask(T0 + 0.001)
    assert pool.level + pool.lent == pytest.approx(100 - 6, abs=0.1)


def test_what_was_used_beyond_what_is_held_is_the_common_debt(pool: Pool) -> None:
    """A call that turned out larger: the store charges the whole limit, and here nothing is owed any more."""
    replica = Replica(pool)
    assert replica.go_or_ask(T0, 50)

    replica.share.force(80, T0)
    replica.ask(T0)

    assert pool.level < 0
    assert replica.share.want(1, T0) is None


def test_lower_lanes_leave_something_over(pool: Pool) -> None:
    """What has to be left over is looked for in the whole limit, not in the part that is held here."""
    replica = Replica(pool)
    assert replica.go_or_ask(T0)
    pool.level = 15.0

    for _ in range(5):
        replica.share.want(3, T0, 10)
        replica.ask(T0, 3)
    gone = sum(replica.go(T0, 3, 10) for _ in range(5))

    assert gone <= 2
    assert pool.level >= 10 - 1


def test_an_estimate_counts_those_who_wait_elsewhere(pool: Pool) -> None:
    """With three replicas that want more than there is, each gets a third."""
    replica = Replica(pool)
    replica.share.ask(T0, 0.0)
    replica.share.take_reply(LeaseReply(0.0, 0.0, wanting=3, retry_s=0.1), T0)

    assert replica.share.ready_at(1, T0, ahead=9) == pytest.approx(T0 + 10 * 3 / 10)


def test_a_providers_word_only_lowers_the_level(pool: Pool) -> None:
    """Less than we thought: told to the store with the next ask. More: others may have used it meanwhile."""
    replica = Replica(pool)
    replica.go_or_ask(T0)

    replica.share.reconcile(90, T0, T0, 0, 1)
    unchanged = replica.ask(T0).ceiling
    replica.share.reconcile(20, T0, T0, 0, 1)
    lowered = replica.ask(T0).ceiling

    assert unchanged == inf
    assert lowered == pytest.approx(20 + 1 + 5 + 5)
    assert pool.level + pool.lent <= 31


def test_alone_it_lives_on_an_equal_part(pool: Pool) -> None:
    """Of the rate, of what nobody held, and never more at once than a part of the capacity."""
    replica = Replica(pool)
    replica.go_or_ask(T0, 1)

    replica.share.go_local(4, T0)
    at_once = sum(replica.go(T0) for _ in range(100))
    in_ten_s = sum(replica.go(T0 + step / 10) for step in range(1, 101))
    much_later = sum(replica.go(T0 + 1000) for _ in range(100))

    assert at_once == 24
    assert in_ten_s == pytest.approx(25, abs=1)
    assert much_later == 25


def test_alone_a_call_larger_than_its_part_still_gets_its_turn(pool: Pool) -> None:
    """It saves up for it."""
    replica = Replica(pool, is_whole=False)
    replica.share.go_local(4, T0)

    wait_s = replica.share.want(60, T0)

    assert wait_s is not None
    assert replica.go(T0 + wait_s + 0.001, 60)


def test_where_it_must_not_guess_nothing_goes_alone(pool: Pool) -> None:
    """A limit that fails closed waits until the store is back."""
    replica = Replica(pool)
    replica.go_or_ask(T0)
    replica.share.fails_closed = True

    replica.share.go_local(4, T0)
    while_alone = replica.share.want(1, T0 + 5)
    replica.share.rejoin(T0 + 10)
    replica.ask(T0 + 10, 1)

    assert while_alone is None
    assert replica.go(T0 + 10)


def test_back_again_it_owes_what_it_took_of_the_rest(pool: Pool) -> None:
    """Its part of the refill was its own; what it began with beyond what it held comes out of what all have."""
    replica = Replica(pool)
    replica.go_or_ask(T0)
    replica.share.go_local(2, T0)
    for step in range(300):
        replica.go(T0 + step / 10)

    replica.share.rejoin(T0 + 30)
    ask = replica.share.ask(T0 + 30, 0.0)

    assert ask.away_s == pytest.approx(30)
    held = ask.granted - ask.used - ask.given
    assert held == pytest.approx(0, abs=2)
    assert ask.charged - ask.charged_before == pytest.approx(50, abs=1)
    assert 90 <= ask.known <= 100


@pytest.mark.parametrize("word", ["pause", "headers"])
def test_back_again_it_does_not_owe_what_it_was_told_is_not_there(word: str, pool: Pool) -> None:
    """A provider's word lowers what there is once: not here for good, and in the store a second time."""
    one, other = Replica(pool, "a"), Replica(pool, "b")
    for replica in (one, other):
        replica.go_or_ask(T0)
    one.share.go_local(2, T0)
    assert one.share.level_at(T0) == pytest.approx(50, abs=2)

    for replica in (one, other):
        if word == "pause":
            replica.share.correct(2.0, T0 + 0.1)
        else:
            replica.share.reconcile(1.0, T0 + 0.1, T0 + 0.1, 0.0, 1.0)
    other.ask(T0 + 0.2)
    one.share.rejoin(T0 + 0.3)
    one.ask(T0 + 0.3)

    assert pool.level >= -2
    assert one.share.level_at(T0 + 0.3) <= 2 + 0.05 * pool.capacity + 10 * 0.8


def test_who_has_just_started_and_used_nothing_was_not_away(pool: Pool) -> None:
    """A slow start takes seconds until the store is reached; nobody's calls wait for what others may have taken then."""
    replica = Replica(pool)
    replica.share.go_local(1, T0)
    replica.share.rejoin(T0 + 2)
    replica.ask(T0 + 2)

    assert sum(replica.go_or_ask(T0 + 2) for _ in range(90)) == 90


def test_what_turns_out_to_be_there_is_everybodys(pool: Pool) -> None:
    """The provider takes more than was thought: the store has it, up to the capacity."""
    one, other = Replica(pool, "a"), Replica(pool, "b")
    while one.go_or_ask(T0):
        pass
    one.ask(T0, 5.0)
    assert one.share.is_dry(1.0, T0)

    one.share.resize(10, 120, T0)
    one.share.raise_by(20, T0)
    one.ask(T0)

    other.share.resize(10, 120, T0)
    assert sum(other.go_or_ask(T0) for _ in range(30)) == pytest.approx(20, abs=2)


def test_one_that_never_met_the_store_brings_nothing(pool: Pool) -> None:
    """A replica that starts while the store is out of reach has no claim on what the others share."""
    replica = Replica(pool)
    replica.share.go_local(1, T0)
    replica.go(T0)

    replica.share.rejoin(T0 + 5)
    ask = replica.share.ask(T0 + 5, 0.0)

    assert (ask.granted - ask.used - ask.given, ask.known) == (0, -1)


def test_slots_are_held_until_given_back() -> None:
    """Those in use and those in hand are one lease; nothing of a slot is ever used up."""
    pool = Pool(capacity=3)
    one, other = Replica(pool, "a", "slots"), Replica(pool, "b", "slots")

    gone = [one.go_or_ask(T0) for _ in range(3)]
    refused = other.go_or_ask(T0)
    one.share.give_back(1, T0 + 1)
    one.ask(T0 + 3)
    now_free = other.go_or_ask(T0 + 3)

    assert (gone, refused, now_free) == ([True] * 3, False, True)


def test_alone_slots_in_use_count() -> None:
    """Half of four slots are this replica's; two are in use already."""
    pool = Pool(capacity=4)
    replica = Replica(pool, kind="slots")
    for _ in range(2):
        assert replica.go_or_ask(T0)

    replica.share.go_local(2, T0)
    refused = replica.share.want(1, T0)
    replica.share.give_back(1, T0)

    assert refused is None
    assert replica.go(T0)
    replica.share.rejoin(T0 + 1)
    ask = replica.share.ask(T0 + 1, 0.0)
    assert ask.granted - ask.given >= 2


def test_what_a_window_left_is_void_when_it_ends() -> None:
    """Held or not; the next one is asked for anew."""
    pool = Pool(capacity=10, window_s=10, at=T0)
    replica = Replica(pool, kind="window")
    assert replica.go_or_ask(T0, 4)

    assert not replica.go(T0 + 10.1)
    assert replica.go_or_ask(T0 + 10.1, 10)


def test_a_window_does_not_take_back_what_an_earlier_one_gave() -> None:
    """A call that began in one window and settles in the next."""
    pool = Pool(capacity=10, window_s=10, at=T0)
    replica = Replica(pool, kind="window")
    assert replica.go_or_ask(T0, 4)
    assert replica.go_or_ask(T0 + 10.1, 10)

    replica.share.give_back(4, T0 + 11, T0)

    assert not replica.go(T0 + 11, 4)


steps = st.lists(
    st.tuples(
        st.sampled_from(["go", "go", "go", "ask", "lost", "give_back", "force", "alone", "rejoin"]),
        st.integers(0, 2),
        st.sampled_from([0.0, 0.003, 0.05, 0.4, 1.5]),
        st.sampled_from([1.0, 2.0, 7.0]),
    ),
    max_size=80,
)


@given(steps=steps, kind=st.sampled_from(["bucket", "window"]))
def test_replicas_together_keep_the_limit(steps: list[tuple[str, int, float, float]], kind: LimitKind) -> None:
    """Whatever is lost on the way: from the start on no more goes than the burst and what refilled."""
    window_s = 5.0 if kind == "window" else 0.0
    pool = Pool(capacity=20, rate_per_s=0.0 if window_s else 4.0, window_s=window_s, at=T0)
    replicas = [Replica(pool, name, kind) for name in "abc"]
    now, given_back = T0, 0.0
    for what, which, passes_s, amount in steps:
        now += passes_s
        replica = replicas[which]
        if what == "go":
            replica.go(now, amount)
        elif what in ("ask", "lost"):
            replica.ask(now, amount, is_lost=what == "lost")
        elif what == "give_back" and replica.let_through:
            at, cost = replica.let_through[-1]
            if cost == amount:
                replica.let_through.pop()
                replica.share.give_back(cost, now, at)
                given_back += cost
    gone = [one for replica in replicas for one in replica.let_through]

    if kind == "bucket":
        assert sum(cost for _, cost in gone) <= 20 + 4 * (now - T0) + 1e-6
    else:
        windows = (now - T0) // 5 + 1
        assert sum(cost for _, cost in gone) <= 20 * windows + given_back


@given(steps=steps)
def test_counts_never_disagree_for_long(steps: list[tuple[str, int, float, float]]) -> None:
    """After an answer that arrives, what the share holds is what the store believes it does; alone and back or not."""
    pool = Pool(capacity=20, rate_per_s=4.0, at=T0)
    replica = Replica(pool)
    now = T0
    for what, _, passes_s, amount in steps:
        now += passes_s
        share = replica.share
        if what == "go":
            replica.go(now, amount)
        elif what == "force":
            share.force(amount, now)
        elif what == "alone":
            share.go_local(2, now)
        elif what == "rejoin":
            share.rejoin(now)
        elif not share.is_alone:
            replica.ask(now, amount, is_lost=what == "lost")
            if what == "ask":
                assert share.level_at(now) == pytest.approx(min(20, pool.replicas["a"].lent + pool.level), abs=1e-6)


def test_a_providers_word_that_comes_meanwhile_is_not_lost(pool: Pool) -> None:
    """While an ask is under way it is kept for the next."""
    replica = Replica(pool)
    replica.go_or_ask(T0)
    ask = replica.share.ask(T0, 0.0)
    replica.share.reconcile(10, T0, T0, 0, 1)
    replica.wakes = 0

    replica.share.take_reply(pool.ask("a", ask, T0), T0)

    assert replica.wakes == 1
    assert replica.share.ask(T0, 0.0).ceiling == pytest.approx(10 + 1 + 5 + 5)


def test_a_smaller_limit_is_not_held_beyond_its_size(pool: Pool) -> None:
    """What a reload makes too much goes back."""
    replica = Replica(pool)
    replica.share.want(50, T0)
    replica.ask(T0, 50)

    replica.share.resize(1.0, 10.0, T0)

    assert not replica.go(T0, 10.5)
    ask = replica.share.ask(T0, 0.0)
    assert ask.granted - ask.used - ask.given <= 10


@pytest.mark.parametrize(("capacity", "ahead"), [(3.0, 0.0), (10.0, 1.0), (100.0, 6.0)])
def test_nothing_is_held_ahead_of_a_limit_of_a_few_calls(capacity: float, ahead: float) -> None:
    """Whoever needs the next one gets it; of larger limits a part is leased, in whole calls."""
    replica = Replica(Pool(capacity=capacity, rate_per_s=1000.0, at=T0))
    for number in range(100):
        replica.go_or_ask(T0 + number / 100)

    ask = replica.share.ask(T0 + 1, 0.0)

    assert ask.granted - ask.used - ask.given + ask.want == ahead


def test_who_has_gone_wants_nothing(pool: Pool) -> None:
    """What a call lacked is not asked for once nobody waits; the store hears of it soon."""
    pool.level = 0.0
    replica = Replica(pool)
    replica.share.want(5, T0)
    first = replica.ask(T0, 5)
    replica.share.want(5, T0)

    assert replica.share.is_due(T0 + 0.3)
    second = replica.ask(T0 + 0.3)

    assert (first.first, second.first, second.want) == (5, 0, 0)
    assert pool.replicas["a"].want == 0


def test_a_providers_window_of_another_time_is_another_limit(pool: Pool) -> None:
    """What is left of it is told as it is; of a window that is over nothing is known."""
    window = Pool(capacity=10, window_s=10)
    replica = Replica(window, kind="window")
    assert replica.go_or_ask(T0, 4)

    assert replica.ask(T0 + 1).known == 6
    assert replica.ask(T0 + 11).known == -1


def test_alone_in_a_window_no_more_goes_than_it_had_left() -> None:
    """Two replicas without a store, in the window that was open and in the next: together one window's worth each."""
    pool = Pool(capacity=10, window_s=10)
    replicas = [Replica(pool, name, "window") for name in "ab"]
    assert [replica.go_or_ask(T0, 2) for replica in replicas] == [True, True]
    for replica in replicas:
        replica.ask(T0 + 0.1)
        replica.share.go_local(2, T0 + 0.1)

    in_this = sum(replica.go(T0 + 1) for replica in replicas for _ in range(10))
    in_the_next = sum(replica.go(T0 + 11) for replica in replicas for _ in range(10))
    for replica in replicas:
        replica.share.rejoin(T0 + 12)
        replica.ask(T0 + 12, 10)
    after = sum(replica.go(T0 + 12) for replica in replicas for _ in range(10))

    assert (in_this, in_the_next, after) == (6, 10, 0)


def test_a_store_whose_answers_are_lost_gives_nothing_twice(pool: Pool) -> None:
    """What a replica took when it was alone is taken once, however often it comes and goes unheard."""
    replica = Replica(pool)
    replica.go_or_ask(T0)
    now = T0
    for _ in range(50):
        now += 0.3
        while replica.go(now):
            pass
        replica.ask(now, 1, is_lost=True)

    assert sum(cost for _, cost in replica.let_through) <= 100 + 10 * (now - T0) + 1


def test_what_is_retired_goes_back(pool: Pool) -> None:
    """Also slots of calls that still run: nobody would ever give them back."""
    slots = Replica(Pool(capacity=3), kind="slots")
    for _ in range(3):
        assert slots.go_or_ask(T0)

    slots.share.retire()
    slots.ask(T0)

    assert slots.pool.lent == 0


def test_one_that_must_not_guess_is_silent_while_it_is_alone(pool: Pool) -> None:
    """What its calls settle meanwhile wakes nobody: there is nobody to ask; a reload may let it go, and stop it again."""
    replica = Replica(pool)
    replica.go_or_ask(T0)
    replica.share.fail_closed(True, T0)
    replica.share.go_local(2, T0)
    replica.wakes = 0

    replica.share.force(50, T0)
    replica.share.correct(1, T0)
    closed = replica.share.want(1, T0)
    replica.share.fail_closed(False, T0)
    opened = replica.share.want(1, T0 + 60)
    replica.share.fail_closed(True, T0 + 60)

    assert (replica.wakes, closed, opened) == (0, None, 0.0)
    assert replica.share.want(1, T0 + 60) is None


def test_somebody_elses_large_call_gets_what_lies_idle(pool: Pool) -> None:
    """A call that needs all of the limit cannot go as long as others hold some of it: they are told, and give it back."""
    small, large = Replica(pool, "small"), Replica(pool, "large")
    small.share.want(3, T0)
    small.ask(T0, 3)
    large.share.want(100, T0)
    large.ask(T0, 100)

    small.ask(T0 + 0.1)
    small.ask(T0 + 0.2)
    large.share.want(100, T0 + 1)
    large.ask(T0 + 1, 100)

    assert large.go(T0 + 1, 100)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["call", "settle", "ask", "lost", "away", "back", "resize", "correct", "wait"]),
        st.floats(0.0, 3.0),
        st.integers(1, 60),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from(["bucket", "window", "slots"]), st.booleans())
def test_to_be_asked_leases_nothing(steps: list[tuple[str, float, int]], kind: LimitKind, is_whole: bool) -> None:
    """Two replicas of two equal stores meet the same; one share is looked at all the time. Both say the same to the store."""
    rate_per_s, window_s = 10.0 if kind == "bucket" else 0.0, 5.0 if kind == "window" else 0.0
    pools = [Pool(capacity=50, rate_per_s=rate_per_s, at=T0, window_s=window_s) for _ in range(2)]
    pair = [Replica(pool, kind=kind, is_whole=is_whole) for pool in pools]
    asked, left_alone = pair
    now = T0

    def look() -> None:
        share = asked.share
        for cost in (1, 30, 50, 51):
            share.wait_s(cost, now, 5.0)
            share.ready_at(cost, now, 3.0, 1.0)
        _ = share.level_at(now), share.drain_s(5.0), share.is_dry(1.0, now), share.is_due(now), share.is_idle(now)

    for what, seconds, amount in steps:
        look()
        cost = 1 if kind == "slots" else amount
        if what == "call":
            assert len({replica.go(now, cost) for replica in pair}) == 1
        elif what in ("ask", "lost") and not asked.share.is_alone:
            first, second = [replica.ask(now, float(amount % 7), is_lost=what == "lost") for replica in pair]
            assert first == second
        for replica in pair:
            share = replica.share
            if what == "settle" and replica.let_through:
                share.give_back(
                    replica.let_through[-1][1] if kind == "slots" else 1.0, now, replica.let_through.pop()[0]
                )
            elif what == "away":
                share.go_local(2, now)
            elif what == "back":
                share.rejoin(now)
            elif what == "resize":
                share.resize(share.rate_per_s, 20.0 + amount, now)
            elif what == "correct":
                share.correct(float(amount), now)
        now += seconds if what == "wait" else 0.0
        assert (asked.wakes, asked.share.state) == (left_alone.wakes, left_alone.share.state)
        assert asked.share.is_due(now) == left_alone.share.is_due(now)
