"""Gates of names and accounts that the config does not know: whose a refusal is, how many there are, and where they end."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from dataclasses import replace
from typing import NoReturn

import pytest

from gateway.core.admission import gates as gates_module
from gateway.core.admission.queue import Held, Option, WaitingLine
from gateway.core.call import Reply
from gateway.core.errors import CircuitOpen, GatewayError
from gateway.core.health.detector import BreakerRules
from gateway.core.limits import reservation
from gateway.core.limits.bucket import Cost
from gateway.core.limits.limit_table import Limits
from gateway.core.limits.target_limits import FIRST_BACKOFF_S
from gateway.core.snapshot import LimitsAre, Target
from gateway.core.types import LANES, ErrorClass, Outgoing, Usage
from tests.support.flow import ONCE, Bench, Script, ScriptedAnswer, ScriptedUpstream, failed, whole

QUOTA = (
    b'{"error":{"message":"You exceeded your current quota.","type":"insufficient_quota","code":"insufficient_quota"}}'
)
LONG_S = 3000
MOST_NAMED = 64


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer than there really are: the same happens sooner."""
    monkeypatch.setattr(gates_module, "MOST_NAMED", MOST_NAMED)


def refusal(retry_after_s: int = LONG_S) -> Script:
    """A 429 that names a time to come back at."""
    return whole(b'{"error":{"message":"Slow down.","code":"rate_limit_exceeded"}}', 429, _after(retry_after_s))


def _after(seconds: int) -> tuple[bytes, bytes]:
    return b"retry-after", b"%d" % seconds


class Choosy(ScriptedUpstream):
    """Answers callers whose credential is made up as it is told; everybody else is served."""

    def __init__(self, bad: Script) -> None:
        super().__init__()
        self.bad = bad

    async def send(self, outgoing: Outgoing) -> ScriptedAnswer:
        self.sent.append(outgoing)
        await asyncio.sleep(0)
        is_made_up = b"made-up" in (outgoing.credential or b"") or b"made-up" in bytes(outgoing.body)
        answer = self.bad if is_made_up else whole()
        if answer.fails is not None:
            raise answer.fails
        return ScriptedAnswer(answer)


def keyless(bad: Script, limits: Limits | None = None, limits_are: LimitsAre = "account", **changes: object) -> Bench:
    """A provider whose callers bring their own credentials."""
    bench = Bench([Choosy(bad)], limits=[limits or Limits()], accounts=[""], **changes)  # type: ignore[arg-type]  # by name
    provider = replace(bench.policy.providers["p0"], api_key=None, limits_are=limits_are)
    bench.policy = replace(bench.policy, providers={"p0": provider})
    bench.admission.install(bench.policy)
    return bench


def wildcard(bench: Bench) -> Target:
    """The target serves whatever model is asked for."""
    model = bench.policy.models["m"]
    target = replace(model.targets[0], name="p0/*", model=None)
    bench.policy = replace(bench.policy, models={"m": replace(model, targets=(target,), plan=(target,))})
    bench.admission.install(bench.policy)
    return target


async def status(bench: Bench, who: str, **changes: object) -> int:
    """What the caller gets who brings this credential; at once, or after a moment in which others were refused."""
    asking = bench.serve(credential=f"Bearer {who}".encode(), deadline=bench.clock.now + 1, **changes)
    task = asyncio.create_task(asking)
    for _ in range(30):
        await asyncio.sleep(0)
    if not task.done():
        bench.clock.advance(FIRST_BACKOFF_S + 0.001)
    try:
        reply, _ = await task
    except GatewayError as error:
        return error.status
    assert isinstance(reply, Reply)
    return reply.status


# -- Whose a refusal is


@pytest.mark.parametrize("limits", [Limits(), Limits(requests_per_min=60_000)])
@pytest.mark.parametrize(
    "bad", [refusal(), whole(QUOTA, 429), whole(b'{"error":{}}', 401, _after(LONG_S)), whole(b'{"error":{}}', 403)]
)
async def test_made_up_credentials_shut_out_nobody_else(bad: Script, limits: Limits) -> None:
    """However many they are, whoever wrote limits down; those that were refused are left alone all the same."""
    bench = keyless(bad, limits)
    count = MOST_NAMED + 40

    for number in range(count):
        assert await status(bench, f"made-up-{number}") != 200

    assert await status(bench, "honest") == 200
    assert await status(bench, "another") == 200
    assert len(bench.admission.gates.lines) <= MOST_NAMED + 2
    if bad.status == 429:
        sent = len(bench.upstreams[0].sent)
        assert await status(bench, "made-up-0") != 200
        assert await status(bench, f"made-up-{count - 1}") != 200
        looks = 0 if QUOTA in bad.chunks else 1  # of a gate that is not idle: whether it was that call alone
        assert len(bench.upstreams[0].sent) == sent + looks


async def test_made_up_names_shut_out_no_other_model() -> None:
    """The same under a wildcard: a new model of the provider has a gate of its own, whatever happened to others."""
    bench = Bench([Choosy(refusal())])
    wildcard(bench)

    for number in range(MOST_NAMED + 40):
        body = b'{"model":"made-up-%d","messages":[]}' % number
        assert await status(bench, "x", model_name=f"made-up-{number}", body=body) != 200

    assert await status(bench, "x", model_name="gpt-4o", body=b'{"model":"gpt-4o","messages":[]}') == 200
    sent = len(bench.upstreams[0].sent)
    assert await status(bench, "x", model_name="made-up-0", body=b'{"model":"made-up-0","messages":[]}') != 200
    assert len(bench.upstreams[0].sent) == sent


@pytest.mark.parametrize(("bad", "looks"), [(refusal(), 1), (whole(QUOTA, 429), 0)])
async def test_a_servers_refusal_is_everybodys(bad: Script, looks: int) -> None:
    """A server of one's own counts all of its callers, whatever they call themselves; one of them looks whether it does."""
    bench = keyless(bad, limits_are="server")

    assert await status(bench, "made-up") != 200
    for _ in range(4):
        assert await status(bench, "made-up, too") != 200
    assert await status(bench, "honest") != 200

    assert len(bench.upstreams[0].sent) == 1 + looks
    assert [*bench.admission.gates.lines] == ["p0/m"]


async def test_a_refusal_of_one_caller_is_not_everybodys() -> None:
    """A server that lets others in has refused that one."""
    bench = keyless(refusal(), limits_are="server")

    assert await status(bench, "made-up") != 200
    assert await status(bench, "honest") == 200
    assert await status(bench, "honest") == 200


async def test_a_refused_credential_pauses_no_server() -> None:
    """A 401 tells that one to go away, for however long it says; not those whom the server knows."""
    bench = keyless(whole(b'{"error":{}}', 401, _after(LONG_S)), limits_are="server")

    assert await status(bench, "made-up") == 401
    assert await status(bench, "honest") == 200


async def test_written_limits_are_each_callers_own() -> None:
    """As the provider counts them; a server's are those of all together."""
    limits_are: LimitsAre
    for limits_are in ("account", "server"):
        bench = keyless(refusal(), Limits(requests_per_min=1), limits_are)
        assert await status(bench, "first") == 200
        assert await status(bench, "first") != 200
        assert (await status(bench, "second") == 200) is (limits_are == "account")


async def test_all_callers_find_out_together_that_a_target_is_ill() -> None:
    """Its health is its own: the breaker that one caller's failures open, another's probes close."""
    bench = keyless(whole(b"", 503), retries=ONCE, breaker=BreakerRules(hold_for_s=dict.fromkeys(LANES, 0.0)))
    for number in range(5):
        await status(bench, f"made-up-{number}")
    breaker = bench.admission.gates.lines["p0/m"].gate.health.breaker
    assert not breaker.is_clear
    breaker.trip("for the test", bench.clock.now, 0.0)

    with pytest.raises(CircuitOpen):
        await bench.serve(credential=b"Bearer honest")
    bench.clock.advance(3)
    for _ in range(3):
        assert (await bench.serve(credential=b"Bearer honest", lane="background"))[0].status == 200

    assert breaker.state == "closed"


async def test_calls_of_all_callers_wait_for_the_same_probe() -> None:
    """One goes; whoever waits at another line hears how it went, and goes then."""
    bench = keyless(failed(), retries=ONCE)
    for number in range(5):
        await status(bench, f"made-up-{number}")
    waiting = [
        asyncio.create_task(bench.serve(credential=b"Bearer %d" % number, lane="batch", deadline=bench.clock.now + 60))
        for number in range(3)
    ]
    for _ in range(20):
        await asyncio.sleep(0)
        bench.clock.advance(0.5)

    for task in waiting:
        assert (await asyncio.wait_for(task, 1))[0].status == 200


async def test_no_name_tells_a_credential() -> None:
    """Nor does anything that is kept."""
    bench = keyless(refusal())
    await status(bench, "sk-made-up-secret")
    gates = bench.admission.gates

    own = [name for name in gates.lines if gates.names.is_named(name)]
    assert len(own) == 1
    assert "secret" not in own[0]
    assert gates.names.is_callers(own[0])
    assert gates.names.label(own[0]) == "p0/m"


async def test_one_caller_is_let_go_by_hand() -> None:
    """Closing a target ends the pauses of all its callers, also of those that are only remembered."""
    bench = keyless(refusal())
    for number in range(MOST_NAMED + 40):
        await status(bench, f"made-up-{number}")
    own = [name for name in bench.admission.gates.lines if bench.admission.gates.names.is_callers(name)]

    with pytest.raises(KeyError):
        bench.admission.health.force(own[0], "open")
    bench.admission.health.force("p0/m", "closed")

    sent = len(bench.upstreams[0].sent)
    await status(bench, "made-up-0")
    await status(bench, f"made-up-{MOST_NAMED + 39}")
    assert len(bench.upstreams[0].sent) == sent + 2


# -- How many there are


def test_who_is_in_use_stays_and_the_rest_is_bounded() -> None:
    """The longest unused is forgotten first; while many are in use there are more, and fewer again afterwards."""
    bench = Bench([ScriptedUpstream()])
    target, gates = wildcard(bench), bench.admission.gates
    busy = reservation.reserve(gates.line(target, bench.call(model_name="busy")).gate, Cost(), bench.clock.now)
    assert busy is not None

    for number in range(3 * MOST_NAMED):
        bench.clock.now += 0.01
        gates.line(target, bench.call(model_name=f"made-up-{number}"))
        assert len(gates.lines) <= MOST_NAMED + 2
    assert gates.line(target, bench.call(model_name="busy")).gate is busy.gate

    grants = []
    for number in range(2 * MOST_NAMED):
        bench.clock.now += 0.01
        gate = gates.line(target, bench.call(model_name=f"busy-{number}")).gate
        assert gate.name == f"p0/busy-{number}"
        grants.append(reservation.reserve(gate, Cost(), bench.clock.now))
    assert len(gates.lines) >= 2 * MOST_NAMED
    for grant in grants:
        assert grant is not None
        grant.settle(None, bench.clock.now)
    for number in range(3 * MOST_NAMED):
        bench.clock.now += 0.01
        gates.line(target, bench.call(model_name=f"later-{number}"))

    assert len(gates.lines) == len(bench.admission.queue.lines) <= MOST_NAMED + 2


def test_a_name_that_was_forgotten_keeps_its_pause_and_its_levels() -> None:
    """Until a reload, as far as a spent quota goes: somebody may have added credit."""
    bench = Bench([ScriptedUpstream()], limits=[Limits(requests_per_min=60)])
    target, gates = wildcard(bench), bench.admission.gates

    def gate_of(name: str):  # type: ignore[no-untyped-def]  # a shorthand
        return gates.line(target, bench.call(model_name=name)).gate

    def forget_all() -> None:
        for number in range(2 * MOST_NAMED):
            gate_of(f"made-up-{bench.clock.now}-{number}")
            bench.clock.now += 0.001

    paused, spent, used = gate_of("paused"), gate_of("spent"), gate_of("used")
    paused.leave_alone(100.0, bench.clock.now)
    spent.exhaust(100.0, bench.clock.now)
    for _ in range(30):
        grant = reservation.reserve(used, Cost(), bench.clock.now)
        assert grant is not None
        grant.settle(None, bench.clock.now)
    ends = paused.pauses.ends_at, spent.pauses.quota_until
    (before,) = used.rows(bench.clock.now)
    began_at = bench.clock.now
    forget_all()

    assert gate_of("paused") is not paused
    assert gate_of("paused").pauses.ends_at == pytest.approx(ends[0], abs=0.01)
    assert gate_of("spent").pauses.quota_until == pytest.approx(ends[1], abs=0.01)
    (after,) = gate_of("used").rows(bench.clock.now)
    assert after.level == pytest.approx(before.level + bench.clock.now - began_at, abs=0.01)

    forget_all()
    bench.clock.now += 1
    bench.admission.install(bench.policy)
    assert gate_of("paused").pauses.ends_at > bench.clock.now
    assert gate_of("spent").pauses.quota_until < bench.clock.now


# -- What becomes of them


@pytest.mark.parametrize("kind", ["names", "callers"])
async def test_gates_that_are_dropped_leave_nothing_to_collect(kind: str) -> None:
    """They are freed by counting references: a collection of thousands of them would stop the loop for as long as it takes."""
    bench = keyless(refusal())
    target = wildcard(bench)
    gates = bench.admission.gates

    def use(number: int) -> None:
        who = {"credential": b"%d" % number} if kind == "callers" else {"model_name": f"name-{number}"}
        gate = gates.line(target, bench.call(**who)).gate
        grant = reservation.reserve(gate, Cost(), bench.clock.now)
        assert grant is not None
        bench.clock.now += 0.01
        grant.answered([], bench.clock.now, bench.clock.wall())
        grant.settle(None, bench.clock.now)
        if number % 7 == 0:
            gate.leave_alone(50.0, bench.clock.now)
        if number % 11 == 0 and kind == "names":
            gate.health.breaker.trip("ill", bench.clock.now, 0.5)

    for number in range(MOST_NAMED):
        use(number)
    gc.collect()
    for number in range(MOST_NAMED, 2 * MOST_NAMED):
        use(number)
        if number % 100 == 0:
            bench.clock.timers.clear()  # what was to be told of breakers holds on to lines

    assert len(gates.lines) <= MOST_NAMED + 2
    assert gc.collect() <= 10


HEADERS = [
    (b"x-ratelimit-limit-requests", b"3000"),
    (b"x-ratelimit-remaining-requests", b"2999"),
    (b"x-ratelimit-limit-tokens", b"150000"),
    (b"x-ratelimit-remaining-tokens", b"149000"),
]


def work(bench: Bench, line: WaitingLine, rng: random.Random) -> None:
    """Everything that makes a gate larger: answers of all lengths and times, streams too, failures, and somebody who waits."""
    gate, clock = line.gate, bench.clock
    for number in range(120):
        clock.now += rng.random()
        grant = reservation.reserve(gate, Cost(1, 50, 50), clock.now, estimate=50)
        if grant is None:
            continue
        clock.now += 10 ** rng.uniform(-2.5, 1.5)
        if number % 10 == 0:
            grant.judge(ErrorClass.SERVER_ERROR, clock.now, 0.5)
            grant.failed(clock.now, is_overload=False)
            continue
        grant.answered(HEADERS, clock.now, clock.wall(), is_stream=number % 2 == 0)
        grant.judge(None, clock.now, 0.5)
        grant.settle(Usage(50 + number, int(10 ** rng.uniform(0, 4))), clock.now)
    held = Held(1, "batch", "web", clock.now, model="m", size=10, deadline=clock.now + 1, wake=lambda: None)
    option = Option(0, line, Cost(), 0.0, 0, None)
    bench.admission.queue.hold(held, [option], option)
    if not held.is_gone:
        bench.admission.queue.leave(held)
    elif held.grant is not None:
        held.grant.settle(None, clock.now)


@pytest.mark.parametrize(("kind", "most_bytes"), [("names", 16_384), ("callers", 7_500), ("unused callers", 3_100)])
def test_a_gate_takes_little_room(kind: str, most_bytes: int) -> None:
    """Of a name and of a caller, with all that it has learned."""
    bench = keyless(refusal())
    bench.policy = replace(bench.policy, models={"m": replace(bench.policy.models["m"])})
    target, gates, rng = wildcard(bench), bench.admission.gates, random.Random(1)
    gates.line(target, bench.call(credential=b"first"))
    calls = [
        bench.call(model_name=f"name-{number}") if kind == "names" else bench.call(credential=b"%d" % number)
        for number in range(16)
    ]
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for call in calls:
            line = gates.line(target, call)
            if kind != "unused callers":
                work(bench, line, rng)
        bench.clock.timers.clear()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert taken / len(calls) <= most_bytes


async def test_the_lines_of_one_caller_are_found_without_a_look_at_all_others() -> None:
    """Whoever's quota is spent sets off the search; of callers that are forgotten nothing is left."""

    class Unsearched(dict[str, WaitingLine]):
        def values(self) -> NoReturn:
            raise AssertionError("all lines were looked at")

    bench = keyless(whole(QUOTA, 429))
    wildcard(bench)
    for number in range(MOST_NAMED + 40):
        await status(bench, f"made-up-{number}", model_name="one")
    for name in ("one", "two"):
        await status(bench, "made-up-twice", model_name=name)
    gates = bench.admission.gates
    callers = [line for name, line in gates.lines.items() if gates.names.is_callers(name)]
    gates.lines = Unsearched(gates.lines)
    found = [gates.of_payer(line.gate) for line in callers]

    assert sorted(map(len, found)) == [1] * (len(callers) - 2) + [2, 2]
    assert all(line in lines for line, lines in zip(callers, found, strict=True))
    assert sum(map(len, gates.names._by_payer.values())) == len(callers)
    assert await status(bench, "made-up-last", model_name="one") == 429
