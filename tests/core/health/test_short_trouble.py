"""Short trouble at a lone target becomes a wait: nobody is lost whom the SDK alone would have brought through."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.health.breaker import Breaker
from gateway.core.health.detector import BreakerRules
from gateway.core.health.phases import ANSWERING_S, FIRST_PAUSE_S, LASTING_S, MOST_OUT
from gateway.core.types import Outgoing
from tests.rows import rows
from tests.support.flow import Script, ScriptedAnswer, whole
from tests.support.outage import ERROR, City, Provider, Told, answers, fails, refuses, streams
from tests.support.virtual import LoopClock, run

PATIENCE_S = 600.0
"""openai-python's own timeout."""
ANSWER_S, ERROR_S = 0.5, 0.01


class Trouble(NamedTuple):
    """What became of calls that were under way when a target began to answer 503."""

    told: list[Told]
    asked_at: list[float]
    """Seconds since the trouble began."""
    lasted_s: float

    @property
    def served(self) -> int:
        return sum(one.result == 200 for one in self.told)

    def served_after_s(self) -> list[float]:
        """Seconds from the end of the trouble to each answer, in order."""
        return sorted(one.took_s - self.lasted_s for one in self.told if one.result == 200)


def trouble(calls: int, lasts_s: float, *, lane: str = "interactive", strays: float = 0.0, seed: int = 1) -> Trouble:
    """So many calls at once, while a target that has served before answers 503 for so long, and a share of strays always."""

    async def story(clock: LoopClock) -> Trouble:
        draw = Random(seed)
        is_down = False

        async def fate() -> Script:
            if is_down or draw.random() < strays:
                await asyncio.sleep(ERROR_S)
                return whole(ERROR, 503)
            await asyncio.sleep(ANSWER_S)
            return whole()

        provider = Provider(fate)
        city = City([provider], clock)
        patience = {"lane": lane, "deadline_is_callers": True}
        for _ in range(10):
            await city.call(deadline=clock.now + PATIENCE_S, **patience)
        is_down, began_at, before = True, clock.now, len(provider.asked_at)
        tasks = [city.start(deadline=clock.now + PATIENCE_S, **patience) for _ in range(calls)]
        await asyncio.sleep(lasts_s)
        is_down = False
        told = await asyncio.gather(*tasks)
        await city.settle()
        return Trouble(told, [at - began_at for at in provider.asked_at[before:]], lasts_s)

    return run(story)


@rows(
    ("calls", "lasts_s", "lane"),
    [
        *((calls, lasts_s, "interactive") for calls in (10, 50, 200) for lasts_s in (0.3, 1.0, 3.0, 20.0)),
        (50, 1.0, "batch"),
        (50, 20.0, "batch"),
    ],
)
def test_nobody_is_lost_to_short_trouble(calls: int, lasts_s: float, lane: str) -> None:
    """All are served, soon after its end; the provider hears of few of them while it is in trouble."""
    seen = trouble(calls, lasts_s, lane=lane)

    assert seen.served == calls
    assert seen.served_after_s()[0] <= 3.0
    assert seen.served_after_s()[-1] <= 7.0
    tries = sum(0 < at < lasts_s for at in seen.asked_at[calls:])
    assert tries <= 16 + 1.1 * lasts_s


@rows(("calls", "lasts_s"), [(calls, lasts_s) for calls in (1, 2, 4) for lasts_s in (1.0, 3.0, 20.0)])
def test_a_few_calls_alone_outlive_trouble(calls: int, lasts_s: float) -> None:
    """They are too few to make it known that the target fails, and are held all the same once their tries have all failed."""
    seen = trouble(calls, lasts_s)

    assert seen.served == calls
    assert seen.served_after_s()[-1] <= 3.5
    tries = sum(0 < at < lasts_s for at in seen.asked_at[calls:])
    assert tries <= 2 * calls + 8 + 1.1 * lasts_s


def test_a_call_that_may_fail_for_what_it_is_does_not_wait() -> None:
    """A 500 may come of its content: nobody else is there to show that it does not, and its attempts bound what it costs."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(fails(500, ERROR_S))], clock)

        told = await city.call(deadline=clock.now + PATIENCE_S, **PATIENT)

        assert told.result == 500
        assert told.took_s < 3.0
        assert city.breaker_of(0).state == "closed"
        await city.settle()

    run(story)


def test_a_call_with_another_answer_does_not_wait() -> None:
    """Who has it, a stale one for instance, gives that instead of waiting for a target that serves nobody."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(fails(503, ERROR_S))], clock)

        told = await city.call(deadline=clock.now + PATIENCE_S, fallback_answer=True, **PATIENT)

        assert told.result == "server_error"
        assert told.took_s < 3.0
        await city.settle()

    run(story)


def test_a_single_call_waits_for_a_target_that_refuses_connections() -> None:
    """Nothing is sent, so nothing is paid; a target that is started again after five seconds serves it."""

    async def story(clock: LoopClock) -> None:
        provider = Provider(answers(ANSWER_S))
        city = City([provider], clock)
        await city.call(deadline=clock.now + PATIENCE_S, **PATIENT)
        provider.fate = refuses()
        asyncio.get_running_loop().call_later(5.0, setattr, provider, "fate", answers(ANSWER_S))

        told = await city.call(deadline=clock.now + PATIENCE_S, **PATIENT)

        assert told.result == 200
        assert told.took_s < 8.0
        assert len(provider.asked_at) <= 15
        await city.settle()

    run(story)


def test_a_single_call_does_not_wait_for_an_address_that_has_never_answered() -> None:
    """It is more likely wrong than out of service: whoever sets it up hears so soon."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(refuses())], clock)

        for most_s in (3.0, 12.0, 12.0):  # the later ones meet a breaker that has opened meanwhile
            told = await city.call(deadline=clock.now + PATIENCE_S, **PATIENT)
            assert told.result == "no_target_available"
            assert told.took_s < most_s
        await city.settle()

    run(story)


@pytest.mark.parametrize("seed", range(5))
def test_stray_errors_do_not_keep_a_target_closed(seed: int) -> None:
    """After an outage of 12 s, with 5 % of strays before, in and after it: all of 40 within ten seconds of its end."""
    seen = trouble(40, 12.0, strays=0.05, seed=seed)

    assert seen.served == 40
    assert seen.served_after_s()[-1] <= 10.0


def test_an_outage_costs_the_waiting_no_attempts() -> None:
    """A call whose tries all met the outage is served all the same, however many they were."""
    seen = trouble(1 + 9, 60.0)

    assert seen.served == 10
    assert max(one.attempts for one in seen.told) > 4


# What stands in the way of those who wait.

PATIENT = {"deadline_is_callers": True}
DOWN_S = 0.3


async def warm(city: City) -> None:
    for number in range(10):
        await city.call(credential=b"Bearer %d" % number)


def test_callers_with_their_own_credentials_hear_of_the_end() -> None:
    """They wait in lines of their own, and one of them finds out for all."""

    async def story(clock: LoopClock) -> None:
        provider = Provider(answers(0.3))
        city = City([provider], clock, accounts=[""])
        lone = replace(city.bench.policy.providers["p0"], api_key=None, limits_are="account")
        city.bench.policy = replace(city.bench.policy, providers={"p0": lone})
        city.admission.install(city.bench.policy)
        await warm(city)
        provider.fate = fails(503, ERROR_S)
        tasks = [
            city.start(credential=b"Bearer %d" % number, deadline=clock.now + 300, **PATIENT) for number in range(30)
        ]
        await asyncio.sleep(DOWN_S)
        provider.fate = answers(0.3)
        told = await asyncio.gather(*tasks)

        assert {one.result for one in told} == {200}
        assert max(one.took_s for one in told) < 10.0
        city.rest()

    run(story)


@pytest.mark.parametrize("kind", ["a stream of 30 s", "an answer that never comes"])
def test_a_long_try_does_not_keep_the_others_waiting(kind: str) -> None:
    """Errors come back at once: the longer a call is out, the more others follow it."""

    async def never() -> Script:
        await asyncio.sleep(1e6)
        raise AssertionError

    async def story(clock: LoopClock) -> None:
        is_stream = kind.startswith("a stream")
        provider = Provider(streams(0.1, 30.0) if is_stream else answers())
        city = City([provider], clock)
        await asyncio.gather(*[city.start(stream=is_stream) for _ in range(10)])
        provider.fate = fails(503, ERROR_S)
        tasks = [city.start(stream=is_stream, deadline=clock.now + 120, **PATIENT) for _ in range(30)]
        await asyncio.sleep(0.05)
        provider.fate = provider.fate if is_stream else never
        await asyncio.sleep(DOWN_S)
        provider.fate = streams(0.1, 30.0) if is_stream else answers()
        told = await asyncio.gather(*tasks)

        assert sum(one.result == 200 for one in told) >= 29
        assert sorted(one.took_s for one in told)[-2] < 30.0 + 10.0
        city.rest()

    run(story)


@rows(("status", "poisoned"), [(500, 1), (500, 5), (503, 1), (503, 3)])
def test_a_call_that_always_fails_is_not_the_one_that_finds_out(status: int, poisoned: int) -> None:
    """Among fifty good ones: others try next, and once they are served it ends as it would without trouble."""

    class Choosy(Provider):
        is_down = False

        async def send(self, outgoing: Outgoing) -> ScriptedAnswer:
            self.asked_at.append(asyncio.get_running_loop().time())
            is_poison = b"poison" in bytes(outgoing.body)
            await asyncio.sleep(ERROR_S if self.is_down or is_poison else 0.3)
            if self.is_down or is_poison:
                return ScriptedAnswer(whole(ERROR, 503 if self.is_down else status))
            return ScriptedAnswer(whole())

    async def story(clock: LoopClock) -> None:
        provider = Choosy(answers())
        city = City([provider], clock)
        await warm(city)
        provider.is_down = True
        patience: dict[str, object] = {"deadline": clock.now + PATIENCE_S, **PATIENT}
        body = b'{"model":"m","messages":[],"user":"poison"}'
        bad = [city.start(body=body, **patience) for _ in range(poisoned)]
        good = [city.start(**patience) for _ in range(50)]
        await asyncio.sleep(DOWN_S)
        provider.is_down = False

        assert {one.result for one in await asyncio.gather(*good)} == {200}
        assert max(one.took_s for one in await asyncio.gather(*good)) < 10.0
        assert {one.result for one in await asyncio.gather(*bad)} == {status}
        assert max(one.took_s for one in await asyncio.gather(*bad)) < 30.0
        city.rest()

    run(story)


@pytest.mark.parametrize("patience_s", [10.0, 30.0])
def test_after_an_outage_short_deadlines_are_no_reason_to_refuse(patience_s: float) -> None:
    """One client at a time, an outage of two minutes: the first call that begins after its end is served within seconds."""

    async def story(clock: LoopClock) -> None:
        provider = Provider(answers(0.3))
        city = City([provider], clock)
        await warm(city)
        provider.fate, began_at = fails(503, ERROR_S), clock.now
        asyncio.get_running_loop().call_later(120.0, setattr, provider, "fate", answers(0.3))
        while clock.now < began_at + 130.0:
            await city.call(deadline=clock.now + patience_s, **PATIENT)

        later = [one for one in city.told if one.at >= began_at + 120.0]
        assert {one.result for one in later} == {200}
        assert max(one.took_s for one in later) < 5.0
        city.rest()

    run(story)


def test_a_retry_without_budget_waits_as_long_as_its_caller() -> None:
    """However often it asks for its turn meanwhile."""

    async def story(clock: LoopClock) -> None:
        provider = Provider(answers())
        city = City([provider], clock)
        await warm(city)
        city.gate().health.retries.in_flight = 10**6
        provider.fate = fails(503, ERROR_S)
        task = city.start(deadline=clock.now + PATIENCE_S, **PATIENT)
        await asyncio.sleep(300.0)
        city.gate().health.retries.in_flight = 0
        provider.fate = answers()

        assert (await task).result == 200
        city.rest()

    run(story)


# The breaker alone.


def stumbled(now: float = 0.0, rules: BreakerRules | None = None) -> Breaker:
    breaker = Breaker("site", rules or BreakerRules(), now)
    permits = [breaker.take(now) for _ in range(50)]
    for permit in permits:
        breaker.failed(permit, now, 0.0, "overloaded")
    return breaker


def test_a_burst_of_failures_is_one_observation() -> None:
    """Fifty that fail at once do not open it: one call at a time finds out whether the trouble goes on."""
    breaker = stumbled()

    assert (breaker.state, breaker.is_stumbling, breaker.transitions["open"]) == ("closed", True, 0)
    assert breaker.wait_s(0.0, 1) == pytest.approx(FIRST_PAUSE_S)
    breaker.take(FIRST_PAUSE_S)
    assert breaker.wait_s(FIRST_PAUSE_S, 1) == ANSWERING_S


def test_trouble_that_lasts_opens_it() -> None:
    """Its tries fail for two seconds, ever farther apart; then it is left alone as before."""
    breaker, now, tries = stumbled(), 0.0, 0
    while breaker.state == "closed":
        now += breaker.wait_s(now, 1) or 0.0
        breaker.failed(breaker.take(now), now, 0.0, "overloaded")
        tries += 1

    assert LASTING_S <= now <= 2 * LASTING_S
    assert tries <= 6
    assert breaker.reason.startswith("failures for ")


def test_trouble_that_has_passed_is_forgotten() -> None:
    """Three tries in a row succeed: what waits goes at a growing pace, over as long as the trouble lasted."""
    breaker = stumbled()
    now = FIRST_PAUSE_S
    for _ in range(3):
        breaker.succeeded(breaker.take(now), now, 0.1)

    assert not breaker.is_stumbling
    assert breaker.is_ramping(now)
    assert not breaker.is_ramping(2 * now + 0.01)
    assert breaker.transitions["open"] == 0


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0.001, 0.6), st.sampled_from(["good", "bad", "later"])), max_size=120))
def test_while_it_stumbles_few_are_out(steps: list[tuple[float, str]]) -> None:
    """A second one only when the first has been out for long; and what is out is always known."""
    breaker, now = stumbled(), 0.0
    out: list[int] = []
    sent_at: list[float] = []
    for later_s, fate in steps:
        now += later_s
        if breaker.is_stumbling and breaker.wait_s(now, 1) == 0.0:
            out.append(breaker.take(now))
            sent_at.append(now)
        if out and fate == "good":
            breaker.succeeded(out.pop(), now, 0.1)
        elif out and fate == "bad":
            breaker.failed(out.pop(), now, 0.5, "overloaded")
        if not breaker.is_stumbling:
            break
        assert len(out) <= min(MOST_OUT, breaker.rules.probes + 2.0 ** (now / ANSWERING_S))


def test_a_silent_target_opens_at_once() -> None:
    """Timeouts have taken long enough to be no passing moment."""
    breaker = Breaker("site", BreakerRules(), 0.0)
    for _ in range(5):
        breaker.failed(breaker.take(0.0), 60.0, 0.0, "timeout")

    assert breaker.state == "open"
