"""One target's wire: a provider's URL, credential and dialect around a call's bytes, and its failures in our words.

Prebuilt when the policy is compiled; per call only the length and the caller's own headers are added. Redirects are not
followed, and the origin always comes from the config, never from a request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

import httpx

from gateway.errors import ErrorClass, Phase, UpstreamFailed
from gateway.policy.snapshot import Provider
from gateway.ports import Answer, Clocks, Outgoing, RawHeaders
from gateway.upstream.messages import RawRequest, raw_headers
from gateway.upstream.phase import phase_of

_PHASES = {"connect": Phase.NOTHING_SENT, "sent": Phase.SENT, "answered": Phase.ANSWERED}


class HttpAnswer:
    """A provider's answer over httpx's transport interface."""

    __slots__ = ("_response", "chunks", "headers", "status")

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers: RawHeaders = [(name.lower(), value) for name, value in raw_headers(response)]
        self.chunks: AsyncIterator[bytes] = aiter(response.stream)  # type: ignore[arg-type]  # async transports give async streams

    async def aclose(self) -> None:
        """Give the connection back, or close it when the body was not read to its end."""
        await self._response.stream.aclose()  # type: ignore[union-attr]  # as above


class Wire:
    """Sends a call to one target. Implements `ports.Upstream`."""

    __slots__ = ("_auth", "_headers", "_model", "_provider", "_timeouts", "_transport", "_urls")

    errors: tuple[type[Exception], ...] = (httpx.HTTPError, httpx.StreamError)

    def __init__(self, provider: Provider, model: str | None, transport: httpx.AsyncBaseTransport) -> None:
        self._provider = provider
        self._model = model
        self._transport = transport
        url = httpx.URL(provider.base_url)
        self._headers = [(b"host", url.netloc), (b"accept-encoding", b"identity")]
        self._headers += [(name.lower().encode(), value.encode()) for name, value in provider.headers]
        self._auth = _auth_header(provider)
        self._urls: dict[str, httpx.URL] = {}
        self._timeouts: dict[Clocks, dict[str, float]] = {}

    def __repr__(self) -> str:
        return f"Wire({self._provider.name}/{self._model or '*'})"

    async def send(self, outgoing: Outgoing) -> Answer:
        """Send the request and wait for the head of the answer. Raises UpstreamFailed when none arrives."""
        headers = [*self._headers, *outgoing.headers]
        if self._auth is not None:
            headers.append(self._auth)
        elif outgoing.credential is not None:
            headers.append((b"authorization", outgoing.credential))
        if outgoing.body or outgoing.method in ("POST", "PUT", "PATCH"):
            headers.append((b"content-length", b"%d" % len(outgoing.body)))
        stream = httpx.ByteStream(outgoing.body)
        extensions = {"timeout": self._timeout(outgoing)}
        request = RawRequest(outgoing.method, self._url(outgoing), headers, stream, extensions)
        try:
            return HttpAnswer(await self._transport.handle_async_request(request))
        except self.errors as exc:
            raise _failure(exc, answered=False) from exc

    def failure(self, error: Exception) -> UpstreamFailed:
        """What an error means that came while the answer was being read."""
        return _failure(error, answered=True)

    def _url(self, outgoing: Outgoing) -> httpx.URL:
        if self._model is None or outgoing.query:
            return self._build_url(outgoing.path, outgoing.model, outgoing.query)
        url = self._urls.get(outgoing.path)
        if url is None:
            url = self._urls[outgoing.path] = self._build_url(outgoing.path, outgoing.model, b"")
        return url

    def _build_url(self, path: str, model: str, query: bytes) -> httpx.URL:
        provider = self._provider
        base = provider.base_url
        if provider.dialect == "azure" and provider.api_version is not None:
            version = quote(provider.api_version)
            return httpx.URL(f"{base}/openai/deployments/{quote(model, safe='')}{path}?api-version={version}")
        if provider.dialect == "azure":
            base += "/openai/v1"
        return httpx.URL(base + path + ("?" + query.decode("latin-1") if query else ""))

    def _timeout(self, outgoing: Outgoing) -> dict[str, float]:
        clocks = outgoing.clocks
        if outgoing.first_byte_s != clocks.first_byte_s:
            return {**_timeouts(clocks), "first_byte": outgoing.first_byte_s}
        found = self._timeouts.get(clocks)
        if found is None:
            found = self._timeouts[clocks] = _timeouts(clocks)
        return found


def _failure(error: Exception, *, answered: bool) -> UpstreamFailed:
    """A transport error in our words. Its text may carry a URL, never a credential: those travel in headers only."""
    phase = _PHASES[phase_of(error, answered=answered)]
    error_class = ErrorClass.CONNECTION
    if isinstance(error, httpx.TimeoutException):
        error_class = ErrorClass.TIMEOUT
    elif isinstance(error, httpx.RemoteProtocolError) and phase is Phase.ANSWERED:
        error_class = ErrorClass.MALFORMED_RESPONSE
    detail = str(error) or type(error).__name__
    return UpstreamFailed(error_class, phase, detail[:300])


def _timeouts(clocks: Clocks) -> dict[str, float]:
    """httpx's timeout extension; `first_byte` is ours, other transports fall back to `read`."""
    return {
        "connect": clocks.connect_s,
        "pool": clocks.connect_s,
        "write": clocks.write_s,
        "first_byte": clocks.first_byte_s,
        "read": clocks.idle_s,
    }


def _auth_header(provider: Provider) -> tuple[bytes, bytes] | None:
    if provider.api_key is None:
        return None
    if provider.dialect == "azure":
        return (b"api-key", provider.api_key.encode())
    return (b"authorization", b"Bearer " + provider.api_key.encode())
