"""The process's own want of descriptors: clients leave room for the way out, calls wait, no target is blamed."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Callable

import httpx
import pytest

from gateway.core.errors import GatewayError
from gateway.core.http.client import pool as pools
from gateway.core.http.client.connection import LoopTurns
from gateway.core.http.client.exchange import WireTimeouts
from gateway.core.http.client.pool import Origin, OriginPool, is_own_want
from gateway.core.http.server import most_clients
from gateway.core.types import ErrorClass, Phase, UpstreamFailed
from tests.e2e.harness import Running, chat, connect, get, post, until
from tests.rows import rows
from tests.support.flow import Bench, Script, ScriptedUpstream

HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
TIMEOUTS = WireTimeouts(1.0, 1.0, 1.0, 1.0, 1.0)


@rows(("limit", "most"), [(256, 112), (1024, 496), (1_048_576, 524_272), (10, 1), (-1, float("inf"))])
def test_clients_leave_a_descriptor_for_each_calls_way_out(limit: int, most: float) -> None:
    """And some for the process itself; below 0 is no limit."""
    assert most_clients(limit) == most


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL])
def test_a_want_is_known_however_it_was_wrapped(number: int) -> None:
    """And a refused connection is none."""
    wrapped = httpx.ConnectError("no")
    wrapped.__cause__ = OSError(number, os.strerror(number))

    assert is_own_want(wrapped)
    assert not is_own_want(ConnectionRefusedError(errno.ECONNREFUSED, "refused"))


@pytest.mark.parametrize("number", [socket.EAI_AGAIN, socket.EAI_NONAME])
def test_a_name_that_is_not_resolved_for_want_of_a_descriptor_is_our_own_want(number: int) -> None:
    """The resolver's answer does not tell it apart from a name that nobody has; an open file does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wrapped = httpx.ConnectError("no")
    wrapped.__cause__ = socket.gaierror(number, "not resolved")
    next_descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(next_descriptor)
    with_room = is_own_want(wrapped)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_descriptor, hard))
        without_room = is_own_want(wrapped)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert (with_room, without_room) == (False, True)


class Open(asyncio.Transport):
    """A transport that is open, and no more."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def is_closing(self) -> bool:
        return False


class Dialler:
    """Fails so many times."""

    def __init__(self, fails: int, number: int) -> None:
        self.fails = fails
        self.number = number
        self.asked = 0

    async def __call__(self, make: Callable[[], asyncio.BaseProtocol], origin: Origin) -> None:
        self.asked += 1
        if self.asked <= self.fails:
            raise OSError(self.number, os.strerror(self.number))
        make().connection_made(Open())


async def opened(monkeypatch: pytest.MonkeyPatch, dialler: Dialler) -> tuple[OriginPool, BaseException | None]:
    """A pool that was asked for a connection, and what came of it; its clock goes on by a second for four tries."""
    monkeypatch.setattr(pools, "AGAIN_S", 0.0)
    pool = OriginPool(
        *(Origin("p.test", 80, None), LoopTurns()),
        max_connections=1, idle_expiry_s=9.0, now=lambda: dialler.asked / 4, dial=dialler,
    )  # fmt: skip
    try:
        await pool.connect(TIMEOUTS)
    except httpx.ConnectError as error:
        return pool, error
    return pool, None


async def test_a_connection_is_waited_for_that_no_descriptor_is_left_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is opened once there is one."""
    dialler = Dialler(3, errno.EMFILE)

    pool, error = await opened(monkeypatch, dialler)

    assert error is None
    assert (dialler.asked, pool.slots_taken) == (4, 1)


@pytest.mark.parametrize(("number", "asked"), [(errno.EMFILE, 5), (errno.ECONNREFUSED, 1)])
async def test_it_is_waited_for_as_long_as_a_connect_may_take(
    monkeypatch: pytest.MonkeyPatch, number: int, asked: int
) -> None:
    """And not at all where it is the other end that refuses."""
    dialler = Dialler(99, number)

    pool, error = await opened(monkeypatch, dialler)

    assert error is not None
    assert (dialler.asked, pool.slots_taken) == (asked, 0)


@pytest.mark.parametrize(("is_ours", "counted"), [(True, 0), (False, 3)])
async def test_no_target_is_blamed_for_a_want_of_our_own(is_ours: bool, counted: int) -> None:
    """However many calls have met it; the same from the other end counts."""
    failure = UpstreamFailed(ErrorClass.CONNECTION, Phase.NOTHING_SENT, "no", is_ours=is_ours)
    bench = Bench([ScriptedUpstream(*[Script(fails=failure)] * 3)])
    for _ in range(3):
        with pytest.raises(GatewayError):
            await bench.pipeline.handle(bench.call())
    line = bench.admission.gates.line(bench.policy.models["m"].targets[0], bench.call())

    assert line.gate.health.breaker.failures_in_a_row == counted


async def test_idle_connections_give_way_to_new_ones(gateway: Running) -> None:
    """The one that is idle for longest; a running call stays, and who comes waits for it where there is no other."""
    gateway.gateway._servers[0]._most_clients = 2
    gateway.script("ok", "ok", "stall;after_chunks=1")
    async with connect(gateway.url) as idle, connect(gateway.url) as busy:
        assert (await idle.exchange(post())).status == 200
        busy.send(post("/v1/chat/completions", chat(stream=True)))
        await until(lambda: gateway.upstream_calls() == 2)
        async with connect(gateway.url) as new:
            assert (await new.exchange(get("/healthz"))).status == 200
            assert await idle.rest() == b""
            async with connect(gateway.url) as newer:
                assert (await newer.exchange(get("/healthz"))).status == 200
                assert await new.rest() == b""
        assert (await busy.response()).status == 200


async def test_a_websocket_counts_among_clients_until_it_is_closed(gateway: Running) -> None:
    """It has a descriptor, and may need another for its way out; it does not give way."""
    server = gateway.gateway._servers[0]
    async with connect(gateway.url) as socket_end:
        socket_end.send(HANDSHAKE)
        assert b" 101 " in await socket_end.reader.readuntil(b"\r\n\r\n")
        server._most_clients = 1
        with_socket = server._wait_s(0)

    def is_free() -> bool:
        server.tick()
        return server._wait_s(0) == 0.0

    assert with_socket > 0
    await until(is_free)
