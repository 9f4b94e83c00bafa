"""One target's wire: a provider's URL, credential and dialect around a call's bytes, and its failures in our words.

Prebuilt when the policy is compiled; per call only the length and the caller's own headers are added. Redirects are not
followed, and the origin always comes from the config, never from a request. Our own transport gets bytes and gives back the
answer itself; every other one gets httpx's objects, over `httpx.AsyncBaseTransport`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import httpx

from gateway.core.http.client.exchange import PIECE_BYTES, EncodedRequest, Exchange, OriginKey, WireTimeouts, origin_of
from gateway.core.http.client.pool import is_own_want
from gateway.core.http.client.redaction import MaskedChunks, SecretMasker, Secrets, phase_of, secrets_of
from gateway.core.http.client.transport import ERRORS, Http1Transport, certificate_error, explain, why_unreachable
from gateway.core.http.client.unpacking import unpacked
from gateway.core.snapshot import Provider
from gateway.core.types import (
    Answer,
    Clocks,
    ErrorClass,
    Outgoing,
    Phase,
    RawHeaders,
    Spliced,
    StreamedBody,
    UpstreamFailed,
    pieces_of,
)

_MAX_KEPT_ADDRESSES = 256
KEY_HEADERS: Final[Mapping[str, bytes]] = {
    "azure": b"api-key",
    "anthropic": b"x-api-key",
    "gemini": b"x-goog-api-key",
    "vertex": b"x-goog-api-key",
}
"""The header with the key, by dialect; elsewhere it is a bearer token."""
_TOKENS: Final = (b"sk-ant-oat", b"ya29.", b"ABSK", b"bedrock-api-key-")
"""The beginnings of bearer tokens: those of a login at Anthropic, of Google's, and keys of Bedrock's."""
KEY_SCHEME: Final = b"x-api-key"
"""Before a caller's own key that came in the header of this name, and not as a bearer token."""
_AT_MESSAGES_URL: Final = frozenset(("/messages", "/messages/count_tokens"))
"""The paths for which a provider's `messages_url` takes the place of its base URL."""
TRACE_CONTEXT = frozenset((b"traceparent", b"tracestate", b"baggage"))
"""The headers with the spans of a call (W3C Trace Context, Baggage): of the caller's own house, and for it alone."""


class HttpAnswer:
    """A provider's answer over httpx's transport interface."""

    __slots__ = ("_secrets", "_stream", "chunks", "headers", "status", "whole")

    def __init__(self, response: httpx.Response, secrets: Secrets | None = None) -> None:
        """`secrets` are masked again in what is unpacked: packed, nobody has seen them."""
        self._secrets = secrets
        stream: Any = response.stream  # an async transport gives an httpx.AsyncByteStream
        self._stream = stream
        self.status = response.status_code
        self.chunks: AsyncIterator[bytes] = aiter(stream)
        self.headers: RawHeaders = [(name.lower(), value) for name, value in response.headers.raw]
        self.whole: bytes | None = None

    def unpack(self, codings: bytes) -> None:
        """Take the `content-encoding` off: the body is then to be read from `chunks`. Raises httpx.DecodingError."""
        self.chunks = unpacked(aiter(self._stream), codings)
        self.headers = [header for header in self.headers if header[0] not in (b"content-encoding", b"content-length")]
        if self._secrets is not None:
            self._secrets.guard(self)

    def mask_body(self, secrets: Secrets) -> None:
        """Mask these in all that comes."""
        self.chunks = MaskedChunks(self.chunks, SecretMasker(secrets))

    async def aclose(self) -> None:
        """Give the connection back, or close it when the body was not read to its end."""
        await self._stream.aclose()


@dataclass(frozen=True, slots=True)
class Address:
    """Where one path goes: prebuilt, because only the caller's headers and the length differ from call to call."""

    url: httpx.URL
    origin: OriginKey
    head: bytes
    """Request line and the headers that never change, each with its line's end."""


class Wire:
    """Sends a call to one target. Implements `Upstream`."""

    __slots__ = (
        "_addresses",
        "_api_version",
        "_auth",
        "_clocks",
        "_header_names",
        "_headers",
        "_minted",
        "_model",
        "_own",
        "_provider",
        "_secrets",
        "_timeouts",
        "_transport",
    )

    errors = ERRORS

    def __init__(self, provider: Provider, model: str | None, transport: httpx.AsyncBaseTransport) -> None:
        self._provider = provider
        self._model = model
        self._transport = transport
        self._own = transport if isinstance(transport, Http1Transport) else None
        self._headers = [(b"host", httpx.URL(provider.base_url).netloc), (b"accept-encoding", b"identity")]
        self._headers += [(name.lower().encode(), value.encode()) for name, value in provider.headers]
        self._auth = auth_header(provider)
        if self._auth is not None:
            self._headers.append(self._auth)
        self._header_names = frozenset(name for name, _ in self._headers)
        if not provider.is_self_hosted:
            self._header_names |= TRACE_CONTEXT
        self._api_version = provider.api_version if provider.dialect == "azure" else None
        self._secrets = secrets_of(provider)
        self._minted: tuple[str, ...] = ()
        self._addresses: dict[str, Address] = {}
        self._clocks: Clocks | None = None
        self._timeouts = WireTimeouts()

    @property
    def headers(self) -> RawHeaders:
        """The headers that go with every request."""
        return self._headers

    def target_of(self, outgoing: Outgoing) -> bytes:
        """Path and query as they are sent."""
        return self._address(outgoing).url.raw_path

    def mask_also(self, secrets: tuple[str, ...]) -> None:
        """From now on mask these, too, in what the provider says, and those named the last time: they may be under way."""
        self._secrets = secrets_of(self._provider, (*secrets, *self._minted))
        self._minted = secrets

    def __repr__(self) -> str:
        return f"Wire({self._provider.name}/{self._model or '*'})"

    def send(self, outgoing: Outgoing) -> Coroutine[Any, Any, Answer]:
        """Send the request and wait for the head of the answer. Raises UpstreamFailed when none arrives.

        Of a header that the provider's config sets, the caller's own is left out; its trace goes to servers of our house only.
        """
        address = self._addresses.get(outgoing.path)
        if address is None or outgoing.query or outgoing.method != "POST":
            address = self._address(outgoing)
        clocks, body = outgoing.clocks, outgoing.body
        if outgoing.first_byte_s != clocks.first_byte_s:  # a caller's deadline is nearer
            timeouts = _timeouts(clocks, outgoing.first_byte_s)
        else:
            if clocks is not self._clocks:  # a target's are always the same ones
                self._clocks, self._timeouts = clocks, _timeouts(clocks, clocks.first_byte_s)
            timeouts = self._timeouts
        set_here = self._header_names
        # Safe to put together: the config was checked, and what the client sent has passed a strict parser.
        lines = [b"%b: %b\r\n" % header for header in outgoing.headers if header[0] not in set_here]
        if self._auth is None and outgoing.credential is not None:
            lines.append(b"%b: %b\r\n" % self._pass_on(outgoing.credential))
        length, stream = len(body), None
        if not length and isinstance(body, StreamedBody):
            length, stream = body.length, _Pieces(body)
        # A request without a body announces that, unless its method means none (RFC 9110, 8.6).
        if length or outgoing.method != "GET":
            lines.append(b"content-length: %d\r\n" % length)
        head = b"%b%b\r\n" % (address.head, b"".join(lines))
        if self._own is None:
            return self._send_over_httpx(outgoing, address, head, timeouts)
        request = EncodedRequest(head, body if stream is None else None, stream, length, outgoing.method != "HEAD")
        return self._own.exchange(request, timeouts, address.origin, outgoing.signs, self)

    def on_message(self, exchange: Exchange) -> None:
        """What `Http1Transport.exchange` does before it hands the answer out."""
        if self._secrets is not None:
            exchange.secrets = self._secrets
            self._secrets.guard(exchange)

    def unanswered(self, error: Exception) -> UpstreamFailed:
        """What it raises instead of httpx's errors."""
        return self._failure(error, answered=False)

    async def _send_over_httpx(
        self, outgoing: Outgoing, address: Address, head: bytes, timeouts: WireTimeouts
    ) -> HttpAnswer:
        """The same request in httpx's objects, for a transport that is not ours."""
        lines = head.split(b"\r\n")[1:-2]
        headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
        body = outgoing.body
        request = httpx.Request(
            outgoing.method,
            address.url,
            headers=headers,
            stream=_Pieces(body) if isinstance(body, Spliced | StreamedBody) else httpx.ByteStream(body),
            extensions={"timeout": timeouts.as_extension(), "signs": outgoing.signs},
        )
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
        error_class, public = _class_of(error, phase), None
        is_ours = phase is Phase.NOTHING_SENT and is_own_want(error)
        if error_class is ErrorClass.CONNECTION and phase is Phase.NOTHING_SENT and not is_ours:
            name, place = self._provider.name, httpx.URL(self._provider.base_url).netloc.decode()
            public = f"provider '{name}' at {place} cannot be reached: {why_unreachable(error)}; check its base_url"
        is_lasting = isinstance(error, httpx.DecodingError)
        return UpstreamFailed(error_class, phase, detail, is_lasting=is_lasting, is_ours=is_ours, public=public)

    def _pass_on(self, credential: bytes) -> tuple[bytes, bytes]:
        """The caller's credential, as the dialect wants it; Anthropic takes both forms, each for what it is, and a JWT is a
        bearer token everywhere else."""
        scheme, _, token = credential.partition(b" ")
        name = KEY_HEADERS.get(self._provider.dialect)
        is_token = token.count(b".") == 2 or token.startswith(_TOKENS)
        if name == KEY_SCHEME:
            return (name, token) if scheme == KEY_SCHEME else (b"authorization", credential)
        if name is not None and scheme.lower() in (b"bearer", KEY_SCHEME) and not is_token:
            return (name, token.strip())
        return (b"authorization", b"Bearer " + token if scheme == KEY_SCHEME else credential)

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
        return Address(url, origin_of(url), b"\r\n".join((request_line, *map(b": ".join, self._headers), b"")))

    def _build_url(self, path: str, model: str, query: bytes) -> httpx.URL:
        provider = self._provider
        base = provider.base_url
        if self._api_version:
            version = quote(self._api_version)
            return httpx.URL(f"{base}/openai/deployments/{_path_segment(model)}{path}?api-version={version}")
        if provider.dialect == "azure":
            base += "/openai/v1"
        elif provider.messages_url is not None and path in _AT_MESSAGES_URL:
            base = provider.messages_url
        return httpx.URL(base + path + ("?" + query.decode("latin-1") if query else ""))


def _path_segment(model: str) -> str:
    """A model's name as one step of a path. Raises UpstreamFailed where it would lead to another one."""
    if model in ("", ".", "..") or not model.isprintable():
        raise UpstreamFailed(ErrorClass.BAD_REQUEST, Phase.NOTHING_SENT, "the model's name cannot be part of a URL")
    return quote(model, safe="")


def _timeouts(clocks: Clocks, first_byte_s: float) -> WireTimeouts:
    """Waiting for a connection counts as connecting."""
    return WireTimeouts(clocks.connect_s, clocks.connect_s, clocks.write_s, first_byte_s, clocks.idle_s)


class _Pieces(httpx.AsyncByteStream):
    """A body that is not in one place."""

    def __init__(self, body: Spliced | StreamedBody) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if isinstance(self._body, StreamedBody):
            async for piece in self._body.chunks:
                yield piece
            return
        for piece in pieces_of(self._body, PIECE_BYTES):
            yield piece


def _class_of(error: Exception, phase: Phase) -> ErrorClass:
    if isinstance(error, httpx.TimeoutException):
        return ErrorClass.TIMEOUT
    is_nonsense = isinstance(error, httpx.RemoteProtocolError) and phase is Phase.ANSWERED
    if is_nonsense or isinstance(error, httpx.DecodingError):
        return ErrorClass.MALFORMED_RESPONSE
    return ErrorClass.CONNECTION


def auth_header(provider: Provider) -> tuple[bytes, bytes] | None:
    """Returns the header with the credential of the config; None: it has none for this provider."""
    if provider.api_key is None:
        return None
    name = KEY_HEADERS.get(provider.dialect)
    if name is not None and not provider.api_key.encode().startswith(_TOKENS):
        return (name, provider.api_key.encode())
    return (b"authorization", b"Bearer " + provider.api_key.encode())
