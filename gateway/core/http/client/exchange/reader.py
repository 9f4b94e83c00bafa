"""Reads the answers of one connection: what the parser tells becomes an exchange's head, and parts of its body.

`ResponseReader` is what httptools' parser (llhttp) calls back. It knows neither sockets nor time. Invariant:
`exchange.status` is set with the last byte of an acceptable head, and by nothing else.
"""

from __future__ import annotations

import re
from typing import Any

import httptools
import httpx

from gateway.core.http.client.exchange.exchange import Exchange
from gateway.core.http.client.exchange.head import (
    MAX_HEAD_BYTES,
    check_start,
    ends_with_connection,
    head_size,
    split_head,
)

MAX_INTERIM_ANSWERS = 100
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] \d{3} .", re.DOTALL)


class ResponseReader:
    """The answers of one connection, one after the other: `begin` each, `feed` it bytes, and look what has become of it."""

    __slots__ = (
        "_exchange",
        "_expects_body",
        "_interim_answers",
        "_parser",
        "arrived",
        "ends_with_connection",
        "feed",
        "has_interim",
        "head_parts",
        "is_clean",
        "is_complete",
        "on_body",
        "unfruitful_bytes",
    )

    def __init__(self) -> None:
        self.arrived: list[bytes] = []
        """Parts of the body that were in what was fed, to be taken out before more is fed."""
        # The parser calls the list itself, which costs a stream no call of ours for an event.
        self.on_body = self.arrived.append
        self._parser: Any = httptools.HttpResponseParser(self)
        self.feed: Any = self._parser.feed_data
        """Raises httptools' errors, and in their context those of the callbacks below."""
        self._exchange: Exchange | None = None
        self._expects_body = True
        self._interim_answers = 0
        self.ends_with_connection = False
        """Only the end of the connection ends the body."""
        self.has_interim = False
        """A 1xx has come; whoever acts on it takes it back."""
        self.head_parts: list[bytes] = []
        """All that was fed since the last head was complete, to be put here before it is fed."""
        self.is_clean = False
        """Nothing follows the answer, and the provider keeps the connection open."""
        self.is_complete = False
        """The answer's last byte has been read."""
        self.unfruitful_bytes = 0
        """Received since the start of the head or the last byte of the body."""

    def begin(self, exchange: Exchange, *, expects_body: bool) -> None:
        """Read the next answer into this exchange; after a HEAD it has no body, whatever its lengths say."""
        self._exchange = exchange
        self._expects_body = expects_body
        self._interim_answers = self.unfruitful_bytes = 0
        self.head_parts = []
        self.has_interim = self.is_complete = False
        self.is_clean = True

    def end(self) -> None:
        """Forget the exchange: nothing that comes is for it any more."""
        self._exchange = None

    def close(self) -> None:
        """Let the parser go: it holds this reader's methods, a cycle."""
        self._parser = self.feed = None

    def has_status_line(self) -> bool:
        """Whether the incomplete head, that has come so far, says a status: somebody has answered."""
        return _STATUS_LINE.match(b"".join(self.head_parts).lstrip(b"\r\n")) is not None

    # What the parser tells. What these raise stops it.

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise httpx.RemoteProtocolError("bytes follow the answer")

    def on_headers_complete(self) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        parts = self.head_parts
        line, headers, rest = split_head(parts[0] if len(parts) == 1 else b"".join(parts))
        status, version, reason = self._parser.get_status_code(), line[:8], line[13:]
        if status < 200 or version != b"HTTP/1.1" or b"\0" in reason:
            check_start(status, version, reason)
        if self.unfruitful_bytes > MAX_HEAD_BYTES and head_size(reason, headers) > MAX_HEAD_BYTES:
            raise httpx.RemoteProtocolError(f"the answer's head exceeds {MAX_HEAD_BYTES} bytes")
        if status < 200:
            self.head_parts = [rest]
            return
        self.head_parts = []
        self.unfruitful_bytes = 0
        has_body = self._expects_body and status != 204 and status != 304
        self.ends_with_connection = has_body and ends_with_connection(headers)
        if version == b"HTTP/1.0":
            self.is_clean = False
        exchange.version, exchange.reason, exchange.headers = version, reason, headers
        exchange.status = status
        if not self._expects_body:
            # The parser cannot be told that this length has no body, so this connection ends here.
            self.is_complete, self.is_clean = True, False
            raise httpx.RemoteProtocolError("an answer to HEAD has no body")

    def on_message_complete(self) -> None:
        if self._exchange is not None and not self._exchange.status:
            self._note_interim()
            return
        self.is_complete = True
        self.is_clean = self.is_clean and self._parser.should_keep_alive()

    def _note_interim(self) -> None:
        self._interim_answers += 1
        if self._interim_answers > MAX_INTERIM_ANSWERS:
            raise httpx.RemoteProtocolError(f"more than {MAX_INTERIM_ANSWERS} interim answers")
        self.has_interim = True
