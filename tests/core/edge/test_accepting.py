"""New connections: many at once, and none to be had."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from typing import Any

import pytest

from gateway.core.http import server as accepting
from gateway.core.http.server import PER_TURN, Acceptor, bind
from tests.e2e.harness import Running, connect, get, until


class Counting(asyncio.Protocol):
    """Counts connections."""

    def __init__(self, made: list[Any]) -> None:
        self._made = made

    def connection_made(self, transport: Any) -> None:
        self._made.append(transport)


async def test_a_burst_of_connections_is_taken_in_a_few_turns() -> None:
    """With one a turn, a health check behind 200 of them would wait for 200 turns of a busy loop."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(200)]
    made: list[Any] = []
    acceptor = Acceptor(listener, lambda: Counting(made))
    turns = 0
    while len(made) < len(clients):
        turns += 1
        assert turns < 60
        await asyncio.sleep(0.001)
    acceptor.close()
    for one in [*clients, *made]:
        one.close()

    assert turns <= 2 + 2 * len(clients) / PER_TURN


class NoDescriptors:
    """A listening socket of a process whose descriptors are used up."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.is_exhausted = True
        self.asked = 0

    def accept(self) -> Any:
        self.asked += 1
        if self.is_exhausted:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


async def test_used_up_descriptors_are_said_once_and_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log names the limit and the remedy, once a minute; who waits is served when there are some again."""
    monkeypatch.setattr(accepting, "RETRY_S", 0.002)
    listener = NoDescriptors(socket.create_server(("127.0.0.1", 0)))
    made: list[Any] = []
    acceptor = Acceptor(listener, lambda: Counting(made))  # type: ignore[arg-type]  # as good as a socket
    client = socket.create_connection(listener.getsockname())
    await until(lambda: listener.asked > 5)
    assert not made
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    listener.is_exhausted = False
    await until(lambda: bool(made))
    acceptor.close()
    for one in (client, *made):
        one.close()

    assert len(said) == 1
    assert "Too many open files" in said[0]
    assert "LimitNOFILE" in said[0]


async def test_a_stopped_gateway_has_no_listener_left(gateway: Running) -> None:
    """Newcomers are refused at once; who is there already is served."""
    async with connect(gateway.url) as peer:
        assert (await peer.exchange(get("/healthz"))).status == 200
        gateway.gateway.stop_accepting()
        assert (await peer.exchange(get("/healthz"))).status == 200
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", int(peer.writer.get_extra_info("peername")[1]))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="the system has one family alone")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_all_addresses_are_those_of_both_families(host: str) -> None:
    """`::` alone would be IPv6's: a health check at 127.0.0.1 found nobody."""
    listener = bind("::", 0)
    made: list[Any] = []
    acceptor = Acceptor(listener, lambda: Counting(made))
    client = socket.create_connection((host, listener.getsockname()[1]))
    await until(lambda: bool(made))
    acceptor.close()
    for one in (client, *made):
        one.close()


def test_without_ipv6_all_addresses_are_those_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped manifests listen wherever they run."""
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with bind("::", 0) as listener:
        assert listener.family is socket.AF_INET


async def test_no_copy_of_a_listener_ever_blocks() -> None:
    """A worker that starts copies the listener that another one tends: that one's loop would stop in `accept`."""
    listener = bind("127.0.0.1", 0)
    made: list[Any] = []
    acceptor = Acceptor(listener.dup(), lambda: Counting(made))
    copies = [listener.dup()]
    copies.append(copies[0].dup())
    can_block = [os.get_blocking(each.fileno()) for each in (listener, *copies)]
    assert can_block == [False] * 3
    clients = [socket.create_connection(listener.getsockname()) for _ in range(3)]
    await until(lambda: len(made) == len(clients))
    acceptor.close()
    for one in [*clients, *made, listener, *copies]:
        one.close()


class OneRefused(NoDescriptors):
    """A listening socket of which one connection has ended badly, or where something worse is the matter."""

    def __init__(self, listener: socket.socket, *numbers: int) -> None:
        super().__init__(listener)
        self._numbers = [*numbers]

    def accept(self) -> Any:
        if self._numbers:
            number = self._numbers.pop()
            raise OSError(number, os.strerror(number))
        return self._listener.accept()


@pytest.mark.parametrize(
    ("number", "is_said"), [(errno.EPERM, False), (errno.EPROTO, False), (errno.ECONNABORTED, False), (errno.EIO, True)]
)
async def test_a_connection_that_cannot_be_had_keeps_nobody_waiting(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, number: int, is_said: bool
) -> None:
    """The next is taken; only what is not the matter with one connection alone is said."""
    monkeypatch.setattr(accepting, "RETRY_S", 0.002)
    listener = OneRefused(socket.create_server(("127.0.0.1", 0)), number)
    made: list[Any] = []
    acceptor = Acceptor(listener, lambda: Counting(made))  # type: ignore[arg-type]  # as good as a socket
    client = socket.create_connection(listener.getsockname())
    await until(lambda: bool(made))
    acceptor.close()
    for one in (client, *made):
        one.close()

    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert said == (["new connections wait: Input/output error"] if is_said else [])


async def test_whoever_is_being_let_in_when_it_stops_is_no_longer_there_afterwards(gateway: Running) -> None:
    """An accepted connection that no protocol has yet would outlive the server in the loop."""
    server = gateway.gateway._servers[0]
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    clients = [socket.create_connection((host, int(port))) for _ in range(40)]
    acceptor = server._acceptor
    assert acceptor is not None
    acceptor._accept()
    assert acceptor._arriving
    await server.stop()

    await until(lambda: not server._state.connections)
    for client in clients:
        client.settimeout(60)
        with client:
            assert await asyncio.to_thread(_has_ended, client)


def _has_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True
