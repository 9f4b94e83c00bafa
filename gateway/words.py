"""The words that every floor of the house uses: lanes, endpoints, usage, attempts, answers that are kept.

Plain data. It must not know who makes or reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.errors import Phase

Lane = Literal["critical", "interactive", "batch", "background"]


LANES: tuple[Lane, ...] = ("critical", "interactive", "batch", "background")
"""Highest first. A key's own lane is one of the last three; `critical` is asked for by a call, where its key allows it."""


PASSTHROUGH = "passthrough"


FIRST_SHOWN, LAST_SHOWN = 5, 20
"""Of a call's attempts, in headers and errors."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One OpenAI endpoint: `name` for metrics and logs, `path` below the base URL, and what its answers look like."""

    name: str
    path: str
    answer: Literal["json", "binary"] = "json"
    request: Literal["json", "multipart", "any"] = "json"
    sse: Literal["chat", "responses", "other"] = "chat"
    """How a stream ends: `chat` with `[DONE]`, `responses` with a named event, `other` in ways we do not know."""
    usage_option: bool = False
    """Streams carry usage only when `stream_options.include_usage` asks for it."""
    tokens: Literal["none", "input", "both"] = "none"
    """What is estimated when the provider reports no usage."""
    is_model_optional: bool = False
    """A call may leave it to the provider which model it takes, or to a stored prompt."""


@dataclass(slots=True)
class Usage:
    """Tokens of one call; `cached` is the part of `input` read from a cache, `estimated` when nobody told us."""

    input: int
    output: int
    cached: int = 0
    estimated: bool = False


@dataclass(slots=True)
class Kept:
    """A complete answer that can be given again. Times are wall-clock seconds."""

    status: int
    headers: list[tuple[bytes, bytes]]
    """The provider's that belong to the answer itself, such as its content type."""
    body: bytes
    """As the first client got it: JSON, raw event-stream frames, or anything else."""
    is_stream: bool
    """The body is an event stream."""
    endpoint: str
    model: str
    """As it was asked for."""
    tenant: str
    group: str
    """The set of cache.yaml that it is kept under, whose byte bound it counts against; of a record: empty."""
    source: str
    """The id of the call that was answered so."""
    target: str
    stored_at: float
    fresh_until: float
    """Served as it is until then; a record is forgotten then."""
    stale_until: float
    """Served until then when nobody can answer better; not before `fresh_until`."""
    outcome: str = "ok"
    """`ok`, or the error class of an error that would be the same again."""
    usage: Usage | None = None
    cost_usd: float | None = None
    tells_usage: bool = False
    """The client asked for usage in its stream."""
    usage_event: bytes = b""
    """The stream's usage event with its line ends, where the client did not ask for it and the body lacks it."""


@dataclass(slots=True)
class Attempt:
    """One try of one call at one target. Times are monotonic seconds; `result` is a status or an error class."""

    target: str
    started_at: float
    first_byte_at: float | None = None
    ended_at: float | None = None
    status: int | None = None
    error_class: str | None = None
    upstream_request_id: bytes | None = None
    detail: str | None = None
    """What went wrong, for the log."""
    phase: Phase | None = None
    """How far it had come when it failed."""
    is_refused: bool = False
    """For its rate: the target waits, and the call with it; it is no failure."""
    never_again: bool = False
    """The target can never serve this call, whatever the time."""
    is_callers: bool = False
    """It was made with the caller's own credential."""
    is_retry: bool = False
    """The call had failed at this target before."""
    is_told: bool = False
    """The target's breaker knows how it went."""
    sign_at: float = 0.0
    """When the target was last heard of, before there was anything for the client: a 1xx, a comment, a part of a body."""
    cost_usd: float | None = None
    """What it cost, as far as it is known: an estimate for one that failed after it was sent; None: not priced."""

    @property
    def heard_at(self) -> float:
        """When the target was last heard of; before that: when it was sent."""
        return max(self.started_at, self.first_byte_at or 0.0, self.sign_at)

    def __str__(self) -> str:
        result = self.status if self.status is not None else self.error_class
        if self.error_class is None or self.ended_at is None:
            return f"{self.target}:{result}"
        return f"{self.target}:{result}({self.ended_at - self.started_at:.1f}s)"


def shown(attempts: Sequence[Attempt], between: str = " ") -> str:
    """The trail of attempts in one line; of very many only the first and the last."""
    if len(attempts) <= FIRST_SHOWN + LAST_SHOWN:
        return between.join(map(str, attempts))
    left_out = f"({len(attempts) - FIRST_SHOWN - LAST_SHOWN} more)"
    return between.join([*map(str, attempts[:FIRST_SHOWN]), left_out, *map(str, attempts[-LAST_SHOWN:])])
