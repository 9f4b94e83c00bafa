"""The loop over attempts: what happens between two of them, and that what they book is given back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.core.balancing import BUILT_IN_RULES, Action, ClassRule, Retries
from gateway.core.call import Call
from gateway.core.errors import GatewayError, NoTargetAvailable
from gateway.core.health.detector import BreakerRules
from gateway.core.limits.limit_table import Limits
from gateway.core.render import OPENAI
from gateway.core.retry import Attempt
from gateway.core.types import Endpoint, ErrorClass, Phase, UpstreamFailed
from tests.rows import rows
from tests.support.faults import leftovers
from tests.support.flow import Bench, Script, ScriptedUpstream, failed, whole
from tests.support.outage import City, Provider, answers, fails, gone, refuses, streams
from tests.support.virtual import LoopClock, run

DEFAULT = Retries()
ANY = Endpoint("passthrough", "/x", OPENAI, answer="binary", request="any")
ERROR = b'{"error": {"message": "no", "type": "x", "param": null, "code": "y"}}'
PAUSE = (b"retry-after-ms", b"2000")


def slowly(fate: Script, after_s: float) -> Provider:
    async def later() -> Script:
        await asyncio.sleep(after_s)
        return fate

    return Provider(later)


# The ledger.


async def test_the_ledger_tells_of_every_attempt() -> None:
    """Target, times, how far it came, and what it deserved."""
    bench = Bench([ScriptedUpstream(failed()), ScriptedUpstream(whole(ERROR, 500)), ScriptedUpstream(whole())])

    await bench.serve()

    one, two, three = bench.account.call.attempts
    assert (one.target.name, one.error_class, one.phase) == ("p0/m", ErrorClass.CONNECTION, Phase.NOTHING_SENT)
    assert (two.target.name, two.status, two.error_class, two.phase) == (
        "p1/m",
        500,
        ErrorClass.SERVER_ERROR,
        Phase.ANSWERED,
    )
    assert (three.status, three.error_class) == (200, None)
    assert all(attempt.ended_at is not None for attempt in (one, two, three))


async def test_the_error_names_every_attempt_and_the_last_failure() -> None:
    """Whoever reads it knows where the call was and why it ended."""
    bench = Bench([ScriptedUpstream(failed()), ScriptedUpstream(failed(ErrorClass.TIMEOUT))])

    with pytest.raises(GatewayError) as error:
        await bench.serve()

    assert "p0/m:connection" in error.value.message
    assert "p1/m:timeout" in error.value.message
    assert "refused" in error.value.message


def test_time_between_attempts_is_not_ours() -> None:
    """Backoffs are no overhead of the gateway."""

    async def story(clock: LoopClock) -> None:
        city, began_at = City([Provider(fails(500, 0.1))], clock), clock.now
        await city.call()

        account = city.bench.account
        assert account.call.backoff_s == pytest.approx(clock.now - began_at - 4 * 0.1)
        assert account.overhead_s == pytest.approx(0.0, abs=1e-6)
        await city.settle()

    run(story)


# What is not tried again.


async def test_a_call_of_an_unknown_kind_is_sent_once() -> None:
    """Nobody knows whether it may be sent twice."""
    bench = Bench([ScriptedUpstream(whole(ERROR, 500)), ScriptedUpstream(whole())], retries=DEFAULT)

    reply, body = await bench.serve(endpoint=ANY)

    assert (reply.status, body) == (500, ERROR)
    assert [len(upstream.sent) for upstream in bench.upstreams] == [1, 0]


@pytest.mark.parametrize("body", [b'{"detail": "no"}', b"plain text", b"<html>no</html>"])
async def test_a_final_error_that_clients_cannot_read_passes_as_it_is(body: bytes) -> None:
    """It is the provider's own word on the request."""
    bench = Bench([ScriptedUpstream(whole(body, 422))])

    reply, got = await bench.serve()

    assert (reply.status, got) == (422, body)
    assert (b"x-should-retry", b"false") in reply.headers


async def test_errors_say_whether_another_try_helps() -> None:
    """After a provider's own trouble, with the time; not where it would be paid twice, or be the same again."""
    with pytest.raises(NoTargetAvailable) as passing:
        await Bench([ScriptedUpstream(failed())]).serve()
    with pytest.raises(NoTargetAvailable) as paid:
        await Bench([ScriptedUpstream(failed(ErrorClass.TIMEOUT))]).serve()
    assert passing.value.should_retry is True
    assert 0.5 <= (passing.value.retry_after_s or 0.0) <= 1.0
    assert (paid.value.should_retry, paid.value.retry_after_s) == (False, None)

    for status, word, advice in [
        (500, None, b"true"),
        (500, b"false", b"false"),
        (409, None, b"true"),
        (409, b"false", b"false"),
        (400, b"true", b"true"),
    ]:
        header = [] if word is None else [(b"x-should-retry", word)]
        reply, _ = await Bench([ScriptedUpstream(whole(ERROR, status, *header))]).serve()
        headers = dict(reply.headers)
        assert (headers[b"x-should-retry"], b"retry-after" in headers) == (advice, advice == b"true")

    with pytest.raises(NoTargetAvailable) as unreadable:
        await Bench([ScriptedUpstream(whole(b"<html>", 500, (b"x-should-retry", b"false")))]).serve()
    assert (unreadable.value.should_retry, unreadable.value.retry_after_s) == (False, None)

    reply, _ = await Bench([ScriptedUpstream(whole(ERROR, 503, (b"retry-after", b"7")))]).serve()
    assert [value for name, value in reply.headers if name.startswith(b"retry-after")] == [b"7"]


async def test_rules_may_differ_from_the_built_in_ones() -> None:
    """An operator whose provider says 404 for what another has: next_target."""
    rules = {**BUILT_IN_RULES, ErrorClass.NOT_FOUND: ClassRule(Action.NEXT_TARGET)}
    upstreams = [ScriptedUpstream(whole(ERROR, 404)), ScriptedUpstream(whole())]

    reply, _ = await Bench(upstreams, retries=replace(DEFAULT, by_class=rules)).serve()

    assert reply.status == 200


async def test_a_rate_limit_may_be_left_for_another_target() -> None:
    """`rate_limit: next_target` waits for nothing."""
    rules = {**BUILT_IN_RULES, ErrorClass.RATE_LIMIT_REQUESTS: ClassRule(Action.NEXT_TARGET)}
    upstreams = [ScriptedUpstream(whole(ERROR, 429, PAUSE)), ScriptedUpstream(whole())]
    bench = Bench(upstreams, retries=replace(DEFAULT, by_class=rules))

    reply, _ = await bench.serve()

    assert reply.status == 200
    assert bench.meter.waits == []


# Between two attempts.


def test_a_breaker_that_opens_during_the_backoff_sends_the_call_elsewhere() -> None:
    """What was decided is out of date."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(fails(500)), Provider(answers())], clock, fallbacks=1)
        task = city.start()
        await asyncio.sleep(0.06)
        city.breaker_of().trip("for the test", clock.now, 0.0)

        assert (await task).result == 200
        assert [len(provider.asked_at) for provider in city.providers] == [1, 1]
        await city.settle()

    run(story)


def test_a_target_that_is_drained_during_the_backoff_gets_nothing_more() -> None:
    """Without another target the client gets the failure that there was."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(fails(500))], clock)
        task = city.start()
        await asyncio.sleep(0.06)
        city.breaker_of().force("drained", clock.now)

        assert (await task).result == 500
        assert city.attempts == 1
        await city.settle()

    run(story)


def test_a_retry_waits_for_a_pause_and_goes_then() -> None:
    """Another call was told to stay away for two seconds meanwhile; the failed one has the time."""

    async def story(clock: LoopClock) -> None:
        provider = Provider(fails(500))
        city = City([provider], clock)
        task = city.start()
        await asyncio.sleep(0.06)
        city.gate().leave_alone(2.0, clock.now)
        provider.fate = answers()

        told = await task
        assert told.result == 200
        assert told.took_s == pytest.approx(2.06 + 0.05)
        await city.settle()

    run(story)


@pytest.mark.parametrize("leaves_after_s", [0.2, 1.0, 2.08])
def test_a_retry_that_waits_gives_back_what_it_has_booked(leaves_after_s: float) -> None:
    """When its client leaves before or just when it goes."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(fails(500))], clock)
        task = city.start()
        await asyncio.sleep(0.06)
        city.gate().leave_alone(2.0, clock.now)
        await asyncio.sleep(leaves_after_s - 0.06)

        await gone(task)

        assert city.gate().health.retries.in_flight == 0
        if leaves_after_s < 2.0:
            assert city.gate().health.tokens.level(500.0) == 500.0
        await city.settle()

    run(story)


def test_a_retry_that_expires_in_the_queue_gives_back_what_it_has_booked() -> None:
    """Its turn did not come before its deadline."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(fails(500))], clock, changes={"limits": [Limits(max_concurrency=1)]})
        task = city.start(deadline=clock.now + 1.0)
        await asyncio.sleep(0.06)
        city.providers[0].fate = answers(5.0)
        blocker = city.start()
        await asyncio.gather(task, blocker)

        assert city.gate().health.retries.in_flight == 0
        await city.settle()

    run(story)


def test_a_booked_retry_that_goes_elsewhere_keeps_the_books_straight() -> None:
    """It waits for two targets that it has met, and goes to the one that frees first."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(fails(500)), Provider(fails(500))], clock)
        task = city.start()
        await asyncio.sleep(0.12)
        city.gate(0).leave_alone(5.0, clock.now)
        city.providers[1].fate = answers()

        assert (await task).result == 200
        assert len(city.providers[1].asked_at) == 2
        await city.settle()

    run(story)


async def test_a_retry_that_is_not_made_is_booked_no_more() -> None:
    """Its client leaves while it waits for its turn; the target's tokens are there for others."""
    bench = Bench([ScriptedUpstream()], retries=DEFAULT, limits=[Limits(max_concurrency=1)])
    admission = bench.admission
    other, call = bench.call(), bench.call()
    (target,) = call.route.model.targets
    failed = Attempt(target, 0.0, error_class=ErrorClass.SERVER_ERROR, phase=Phase.ANSWERED)
    call.attempts.append(failed)
    running = await admission.enter(other)

    for _ in range(2):
        retry = admission.retries.book(call, failed, target)
        assert retry is not None
        entering = asyncio.ensure_future(admission.enter(call, [target], failed, retry))
        await asyncio.sleep(0)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
    admission.outcomes.settle(other, running, None)

    assert leftovers(bench) == []
    assert admission.gates.lines["p0/m"].gate.health.tokens.level(500.0) == 500.0


def test_a_booking_does_not_follow_the_call_to_another_target() -> None:
    """The fallback's stream is no retry, and takes nothing from the budget of the target that has failed."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(fails(500)), Provider(streams(lasts_s=60.0))], clock, fallbacks=1)
        task = city.start(stream=True)
        await asyncio.sleep(0.06)
        city.gate().leave_alone(2.0, clock.now)
        await asyncio.sleep(0.1)
        city.breaker_of().trip("for the test", clock.now, 0.0)
        await asyncio.sleep(1)

        assert city.providers[1].asked_at
        assert city.gate().health.retries.in_flight == 0
        assert (await task).result == 200
        await city.settle()

    run(story)


def test_connections_that_carried_nothing_take_no_retry_budget() -> None:
    """Nobody has worked on them: a restart of a provider is survived by all at once."""

    async def story(clock: LoopClock) -> None:
        provider = Provider(refuses())
        city = City([provider], clock, breaker=BreakerRules(is_enabled=False))
        tasks = [city.start() for _ in range(200)]
        await asyncio.sleep(0.002)
        provider.fate = answers()
        told = await asyncio.gather(*tasks)

        assert {one.result for one in told} == {200}
        assert city.gate().health.tokens.level(500.0) == 500.0
        await city.settle()

    run(story)


def test_only_one_answer_is_ever_given() -> None:
    """Once a stream has begun nothing is tried again, though it breaks at once."""

    async def story(clock: LoopClock) -> None:
        async def breaks_off() -> Script:
            event = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
            return Script(200, ((b"content-type", b"text/event-stream"),), [event])

        city = City([Provider(breaks_off), Provider(streams())], clock)
        await city.call(stream=True)

        assert [len(provider.asked_at) for provider in city.providers] == [1, 0]
        assert city.bench.account.outcome == "stream_interrupted"
        await city.settle()

    run(story)


def test_the_callers_deadline_ends_an_attempt_but_blames_nobody() -> None:
    """A thousand impatient clients open no breaker."""

    async def story(clock: LoopClock) -> None:
        city = City([slowly(whole(), 3.0)], clock)

        def impatient() -> asyncio.Task[object]:
            return city.start(deadline=clock.now + 0.5, deadline_is_callers=True)

        await asyncio.gather(*[impatient() for _ in range(100)])

        assert set(city.results()) == {"deadline_exceeded"}
        assert city.breaker_of().state == "closed"
        assert city.bench.meter.moves == []
        await city.settle()

    run(story)


def test_an_upstream_defect_ends_one_call_only() -> None:
    """A bug of ours is a 500 with an account, and takes nothing with it."""

    async def story(clock: LoopClock) -> None:
        async def defect() -> Script:
            raise ZeroDivisionError

        city = City([Provider(defect)], clock)
        assert (await city.call()).result == "internal_error"
        city.providers[0].fate = answers()
        assert (await city.call()).result == 200
        await city.settle()

    run(story)


def test_the_failure_of_one_phase_is_judged_once() -> None:
    """However often the loop looks at it, and however often the call is tried."""

    async def story(clock: LoopClock) -> None:
        async def timed_out() -> Script:
            raise UpstreamFailed(ErrorClass.TIMEOUT, Phase.SENT, "slow")

        city = City([Provider(timed_out)], clock)
        await city.call()

        assert city.attempts == 3
        calls, _ = city.breaker_of().outcomes_in_window(city.clock.monotonic())
        assert calls == 1  # what a call tries again says nothing new of the target
        await city.settle()

    run(story)


def test_calls_keep_nothing_of_their_attempts() -> None:
    """A settled call holds no grant and no booking."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(fails(500)), Provider(answers())], clock)
        await city.call()
        call: Call = city.bench.account.call

        assert [one.reservation for one in call.attempts] == [None, None]
        assert call.held is None
        assert call.settled
        await city.settle()

    run(story)


@rows(
    ("status", "word", "tries", "result"),
    [
        (500, "false", 1, 500),
        (503, "false", 1, 503),
        (429, "false", 1, 429),
        (400, "true", 2, 200),
        (404, "true", 2, 200),
        (409, "false", 1, 409),
        (409, "", 2, 200),
        (409, "true", 2, 200),
        (401, "true", 1, 502),
    ],
)
def test_a_provider_says_whether_to_try_again(status: int, word: str, tries: int, result: int) -> None:
    """`x-should-retry` goes before the class of the error, as it does for SDKs; a 409 without it is tried again."""

    async def story(clock: LoopClock) -> None:
        header = [(b"x-should-retry", word.encode())] if word else []
        provider = Provider(fails(status, 0.01, *header))
        city = City([provider], clock)
        asyncio.get_running_loop().call_later(0.02, setattr, provider, "fate", answers())
        told = await city.call(deadline=clock.now + 60, deadline_is_callers=True)

        assert (told.result, len(provider.asked_at)) == (result, tries)
        await city.settle()

    run(story)


def test_a_target_that_forbids_another_try_leaves_the_call_to_others() -> None:
    """The word is about that target."""

    async def story(clock: LoopClock) -> None:
        providers = [Provider(fails(503, 0.01, (b"x-should-retry", b"false"))), Provider(answers())]
        city = City(providers, clock, fallbacks=1)

        assert (await city.call()).result == 200
        assert [len(one.asked_at) for one in providers] == [1, 1]
        await city.settle()

    run(story)


# Where the next try goes.


@rows(("answered", "paused_s", "soonest_s"), [(1, 20.0, 0.5), (2, 20.0, 0.7), (0, 20.0, 0.3), (1, 0.04, 0.2)])
def test_the_next_try_goes_where_it_can_go_soonest(answered: int, paused_s: float, soonest_s: float) -> None:
    """The first target is paused, and the fallback answers so many 503s: it is tried again before the pause is over."""

    async def story(clock: LoopClock) -> None:
        fallback = Provider(answers())
        city = City([Provider(answers()), fallback], clock, fallbacks=1)

        async def stumbles() -> Script:
            fallback.fate = answers() if len(fallback.asked_at) >= answered else stumbles
            return await (fails(503, 0.01) if answered else answers())()

        fallback.fate = stumbles
        await city.call()
        city.gate().leave_alone(paused_s + 2.5, clock.now)
        await asyncio.sleep(2.5 if paused_s < 1 else 0.0)
        told = await city.call(deadline=clock.now + 60, deadline_is_callers=True)

        assert told.result == 200
        assert told.took_s < soonest_s
        await city.settle()

    run(story)
