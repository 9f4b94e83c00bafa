"""What happened in one run of steady traffic, and the figures that follow from it.

Told from outside, with the time in seconds on any clock; it must not know who calls whom, nor how figures are shown.
Invariant: a call ends exactly once, and what comes before `begin` is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import Any, NamedTuple


class Ended(NamedTuple):
    """A call: when it was made, how long until its last byte or its error, which of the two, and whether it had begun."""

    made_at_s: float
    latency_s: float
    is_answered: bool
    is_broken: bool = False


class Fate(NamedTuple):
    """Of so many calls: answered in time, answered late, failed."""

    answered: int
    late: int
    failed: int


@dataclass(slots=True)
class Trial:
    """One run of `calls`; an answer after more than `late_s` is late."""

    name: str
    calls: int
    late_s: float
    began_at: float | None = None
    ended: list[Ended] = field(default_factory=list)
    tries: int = 0
    """At providers, on behalf of these calls."""
    tries_at_dead: int = 0
    """Of these, how many at one that refused connections."""

    def begin(self, now: float) -> None:
        """The traffic starts; everything below comes after this."""
        self.began_at = now

    def tried(self, tries: int, at_dead: int) -> None:
        """Somebody made so many tries at providers, so many of them at one that refused connections."""
        if self.began_at is not None:
            self.tries += tries
            self.tries_at_dead += at_dead

    def end(self, made_at: float, now: float, *, is_answered: bool, is_broken: bool = False) -> None:
        """The app has its answer, or an error; broken: it had a part of its answer."""
        self.ended.append(Ended(self.time_s(made_at), now - made_at, is_answered, is_broken))

    def time_s(self, now: float) -> float:
        """Seconds since the traffic started."""
        return now - self.began_at if self.began_at is not None else 0.0

    @property
    def answered(self) -> int:
        return sum(call.is_answered for call in self.ended)

    @property
    def late(self) -> int:
        """Of those answered."""
        return fate_of(self.ended, self.late_s).late

    @property
    def failed(self) -> int:
        return len(self.ended) - self.answered

    @property
    def broken(self) -> int:
        """Of those failed; no client and no gateway can try them again unnoticed."""
        return sum(call.is_broken for call in self.ended)

    @property
    def wasted_tries(self) -> int:
        """Tries that gave nobody an answer."""
        return max(0, self.tries - self.answered)

    @property
    def tries_per_call(self) -> float:
        return self.tries / max(1, len(self.ended))

    @property
    def latency_p50_s(self) -> float | None:
        return self._latency_s(0.5)

    @property
    def latency_p99_s(self) -> float | None:
        return self._latency_s(0.99)

    def _latency_s(self, share: float) -> float | None:
        """That so many of the answers did not exceed."""
        known = sorted(call.latency_s for call in self.ended if call.is_answered)
        return known[ceil(share * len(known)) - 1] if known else None

    def to_mapping(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {name: getattr(self, name) for name in _FIGURES}


_FIGURES = (
    *(
        "name",
        "calls",
        "answered",
        "late",
        "failed",
        "broken",
        "tries",
        "tries_per_call",
        "wasted_tries",
        "tries_at_dead",
    ),
    *("latency_p50_s", "latency_p99_s"),
)


def fate_of(calls: Iterable[Ended], late_s: float) -> Fate:
    """What became of these calls."""
    answered = late = failed = 0
    for call in calls:
        if not call.is_answered:
            failed += 1
        elif call.latency_s > late_s:
            late += 1
        else:
            answered += 1
    return Fate(answered, late, failed)


def fates_by_second(trial: Trial, seconds: int) -> list[Fate]:
    """What became of the calls that were made in each of the first `seconds` seconds."""
    made: list[list[Ended]] = [[] for _ in range(seconds)]
    for call in trial.ended:
        made[min(int(call.made_at_s), seconds - 1)].append(call)
    return [fate_of(calls, trial.late_s) for calls in made]
