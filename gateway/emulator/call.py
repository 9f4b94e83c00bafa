"""One call on the wire: its request, who calls, what is counted of it, and every way to answer it or to fail to.

In this order: the counters and the last requests; `EmulatedCall`, which knows ASGI and, through `EmulatorServer`, the
transport below it; the headers by which each provider names itself; `perform`, which acts an answer out at its pace, whole,
or broken as its fault says; keys in each provider's manner. It must not know why a fault was picked. Invariants: memory is
bounded; a peer that leaves before the last byte is noticed at once, counted once, and ends every wait of the call; without
a fault every answer ends properly, with one exactly as `config.FAULTS` describes it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import socket
import struct
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any
from urllib.parse import parse_qsl, quote

from gateway.emulator.config import Fault
from gateway.emulator.generate import blocked
from gateway.emulator.limits import EmulatedAccount
from gateway.emulator.replies import (
    CDN_PAGE,
    LANGUAGES,
    EmulatedProblem,
    EmulatedReply,
    EmulatedStream,
    Headers,
    ProblemError,
    fault_problem,
    invalid_credential,
    invalid_key,
    json_reply,
    overload,
    overloaded_503,
)

# --- The counters and the last requests ---


_MAX_LABELS = 1000
_OTHER = "(other)"


class Stats:
    """The counters since the start or the last reset; `wall` returns epoch seconds."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self.active = 0
        self.clear()

    def clear(self) -> None:
        """Counts from zero again; calls in flight stay counted as active."""
        self.total = 0
        self.peak = self.active
        self.bytes_in = 0
        self.bytes_out = 0
        self.cancelled = 0
        self.endpoints: Counter[str] = Counter()
        self.models: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.faults: Counter[str] = Counter()
        self.departures: deque[dict[str, Any]] = deque(maxlen=200)

    def enter(self) -> None:
        """Counts a call that arrived."""
        self.total += 1
        self.active += 1
        self.peak = max(self.peak, self.active)

    def leave(self, endpoint: str) -> None:
        """Counts a call that has ended."""
        self.active -= 1
        self.endpoints[endpoint] += 1

    def count_call(self, model: str) -> None:
        """Counts a valid call of `model`; past a thousand names the others are counted together."""
        self.models[model if model in self.models or len(self.models) < _MAX_LABELS else _OTHER] += 1

    def peer_left(self, path: str, model: str, now: float) -> None:
        """Counts a peer that left before the end of its answer."""
        self.cancelled += 1
        self.departures.append({"at_s": self._wall(), "mono_s": now, "path": path, "model": model})

    def to_mapping(self) -> dict[str, Any]:
        """Returns the counters as JSON values."""
        return {
            "requests": self.total,
            "by_endpoint": dict(self.endpoints),
            "by_model": dict(self.models),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "sent_429": self.statuses[429],
            "faults": dict(self.faults),
            "concurrency": {"now": self.active, "peak": self.peak},
            "cancelled_by_peer": {"count": self.cancelled, "last": list(self.departures)},
            "bytes": {"in": self.bytes_in, "out": self.bytes_out},
        }


@dataclass(slots=True)
class Recorded:
    """One request as it came, and what became of it; the body may be cut to the recorder's size."""

    number: int
    at_s: float
    mono_s: float
    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    body_bytes: int
    status: int | None = None
    """The status of the answer that was begun; None: none, so far."""
    is_left: bool = False
    """The peer left before the end of the answer."""
    tokens: tuple[int, int] | None = None
    """The tokens of its input, and of the answer that it was to get; None: it got none, or its kind has no tokens."""

    def to_mapping(self) -> dict[str, Any]:
        """Returns JSON values: header bytes as latin-1, the body as text for reading and as base64 for comparing."""
        return {
            "number": self.number,
            "at_s": self.at_s,
            "mono_s": self.mono_s,
            "method": self.method,
            "path": self.path,
            "query": self.query.decode("latin-1"),
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in self.headers],
            "body": self.body.decode("utf-8", "replace"),
            "body_base64": base64.b64encode(self.body).decode(),
            "body_bytes": self.body_bytes,
            "status": self.status,
            "left": self.is_left,
            "tokens": None if self.tokens is None else {"input": self.tokens[0], "output": self.tokens[1]},
        }


class Recorder:
    """The last requests, at most `max_count` of them and `max_bytes` of their bodies."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._kept: deque[Recorded] = deque()
        self._bytes = 0

    def add(self, recorded: Recorded) -> None:
        """Keeps one and lets the oldest go."""
        if not self._max_count:
            return
        self._kept.append(recorded)
        self._bytes += len(recorded.body)
        while len(self._kept) > self._max_count or self._bytes > self._max_bytes:
            self._bytes -= len(self._kept.popleft().body)

    def last(self, count: int) -> list[dict[str, Any]]:
        """Returns the last `count`, oldest first."""
        return [each.to_mapping() for each in list(self._kept)[-count:]] if count else []

    def clear(self) -> None:
        """Forgets them all."""
        self._kept.clear()
        self._bytes = 0


# --- The call ---


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Sleep = Callable[[float], Awaitable[None]]

TRANSPORT = "emulator.transport"  # where EmulatorServer puts the asyncio transport into the scope
CONNECTIONS = "emulator.connections"  # and the collection of its open connections


class PeerGoneError(Exception):
    """The peer left before the request was complete."""


class EmulatedCall:
    """One request and its answer; `dialect` is the shape of its errors, `request_id` what they call it."""

    __slots__ = (
        "_identity",
        "_receive",
        "_send",
        "_sleep",
        "_stats",
        "_task",
        "_transport",
        "_watcher",
        "arrived_at",
        "body",
        "dialect",
        "endpoint",
        "headers",
        "is_finished",
        "is_peer_gone",
        "limit_headers",
        "method",
        "model",
        "now",
        "path",
        "recorded",
        "request_id",
        "scope",
    )

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, stats: Stats, now: Callable[[], float], sleep: Sleep
    ) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.body = b""
        self.endpoint = "other"
        self.model = ""
        self.dialect = "openai"
        self.request_id = ""
        self.arrived_at = now()
        self.is_finished = False
        self.is_peer_gone = False
        self.limit_headers: Callable[[], Headers] | None = None
        self.recorded: Recorded | None = None
        self._identity: Headers = ()
        self._receive = receive
        self._send = send
        self._stats = stats
        self.now = now
        self._sleep = sleep
        # Absent without EmulatorServer; then a call that should break the connection just ends without an answer.
        self._transport: asyncio.Transport | None = scope.get(TRANSPORT)
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def header(self, name: bytes) -> bytes:
        """Returns the first value of a header (name in lower case), or nothing."""
        return next((value for each, value in self.headers if each == name), b"")

    def identify(self, dialect: str, request_id: str, identity: Headers) -> None:
        """Sets whose API is meant, and the headers that every answer to this call carries."""
        self.dialect, self.request_id, self._identity = dialect, request_id, identity

    async def read_body(self) -> None:
        """Reads the whole body; raises PeerGoneError when the peer leaves before its end."""
        message = await self._receive()
        chunks = [message.get("body", b"")]
        while message["type"] == "http.request" and message.get("more_body"):
            message = await self._receive()
            chunks.append(message.get("body", b""))
        if message["type"] != "http.request":
            self._note_departure()
            raise PeerGoneError
        self.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._stats.bytes_in += len(self.body)

    async def reply(self, reply: EmulatedReply) -> None:
        """Sends a whole reply."""
        await self.start(reply, len(reply.body))
        await self.finish(reply.body)

    async def start(self, reply: EmulatedReply, length: int | None) -> None:
        """Sends status and headers; a `length` of None means chunked."""
        self._stats.statuses[reply.status] += 1
        if self.recorded is not None:
            self.recorded.status = reply.status
        headers = [(b"content-type", reply.content_type), *reply.headers]
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        if not reply.is_foreign:
            headers += self._identity
            if self.dialect not in LANGUAGES:
                headers.append((b"openai-processing-ms", b"%d" % ((self.now() - self.arrived_at) * 1000)))
        if self.limit_headers is not None and not (reply.is_bare or reply.is_foreign):
            headers += self.limit_headers()
        await self._send({"type": "http.response.start", "status": reply.status, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Sends a part of the body; once the connection is lost it waits for the watcher to end the call."""
        if self._transport is not None and self._transport.is_closing():
            await self.hang()
        self._stats.bytes_out += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        """Sends the last part of the body."""
        self.is_finished = True
        self._stats.bytes_out += len(data)
        await self._send({"type": "http.response.body", "body": data})

    async def sleep(self, seconds: float) -> None:
        """Waits on the emulator's clock; ends early, with the call, when the peer leaves."""
        self.watch()
        await self._sleep(seconds)

    async def hang(self) -> None:
        """Waits until the peer leaves."""
        self.watch()
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Closes the connection in an orderly way, in the middle of whatever was being sent."""
        self.is_finished = True
        if self._transport is not None:
            self._transport.close()
            await self._until_disconnect()

    async def reset(self) -> None:
        """Closes the connection with a TCP RST."""
        self.is_finished = True
        if self._transport is not None:
            reset(self._transport)
            await self._until_disconnect()

    def smuggle(self, data: bytes) -> None:
        """Writes bytes past the end of the body onto the connection."""
        if self._transport is not None:
            self._transport.write(data)

    def watch(self) -> None:
        """Watches for the peer's leaving from now on; when it leaves, the current task is cancelled."""
        if self._watcher is None:
            self._task = asyncio.current_task()
            self._watcher = asyncio.create_task(self._watch())

    def end(self) -> None:
        """Stops watching."""
        if self._watcher is not None:
            self._watcher.cancel()

    async def _watch(self) -> None:
        await self._until_disconnect()
        if not self.is_finished:
            self._note_departure()
            if self._task is not None:
                self._task.cancel()

    def _note_departure(self) -> None:
        self.is_peer_gone = True
        if self.recorded is not None:
            self.recorded.is_left = True
        self._stats.peer_left(self.path, self.model, self.now())

    async def _until_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


_RST_ON_CLOSE = struct.pack("ii", 1, 0)


def reset(transport: asyncio.Transport) -> None:
    """Closes the connection with a TCP RST."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
    transport.abort()


# --- The headers by which each provider names itself ---


_ORGANIZATION: Headers = ((b"openai-organization", b"org-emulator"), (b"openai-version", b"2020-10-01"))


def identity_of(dialect: str, draw: int) -> tuple[str, str, Headers]:
    """Returns the dialect, the id of a request made from a `draw` of 128 bits, and the headers of its answer."""
    drawn = f"{draw:032x}"
    name = f"req_{drawn}"
    match dialect:
        case "messages":
            return dialect, name, ((b"request-id", name.encode()), (b"anthropic-organization-id", b"org-emulator"))
        case "generate":
            return dialect, drawn, ((b"server-timing", b"gfet4t7; dur=1"), (b"x-frame-options", b"SAMEORIGIN"))
        case "converse":
            parts = (drawn[:8], drawn[8:12], drawn[12:16], drawn[16:20], drawn[20:])
            name = "-".join(parts)
            return dialect, name, ((b"x-amzn-requestid", name.encode()),)
    headers = ((b"x-request-id", name.encode()), *_ORGANIZATION)
    if dialect == "azure":
        headers += ((b"apim-request-id", drawn.encode()), (b"x-ms-region", b"Emulated Central"))
    elif dialect == "anthropic":
        headers += ((b"request-id", name.encode()),)
    return dialect, name, headers


# --- Answers acted out, whole or broken ---


_FINISH_REASON = re.compile(rb'"finish_reason":"\w+"')


_YIELD_EVERY = 64  # frames sent at once before others get their turn


_PIECES = 16  # of a whole answer that drips


_LONGEST_GAP_S = 3600.0


_BEFORE_LIMITS = frozenset({"e401", "e403", "e404"})  # refused before anything is counted: no limit headers


_DRIPS = frozenset({"drip", "fade"})


_ERRORS_IN_200 = frozenset({"in_band_error", "opening_error", "raw_error"})


_UNFRAMED = frozenset({"truncated", "wrong_length"})


@dataclass(frozen=True, slots=True)
class EmulatedPace:
    """Seconds until the first token and between the next."""

    ttft_s: float
    per_token_s: float


def refusal_of(fault: Fault, account: EmulatedAccount, call: EmulatedCall, now: float) -> EmulatedReply | None:
    """Returns the whole reply that `fault` consists of, or None for the faults that break a good answer."""
    dialect = call.dialect
    match fault.kind:
        case "rate_limit" | "rate_limit_bare":
            refusal = account.throttle(fault.seconds or 0.0, now, is_bare=fault.kind == "rate_limit_bare")
            return refusal.reply(dialect, call.request_id)
        case "html502":
            return EmulatedReply(status=502, body=CDN_PAGE, content_type=b"text/html", is_foreign=True)
        case "empty_200":
            return EmulatedReply(body=b"")
        case "error_in_200":
            return EmulatedReply(body=_overload(call, dialect))
        case "content_filter" if dialect == "generate":  # Google answers with 200, and with nothing but the reason
            return json_reply(blocked(0))
    problem = fault_problem(fault.kind, dialect, call.path)
    if problem is None:
        return None
    is_bare = fault.kind in _BEFORE_LIMITS
    return problem.reply(dialect, _retry_after(fault), is_bare=is_bare, request_id=call.request_id)


async def perform(
    call: EmulatedCall,
    answer: EmulatedReply | EmulatedStream,
    fault: Fault | None,
    pace: EmulatedPace,
    account: EmulatedAccount,
) -> None:
    """Plays `answer` at `pace`, as `fault` bends it."""
    if fault is not None and fault.kind == "silence":
        await call.hang()
    if fault is not None and fault.kind == "reset" and not fault.after_chunks:
        await call.reset()
        return
    wait_s = pace.ttft_s
    if fault is not None and fault.kind == "slow_first_token":
        wait_s += fault.seconds or 0.0
    if isinstance(answer, EmulatedReply):
        wait_s += max(0, answer.tokens - 1) * pace.per_token_s
    if wait_s:
        await call.sleep(wait_s)
    if fault is not None and fault.kind in _UNFRAMED:
        await _misframe(call, _whole(answer), fault.kind)
    elif isinstance(answer, EmulatedStream):
        await _play_stream(call, answer, fault, pace.per_token_s, account)
    else:
        await _play_reply(call, answer, fault, account)


async def _play_reply(call: EmulatedCall, reply: EmulatedReply, fault: Fault | None, account: EmulatedAccount) -> None:
    account.emitted(reply.tokens, call.now())
    half = len(reply.body) // 2
    match fault.kind if fault else None:
        case "cut" | "stall" | "reset" as kind:
            await call.start(reply, len(reply.body))
            await call.write(reply.body[:half])
            await _break_off(call, kind)
        case "malformed":
            await call.reply(replace(reply, body=reply.body[:half]))
        case kind if kind in _ERRORS_IN_200:
            await call.reply(EmulatedReply(body=_overload(call, "openai")))
        case kind if fault is not None and kind in _DRIPS:
            await _drip_reply(call, reply, fault)
        case "refusal":
            await call.reply(replace(reply, body=_filtered(reply.body)))
        case _:
            await call.reply(reply)


async def _play_stream(
    call: EmulatedCall, stream: EmulatedStream, fault: Fault | None, per_token_s: float, account: EmulatedAccount
) -> None:
    kind, chunks = (fault.kind, fault.after_chunks) if fault else ("", None)
    left = iter(() if kind == "opening_error" else stream.frames)
    frames = _with_broken_frame(stream, chunks) if kind == "malformed" else islice(left, chunks)
    call.watch()
    await call.start(EmulatedReply(body=b"", content_type=stream.content_type), None)
    if stream.lead and chunks != 0:
        await call.write(stream.lead)
    await _play_frames(call, frames, per_token_s, account.emitted)
    match kind:
        case "cut" | "stall" | "reset":
            await _break_off(call, kind)
        case "in_band_error" | "opening_error":
            await call.finish(stream.error_frame(_overload(call, "openai")))
        case "raw_error":
            await call.finish(_overload(call, "openai"))
        case kind if fault is not None and kind in _DRIPS:
            await _drip(call, left, fault, account.emitted)
            await call.finish(stream.tail)
        case "no_done":
            await call.finish()
        case "refusal":
            await call.finish(_filtered(stream.tail))
        case _:
            await call.finish(stream.tail)


async def _play_frames(
    call: EmulatedCall, frames: Iterable[bytes], per_token_s: float, emitted: Callable[[int, float], None]
) -> None:
    # Each frame has its own due time from the first on: late wake-ups do not add up.
    due = call.now()
    for number, each in enumerate(frames):
        due += per_token_s if number else 0.0
        ahead_s = due - call.now() if per_token_s else 0.0
        if ahead_s > 0:
            await call.sleep(ahead_s)
        elif number % _YIELD_EVERY == _YIELD_EVERY - 1:
            await asyncio.sleep(0)
        await call.write(each)
        emitted(1, due)


async def _drip(
    call: EmulatedCall, pieces: Iterable[bytes], fault: Fault, emitted: Callable[[int, float], None]
) -> None:
    gap_s = fault.seconds or 0.0
    for each in pieces:
        await call.sleep(gap_s)
        await call.write(each)
        emitted(1, call.now())
        if fault.kind == "fade":
            gap_s = min(2 * gap_s, _LONGEST_GAP_S)


async def _drip_reply(call: EmulatedCall, reply: EmulatedReply, fault: Fault) -> None:
    size = -(-len(reply.body) // _PIECES)
    pieces = [reply.body[start : start + size] for start in range(0, len(reply.body), size)]
    at_once = fault.after_chunks or 0
    await call.start(reply, len(reply.body))
    await call.write(b"".join(pieces[:at_once]))
    await _drip(call, pieces[at_once:], fault, lambda _count, _now: None)
    await call.finish()


async def _break_off(call: EmulatedCall, kind: str) -> None:
    match kind:
        case "cut":
            await call.close()
        case "reset":
            await call.reset()
        case _:
            await call.hang()


async def _misframe(call: EmulatedCall, reply: EmulatedReply, kind: str) -> None:
    if kind == "truncated":
        await call.start(reply, len(reply.body))
        await call.write(reply.body[: len(reply.body) // 2])
        await call.close()
        return
    length = max(1, len(reply.body) - 16)
    await call.start(reply, length)
    await call.finish(reply.body[:length])
    call.smuggle(reply.body[length:])


def _whole(answer: EmulatedReply | EmulatedStream) -> EmulatedReply:
    if isinstance(answer, EmulatedReply):
        return answer
    return EmulatedReply(body=answer.lead + b"".join(answer.frames) + answer.tail, content_type=answer.content_type)


def _with_broken_frame(stream: EmulatedStream, chunks: int | None) -> Iterator[bytes]:
    frames = iter(stream.frames)
    late_lead = () if chunks else (stream.lead,)
    return chain(islice(frames, chunks), (stream.broken,), late_lead, frames)


def _overload(call: EmulatedCall, dialect: str) -> bytes:
    """Returns the JSON of the error that a stream ends with: in the form of the call, or else in that of `dialect`."""
    if call.dialect in LANGUAGES:
        return overload(call.dialect).render(call.dialect, call.request_id)
    return overloaded_503(dialect).render(dialect)


def _filtered(body: bytes) -> bytes:
    return _FINISH_REASON.sub(b'"finish_reason":"content_filter"', body)


def _retry_after(fault: Fault) -> Headers:
    return ((b"retry-after", f"{fault.seconds:.15g}".encode()),) if fault.seconds is not None else ()


# --- Keys, in each provider's manner ---


_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/,\s]+)/(\d{8}/[^/]+/[^/]+/aws4_request),\s*SignedHeaders=([^,\s]+),\s*Signature=(\w+)"
)


_OWN = {"messages": b"x-api-key", "generate": b"x-goog-api-key"}


_MUST_SIGN = frozenset({"host", "x-amz-date"})


def key_of(call: EmulatedCall) -> str:
    """Returns the key of a call: of AWS's signature the id of the key, or nothing.

    Sources: the providers' pages on authentication, and AWS's on Signature Version 4.
    """
    bearer = call.header(b"authorization").decode("latin-1")
    if call.dialect not in LANGUAGES:
        if bearer[:7].lower() == "bearer ":
            return bearer[7:].strip()
        return (call.header(b"api-key") or call.header(b"x-api-key")).decode("latin-1")
    if call.dialect == "converse" and (signed := _SIGNED.fullmatch(bearer)):
        return str(signed[1])
    own = call.header(_OWN.get(call.dialect, b""))
    if own:
        return own.decode("latin-1")
    params = dict(parse_qsl(call.scope.get("query_string", b"").decode("latin-1")))
    if call.dialect == "generate" and params.get("key"):
        return str(params["key"])
    return bearer[7:].strip() if bearer[:7].lower() == "bearer " else ""


def let_in(call: EmulatedCall, wanted: str) -> None:
    """Raises ProblemError unless the call has the key `wanted`; `ID:SECRET` is one that AWS's calls are signed with."""
    key = key_of(call)
    if key != wanted and call.dialect not in LANGUAGES:
        raise ProblemError(invalid_key(key))
    signed = _SIGNED.fullmatch(call.header(b"authorization").decode("latin-1"))
    if call.dialect == "converse" and signed is not None and ":" in wanted:
        wanted, _, secret = wanted.partition(":")
        if key == wanted and signature_of(call, secret, signed[2], signed[3].split(";")) != signed[4]:
            text = "The request signature we calculated does not match the signature you provided."
            rule = "Check your AWS Secret Access Key and signing method."
            raise ProblemError(EmulatedProblem(403, f"{text} {rule}", kind="InvalidSignatureException"))
    if key != wanted:
        raise ProblemError(invalid_credential(call.dialect, call.path, is_missing=not key))


def signature_of(call: EmulatedCall, secret: str, scope: str, names: Sequence[str]) -> str:
    """Returns the signature that the call should have over the headers of these `names`, in hex."""
    if not set(names) >= _MUST_SIGN:
        return ""
    headers = "".join(f"{name}:{' '.join(call.header(name.encode()).decode('latin-1').split())}\n" for name in names)
    query = sorted(parse_qsl(call.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
    canonical_query = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in query)
    path = quote(call.scope.get("raw_path", b"").decode("latin-1").partition("?")[0], safe="/-_.~")
    digest = hashlib.sha256(call.body).hexdigest()
    request = "\n".join((call.method, path, canonical_query, headers, ";".join(names), digest))
    when = call.header(b"x-amz-date").decode("latin-1")
    text_to_sign = "\n".join(("AWS4-HMAC-SHA256", when, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text_to_sign.encode(), "sha256").hex()
