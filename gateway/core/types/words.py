"""The vocabulary of all packages: lanes, endpoints, usage, attempts, stored answers.

Plain data. It must not know which modules make or read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from gateway.core.types.provider_errors import Phase

Lane = Literal["critical", "interactive", "batch", "background"]


LANES: tuple[Lane, ...] = ("critical", "interactive", "batch", "background")
"""The lanes, highest first. A key's own lane is one of the last three; a call asks for `critical`, where its key allows it."""


PASSTHROUGH = "passthrough"


THINKING = "(thinking)"
"""The group of answers that a store keeps what turns were signed with in; no set of cache.yaml."""


EMULATOR = "emulator://"
"""Begins the base URL of a provider that is answered inside the process."""


FIRST_SHOWN, LAST_SHOWN = 5, 20
"""The attempts of a call that headers and errors show: this many of the first, this many of the last."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One OpenAI endpoint: `name` for metrics and logs, `path` below the base URL, and the form of its answers."""

    name: str
    path: str
    answer: Literal["json", "binary"] = "json"
    request: Literal["json", "multipart", "any"] = "json"
    sse: Literal["chat", "responses", "messages", "generate", "other"] = "chat"
    """The end of its streams: `chat` is `[DONE]`, `responses` and `messages` are named events, `generate` has a reason in its
    last event, `other` is unknown.

    Callers of `messages` endpoints are Anthropic's, those of `generate` Gemini's: errors have their shapes there.
    """
    usage_option: bool = False
    """Streams carry usage only when `stream_options.include_usage` asks for it."""
    tokens: Literal["none", "input", "both"] = "none"
    """The tokens that are estimated when the provider reports no usage."""
    is_model_optional: bool = False
    """A call need not name a model: the provider, or a stored prompt, decides."""


@dataclass(slots=True)
class Usage:
    """The tokens of one call; `cached` is the part of `input` read from a cache, `estimated` if the provider told none."""

    input: int
    output: int
    cached: int = 0
    estimated: bool = False
    cache_written: int = 0
    """The part of `input` that the provider put into its cache for later calls, where it tells."""
    cache_written_1h: int = 0
    """The part of `cache_written` that stays there for an hour, where the provider has several prices."""


@dataclass(slots=True)
class SpokenUsage(Usage):
    """The tokens of a realtime session, with those that are sound: these have prices of their own."""

    audio_input: int = 0
    """The part of `input` that is sound."""
    audio_output: int = 0
    """The part of `output` that is sound."""
    audio_cached: int = 0
    """The part of `cached` that is sound."""


@dataclass(slots=True)
class Kept:
    """A complete answer that can be given again. Times are wall-clock seconds."""

    status: int
    headers: list[tuple[bytes, bytes]]
    """The provider's headers that belong to the answer itself, such as its content type."""
    body: bytes
    """The body as the first client got it: JSON, raw event-stream frames, or anything else."""
    is_stream: bool
    """The body is an event stream."""
    endpoint: str
    model: str
    """The model's name as the client asked for it."""
    tenant: str
    group: str
    """The set of cache.yaml whose byte bound the answer counts against; empty for an idempotency record."""
    source: str
    """The id of the call that the provider answered."""
    target: str
    stored_at: float
    fresh_until: float
    """The answer is served as it is until this time; a record is forgotten then."""
    stale_until: float
    """The answer is served until this time when no target can answer; not before `fresh_until`."""
    outcome: str = "ok"
    """`ok`, or the class of an error that the same request would always get."""
    usage: Usage | None = None
    cost_usd: float | None = None
    tells_usage: bool = False
    """The client asked for usage in its stream."""
    usage_event: bytes = b""
    """The stream's usage event with its line ends, where the client did not ask for it and the body lacks it."""


class How(StrEnum):
    """What becomes of a field that a target's language cannot say."""

    APPROXIMATED = "approximated"
    DROPPED = "dropped"
    REFUSED = "refused"


class Gap(NamedTuple):
    """A field of one request that does not reach a target as it was said."""

    field: str
    """The caller's name for it, without positions: `tools.web_search`, `input.item_reference`."""
    how: How
    why: str
    """The reason in words, for `gateway explain` and the error that refuses the call."""


FindGaps = Callable[[dict[str, Any]], Sequence[Gap]]
"""Returns what of a parsed request would not reach a target as it was said."""


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
    """A description of the failure, for the log."""
    phase: Phase | None = None
    """The progress of the attempt when it failed."""
    is_refused: bool = False
    """The target refused the attempt because of a rate limit: target and call wait, and it counts as no failure."""
    never_again: bool = False
    """The target can never serve this call, whatever the time."""
    is_callers: bool = False
    """The attempt used the caller's own credential."""
    is_told: bool = False
    """The target's breaker has counted the attempt's result."""
    sign_at: float = 0.0
    """The time of the target's last sign of life before its first event: a 1xx, a comment, or a part of a body."""
    cost_usd: float | None = None
    """The cost in US dollars, estimated if the attempt failed after it was sent; None: the model has no price."""
    gaps: Sequence[Gap] = ()
    """What was lost when the request was put into the target's language."""
    refuses_loss: bool = False
    """Nothing may be lost by that: the call is then not sent."""
    remembers_for: str | None = None
    """The tenant for whom what signs its answer is remembered; None: it is not."""
    requests: int = 1
    """How many requests it took at the target."""

    @property
    def heard_at(self) -> float:
        """Returns the time of the target's last sign of life; before the first one, the time at which the attempt was sent."""
        return max(self.started_at, self.first_byte_at or 0.0, self.sign_at)

    def __str__(self) -> str:
        result = self.status if self.status is not None else self.error_class
        if self.error_class is None or self.ended_at is None:
            return f"{self.target}:{result}"
        return f"{self.target}:{result}({self.ended_at - self.started_at:.1f}s)"


def shown(attempts: Sequence[Attempt], between: str = " ") -> str:
    """Returns the attempts in one line; of very many only the first and the last."""
    if len(attempts) <= FIRST_SHOWN + LAST_SHOWN:
        return between.join(map(str, attempts))
    left_out = f"({len(attempts) - FIRST_SHOWN - LAST_SHOWN} more)"
    return between.join([*map(str, attempts[:FIRST_SHOWN]), left_out, *map(str, attempts[-LAST_SHOWN:])])
