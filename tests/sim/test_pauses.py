"""A provider asks to be left alone: it is, to the moment, and then nobody storms it."""

from __future__ import annotations

from typing import Literal

import pytest

from tests.sim.cases import TellsLimits, finished_s, requests_site
from tests.sim.oracle import Oracle, leftovers
from tests.sim.provider import Fault
from tests.sim.traffic import Caller, burst, poisson
from tests.sim.world import World

pytestmark = pytest.mark.soak  # `make sim` and `make soak`: what is proved of each part is proved again of the whole

RATE = 100.0


@pytest.mark.parametrize("tells", ["headers", "nothing"])
def test_a_storm_of_retry_after_is_sat_out(tells: TellsLimits) -> None:
    """`Retry-After: 5` for 60 s, 1,000 calls: nobody sees a 429, nothing goes in a pause, the drain starts at its end."""
    site = requests_site(tells=tells, faults=[Fault(0.0, 60.0, 429, retry_after_s=5.0)])
    site.provider.retry_after = "ms"
    world = World([site])
    oracle = Oracle(world)
    world.clock.start(burst(world, Caller("batch"), 1000))

    world.run()

    first_s = min(call.granted_at for call in world.calls) - world.started_at
    last_refusal_s = 55.0 + 12 * site.provider.latency.refusal_s
    assert world.score.count("ok") == 1000
    assert oracle.wrongs == []
    assert first_s <= last_refusal_s + 5.0 + 0.05
    assert finished_s(world) <= 1.05 * (first_s + 1000 / RATE + 0.3)
    assert leftovers(world) == []


def test_a_storm_that_spares_some_is_sat_out() -> None:
    """Half of all requests are refused for 60 s: once that is over, the backlog drains at the full rate again.

    The rate that the refusals seem to show is one a second by then; twenty seconds without a refusal disprove it.
    """
    world = World([requests_site(faults=[Fault(0.0, 60.0, 429, retry_after_s=5.0, share=0.5)])])
    oracle = Oracle(world)
    world.clock.start(burst(world, Caller("batch"), 1000))

    world.run()

    assert world.score.count("ok") == 1000
    assert oracle.wrongs == []
    assert finished_s(world) <= 60 + 20 + 1.5 * 1000 / RATE


@pytest.mark.parametrize("tells", ["headers", "nothing"])
@pytest.mark.parametrize("pause_s", [0.5, 15.0])
def test_no_herd_follows_a_pause(tells: TellsLimits, pause_s: float) -> None:
    """A resumed target sees at most 1.2x of its rate in the first second, however full its bucket is by then."""
    site = requests_site(tells=tells, faults=[Fault(2.0, 2.05, 429, retry_after_s=pause_s)])
    site.provider.retry_after = "ms"
    world = World([site])
    oracle = Oracle(world)
    world.clock.start(poisson(world, Caller("interactive", deadline_s=120), 2 * RATE, for_s=2 + pause_s))

    world.run()

    resumed = min(call.granted_at for call in world.calls if call.granted_at > world.started_at + 2.0 + pause_s)
    first_second = sum(resumed <= call.granted_at < resumed + 1 for call in world.calls)
    assert first_second <= 1.2 * RATE
    assert first_second >= 0.8 * RATE
    assert oracle.wrongs == []


@pytest.mark.parametrize("how", [500, 0])
def test_an_outage_of_the_primary_is_served_by_the_fallback(how: Literal[500, 0]) -> None:
    """Calls that fail go to the fallback; nothing leaks at either."""
    primary = requests_site(faults=[Fault(1.0, 4.0, how)])
    world = World([primary, requests_site(name="p1", is_fallback=True)])
    oracle = Oracle(world)
    world.clock.start(poisson(world, Caller("interactive"), 0.5 * RATE, for_s=6))

    world.run()

    assert world.score.count("ok") == len(world.calls)
    assert oracle.wrongs == []
    assert leftovers(world) == []


def test_a_total_outage_costs_one_attempt_per_target() -> None:
    """Nobody is tried twice for one call, and everything is given back."""
    outage = [Fault(0.0, 10.0, 500)]
    world = World([requests_site(faults=outage), requests_site(name="p1", faults=outage, is_fallback=True)])
    world.clock.start(poisson(world, Caller("interactive"), 0.5 * RATE, for_s=6))

    world.run()

    assert world.score.count("failed") == len(world.calls)
    assert max(len(call.attempts) for call in world.calls) == 2
    assert leftovers(world) == []
