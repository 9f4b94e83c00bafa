"""How many requests a provider takes at once, where neither the config nor its headers say so.

    grow -> (those calls go) -> nobody is refused -> grow …       or refused: so many less

Begins with a second's worth of the rate. While calls wait for more, and nobody was refused, a few more go at once, then twice
as many each time, as in TCP's slow start (RFC 5681), up to what is allowed. Each refusal says that it was one call too many;
then it is tried again seldom. Once headers say what is left, they are believed. It must not know limits, calls or replicas.
Invariants: never above `most` unless headers say so; what is tried at once is at most half of what is known to go; a refusal
never raises it.
"""

from __future__ import annotations

from math import inf

FIRST_S = 1.0
"""So many seconds' worth of the rate go at once to begin with, and a fifth of that however many are refused."""
LEAST_S = 0.2
FIRST_CALLS = 4.0
"""Of a slow rate at least so many: a few refusals cost nobody more than a moment."""
UNREFUSED_S = 0.5
"""A refusal comes fast: whoever was not refused after this time was let in, however long the answer takes."""
AGAIN_S, LONGEST_AGAIN_S = 10.0, 640.0
"""After a refusal no more is tried for so long; twice as long each time."""
_FIRST_STEP, _LARGEST_STEP = 0.05, 0.5
_FLIGHTS = 3
"""Refusals of so many flights in a row are put down to the burst; what is refused then has another cause."""


class UnwrittenBurst:
    """Of one target's requests, as far as is known."""

    __slots__ = (
        "_again_s",
        "_due",
        "_first",
        "_flights",
        "_is_tried",
        "_least",
        "_step",
        "_tried_at",
        "_try_at",
        "burst",
        "is_news",
        "is_told",
        "most",
    )

    def __init__(self, rate_per_s: float, most: float, *, is_told: bool = False) -> None:
        """`most` is what is allowed where headers say nothing."""
        self.most = most
        self.burst = self._first = min(max(FIRST_S * rate_per_s, FIRST_CALLS), most)
        """So many may go at once."""
        self.is_told = is_told
        """Headers say what is left."""
        self.is_news = False
        """A refusal has told it, and other replicas have not heard."""
        self._least = min(max(1.0, LEAST_S * rate_per_s), most)
        self._step = max(1.0, _FIRST_STEP * self.burst)
        self._is_tried = False
        self._tried_at = -inf
        self._due = 0
        self._try_at = -inf
        self._again_s = AGAIN_S
        self._flights = 0

    @property
    def may_be_more(self) -> float:
        """So much more may go at once, as far as anybody knows; nobody should be turned away on the strength of a guess."""
        return 0.0 if self.is_told or self._try_at > -inf else self.most - self.burst

    def grow(self, now: float, let_in: int, in_flight: int) -> float:
        """All that may go at once has gone, and calls wait: by how much it is raised.

        `let_in` counts the calls that were let in since the last refusal, `in_flight` are those of whom nobody knows.
        """
        if self.is_told or self.burst >= self.most or now < self._try_at:
            return 0.0
        if not self._is_tried:
            self._expect(now, let_in + in_flight)
            return 0.0
        if let_in < self._due and now - self._tried_at < UNREFUSED_S:
            return 0.0
        step = min(self._step, _LARGEST_STEP * self.burst, self.most - self.burst)
        step = max(1.0, float(int(step)))
        self._step = 2 * step
        self.burst += step
        self._flights = 0
        self._expect(now, let_in + in_flight + int(step))
        return step

    def refused(self, now: float, *, is_first: bool) -> bool:
        """A call was refused; `is_first` of its flight. False: not because too many went at once, as far as anybody knows."""
        self._rest(now)
        self._flights += is_first
        if self.burst <= self._least:
            return False
        self.burst = max(self._least, self.burst - 1)
        self.is_news = True
        return self._flights <= _FLIGHTS

    def told(self, left: float, most: float) -> float:
        """Headers say that so many are left, of `most` that there can ever be; returns by how much that raises it."""
        self.is_told = True
        before = self.burst
        self.burst = max(before, min(left, most))
        return self.burst - before

    def heard(self, burst: float, now: float) -> None:
        """Another replica has found it to be so many."""
        self.burst = max(self._least, min(burst, max(self.most, self.burst)))
        self._rest(now)

    def _rest(self, now: float) -> None:
        """No more is tried for a while, and then little at first."""
        if now >= self._try_at:
            self._flights = 0
            self._try_at = now + self._again_s
            self._again_s = min(2 * self._again_s, LONGEST_AGAIN_S)
        self._is_tried = False
        self._step = 1.0

    def _expect(self, now: float, due: int) -> None:
        self._is_tried = True
        self._tried_at = now
        self._due = due
