"""Clients that leave: they cost nothing afterwards, wherever they were."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.types import Lane
from tests.sim.cases import requests_site, slots_site
from tests.sim.clock import Task
from tests.sim.oracle import Oracle, leftovers
from tests.sim.provider import Latency
from tests.sim.traffic import Caller
from tests.sim.world import World

pytestmark = pytest.mark.soak  # `make sim` and `make soak`: what is proved of each part is proved again of the whole

FEW = settings(max_examples=9, deadline=None, derandomize=True)


@FEW
@given(
    seed=st.integers(0, 10_000),
    patience_s=st.floats(0.05, 5.0),
    kind=st.sampled_from(["requests", "slots", "told by nobody"]),
)
def test_clients_that_leave_take_nothing_with_them(seed: int, patience_s: float, kind: str) -> None:
    """Half of them leave, held or being served: all is given back, the others are served, in order."""
    latency = Latency(ttft_s=0.5, sigma=0.5)
    if kind == "slots":
        site = slots_site(30, latency=latency)
    else:
        is_told = kind == "requests"
        site = requests_site(latency=latency, is_configured=is_told, tells="headers" if is_told else "nothing")
    world = World([site], seed=seed)
    oracle = Oracle(world)
    lanes: list[Lane] = ["interactive", "batch", "background"]

    async def arrivals() -> None:
        for number in range(600):
            caller = Caller(lanes[number % 3], [f"t{number % 7}"], deadline_s=120.0)
            task = world.offer(caller.call(world, number))
            if number % 2:
                leaves_at = world.clock.now + world.random.expovariate(1 / patience_s)
                world.clock.call_at(leaves_at, task.cancel)
            await world.clock.sleep(0.004)

    world.clock.start(arrivals())
    world.run()

    stayed = [call for call in world.calls if call.outcome != "gone"]
    assert len(stayed) >= 300
    assert {call.outcome for call in stayed} == {"ok"}
    assert oracle.wrongs == []
    assert leftovers(world) == []


def test_ten_thousand_held_calls_can_leave_at_once() -> None:
    """All at the same moment: nothing is held any more, and nothing was sent for them."""
    world = World([requests_site(60, 1)])
    tasks: list[Task] = [world.offer(Caller("background").call(world)) for _ in range(10_000)]
    world.run(for_s=0.5)
    held = world.admission.queue.occupancy.calls

    for task in tasks:
        task.cancel()

    assert held == 9_999
    assert world.admission.queue.occupancy.calls == 0
    assert world.score.attempts == 1
    assert leftovers(world) == []
