"""HTTP/1.1 towards a provider, one request and its answer: the bytes of both, and the exchange that the caller holds.

First how an answer's connection ends (`take_rest`), the head of an answer and a request in bytes: functions without I/O of
their own. Then `Exchange`, the `Answer` that the core reads: nothing stands between the connection's parser and the relay.
Then `ResponseReader`, which makes an exchange of what the parser finds, and `Upload`, for bodies that take more than one
write. The connection feeds an exchange (`bring`, `finish`) and may serve the next request while the last bytes of this one
are unread.

Invariants: giving an exchange up before its end closes the connection; what `mask_body` was given to mask is masked before
anybody can read it; a request's head is one head: no header can add a line, and the body's length is stated once.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, cast

import httptools
import httpx

from gateway.core.http.client.redaction import MaskedChunks, SecretMasker, Secrets, with_phase
from gateway.core.http.client.unpacking import unpacked
from gateway.core.types import PassthroughChunks, Phase, Progress, RawHeaders, Spliced, pieces_of

# --- the end of a connection, or an answer that somebody has cut short ---


READ_BYTES_OF_TLS = 64 * 1024


def take_rest(tls: ssl.SSLObject, take: Callable[[bytes], bool]) -> bool:
    """Take what TLS still holds, and return whether the provider's close_notify follows it; `take` says whether to go on.

    Without one anybody on the way can have cut the answer short (RFC 8446, 6.1). Neither loop has a callback for each of
    the two ends, and both forget what is decrypted when the connection closes behind a reader who pauses.
    """
    try:
        while data := tls.read(READ_BYTES_OF_TLS):
            if not take(data):
                return False
    except ssl.SSLError:  # wants more, which will not come; or what came is not of this session
        return False
    return True


def closed_early(*, is_silent: bool, is_open_ended: bool) -> httpx.RemoteProtocolError:
    """The error of an answer whose connection ended before it did, or before it began."""
    where = "without answering" if is_silent else "in the middle of its answer"
    if is_open_ended:
        where = "without saying that its answer was over (TLS close_notify)"
    return httpx.RemoteProtocolError(f"the provider closed the connection {where}")


# --- the head of an answer: its lines, and which heads are acceptable ---


MAX_HEAD_BYTES = 64 * 1024

VERSIONS = frozenset((b"HTTP/1.1", b"HTTP/1.0"))
_END = b"\r\n\r\n"
_FRAMING = frozenset((b"content-length", b"transfer-encoding"))


def split_head(received: bytes) -> tuple[bytes, list[tuple[bytes, bytes]], bytes]:
    """The status line, the headers with their names in lower case, and what follows the first head in `received`.

    The parser has found this head complete: every line ends with CRLF, and every header has its colon (RFC 9112, 5). It
    gives headers one by one, at a call each, where this takes one for all. It also skips empty lines before a head. Raises
    `httpx.RemoteProtocolError` where the head does not end as it must.

    The parser (llhttp, strict) refuses most ambiguous heads: both or two lengths, folded lines, bare LF, NUL, names that
    are no tokens. What it lets pass is refused here and in `ends_with_connection`.
    """
    if received[:1] != b"H":
        received = received.lstrip(b"\r\n")
    head, end, rest = received.partition(_END)
    if not end:
        raise httpx.RemoteProtocolError("the answer's head has no end")
    status_line, *lines = head.split(b"\r\n")
    headers = [((part := line.partition(b":"))[0].lower(), part[2].strip()) for line in lines]
    return status_line, headers, rest


def ends_with_connection(headers: RawHeaders) -> bool:
    """Return whether only the end of the connection ends the body (RFC 9112 section 6.3).

    Raises `httpx.RemoteProtocolError` for any Transfer-Encoding but one plain `chunked`: with `xchunked`, `chunked,
    chunked` or `gzip, chunked` two readers may see two different ends.
    """
    index = dict(headers)
    if b"transfer-encoding" not in index:  # as in most answers
        return b"content-length" not in index
    is_framed = False
    for name, value in headers:
        if name == b"transfer-encoding" and (is_framed or value.lower() != b"chunked"):
            raise httpx.RemoteProtocolError("the answer has a Transfer-Encoding other than one `chunked`")
        is_framed = is_framed or name in _FRAMING
    return False


# --- a request in bytes ---


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
    # The caller has declared it chunked, so its bytes become one chunk.
    if length is None:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    return EncodedRequest(head, body, None, length, request.method != "HEAD")


def _frame_request(headers: list[tuple[bytes, bytes]], names: list[bytes], body: bytes | None) -> int | None:
    """Make the headers state the body's length exactly once; returns it, None when chunked."""
    lengths, codings = names.count(b"content-length"), names.count(b"transfer-encoding")
    if lengths + codings > 1:
        raise _unsendable("more than one Content-Length or Transfer-Encoding header")
    if lengths:
        value = headers[names.index(b"content-length")][1]
        if not value.isdigit():
            raise _unsendable("Content-Length is not a number")
        length = int(value)
        if body is not None and length != len(body):
            raise _unsendable(f"Content-Length says {length}, the body has {len(body)} bytes")
        return length
    if codings:
        if headers[names.index(b"transfer-encoding")][1].lower() != b"chunked":
            raise _unsendable("Transfer-Encoding other than chunked")
        return None
    if body is None:
        headers.append((b"Transfer-Encoding", b"chunked"))
        return None
    # With neither header a request has no body (RFC 9112, 6.3).
    if body:
        headers.append((b"Content-Length", b"%d" % len(body)))
    return len(body)


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


# --- the exchange that the caller holds ---

TAP_BYTES = 2048
"""A longer block is for the reader: the connection stops behind one that is above its high-water mark until it is read."""


class Carrier(Protocol):
    """The connection that carries an exchange."""

    is_reading_paused: bool

    @property
    def new_future(self) -> Callable[[], asyncio.Future[bytes]]: ...
    def resume_reading(self) -> None: ...
    def fail(self, error: BaseException) -> None:
        """Close it; who waits for the answer gets the error."""
        ...


class Exchange(PassthroughChunks):
    """One request and its answer, seen by the caller; iterating it yields the body as it arrives.

    Await `opening` first: then either `status` says that the head has come, or `error` why it cannot come. Chunks that
    arrived since the last step come as one. Steps raise httpx errors of phase `ANSWERED`. Who stops reading early, or is
    cancelled, calls `aclose` (or `abandon`), which closes the connection.
    """

    __slots__ = (
        "_chunks",
        "_connection",
        "_new_future",
        "_seam",
        "_unpacked",
        "_waiter",
        "buffered",
        "error",
        "headers",
        "is_complete",
        "is_stale",
        "on_block",
        "opening",
        "reason",
        "replay_until",
        "secrets",
        "signs",
        "status",
        "timeouts",
        "version",
        "whole",
    )

    def __init__(
        self, connection: Carrier, timeouts: WireTimeouts, replay_until: float, signs: Progress | None
    ) -> None:
        self._connection: Carrier | None = connection  # None once the connection is done with this exchange
        self._chunks: list[bytes] = []
        self._waiter: asyncio.Future[bytes] | None = None  # of a step for which nothing has come yet
        self._new_future = connection.new_future
        self._seam: SecretMasker | None = None
        self._unpacked: AsyncIterator[bytes] | None = None
        self.opening = connection.new_future()
        self.buffered = 0
        self.error: BaseException | None = None
        self.headers: RawHeaders = []
        self.is_complete = False
        self.is_stale = False  # a kept-alive connection was already dead: nothing answered, safe to send again
        self.reason = b""
        self.replay_until = replay_until  # of the connection's `now`; a silent end before makes it stale
        self.secrets: Secrets | None = None
        """What is masked again in a body that is unpacked: packed, nobody has seen it."""
        self.signs = signs
        self.status = 0  # 0 until the head is complete
        self.on_block: Callable[[bytes], bool] | None = None
        self.timeouts = timeouts
        self.version = b""
        self.whole: bytes | None = None
        """The body, when all of it had come when the answer was handed out."""

    # What the core reads.

    @property
    def chunks(self) -> AsyncIterator[bytes]:
        """The body, to be read once."""
        return self if self._unpacked is None else self._unpacked

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    def __anext__(self) -> asyncio.Future[bytes]:
        """The next step as a future, which costs a stream half of what a coroutine for each of its events would."""
        step = self._new_future()
        chunks, connection = self._chunks, self._connection
        if chunks:
            step.set_result(chunks[0] if len(chunks) == 1 else b"".join(chunks))
            chunks.clear()
            self.buffered = 0
        elif self.is_complete:
            step.set_exception(StopAsyncIteration())
        elif self.error is not None:
            step.set_exception(self.take_error())
        else:
            self._waiter = step
        if connection is not None and connection.is_reading_paused:
            connection.resume_reading()
        return step

    def unpack(self, codings: bytes) -> None:
        """Take the `content-encoding` off: the body is then to be read from `chunks`. Raises httpx.DecodingError."""
        self._unpacked, self.whole = unpacked(self, codings), None
        self.headers = [header for header in self.headers if header[0] not in (b"content-encoding", b"content-length")]
        if self.secrets is not None:
            self.secrets.guard(self)

    def mask_body(self, secrets: Secrets) -> None:
        """Mask these in what has come already, and in all that comes from now on."""
        if self._unpacked is not None:
            self._unpacked = MaskedChunks(self._unpacked, SecretMasker(secrets))
            return
        come = b"".join(self._chunks)
        if self.is_complete:
            masked = secrets.mask(come)
            self.whole = None if self.whole is None else masked
        else:
            self._seam = SecretMasker(secrets)
            masked = self._seam.feed(come)
        self._chunks = [masked] if masked else []
        self.buffered = len(masked)

    async def aclose(self) -> None:
        """Finish with the answer; before its end this closes the connection at once."""
        self.abandon()

    def abandon(self) -> None:
        """Give the answer up: the connection is closed unless the answer is already complete."""
        if self._connection is not None:
            self._connection.fail(httpx.StreamClosed())

    def take_error(self) -> BaseException:
        """Give out why there is no more, and keep it no longer: raised, it holds the frames that hold this exchange."""
        error, self.error = self.error, with_phase(httpx.ReadError("the answer has broken off"), Phase.ANSWERED)
        return error or self.error

    def keep_whole(self) -> None:
        """Give out the body with the head, as all of it is here and none has been read."""
        chunks = self._chunks
        self.whole = chunks[0] if len(chunks) == 1 else b"".join(chunks)

    # Called by the connection.

    def bring(self, block: bytes) -> None:
        """The body's next bytes: for who waits, else to be kept until somebody does."""
        seam = self._seam
        if seam is not None:
            if seam.kept or block[-1:] in seam.ends:
                block = seam.feed(block)
            else:
                for probe in seam.probes:  # as `feed` looks, without a call: each event of each stream comes by
                    if block.replace(probe, probe) is not block:
                        block = seam.feed(block)
                        break
            if not block:
                return
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            tap = self.on_block
            if tap is not None and len(block) < TAP_BYTES and tap(block):
                return  # whoever waits goes on waiting: to wake a task for each event is half of what the event costs
            self._waiter = None
            waiter.set_result(block)
        else:
            self._waiter = None
            self._chunks.append(block)
            self.buffered += len(block)

    def compact(self) -> None:
        """Make one of what is unread: it may stay for long, and each small chunk takes 33 bytes more than it has."""
        if len(self._chunks) > 1:
            self._chunks[:] = (b"".join(self._chunks),)

    def finish(self, error: BaseException | None) -> None:
        """Nothing more comes: the answer is complete, or has broken off."""
        self._connection = self.on_block = None
        seam, self._seam = self._seam, None
        rest = b"" if seam is None else seam.end()
        if rest:
            self.bring(rest)
        self.error = error
        self.is_complete = error is None
        if not self.opening.done():
            self.opening.set_result(b"")
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            self._waiter = None  # it will hold the error
            waiter.set_exception(StopAsyncIteration() if error is None else self.take_error())


# --- the answers of one connection: what the parser finds becomes an exchange's head, and parts of its body ---


MAX_INTERIM_ANSWERS = 100
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] \d{3} .", re.DOTALL)


class ResponseReader:
    """The answers of one connection, one after the other: `begin` each, `feed` it bytes, and look what has become of it.

    httptools' parser (llhttp) calls it back. It knows neither sockets nor time. Invariant: `exchange.status` is set with
    the last byte of an acceptable head, and by nothing else.
    """

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

    # Called by the parser. What these raise stops it.

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
            # What the parser lets pass.
            if version not in VERSIONS:
                raise httpx.RemoteProtocolError(f"the answer speaks {version.decode('latin-1')}")
            if status < 100 or status == 101:
                raise httpx.RemoteProtocolError(f"the answer has status {status:03d}, which nobody asked for")
            if b"\0" in reason:
                raise httpx.RemoteProtocolError("the answer has a NUL in its status line")
        # Only reads that are too long for a head may hold one that is: then its own lines are counted (17: version and status).
        if (
            self.unfruitful_bytes > MAX_HEAD_BYTES
            and 17 + len(reason) + sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEAD_BYTES
        ):
            raise httpx.RemoteProtocolError(f"the answer's head exceeds {MAX_HEAD_BYTES} bytes")
        if status < 200:
            # The next head may have begun in the same read.
            self.head_parts = [rest]
            return
        self.head_parts = []
        self.unfruitful_bytes = 0
        has_body = self._expects_body and status != 204 and status != 304
        self.ends_with_connection = has_body and ends_with_connection(headers)
        if version == b"HTTP/1.0":
            self.is_clean = False
        exchange.version, exchange.reason, exchange.headers = version, reason, headers
        # Last, behind all that may raise: a status means that the whole head was acceptable.
        exchange.status = status
        if not self._expects_body:
            # The parser has no way to know that this length has no body, so this connection ends here.
            self.is_complete, self.is_clean = True, False
            raise httpx.RemoteProtocolError("an answer to HEAD has no body")

    def on_message_complete(self) -> None:
        if self._exchange is not None and not self._exchange.status:
            self._interim_answers += 1
            if self._interim_answers > MAX_INTERIM_ANSWERS:
                raise httpx.RemoteProtocolError(f"more than {MAX_INTERIM_ANSWERS} interim answers")
            self.has_interim = True
            return
        self.is_complete = True
        self.is_clean = self.is_clean and self._parser.should_keep_alive()


# --- request bodies that take more than one write: long ones, and those that come as a stream ---


PIECE_BYTES = 64 * 1024
"""A longer request body is written in pieces, each within the write timeout."""


class Uplink(Protocol):
    """The connection that an upload writes to."""

    @property
    def takes_more(self) -> bool:
        """Whether the socket takes bytes now."""
        ...

    def write(self, data: bytes) -> None: ...
    def gave_sign(self) -> None:
        """Notes that the provider has taken what was written to it."""
        ...

    def uploaded(self, error: BaseException | None) -> None:
        """Notes that the body has been written, or cannot be."""
        ...


class Upload:
    """One body on its way: a task beside the exchange, which knows nothing of answers.

    Invariant: it calls `uploaded` exactly once with how it went, unless it is stopped.
    """

    __slots__ = ("_drained", "_is_stopped", "_link", "_task")

    def __init__(self, link: Uplink, outgoing: EncodedRequest) -> None:
        self._link = link
        self._drained: asyncio.Future[None] | None = None
        self._is_stopped = False
        self._task = asyncio.get_running_loop().create_task(self._run(outgoing))
        self._task.add_done_callback(self._ended)

    def go_on(self) -> None:
        """The socket takes bytes again."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def stop(self) -> None:
        """Write no more, without a notice."""
        self._is_stopped = True
        self._task.cancel()

    async def _run(self, outgoing: EncodedRequest) -> None:
        link, written, length = self._link, 0, outgoing.length
        async for piece in _pieces(outgoing):
            written += len(piece)
            if length is None and outgoing.stream is not None:
                piece = b"%x\r\n%b\r\n" % (len(piece), piece)
            elif length is not None and written > length:
                # The provider would take the surplus for the beginning of another request.
                raise httpx.LocalProtocolError(f"the request's body is longer than the {length} bytes it declared")
            link.write(piece)
            if not link.takes_more:
                self._drained = asyncio.get_running_loop().create_future()
                await self._drained
                link.gave_sign()
        if length is None and outgoing.stream is not None:
            link.write(b"0\r\n\r\n")
        elif length is not None and written < length:
            raise httpx.LocalProtocolError(f"the request's body ended {length - written} bytes early")

    def _ended(self, task: asyncio.Task[None]) -> None:
        cancelled = httpx.WriteError("the request's body was cancelled by its source")
        error = (
            cancelled if task.cancelled() else task.exception()
        )  # looked at in any case: else it is reported as lost
        if not self._is_stopped:
            self._link.uploaded(error)


async def _pieces(outgoing: EncodedRequest) -> AsyncIterator[bytes]:
    if outgoing.body is not None:
        for piece in pieces_of(outgoing.body, PIECE_BYTES):
            yield piece
    elif outgoing.stream is not None:
        async for piece in outgoing.stream:
            if piece:  # an empty chunk would end the body
                yield piece
