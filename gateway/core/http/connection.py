"""One client connection: what its bytes mean, whose turn it is on it, and when it is closed.

Uvicorn's httptools protocol, with the gaps closed that matter at an edge. Malformed HTTP is answered in OpenAI's error shape,
heads and trailers are bounded in size, a connection that does not finish its head in time is closed, so is one whose client
takes nothing of its answer, and a lost connection tells the request that it serves at once (no task waits on `receive` for
that). Requests that come while one is served wait for their turn, and nothing more is read meanwhile. A client that ends its
side of the connection before its answer has begun (`printf … | nc -N`) gets it, if it still reads; during the answer it has
left.

Invariants: answers go out in the order of their requests; an error of the protocol never takes the place of an answer that is
due to an earlier request, nor does it follow the answer to its own; nothing but the bytes of its own body gets into a request
once its head is complete; whose client has closed, its call does not go on at the provider.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import socket
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.core.errors import GatewayError, HeadersTooLarge, InvalidRequest
from gateway.core.http import writing
from gateway.core.http.writing import AnyCycle, AsgiCycle, BackpressureFlow, Cycle, refusal_bytes, write_whole
from gateway.core.render import error_body, error_headers, named_request, new_request_id
from gateway.core.types import Endpoint

# --- clients that have ended their side of the connection: whether they still read, or have left ---


PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
SOON_S = 0.02
"""Seconds for the way there and back, where it is short; of who is farther away the sweep finds out."""
AGAIN_S = 10.0
"""Seconds between two interim responses while the client waits for its answer."""
RIGHT_BEHIND_S = 1.0
KERNEL_ASKS = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""Seconds until the first probe, seconds between two, and probes in vain; by default it begins after two hours."""
_CLOSE_WAIT = 8
"""The peer has ended its side, and nothing else has come of it (tcp_states.h of Linux)."""


class HalfClosed:
    """A connection whose client has ended its side, and is asked whether it reads. Nothing of the answer has been sent.

    Both look the same until something is sent: the system of who has left answers with a reset. What is sent is an interim
    response, of which any client takes any number before the answer (RFC 9110, 15.2). HTTP/1.0 knows none: there the end
    has to come right behind the request, because who gives up waiting does so later (proxies that speak 1.0 among them),
    and the kernel asks with its keep-alive probes, which a client that was closed all the same answers with a reset once
    its system has forgotten the connection (Linux: `tcp_fin_timeout`, 60 s). It must not know what was asked.
    """

    __slots__ = ("_probed_at", "_transport")

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, *, takes_interim: bool = True
    ) -> None:
        self._transport = transport
        self._probed_at = math.inf
        """When it was asked last; the kernel does it where that is for ever."""
        if not takes_interim:
            # The kernel finds out without a byte of HTTP.
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KERNEL_ASKS:
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            return
        self._probe(loop.time())
        loop.call_later(SOON_S, self._check)

    def sweep(self, now: float, *, is_waiting: bool) -> None:
        """Close the connection if the client has left; ask again from time to time while it is waiting for its answer."""
        if not self._check() and is_waiting and now - self._probed_at > AGAIN_S:
            self._probe(now)

    def _probe(self, now: float) -> None:
        self._probed_at = now
        self._transport.write(PROBE)

    def _check(self) -> bool:
        """Whether it is over: the client has left, or the last of its answer is on its way."""
        if self._transport.is_closing():
            return True
        is_over = has_left(self._transport)
        if is_over:
            # `close` would wait until the bytes have gone out that nobody takes.
            self._transport.abort()
        return is_over


def has_left(transport: asyncio.Transport) -> bool:
    """Whether nobody reads any more at the other end of a connection that it has ended; True where nothing can tell."""
    if sys.platform != "linux":
        return True
    try:
        # The first byte of the kernel's `tcp_info` is the state.
        state = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except (OSError, ValueError):  # no TCP; or closed by now
        return True
    return bool(state != _CLOSE_WAIT)


FIRST_REQUEST_S = 1.0
"""Where connections are scarce, a new one has so long to send its first request."""
Refused = Callable[[str, str, int, str | None], None]
"""Hears of a request that was answered here: its id, its path as far as known, status and code."""


class Notice:
    """Whether the server will soon be gone: then clients are sent to look for another."""

    __slots__ = ("is_given",)

    def __init__(self) -> None:
        self.is_given = False


class HotEndpoints(NamedTuple):
    """What is served without ASGI: endpoints by their URLs, as they stand in a request's first line; and who serves them."""

    endpoints: Mapping[bytes, Endpoint]
    serve: Callable[[Cycle], Coroutine[Any, Any, None]]
    session_paths: frozenset[bytes] = frozenset()
    """The paths, without a query, that a WebSocket handshake may ask for; the application answers them."""


MAX_REST_BYTES = 128 * 1024 * 1024
"""The bytes of a body whose request has been answered that are read and dropped, so that its client sees the answer."""
MAX_DROPPED_BYTES = 16 * 1024 * 1024
"""The bytes behind a refused request that are read and dropped, so that its client sees the answer."""
UNCUT_BYTES = 2048
"""The bytes that are parsed at once, whatever number of small requests they hold."""
BLANK_LINE = b"\r\n\r\n"


class GatewayProtocol(HttpToolsProtocol):
    """One client connection."""

    cycle: AnyCycle | None  # type: ignore[assignment]  # uvicorn's own are never made
    pipeline: deque[AnyCycle]  # type: ignore[assignment]  # uvicorn's own are never made

    def __init__(self, refused: Refused, notice: Notice, hot: HotEndpoints | None, **options: Any) -> None:
        super().__init__(**options)
        self._on_refused = refused
        self._notice = notice
        self._hot: Mapping[bytes, Endpoint] = {} if hot is None else hot.endpoints
        self._serve = None if hot is None else hot.serve
        self._session_paths: frozenset[bytes] = frozenset() if hot is None else hot.session_paths
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
        self._unparsed: bytes | None = None
        """The last read, while a request of it waits for its turn: `_parsed_bytes` of it have been parsed."""
        self._parsed_bytes = 0
        self._dropped_bytes = 0
        self._coding: bytes | None = None
        """The request's transfer coding."""
        self._is_offer = False
        """The request offers another protocol."""
        self._reading_stopped = False
        """Nothing more is read: the connection ends with the answers that are due."""
        self._refusal: GatewayError | None = None
        self._half_closed: HalfClosed | None = None
        """The client has ended its side, and is served as long as it reads."""
        self._request_complete_at = 0.0
        """When a request that is the last of its connection was complete."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.flow = BackpressureFlow(transport, self.pipeline)

    # What its bytes mean.

    def data_received(self, data: bytes, is_piece: bool = False) -> None:  # each request comes by
        """Take a read, or a piece of one that `_parse_ahead` has cut."""
        if self._reading_stopped:
            self._drop(len(data), MAX_DROPPED_BYTES)
            return
        if (len(data) > UNCUT_BYTES or self._unparsed is not None) and not is_piece:
            self._unparsed = data if self._unparsed is None else self._unparsed + data
            self._parse_ahead()
            return
        self._piece_bytes = len(data)
        self._loose_bytes += len(data)
        offered_at = None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            offered_at = offer.args[0]
        except httptools.HttpParserError as stopped:
            # The end of a last body stops its parser, too (`_BodyReader`), and is no fault.
            if not self._reading_stopped:
                self._refuse(self._why_stopped(stopped))
            return
        if offered_at is not None:
            self._stay(data[offered_at:])
        if self.head_since is not None and self._lacks_version(data):
            self._refuse(writing.no_version())
        elif self._loose_bytes > writing.MAX_HEAD_BYTES:
            self._refuse(writing.trailers_too_large() if self._is_reading_body() else writing.head_too_large())

    def _parse_ahead(self) -> None:
        """Parse on until a request waits for its turn; what follows it stays bytes until then.

        Every head ends with a blank line (RFC 9112, 2.1): what is parsed at once goes to the first one behind UNCUT_BYTES. A
        body full of blank lines is cut no more often than that.
        """
        while self._unparsed is not None and not self.pipeline:
            data, start = self._unparsed, self._parsed_bytes
            found = data.find(BLANK_LINE, start + UNCUT_BYTES)
            end = found + len(BLANK_LINE)
            if found >= 0 and end < len(data):
                self._parsed_bytes = end
            else:
                end, self._unparsed, self._parsed_bytes = len(data), None, 0
            self.data_received(data[start:end], is_piece=True)

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.head_since = self.loop.time()
        self._coding = None

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        head_is_small = max(self._loose_bytes, self._piece_bytes) <= writing.MAX_HEAD_BYTES  # so seldom is it counted
        self.head_since = self.idle_since = None
        self._loose_bytes = 0
        parser, headers = self.parser, self.headers
        version, index = parser.get_http_version(), dict(headers)
        self._is_offer = parser.should_upgrade()
        is_plain = (
            version == "1.1"
            and b"host" in index
            and b"transfer-encoding" not in index
            and len(headers) <= writing.MAX_HEADERS
        )
        if not is_plain or not head_is_small or self._is_offer:
            self._check_head(version, index)
        keep_alive = version != "1.0" and parser.should_keep_alive() and not self._notice.is_given
        # A path with a query, or in another spelling, is no key here: it goes by way of ASGI, whose routing knows them all.
        endpoint = self._hot.get(self.url) if parser.get_method() == b"POST" else None
        cycle: AnyCycle
        if endpoint is None:
            cycle = self._asgi_cycle(index, version, keep_alive=keep_alive)
        else:
            cycle = Cycle(self, endpoint, headers, index, version, keep_alive)
            if b"expect" in index:
                cycle.waiting_for_100_continue = _expects(headers)
        # The cycle holds the list of the head by now; only a chunked body can have trailers.
        if self._coding is not None:
            self.headers = writing.Trailers()  # type: ignore[assignment]  # all that the parser's callbacks do is append
        previous, self.cycle = self.cycle, cycle
        if previous is None or previous.response_complete:
            self._start(cycle)
        else:  # the answer before it is not complete: it waits for its turn, and nothing more is read meanwhile
            self.flow.pause_reading()
            self.pipeline.appendleft(cycle)

    def _asgi_cycle(self, index: dict[bytes, bytes], version: str, *, keep_alive: bool) -> AsgiCycle:
        """A request to the application. Raises httptools' HttpParserInvalidURLError, which stops the parser."""
        url = httptools.parse_url(self.url)
        raw_path = url.path
        state: dict[str, Any] = {}
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "method": self.parser.get_method().decode("ascii"),
            "root_path": "",
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": url.query or b"",
            "headers": self.headers,
            "state": state,
        }
        expects = b"expect" in index and _expects(self.headers)
        state["cycle"] = cycle = AsgiCycle(self, self.scope, index, expects=expects, keep_alive=keep_alive)
        return cycle

    def _check_head(self, version: str, index: dict[bytes, bytes]) -> None:
        """Refuse a head that is not plainly right, if it is wrong: raises ValueError, which stops the parser."""
        headers = self.headers
        if b"transfer-encoding" in index:
            self._coding = b", ".join([value for name, value in headers if name == b"transfer-encoding"])
        self._refusal = self._fault_of_head(version, has_host=b"host" in index)
        if self._refusal is None and len(headers) > writing.MAX_HEADERS:
            self._refusal = HeadersTooLarge(f"The request has more than {writing.MAX_HEADERS} headers.")
        if self._refusal is None and self._is_offer:
            self._refusal = writing.fault_of_offer(
                self.parser.get_method(), headers, has_sessions=self.url.partition(b"?")[0] in self._session_paths
            )
        if self._refusal is not None:
            raise ValueError("stops the parser")

    def on_body(self, body: bytes) -> None:
        self._loose_bytes = 0
        cycle = self.cycle
        if cycle is None:
            return
        if cycle.response_complete:
            self._drop(len(body), MAX_REST_BYTES)
        elif cycle.waiter is None and not cycle.first and cycle.rest is None:
            cycle.first = body  # mostly all of it: kept as it is, uncopied
            if len(body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
        elif cycle.add(body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """The peer's leaving is noticed from here on, however large the body was."""
        cycle = self.cycle
        if cycle is None or (self._is_offer and writing.body_framing(cycle.headers)):
            return  # the parser takes what follows for another protocol; `_stay` reads the body
        self._loose_bytes = 0
        cycle.more_body = False
        if not cycle.keep_alive:
            self._request_complete_at = self.loop.time()
        if cycle.response_complete:
            self._dropped_bytes = 0
        elif cycle.waiter is not None:
            cycle.wake()
        # The body may have been long enough to pause it; while a request waits for its turn, this does nothing.
        if self.flow.read_paused:
            self.flow.resume_reading()

    def _fault_of_head(self, version: str, *, has_host: bool) -> GatewayError | None:
        """What is wrong with a head that is not plainly right."""
        if writing.head_bytes(self.url, self.headers) > writing.MAX_HEAD_BYTES:
            return writing.head_too_large()
        if version == "1.1" and not has_host:
            return InvalidRequest("An HTTP/1.1 request needs a Host header.", code="invalid_http")
        fault = writing.fault_of_version(version)
        return fault if fault is not None or self._coding is None else writing.fault_of_coding(self._coding)

    def _lacks_version(self, piece: bytes) -> bool:
        """Whether the line that ends with this piece is a whole request of HTTP/0.9, whose client waits for an answer now.

        Known for the first request of a connection, and there is no second in HTTP/0.9.
        """
        began: Any = self.headers  # None before the first request, whatever its annotation says
        is_line = began is not None and bool(self.url) and piece.endswith(b"\n")
        return is_line and self.parser.get_http_version() in ("0.0", "0.9")

    def _is_reading_body(self) -> bool:
        cycle = self.cycle
        return cycle is not None and self.head_since is None and bool(cycle.more_body)

    def _stay(self, rest: bytes) -> None:
        """Decline an offer of another protocol (h2c, TLS) by serving the request (RFC 9110, 7.8).

        The parser has left the body unread: a second one reads it, and nothing behind it: that could be of the other
        protocol. The connection ends with the answer.
        """
        cycle = self.cycle
        if cycle is None:
            return
        cycle.keep_alive = False
        lines = writing.body_framing(cycle.headers)
        if not lines:
            # Whatever follows a request without a body may be of the other protocol.
            self._reading_stopped = True
            return
        self.parser = httptools.HttpRequestParser(_BodyReader(self))
        # The request line is made up: the second parser only needs to know where the body ends.
        self.data_received(b"".join((b"POST / HTTP/1.1\r\n", *lines, b"\r\n", rest)), is_piece=True)

    def end_of_last_body(self) -> None:
        """The body of a request that is the connection's last is complete."""
        self._is_offer = False
        self.on_message_complete()
        self._reading_stopped = True

    def _why_stopped(self, stopped: httptools.HttpParserError) -> GatewayError:
        """Why the parser gave up: a refusal of ours that stopped it, or malformed HTTP."""
        if self._refusal is not None:
            return self._refusal
        if isinstance(stopped.__context__, writing.TrailersTooLarge):
            return writing.trailers_too_large()
        return writing.not_http(str(stopped))

    def _drop(self, count: int, most: int) -> None:
        """Forget this many bytes that nobody will read; who sends more than `most` of them is cut off."""
        self._dropped_bytes += count
        if self._dropped_bytes > most:
            self._reading_stopped = True
            self.transport.abort()

    def _refuse(self, error: GatewayError) -> None:
        """Read no more requests, and answer what cannot be read where no answer stands in the way. The cases:

        1. A head is wrong, while answers to earlier requests are due: they are given, then the connection closes.
        2. A body is wrong whose request waits for its turn: the error is given in its turn.
        3. A body is wrong whose request is being answered, or has been: the connection closes.
        4. A head is wrong, or a body whose request has no answer: the error is the answer, and what the peer still sends
           is read and dropped until it has seen it, because closing on unread bytes would reset the connection and lose it.
        """
        self._reading_stopped = True
        self._refusal = error
        cycle = self.cycle
        if cycle is not None and self._is_reading_body():
            if self.pipeline:
                cycle.is_refused = True  # case 2
                return
            if cycle.response_started:
                self.transport.close()  # case 3
                return
            # Case 4: whoever serves the request stops, because its answer is the error.
            cycle.leave()
            if self.on_gone is not None:
                self.on_gone()
        elif cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            return  # case 1
        request_id = new_request_id()
        self._on_refused(request_id, "", error.status, error.code)
        self.transport.write(refusal_bytes(error, request_id))
        self.flow.resume_reading()
        # The keep-alive clock bounds the time that the peer has to see it.
        self.idle_since = self.loop.time()
        self.transport.write_eof()

    # Whose turn it is.

    def _start(self, cycle: AnyCycle) -> None:
        """Serve a request whose turn has come."""
        if isinstance(cycle, AsgiCycle):
            self._start_asgi_task(cycle, self.app)
        elif self._serve is not None:
            cycle.task = task = self.loop.create_task(self._serve(cycle))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def on_response_complete(self) -> None:
        """As uvicorn's, with the keep-alive clock left to the sweep: a timer per answer is dear."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if not self.pipeline:
            self.idle_since = self.loop.time()
            return
        cycle = self.pipeline.pop()
        if cycle.is_refused:
            # Answers a request whose body turned out to be wrong before its turn came.
            error, request_id = self._refusal, new_request_id()
            cycle.keep_alive = False
            if error is not None:
                self._on_refused(request_id, "", error.status, error.code)
                body = error_body(error, cycle.endpoint, request_id)
                headers = [*error_headers(error, len(body)), (b"x-request-id", request_id.encode())]
                if cycle.endpoint is not None:
                    named_request(cycle.endpoint.shape, headers)
                write_whole(cycle, error.status, headers, body)
        else:
            self._start(cycle)
        if self._unparsed is not None:
            self.data_received(b"")  # there is room for the next request that it holds

    # How it ends.

    def eof_received(self) -> bool | None:  # type: ignore[override]  # uvicorn's closes always
        """The client has ended its side. True: it is answered all the same, as long as it turns out to be there."""
        cycle = self.cycle
        if self._half_closed is not None:
            return True
        if cycle is None or cycle.more_body or cycle.response_started or self.pipeline:
            # None closes the connection: without a whole request, or during its answer, the client has left.
            return None
        takes_interim = cycle.http_version == "1.1"
        if not takes_interim and self.loop.time() - self._request_complete_at > RIGHT_BEHIND_S:
            return None
        cycle.keep_alive = False
        self._half_closed = HalfClosed(self.transport, self.loop, takes_interim=takes_interim)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        cycle = self.cycle
        if cycle is not None:
            if cycle.response_complete:
                cycle.wake()
            else:
                cycle.leave()
        # Whoever waits in `drain` goes on, and finds that the client has left.
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        # They lead back to here. A call that was held for long has grown too old for the collector to come by soon.
        self.parser = self.scope = None  # type: ignore[assignment]  # nobody asks for them any more
        self.cycle = self._unparsed = None
        for waiting in self.pipeline:
            waiting.scope["state"] = {}  # through which the scope of ASGI leads to its request, and that back to here
        self.pipeline.clear()
        if self.on_gone is not None:
            self.on_gone()

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Lets another protocol have the connection, whose request was answered with 101. This one is out of use then."""
        transport = self.transport
        self.connections.discard(self)
        connections = cast("set[Any]", self.connections)  # uvicorn names its own protocols
        connections.add(HandedOver(transport, connections))
        self._reading_stopped = True
        self.on_gone = self.cycle = self._unparsed = None
        self.parser = self.scope = None  # type: ignore[assignment]  # nobody asks for them any more
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        # The new protocol does not know whether reading was paused here.
        self.flow.resume_reading()

    def sweep(self, now: float, head_timeout_s: float, keep_alive_s: float, write_timeout_s: float) -> None:
        """Close the connection if its request head takes too long, if it idles, or if its client takes nothing.

        Called about once a second. The last of these frees what the call holds at its provider; so does a client that has
        ended its side first, and then has left.
        """
        if self._half_closed is not None:
            self._half_closed.sweep(now, is_waiting=self.cycle is not None and not self.cycle.response_started)
        stuck_since = self._stuck_since(now)
        if stuck_since is not None and now - stuck_since > write_timeout_s:
            self.transport.abort()
            return
        head_is_late = self.head_since is not None and now - self.head_since > head_timeout_s
        if head_is_late or (self.idle_since is not None and now - self.idle_since > keep_alive_s):
            self.transport.close()

    def without_request_since(self, now: float) -> float | None:
        """Since when the connection waits for a request; None: it has one, or may be just about to."""
        if self.transport.is_closing():
            return None
        if self.head_since is None:
            return self.idle_since
        return self.head_since if self.cycle is None and now - self.head_since > FIRST_REQUEST_S else None

    def _stuck_since(self, now: float) -> float | None:
        """Since when the client has taken none of the bytes that wait for it; a slow one takes some."""
        if not self.flow.write_paused:
            self._unsent = None
            return None
        size = self.transport.get_write_buffer_size()
        if self._unsent is None or self._unsent[0] != size:
            self._unsent = (size, now)
        return self._unsent[1]


def _expects(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether the client waits for `100 Continue`."""
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)


class _BodyReader:
    """What a parser calls that is to read one body and nothing else."""

    def __init__(self, connection: GatewayProtocol) -> None:
        self.on_body = connection.on_body
        self._connection = connection
        self._trailers = writing.Trailers()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Also called for the few lines that it was given as a head."""
        self._trailers.append((name, value))

    def on_message_complete(self) -> None:
        self._connection.end_of_last_body()
        raise ValueError("stops the parser")


class HandedOver:
    """A connection that another protocol has now: it counts among those of clients until it is closed."""

    __slots__ = ("_connections", "transport")

    def __init__(self, transport: asyncio.Transport, connections: set[Any]) -> None:
        self.transport = transport
        self._connections = connections

    def sweep(self, _now: float, _head_timeout_s: float, _keep_alive_s: float, _write_timeout_s: float) -> None:
        """Leave the connections when it is closed; what it may do meanwhile is its protocol's business."""
        if self.transport.is_closing():
            self._connections.discard(self)

    def without_request_since(self, _now: float) -> None:
        """It waits for no request."""

    def shutdown(self) -> None:
        """Its protocol closes it."""


def give_way(connections: set[Any], most: int) -> int:
    """Close up to `most` connections that no request is on, those first that have waited longest; returns how many."""
    now = asyncio.get_running_loop().time()
    # Connections have no order among themselves: of equal times the `id` decides.
    waiting = [
        (since, id(each), each) for each in connections if (since := each.without_request_since(now)) is not None
    ]
    chosen = heapq.nsmallest(most, waiting)
    for _, _, connection in chosen:
        connection.transport.close()
    return len(chosen)


def sweep_connections(
    connections: set[Any], head_timeout_s: float, keep_alive_s: float, write_timeout_s: float
) -> None:
    """Close the connections of a uvicorn server whose clients keep them waiting, with a head, a request or reading."""
    now = asyncio.get_running_loop().time()
    # A copy, for one that was handed over takes itself out.
    for connection in list(connections):
        connection.sweep(now, head_timeout_s, keep_alive_s, write_timeout_s)
