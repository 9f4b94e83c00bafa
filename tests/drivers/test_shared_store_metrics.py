"""The metrics of a store that replicas share."""

from __future__ import annotations

from gateway.core.ports import StoreHealth
from gateway.core.telemetry import Telemetry
from gateway.drivers.store import SharedStoreMetrics
from tests.core.test_telemetry import make, scrape

SHARED = ("state_", "replicas")


def meter() -> tuple[Telemetry, SharedStoreMetrics]:
    """Telemetry with the metrics of the store."""
    telemetry, _, _ = make()
    state = SharedStoreMetrics()
    telemetry.register(state)
    return telemetry, state


async def test_a_shared_store_is_up_or_not_and_its_changes_are_counted() -> None:
    """As it says of itself at the scrape; what happened in between is not lost."""
    telemetry, state = meter()
    state.set_state(StoreHealth(True, 1.0, "redis 7.0", 3, 100, 0))
    before = scrape(telemetry)

    state.changed(False)
    state.changed(True)
    state.changed(False)
    state.set_state(StoreHealth(False, 2.0, "no answer in 50 ms", 2, 120, 7, is_deaf=True))
    after = scrape(telemetry)

    assert [told["gateway_state_deaf[]"] for told in (before, after)] == [0, 1]
    names = ("state_up[]", "replicas[]", "state_operations_total[]", "state_failures_total[]")
    changes = [f"state_changes_total[('to', '{to}')]" for to in ("up", "gone")]
    assert [before[f"gateway_{name}"] for name in (*names, *changes)] == [1, 3, 100, 0, 0, 0]
    assert [after[f"gateway_{name}"] for name in (*names, *changes)] == [0, 2, 120, 7, 1, 2]


async def test_without_a_shared_store_nothing_is_said_of_one() -> None:
    """An alert on `gateway_state_up == 0` stays silent in memory mode."""
    telemetry, _ = meter()

    assert [name for name in scrape(telemetry) if name.removeprefix("gateway_").startswith(SHARED)] == []
