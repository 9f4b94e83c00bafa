"""Serves the emulator on loopback, inside a loop that is already running.

It uses uvicorn's HTTP protocol without uvicorn's server: no signal handlers, no 100 ms ticks, and a stop that drops every
connection at once. The protocol hands its transport to the app, because resets and wrong framing have no ASGI message.
Faults of the server as a whole are looked up often while there are any, and acted out by the listener. Invariant: after
`stop` nothing of the server is left in the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.emulator.app.app import Emulator
from gateway.emulator.app.call import CONNECTIONS, TRANSPORT, Sleep
from gateway.emulator.config.config import EmulatorConfig
from gateway.emulator.server.control import PREFIX
from gateway.emulator.server.listener import Listener, reset

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
