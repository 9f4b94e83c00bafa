"""A listening port that can fail as a whole: it refuses connections, resets them, or leaves them unanswered.

It must not know HTTP or why a fault holds. A port that refuses stays bound, so that no other process gets it; one that
swallows connections listens with a full queue, which on Linux leaves every new connection without an answer.
Invariant: the fault that was wanted last is in force once `settle` returns.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any, Protocol

_BACKLOG = 4096
_FILLERS = 2  # a queue of length zero holds one connection
_SILENT = frozenset({"refuse", "blackhole"})
_RST_ON_CLOSE = struct.pack("ii", 1, 0)


class Connection(Protocol):
    """An open connection; one that was used to control the emulator is spared, so that the fault can be ended."""

    is_control: bool

    @property
    def transport(self) -> asyncio.Transport: ...


class Listener:
    """The sockets of one server; `connections` are those that are open."""

    def __init__(
        self, make_protocol: Callable[[], asyncio.Protocol], connections: Callable[[], Iterable[Connection]]
    ) -> None:
        self.fault: str | None = None
        """The fault in force; None: the port works."""
        self._make_protocol = make_protocol
        self._connections = connections
        self._wanted: str | None = None
        self._settling: asyncio.Task[None] | None = None
        self._addresses: list[tuple[int, Any]] = []
        self._servers: list[asyncio.Server] = []
        self._mute: list[socket.socket] = []

    async def start(self, host: str, port: int) -> int:
        """Listens and returns the port; raises OSError when it is taken."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._make_protocol, host, port, backlog=_BACKLOG)
        self._servers = [server]
        self._addresses = [(each.family, each.getsockname()) for each in server.sockets]
        return int(server.sockets[0].getsockname()[1])

    def want(self, fault: str | None) -> None:
        """Makes the port fail in this way from the next turn of the loop on; None: makes it work."""
        self._wanted = fault
        if fault != self.fault and (self._settling is None or self._settling.done()):
            self._settling = asyncio.get_running_loop().create_task(self._settle())

    async def settle(self) -> None:
        """Waits until the wanted fault is in force."""
        if self._settling is not None:
            await self._settling

    def close(self) -> None:
        """Stops listening, once settled; open connections are left to their owner."""
        self._close_mute()
        for server in self._servers:
            server.close()

    async def wait_closed(self) -> None:
        """Waits until no task or socket is left in the loop."""
        for server in self._servers:
            await server.wait_closed()

    async def _settle(self) -> None:
        while self.fault != self._wanted:
            self.fault = self._wanted
            for connection in list(self._connections()):
                if not connection.is_control and not connection.transport.is_closing():
                    disturb(connection, self.fault)
            if self.fault in _SILENT:
                self._shut(is_swallowing=self.fault == "blackhole")
            elif not self._servers:
                await self._listen()

    async def _listen(self) -> None:
        self._close_mute()
        sockets = [_bound(family, address) for family, address in self._addresses]
        for each in sockets:
            each.listen(_BACKLOG)  # so that nobody is refused from here on
        loop = asyncio.get_running_loop()
        for each in sockets:
            self._servers.append(await loop.create_server(self._make_protocol, sock=each, backlog=_BACKLOG))

    def _shut(self, *, is_swallowing: bool) -> None:
        for server in self._servers:
            server.close()
        self._servers = []
        self._close_mute()
        self._mute = [_bound(family, address) for family, address in self._addresses]
        if is_swallowing:
            self._mute += [filler for each in list(self._mute) for filler in _fillers(each)]

    def _close_mute(self) -> None:
        for each in self._mute:
            each.close()
        self._mute = []


def disturb(connection: Connection, fault: str | None) -> None:
    """Applies a fault of the whole server to an open connection."""
    match fault:
        case None:
            connection.transport.resume_reading()
        case "refuse":
            connection.transport.abort()
        case "reset_on_accept":
            reset(connection.transport)
        case "blackhole":
            connection.transport.pause_reading()


def reset(transport: asyncio.Transport) -> None:
    """Closes the connection with a TCP RST."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
    transport.abort()


def _bound(family: int, address: Any) -> socket.socket:
    """Returns a socket that has the address and does not listen, so that connections to it are refused."""
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setblocking(False)
    bound.bind(address)
    return bound


def _fillers(listening: socket.socket) -> list[socket.socket]:
    """Returns connections that fill the queue of a socket that begins to listen."""
    listening.listen(0)
    fillers = [socket.socket(listening.family, socket.SOCK_STREAM) for _ in range(_FILLERS)]
    for each in fillers:
        each.setblocking(False)
        each.connect_ex(listening.getsockname())
    return fillers
