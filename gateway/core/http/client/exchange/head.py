"""The head of an answer: its lines, and which heads are acceptable.

The parser (llhttp, strict) has read a head before it comes here, and refuses most ambiguous ones: both or two lengths, folded
lines, bare LF, NUL, names that are no tokens. What it lets pass is refused here. Pure functions, no I/O.
"""

from __future__ import annotations

import httpx

from gateway.core.types.exchange import RawHeaders

MAX_HEAD_BYTES = 64 * 1024

VERSIONS = frozenset((b"HTTP/1.1", b"HTTP/1.0"))
_END = b"\r\n\r\n"
_FRAMING = frozenset((b"content-length", b"transfer-encoding"))


def split_head(received: bytes) -> tuple[bytes, list[tuple[bytes, bytes]], bytes]:
    """The status line, the headers with their names in lower case, and what follows the first head in `received`.

    The parser has found this head complete: every line ends with CRLF, and every header has its colon (RFC 9112, 5). It
    tells headers one by one, at a call each, where this takes one for all. It also skips empty lines before a head. Raises
    `httpx.RemoteProtocolError` where the head does not end as it must.
    """
    if received[:1] != b"H":
        received = received.lstrip(b"\r\n")
    head, end, rest = received.partition(_END)
    if not end:
        raise httpx.RemoteProtocolError("the answer's head has no end")
    status_line, *lines = head.split(b"\r\n")
    headers = [((part := line.partition(b":"))[0].lower(), part[2].strip()) for line in lines]
    return status_line, headers, rest


def check_start(status: int, version: bytes, reason: bytes) -> None:
    """Check what the parser lets pass; raises `httpx.RemoteProtocolError`."""
    if version not in VERSIONS:
        raise httpx.RemoteProtocolError(f"the answer speaks {version.decode('latin-1')}")
    if status < 100 or status == 101:
        raise httpx.RemoteProtocolError(f"the answer has status {status:03d}, which nobody asked for")
    if b"\0" in reason:
        raise httpx.RemoteProtocolError("the answer has a NUL in its status line")


def ends_with_connection(headers: RawHeaders) -> bool:
    """Tell whether only the end of the connection ends the body (RFC 9112 section 6.3).

    Raises `httpx.RemoteProtocolError` for any Transfer-Encoding but one plain `chunked`: with `xchunked`, `chunked,
    chunked` or `gzip, chunked` two readers may see two different ends.
    """
    framed = False
    for name, value in headers:
        if name in _FRAMING:  # one question for most headers
            if name == b"transfer-encoding" and (framed or value.lower() != b"chunked"):
                raise httpx.RemoteProtocolError("the answer has a Transfer-Encoding other than one `chunked`")
            framed = True
    return not framed


def head_size(reason: bytes, headers: RawHeaders) -> int:
    """Bytes a response head took on the wire."""
    return 17 + len(reason) + sum(len(name) + len(value) + 4 for name, value in headers)
