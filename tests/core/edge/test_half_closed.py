"""Clients that end their side of the connection behind their request: some still read, most have left."""

from __future__ import annotations

import asyncio
import socket
import struct

import orjson
import pytest

from gateway.core.http import connection as half_closed
from tests.e2e.harness import Running, chat, connect, get, post, until

CHAT = "/v1/chat/completions"
WHOLE, STREAM = post(CHAT, orjson.dumps(chat())), post(CHAT, orjson.dumps(chat(stream=True)))
OLD, OLD_STREAM, OLD_HEALTH = (each.replace(b"HTTP/1.1", b"HTTP/1.0") for each in (WHOLE, STREAM, get("/healthz")))


def sweep(gateway: Running, later_s: float) -> None:
    """What housekeeping does, as if it were this much later."""
    now = asyncio.get_running_loop().time() + later_s
    for connection in list(gateway.connections):
        connection.sweep(now, 30.0, 75.0, 60.0)


async def sent_and_ended(gateway: Running, request: bytes) -> bytes:
    """All that comes back for a request with nothing behind it."""
    async with connect(gateway.url) as peer:
        peer.send(request)
        peer.writer.write_eof()
        return await peer.reader.read()


@pytest.mark.parametrize("request_bytes", [WHOLE, STREAM, get("/healthz")], ids=["whole", "stream", "health"])
async def test_who_ends_its_side_gets_its_answer(gateway: Running, request_bytes: bytes) -> None:
    """Whole, and the connection ends behind it; before it nothing but interim responses."""
    said = await sent_and_ended(gateway, request_bytes)

    answer = said.replace(half_closed.PROBE, b"")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith((b"}", b"data: [DONE]\n\n\r\n0\r\n\r\n"))
    await gateway.idle()
    assert not gateway.connections


async def test_who_ends_its_side_is_waited_for_as_others_are(gateway: Running) -> None:
    """The provider takes its time: as long as the client reads, its call goes on; when it has left, it does not."""
    gateway.script("silence")
    stats = gateway.emulator.emulator.stats
    async with connect(gateway.url) as peer:
        peer.send(WHOLE)
        peer.writer.write_eof()
        assert await peer.reader.readexactly(len(half_closed.PROBE)) == half_closed.PROBE
        await until(lambda: stats.active == 1)
        sweep(gateway, 0.0)
        sweep(gateway, 5.0)
        (connection,) = gateway.connections
        assert not connection.transport.is_closing()

    sweep(gateway, 11.0)  # asks again, and is told by the system of who has left
    await until(lambda: half_closed.has_left(connection.transport))
    sweep(gateway, 12.0)
    await until(lambda: stats.cancelled == 1)
    await gateway.idle()


class Closing(asyncio.Transport):
    """A connection whose last bytes are on their way."""

    is_aborted = False

    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return True

    def abort(self) -> None:
        self.is_aborted = True


async def test_the_end_of_an_answer_is_not_thrown_away() -> None:
    """Who reads slowly gets what has not been sent yet, and is asked no more."""
    transport = Closing()
    loop = asyncio.get_running_loop()

    half_closed.HalfClosed(transport, loop).sweep(loop.time() + 11.0, is_waiting=True)

    assert not transport.is_aborted


@pytest.mark.parametrize("request_bytes", [WHOLE[:-1], OLD[:-1]], ids=["1.1", "1.0"])
async def test_who_has_not_said_all_has_left(gateway: Running, request_bytes: bytes) -> None:
    """A request without its end is none."""
    gateway.script("silence")

    assert await sent_and_ended(gateway, request_bytes) == b""

    await gateway.idle()


@pytest.mark.parametrize("request_bytes", [OLD, OLD_STREAM, OLD_HEALTH], ids=["whole", "stream", "health"])
async def test_http_1_0_gets_its_answer_too(gateway: Running, request_bytes: bytes) -> None:
    """What comes back is the answer and nothing before it: there are no interim responses in HTTP/1.0."""
    said = await sent_and_ended(gateway, request_bytes)

    assert said.startswith(b"HTTP/1.1 200 OK\r\n")
    assert said.endswith((b"}", b"data: [DONE]\n\n"))
    assert b"transfer-encoding" not in said
    await gateway.idle()
    assert not gateway.connections


async def test_http_1_0_that_ends_its_side_later_gave_up_waiting(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does a proxy that speaks it, and whose own client has left."""
    monkeypatch.setattr(half_closed, "RIGHT_BEHIND_S", -1.0)  # every end is late
    gateway.script("silence")

    assert await sent_and_ended(gateway, OLD) == b""

    await gateway.idle()


async def test_http_1_0_that_was_closed_all_the_same_is_noticed(gateway: Running) -> None:
    """The kernel asks, and a reset is its answer; nothing is read any more, so the sweep has to look."""
    gateway.script("silence")
    stats = gateway.emulator.emulator.stats
    async with connect(gateway.url) as peer:
        peer.send(OLD)
        peer.writer.write_eof()
        await until(lambda: stats.active == 1)
        sweep(gateway, 60.0)
        (connection,) = gateway.connections
        ours = connection.transport.get_extra_info("socket")
        assert not connection.transport.is_closing()
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        theirs = peer.writer.get_extra_info("socket")
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes by a reset

    await until(lambda: half_closed.has_left(connection.transport))
    sweep(gateway, 61.0)
    await until(lambda: stats.cancelled == 1)
    await gateway.idle()


async def test_where_the_system_does_not_tell_the_client_has_left() -> None:
    """A socket that is no TCP connection has no such state."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)

    assert half_closed.has_left(transport)

    transport.close()
    theirs.close()
