"""The script that counts leases does what its model does, and what replicas use together stays within the limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from itertools import count
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.drivers.redis.link import load_script
from gateway.fleet.lease import LeaseAsk, LeaseReply
from gateway.fleet.redis import pack_ask, read_reply
from tests.fleet.lease_fleet import (
    BEGIN,
    NEAR,
    SHAPES,
    Ask,
    Member,
    Plain,
    Shape,
    Worker,
    bursts,
    fair_shares,
)
from tests.support.redis_servers import RedisServer, redis_server


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


class Script:
    """The script itself, asked without a link; a key of its own for every limit."""

    def __init__(self, client: redis.Redis) -> None:
        self._script = client.register_script(load_script("lease").text)
        self._keys = count()
        self.client = client
        self.forget()

    def forget(self) -> None:
        """A new limit; of the old one the store knows nothing."""
        self._key = f"limit-{next(self._keys)}"

    def __call__(self, now: float, id: bytes, ask: LeaseAsk) -> LeaseReply:
        return read_reply(self._script(keys=[self._key], args=[repr(now), id, ask.kind, pack_ask(ask), 0]))


@pytest.fixture(scope="module")
def script(server: RedisServer) -> Iterator[Script]:
    with server.client() as client:
        yield Script(client)


AMOUNTS = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 5.0]), st.floats(0.0, 1.0).map(lambda part: part * 25))
STEPS = st.fixed_dictionaries(
    {
        "after_s": st.sampled_from([0.0, 0.0, 0.001, 0.05, 0.25, 0.7, 2.0, 6.0, 50.0]),
        "who": st.integers(0, 3),
        "uses": AMOUNTS,
        "gives": st.one_of(st.just(0.0), AMOUNTS),
        "wants": AMOUNTS,
        "first": st.one_of(st.just(0.0), AMOUNTS),
        "keep": st.sampled_from([0.0, 0.0, 0.1, 0.9]),
        "twist": st.sampled_from(
            [""] * 12 + ["lost", "lost", "late", "over", "refund", "forgets", "resize", "away", "low", "back", "lag"]
        ),
    }
)


def follow(shape: Shape, steps: Sequence[dict[str, Any]], script: Script) -> None:
    """Ask the script and the model the same things; what replicas hear depends on both saying the same."""
    plain, now = Plain(), BEGIN
    script.forget()
    members = [Member(b"replica-%d" % number, shape) for number in range(4)]
    earlier: list[tuple[bytes, LeaseAsk]] = []
    for step in steps:
        now += step["after_s"]
        member, twist = members[step["who"]], step["twist"]
        member.use(step["uses"] * shape.capacity / 25, now)
        member.end_calls(step["gives"])
        member.give_back(step["gives"])
        more = _twisted(twist, member, members, plain, script, now)
        now -= 30.0 if twist == "back" else 0.0
        ask = member.ask(step["wants"], step["first"], keep=step["keep"] * member.shape.capacity, **more)
        if twist == "late" and earlier:
            _same(script, plain, now, *earlier[len(earlier) // 2])
        reply = _same(script, plain, now, member.id, ask)
        earlier.append((member.id, ask))
        if twist != "lost":
            member.hear(reply, now)


def _twisted(
    twist: str, member: Member, members: list[Member], plain: Plain, script: Script, now: float
) -> dict[str, float]:
    shape = member.shape
    if twist == "over" and shape.kind != "slots":
        member.used += shape.capacity / 4
    elif twist == "refund" and shape.kind != "slots":
        member.used -= min(member.used, 2.0)
    elif twist == "forgets":
        plain.forget()
        script.forget()
        return {"known": shape.capacity / 3 if shape.kind == "bucket" else -1.0}
    elif twist == "resize":
        for each in members:
            each.shape = replace(
                shape, capacity=float(int(shape.capacity * 0.7) + 1), rate_per_s=shape.rate_per_s * 1.3
            )
    elif twist == "away":
        member.charged += shape.capacity / 10
        return {"away_s": 3.0, "away_rate_per_s": shape.rate_per_s / 4}
    elif twist == "low":
        return {"ceiling": shape.capacity / 5}
    elif twist == "lag":
        return {"lag_s": 0.3}
    return {}


def _same(script: Script, plain: Plain, now: float, id: bytes, ask: LeaseAsk) -> LeaseReply:
    reply, expected = script(now, id, ask), plain(now, id, ask)
    assert astuple(reply) == pytest.approx(astuple(expected), abs=NEAR), ask
    return reply


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.kind}-{shape.capacity:g}")
@settings(max_examples=20, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=5, max_size=40))
def test_script_and_model_say_the_same(shape: Shape, script: Script, steps: list[dict[str, Any]]) -> None:
    """Whatever replicas tell, in whatever order, the script answers as its model does."""
    follow(shape, steps, script)


HONEST = st.fixed_dictionaries(
    {
        "after_s": st.sampled_from([0.0, 0.001, 0.05, 0.05, 0.25, 0.25, 1.0, 3.0, 20.0]),
        "who": st.integers(0, 3),
        "uses": AMOUNTS,
        "gives": st.one_of(st.just(0.0), AMOUNTS),
        "wants": AMOUNTS,
        "first": st.one_of(st.just(0.0), AMOUNTS),
        "fate": st.sampled_from(["", "", "", "lost", "unsent", "twice", "late", "killed"]),
    }
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.kind}-{shape.capacity:g}")
@settings(max_examples=15, derandomize=True, deadline=None)
@given(steps=st.lists(HONEST, min_size=5, max_size=50))
def test_replicas_together_stay_within_the_limit(shape: Shape, steps: list[dict[str, Any]]) -> None:
    """Over any span no more is used than the capacity and what refilled, whatever is lost, told twice or late, or killed."""
    plain, now, fresh = Plain(), BEGIN, count(10)
    members = [Member(b"replica-%d" % number, shape) for number in range(4)]
    killed: list[tuple[float, Member]] = []
    uses: list[tuple[float, float]] = []
    asks: list[tuple[bytes, LeaseAsk]] = []
    for step in steps:
        now = _refresh(plain, members, now, step["after_s"])
        member = members[step["who"]]
        member.end_calls(step["gives"])
        uses.append((now, member.use(step["uses"], now)))
        member.give_back(step["gives"])
        if step["fate"] == "killed":
            killed.append((now, member))
            members[step["who"]] = Member(b"replica-%d" % next(fresh), shape)
        elif step["fate"] != "unsent":
            ask = member.ask(step["wants"], step["first"])
            asks.append((member.id, ask))
            if step["fate"] == "late":
                plain(now, *asks[len(asks) // 2])
            reply = plain(now, member.id, ask)
            if step["fate"] == "twice":
                assert plain(now, member.id, ask).granted == pytest.approx(reply.granted)
            if step["fate"] != "lost":
                member.hear(reply, now)
        assert _within(shape, members, [each for at, each in killed if at >= now - 3.0], uses)


def _refresh(asked: Ask, members: Sequence[Member], now: float, for_s: float) -> float:
    """Let time pass. Whoever is alive says so every second: one that does not is taken to have used what it held."""
    end = now + for_s
    while now < end:
        before, now = now, min(now + 1.0, end)
        if int(now) != int(before):
            for member in members:
                member.hear(asked(now, member.id, member.ask()), now)
    return now


def _within(shape: Shape, members: list[Member], dying: list[Member], uses: list[tuple[float, float]]) -> bool:
    if shape.kind == "bucket":
        return bursts(uses, shape.rate_per_s) <= shape.capacity + NEAR
    if shape.kind == "window":
        totals: dict[int, float] = {}
        for each in members + dying:
            for window, amount in each.used_in.items():
                totals[window] = totals.get(window, 0.0) + amount
        return all(amount <= shape.capacity + NEAR for amount in totals.values())
    return sum(each.held + each.in_use for each in members + dying) <= shape.capacity + NEAR


def play(asked: Ask, workers: Sequence[Worker], until_s: float, step_s: float) -> list[tuple[float, float]]:
    """So many seconds of work; whoever wants more asks again when it was told to. Returns what was admitted, in order."""
    for number in range(1, int(until_s / step_s) + 1):
        now = BEGIN + number * step_s
        for worker in workers:
            worker.step(now, step_s)
            want, first = worker.wish()
            if now >= worker.next_at and (want > 0 or now >= worker.next_at + 1.0):
                reply = asked(now, worker.member.id, worker.member.ask(want, first))
                worker.member.hear(reply, now)
                worker.next_at = now + max(0.05, reply.retry_s)
                worker.step(now, 0.0)
    return sorted(use for worker in workers for use in worker.admitted)


PARTS = {
    2: [0.6, 2.4],
    4: [0.1, 0.4, 1.0, 1.5],
    8: [0.05, 0.05, 0.1, 0.2, 0.4, 0.6, 0.6, 1.0],
}
"""The demand of each replica, as a part of the limit: uneven, and three times as much together."""


@pytest.mark.parametrize("replicas", PARTS)
def test_a_limit_is_used_up_and_no_more_and_shared_fairly(replicas: int, script: Script) -> None:
    """At three times the limit for a minute what is admitted is within 2 % of it, and max-min fair within 5 %."""
    shape = Shape("bucket", 50.0, 100.0)
    workers = [
        Worker(Member(b"replica-%d" % number, shape), part * shape.rate_per_s)
        for number, part in enumerate(PARTS[replicas])
    ]
    script.forget()

    uses = play(script, workers, 60.0, step_s=0.02)

    admitted = sum(calls for _, calls in uses)
    assert admitted == pytest.approx(shape.rate_per_s * 60 + shape.capacity, rel=0.02)
    assert bursts(uses, shape.rate_per_s) <= shape.capacity + NEAR
    mine = [worker.count(BEGIN + 20, BEGIN + 60.1) for worker in workers]
    fair = fair_shares([worker.per_s * 40 for worker in workers], shape.rate_per_s * 40)
    assert mine == pytest.approx(fair, rel=0.05)


def test_a_small_limit_is_exact(script: Script) -> None:
    """Eight replicas share three calls a minute: three at once, then one every twenty seconds, and each has its turn."""
    shape = Shape("bucket", 3 / 60, 3.0)
    workers = [Worker(Member(b"replica-%d" % number, shape), 1.0) for number in range(8)]
    script.forget()

    uses = play(script, workers, 103.0, step_s=0.1)

    assert [calls for _, calls in uses] == [1.0] * 8
    assert bursts(uses, shape.rate_per_s) <= shape.capacity + NEAR
    assert uses[3][0] - uses[0][0] == pytest.approx(20.0, abs=1.2)  # it refills from when the first use is told
    assert [at - uses[3][0] for at, _ in uses[4:]] == pytest.approx([20.0, 40.0, 60.0, 80.0], abs=0.6)
    assert all(worker.admitted for worker in workers)
