"""Requests to providers' Batch APIs, over their own transports, with the credential of the config.

An answer that was whole and said no is ProviderRefused; all else that went wrong is Unreachable: what was asked may have been
done. Our secrets are taken out of all that a provider says, as on the way of calls, before it is read: lines of its files are
results, its reasons are logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import httpx
import orjson

from gateway.core.http.client.exchange.wire import WireTimeouts
from gateway.core.http.client.transport import ERRORS
from gateway.core.http.client.wire.redaction.redaction import MaskedChunks, Seam, secrets_of
from gateway.core.http.client.wire.wire import auth_header
from gateway.core.snapshot.snapshot.provider import Provider
from gateway.products.batches.native.formats.remote import FULL, NeverSent, ProviderRefused
from gateway.products.jobs.webhooks.outward.job_ports_outward import Unreachable

ANSWER_S: Final = 60.0
IDLE_S: Final = 60.0
MOST_REASON_BYTES: Final = 65_536
MOST_ANSWER_BYTES: Final = 8 * 1024 * 1024
_FAULTS: tuple[type[Exception], ...] = (*ERRORS, httpx.InvalidURL)
_UNSURE: Final = frozenset((408, 425, 429))
"""Statuses below 500 that may be others a moment later."""


class BatchRequests:
    """Asks providers. Holds nothing of any batch."""

    def __init__(self, transport_of: Callable[[Provider], httpx.AsyncBaseTransport]) -> None:
        """`transport_of` gives the transport that a provider's calls go over."""
        self._transport_of = transport_of

    async def ask(
        self,
        provider: Provider,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | httpx.AsyncByteStream = b"",
        within_s: float | None = ANSWER_S,
        noes: Collection[int] = (),
    ) -> dict[str, Any]:
        """Returns the object that is the answer, which has to be there `within_s`; `noes`: statuses that say no for sure."""
        try:
            async with asyncio.timeout(within_s):
                response = await self.send(provider, method, path, query, headers, body)
                text = await read_whole(provider, response)
        except TimeoutError:
            raise Unreachable(f"no answer within {within_s:g} s") from None
        except _FAULTS as error:
            raise Unreachable(type(error).__name__) from error
        if not response.is_success:
            raise refusal(provider, response.status_code, text, noes)
        try:
            said = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise Unreachable("the answer is no JSON") from None
        if not isinstance(said, dict):
            raise Unreachable("the answer is no JSON object")
        return said

    async def content(
        self, provider: Provider, path: str, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yields the bytes of a file; what comes before an error is good."""
        response = await self.send(provider, "GET", path, headers=headers)
        try:
            if not response.is_success:
                raise refusal(provider, response.status_code, await read_whole(provider, response))
            secrets = secrets_of(provider)
            said = response.aiter_raw()
            async for part in said if secrets is None else MaskedChunks(said, Seam(secrets)):
                yield part
        except _FAULTS as error:
            raise Unreachable(type(error).__name__) from error
        finally:
            await response.aclose()

    async def send(
        self,
        provider: Provider,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | httpx.AsyncByteStream = b"",
    ) -> httpx.Response:
        url = url_of_api(provider, path, query or {})
        auth = auth_header(provider)
        told = [(b"host", url.netloc), (b"accept-encoding", b"identity")]
        told += [(name.lower().encode(), value.encode()) for name, value in provider.headers]
        told += [auth] if auth is not None else []
        own = {name for name, _ in told}
        asked = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        told += [header for header in asked if header[0] not in own]  # the config may name another version
        if isinstance(body, bytes) and body:
            told.append((b"content-length", b"%d" % len(body)))
        request = httpx.Request(
            method,
            url,
            headers=told,
            stream=httpx.ByteStream(body) if isinstance(body, bytes) else body,
            extensions={"timeout": WireTimeouts(10.0, 10.0, IDLE_S, ANSWER_S, IDLE_S).as_extension()},
        )
        try:
            return await self._transport_of(provider).handle_async_request(request)
        except _FAULTS as error:
            raise Unreachable(type(error).__name__) from error


class TimelyBody(httpx.AsyncByteStream):
    """A body of which each piece is sent in time or never, and none twice: what is not whole asks for nothing.

    It is not sent again on another connection, as a body of bytes would be.
    """

    def __init__(self, content: AsyncIterator[bytes], size: int, may_send: Callable[[], bool]) -> None:
        self._content, self._left, self._may_send = content, size, may_send
        self._has_begun = False

    @property
    def is_sent(self) -> bool:
        """Tells whether all of it has been handed over: before, nothing was asked."""
        return self._left <= 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._has_begun:
            raise httpx.WriteError("it has been sent before, and is not sent again")
        self._has_begun = True
        async for piece in self._content:
            if not self._may_send():
                raise NeverSent("too late to ask: this process has stood still, or was too slow")
            self._left -= len(piece)
            yield piece


async def once(body: bytes) -> AsyncIterator[bytes]:
    """Yields a body that is in one piece."""
    yield body


async def read_whole(provider: Provider, response: httpx.Response) -> bytes:
    """Returns the body of an answer, which is not a file's, without secrets."""
    parts, size = [], 0
    try:
        async for part in response.aiter_raw():
            size += len(part)
            if size > MOST_ANSWER_BYTES:
                raise Unreachable("the answer is too long")
            parts.append(part)
    finally:
        await response.aclose()
    secrets = secrets_of(provider)
    return b"".join(parts) if secrets is None else secrets.mask(b"".join(parts))


def refusal(provider: Provider, status: int, text: bytes, noes: Collection[int] = ()) -> ProviderRefused | Unreachable:
    """Returns what an answer without success means."""
    code = message = ""
    try:
        said = orjson.loads(text)
        error = said.get("error", said) if isinstance(said, dict) else {}
        if isinstance(error, dict):
            code, message = str(error.get("code") or ""), str(error.get("message") or "")
        else:
            message = str(error)
    except orjson.JSONDecodeError:
        message = text[:MOST_REASON_BYTES].decode(errors="replace")
    secrets = secrets_of(provider)
    why = f"{provider.name} answered {status} {code} {message}"
    why = (secrets.text(why) if secrets is not None else why)[:300]  # once more: it may have been written as \u0073k
    if status not in noes and (status >= 500 or (status in _UNSURE and code not in FULL)):
        return Unreachable(why)
    return ProviderRefused(status, code, why)


def url_of_api(provider: Provider, path: str, query: Mapping[str, str]) -> httpx.URL:
    base, asked = provider.base_url, dict(query)
    if provider.dialect == "azure" and provider.api_version:
        base += "/openai"
        asked["api-version"] = provider.api_version
    elif provider.dialect == "azure":
        base += "/openai/v1"
    elif provider.dialect == "anthropic" and not base.endswith("/v1"):
        base += "/v1"
    return httpx.URL(f"{base}{path}{'?' + urlencode(asked) if asked else ''}")


def segment(id: str) -> str:
    """Returns an id that a provider has given as one step of a path."""
    return quote(id, safe="-_.") if id not in (".", "..") else "-"
