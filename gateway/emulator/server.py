"""Serves the emulator on loopback, inside a loop that is already running, on a port that can fail as a whole.

`Listener` refuses connections, resets them, or leaves them unanswered. A port that refuses stays bound, so that no other
process gets it; one that swallows connections listens with a full queue, which on Linux leaves every new connection without an
answer. `EmulatorServer` uses uvicorn's HTTP protocol without uvicorn's server: no signal handlers, no 100 ms ticks, and a stop
that drops every connection at once. The protocol hands its transport to the app, because resets and wrong framing have no ASGI
message. Invariants: the fault that was wanted last is in force once `settle` returns; after `stop` nothing of the server is
left in the loop.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from email.utils import formatdate
from typing import Any, Protocol, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.emulator.app import PREFIX, Emulator
from gateway.emulator.call import CONNECTIONS, TRANSPORT, Sleep, reset
from gateway.emulator.config import EmulatorConfig

_BACKLOG = 4096
_FILLERS = 2  # a queue of length zero holds one connection
_SILENT = frozenset({"refuse", "blackhole"})


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


_LOOK_S = 0.02
_STOP_PATIENCE_S = 1.0


class EmulatorProtocol(HttpToolsProtocol):
    """Uvicorn's protocol that puts its transport and the open connections into the scope."""

    is_control = False

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope = cast("dict[str, Any]", self.scope)
        scope[TRANSPORT] = self.transport
        scope[CONNECTIONS] = self.connections

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.scope["path"].startswith(PREFIX):
            self.is_control = True


class ResettingProtocol(asyncio.Protocol):
    """Answers a connection with a reset."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        reset(cast("asyncio.Transport", transport))


class EmulatorServer:
    """One emulator on one port of loopback; port 0 takes a free one."""

    def __init__(
        self,
        config: EmulatorConfig | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        now: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.emulator = Emulator(config or EmulatorConfig(), now=now, sleep=sleep, wall=wall)
        self._host = host
        self._port = port
        self._state = ServerState()
        self._listener: Listener | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None

    @property
    def url(self) -> str:
        """Returns the root, for `/__emulator/...`; valid once started."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def base_url(self) -> str:
        """Returns the `base_url` for clients; valid once started."""
        return f"{self.url}/v1"

    @property
    def connection_fault(self) -> str | None:
        """Returns the fault of the server as a whole that is in force."""
        return self._listener.fault if self._listener is not None else None

    async def start(self) -> str:
        """Listens and returns the base URL; raises OSError when the port is taken."""
        config = uvicorn.Config(
            cast("Any", self.emulator),
            http=EmulatorProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=75,
        )
        config.load()

        def protocol() -> asyncio.Protocol:
            if listener.fault is not None:
                return ResettingProtocol()
            return EmulatorProtocol(config, self._state, {})

        listener = Listener(protocol, lambda: cast("Any", self._state.connections))
        self._port = await listener.start(self._host, self._port)
        self._listener = listener
        self._renew_date(asyncio.get_running_loop())
        self.emulator.on_change = self._look_at_faults
        self._look_at_faults()
        return self.base_url

    async def configure(self, **changes: Any) -> None:
        """Changes the emulator's config, field by field, and waits until the port behaves accordingly."""
        self.emulator.configure(replace(self.emulator.config, **changes))
        if self._listener is not None:
            await self._listener.settle()

    async def stop(self) -> None:
        """Stops listening and drops every connection; calls in flight end as if their peers had left."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        for timer in (self._tick, self._look):
            if timer is not None:
                timer.cancel()
        await listener.settle()
        listener.close()
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._state.tasks:
            _, late = await asyncio.wait(self._state.tasks, timeout=_STOP_PATIENCE_S)
            for task in late:
                task.cancel()
        while self._state.connections:  # noqa: ASYNC110 - each abort takes a turn of the loop to arrive
            await asyncio.sleep(0)
        await listener.wait_closed()

    def _look_at_faults(self) -> None:
        if self._look is not None:
            self._look.cancel()
        if self._listener is None:
            return
        self._listener.want(self.emulator.connection_fault())
        if self.emulator.faults.is_about_connections:
            self._look = asyncio.get_running_loop().call_later(_LOOK_S, self._look_at_faults)

    def _renew_date(self, loop: asyncio.AbstractEventLoop) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._tick = loop.call_later(1.0, self._renew_date, loop)
