"""A provider's cache of prompts: the prefixes it has seen, for as long as it keeps them.

It must not know how a request marks a prefix. Unlike a provider it has no smallest size, so that short prompts show it.
Invariant: of one call, what is read, what is written and the rest add up to the whole prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

_MOST = 2000


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt; the prompt up to its end is kept for `keep_s` seconds (None: not asked for)."""

    text: str
    keep_s: float | None = None


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Tokens of a prompt: read from the cache, written into it (of these for an hour: `hourly`), and the others."""

    fresh: int
    read: int = 0
    written: int = 0
    hourly: int = 0

    @property
    def total(self) -> int:
        return self.fresh + self.read + self.written


class PromptCache:
    """The prefixes of each model; `wall` returns epoch seconds."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._until: dict[bytes, float] = {}

    def use(self, model: str, segments: Sequence[Segment]) -> CacheUse:
        """Reads the longest known prefix, and keeps the marked ones."""
        digest = blake2b(model.encode("utf-8", "replace"), digest_size=16)
        now, length, read, written, hourly = self._wall(), 0, 0, 0, 0
        for segment in segments:
            digest.update(segment.text.encode("utf-8", "replace"))
            length += len(segment.text)
            if segment.keep_s is None:
                continue
            prefix = digest.digest()
            if self._until.get(prefix, 0.0) > now:
                read = written = tokens(length)
                hourly = 0
            else:
                hourly += (tokens(length) - written) if segment.keep_s > 300 else 0
                written = tokens(length)
            self._keep(prefix, now + segment.keep_s)
        return CacheUse(tokens(length) - written, read, written - read, hourly)

    def _keep(self, prefix: bytes, until: float) -> None:
        self._until.pop(prefix, None)
        if len(self._until) >= _MOST:
            del self._until[next(iter(self._until))]
        self._until[prefix] = until


def tokens(length: int) -> int:
    """Four characters make a token."""
    return (length + 3) // 4
