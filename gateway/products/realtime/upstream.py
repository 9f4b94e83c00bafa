"""One target's wire for WebSocket sessions: the handshake with the provider, with its address and credential put on.

An answer that switches protocols holds the open session; any other is an error like every other call's. It must not know what
frames say. Nothing of a session is pooled: each has a connection of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_plus

import httpx

from gateway.core.http.client.pool import Origin, dial_by_name, dial_through
from gateway.core.http.client.redaction import Secrets, with_phase
from gateway.core.http.client.transport import Pools
from gateway.core.http.client.wire import Wire
from gateway.core.snapshot import Provider
from gateway.core.types import Answer, Outgoing, Phase, RawHeaders, Socket

if TYPE_CHECKING:
    from gateway.core.websocket import SocketEnd

SUBPROTOCOLS = b"sec-websocket-protocol"
_OURS = frozenset((b"content-type", b"accept", b"host", b"accept-encoding", SUBPROTOCOLS))
"""Headers that belong to a handshake, or to no GET."""
_NOT_OF_101 = frozenset((b"upgrade", b"connection", b"content-length", b"transfer-encoding", b"content-type"))
_NOT_PASSED_ON = frozenset(["model", "deployment", "api-key", "api_key", "apikey", "key", "token", "access_token"])
"""The fields of the query that are not passed on: what is ours to say, and names under which some clients send their key, which
is for the gateway alone.
"""
_PORTS = {"wss": 443, "ws": 80}


class SocketAnswer:
    """The answer to a handshake; `socket` is None unless it has switched protocols."""

    __slots__ = ("chunks", "headers", "hide", "socket", "status", "whole")

    def __init__(self, status: int, headers: RawHeaders, body: bytes, socket: SocketEnd | None) -> None:
        self.status = status
        self.headers = headers
        self.whole: bytes | None = body
        self.socket: Socket | None = socket
        self.hide: Callable[[bytes], bytes] | None = None
        """Takes the provider's credentials out of what it says."""
        self.chunks: AsyncIterator[bytes] = _nothing()

    def unpack(self, codings: bytes) -> None:
        """Nothing: it was asked for as it is, and an error in a coding is shown as it came."""

    def mask_body(self, secrets: Secrets) -> None:
        """Mask these in the body, and in all that comes through the socket."""
        self.hide = secrets.mask
        if self.whole is not None:
            self.whole = secrets.mask(self.whole)

    async def aclose(self) -> None:
        """Leave the session."""
        if self.socket is not None:
            self.socket.abort()


async def _nothing() -> AsyncIterator[bytes]:
    empty: tuple[bytes, ...] = ()
    for never in empty:
        yield never


class SocketWire(Wire):
    """Opens sessions at one target. Implements `Upstream`."""

    __slots__ = ("_pools",)

    def __init__(self, provider: Provider, model: str | None, pools: Pools) -> None:
        super().__init__(provider, model, pools.transport(provider))
        self._pools = pools

    def send(self, outgoing: Outgoing) -> Coroutine[Any, Any, Answer]:
        """Open a session. Raises UpstreamFailed when there is no answer."""
        return self._open(outgoing)

    async def _open(self, outgoing: Outgoing) -> SocketAnswer:
        from gateway.core.websocket import provider_end  # a gateway without sessions does not load it

        # Where the session is opened; the model in the query is the one that the provider knows.
        provider, model = self._provider, quote(outgoing.model, safe="")
        pairs = [pair for pair in outgoing.query.decode("latin-1").split("&") if pair]
        ours = _NOT_PASSED_ON | {"api-version"} if self._api_version else _NOT_PASSED_ON
        others = [pair for pair in pairs if unquote_plus(pair.partition("=")[0]).lower() not in ours]
        base = "ws" + provider.base_url.removeprefix("http")
        named = [f"model={model}"] if model else []
        if self._api_version:
            named = [f"api-version={quote(self._api_version)}", f"deployment={model}"]
            base += "/openai"
        elif provider.dialect == "azure":
            base += "/openai/v1"
        url = f"{base}{outgoing.path}?{'&'.join([*named, *others])}".removesuffix("?")
        offered = [value.decode("latin-1") for name, value in outgoing.headers if name == SUBPROTOCOLS]
        end, request, frames = provider_end(url, self._handshake_headers(outgoing), [*_each(offered)])
        try:
            response = await self._exchange(end, httpx.URL(url), request, outgoing.clocks.connect_s)
        except self.errors as exc:
            raise self._failure(exc, answered=False) from exc
        except BaseException:
            end.abort()
            raise
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in response.headers.raw_items()]
        status = response.status_code
        if status == 101 and frames.handshake_exc is None:  # what it has switched to may be something else
            headers = [header for header in headers if header[0] not in _NOT_OF_101 and header[0] != SUBPROTOCOLS]
            if frames.subprotocol:
                headers.append((SUBPROTOCOLS, frames.subprotocol.encode()))
            answer = SocketAnswer(status, headers, b"", end)
            answer.whole = None
        else:
            end.abort()
            answer = SocketAnswer(status, headers, bytes(response.body or b""), None)
            if status < 300:
                why = frames.handshake_exc if status == 101 else f"status {status}"
                fault = httpx.RemoteProtocolError(f"the provider did not open a WebSocket ({why})")
                raise self._failure(with_phase(fault, Phase.ANSWERED), answered=False)
        if self._secrets is not None:
            answer.headers = [(name, self._secrets.mask(value)) for name, value in answer.headers]
            answer.mask_body(self._secrets)
        return answer

    async def _exchange(self, end: SocketEnd, url: httpx.URL, request: bytes, connect_s: float) -> Any:
        """Connect, ask, and return the answer's head. Raises httpx's errors, which tell their phase."""
        loop = asyncio.get_running_loop()
        end.opening = loop.create_future()
        tls = self._pools.socket_tls(self._provider) if url.scheme == "wss" else None
        origin = Origin(url.host, url.port or _PORTS[url.scheme], tls)
        try:
            async with asyncio.timeout(connect_s):
                if self._provider.proxy is not None:
                    await dial_through(self._provider.proxy, end, origin)
                else:
                    await dial_by_name(_once(end), origin)
        except TimeoutError as late:
            raise with_phase(httpx.ConnectTimeout(f"no connection to {origin} in time"), Phase.NOTHING_SENT) from late
        except (OSError, UnicodeError) as error:
            why = str(error) or type(error).__name__
            unreachable = httpx.ConnectError(f"cannot connect to {origin}: {why}")
            raise with_phase(unreachable, Phase.NOTHING_SENT) from error
        if end.transport is not None:
            end.transport.write(request)
        try:
            answer = await end.opening
            end.opening = None
            return answer
        except OSError as error:
            raise with_phase(httpx.ReadError(str(error) or "the connection broke"), Phase.SENT) from error
        except Exception as error:  # of the library: not HTTP, or no WebSocket
            end.abort()
            raise with_phase(httpx.RemoteProtocolError(str(error)), Phase.ANSWERED) from error

    def _handshake_headers(self, outgoing: Outgoing) -> list[tuple[bytes, bytes]]:
        """Ours, and what the caller may say; `host` and the handshake's own are the library's."""
        set_here = self._header_names
        headers = [one for one in self._headers if one[0] not in _OURS]
        headers += [one for one in outgoing.headers if one[0] not in set_here and one[0] not in _OURS]
        if self._auth is None and outgoing.credential is not None:
            headers.append(self._pass_on(outgoing.credential))
        return headers


def _once(end: SocketEnd) -> Callable[[], asyncio.BaseProtocol]:
    return lambda: end


def _each(lines: Sequence[str]) -> list[str]:
    return [each.strip() for line in lines for each in line.split(",") if each.strip()]
