"""Serves the emulator on loopback, inside a loop that is already running.

Uvicorn's HTTP protocol without uvicorn's server: no signal handlers, no 100 ms ticks, and a stop that drops every
connection at once. The protocol hands its transport to the app, because resets and wrong framing have no ASGI message.
Invariant: after `stop` nothing of the server is left in the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.emulator.app import Emulator
from gateway.emulator.call import CONNECTIONS, TRANSPORT, Sleep
from gateway.emulator.config import EmulatorConfig

_BACKLOG = 4096
_STOP_PATIENCE_S = 1.0


class EmulatorProtocol(HttpToolsProtocol):
    """Uvicorn's protocol that puts its transport and the open connections into the scope."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope = cast("dict[str, Any]", self.scope)
        scope[TRANSPORT] = self.transport
        scope[CONNECTIONS] = self.connections


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
        self._listener: asyncio.Server | None = None
        self._tick: asyncio.TimerHandle | None = None

    @property
    def url(self) -> str:
        """The root, for `/__emulator/...`; valid once started."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def base_url(self) -> str:
        """What a client's `base_url` is set to; valid once started."""
        return f"{self.url}/v1"

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
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: EmulatorProtocol(config, self._state, {}), self._host, self._port, backlog=_BACKLOG
        )
        self._port = self._listener.sockets[0].getsockname()[1]
        self._renew_date(loop)
        return self.base_url

    async def stop(self) -> None:
        """Stops listening and drops every connection; calls in flight end as if their peers had left."""
        if self._listener is None:
            return
        self._listener.close()
        if self._tick is not None:
            self._tick.cancel()
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._state.tasks:
            _, late = await asyncio.wait(self._state.tasks, timeout=_STOP_PATIENCE_S)
            for task in late:
                task.cancel()
        while self._state.connections:  # noqa: ASYNC110 - each abort takes a turn of the loop to arrive
            await asyncio.sleep(0)
        await self._listener.wait_closed()
        self._listener = None

    def _renew_date(self, loop: asyncio.AbstractEventLoop) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._tick = loop.call_later(1.0, self._renew_date, loop)
