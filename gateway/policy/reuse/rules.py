"""What may be kept of a model's calls, and shared between them, as `cache.yaml` says.

Compiled data and the decisions on it. It must not know where answers are kept. Invariant: who asks for nothing (a set that
is built in) never gets an old answer, except with an `Idempotency-Key` of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

LOCAL = "local:"
"""What the name of an embedding model from disk begins with."""

Which = Literal["off", "deterministic", "always"]
"""Of requests: none, those whose answer would be the same again, all."""

REPEATS_ITSELF = frozenset(("embeddings", "moderations"))
"""Endpoints whose answers depend on the request alone."""
CONVERTIBLE = frozenset(("chat", "completions", "responses"))
"""Endpoints whose streams can be made of whole answers, and the other way round."""
NOT_OF_THE_QUESTION = frozenset(("stream", "stream_options"))
"""Fields that only say how an answer is sent."""
STATEFUL = ("conversation", "background")
"""Fields of Responses that make equal requests different ones."""


@dataclass(frozen=True, slots=True)
class ExactRule:
    """How answers are kept for equal requests."""

    requests: Which = "off"
    ttl_s: float = 3600.0
    stale_if_error_s: float = 0.0
    """So long after it is no longer fresh, an answer is given when nobody can give a better one."""
    max_bytes: int = 256 * 1024 * 1024
    """Of all answers kept under the set."""
    max_entry_bytes: int = 1024 * 1024
    pace_s: float = 0.0
    """A replayed stream waits so long before each event; 0: all at once."""
    ignore: frozenset[str] = frozenset()
    """Top-level fields of a request that do not change its answer."""


@dataclass(frozen=True, slots=True)
class SemanticRule:
    """How answers are kept for requests that mean the same."""

    embeddings: str
    """A model of the config that embeds, or a local one as `local:FOLDER`."""
    threshold: float = 0.8
    """The least cosine of two questions that are taken for one."""
    ttl_s: float = 3600.0
    max_entries: int = 50_000
    """Per partition."""
    wait_s: float = 0.2
    """A call waits so long for its embedding; after that it goes on without, and is kept for others when it has come."""
    dimensions: int | None = None
    """Asked of an embedding model that can do with fewer; None: its own."""


@dataclass(frozen=True, slots=True)
class Caching:
    """A set of cache.yaml."""

    name: str = "default"
    version: str = "1"
    """Part of every key: with another one, everything is asked anew."""
    coalesce: Which = "deterministic"
    """Which identical concurrent calls share one attempt."""
    keep_s: float = 86_400.0
    """How long an answer is replayed to those who repeat its `Idempotency-Key`; 0: the header is ignored."""
    lease_s: float = 30.0
    """Who runs a request with a key has to say so as often, lest another takes over."""
    max_record_bytes: int = 16 * 1024 * 1024
    exact: ExactRule = ExactRule()
    semantic: SemanticRule | None = None


def is_deterministic(endpoint: str, parsed: dict[str, Any]) -> bool:
    """Whether the same request is meant to get the same answer: temperature 0, or a seed."""
    return parsed.get("temperature") == 0 or parsed.get("seed") is not None or endpoint in REPEATS_ITSELF


def applies(which: Which, endpoint: str, parsed: dict[str, Any]) -> bool:
    """Whether a request is one of these."""
    if which == "off":
        return False
    return (which == "always" or is_deterministic(endpoint, parsed)) and not any(parsed.get(one) for one in STATEFUL)
