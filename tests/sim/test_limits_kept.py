"""The provider counts for itself: what admission lets through always fits, and what fits is let through."""

from __future__ import annotations

from collections.abc import Callable
from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.limits.limit_table import Limits
from gateway.core.snapshot import Counting, Holding
from gateway.core.types import Lane
from tests.sim.cases import (
    AZURES,
    MINUTE,
    TellsLimits,
    anthropic_site,
    azure_site,
    requests_site,
    slots_site,
    tokens_site,
    unbounded_site,
)
from tests.sim.limits import ProviderLimit, Refill, Windows
from tests.sim.oracle import Oracle, leftovers
from tests.sim.provider import Latency, Provider
from tests.sim.traffic import Caller, Sizes, burst, on_off, poisson
from tests.sim.world import OPENAI, Site, World

FEW = settings(max_examples=1 + settings().max_examples // 10, deadline=None, derandomize=True)


def both_limits(style: str, tells: TellsLimits) -> Site:
    """1,200 requests and 300,000 tokens a minute, counted as `style` says; windows begin with time."""
    headers = "none" if tells == "nothing" else "azure" if style == "azure" else "openai"
    limits = Limits(requests_per_min=1200, tokens_per_min=300_000)
    counting: Counting
    kept: list[ProviderLimit]
    if style == "refill":
        counting, charge = OPENAI, "max"
        kept = [Refill("requests", 1200), Refill("tokens", 300_000)]
    else:
        counting, charge = (AZURES if style == "azure" else MINUTE), "sum"
        # A window of ours begins with its first use, one of theirs by the clock: they are made to agree.
        kept = [
            Windows("requests", 1200, 10.0 if style == "azure" else 60.0, 20.0),
            Windows("tokens", 300_000, 60.0, 20.0),
        ]
    return Site(Provider("p0", kept, headers=headers, charge=charge), limits, counting)  # type: ignore[arg-type]  # literals


@FEW
@given(
    seed=st.integers(0, 10_000),
    load=st.floats(0.3, 4.0),
    style=st.sampled_from(["refill", "azure", "minute"]),
    tells=st.sampled_from(["headers", "nothing"]),
)
def test_what_is_let_through_always_fits(seed: int, load: float, style: str, tells: TellsLimits) -> None:
    """With estimates that are exact the provider refuses nothing, however calls come; all levels are whole in the end."""
    world = World([both_limits(style, tells)], seed=seed)
    oracle = Oracle(world)
    sizes = Sizes(150, 0.8, 80, 0.5)
    lanes: list[Lane] = ["interactive", "batch"]
    world.clock.start(burst(world, Caller("batch", ["c"], sizes), 400))
    for lane in lanes:
        caller = Caller(lane, ["a", "b"], sizes, deadline_s=90.0)
        world.clock.start(poisson(world, caller, load * 10, for_s=15))
        world.clock.start(on_off(world, caller, load * 20, on_s=1.0, off_s=3.0, for_s=15))

    world.run()

    assert world.providers["p0"].refused == 0
    assert oracle.wrongs == []
    assert leftovers(world) == []


@pytest.mark.parametrize("tells", ["headers", "nothing"])
@pytest.mark.parametrize("site_of", [tokens_site, anthropic_site])
def test_answers_of_unknown_length_cost_few_429s(tells: TellsLimits, site_of: Callable[..., Site]) -> None:
    """No `max_tokens`: whether answers count when they have come, or not at all, at most 1 % upstream 429s."""
    world = World([site_of(300_000, tells=tells)])
    caller = Caller(sizes=Sizes(300, 0.8, 300, 0.8, says_max=False), deadline_s=600)
    world.clock.start(burst(world, caller, 1200))

    world.run()

    assert world.score.count("ok") == 1200
    assert world.score.upstream_429_share <= 0.01


@pytest.mark.parametrize("tells", ["headers", "nothing"])
def test_requests_that_overtake_each_other_cost_few_429s(tells: TellsLimits) -> None:
    """Between 20 and 120 ms on the way: at most 1 % upstream 429s at full load."""
    latency = Latency(reach_s=0.02, reach_jitter_s=0.1)
    world = World([requests_site(tells=tells, latency=latency)])
    world.clock.start(burst(world, Caller(), 1500))

    world.run()

    assert world.score.count("ok") == 1500
    assert world.score.upstream_429_share <= 0.01


@FEW
@given(
    seed=st.integers(0, 10_000),
    load=st.floats(0.8, 3.0),
    kind=st.sampled_from(["requests", "tokens", "slots", "azure"]),
    lane=st.sampled_from(["interactive", "batch"]),
)
def test_no_room_is_left_unused_while_somebody_waits(seed: int, load: float, kind: str, lane: Lane) -> None:
    """Whenever the next call would be let in by the provider, it goes; what is kept from its lane does not count."""
    made_by: dict[str, Callable[[], Site]] = {
        "requests": requests_site,
        "tokens": tokens_site,
        "slots": slots_site,
        "azure": azure_site,
    }
    world = World([made_by[kind]()], Holding(reserve_percent=0.0 if kind == "azure" else 10.0), seed=seed)
    oracle = Oracle(world)
    oracle.watch_idleness(every_s=0.02, for_s=20)
    sizes = Sizes(600, 0.5, 300, 0.5)
    world.clock.start(burst(world, Caller(lane, ["a"], sizes, deadline_s=60.0), 600))
    world.clock.start(poisson(world, Caller(lane, ["b"], sizes, deadline_s=60.0), 50 * load, for_s=5))

    world.run(for_s=120)

    assert oracle.idle_s == 0
    assert oracle.wrongs == []


def test_a_server_that_queues_without_bound_is_not_flooded() -> None:
    """At 1.5 times its rate the adaptive cap keeps it busy, and its own queue short: the calls wait with us."""
    site = unbounded_site(best=16)
    world = World([site])
    most_per_s = 16 / 0.5 / exp(0.3**2 / 2)
    world.clock.start(poisson(world, Caller(deadline_s=600, stream=True), 1.5 * most_per_s, for_s=60))
    in_flight = []

    for _ in range(60):
        world.run(for_s=1)
        in_flight.append(site.provider.in_flight)

    served = sum(call.ended_at >= world.started_at + 20 for call in world.calls if call.outcome == "ok")
    assert served >= 0.85 * most_per_s * 40
    assert sorted(in_flight[20:])[20] <= 2 * 16
