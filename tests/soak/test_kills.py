"""300 clients killed at random bytes, 100 times: nothing stays behind, and providers hear of it at once."""

from __future__ import annotations

import pytest

from gateway.emulator import EmulatorConfig
from tests.e2e.conftest import StartGateway
from tests.soak.kills import kill_round
from tests.soak.support import Held, descriptors, rss_kib, settled, spread, until_only

pytestmark = pytest.mark.soak

ROUNDS = 100
STREAMS = 300
ANSWER_BYTES = 4000
"""Below what a stream has sent when it is 2 s old."""


async def test_300_streams_killed_at_random_bytes_100_times_leak_nothing(
    start: StartGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sockets, tasks and descriptors return to what they were; every call is settled once, as left by its client."""
    emulator = EmulatorConfig(tokens_per_second=10, output_tokens=10_000, recorded_requests=0)
    gateway = await start(emulator=emulator)
    before = Held.by(gateway)
    calls, cancelled_after_s, memory = 0, [], []

    for seed in range(ROUNDS):
        done = await kill_round(gateway, STREAMS, seed, ANSWER_BYTES)
        await until_only(before, gateway)
        calls += done.calls
        cancelled_after_s += done.cancelled_after_s
        memory.append(rss_kib())

    with capsys.disabled():
        print(f"\n{ROUNDS} rounds of {STREAMS}: {calls} calls; left {Held.by(gateway)}, {descriptors()} descriptors")  # noqa: T201 - a sweep reports figures
        print(f"  client's kill to provider's news: {spread(cancelled_after_s)}")  # noqa: T201 - a sweep reports figures
        print(f"  RSS after round 1, 10, 50, 100 (KiB): {[memory[i] for i in (0, 9, 49, 99)]}")  # noqa: T201 - a sweep reports figures
    assert settled(gateway) == {"client_gone": calls}
