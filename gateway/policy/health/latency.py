"""The time to the first byte of one target: what to expect of it now, and what is usual there.

Two memories. The peak-EWMA (as in Finagle and linkerd) believes a worse answer at once and a better one only by and by;
it tells where to send the next call. The histogram, in which the last few hundred answers count, tells what is late. It
must not know calls, and the histogram must not hear of failures, which come faster or slower than any answer. Invariants:
between two observations nothing gets worse; every step is O(1), in a fixed amount of memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate
from math import exp, log2

DECAY_S = 10.0
"""The time constant, in seconds, with which a peak is forgotten: Finagle's."""
FORGET_S = 120.0
"""Seconds over which the times of a target that nobody uses are doubted more and more."""
SHORTEST_S, LONGEST_S = 2.0**-10, 2.0**13
"""Times between these two are told apart: a millisecond to two hours."""
MIN_SAMPLES = 20

_PER_OCTAVE = 4  # the middle of a step is at most 9 % off
_FIRST = int(log2(SHORTEST_S)) * _PER_OCTAVE
_LAST = int(log2(LONGEST_S)) * _PER_OCTAVE - _FIRST - 1
_GROWTH = 2 ** (1 / 200)  # half of the weight is the last 200 answers
_HEAVY = 1e150
_LEAST_SHARE = 1 / 200  # of one answer in the mean
_NOTHING = array("d")


class Latency:
    """Times to first byte of one target, in seconds; `now` is monotonic and never goes back."""

    __slots__ = ("_at", "_mean", "_next", "_peak", "_weights", "count")

    def __init__(self) -> None:
        self.count = 0
        """The number of answers that were measured."""
        self._peak = self._mean = 0.0
        self._at = 0.0
        self._weights = _NOTHING  # by steps of time; its own with the first answer
        self._next = 1.0

    def observe(self, seconds: float, now: float) -> None:
        """Takes in that the first byte of an answer came after so many seconds."""
        self.count = count = self.count + 1
        mean = self._mean
        floor = seconds if seconds < mean else mean
        faded = floor + (self._peak - floor) * exp((self._at - now) / DECAY_S)
        self._peak = seconds if seconds > faded else faded
        if count == 1:
            self._weights = array("d", bytes(8 * (_LAST + 1)))
        self._mean = mean + (seconds - mean) * (1 / count if count < 200 else _LEAST_SHARE)
        self._at = now
        index = int(log2(seconds) * _PER_OCTAVE - _FIRST) if seconds > SHORTEST_S else 0
        # New answers weigh more and more instead of old ones less; when weights get heavy all are scaled down at once.
        self._weights[index if index < _LAST else _LAST] += self._next
        self._next *= _GROWTH
        if self._next > _HEAVY:
            self._scale_down()

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
        sums = list(accumulate(self._weights))
        index = bisect_left(sums, p * sums[-1])
        return float(2 ** ((index + _FIRST + 0.5) / _PER_OCTAVE))

    def _scale_down(self) -> None:
        self._weights = array("d", [weight / _HEAVY for weight in self._weights])
        self._next /= _HEAVY
