"""The compiled rules of `cache.yaml`: which of a model's answers may be stored, and shared between calls.

Compiled data and the decisions on it. It must not know where answers are kept. Invariant: who asks for nothing (a set that
is built in) never gets an old answer, except with an `Idempotency-Key` of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.core.snapshot import Setting

LOCAL = "local:"
"""The prefix of the name of an embedding model from disk."""

Which = Literal["off", "deterministic", "always"]
"""The requests concerned: none, those that always get the same answer, or all."""

REPEATS_ITSELF = frozenset(("embeddings", "moderations"))
"""The endpoints whose answers depend on the request alone."""
CONVERTIBLE = frozenset(("chat", "completions", "responses", "messages"))
"""The endpoints whose streams can be made of whole answers, and the other way round."""
NOT_OF_THE_QUESTION = frozenset(("stream", "stream_options"))
"""The fields that only say how an answer is sent."""


@dataclass(frozen=True, slots=True)
class ExactRule:
    """The rule for answers to equal requests."""

    requests: Which = "off"
    ttl_s: float = 3600.0
    stale_if_error_s: float = 0.0
    """An answer that is no longer fresh may replace an error for this time, in seconds."""
    max_bytes: int = 256 * 1024 * 1024
    """The bytes of all answers stored under the set."""
    max_entry_bytes: int = 1024 * 1024
    pace_s: float = 0.0
    """The pause before each event of a replayed stream, in seconds; 0: none."""
    ignore: frozenset[str] = frozenset()
    """The top-level fields of a request that do not change its answer."""


@dataclass(frozen=True, slots=True)
class SemanticRule:
    """The rule for answers to questions that mean the same."""

    embeddings: str
    """A model of the config that embeds, or a local one as `local:FOLDER`."""
    threshold: float = 0.8
    """The least cosine of two questions that may mean the same."""
    ttl_s: float = 3600.0
    max_entries: int = 50_000
    """The rows per partition."""
    wait_s: float = 0.2
    """The longest wait of a call for its embedding, in seconds; a later embedding is still stored for other calls."""
    dimensions: int | None = None
    """The dimensions asked of an embedding model that can make fewer; None: the model's own."""


@dataclass(frozen=True, slots=True)
class Caching:
    """A set of cache.yaml."""

    name: str = "default"
    version: str = "1"
    """A part of every key: no answer stored under another version is found."""
    coalesce: Which = "deterministic"
    """The identical concurrent calls that share one attempt."""
    keep_s: float = 86_400.0
    """The seconds for which an answer is replayed to repetitions of its `Idempotency-Key`; 0: the header is ignored."""
    lease_s: float = 30.0
    """The seconds within which the holder of a key renews its claim; after that another call may take it over."""
    max_record_bytes: int = 16 * 1024 * 1024
    exact: ExactRule = ExactRule()
    semantic: SemanticRule | None = None


CACHING: Final[Setting[Caching]] = Setting("caching", Caching())
"""Which answers of a model are stored and shared, and for how long."""


def is_deterministic(endpoint: str, parsed: dict[str, Any]) -> bool:
    """Returns whether the same request is meant to get the same answer: temperature 0, or a seed."""
    if parsed.get("temperature") == 0 or parsed.get("seed") is not None or endpoint in REPEATS_ITSELF:
        return True
    options = parsed.get("generationConfig") if endpoint == "generate" else None
    return isinstance(options, dict) and is_deterministic("", options)  # where Gemini's callers say so


def applies(which: Which, endpoint: str, parsed: dict[str, Any]) -> bool:
    """Returns whether the request is one of those that `which` names."""
    if which == "off":
        return False
    if which != "always" and not is_deterministic(endpoint, parsed):
        return False
    # These fields of Responses make equal requests different ones.
    return not (parsed.get("conversation") or parsed.get("background"))
