"""The layer of questions that mean the same, as caches see it: the question of a call, what was found for it, and the port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from gateway.core.call import Call
from gateway.features.reuse.rules import SemanticRule


@dataclass(frozen=True, slots=True)
class SemanticQuery:
    """A call's question to the semantic cache."""

    partition: bytes
    """The digest of all that must match exactly, 32 bytes, the owner first of all."""
    text: str
    """The last user message."""
    rule: SemanticRule
    model: str
    tenant: str


@dataclass(frozen=True, slots=True)
class Match:
    """A question that means the same; `key` is the exact key of its answer."""

    key: bytes
    similarity: float
    partition: bytes
    stored_at: float
    """The time at which the question was stored, in wall-clock seconds."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One of the nearest questions, in an explanation."""

    key: str
    """The exact key of its answer, in hex."""
    similarity: float
    objection: str | None
    """The guard that finds the two questions different; None: none does."""
    stored_at: float


@dataclass(frozen=True, slots=True)
class Explained:
    """The reason why a question was recognised, or was not; `partition` is the beginning of its name in hex."""

    threshold: float
    partition: str = ""
    rows: int = 0
    nearest: tuple[Neighbour, ...] = ()
    problem: str | None = None
    """The reason why nothing could be compared; None: something was."""


class SemanticLayer(Protocol):
    """Recognises questions that mean the same as one that was answered. A failure here is a miss, not the call's failure."""

    def query_of(self, call: Call, parsed: dict[str, Any]) -> SemanticQuery | None:
        """Returns the call's question; None: it cannot be judged by its meaning."""
        ...

    async def find(self, call: Call, ask: SemanticQuery) -> Match | None:
        """Returns the nearest question that may stand for this one; None: there is none, or none in the rule's time.

        Notes the reason on the call's `replay.why`.
        """
        ...

    def keep(self, call: Call, ask: SemanticQuery, key: bytes) -> None:
        """Stores the question of an answer that is stored under this key, so that it is recognised from now on."""
        ...

    def lost(self, match: Match) -> None:
        """Removes the question, because there is no answer under its key any more."""
        ...

    async def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
        """Removes the questions that match every argument given, or all of them without arguments; returns their number."""
        ...

    async def explain(self, call: Call, ask: SemanticQuery) -> Explained:
        """Returns the questions nearest to this one, whatever the threshold; may cost an embedding."""
        ...
