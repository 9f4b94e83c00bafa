"""httpx's request and response, built in a fraction of the time for the hot path.

`httpx.Request` and `httpx.Response` normalise every header when they are made, and a transport walks them again to write the
head: about 30 µs a call. These are the same types to any transport or test that takes httpx's; what is dear is made when
somebody asks for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx

from gateway.exchange import RawHeaders
from gateway.splice import Spliced

_PIECE_BYTES = 65_536
Origin = tuple[str, str, int | None]


def origin_of(url: httpx.URL) -> Origin:
    """Scheme, host and port (None: the scheme's default); httpx works them out anew each time it is asked."""
    return url.scheme, url.host, url.port


class RawRequest(httpx.Request):
    """A request whose head is already encoded: `head` is what HTTP/1.1 writes before `body`.

    `origin` is `origin_of(url)`, made ahead; `parts` are the headers in `head`, in lists. Whoever makes the request answers
    for them being well-formed.
    """

    def __init__(
        self,
        method: str,
        url: httpx.URL,
        origin: Origin,
        head: bytes,
        parts: tuple[RawHeaders, ...],
        body: bytes | Spliced,
        extensions: dict[str, Any],
    ) -> None:
        self.method = method
        self.url = url
        self.origin = origin
        self.head = head
        self.parts = parts
        self.body = body
        self.extensions = extensions

    @property
    def raw_headers(self) -> RawHeaders:
        """All headers."""
        return [header for part in self.parts for header in part]

    def __getattr__(self, name: str) -> Any:
        # Asked for by another transport than ours, and the first time: from now on an ordinary attribute.
        if name == "headers":
            self.headers = httpx.Headers(self.raw_headers)
        elif name == "stream":
            self.stream = httpx.ByteStream(self.body) if isinstance(self.body, bytes) else _Pieces(self.body)
        else:
            raise AttributeError(name)
        return self.__dict__[name]


class _Pieces(httpx.AsyncByteStream):
    """A body that is not in one place, for transports that are not ours."""

    def __init__(self, body: Spliced) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._body.pieces(_PIECE_BYTES):
            yield piece


class RawResponse(httpx.Response):
    """A response whose `raw_headers` have names in lower case; the stream is an `httpx.AsyncByteStream`."""

    def __init__(self, status_code: int, raw_headers: RawHeaders, stream: Any, extensions: dict[str, Any]) -> None:
        """`stream` also has `whole()`: the body, when all of it is here already, else None."""
        self.status_code = status_code
        self.raw_headers = raw_headers
        self.stream = stream
        self.extensions = extensions
        # What httpx.Response sets besides: keep in sync with its constructor.
        self._request: httpx.Request | None = None
        self.next_request = None
        self.history = []
        self.is_closed = False
        self.is_stream_consumed = False
        self.default_encoding = "utf-8"
        self._num_bytes_downloaded = 0

    def __getattr__(self, name: str) -> Any:
        if name != "headers":
            raise AttributeError(name)
        self.headers = httpx.Headers(self.raw_headers)
        return self.headers
