"""What a run came to: outcomes, waits by lane, work by tenant; and the numbers that are read from them.

Small enough for millions of calls. It must not know how the calls were served.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable

from gateway.core.types import LANES, Lane


class Score:
    """Counts; also stands in for the meter that admission reports waits to."""

    def __init__(self) -> None:
        self.offered = 0
        self.attempts = 0
        self.refused_upstream = 0
        """429s of providers that the gateway read."""
        self.outcomes: Counter[tuple[Lane, str]] = Counter()
        self.tokens: Counter[str] = Counter()
        """What providers charged for the calls that were answered, by tenant."""
        self.waits: dict[Lane, array[float]] = {lane: array("d") for lane in LANES}
        """Seconds in the queue of every call that was answered."""

    def waited(self, lane: str, seconds: float) -> None:
        """Nothing: a call's whole wait is known at its end."""

    def worked(self, tenant: str, tokens: float) -> None:
        """A provider has answered a call of this tenant."""
        self.tokens[tenant] += round(tokens)

    def ended(self, lane: Lane, tenant: str, outcome: str, wait_s: float) -> None:
        """A call has ended."""
        self.outcomes[lane, outcome] += 1
        if outcome == "ok":
            self.waits[lane].append(wait_s)

    def count(self, outcome: str) -> int:
        """How many ended so, in all lanes."""
        return sum(number for (_, ended), number in self.outcomes.items() if ended == outcome)

    @property
    def upstream_429_share(self) -> float:
        """Of the attempts, those that a provider refused."""
        return self.refused_upstream / self.attempts if self.attempts else 0.0


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed; 0.0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def jain(shares: Iterable[float]) -> float:
    """Jain's fairness index: 1.0 when all have the same, 1/n when one has everything (Jain, Chiu and Hawe, 1984)."""
    parts = list(shares)
    squares = sum(part * part for part in parts)
    return sum(parts) ** 2 / (len(parts) * squares) if squares else 1.0
