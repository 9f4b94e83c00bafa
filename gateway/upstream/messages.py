"""httpx's request and response, built in a fraction of the time: headers stay raw until somebody asks for them.

`httpx.Request` and `httpx.Response` normalise every header when they are made (about 20 µs a call for both). These are the
same types to any transport or test that takes httpx's, with the `headers` object made on first use.
"""

from __future__ import annotations

from typing import Any

import httpx

RawHeaders = list[tuple[bytes, bytes]]


class RawRequest(httpx.Request):
    """A request whose `raw_headers` are already encoded and complete, `host` included."""

    def __init__(
        self, method: str, url: httpx.URL, raw_headers: RawHeaders, stream: Any, extensions: dict[str, Any]
    ) -> None:
        self.method = method
        self.url = url
        self.raw_headers = raw_headers
        self.stream = stream
        self.extensions = extensions

    def __getattr__(self, name: str) -> Any:
        if name == "headers":  # asked for the first time: from now on an ordinary attribute
            self.headers = httpx.Headers(self.raw_headers)
            return self.headers
        raise AttributeError(name)


class RawResponse(httpx.Response):
    """A response whose `raw_headers` are as they came; the stream is an `httpx.AsyncByteStream`."""

    def __init__(self, status_code: int, raw_headers: RawHeaders, stream: Any, extensions: dict[str, Any]) -> None:
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
        if name == "headers":
            self.headers = httpx.Headers(self.raw_headers)
            return self.headers
        raise AttributeError(name)


def raw_headers(message: httpx.Request | httpx.Response) -> RawHeaders:
    """The message's headers as bytes, whoever made it."""
    if isinstance(message, RawRequest | RawResponse):
        return message.raw_headers
    return message.headers.raw
