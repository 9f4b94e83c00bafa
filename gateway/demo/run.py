"""What one storm of calls met: recorded while it happens, summed up afterwards.

Pure: `now` comes in, in seconds on any monotonic clock. It must not know who calls whom, nor how figures are shown.
Invariant: a call ends exactly once, with or without an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

OVERHEAD = "x-gateway-overhead-ms"


class Tick(NamedTuple):
    """A short while at the provider, by its end: how many calls it answered, and how many it refused with a 429."""

    at_s: float
    answered: int
    refused: int


@dataclass(slots=True)
class Run:
    """One storm of `calls` at a limit of `rate_per_s` requests."""

    name: str
    calls: int
    rate_per_s: float
    level: float = 0.0
    """Calls that the limit had room for when the storm began."""
    began_at: float | None = None
    latencies_s: list[float] = field(default_factory=list)
    """Of the calls that were answered."""
    failed: int = 0
    tokens: int = 0
    duration_s: float = 0.0
    """Until the last call ended."""
    seen_429s: int = 0
    """Answers with 429 that reached the app's client, whether it tried again or not."""
    overheads_ms: list[float] = field(default_factory=list)
    """The gateway's own time for each answer, as the answer tells."""
    ticks: list[Tick] = field(default_factory=list)
    upstream_calls: int = 0
    upstream_answers: int = 0
    upstream_429s: int = 0

    def begin(self, level: float, now: float) -> None:
        """The storm starts; everything below comes after this."""
        self.level, self.began_at = level, now

    def heard(self, status: int, headers: Mapping[str, str]) -> None:
        """A response reached the app's client."""
        if status == 429:
            self.seen_429s += 1
        elif status == 200 and OVERHEAD in headers:
            self.overheads_ms.append(float(headers[OVERHEAD]))

    def ended(self, tokens: int | None, called_at: float, now: float) -> None:
        """The app has its answer, or None and an error."""
        if tokens is None:
            self.failed += 1
        else:
            self.latencies_s.append(now - called_at)
            self.tokens += tokens
        self.duration_s = max(self.duration_s, self.time_s(now))

    def counted(self, calls: int, answered: int, refused: int, now: float) -> None:
        """The provider's counters since the storm began; told often."""
        tick = Tick(self.time_s(now), answered - self.upstream_answers, refused - self.upstream_429s)
        if tick.answered or tick.refused:
            self.ticks.append(tick)
        self.upstream_calls, self.upstream_answers, self.upstream_429s = calls, answered, refused

    def time_s(self, now: float) -> float:
        """Seconds since the storm began."""
        return now - self.began_at if self.began_at is not None else 0.0

    @property
    def answered(self) -> int:
        return len(self.latencies_s)

    @property
    def wasted_calls(self) -> int:
        """Upstream calls that gave nobody an answer."""
        return max(0, self.upstream_calls - self.answered)

    @property
    def ideal_s(self) -> float | None:
        """When the limit alone lets the last call in; None where it makes none of them wait."""
        return (self.calls - self.level) / self.rate_per_s if self.calls > self.level else None

    @property
    def wait_p50_s(self) -> float | None:
        return median(self.latencies_s) if self.latencies_s else None

    @property
    def added_p50_ms(self) -> float | None:
        """None where no gateway was."""
        return median(self.overheads_ms) if self.overheads_ms else None

    def to_mapping(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {name: getattr(self, name) for name in _FIGURES}


_FIGURES = (
    *("name", "calls", "answered", "failed", "seen_429s", "upstream_calls", "upstream_429s", "wasted_calls", "tokens"),
    *("duration_s", "ideal_s", "wait_p50_s", "added_p50_ms"),
)


def per_second(ticks: Iterable[Tick], seconds: int) -> list[tuple[int, int]]:
    """Calls answered and refused in each of the first `seconds` seconds; what comes later is in the last."""
    counts = [(0, 0)] * seconds
    for at_s, answered, refused in ticks:
        second = min(int(at_s), seconds - 1)
        counts[second] = (counts[second][0] + answered, counts[second][1] + refused)
    return counts
