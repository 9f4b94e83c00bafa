"""A histogram of positive numbers whose old values fade: what share of the latest ones lies below a value.

Steps are logarithmic, four to an octave, so that a quantile is off by a fixed share of its value over any range (at most 9 %
from the middle of its step, 19 % from its upper edge). New values weigh more and more instead of old ones less: it is the
same, and all other steps stay as they are; when weights get heavy, all are scaled down at once. It must not know what it
counts. Invariants: every `add` is O(1), in a fixed amount of memory, of which nothing is taken before the first value.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate
from math import ceil, log2

_PER_OCTAVE = 4
_ROUNDING = 1e-9
"""In steps: a value on the edge of two belongs to the lower one, whatever its logarithm is rounded to."""
_HEAVY = 1e150
_NO_WEIGHTS = array("d")


class DecayingHistogram:
    """Weights of values by step; it may keep one quantile at hand, so that nothing is summed to read that."""

    __slots__ = (
        "_below",
        "_first",
        "_growth",
        "_last",
        "_least",
        "_next",
        "_pointer",
        "_share",
        "_weights",
        "edge",
        "weight",
    )

    def __init__(self, least: float, octaves: int, half_life: int, share: float = 0.0) -> None:
        """Values from `least`, a power of two, up to so many octaves above it are told apart; others count as the nearest.

        The last `half_life` values have half of the weight. `share` is the quantile that `edge` follows; 0.0: none.
        """
        self._least = least
        self._first = round(log2(least)) * _PER_OCTAVE
        self._last = octaves * _PER_OCTAVE
        self._growth: float = 2 ** (1 / half_life)
        self._share = share
        self._weights = _NO_WEIGHTS
        self._next = 1.0  # weight of the next value
        self._pointer = 0  # the step in which the followed quantile lies ...
        self._below = 0.0  # ... and the weight of all steps below it
        self.weight = 0.0
        """Of all values together, in the first one's weight; 0.0: there was none."""
        self.edge = least
        """The followed quantile: the upper edge of its step; `least` before the first value."""

    def add(self, value: float) -> None:
        """Counts one value, which is not negative."""
        if not self.weight:
            self._weights = array("d", bytes(8 * (self._last + 1)))
        step = ceil(log2(value) * _PER_OCTAVE - _ROUNDING) - self._first if value > self._least else 0
        if step > self._last:
            step = self._last
        weight = self._next
        self._weights[step] += weight
        self.weight += weight
        self._next = weight * self._growth
        if self._next > _HEAVY:
            self._scale_down()
        if self._share:
            if step < self._pointer:
                self._below += weight
            goal = self._share * self.weight
            if self._below >= goal or self._below + self._weights[self._pointer] < goal:
                self._follow(goal)

    def quantile(self, share: float) -> float:
        """The middle of the step in which the value lies that this share (above 0, to 1) of the weight does not exceed.

        Raises IndexError as long as there was no value.
        """
        sums = list(accumulate(self._weights))
        step = bisect_left(sums, share * sums[-1])
        return float(2 ** ((step + self._first - 0.5) / _PER_OCTAVE))

    def _follow(self, goal: float) -> None:
        """Moves the pointer to the step of the followed quantile: by a step or two, as one value weighs little."""
        weights = self._weights
        while self._pointer < self._last and self._below + weights[self._pointer] < goal:
            self._below += weights[self._pointer]
            self._pointer += 1
        while self._pointer > 0 and self._below >= goal:
            self._pointer -= 1
            self._below -= weights[self._pointer]
        self.edge = 2 ** ((self._pointer + self._first) / _PER_OCTAVE)

    def _scale_down(self) -> None:
        self._weights = array("d", [weight / _HEAVY for weight in self._weights])
        self._next /= _HEAVY
        # Summed anew: what rounding has left in the running sums goes with it.
        self.weight = sum(self._weights)
        self._below = sum(self._weights[: self._pointer])
