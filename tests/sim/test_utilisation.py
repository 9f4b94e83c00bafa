"""A batch alone at a provider whose limits are written down and told: all of the limit is used, however it is counted."""

from __future__ import annotations

import pytest

from gateway.core.limits.limit_table import Limits
from gateway.core.types import Lane
from tests.sim.limits import ProviderLimit, Refill, Sliding, Windows
from tests.sim.oracle import Oracle
from tests.sim.provider import Latency, Provider
from tests.sim.traffic import Caller, Sizes, workers
from tests.sim.world import OPENAI, Site, World

RPM, TPM, CALLS = 120.0, 20_000.0, 480
IDEAL_S = {
    "bucket of a second": 239.0,
    "bucket of a minute": 180.0,
    "sliding minute": 180.0,
    "minute by the clock": 140.0,
}
"""By how the provider counts: when it lets the last of the calls in if nothing is left unused."""


def kept(counted: str) -> list[ProviderLimit]:
    """The provider's limits; its clock's minute ends 20 s after time begins."""
    if counted == "bucket of a second":
        return [Refill("requests", RPM, RPM / 60), Refill("tokens", TPM)]
    if counted == "bucket of a minute":
        return [Refill("requests", RPM), Refill("tokens", TPM)]
    if counted == "sliding minute":
        return [Sliding("requests", RPM), Sliding("tokens", TPM)]
    return [Windows("requests", RPM, 60.0), Windows("tokens", TPM, 60.0)]


@pytest.mark.parametrize("lane", ["interactive", "batch", "background"])
@pytest.mark.parametrize("counted", IDEAL_S)
def test_a_lane_that_is_alone_gets_the_whole_limit(counted: str, lane: Lane) -> None:
    """480 calls, 100 at a time, on an idle gateway: at least 95 % of the limit is used, few are refused."""
    provider = Provider("p0", kept(counted), latency=Latency(0.6))
    world = World([Site(provider, Limits(requests_per_min=RPM, tokens_per_min=TPM, unstated_burst_s=10.0), OPENAI)])
    oracle = Oracle(world)
    workers(world, Caller(lane, sizes=Sizes(60, 0.3, 60), deadline_s=3600), 100, CALLS)

    world.run()

    assert world.score.count("ok") == CALLS
    last_s = max(call.granted_at for call in world.calls) - world.started_at
    assert IDEAL_S[counted] / last_s >= 0.95
    assert provider.refused <= 10
    assert oracle.wrongs == []
