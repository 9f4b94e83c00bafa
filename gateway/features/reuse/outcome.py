"""What a request says of stored answers, and what came of the look for one: on the call, in its headers and in its log line.

Each product that gives a call another answer than its provider's notes that in `OUTCOME`. It must not know how answers are
looked up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.core.call import Slot
from gateway.core.errors import InvalidRequest
from gateway.core.types import Endpoint, Kept, Usage


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
SENT_KEY: Final[Slot[bytes]] = Slot("idempotency key")
"""The key as the client sent it, without quotes."""
CACHE_CONTROL: Final[Slot[bytes]] = Slot("cache control")
"""The header as the client sent it."""
BYPASS: Final = (b"x-gateway-cache", b"bypass")
_KEY = re.compile(rb"""(?s:"((?:[ !#-\[\]-~]|\\["\\]){1,255})"|([!#-~][ -~]{0,254}))""")
_ESCAPED = re.compile(rb"\\(.)")


def read_idempotency_key(headers: Mapping[bytes, bytes], endpoint: Endpoint) -> bytes | None:
    """Returns the `Idempotency-Key`, quoted (a string of RFC 8941) or bare. Raises InvalidRequest for one that is none.

    On paths that are passed through it is the provider's business.
    """
    sent = headers.get(b"idempotency-key")
    if sent is None or endpoint.request == "any":
        return None
    bare = _KEY.fullmatch(sent.strip())
    if bare is None:
        raise InvalidRequest(
            "The header 'Idempotency-Key' must have 1 to 255 printable ASCII characters, in double quotes or without.",
            param="Idempotency-Key",
            code="invalid_idempotency_key",
        )
    return bare[2] if bare[1] is None else _ESCAPED.sub(rb"\1", bare[1])


def outcome_headers(outcome: CacheOutcome, *, is_served: bool) -> Iterator[tuple[bytes, bytes]]:
    """Yields what came of the look for a stored answer, and whose answer it is; `is_served`: a provider was asked."""
    yield b"x-gateway-cache", outcome.result.encode()
    if outcome.key:
        yield b"x-gateway-cache-key", outcome.key.hex().encode()
    if outcome.layer:
        yield b"x-gateway-cache-source", outcome.source.encode()
        # Where an attempt was made, the core itself names its target.
        if outcome.target and not is_served:
            yield b"x-gateway-target", outcome.target.encode()
        if outcome.attempts and not is_served:
            yield b"x-gateway-attempts", outcome.attempts.encode()
    if outcome.similarity is not None:
        yield b"x-gateway-cache-similarity", b"%.4f" % outcome.similarity


def log_fields(outcome: CacheOutcome) -> dict[str, object]:
    """Returns how a call was spared its provider, or not; neither the caller's idempotency key nor that of the answer."""
    saved = outcome.saved
    fields = {
        "cache": outcome.result,
        "cache_layer": outcome.layer or None,
        "saved_tokens": saved.input + saved.output if saved else None,
        "saved_usd": outcome.saved_usd,
        "age_s": _rounded(outcome.age_s, 3),
        "similarity": _rounded(outcome.similarity, 4),
        "source": outcome.source or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _rounded(value: float | None, places: int) -> float | None:
    return None if value is None else round(value, places)
