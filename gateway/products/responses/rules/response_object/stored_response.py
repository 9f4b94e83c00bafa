"""A response that the gateway keeps, and the log of the events that made it, as data. Times are wall-clock seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

ASKED: Final = "response"
"""In `about` of a job of kind `response`: what its request has asked for."""
ECHO: Final = "echo"
"""In that: what a response repeats of its request, until it is kept."""
STATUS: Final = "status"
"""In `marks` of such a job whose response is kept: how that has ended."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response at its end, and what it was asked."""

    id: str
    tenant: str
    created_at: float
    keep_until: float
    """It is forgotten then; earlier only where its tenant has too many bytes, or removes it."""
    previous_id: str
    """The response that it goes on from; empty: none."""
    body: bytes
    """The response object as it is shown, JSON."""
    input_items: bytes
    """The items of its own input, without those of earlier responses, as a JSON array."""

    @property
    def bytes(self) -> int:
        """Returns what it counts in the bounds."""
        return len(self.body) + len(self.input_items)


class LogPart(NamedTuple):
    """Events of one response that were written together, in order."""

    first: int
    """The `sequence_number` of the first event."""
    last: int
    frames: bytes
    """The events as server-sent events, each with its empty line."""


class LogPage(NamedTuple):
    """What a log has behind a certain event."""

    generation: int
    """The run of the model that the events are of: a worker that takes over begins another one, from event 0; 0: none yet."""
    parts: Sequence[LogPart]
    is_cut: bool = False
    """The log of this generation has outgrown its bound and is gone: only the response's end will be told."""
    has_ended: bool = False
    """The job is at its end: there will be no more parts than there are now."""
