"""Hedging: a second attempt where the first is late, the loser gone without a trace but in the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.balancing import Backoff, Hedging, Retries
from gateway.core.call import Reply
from gateway.core.errors import InvalidRequest
from gateway.core.health.target_health import UNHEALTHY
from gateway.core.limits import reservation
from gateway.core.limits.limit_table import Limits
from gateway.core.limits.target_limits import Gate
from gateway.core.racing import CANCELLED
from gateway.core.retry import Attempt
from gateway.core.types import ErrorClass, Outgoing, Phase, UpstreamFailed
from tests.support.flow import ANSWER, JSON, SSE, Bench, Script, ScriptedAnswer, ScriptedUpstream

ERROR = b'{"error": {"message": "no", "type": "x", "param": null, "code": "y"}}'
FIRST = b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n'
REST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
USUAL_S = 1.0
HEDGE = Retries(by_cost=(), hedging=Hedging(min_samples=20), backoff=Backoff(has_jitter=False, base_s=0.0))
Serving = asyncio.Task[tuple[Reply, bytes]]


@dataclass
class Wire(ScriptedUpstream):
    """An upstream whose answers begin when the test says so; it counts what was given up before that."""

    name: bytes
    opens: list[asyncio.Event] = field(default_factory=list)
    sent: list[Outgoing] = field(default_factory=list)
    scripts: list[Script] = field(default_factory=list)
    dropped: int = 0

    async def send(self, outgoing: Outgoing) -> ScriptedAnswer:
        is_open, script = asyncio.Event(), self._script(outgoing)
        self.sent.append(outgoing)
        self.opens.append(is_open)
        self.scripts.append(script)
        try:
            await is_open.wait()
        except BaseException:
            self.dropped += 1
            raise
        if script.fails is not None:
            raise script.fails
        return ScriptedAnswer(script)

    def answer(self, status: int = 200, body: bytes | None = None) -> None:
        """Its last request is answered now."""
        script = self.scripts[-1]
        script.status = status
        if body is not None or status != 200:
            script.headers, script.chunks = (JSON,), [body or ERROR]
        self.opens[-1].set()

    def fail(self, error_class: ErrorClass = ErrorClass.CONNECTION) -> None:
        """Its last request comes to nothing now."""
        self.scripts[-1].fails = UpstreamFailed(error_class, Phase.SENT, "gone")
        self.opens[-1].set()

    def _script(self, outgoing: Outgoing) -> Script:
        if b'"stream":true' in bytes(outgoing.body):
            return Script(200, (SSE,), [FIRST % self.name, REST])
        return Script(200, (JSON,), [ANSWER.replace(b'"1"', b'"%b"' % self.name)])


class Track:
    """Two targets, a call on its way, and what is usual at both."""

    def __init__(self, *, wires: int = 2, known: int = 30, stream: bool = False, **options: object) -> None:
        self.wires = [Wire(b"w%d" % number) for number in range(wires)]
        settings = {"retries": HEDGE, **options}
        self.bench = Bench(list(self.wires), **settings)  # type: ignore[arg-type]  # fields by name
        self.stream = stream
        for gate in self.gates:
            for _ in range(known):
                times = gate.health.first_byte if stream else gate.health.whole_answer
                times.observe(USUAL_S, self.bench.clock.now)

    @property
    def gates(self) -> list[Gate]:
        call, gates = self.bench.call(), self.bench.admission.gates
        return [gates.line(target, call).gate for target in self.bench.policy.models["m"].plan]

    @property
    def ledger(self) -> list[Attempt]:
        return self.bench.account.call.attempts

    async def begin(self, **changes: object) -> Serving:
        """A call begins; its first attempt is sent."""
        if self.stream:
            changes = {"stream": True, "body": b'{"model":"m","stream":true}', **changes}
        serving = asyncio.ensure_future(self.bench.serve(**changes))
        await turns()
        return serving

    async def late(self, seconds: float = 1.5) -> None:
        """Time passes."""
        self.bench.clock.advance(seconds)
        await turns()

    def nothing_is_left(self) -> None:
        """Every grant, permit and retry is back, and no task but the test's runs."""
        for gate in self.gates:
            assert gate.in_flight == 0
            assert gate.health.retries.in_flight == 0
            assert gate.health.breaker.is_clear
        assert len(asyncio.all_tasks()) == 1


async def turns(count: int = 12) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_first_attempt_in_time_is_alone() -> None:
    """Before it is late nobody else is asked."""
    track = Track()

    serving = await track.begin()
    await track.late(0.8)
    track.wires[0].answer()
    reply, body = await serving

    assert (reply.status, body) == (200, ANSWER.replace(b'"1"', b'"w0"'))
    assert not track.wires[1].sent
    assert [str(attempt) for attempt in track.ledger] == ["p0/m:200"]
    assert all(timer.cancelled for timer in track.bench.clock.timers)
    track.nothing_is_left()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_late_first_attempt_is_overtaken(stream: bool) -> None:
    """The second, at another target, wins; the first is closed at once, and is in the ledger under its own time."""
    track = Track(stream=stream)

    serving = await track.begin()
    await track.late()
    track.bench.clock.advance(0.5)
    track.wires[1].answer()
    reply, body = await serving

    headers = dict(reply.headers)
    assert b"w1" in body
    assert b"w0" not in body
    assert track.wires[0].dropped == 1
    assert headers[b"x-gateway-target"] == b"p1/m"
    assert headers[b"x-gateway-attempts"] == b"p0/m:cancelled(2.0s) p1/m:200"
    assert track.bench.account.outcome == "ok"
    assert track.bench.account.time_to_first_byte_s == pytest.approx(0.5)
    track.nothing_is_left()


async def test_both_are_paid_for() -> None:
    """The winner by its usage, the loser by estimate; the sum of what came to nothing is told."""
    track = Track()

    serving = await track.begin()
    await track.late()
    track.wires[1].answer()
    await serving

    loser, winner = track.ledger
    assert winner.cost_usd == pytest.approx(1000 * 2e-6 + 10 * 8e-6)
    assert loser.cost_usd is not None
    assert track.bench.account.retries_usd == pytest.approx(loser.cost_usd) != 0.0
    assert track.bench.account.estimated_retries_usd == track.bench.account.retries_usd
    assert track.bench.account.cost_usd == winner.cost_usd


async def test_both_count_against_their_limits() -> None:
    """What the loser took of its target's limit stays taken."""
    track = Track(limits=[Limits(requests_per_day=10)] * 2)

    serving = await track.begin()
    await track.late()
    track.wires[1].answer()
    await serving

    levels = [row.level for gate in track.gates for row in gate.rows(track.bench.clock.now)]
    assert levels == pytest.approx([9.0, 9.0], abs=0.1)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_first_may_still_win(stream: bool) -> None:
    """Whoever answers first serves; then it is the second that is closed."""
    track = Track(stream=stream)

    serving = await track.begin()
    await track.late()
    track.wires[0].answer()
    reply, body = await serving

    assert b"w0" in body
    assert b"w1" not in body
    assert track.wires[1].dropped == 1
    assert dict(reply.headers)[b"x-gateway-target"] == b"p0/m"
    assert [attempt.error_class for attempt in track.ledger] == [CANCELLED, None]
    track.nothing_is_left()


@pytest.mark.parametrize("how", ["error", "nothing"])
async def test_a_second_that_fails_ends_nothing(how: str) -> None:
    """The first goes on, and serves."""
    track = Track()

    serving = await track.begin()
    await track.late()
    track.wires[1].answer(500) if how == "error" else track.wires[1].fail()
    await turns()
    assert not serving.done()
    track.wires[0].answer()
    reply, body = await serving

    assert (reply.status, b"w0" in body) == (200, True)
    assert track.wires[0].dropped == 0
    assert [attempt.target.name for attempt in track.ledger] == ["p1/m", "p0/m"]
    assert track.ledger[0].error_class in (ErrorClass.SERVER_ERROR, ErrorClass.CONNECTION)
    track.nothing_is_left()


@pytest.mark.parametrize("mute", [0, 1])
async def test_one_that_cannot_be_told_the_call_ends_nothing(mute: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not tried, whichever it is: the other one answers."""
    track = Track()
    may_refuse = asyncio.Event()

    async def refuse(outgoing: Outgoing) -> ScriptedAnswer:
        await may_refuse.wait()
        raise InvalidRequest("It has no word for that.")

    monkeypatch.setattr(track.wires[mute], "send", refuse)
    serving = await track.begin()
    await track.late()
    may_refuse.set()
    await turns()
    track.wires[1 - mute].answer()
    _, body = await serving

    assert body == ANSWER.replace(b'"1"', b'"w%d"' % (1 - mute))
    assert [attempt.target.name for attempt in track.ledger] == [f"p{1 - mute}/m"]
    track.nothing_is_left()


async def test_a_first_that_fails_ends_nothing() -> None:
    """The second goes on, and serves; the first's failure is the breaker's business as ever."""
    track = Track()

    serving = await track.begin()
    await track.late()
    track.wires[0].answer(500)
    await turns()
    track.wires[1].answer()
    _, body = await serving

    assert b"w1" in body
    assert [attempt.error_class for attempt in track.ledger] == [ErrorClass.SERVER_ERROR, None]
    assert [gate.health.breaker.outcomes_in_window(track.bench.clock.now)[0] for gate in track.gates] == [1, 1]
    track.nothing_is_left()


@pytest.mark.parametrize("first_to_fail", [0, 1])
async def test_after_two_failures_the_loop_goes_on(first_to_fail: int) -> None:
    """Both are in the ledger, each once, and the next attempt is made as after any failure."""
    track = Track(wires=3)

    serving = await track.begin()
    await track.late()
    track.wires[first_to_fail].answer(503)
    await turns()
    track.wires[1 - first_to_fail].fail()
    await turns()
    track.wires[2].answer()
    _, body = await serving

    assert b"w2" in body
    assert [attempt.target.name for attempt in track.ledger] == [
        f"p{first_to_fail}/m",
        f"p{1 - first_to_fail}/m",
        "p2/m",
    ]
    assert [len(wire.sent) for wire in track.wires] == [1, 1, 1]
    track.nothing_is_left()


async def test_a_retry_is_not_hedged() -> None:
    """After a failure there is one attempt at a time, however late it is."""
    track = Track(wires=3)

    serving = await track.begin()
    track.wires[0].fail()
    await turns()
    await track.late()
    assert [len(wire.sent) for wire in track.wires] == [1, 1, 0]
    track.wires[1].answer()
    await serving

    track.nothing_is_left()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failed_before", [None, 0, 1])
async def test_a_client_that_leaves_closes_both(stream: bool, failed_before: int | None) -> None:
    """Whoever is still on the way is given up, and it is nobody's failure."""
    track = Track(stream=stream)

    serving = await track.begin()
    await track.late()
    if failed_before is not None:
        track.wires[failed_before].answer(500)
        await turns()
    serving.cancel()
    await asyncio.wait([serving])

    left = {0, 1} - {failed_before}
    assert serving.cancelled()
    assert [wire.dropped for wire in track.wires] == [int(number in left) for number in (0, 1)]
    assert track.bench.account.outcome == "client_gone"
    assert len(track.ledger) == 2
    assert all(attempt.ended_at is not None for attempt in track.ledger)
    assert sum(gate.health.breaker.failure_rate(track.bench.clock.now) for gate in track.gates) == len(
        {failed_before} - {None}
    )
    track.nothing_is_left()


async def test_the_reason_of_a_cancellation_is_kept() -> None:
    """A process that goes down is not a client that left."""
    track = Track()

    serving = await track.begin()
    await track.late()
    serving.cancel("shutdown")
    await asyncio.wait([serving])

    assert track.bench.account.outcome == "shutdown"


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling_at_any_moment_leaves_nothing(stream: bool) -> None:
    """At whichever await the client leaves: one account, no grant, no task, no open answer."""
    for count in range(40):
        track = Track(stream=stream)
        serving = await track.begin()
        track.bench.clock.advance(1.5)
        for turn in range(count):
            if turn == 8:
                track.wires[1].answer()
            if turn == 9:
                track.wires[0].answer()
            await asyncio.sleep(0)
        serving.cancel()
        await asyncio.wait([serving])

        assert len(track.bench.meter.accounts) == 1
        track.nothing_is_left()
        for wire in track.wires:
            began = [script for script, is_open in zip(wire.scripts, wire.opens, strict=True) if is_open.is_set()]
            assert wire.dropped or all(script.closed for script in began)


@given(course=st.lists(st.sampled_from(["first", "second", "fail first", "fail second", "time", "turn"]), max_size=8))
@settings(deadline=None)
def test_whatever_happens_when_the_account_is_closed_once(course: Sequence[str]) -> None:
    """In any order of answers, failures and time: one account, every grant back, the last attempt is the one that served."""
    asyncio.run(_run(course))


async def _run(course: Sequence[str]) -> None:
    track = Track(wires=2, retries=replace(HEDGE, attempts=2))
    serving = await track.begin()
    for step in course:
        wire = track.wires["second" in step]
        if step == "turn":
            await turns(1)
        elif step == "time":
            track.bench.clock.advance(1.1)
        elif wire.sent:
            wire.fail() if "fail" in step else wire.answer()
    for _ in range(4):
        await turns()
        for wire in track.wires:
            if wire.sent:
                wire.answer()
    await asyncio.wait([serving])

    served = track.ledger[-1]
    if serving.exception() is None and track.bench.account.outcome == "ok":
        reply, body = serving.result()
        assert dict(reply.headers)[b"x-gateway-target"].decode() == served.target.name
        assert b"w" + served.target.name[1:2].encode() in body
    assert sum(attempt.error_class is None for attempt in track.ledger) <= 1
    assert len(track.ledger) <= 2
    track.nothing_is_left()


async def test_no_second_before_enough_is_known() -> None:
    """What is late cannot be said after 19 answers."""
    track = Track(known=19)

    serving = await track.begin()
    await track.late(25)

    assert not track.wires[1].sent
    track.wires[0].answer()
    await serving


async def test_no_second_without_its_name_in_the_policy() -> None:
    """It is off unless the set of retries says so; then an attempt has no timer and no task of its own."""
    track = Track(retries=replace(HEDGE, hedging=None))

    serving = await track.begin()
    assert len(asyncio.all_tasks()) == 2
    assert not track.bench.clock.timers
    await track.late(25)

    assert not track.wires[1].sent
    track.wires[0].answer()
    await serving


async def test_never_sooner_than_the_policy_says() -> None:
    """However quick the target usually is."""
    track = Track(retries=replace(HEDGE, hedging=Hedging(at_least_s=4.0)))

    serving = await track.begin()
    await track.late(3.9)
    assert not track.wires[1].sent
    await track.late(0.2)
    assert track.wires[1].sent

    track.wires[0].answer()
    await serving


@pytest.mark.parametrize("spent", ["budget", "tokens", "money", "key_budget"])
async def test_a_spent_budget_denies_a_second(spent: str) -> None:
    """Retries in flight, retry tokens, the call's money, the key's day: the first goes on alone, and the reason is counted."""
    retries = {
        "budget": replace(HEDGE, budget_percent_of_active=0.0, budget_min_concurrent=0),
        "tokens": replace(HEDGE, tokens=4.0),
        "money": replace(HEDGE, max_usd_per_call=1e-9),
        "key_budget": HEDGE,
    }[spent]
    track = Track(retries=retries)
    changes: dict[str, object] = {}
    if spent == "key_budget":
        changes["key"] = replace(track.bench.call().route.key, budget_usd_per_day=1e-9, allow_overspend=True)

    serving = await track.begin(**changes)
    await track.late()

    assert not track.wires[1].sent
    assert track.bench.meter.denied == [spent]
    track.wires[0].answer()
    reply, _ = await serving
    assert b"x-gateway-retry-denied" not in dict(reply.headers)
    assert track.ledger[0].cost_usd == pytest.approx(1000 * 2e-6 + 10 * 8e-6)


async def test_money_counts_the_attempt_that_is_on_its_way() -> None:
    """A call that may cost one attempt and a half has no second."""
    track = Track()
    one_usd = track.bench.admission.costs.usd(track.bench.call(), track.bench.policy.models["m"].plan[0])
    assert one_usd is not None
    dear = Track(retries=replace(HEDGE, max_usd_per_call=one_usd * 1.5))

    serving = await dear.begin()
    await dear.late()

    assert not dear.wires[1].sent
    dear.wires[0].answer()
    await serving


async def test_no_second_where_one_attempt_is_all() -> None:
    """A second attempt is an attempt."""
    track = Track(retries=replace(HEDGE, attempts=1))

    serving = await track.begin()
    await track.late()

    assert not track.wires[1].sent
    track.wires[0].answer()
    await serving


async def test_a_second_never_waits() -> None:
    """Where nobody has room at the moment it would go, it does not go later either."""
    track = Track(limits=[Limits(max_concurrency=1), Limits(max_concurrency=1)])

    serving = await track.begin()
    other = track.bench.admission
    taken = reservation.reserve(track.gates[1], track.gates[1].cost_of(0, None), track.bench.clock.now)
    assert taken is not None
    await track.late()
    assert other.queue.occupancy.calls == 0
    taken.cancel(track.bench.clock.now)
    await track.late(20)

    assert [len(wire.sent) for wire in track.wires] == [1, 0]
    track.wires[0].answer()
    await serving


async def test_the_same_target_where_nobody_else_is_free() -> None:
    """Another connection to it may be quicker."""
    track = Track(limits=[Limits(), Limits(max_concurrency=1)])

    serving = await track.begin()
    taken = reservation.reserve(track.gates[1], track.gates[1].cost_of(0, None), track.bench.clock.now)
    assert taken is not None
    await track.late()
    assert [len(wire.sent) for wire in track.wires] == [2, 0]
    track.wires[0].answer()
    await serving
    taken.cancel(track.bench.clock.now)

    assert [str(attempt) for attempt in track.ledger] == ["p0/m:cancelled(1.5s)", "p0/m:200"]
    track.nothing_is_left()


async def test_a_second_is_no_probe() -> None:
    """A target whose breaker is not closed is left to first attempts."""
    track = Track()
    now = track.bench.clock.now
    track.gates[1].health.breaker.trip("it is ill", now, 0.5)
    track.bench.clock.advance(30)

    serving = await track.begin()
    await track.late()

    assert [len(wire.sent) for wire in track.wires] == [2, 0]
    track.wires[0].answer()
    await serving


async def test_both_have_the_callers_deadline() -> None:
    """When it comes, neither goes on."""
    track = Track()

    serving = await track.begin(deadline=track.bench.clock.now + 3, deadline_is_callers=True)
    await track.late()
    assert track.wires[1].sent
    track.bench.clock.advance(1.6)
    track.bench.watch.sweep(track.bench.clock.now)
    await asyncio.wait([serving])

    assert serving.exception() is not None
    assert [attempt.error_class for attempt in track.ledger] == [ErrorClass.TIMEOUT] * 2
    assert [wire.dropped for wire in track.wires] == [1, 1]
    track.nothing_is_left()


async def test_no_second_after_the_deadline() -> None:
    """No attempt starts after it."""
    track = Track()

    serving = await track.begin(deadline=track.bench.clock.now + 1.05)
    await track.late()

    assert not track.wires[1].sent
    track.wires[0].answer()
    await serving


async def test_a_late_loser_counts_as_late() -> None:
    """Else what is usual would seem to become ever quicker, and more and more would be late."""
    track = Track()
    count = [gate.health.whole_answer.count for gate in track.gates]

    serving = await track.begin()
    await track.late()
    track.wires[1].answer()
    await serving

    first, second = track.gates
    assert first.health.whole_answer.count == count[0] + 1
    assert first.health.whole_answer.peak_ewma(track.bench.clock.now) >= 1.5
    assert second.health.whole_answer.count == count[1] + 1


async def test_a_second_that_had_no_time_is_not_measured() -> None:
    """It might have taken any time."""
    track = Track()
    count = track.gates[1].health.whole_answer.count

    serving = await track.begin()
    await track.late()
    track.wires[0].answer()
    await serving

    assert track.gates[1].health.whole_answer.count == count


def test_being_cancelled_speaks_of_nobodys_health() -> None:
    """The word is none that breakers listen to."""
    assert CANCELLED not in UNHEALTHY
    assert CANCELLED not in set(ErrorClass)


async def test_a_defect_in_one_attempt_stops_the_other() -> None:
    """What nobody expected is told as our failure, and leaves nothing behind."""
    track = Track()

    serving = await track.begin()
    await track.late()
    track.wires[1].scripts[-1].fails = ZeroDivisionError()  # type: ignore[assignment]  # a defect
    track.wires[1].opens[-1].set()
    await asyncio.wait([serving])

    assert type(serving.exception()).__name__ == "InternalError"
    assert track.wires[0].dropped == 1
    track.nothing_is_left()


async def test_a_stream_of_the_loser_is_closed_unread() -> None:
    """Both begin in the same moment: one is relayed, of the other no byte is."""
    track = Track(stream=True)

    serving = await track.begin()
    await track.late()
    track.wires[1].answer()
    track.wires[0].answer()
    _, body = await serving

    assert body in (FIRST % b"w0" + REST, FIRST % b"w1" + REST)
    assert all(script.closed for wire in track.wires for script in wire.scripts)
    track.nothing_is_left()


async def test_a_second_takes_from_the_retry_budget() -> None:
    """Of the target where it goes, until it has ended; one that wins gives its token back."""
    track = Track()
    tokens = track.gates[1].health.tokens

    serving = await track.begin()
    await track.late()
    assert [gate.health.retries.in_flight for gate in track.gates] == [0, 1]
    assert tokens.level(HEDGE.tokens) == HEDGE.tokens - HEDGE.retry_tokens
    track.wires[1].answer()
    await serving

    assert tokens.level(HEDGE.tokens) == HEDGE.tokens
    track.nothing_is_left()


async def test_time_that_is_up_ends_attempts_and_not_the_call() -> None:
    """The edge knows the call's task; what is watched are those of the attempts."""
    track = Track()
    call = track.bench.call(deadline=track.bench.clock.now + 3, deadline_is_callers=True)

    async def serve() -> Reply:
        return await track.bench.pipeline.handle(call)

    serving = asyncio.ensure_future(serve())
    await turns()
    await track.late()
    track.bench.clock.advance(1.6)
    track.bench.watch.sweep(track.bench.clock.now)
    await asyncio.wait([serving])

    assert not serving.cancelled()
    assert type(serving.exception()).__name__ == "DeadlineExceeded"
    track.nothing_is_left()
