"""HTTP/1.1 on the wire: what a request looks like in bytes.

Pure functions, no I/O. Invariant: a head that leaves here is one head: no header can add a line, and body length is stated
once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, cast

import httpx

from gateway.core.http.client.wire.redaction.phase import with_phase
from gateway.core.types.exchange import RawHeaders
from gateway.core.types.provider_errors import Phase
from gateway.core.types.splice import Spliced

_TOKEN_BYTES = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


OriginKey = tuple[str, str, int | None]


def origin_of(url: httpx.URL) -> OriginKey:
    """Scheme, host as it is looked up, and port (None: the scheme's default) of a URL."""
    return url.scheme, url.raw_host.decode("ascii"), url.port


@dataclass(slots=True)
class WireTimeouts:
    """Seconds each phase of one request may take; `inf` is no limit."""

    connect_s: float = inf
    pool_s: float = inf
    write_s: float = inf
    first_byte_s: float = inf
    read_s: float = inf

    def as_extension(self) -> dict[str, float]:
        """As httpx's `timeout` extension; `first_byte` is ours, other transports take `read` for it."""
        return {
            "connect": self.connect_s,
            "pool": self.pool_s,
            "write": self.write_s,
            "first_byte": self.first_byte_s,
            "read": self.read_s,
        }


@dataclass(slots=True)
class EncodedRequest:
    """A request ready to be written: the head, and the body as bytes or as a stream."""

    head: bytes
    body: bytes | Spliced | None  # None: `stream` has it
    stream: httpx.AsyncByteStream | None
    length: int | None  # what Content-Length promises; None: chunked
    expects_body: bool = True  # False for HEAD: the answer's lengths describe a body that does not follow


def read_timeouts(extensions: Any) -> WireTimeouts:
    """Read httpx's `timeout` extension, plus our `first_byte`, which falls back to `read`."""
    given = extensions.get("timeout")
    if not given:
        return WireTimeouts()
    connect, pool, write, read = given.get("connect"), given.get("pool"), given.get("write"), given.get("read")
    first_byte = given.get("first_byte", read)
    return WireTimeouts(
        inf if connect is None else connect,
        inf if pool is None else pool,
        inf if write is None else write,
        inf if first_byte is None else first_byte,
        inf if read is None else read,
    )


def encode(request: httpx.Request) -> EncodedRequest:
    """Turn a request into bytes; raises `httpx.LocalProtocolError` (nothing sent) when no safe form exists.

    A missing Host, Content-Length or Transfer-Encoding is added (RFC 9112 sections 3.2 and 6).
    """
    headers = request.headers.raw
    names = [name.lower() for name, _ in headers]
    stream = request.stream
    body = b"".join(stream) if type(stream) is httpx.ByteStream else None
    length = _frame_request(headers, names, body)
    if b"host" not in names:
        headers.insert(0, (b"Host", request.url.netloc))
    head = _encode_head(request, headers, names)
    if body is None:
        return EncodedRequest(head, None, cast(httpx.AsyncByteStream, stream), length, request.method != "HEAD")
    if length is None:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    return EncodedRequest(head, body, None, length, request.method != "HEAD")


def _frame_request(headers: list[tuple[bytes, bytes]], names: list[bytes], body: bytes | None) -> int | None:
    """Make the headers state the body's length exactly once; returns it, None when chunked."""
    lengths, codings = names.count(b"content-length"), names.count(b"transfer-encoding")
    if lengths + codings > 1:
        raise _unsendable("more than one Content-Length or Transfer-Encoding header")
    if lengths:
        return _declared_length(headers[names.index(b"content-length")][1], body)
    if codings:
        if headers[names.index(b"transfer-encoding")][1].lower() != b"chunked":
            raise _unsendable("Transfer-Encoding other than chunked")
        return None
    if body is None:
        headers.append((b"Transfer-Encoding", b"chunked"))
        return None
    if body:
        headers.append((b"Content-Length", b"%d" % len(body)))
    return len(body)


def _declared_length(value: bytes, body: bytes | None) -> int:
    if not value.isdigit():
        raise _unsendable("Content-Length is not a number")
    length = int(value)
    if body is not None and length != len(body):
        raise _unsendable(f"Content-Length says {length}, the body has {len(body)} bytes")
    return length


def _encode_head(request: httpx.Request, headers: RawHeaders, names: list[bytes]) -> bytes:
    method = request.method.encode("ascii", "replace")  # `?` is not a token either
    if method == b"CONNECT":
        raise _unsendable("CONNECT needs a tunnel, which this transport has not")
    if not method or b"" in names or (method + b"".join(names)).translate(None, _TOKEN_BYTES):
        raise _unsendable("method or header name is not a token")
    head = b"%b %b HTTP/1.1\r\n%b\r\n\r\n" % (method, request.url.raw_path, b"\r\n".join(map(b": ".join, headers)))
    # One CRLF per line is ours; any further CR or LF came in a value and would start a line of its own.
    expected = len(headers) + 2
    if head.count(b"\r") != expected or head.count(b"\n") != expected or b"\0" in head:
        raise _unsendable("a header value contains CR, LF or NUL")
    return head


def _unsendable(reason: str) -> httpx.LocalProtocolError:
    return with_phase(httpx.LocalProtocolError(f"the request cannot be sent: {reason}"), Phase.NOTHING_SENT)
