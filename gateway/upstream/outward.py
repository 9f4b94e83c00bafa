"""Requests to addresses that are no provider's: webhooks. Implements `job_ports.Outward`.

TLS is verified against the system's authorities, no proxy of the environment is used, no redirect is followed, and of an
answer's body only as much is read as lets the connection be used again. What it says is never shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import httpx

from gateway.job_ports import OutwardAnswer, Unreachable
from gateway.upstream.certificates import certificate_error
from gateway.upstream.http1.transport import ERRORS, Http1Transport
from gateway.upstream.http1.wire import WireTimeouts

MOST_READ_BYTES: Final = 4096
CONNECTIONS: Final = 16
"""To each origin, at most."""
_ERRORS: tuple[type[Exception], ...] = (*ERRORS, httpx.InvalidURL)


class HttpOutward:
    """Posts over the gateway's own HTTP/1.1 transport, which belongs to one event loop."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`transport` stands in for our own in tests."""
        self._transport = transport or Http1Transport(max_connections=CONNECTIONS)

    async def post(
        self, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, timeout_s: float
    ) -> OutwardAnswer:
        """Posts a body, within `timeout_s` from the connection to the end of what is read. Raises Unreachable."""
        answer: OutwardAnswer | None = None
        timeouts = WireTimeouts(timeout_s, timeout_s, timeout_s, timeout_s, timeout_s)
        try:
            request = httpx.Request(
                "POST", url, headers=[*headers], content=body, extensions={"timeout": timeouts.as_extension()}
            )
            async with asyncio.timeout(timeout_s):
                response = await self._transport.handle_async_request(request)
                answer = OutwardAnswer(response.status_code, response.headers.get("retry-after", "").encode())
                await _read_some(response)
        except (TimeoutError, httpx.TimeoutException):
            if answer is not None:  # only its body was late
                return answer
            raise Unreachable(f"no answer within {timeout_s:g} s") from None
        except _ERRORS as error:
            raise Unreachable(_in_words(error)) from error
        return answer

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._transport.aclose()


async def _read_some(response: httpx.Response) -> None:
    """Reads a short body to its end; a long one, or one that breaks off, costs the connection, and changes nothing."""
    read = 0
    try:
        async for chunk in response.aiter_raw():
            read += len(chunk)
            if read > MOST_READ_BYTES:
                break
    except ERRORS:
        return
    finally:
        await response.aclose()


def _in_words(error: Exception) -> str:
    certificate = certificate_error(error)
    if certificate is not None:
        return f"its TLS certificate is not accepted: {str(certificate.verify_message)[:100]}"
    return f"{type(error).__name__}: {str(error)[:100]}"
