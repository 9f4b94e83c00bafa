"""The HTTP/1.1 server protocol: uvicorn's httptools one, with the gaps closed that matter at an edge.

Malformed HTTP is answered in OpenAI's error shape, heads and trailers are bounded in size, a connection that does not finish
its head in time is closed, so is one whose client takes nothing of its answer, and a lost connection tells the request that
it serves at once (no task waits on `receive` for that). A client that ends its side of the connection before its answer has
begun (`printf … | nc -N`) gets it, if it still reads; during the answer it has left. Invariants: an error of the protocol never
takes the place of an answer that is due to an earlier request, nor does it follow the answer to its own; nothing but the bytes
of its own body gets into a request once its head is complete; whose client has closed, its call does not go on at the provider.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import GatewayError, HeadersTooLarge, InvalidRequest
from gateway.ingress.http import framing, half_closed
from gateway.ingress.http.half_closed import Ended
from gateway.ingress.http.writing import PatientFlow, refusal_bytes
from gateway.ingress.render import new_request_id, send_error

Refused = Callable[[str, str, int, str | None], None]
"""Hears of a request that was answered here: its id, its path as far as known, status and code."""

MAX_REST_BYTES = 128 * 1024 * 1024
"""Of a body whose request has been answered: read and dropped up to here, so that its client sees the answer."""
MAX_DROPPED_BYTES = 16 * 1024 * 1024
"""Of what is sent behind a refused request: as above."""
DECISIVE = frozenset((b"expect", b"transfer-encoding"))
"""The headers that say, beside `Host`, something about how the request is read."""


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
        self._loose_bytes = 0
        """Received since the last request was complete, or since the last byte of a body: head, trailers, heads of chunks."""
        self._piece_bytes = 0
        self._dropped_bytes = 0
        self._has_host = False
        self._coding: bytes | None = None
        """The request's transfer coding."""
        self._is_deaf = False
        """Nothing more is read: the connection ends with the answers that are due."""
        self._refusal: GatewayError | None = None
        self._ended: Ended | None = None
        """The client has ended its side, and is served as long as it reads."""
        self._said_all_at = 0.0
        """When a request that is the last of its connection was complete."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.flow = PatientFlow(transport, self.pipeline)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # They lead back to here. A call that was held for long has grown too old for the collector to come by soon.
        self.cycle = None  # type: ignore[assignment]  # nobody asks for it any more
        self.scope = None  # type: ignore[assignment]  # the same
        if self.on_gone is not None:
            self.on_gone()

    def eof_received(self) -> bool | None:  # type: ignore[override]  # uvicorn's closes always
        """The client has ended its side. True: it is answered all the same, as long as it turns out to be there."""
        cycle: Any = self.cycle  # None before the first request, whatever its annotation says
        if self._ended is not None:
            return True
        if cycle is None or cycle.more_body or cycle.response_started or self.pipeline:
            return None
        takes_interim = cycle.scope["http_version"] == "1.1"
        if not takes_interim and self.loop.time() - self._said_all_at > half_closed.RIGHT_BEHIND_S:
            return None
        cycle.keep_alive = False
        self._ended = Ended(self.transport, self.loop, takes_interim=takes_interim)
        return True

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            self._drop(len(data), MAX_DROPPED_BYTES)
            return
        self._piece_bytes = len(data)
        self._loose_bytes += len(data)
        offered_at = None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            offered_at = offer.args[0]
        except httptools.HttpParserError as stopped:
            if not self._is_deaf:
                self._refuse(self._why_stopped(stopped))
            return
        if offered_at is not None:
            self._stay(data[offered_at:])
        if self.head_since is not None and self._lacks_version(data):
            self._refuse(framing.no_version())
        elif self._loose_bytes > framing.MAX_HEAD_BYTES:
            self._refuse(framing.trailers_too_large() if self._is_reading_body() else framing.head_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.head_since = self.loop.time()
        self._has_host, self._coding = False, None

    def on_header(self, name: bytes, value: bytes) -> None:
        """As uvicorn's, and with the headers noted that decide how the request is read."""
        name = name.lower()
        if name == b"host":
            self._has_host = True
        elif name in DECISIVE:
            self._note(name, value)
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        head_is_small = max(self._loose_bytes, self._piece_bytes) <= framing.MAX_HEAD_BYTES  # so seldom is it counted
        self.head_since = self.idle_since = None
        self._loose_bytes = 0
        parser, headers = self.parser, self.headers
        version = parser.get_http_version()
        if version != "1.1" or not self._has_host or self._coding is not None or not head_is_small:
            self._refusal = self._fault_of_head(version)
        if self._refusal is None and len(headers) > framing.MAX_HEADERS:
            self._refusal = HeadersTooLarge(f"The request has more than {framing.MAX_HEADERS} headers.")
        if self._refusal is None and parser.should_upgrade():
            self._refusal = framing.fault_of_offer(parser.get_method(), headers)
        if self._refusal is not None:
            raise ValueError("stops the parser")
        super().on_headers_complete()
        if self._coding is not None:
            self.headers = framing.Trailers()  # type: ignore[assignment]  # all that the parser's callbacks do is append
        if self._notice.is_given:
            self.cycle.keep_alive = False
        # With pipelined requests `self.cycle` moves on while an earlier one is served: each takes its own along.
        self.scope["state"].update(connection=self, cycle=self.cycle)

    def on_body(self, body: bytes) -> None:
        """As uvicorn's, which asks for offers of other protocols each time."""
        self._loose_bytes = 0
        cycle = self.cycle
        if cycle.response_complete:
            self._drop(len(body), MAX_REST_BYTES)
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """As uvicorn's; the peer's leaving is noticed from here on, however large the body was."""
        if self.parser.should_upgrade() and framing.body_framing(self.scope["headers"]):
            return  # the parser takes what follows for another protocol; `_stay` reads the body
        self._end_of_body()

    def _end_of_body(self) -> None:
        self._loose_bytes = 0
        cycle = self.cycle
        cycle.more_body = False
        if not cycle.keep_alive:
            self._said_all_at = self.loop.time()
        if cycle.response_complete:
            self._dropped_bytes = 0
        else:
            cycle.message_event.set()
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

        Called about once a second. The last of these frees what the call holds at its provider; so does a client that has
        ended its side first, and then has left.
        """
        if self._ended is not None:
            self._ended.sweep(now, is_waiting=not self.cycle.response_started)
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

    def _note(self, name: bytes, value: bytes) -> None:
        """Take note of a decisive header; uvicorn does it with `Expect` only."""
        if name == b"transfer-encoding":
            self._coding = value if self._coding is None else self._coding + b", " + value
        elif value.lower() == b"100-continue":
            self.expect_100_continue = True

    def _fault_of_head(self, version: str) -> GatewayError | None:
        """What is wrong with a head that is not plainly right."""
        if framing.head_bytes(self.url, self.headers) > framing.MAX_HEAD_BYTES:
            return framing.head_too_large()
        if version == "1.1" and not self._has_host:
            return InvalidRequest("An HTTP/1.1 request needs a Host header.", code="invalid_http")
        fault = framing.fault_of_version(version)
        return fault if fault is not None or self._coding is None else framing.fault_of_coding(self._coding)

    def _lacks_version(self, piece: bytes) -> bool:
        """Whether the line that ends with this piece is a whole request of HTTP/0.9, whose client waits for an answer now.

        Known for the first request of a connection, and there is no second in HTTP/0.9.
        """
        began: Any = self.scope  # None before the first request, whatever its annotation says
        is_line = began is not None and bool(self.url) and piece.endswith(b"\n")
        return is_line and self.parser.get_http_version() in ("0.0", "0.9")

    def _is_reading_body(self) -> bool:
        cycle: Any = self.cycle  # as above
        return cycle is not None and self.head_since is None and bool(cycle.more_body)

    def _stay(self, rest: bytes) -> None:
        """Decline an offer of another protocol (h2c, TLS) by serving the request (RFC 9110, 7.8).

        The parser has left the body unread: a second one reads it, and nothing behind it: that could be of the other
        protocol. The connection ends with the answer.
        """
        self.cycle.keep_alive = False
        lines = framing.body_framing(self.scope["headers"])
        if not lines:
            self._is_deaf = True
            return
        self.parser = httptools.HttpRequestParser(_BodyReader(self))
        self.data_received(b"".join((b"POST / HTTP/1.1\r\n", *lines, b"\r\n", rest)))

    def end_of_last_body(self) -> None:
        """The body of a request that is the connection's last is complete."""
        self._end_of_body()
        self._is_deaf = True

    def _why_stopped(self, stopped: httptools.HttpParserError) -> GatewayError:
        """Why the parser gave up: a refusal of ours that stopped it, or malformed HTTP."""
        if self._refusal is not None:
            return self._refusal
        if isinstance(stopped.__context__, framing.TrailersTooLarge):
            return framing.trailers_too_large()
        return framing.not_http(str(stopped))

    def _drop(self, count: int, most: int) -> None:
        """Forget this many bytes that nobody will read; who sends more than `most` of them is cut off."""
        self._dropped_bytes += count
        if self._dropped_bytes > most:
            self._is_deaf = True
            self.transport.abort()

    def _refuse(self, error: GatewayError) -> None:
        """Read no more requests, and answer what cannot be read where no answer stands in the way. The cases:

        1. A head is wrong, while answers to earlier requests are due: they are given, then the connection closes.
        2. A body is wrong whose request waits for its turn: the error is given in its turn.
        3. A body is wrong whose request is being answered, or has been: the connection closes.
        4. A head is wrong, or a body whose request has no answer: the error is the answer, and what the peer still sends
           is read and dropped until it has seen it, because closing on unread bytes would reset the connection and lose it.
        """
        self._is_deaf = True
        self._refusal = error
        cycle: Any = self.cycle  # None before the first request, whatever its annotation says
        if cycle is not None and self._is_reading_body():
            if self.pipeline:
                cycle.keep_alive = False
                self.pipeline[0] = (cycle, self._give_refusal)
                return
            if cycle.response_started:
                self.transport.close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
            if self.on_gone is not None:
                self.on_gone()
        elif cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            return
        request_id = new_request_id()
        self._tell_refused(request_id, "", error.status, error.code)
        self.transport.write(refusal_bytes(error, request_id))
        self.flow.resume_reading()
        self.idle_since = self.loop.time()
        self.transport.write_eof()

    async def _give_refusal(self, _scope: Any, _receive: Any, send: Any) -> None:
        """Answers a request whose body turned out to be wrong before its turn came."""
        error, request_id = self._refusal, new_request_id()
        if error is not None:
            self._tell_refused(request_id, "", error.status, error.code)
            await send_error(send, error, [(b"x-request-id", request_id.encode()), (b"connection", b"close")])


class _BodyReader:
    """What a parser calls that is to read one body and nothing else."""

    def __init__(self, connection: GatewayProtocol) -> None:
        self.on_body = connection.on_body
        self._connection = connection
        self._trailers = framing.Trailers()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Also called for the few lines that it was given as a head."""
        self._trailers.append((name, value))

    def on_message_complete(self) -> None:
        self._connection.end_of_last_body()
        raise ValueError("stops the parser")


def sweep_connections(
    connections: set[Any], head_timeout_s: float, keep_alive_s: float, write_timeout_s: float
) -> None:
    """Close the connections of a uvicorn server whose clients keep them waiting, with a head, a request or reading."""
    now = asyncio.get_running_loop().time()
    for connection in list(connections):
        connection.sweep(now, head_timeout_s, keep_alive_s, write_timeout_s)
