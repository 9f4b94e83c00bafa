"""Small calls beside large ones: fair by tokens within a second, and the large ones are not starved."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gateway.core.limits.limit_table import Limits
from gateway.core.types import Lane
from tests.sim.cases import slots_site
from tests.sim.limits import Refill
from tests.sim.provider import Latency, Provider
from tests.sim.score import percentile
from tests.sim.traffic import Caller, Sizes, burst, poisson
from tests.sim.world import OPENAI, Site, World

TPM = 60_000
LARGE, SMALL, MIDDLE = Sizes(10_000, output_tokens=1), Sizes(110, output_tokens=1), Sizes(500, output_tokens=1)
PATIENT_S = 600.0


def tokens_world(lane: Lane, large: int = 15, live: Caller | None = None) -> World:
    """A minute's tokens are there; tenant a sends calls of 10,000 at once, b two a second of 110 for 80 s."""
    provider = Provider("p0", [Refill("tokens", TPM)], headers="none", retry_after="ms")
    world = World([Site(provider, Limits(tokens_per_min=TPM), OPENAI)])
    if live is not None:
        world.offer(live.call(world))  # from now on the reserve for higher lanes is kept
    world.clock.start(burst(world, Caller(lane, ["a"], LARGE, PATIENT_S), large))
    world.clock.start(poisson(world, Caller(lane, ["b"], SMALL, PATIENT_S), 2, for_s=80))
    return world


def waits(world: World, tenant: str) -> list[float]:
    calls = [call for call in world.calls if call.request.tenant == tenant]
    assert all(call.outcome == "ok" for call in calls)
    return [call.queue_s for call in calls]


def test_small_calls_hardly_wait_behind_another_tenants_large_ones() -> None:
    """With a fifth of the limit, and a backlog beside them; the large ones wait longer by what the small ones took."""
    world = tokens_world("interactive")
    world.run()

    assert percentile(waits(world, "b"), 50) <= 0.1
    assert max(waits(world, "b")) <= 1.0
    taken = 80 * 2 * 110 + 15 * 10_000 - TPM
    assert max(waits(world, "a")) <= 1.1 * taken / (TPM / 60)


def test_a_large_call_saves_up_beside_a_flood_of_small_ones() -> None:
    """Each of three tenants gets its third: the one who uses less hardly waits, the one with large calls gets as much as he."""
    world = tokens_world("interactive", large=10)
    flood = Caller("interactive", ["c"], MIDDLE, PATIENT_S)
    world.clock.start(burst(world, flood, 200))
    world.run()

    assert percentile(waits(world, "b"), 50) <= 0.5
    assert percentile(waits(world, "b"), 90) <= 2.5  # in bursts it uses more than its third
    gaps = sorted(call.granted_at for call in world.calls if call.request.tenant == "a")[5:]
    assert max(after - before for before, after in pairwise(gaps)) <= 3 * 10.5


@pytest.mark.parametrize("size", [500, 2000])
def test_what_a_higher_lane_takes_is_lost_to_savings_alone(size: int) -> None:
    """Interactive calls take half of all: small batch calls do not wait until large ones have saved that up again."""
    live = Caller("interactive", ["i"], Sizes(size, output_tokens=1))
    world = tokens_world("batch", live=live)
    world.clock.start(poisson(world, live, 500 / size, for_s=80))
    world.run()

    assert percentile(waits(world, "b"), 90) <= 0.5
    assert max(waits(world, "b")) <= 4.0
    assert len(waits(world, "a")) == 15


def test_a_few_short_calls_wait_for_one_slot_at_most() -> None:
    """Of five, all held by another tenant for four seconds each, with sixty calls behind them."""
    world = World([slots_site(5, latency=Latency(4.0))])
    world.clock.start(burst(world, Caller("interactive", ["a"], LARGE, PATIENT_S), 60))
    world.clock.start(poisson(world, Caller("interactive", ["b"], SMALL, PATIENT_S), 0.3, for_s=45))
    world.run()

    assert max(waits(world, "b")) <= 4.0
    assert len(waits(world, "a")) == 60
