"""Nothing stays behind: not when clients leave at any byte, not when they read slowly, not when providers die.

The long versions, with figures, are the sweeps in `tests/soak`.
"""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack

import pytest

from gateway.emulator.config import EmulatorConfig, Fault, FaultRule
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import chat, connect, post
from tests.soak.kills import kill_round
from tests.soak.support import Held, buffered_bytes, mortal, settled, until_only, until_still

STALLED_BYTES = 5000
"""Below what a stream has sent when it stalls after 40 tokens."""
STREAM_BYTES = 200_000 * 400
"""Of a stream that nobody reads, were it read to its end."""
HELD_LIMIT = 640 * 1024
"""Of one stream, in the gateway: both sides' marks of 64 KiB, and what one read of a full socket may bring beyond each."""


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_60_clients_killed_at_random_bytes_leak_nothing(start: StartGateway, seed: int) -> None:
    """Each provider hears of it; no socket, task or descriptor is left; every call is settled once."""
    stall = FaultRule(Fault("stall", after_chunks=40))
    gateway = await start(emulator=EmulatorConfig(faults=(stall,)))
    before = Held.by(gateway)

    done = await kill_round(gateway, 60, seed, STALLED_BYTES)

    await until_only(before, gateway)
    assert settled(gateway) == {"client_gone": done.calls}


async def test_20_clients_that_do_not_read_hold_up_their_providers_and_nobody_else(start: StartGateway) -> None:
    """The gateway holds a bounded part of each stream and the provider stops sending; others get all of theirs."""
    gateway = await start(emulator=EmulatorConfig(output_tokens=200_000, recorded_requests=0))
    gateway.gateway._servers[0]._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    stats = gateway.emulator.emulator.stats
    before = Held.by(gateway)

    async with AsyncExitStack() as clients:
        slow = [await clients.enter_async_context(mortal(gateway.url, receive_buffer=4096)) for _ in range(20)]
        for client in slow:
            await client.send(post(body=chat("long-name-" * 20, stream=True)))
        sent = await until_still(lambda: stats.bytes_out)
        held = buffered_bytes(gateway)
        async with connect(gateway.url) as peer:
            others = [await peer.exchange(post(body=chat(stream=True, max_tokens=20))) for _ in range(5)]
        for client in slow:
            await client.read(300_000)
        resumed = await until_still(lambda: stats.bytes_out)

    assert max(held) < HELD_LIMIT
    assert sent < 20 * STREAM_BYTES / 4
    assert [other.status for other in others] == [200] * 5
    assert all(other.body.endswith(b"data: [DONE]\n\n") for other in others)
    assert resumed > sent
    await until_only(before, gateway)
    assert settled(gateway) == {"client_gone": 20, "ok": 5}
