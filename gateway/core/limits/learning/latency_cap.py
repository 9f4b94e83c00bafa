"""A concurrency cap that follows latency, for servers that queue without bound instead of answering 429 (vLLM and the like).

Gradient control as in Netflix's concurrency-limits (Gradient2: tolerance, allowance of the root of the cap, smoothing) and
Envoy's adaptive concurrency filter (minRTT windows): the cap shrinks by the ratio of the unloaded to the present time to
the first byte, and grows while there is none. The unloaded time is measured again every so often with half of the cap.

That time also depends on the prompt, over orders of magnitude. Nothing is divided by tokens for it, as the slope differs
with every cached prefix; instead rounds of answers are compared by the means of logarithms, and only what is more than
their spread explains counts as a queue. The least of several rounds is never used: it is lower the more they vary, and
with such a goal the cap shrinks to nothing.

It must not know calls. Invariants: the cap stays within its bounds; every step is O(1).
"""

from __future__ import annotations

from math import exp, inf, log, sqrt

EPOCH_ROUNDS = 40
"""So many rounds the unloaded time is believed."""
ROUND = 20
"""At least so many answers make a round, and as many as the cap."""
TOLERANCE = log(1.25)
"""So much slower than unloaded, and what the spread explains, is not a queue yet (Envoy's buffer)."""
SMOOTHING = 0.3
_STEP = 1.25
_DROP = 0.9
_EARLY = 5
_FAR_SLOWER = log(2)
_SURE = 3.0  # standard errors
_DIP_ANSWERS = 10
_SMALL = 8.0
_MOST_SLOWER = log(3)
_FIRST_VARIANCE = 0.25
_SHORTEST_S = 1e-3


class AdaptiveCap:
    """How many calls may be in flight. At the end of each round the cap moves; all times are natural logarithms."""

    __slots__ = (
        "_before_dip",
        "_cap",
        "_count",
        "_largest",
        "_measured_at",
        "_most_in_flight",
        "_rounds",
        "_skips",
        "_smallest",
        "_squares",
        "_sum",
        "_unloaded",
        "_variance",
    )

    def __init__(self, first: int = 16, smallest: int = 1, largest: int = 1000) -> None:
        self._cap = self._measured_at = float(first)
        self._smallest = smallest
        self._largest = largest
        self._unloaded = inf
        self._variance = _FIRST_VARIANCE  # of single unloaded calls
        self._rounds = 0
        self._before_dip = 0.0  # while the unloaded time is measured: the cap to go on with
        self._skips = 0  # answers still to come to calls that may have waited in the old queue
        self._count = self._most_in_flight = 0
        self._sum = self._squares = 0.0

    @property
    def cap(self) -> int:
        """The most calls in flight."""
        return int(self._cap)

    def observe(self, first_byte_s: float, in_flight: int) -> None:
        """One call's first byte came `first_byte_s` after it was sent, when so many were in flight."""
        if not 0 <= first_byte_s < inf:
            return
        if self._skips:
            self._skips -= 1
            return
        time = log(max(first_byte_s, _SHORTEST_S))
        if self._unloaded == inf:
            self._unloaded = time  # the first to come meets an idle server
        self._count += 1
        self._sum += time
        self._squares += time * time
        if in_flight > self._most_in_flight:
            self._most_in_flight = in_flight
        if self._count >= max(_DIP_ANSWERS if self._before_dip else ROUND, self._cap) or self._is_far_slower():
            self._end_round(self._sum / self._count)

    def dropped(self) -> None:
        """The server timed out or said that it is overloaded."""
        self._set(self._cap * _DROP)
        self._before_dip *= _DROP
        self._begin_round()

    def _is_far_slower(self) -> bool:
        """Whether the queue is so long that there is no need to wait for the end of the round."""
        if self._before_dip or self._count < _EARLY:
            return False
        excess = self._sum / self._count - self._unloaded
        return excess > _FAR_SLOWER + _SURE * sqrt(self._variance / self._count)

    def _begin_round(self) -> None:
        self._count = self._most_in_flight = 0
        self._sum = self._squares = 0.0

    def _end_round(self, mean: float) -> None:
        if self._before_dip:
            self._end_dip(mean)
        else:
            self._rounds += 1
            error = sqrt(self._variance / self._count)
            if mean < self._unloaded - error:
                self._unloaded += SMOOTHING * (mean - self._unloaded)
            if self._most_in_flight >= self._cap / 2:  # else latency tells nothing about the cap
                self._move(mean - self._unloaded - sqrt(2) * error)
            if self._rounds >= EPOCH_ROUNDS or self._cap < self._measured_at / 2:
                self._begin_dip()
        self._begin_round()

    def _move(self, excess: float) -> None:
        share = _STEP if excess <= TOLERANCE else max(0.5, exp(TOLERANCE - excess))
        goal = self._cap * share + sqrt(self._cap) / 2
        self._set(self._cap + SMOOTHING * (goal - self._cap))

    def _begin_dip(self) -> None:
        """Let the queue at the server run empty, if there is one."""
        self._before_dip = self._cap
        self._skips = int(self._cap)
        self._set(self._cap / 2 if self._cap > _SMALL else 1.0)

    def _end_dip(self, mean: float) -> None:
        self._unloaded = min(mean, self._unloaded + _MOST_SLOWER)  # the queue may not have run empty
        variance = max(0.0, self._squares / self._count - mean * mean)
        self._variance += SMOOTHING * (variance - self._variance)
        self._rounds = 0
        self._measured_at = self._before_dip
        self._set(self._before_dip)
        self._before_dip = 0.0

    def _set(self, cap: float) -> None:
        self._cap = min(max(cap, float(self._smallest)), float(self._largest))
