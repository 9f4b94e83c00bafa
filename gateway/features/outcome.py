"""What came of the look for a stored answer, as features note it on a call; and which answers may be stored, and what of them.

Each product that gives a call another answer than its provider's notes that in `OUTCOME`. It must not know how answers are
looked up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gateway.core.call import Call, Slot
from gateway.core.types import ErrorClass, Kept, Usage


@dataclass(slots=True)
class CacheOutcome:
    """How a call was, or was not, spared its provider."""

    result: str = "miss"
    """For `x-gateway-cache`: `miss`, `hit`, `semantic`, `coalesced`, `stale` or `bypass`."""
    layer: str = ""
    """Who answered: `idempotency`, `single_flight`, `exact` or `semantic`; empty: a provider."""
    key: bytes = b""
    """The exact key, 32 bytes; empty: not computed."""
    source: str = ""
    """The id of the call that was answered first."""
    target: str = ""
    """Who answered that one."""
    attempts: str = ""
    """How that one was answered, where that was a moment ago."""
    stale: Kept | None = None
    """The answer that can be given when nobody can answer better."""
    age_s: float | None = None
    fresh_s: float | None = None
    """How long it may still be kept by others; negative: not at all."""
    similarity: float | None = None
    saved: Usage | None = None
    saved_usd: float | None = None
    tried: list[tuple[str, str]] = field(default_factory=list)
    """The result of each layer, in the order of the look-ups: (layer, result)."""
    why: list[str] = field(default_factory=list)
    """The reasons in words, for `gateway cache why`."""


OUTCOME: Final[Slot[CacheOutcome]] = Slot("cache outcome")
"""The outcome of the look for a stored answer; absent: nothing is stored of the call, and it shares nothing."""

# --- which answers may be stored ---

SAME_AGAIN = frozenset(
    (
        ErrorClass.BAD_REQUEST,
        ErrorClass.CONTENT_POLICY,
        ErrorClass.CONTEXT_LENGTH_EXCEEDED,
        ErrorClass.NOT_FOUND,
        ErrorClass.PAYLOAD_TOO_LARGE,
    )
)
"""The errors that depend on the request alone."""
OF_THE_ANSWER = frozenset(
    b"content-type content-encoding content-disposition openai-model openai-version x-gateway-lossy x-gateway-output "
    b"x-should-retry".split()
)
"""The headers that are stored with an answer."""


def is_success(call: Call, status: int) -> bool:
    """Returns whether the call has a complete answer."""
    return call.outcome == "ok" and 200 <= status < 300


def is_terminal(call: Call, status: int) -> bool:
    """Returns whether sending the call again would bring nothing new: a complete answer, or an error that would be the same."""
    return is_success(call, status) or (400 <= status < 500 and call.outcome in SAME_AGAIN)


def is_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    """Returns whether these are the headers of an event stream."""
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)
