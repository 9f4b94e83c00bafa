"""Calls on their way elsewhere: whichever way a move ends, nothing of it is left, and nobody waits for what is known."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace

import pytest

from gateway.core.balancing import Hedging, Retries
from gateway.core.errors import InvalidRequest
from gateway.core.limits.limit_table import Limits
from gateway.core.racing import Failover, Suspects
from tests.core.test_suspects import SDK_S, calls, served, silence
from tests.support.flow import Script
from tests.support.outage import City, Fate, Provider, answers, fails, gone
from tests.support.virtual import LoopClock, run


def moves_of(city: City) -> Failover:
    look = city.bench.watch.look
    assert look is not None
    suspects = getattr(look, "__self__", None)
    assert isinstance(suspects, Suspects)
    return suspects._moves


def test_a_retry_that_was_booked_elsewhere_and_never_sent_is_given_back() -> None:
    """The other target fails, and its limit has no room for another try in time: its retry budget is whole again."""

    async def story(clock: LoopClock) -> None:
        limits = [Limits(), Limits(requests_per_min=2.0, request_burst=1.0)]
        other = Provider(fails(503))
        city = City([Provider(silence()), other], clock, changes={"limits": limits})

        await calls(city, 1, 1.0)

        assert len(other.asked_at) == 1
        assert city.gate(1).health.retries.in_flight == 0
        assert city.gate(1).health.tokens.level(500.0) == 500.0
        await city.settle()

    run(story)


def test_a_final_word_of_the_first_target_is_the_answer() -> None:
    """The call has moved on and waits there; what the first one says would be the same everywhere."""

    async def story(clock: LoopClock) -> None:
        wakes = asyncio.Event()

        async def asleep() -> Script:
            await wakes.wait()
            return await fails(400)()

        city = City([Provider(asleep), Provider(silence())], clock)
        asyncio.get_running_loop().call_later(17.0, wakes.set)

        (told,) = await calls(city, 1, 1.0)

        assert told.result == 400
        assert told.took_s == pytest.approx(17.0, abs=0.1)
        assert [attempt.target.name for attempt in city.bench.account.call.attempts] == ["p1/m", "p0/m"]
        await city.settle()

    run(story)


def test_a_move_that_is_called_off_before_it_has_begun_has_ended() -> None:
    """Else it would count as on its way for ever, and fewer and fewer could follow."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(silence()), Provider(answers(0.5))], clock)
        told: list[bool] = []
        own = city.start(deadline=clock.now + SDK_S, deadline_is_callers=True)
        await asyncio.sleep(0.01)
        ((task, (_, attempt, call)),) = city.bench.watch._open.items()

        moves_of(city).begin(call, attempt, task, told.append)
        moves_of(city).cancel(call, attempt)
        await asyncio.sleep(0.01)

        assert told == [False]
        await gone(own)
        await city.settle()

    run(story)


def test_a_call_that_is_served_elsewhere_shows_that_its_target_could_be_left() -> None:
    """It has moved, and so could others, for its money, too: a target of which all calls have moved is put out of service."""

    async def story(clock: LoopClock) -> None:
        bench = City([Provider(silence()), Provider(silence())], clock).bench
        usd = bench.admission.costs.usd(bench.call(), bench.policy.models["m"].targets[0])
        assert usd
        retries = Retries(max_usd_per_call=2.5 * usd)  # for two attempts, of which the second has been made
        city = City([Provider(silence()), Provider(answers(5.0))], clock, retries=retries)
        own = city.start(deadline=clock.now + SDK_S, deadline_is_callers=True)
        await asyncio.sleep(0.01)
        ((task, (_, attempt, call)),) = city.bench.watch._open.items()

        moves_of(city).begin(call, attempt, task)
        await asyncio.sleep(1.0)

        assert [one.target.name for one in call.attempts] == ["p0/m", "p1/m"]
        assert [one.name for one in moves_of(city).places(call, attempt)] == ["p1/m"]
        await own
        await city.settle()

    run(story)


@pytest.mark.parametrize(("count", "every_s"), [(60, 0.05), (200, 0.02), (100, 0.2)])
def test_hedged_calls_of_which_many_are_late_at_once_are_served(count: int, every_s: float) -> None:
    """Most second attempts are denied elsewhere, or made at the silent target itself: that keeps nobody there."""

    async def story(clock: LoopClock) -> None:
        primary = Provider(answers(2.0))
        city = City([primary, Provider(answers(2.0))], clock, retries=Retries(hedging=Hedging()))
        await calls(city, 40, 0.1)
        primary.fate = silence()

        told = await calls(city, count, every_s)

        assert served(told) == count
        await city.settle()

    run(story)


def test_hedged_clients_that_leave_leave_nothing_behind() -> None:
    """While their calls hang, race and move."""

    async def story(clock: LoopClock) -> None:
        primary = Provider(answers(0.5))
        city = City([primary, Provider(answers(3.0))], clock, retries=Retries(hedging=Hedging()))
        await calls(city, 40, 0.1)
        primary.fate = silence()
        tasks = []
        for number in range(120):
            task = city.start(deadline=clock.now + SDK_S, deadline_is_callers=True)
            tasks.append(task)
            asyncio.get_running_loop().call_later(0.37 * (number % 50), task.cancel)
            await asyncio.sleep(0.05)
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.1)

        assert len(asyncio.all_tasks()) == 1
        assert city.providers[0].in_flight == city.providers[1].in_flight == 0
        await city.settle()

    run(story)


def test_a_move_that_was_refused_is_made_again() -> None:
    """The only other target is drained for five seconds, while calls are on their way there."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(silence()), Provider(answers(3.0))], clock)
        force, later = city.admission.health.force, asyncio.get_running_loop().call_later
        later(11.0, force, "p1/m", "drained")
        later(16.0, force, "p1/m", None)

        told = await calls(city, 100, 0.2, 60.0)

        assert served(told) == 100
        assert max(one.took_s for one in told) < 40.0
        await city.settle()

    run(story)


def test_looking_where_a_call_might_go_makes_no_gates_there() -> None:
    """Of callers with credentials of their own there may be thousands, and each would have one at each target."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(answers(10.0)), Provider(answers(0.5))], clock, accounts=["", ""])
        providers = city.bench.policy.providers
        assert isinstance(providers, dict)
        providers.update({name: replace(providers["p0"], name=name, api_key=None) for name in ("p0", "p1")})
        city.admission.install(city.bench.policy)
        own = {"deadline": clock.now + SDK_S, "deadline_is_callers": True}

        told = await asyncio.gather(*[city.start(credential=b"Bearer k%d" % number, **own) for number in range(50)])

        assert served(told) == 50
        assert len(city.admission.gates.names.callers["p0/m"]) == 50
        assert not city.admission.gates.names.callers.get("p1/m")
        await city.settle()

    run(story)


async def wordless() -> Script:
    """A target that the call cannot be told in its language."""
    raise InvalidRequest("It has no word for that.")


def test_a_call_moves_once_to_who_cannot_be_told_it() -> None:
    """To put it into another language, only to find out again that it cannot be, takes long for a large one."""

    async def story(clock: LoopClock) -> None:
        wakes = asyncio.Event()

        async def asleep() -> Script:
            await wakes.wait()
            return await answers(0.0)()

        other = Provider(wordless)
        city = City([Provider(asleep), other], clock)
        asyncio.get_running_loop().call_later(25.0, wakes.set)

        (told,) = await calls(city, 1, 1.0)

        assert (told.result, round(told.took_s)) == (200, 25)
        assert len(other.asked_at) == 1
        await city.settle()

    run(story)


@pytest.mark.parametrize(("fate", "word"), [(fails(503), "no_target_available"), (wordless, "invalid_request")])
def test_a_call_that_has_moved_when_it_could_not_be_told_ends_in_peace(fate: Fate, word: str) -> None:
    """Nothing is left of its own attempt, and where it moved to it fails, too."""

    async def story(clock: LoopClock) -> None:
        async def mute() -> Script:
            await asyncio.sleep(17.0)
            return await wordless()

        async def late() -> Script:
            await asyncio.sleep(6.0)
            return await fate()

        troubles: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, told: troubles.append(told))
        city = City([Provider(mute), Provider(late)], clock, retries=Retries(attempts=2))

        (told,) = await calls(city, 1, 1.0)
        gc.collect()

        assert told.result == word
        assert not troubles
        await city.settle()

    run(story)
