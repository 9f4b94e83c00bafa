"""Faults of the server as a whole, over real sockets: killed, reset, swallowed, and back again."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig, parse_rule
from tests.emulator.conftest import (
    FakeClock,
    Seen,
    StartServer,
    chat_body,
    connect,
    exchange,
    raw_request,
    until,
)


async def fail(server: EmulatorServer, *faults: str) -> None:
    """Put these in force."""
    await server.configure(faults=tuple(parse_rule(fault) for fault in faults))


async def outcome(server: EmulatorServer) -> str:
    """What comes of a call on a new connection."""
    patience_s = 0.05 if server.connection_fault == "blackhole" else 5.0
    try:
        seen = await asyncio.wait_for(exchange(server, chat_body()), patience_s)
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silence"
    return "reset" if seen.is_reset else str(seen.status)


@pytest.mark.parametrize(
    ("fault", "meanwhile"), [("refuse", "refused"), ("reset_on_accept", "reset"), ("blackhole", "silence")]
)
async def test_a_server_can_fail_and_come_back(start_server: StartServer, fault: str, meanwhile: str) -> None:
    """On the same port, as often as one likes."""
    server = await start_server()
    outcomes = []

    for faults in ((), (fault,), (), (fault,), ()):
        await fail(server, *faults)
        outcomes.append(await outcome(server))

    assert outcomes == ["200", meanwhile, "200", meanwhile, "200"]
    assert server.emulator.stats.total == 3


async def test_one_failure_can_follow_another(start_server: StartServer) -> None:
    """Without a good moment between them."""
    server = await start_server()
    outcomes = []

    for fault in ("refuse", "blackhole", "reset_on_accept", "refuse", "reset_on_accept", "blackhole", "refuse"):
        await fail(server, fault)
        outcomes.append(await outcome(server))

    assert outcomes == ["refused", "silence", "reset", "refused", "reset", "silence", "refused"]


async def test_only_the_last_wish_counts(start_server: StartServer) -> None:
    """However fast they come."""
    server = await start_server()

    for fault in ("refuse", "blackhole", "reset_on_accept"):
        server.emulator.configure(EmulatorConfig(faults=(parse_rule(fault),)))
    await server.configure(faults=())

    assert await outcome(server) == "200"


@pytest.mark.parametrize(("fault", "is_reset"), [("refuse", False), ("reset_on_accept", True)])
async def test_open_connections_end_with_the_server(start_server: StartServer, fault: str, is_reset: bool) -> None:
    """In the middle of an answer too."""
    server = await start_server()
    await fail(server, "stall;after_chunks=1")
    call = asyncio.create_task(exchange(server, chat_body(stream=True)))
    await until(lambda: server.emulator.stats.bytes_out > 100)

    await fail(server, fault)

    seen = await call
    assert b"[DONE]" not in seen.data
    assert seen.is_reset is is_reset


async def test_a_swallowed_request_is_answered_when_the_server_is_back(start_server: StartServer) -> None:
    """On a connection that was open before, nothing is lost, only late."""
    server = await start_server()
    reader, writer = await connect(server)
    writer.write(raw_request("/v1/chat/completions", chat_body(), close=False))
    await reader.readuntil(b"\r\n\r\n")
    await fail(server, "blackhole")
    writer.write(raw_request("/v1/chat/completions", chat_body()))
    for _ in range(20):
        await asyncio.sleep(0)
    assert server.emulator.stats.total == 1

    await fail(server)

    assert b"HTTP/1.1 200 OK" in await reader.read()
    writer.close()


@pytest.mark.parametrize("fault", ["refuse", "reset_on_accept", "blackhole"])
async def test_who_controls_keeps_the_connection(start_server: StartServer, fault: str) -> None:
    """Or a server that was killed over HTTP could not be brought back."""
    server = await start_server()
    async with httpx.AsyncClient(base_url=server.url) as control:
        await control.post("/__emulator/config", json={"faults": [fault]})
        assert await outcome(server) != "200"

        answer = await control.post("/__emulator/config", json={"faults": []})

    assert answer.status_code == 200
    assert await outcome(server) == "200"


async def test_the_schedule_kills_and_revives(start_server: StartServer, clock: FakeClock) -> None:
    """As the emulator's clock goes, without anybody's doing."""
    server = await start_server(EmulatorConfig(faults=(parse_rule("refuse;from_s=10;on_s=2;off_s=3"),)), now=clock.now)
    outcomes = []

    for at_s, fault in ((1009.0, None), (1010.0, "refuse"), (1012.0, None), (1015.0, "refuse")):
        clock.at_s = at_s
        await until(lambda: server.connection_fault == fault)  # noqa: B023  # it is awaited here
        outcomes.append(await outcome(server))

    assert outcomes == ["200", "refused", "200", "refused"]


async def test_a_dead_servers_port_stays_its_own(start_server: StartServer) -> None:
    """Nobody else can take it, and it is free once the server has stopped."""
    server = await start_server()
    await fail(server, "refuse")
    port = int(server.url.rpartition(":")[2])
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("127.0.0.1", port))

    await server.stop()

    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


@pytest.mark.parametrize("fault", ["refuse", "reset_on_accept", "blackhole"])
async def test_a_failing_server_stops_cleanly(start_server: StartServer, fault: str) -> None:
    """In whatever state it is."""
    server = await start_server()
    await fail(server, fault)

    await server.stop()
    await server.stop()

    assert await outcome(server) == "refused"


async def test_load_beyond_the_capacity_slows_every_call(start_server: StartServer) -> None:
    """Three times the calls, three times the wait; the first two came in time."""
    slept: list[float] = []
    full = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 6:
            full.set()
        await full.wait()

    server = await start_server(EmulatorConfig(ttft_s=1.0, capacity=2), sleep=sleep)

    seen: list[Seen] = await asyncio.gather(*(exchange(server, chat_body()) for _ in range(6)))

    assert [each.status for each in seen] == [200] * 6
    assert slept == [1.0, 1.0, 1.5, 2.0, 2.5, 3.0]
