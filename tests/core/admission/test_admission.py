"""Admission behind the pipeline: a 429 becomes a short wait, a refusal is early and honest, nothing is taken twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import TypeVar

import pytest

from gateway.core.call import Reply
from gateway.core.error_tables import Diagnosis
from gateway.core.errors import (
    GatewayError,
    NoTargetAvailable,
    QueueDeadlineExceeded,
    QueueFull,
    QuotaExhausted,
    RequestExceedsLimits,
    WaitTooLong,
)
from gateway.core.limits import reservation
from gateway.core.limits.bucket import Cost
from gateway.core.limits.limit_table import Limits, Style
from gateway.core.render import OPENAI
from gateway.core.snapshot import Counting
from gateway.core.types import Endpoint, ErrorClass, Outgoing, QueueBounds, Usage
from tests.support.flow import (
    ANSWER,
    SPEECH,
    Bench,
    Script,
    ScriptedAnswer,
    ScriptedUpstream,
    failed,
    streamed,
    whole,
)

NO = b'{"error": {"message": "no", "type": "x", "param": null, "code": "rate_limit_exceeded"}}'
QUOTA = b'{"error": {"message": "no", "type": "insufficient_quota", "param": null, "code": "insufficient_quota"}}'
TOO_LARGE = b'{"error": {"message": "Request too large: Limit 30000, Requested 60000.", "code": "rate_limit_exceeded"}}'
WORD = b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 30}}\n\n'
DONE = b"data: [DONE]\n\n"
PACED = Counting(learns=False, style=Style(request_burst=0.0))
"""No burst: 60 requests per minute are one each second."""
ONE_A_SECOND = Limits(requests_per_min=60)

Served = asyncio.Task[tuple[Reply, bytes]]
Error = TypeVar("Error", bound=GatewayError)


def slow_down(seconds: float) -> Script:
    return whole(NO, 429, (b"retry-after-ms", b"%d" % (seconds * 1000)))


class Answering(ScriptedUpstream):
    """Answers each call with what a function says; remembers when each came."""

    def __init__(self, answer: Callable[[Outgoing], Script], bench: Callable[[], Bench]) -> None:
        super().__init__()
        self._answer = answer
        self._bench = bench
        self.came_at: list[float] = []

    async def send(self, outgoing: Outgoing) -> ScriptedAnswer:
        self.sent.append(outgoing)
        self.came_at.append(self._bench().clock.now)
        await asyncio.sleep(0)
        return ScriptedAnswer(self._answer(outgoing))


async def idle() -> None:
    """Let everybody run until nobody can."""
    for _ in range(30):
        await asyncio.sleep(0)


async def pass_time(bench: Bench, seconds: float) -> None:
    """Move the clock, and let everybody act at the moment at which something happens."""
    clock = bench.clock
    ends_at = clock.now + seconds
    while True:
        await idle()
        due = [timer.when for timer in clock.timers if not timer.cancelled and timer.when <= ends_at]
        if not due:
            break
        clock.advance(max(0.0, min(due) - clock.now) + 1e-9)
    clock.advance(max(0.0, ends_at - clock.now))
    await idle()


async def start(bench: Bench, **changes: object) -> Served:
    """A client asks; until it is held, sent or answered."""
    task = asyncio.create_task(bench.serve(**changes))
    await idle()
    return task


def started(bench: Bench, bodies: Sequence[bytes]) -> list[Served]:
    return [asyncio.create_task(bench.serve(body=body)) for body in bodies]


def names(count: int, prefix: str = "") -> list[bytes]:
    """Bodies that can be told apart."""
    return [b'{"model":"m","messages":[],"user":"%b%d"}' % (prefix.encode(), number) for number in range(count)]


def headers(served: Served) -> dict[bytes, bytes]:
    return dict(served.result()[0].headers)


def levels(bench: Bench, name: str = "p0/m") -> dict[str, float]:
    return {row.name: row.level for row in bench.admission.gates.lines[name].gate.rows(bench.clock.now)}


def in_flight(bench: Bench) -> int:
    return sum(line.gate.in_flight for line in bench.admission.gates.lines.values())


def held(bench: Bench) -> int:
    return bench.admission.queue.occupancy.calls


async def refused(kind: type[Error], serving: Coroutine[object, object, object] | Served) -> Error:
    """Why a call is refused: at once, or before now."""
    task = serving if isinstance(serving, asyncio.Task) else asyncio.create_task(serving)
    for _ in range(30):
        if task.done():
            break
        await asyncio.sleep(0)
    assert task.done()
    with pytest.raises(kind) as refusal:
        await task
    return refusal.value


# -- A 429 becomes a short wait


async def test_a_429_is_waited_out() -> None:
    """Exactly as long as the provider asked; the client sees the answer, and the trail tells the rest."""
    bench = Bench([ScriptedUpstream(slow_down(5), whole())])
    task = await start(bench)

    await pass_time(bench, 4.999)
    assert len(bench.upstreams[0].sent) == 1
    assert held(bench) == 1
    await pass_time(bench, 0.001)

    assert task.result()[1] == ANSWER
    told = headers(task)
    assert told[b"x-gateway-attempts"] == b"p0/m:429(0.0s) p0/m:200"
    assert told[b"x-gateway-queue-ms"] == b"5000"
    assert float(told[b"x-gateway-overhead-ms"]) < 1
    assert [(lane, round(waited_s, 6)) for lane, waited_s in bench.meter.waits] == [("interactive", 5.0)]
    assert bench.account.outcome == "ok"
    assert (held(bench), in_flight(bench)) == (0, 0)


async def test_a_429_seen_again_and_again_is_waited_out_each_time() -> None:
    """Each time for as long as is asked, until the deadline; one wait is counted, not three."""
    bench = Bench([ScriptedUpstream(slow_down(5), slow_down(2), slow_down(1), whole())])
    task = await start(bench)

    await pass_time(bench, 8.1)

    assert task.result()[1] == ANSWER
    assert headers(task)[b"x-gateway-queue-ms"] == b"8000"
    assert len(bench.upstreams[0].sent) == 4


@pytest.mark.parametrize("was_held", [True, False])
async def test_a_refused_call_goes_back_to_the_head(was_held: bool) -> None:
    """Another one finds out how the target is; behind that it goes before all who came after it, held before or not."""
    bench = Bench(
        [ScriptedUpstream(whole(), slow_down(2), *[whole()] * 5)],
        limits=[Limits(requests_per_min=60)],
        counting=PACED,
    )
    bodies = names(5)
    if not was_held:
        bench.upstreams[0].scripts.pop(0)
    tasks = started(bench, bodies)

    await pass_time(bench, 20)

    refused_one = bodies[1 if was_held else 0]
    sent = [outgoing.body for outgoing in bench.upstreams[0].sent]
    others = [body for body in bodies if body != refused_one]
    assert [body for body in dict.fromkeys(sent) if body != refused_one] == others
    assert 2 <= sent[1 + was_held :].index(refused_one) + 1 <= 3  # it was asked to wait for two seconds
    assert all(task.done() for task in tasks)


async def test_a_refused_calls_wait_is_not_restarted() -> None:
    """Its age, for ageing and for the oldest of the queue, counts from its arrival."""
    bench = Bench([ScriptedUpstream(slow_down(5), slow_down(5), whole())])
    task = await start(bench)
    arrived_at = bench.clock.now

    await pass_time(bench, 7)

    line = bench.admission.gates.lines["p0/m"]
    assert line.waiters.oldest() == {("interactive", "web"): arrived_at}
    await pass_time(bench, 4)
    assert task.done()


async def test_several_refused_calls_keep_their_order() -> None:
    """The oldest first, whichever was refused first, behind the one who finds out for them."""
    bench = Bench(
        [ScriptedUpstream(*[slow_down(1)] * 3, *[whole()] * 6)], limits=[Limits(requests_per_min=60, max_concurrency=3)]
    )
    bodies = names(6)
    started(bench, bodies)

    await pass_time(bench, 20)

    assert [outgoing.body for outgoing in bench.upstreams[0].sent[3:]] == [bodies[3], *bodies[:3], *bodies[4:]]


async def test_nobody_sees_the_429s_of_a_provider_that_is_tighter_than_configured() -> None:
    """60 calls at once against a real limit of 5 a second, of which the config knows nothing: all are served."""
    bucket = [5.0, 1000.0]

    def answer(_: Outgoing) -> Script:
        now = bench.clock.now
        bucket[:] = min(5.0, bucket[0] + (now - bucket[1]) * 5), now
        if bucket[0] < 1 - 1e-6:
            return slow_down((1 - bucket[0]) / 5)
        bucket[0] -= 1
        return whole()

    bench = Bench([Answering(answer, lambda: bench)], limits=[Limits(requests_per_min=6000)])
    tasks = started(bench, names(60))

    await pass_time(bench, 25)

    assert [task.result()[0].status for task in tasks] == [200] * 60


async def test_during_a_pause_nobody_asks() -> None:
    """Fifty wait, and more come: not one attempt before its end."""
    bench = Bench([Answering(lambda _: slow_down(5) if bench.clock.now < 1005 else whole(), lambda: bench)])
    upstream = bench.upstreams[0]
    assert isinstance(upstream, Answering)
    tasks = started(bench, names(50))
    await idle()
    first = len(upstream.sent)

    await pass_time(bench, 2.5)
    tasks += started(bench, names(50, "later"))
    await pass_time(bench, 2.499)
    assert len(upstream.sent) == first
    await pass_time(bench, 2)

    assert all(task.result()[0].status == 200 for task in tasks)


async def test_a_stream_that_is_let_in_opens_the_gate_at_once() -> None:
    """After a refusal one call asks alone; when its answer begins the others go, they do not wait for its end."""
    ending = asyncio.Event()
    bench = Bench(
        [ScriptedUpstream(slow_down(1), slow_down(1), streamed(WORD, ending, DONE), *[streamed(WORD, DONE)] * 2)]
    )
    probe = await start(bench, stream=True)
    await pass_time(bench, 1.5)
    others = [await start(bench, stream=True) for _ in range(2)]

    await pass_time(bench, 2)

    assert len(bench.upstreams[0].sent) == 5
    assert sum([task.done() for task in (probe, *others)]) == 2
    ending.set()
    await asyncio.gather(probe, *others)


# -- Who leaves


async def test_a_held_call_whose_client_leaves_costs_nothing() -> None:
    """No upstream call, no place in the queue; it is nobody's failure."""
    bench = Bench([ScriptedUpstream(whole(), whole())], limits=[ONE_A_SECOND], counting=PACED)
    await bench.serve()
    bench.meter.accounts.clear()
    task = await start(bench)
    assert (held(bench), bench.admission.queue.occupancy.bytes) == (1, len(bench.call().request.body))

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await pass_time(bench, 10)

    assert (held(bench), in_flight(bench), len(bench.upstreams[0].sent)) == (0, 0, 1)
    assert bench.account.outcome == "client_gone"
    assert bench.account.call.held is None


async def test_a_client_that_leaves_just_when_its_turn_has_come_gives_it_back() -> None:
    """Granted and cancelled in the same turn of the loop: nothing is sent, the next one goes instead."""
    bench = Bench([ScriptedUpstream(whole(), whole())], limits=[ONE_A_SECOND], counting=PACED)
    await bench.serve()
    first, second = [await start(bench, body=body) for body in names(2)]

    bench.clock.advance(1)  # its turn has come, but it does not know yet
    assert (held(bench), in_flight(bench)) == (1, 1)
    first.cancel()
    await idle()

    assert first.cancelled()
    assert second.result()[1] == ANSWER
    assert bench.upstreams[0].sent[1].body == names(2)[1]
    assert in_flight(bench) == 0


async def test_a_thousand_who_leave_at_once_leave_nothing() -> None:
    """Every counter is back at zero, and no timer runs."""
    bench = Bench([ScriptedUpstream(whole())], limits=[ONE_A_SECOND], counting=PACED)
    tasks = started(bench, names(1000))
    await idle()
    held_before = held(bench)

    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await pass_time(bench, 100)

    assert held_before == 30  # what fits into 30 seconds; the others were refused at once
    queue = bench.admission.queue
    assert (queue.occupancy.calls, queue.occupancy.bytes, in_flight(bench), sum(queue.occupancy.depth.values())) == (
        0,
        0,
        0,
        0,
    )
    assert [timer for timer in bench.clock.timers if not timer.cancelled] == []
    assert len(bench.upstreams[0].sent) == 1


# -- Deadlines


@pytest.mark.parametrize(
    ("ahead", "deadline_s", "outcome"),
    [
        pytest.param(0, 0.5, "served", id="it fits now"),
        pytest.param(1, 1.5, "served", id="it fits in a second"),
        pytest.param(10, 10.5, "served", id="just in time"),
        pytest.param(1, 0.5, "refused", id="a second is too long"),
        pytest.param(10, 9.5, "refused", id="just too late"),
        pytest.param(40, 30, "refused", id="the lane's own deadline"),
    ],
)
async def test_what_fits_is_served_and_what_does_not_is_refused_at_once(
    ahead: int, deadline_s: float, outcome: str
) -> None:
    """One call a second, so many before it: never held in vain, and no time passes before a refusal."""
    bench = Bench([ScriptedUpstream(*[whole()] * 50)], limits=[ONE_A_SECOND], counting=PACED)
    started(bench, names(ahead)) if ahead < 30 else started(bench, names(ahead, "x"))
    await idle()

    task = await start(bench, deadline=bench.clock.now + deadline_s)
    was_refused = task.done() and task.exception() is not None
    await pass_time(bench, deadline_s)

    assert was_refused == (outcome == "refused")
    if was_refused:
        error = task.exception()
        assert isinstance(error, WaitTooLong)
        assert (error.status, error.code, error.limit) == (503, "queue_wait_exceeds_deadline", "p0/m requests_per_min")
    else:
        assert task.result()[1] == ANSWER


async def test_each_lane_is_told_its_own_prospects() -> None:
    """Behind twenty batch calls a batch call with five seconds is refused, and a live user with one and a half is held."""
    bench = Bench([ScriptedUpstream(*[whole()] * 30)], limits=[ONE_A_SECOND], counting=PACED)
    for body in names(20):
        await start(bench, body=body, lane="batch", deadline=bench.clock.now + 600)

    await refused(WaitTooLong, bench.serve(lane="batch", deadline=bench.clock.now + 5))
    user = await start(bench, deadline=bench.clock.now + 1.5)
    await pass_time(bench, 1)

    assert user.result()[1] == ANSWER


async def test_whoever_comes_back_as_told_is_served() -> None:
    """300 of 700 calls are refused; each comes back when it was told to, with the same patience: 99 % are served."""
    bench = Bench([Answering(lambda _: whole(), lambda: bench)], limits=[Limits(requests_per_min=600)], counting=PACED)

    async def at(moment: float) -> None:
        event = asyncio.Event()
        bench.clock.call_at(moment, event.set)
        await event.wait()

    async def client(body: bytes) -> str:
        try:
            await bench.serve(body=body)
        except WaitTooLong as first:
            await at(bench.clock.now + (first.retry_after_s or 0.0))
            try:
                await bench.serve(body=body)
            except GatewayError as second:
                return f"refused twice: {second.code}"
            return "served later"
        return "served"

    clients = [asyncio.create_task(client(body)) for body in names(700)]
    await pass_time(bench, 120)

    outcomes = [task.result() for task in clients]
    late = [outcome for outcome in outcomes if outcome != "served"]
    assert len(late) >= 300
    assert late.count("served later") >= 0.99 * len(late)
    upstream = bench.upstreams[0]
    assert isinstance(upstream, Answering)
    assert upstream.came_at[-1] - upstream.came_at[0] <= 1.05 * 70  # and no capacity is kept idle for them


async def test_those_who_never_come_back_make_nobodys_wait_endless() -> None:
    """A client that ignores what it is told does not push the others' turns into next week."""
    bench = Bench([ScriptedUpstream(*[whole()] * 50)], limits=[ONE_A_SECOND], counting=PACED)
    started(bench, names(40))
    await idle()

    errors = [await refused(WaitTooLong, bench.serve()) for _ in range(5000)]

    assert max(error.retry_after_s or inf for error in errors) < 600


async def test_a_deadline_that_passes_in_the_queue_is_told_at_its_moment() -> None:
    """A pause that grew after the call was held: 504, not a moment late, with how long it has waited."""
    bench = Bench([ScriptedUpstream(slow_down(20))])
    grants = [reservation.reserve(bench.admission.gates.lines["p0/m"].gate, Cost(), bench.clock.now) for _ in range(1)]
    task = await start(bench)
    await pass_time(bench, 1)
    assert grants[0] is not None
    reservation.refused(grants[0], Diagnosis(ErrorClass.RATE_LIMIT_REQUESTS, delay_s=60), [], bench.clock.now, 0.0)

    await pass_time(bench, 28.999)
    assert not task.done()
    await pass_time(bench, 0.001)

    error = await refused(QueueDeadlineExceeded, task)
    assert (error.status, error.code, error.should_retry) == (504, "queue_deadline_exceeded", True)
    assert "30.0 s" in error.message
    assert bench.account.status == 504


async def test_a_callers_deadline_leaves_time_for_the_answer() -> None:
    """Where it says by when the answer has to begin, a turn at the last moment is too late."""
    bench = Bench([ScriptedUpstream(*[whole()] * 9)], limits=[ONE_A_SECOND], counting=PACED)
    gate = bench.admission.gates.lines["p0/m"].gate
    await bench.serve()
    for _ in range(40):
        gate.health.whole_answer.observe(0.5, bench.clock.now)

    await refused(WaitTooLong, bench.serve(deadline=bench.clock.now + 1.4, deadline_is_callers=True))
    task = await start(bench, deadline=bench.clock.now + 1.4)
    await pass_time(bench, 1.1)

    assert task.result()[1] == ANSWER


# -- Fallbacks


def fallback_bench(first: Sequence[Script], second: Sequence[Script], **changes: object) -> Bench:
    """A model with one target, and a fallback."""
    return Bench([ScriptedUpstream(*first), ScriptedUpstream(*second)], fallbacks=1, **changes)  # type: ignore[arg-type]  # fields by name


async def test_a_short_pause_is_waited_for() -> None:
    """The primary is preferred for two seconds."""
    bench = fallback_bench([slow_down(1.9), whole()], [])
    task = await start(bench)

    await pass_time(bench, 2)

    assert headers(task)[b"x-gateway-target"] == b"p0/m"


async def test_a_long_pause_is_not() -> None:
    """The fallback serves at once."""
    bench = fallback_bench([slow_down(2.1)], [whole()])

    reply, _ = await bench.serve()

    assert dict(reply.headers)[b"x-gateway-attempts"] == b"p0/m:429(0.0s) p1/m:200"
    assert dict(reply.headers)[b"x-gateway-queue-ms"] == b"0"


async def test_the_preference_is_the_lanes() -> None:
    """A batch call waits a minute for the primary."""
    bench = fallback_bench([slow_down(59), whole()], [])
    task = await start(bench, lane="batch", deadline=bench.clock.now + 600)

    await pass_time(bench, 60)

    assert headers(task)[b"x-gateway-target"] == b"p0/m"


async def test_the_preference_ends_when_it_turns_out_to_have_been_too_hopeful() -> None:
    """Two pauses, each short enough, but not together: with the second refusal the fallback serves."""
    bench = fallback_bench([slow_down(1.5), slow_down(1)], [whole()])
    task = await start(bench)

    await pass_time(bench, 1.6)

    assert headers(task)[b"x-gateway-target"] == b"p1/m"


async def test_a_call_that_waits_for_its_primary_widens_in_time() -> None:
    """The primary is held by a slot of which nobody knows how long: after two seconds the fallback serves."""
    never = asyncio.Event()
    bench = fallback_bench([streamed(WORD, never)], [whole()], limits=[Limits(max_concurrency=1)])
    first = await start(bench, stream=True)
    task = await start(bench)

    await pass_time(bench, 1.999)
    assert not task.done()
    await pass_time(bench, 0.001)

    assert headers(task)[b"x-gateway-target"] == b"p1/m"
    first.cancel()


async def test_a_fallback_that_was_only_thought_to_be_free_is_waited_for() -> None:
    """Its slot is in use, and nobody knows for how long: the call goes when it frees, not when the primary does."""
    ending = asyncio.Event()
    bench = fallback_bench(
        [whole(), slow_down(20)],
        [streamed(WORD, ending, DONE), whole()],
        limits=[Limits(), Limits(max_concurrency=1)],
    )
    line = bench.admission.gates.lines["p0/m"]
    await bench.serve()
    grant = reservation.reserve(line.gate, Cost(), bench.clock.now)
    assert grant is not None
    reservation.refused(grant, Diagnosis(ErrorClass.RATE_LIMIT_REQUESTS, delay_s=20), [], bench.clock.now, 0.0)
    first = await start(bench, stream=True)
    task = await start(bench)
    assert not task.done()

    await pass_time(bench, 1)
    ending.set()
    await first
    await idle()

    assert headers(task)[b"x-gateway-target"] == b"p1/m"


async def test_a_call_takes_whichever_frees_first() -> None:
    """Both late: it stands in both lines, and leaves both."""
    bench = fallback_bench([slow_down(20), whole()], [slow_down(10), whole()])
    task = await start(bench)

    await pass_time(bench, 10)

    assert headers(task)[b"x-gateway-attempts"] == b"p0/m:429(0.0s) p1/m:429(0.0s) p1/m:200"
    assert held(bench) == 0


async def test_the_sum_of_two_targets_is_used() -> None:
    """Three a second here, one there: forty calls take ten seconds."""
    bench = Bench(
        [ScriptedUpstream(*[whole()] * 40), ScriptedUpstream(*[whole()] * 40)],
        limits=[Limits(requests_per_min=180), ONE_A_SECOND],
        counting=PACED,
    )
    tasks = started(bench, names(40))

    await pass_time(bench, 10)

    assert all(task.done() for task in tasks)
    assert len(bench.upstreams[1].sent) == pytest.approx(10, abs=1)


# -- Quotas, and what never fits


async def test_a_spent_quota_fails_over_until_its_reset() -> None:
    """At once and without a further attempt; after the reset the primary is used again."""
    bench = fallback_bench([whole(QUOTA, 429), whole()], [whole(), whole()])

    for expected in (b"p0/m:429(0.0s) p1/m:200", b"p0/m:skipped(quota_spent) p1/m:200"):
        reply, _ = await bench.serve()
        assert dict(reply.headers)[b"x-gateway-attempts"] == expected
    await pass_time(bench, 1800)
    reply, _ = await bench.serve()

    assert dict(reply.headers)[b"x-gateway-attempts"] == b"p0/m:200"


async def test_a_spent_quota_is_never_held_for() -> None:
    """The one who finds out gets the provider's own words, the next ones are told at once when to come back."""
    bench = Bench([ScriptedUpstream(whole(QUOTA, 429))])

    reply, body = await bench.serve()
    error = await refused(QuotaExhausted, bench.serve())

    assert (reply.status, body) == (429, QUOTA)
    assert (error.status, error.code, error.should_retry) == (503, "quota_exhausted", False)
    assert error.retry_after_s == pytest.approx(1800)
    assert len(bench.upstreams[0].sent) == 1


@pytest.mark.parametrize("fallbacks", [0, 1])
async def test_those_who_wait_when_the_quota_ends_do_not_wait_for_its_reset(fallbacks: int) -> None:
    """They use the fallback, or are told at once."""
    bench = Bench(
        [ScriptedUpstream(slow_down(1), whole(QUOTA, 429)), *[ScriptedUpstream(*[whole()] * 3)] * fallbacks],
        fallbacks=fallbacks,
        limits=[Limits(requests_per_min=60)],
        counting=PACED,
    )
    tasks = [await start(bench, lane="batch", deadline=bench.clock.now + 600) for _ in range(3)]

    await pass_time(bench, 1.1)

    if fallbacks:
        assert [headers(task)[b"x-gateway-target"] for task in tasks] == [b"p1/m"] * 3
    else:
        assert tasks[1].result()[1] == QUOTA  # the first was refused before, and does not ask again while others wait
        for task in (tasks[0], tasks[2]):
            await refused(QuotaExhausted, task)
    assert held(bench) == 0


async def test_two_spent_quotas_end_the_wait_for_both() -> None:
    """Whoever stands in two lines is told when the last of them is shut."""
    bench = fallback_bench(
        [slow_down(10), whole(QUOTA, 429)],
        [slow_down(20), whole(QUOTA, 429)],
        limits=[ONE_A_SECOND] * 2,
        counting=PACED,
    )
    first, second = [await start(bench, deadline=bench.clock.now + 300) for _ in range(2)]

    await pass_time(bench, 21)

    assert first.result()[0].status == 429  # refused by both for its rate: the other one asks, and hears of the quotas
    await refused(QuotaExhausted, second)


async def test_a_breaker_that_was_open_for_a_moment_is_no_spent_quota() -> None:
    """Whoever waited there when it opened, and has not been told yet when it closes, is served."""
    bench = Bench([ScriptedUpstream(slow_down(10), whole())])
    task = await start(bench, lane="batch", deadline=bench.clock.now + 600)
    assert held(bench) == 1

    bench.admission.health.force("p0/m", "open")
    bench.clock.advance(0)  # the queue hears of it
    assert held(bench) == 0
    bench.admission.health.force("p0/m", "closed")
    await pass_time(bench, 20)

    assert task.result()[0].status == 200


async def test_a_call_above_every_limit_is_told_so() -> None:
    """413 with its estimate and the limit; nothing is sent or held."""
    bench = Bench([ScriptedUpstream()], limits=[Limits(tokens_per_min=1000)])

    error = await refused(RequestExceedsLimits, bench.serve(max_tokens=5000))

    assert (error.status, error.code, error.should_retry) == (413, "request_exceeds_limits", False)
    assert error.limit == "p0/m tokens_per_min"
    assert "50" in error.message


async def test_a_target_that_can_never_serve_the_call_is_skipped() -> None:
    """The larger fallback serves at once, without an attempt at the other."""
    bench = fallback_bench([], [whole()], limits=[Limits(tokens_per_min=1000)])

    reply, _ = await bench.serve(max_tokens=5000)

    assert dict(reply.headers)[b"x-gateway-attempts"] == b"p0/m:skipped(tokens_per_min) p1/m:200"


async def test_a_provider_that_says_never_is_believed() -> None:
    """No pause for the others, no second attempt of this one."""
    bench = fallback_bench([whole(TOO_LARGE, 429), whole()], [whole()])

    reply, _ = await bench.serve()
    other, _ = await bench.serve()

    assert dict(reply.headers)[b"x-gateway-attempts"] == b"p0/m:429(0.0s) p1/m:200"
    assert dict(other.headers)[b"x-gateway-attempts"] == b"p0/m:200"


async def test_a_limit_that_shrinks_below_a_held_call_ends_its_wait() -> None:
    """A reload: it could wait for ever."""
    bench = Bench([ScriptedUpstream(*[whole()] * 3)], limits=[Limits(tokens_per_min=3000)])
    await bench.serve(max_tokens=2500)
    task = await start(bench, max_tokens=2500, deadline=bench.clock.now + 300)

    reload(bench, Limits(tokens_per_min=1000))
    await idle()

    error = await refused(RequestExceedsLimits, task)
    assert error.status == 413


# -- Settled exactly once


def token_bench(*scripts: Script) -> Bench:
    return Bench(
        [ScriptedUpstream(*scripts)], limits=[Limits(600, 6000, max_concurrency=2)], counting=Counting(learns=False)
    )


def now_left(bench: Bench) -> tuple[float, float, float]:
    left = levels(bench)
    return left["requests_per_min"], left["tokens_per_min"], left["concurrency"]


async def test_a_success_is_settled_to_what_was_used() -> None:
    """1,010 tokens as the provider counts, though 500 more were reserved."""
    bench = token_bench(whole())

    await bench.serve(max_tokens=10)

    assert now_left(bench) == (599, 6000 - 1010, 2)


async def test_a_stream_is_settled_when_it_ends() -> None:
    """Until then its slot and its estimate are taken."""
    bench = token_bench(streamed(WORD, USAGE, DONE))
    reply = await bench.pipeline.handle(bench.call(stream=True, max_tokens=10))
    assert now_left(bench)[2] == 1
    assert reply.chunks is not None

    async for _ in reply.chunks:
        pass
    assert now_left(bench) == (599, 6000 - 20 - 10, 2)
    await reply.close()
    bench.admission.outcomes.settle(bench.account.call, bench.account.call.attempts[0], Usage(9, 9))

    assert now_left(bench) == (599, 6000 - 20 - 10, 2)


@pytest.mark.parametrize(
    ("script", "left"),
    [
        pytest.param(failed(), (600, 6000, 2), id="never sent: nothing is charged"),
        pytest.param(failed(ErrorClass.SERVER_ERROR), (600, 6000, 2), id="not sent either"),
        pytest.param(whole(b"{}", 500), (599, 6000, 2), id="an error counts as a request"),
        pytest.param(whole(b'{"error": {}}', 400), (599, 6000, 2), id="and so does one of the caller's"),
        pytest.param(whole(b"<html>", 200), (599, 6000, 2), id="and an answer that is none"),
    ],
)
async def test_a_failure_gives_back_what_it_did_not_use(script: Script, left: tuple[float, ...]) -> None:
    """Its slot in any case."""
    bench = token_bench(script)

    with suppress(NoTargetAvailable):
        await bench.serve()

    assert now_left(bench) == left


async def test_a_client_that_leaves_during_the_attempt_frees_the_slot() -> None:
    """What it used nobody knows: the estimate stays."""
    bench = token_bench(streamed(asyncio.Event()))
    task = await start(bench, stream=True, max_tokens=10)
    before = now_left(bench)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert now_left(bench) == (before[0], before[1], 2)
    assert in_flight(bench) == 0


async def test_a_client_that_leaves_during_the_stream_is_charged_once() -> None:
    """The tokens that came, by estimate; the slot is free."""
    bench = token_bench(streamed(WORD, asyncio.Event()))
    reply = await bench.pipeline.handle(bench.call(stream=True, max_tokens=10))
    assert reply.chunks is not None
    await anext(reply.chunks)

    await reply.close()
    await reply.close()

    assert bench.account.outcome == "client_gone"
    requests, tokens, slots = now_left(bench)
    assert (requests, slots, in_flight(bench)) == (599, 2, 0)
    assert 6000 - 50 <= tokens < 6000


async def test_a_freed_slot_goes_to_the_next_at_once() -> None:
    """`max_concurrency` holds calls instead of refusing them; the end of one lets the next one in."""
    events = [asyncio.Event() for _ in range(3)]
    bench = Bench(
        [ScriptedUpstream(*[streamed(WORD, event, DONE) for event in events])], limits=[Limits(max_concurrency=1)]
    )
    tasks = [await start(bench, stream=True) for _ in events]

    for number, event in enumerate(events):
        assert len(bench.upstreams[0].sent) == number + 1
        event.set()
        await idle()

    assert all(task.done() for task in tasks)


# -- Lanes and tenants


async def test_lower_lanes_leave_the_reserve_to_live_users() -> None:
    """Of ten, one stays for interactive and critical calls where one has come lately."""
    for lane in ("interactive", "critical"):
        bench = Bench([ScriptedUpstream(*[whole()] * 12)], limits=[Limits(requests_per_min=10)])
        await bench.serve(lane=lane)
        for _ in range(8):
            await bench.serve(lane="batch")
        batch = await start(bench, lane="batch", deadline=bench.clock.now + 600)
        assert not batch.done()

        await bench.serve(lane=lane)
        await pass_time(bench, 12.1)  # one for the reserve, one for it

        assert batch.done()


async def test_a_live_user_passes_a_batch_backlog() -> None:
    """However many batch calls wait, the next turn is his."""
    bench = Bench([ScriptedUpstream(*[whole()] * 30)], limits=[ONE_A_SECOND], counting=PACED)
    for body in names(20):
        await start(bench, body=body, lane="batch", deadline=bench.clock.now + 600)
    user = await start(bench, body=b'{"user":"live"}')
    critical = await start(bench, body=b'{"user":"critical"}', lane="critical")

    await pass_time(bench, 2)

    assert [outgoing.body for outgoing in bench.upstreams[0].sent[1:]] == [b'{"user":"critical"}', b'{"user":"live"}']
    assert user.done()
    assert critical.done()


async def test_nobody_passes_those_who_wait() -> None:
    """A small call does not slip through while a large one of its lane waits for its turn."""
    bench = Bench([ScriptedUpstream(*[whole()] * 5)], limits=[Limits(tokens_per_min=6000)])
    await bench.serve(max_tokens=10)
    large = await start(bench, max_tokens=5500)

    small = await start(bench, max_tokens=10)

    assert (large.done(), small.done()) == (False, False)
    await pass_time(bench, 30)
    assert [outgoing.body for outgoing in bench.upstreams[0].sent] == [bench.call().request.body] * 3
    assert large.done()


async def test_a_call_that_comes_back_is_not_refused_for_those_behind_it() -> None:
    """It was let in: neither a full queue nor a long one turns it away, it is the next to go."""
    bench = Bench(
        [ScriptedUpstream(slow_down(1), *[whole()] * 20)],
        limits=[ONE_A_SECOND],
        counting=PACED,
        bounds=QueueBounds(max_calls=10),
    )
    first = asyncio.create_task(bench.serve(deadline=bench.clock.now + 3))
    others = started(bench, names(10))

    await pass_time(bench, 2)

    assert first.result()[1] == ANSWER
    await pass_time(bench, 10)
    assert all(task.result()[1] == ANSWER for task in others)


async def test_a_noisy_tenant_delays_itself_only() -> None:
    """A hundred of its calls wait; each of the other's goes in the second turn at the latest."""
    bench = Bench([ScriptedUpstream(*[whole()] * 200)], limits=[Limits(requests_per_min=600)], counting=PACED)
    for body in names(100, "noisy"):
        await start(bench, body=body, tenant="noisy")
    for body in names(10, "quiet"):
        await start(bench, body=body, tenant="quiet")

    await pass_time(bench, 2.3)

    sent = [bytes(outgoing.body) for outgoing in bench.upstreams[0].sent]
    assert sum(b"quiet" in body for body in sent) == 10


async def test_a_full_queue_refuses_and_makes_room_for_the_more_urgent() -> None:
    """503 with a time to come back; a batch call that has to go is told so."""
    bench = Bench(
        [ScriptedUpstream(*[whole()] * 5)], limits=[ONE_A_SECOND], counting=PACED, bounds=QueueBounds(max_calls=1)
    )
    await bench.serve()
    batch = await start(bench, lane="batch", deadline=bench.clock.now + 600)

    full = await refused(QueueFull, bench.serve(lane="batch", deadline=bench.clock.now + 600))
    user = await start(bench)
    displaced = await refused(QueueFull, batch)
    await pass_time(bench, 1)

    assert (full.status, full.code, full.should_retry) == (503, "queue_full", True)
    assert full.retry_after_s is not None
    assert 1 <= full.retry_after_s <= 30
    assert displaced.retry_after_s == 1.0
    assert user.done()


# -- Reloads


def reload(bench: Bench, *limits: Limits) -> None:
    """Other limits for the targets, as an edited config brings them."""
    bench.limits = limits
    bench.policy = replace(bench.policy, models={"m": bench._model()})
    bench.admission.install(bench.policy)


async def test_other_bounds_are_in_force_at_once() -> None:
    """For whoever comes next; nobody is sent away for them."""
    bench = Bench([ScriptedUpstream(*[whole()] * 5)], limits=[ONE_A_SECOND], counting=PACED)
    tasks = started(bench, names(4))
    await idle()

    bench.admission.install(replace(bench.policy, queue=QueueBounds(max_calls=2)))

    await refused(QueueFull, bench.serve())
    await pass_time(bench, 4)
    assert all(task.done() for task in tasks)


async def test_a_higher_limit_is_in_force_at_once() -> None:
    """Those who wait go as fast as it allows, without being held anew."""
    bench = Bench([ScriptedUpstream(*[whole()] * 20)], limits=[ONE_A_SECOND], counting=PACED)
    tasks = started(bench, names(20))
    await pass_time(bench, 1)
    assert len(bench.upstreams[0].sent) == 2

    reload(bench, Limits(requests_per_min=600))
    await pass_time(bench, 1.8)

    assert all(task.done() for task in tasks)


async def test_a_limit_that_is_taken_away_lets_all_go() -> None:
    """At once."""
    bench = Bench([ScriptedUpstream(*[whole()] * 20)], limits=[ONE_A_SECOND], counting=PACED)
    tasks = started(bench, names(20))
    await idle()

    reload(bench, Limits())
    await idle()

    assert all(task.done() for task in tasks)


async def test_a_pause_survives_a_reload() -> None:
    """And who waits stays in his place."""
    bench = Bench([ScriptedUpstream(*[slow_down(5)] * 2, *[whole()] * 2)], limits=[Limits(requests_per_min=600)])
    tasks = [await start(bench) for _ in range(2)]

    reload(bench, Limits(requests_per_min=6000))
    await pass_time(bench, 4.9)
    assert len(bench.upstreams[0].sent) == 2  # the second one has looked whether the first was refused alone
    await pass_time(bench, 0.2)

    assert all(task.done() for task in tasks)


async def test_a_target_that_was_removed_lives_until_its_calls_have_gone() -> None:
    """Those who wait for it are served by it; then it is forgotten, with the next reload at the latest."""
    bench = Bench([ScriptedUpstream(*[whole()] * 3)], limits=[ONE_A_SECOND], counting=PACED)
    tasks = started(bench, names(3))
    await idle()
    gone = replace(bench.policy, models={})

    bench.admission.install(gone)
    assert set(bench.admission.gates.lines) == {"p0/m"}
    await pass_time(bench, 2)
    assert all(task.done() for task in tasks)
    bench.admission.install(gone)

    assert bench.admission.gates.lines == {}
    assert bench.admission.queue.lines == {}


async def test_a_fallback_that_was_removed_still_serves_those_who_count_on_it() -> None:
    """A call that is held for its primary keeps its policy's fallbacks, though nobody stands there yet."""
    bench = fallback_bench(
        [streamed(WORD, asyncio.Event())], [slow_down(1), whole()], limits=[Limits(max_concurrency=1)]
    )
    first = await start(bench, stream=True)
    task = await start(bench)
    model = bench.policy.models["m"]

    bench.admission.install(replace(bench.policy, models={"m": replace(model, plan=model.plan[:1])}))
    await pass_time(bench, 3.1)

    assert headers(task)[b"x-gateway-attempts"] == b"p0/m:skipped(concurrency) p1/m:429(0.0s) p1/m:200"
    bench.admission.install(replace(bench.policy, models={"m": replace(model, plan=model.plan[:1])}))
    assert set(bench.admission.gates.lines) == {"p0/m"}
    first.cancel()


async def test_a_call_of_an_earlier_policy_still_finds_its_target() -> None:
    """It lives and dies on the policy it came with."""
    bench = Bench([ScriptedUpstream(whole())])
    call = bench.call()

    bench.admission.install(replace(bench.policy, models={}))
    reply = await bench.pipeline.handle(call)

    assert reply.status == 200
    assert in_flight(bench) == 0


# -- Wildcards


def wildcard(bench: Bench) -> None:
    """The target serves whatever model is asked for."""
    model = bench.policy.models["m"]
    target = replace(model.targets[0], name="p0/*", model=None)
    bench.policy = replace(bench.policy, models={"m": replace(model, targets=(target,), plan=(target,))})
    bench.admission.install(bench.policy)


async def test_each_model_of_a_wildcard_has_limits_of_its_own() -> None:
    """As providers count; their names are the clients' words and no labels."""
    bench = Bench([ScriptedUpstream(*[whole()] * 9)], limits=[ONE_A_SECOND], counting=PACED)
    wildcard(bench)
    gates = bench.admission.gates

    for name in ("a", "b", "c"):
        await bench.serve(model_name=name)
    held_one = await start(bench, model_name="a")

    assert not held_one.done()
    assert {name for name in gates.lines if gates.names.is_named(name)} == {"p0/a", "p0/b", "p0/c"}
    assert not gates.names.is_named("p0/*")
    held_one.cancel()


async def test_a_wildcards_models_follow_its_config() -> None:
    """New numbers reach them, and they go with it."""
    bench = Bench([ScriptedUpstream(*[whole()] * 9)], limits=[ONE_A_SECOND])
    wildcard(bench)
    await bench.serve(model_name="a")

    bench.limits = [Limits(requests_per_min=120)]
    bench.policy = replace(bench.policy, models={"m": bench._model()})
    wildcard(bench)
    (row,) = bench.admission.gates.lines["p0/a"].gate.rows(bench.clock.now)
    assert (row.capacity, row.level) == (120, 59)
    bench.admission.install(replace(bench.policy, models={}))

    assert bench.admission.gates.lines == {}
    assert not bench.admission.gates.names.is_named("p0/a")


async def test_a_model_that_the_config_names_is_a_clients_word_no_more() -> None:
    """It keeps its level, and has a label from then on."""
    bench = Bench([ScriptedUpstream(whole())], limits=[ONE_A_SECOND])
    wildcard(bench)
    await bench.serve(model_name="m")
    assert bench.admission.gates.names.is_named("p0/m")

    models = {"m": bench._model(), "others": bench.policy.models["m"]}
    bench.admission.install(replace(bench.policy, models=models))

    assert not bench.admission.gates.names.is_named("p0/m")
    assert levels(bench) == {"requests_per_min": 59}


# -- What is told


async def test_a_held_stream_can_be_told_its_place() -> None:
    """Its position, and when it will be served as far as can be told; else whom it waits for."""
    bench = Bench([ScriptedUpstream(*[whole()] * 9)], limits=[ONE_A_SECOND], counting=PACED)
    await bench.serve()
    calls = [bench.call(stream=True) for _ in range(3)]
    tasks = [asyncio.create_task(bench.pipeline.handle(call)) for call in calls]
    await idle()

    assert [bench.admission.waiting.describe(call) for call in calls] == [
        b"queued position=%d eta_ms=%d" % (number, number * 1000) for number in (1, 2, 3)
    ]
    bench.admission.gates.lines["p0/m"].gate.pauses.quota_until = bench.clock.now + 99
    assert bench.admission.waiting.describe(calls[2]) == b"queued position=3"
    assert bench.admission.waiting.describe(bench.account.call) == b"waiting for p0/m"
    for task in tasks:
        task.cancel()


async def test_other_endpoints_are_not_admitted() -> None:
    """Files and the like are of another kind: they pass, and count nowhere."""
    bench = Bench([ScriptedUpstream(whole())], limits=[ONE_A_SECOND], counting=PACED)
    files = Endpoint("passthrough", "/files", OPENAI, request="any")
    await bench.admission.enter(bench.call())

    assert await bench.admission.enter(bench.call(endpoint=files)) is not None
    assert in_flight(bench) == 1


async def test_a_call_without_tokens_waits_for_requests_only() -> None:
    """Speech is not charged for its body, however long."""
    bench = Bench([ScriptedUpstream()], limits=[Limits(tokens_per_min=10)])
    call = bench.call(endpoint=SPEECH, body=b'{"input": "%b"}' % (b"x" * 1000))

    assert await bench.admission.enter(call) is not None
    assert levels(bench) == {"tokens_per_min": 10}
