"""The delay queue on a clock moved by hand: who goes when, who is sent away, and that nothing is left behind."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from math import inf
from weakref import WeakSet, ref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.admission.queue import DelayQueue, Held, Left, Option, WaitingLine
from gateway.core.limits import reservation
from gateway.core.limits.bucket import Cost
from gateway.core.limits.limit_table import Limits, Style
from gateway.core.limits.target_limits import CallTraits, Gate
from gateway.core.snapshot import Counting
from gateway.core.types import LANES, Lane, QueueBounds
from tests.rows import rows
from tests.support.flow import FakeClock

PACED = Counting(learns=False, style=Style(request_burst=0.0))
"""One request at a time: 60 per minute are one each second."""
STRICT = QueueBounds(aged_percent=0)


class Watched(Held):
    """A held call that can be referred to weakly."""


class Stage:
    """A queue, its gates, and a record of who was woken when."""

    def __init__(self, bounds: QueueBounds = STRICT) -> None:
        self.clock = FakeClock()
        self.start = self.clock.now
        self.queue = DelayQueue(self.clock, bounds)
        self.woken: list[tuple[Held, float]] = []

    def line(self, name: str = "p/m", counting: Counting = PACED, **limits: float | None) -> WaitingLine:
        return self.queue.line(Gate(name, Limits(**limits), counting, self.clock.now))  # type: ignore[arg-type]  # names

    def drained(self, name: str = "p/m", rpm: float = 60) -> WaitingLine:
        """One request a second, the first of them a second from now."""
        line = self.line(name, requests_per_min=rpm)
        assert reservation.reserve(line.gate, Cost(), self.clock.now) is not None
        return line

    def hold(
        self,
        *lines: WaitingLine,
        lane: Lane = "interactive",
        tenant: str = "a",
        tokens: float = 0,
        size: int = 1,
        deadline_s: float = 1000,
        seq: int = 0,
        keep: float = 0,
        fallback_options: Sequence[WaitingLine] = (),
        widen_s: float = inf,
        wake: Callable[[Held], None] | None = None,
    ) -> Held:
        """Hold a call for these lines; with `seq` it is one that comes back."""
        now = self.clock.now

        def woken() -> None:
            itself = find()
            assert itself is not None
            self.woken.append((itself, self.clock.now))
            if wake is not None:
                wake(itself)

        held = Watched(
            seq or self.queue.next_seq(),
            lane,
            tenant,
            now,
            model="m",
            size=size,
            deadline=now + deadline_s,
            wake=woken,
        )
        find = ref(held)
        options = [
            Option(index, line, Cost(1, tokens, 0), keep, 0, None)
            for index, line in enumerate((*lines, *fallback_options))
        ]
        self.queue.hold(
            held,
            options[: len(lines)],
            options[0],
            is_back=seq > 0,
            fallback_options=options[len(lines) :],
            widen_at=now + widen_s,
        )
        return held

    def went(self) -> list[tuple[int, float]]:
        """Who was let through (by age), and after how many seconds."""
        return [(held.seq, at - self.start) for held, at in self.woken if held.left is Left.GRANTED]

    def timers(self) -> list[float]:
        """In how many seconds the clock calls back."""
        return [timer.when - self.clock.now for timer in self.clock.timers if not timer.cancelled]

    def is_empty(self) -> bool:
        occupancy = self.queue.occupancy
        tickets = sum(len(line.waiters) for line in self.queue.lines.values())
        return (occupancy.calls, occupancy.bytes, sum(occupancy.depth.values()), tickets) == (0, 0, 0, 0)


# -- Going


def test_each_goes_at_the_very_moment_the_limit_frees() -> None:
    """One a second, in order, neither early nor late, and nobody polls in between."""
    stage = Stage()
    line = stage.drained()
    helds = [stage.hold(line) for _ in range(3)]
    seqs = [held.seq for held in helds]

    stage.clock.advance(0.999)
    assert stage.went() == []
    stage.clock.advance(10)

    assert stage.went() == [(seqs[0], 1.0), (seqs[1], 2.0), (seqs[2], 3.0)]
    assert [held.grant is not None and held.grant.gate is line.gate for held in helds] == [True] * 3
    assert stage.is_empty()
    assert line.served == 3


def test_a_call_that_may_go_is_let_through_at_once() -> None:
    """Before `hold` returns; it is woken once."""
    stage = Stage()
    line = stage.line(requests_per_min=60)

    held = stage.hold(line)

    assert stage.went() == [(held.seq, 0.0)]
    assert stage.is_empty()


def test_a_grant_names_the_option_it_was_taken_for() -> None:
    """The second target was free."""
    stage = Stage()
    blocked, free = stage.drained("p/a"), stage.line("p/b")

    held = stage.hold(blocked, free)

    assert held.option is not None
    assert (held.option.index, held.option.line) == (1, free)
    assert (blocked.gate.in_flight, free.gate.in_flight) == (1, 1)


def test_there_is_one_timer_for_all() -> None:
    """However many lines and calls; a sooner moment takes its place, and none is left when nobody waits."""
    stage = Stage()
    lines = [stage.drained(f"p/{n}", rpm=60 / (n + 1)) for n in range(5)]
    for line in reversed(lines):
        for _ in range(3):
            stage.hold(line, deadline_s=100)
        assert len(stage.timers()) == 1

    assert stage.timers() == [pytest.approx(1.0)]
    assert len(stage.clock.timers) == 5
    stage.clock.advance(1000)
    assert stage.timers() == []
    assert len(stage.went()) == 15


def test_nothing_waits_for_a_slot_by_the_clock() -> None:
    """No timer but that of the deadline; a release lets the next one through."""
    stage = Stage()
    line = stage.line(max_concurrency=1)
    first = stage.hold(line)
    second = stage.hold(line, deadline_s=100)
    assert stage.timers() == [100]
    assert first.grant is not None

    first.grant.settle(None, stage.clock.now)
    stage.queue.freed(line)

    assert second.left is Left.GRANTED


def test_a_call_in_several_lines_leaves_by_whichever_frees_first() -> None:
    """It stands in none of the others any more, and takes nothing there."""
    stage = Stage()
    slow, fast = stage.drained("p/slow", rpm=6), stage.drained("p/fast", rpm=30)
    helds = [stage.hold(slow, fast) for _ in range(6)]

    stage.clock.advance(9.9)
    assert [held.option.line if held.option else None for held in helds] == [fast, fast, fast, fast, None, None]
    stage.clock.advance(0.1)

    assert {held.option.line for held in helds[4:] if held.option} == {slow, fast}
    assert (slow.gate.in_flight, fast.gate.in_flight) == (2, 6)
    assert stage.is_empty()


def test_what_stands_behind_a_call_that_went_elsewhere_goes_when_it_fits() -> None:
    """The large one blocked its line, and left by the other: the small one behind it waits for itself only."""
    stage = Stage()
    tokens = stage.line("p/t", Counting(learns=False), tokens_per_min=600)
    other = stage.drained("p/o")
    assert reservation.reserve(tokens.gate, Cost(1, 550, 0), stage.clock.now) is not None
    stage.hold(tokens, other, tokens=600)
    small = stage.hold(tokens, tokens=20)

    stage.clock.advance(1.0)

    assert small.left is Left.GRANTED


@pytest.mark.parametrize("how", ["leaves", "expires", "is displaced"])
def test_what_stands_behind_a_call_that_is_gone_goes_when_it_fits(how: str) -> None:
    """A small call behind a large one that has gone does not wait for what that one would have needed."""
    stage = Stage()
    line = stage.line(counting=Counting(learns=False), tokens_per_min=600)
    assert reservation.reserve(line.gate, Cost(1, 550, 0), stage.clock.now) is not None
    large = stage.hold(line, lane="batch", tokens=600, deadline_s=1)
    small = stage.hold(line, lane="background", tenant="b", tokens=20)

    if how == "leaves":
        stage.queue.leave(large)
    elif how == "expires":
        stage.clock.advance(1)
    else:
        assert stage.queue.displace(1, "a")

    assert small.left is Left.GRANTED


def test_a_call_that_comes_back_goes_first() -> None:
    """Several in the order of their ages, whichever came back first."""
    stage = Stage()
    line = stage.drained()
    helds = [stage.hold(line) for _ in range(4)]
    stage.clock.advance(2)
    gone = [held.seq for held in helds[:2]]

    for seq in reversed(gone):
        stage.hold(line, seq=seq)
    stage.clock.advance(10)

    assert [seq for seq, _ in stage.went()] == [*gone, *gone, helds[2].seq, helds[3].seq]


def test_a_call_that_comes_back_and_fits_goes_at_once() -> None:
    """It stands before a large one that has to wait, and does not wait with it."""
    stage = Stage()
    line = stage.line(counting=Counting(learns=False), tokens_per_min=600)
    small = stage.hold(line, tokens=300)
    large = stage.hold(line, tokens=400)

    back = stage.hold(line, seq=small.seq, tokens=300)

    assert back.left is Left.GRANTED
    assert large.left is None


def test_lanes_are_strict_at_every_line() -> None:
    """Whoever is more urgent goes before all who wait."""
    stage = Stage()
    line = stage.drained()
    helds = {lane: stage.hold(line, lane=lane) for lane in reversed(LANES)}

    stage.clock.advance(10)

    assert [seq for seq, _ in stage.went()] == [helds[lane].seq for lane in LANES]


def test_a_reserve_is_left_over_by_those_who_must() -> None:
    """10 % of a limit of 100 waits for the higher lanes; these may take it."""
    stage = Stage()
    line = stage.line(counting=Counting(learns=False), requests_per_min=100)
    line.gate.urgent_at = stage.clock.now  # a call of a higher lane has come
    batch = [stage.hold(line, lane="batch", keep=10) for _ in range(100)]
    assert len(stage.went()) == 90

    user = stage.hold(line)

    assert user.left is Left.GRANTED
    assert batch[90].left is None


def test_an_answer_that_corrects_the_level_wakes_the_line() -> None:
    """`freed` lets go whoever now may."""
    stage = Stage()
    line = stage.drained(rpm=6)
    held = stage.hold(line)

    line.gate.limits.settle(Cost(), Cost(0, 0, 0), stage.clock.now)
    stage.queue.freed(line)

    assert held.left is Left.GRANTED


# -- Deadlines and fallbacks


def test_a_deadline_ends_the_wait_at_its_moment() -> None:
    """Neither early nor late; the others stay."""
    stage = Stage()
    line = stage.drained(rpm=1)
    late = stage.hold(line, deadline_s=5)
    other = stage.hold(line, deadline_s=5.5)

    stage.clock.advance(4.999)
    assert stage.woken == []
    stage.clock.advance(0.001)

    assert late.left is Left.EXPIRED
    assert stage.woken == [(late, stage.start + 5)]
    assert other.left is None
    assert late.grant is None


def test_a_limit_that_frees_at_the_deadline_serves() -> None:
    """`decide` lets a call wait for its very last moment: then it is served, not sent away."""
    stage = Stage()
    line = stage.drained()
    stage.hold(line, deadline_s=1.0)

    stage.clock.advance(1)

    assert [held.left for held, _ in stage.woken] == [Left.GRANTED]


def test_all_that_frees_at_the_deadline_serves() -> None:
    """A new window has room for everybody, not just for the one whose turn it is; the clock may be a little late."""
    stage = Stage()
    line = stage.line(counting=Counting(learns=False, style=Style(request_window_s=10.0)), requests_per_min=60)
    for _ in range(10):
        assert reservation.reserve(line.gate, Cost(), stage.clock.now) is not None
    for _ in range(5):
        stage.hold(line, deadline_s=10.0 - 1e-7)

    stage.clock.advance(10)

    assert [held.left for held, _ in stage.woken] == [Left.GRANTED] * 5


def test_fallbacks_are_used_from_their_moment_on() -> None:
    """Not before, though they are free; then at once."""
    stage = Stage()
    primary, fallback = stage.drained("p/m", rpm=1), stage.line("f/m", requests_per_min=60)
    held = stage.hold(primary, fallback_options=[fallback], widen_s=2)

    stage.clock.advance(1.999)
    assert stage.woken == []
    stage.clock.advance(0.001)

    assert held.option is not None
    assert (held.option.line, held.option.index) == (fallback, 1)
    assert stage.went() == [(held.seq, 2.0)]
    assert stage.is_empty()


def test_a_call_that_has_widened_still_has_its_deadline_and_its_place() -> None:
    """It waits in both lines; the first to free takes it, and if none does the deadline holds."""
    stage = Stage()
    primary, fallback = stage.drained("p/m", rpm=1), stage.drained("f/m", rpm=4)
    first = stage.hold(primary, fallback_options=[fallback], widen_s=2, deadline_s=50)
    second = stage.hold(primary, fallback_options=[fallback], widen_s=2, deadline_s=20)

    stage.clock.advance(19)
    assert first.option is not None
    assert first.option.line is fallback
    assert [held for held, _ in stage.woken] == [first]
    stage.clock.advance(1)

    assert second.left is Left.EXPIRED
    assert stage.is_empty()


def test_a_preference_beyond_the_deadline_means_never() -> None:
    """The call waits for the primary alone, and expires at its deadline."""
    stage = Stage()
    held = stage.hold(stage.drained(rpm=1), fallback_options=[stage.line("f/m")], widen_s=5, deadline_s=5)

    stage.clock.advance(5)

    assert held.left is Left.EXPIRED


# -- What can never go


def test_a_call_that_no_limit_can_hold_any_more_is_told() -> None:
    """A reload has made the limit smaller than the call."""
    stage = Stage()
    line = stage.line(counting=Counting(learns=False), tokens_per_min=600)
    assert reservation.reserve(line.gate, Cost(1, 600, 0), stage.clock.now) is not None
    large, small = stage.hold(line, tokens=500), stage.hold(line, tokens=50)

    line.gate.configure(Limits(tokens_per_min=100), Counting(learns=False), stage.clock.now)
    stage.queue.freed_all()

    assert [(held, held.left) for held, _ in stage.woken] == [(large, Left.NEVER_FITS)]
    stage.clock.advance(60 * (600 + 50) / 100)
    assert small.left is Left.GRANTED


def test_a_call_that_can_go_elsewhere_waits_there() -> None:
    """One of its two limits has become too small; it leaves that line only."""
    stage = Stage()
    shrunk = stage.line("p/t", Counting(learns=False), tokens_per_min=600)
    other = stage.drained("p/o")
    assert reservation.reserve(shrunk.gate, Cost(1, 600, 0), stage.clock.now) is not None
    held = stage.hold(shrunk, other, tokens=500)

    shrunk.gate.configure(Limits(tokens_per_min=100), Counting(learns=False), stage.clock.now)
    stage.queue.freed_all()

    assert (held.left, len(shrunk.waiters), len(other.waiters)) == (None, 0, 1)
    stage.clock.advance(1)
    assert held.option is not None
    assert held.option.line is other
    assert stage.is_empty()


def test_a_call_that_comes_back_to_a_spent_target_does_not_wait() -> None:
    """It was refused alone, and stood in no line when the target went out of service."""
    stage = Stage()
    line = stage.drained()
    held = stage.hold(line, seq=1)
    held.tickets[0].option.opens_at = stage.clock.now + 5
    stage.clock.advance(2)
    assert (held.left, len(line.waiters)) == (None, 0)

    line.gate.exhaust(None, stage.clock.now)
    stage.queue.shut(line)
    stage.clock.advance(4)

    assert held.left is Left.SHUT
    assert stage.is_empty()


@rows("is_fallback", [False, True])
def test_a_call_that_is_asked_out_of_turn_and_does_not_fit_can_go_elsewhere(is_fallback: bool) -> None:
    """It was to find out for a refused call, which goes first in its line, whether others are let in."""
    stage = Stage()
    small = stage.drained("p/s")
    small.gate.configure(Limits(requests_per_min=60, tokens_per_min=1000), PACED, stage.clock.now)
    other = stage.drained("p/o")
    refused = stage.hold(small, tenant="b", seq=1_000)
    small.gate.pauses.suspect(CallTraits(refused.seq, "b", 0), small.gate.pauses.epoch)

    own = [small] if is_fallback else [small, other]
    held = stage.hold(*own, tokens=5_000, fallback_options=[other] if is_fallback else [], widen_s=500)

    assert held.left is None
    stage.clock.advance(2)
    assert held.option is not None
    assert held.option.line is other
    assert refused.left is Left.GRANTED
    assert stage.is_empty()


def test_there_is_no_preference_for_a_primary_that_can_never_serve() -> None:
    """The fallbacks are used at once, and the deadline still holds."""
    stage = Stage()
    primary = stage.line("p/t", Counting(learns=False), tokens_per_min=600)
    assert reservation.reserve(primary.gate, Cost(1, 600, 0), stage.clock.now) is not None
    fallback = stage.drained("f/m", rpm=2)
    first, second = (
        stage.hold(primary, fallback_options=[fallback], widen_s=5, tokens=500, deadline_s=40) for _ in range(2)
    )

    primary.gate.configure(Limits(tokens_per_min=100), Counting(learns=False), stage.clock.now)
    stage.queue.freed_all()
    assert (len(primary.waiters), len(fallback.waiters)) == (0, 2)
    stage.clock.advance(39)

    assert (first.left, second.left) == (Left.GRANTED, None)
    stage.clock.advance(1)
    assert second.left is Left.EXPIRED
    assert stage.is_empty()


# -- Giving up


def test_a_call_that_leaves_is_not_woken() -> None:
    """The one behind it takes its turn; leaving twice, or after the end, does nothing."""
    stage = Stage()
    line = stage.drained()
    first, second = stage.hold(line), stage.hold(line)

    stage.queue.leave(first)
    stage.queue.leave(first)
    stage.clock.advance(1)
    stage.queue.leave(second)

    assert stage.went() == [(second.seq, 1.0)]
    assert len(stage.woken) == 1
    assert stage.is_empty()


def test_ten_thousand_who_leave_leave_nothing() -> None:
    """Counters and lines are empty, and hardly a call is held on to: not even until a collection."""
    stage = Stage()
    lines = [stage.drained(f"p/{n}", rpm=1) for n in range(3)]
    helds = [
        stage.hold(*lines[: 1 + n % 3], tenant=f"t{n % 50}", lane=LANES[n % 4], deadline_s=100 + n)
        for n in range(10_000)
    ]
    watched: WeakSet[Held] = WeakSet(helds)
    assert (stage.queue.occupancy.calls, stage.queue.occupancy.bytes) == (10_000, 10_000)
    random.Random(1).shuffle(helds)
    gc.collect()
    gc.disable()

    try:
        while helds:
            stage.queue.leave(helds.pop())
        assert stage.is_empty()
        assert stage.woken == []
        assert len(watched) <= 2000  # some void moments are kept until there is reason to tidy up
    finally:
        gc.enable()


def test_a_pause_with_many_answers_does_not_fill_the_heap() -> None:
    """Calls in flight end while their target is paused: each looks for somebody to wake, none leaves a moment behind."""
    stage = Stage()
    line = stage.line(max_concurrency=10_000)
    grants = [reservation.reserve(line.gate, Cost(), stage.clock.now) for _ in range(5000)]
    line.gate.pauses.quota_until = stage.clock.now + 500
    held = stage.hold(line)

    for grant in grants:
        assert grant is not None
        stage.clock.advance(0.001)
        grant.settle(None, stage.clock.now)
        stage.queue.freed(line)

    assert len(stage.queue._wakeups) <= 10
    stage.clock.advance(500)
    assert stage.went() == [(held.seq, 500.0)]


def test_the_next_chance_of_a_line_outlives_a_tidied_heap() -> None:
    """The heap is tidied while the line looks for its next call: by one that is put aside until its own pause is over."""
    stage = Stage()
    other, line = stage.line("other", max_concurrency=1), stage.drained()
    running = reservation.reserve(other.gate, Cost(), stage.clock.now)
    assert running is not None
    for _ in range(1200):  # whose moments are void once they go
        stage.hold(other)
    refused, waiting = stage.hold(line, seq=1), stage.hold(line, seq=2)
    refused.tickets[0].option.opens_at = stage.clock.now + 5
    other.gate.configure(Limits(), PACED, stage.clock.now)
    stage.queue.freed(other)
    stage.queue.freed(line)

    stage.clock.advance(2)

    assert stage.went()[1200:] == [(waiting.seq, 1.0)]


# -- Bounds


def test_a_full_queue_takes_nobody_of_the_same_lane() -> None:
    """Nor of a lower one; whoever is more urgent takes the place of the youngest of the lowest lane."""
    stage = Stage(QueueBounds(max_calls=4, max_percent_per_tenant=100))
    line = stage.drained(rpm=1)
    batch, older, younger = stage.hold(line, lane="batch"), *(stage.hold(line, lane="background") for _ in range(2))
    stage.hold(line)

    assert not stage.queue.make_room(place(stage, lane="background"))
    assert stage.woken == []
    for urgent in ("batch", "interactive", "critical"):
        assert stage.queue.make_room(place(stage, lane=urgent))
        stage.hold(line, lane=urgent)

    assert [(held, held.left) for held, _ in stage.woken] == [
        (younger, Left.DISPLACED),
        (older, Left.DISPLACED),
        (stage.woken[2][0], Left.DISPLACED),
    ]
    assert stage.woken[2][0].lane == "batch"
    assert batch.left is None
    assert stage.queue.occupancy.calls == 4


def test_the_youngest_of_all_lines_makes_room() -> None:
    """Of the lowest lane anywhere, whichever target it waits for."""
    stage = Stage()
    lines = [stage.drained(f"p/{n}", rpm=1) for n in range(3)]
    older, younger = stage.hold(lines[0], lane="background"), stage.hold(lines[1], lane="background")
    batch = stage.hold(lines[2], lane="batch")

    while stage.queue.displace(1):
        pass

    assert [held for held, _ in stage.woken] == [younger, older, batch]


def test_bytes_are_bounded_too() -> None:
    """As many are sent away as the newcomer needs; nobody for one that would not fit into an empty queue."""
    stage = Stage(QueueBounds(max_bytes=100, max_percent_per_tenant=100))
    line = stage.drained(rpm=1)
    small = [stage.hold(line, lane="batch", size=30) for _ in range(3)]

    assert not stage.queue.make_room(place(stage, size=101))
    assert stage.woken == []
    assert stage.queue.make_room(place(stage, size=50))

    assert [held.left for held in small] == [None, Left.DISPLACED, Left.DISPLACED]
    assert (stage.queue.occupancy.calls, stage.queue.occupancy.bytes) == (1, 30)


def test_one_tenant_may_not_fill_the_queue_where_others_wait() -> None:
    """75 % of the places, or all while he is alone."""
    stage = Stage(QueueBounds(max_calls=8))
    line = stage.drained(rpm=1)
    for _ in range(7):
        assert stage.queue.make_room(place(stage))
        stage.hold(line)
    other = stage.hold(line, tenant="b")

    assert not stage.queue.make_room(place(stage))
    assert not stage.queue.make_room(place(stage, lane="critical"))
    stage.queue.leave(other)
    assert stage.queue.make_room(place(stage))


def test_a_tenant_who_fills_the_queue_makes_room_for_another() -> None:
    """His youngest of the same lane goes; the other can not so take more than his own share."""
    stage = Stage(QueueBounds(max_calls=8))
    line = stage.drained(rpm=1)
    greedy = [stage.hold(line) for _ in range(8)]

    assert stage.queue.make_room(place(stage, tenant="b"))
    stage.hold(line, tenant="b")
    assert stage.queue.make_room(place(stage, tenant="b"))
    stage.hold(line, tenant="b")

    assert [held.left for held in greedy[6:]] == [Left.DISPLACED] * 2
    assert stage.queue.make_room(place(stage, tenant="c"))  # he has 6 of 8, which is all of his share
    assert [held.left for held in greedy[4:6]] == [None, Left.DISPLACED]


def test_shares_of_bytes_count_as_those_of_calls() -> None:
    """A tenant with few but large calls is bounded as well."""
    stage = Stage(QueueBounds(max_bytes=100))
    line = stage.drained(rpm=1)
    stage.hold(line, size=70)
    stage.hold(line, tenant="b", size=1)

    assert not stage.queue.make_room(place(stage, size=10))
    assert stage.queue.make_room(place(stage, size=5))


def test_new_bounds_send_nobody_away() -> None:
    """But nobody joins before there is room."""
    stage = Stage()
    line = stage.drained(rpm=1)
    helds = [stage.hold(line) for _ in range(5)]

    stage.queue.configure(QueueBounds(max_calls=2))

    assert not stage.queue.make_room(place(stage))
    assert [held.left for held in helds] == [None] * 5


def test_another_ageing_reaches_the_lines_there_are() -> None:
    """A reload changes how long a lower lane has to wait for its share."""
    stage = Stage()
    line = stage.drained()
    first, _ = stage.hold(line), stage.hold(line)
    batch = stage.hold(line, lane="batch")

    stage.queue.configure(QueueBounds(age_after_s={"batch": 0.5}, aged_percent=100))
    stage.clock.advance(2)

    assert [seq for seq, _ in stage.went()] == [first.seq, batch.seq]


def test_an_aged_call_that_leaves_gives_back_what_was_saved_for_it() -> None:
    """Those who left something over for it go at once."""
    stage = Stage(QueueBounds(age_after_s={"batch": 1.0}, aged_percent=50))
    line = stage.line(counting=Counting(learns=False), tokens_per_min=600)
    assert reservation.reserve(line.gate, Cost(1, 600, 0), stage.clock.now) is not None
    batch = stage.hold(line, lane="batch", tokens=600)
    users = [stage.hold(line, tokens=100) for _ in range(3)]
    stage.clock.advance(20)
    assert [held for held, _ in stage.woken] == users[:1]  # the second leaves 100 over: it waits for 200

    stage.queue.leave(batch)

    assert [held for held, _ in stage.woken] == users[:2]


def test_an_urgent_call_does_not_wait_behind_an_aged_one_that_cannot_go() -> None:
    """An aged call is blocked by the slots it has to leave over; whoever may use these goes at once."""
    stage = Stage(QueueBounds(age_after_s={"background": 1.0}, aged_percent=20))
    line = stage.line(counting=Counting(learns=False), max_concurrency=10)
    for _ in range(9):
        stage.hold(line)
    stage.hold(line, lane="background", keep=10)
    stage.hold(line, lane="batch", keep=10)
    stage.clock.advance(5)
    stage.queue.freed(line)

    user = stage.hold(line)

    assert user.left is Left.GRANTED


# -- While it is at work


def test_a_wake_may_do_anything_to_the_queue() -> None:
    """Whoever is woken may leave for others, hold new ones, and free slots: each call still ends once."""
    stage = Stage(QueueBounds(aged_percent=0))
    lines = [stage.line(f"p/{n}", Counting(learns=False), max_concurrency=2, requests_per_min=600) for n in range(2)]
    rng = random.Random(1)
    waiting: list[Held] = []
    ends: list[Held] = []

    def wake(held: Held) -> None:
        ends.append(held)
        for other in rng.sample(waiting, min(2, len(waiting))):
            if other.left is None and rng.random() < 0.3:
                waiting.remove(other)
                stage.queue.leave(other)
        if len(ends) < 300:
            hold()
        if held.grant is not None and rng.random() < 0.9:
            held.grant.settle(None, stage.clock.now)
            stage.queue.freed(rng.choice(lines))

    def hold() -> None:
        waiting.append(
            stage.hold(
                *rng.sample(lines, rng.choice([1, 2])), tenant=rng.choice("abc"), deadline_s=rng.random(), wake=wake
            )
        )

    for _ in range(20):
        hold()
    stage.clock.advance(100)

    assert len(ends) == len(set(map(id, ends))) == len(stage.woken)
    assert {held.left for held in ends} == {Left.GRANTED, Left.EXPIRED}
    assert stage.is_empty()
    assert stage.timers() == []


def test_moments_a_hair_apart_do_not_stop_the_process() -> None:
    """A line whose pause ends half a microsecond after another's is served at its own moment."""
    stage = Stage()
    lines = [stage.line("p/a"), stage.line("p/b")]
    for number, line in enumerate(lines):
        line.gate.pauses.quota_until = stage.clock.now + 1 + number * 5e-7
        stage.hold(line, deadline_s=1 + 3e-7 if number else 1000)

    stage.clock.advance(1)
    assert len(stage.went()) == 1
    stage.clock.advance(1)

    assert stage.is_empty()


def test_position_and_eta_count_down() -> None:
    """Those who go before it, and itself; one that came back is next."""
    stage = Stage()
    line = stage.drained()
    first, _, third = (stage.hold(line) for _ in range(3))

    assert (third.position(), round(third.eta_s(stage.clock.now), 6)) == (3, 3.0)
    stage.clock.advance(1.5)
    assert (third.position(), round(third.eta_s(stage.clock.now), 6)) == (2, 1.5)
    assert stage.hold(line, seq=first.seq).position() == 1

    tokens = stage.line("p/t", Counting(learns=False), tokens_per_min=600)
    assert reservation.reserve(tokens.gate, Cost(1, 600, 0), stage.clock.now) is not None
    waiting = [stage.hold(tokens, tokens=100) for _ in range(2)]
    assert waiting[1].eta_s(stage.clock.now) == 20.0


def test_depths_are_counted_by_model_and_lane() -> None:
    """For the metrics."""
    stage = Stage()
    line = stage.drained()
    stage.hold(line)
    held = stage.hold(line, lane="batch")

    assert stage.queue.occupancy.depth == {("m", "interactive"): 1, ("m", "batch"): 1}
    stage.queue.leave(held)
    assert stage.queue.occupancy.depth["m", "batch"] == 0


def test_a_line_is_made_once_and_can_be_forgotten() -> None:
    """Its moments that are still to come do no harm."""
    stage = Stage()
    line = stage.drained()
    assert stage.queue.line(line.gate) is line
    stage.queue.leave(stage.hold(line))

    stage.queue.drop_line("p/m")
    stage.clock.advance(10)

    assert stage.queue.lines == {}


# -- Work conserving

arrivals = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.01, 0.3, 2.0]),
        st.sampled_from(LANES),
        st.sampled_from("ab"),
        st.sampled_from([0, 1, 90, 600]),
        st.sampled_from(["stays", "leaves", "ends"]),
    ),
    min_size=1,
    max_size=40,
)


def assert_busy(stage: Stage, line: WaitingLine) -> None:
    """The clock will call back no later than the next one can go."""
    turn = line.waiters.peek(stage.clock.now)
    if turn is None:
        return
    keeps = turn.keep_percent, turn.keep_requests, turn.keep_tokens
    wait_s = reservation.admit(line.gate, turn.ticket.cost, stage.clock.now, *keeps)
    assert wait_s is None or min(stage.timers()) <= wait_s + 1e-6


@settings(deadline=None, derandomize=True)
@given(arrivals, st.sampled_from([None, 3]), st.sampled_from([0.0, 1.0]))
def test_no_capacity_is_idle_while_somebody_waits_for_it(
    calls: list[tuple[float, Lane, str, int, str]], slots: int | None, burst: float
) -> None:
    """Whoever comes, leaves or ends: the next one goes at the first moment that the limits allow."""
    stage = Stage(QueueBounds(aged_percent=20, age_after_s={"batch": 1.0, "background": 1.0}))
    counting = Counting(learns=False, style=Style(request_burst=burst))
    line = stage.line(counting=counting, requests_per_min=300, tokens_per_min=6000, max_concurrency=slots)
    helds: list[Held] = []

    def release() -> None:
        for held in helds:
            if held.grant is not None and held.grant.is_open:
                held.grant.settle(None, stage.clock.now)
                stage.queue.freed(line)
                return

    for gap_s, lane, tenant, tokens, then in calls:
        stage.clock.advance(gap_s)
        assert_busy(stage, line)
        keep = 10.0 if LANES.index(lane) > 1 else 0.0
        helds.append(stage.hold(line, lane=lane, tenant=tenant, tokens=tokens, keep=keep, deadline_s=1e4))
        if then == "leaves":
            stage.queue.leave(helds[len(helds) // 2])
        elif then == "ends":
            release()
        assert_busy(stage, line)
    for _ in range(1000):
        if stage.is_empty():
            break
        stage.clock.advance(min(1.0, *stage.timers()))
        release()
        assert_busy(stage, line)

    assert stage.is_empty()
    assert len(stage.woken) == len({id(held) for held, _ in stage.woken})


def place(stage: Stage, *, lane: Lane = "interactive", tenant: str = "a", size: int = 1) -> Held:
    """A call that asks whether there is room."""
    return Held(stage.queue.next_seq(), lane, tenant, 0.0, model="m", size=size, deadline=inf, wake=lambda: None)


def test_a_call_that_its_gate_cannot_stand_is_ended_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect takes the call that met it, is logged, and stops neither the line nor the timer."""
    wait_for = reservation.wait_for

    def broken_wait(gate: Gate, cost: Cost, *args: float) -> float | None:
        if cost.input_tokens == 666:
            raise ZeroDivisionError
        return wait_for(gate, cost, *args)  # type: ignore[arg-type]  # the last is a rank

    monkeypatch.setattr(reservation, "wait_for", broken_wait)
    stage = Stage()
    line = stage.queue.line(Gate("p/m", Limits(requests_per_min=60), PACED, stage.clock.now))
    assert reservation.reserve(line.gate, Cost(), stage.clock.now) is not None
    first = stage.hold(line)
    broken = stage.hold(line, tokens=666)
    last = stage.hold(line)

    stage.clock.advance(10)

    assert [held.left for held in (first, broken, last)] == [Left.GRANTED, Left.FAILED, Left.GRANTED]
    assert "the gate p/m failed" in caplog.text
    assert stage.is_empty()


def test_a_wake_that_fails_does_not_stop_the_clock(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever is due after it is still woken."""

    def fail(_held: Held) -> None:
        raise ZeroDivisionError

    stage = Stage()
    line = stage.drained()
    stage.hold(line, deadline_s=0.5, wake=fail)
    other = stage.hold(line, deadline_s=0.7)

    stage.clock.advance(10)

    assert other.left is Left.EXPIRED
    assert "a held call could not be woken" in caplog.text
