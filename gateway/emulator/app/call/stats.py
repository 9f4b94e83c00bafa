"""Counters and the last requests, for people and for tests that compare what was forwarded.

It must not know how calls are answered. Invariant: memory is bounded, by the number of labels and by the bytes kept.
"""

from __future__ import annotations

import base64
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_MAX_LABELS = 1000
_OTHER = "(other)"


class Stats:
    """The counters since the start or the last reset; `wall` returns epoch seconds."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self.active = 0
        self.clear()

    def clear(self) -> None:
        """Counts from zero again; calls in flight stay counted as active."""
        self.total = 0
        self.peak = self.active
        self.bytes_in = 0
        self.bytes_out = 0
        self.cancelled = 0
        self.endpoints: Counter[str] = Counter()
        self.models: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.faults: Counter[str] = Counter()
        self.departures: deque[dict[str, Any]] = deque(maxlen=200)

    def enter(self) -> None:
        """Counts a call that arrived."""
        self.total += 1
        self.active += 1
        self.peak = max(self.peak, self.active)

    def leave(self, endpoint: str) -> None:
        """Counts a call that has ended."""
        self.active -= 1
        self.endpoints[endpoint] += 1

    def asked(self, model: str) -> None:
        """Counts a valid call of `model`; past a thousand names the others are counted together."""
        self.models[model if model in self.models or len(self.models) < _MAX_LABELS else _OTHER] += 1

    def peer_left(self, path: str, model: str, now: float) -> None:
        """Counts a peer that left before the end of its answer."""
        self.cancelled += 1
        self.departures.append({"at_s": self._wall(), "mono_s": now, "path": path, "model": model})

    def to_mapping(self) -> dict[str, Any]:
        """Returns the counters as JSON values."""
        return {
            "requests": self.total,
            "by_endpoint": dict(self.endpoints),
            "by_model": dict(self.models),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "sent_429": self.statuses[429],
            "faults": dict(self.faults),
            "concurrency": {"now": self.active, "peak": self.peak},
            "cancelled_by_peer": {"count": self.cancelled, "last": list(self.departures)},
            "bytes": {"in": self.bytes_in, "out": self.bytes_out},
        }


@dataclass(slots=True)
class Recorded:
    """One request as it came, and what became of it; the body may be cut to the recorder's size."""

    number: int
    at_s: float
    mono_s: float
    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    body_bytes: int
    status: int | None = None
    """The status of the answer that was begun; None: none, so far."""
    is_left: bool = False
    """The peer left before the end of the answer."""
    tokens: tuple[int, int] | None = None
    """Of its input, and of the answer that it was to get; None: it got none, or its kind has no tokens."""

    def to_mapping(self) -> dict[str, Any]:
        """Returns JSON values: header bytes as latin-1, the body as text for reading and as base64 for comparing."""
        return {
            "number": self.number,
            "at_s": self.at_s,
            "mono_s": self.mono_s,
            "method": self.method,
            "path": self.path,
            "query": self.query.decode("latin-1"),
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in self.headers],
            "body": self.body.decode("utf-8", "replace"),
            "body_base64": base64.b64encode(self.body).decode(),
            "body_bytes": self.body_bytes,
            "status": self.status,
            "left": self.is_left,
            "tokens": None if self.tokens is None else {"input": self.tokens[0], "output": self.tokens[1]},
        }


class Recorder:
    """The last requests, at most `max_count` of them and `max_bytes` of their bodies."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._kept: deque[Recorded] = deque()
        self._bytes = 0

    def add(self, recorded: Recorded) -> None:
        """Keeps one and lets the oldest go."""
        if not self._max_count:
            return
        self._kept.append(recorded)
        self._bytes += len(recorded.body)
        while len(self._kept) > self._max_count or self._bytes > self._max_bytes:
            self._bytes -= len(self._kept.popleft().body)

    def last(self, count: int) -> list[dict[str, Any]]:
        """Returns the last `count`, oldest first."""
        return [each.to_mapping() for each in list(self._kept)[-count:]] if count else []

    def clear(self) -> None:
        """Forgets them all."""
        self._kept.clear()
        self._bytes = 0
