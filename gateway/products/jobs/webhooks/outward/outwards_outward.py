"""Requests to addresses that are no provider's: webhooks. Implements `job_ports.outward.Outward`.

TLS is verified against the system's authorities, no proxy of the environment is used, no redirect is followed, and of an
answer's body only as much is read as lets the connection be used again. What it says is never shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import httpx

from gateway.core.http.client.exchange.wire import WireTimeouts
from gateway.core.http.client.pools.pools.certificates import certificate_error
from gateway.core.http.client.transport import ERRORS, Http1Transport
from gateway.products.jobs.webhooks.outward.job_ports_outward import OutwardAnswer, Unreachable

MOST_READ_BYTES: Final = 4096
CONNECTIONS: Final = 16
"""To each origin, at most."""
OUTWARD_ERRORS: tuple[type[Exception], ...] = (*ERRORS, httpx.InvalidURL)


class HttpOutward:
    """Posts over the gateway's own HTTP/1.1 transport, or another one; either belongs to one event loop."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`transport` is one through a proxy, or with authorities of its own."""
        self._transport = transport or Http1Transport(max_connections=CONNECTIONS)

    async def post(
        self, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, timeout_s: float
    ) -> OutwardAnswer:
        """Posts a body, within `timeout_s` from the connection to the end of what is read. Raises Unreachable."""

        async def send(answered: list[OutwardAnswer]) -> None:
            extensions = {"timeout": timeouts_of(timeout_s).as_extension()}
            request = httpx.Request("POST", url, headers=[*headers], content=body, extensions=extensions)
            await post_over(self._transport, request, answered)

        return await answer_within(timeout_s, send)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._transport.aclose()


async def answer_within(timeout_s: float, send: Callable[[list[OutwardAnswer]], Awaitable[None]]) -> OutwardAnswer:
    """Returns the answer that `send` notes as soon as its head has come; the rest may be late. Raises Unreachable."""
    answered: list[OutwardAnswer] = []
    try:
        async with asyncio.timeout(timeout_s):
            await send(answered)
    except (TimeoutError, httpx.TimeoutException):
        if not answered:  # else only its body was late
            raise Unreachable(f"no answer within {timeout_s:g} s") from None
    except OUTWARD_ERRORS as error:
        raise Unreachable(in_words(error)) from error
    return answered[0]


async def post_over(transport: httpx.AsyncBaseTransport, request: httpx.Request, answered: list[OutwardAnswer]) -> None:
    """Sends a request; the answer is in `answered` as soon as its head has come."""
    response = await transport.handle_async_request(request)
    try:
        answered.append(OutwardAnswer(response.status_code, response.headers.get("retry-after", "").encode()))
        await read_some(response.aiter_raw())
    finally:
        await response.aclose()


async def read_some(chunks: AsyncIterable[bytes]) -> None:
    """Reads a short body to its end; a long one, or one that breaks off, costs the connection, and changes nothing."""
    read = 0
    with suppress(*ERRORS):
        async for chunk in chunks:
            read += len(chunk)
            if read > MOST_READ_BYTES:
                return


def timeouts_of(timeout_s: float) -> WireTimeouts:
    """Returns clocks of which none is longer than the whole."""
    return WireTimeouts(timeout_s, timeout_s, timeout_s, timeout_s, timeout_s)


def in_words(error: Exception) -> str:
    """Tells why there was no answer, in few words, which name no path."""
    certificate = certificate_error(error)
    if certificate is not None:
        return f"its TLS certificate is not accepted: {str(certificate.verify_message)[:100]}"
    return f"{type(error).__name__}: {str(error)[:100]}"
