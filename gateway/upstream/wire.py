"""One target's wire: a provider's URL, credential and dialect around a call's bytes, and its failures in our words.

Prebuilt when the policy is compiled; per call only the length and the caller's own headers are added. Redirects are not
followed, and the origin always comes from the config, never from a request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from gateway.errors import ErrorClass, Phase, UpstreamFailed
from gateway.exchange import Answer, Clocks, Outgoing, RawHeaders
from gateway.policy.snapshot import Provider
from gateway.upstream.certificates import certificate_error, explain
from gateway.upstream.decoding import unpacked
from gateway.upstream.http1.wire import PreparedTimeouts
from gateway.upstream.messages import Origin, RawRequest, RawResponse, origin_of
from gateway.upstream.phase import phase_of
from gateway.upstream.redaction import Secrets, secrets_of

_MAX_KEPT_ADDRESSES = 256
TRACE_CONTEXT = frozenset((b"traceparent", b"tracestate", b"baggage"))
"""Tells whose spans a call belongs to (W3C Trace Context, Baggage): of the caller's own house, and for it alone."""


class HttpAnswer:
    """A provider's answer over httpx's transport interface."""

    __slots__ = ("_secrets", "_stream", "chunks", "headers", "status", "whole")

    def __init__(self, response: httpx.Response, secrets: Secrets | None = None) -> None:
        """`secrets` are masked again in what is unpacked: packed, nobody has seen them."""
        self._secrets = secrets
        self.status = response.status_code
        stream: Any = response.stream  # an async transport gives an httpx.AsyncByteStream
        self._stream = stream
        self.chunks: AsyncIterator[bytes]
        self.headers: RawHeaders
        self.whole: bytes | None
        if isinstance(response, RawResponse):
            self.chunks, self.headers, self.whole = stream, response.raw_headers, stream.whole()
        else:
            self.chunks, self.whole = aiter(stream), None
            self.headers = [(name.lower(), value) for name, value in response.headers.raw]

    def unpack(self, codings: bytes) -> None:
        """Take the `content-encoding` off: the body is then to be read from `chunks`. Raises httpx.DecodingError."""
        self.chunks, self.whole = unpacked(aiter(self._stream), codings), None
        self.headers = [header for header in self.headers if header[0] not in (b"content-encoding", b"content-length")]
        if self._secrets is not None:
            self._secrets.guard(self)

    async def aclose(self) -> None:
        """Give the connection back, or close it when the body was not read to its end."""
        await self._stream.aclose()


@dataclass(frozen=True, slots=True)
class Address:
    """Where one path goes: prebuilt, because only the caller's headers and the length differ from call to call."""

    url: httpx.URL
    origin: Origin
    head: bytes
    """Request line and the headers that never change, without the last line's end."""


class Wire:
    """Sends a call to one target. Implements `ports.Upstream`."""

    __slots__ = (
        "_addresses",
        "_api_version",
        "_auth",
        "_clocks",
        "_header_names",
        "_headers",
        "_model",
        "_provider",
        "_secrets",
        "_timeout",
        "_transport",
    )

    errors: tuple[type[Exception], ...] = (httpx.HTTPError, httpx.StreamError)

    def __init__(self, provider: Provider, model: str | None, transport: httpx.AsyncBaseTransport) -> None:
        self._provider = provider
        self._model = model
        self._transport = transport
        self._headers = [(b"host", httpx.URL(provider.base_url).netloc), (b"accept-encoding", b"identity")]
        self._headers += [(name.lower().encode(), value.encode()) for name, value in provider.headers]
        self._auth = _auth_header(provider)
        if self._auth is not None:
            self._headers.append(self._auth)
        self._header_names = frozenset(name for name, _ in self._headers)
        if not provider.is_self_hosted:
            self._header_names |= TRACE_CONTEXT
        self._api_version = provider.api_version if provider.dialect == "azure" else None
        self._secrets = secrets_of(provider)
        self._addresses: dict[str, Address] = {}
        self._clocks: Clocks | None = None
        self._timeout = PreparedTimeouts(0, 0, 0, 0, 0)

    def __repr__(self) -> str:
        return f"Wire({self._provider.name}/{self._model or '*'})"

    async def send(self, outgoing: Outgoing) -> Answer:
        """Send the request and wait for the head of the answer. Raises UpstreamFailed when none arrives.

        Of a header that the provider's config sets, the caller's own is left out; its trace goes to servers of our house only.
        """
        address = self._address(outgoing)
        own = [header for header in outgoing.headers if header[0] not in self._header_names]
        if self._auth is None and outgoing.credential is not None:
            own.append(self._pass_on(outgoing.credential))
        if outgoing.body or outgoing.method != "GET":
            own.append((b"content-length", b"%d" % len(outgoing.body)))
        # Safe to put together: the config was checked, and what the client sent has passed a strict parser.
        head = b"\r\n".join((address.head, *map(b": ".join, own), b"\r\n"))
        parts = (self._headers, own)
        extensions = {"timeout": self._timeouts(outgoing), "signs": outgoing.signs}
        request = RawRequest(outgoing.method, address.url, address.origin, head, parts, outgoing.body, extensions)
        try:
            answer = HttpAnswer(await self._transport.handle_async_request(request), self._secrets)
        except self.errors as exc:
            raise self._failure(exc, answered=False) from exc
        if self._secrets is not None:
            self._secrets.guard(answer)
        return answer

    def failure(self, error: Exception) -> UpstreamFailed:
        """What an error means that came while the answer was being read."""
        return self._failure(error, answered=True)

    def _failure(self, error: Exception, *, answered: bool) -> UpstreamFailed:
        """A transport error in our words. Its text may quote what the provider sent."""
        phase = phase_of(error, answered=answered)
        refused = certificate_error(error)
        if refused is not None:
            fault, remedy = explain(refused, self._provider.name)
            detail = f"{fault} ({self._provider.base_url}); {remedy}"
            return UpstreamFailed(ErrorClass.CONNECTION, phase, detail[:400], fault=fault)
        detail = str(error) or type(error).__name__
        detail = (self._secrets.text(detail) if self._secrets else detail)[:300]
        return UpstreamFailed(_class_of(error, phase), phase, detail, is_lasting=isinstance(error, httpx.DecodingError))

    def _pass_on(self, credential: bytes) -> tuple[bytes, bytes]:
        """The caller's credential, as the dialect wants it; an Entra token (a JWT) is a bearer token for Azure too."""
        scheme, _, token = credential.partition(b" ")
        if self._provider.dialect == "azure" and scheme.lower() == b"bearer" and token.count(b".") != 2:
            return (b"api-key", token.strip())
        return (b"authorization", credential)

    def _address(self, outgoing: Outgoing) -> Address:
        """Kept where the path alone decides: a deployment's holds the model. Clients may ask for any path: not for ever."""
        if outgoing.query or outgoing.method != "POST" or (self._api_version and self._model is None):
            return self._build_address(outgoing)
        address = self._addresses.get(outgoing.path)
        if address is None:
            if len(self._addresses) >= _MAX_KEPT_ADDRESSES:
                self._addresses.clear()
            address = self._addresses[outgoing.path] = self._build_address(outgoing)
        return address

    def _build_address(self, outgoing: Outgoing) -> Address:
        url = self._build_url(outgoing.path, outgoing.model, outgoing.query)
        request_line = b"%b %b HTTP/1.1" % (outgoing.method.encode(), url.raw_path)
        return Address(url, origin_of(url), b"\r\n".join((request_line, *map(b": ".join, self._headers))))

    def _build_url(self, path: str, model: str, query: bytes) -> httpx.URL:
        provider = self._provider
        base = provider.base_url
        if self._api_version:
            version = quote(self._api_version)
            return httpx.URL(f"{base}/openai/deployments/{_path_segment(model)}{path}?api-version={version}")
        if provider.dialect == "azure":
            base += "/openai/v1"
        return httpx.URL(base + path + ("?" + query.decode("latin-1") if query else ""))

    def _timeouts(self, outgoing: Outgoing) -> PreparedTimeouts:
        """A target's clocks are always the same ones; only a caller's deadline makes a call special."""
        clocks = outgoing.clocks
        if outgoing.first_byte_s != clocks.first_byte_s:
            return _prepare(clocks, outgoing.first_byte_s)
        if clocks is not self._clocks:
            self._clocks, self._timeout = clocks, _prepare(clocks, clocks.first_byte_s)
        return self._timeout


def _path_segment(model: str) -> str:
    """A model's name as one step of a path. Raises UpstreamFailed where it would lead to another one."""
    if model in ("", ".", "..") or not model.isprintable():
        raise UpstreamFailed(ErrorClass.BAD_REQUEST, Phase.NOTHING_SENT, "the model's name cannot be part of a URL")
    return quote(model, safe="")


def _prepare(clocks: Clocks, first_byte_s: float) -> PreparedTimeouts:
    """`first_byte` is ours, other transports fall back to `read`; waiting for a connection counts as connecting."""
    return PreparedTimeouts(clocks.connect_s, clocks.connect_s, clocks.write_s, first_byte_s, clocks.idle_s)


def _class_of(error: Exception, phase: Phase) -> ErrorClass:
    if isinstance(error, httpx.TimeoutException):
        return ErrorClass.TIMEOUT
    is_nonsense = isinstance(error, httpx.RemoteProtocolError) and phase is Phase.ANSWERED
    if is_nonsense or isinstance(error, httpx.DecodingError):
        return ErrorClass.MALFORMED_RESPONSE
    return ErrorClass.CONNECTION


def _auth_header(provider: Provider) -> tuple[bytes, bytes] | None:
    if provider.api_key is None:
        return None
    if provider.dialect == "azure":
        return (b"api-key", provider.api_key.encode())
    return (b"authorization", b"Bearer " + provider.api_key.encode())
