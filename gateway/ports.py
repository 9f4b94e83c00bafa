"""What the core asks of the outside: small protocols, implemented at the edges and wired together in `app.py`.

Nothing here knows httpx, prometheus or a store; whoever implements a port translates its own errors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gateway.errors import UpstreamFailed

if TYPE_CHECKING:
    from gateway.call import Settled

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
    body: bytes
    credential: bytes | None
    clocks: Clocks
    first_byte_s: float
    """The clock's, or less when the caller's deadline is nearer."""


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


class Meter(Protocol):
    """Where numbers go. Every method is cheap, synchronous and never raises."""

    def began(self) -> None:
        """A call is in the gateway; `settled` follows in any case."""
        ...

    def waited(self, lane: str, seconds: float) -> None:
        """A call has left the delay queue, whichever way."""
        ...

    def settled(self, record: Settled) -> None:
        """One call has ended: counts, tokens, money, times and its log line."""
        ...

    def retry_denied(self, reason: str) -> None:
        """An attempt that would have been made was not: `budget`, `tokens`, `money` or `key_budget`."""
        ...

    def breaker_changed(self, name: str, state: str) -> None:
        """The breaker of a target or an account has moved."""
        ...

    def refused(self, request_id: str, path: str, status: int, code: str | None) -> None:
        """A request was turned away before it became a call: no such path, no valid key, a malformed body."""
        ...
