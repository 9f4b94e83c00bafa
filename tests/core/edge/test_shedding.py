"""Refusals of a gateway that has too much to do: whom, how early, and what its client is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import (
    MAX_RETRY_AFTER_S,
    AdmissionDenied,
    GatewayError,
    GatewayOverloaded,
    KeyRateLimited,
    QueueDeadlineExceeded,
    QueueFull,
    QuotaExhausted,
    RequestExceedsLimits,
    WaitTooLong,
)
from gateway.core.render import error_headers
from gateway.core.snapshot import Key
from gateway.core.types import LANES, Lane, QueueBounds
from tests.core.edge.test_keepalive import CHAT, Front, front
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import config_of, connect, post, until
from tests.rows import rows
from tests.support.flow import ANSWER, JSON, Script

SHED = "default: {shed: {memory: 300MiB}}\n"
LATE_S = 9.0
"""More loop lag than the default allows."""


def key_of(lane: Lane) -> Key:
    """The key of this name, whose secret is its name."""
    own: Lane = "interactive" if lane == "critical" else lane
    return Key(lane, lane, sha256(lane.encode()).digest(), lane=own, critical=lane == "critical")


@asynccontextmanager
async def overloaded(level: int, answers: int = 4) -> AsyncIterator[Front]:
    """A gateway that sheds at this level, with a key for every lane, before a provider that answers."""
    keys = [key_of(lane) for lane in LANES]
    scripts = [Script(200, (JSON,), [ANSWER]) for _ in range(answers)]
    async with front(*scripts, keys={key.digest: key for key in keys}) as gateway:
        for _ in range(level):
            gateway.overload.observe(0.0, None, 0, LATE_S, QueueBounds())
        yield gateway


def ask(lane: str, *headers: str, size: int = 0) -> bytes:
    """A request with the lane's key, and so many bytes more than it needs."""
    asks_for = [f"authorization: Bearer {lane}"] + ([f"x-gateway-lane: {lane}"] if lane == "critical" else [])
    return post(CHAT, {"model": "m", "user": "u" * size}, *asks_for, *headers)


@pytest.mark.parametrize(
    ("level", "served"),
    [
        (0, ["critical", "interactive", "batch", "background"]),
        (1, ["critical", "interactive", "batch"]),
        (2, ["critical", "interactive"]),
        (3, ["critical"]),
    ],
)
async def test_the_lowest_lanes_are_refused_and_the_others_served(level: int, served: list[str]) -> None:
    """On one connection, which stays as it is."""
    async with overloaded(level) as gateway, connect(gateway.url) as peer:
        answers = {lane: await peer.exchange(ask(lane)) for lane in LANES}

    assert [lane for lane, answer in answers.items() if answer.status == 200] == served
    refused = [lane for lane in answers if lane not in served]
    assert [answers[lane].error["code"] for lane in refused] == ["gateway_overloaded"] * level
    assert {lane: count for lane, count in gateway.overload.shed_total.items() if count} == dict.fromkeys(refused, 1)
    assert gateway.meter.refusals == [(CHAT, 503, "gateway_overloaded")] * level
    assert gateway.meter.began_count == len(served)


async def test_a_refusal_says_when_to_come_back() -> None:
    """In both headers, and to SDKs that it is worth it."""
    async with overloaded(2) as gateway, connect(gateway.url) as peer:
        answer = await peer.exchange(ask("batch", "x-request-id: mine-1"))

    assert answer.status == 503
    names = ("retry-after", "retry-after-ms", "x-should-retry", "x-request-id", "connection")
    assert [answer.header(name) for name in names] == ["2", "2000", "true", "mine-1", None]
    assert answer.error["type"] == "server_error"


async def test_a_refusal_does_not_wait_for_the_body() -> None:
    """Not a byte of it is needed, and none is kept; the connection serves the next request."""
    async with overloaded(2) as gateway, connect(gateway.url) as peer:
        large = ask("batch", size=5_000_000)
        cut = large.index(b"\r\n\r\n") + 4
        refused = await peer.exchange(large[:cut])
        peer.send(large[cut:])
        served = await peer.exchange(ask("interactive"))

    assert (refused.status, served.status) == (503, 200)


async def test_a_refusal_before_an_announced_body_closes_the_connection() -> None:
    """The client may send it or not: the next request could not be found."""
    async with overloaded(1) as gateway, connect(gateway.url) as peer:
        request = ask("background", "expect: 100-continue")
        answer = await peer.exchange(request[: request.index(b"\r\n\r\n") + 4])
        assert await peer.rest() == b""

    assert (answer.status, answer.header("connection")) == (503, "close")


async def test_what_is_wrong_anyway_is_not_called_overload() -> None:
    """A wrong key stays one, so does a lane that the key may not use; neither is counted as shed."""
    async with overloaded(3) as gateway, connect(gateway.url) as peer:
        unknown = await peer.exchange(ask("nobody"))
        forbidden = await peer.exchange(ask("background", "x-gateway-lane: interactive"))

    assert (unknown.status, forbidden.status) == (401, 403)
    assert set(gateway.overload.shed_total.values()) == {0}


async def test_calls_that_are_in_already_are_served() -> None:
    """Shedding is for those who come."""
    gate = asyncio.Event()
    async with front(Script(200, (JSON,), [gate, ANSWER])) as gateway, connect(gateway.url) as peer:
        peer.send(post(CHAT, {"model": "m"}))
        await until(lambda: len(gateway.bench.upstreams[0].sent) == 1)
        for _ in range(3):
            gateway.overload.observe(0.0, None, 0, LATE_S, QueueBounds())
        gate.set()
        served = await peer.response()
        refused = await peer.exchange(post(CHAT, {"model": "m"}))

    assert (served.status, refused.status) == (200, 503)


@given(st.floats(0, 100_000))
def test_whoever_obeys_retry_after_never_comes_too_early(retry_after_s: float) -> None:
    """Whole seconds are rounded up; the milliseconds are exact, but for the one that is begun."""
    headers = dict(error_headers(QueueFull("full", retry_after_s=retry_after_s), 0))
    seconds, milliseconds = int(headers[b"retry-after"]), int(headers[b"retry-after-ms"])

    assert seconds == ceil(milliseconds / 1000) >= 1
    assert milliseconds >= max(1, retry_after_s * 1000 - 1e-6)
    assert milliseconds < retry_after_s * 1000 + 1 or milliseconds == 1


@pytest.mark.parametrize(("retry_after_s", "shown"), [(4.2, b"4200"), (0.1, b"100"), (1.001, b"1001"), (0.0004, b"1")])
def test_a_whole_number_of_milliseconds_stays_what_it_is(retry_after_s: float, shown: bytes) -> None:
    """However floats see it."""
    assert dict(error_headers(QueueFull("full", retry_after_s=retry_after_s), 0))[b"retry-after-ms"] == shown


@rows(
    ("error", "status", "kind", "code", "should_retry"),
    [
        (KeyRateLimited("m", retry_after_s=3.0), 429, "rate_limit_error", "key_rate_limited", True),
        (QueueFull("m"), 503, "server_error", "queue_full", True),
        (WaitTooLong("m", retry_after_s=60.0), 503, "server_error", "queue_wait_exceeds_deadline", True),
        (WaitTooLong("m", retry_after_s=60.5), 503, "server_error", "queue_wait_exceeds_deadline", False),
        (QueueDeadlineExceeded("m"), 504, "timeout_error", "queue_deadline_exceeded", True),
        (QueueDeadlineExceeded("m", retry_after_s=61.0), 504, "timeout_error", "queue_deadline_exceeded", False),
        (RequestExceedsLimits("m"), 413, "invalid_request_error", "request_exceeds_limits", False),
        (QuotaExhausted("m", retry_after_s=9.0), 503, "server_error", "quota_exhausted", False),
        (GatewayOverloaded("m"), 503, "server_error", "gateway_overloaded", True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, GatewayError) else "",
)
def test_each_refusal_says_what_it_is_and_whether_to_come_back(
    error: GatewayError, status: int, kind: str, code: str, should_retry: bool
) -> None:
    """Never to an SDK that would not wait as long as it has to."""
    assert (error.status, error.type, error.code, error.should_retry) == (status, kind, code, should_retry)
    assert MAX_RETRY_AFTER_S == 60.0
    assert dict(error_headers(error, 0))[b"x-should-retry"] == (b"true" if should_retry else b"false")


@pytest.mark.parametrize("kind", [WaitTooLong, KeyRateLimited, QueueDeadlineExceeded, RequestExceedsLimits])
def test_the_limit_in_the_way_is_named(kind: type[AdmissionDenied] | type[RequestExceedsLimits]) -> None:
    """In a header of its own, where there is one."""
    named = dict(error_headers(kind("m", limit="openai/gpt-4o requests_per_min"), 0))

    assert named[b"x-gateway-limit"] == b"openai/gpt-4o requests_per_min"
    assert b"x-gateway-limit" not in dict(error_headers(kind("m"), 0))


async def test_after_a_peak_everybody_is_let_in_again(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With nothing in flight, memory that stays resident is given back, and what is left of it keeps nobody out."""
    resident, given_back = [200], []
    monkeypatch.setattr("gateway.housekeeping.resident_bytes", lambda: resident[0] * 1024 * 1024)
    monkeypatch.setattr("gateway.housekeeping.find_trim", lambda: lambda: given_back.append(resident[0]))
    (tmp_path / "queue.yaml").write_text(SHED)
    running = await start(lambda url: config_of(url, policies=str(tmp_path)))
    app = running.gateway
    batch = post(CHAT, None, "x-gateway-lane: batch")

    async with connect(running.url) as peer:
        for second in range(3):
            app._overload.observe(float(second), 400 * 1024 * 1024, 0, 0.0, app.policy.queue)
        assert (await peer.exchange(batch)).error["code"] == "gateway_overloaded"
        resident[0] = 374
        for second in range(3, 20):
            await app._housekeeping._watch_load(float(second), 0.0)
        assert (await peer.exchange(batch)).status == 200

    assert given_back
