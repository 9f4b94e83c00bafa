"""Outages, recoveries and background noise, with thousands of calls on a virtual clock.

Each story ends with nothing left over: no grant, no permit, no retry, nobody in the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from gateway.core.admission.planner import PROBED_AFTER_S
from gateway.core.balancing import Retries
from gateway.core.health.detector import BreakerRules
from gateway.core.limits.limit_table import Limits
from gateway.core.types import LANES, ErrorClass, Phase, UpstreamFailed
from tests.support.flow import RATES, Broken, Script, streamed, whole
from tests.support.outage import ERROR, City, Fate, Provider, answers, fails, gone, refuses, soon, streams
from tests.support.virtual import LoopClock, run
from tests.sweeps import sampled

DEFAULT = Retries()
RULES = BreakerRules()
STEADY = BreakerRules(is_enabled=False)
IMPATIENT = BreakerRules(hold_for_s=dict.fromkeys(LANES, 0.0))
"""Who could only wait for a breaker is refused."""


def dead(after_s: float = 0.05) -> Provider:
    return Provider(fails(503, after_s))


def well(after_s: float = 0.05) -> Provider:
    return Provider(answers(after_s))


# Total outage.


@pytest.mark.parametrize("fate", [fails(503), refuses(), fails(500, 1.0)], ids=["503", "refused", "slow 500"])
def test_a_total_outage_is_not_amplified(fate: Fate) -> None:
    """250 calls a second and nobody serves: attempts are at most 1.2 times the calls, and nearly all wait to the end."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(fate), Provider(fate)], clock)
        await city.traffic(250, 8)

        assert city.attempts <= 1.2 * len(city.told)
        assert sum(told.took_s < 29.0 for told in city.told) <= 0.02 * len(city.told)
        await city.settle()

    run(story)


@pytest.mark.parametrize("fate", [fails(503), refuses(), fails(500, 1.0)], ids=["503", "refused", "slow 500"])
def test_where_nobody_is_to_wait_refusals_come_at_once(fate: Fate) -> None:
    """`hold_for: 0s`: most calls of the same outage are refused, and told when to come back."""

    async def story(clock: LoopClock) -> None:
        city, began_at = City([Provider(fate), Provider(fate)], clock, breaker=IMPATIENT), clock.now
        await city.traffic(250, 20)

        assert city.attempts <= 1.2 * len(city.told)
        refused = [told for told in city.told if told.result == "circuit_open"]
        assert len(refused) > 0.6 * len(city.told)
        assert all(told.retry_after_s for told in refused)
        times = sorted(told.took_s for told in refused if not told.attempts and told.at > began_at + 5.0)
        assert times[round(len(times) * 0.99)] < 0.05
        await city.settle()

    run(story)


def times_out(after_s: float, phase: Phase = Phase.SENT) -> Fate:
    """Nothing comes; `NOTHING_SENT`: not even a connection."""

    async def fate() -> Script:
        await asyncio.sleep(after_s)
        raise UpstreamFailed(ErrorClass.TIMEOUT, phase, "nothing came")

    return fate


DEATHS = {
    "refused": refuses(),
    "500": fails(500),
    "500 after 1 s": fails(500, 1.0),
    "500 after 3 s": fails(500, 3.0),
    "timeout of 2 s": times_out(2.0),
    "no connection in 5 s": times_out(5.0, Phase.NOTHING_SENT),
    "timeout of 10 s": times_out(10.0),
}


@pytest.mark.parametrize(
    ("death", "stream", "fallbacks", "is_priced"),
    sampled(
        product(DEATHS, [False, True], [0, 1], [False, True]),
        # Each death in a tier and before a fallback; what prices change shows where calls end late.
        lambda death, stream, fallbacks, is_priced: (
            stream == (fallbacks == 1) and (not is_priced or death in ("500", "timeout of 10 s"))
        ),
    ),
)
def test_two_dead_targets_get_little_more_than_the_calls(
    death: str, stream: bool, fallbacks: int, is_priced: bool
) -> None:
    """At 5 calls/s: at most 50 attempts of the first 20 calls, which wait, and 1.2 for each call of the first minute."""

    async def story(clock: LoopClock) -> None:
        draw, fate = Random(3).random, DEATHS[death]
        rates = RATES if is_priced else None
        city = City([Provider(fate), Provider(fate)], clock, fallbacks, changes={"draw": draw, "rates": rates})
        await city.traffic(5, 60, stream=stream)

        assert len(city.told) == 300
        assert sum(told.attempts for told in sorted(city.told, key=lambda told: told.at)[:20]) <= 50
        assert city.attempts <= 1.2 * 300
        await city.settle()

    run(story)


@pytest.mark.parametrize(
    ("stream", "fallbacks"),
    sampled(product([False, True], [0, 1]), lambda stream, fallbacks: stream == (fallbacks == 1)),
)
def test_two_silent_targets_get_little_more_than_the_calls(stream: bool, fallbacks: int) -> None:
    """Callers that wait for 30 s: who hangs at one is not moved to the other for nothing."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(times_out(1e4)), Provider(times_out(1e4))], clock, fallbacks)
        tasks = []
        for number in range(300):
            await city.until(1000.0 + number / 5)
            tasks.append(city.start(stream=stream, deadline=clock.now + 30, deadline_is_callers=True))
        told = await asyncio.gather(*tasks)

        assert sum(one.attempts for one in told[:20]) <= 30
        assert city.attempts <= 1.2 * 300
        await city.settle()

    run(story)


@pytest.mark.parametrize(
    ("timeout_s", "deadline_s", "stream", "fallbacks"),
    sampled(
        [
            (5.0, 10.0, False, 1),
            (8.0, 30.0, True, 1),
            (10.0, 30.0, False, 1),
            (10.0, 600.0, True, 1),
            (20.0, None, False, 0),
            (20.0, 30.0, True, 0),
            (20.0, 600.0, True, 0),
            (60.0, 600.0, False, 1),
            (60.0, 600.0, True, 1),
            (1e4, 600.0, True, 0),
        ],
        lambda timeout_s, deadline_s, stream, fallbacks: (
            (timeout_s, deadline_s) in ((5.0, 10.0), (10.0, 600.0), (20.0, None), (20.0, 30.0))
        ),
    ),
)
def test_whatever_time_two_dead_targets_and_their_callers_take(
    timeout_s: float, deadline_s: float | None, stream: bool, fallbacks: int
) -> None:
    """All of the first calls hang before anything is known; still few of them try the other one, until it has answered."""

    async def story(clock: LoopClock) -> None:
        draw = Random(3).random
        fate = times_out(timeout_s)
        city = City([Provider(fate), Provider(fate)], clock, fallbacks, changes={"draw": draw})
        tasks = []
        for number in range(300):
            await city.until(1000.0 + number / 5)
            own = {} if deadline_s is None else {"deadline": clock.now + deadline_s, "deadline_is_callers": True}
            tasks.append(city.start(stream=stream, **own))
        told = await asyncio.gather(*tasks)

        assert sum(one.attempts for one in told[:20]) <= 30
        assert city.attempts <= 1.2 * 300
        await city.settle()

    run(story)


def test_who_has_waited_for_what_others_find_out_is_told_so() -> None:
    """The other target has answered nobody who tried it: no more are sent there for nothing."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(times_out(10.0)), Provider(times_out(10.0))], clock, fallbacks=1)
        told = await asyncio.gather(*[city.start() for _ in range(20)])

        assert city.attempts <= 30
        assert {one.result for one in told} <= {"upstream_timeout", "queue_deadline_exceeded"}
        assert max(one.took_s for one in told) <= 40.0
        await city.settle()

    run(story)


def test_twenty_calls_at_once_find_out_together_that_both_are_dead() -> None:
    """Nobody knows of them before, and the first failures come all at once."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(refuses()), Provider(refuses())], clock)
        tasks = [city.start() for _ in range(20)]
        await asyncio.sleep(3.0)

        assert city.attempts <= 40
        await asyncio.gather(*tasks)
        await city.settle()

    run(story)


@pytest.mark.parametrize("answer_s", [0.5, 10.0])
@pytest.mark.parametrize(("name", "failed_for_s"), [("refused", 0.0), ("500 after 1 s", 1.0), ("timeout of 2 s", 2.0)])
def test_a_fallback_that_nobody_knows_yet_serves_all(name: str, failed_for_s: float, answer_s: float) -> None:
    """Who waits for its first answer does so hardly longer than what failed before has taken."""

    async def story(clock: LoopClock) -> None:
        fallback = well(answer_s)
        city = City([Provider(DEATHS[name]), fallback], clock, fallbacks=1)
        await city.traffic(5, 30)

        assert city.results() == {200: 150}
        assert max(told.took_s for told in city.told) <= 4.5 * failed_for_s + answer_s + 1
        await city.settle()

    run(story)


def test_a_refusal_tells_when_the_next_probe_is() -> None:
    """Whoever obeys its Retry-After finds a gateway that has tried again, or does; and not all come back at once."""

    async def story(clock: LoopClock) -> None:
        city = City([dead()], clock, breaker=IMPATIENT)
        await city.traffic(50, 6)
        told = await city.call()
        assert told.result == "circuit_open"
        behind_s = (told.retry_after_s or 0.0) - (city.breaker_of().probe_at - told.at)
        assert PROBED_AFTER_S <= behind_s <= 2 * PROBED_AFTER_S
        asked = len(city.providers[0].asked_at)

        await asyncio.sleep(told.retry_after_s or 0.0)
        await asyncio.sleep(0.4)  # the lanes below have the first turn
        await city.call()

        assert len(city.providers[0].asked_at) > asked
        await city.settle()

    run(story)


def test_who_is_healed_is_back_within_one_probe_interval() -> None:
    """And then takes all of the traffic again, without another ejection."""

    async def story(clock: LoopClock) -> None:
        provider = dead()
        city = City([provider], clock)
        traffic = asyncio.get_running_loop().create_task(city.traffic(50, 90))
        await asyncio.sleep(20)
        provider.fate = answers()
        healed_at, probe_at = clock.now, city.breaker_of().probe_at
        await traffic

        assert probe_at - healed_at <= RULES.max_open_s
        served = [told.at for told in city.told if told.result == 200 and told.at >= healed_at]
        assert served[0] - probe_at < 0.5
        assert city.breaker_of().state == "closed"
        back_at = served[0] + RULES.ramp_s + 2
        assert set(city.results(since=back_at)) == {200}
        await city.settle()

    run(story)


def test_a_dead_primary_costs_the_clients_nothing() -> None:
    """A healthy fallback: no error in 2,000 calls, and at most ten calls a minute at the dead one once it is open."""

    async def story(clock: LoopClock) -> None:
        primary = Provider(refuses())
        city = City([primary, well()], clock, fallbacks=1)
        await city.traffic(10, 200)

        assert city.results() == {200: 2_000}
        opened_at = next(told.at for told in city.told if told.attempts == 1)
        for minute in range(3):
            assert primary.asked(opened_at + 60 * minute, opened_at + 60 * (minute + 1)) <= 10
        later = [told for told in city.told if told.at > opened_at + 1]
        slow = sorted(told.took_s - 0.05 for told in later)[round(len(later) * 0.99)]
        assert slow <= 0.02
        await city.settle()

    run(story)


def test_one_of_two_targets_that_dies_costs_the_clients_nothing() -> None:
    """Those of a tier stand in for each other."""

    async def story(clock: LoopClock) -> None:
        city = City([well(), well()], clock, changes={"choice": "least_loaded", "draw": Random(1).random})
        loop = asyncio.get_running_loop()
        loop.call_later(10, setattr, city.providers[0], "fate", fails(500))
        loop.call_later(30, setattr, city.providers[0], "fate", answers())
        await city.traffic(50, 60)

        assert city.results() == {200: 3000}
        assert city.attempts <= 1.02 * 3000
        await city.settle()

    run(story)


# Noise.


def noise(share: float, draw: Random, *, mixed: bool = False) -> Fate:
    """So large a share of failures, of one kind or of many."""

    async def fate() -> Script:
        if draw.random() >= share:
            return await answers(0.02 + 0.06 * draw.random())()
        kind = draw.randrange(7) if mixed else 0
        await asyncio.sleep(0.02)
        if kind == 0:
            return whole(ERROR, 500)
        if kind == 1:
            return whole(ERROR, 503, (b"retry-after-ms", b"100"))
        if kind == 2:
            return whole(ERROR, 429, (b"retry-after-ms", b"50"))
        if kind == 3:
            raise UpstreamFailed(ErrorClass.CONNECTION, Phase.SENT, "reset")
        if kind == 4:
            raise UpstreamFailed(ErrorClass.CONNECTION, Phase.NOTHING_SENT, "refused")
        if kind == 5:
            return whole(b"{nope")
        return whole(b"<html>", 502)

    return fate


def test_five_percent_of_errors_open_nothing() -> None:
    """No flapping: no ejection in 5,000 calls, and hardly a client who sees an error."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(noise(0.05, Random(7)))], clock)
        await city.traffic(100, 50)

        assert city.bench.meter.moves == []
        assert city.breaker_of().transitions["open"] == 0
        assert city.results()[200] >= 0.9998 * 5_000
        assert city.attempts <= 1.07 * 5_000
        await city.settle()

    run(story)


@pytest.mark.soak
def test_five_percent_of_errors_open_nothing_in_the_long_run() -> None:
    """The same over 100,000 calls."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(noise(0.05, Random(8)))], clock)
        await city.traffic(200, 500)

        assert city.breaker_of().transitions["open"] == 0
        await city.settle()

    run(story)


@pytest.mark.parametrize("seed", sampled([1, 2, 3], lambda seed: seed == 1))
def test_ten_percent_of_mixed_faults_are_repaired(seed: int) -> None:
    """At least 99.95 % of the calls succeed, with at most 1.15 attempts each."""

    async def story(clock: LoopClock) -> None:
        draw = Random(seed)
        providers = [Provider(noise(0.1, draw, mixed=True)) for _ in range(2)]
        city = City(providers, clock, changes={"choice": "weighted", "draw": draw.random})
        await city.traffic(100, 20)

        assert city.results()[200] >= 0.9995 * 2000
        assert city.attempts <= 1.15 * 2000
        await city.settle()

    run(story)


def test_thirty_percent_of_mixed_faults_stay_within_the_budget() -> None:
    """Most calls succeed; retries in flight never are more than the budget allows."""

    async def story(clock: LoopClock) -> None:
        draw = Random(4)
        providers = [Provider(noise(0.3, draw, mixed=True)) for _ in range(2)]
        city = City(providers, clock, changes={"choice": "weighted", "draw": draw.random})
        await city.traffic(100, 20)

        assert city.results()[200] >= 0.98 * 2000
        assert city.attempts <= 1.6 * 2000
        await city.settle()

    run(story)


def test_the_last_target_that_serves_calls_is_not_left_alone() -> None:
    """With 30 % of faults and nowhere else to go hardly a call is refused because the breaker is open."""

    async def story(clock: LoopClock) -> None:
        draw = Random(5)
        city = City([Provider(noise(0.3, draw, mixed=True))], clock, changes={"draw": draw.random})
        await city.traffic(100, 30)

        assert city.results()[200] >= 0.96 * 3000
        assert city.results()[503] <= 0.04 * 3000
        await city.settle()

    run(story)


def test_a_request_that_always_fails_opens_nothing() -> None:
    """However often it is tried, it is one: the calls of others are served."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(fails(500))], clock)
        await city.traffic(1, 3)

        assert city.attempts > 5
        assert city.bench.admission.gates.lines["p0/m"].gate.health.breaker.state == "closed"
        await city.settle()

    run(story)


@pytest.mark.parametrize(("calls", "share"), [(100, 0.05), (400, 0.02)])
def test_a_burst_with_a_few_quick_errors_opens_nothing(calls: int, share: float) -> None:
    """Errors come back before answers; that they come in a row says nothing while the answers are awaited."""

    async def story(clock: LoopClock) -> None:
        draw = Random(3)

        async def fate() -> Script:
            return await (fails(500, 0.02) if draw.random() < share else answers(2.0))()

        city = City([Provider(fate)], clock)
        for _ in range(3):
            await asyncio.gather(*[city.start() for _ in range(calls)])

        assert city.bench.meter.moves == []
        assert city.results()[200] == 3 * calls
        await city.settle()

    run(story)


def test_recovery_is_no_herd() -> None:
    """Who was held while traffic grew again does not go all at once at its end, nor wait long."""

    async def story(clock: LoopClock) -> None:
        provider = dead()
        city = City([provider], clock)
        asyncio.get_running_loop().call_later(5, setattr, provider, "fate", answers())
        await city.traffic(100, 30)

        healed_at = 1005.0
        in_tenths = [provider.asked(healed_at + n / 10, healed_at + (n + 1) / 10) for n in range(250)]
        assert max(in_tenths) <= 100
        assert max(told.took_s for told in city.told if told.at > healed_at) < 7.0
        await city.settle()

    run(story)


# Retry budgets.


async def most_retries(city: City, load: Callable[[], asyncio.Future[object]]) -> list[tuple[int, int]]:
    """Retries in flight and calls in flight, at every moment that a retry is there, while the load lasts."""
    seen: list[tuple[int, int]] = []
    gate = city.gate()
    task = load()
    while not task.done():
        seen.append((gate.health.retries.in_flight, gate.in_flight))
        await asyncio.sleep(0.02)
    return seen


def test_retries_in_flight_keep_to_their_budget() -> None:
    """A target that fails slowly: never more than 3 retries, or a fifth of the calls there, when one is taken."""

    async def story(clock: LoopClock) -> None:
        city = City([dead(1.0)], clock, breaker=STEADY)
        loop = asyncio.get_running_loop()
        seen = await most_retries(city, lambda: loop.create_task(city.traffic(100, 5)))

        assert max(retries for retries, _ in seen) >= 20
        busiest = max(active for _, active in seen)
        assert all(retries <= max(3, 0.2 * busiest) for retries, _ in seen)
        assert city.attempts <= 1.3 * len(city.told)
        await city.settle()

    run(story)


def test_a_herd_keeps_to_the_retry_budget() -> None:
    """A hundred calls that fail at one moment do not all go again at the next."""

    async def story(clock: LoopClock) -> None:
        city = City([dead(1.0)], clock, breaker=STEADY, retries=replace(DEFAULT, tokens=5000.0))

        def herd() -> asyncio.Future[object]:
            return asyncio.gather(*[city.start() for _ in range(100)])  # type: ignore[return-value]  # nobody reads it

        seen = await most_retries(city, herd)

        assert max(retries for retries, _ in seen) <= 20
        assert {told.denied for told in city.told} == {None}
        assert all(told.attempts >= 3 or told.took_s > 25.0 for told in city.told)
        await city.settle()

    run(story)


def test_retries_without_tokens_go_one_a_second() -> None:
    """A long trouble spends them, whatever is in flight: then retries wait for their turn, and none is refused."""

    async def story(clock: LoopClock) -> None:
        provider = dead(0.001)
        retries = replace(DEFAULT, tokens=50.0, attempts=2, by_cost=())
        city = City([provider], clock, breaker=STEADY, retries=replace(retries, budget_min_concurrent=100))
        began_at = clock.now
        await asyncio.gather(*[city.start() for _ in range(20)])

        assert {(told.attempts, told.denied) for told in city.told} == {(2, None)}
        assert provider.asked(began_at + 1.0, began_at + 2.0) <= 12
        assert provider.asked(began_at + 2.0, began_at + 20.0) >= 8
        await city.settle()

    run(story)


def test_a_retry_after_a_timeout_takes_more_tokens() -> None:
    """It may be paid for, and has cost time; what never was sent takes none."""

    async def story(clock: LoopClock) -> None:
        phases = iter([Phase.SENT, Phase.NOTHING_SENT])

        async def times_out() -> Script:
            raise UpstreamFailed(ErrorClass.TIMEOUT, next(phases), "slow")

        city = City([Provider(times_out)], clock, retries=replace(DEFAULT, attempts=2, by_cost=()))
        tokens = city.gate().health.tokens
        task = city.start()
        await soon(lambda: tokens.level(500.0) == 490.0)
        await task
        await city.settle()

    run(story)


def test_a_retry_that_succeeds_brings_its_tokens_back() -> None:
    """So a trouble that passes costs nothing."""

    async def story(clock: LoopClock) -> None:
        provider = well()
        city = City([provider], clock)
        fates = iter([fails(), answers(), fails(), fails(), answers()])

        async def next_fate() -> Script:
            return await next(fates)()

        provider.fate = next_fate
        await city.call()
        assert city.gate().health.tokens.level(500.0) == 500.0
        await city.call()
        assert 495.0 <= city.gate().health.tokens.level(500.0) < 500.0
        await city.settle()

    run(story)


# Clients that leave.


def test_a_client_that_leaves_during_the_backoff_leaves_nothing() -> None:
    """Nothing more is sent for it."""

    async def story(clock: LoopClock) -> None:
        city = City([dead()], clock)
        task = city.start()
        await asyncio.sleep(0.06)
        assert city.attempts == 1

        await gone(task)
        await asyncio.sleep(5)

        assert city.attempts == 1
        assert city.bench.account.outcome == "client_gone"
        await city.settle()

    run(story)


@pytest.mark.parametrize("leaves_after_s", sampled([0.02, 0.11, 0.14, 0.21, 0.26], lambda at: at in (0.02, 0.14, 0.26)))
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_in_any_attempt_leaves_nothing(leaves_after_s: float, stream: bool) -> None:
    """And nobody is blamed for it."""

    async def story(clock: LoopClock) -> None:
        city = City([dead(), dead()], clock)
        task = city.start(stream=stream)
        await asyncio.sleep(leaves_after_s)
        failures = city.attempts - sum(provider.in_flight for provider in city.providers)

        await gone(task)

        judged = sum(city.breaker_of(number).outcomes_in_window(city.clock.monotonic())[0] for number in (0, 1))
        assert judged == min(failures, 2)  # the first at each; what is tried again there says nothing new
        await city.settle()

    run(story)


def test_a_client_that_leaves_a_stream_gives_back_its_retry() -> None:
    """The retry is in flight until its stream has ended."""

    async def story(clock: LoopClock) -> None:
        provider = dead()
        city = City([provider], clock)
        task = city.start(stream=True)
        await asyncio.sleep(0.06)
        provider.fate = streams(lasts_s=60.0)
        await asyncio.sleep(1)
        assert city.gate().health.retries.in_flight == 1

        await gone(task)

        assert city.gate().health.retries.in_flight == 0
        await city.settle()

    run(story)


def test_a_client_that_leaves_while_held_for_a_probe_leaves_nothing() -> None:
    """A batch call waits for a target that is open; when it goes, its place is free."""

    async def story(clock: LoopClock) -> None:
        city = City([dead()], clock)
        await city.traffic(50, 1)
        task = city.start(lane="batch", deadline=clock.now + 600)
        await soon(lambda: city.admission.queue.occupancy.calls == 1)

        await gone(task)

        assert city.admission.queue.occupancy.calls == 0
        await city.settle()

    run(story)


def test_a_client_that_leaves_as_a_probe_gives_its_place_to_another() -> None:
    """A probe that tells nothing is none."""

    async def story(clock: LoopClock) -> None:
        provider = dead()
        city = City([provider], clock)
        await city.traffic(50, 1)
        provider.fate = answers(5.0)
        await city.until(city.breaker_of().probe_at + 0.5)
        probe = city.start()
        await asyncio.sleep(1)
        assert city.breaker_of().state == "half_open"
        assert provider.in_flight == 1

        await gone(probe)
        provider.fate = answers()

        assert (await city.call()).result == 200
        await city.settle()

    run(story)


# Half open.


def test_calls_that_can_wait_are_held_while_all_targets_are_open() -> None:
    """A batch call outlives an outage of half a minute."""

    async def story(clock: LoopClock) -> None:
        provider = dead()
        city = City([provider], clock)
        await city.traffic(50, 1)
        tasks = [city.start(lane="batch", deadline=clock.now + 600) for _ in range(20)]
        asyncio.get_running_loop().call_later(15, setattr, provider, "fate", answers())
        told = await asyncio.gather(*tasks)

        assert {one.result for one in told} == {200}
        await city.settle()

    run(story)


def test_the_least_urgent_calls_probe_first() -> None:
    """Who is held in the lowest lane goes first, while a call that cannot wait is refused or comes later."""

    async def story(clock: LoopClock) -> None:
        provider = dead()
        city = City([provider], clock)
        await city.traffic(50, 1)
        order: list[str] = []
        background = city.start(lane="background", deadline=clock.now + 3600)
        background.add_done_callback(lambda _: order.append("background"))
        batch = city.start(lane="batch", deadline=clock.now + 600)
        batch.add_done_callback(lambda _: order.append("batch"))
        provider.fate = answers(0.5)
        await asyncio.gather(background, batch)

        assert order == ["background", "batch"]
        await city.settle()

    run(story)


def test_probes_are_few() -> None:
    """However many wait: never more at once than the rules say, until they have succeeded."""

    async def story(clock: LoopClock) -> None:
        provider = dead()
        city = City([provider], clock)
        await city.traffic(50, 1)
        provider.fate = answers(1.0)
        tasks = [city.start(lane="batch", deadline=clock.now + 600) for _ in range(50)]
        await soon(lambda: provider.in_flight > 0)
        most = 0
        while city.breaker_of().state == "half_open":
            most = max(most, provider.in_flight)
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)

        assert 1 <= most <= RULES.probes
        await city.settle()

    run(story)


def test_a_probe_that_fails_opens_for_longer() -> None:
    """Up to a cap."""

    async def story(clock: LoopClock) -> None:
        city = City([dead()], clock, breaker=IMPATIENT)
        await city.traffic(5, 300)

        breaker = city.breaker_of()
        assert breaker.state == "open"
        assert breaker.ejections >= 5
        assert breaker.probe_at - breaker.opened_at <= RULES.max_open_s
        assert city.providers[0].asked(1200.0, 1300.0) <= 4
        await city.settle()

    run(story)


# Operators, reloads, accounts.


def test_a_reload_while_open_keeps_the_state() -> None:
    """Numbers change, what is known of the target does not."""

    async def story(clock: LoopClock) -> None:
        city = City([dead(), well()], clock, fallbacks=1)
        await city.traffic(50, 4)
        before = city.breaker_of()
        assert before.state == "open"
        probe_at, asked = before.probe_at, len(city.providers[0].asked_at)

        city.admission.install(city.bench.policy)
        await city.traffic(50, 0.5)

        assert city.breaker_of() is before
        assert (before.state, before.probe_at) == ("open", probe_at)
        assert len(city.providers[0].asked_at) == asked
        await city.settle()

    run(story)


def test_a_reload_while_a_probe_is_out_loses_nothing() -> None:
    """Its outcome still counts."""

    async def story(clock: LoopClock) -> None:
        provider = dead()
        city = City([provider], clock)
        await city.traffic(50, 1)
        provider.fate = answers(1.0)
        tasks = [city.start(lane="batch", deadline=clock.now + 600) for _ in range(5)]
        await soon(lambda: provider.in_flight > 0)
        city.admission.install(city.bench.policy)
        await asyncio.gather(*tasks)

        assert city.breaker_of().state == "closed"
        await city.settle()

    run(story)


def test_an_account_opens_when_all_of_its_targets_are() -> None:
    """Then the provider is asked by one target's probe at a time, and another account takes over at once."""

    async def story(clock: LoopClock) -> None:
        providers = [dead(), dead(), well()]
        rules = replace(RULES, open_s=30.0)
        city = City(providers, clock, accounts=("openai", "openai"), fallbacks=1, breaker=rules)
        await city.traffic(50, 6)

        account = city.admission.gates.accounts["openai"]
        assert account.breaker.state == "open"
        assert "all 2 targets" in account.breaker.reason
        assert ("openai", "open") in city.bench.meter.moves
        assert set(city.results()) == {200}
        await city.settle()

    run(story)


def test_an_account_stays_closed_while_one_of_its_targets_serves() -> None:
    """One bad model says nothing of the others."""

    async def story(clock: LoopClock) -> None:
        city = City([dead(), well()], clock, accounts=("openai", "openai"))
        await city.traffic(50, 2)

        assert city.admission.gates.accounts["openai"].breaker.state == "closed"
        assert set(city.results()) == {200}
        await city.settle()

    run(story)


def test_an_account_that_was_open_comes_back() -> None:
    """With its targets, once these are healed."""

    async def story(clock: LoopClock) -> None:
        providers = [dead(), dead()]
        city = City(providers, clock, accounts=("openai", "openai"))
        loop = asyncio.get_running_loop()
        for provider in providers:
            loop.call_later(10, setattr, provider, "fate", answers())
        await city.traffic(20, 120)

        assert city.admission.gates.accounts["openai"].breaker.state == "closed"
        assert set(city.results(since=clock.now - 20)) == {200}
        await city.settle()

    run(story)


def test_a_drained_target_gets_nothing() -> None:
    """Until somebody undoes it; the other one serves meanwhile."""

    async def story(clock: LoopClock) -> None:
        city = City([well(), well()], clock)
        city.breaker_of().force("drained", clock.now)
        await city.traffic(20, 30)
        assert [len(provider.asked_at) for provider in city.providers] == [0, 600]

        city.breaker_of().force(None, clock.now)
        await city.traffic(20, 60)

        assert city.breaker_of().state == "closed"
        assert len(city.providers[0].asked_at) > 800
        assert set(city.results()) == {200}
        await city.settle()

    run(story)


def test_calls_of_a_drained_target_end_in_peace() -> None:
    """Who is being served is served to the end."""

    async def story(clock: LoopClock) -> None:
        city = City([well(2.0)], clock)
        task = city.start()
        await asyncio.sleep(1)
        city.breaker_of().force("drained", clock.now)

        assert (await task).result == 200
        assert (await city.call()).result == "circuit_open"
        await city.settle()

    run(story)


# Streams.


def test_streams_that_break_in_the_middle_open_the_breaker() -> None:
    """They began well, but nobody gets a whole answer."""

    async def story(clock: LoopClock) -> None:
        async def breaks_off() -> Script:
            await asyncio.sleep(0.05)
            event = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
            return streamed(event, Broken("cut"))

        city = City([Provider(breaks_off), Provider(streams(lasts_s=0.1))], clock, fallbacks=1)
        await city.traffic(20, 10, stream=True)

        assert city.breaker_of().state == "open"
        assert len(city.providers[0].asked_at) <= 40
        await city.settle()

    run(story)


def test_long_streams_end_well_behind_an_ejection() -> None:
    """Those that began before keep running, and their ends are no news of the present."""

    async def story(clock: LoopClock) -> None:
        provider = Provider(streams(lasts_s=20.0))
        city = City([provider], clock)
        tasks = [city.start(stream=True) for _ in range(10)]
        await asyncio.sleep(1)
        provider.fate = fails(500)
        await city.traffic(20, 2, stream=True)
        assert city.breaker_of().state == "open"

        told = await asyncio.gather(*tasks)

        assert {one.result for one in told} == {200}
        assert city.breaker_of().state != "closed"
        await city.settle()

    run(story)


# Everything at once.


@pytest.mark.parametrize("seed", sampled(range(12), lambda seed: seed < 3))
def test_whatever_happens_nothing_is_left(seed: int) -> None:
    """Mixed faults, streams, clients that leave, short deadlines, all lanes, reloads, drains: every call is settled once."""

    async def story(clock: LoopClock) -> None:
        draw = Random(seed)
        providers = [Provider(noise(draw.choice([0.1, 0.5, 1.0]), draw, mixed=True)) for _ in range(3)]
        changes = {"choice": "least_loaded", "draw": draw.random, "limits": [Limits(max_concurrency=8)]}
        city = City(providers, clock, fallbacks=1, accounts=("openai", "openai"), changes=changes)
        tasks = []
        for _ in range(300):
            await asyncio.sleep(draw.expovariate(60))
            lane = draw.choice(["critical", "interactive", "interactive", "batch"])
            deadline = clock.now + draw.choice([0.3, 5, 30])
            tasks.append(city.start(lane=lane, stream=draw.random() < 0.3, deadline=deadline, deadline_is_callers=True))
            if draw.random() < 0.1:
                draw.choice(tasks).cancel()
            if draw.random() < 0.02:
                _disturb(draw, city)
        await asyncio.gather(*tasks, return_exceptions=True)

        # Who was cancelled before the first step was never a call.
        assert len(city.bench.meter.accounts) == city.bench.meter.began_count <= 300
        await city.settle()

    run(story)


def _disturb(draw: Random, city: City) -> None:
    now = city.clock.now
    what = draw.randrange(5)
    if what == 0:
        city.admission.install(city.bench.policy)
    elif what == 1:
        city.breaker_of(draw.randrange(3)).force(draw.choice(["drained", "open", "closed", None]), now)
    elif what == 2:
        city.gate(draw.randrange(3)).leave_alone(draw.random() * 3, now)
    elif what == 3:
        draw.choice(city.providers).fate = draw.choice([answers(), fails(500), streams(), refuses()])
    else:
        city.admission.gates.accounts["openai"].breaker.trip("for the test", now, draw.random())
