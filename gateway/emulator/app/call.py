"""One call on the wire: its request, and every way to answer it or to fail to.

It knows ASGI and, through `EmulatorServer`, the transport below it. It must not know the contents of bodies. Invariant: a peer
that leaves before the last byte is noticed at once, counted once, and ends every wait of the call.
"""

from __future__ import annotations

import asyncio
import base64
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from gateway.emulator.answers.reply import EmulatedReply, Headers
from gateway.emulator.problems import LANGUAGES
from gateway.emulator.server.listener import reset

# Limits as arithmetic: a bucket that refills all the time, and a window that starts anew.
#
# Pure and sync; `now` comes in as seconds on any monotonic clock. It must not know headers or bodies (`dialects/dialects.py`).
# Invariant: over any span a bucket grants at most its capacity plus what refilled, a window at most its capacity.


class EmulatedBucket:
    """`per_minute` units that refill continuously up to `burst` (by default a minute's worth); full at the start.

    A level may go below zero by `spend`.
    """

    __slots__ = ("_level", "_rate", "_updated_at", "capacity", "per_minute")

    def __init__(self, per_minute: int, now: float, burst: int | None = None) -> None:
        self.per_minute = per_minute
        self.capacity = burst or per_minute
        self._rate = per_minute / 60.0
        self._level = float(self.capacity)
        self._updated_at = now

    def level(self, now: float) -> float:
        """Units left at `now`."""
        if now > self._updated_at:
            self._level = min(float(self.capacity), self._level + (now - self._updated_at) * self._rate)
            self._updated_at = now
        return self._level

    def wait_s(self, amount: float, now: float) -> float:
        """Returns the seconds until `amount` units are there; 0 when they are. A nanounit of rounding is forgiven."""
        missing = amount - self.level(now)
        return missing / self._rate if missing > 1e-9 * self.capacity else 0.0

    def spend(self, amount: float, now: float) -> None:
        """Takes `amount` whether it is there or not."""
        self._level = self.level(now) - amount

    def remaining(self, now: float) -> int:
        """Returns the whole units left, at least 0."""
        return max(0, math.floor(self.level(now) + 1e-6))

    def used(self, now: float) -> int:
        """Returns the whole units gone."""
        return self.per_minute - self.remaining(now)

    def full_in_s(self, now: float) -> float:
        """Returns the seconds until the bucket is full: what OpenAI's reset headers tell."""
        return (self.capacity - self.level(now)) / self._rate


class EmulatedWindow:
    """`capacity` units in each window of `length_s` seconds; windows are aligned to the clock."""

    __slots__ = ("_index", "_used", "capacity", "length_s")

    def __init__(self, capacity: int, length_s: float) -> None:
        self.capacity = capacity
        self.length_s = length_s
        self._index = -1
        self._used = 0

    def remaining(self, now: float) -> int:
        """Returns the units left in the window of `now`."""
        index = math.floor((now + 1e-6) / self.length_s)  # a caller that waited exactly as told is in the next one
        if index != self._index:
            self._index, self._used = index, 0
        return max(0, self.capacity - self._used)

    def spend(self, amount: int, now: float) -> None:
        """Takes `amount` from the window of `now`."""
        self.remaining(now)
        self._used += amount

    def ends_in_s(self, now: float) -> float:
        """Returns the seconds until the next window."""
        return self.length_s - (now + 1e-6) % self.length_s


def go_duration(seconds: float) -> str:
    """Returns a duration as Go prints it, to the millisecond: `120ms`, `1s`, `7.66s`, `2m59.56s`, `6m0s`, `1h0m0s`."""
    millis = round(seconds * 1000)
    if millis <= 0:
        return "0s"
    if millis < 1000:
        return f"{millis}ms"
    minutes, rest = divmod(millis, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if minutes < 60:
        return f"{minutes}m{text}" if minutes else text
    return f"{minutes // 60}h{minutes % 60}m{text}"


# Counters and the last requests, for people and for tests that compare what was forwarded.
#
# It must not know how calls are answered. Invariant: memory is bounded, by the number of labels and by the bytes kept.


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
    """Of its input, and of the answer that it was to get; None: it got none, or its kind has no tokens."""

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
        """Says whose API is asked, and sets the headers that every answer to this call carries."""
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
