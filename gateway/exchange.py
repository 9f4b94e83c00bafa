"""What crosses to a provider: one request out, one answer back, and the port that carries both.

Nothing here knows httpx or sockets; whoever implements `Upstream` translates its own errors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import UpstreamFailed
from gateway.splice import Spliced

RawHeaders = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Clocks:
    """The time limits of one attempt, in seconds: connecting, writing, first byte, between bytes, all of it.

    And the guard against streams that drip: one that has begun has to bring `least_events_per_s` over every window.
    """

    connect_s: float
    write_s: float
    first_byte_s: float
    idle_s: float
    total_s: float
    least_events_per_s: float = 0.0
    """0: no guard."""
    drip_window_s: float = 60.0
    first_event_s: float | None = None
    """Until the first event of a stream; None: by what is usual at the target."""
    suspect_factor: float = 4.0
    """Several calls without a sign of life for so many times what is usual make their target suspect ..."""
    suspect_in_flight: int = 5
    """... where there are so many; 0: it never is."""


class Signs(Protocol):
    """Where signs of life are noted."""

    sign_at: float
    """Monotonic seconds."""


@dataclass(slots=True)
class Outgoing:
    """One request for a target, before the target's own address, credential and dialect are put on it.

    `path` is the OpenAI path below the base URL (`/chat/completions`), `query` what the client sent after `?`;
    `credential` is the caller's own `Authorization` value, used only where the provider has none configured.
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
    """The clock's, or less when the caller's deadline is nearer."""
    signs: Signs | None = None
    """Who wants to know when something comes before the head is complete."""


class Answer(Protocol):
    """A provider's answer: the head is here, the body is still to be read."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> RawHeaders:
        """Names in lower case."""
        ...

    @property
    def whole(self) -> bytes | None:
        """The body, when all of it came with the head: then there is nothing to read, and nothing to close."""
        ...

    @property
    def chunks(self) -> AsyncIterator[bytes]:
        """The body, to be read once."""
        ...

    def unpack(self, codings: bytes) -> None:
        """Take the `content-encoding` off: the body is then to be read from `chunks`. Raises one of the upstream's errors."""
        ...

    async def aclose(self) -> None:
        """Give the connection back, or close it when the body was not read to its end."""
        ...


class Upstream(Protocol):
    """One target's wire. Reading an answer may raise any of `errors`; `failure` says what such a one means."""

    @property
    def errors(self) -> tuple[type[Exception], ...]: ...
    async def send(self, outgoing: Outgoing) -> Answer:
        """Raises UpstreamFailed when no response head arrives."""
        ...

    def failure(self, error: Exception) -> UpstreamFailed: ...
