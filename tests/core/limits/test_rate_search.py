"""Finding an untold rate, and pauses."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.limits.learning import SLOW_START, RateSearch, SearchPolicy
from tests.core.limits.storm import Provider, Storm
from tests.sweeps import sampled

BOUNDED = settings(deadline=None, derandomize=True)
UNLIMITED = 1e9

EVENTS = ("goes", "goes", "goes", "succeeds", "succeeds", "is refused", "leaves", "was not sent", "resumes")
courses = st.lists(st.tuples(st.sampled_from(EVENTS), st.floats(0.0, 2.0) | st.floats(0.0, 0.02)), max_size=150)


@dataclass
class Course:
    """A target that is used in a random way: each call goes as soon as it may, answers come in any order."""

    search: RateSearch = field(default_factory=lambda: RateSearch(0.0))
    now: float = 0.0
    sent: list[float] = field(default_factory=list)
    went: list[tuple[float, float]] = field(default_factory=list)
    """When, and at which rate."""

    def happen(self, event: str, gap_s: float) -> None:
        self.now += gap_s
        if event == "goes":
            self.now += self.search.want(self.now)
            self.search.take(self.now)
            self.sent.append(self.now)
            self.went.append((self.now, self.search.rate_per_s))
        elif event == "resumes":
            self.search.resumed(self.now)
            self.went.clear()
        elif self.sent:
            sent_at = self.sent.pop(int(self.now * 1000) % len(self.sent))
            if event == "succeeds":
                self.search.succeeded(sent_at, self.now)
            elif event == "is refused":
                self.search.refused(sent_at, self.now)
            elif event == "leaves":
                self.search.left(self.now)
            else:
                self.went.pop() if self.went else None
                self.search.give_back(self.now)


def searched(rate: float = 100.0) -> RateSearch:
    """One that knows a rate: at 0.0 the bucket was empty, and since then `rate` were accepted in a second."""
    search = RateSearch(0.0)
    search.take(0.0)
    search.refused(0.0, 1.0)
    for _ in range(int(rate)):
        search.take(1.0)
    for index in range(int(rate)):
        search.refused((index + 0.5) / rate, 1.0)
    for index in range(int(rate)):
        search.succeeded((index + 1) / rate, 1.0)
    assert search.rate_per_s == pytest.approx(0.9 * rate, rel=0.01)
    return search


def goes(search: RateSearch, start: float, end: float) -> int:
    """How many go between the two moments when as many as possible try."""
    now, granted = start, 0
    while now < end:
        wait_s = search.want(now)
        if wait_s == 0.0:
            search.take(now)
            granted += 1
        now += wait_s
    return granted


@pytest.mark.parametrize(
    "provider",
    [
        Provider(100, 100, 0.02),
        Provider(100, 100, 0.05),
        Provider(100, 100, 0.2),
        Provider(1, 1, 0.05),
        Provider(10, 10, 0.2),
        Provider(20, 20, 0.5),
        Provider(500, 100, 0.02),
        Provider(1000, 1000, 0.01),
        Provider(100, 100, 0.5, refusal_s=0.05),
        Provider(100, 100, 2, refusal_s=0.05),
        Provider(100, 100, 10, refusal_s=0.05),
        Provider(10, 600, 1, refusal_s=0.05),
    ],
    ids=str,
)
def test_an_untold_rate_is_found(provider: Provider) -> None:
    """2,000 calls at once: finished within 1.5 times the ideal, at most 3 % refused in vain."""
    storm = Storm(provider).run()

    assert storm.refused_percent <= 3
    assert storm.slowdown <= 1.5


@pytest.mark.parametrize(
    ("calls", "clients", "latency_s", "within_s"),
    [(6400, 32, 0.01, 2.2), (3000, 300, 5, 60), (2000, None, 1, 10), (2000, None, 2, 15)],
)
def test_a_target_without_a_limit_is_hardly_slowed(
    calls: int, clients: int | None, latency_s: float, within_s: float
) -> None:
    """By a few percent in a closed loop; by a few doublings when thousands come at once."""
    assert Storm(Provider(UNLIMITED, UNLIMITED, latency_s), calls, clients).run().now <= within_s


def test_the_end_of_an_outage_is_noticed() -> None:
    """A first burst, then a minute of nothing but refusals: few are sent meanwhile, and the rate is found after it."""
    storm = Storm(Provider(0.001, 100, 0.5, refusal_s=0.05, later=(60, 100))).run()

    assert storm.refused_percent <= 5
    assert storm.now <= 60 + 1.7 * 20


@pytest.mark.parametrize(("before", "after"), [(100.0, 20.0), (20.0, 100.0)])
def test_a_rate_that_changes_is_found_again(before: float, after: float) -> None:
    """Within half a minute most of the new one is used, and still few calls are refused."""
    storm = Storm(Provider(before, 20, 0.2, later=(30, after)), calls=10_000, until=90).run()

    assert 0.8 * after <= storm.rate_between(60, 90) <= 1.02 * after  # the bucket may hold a second's worth
    assert storm.refused <= 0.03 * storm.served


@pytest.mark.parametrize("noise", sampled([0.01, 0.02, 0.03], lambda noise: noise == 0.03))
@pytest.mark.parametrize(("latency_s", "clients"), [(0.02, 4), (0.02, 15), (0.2, 15), (1.0, 15)])
def test_chance_refusals_slow_nobody(noise: float, latency_s: float, clients: int) -> None:
    """No limit, and some refused whatever the rate: nine tenths of what the clients could get, after a while."""
    storm = Storm(Provider(UNLIMITED, UNLIMITED, latency_s, noise=noise), 10**9, clients, until=60).run()

    assert storm.rate_between(30, 60) >= 0.9 * (1 - noise) * clients / latency_s


@pytest.mark.parametrize("noise", sampled([0.0, 0.01, 0.02, 0.03], lambda noise: noise in (0.0, 0.03)))
@pytest.mark.parametrize(("rate", "latency_s"), [(10, 0.2), (50, 0.02), (50, 0.2), (200, 0.02), (200, 0.2), (500, 0.2)])
def test_a_limit_is_found_among_chance_refusals(noise: float, rate: float, latency_s: float) -> None:
    """Within a tenth of it; what the limit itself refuses stays below what it would without us."""
    clients = int(max(3, 2 * rate * latency_s))
    storm = Storm(Provider(rate, rate, latency_s, noise=noise), 10**9, clients, until=60).run()

    assert storm.rate_between(20, 60) >= 0.9 * rate
    assert storm.refused - storm.strays <= 0.06 * storm.served


@pytest.mark.parametrize(("before", "after"), [(200.0, 100.0), (100.0, 200.0)])
def test_a_limit_that_changes_among_chance_refusals_is_found_again(before: float, after: float) -> None:
    """Halved or doubled, with one call in a hundred refused by chance: within half a minute."""
    storm = Storm(Provider(before, 20, 0.05, later=(30, after), noise=0.01), 10**9, 100, until=90).run()

    assert 0.9 * after <= storm.rate_between(60, 90) <= 1.01 * after


@BOUNDED
@given(courses)
def test_the_rate_moves_by_the_rules(course: list[tuple[str, float]]) -> None:
    """It stays in its bounds, only an accepted call raises it, and what is in flight is counted exactly."""
    run, policy = Course(), SearchPolicy()

    for event, gap_s in course:
        before = run.search.rate_per_s
        run.happen(event, gap_s)
        assert policy.min_rate <= run.search.rate_per_s <= policy.max_rate
        assert run.search.rate_per_s <= before or event == "succeeds"
        assert run.search.in_flight == len(run.sent)


@BOUNDED
@given(courses)
def test_a_target_that_nobody_uses_can_be_used_soon(course: list[tuple[str, float]]) -> None:
    """With nothing in flight the next may go within a second and the time of one call, whatever has happened."""
    run = Course()
    for event, gap_s in course:
        run.happen(event, gap_s)

    while run.sent:
        run.happen("leaves", 0.0)

    assert run.search.want(run.now) <= 1 + 1 / run.search.rate_per_s + 1e-6


@BOUNDED
@given(courses)
def test_no_second_after_a_pause_sees_a_herd(course: list[tuple[str, float]]) -> None:
    """At most 1.2 times the highest rate in it, or one call more than that rate."""
    run = Course()
    run.happen("resumes", 0.0)

    for event, gap_s in course:
        run.happen(event, gap_s)
        rates = [rate for at, rate in run.went if run.now - 1 < at]
        highest = max([run.search.rate_per_s, *rates])
        assert len(rates) <= max(1.2 * highest, highest + 1) + 1e-3


@pytest.mark.parametrize("rate", [1.0, 10.0, 400.0])
def test_the_first_second_after_a_pause_sees_at_most_a_fifth_more_than_the_rate(rate: float) -> None:
    """A fifth of a second's at once; answers to what went before change nothing in that second."""
    search = RateSearch(0.0, SearchPolicy(blind_rate=rate))
    for _ in range(10):
        search.take(0.0)
    search.resumed(60.0)

    at_once = goes(search, 60.0, 60.0 + 1e-9)
    for _ in range(10):
        search.succeeded(0.0, 60.0)

    assert at_once == max(1, rate / 5)
    assert at_once + goes(search, 60.0, 61.0 - 1e-9) <= max(1.2 * rate, rate + 1)


def test_while_searching_a_few_go_whatever_the_rate() -> None:
    """Sixteen at first, and a fiftieth of those accepted on top."""
    search = RateSearch(0.0)

    assert goes(search, 0.0, 1e-9) == 16
    assert search.want(0.0) > 0
    for _ in range(100):
        search.succeeded(0.0, 0.1)
        search.take(0.1)

    assert goes(search, 0.1, 0.1 + 1e-9) == 2


def test_the_rate_grows_only_while_somebody_waits() -> None:
    """An idle target teaches nothing, however many of its calls succeed."""
    idle, pressed = searched(), searched()

    for index in range(1, 200):
        now = 1 + index * 0.1
        for search in (idle, pressed):
            search.take(now)
        pressed.want(now)
        for search in (idle, pressed):
            search.succeeded(now, now + 0.05)

    assert idle.rate_per_s == pytest.approx(90.0, rel=0.01)
    assert pressed.rate_per_s > 95


def test_what_an_empty_bucket_accepts_is_its_rate() -> None:
    """Of the flight behind the first refusal: here thirty in a second, though many more were sent."""
    search = RateSearch(0.0)
    for _ in range(200):
        search.take(0.0)

    search.refused(10.0, 11.0)
    for index in range(29):
        search.succeeded(10 + (index + 1) / 30, 11.5)
        search.refused(10 + (index + 1) / 30, 11.5)

    assert search.rate_per_s == pytest.approx(0.9 * 30, rel=0.01)


def test_one_overshoot_cuts_once() -> None:
    """By a tenth, as the rate is known; the refusals of all that were under way then tell nothing new."""
    search = searched(100.0)
    while not search.want(1.0):  # until somebody waits
        search.take(1.0)

    for _ in range(30):
        search.refused(1.5, 2.0)
    assert search.rate_per_s == pytest.approx(81.0, rel=0.01)

    for _ in range(2):  # one alone might be chance
        search.refused(2.1, 2.5)
    assert search.rate_per_s == pytest.approx(40.5, rel=0.01)


def test_a_slow_start_lets_one_more_go_with_each_that_is_accepted() -> None:
    """Where refusals have shown that what is told is too much; right after a pause one call goes again."""
    search = RateSearch(0.0, SLOW_START)
    search.take(0.0)
    went, now = [], 0.0
    for _ in range(4):
        went.append(search.in_flight)
        now += 0.1
        for _ in range(search.in_flight):
            search.succeeded(now - 0.1, now)
        while not search.want(now):
            search.take(now)
    search.resumed(60.0)

    assert went == [1, 2, 4, 8]
    assert goes(search, 60.0, 60.0 + 1e-9) <= 0.2 * search.rate_per_s


@pytest.mark.parametrize(("is_timed", "least"), [(True, 1.0), (False, 1 / 60)])
def test_a_limit_of_one_a_minute_is_met_by_one_call_a_minute(is_timed: bool, least: float) -> None:
    """What is refused without a time to come back is tried ever less often; with one the pauses are slow enough."""
    search, now = RateSearch(0.0, SLOW_START), 0.0
    for _ in range(40):
        now += search.want(now)
        search.take(now)
        search.refused(now, now + 0.05, is_timed=is_timed)
        now += 0.05

    assert search.rate_per_s == pytest.approx(least)


def test_what_did_not_go_can_be_taken_by_the_next() -> None:
    """And predictions count those ahead."""
    search = RateSearch(0.0, SearchPolicy(blind_rate=10.0))
    search.resumed(0.0)
    assert goes(search, 5.0, 5.0 + 1e-9) == 2
    assert search.want(5.0) == pytest.approx(0.1)
    assert search.ready_at(5.0, ahead=4.0) == pytest.approx(5.5)

    search.give_back(5.0)

    assert search.want(5.0) == 0.0
    assert search.in_flight == 1


def test_while_there_is_room_in_the_window_a_prediction_is_now() -> None:
    """Only those who find the window full wait for the rate."""
    search = RateSearch(0.0)

    assert search.ready_at(1.0, ahead=15.0) == 1.0
    assert search.ready_at(1.0, ahead=20.0) > 1.0


def test_a_call_that_ended_otherwise_teaches_nothing() -> None:
    """It is in flight no more; the rate stays."""
    search = searched()
    search.take(2.0)

    search.left(2.5)

    assert search.in_flight == 0
    assert search.rate_per_s == pytest.approx(90.0, rel=0.01)


@given(st.lists(st.tuples(st.sampled_from(["call", "served", "refused", "wait"]), st.floats(0.001, 2.0)), max_size=60))
def test_to_be_asked_changes_nothing(steps: list[tuple[str, float]]) -> None:
    """Two searches meet the same; one is looked at all the time. Only who wants to go makes the rate grow."""
    asked, left_alone = pair = RateSearch(0.0), RateSearch(0.0)
    now, sent = 0.0, []
    for what, seconds in steps:
        for ahead in range(3):
            asked.wait_s(now)
            asked.ready_at(now, ahead * 10.0)
            asked.wait_s(now + seconds)
        if what == "wait":
            now += seconds
        elif what == "call":
            waits = [search.want(now) for search in pair]
            assert waits[0] == waits[1]
            if not waits[0]:
                sent.append(now)
                for search in pair:
                    search.take(now)
        elif sent:
            at = sent.pop(0)
            for search in pair:
                if what == "served":
                    search.succeeded(at, now)
                else:
                    search.refused(at, now)
        assert (asked.rate_per_s, asked.wait_s(now)) == (left_alone.rate_per_s, left_alone.wait_s(now))
