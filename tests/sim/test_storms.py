"""2,000 calls at once: the first item of what admission has to show, under virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.sim.cases import TellsLimits, azure_site, finished_s, requests_site, tokens_site
from tests.sim.oracle import Oracle
from tests.sim.provider import Fault, Latency, Provider
from tests.sim.traffic import Caller, Sizes, burst, clients
from tests.sim.world import Site, World

pytestmark = pytest.mark.soak  # `make sim` and `make soak`: what is proved of each part is proved again of the whole

CALLS = 2000
ANSWER_S = 0.3
PATIENT = Caller(deadline_s=600)
MIXED = Sizes(input_tokens=300, input_sigma=1.0, output_tokens=200, output_sigma=0.8)
EITHER = pytest.mark.parametrize("tells", ["headers", "nothing"])


def storm(sites: Sequence[Site], caller: Caller = PATIENT) -> World:
    """All calls at once, to the end; every promise kept, everybody served."""
    world = World(sites)
    oracle = Oracle(world)
    world.clock.start(burst(world, caller, CALLS))
    world.run()

    assert oracle.wrongs == []
    assert world.score.count("ok") == CALLS
    return world


@EITHER
def test_a_configured_request_limit_is_used_to_the_full(tells: TellsLimits) -> None:
    """100 at once, then 100 a second: within 1.05x of 19 s, with at most 1 % upstream 429s."""
    world = storm([requests_site(tells=tells)], Caller())

    assert finished_s(world) <= 1.05 * (19 + ANSWER_S)
    assert world.score.upstream_429_share <= 0.01


@EITHER
def test_a_configured_token_limit_is_used_to_the_full(tells: TellsLimits) -> None:
    """Mixed sizes, known exactly: all that the calls need, at the rate of the limit, and no 429."""
    world = storm([tokens_site(tells=tells)], Caller(sizes=MIXED, deadline_s=600))

    needed = sum(world.providers["p0"].admission_charge(call.demand) for call in world.calls)
    assert finished_s(world) <= 1.05 * ((needed - 600_000) / 10_000 + ANSWER_S)
    assert world.score.upstream_429_share == 0


@EITHER
@pytest.mark.parametrize("error_sigma", [0.1, 0.3])
def test_wrong_estimates_cost_few_429s(tells: TellsLimits, error_sigma: float) -> None:
    """Estimates that are off by a tenth, or by a third: at most 1 % upstream 429s, and still within 1.05x."""
    sizes = Sizes(300, 1.0, 200, 0.8, error_sigma=error_sigma)

    world = storm([tokens_site(tells=tells)], Caller(sizes=sizes, deadline_s=600))

    needed = sum(world.providers["p0"].admission_charge(call.demand) for call in world.calls)
    assert finished_s(world) <= 1.05 * ((needed - 600_000) / 10_000 + ANSWER_S)
    assert world.score.upstream_429_share <= 0.01


@EITHER
def test_two_targets_serve_the_sum_of_their_limits(tells: TellsLimits) -> None:
    """6,000 and 3,000 a minute: 150 at once, then 150 a second."""
    world = storm([requests_site(tells=tells), requests_site(3000, 50, name="p1", tells=tells)], Caller())

    assert finished_s(world) <= 1.05 * (1850 / 150 + ANSWER_S)
    assert world.score.upstream_429_share <= 0.01
    assert world.providers["p0"].served == pytest.approx(2 * world.providers["p1"].served, rel=0.05)


@EITHER
def test_azure_windows_are_filled_one_after_the_other(tells: TellsLimits) -> None:
    """1,000 in each 10 s: the second half goes when the second window begins."""
    world = storm([azure_site(tells=tells)], Caller())

    assert finished_s(world) <= 1.05 * (10 + ANSWER_S)
    assert world.score.upstream_429_share <= 0.01


@pytest.mark.parametrize("phase_s", [2.5, 7.0])
def test_azure_windows_are_found_where_they_are(phase_s: float) -> None:
    """Resets are told in whole seconds: the second window is used within a second of its beginning."""
    world = storm([azure_site(phase_s=phase_s)], Caller())

    assert finished_s(world) <= 10 - phase_s + 1 + ANSWER_S
    assert world.score.upstream_429_share <= 0.01


def test_a_limit_that_is_not_in_the_config_is_learned_from_headers() -> None:
    """Within 1.1x of the ideal, with at most 1 % upstream 429s."""
    world = storm([requests_site(is_configured=False)])

    assert finished_s(world) <= 1.1 * (19 + ANSWER_S)
    assert world.score.upstream_429_share <= 0.01


def test_a_limit_that_nobody_tells_is_found() -> None:
    """Within 1.5x of the ideal, with at most 3 % upstream 429s."""
    world = storm([requests_site(is_configured=False, tells="nothing")])

    assert finished_s(world) <= 1.5 * (19 + ANSWER_S)
    assert world.score.upstream_429_share <= 0.03


def test_a_target_without_any_limit_is_not_held_back_for_long() -> None:
    """Nobody tells a limit, and there is none: nobody is refused, 5,000 calls are answered within 10 s."""
    world = World([requests_site(10_000_000, 100_000, is_configured=False, tells="nothing")])
    world.clock.start(burst(world, Caller(), 5000))
    world.run()

    assert world.score.count("ok") == 5000
    assert finished_s(world) <= 10


@pytest.mark.parametrize(("retry_after_s", "share"), [(None, 0.85), (1.0, 0.5)])
@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_refusals_by_chance_hold_nobody_back_for_long(noise: float, retry_after_s: float | None, share: float) -> None:
    """No limit, and some 429s whatever the rate: soon most of what there is.

    Where each asks for a second of its own, that is kept until they are known to be chance: it takes longer.
    """
    faults = [Fault(0.0, 1e9, 429, retry_after_s, noise)]
    latency = Latency(0.02)
    provider = Provider("p0", latency=latency, headers="none", retry_after="ms", faults=faults)
    world = World([Site(provider)], keeps=False)
    clients(world, Caller("batch", deadline_s=600), 10)

    world.run(15)
    served = provider.served
    world.run(25)

    assert provider.served - served >= share * (1 - noise) * 25 * 10 / latency.ttft_s
