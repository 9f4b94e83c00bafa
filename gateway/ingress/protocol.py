"""The HTTP/1.1 server protocol: uvicorn's httptools one, with the gaps closed that matter at an edge.

Malformed HTTP is answered in OpenAI's error shape, heads are bounded in size, a connection that does not finish its head in
time is closed, and a lost connection tells the request that it serves at once (no task waits on `receive` for that).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import GatewayError, HeadersTooLarge, InvalidRequest
from gateway.ingress.render import error_body, error_headers

MAX_HEAD_BYTES = 65_536
MAX_HEADERS = 256


class GatewayProtocol(HttpToolsProtocol):
    """One client connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_gone: Callable[[], None] | None = None
        """Set by the edge while it serves a request of this connection."""
        self.head_since: float | None = self.loop.time()
        """Since when a request head is awaited on a new connection or being received; None while there is none."""
        self._head_bytes = 0
        self._refusal: GatewayError | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_gone is not None:
            self.on_gone()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        if self.head_since is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self.head_since is not None and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(HeadersTooLarge(f"The request line and headers exceed {MAX_HEAD_BYTES} bytes."))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["connection"] = self
        self.head_since = self.loop.time()

    def on_headers_complete(self) -> None:
        self.head_since = None
        self._head_bytes = 0
        if len(self.headers) > MAX_HEADERS:
            self._refusal = HeadersTooLarge(f"The request has more than {MAX_HEADERS} headers.")
            raise ValueError("too many headers")
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Called by the parser's guard; a refusal of ours that stopped the parser speaks first."""
        refusal = self._refusal or InvalidRequest(
            "The request is not valid HTTP/1.1: check its request line, headers and body framing.", code="invalid_http"
        )
        self._refuse(refusal)

    def sweep(self, now: float, timeout_s: float) -> None:
        """Close the connection if its request head takes too long; called about once a second."""
        if self.head_since is not None and now - self.head_since > timeout_s:
            self.transport.close()

    def _refuse(self, error: GatewayError) -> None:
        self._refusal = error
        body = error_body(error)
        headers = error_headers(error, len(body))
        headers += [(b"x-request-id", b"req_" + secrets.token_hex(16).encode()), (b"connection", b"close")]
        lines = [name + b": " + value + b"\r\n" for name, value in headers]
        cycle: Any = self.cycle  # None before the first request, whatever its annotation says
        busy = cycle is not None and not cycle.response_complete
        if not busy:  # in the middle of an earlier answer, an error would only garble it
            self.transport.write(b"".join([STATUS_LINE[error.status], *lines, b"\r\n", body]))
        self.transport.close()


def sweep_connections(connections: set[Any], head_timeout_s: float) -> None:
    """Close the connections of a uvicorn server that do not finish their request heads."""
    now = asyncio.get_running_loop().time()
    for connection in list(connections):
        connection.sweep(now, head_timeout_s)
