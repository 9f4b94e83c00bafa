"""Targets that accept and never answer: nobody's calls are lost there, and nobody's long call is killed for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, product
from unittest.mock import patch

import pytest

from gateway.core.answers import OpenAttempts
from gateway.core.balancing import Hedging, Retries
from gateway.core.health.times import Latency
from gateway.core.limits.limit_table import Limits
from gateway.core.snapshot import Rates
from gateway.core.types import ErrorClass, Phase, UpstreamFailed
from tests.support.flow import ANSWER, CLOCKS, SSE, Script, streamed
from tests.support.outage import City, Fate, Provider, Told, answers, fails, gone, streams
from tests.support.virtual import LoopClock, run
from tests.sweeps import sampled

SDK_S = 30.0
KEEPALIVE = b": hold on\n\n"


def silence() -> Fate:
    """The request is taken, and that is all."""

    async def fate() -> Script:
        await asyncio.Event().wait()
        raise AssertionError

    return fate


def head_then_silence() -> Fate:
    async def fate() -> Script:
        await asyncio.sleep(0.05)
        return Script(chunks=[asyncio.Event()])

    return fate


def comment_then_silence() -> Fate:
    """A stream that is opened, and has nothing to say."""

    async def fate() -> Script:
        await asyncio.sleep(0.05)
        return streamed(KEEPALIVE, asyncio.Event())

    return fate


def black_hole() -> Fate:
    """Nobody answers the connection; the transport gives up after `connect`."""

    async def fate() -> Script:
        await asyncio.sleep(CLOCKS.connect_s)
        raise UpstreamFailed(ErrorClass.TIMEOUT, Phase.NOTHING_SENT, "no connection in time")

    return fate


def murmurs(every_s: float, then_s: float) -> Fate:
    """A stream that sends comments for a long time, then what was asked for."""

    async def fate() -> Script:
        script = streamed()
        script.chunks = _murmur(every_s, then_s)
        return script

    return fate


def _murmur(every_s: float, then_s: float) -> Sequence[bytes | asyncio.Event]:
    chunks: list[bytes | asyncio.Event] = []
    loop = asyncio.get_running_loop()
    for number in range(int(then_s / every_s)):
        event = asyncio.Event()
        loop.call_later(number * every_s, event.set)
        chunks += [event, KEEPALIVE]
    return [
        *chunks,
        b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
    ]


PACES = [(1, 1.0), (20, 0.0), (20, 0.5)]
"""So many calls, and so many seconds from one to the next."""
SILENCES: dict[str, tuple[Callable[[], Fate], bool]] = {
    "before the head": (silence, False),
    "before the head of a stream": (silence, True),
    "after the head": (head_then_silence, False),
    "before the first event": (comment_then_silence, True),
    "while connecting": (black_hole, False),
}


async def calls(
    city: City, count: int, every_s: float, deadline_s: float | None = SDK_S, **changes: object
) -> list[Told]:
    """So many calls, each with the timeout of its SDK; None: with none of its own."""
    began_at, tasks = city.clock.now, []
    for number in range(count):
        await city.until(began_at + number * every_s)
        own = {} if deadline_s is None else {"deadline": city.clock.now + deadline_s, "deadline_is_callers": True}
        tasks.append(city.start(**own, **changes))
    return await asyncio.gather(*tasks)


def served(told: Sequence[Told]) -> int:
    return sum(one.result == 200 for one in told)


def good(stream: bool, takes_s: float = 0.5) -> Fate:
    return streams(takes_s) if stream else answers(takes_s)


@pytest.mark.parametrize(
    ("how", "known", "fallbacks"),
    sampled(
        product(SILENCES, [0, 40, 400], [0, 1]),
        # Cold and known, a target beside and a fallback; that more is known changes little.
        lambda how, known, fallbacks: known == (0, 40)[fallbacks] or (known == 400 and how == "before the head"),
    ),
)
def test_a_silent_primary_costs_seconds_and_no_call(how: str, known: int, fallbacks: int) -> None:
    """100 calls at 5 per second: 95 are answered at least, of the last 40 all, each within 5 s. Cold or not."""
    fate, stream = SILENCES[how]

    async def story(clock: LoopClock) -> None:
        primary, other = Provider(good(stream)), Provider(good(stream))
        city = City([primary, other], clock, fallbacks=fallbacks)
        assert served(await calls(city, known, 0.1, stream=stream)) == known
        primary.fate = fate()

        told = await calls(city, 100, 0.2, stream=stream)

        assert served(told) >= 95
        assert served(told[60:]) == 40
        assert max(one.took_s for one in told[60:]) <= 5.0
        await city.settle()

    run(story)


@pytest.mark.parametrize("deadline_s", sampled([3.0, 5.0, 10.0, 600.0], lambda deadline_s: deadline_s in (3.0, 600.0)))
def test_whatever_deadline_callers_have(deadline_s: float) -> None:
    """Impatient ones are served in their time, patient ones soon enough: the SDK's own default is 10 minutes."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(silence()), Provider(answers(0.5))], clock)

        told = await calls(city, 500, 0.5, deadline_s)

        assert served(told) == 500
        assert max(one.took_s for one in told[-200:]) <= 11.0  # a few that try the silent one again
        assert sum(one.took_s > 1.0 for one in told[-200:]) <= 9
        await city.settle()

    run(story)


def test_calls_without_a_deadline_move_on_too() -> None:
    """Nobody has said how long they wait: two minutes for whole answers."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(silence()), Provider(answers(0.5))], clock)

        told = await calls(city, 100, 2.0, None)

        assert served(told) == 100
        assert max(one.took_s for one in told) < 130.0
        assert max(one.took_s for one in told[-20:]) <= 11.0
        await city.settle()

    run(story)


def test_a_call_that_usually_takes_long_is_not_cut() -> None:
    """18 s of 30 are usual at both targets: nobody else is asked, nobody is paid twice."""

    async def story(clock: LoopClock) -> None:
        primary, other = Provider(answers(18.0)), Provider(answers(18.0))
        city = City([primary, other], clock)
        await calls(city, 30, 1.0, 600.0)
        other.fate = answers(0.1)
        asked = len(other.asked_at)

        told = await calls(city, 50, 0.5)

        assert served(told) == 50
        assert [one.took_s for one in told] == pytest.approx([18.0] * 50, abs=0.01)
        assert len(other.asked_at) == asked
        await city.settle()

    run(story)


def test_a_cold_slow_model_is_slow_not_lost() -> None:
    """Its first attempt stays open while another is tried, and wins where it is sooner; its time becomes what is usual."""

    async def story(clock: LoopClock) -> None:
        primary, other = Provider(answers(18.0)), Provider(answers(14.0))
        city = City([primary, other], clock)

        first = await calls(city, 1, 1.0)
        assert [one.took_s for one in first] == pytest.approx([18.0], abs=0.01)
        assert len(other.asked_at) == 1
        await calls(city, 20, 20.0)
        asked = len(other.asked_at)
        told = await calls(city, 5, 20.0)

        assert [one.took_s for one in told] == pytest.approx([18.0] * 5, abs=0.01)
        assert len(other.asked_at) == asked
        assert city.gate(0).health.whole_answer.count == 26
        await city.settle()

    run(story)


@pytest.mark.parametrize(
    ("count", "every_s", "stream", "asks"),
    sampled(
        [(*pace, stream, asks) for pace in PACES for stream in (False, True) for asks in (True, False)],
        lambda count, every_s, stream, asks: stream == asks,
    ),
)
def test_reasoning_calls_of_minutes_are_not_killed(count: int, every_s: float, stream: bool, asks: bool) -> None:
    """One, twenty at once, or one after the other: asked to reason or marked, they have their five minutes."""

    async def story(clock: LoopClock) -> None:
        primary, other = Provider(good(stream, 300.0)), Provider(good(stream, 300.0))
        city = City([primary, other], clock)
        city.bench.call()
        city.admission.gates.lines["p0/m"].gate.health.responsiveness.thinks = not asks
        city.admission.gates.lines["p1/m"].gate.health.responsiveness.thinks = not asks

        told = await calls(city, count, every_s, 600.0, stream=stream, thinks=asks)

        assert served(told) == count
        assert max(one.took_s for one in told) < 302.0
        assert other.asked_at == [] or every_s == 0.5
        await city.settle()

    run(story)


def test_a_stream_that_murmurs_is_alive() -> None:
    """Comments are signs of life: it is not suspect, whatever its first event takes within its limit."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(murmurs(3.0, 50.0)), Provider(streams(0.5))], clock)

        told = await calls(city, 20, 1.0, 600.0, stream=True)

        assert served(told) == 20
        assert city.breaker_of(0).transitions["open"] == 0
        assert not city.providers[1].asked_at
        await city.settle()

    run(story)


def test_a_body_in_parts_is_a_sign_of_life() -> None:
    """Some providers send a space now and then while a whole answer is being made."""

    async def story(clock: LoopClock) -> None:
        async def spaces() -> Script:
            chunks: list[bytes | asyncio.Event] = []
            for number in range(1, 15):
                event = asyncio.Event()
                asyncio.get_running_loop().call_later(3.0 * number, event.set)
                chunks += [event, b" "]
            return Script(chunks=[*chunks, ANSWER])

        city = City([Provider(spaces), Provider(answers(0.5))], clock)

        told = await calls(city, 20, 1.0, 100.0)

        assert served(told) == 20
        assert not city.providers[1].asked_at
        assert city.breaker_of(0).transitions["open"] == 0
        await city.settle()

    run(story)


@pytest.mark.parametrize(
    ("thinks", "known_s", "ends_s"), [(False, None, 65.0), (True, None, 305.0), (False, 1.0, 15.0), (False, 10.0, 45.0)]
)
def test_the_first_event_of_a_stream_has_its_time(thinks: bool, known_s: float | None, ends_s: float) -> None:
    """By what is usual, plus the time to connect; then the call goes elsewhere. `first_byte` is further away."""

    async def story(clock: LoopClock) -> None:
        primary, other = Provider(streams(known_s or 1.0)), Provider(streams(0.5))
        city = City([primary, other], clock)
        if known_s is not None:
            await calls(city, 20, 0.1, None, stream=True)
        primary.fate = silence()

        (told,) = await calls(city, 1, 1.0, None, stream=True, thinks=thinks)

        assert told.result == 200
        assert told.took_s == pytest.approx(ends_s + 1.5, rel=0.12)
        await city.settle()

    run(story)


def test_what_is_written_goes_before_what_is_usual() -> None:
    """`first_event: 20s`, and no later; `suspect: off`."""

    async def story(clock: LoopClock) -> None:
        clocks = replace(CLOCKS, first_event_s=20.0, suspect_in_flight=0)
        city = City([Provider(silence()), Provider(streams(0.5))], clock, changes={"clocks": clocks})

        told = await calls(city, 10, 0.5, None, stream=True)

        assert [one.took_s for one in told] == pytest.approx([26.5] * 10, abs=0.1)
        await city.settle()

    run(story)


def test_nobody_is_moved_who_has_nowhere_to_go() -> None:
    """A single target that falls silent for a while: nobody is killed, nothing opens, and all are served in the end."""

    async def story(clock: LoopClock) -> None:
        wakes = asyncio.Event()

        async def asleep() -> Script:
            await wakes.wait()
            return await answers(0.1)()

        primary = Provider(answers(0.5))
        city = City([primary], clock)
        await calls(city, 40, 0.1, 600.0)
        primary.fate = asleep
        asyncio.get_running_loop().call_later(60.0, wakes.set)

        told = await calls(city, 100, 0.2, 600.0)

        assert served(told) == 100
        assert city.breaker_of(0).transitions["open"] == 0
        assert len(primary.asked_at) == 140
        await city.settle()

    run(story)


def test_two_silent_targets_kill_nobody() -> None:
    """Whoever waits goes on waiting, at one of them, until his own deadline."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(silence()), Provider(silence())], clock)

        told = await calls(city, 20, 0.2, 600.0)

        assert min(one.took_s for one in told) >= 599.0
        await city.settle()

    run(story)


def test_the_oldest_move_first_and_a_few_at_a_time() -> None:
    """Three, then twice as many with each answer; a retry budget has no say in it."""

    async def story(clock: LoopClock) -> None:
        other = Provider(answers(1.0))
        city = City([Provider(silence()), other], clock)

        told = await calls(city, 60, 0.05, 60.0)

        assert served(told) == 60
        moves = sorted(other.asked_at)
        assert other.asked(0, moves[0] + 0.9) == 3
        assert moves[-1] - moves[0] < 4.0
        ends = [one.at + one.took_s for one in told]
        assert ends == sorted(ends)
        assert not city.bench.meter.denied
        assert city.gate(1).health.tokens.level(500.0) == 500.0
        await city.settle()

    run(story)


def test_a_target_that_answers_again_is_used_again() -> None:
    """A few calls try it now and then, none of them for long; it is no longer suspect as soon as it has served."""

    async def story(clock: LoopClock) -> None:
        primary, other = Provider(answers(0.5)), Provider(answers(0.5))
        city = City([primary, other], clock)
        await calls(city, 40, 0.1)
        primary.fate = silence()
        told = await calls(city, 300, 0.2)
        assert city.gate(0).health.responsiveness.suspicion is not None
        assert max(one.took_s for one in told[100:]) < 5.0
        assert primary.asked(told[100].at, told[-1].at) <= 20
        primary.fate = answers(0.5)

        told = await calls(city, 600, 0.2)

        assert served(told) == 600
        assert city.breaker_of(0).state == "closed"
        assert city.gate(0).health.responsiveness.suspicion is None
        assert primary.asked(told[-20].at, clock.now) >= 20
        await city.settle()

    run(story)


@pytest.mark.parametrize("takes_s", [4.0, 8.0])
def test_a_slow_target_that_was_never_known_comes_back_too(takes_s: float) -> None:
    """Nothing is known of it but its silence, the other one is quick: those that try it wait longer each time."""

    async def story(clock: LoopClock) -> None:
        primary, other = Provider(silence()), Provider(answers(0.5))
        city = City([primary, other], clock)
        await calls(city, 100, 0.2, 90.0)
        primary.fate = answers(takes_s)

        told = await calls(city, 500, 1.0, 90.0)

        assert served(told) == 500
        assert city.breaker_of(0).state == "closed"
        assert told[-20].took_s == pytest.approx(takes_s, abs=0.1)
        await city.settle()

    run(story)


def test_long_answers_beside_short_ones_suspect_nobody() -> None:
    """What is usual is one second; a few calls take a minute, here and elsewhere, while the others are served as ever."""

    async def story(clock: LoopClock) -> None:
        primary, other = Provider(answers(1.0)), Provider(answers(1.0))
        city = City([primary, other], clock)
        await calls(city, 100, 0.1, 600.0)
        primary.fate = other.fate = answers(60.0)
        long_ones = asyncio.ensure_future(calls(city, 10, 0.3, 600.0))
        await asyncio.sleep(3.5)
        primary.fate = answers(1.0)

        await calls(city, 140, 0.5, 600.0)

        assert [one.took_s for one in await long_ones] == pytest.approx([60.0] * 10, abs=0.01)
        assert len(other.asked_at) <= 3
        assert city.breaker_of(0).transitions["open"] == 0
        await city.settle()

    run(story)


@pytest.mark.parametrize("fate", [fails(503), fails(400)])
def test_one_that_is_moved_to_a_failing_target_still_waits(fate: Fate) -> None:
    """A failure elsewhere ends nothing; an error that would be the same everywhere is the answer."""

    async def story(clock: LoopClock) -> None:
        wakes = asyncio.Event()

        async def asleep() -> Script:
            await wakes.wait()
            return await answers(0.0)()

        city = City([Provider(asleep), Provider(fate)], clock)
        asyncio.get_running_loop().call_later(20.0, wakes.set)

        (told,) = await calls(city, 1, 1.0)

        assert (told.result, round(told.took_s)) in ((200, 20), (400, 15))
        await city.settle()

    run(story)


def test_clients_that_leave_leave_nothing_behind() -> None:
    """While their calls hang, while they move, and while others are answered."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(silence()), Provider(answers(3.0))], clock)
        tasks = []
        for number in range(120):
            own = {"deadline": clock.now + SDK_S, "deadline_is_callers": True}
            task = city.start(**own)
            tasks.append(task)
            asyncio.get_running_loop().call_later(0.37 * (number % 50), task.cancel)
            await asyncio.sleep(0.1)
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            await gone(task)
        await asyncio.sleep(0.1)

        assert len(asyncio.all_tasks()) == 1
        assert city.providers[0].in_flight == city.providers[1].in_flight == 0
        await city.settle()

    run(story)


def test_clients_that_leave_after_a_long_silence_are_evidence() -> None:
    """One after the other, each with the only call there: a target that is known to be quick, and hears them out no more."""

    async def story(clock: LoopClock) -> None:
        primary = Provider(answers(0.5))
        city = City([primary, Provider(answers(0.5))], clock)
        await calls(city, 40, 0.1)
        primary.fate = silence()
        for _ in range(5):
            task = city.start(deadline=clock.now + 600, deadline_is_callers=True)
            await asyncio.sleep(8.0)
            await gone(task)

        assert city.breaker_of(0).transitions["open"] == 1
        (told,) = await calls(city, 1, 1.0)
        assert told.took_s == pytest.approx(0.5, abs=0.01)
        await city.settle()

    run(story)


@pytest.mark.parametrize(("known", "deadline_s", "opens"), [(40, 30.0, True), (0, 30.0, True), (0, 5.0, False)])
def test_deadlines_missed_in_silence_are_evidence(known: int, deadline_s: float, opens: bool) -> None:
    """Unless it is not known that they were long enough: an impatient caller shuts out nobody."""

    async def story(clock: LoopClock) -> None:
        primary = Provider(answers(0.5))
        city = City([primary], clock)
        await calls(city, known, 0.1)
        primary.fate = silence()

        await calls(city, 6, deadline_s + 0.5, deadline_s)

        assert (city.breaker_of(0).transitions["open"] > 0) is opens
        await city.settle()

    run(story)


def test_where_cost_allows_one_attempt_nobody_is_moved() -> None:
    """What another attempt would cost is more than a call may."""

    async def story(clock: LoopClock) -> None:
        wakes = asyncio.Event()

        async def asleep() -> Script:
            await wakes.wait()
            return await answers(0.0)()

        rates = Rates(input_usd=1.0, output_usd=1.0, cached_input_usd=1.0)
        retries = Retries(max_usd_per_call=0.01)
        other = Provider(answers(0.5))
        city = City([Provider(asleep), other], clock, retries=retries, changes={"rates": rates})
        asyncio.get_running_loop().call_later(25.0, wakes.set)

        told = await calls(city, 20, 0.2)

        assert served(told) == 20
        assert not other.asked_at
        await city.settle()

    run(story)


def test_hedged_calls_leave_a_silent_target_too() -> None:
    """Where too little is known for a second attempt, or it is denied."""

    async def story(clock: LoopClock) -> None:
        retries = Retries(hedging=Hedging())
        primary = Provider(answers(0.5))
        city = City([primary, Provider(answers(0.5))], clock, retries=retries)
        await calls(city, 40, 0.1)
        primary.fate = silence()

        told = await calls(city, 100, 0.2)

        assert served(told) == 100
        assert max(one.took_s for one in told[60:]) <= 5.0
        await city.settle()

    run(story)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fallbacks", [0, 1])
def test_hedged_calls_find_the_third_when_both_are_silent(stream: bool, fallbacks: int) -> None:
    """The second attempt makes room, the first stays open meanwhile."""

    async def story(clock: LoopClock) -> None:
        providers = [Provider(good(stream)) for _ in range(3)]
        city = City(providers, clock, fallbacks, retries=Retries(hedging=Hedging()))
        await calls(city, 40, 0.1, stream=stream)
        providers[0].fate = providers[1].fate = silence()

        told = await calls(city, 100, 0.2, stream=stream)

        assert served(told) == 100
        await city.settle()

    run(story)


@pytest.mark.parametrize("fails_after_s", [2.0, 12.0])
def test_a_hedged_call_whose_first_attempt_fails_while_the_second_is_silent_finds_the_third(
    fails_after_s: float,
) -> None:
    """No later than a call does that is not hedged, and well before its deadline."""
    took_s = []
    for hedging in (Hedging(), None):

        async def story(clock: LoopClock, hedging: Hedging | None = hedging) -> None:
            providers = [Provider(answers(0.5)) for _ in range(3)]
            city = City(providers, clock, retries=Retries(hedging=hedging))
            await calls(city, 40, 0.1)
            providers[0].fate, providers[1].fate = fails(503, fails_after_s), silence()

            (told,) = await calls(city, 1, 1.0)

            assert (told.result, told.attempts) == (200, 3)
            took_s.append(told.took_s)
            await city.settle()

        run(story)

    assert took_s[0] <= took_s[1] < SDK_S


@pytest.mark.parametrize("late_s", [20.0, 16.0])
def test_a_hedged_call_with_nowhere_else_to_go_is_left_alone(late_s: float) -> None:
    """Two targets, both slow for once: neither attempt ends before the first answer."""

    async def story(clock: LoopClock) -> None:
        providers = [Provider(answers(0.5)), Provider(answers(0.5))]
        city = City(providers, clock, retries=Retries(hedging=Hedging()))
        await calls(city, 40, 0.1)
        providers[0].fate, providers[1].fate = answers(28.0), answers(late_s)

        (told,) = await calls(city, 1, 1.0)

        assert (told.result, told.attempts) == (200, 2)
        assert told.took_s == pytest.approx(late_s + 0.5, abs=0.1)
        await city.settle()

    run(story)


def test_the_trail_tells_of_both_attempts() -> None:
    """The first that was left, then the one that served."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(silence()), Provider(answers(0.5))], clock)
        await calls(city, 1, 1.0)

        account = city.bench.account
        assert [str(attempt) for attempt in account.call.attempts] == ["p0/m:timeout(15.6s)", "p1/m:200"]
        assert account.call.attempts[0].cost_usd is not None
        assert account.outcome == "ok"
        await city.settle()

    run(story)


def test_callers_with_keys_of_their_own_suspect_together() -> None:
    """Each has a gate of his own and too few calls; it is one target all the same."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(silence()), Provider(answers(0.5))], clock, accounts=["", ""])
        providers = city.bench.policy.providers
        assert isinstance(providers, dict)
        providers.update({name: replace(providers["p0"], name=name, api_key=None) for name in ("p0", "p1")})
        city.admission.install(city.bench.policy)
        tasks = []
        for number in range(100):
            own = {"deadline": clock.now + SDK_S, "deadline_is_callers": True}
            tasks.append(city.start(credential=b"Bearer k%d" % (number % 50), **own))
            await asyncio.sleep(0.2)
        told = await asyncio.gather(*tasks)

        assert len(city.admission.gates.names.callers["p0/m"]) == 50
        assert served(told) == 100
        assert max(one.took_s for one in told[60:]) <= 5.0
        await city.settle()

    run(story)


def test_a_reload_in_the_middle_changes_nothing() -> None:
    """While calls hang, while they move, and while the target is suspect."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(silence()), Provider(answers(2.0))], clock)
        loop = asyncio.get_running_loop()
        for number in range(200):
            loop.call_later(0.1 * number, city.admission.install, city.bench.policy)

        told = await calls(city, 100, 0.2)

        assert served(told) == 100
        await city.settle()

    run(story)


def test_those_that_move_keep_to_the_limits_of_where_they_go() -> None:
    """60 per minute there: they wait for their turn, and are refused there as little as anybody."""

    async def story(clock: LoopClock) -> None:
        other = Provider(answers(0.1))
        limits = [Limits(), Limits(requests_per_min=60.0, request_burst=1.0)]
        city = City([Provider(silence()), other], clock, changes={"limits": limits})

        told = await calls(city, 40, 0.2, 90.0)

        assert served(told) == 40
        gaps = [after - before for before, after in pairwise(other.asked_at)]
        assert min(gaps) >= 0.9
        await city.settle()

    run(story)


def test_the_third_is_tried_when_the_second_is_silent_too() -> None:
    """Whoever is on its way elsewhere leaves where nothing comes; the first stays open all the while."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(silence()), Provider(silence()), Provider(answers(0.5))], clock)

        told = await calls(city, 100, 0.2, 60.0)

        assert served(told) == 100
        again = await calls(city, 100, 0.2, 60.0)
        assert served(again) == 100
        assert max(one.took_s for one in again[60:]) <= 12.0  # a few that try one of the two again
        await city.settle()

    run(story)


def test_looking_at_many_calls_is_cheap() -> None:
    """What is usual is worked out once for all calls of a kind, and less often where there are very many calls."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(answers(10.0)), Provider(answers(10.0))], clock)
        counted = Counter[str]()
        look = city.bench.watch.look
        assert look is not None

        def counting(opens: OpenAttempts, now: float) -> None:
            counted["looks"] += 1
            counted["calls"] += len(opens)
            look(opens, now)

        city.bench.watch.look = counting
        with patch.object(Latency, "quantile", autospec=True, side_effect=Latency.quantile) as quantile:
            told = await calls(city, 3000, 0.0, 600.0)

        assert served(told) == 3000
        assert counted["looks"] <= 10
        assert quantile.call_count <= 4 * counted["looks"]
        await city.settle()

    run(story)


def test_the_script_is_a_stream() -> None:
    """What the stories above rest on."""
    assert streamed(KEEPALIVE).headers == (SSE,)
