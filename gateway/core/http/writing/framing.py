"""What a request's framing may be: how much of head and trailers is taken, which codings, versions and offers are refused.

It must not know connections. Sources: RFC 9112 (2.3 versions, 6.1 transfer codings, 7.1.2 trailers), RFC 9110 (7.8 Upgrade).
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.errors import CallerFault, HeadersTooLarge, InvalidRequest, NotSupported, VersionNotSupported

MAX_HEAD_BYTES = 65_536
MAX_HEADERS = 256
MAX_TRAILER_BYTES = 65_536
MAX_TRAILER_LINES = 100
LINE_OVERHEAD_BYTES = 4
"""A header line's colon, space and line end."""

Header = tuple[bytes, bytes]
FRAMING = (b"content-length", b"transfer-encoding")


class TrailersTooLarge(Exception):
    """A chunked body is followed by more than anybody needs; raised in the parser's callback, it stops the parser."""


class Trailers:
    """Where header lines behind a chunked body go instead of into the head: they are counted and forgotten.

    Nothing of ours needs one, and one merged into the head could authenticate a request or change what a provider gets
    (RFC 9112, 7.1.2 allows to discard them).
    """

    __slots__ = ("_bytes", "_lines")

    def __init__(self) -> None:
        self._bytes = self._lines = 0

    def append(self, header: Header) -> None:
        """Forget a line. Raises TrailersTooLarge when there are too many."""
        self._lines += 1
        self._bytes += len(header[0]) + len(header[1]) + LINE_OVERHEAD_BYTES
        if self._lines > MAX_TRAILER_LINES or self._bytes > MAX_TRAILER_BYTES:
            raise TrailersTooLarge


def fault_of_version(version: str) -> CallerFault | None:
    """Why a request of another version than 1.0 and 1.1 is refused; None: it has one of these."""
    if version in ("1.0", "1.1"):
        return None
    return no_version() if version.startswith("0.") else other_version()


def no_version() -> InvalidRequest:
    """Refuses HTTP/0.9, whose request line is all there is."""
    return InvalidRequest("HTTP/0.9 is not spoken here; send HTTP/1.1.", code="invalid_http")


def other_version() -> VersionNotSupported:
    """Refuses a version that came in HTTP/1's clothes."""
    return VersionNotSupported("This port speaks HTTP/1.1 and HTTP/1.0; switch HTTP/2 off in the client or the proxy.")


def fault_of_coding(coding: bytes) -> CallerFault | None:
    """Why a body of this `Transfer-Encoding`, of one or more lines, cannot be read (RFC 9112, 6.1 and 6.3)."""
    codings = [each.strip(b" \t").lower() for each in coding.split(b",")]
    if codings == [b"chunked"]:
        return None
    if codings[-1] != b"chunked" or codings.count(b"chunked") > 1:
        return not_http("the end of the body cannot be told")
    return NotSupported(
        "A Transfer-Encoding other than 'chunked' is not supported; send the body uncompressed.",
        param="Transfer-Encoding",
        code="transfer_encoding_not_supported",
    )


def fault_of_offer(method: bytes, headers: Iterable[Header], *, has_sessions: bool = False) -> CallerFault | None:
    """Why an offer of another protocol is refused and not just declined: a WebSocket handshake has no other meaning.

    None: the request is one without the offer, too (h2c, TLS), or its path `has_sessions`.
    """
    offers = b",".join([value for name, value in headers if name == b"upgrade"]).lower()
    names = {offer.partition(b"/")[0].strip() for offer in offers.split(b",")}  # a version may follow the name
    if method != b"GET" or b"websocket" not in names or has_sessions:
        return None
    return NotSupported(
        "WebSockets are served at /v1/realtime and /v1/responses alone; use the HTTP endpoint.",
        param="Upgrade",
        code="websocket_not_supported",
    )


def head_too_large() -> HeadersTooLarge:
    """Refuses a head over MAX_HEAD_BYTES."""
    return HeadersTooLarge(f"The request line and headers exceed {MAX_HEAD_BYTES} bytes.")


def trailers_too_large() -> HeadersTooLarge:
    """Refuses what follows a body's last chunk, or stands in the head of one."""
    return HeadersTooLarge(
        f"The body's trailers exceed {MAX_TRAILER_LINES} lines or {MAX_TRAILER_BYTES} bytes, or a chunk's head does."
    )


def not_http(reason: str) -> CallerFault:
    """Refuses what the parser cannot read, for its `reason`."""
    if "HTTP version" in reason or "PRI" in reason:  # HTTP/2's connection preface
        return other_version()
    return InvalidRequest(
        "The request is not valid HTTP/1.1: check its request line, headers and body framing.", code="invalid_http"
    )


def body_framing(headers: Iterable[Header]) -> list[bytes]:
    """The header lines that say where the body ends; empty: there is none."""
    return [b"%s: %s\r\n" % header for header in headers if header[0] in FRAMING]


def head_bytes(url: bytes, headers: Iterable[Header]) -> int:
    """How many bytes a head has, but for its first line's method and version."""
    return len(url) + sum(len(name) + len(value) + LINE_OVERHEAD_BYTES for name, value in headers)
