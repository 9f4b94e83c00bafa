"""The exchange with a provider: the request, the answer, and the port that carries both.

Nothing here knows httpx or sockets; each implementation of `Upstream` translates its own errors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.core.types.provider_errors import UpstreamFailed
from gateway.core.types.splice import Spliced
from gateway.core.types.words import Gap

RawHeaders = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Clocks:
    """The time limits of one attempt, in seconds: connecting, writing, first byte, between bytes, all of it.

    They include the guard against slow streams: a begun stream has to bring `least_events_per_s` over every window.
    """

    connect_s: float
    write_s: float
    first_byte_s: float
    idle_s: float
    total_s: float
    least_events_per_s: float = 0.0
    """The least events per second of a stream that has begun, over every window; 0: no such guard."""
    drip_window_s: float = 60.0
    first_event_s: float | None = None
    """The time until the first event of a stream, in seconds; None: it follows from the target's usual time."""
    suspect_factor: float = 4.0
    """A target is suspect when several calls get no sign of life for this multiple of its usual time ..."""
    suspect_in_flight: int = 5
    """... and this number of calls waits there; 0: the target is never suspect."""


class Signs(Protocol):
    """An object that records a target's signs of life, and what did not reach it as it was said."""

    sign_at: float
    """The time of the last sign of life, in monotonic seconds."""
    gaps: Sequence[Gap]
    """What was lost when the request was put into the target's language."""
    refuses_loss: bool
    """Nothing may be lost by that: the call is then not sent."""
    remembers_for: str | None
    """The tenant for whom what signs its answer is remembered; None: it is not."""
    requests: int
    """How many requests it took at the target."""


@dataclass(slots=True)
class Outgoing:
    """One request for a target, before the target's own address, credential and dialect are put on it.

    `path` is the OpenAI path below the base URL (`/chat/completions`), `query` what the client sent after `?`;
    `credential` is the caller's own `Authorization` value, or its key behind `x-api-key `; used only where the provider has
    none configured.
    """

    method: str
    path: str
    query: bytes
    model: str
    headers: RawHeaders
    body: bytes | Spliced
    credential: bytes | None
    clocks: Clocks
    first_byte_s: float
    """The time limit for the first byte, in seconds: that of `clocks`, or less if the caller's deadline is nearer."""
    signs: Signs | None = None
    """The record of signs of life that come before the head is complete; None: they are not recorded."""


class TappedChunks(AsyncIterator[bytes]):
    """A body whose blocks may be taken in passing, while its reader waits for the next one."""

    __slots__ = ()

    tap: Callable[[bytes], bool] | None
    """Takes a block instead of the reader who waits, and returns True; False: the reader gets it. None: nobody taps."""


class Answer(Protocol):
    """A provider's answer: the head is here, the body is still to be read."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> RawHeaders:
        """The headers, with names in lower case."""
        ...

    @property
    def whole(self) -> bytes | None:
        """The body, if all of it came with the head: there is then nothing to read or close. None: it is still to come."""
        ...

    @property
    def chunks(self) -> AsyncIterator[bytes]:
        """The body, to be read once."""
        ...

    def unpack(self, codings: bytes) -> None:
        """Removes the `content-encoding`; the body is then read from `chunks`. Raises one of the upstream's errors."""
        ...

    async def aclose(self) -> None:
        """Gives the connection back, or closes it when the body was not read to its end."""
        ...


OnFrame = Callable[[int, bytes | bytearray, bool], None]
"""Takes a WebSocket frame: its opcode (RFC 6455, 5.2), its payload, and whether it ends its message."""


class Socket(Protocol):
    """One peer of a WebSocket session: a client's connection, or one to a provider."""

    heard: bool
    """Something has come since somebody last set this to False."""

    @property
    def congested(self) -> bool:
        """Whether more waits for the peer than may."""
        ...

    @property
    def unsent(self) -> int:
        """Returns the number of bytes that wait for the peer."""
        ...

    @property
    def reading_paused(self) -> bool:
        """Whether nothing is read of the peer at present."""
        ...

    @property
    def received(self) -> int:
        """Returns the number of frames that have come."""
        ...

    def attach(
        self, on_frame: OnFrame, on_close: Callable[[int, str], None], on_congestion: Callable[[bool], None]
    ) -> None:
        """Hands on everything from now on. `on_close` gets code and reason, 1006 where the peer left without a word."""
        ...

    def send(self, opcode: int, data: bytes | bytearray, fin: bool) -> None:  # as frames have it
        """Sends a frame, unless the peer is leaving."""
        ...

    def ping(self) -> None:
        """Asks the peer for a sign of life."""
        ...

    def close(self, code: int, reason: str, *, at_once: bool = False) -> None:
        """Closes the session with the peer; `at_once`: without waiting for its own word."""
        ...

    def abort(self) -> None:
        """Leaves the peer without a word."""
        ...

    def pause(self) -> None:
        """Reads nothing more of the peer for now."""
        ...

    def resume(self) -> None:
        """Reads again."""
        ...


class Upstream(Protocol):
    """The connection to one target. Reading an answer may raise any of `errors`, which `failure` classifies."""

    @property
    def errors(self) -> tuple[type[Exception], ...]: ...
    def send(self, outgoing: Outgoing) -> Awaitable[Answer]:
        """Raises UpstreamFailed when no response head arrives."""
        ...

    def failure(self, error: Exception) -> UpstreamFailed: ...


Learn = Callable[[Outgoing, Answer], Awaitable[Answer]]
"""Returns the answer to give instead of one that says that a path is not known: the same, or that of another path."""


class Conversions(Protocol):
    """Puts calls into another language for one target."""

    @property
    def detours(self) -> Mapping[str, Upstream]:
        """By path, what its calls go to instead of the target's own upstream; it changes with what is learned."""
        ...

    async def learn(self, outgoing: Outgoing, answer: Answer) -> Answer:
        """Returns the answer to give instead of a 404 or 405."""
        ...
