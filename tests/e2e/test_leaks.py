"""Nothing stays behind: not when clients leave at any byte, not when they read slowly, not when providers die.

The long versions, with figures, are the sweeps in `tests/soak`.
"""

from __future__ import annotations

import pytest

from gateway.emulator import EmulatorConfig, Fault, FaultRule
from tests.e2e.conftest import StartGateway
from tests.soak.kills import kill_round
from tests.soak.support import Held, settled, until_only

STALLED_BYTES = 5000
"""Below what a stream has sent when it stalls after 40 tokens."""


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_60_clients_killed_at_random_bytes_leak_nothing(start: StartGateway, seed: int) -> None:
    """Each provider hears of it; no socket, task or descriptor is left; every call is settled once."""
    stall = FaultRule(Fault("stall", after_chunks=40))
    gateway = await start(emulator=EmulatorConfig(faults=(stall,)))
    before = Held.by(gateway)

    done = await kill_round(gateway, 60, seed, STALLED_BYTES)

    await until_only(before, gateway)
    assert settled(gateway) == {"client_gone": done.calls}
