"""Whose trouble it is: one caller's credential, one call's content, or the target itself."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.admission.queue import WaitingLine
from gateway.core.health.detector import is_shared
from gateway.core.types import Outgoing
from tests.support.flow import ScriptedAnswer, whole
from tests.support.outage import ERROR, City, Provider, Told, answers, fails
from tests.support.virtual import LoopClock, run

SDK_S = 600.0
counts = st.lists(st.integers(1, 20), min_size=1, max_size=8)


@given(counts, st.integers(1, 10), st.integers(0, 50))
def test_failures_are_shared_by_several_callers_who_all_count(
    failures: list[int], at_least: int, in_flight: int
) -> None:
    """Never by one alone, nor by one and a stray of another, nor while most may be well; always by enough different ones."""
    shared = is_shared(failures, at_least, in_flight)

    assert shared or len(failures) < max(2, at_least) or sum(failures) < in_flight
    assert not (shared and len(failures) == 1)
    assert not (shared and len(failures) == 2 and min(failures) == 1 and at_least > 2)
    assert not (shared and sum(failures) < max(at_least, in_flight))


class Accounts(Provider):
    """Fails the calls of some credentials, and what `fate` says of all others."""

    def __init__(self, *bad: str, status: int = 500) -> None:
        super().__init__(answers(0.2))
        self.bad = set(bad)
        self.status = status

    async def send(self, outgoing: Outgoing) -> ScriptedAnswer:
        if json.loads(bytes(outgoing.body))["user"] in self.bad:
            self.asked_at.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0.01)
            return ScriptedAnswer(whole(ERROR, self.status))
        return await super().send(outgoing)


def town(provider: Provider, clock: LoopClock) -> City:
    city = City([provider], clock, accounts=[""])
    lone = replace(city.bench.policy.providers["p0"], api_key=None, limits_are="account")
    city.bench.policy = replace(city.bench.policy, providers={"p0": lone})
    city.admission.install(city.bench.policy)
    return city


def ask(city: City, who: str, **changes: object) -> asyncio.Task[Told]:
    patience = {"deadline": city.clock.now + SDK_S, "deadline_is_callers": True, **changes}
    body = b'{"model":"m","messages":[],"user":"%b"}' % who.encode()
    return city.start(**{"credential": b"Bearer " + who.encode(), "body": body, **patience})


def line_of(city: City, who: str) -> WaitingLine:
    call = city.bench.call(credential=b"Bearer " + who.encode())
    return city.admission.gates.line(city.bench.policy.models["m"].targets[0], call)


def test_one_callers_failures_close_the_target_to_nobody_else() -> None:
    """Five 500s at once, and five a second for half a minute: all others are served as if nothing were."""

    async def story(clock: LoopClock) -> None:
        provider = Accounts("bad")
        city = town(provider, clock)
        bad = [ask(city, "bad") for _ in range(5)]
        await asyncio.sleep(0.05)
        assert (await ask(city, "good")).took_s == pytest.approx(0.2, abs=0.01)

        good = []
        for number in range(150):
            bad.append(ask(city, "bad", deadline=clock.now + 20.0))
            if number % 3 == 0:
                good.append(ask(city, f"good {number % 4}"))
            await asyncio.sleep(0.2)

        assert max(one.took_s for one in await asyncio.gather(*good)) == pytest.approx(0.2, abs=0.01)
        assert city.breaker_of().transitions["open"] == 0
        assert line_of(city, "bad").gate.health.breaker.transitions["open"] > 0
        await asyncio.gather(*bad)
        city.rest()

    run(story)


def test_a_caller_whose_trouble_is_over_is_served_again() -> None:
    """What is left alone is his credential at that target, and it is probed while his calls wait."""

    async def story(clock: LoopClock) -> None:
        provider = Accounts("bad", status=503)
        city = town(provider, clock)
        await ask(city, "good")
        tasks = [ask(city, "bad") for _ in range(20)]
        await asyncio.sleep(12.0)
        tries = len(provider.asked_at)
        provider.bad.clear()
        told = await asyncio.gather(*tasks)

        assert {one.result for one in told} == {200}
        assert max(one.took_s for one in told) < 12.0 + 5.0
        assert tries <= 1 + 20 + 4 + 12
        city.rest()

    run(story)


@pytest.mark.parametrize("callers", [2, 5, 40])
def test_several_callers_failures_are_the_targets(callers: int) -> None:
    """An outage that they all meet: a newcomer waits with them, and few calls reach the provider while it lasts."""

    async def story(clock: LoopClock) -> None:
        provider = Accounts()
        city = town(provider, clock)
        for number in range(callers):
            await ask(city, str(number))
        provider.fate = fails(503, 0.01)
        before = len(provider.asked_at)
        each = max(1, 20 // callers)
        tasks = [ask(city, str(number)) for number in range(callers) for _ in range(each)]
        await asyncio.sleep(6.0)
        assert city.breaker_of().transitions["open"] >= 1
        tasks.append(ask(city, "new"))
        await asyncio.sleep(6.0)
        asked = len(provider.asked_at) - before
        provider.fate = answers(0.2)
        told = await asyncio.gather(*tasks)

        assert {one.result for one in told} == {200}
        assert max(one.took_s for one in told) < 12.0 + 6.0
        assert asked <= len(tasks) + 12
        city.rest()

    run(story)


def test_stray_failures_of_several_callers_are_nobodys() -> None:
    """One in ten of the calls of twenty callers, always: the target stays in service."""

    async def story(clock: LoopClock) -> None:
        provider = Accounts()
        city = town(provider, clock)
        fates = [fails(500, 0.01), *[answers(0.2)] * 9]
        tasks = []
        for number in range(600):
            provider.fate = fates[number * 7 % 10]
            tasks.append(ask(city, str(number % 20)))
            await asyncio.sleep(0.05)
        told = await asyncio.gather(*tasks)

        assert {one.result for one in told} == {200}
        assert city.breaker_of().transitions["open"] == 0
        city.rest()

    run(story)


def test_by_hand_it_is_the_target_that_is_meant() -> None:
    """Drained it is so for all callers; closed by hand all of them are trusted."""

    async def story(clock: LoopClock) -> None:
        provider = Accounts("bad", status=503)
        city = town(provider, clock)
        health = city.admission.health
        await ask(city, "good")
        bad = [ask(city, "bad", deadline=clock.now + 30.0) for _ in range(10)]
        await asyncio.sleep(5.0)
        health.force("p0/m", "drained")
        assert (await ask(city, "good", deadline=clock.now + 1.0)).result == "circuit_open"
        health.force("p0/m", "closed")
        assert line_of(city, "bad").gate.health.is_clear
        assert (await ask(city, "good")).result == 200
        await asyncio.gather(*bad)
        city.rest()

    run(story)


@pytest.mark.parametrize("status", [500, 503])
@pytest.mark.parametrize(("bad_s", "good_s"), [(0.2, 0.6), (1.0, 1.0), (1.0, 0.2)])
def test_what_one_calls_content_does_is_no_sign_of_the_targets_health(bad_s: float, good_s: float, status: int) -> None:
    """One request that is sent again and again and always fails, with the config's own credential; others are served."""

    async def story(clock: LoopClock) -> None:
        city = City([Accounts("bad", status=status)], clock)
        began_at = clock.now
        good, bad = list[Told](), list[asyncio.Task[Told]]()
        for _ in range(20):
            good.append(await ask(city, "good", credential=None))
        while clock.now < began_at + 34.0:
            good_due = began_at + 4.0 + good_s * (len(good) - 20)
            bad_due = began_at + 4.1 + bad_s * len(bad)
            await city.until(min(good_due, bad_due))
            if good_due <= bad_due:
                good.append(await ask(city, "good", credential=None))
            else:
                bad.append(ask(city, "bad", credential=None))

        assert max(one.took_s for one in good) == pytest.approx(0.2, abs=0.01)
        assert {one.result for one in await asyncio.gather(*bad)} == {status}
        assert city.breaker_of().transitions["open"] == 0
        city.rest()

    run(story)


def test_an_outage_that_equal_calls_meet_is_one() -> None:
    """All calls of a program are the same, and have been served before."""

    async def story(clock: LoopClock) -> None:
        provider = Accounts()
        city = City([provider], clock)
        for _ in range(5):
            await ask(city, "same", credential=None)
        tasks = [ask(city, "same", credential=None) for _ in range(3)]
        await asyncio.sleep(0.1)
        provider.fate = fails(503, 0.01)
        tasks += [ask(city, "same", credential=None) for _ in range(20)]
        await asyncio.sleep(6.0)
        assert city.breaker_of().transitions["open"] >= 1
        provider.fate = answers(0.2)
        assert {one.result for one in await asyncio.gather(*tasks)} == {200}
        city.rest()

    run(story)
