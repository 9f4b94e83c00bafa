"""One call that is always refused: it waits alone, and a limit that everybody meets still holds everybody up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.core.limits.limit_table import Limits
from tests.rows import rows
from tests.sim.call import SimCall
from tests.sim.limits import Refill
from tests.sim.provider import Demand, Fault, Provider
from tests.sim.score import percentile
from tests.sim.traffic import Caller, Sizes, burst, poisson
from tests.sim.world import OPENAI, Site, World

ODD = 7777
"""Input tokens of the calls that are refused."""
WRITTEN = Limits(requests_per_min=6000, request_burst=100)


def is_odd(demand: Demand) -> bool:
    return demand.input_tokens == ODD


def refusing(
    asks_s: float | None,
    limits: Limits = WRITTEN,
    *,
    tenant: str = "a",
    calls: int = 1,
    deadline_s: float | None = None,
    refuses: Callable[[Demand], bool] = is_odd,
) -> tuple[World, list[SimCall], list[SimCall]]:
    """Five calls a second of tenant b for 25 s, and some of a tenant that are refused, from the first second on."""
    provider = Provider(
        "p0", [Refill("requests", 6000, 100)], headers="none", retry_after="ms", refuses=refuses, asks_s=asks_s
    )
    world = World([Site(provider, limits, OPENAI)])
    world.clock.start(poisson(world, Caller("interactive", ["b"]), 5, for_s=25))
    odd = Caller("interactive", [tenant], Sizes(ODD, output_tokens=1), deadline_s)
    world.clock.start(burst(world, odd, calls, at_s=1.0))
    world.run()
    alone = [call for call in world.calls if is_odd(call.demand)]
    return world, alone, [call for call in world.calls if not is_odd(call.demand)]


@rows(
    ("asks_s", "is_written", "tenant"),
    [
        (asks_s, is_written, tenant)
        for asks_s in (None, 0.5, 5.0, 60.0)
        for is_written in (True, False)
        for tenant in "ab"
    ],
)
def test_one_call_that_is_always_refused_waits_alone(asks_s: float | None, is_written: bool, tenant: str) -> None:
    """Whatever it is told, and whoever sends it: the others hardly wait, and none is lost."""
    _, alone, others = refusing(asks_s, WRITTEN if is_written else Limits(), tenant=tenant)

    assert [call.outcome for call in others] == ["ok"] * len(others)
    assert percentile([call.queue_s for call in others], 50) <= 0.05
    assert max(call.queue_s for call in others) <= 0.5
    assert all(call.outcome != "ok" and len(call.attempts) <= 12 for call in alone)


@pytest.mark.parametrize("asks_s", [None, 60.0])
def test_several_calls_of_a_kind_wait_without_the_others(asks_s: float | None) -> None:
    """Ten large calls of one tenant, all refused: those of another go on."""
    _, _, others = refusing(asks_s, calls=10)

    assert [call.outcome for call in others] == ["ok"] * len(others)
    assert percentile([call.queue_s for call in others], 50) <= 0.05
    assert max(call.queue_s for call in others) <= 3.0  # ten refusals without a word cut the rate first


@pytest.mark.parametrize("asks_s", [None, 5.0])
def test_a_call_that_was_refused_alone_is_served_once_it_is_taken(asks_s: float | None) -> None:
    """It is tried again at the end of its own wait, up to its deadline."""
    left = [3]

    def refuses(demand: Demand) -> bool:
        left[0] -= is_odd(demand)
        return is_odd(demand) and left[0] >= 0

    _, (alone,), _ = refusing(asks_s, refuses=refuses)

    assert alone.outcome == "ok"
    assert len(alone.attempts) == 4


@pytest.mark.parametrize("tenants", [["a"], ["a", "b", "c", "d"]])
def test_a_limit_that_everybody_meets_holds_everybody_up(tenants: list[str]) -> None:
    """A provider that asks for 30 s is asked by the first who is refused, and by one or two who look whether it is only he."""
    fault = Fault(2.0, 31.0, 429, retry_after_s=30.0)
    provider = Provider("p0", [Refill("requests", 6000, 100)], headers="none", retry_after="ms", faults=[fault])
    world = World([Site(provider, WRITTEN, OPENAI)])
    world.clock.start(poisson(world, Caller("batch", tenants), 5, for_s=30))
    world.run()

    assert world.score.count("ok") == len(world.calls)
    asked_at = sorted(attempt.started_at - world.started_at for call in world.calls for attempt in call.attempts)
    assert 2 <= sum(2.0 <= at < 31.0 for at in asked_at) <= 3
    assert sum(at >= 31.0 for at in asked_at[:-1]) > 0
