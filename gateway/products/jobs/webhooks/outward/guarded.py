"""Requests to URLs that callers have named, to public addresses only. Implements `job_ports.outward.Outward`.

    guard reads the URL -> one look-up of the name -> guard sees every address -> connect to one of them, by its number

The name is looked up once, and what was judged is what is connected to: a name that changes its mind in between (DNS
rebinding) changes nothing. TLS is verified against the name, which is also the Host. Each request has a connection of its
own, so nothing is kept for the many hosts that callers may name. Behind an egress proxy the proxy looks names up, and is their
guard; what is written as a private address is refused before it is asked.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Final

import httpx

from gateway.core.http.client.exchange.wire import EncodedRequest
from gateway.core.http.client.pool.pool import Origin
from gateway.core.http.client.transport import Http1Transport
from gateway.core.types.exchange import RawHeaders
from gateway.products.jobs.webhooks.outward.job_ports_outward import FetchGuard, OutwardAnswer, Unreachable
from gateway.products.jobs.webhooks.outward.outwards_outward import answer_within, post_over, read_some, timeouts_of

if TYPE_CHECKING:
    from gateway.products.jobs.webhooks.outward.public_address import PublicUrl

MOST_LOOKUPS: Final = 32
"""Names that are looked up at a time: a name server that never answers holds a thread for its time-out."""
SWEEP_S: Final = 1.0
"""Of the transport; the time of a whole request is kept by a timer of its own."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns all addresses of a name, for a port. Raises OSError."""
Connect = Callable[[Callable[[], asyncio.BaseProtocol], str, Origin], Awaitable[object]]
"""Connects to an address, in the name of an origin. Raises OSError."""


class Resolver:
    """Looks names up in threads of its own: a slow one of a caller's choice must not delay those of providers."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(MOST_LOOKUPS)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Returns all addresses of a name. Raises OSError."""
        await self._room.acquire()
        found: Future[list[str]] = Future()
        loop = asyncio.get_running_loop()
        found.add_done_callback(lambda _: _quietly(loop, self._room.release))
        Thread(target=_look_up, args=(found, host, port), name="webhook-name", daemon=True).start()
        return await asyncio.shield(asyncio.wrap_future(found))


async def connect_to(make: Callable[[], asyncio.BaseProtocol], address: str, origin: Origin) -> None:
    """Connects to the address, and has the certificate verified for the origin's name."""
    loop = asyncio.get_running_loop()
    await loop.create_connection(make, address, origin.port, ssl=origin.tls, server_hostname=origin.host)


class GuardedOutward:
    """Posts to public addresses."""

    def __init__(
        self,
        guard: FetchGuard,
        tls: Callable[[], ssl.SSLContext],
        proxied: httpx.AsyncBaseTransport | None = None,
        resolve: Resolve | None = None,
        connect: Connect = connect_to,
    ) -> None:
        """`tls` makes the context at first use; `proxied` is the transport through an egress proxy, if there is one."""
        self._guard = guard
        self._make_tls = tls
        self._proxied = proxied
        self._resolve = resolve
        self._connect = connect
        self._tls: ssl.SSLContext | None = None

    async def post(
        self, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, timeout_s: float
    ) -> OutwardAnswer:
        """Posts a body, within `timeout_s` from the look-up to the end of what is read. Raises FetchRefused, Unreachable."""
        place = self._guard.read(url)
        if self._proxied is not None:
            return await answer_within(
                timeout_s, partial(self._post_proxied, self._proxied, place, headers, body, timeout_s)
            )
        return await answer_within(timeout_s, partial(self._post_pinned, place, headers, body, timeout_s))

    async def aclose(self) -> None:
        """Closes the connections to the proxy; those to others end with their requests."""
        if self._proxied is not None:
            await self._proxied.aclose()

    async def _post_pinned(
        self, place: PublicUrl, headers: RawHeaders, body: bytes, timeout_s: float, answered: list[OutwardAnswer]
    ) -> None:
        addresses = await self._addresses(place)
        self._tls = self._tls or self._make_tls()
        dial = partial(self._dial, addresses)
        transport = Http1Transport(ssl_context=self._tls, max_connections=1, sweep_interval_s=SWEEP_S, dial=dial)
        try:
            outgoing, origin = _encoded(place, headers, body), ("https", place.host, place.port)
            exchange = await transport.exchange(outgoing, timeouts_of(timeout_s), origin)
            answered.append(OutwardAnswer(exchange.status, dict(exchange.headers).get(b"retry-after", b"")))
            await read_some(exchange)
        finally:
            await transport.aclose()

    async def _post_proxied(
        self,
        proxied: httpx.AsyncBaseTransport,
        place: PublicUrl,
        headers: RawHeaders,
        body: bytes,
        timeout_s: float,
        answered: list[OutwardAnswer],
    ) -> None:
        url = httpx.URL(scheme="https", host=place.host, port=place.port, raw_path=place.target.encode())
        extensions = {"timeout": timeouts_of(timeout_s).as_extension()}
        request = httpx.Request("POST", url, headers=[*headers], content=body, extensions=extensions)
        await post_over(proxied, request, answered)

    async def _addresses(self, place: PublicUrl) -> Sequence[str]:
        """Returns the addresses that may be connected to. Raises FetchRefused, Unreachable."""
        if place.is_address:
            return [place.host]
        self._resolve = self._resolve or Resolver()
        try:
            addresses = await self._resolve(place.host, place.port)
        except OSError:
            raise Unreachable("its host name is not known") from None
        if not addresses:
            raise Unreachable("its host name has no address")
        self._guard.check(addresses)
        return addresses

    async def _dial(self, addresses: Sequence[str], make: Callable[[], asyncio.BaseProtocol], origin: Origin) -> None:
        """Connects to the first address that answers. Raises OSError."""
        for last, address in enumerate(addresses, 1 - len(addresses)):
            try:
                await self._connect(make, address, origin)
            except ssl.SSLError:
                raise
            except OSError:
                if not last:
                    raise
            else:
                return


def _encoded(place: PublicUrl, headers: RawHeaders, body: bytes) -> EncodedRequest:
    """The bytes of the request, from the parts that were judged; no header of ours has a line end."""
    fields = [(b"host", place.origin.removeprefix("https://").encode()), *headers]
    lines = b"\r\n".join(b"%b: %b" % field for field in fields)
    head = b"POST %b HTTP/1.1\r\n%b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return EncodedRequest(head % (place.target.encode(), lines, len(body)), body, None, len(body))


def _look_up(found: Future[list[str]], host: str, port: int) -> None:
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found.set_result(list(dict.fromkeys(str(entry[4][0]) for entry in entries)))
    except (OSError, UnicodeError) as error:
        found.set_exception(error if isinstance(error, OSError) else OSError(str(error)))


def _quietly(loop: asyncio.AbstractEventLoop, act: Callable[[], object]) -> None:
    """Has it done in the loop, if that still runs."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(act)
