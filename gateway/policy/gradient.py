"""A concurrency cap that follows latency, for servers that queue without bound instead of answering 429 (vLLM and the like).

Gradient control as in Netflix's concurrency-limits (Gradient2) and Envoy's adaptive concurrency filter: the cap shrinks by
the ratio of the unloaded to the present time to the first byte, and grows by a small allowance while there is none. The
unloaded time is measured again every so often by letting the queue at the server run empty (Envoy's minRTT window). Time to
the first token also grows with the prompt; rounds of many calls even that out, which is why nothing is divided by tokens. It
must not know calls. Invariants: the cap stays within its bounds; every step is O(1).
"""

from __future__ import annotations

from math import inf, sqrt

TOLERANCE = 1.25
"""So much slower than unloaded is not a queue yet (Envoy's buffer)."""
SMOOTHING = 0.3
EPOCH_ROUNDS = 40
"""So many rounds the unloaded time is believed."""
_FEWEST_SAMPLES = 5
_DROP = 0.9
_SMALL = 8.0
_MOST_SLOWER = 3.0
_STEP = 1.25


class AdaptiveCap:
    """How many calls may be in flight. A round is as many answers as the cap; at its end the cap moves."""

    __slots__ = (
        "_before_dip",
        "_cap",
        "_count",
        "_largest",
        "_measured_at",
        "_most_in_flight",
        "_rounds",
        "_smallest",
        "_sum_s",
        "_unloaded_s",
    )

    def __init__(self, first: int = 16, smallest: int = 1, largest: int = 1000) -> None:
        self._cap = self._measured_at = float(first)
        self._smallest = smallest
        self._largest = largest
        self._unloaded_s = inf
        self._rounds = 0
        self._before_dip = 0.0  # while the queue runs empty: the cap to go on with
        self._count = self._most_in_flight = 0
        self._sum_s = 0.0

    @property
    def cap(self) -> int:
        """The most calls in flight."""
        return int(self._cap)

    def observe(self, first_byte_s: float, in_flight: int) -> None:
        """One call's first byte came `first_byte_s` after it was sent, when so many were in flight."""
        if not 0 <= first_byte_s < inf:
            return
        self._count += 1
        self._sum_s += first_byte_s
        self._most_in_flight = max(self._most_in_flight, in_flight)
        if self._unloaded_s == inf or (not self._rounds and first_byte_s < self._unloaded_s):
            self._unloaded_s = first_byte_s  # the first to come meets an idle server
        if self._count >= max(self._cap, _FEWEST_SAMPLES):
            self._end_round(self._sum_s / self._count)
            self._begin_round()

    def dropped(self) -> None:
        """The server timed out or said that it is overloaded."""
        self._set(self._cap * _DROP)
        self._begin_round()

    def _begin_round(self) -> None:
        self._count = 0
        self._sum_s = 0.0
        self._most_in_flight = 0

    def _end_round(self, mean_s: float) -> None:
        self._rounds += 1
        if self._before_dip:
            self._measure(mean_s)
        elif self._rounds >= EPOCH_ROUNDS or self._cap < self._measured_at / 2:
            self._dip()
        else:
            self._unloaded_s = min(self._unloaded_s, mean_s)
            if self._most_in_flight >= self._cap / 2:  # else latency tells nothing about the cap
                self._move(mean_s)

    def _dip(self) -> None:
        """Let the queue at the server run empty, if there is one."""
        self._before_dip = self._cap
        self._rounds = 1
        self._set(self._cap / 2 if self._cap > _SMALL else 1.0)

    def _measure(self, mean_s: float) -> None:
        """The first round of a dip still waits in the old queue; the second tells the unloaded time."""
        if self._rounds < 3:
            return
        self._unloaded_s = min(mean_s, _MOST_SLOWER * self._unloaded_s)  # the queue may not have run empty
        self._rounds = 1
        self._measured_at = self._before_dip
        self._set(self._before_dip)
        self._before_dip = 0.0

    def _move(self, mean_s: float) -> None:
        gradient = TOLERANCE * self._unloaded_s / mean_s if mean_s > 0 else 1.0
        share = max(gradient, 0.5) if gradient < 1.0 else _STEP  # no queue at all: larger steps
        goal = self._cap * share + sqrt(self._cap) / 2
        self._set(self._cap + SMOOTHING * (goal - self._cap))

    def _set(self, cap: float) -> None:
        self._cap = min(max(cap, float(self._smallest)), float(self._largest))
