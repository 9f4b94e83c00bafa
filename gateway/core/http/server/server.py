"""Listens: uvicorn's HTTP protocol under a start/stop order of our own.

Uvicorn's `Server` closes its listener first and re-raises signals; a sidecar has to answer 503 on its readiness path while
its last streams finish, and to exit with 0. Invariant: after `stop` nothing of the server is left in the loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from gateway.core.http.connection.connection import HotEndpoints, Notice, Refused, sweep_connections
from gateway.core.http.server.accepting import Acceptor
from gateway.core.http.server.protocol import GatewayProtocol

BACKLOG = 4096
KEEP_ALIVE_S = 75.0
HEAD_TIMEOUT_S = 30.0
WRITE_TIMEOUT_S = 60.0
"""How long a client may take nothing of what waits for it."""


def bind(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A listening socket, one of several where `reuse_port`. Raises OSError when the address cannot be had.

    It does not block, and so does no copy of it: `accepting` tells what else would stand still.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=reuse_port)
    listener.setblocking(False)
    return listener


def listen_on(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """Binds as `bind` does. Raises OSError, whose `strerror` is the whole sentence."""
    try:
        return bind(host, port, reuse_port=reuse_port)
    except OSError as exc:
        number = exc.errno or 0
        reason = os.strerror(number).lower() if number > 0 else exc.strerror  # below 0: the host has no address
        raise OSError(number, f"cannot listen on {host}:{port}: {reason}") from exc


class HttpServer:
    """One port and the application behind it; `refused` hears of requests that do not get as far as the application.

    An application may have `hot`, endpoints that it serves without ASGI.
    """

    def __init__(self, app: Any, listener: socket.socket, refused: Refused) -> None:
        # The access log is ours, and uvicorn's error log repeats what the edge has answered already.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        logging.getLogger("uvicorn.access").handlers.clear()
        logging.getLogger("uvicorn.access").propagate = False
        self._socket = listener
        self._refused = refused
        self._hot: HotEndpoints | None = getattr(app, "hot", None)
        self._state = ServerState()
        self._acceptor: Acceptor | None = None
        self._tended: dict[int, Acceptor] = {}
        self._arriving: set[asyncio.Task[None]] = set()
        """Who was being let in when it was deafened."""
        self._notice = Notice()
        self._config = uvicorn.Config(
            app,
            http=GatewayProtocol,
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
        self._config.load()

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        """Accept connections from now on."""
        self.tick()
        self._acceptor = Acceptor(self._socket, self._protocol)

    def tend(self, listeners: Mapping[int, socket.socket]) -> None:
        """Accept on these, too, each of a worker that cannot do it itself now; and no longer on those left out."""
        for number in self._tended.keys() - listeners.keys():
            self._tended.pop(number).close()  # its connections are the loop's
        for number in listeners.keys() - self._tended.keys():
            self._tended[number] = Acceptor(listeners[number].dup(), self._protocol)  # which closes what is its own

    def give_notice(self) -> None:
        """Every answer from now on is the last of its connection."""
        self._notice.is_given = True

    def deafen(self) -> None:
        """Accept nothing any more; the connections stay."""
        for acceptor in (self._acceptor, *self._tended.values()):
            if acceptor is not None:
                self._arriving |= acceptor.close()
        self._acceptor = None
        self._tended.clear()

    def tick(self) -> None:
        """Renew the date header and close connections whose client keeps them waiting; called about once a second."""
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        sweep_connections(self._state.connections, HEAD_TIMEOUT_S, KEEP_ALIVE_S, WRITE_TIMEOUT_S)

    async def stop(self, patience_s: float = 1.0) -> None:
        """Close the listener and every connection; requests still running get `patience_s` to notice."""
        self.deafen()
        if self._arriving:
            await asyncio.wait(self._arriving)
        for connection in list(self._state.connections):
            connection.shutdown()  # idle ones close now, the others behind their answer
        if self._state.tasks:
            _, late = await asyncio.wait(self._state.tasks, timeout=patience_s)
            for task in late:
                task.cancel()
        for connection in list(self._state.connections):
            if connection.transport is not None:
                connection.transport.abort()

    def _protocol(self) -> GatewayProtocol:
        return GatewayProtocol(
            self._refused, self._notice, self._hot, config=self._config, server_state=self._state, app_state={}
        )
