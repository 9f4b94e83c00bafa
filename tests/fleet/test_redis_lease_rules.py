"""How a shared limit is counted and divided, rule by rule, on the model that the script is compared with."""

from __future__ import annotations

from random import Random

import pytest

from tests.fleet.lease_fleet import (
    BEGIN,
    BUCKET,
    SLOTS,
    WINDOW,
    Member,
    Plain,
    Shape,
    tell,
    two,
)


def test_who_asks_more_often_gets_no_more() -> None:
    """One replica asks a hundred times as often as another for as much: over time both are served alike."""
    plain = Plain()
    busy, calm = two(BUCKET)
    tell(plain, BEGIN, busy, 20.0)
    got = {busy.id: 0.0, calm.id: 0.0}

    for number in range(1, 4001):
        now = BEGIN + number * 0.0025
        for member, every in (busy, 1), (calm, 100):
            if number % every == 0:
                got[member.id] += member.use(100.0, now)
                tell(plain, now, member, 5.0, 1.0)

    assert got[calm.id] == pytest.approx(50.0, abs=5.0)
    assert got[busy.id] - 20.0 == pytest.approx(50.0, abs=5.0)


def test_all_that_refills_is_handed_out_while_somebody_waits() -> None:
    """With replicas that wait nothing is left lying but less than one call."""
    plain, random = Plain(), Random(1)
    members = [Member(b"replica-%d" % number, BUCKET) for number in range(3)]
    now = BEGIN

    for _ in range(300):
        now += random.random() * 0.3
        member = random.choice(members)
        member.use(100.0, now)
        reply = tell(plain, now, member, 4.0, 1.0)
        assert reply.wanting == 0 or reply.level < 1.0


def test_a_large_call_is_saved_up_for() -> None:
    """Small calls do not overtake for ever: when it is a large call's turn, what flows in is kept until it fits."""
    plain = Plain()
    small, large = two(BUCKET)
    tell(plain, BEGIN, small, 20.0)
    got_at = None

    for number in range(1, 300):
        now = BEGIN + number * 0.05
        small.use(100.0, now)
        tell(plain, now, small, 5.0, 1.0)
        if got_at is None and tell(plain, now, large, 15.0, 15.0).granted:
            got_at = now

    assert got_at is not None
    assert got_at - BEGIN < 3.5
    assert small.used > 20.0 + 100.0


def test_lower_lanes_leave_room_and_hold_nobody_up() -> None:
    """What is kept from a lower lane goes to a higher one, also while the lower one waits."""
    plain = Plain()
    high, low = two(BUCKET)

    tell(plain, BEGIN, low, 20.0, 1.0, keep=5.0)
    assert low.held == 15.0
    low.use(15.0, BEGIN)
    assert tell(plain, BEGIN, low, 1.0, 1.0, keep=5.0).wanting == 1
    tell(plain, BEGIN, high, 4.0, 1.0)

    assert (high.held, low.held) == (4.0, 0.0)


def test_a_call_that_never_leaves_enough_goes_when_all_is_free() -> None:
    """One that with what it has to leave is larger than the limit holds nobody up, and goes when nothing more can come."""
    plain = Plain()
    large, other = two(BUCKET)

    tell(plain, BEGIN, other, 10.0)
    other.use(10.0, BEGIN)
    tell(plain, BEGIN, other)
    tell(plain, BEGIN + 0.5, large, 18.0, 18.0, keep=5.0)
    tell(plain, BEGIN + 0.5, other, 2.0, 1.0, keep=5.0)
    assert (large.held, other.held) == (0.0, 2.0)
    other.use(2.0, BEGIN + 0.5)
    tell(plain, BEGIN + 0.5, other)
    tell(plain, BEGIN + 3.0, large, 18.0, 18.0, keep=5.0)

    assert large.held == 18.0


def test_an_answer_that_was_lost_is_given_again() -> None:
    """What was granted and not heard of comes with the next answer, once."""
    for shape in (BUCKET, WINDOW, SLOTS):
        plain = Plain()
        one, _ = two(shape)

        plain(BEGIN, one.id, one.ask(3.0, 1.0))
        plain(BEGIN, one.id, one.ask(3.0, 1.0))
        reply = tell(plain, BEGIN, one, 3.0, 1.0)

        assert one.held == 3.0
        assert reply.level == shape.capacity - 3.0


def test_what_is_given_back_is_there_for_others() -> None:
    """Of every kind, at once, and once."""
    for shape in (BUCKET, WINDOW, SLOTS):
        plain = Plain()
        one, other = two(shape)
        tell(plain, BEGIN, one, shape.capacity)
        tell(plain, BEGIN, other, 2.0, 2.0)
        assert other.held == 0.0

        one.give_back(3.0)
        tell(plain, BEGIN, one)
        plain(BEGIN, one.id, one.ask())
        reply = tell(plain, BEGIN, other, 2.0, 2.0)

        assert other.held == 2.0
        assert reply.level == 1.0


def test_a_full_bucket_does_not_refill_whoever_holds_what_is_in_it() -> None:
    """A replica that uses late what it held for long has not made room earlier than that."""
    plain = Plain()
    one, other = two(BUCKET)
    tell(plain, BEGIN, one, 20.0)

    one.use(20.0, BEGIN + 4.0)
    assert tell(plain, BEGIN + 4.0, one).level == 0.0
    assert tell(plain, BEGIN + 4.5, other).level == 5.0


def test_what_was_set_aside_and_is_not_wanted_any_more_is_free() -> None:
    """Whether who waited says so, or is heard no more."""
    for silent in (False, True):
        plain = Plain()
        one, waiting = two(Shape("bucket", 1e-9, 20.0))
        tell(plain, BEGIN, one, 20.0)
        tell(plain, BEGIN, waiting, 8.0, 8.0)
        one.give_back(8.0)
        assert tell(plain, BEGIN + 0.1, one).level == pytest.approx(0.0, abs=1e-6)

        if not silent:
            assert tell(plain, BEGIN + 0.2, waiting).level == pytest.approx(8.0)
        assert tell(plain, BEGIN + 5.05, one, 8.0).level == pytest.approx(0.0, abs=1e-6)
        assert one.held == 20.0


def test_who_comes_late_has_no_credit() -> None:
    """Two have shared a scarce limit for long: a third gets its part from now on, not what it never asked for."""
    plain = Plain()
    members = [Member(b"replica-%d" % number, BUCKET) for number in range(3)]
    tell(plain, BEGIN, members[2])

    for number in range(1, 801):
        now = BEGIN + number * 0.05
        for member in members if number > 600 else members[:2]:
            member.use(100.0, now)
            tell(plain, now, member, 5.0, 1.0)
        if number < 600:
            tell(plain, now, members[2])

    assert members[2].used == pytest.approx(100 / 3, abs=4.0)


def test_slots_of_a_dead_replica_come_back() -> None:
    """Five seconds after it was last heard, not before; one that was only slow keeps what it holds."""
    plain = Plain()
    dead, other = two(SLOTS)
    tell(plain, BEGIN, dead, 6.0)

    tell(plain, BEGIN + 4.9, other, 2.0, 1.0)
    assert other.held == 0.0
    tell(plain, BEGIN + 5.1, other, 2.0, 1.0)
    assert other.held == 2.0
    reply = tell(plain, BEGIN + 6.0, dead)
    assert (dead.held, reply.level) == (6.0, -2.0)


def test_slots_pass_to_those_who_have_fewest() -> None:
    """One replica has all slots and calls for as many again; the others get their fair part as its calls end."""
    plain = Plain()
    members = [Member(b"replica-%d" % number, SLOTS) for number in range(3)]
    wishes = [6.0, 1.0, 6.0]
    tell(plain, BEGIN, members[0], 6.0)
    members[0].use(6.0, BEGIN)

    for number in range(1, 100):
        now = BEGIN + number * 0.1
        member = members[number % 3]
        member.end_calls(1.0)
        tell(plain, now, member, max(0.0, wishes[number % 3] - member.held - member.in_use), 1.0)
        member.use(6.0, now)

    held = [member.held + member.in_use for member in members]
    assert held[1] >= 1.0
    assert held == pytest.approx([2.5, 1.0, 2.5], abs=1.0)


def test_a_window_begins_with_its_first_grant_and_ends_for_all() -> None:
    """It lasts as long as it is; what was held of it is void, and late news of its use is not counted in the next."""
    plain = Plain()
    one, other = two(WINDOW)

    assert tell(plain, BEGIN, one).ends_in_s == 0.0
    assert tell(plain, BEGIN + 1.0, one, 3.0).ends_in_s == 2.0
    first = one.window
    one.use(2.0, BEGIN + 1.1)
    assert tell(plain, BEGIN + 2.0, other, 2.0).level == 0.0
    reply = tell(plain, BEGIN + 3.5, other, 2.0)
    assert (reply.window, reply.level, other.held) == (first + 1, 3.0, 2.0)
    assert tell(plain, BEGIN + 3.6, one, 3.0).level == 0.0
    assert one.held == 3.0


def test_use_beyond_what_was_held_is_a_debt_of_all() -> None:
    """It is taken from the common level, which may fall below nothing."""
    plain = Plain()
    one, other = two(BUCKET)
    tell(plain, BEGIN, one, 15.0)
    one.used += 25.0

    assert tell(plain, BEGIN, one).level == -5.0
    assert one.held == 0.0
    assert tell(plain, BEGIN + 0.4, other, 1.0, 1.0).retry_s == pytest.approx(0.2)


def test_the_providers_word_lowers_the_level() -> None:
    """No more is free in all than the provider says."""
    plain = Plain()
    one, other = two(BUCKET)
    tell(plain, BEGIN, one, 5.0)

    assert tell(plain, BEGIN, other, ceiling=8.0).level == 3.0


def test_no_second_burst_after_the_store_was_away() -> None:
    """What flowed in while everybody lived on a part of the limit is not handed out again; what is held is believed."""
    plain = Plain()
    one, other = two(BUCKET)
    for member in (one, other):
        tell(plain, BEGIN, member, 10.0)
        member.use(10.0, BEGIN)
        tell(plain, BEGIN, member)
        member.used -= 3.0  # what is left of its own part

    first = tell(plain, BEGIN + 30.0, one, 1.0, away_s=30.0)
    second = tell(plain, BEGIN + 30.0, other, 1.0, away_s=30.0)

    assert (first.level, second.level) == (0.0, 0.0)
    assert (one.held, other.held) == (3.0, 3.0)
    tell(plain, BEGIN + 30.5, one, 4.0)
    tell(plain, BEGIN + 30.5, other, 1.0)
    assert (one.held, other.held) == (7.0, 4.0)


def test_one_that_was_away_alone_stops_no_refill() -> None:
    """While others used the limit it has refilled, and they have had it."""
    plain = Plain()
    one, other = two(BUCKET)
    tell(plain, BEGIN, other, 20.0)
    other.use(20.0, BEGIN)
    tell(plain, BEGIN + 29.0, other)

    assert tell(plain, BEGIN + 30.0, one, away_s=30.0).level == 10.0


def test_a_store_that_lost_everything_starts_from_what_replicas_know() -> None:
    """The level is what they reckon, and what they hold they go on holding."""
    plain = Plain()
    one, other = two(BUCKET)
    tell(plain, BEGIN, one, 8.0)
    tell(plain, BEGIN, other, 8.0)
    plain.forget()

    assert tell(plain, BEGIN + 0.1, one, known=5.0).level == 5.0
    assert tell(plain, BEGIN + 0.1, other, known=5.0).level == 4.0
    assert (one.held, other.held) == (8.0, 8.0)


def test_a_server_whose_clock_is_behind_does_not_stop_a_limit() -> None:
    """A new master an hour behind refills from its own time on."""
    plain = Plain()
    one, _ = two(BUCKET)
    tell(plain, BEGIN, one, 20.0)
    one.use(20.0, BEGIN)

    tell(plain, BEGIN - 3600.0, one, 10.0, 1.0)
    tell(plain, BEGIN - 3599.0, one, 10.0, 1.0)

    assert one.held == pytest.approx(10.0)
