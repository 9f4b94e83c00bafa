"""The order in which held calls leave one gate: lanes, shares of tenants, age; and that nothing is ever left behind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from math import ceil
from weakref import WeakSet

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.admission.fair_queue import FairQueue, Ticket, Waiter
from gateway.core.limits.bucket import NOTHING, Cost
from gateway.core.types import LANES, Lane
from tests.sweeps import sampled

LOW = LANES.index("background")


class Watched(Ticket):
    """A ticket that can be referred to weakly: who holds on to it can be seen."""


class Counted(Waiter):
    """A place that counts how often anybody looks at it: the work of a queue, without a clock."""

    looks = 0
    _is_gone = False

    @property
    def is_gone(self) -> bool:
        Counted.looks += 1
        return self._is_gone

    @is_gone.setter
    def is_gone(self, value: bool) -> None:
        self._is_gone = value


class Stand:
    """A queue and the tickets it gives out, numbered in the order of their making."""

    def __init__(self, queue: FairQueue[Ticket] | None = None, place: Callable[..., Waiter] = Waiter) -> None:
        self.queue: FairQueue[Ticket] = FairQueue(aged_percent=0) if queue is None else queue
        self._place = place
        self._seq = 0

    def ticket(
        self, tenant: str = "a", tokens: float = 10, *, lane: Lane = "interactive", at: float = 0.0, keep: float = 0.0
    ) -> Ticket:
        self._seq += 1
        return Watched(self._place(self._seq, lane, tenant, at), Cost(1, tokens, 0), keep)

    def add(
        self, tenant: str = "a", tokens: float = 10, *, lane: Lane = "interactive", at: float = 0.0, keep: float = 0.0
    ) -> Ticket:
        """One more at the end of its line, counted there."""
        ticket = self.ticket(tenant, tokens, lane=lane, at=at, keep=keep)
        self.queue.add(ticket)
        self.queue.count_at_likely_line(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        ticket.place.is_gone = True
        self.queue.left(ticket)

    def next(self, now: float = 0.0) -> Ticket:
        """Lets the next one go."""
        turn = self.queue.peek(now)
        assert turn is not None
        self.queue.pop(turn.ticket)
        return turn.ticket

    def order(self) -> list[Ticket]:
        """Lets all go."""
        return [self.next() for _ in range(len(self.queue))]


def seqs(tickets: list[Ticket]) -> list[int]:
    return [ticket.place.seq for ticket in tickets]


# -- Lanes, ages and those who come back


def test_a_higher_lane_goes_first_whenever_it_came() -> None:
    """Critical, interactive, batch, background; in each by age."""
    stand = Stand()
    for lane in (*reversed(LANES), *LANES):
        stand.add(lane=lane)

    left = stand.order()

    assert [ticket.place.lane for ticket in left] == [lane for lane in LANES for _ in range(2)]
    assert seqs(left) == [4, 5, 3, 6, 2, 7, 1, 8]


def test_a_tenant_is_served_in_the_order_of_his_calls() -> None:
    """Whatever their sizes, and however the others' calls lie between."""
    stand = Stand()
    rng = random.Random(1)
    for _ in range(300):
        stand.add(rng.choice("abc"), rng.choice([1, 100, 10_000]))

    left = stand.order()

    for tenant in "abc":
        own = seqs([ticket for ticket in left if ticket.place.tenant == tenant])
        assert own == sorted(own)


def test_a_call_that_came_back_stands_before_all_younger_ones_of_its_tenant() -> None:
    """Several keep the order they had, in whatever order they come back; a newcomer stays behind them."""
    stand = Stand()
    for _ in range(6):
        stand.add()
    gone = [stand.next() for _ in range(4)]

    for index in (2, 0, 3):
        stand.queue.add_back(gone[index])
    stand.add()

    assert seqs(stand.order()) == [1, 3, 4, 5, 6, 7]


def test_a_call_that_came_back_still_has_its_turn() -> None:
    """Its share was taken when it went and is given back: the tenant does not pay twice, and it goes next."""
    stand = Stand()
    for tenant in "abab":
        stand.add(tenant, 100)
    first = stand.next()

    stand.queue.add_back(first)

    assert stand.next() is first
    assert [ticket.place.tenant for ticket in stand.order()] == ["b", "a", "b"]


def test_the_last_call_of_a_tenant_that_comes_back_goes_next() -> None:
    """Its tenant had nothing more to wait for, and is let in before the others."""
    stand = Stand()
    first, _, _ = stand.add("a"), stand.add("b"), stand.add("c")
    assert stand.next() is first
    assert stand.queue.peek(0.0) is not None  # a's line is dropped

    stand.queue.add_back(first)

    assert stand.next() is first


def test_a_call_that_comes_back_takes_no_other_along() -> None:
    """Its tenant's next one waits for the tenant's next turn."""
    stand = Stand()
    stand.add(tokens=1000)
    stand.next()  # ten calls of ten tokens would fit into one turn now
    first, other = stand.add("a"), stand.add("b")
    assert stand.next() is first
    assert stand.queue.peek(0.0) is not None  # a's line is dropped

    stand.queue.add_back(first)
    newcomer = stand.add("a")

    assert stand.order() == [first, other, newcomer]


def test_a_returned_call_that_leaves_is_forgotten() -> None:
    """The one behind it is next."""
    stand = Stand()
    first, second = stand.add(), stand.add()
    stand.next()
    stand.queue.add_back(first)

    stand.leave(first)

    assert stand.order() == [second]


def test_looking_changes_nothing() -> None:
    """Who is next stays next, however often one asks, and whoever joins behind."""
    stand = Stand()
    rng = random.Random(2)
    for _ in range(100):
        stand.add(rng.choice("abcd"), rng.choice([1, 50, 5000]), lane=rng.choice(LANES), keep=rng.choice([0.0, 10.0]))

    while len(stand.queue):
        turn = stand.queue.peek(0.0)
        assert turn is not None
        assert turn.keep_percent == turn.ticket.keep_percent
        stand.queue.add(stand.ticket(turn.ticket.place.tenant, lane="background"))
        assert stand.queue.peek(0.0) == turn
        stand.queue.pop(turn.ticket)
        stand.leave(stand.queue.youngest(-1) or turn.ticket)


def test_nobody_waits_in_an_empty_line() -> None:
    """No turn, no one ahead, free for everyone."""
    queue: FairQueue[Ticket] = FairQueue()

    assert queue.peek(0.0) is None
    assert len(queue) == 0
    assert queue.ahead(LOW, "a", 10) == NOTHING
    assert all(queue.is_free_for(rank) for rank in range(len(LANES)))
    assert queue.youngest(-1) is None


def test_a_newcomer_passes_lower_lanes_only() -> None:
    """The line is free for those who stand above everybody in it, and for all when these have gone."""
    stand = Stand()
    ticket = stand.add(lane="batch")

    assert [stand.queue.is_free_for(rank) for rank in range(4)] == [True, True, False, False]
    stand.leave(ticket)
    assert [stand.queue.is_free_for(rank) for rank in range(4)] == [True] * 4


# -- Shares of tenants


def shares(
    size: Mapping[str, Callable[[], float]], *, turns: int, offered: Mapping[str, int]
) -> tuple[Counter[str], float]:
    """Tokens served to each tenant while all have work, and the largest difference there ever was.

    Before each turn, `offered` calls of each tenant arrive; nobody ever has none.
    """
    stand = Stand()
    served: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    largest = 0.0
    for _ in range(turns):
        for tenant, calls in offered.items():
            for _ in range(max(calls, 2 - waiting[tenant])):
                stand.add(tenant, size[tenant]())
                waiting[tenant] += 1
        ticket = stand.next()
        served[ticket.place.tenant] += int(ticket.tokens)
        waiting[ticket.place.tenant] -= 1
        largest = max(largest, max(served[tenant] for tenant in size) - min(served[tenant] for tenant in size))
    return served, largest


def test_a_hundred_times_the_load_gives_no_larger_share() -> None:
    """While both have work, both get the same tokens; never more than two calls apart."""
    rng = random.Random(3)

    def size() -> int:
        return rng.randint(1, 4000)

    served, largest = shares({"noisy": size, "quiet": size}, turns=600, offered={"noisy": 100, "quiet": 0})

    assert served["noisy"] == pytest.approx(served["quiet"], rel=0.02)
    assert largest <= 2 * 4000


@pytest.mark.parametrize("large", sampled([300, 3000, 30_000, 300_000], lambda large: large in (300, 300_000)))
@pytest.mark.parametrize("busy", ["few", "many"])
def test_large_calls_give_no_larger_share_than_small_ones(large: int, busy: str) -> None:
    """Tokens are shared, not calls: never apart by more than two of the large calls, whoever asks more often."""
    served, largest = shares(
        {"few": lambda: large, "many": lambda: 30}, turns=12_000, offered={"few": 0, "many": 0} | {busy: 1}
    )

    assert served["few"] >= large
    assert largest <= 2 * large


def test_many_tenants_get_the_same() -> None:
    """Ten of them, with calls of every size, at every rate: nobody is ever more than two of the largest calls behind."""
    rng = random.Random(4)
    tenants = [f"t{number}" for number in range(10)]
    size = {tenant: partial(rng.randint, 1, 10 ** (1 + n % 3)) for n, tenant in enumerate(tenants)}

    served, largest = shares(size, turns=10_000, offered={tenant: n % 3 for n, tenant in enumerate(tenants)})

    assert min(served.values()) > 10 * 1000
    assert largest <= 2 * 1000


def test_an_idle_tenant_saves_nothing_up() -> None:
    """Whoever comes after a long silence gets his share from then on, not what he did not use."""
    stand = Stand()
    for _ in range(1000):
        stand.add("busy")
    for _ in range(500):
        stand.next()
    for _ in range(100):
        stand.add("late")

    left = [stand.next().place.tenant for _ in range(100)]

    assert left.count("late") == pytest.approx(50, abs=2)


def test_a_tenant_who_leaves_and_returns_gains_nothing() -> None:
    """A call at a time, each after the last has gone, is never more than the share."""
    stand = Stand()
    for _ in range(2000):
        stand.add("busy", 10)
    served: Counter[str] = Counter()
    for _ in range(1000):
        if ("interactive", "one") not in stand.queue.depths():
            stand.add("one", 10)
        served[stand.next().place.tenant] += 1

    assert served["one"] <= served["busy"] + 1


# -- Savings


def test_small_calls_pass_a_large_one_up_to_their_share() -> None:
    """As many tokens as the large call has; then it goes, although more of them wait."""
    stand = Stand()
    large = stand.add("a", 1000)
    for _ in range(30):
        stand.add("b", 100)

    assert 9 <= stand.order().index(large) <= 10


def test_those_who_pass_leave_over_what_a_large_call_has_saved() -> None:
    """As much as went since it was the next, theirs included: when it is due, all of it is there."""
    stand = Stand()
    large = stand.add("a", 1000)
    for _ in range(30):
        stand.add("b", 100)
    kept = []
    while (turn := stand.queue.peek(0.0)) is not None and turn.ticket is not large:
        kept.append(turn.keep_tokens)
        stand.next()

    assert kept == [pytest.approx(100.0 * number) for number in range(1, len(kept) + 1)]


@pytest.mark.parametrize(
    ("there", "kept"), [(1e9, 400.0), (300.0, 400.0), (150.0, 250.0), (0.0, 100.0), (-50.0, 100.0)]
)
def test_savings_that_are_not_there_are_cut(there: float, kept: float) -> None:
    """A higher lane has taken them: nobody waits until they are there again."""
    stand = Stand()
    stand.add("a", 1000)
    for _ in range(5):
        stand.add("b", 100)
    for _ in range(3):
        stand.next()

    turn = stand.queue.peek(0.0, room=lambda _: there)

    assert turn is not None
    assert turn.ticket.place.tenant == "b"
    assert turn.keep_tokens == pytest.approx(kept)


# -- Ageing


def aged_shares(lanes: tuple[Lane, ...], percent: float, turns: int = 1000) -> Counter[Lane]:
    """How often each lane went, all of them always waiting, their calls older than an hour."""
    stand = Stand(FairQueue({"batch": 60.0, "background": 600.0}, percent))
    for lane in lanes:
        for _ in range(turns):
            stand.add(lane=lane)
    return Counter(stand.next(3600.0).place.lane for _ in range(turns))


@pytest.mark.parametrize("percent", [1, 5, 20, 50])
def test_calls_that_have_waited_too_long_get_their_share_of_the_turns(percent: float) -> None:
    """Exactly `aged_percent` of the turns of a lane that never empties."""
    left = aged_shares(("interactive", "batch"), percent)

    assert left["batch"] == 1000 * percent / 100


def test_without_a_share_lanes_are_strict() -> None:
    """However long the lower ones have waited."""
    assert aged_shares(("interactive", "batch", "background"), 0) == {"interactive": 1000}


def test_no_lane_starves_behind_two_busy_ones() -> None:
    """Of several aged calls the one that has waited longest goes."""
    stand = Stand(FairQueue({"batch": 60.0, "background": 600.0}, 5.0))
    for number in range(200):
        stand.add(lane="background", at=number)
        stand.add(lane="batch", at=number + 0.5)
        for _ in range(20):
            stand.add()

    left = Counter(stand.next(3600.0).place.lane for _ in range(4000))

    assert left == {"interactive": 3800, "batch": 100, "background": 100}


def test_only_what_has_waited_too_long_is_aged() -> None:
    """A young call of a lower lane, and a lane without such a limit, wait for the higher lanes."""
    stand = Stand(FairQueue({"batch": 60.0}, 100.0))
    stand.add()
    stand.add(lane="batch", at=0.0)
    stand.add(lane="background", at=-1e6)

    stand.add()

    assert stand.next(60.0).place.lane == "interactive"
    stand.add()
    assert stand.next(60.1).place.lane == "interactive"  # from now on its share is saved up
    assert stand.next(60.1).place.lane == "batch"
    assert stand.next(1e6).place.lane == "interactive"


def test_an_aged_call_need_not_leave_anything_over() -> None:
    """Else the reserve would starve it; in its own turn it must."""
    stand = Stand(FairQueue({"batch": 60.0}, 50.0))
    stand.add()
    batch = stand.add(lane="batch", keep=10.0)
    stand.next(100.0)

    assert stand.queue.peek(100.0) == (batch, 10.0, 0.0, 0.0)
    for _ in range(2):
        stand.add()
    stand.next(100.0)
    assert stand.queue.peek(100.0) == (batch, 0.0, 0.0, 0.0)


def test_what_an_aged_call_saves_up_is_left_over_by_the_others() -> None:
    """So it never makes them wait for all that it costs, however much that is."""
    stand = Stand(FairQueue({"batch": 60.0}, 50.0))
    stand.add(lane="batch", tokens=1000)
    for _ in range(20):
        stand.add(tokens=100)

    kept = []
    while stand.queue.peek(100.0).ticket.place.lane == "interactive":  # type: ignore[union-attr]  # somebody waits
        kept.append(stand.queue.peek(100.0)[2:])  # type: ignore[index]  # as above
        stand.next(100.0)

    assert kept == [(min(1.0, number), 100.0 * number) for number in range(10)]


def test_the_share_of_aged_calls_is_of_the_turns_taken_from_them() -> None:
    """Turns that nobody below had to wait for do not count."""
    stand = Stand(FairQueue({"batch": 60.0}, 20.0))
    for _ in range(20):
        stand.add()
    for _ in range(10):
        stand.next()

    stand.add(lane="batch", at=-100.0)

    assert [stand.next().place.lane for _ in range(5)] == ["interactive"] * 4 + ["batch"]


def test_ageing_can_be_changed_while_calls_wait() -> None:
    """A reload puts another share in force."""
    stand = Stand()
    stand.add()
    stand.add(lane="batch")

    stand.add()
    stand.queue.configure({"batch": 60.0}, 100.0)

    assert [stand.next(100.0).place.lane for _ in range(2)] == ["interactive", "batch"]


# -- Who is ahead


def test_all_of_the_same_tenant_are_ahead_of_his_newcomer() -> None:
    """Exactly: alone in his lane he is served in order."""
    stand = Stand()
    for tokens in (10, 200, 3000):
        stand.add(tokens=tokens)

    assert stand.queue.ahead(1, "a", 5) == Cost(3, 3210, 0)


def test_all_higher_lanes_are_ahead_and_no_lower_one() -> None:
    """A newcomer to `batch` waits for critical and interactive calls, not for background ones."""
    stand = Stand()
    for lane, tokens in zip(LANES, (1, 20, 300, 4000), strict=True):
        stand.add(lane=lane, tokens=tokens)

    assert stand.queue.ahead(0, "b", 1).requests <= 1
    assert stand.queue.ahead(2, "a", 10) == Cost(3, 321, 0)


def test_only_higher_lanes_are_above_a_call_that_comes_back() -> None:
    """It stands before its own."""
    stand = Stand()
    for lane, tokens in zip(LANES, (1, 20, 300, 4000), strict=True):
        stand.add(lane=lane, tokens=tokens)

    assert [stand.queue.above(rank) for rank in range(4)] == [NOTHING, Cost(1, 1, 0), Cost(2, 21, 0), Cost(3, 321, 0)]


def test_a_newcomer_does_not_wait_for_another_tenants_backlog() -> None:
    """Of 1,000 calls of another only about one goes first; it turns out so."""
    stand = Stand()
    for _ in range(1000):
        stand.add("noisy", 10)

    ahead = stand.queue.ahead(1, "quiet", 10)
    ticket = stand.add("quiet", 10)

    assert ahead.requests == pytest.approx(1, abs=0.1)
    assert stand.order().index(ticket) <= 2


def test_a_ticket_that_is_not_at_home_is_not_ahead() -> None:
    """A call in several lines counts in one of them."""
    stand = Stand()
    stand.queue.add(stand.ticket())

    assert len(stand.queue) == 1
    assert stand.queue.ahead(1, "a", 10) == NOTHING


def test_those_who_leave_are_not_ahead_any_more() -> None:
    """Neither the one who went nor the one who gave up."""
    stand = Stand()
    tickets = [stand.add(tokens=10**n) for n in range(4)]
    stand.leave(tickets[1])
    stand.next()

    assert stand.queue.ahead(1, "a", 5) == Cost(2, 1100, 0)


def test_rounding_leaves_nobody_ahead_by_less_than_nothing() -> None:
    """0.6 + 0.1 - 0.6 - 0.1 is not zero, but no negative number of tokens is ahead either."""
    stand = Stand()
    left = [stand.add(tokens=0.6), stand.add(tokens=0.1)]
    stand.add(tokens=0)

    for ticket in left:
        stand.leave(ticket)

    assert stand.queue.ahead(1, "a", 5) == Cost(1, 0, 0)


# -- Making room


def test_the_youngest_of_the_lowest_lane_makes_room() -> None:
    """Of the tenant who has most waiting; nobody of the asker's own lane or above."""
    stand = Stand()
    stand.add(lane="background", tenant="b")
    stand.add(lane="background")
    youngest = stand.add(lane="background")
    stand.add(lane="background", tenant="b", tokens=1).place.is_gone = False
    stand.add(lane="background")
    last = stand.add(lane="background")
    stand.add(lane="interactive")

    assert stand.queue.youngest(1) is last
    assert stand.queue.youngest(LOW) is None
    stand.leave(last)
    stand.leave(stand.queue.youngest(1) or last)
    stand.leave(stand.queue.youngest(1, "b") or last)
    assert stand.queue.youngest(1) is youngest
    assert stand.queue.youngest(1, "nobody") is None


def test_a_returned_call_makes_room_last() -> None:
    """It has been tried already: those who never were go before it."""
    stand = Stand()
    first, second = stand.add(lane="batch"), stand.add(lane="batch")
    stand.next()
    stand.queue.add_back(first)

    assert stand.queue.youngest(1) is second
    stand.leave(second)
    assert stand.queue.youngest(1) is first


# -- What is left behind


def test_the_dead_are_dropped() -> None:
    """Of 10,000 of whom nearly all leave, few are still held on to; of those who all leave, none."""
    stand = Stand()
    tickets = [stand.add(f"t{n % 7}") for n in range(10_000)]
    watched = WeakSet(tickets)
    survivors = tickets[::1000]
    for ticket in tickets:
        if ticket not in survivors:
            stand.leave(ticket)
    del tickets, ticket

    assert len(watched) <= 7 * 2 * 64 + len(survivors)
    assert stand.queue.tickets() != survivors
    assert sorted(seqs(stand.queue.tickets())) == seqs(survivors)
    for ticket in survivors:
        stand.leave(ticket)
    survivors.clear()
    del ticket
    assert len(watched) == 0


def test_leaving_is_constant_work_on_average() -> None:
    """10,000 leave in a random order, then the few that are left go: no place is looked at more than a few times."""
    stand = Stand(place=Counted)
    tickets = [stand.add(f"t{n % 2}") for n in range(10_000)]
    random.Random(5).shuffle(tickets)
    before = Counted.looks

    for ticket in tickets[100:]:
        stand.leave(ticket)
    stand.order()

    assert Counted.looks - before <= 5 * 10_000


@pytest.mark.parametrize(("sizes", "most"), [([1000], 5), ([1, 10, 100, 10_000], 20)])
def test_a_turn_is_constant_work_on_average(sizes: list[int], most: int) -> None:
    """1,000 tenants: with like calls each turn is one call's, with very different ones rounds are still few."""
    stand = Stand(place=Counted)
    rng = random.Random(6)
    for number in range(10_000):
        stand.add(f"t{number % 1000}", rng.choice(sizes))
    before = Counted.looks

    stand.order()

    assert Counted.looks - before <= most * 10_000


def test_a_huge_call_does_not_take_a_huge_number_of_rounds() -> None:
    """What the others get in a round grows with it: a few dozen rounds, not a hundred thousand."""
    stand = Stand(place=Counted)
    for _ in range(2):
        stand.add("huge", 10**7)
    for _ in range(1000):
        stand.add("small", 10)
    before = Counted.looks

    stand.order()

    assert Counted.looks - before <= 5000


def test_tenants_who_have_nothing_waiting_are_forgotten() -> None:
    """One-time tenants leave nothing behind while others still wait."""
    stand = Stand()
    for number in range(1000):
        stand.add(f"t{number}")
    stand.add("last", 10**9)

    for _ in range(1000):
        stand.next()

    assert stand.queue.depths() == {("interactive", "last"): 1}
    assert stand.queue.peek(0.0) is not None
    assert stand.queue.ahead(1, "new", 1).requests < 0.1  # its turn comes long before the last's


# -- Against a model that is too simple to be wrong


class AgainstAModel(RuleBasedStateMachine):
    """Any course of joining, leaving, going and coming back, compared with plain lists."""

    def __init__(self) -> None:
        super().__init__()
        self.stand = Stand()
        self.lines: dict[tuple[int, str], list[Ticket]] = {}
        self.returned: set[Ticket] = set()
        self.homes: set[Ticket] = set()
        self.away: list[Ticket] = []

    @initialize(aged=st.sampled_from([0.0, 5.0, 100.0]))
    def start(self, aged: float) -> None:
        self.stand = Stand(FairQueue({"batch": 5.0, "background": 5.0}, aged))
        self.is_strict = not aged

    @rule(
        tenant=st.sampled_from("abc"),
        lane=st.sampled_from(LANES),
        tokens=st.sampled_from([0.1, 1 / 3, 7.0, 1e3, 1e6]),
        is_likely=st.booleans(),
        at=st.floats(0, 10),
    )
    def joins(self, tenant: str, lane: Lane, tokens: float, is_likely: bool, at: float) -> None:
        ticket = self.stand.ticket(tenant, tokens, lane=lane, at=at)
        self.stand.queue.add(ticket)
        self._stands(ticket, is_likely)

    @precondition(lambda self: self.away)
    @rule(data=st.data(), is_likely=st.booleans())
    def comes_back(self, data: st.DataObject, is_likely: bool) -> None:
        ticket = self.away.pop(data.draw(st.integers(0, len(self.away) - 1)))
        self.stand.queue.add_back(ticket)
        self.returned.add(ticket)
        self._stands(ticket, is_likely)

    @precondition(lambda self: self.lines)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        everyone = [ticket for line in self.lines.values() for ticket in line]
        ticket = everyone[data.draw(st.integers(0, len(everyone) - 1))]
        self.stand.leave(ticket)
        self._is_off(ticket)

    @precondition(lambda self: self.lines)
    @rule(now=st.floats(0, 30))
    def goes(self, now: float) -> None:
        turn = self.stand.queue.peek(now)
        assert turn is not None
        ticket = turn.ticket
        rank = ticket.place.rank
        assert ticket is self.lines[rank, ticket.place.tenant][0]
        highest = min(rank for rank, _ in self.lines)
        if rank != highest:
            assert not self.is_strict
            assert now - ticket.place.joined_at > 5.0
        self.stand.queue.pop(ticket)
        self._is_off(ticket)
        self.away.append(ticket)

    @precondition(lambda self: self.lines)
    @rule(rank=st.integers(-1, LOW), tenant=st.none() | st.sampled_from("abc"))
    def makes_room(self, rank: int, tenant: str | None) -> None:
        lower = [key for key in self.lines if key[0] > rank and tenant in (None, key[1])]
        ticket = self.stand.queue.youngest(rank, tenant)
        if not lower:
            assert ticket is None
            return
        assert ticket is not None
        lowest = max(rank for rank, _ in lower)
        line = self.lines[lowest, ticket.place.tenant]
        assert len(line) == max(len(self.lines[key]) for key in lower if key[0] == lowest)
        assert ticket is (line[-1] if line[-1] not in self.returned else line[0])
        self.stand.leave(ticket)
        self._is_off(ticket)

    @invariant()
    def counts_agree(self) -> None:
        queue = self.stand.queue
        everyone = {ticket for line in self.lines.values() for ticket in line}
        assert len(queue) == len(everyone)
        assert set(queue.tickets()) == everyone
        assert queue.depths() == {(LANES[rank], tenant): len(line) for (rank, tenant), line in self.lines.items()}
        assert queue.oldest() == {
            (LANES[rank], tenant): line[0].place.joined_at for (rank, tenant), line in self.lines.items()
        }
        for rank in range(len(LANES)):
            is_free = not any(line_rank <= rank for line_rank, _ in self.lines)
            assert queue.is_free_for(rank) <= is_free  # not while an aged call saves up
            assert queue.is_free_for(rank) == is_free or not self.is_strict

    @invariant()
    def those_ahead_agree(self) -> None:
        """At least the higher lanes, at most these and the own one; nothing when nobody is at home."""
        for rank in range(len(LANES)):
            ahead = self.stand.queue.ahead(rank, "a", 10.0)
            higher = [ticket for ticket in self.homes if ticket.place.rank < rank]
            own = [ticket for ticket in self.homes if ticket.place.rank == rank]
            assert min(ahead) >= 0
            assert len(higher) <= ahead.requests <= len(higher) + len(own) + 1e-9
            assert ahead.input_tokens == pytest.approx(
                sum(t.cost.input_tokens for t in higher)
                + sum(t.cost.input_tokens for t in own) * ((ahead.requests - len(higher)) / (len(own) or 1)),
                abs=1e-3,
            )
            if all(ticket.place.tenant == "a" for ticket in own) and len(self._tenants(rank)) <= 1:
                assert ceil(ahead.requests - 1e-9) == len(higher) + len(own)

    def teardown(self) -> None:
        """Everybody goes: what is left is exactly nothing."""
        for ticket in [ticket for line in self.lines.values() for ticket in line]:
            self.stand.leave(ticket)
        assert len(self.stand.queue) == 0
        assert self.stand.queue.ahead(LOW, "a", 1.0) == NOTHING
        assert self.stand.queue.peek(0.0) is None
        assert self.stand.queue.depths() == {}

    def _tenants(self, rank: int) -> set[str]:
        return {tenant for line_rank, tenant in self.lines if line_rank == rank} | {"a"}

    def _stands(self, ticket: Ticket, is_likely: bool) -> None:
        if is_likely:
            self.stand.queue.count_at_likely_line(ticket)
            self.homes.add(ticket)
        line = self.lines.setdefault((ticket.place.rank, ticket.place.tenant), [])
        line.append(ticket)
        line.sort(key=lambda ticket: (ticket not in self.returned, ticket.place.seq))

    def _is_off(self, ticket: Ticket) -> None:
        key = ticket.place.rank, ticket.place.tenant
        self.lines[key].remove(ticket)
        if not self.lines[key]:
            del self.lines[key]
        self.homes.discard(ticket)
        self.returned.discard(ticket)


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(stateful_step_count=40, deadline=None)


def test_what_was_saved_up_and_is_gone_is_saved_up_again() -> None:
    """Where a provider says that less is left than was thought, the others do not wait for the aged call either."""
    stand = Stand(FairQueue({"batch": 60.0}, 50.0))
    batch = stand.add(lane="batch")
    for _ in range(3):
        stand.add()
    first = stand.next(100.0)
    turn = stand.queue.peek(100.0)
    assert turn is not None
    assert turn.ticket is batch

    assert not stand.queue.forfeit_credit(first)
    assert stand.queue.forfeit_credit(batch)

    assert stand.next(100.0).place.lane == "interactive"
    assert stand.next(100.0) is batch
    stand.next(100.0)


def test_tokens_are_saved_up_only_where_they_are_limited() -> None:
    """Elsewhere the turns alone count: a large call is no burden."""
    stand = Stand(FairQueue({"batch": 60.0}, 50.0))
    batch = stand.add(lane="batch", tokens=1000)
    for _ in range(2):
        stand.add(tokens=1)
    stand.next(100.0)

    turn = stand.queue.peek(100.0, counts_tokens=False)

    assert turn is not None
    assert turn.ticket is batch
