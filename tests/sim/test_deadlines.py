"""What fits is served, what does not is refused at once with a time that holds, and nobody is kept past a deadline."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.call import SimCall
from tests.sim.cases import requests_site, slots_site
from tests.sim.oracle import Oracle, leftovers
from tests.sim.provider import Fault, Latency
from tests.sim.traffic import Caller, burst, obedient, poisson
from tests.sim.world import World

pytestmark = pytest.mark.soak  # `make sim` and `make soak`: what is proved of each part is proved again of the whole

FEW = settings(max_examples=8, deadline=None, derandomize=True)
RATE = 100.0


def test_what_fits_is_served_and_what_does_not_is_refused() -> None:
    """Of 2,000 calls with 5 s at 100 and then 100 a second, 600 fit: they are served, the others refused at once."""
    world = World([requests_site()])
    oracle = Oracle(world)
    world.clock.start(burst(world, Caller(deadline_s=5.0), 2000))

    world.run()

    served = world.score.count("ok")
    assert 0.95 * 570 <= served <= 600
    assert world.score.count("queue_wait_exceeds_deadline") == 2000 - served
    assert {call.ended_at - call.request.received_at for call in world.calls if call.outcome != "ok"} == {0.0}
    assert oracle.wrongs == []


@FEW
@given(
    seed=st.integers(0, 10_000),
    load=st.floats(0.8, 6.0),
    deadline_s=st.floats(0.2, 6.0),
    storm_s=st.sampled_from([0.0, 2.0]),
)
def test_nothing_goes_after_its_deadline(seed: int, load: float, deadline_s: float, storm_s: float) -> None:
    """No grant after a deadline, and what expires does so within a millisecond of it, storms or not; nothing is left."""
    faults = [Fault(1.0, 1.0 + storm_s, 429, retry_after_s=1.5)] if storm_s else []
    world = World([requests_site(faults=faults)], seed=seed)
    oracle = Oracle(world)
    for factor in (0.5, 1.0, 3.0):
        caller = Caller("interactive", ["a", "b"], deadline_s=factor * deadline_s)
        world.clock.start(poisson(world, caller, load * RATE / 3, for_s=3))

    world.run()

    assert oracle.wrongs == []
    assert leftovers(world) == []


@pytest.mark.parametrize("deadline_s", [0.5, 2.0, 8.0])
def test_who_comes_back_as_told_is_served(deadline_s: float) -> None:
    """99 of 100 callers who obey the Retry-After of their refusal are served, as long as nobody new takes their turns."""
    world = World([requests_site()])
    caller = Caller(deadline_s=deadline_s)
    came_back: list[SimCall] = []
    for number in range(1500):
        world.clock.start(obedient(world, caller, number, came_back))

    world.run()

    served = sum(call.outcome == "ok" for call in came_back)
    assert len(came_back) > 500
    assert served >= 0.99 * len(came_back)


def test_a_table_of_deadlines_is_kept() -> None:
    """While 1,000 calls wait, some come with deadlines from 1 to 30 s: who fits is served, who obeys, too."""
    world = World([requests_site()])
    came_back: list[SimCall] = []
    world.clock.start(burst(world, Caller(deadline_s=30), 1000))
    world.run(for_s=0.01)
    for deadline_s in (1.0, 2.0, 4.0, 8.0, 12.0, 30.0):
        for number in range(10):
            world.clock.start(obedient(world, Caller(deadline_s=deadline_s), number, came_back))

    world.run()

    first_tries = [call for call in world.calls[1000:] if call not in came_back]
    assert {
        call.request.deadline - call.request.received_at >= 8.9 for call in first_tries if call.outcome == "ok"
    } == {True}
    assert {call.ended_at - call.request.received_at for call in first_tries if call.outcome != "ok"} == {0.0}
    assert len(came_back) == 40
    assert {call.outcome for call in came_back} == {"ok"}


def test_a_slow_target_with_few_slots_refuses_early_too() -> None:
    """Once it is known how long answers take, calls that would wait too long for a slot are refused, the rest served."""
    world = World([slots_site(20, latency=Latency(ttft_s=1.0, sigma=0.3))])
    oracle = Oracle(world)
    world.clock.start(poisson(world, Caller(deadline_s=5.0), 60, for_s=60))

    world.run()

    assert oracle.wrongs == []
    assert world.score.count("ok") >= 0.9 * 20 * 60
    assert world.score.count("queue_deadline_exceeded") <= 0.05 * world.score.offered
