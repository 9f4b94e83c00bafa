"""Recorded answers of providers: what crosses the wire, and what a caller must get from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded answer; `closes` where the provider ends the connection after it."""

    wire: bytes
    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    method: str = "POST"
    closes: bool = False


_JSON = b'{"id":"chatcmpl-1","object":"chat.completion","usage":{"total_tokens":9}}'
_JSON_HEADERS = (
    (b"Content-Type", b"application/json"),
    (b"x-ratelimit-remaining-requests", b"499"),
    (b"x-request-id", b"req_1"),
)
_EVENTS = (b'data: {"delta":"Hel"}\n\n', b'data: {"delta":"lo \xc3\xa9"}\n\n', b"data: [DONE]\n\n")
_SSE_HEADERS = ((b"Content-Type", b"text/event-stream; charset=utf-8"), (b"Transfer-Encoding", b"chunked"))


def chunked(*chunks: bytes, trailers: bytes = b"") -> bytes:
    """Encode a body in chunks, with the last chunk and trailers."""
    return b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n" + trailers + b"\r\n"


def head(status: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Encode a response head."""
    return b"HTTP/1.1 %b\r\n" % status + b"".join(b"%b: %b\r\n" % pair for pair in headers) + b"\r\n"


def _sized(status: bytes, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> Recorded:
    headers = (*headers, (b"Content-Length", b"%d" % len(body)))
    return Recorded(head(status, headers) + body, int(status[:3]), body, headers)


_LIMITED = b'{"error":{"message":"slow down","type":"requests","param":null,"code":"rate_limit_exceeded"}}'
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"
_CLOSE = (b"Connection", b"close")
_SIZED = _sized(b"200 OK", _JSON, _JSON_HEADERS)

RECORDED = {
    "json": _SIZED,
    "empty body": _sized(b"200 OK", b"", ()),
    "rate limited": _sized(b"429 Too Many Requests", _LIMITED, (*_JSON_HEADERS, (b"Retry-After", b"2"))),
    "no reason phrase": Recorded(
        b"HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nok", 200, b"ok", ((b"Content-Length", b"2"),)
    ),
    "event stream": Recorded(head(b"200 OK", _SSE_HEADERS) + chunked(*_EVENTS), 200, b"".join(_EVENTS), _SSE_HEADERS),
    "trailers": Recorded(
        head(b"200 OK", _SSE_HEADERS) + chunked(*_EVENTS, trailers=b"X-Cost: 12\r\nX-End: yes\r\n"),
        200,
        b"".join(_EVENTS),
        _SSE_HEADERS,
    ),
    "chunk extensions": Recorded(
        head(b"200 OK", _SSE_HEADERS) + b"5;a=b\r\nhello\r\n00;last\r\n\r\n", 200, b"hello", _SSE_HEADERS
    ),
    "interim answers": Recorded(_INTERIM + _SIZED.wire, 200, _JSON, _SIZED.headers),
    "no content": Recorded(head(b"204 No Content", _JSON_HEADERS), 204, b"", _JSON_HEADERS),
    "not modified": Recorded(
        head(b"304 Not Modified", ((b"Content-Length", b"50"),)), 304, b"", ((b"Content-Length", b"50"),)
    ),
    "head": Recorded(head(b"200 OK", _SIZED.headers), 200, b"", _SIZED.headers, method="HEAD"),
    "until close": Recorded(head(b"200 OK", _JSON_HEADERS) + _JSON, 200, _JSON, _JSON_HEADERS, closes=True),
    "connection close": Recorded(
        head(b"200 OK", (*_SIZED.headers, _CLOSE)) + _JSON, 200, _JSON, (*_SIZED.headers, _CLOSE), closes=True
    ),
}


def lowered(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers with their names in lower case."""
    return [(name.lower(), value) for name, value in headers]
