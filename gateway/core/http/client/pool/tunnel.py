"""A way through a proxy to a provider, for connections that are in no pool: `CONNECT`, then TLS inside (RFC 9110, 9.3.6).

It must not know what goes through. Errors are OSErrors, and never quote the proxy's credentials.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import cast

import httpx

from gateway.core.http.client.pool.pool import Origin

MAX_HEAD_BYTES = 16 * 1024
_PORT = 80


async def dial_through(proxy: str, passenger: asyncio.Protocol, origin: Origin) -> None:
    """Connects the protocol to the origin by way of an `http://` proxy, with TLS where it has one. Raises OSError."""
    loop = asyncio.get_running_loop()
    url = httpx.URL(proxy)
    guide = _Guide(loop.create_future())
    await loop.create_connection(lambda: guide, url.host, url.port or _PORT)
    transport = guide.transport
    try:
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        lines = [f"CONNECT {host}:{origin.port} HTTP/1.1", f"Host: {host}:{origin.port}"]
        if url.userinfo:
            named = f"{url.username}:{url.password}".encode()
            lines.append(f"Proxy-Authorization: Basic {b64encode(named).decode()}")
        transport.write("\r\n".join([*lines, "", ""]).encode())
        status = (await guide.head).split(b" ", 2)[1:2]
        if status != [b"200"]:
            said = b"".join(status)[:20].decode("latin-1")
            raise ConnectionRefusedError(f"the proxy answered CONNECT with {said or 'nothing known'}")
        if origin.tls is None:
            transport.set_protocol(passenger)
        else:
            secured = await loop.start_tls(transport, passenger, origin.tls, server_hostname=origin.host)
            if secured is None:
                raise ConnectionResetError("the connection was closed during the TLS handshake")
            transport = secured
    except BaseException:
        transport.abort()
        raise
    passenger.connection_made(transport)


class _Guide(asyncio.Protocol):
    """Reads the proxy's answer."""

    def __init__(self, head: asyncio.Future[bytes]) -> None:
        self.head = head
        self.transport: asyncio.Transport
        self._said = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._said += data
        if self.head.done():
            return
        if b"\r\n\r\n" in self._said:
            self.head.set_result(self._said)
        elif len(self._said) > MAX_HEAD_BYTES:
            self.head.set_exception(ConnectionRefusedError("the proxy's answer has no end"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.head.done():
            self.head.set_exception(ConnectionResetError("the proxy closed the connection"))
