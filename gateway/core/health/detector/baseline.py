"""Learns what is usual at one target: how many of its calls fail, how long its first byte and its whole calls take.

    outcomes -> `OutcomeWindow` (the last minute, or longer where calls are) -> what leaves it -> `Baseline`

So the present is judged by the past, and an outage that opens the breaker never teaches. The baseline moves slowly and
within bounds: what fails more often than `MOST_USUAL` is sick, however long it has been so. It must not know states,
permits or targets. Invariants: O(1) in time and space for each outcome; no sample is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log

BUCKETS = 12
"""The number of buckets in a window, which forgets one at a time."""
BEYOND_CHANCE = log(1e8)
"""The `surprise` in nats from which failures are not put down to chance: it brings about as many once in 1e8 times."""
MOST_USUAL = 0.25
"""The largest share of failures that can become the rule."""
MOST_AT_FIRST = 0.1
"""The same, while little is known."""
ENOUGH_CALLS = 1000
"""The number of calls that tell what is usual; from then on it moves slowly ..."""
SLOWLY_S = 600.0
"""... with this time constant."""
DURATIONS = 3.0
"""The length of a window in durations of a call ..."""
LONGEST_WINDOW_S = 600.0
"""... up to this length."""
_DOUBT_CALLS = 50
_LEAST_USUAL = 1e-8


class OutcomeCounts:
    """Counts outcomes of calls. `busy_s` sums the durations of successes, `first_byte_s` the first bytes of the `timed`."""

    __slots__ = ("busy_s", "calls", "failures", "first_byte_s", "slow", "timed")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Sets all counts to zero."""
        self.calls = self.failures = self.timed = self.slow = 0
        self.busy_s = self.first_byte_s = 0.0

    def add(self, other: OutcomeCounts) -> None:
        """Adds the counts of `other` to these."""
        self.calls += other.calls
        self.failures += other.failures
        self.timed += other.timed
        self.slow += other.slow
        self.busy_s += other.busy_s
        self.first_byte_s += other.first_byte_s


class OutcomeWindow:
    """Holds the last `span_s` seconds in a ring of buckets. Outcomes go to `present` until `ends_at`; then it has to `turn`."""

    __slots__ = ("_began_at", "_buckets", "_index", "ends_at", "present", "span_s")

    def __init__(self, span_s: float, now: float) -> None:
        self._buckets = [OutcomeCounts() for _ in range(BUCKETS)]
        self.restart(span_s, now)

    def restart(self, span_s: float, now: float) -> None:
        """Empties the window."""
        for bucket in self._buckets:
            bucket.clear()
        self.span_s = span_s
        self._began_at = now
        self._index = 0
        self.present = self._buckets[0]
        self.ends_at = now + span_s / BUCKETS

    def turn(self, span_s: float, now: float) -> OutcomeCounts:
        """Begins the bucket that `now` belongs to, with the length `span_s` from here on; returns what has left the window."""
        self.span_s = span_s
        step_s = span_s / BUCKETS
        steps = int((now - self.ends_at) / step_s) + 1
        gone = OutcomeCounts()
        for _ in range(min(steps, BUCKETS)):
            self._index = (self._index + 1) % BUCKETS
            self.present = self._buckets[self._index]
            gone.add(self.present)
            self.present.clear()
        self.ends_at += steps * step_s
        return gone

    def total(self) -> OutcomeCounts:
        """Returns the sum of all buckets."""
        total = OutcomeCounts()
        for bucket in self._buckets:
            total.add(bucket)
        return total

    def recent(self) -> Iterator[tuple[float, int, int]]:
        """Yields seconds, calls and failures of the present bucket, of the last two, and so on up to the whole window."""
        calls = failures = 0
        for age in range(BUCKETS):
            bucket = self._buckets[self._index - age]
            calls += bucket.calls
            failures += bucket.failures
            yield (age + 1) * self.span_s / BUCKETS, calls, failures

    def failures(self) -> tuple[int, int]:
        """Returns the calls and the failures in the window."""
        calls = failures = 0
        for bucket in self._buckets:
            calls += bucket.calls
            failures += bucket.failures
        return calls, failures

    def failures_at(self, span_s: float, now: float) -> tuple[int, int]:
        """Returns the calls and failures that will be left when the window turns at `now`, to the length `span_s`."""
        gone = int((now - self.ends_at) * BUCKETS / span_s) + 1 if now >= self.ends_at else 0
        left = [self._buckets[self._index - age] for age in range(BUCKETS - gone)]
        return sum([bucket.calls for bucket in left]), sum([bucket.failures for bucket in left])

    def slow(self) -> tuple[int, int]:
        """Returns the calls whose first byte was timed, and how many of them were slow."""
        return sum(bucket.timed for bucket in self._buckets), sum(bucket.slow for bucket in self._buckets)

    def calls_per_s(self, now: float) -> float:
        """Returns the rate at which calls ended, over the window or as much of it as has passed."""
        return self.failures()[0] / min(max(now - self._began_at, 1.0), self.span_s)


class Baseline:
    """Describes one target when it is well. Times are running means in seconds; 0.0: unknown."""

    __slots__ = ("call_s", "failure_share", "first_byte_s", "known_calls")

    def __init__(self) -> None:
        self.failure_share = 0.0
        self.first_byte_s = 0.0
        self.call_s = 0.0
        self.known_calls = 0

    def learn(self, seen: OutcomeCounts, span_s: float) -> None:
        """Takes these outcomes, of `span_s` seconds, for usual; only outcomes that led to no ejection may be given."""
        if seen.calls <= 0:
            return
        is_settled = self.known_calls >= ENOUGH_CALLS
        self.known_calls = min(self.known_calls + seen.calls, ENOUGH_CALLS)
        weight = min(seen.calls / self.known_calls, span_s / SLOWLY_S if is_settled else 1.0)
        share = self.failure_share + (seen.failures / seen.calls - self.failure_share) * weight
        self.failure_share = min(share, MOST_USUAL)
        if seen.timed:
            self.first_byte_s = _towards(self.first_byte_s, seen.first_byte_s / seen.timed, weight)
        if seen.calls > seen.failures:
            self.call_s = _towards(self.call_s, seen.busy_s / (seen.calls - seen.failures), weight)

    def usual_failures(self, calls: int, failures: int) -> float:
        """Returns the share of calls that usually fail; `calls` and `failures`, the ones since, count while little is known."""
        share = self.failure_share
        if self.known_calls < ENOUGH_CALLS:
            known = share * self.known_calls + failures
            share = min(MOST_AT_FIRST, known / (_DOUBT_CALLS + self.known_calls + calls))
        return max(share, _LEAST_USUAL)

    def window_s(self, at_least_s: float) -> float:
        """Returns the length of a window that is longer than calls here usually take."""
        return max(at_least_s, min(DURATIONS * self.call_s, LONGEST_WINDOW_S))

    def slow_after_s(self, factor: float, at_least_s: float, at_most_s: float) -> float:
        """Returns the seconds after which a first byte is slow; `at_most_s`, as long as nothing is known."""
        if not self.first_byte_s:
            return at_most_s
        return min(max(factor * self.first_byte_s, at_least_s), at_most_s)


def surprise(calls: int, failures: int, usual: float) -> float:
    """Returns how far so many failures are from what is usual, in nats: chance brings as many once in e**surprise times.

    It is `calls` times the Kullback-Leibler divergence of the share of failures from the usual one (Chernoff's bound); for
    failures in a row that is -calls * log(usual). It is 0.0 where no more fail than usual.
    """
    share = failures / calls
    if share <= usual:
        return 0.0
    well = (1 - share) * log((1 - share) / (1 - usual)) if failures < calls else 0.0
    return calls * (share * log(share / usual) + well)


def longest_run(usual: float) -> int:
    """Returns the number of failures in a row that is beyond chance."""
    return ceil(BEYOND_CHANCE / -log(usual) - 1e-9)


def _towards(mean: float, value: float, weight: float) -> float:
    return mean + (value - mean) * weight if mean else value
