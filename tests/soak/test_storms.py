"""What the delay queue promises under load: storms of calls, storms of 429s, backlogs, deadlines, 10,000 who wait.

Gateway, providers and clients share one process and one loop (but for those who only wait), so every time here is an upper
bound. Times have a little slack for a busy machine; counts have none.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig, Fault, FaultRule
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import ADMIN_KEY, NIGHTLY_KEY, WEB_KEY, Running, get, until
from tests.soak.conftest import Report
from tests.soak.storms import (
    Answered,
    Client,
    allow_files,
    arrivals,
    clients,
    codes,
    come,
    finished_s,
    held,
    loop_lag,
    obey,
    percentile,
    poisson,
    refused_share,
    request,
    storm,
)
from tests.soak.support import Served, descriptors, discard_log, rss_kib, serve, spread, sum_of

pytestmark = pytest.mark.soak

CALLS = 2000
RATE, BURST = 100, 100
LIMIT = {"rpm": 60 * RATE, "burst": BURST}
"""What most providers here allow: 6,000 a minute, 100 of them at once."""
TTFT_S = 0.05
SLACK_S = 0.5
PATIENT_S = 120.0
TELLS = pytest.mark.parametrize("tells", [True, False], ids=["headers", "nothing"])
WEB = f"authorization: Bearer {WEB_KEY}"
NIGHTLY = f"authorization: Bearer {NIGHTLY_KEY}"


@dataclass(frozen=True, slots=True)
class Stage:
    """A gateway and the providers behind it."""

    running: Running
    providers: list[EmulatorServer]

    @property
    def url(self) -> str:
        return self.running.url

    @property
    def waiting(self) -> int:
        """How many calls are held."""
        return self.running.gateway._admission.queue.occupancy.calls


Behind = Callable[..., Coroutine[Any, Any, Stage]]


def provider(**options: Any) -> EmulatorConfig:
    """Answers of ten tokens after 50 ms."""
    return replace(EmulatorConfig(ttft_s=TTFT_S, output_tokens=10, recorded_requests=0), **options)


def entry(server: EmulatorServer) -> dict[str, Any]:
    """A provider's entry in the config."""
    if server.emulator.config.dialect == "azure":
        return {"dialect": "azure", "base_url": server.url, "api_key": "k"}
    return {"dialect": "openai", "kind": "openai", "base_url": server.base_url, "api_key": "k"}


def config_of(places: Sequence[tuple[EmulatorServer, dict[str, Any]]], **sections: Any) -> dict[str, Any]:
    """A config whose model `m` has these targets; each is a provider and the limits that it is said to have."""
    targets = [{"provider": f"p{index}", "model": "m", **limits} for index, (_, limits) in enumerate(places)]
    providers = {f"p{index}": entry(server) for index, (server, _) in enumerate(places)}
    return {"providers": providers, "models": {"m": {"targets": targets}}, **sections}


@pytest.fixture
async def behind(start: StartGateway) -> AsyncIterator[Behind]:
    """Starts a gateway; each place is a provider and the limits that the config says it has."""
    allow_files(30_000)
    providers: list[EmulatorServer] = []

    async def start_behind(*places: tuple[EmulatorConfig, dict[str, Any]], **sections: Any) -> Stage:
        for emulator, _ in places:
            providers.append(EmulatorServer(emulator))
            await providers[-1].start()
        limits = [limits for _, limits in places]
        running = await start(lambda _unused: config_of([*zip(providers, limits, strict=True)], **sections))
        discard_log(running)
        return Stage(running, providers)

    yield start_behind
    for one in providers:
        await one.stop()


# A storm of calls.


@dataclass(frozen=True, slots=True)
class Bars:
    """What a storm is judged by."""

    within: float = 1.05
    refused_share: float = 0.01
    extra_s: float = SLACK_S


def judge(report: Report, name: str, stage: Stage, answers: Sequence[Answered], ideal_s: float, bars: Bars) -> None:
    """Everybody was served, in time, and the providers were left alone."""
    took_s, share = finished_s(answers), refused_share(len(answers), *stage.providers)
    report(
        f"{name}: {codes(answers)} in {took_s:.2f} s, ideal {ideal_s:.2f} s, ratio {took_s / ideal_s:.3f} "
        f"(bar {bars.within}); upstream 429s {share:.2%} (bar {bars.refused_share:.0%})"
    )
    assert codes(answers) == {"ok": len(answers)}
    assert share <= bars.refused_share
    assert took_s <= bars.within * ideal_s + bars.extra_s


@TELLS
async def test_a_request_limit_is_used_to_the_full(behind: Behind, report: Report, tells: bool) -> None:
    """100 at once, then 100 a second, as told in the config; at the lane's own deadline."""
    stage = await behind((provider(**LIMIT, limit_headers=tells), LIMIT))

    answers = await storm(stage.url, [request()] * CALLS)

    ideal_s = (CALLS - BURST) / RATE + TTFT_S
    judge(report, f"requests, headers {tells}", stage, answers, ideal_s, Bars())


@TELLS
async def test_a_token_limit_is_used_to_the_full(behind: Behind, report: Report, tells: bool) -> None:
    """Calls of mixed sizes: all that the provider charges for them, at the rate of its limit."""
    tpm = 800_000
    rng = random.Random(11)
    max_tokens = [rng.choice((64, 128, 256, 512)) for _ in range(CALLS)]
    requests = [request(deadline_s=PATIENT_S, max_tokens=most, messages=draw_messages(rng)) for most in max_tokens]
    stage = await behind((provider(tpm=tpm, limit_headers=tells), {"tpm": tpm}))

    answers = await storm(stage.url, requests)

    charged = sum(max(one.input_tokens, most) for one, most in zip(answers, max_tokens, strict=True))
    ideal_s = (charged - tpm) / (tpm / 60) + TTFT_S
    judge(report, f"{charged} tokens, headers {tells}", stage, answers, ideal_s, Bars())


def draw_messages(rng: random.Random) -> list[dict[str, str]]:
    """Some 300 tokens in one to eight messages, now and then ten times as many."""
    count, chars = rng.randint(1, 8), rng.lognormvariate(7.1, 1.0)
    return [{"role": "user", "content": "lorem ipsum " * max(1, int(chars / count / 12))} for _ in range(count)]


@TELLS
async def test_two_targets_serve_the_sum_of_their_limits(behind: Behind, report: Report, tells: bool) -> None:
    """6,000 and 3,000 a minute: 150 at once, then 150 a second."""
    half = {"rpm": 60 * RATE // 2, "burst": BURST // 2}
    stage = await behind((provider(**LIMIT, limit_headers=tells), LIMIT), (provider(**half, limit_headers=tells), half))

    answers = await storm(stage.url, [request()] * CALLS)

    ideal_s = (CALLS - 1.5 * BURST) / (1.5 * RATE) + TTFT_S
    judge(report, f"two targets, headers {tells}", stage, answers, ideal_s, Bars())


@pytest.mark.parametrize(
    ("tells", "phase_s"), [(True, 0.1), (False, 0.1), (True, 7.0)], ids=["headers", "nothing", "headers-late"]
)
async def test_azure_windows_are_filled_one_after_the_other(
    behind: Behind, report: Report, tells: bool, phase_s: float
) -> None:
    """1,000 in each 10 s. Where a window ends is told in whole seconds, or not at all."""
    stage = await behind((provider(dialect="azure", rpm=60 * RATE, limit_headers=tells), {"rpm": 60 * RATE}))

    answers = await storm(stage.url, [request()] * 3000, begin=partial(phase, phase_s))

    ideal_s = 20 - phase_s + TTFT_S
    bars = Bars(extra_s=SLACK_S + (1.0 if phase_s > 1 else 0.0))
    judge(report, f"azure from {phase_s} s into a window, headers {tells}", stage, answers, ideal_s, bars)


async def phase(into_s: float) -> None:
    """Wait until a 10 s window of the emulator is `into_s` old."""
    await asyncio.sleep((into_s - time.monotonic()) % 10.0)


async def test_a_limit_that_is_not_in_the_config_is_learned_from_headers(behind: Behind, report: Report) -> None:
    """Within 1.1x of the ideal, with at most 1 % upstream 429s."""
    stage = await behind((provider(**LIMIT), {}))

    answers = await storm(stage.url, [request(deadline_s=PATIENT_S)] * CALLS)

    ideal_s = (CALLS - BURST) / RATE + TTFT_S
    judge(report, "learned from headers", stage, answers, ideal_s, Bars(within=1.1))


async def test_a_limit_that_nobody_tells_is_found(behind: Behind, report: Report) -> None:
    """Within 1.5x of the ideal, with at most 3 % upstream 429s."""
    stage = await behind((provider(**LIMIT, limit_headers=False), {}))

    answers = await storm(stage.url, [request(deadline_s=PATIENT_S)] * CALLS)

    ideal_s = (CALLS - BURST) / RATE + TTFT_S
    judge(report, "found without any word", stage, answers, ideal_s, Bars(within=1.5, refused_share=0.03))


# A storm of 429s.

PAUSE_S, STORM_S, IN_FLIGHT_S = 5.0, 60.0, 0.1
"""Of a refusal younger than IN_FLIGHT_S the gateway may not have heard."""


async def test_a_storm_of_retry_after_is_sat_out(behind: Behind, report: Report) -> None:
    """`Retry-After: 5` for 60 s, 1,000 calls held: no 429 is seen, nothing goes in a pause, no herd follows the last."""
    refuse = FaultRule(Fault("rate_limit", seconds=PAUSE_S))
    stage = await behind((provider(**LIMIT, faults=(refuse,), recorded_requests=100_000), LIMIT))
    emulator = stage.providers[0].emulator

    scout = asyncio.create_task(storm(stage.url, [request(deadline_s=600)]))
    await until(lambda: emulator.stats.statuses[429] == 1)
    calls = asyncio.create_task(storm(stage.url, [request(deadline_s=600)] * 1000))
    await asyncio.sleep(STORM_S)
    refused = arrivals(stage.providers[0])
    most_held = stage.waiting
    emulator.configure(replace(emulator.config, faults=()))
    answers = await calls + await scout

    resumes_at = refused[-1] + PAUSE_S
    served = [at for at in arrivals(stage.providers[0]) if at > refused[-1]]
    flights = flights_of(refused)
    gaps_s = [later[0] - earlier[-1] for earlier, later in pairwise([*flights, served])]
    first_second = sum(at < served[0] + 1.0 for at in served)
    report(
        f"429 with Retry-After {PAUSE_S:g} for {STORM_S:g} s, {most_held} held at its end: {codes(answers)}; "
        f"attempts after each pause {[len(flight) for flight in flights]}, pauses from {min(gaps_s):.3f} s\n"
        f"  drain began {(served[0] - resumes_at) * 1000:.1f} ms after the last pause (bar 50), "
        f"{first_second} in its first second (bar {1.2 * RATE:g}), ended after {served[-1] - resumes_at:.2f} s"
    )
    assert codes(answers) == {"ok": 1001}
    assert min(gaps_s) >= PAUSE_S
    assert max(flight[-1] - flight[0] for flight in flights) < IN_FLIGHT_S
    assert served[0] - resumes_at <= 0.05
    assert first_second <= 1.2 * RATE
    assert served[-1] - resumes_at <= 1.05 * len(served) / RATE + SLACK_S


def flights_of(times: Sequence[float]) -> list[list[float]]:
    """Attempts that were sent before the gateway could know of each other's refusal."""
    flights = [[times[0]]]
    for before, at in pairwise(times):
        if at - before > IN_FLIGHT_S:
            flights.append([])
        flights[-1].append(at)
    return flights


# Lanes and tenants.


KEYS = [{"name": "web", "key": WEB_KEY}, {"name": "nightly", "key": NIGHTLY_KEY, "lane": "batch"}]


@pytest.mark.parametrize("per_s", [20, 50, 150])
async def test_a_live_user_never_waits_behind_a_nightly_job(behind: Behind, report: Report, per_s: int) -> None:
    """The same interactive calls, alone and during a backlog of 5,000 batch calls: p99 of their wait, and who is served."""
    due_s = poisson(random.Random(5), per_s, 15.0)
    live = [request(WEB, deadline_s=PATIENT_S)] * len(due_s)
    stage = await behind((provider(**LIMIT), LIMIT), keys=KEYS)
    alone = await come(stage.url, due_s, live)
    backlog = asyncio.create_task(storm(stage.url, [request(NIGHTLY)] * 5000))
    await until(lambda: stage.waiting > 4800)
    await asyncio.sleep(2.0)  # so many calls at once are a load on the loop, and that is not what is measured here

    beside = await come(stage.url, due_s, live)

    left = stage.waiting
    backlog.cancel()
    with suppress(asyncio.CancelledError):
        await backlog
    waits_s = [[one.queue_s for one in answers] for answers in (alone, beside)]
    p99_s = [percentile(values, 99) for values in waits_s]
    report(
        f"{per_s} interactive calls a second, wait in the queue:\n  alone  {spread(waits_s[0])}\n"
        f"  beside {spread(waits_s[1])}; {left} batch calls still wait\n"
        f"  answered after: alone {spread([one.took_s for one in alone])}; beside {spread([one.took_s for one in beside])}"
    )
    assert codes(alone) == codes(beside) == {"ok": len(live)}
    assert left > 1000
    assert p99_s[1] <= 1.2 * p99_s[0] + 1 / RATE


async def test_tenants_get_equal_token_shares_while_both_have_work(behind: Behind, report: Report) -> None:
    """5,000 calls wait of one, 50 of the other, whose calls are ten times as large: the same tokens a second."""
    keys = [{"name": "noisy", "key": NIGHTLY_KEY}, {"name": "quiet", "key": WEB_KEY}]
    stage = await behind((provider(**LIMIT), LIMIT), keys=keys)
    small, large = ([{"role": "user", "content": "word " * words}] for words in (300, 3000))
    noisy_request = request(NIGHTLY, deadline_s=600, max_tokens=1, messages=small)
    quiet_request = request(WEB, deadline_s=600, max_tokens=1, messages=large)
    answers: dict[str, list[Answered]] = {"noisy": [], "quiet": []}

    async def go_on(tenant: str, client: Client, content: bytes) -> None:
        while True:
            answers[tenant].append(await client.ask(content))

    async with clients(stage.url, 5050) as made, asyncio.TaskGroup() as tasks:
        work = [tasks.create_task(go_on("noisy", one, noisy_request)) for one in made[:5000]]
        work += [tasks.create_task(go_on("quiet", one, quiet_request)) for one in made[5000:]]
        await until(lambda: stage.waiting > 4800)
        began_at = time.monotonic()
        await asyncio.sleep(20.0)
        for one in work:
            one.cancel()

    counted = {tenant: [one for one in own if one.ended_at >= began_at] for tenant, own in answers.items()}
    tokens = {tenant: sum(one.input_tokens for one in own) for tenant, own in counted.items()}
    report(
        f"100:1 in waiting calls, 1:10 in size, for 20 s: calls { ({t: len(own) for t, own in counted.items()}) }, "
        f"tokens {tokens}, ratio {tokens['noisy'] / tokens['quiet']:.3f}"
    )
    assert {one.status for own in counted.values() for one in own} == {200}
    assert tokens["noisy"] == pytest.approx(tokens["quiet"], rel=0.1)


# Deadlines.

DEADLINES_S = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 30.0)


async def test_what_fits_is_served_and_what_cannot_is_told_when_to_come_back(behind: Behind, report: Report) -> None:
    """Behind 1,000 calls, ten of each deadline: those that cannot be served in time are refused in 20 ms, and come back."""
    stage = await behind((provider(**LIMIT), LIMIT))
    backlog = asyncio.create_task(storm(stage.url, [request(deadline_s=PATIENT_S)] * 1000))
    await until(lambda: stage.waiting > 700)
    await asyncio.sleep(0.5)  # the burst itself is a load on the loop
    deadlines_s = [deadline_s for deadline_s in DEADLINES_S for _ in range(10)]
    random.Random(7).shuffle(deadlines_s)
    requests = [request(deadline_s=deadline_s) for deadline_s in deadlines_s]
    firsts, seconds = await obey(stage.url, [0.02 * number for number in range(len(requests))], requests)
    await backlog

    rows = []
    for deadline_s in DEADLINES_S:
        mine = [n for n, own_s in enumerate(deadlines_s) if own_s == deadline_s]
        back = [seconds[n] for n in mine if n in seconds]
        rows.append(
            f"  {deadline_s:>5g} s: {codes([firsts[n] for n in mine])}"
            + (f", then {codes(back)} in {spread([one.took_s for one in back])}" if back else "")
        )
    refused = [firsts[n] for n in seconds]
    report(
        "behind 1,000 calls, by deadline:\n"
        + "\n".join(rows)
        + f"\n  refused after {spread([o.took_s for o in refused])}"
    )
    assert len(refused) > 20
    assert all(one.took_s <= own_s + SLACK_S for one, own_s in zip(firsts, deadlines_s, strict=True))
    assert set(codes(refused)) == {"503 queue_wait_exceeds_deadline"}
    assert percentile([one.took_s for one in refused], 99) < 0.02
    assert codes(list(seconds.values())) == {"ok": len(seconds)}


@pytest.mark.parametrize(("deadline_s", "newcomers_per_s"), [(1.0, 0), (5.0, 0), (5.0, 50)])
async def test_who_comes_back_as_told_is_served(
    behind: Behind, report: Report, deadline_s: float, newcomers_per_s: int
) -> None:
    """1,500 calls at once, most of which cannot be served in time: 99 % of those are when they come back, once."""
    stage = await behind((provider(**LIMIT), LIMIT))
    content = request(deadline_s=deadline_s)
    others_s = poisson(random.Random(3), newcomers_per_s, 10.0) if newcomers_per_s else []
    others = asyncio.create_task(come(stage.url, others_s, [content] * len(others_s)))

    firsts, seconds = await obey(stage.url, [0.0] * 1500, [content] * 1500)
    newcomers = await others

    served = sum(one.status == 200 for one in seconds.values())
    refused = [firsts[n] for n in seconds]
    report(
        f"1,500 at once with {deadline_s:g} s, {newcomers_per_s} newcomers a second: first {codes(firsts)}; who came back: "
        f"{codes(list(seconds.values()))}; newcomers {codes(newcomers)}\n"
        f"  the gateway's own time for a refusal {spread([one.own_s for one in refused])}"
    )
    assert len(seconds) > 500
    assert served >= 0.99 * len(seconds)
    assert percentile([one.own_s for one in refused], 99) < 0.02


# Those who wait.

HELD = 10_000
KIB_EACH = 20


@dataclass(frozen=True, slots=True)
class Round:
    """What 10,000 calls cost the gateway while they waited, and what they left behind."""

    held_kib: int
    left_kib: int
    lags_s: dict[str, list[float]]
    """How late its loop ran while they came, waited and went."""


async def test_10_000_held_calls_are_cheap_and_leave_nothing(tmp_path: Path, report: Report) -> None:
    """Gateway and clients each in a process; the clients are killed at once, three times: memory, loop lag, what is left."""
    allow_files(30_000)
    paused = EmulatorServer(provider(**LIMIT, faults=(FaultRule(Fault("rate_limit", seconds=1800.0)),)))
    await paused.start()
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(config_of([(paused, LIMIT)], admin={"key": ADMIN_KEY})))
    async with serve(config) as served:
        async with held(served.url, 1):
            await until_waiting(served, 1)
        await until_waiting(served, 0)
        before_kib, before = rss_kib(served.pid), descriptors(served.pid)
        rounds = [await hold_and_kill(served) for _ in range(3)]
        after, families, queue = descriptors(served.pid), await served.metrics(), await show_queue(served)
    await paused.stop()

    report(
        f"{HELD} held calls, half of them streams, three times; RSS of the gateway before {before_kib} KiB\n"
        + "\n".join(
            f"  {(one.held_kib - before_kib) / HELD:.1f} KiB each (bar {KIB_EACH}); "
            f"{(one.left_kib - before_kib) / 1024:.1f} MiB more than before once all have left\n"
            + "\n".join(f"    loop lag while they {name}: {spread(late)}" for name, late in one.lags_s.items())
            for one in rounds
        )
    )
    assert paused.emulator.stats.total == 1
    assert queue == {"calls": 0, "bytes": 0, "lines": {}}
    assert not any(sum_of(families, f"gateway_{name}") for name in ("calls_in_flight", "queue_depth", "queue_bytes"))
    assert after == before
    assert all((one.held_kib - before_kib) / HELD <= KIB_EACH for one in rounds)
    assert rounds[2].held_kib - rounds[1].held_kib < 0.05 * KIB_EACH * HELD
    assert all(percentile(one.lags_s["wait"], 99) < 0.02 for one in rounds)


async def hold_and_kill(served: Served) -> Round:
    """Let 10,000 calls wait until their streams have heard comments, and kill their clients."""
    marks = [0]
    async with loop_lag(served.url) as late, held(served.url, HELD) as process:
        await until_waiting(served, HELD)
        marks.append(len(late))
        await asyncio.sleep(20.0)
        held_kib = rss_kib(served.pid)
        marks.append(len(late))
        process.kill()
        await until_waiting(served, 0)
        marks.append(len(late))
    lags_s = {name: late[begin:end] for name, (begin, end) in zip(("come", "wait", "go"), pairwise(marks), strict=True)}
    return Round(held_kib, rss_kib(served.pid), lags_s)


async def show_queue(served: Served) -> dict[str, Any]:
    """What the gateway shows of its queue."""
    async with clients(served.url, 1) as (client,):
        answer = await client.ask(get("/admin/queue", f"authorization: Bearer {ADMIN_KEY}"))
    return dict(orjson.loads(answer.body))


async def until_waiting(served: Served, count: int) -> None:
    """Wait until so many calls are held."""
    async with asyncio.timeout(60):
        while (await show_queue(served))["calls"] != count:  # noqa: ASYNC110 - another process sets no event
            await asyncio.sleep(0.2)
