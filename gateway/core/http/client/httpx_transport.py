"""`transport: httpx`: HTTP/2 and proxies, with what our own transport promises and httpx leaves open.

Three things are added to `httpx.AsyncHTTPTransport`. Errors of the libraries below it, which it lets through as they are,
become httpx's. An answer that only the end of a TLS connection ends is whole after a close_notify alone (RFC 8446, 6.1). And
a stream of HTTP/2 that nobody reads any more is reset, so that the provider stops working on it (RFC 9113, 8.7).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import anyio
import httpx

from gateway.core.http.client.wire.redaction import with_phase
from gateway.core.types import Phase

# RST_STREAM for HTTP/2 streams that httpcore has dropped: it forgets them without a word to the provider.
#
# The provider would go on writing an answer, and being paid for it, and what comes fills the connection's window, which is
# never opened again. There is no interface for it, so this reaches into httpcore's connections; what it does not find there
# it leaves alone, and the conformance tests of the transports notice.


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


_STRAY_OF_HTTP2: tuple[type[Exception], ...] = (
    (import_module("h2.exceptions").H2Error,) if find_spec("h2") is not None else ()
)
_STRAY: tuple[type[Exception], ...] = (
    OSError,  # ssl.SSLError is one: a broken record, an alert
    EOFError,
    anyio.BrokenResourceError,
    anyio.BusyResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    *_STRAY_OF_HTTP2,
)
_STRAY_IN_BODY: tuple[type[Exception], ...] = (*_STRAY, httpx.LocalProtocolError)  # the request went out long ago
_STRAY_IN_WRITE: tuple[type[Exception], ...] = (*_STRAY, httpx.HTTPError)


class HttpxTransport(httpx.AsyncBaseTransport):
    """Send requests over httpx's own transport; `http2` needs the package h2. Errors and phases are as `Http1Transport`'s."""

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext,
        max_connections: int = 256,
        idle_expiry_s: float = 30.0,
        http2: bool = False,
        proxy: str | None = None,
    ) -> None:
        """`ssl_context` belongs to this transport alone: httpx sets the protocols it offers on it."""
        limits = httpx.Limits(
            max_connections=max_connections,
            max_keepalive_connections=max_connections,
            keepalive_expiry=idle_expiry_s,
        )
        self._inner = httpx.AsyncHTTPTransport(verify=ssl_context, limits=limits, http2=http2, proxy=proxy)
        self._is_http2 = http2
        self._resets: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As any transport; raises httpx's errors only. Cancelling ends the exchange at the provider, too."""
        try:
            response = await self._inner.handle_async_request(request)
        except _STRAY as exc:
            self._reset_abandoned()
            raise _in_httpx_words(exc, Phase.SENT) from exc
        except httpx.LocalProtocolError as exc:
            self._reset_abandoned()
            if _is_of_http2(exc):  # also said of what the provider sent, after the request had gone out
                raise _in_httpx_words(exc, Phase.SENT) from exc
            raise
        except BaseException:
            self._reset_abandoned()
            raise
        response.stream = _Body(self, request, response)
        return response

    async def aclose(self) -> None:
        """Close every connection; running exchanges fail."""
        for task in list(self._resets):
            task.cancel()
        await self._inner.aclose()

    def abandon(self, response: httpx.Response) -> None:
        """Reset the answer's stream, where it is one of HTTP/2; does not wait until that is written."""
        if self._is_http2:
            self._write(reset_stream(self._inner, response.extensions))

    def _reset_abandoned(self) -> None:
        if self._is_http2:
            self._write(reset_abandoned(self._inner))

    def _write(self, flushes: list[Any]) -> None:
        for flush in flushes:
            task = asyncio.get_running_loop().create_task(_flush(flush))
            self._resets.add(task)
            task.add_done_callback(self._resets.discard)


class _Body(httpx.AsyncByteStream):
    """An answer's body; iterate it once."""

    __slots__ = ("_ends_with_connection", "_is_complete", "_response", "_stream", "_transport")

    def __init__(self, transport: HttpxTransport, request: httpx.Request, response: httpx.Response) -> None:
        self._transport = transport
        self._response = response
        self._stream = cast("httpx.AsyncByteStream", response.stream)
        self._is_complete = False
        self._ends_with_connection = _ends_with_connection(request, response)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._stream:
                yield part
        except _STRAY_IN_BODY as exc:
            raise _in_httpx_words(exc, Phase.ANSWERED) from exc
        if self._ends_with_connection and not _is_end_announced(self._response):
            error = httpx.RemoteProtocolError(
                "the provider closed the connection without saying that its answer was over (TLS close_notify)"
            )
            raise with_phase(error, Phase.ANSWERED)
        self._is_complete = True

    async def aclose(self) -> None:
        """Finish with the answer; before its end this ends the exchange at the provider."""
        if not self._is_complete:
            self._is_complete = True
            self._transport.abandon(self._response)
        try:
            await self._stream.aclose()
        except _STRAY:
            return  # it could not be closed because it had broken


def _ends_with_connection(request: httpx.Request, response: httpx.Response) -> bool:
    """Whether nothing but the end of the connection ends the body (RFC 9112, 6.3)."""
    if response.extensions.get("http_version") == b"HTTP/2" or response.status_code in (204, 304):
        return False
    headers = response.headers
    return request.method != "HEAD" and "content-length" not in headers and "transfer-encoding" not in headers


def _is_end_announced(response: httpx.Response) -> bool:
    """Whether TLS, if there is any, was ended by the provider and not by somebody on the way."""
    stream = response.extensions.get("network_stream")
    tls = None if stream is None else stream.get_extra_info("ssl_object")
    if tls is None:
        return True
    try:
        return not tls.read(1)
    except ssl.SSLZeroReturnError:
        return True
    except ssl.SSLError:
        return False


def _is_of_http2(error: httpx.LocalProtocolError) -> bool:
    args = getattr(error.__cause__, "args", ())
    return bool(_STRAY_OF_HTTP2) and any(isinstance(arg, _STRAY_OF_HTTP2) for arg in args)


def _in_httpx_words(error: Exception, phase: Phase) -> httpx.TransportError:
    if isinstance(error, (httpx.LocalProtocolError, *_STRAY_OF_HTTP2)):
        return with_phase(httpx.RemoteProtocolError(f"bad answer: {str(error) or type(error).__name__}"), phase)
    return with_phase(httpx.ReadError(f"the connection broke: {str(error) or type(error).__name__}"), phase)


async def _flush(flush: Any) -> None:
    """Write what has been reset. Where that cannot be written the connection has broken, and nothing is left to reset."""
    try:
        await flush
    except _STRAY_IN_WRITE:
        return
