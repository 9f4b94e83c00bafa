"""The HTTP/1.1 server protocol: uvicorn's httptools one, with the gaps closed that matter at an edge.

Malformed HTTP is answered in OpenAI's error shape, heads are bounded in size, a connection that does not finish its head in
time is closed, so is one whose client takes nothing of its answer, and a lost connection tells the request that it serves at
once (no task waits on `receive` for that). A client that ends its side of the connection has left: whether it would still
read (`printf … | nc -N`) cannot be told from an application that was closed, whose call must not go on at the provider.
Invariant: an error of the protocol never takes the place of an answer that is due to an earlier request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import GatewayError, HeadersTooLarge, InvalidRequest
from gateway.ingress.render import error_body, error_headers, new_request_id

Refused = Callable[[str, str, int, str | None], None]
"""Hears of a request that was answered here: its id, its path as far as known, status and code."""

MAX_HEAD_BYTES = 65_536
MAX_HEADERS = 256


class Notice:
    """Whether the server will soon be gone: then clients are sent to look for another."""

    __slots__ = ("is_given",)

    def __init__(self) -> None:
        self.is_given = False


class GatewayProtocol(HttpToolsProtocol):
    """One client connection."""

    def __init__(self, refused: Refused, notice: Notice, **options: Any) -> None:
        super().__init__(**options)
        self._tell_refused = refused
        self._notice = notice
        self.on_gone: Callable[[], None] | None = None
        """Set by the edge while it serves a request of this connection."""
        self.head_since: float | None = self.loop.time()
        """Since when a request head is awaited on a new connection or being received; None while there is none."""
        self.idle_since: float | None = None
        """Since when the connection waits for another request."""
        self._unsent: tuple[int, float] | None = None
        """While the client takes nothing: how many bytes wait for it, and since when."""
        self._head_bytes = 0
        self._piece_bytes = 0
        self._refusal: GatewayError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # They lead back to here. A call that was held for long has grown too old for the collector to come by soon.
        self.cycle = None  # type: ignore[assignment]  # nobody asks for it any more
        self.scope = None  # type: ignore[assignment]  # the same
        if self.on_gone is not None:
            self.on_gone()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._piece_bytes = len(data)
        if self.head_since is not None:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._stay(data[offer.args[0] :])
        except httptools.HttpParserError:
            self._refuse(self._why_stopped())
            return
        if self.head_since is not None and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.head_since = self.loop.time()

    def on_headers_complete(self) -> None:
        head_is_small = max(self._head_bytes, self._piece_bytes) <= MAX_HEAD_BYTES  # so seldom that the rest is counted
        self.head_since = self.idle_since = None
        self._head_bytes = 0
        if not head_is_small and self._count_head_bytes() > MAX_HEAD_BYTES:
            self._refusal = _head_too_large()
        elif len(self.headers) > MAX_HEADERS:
            self._refusal = HeadersTooLarge(f"The request has more than {MAX_HEADERS} headers.")
        elif self.parser.get_http_version() == "1.1" and not any(name == b"host" for name, _ in self.headers):
            self._refusal = InvalidRequest("An HTTP/1.1 request needs a Host header.", code="invalid_http")
        if self._refusal is not None:
            raise ValueError("stops the parser")
        super().on_headers_complete()
        if self._notice.is_given:
            self.cycle.keep_alive = False
        # With pipelined requests `self.cycle` moves on while an earlier one is served: each takes its own along.
        self.scope["state"].update(connection=self, cycle=self.cycle)

    def on_message_complete(self) -> None:
        """As uvicorn's; the peer's leaving is noticed from here on, however large the body was."""
        if self.parser.should_upgrade() and self._framing():
            return  # the parser takes what follows for another protocol; `_stay` reads the body
        super().on_message_complete()
        if self.flow.read_paused:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """As uvicorn's, with the keep-alive clock left to the sweep: a timer per answer is dear."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self.idle_since = self.loop.time()

    def sweep(self, now: float, head_timeout_s: float, keep_alive_s: float, write_timeout_s: float) -> None:
        """Close the connection if its request head takes too long, if it idles, or if its client takes nothing.

        Called about once a second. The last of these frees what the call holds at its provider.
        """
        stuck_since = self._stuck_since(now)
        if stuck_since is not None and now - stuck_since > write_timeout_s:
            self.transport.abort()
            return
        head_is_late = self.head_since is not None and now - self.head_since > head_timeout_s
        if head_is_late or (self.idle_since is not None and now - self.idle_since > keep_alive_s):
            self.transport.close()

    def _stuck_since(self, now: float) -> float | None:
        """Since when the client has taken none of the bytes that wait for it; a slow one takes some."""
        if not self.flow.write_paused:
            self._unsent = None
            return None
        size = self.transport.get_write_buffer_size()
        if self._unsent is None or self._unsent[0] != size:
            self._unsent = (size, now)
        return self._unsent[1]

    def _stay(self, rest: bytes) -> None:
        """Decline an offer of another protocol (h2c, WebSocket) by serving the request (RFC 9110, 7.8).

        The parser has left the body unread: a second one reads it. The connection ends with the answer.
        """
        self.cycle.keep_alive = False
        self.parser = httptools.HttpRequestParser(_BodyReader(self))
        self.data_received(b"".join((b"POST / HTTP/1.1\r\n", *self._framing(), b"\r\n", rest)))

    def _framing(self) -> list[bytes]:
        """The header lines that say where the body ends."""
        names = (b"content-length", b"transfer-encoding")
        return [b"%s: %s\r\n" % header for header in self.headers if header[0] in names]

    def _why_stopped(self) -> GatewayError:
        """Why the parser gave up: a refusal of ours that stopped it, or malformed HTTP."""
        return self._refusal or InvalidRequest(
            "The request is not valid HTTP/1.1: check its request line, headers and body framing.", code="invalid_http"
        )

    def _count_head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _refuse(self, error: GatewayError) -> None:
        """Answer what cannot be parsed, and read no more requests. Three cases:

        1. Answers to earlier requests are due: they are given, then the connection closes.
        2. The body of a request that waits for it is malformed: the error is its answer.
        3. A head is malformed or too large: the error is the answer, and what the peer still sends is read and dropped
           until it has seen it, because closing on unread bytes would reset the connection and lose the error.
        """
        self._refusal = error
        cycle: Any = self.cycle  # None before the first request, whatever its annotation says
        if cycle is not None and not cycle.response_complete:
            if self.pipeline or not cycle.more_body or cycle.response_started:
                cycle.keep_alive = False
                return
            cycle.disconnected = True
        request_id = new_request_id()
        self._tell_refused(request_id, "", error.status, error.code)
        self.transport.write(_wire_error(error, request_id))
        if cycle is not None and cycle.more_body:
            self.transport.close()
        else:
            self.idle_since = self.loop.time()
            self.transport.write_eof()


class _Flow(FlowControl):
    """Reads nothing more while requests are waiting for their turn: a peer cannot queue up without bound."""

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()


class _BodyReader:
    """What a parser calls that is to read one body and nothing else."""

    def __init__(self, connection: GatewayProtocol) -> None:
        self.on_body = connection.on_body
        self.on_message_complete = connection.on_message_complete


def _head_too_large() -> GatewayError:
    return HeadersTooLarge(f"The request line and headers exceed {MAX_HEAD_BYTES} bytes.")


def _wire_error(error: GatewayError, request_id: str) -> bytes:
    """The bytes of an error that answers no request."""
    body = error_body(error)
    headers = error_headers(error, len(body))
    headers += [(b"x-request-id", request_id.encode()), (b"connection", b"close")]
    return b"".join((STATUS_LINE[error.status], *(b"%s: %s\r\n" % header for header in headers), b"\r\n", body))


def sweep_connections(
    connections: set[Any], head_timeout_s: float, keep_alive_s: float, write_timeout_s: float
) -> None:
    """Close the connections of a uvicorn server whose clients keep them waiting, with a head, a request or reading."""
    now = asyncio.get_running_loop().time()
    for connection in list(connections):
        connection.sweep(now, head_timeout_s, keep_alive_s, write_timeout_s)
