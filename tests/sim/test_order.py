"""Who goes first: lanes, ageing, equal shares of tenants, and that everybody's turn comes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.snapshot import Holding
from gateway.core.types import Lane, QueueBounds
from tests.sim.call import SimCall
from tests.sim.cases import requests_site
from tests.sim.oracle import Oracle, leftovers
from tests.sim.score import jain, percentile
from tests.sim.traffic import Caller, Sizes, burst, clients, on_off, poisson
from tests.sim.world import World

pytestmark = pytest.mark.soak  # `make sim` and `make soak`: what is proved of each part is proved again of the whole

FEW = settings(max_examples=8, deadline=None, derandomize=True)
RATE = 100.0
MIXED = Sizes(input_tokens=300, input_sigma=1.0, output_tokens=150, output_sigma=0.7)


def charged(world: World, calls: Sequence[SimCall], tenant: str, since_s: float, until_s: float) -> float:
    """The tokens that a tenant was let through with between two moments."""
    begins, ends = world.started_at + since_s, world.started_at + until_s
    return sum(
        world.sites[0].provider.admission_charge(call.demand)
        for call in calls
        if call.request.tenant == tenant and begins <= call.granted_at < ends
    )


@FEW
@given(
    seed=st.integers(0, 10_000),
    load=st.floats(0.5, 3.0),
    reserve_percent=st.sampled_from([0.0, 10.0, 50.0]),
    two_targets=st.booleans(),
    age_after_s=st.sampled_from([1.0, 5.0, 60.0]),
)
def test_no_call_is_passed_by_one_of_a_lower_lane(
    seed: int, load: float, reserve_percent: float, two_targets: bool, age_after_s: float
) -> None:
    """Whoever waits in a higher lane goes first, but for the few that ageing lets through; all end, nothing is left."""
    sites = [requests_site(), *([requests_site(3000, 50, name="p1")] if two_targets else [])]
    bounds = QueueBounds(age_after_s={"batch": age_after_s, "background": age_after_s})
    world = World(sites, Holding(reserve_percent=reserve_percent), bounds, seed=seed)
    oracle = Oracle(world)
    rate = load * RATE * (1.5 if two_targets else 1) / 4
    lanes: list[Lane] = ["critical", "interactive", "batch", "background"]
    for lane in lanes:
        caller = Caller(lane, ["a", "b"], MIXED, deadline_s=20.0)
        world.clock.start(poisson(world, caller, rate, for_s=2.5))
        world.clock.start(on_off(world, caller, 2 * rate, on_s=0.3, off_s=1.0, for_s=2.5))

    world.run()

    assert oracle.wrongs == []
    assert oracle.aged <= 0.05 * oracle.contested + 2
    assert leftovers(world) == []


def test_ageing_gives_lower_lanes_their_share() -> None:
    """Under interactive calls that never let up, aged background calls get about `aged_percent` of the grants."""
    bounds = QueueBounds(age_after_s={"batch": 2.0, "background": 2.0}, aged_percent=5.0)
    world = World([requests_site()], bounds=bounds)
    oracle = Oracle(world)
    clients(world, Caller("interactive"), 400, for_s=40)
    world.clock.start(burst(world, Caller("background"), 1000, at_s=0.5))

    world.run(for_s=40)

    share = oracle.aged / oracle.contested
    assert 0.045 <= share <= 0.055
    assert oracle.wrongs == []


def test_nobody_starves() -> None:
    """Every call of every lane and tenant is served in the end, although the higher lanes are full all the time."""
    world = World([requests_site()], bounds=QueueBounds(age_after_s={"batch": 5.0, "background": 5.0}))
    oracle = Oracle(world)
    clients(world, Caller("interactive"), 300, for_s=30)
    clients(world, Caller("batch", deadline_s=300), 200, for_s=30)
    lowest = Caller("background", [f"t{number}" for number in range(20)])
    world.clock.start(burst(world, lowest, 100, at_s=1))

    world.run(for_s=120)

    assert world.score.count("ok") == len(world.calls)
    assert oracle.wrongs == []


@pytest.mark.parametrize("tenants", [10, 50])
def test_tenants_get_equal_shares_while_all_have_work(tenants: int) -> None:
    """By tokens, whatever the sizes of their calls: Jain's index is at least 0.98."""
    world = World([requests_site()])
    names = [f"t{number}" for number in range(tenants)]
    world.clock.start(burst(world, Caller("batch", ["first"]), 100))
    for number, name in enumerate(names):
        sizes = Sizes(100 * (1 + number % 7), 0.7, 50, 0.5)
        world.clock.start(burst(world, Caller("batch", [name], sizes), 3000 // tenants * (1 + number % 3)))

    world.run()

    own = {name: [call for call in world.calls if call.request.tenant == name] for name in names}
    all_until_s = min(max(call.granted_at for call in calls) for calls in own.values()) - world.started_at
    shares = [charged(world, calls, name, 1.0, all_until_s) for name, calls in own.items()]
    assert all_until_s > 5
    assert jain(shares) >= 0.98


def test_a_noisy_tenant_delays_itself_only() -> None:
    """100 to 1 in offered load, both more than their half: equal shares in tokens."""
    world = World([requests_site(1800, 30)])
    sizes = Sizes(300, 0.4, 150, 0.4)
    world.clock.start(poisson(world, Caller("interactive", ["noisy"], sizes), 2500, for_s=7))
    world.clock.start(poisson(world, Caller("interactive", ["quiet"], sizes), 25, for_s=7))

    world.run(for_s=7)

    noisy, quiet = (charged(world, world.calls, tenant, 1.5, 7) for tenant in ("noisy", "quiet"))
    assert noisy == pytest.approx(quiet, rel=0.05)


@pytest.mark.parametrize("per_s", [5, 20, 50])
def test_a_live_user_never_waits_behind_a_nightly_job(per_s: float) -> None:
    """Interactive calls during a backlog of 3,000 batch calls: their p99 wait is at most 1.2x that of an empty queue."""
    empty, full = World([requests_site()]), World([requests_site()])
    full.clock.start(burst(full, Caller("batch"), 3000))
    for world in (empty, full):
        world.clock.start(poisson(world, Caller("interactive"), per_s, for_s=25))
        world.run(for_s=28)

    p99_s = {world: percentile(world.score.waits["interactive"], 99) for world in (empty, full)}
    assert p99_s[full] <= 1.2 * p99_s[empty] + 1 / RATE
    assert len(full.score.waits["interactive"]) == len(empty.score.waits["interactive"])
