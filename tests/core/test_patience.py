"""How long a call waits whose caller has set no timeout: as long as its client is known to, or was seen to."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI

from gateway.admin.explain import explain
from gateway.admin.views import show_clients
from gateway.core import request_fields
from gateway.core.errors import WaitTooLong
from gateway.core.limits.limit_table import Limits
from gateway.core.patience import (
    FEWEST_MOMENTS,
    FORGET_S,
    MOMENT_S,
    MOST_CLIENTS,
    SDK_S,
    SHORTEST_S,
    UNKNOWN_S,
    ClientName,
    ClientPatience,
    HangUps,
    after_hang_up,
    patience_s,
)
from gateway.core.request_fields import plan_route
from gateway.core.snapshot import Key
from tests.core.edge.test_keepalive import Front, ask, front
from tests.e2e.harness import connect, until
from tests.rows import rows
from tests.support.configs import load_text, with_policies
from tests.support.flow import CHAT, Bench, Script, ScriptedUpstream, whole
from tests.support.outage import City, Provider, Told, answers
from tests.support.virtual import LoopClock, run

NOW = 1000.0
LANE_S = {"critical": 30.0, "interactive": 30.0, "batch": 600.0, "background": 21600.0}
WEB = Key("web", "web", b"")


def patience_of(headers: dict[bytes, bytes], key: Key = WEB, *, is_written: bool = False) -> tuple[float, bool]:
    """How long a call with these headers waits, and whether its caller has said so."""
    bench = Bench([ScriptedUpstream()])
    policy = replace(bench.policy, waits_as_clients=not is_written)
    plan = plan_route(policy, key, policy.models["m"], CHAT, is_callers=False)
    deadline, is_callers = request_fields.deadline(policy, plan, request_fields.choose_lane(key, headers), headers, NOW)
    return round(deadline - NOW, 6), is_callers


async def sdk_headers(timeout_s: float | None) -> dict[bytes, bytes]:
    """What openai-python sends: LangChain's `ChatOpenAI` hands it `timeout=None` unless it is told otherwise."""
    asked: list[httpx2.Request] = []

    def note(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        return httpx2.Response(400)

    client = AsyncOpenAI(
        base_url="http://gateway.test/v1",
        api_key="k",
        timeout=timeout_s,
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(note)),
    )
    with pytest.raises(Exception, match="400"):
        await client.chat.completions.create(model="m", messages=[])
    return {name.lower(): value for name, value in asked[0].headers.raw}


async def test_the_openai_sdk_says_its_timeout_or_none() -> None:
    """The default is sent along; without a timeout a call waits as long as with the default."""
    assert patience_of(await sdk_headers(60.0)) == (60.0 - request_fields.SDK_MARGIN_S, True)
    assert patience_of(await sdk_headers(None)) == (SDK_S, False)


@rows(
    ("headers", "expected"),
    [
        ({}, (UNKNOWN_S, False)),
        ({b"user-agent": b"curl/8"}, (UNKNOWN_S, False)),
        ({b"x-stainless-retry-count": b"0"}, (SDK_S, False)),
        ({b"x-stainless-retry-count": b"0", b"x-stainless-timeout": b"NOT_GIVEN"}, (SDK_S, False)),
        ({b"x-stainless-retry-count": b"0", b"x-stainless-read-timeout": b"20"}, (19.85, True)),
        ({b"x-server-timeout": b"20"}, (19.85, True)),
        ({b"x-gateway-deadline-ms": b"1500"}, (1.5, True)),
        ({b"x-gateway-lane": b"interactive"}, (30.0, False)),
        ({b"x-gateway-lane": b"interactive", b"x-stainless-retry-count": b"0"}, (30.0, False)),
        ({b"x-gateway-lane": b"batch"}, (600.0, False)),
    ],
)
def test_who_has_said_what(headers: dict[bytes, bytes], expected: tuple[float, bool]) -> None:
    """The caller's own time, the lane that it names, else what is known of its client."""
    assert patience_of(headers) == expected


@rows(
    ("key", "is_written", "expected_s"),
    [
        (replace(WEB, is_lane_chosen=True), False, 30.0),
        (replace(WEB, lane="batch", is_lane_chosen=True), False, 600.0),
        (WEB, True, 30.0),
    ],
)
@pytest.mark.parametrize("headers", [{}, {b"x-stainless-retry-count": b"0"}])
def test_a_lane_that_somebody_chose_keeps_its_deadline(
    key: Key, is_written: bool, expected_s: float, headers: dict[bytes, bytes]
) -> None:
    """By its key, or by a deadline in queue.yaml."""
    assert patience_of(headers, key, is_written=is_written) == (expected_s, False)


def batch(headers: dict[bytes, bytes], calls: int = 300) -> list[Told]:
    """A batch of calls at once, without retries, at a provider that takes 120 a minute."""

    async def story(clock: LoopClock) -> list[Told]:
        city = City([Provider(answers(0.5))], clock, changes={"limits": [Limits(requests_per_min=120)]})
        wait_s, is_callers = patience_of(headers)
        tasks = [city.start(deadline=clock.now + wait_s, deadline_is_callers=is_callers) for _ in range(calls)]
        told = await asyncio.gather(*tasks)
        await city.settle()
        return told

    return run(story)


async def test_a_batch_of_a_client_without_timeout_loses_nothing() -> None:
    """LangChain's, and that of a client of which nothing is known, such as lm-eval's; the lane's 30 s lost most of them."""
    for headers in (await sdk_headers(None), {b"user-agent": b"Python/3.11 aiohttp/3.9"}):
        served = await asyncio.to_thread(batch, headers)
        assert [one.result for one in served] == [200] * 300
    lost = [one for one in await asyncio.to_thread(batch, {b"x-gateway-lane": b"interactive"}) if one.result != 200]
    assert len(lost) == 120


# What hang-ups teach.


def learn(*hang_ups: tuple[float, float]) -> HangUps | None:
    """What is known after hang-ups, each a moment and the wait before it."""
    seen = None
    for at, waited_s in hang_ups:
        seen = after_hang_up(seen, waited_s, at)
    return seen


@rows(
    ("hang_ups", "expected_s"),
    [
        ([], UNKNOWN_S),
        ([(10, 20), (40, 20), (70, 20)], 20),
        ([(10, 20), (40, 20)], UNKNOWN_S),
        ([(10, 20), (10.1, 20), (10.2, 20), (10.3, 20)], UNKNOWN_S),
        ([(10, 20), (40, 50), (70, 20), (100, 50)], UNKNOWN_S),
        ([(10, 20), (40, 20.4), (70, 20.2)], 20.4),
        ([(10, 1), (40, 1), (70, 1), (90, 1)], UNKNOWN_S),
        ([(10, 20), (40, 20), (70, 20), (80, 6)], 20),
        ([(10, 20), (40, 20), (70, 20), (80, 60)], UNKNOWN_S),
        ([(10, 20), (40, 20), (70 + FORGET_S, 20)], UNKNOWN_S),
        ([(10, 400), (420, 400), (520, 400)], UNKNOWN_S),
    ],
)
def test_a_timeout_repeats_at_a_like_wait(hang_ups: list[tuple[float, float]], expected_s: float) -> None:
    """Three moments alike teach; a program that is stopped, waits that differ, short ones and old ones do not."""
    seen = learn(*hang_ups)

    assert patience_s(seen, hang_ups[-1][0] if hang_ups else 0.0) == expected_s


MOMENTS = st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 1000.0)), max_size=12)


@given(MOMENTS, st.floats(0.0, 1000.0))
def test_what_is_learned_is_bounded_and_forgotten(steps: list[tuple[float, float]], later_s: float) -> None:
    """Between 5 s and 5 minutes, only after three moments, and unknown again after five minutes without a hang-up."""
    now, seen, counted = 0.0, None, 0
    for step_s, waited_s in steps:
        now += step_s
        before, seen = seen, after_hang_up(seen, waited_s, now)
        counted += seen is not before
        learned_s = patience_s(seen, now)
        assert SHORTEST_S <= learned_s <= UNKNOWN_S
        assert learned_s == UNKNOWN_S or counted >= FEWEST_MOMENTS
        assert seen is None or waited_s < SHORTEST_S or learned_s == UNKNOWN_S or waited_s <= seen.wait_s
    if later_s >= FORGET_S:
        assert patience_s(seen, now + later_s) == UNKNOWN_S


@given(st.lists(st.floats(0.0, 0.99 * MOMENT_S), max_size=50), st.floats(SHORTEST_S, 300.0))
def test_one_moment_teaches_nothing(ages_s: list[float], waited_s: float) -> None:
    """However many calls a program had under way when it was stopped, of whatever ages."""
    seen = learn(*sorted((NOW + age_s, waited_s + age_s) for age_s in ages_s))

    assert patience_s(seen, NOW + MOMENT_S) == UNKNOWN_S


@given(st.floats(SHORTEST_S, 200.0), st.lists(st.tuples(st.floats(1.0, 60.0), st.floats(0.0, 0.04)), min_size=3))
def test_a_clients_own_timeout_is_found(timeout_s: float, hang_ups: list[tuple[float, float]]) -> None:
    """Whenever its calls began, and as late as it may notice."""
    now, seen = NOW, None
    for step_s, late in hang_ups:
        now += max(step_s, MOMENT_S) + 1e-6
        seen = after_hang_up(seen, timeout_s * (1 + late), now)

    assert timeout_s <= patience_s(seen, now) <= min(timeout_s * 1.05, UNKNOWN_S)


def test_few_clients_are_remembered() -> None:
    """The one whose last hang-up is the longest ago is forgotten first."""
    table = ClientPatience()
    often, seldom = ClientName("k", b"often"), ClientName("k", b"seldom")
    for moment in range(FEWEST_MOMENTS):
        table.hung_up(seldom, 20.0, NOW + moment * MOMENT_S)
    for number in range(MOST_CLIENTS):
        if number % 100 == 0:
            table.hung_up(often, 20.0, NOW + number / 10)
        table.hung_up(ClientName("k", b"%d" % number), 20.0, NOW + number / 10)

    now = NOW + MOST_CLIENTS / 10
    assert len(table) == MOST_CLIENTS
    assert [table.of(client, now) for client in (often, seldom)] == [20.0, UNKNOWN_S]
    assert list(table.learned(now)) == [(often, 20.0)]


# Through the edge.


def hung() -> Script:
    """A provider that does not answer."""
    return Script(chunks=[asyncio.Event()])


async def hang_up(gateway: Front, after_s: float, *headers: str, beside: int = 0) -> float:
    """One call whose client leaves after so long; returns the deadline that it had, in seconds. Others run `beside` it."""
    sent = len(gateway.bench.upstreams[0].sent)
    async with connect(gateway.url) as peer:
        peer.send(ask("/v1/chat/completions", *headers, stream=False))
        await until(lambda: len(gateway.bench.upstreams[0].sent) > sent)
        calls = [one.call for one in gateway.inflight.serving if one.call is not None]
        youngest = max(calls, key=lambda call: call.request.received_at)
        gateway.bench.clock.now += after_s
    await until(lambda: len(gateway.inflight.serving) == beside)
    return youngest.request.deadline - youngest.request.received_at


OURS = "user-agent: impatient/1"


async def test_calls_of_a_client_that_hangs_up_wait_no_longer_than_it_does() -> None:
    """From the fourth on; those of other clients, of SDKs and with a lane or a deadline of their own wait as before."""
    async with front(*[hung() for _ in range(20)]) as gateway:
        waited = [await hang_up(gateway, 10.0, OURS) for _ in range(FEWEST_MOMENTS + 1)]
        others = [
            await hang_up(gateway, 0.0, *headers)
            for headers in (
                ["user-agent: patient/1"],
                [],
                [OURS, "x-stainless-retry-count: 0"],
                [OURS, "x-gateway-lane: interactive"],
                [OURS, "x-gateway-deadline-ms: 40000"],
            )
        ]
        gateway.bench.clock.now += FORGET_S
        later = await hang_up(gateway, 0.0, OURS)

    assert waited == [UNKNOWN_S] * FEWEST_MOMENTS + [10.0]
    assert others == [UNKNOWN_S, UNKNOWN_S, SDK_S, 30.0, 40.0]
    assert later == UNKNOWN_S


async def test_a_client_with_a_more_patient_call_is_not_taken_for_impatient() -> None:
    """Several programs may share a key and a user agent: one's timeout is not the others'."""
    async with front(*[hung() for _ in range(20)]) as gateway, connect(gateway.url) as patient:
        patient.send(ask("/v1/chat/completions", OURS, stream=False))
        await until(lambda: len(gateway.bench.upstreams[0].sent) == 1)
        waited = [await hang_up(gateway, 10.0, OURS, beside=1) for _ in range(5)]

    assert waited == [UNKNOWN_S] * 5


# What is configured, and what is told.


@rows(
    ("key", "queue", "expected"),
    [
        (
            "",
            "default: {}",
            "the caller's own timeout; 600 s to start for an SDK that sends none, 300 s for other clients",
        ),
        (", lane: interactive", "default: {}", "30 s to start, from the lane"),
        (", lane: batch", "default: {}", "600 s to start, from the lane"),
        ("", "default: {lanes: {interactive: {deadline: 20s}}}", "20 s to start, from the lane"),
        ("", "default: {lanes: {batch: {deadline: 20s}}}", "the caller's own timeout; 600 s"),
    ],
)
def test_a_lane_is_chosen_by_a_key_or_a_deadline(tmp_path: Path, key: str, queue: str, expected: str) -> None:
    """As `gateway explain` tells it."""
    keys = f"keys:\n  - {{name: web, key: web-key-0123456789abcdef{key}}}\n"
    policy = load_text(tmp_path, with_policies(tmp_path, queue=queue) + keys)
    body = b'{"model": "gpt-4o", "messages": []}'

    told = explain(policy, body, path="/v1/chat/completions", key_name="web").splitlines()

    assert [line for line in told if line.startswith(f"deadline  {expected}")]


def test_operators_see_who_hangs_up() -> None:
    """Key, user agent, and for how long its calls wait."""
    table = ClientPatience()
    for moment in range(FEWEST_MOMENTS):
        table.hung_up(ClientName("web", b"impatient/1"), 20.0, NOW + moment * MOMENT_S)

    assert show_clients(table, NOW + 9) == [{"key": "web", "user_agent": "impatient/1", "waits_s": 20.0}]
    assert show_clients(table, NOW + 2 * FORGET_S) == []


async def test_a_refusal_names_what_helps() -> None:
    """Whoever has set no timeout is not told to set a longer one."""
    told = {}
    for is_callers in (True, False):
        bench = Bench([ScriptedUpstream(whole(), whole())], limits=[Limits(requests_per_min=1)])
        await bench.serve()
        with pytest.raises(WaitTooLong) as refusal:
            await bench.serve(deadline=bench.clock.now + 9, deadline_is_callers=is_callers)
        told[is_callers] = refusal.value.message

    assert "set a longer timeout" in told[True]
    assert "set a longer timeout" not in told[False]
    assert "'x-gateway-deadline-ms'" in told[False]
