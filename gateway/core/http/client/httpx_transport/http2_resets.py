"""RST_STREAM for HTTP/2 streams that httpcore has dropped: it forgets them without a word to the provider.

The provider would go on writing an answer, and being paid for it, and what comes fills the connection's window, which is never
opened again. There is no interface for it, so this reaches into httpcore's connections; what it does not find there it leaves
alone, and the conformance tests of the transports notice.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

import httpx

CANCEL = 0x8
"""RFC 9113, 7: the stream is no longer needed."""
LOW_WINDOW_BYTES = 2**23
"""Below it the connection's window is opened anew: what was dropped unread has used it up; it begins at twice this."""


def reset_stream(transport: httpx.AsyncHTTPTransport, extensions: Mapping[str, Any]) -> list[Coroutine[Any, Any, None]]:
    """Reset the stream that an answer's `extensions` tell of, at once for us; what is returned tells the provider."""
    number, network = extensions.get("stream_id"), extensions.get("network_stream")
    for connection in _connections(transport):
        if number is not None and connection._network_stream is network:
            return _reset(connection, [number])
    return []


def reset_abandoned(transport: httpx.AsyncHTTPTransport) -> list[Coroutine[Any, Any, None]]:
    """Reset every stream that is open and that nobody waits for, at once for us; what is returned tells the provider."""
    flushes = []
    for connection in _connections(transport):
        streams = connection._h2_state.streams
        flushes += _reset(connection, [number for number in streams if number not in connection._events])
    return flushes


def _reset(connection: Any, numbers: list[int]) -> list[Coroutine[Any, Any, None]]:
    state = connection._h2_state
    open_ones = [number for number in numbers if number in state.streams and not state.streams[number].closed]
    if not open_ones or not connection.is_available():
        return []
    for number in open_ones:
        state.reset_stream(number, CANCEL)
    if state.inbound_flow_control_window < LOW_WINDOW_BYTES:
        state.increment_flow_control_window(LOW_WINDOW_BYTES)
    return [connection._write_outgoing_data(httpx.Request("POST", ""))]


def _connections(transport: httpx.AsyncHTTPTransport) -> Iterator[Any]:
    """The HTTP/2 connections of the pool; a proxy's lie one or two layers deeper."""
    for connection in getattr(transport._pool, "connections", ()):
        inner: Any = connection
        while inner is not None and not hasattr(inner, "_h2_state"):
            inner = getattr(inner, "_connection", None)
        if inner is not None:
            yield inner
