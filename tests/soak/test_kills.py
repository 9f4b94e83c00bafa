"""300 clients killed at random bytes, 100 times: nothing stays behind, and providers hear of it at once."""

from __future__ import annotations

import pytest

from gateway.emulator.config import EmulatorConfig
from tests.e2e.conftest import StartGateway
from tests.soak.conftest import Report
from tests.soak.kills import kill_round
from tests.soak.support import Held, discard_log, rss_kib, settled, spread, until_only

pytestmark = pytest.mark.soak

ROUNDS = 100
STREAMS = 300
ANSWER_BYTES = 4000
"""Below what a stream has sent when it is 2 s old."""


async def test_300_streams_killed_at_random_bytes_100_times_leak_nothing(start: StartGateway, report: Report) -> None:
    """Sockets, tasks and descriptors return to what they were; every call is settled once, as left by its client."""
    emulator = EmulatorConfig(tokens_per_second=10, output_tokens=10_000, recorded_requests=0)
    gateway = await start(emulator=emulator)
    discard_log(gateway)
    before = Held.by(gateway)
    calls, memory = 0, []
    cancelled_after_s: list[tuple[float, str]] = []

    for seed in range(ROUNDS):
        done = await kill_round(gateway, STREAMS, seed, ANSWER_BYTES, over_s=1.0)
        await until_only(before, gateway)
        calls += done.calls
        cancelled_after_s += done.cancelled_after_s
        memory.append(rss_kib())

    report(
        f"{ROUNDS} rounds of {STREAMS} clients, {calls} calls; before {before}, after {Held.by(gateway)}\n"
        f"  from a client's kill to its provider's news: {spread([seconds for seconds, _ in cancelled_after_s])}\n"
        f"  the slowest: {sorted(cancelled_after_s)[-3:]}\n"
        f"  RSS after round 1, 10, 50 and 100, emulator and clients included: {[memory[i] for i in (0, 9, 49, 99)]} KiB"
    )
    assert settled(gateway) == {"client_gone": calls}
