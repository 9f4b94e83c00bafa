"""The time to the first byte of one target: what to expect of it now, and what is usual there.

Two memories. The peak-EWMA (as in Finagle and linkerd) believes a worse answer at once and a better one only by and by;
it tells where to send the next call. The histogram, in which the last few hundred answers count, tells what is late. It
must not know calls, and the histogram must not hear of failures, which come faster or slower than any answer. Invariants:
between two observations nothing gets worse; every step is O(1), in a fixed amount of memory.
"""

from __future__ import annotations

from math import exp, log2

from gateway.core.health.times.histogram import DecayingHistogram

DECAY_S = 10.0
"""The time constant, in seconds, with which a peak is forgotten: Finagle's."""
FORGET_S = 120.0
"""Seconds over which the times of a target that nobody uses are doubted more and more."""
SHORTEST_S, LONGEST_S = 2.0**-10, 2.0**13
"""Times between these two are told apart: a millisecond to two hours."""
MIN_SAMPLES = 20

_OCTAVES = int(log2(LONGEST_S / SHORTEST_S))
_HALF_LIFE = 200
"""The last so many answers have half of the weight in the histogram, and each of them at least that part in the mean."""


class Latency:
    """Times to first byte of one target, in seconds; `now` is monotonic and never goes back."""

    __slots__ = ("_at", "_histogram", "_mean", "_peak", "count")

    def __init__(self) -> None:
        self.count = 0
        """The number of answers that were measured."""
        self._peak = self._mean = 0.0
        self._at = 0.0
        self._histogram = DecayingHistogram(SHORTEST_S, _OCTAVES, _HALF_LIFE)

    @property
    def heard_at(self) -> float:
        """Returns when something was measured last, in monotonic seconds."""
        return self._at

    def observe(self, seconds: float, now: float) -> None:
        """Takes in that the first byte of an answer came after so many seconds."""
        self.count = count = self.count + 1
        mean = self._mean
        floor = seconds if seconds < mean else mean
        faded = floor + (self._peak - floor) * exp((self._at - now) / DECAY_S)
        self._peak = seconds if seconds > faded else faded
        self._mean = mean + (seconds - mean) / (count if count < _HALF_LIFE else _HALF_LIFE)
        self._at = now
        self._histogram.add(seconds)

    def penalise(self, seconds: float, now: float) -> None:
        """Makes the target be expected slower than usual by so many seconds for a while, because a call failed there."""
        self._peak = max(self.peak_ewma(now), self._mean + seconds)
        self._at = now

    def peak_ewma(self, now: float) -> float:
        """Returns the seconds to expect of it: the worst of late, fading to what is usual; 0.0 when nothing is known."""
        peak, mean = self._peak, self._mean
        if peak <= mean:
            return peak
        return mean + (peak - mean) * exp((self._at - now) / DECAY_S)

    def hoped(self, now: float) -> float:
        """Returns the seconds that a target with nothing in flight may be hoped to take: the older the news, the fewer."""
        return self.peak_ewma(now) * exp((self._at - now) / FORGET_S)

    def quantile(self, p: float, min_samples: int = MIN_SAMPLES) -> float | None:
        """Returns the seconds within which the share `p` (above 0, to 1) of answers began, +-10 %; None: too few measured."""
        if self.count < max(min_samples, 1):
            return None
        return self._histogram.quantile(p)
