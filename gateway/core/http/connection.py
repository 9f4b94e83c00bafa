"""One client connection: its life, whose turn it is on it, and when it is closed.

What its bytes mean, `server.py` finds out. Requests that come while one is served wait for their turn, and nothing more is
read meanwhile. It must not know HTTP's grammar. Invariants: answers go out in the order of their requests; a request whose
client has closed the connection is told at once.
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

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.core.errors import GatewayError
from gateway.core.http.writing import AnyCycle, AsgiCycle, BackpressureFlow, Cycle, write_whole
from gateway.core.render import error_body, error_headers, named_request, new_request_id
from gateway.core.types import Endpoint

# A client that has ended its side of the connection and still reads, told from one that has left.
#
# Both look the same until something is sent: the system of who has left answers with a reset. What is sent is an interim
# response, of which any client takes any number before the answer (RFC 9110, 15.2). HTTP/1.0 knows none: there the end has to
# come right behind the request, because who gives up waiting does so later (proxies that speak 1.0 among them), and the
# kernel asks with its keep-alive probes, which a client that was closed all the same answers with a reset once its system has
# forgotten the connection (Linux: `tcp_fin_timeout`, 60 s). It must not know what was asked.


PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
SOON_S = 0.02
"""The way there and back, where it is short; of who is farther away the sweep finds out."""
AGAIN_S = 10.0
"""So often it is asked while it waits for its answer."""
RIGHT_BEHIND_S = 1.0
KERNEL_ASKS = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""After how many seconds, how often, and how often in vain; by default it begins after two hours."""
_CLOSE_WAIT = 8
"""The peer has ended its side, and nothing else has come of it (tcp_states.h of Linux)."""


class Ended:
    """A connection whose client has ended its side, and is asked whether it reads. Nothing of the answer has been sent."""

    __slots__ = ("_requested_at", "_transport")

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, *, takes_interim: bool = True
    ) -> None:
        self._transport = transport
        self._requested_at = math.inf
        """When it was asked last; the kernel does it where that is for ever."""
        if not takes_interim:
            let_kernel_ask(transport)
            return
        self._ask(loop.time())
        loop.call_later(SOON_S, self._look)

    def sweep(self, now: float, *, is_waiting: bool) -> None:
        """Close the connection if the client has left; ask again from time to time while it is waiting for its answer."""
        if not self._look() and is_waiting and now - self._requested_at > AGAIN_S:
            self._ask(now)

    def _ask(self, now: float) -> None:
        self._requested_at = now
        self._transport.write(PROBE)

    def _look(self) -> bool:
        """Whether it is over: the client has left, or the last of its answer is on its way."""
        if self._transport.is_closing():
            return True
        is_over = has_left(self._transport)
        if is_over:
            self._transport.abort()
        return is_over


def let_kernel_ask(transport: asyncio.Transport) -> None:
    """Find out whether the client is there without a byte of HTTP."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KERNEL_ASKS:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def has_left(transport: asyncio.Transport) -> bool:
    """Whether nobody reads any more at the other end of a connection that it has ended; True where nothing can tell."""
    if sys.platform != "linux":
        return True
    try:
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


class ClientConnection(HttpToolsProtocol):
    """One client connection, without its parser's callbacks."""

    cycle: AnyCycle | None  # type: ignore[assignment]  # uvicorn's own are never made
    pipeline: deque[AnyCycle]  # type: ignore[assignment]  # as above

    def __init__(self, refused: Refused, notice: Notice, hot: HotEndpoints | None, **options: Any) -> None:
        super().__init__(**options)
        self._tell_refused = refused
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
        self._ended: Ended | None = None
        """The client has ended its side, and is served as long as it reads."""
        self._request_complete_at = 0.0
        """When a request that is the last of its connection was complete."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.flow = BackpressureFlow(transport, self.pipeline)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        cycle = self.cycle
        if cycle is not None:
            if cycle.response_complete:
                cycle.wake()
            else:
                cycle.leave()
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
        self.flow.resume_reading()

    def eof_received(self) -> bool | None:  # type: ignore[override]  # uvicorn's closes always
        """The client has ended its side. True: it is answered all the same, as long as it turns out to be there."""
        cycle = self.cycle
        if self._ended is not None:
            return True
        if cycle is None or cycle.more_body or cycle.response_started or self.pipeline:
            return None
        takes_interim = cycle.http_version == "1.1"
        if not takes_interim and self.loop.time() - self._request_complete_at > RIGHT_BEHIND_S:
            return None
        cycle.keep_alive = False
        self._ended = Ended(self.transport, self.loop, takes_interim=takes_interim)
        return True

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
            self._give_refusal(cycle)
        else:
            self._start(cycle)
        if self._unparsed is not None:
            self.data_received(b"")  # there is room for the next request that it holds

    def sweep(self, now: float, head_timeout_s: float, keep_alive_s: float, write_timeout_s: float) -> None:
        """Close the connection if its request head takes too long, if it idles, or if its client takes nothing.

        Called about once a second. The last of these frees what the call holds at its provider; so does a client that has
        ended its side first, and then has left.
        """
        if self._ended is not None:
            self._ended.sweep(now, is_waiting=self.cycle is not None and not self.cycle.response_started)
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

    def _give_refusal(self, cycle: AnyCycle) -> None:
        """Answers a request whose body turned out to be wrong before its turn came."""
        error, request_id = self._refusal, new_request_id()
        cycle.keep_alive = False
        if error is not None:
            self._tell_refused(request_id, "", error.status, error.code)
            body = error_body(error, cycle.endpoint, request_id)
            headers = [*error_headers(error, len(body)), (b"x-request-id", request_id.encode())]
            if cycle.endpoint is not None and cycle.endpoint.sse == "messages":
                named_request(headers)
            write_whole(cycle, error.status, headers, body)


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
    for connection in list(connections):
        connection.sweep(now, head_timeout_s, keep_alive_s, write_timeout_s)
