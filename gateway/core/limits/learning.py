"""Learns limits that nobody wrote down: a cap that follows latency, a rate, a burst.

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

from dataclasses import replace
from math import exp, inf, log, sqrt

from gateway.core.limits.rate_search import SLOW_START, RateSearch, Strays

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


# Whether a target's rate has to be found out, because nobody tells one or the one told is not believed.
#
#     nobody tells a rate -> a search          someone does -> none          too many refusals all the same -> a search below it
#     the search comes above the rate that is told, or nobody has to wait for it any more -> none
#
# What is told may be wrong: somebody else uses the account, or the config has a slip. It must not know limits or pauses: the
# rate that is told comes in as an argument. Invariant: every refusal is judged by the strays, with a search or without.


_UNEXPLAINED = 0.1
"""A greater share of refusals than this, and the rate that is told is not believed any more."""
_FADE = 0.02
"""The part of one call in that share."""
LET_GO_S = 60.0
"""A search beside a rate that is told ends once nobody has had to wait for it so long."""


class RateDiscovery:
    """What is found out about the rate of one target."""

    __slots__ = (
        "_distrusted_at",
        "_let_in_per_s",
        "_refused_at",
        "_refused_share",
        "_strays",
        "is_distrusted",
        "let_in",
        "search",
    )

    def __init__(self, now: float) -> None:
        self.search: RateSearch | None = None
        """The search for a rate; None: there is one that is told and believed, or nothing is to be learned."""
        self._distrusted_at = -inf
        self._refused_at = now
        self._let_in_per_s = 0.0  # between the last two refusals, or moments of several
        self.is_distrusted = False
        """The rate that is told is not believed."""
        self.let_in = 0
        """Calls that were let in since the last refusal; whoever sees one counts it here."""
        self._strays = Strays()
        self._refused_share = 0.0

    def review(self, now: float, *, learns: bool, is_known: bool) -> None:
        """Begins or ends the search after what is known has changed: `is_known` says that there is a rate."""
        if not learns or (is_known and not self.is_distrusted):
            self.search = None
        elif self.search is None:
            self.search = RateSearch(now, strays=self._strays)

    def refused(
        self, sent_at: float, now: float, *, is_current: bool, is_explained: bool = False, is_timed: bool = False
    ) -> bool:
        """Notes a refusal; returns False for one that beyond doubt would have come at any rate.

        `is_current` says that no other call of its epoch was refused before, `is_explained` that headers tell of a limit
        of which nothing is left, `is_timed` that the provider has told when to come back.
        """
        let_in, self.let_in = self.let_in, 0
        if let_in:
            self._let_in_per_s = let_in / max(1.0, now - self._refused_at)
        self._refused_at = now
        self._refused_share *= (1 - _FADE) ** let_in
        if self.search is not None:
            is_limit = self.search.refused(sent_at, now, is_timed=is_timed)
        elif is_explained:
            return True
        elif is_current:
            self._strays.accepted = let_in
            is_limit = self._strays.refused(has_room=True)  # by all that is known there was
        else:
            return True
        return is_limit or is_explained or not self._strays.are_proven

    def count_unexplained(self) -> None:
        """Counts a refusal that a burst does not explain against the rate that is told."""
        self._refused_share += (1 - self._refused_share) * _FADE

    @property
    def is_unexplained(self) -> bool:
        """More is refused than a rate that is true would bring about."""
        return self._refused_share > _UNEXPLAINED

    def distrust(self, now: float) -> None:
        """Begins a search for the rate that binds, below what was told."""
        self.is_distrusted, self._refused_share = True, 0.0
        rate_per_s = max(SLOW_START.blind_rate, self._let_in_per_s)
        self.search = RateSearch(now, replace(SLOW_START, blind_rate=rate_per_s, first_rate=rate_per_s), self._strays)
        self._distrusted_at = now

    def trust(self) -> bool:
        """Trusts a distrusted rate again; returns whether it was distrusted."""
        was_distrusted, self.is_distrusted, self._refused_share = self.is_distrusted, False, 0.0
        return was_distrusted

    def trust_if_confirmed(self, reported_per_s: float, now: float) -> bool:
        """Trusts a distrusted rate again once the search has come above it, or binds nobody; returns whether it does."""
        if not self.is_distrusted or self.search is None:
            return False
        is_binding = now - self._distrusted_at <= LET_GO_S or self.search.is_binding(now, LET_GO_S)
        if self.search.rate_per_s <= reported_per_s and is_binding:
            return False
        return self.trust()


# How many requests a provider takes at once, where neither the config nor its headers say so.
#
#     grow -> (those calls go) -> nobody is refused -> grow …       or refused: so many less
#
# Begins with a second's worth of the rate. While calls wait for more, and nobody was refused, a few more go at once, then twice
# as many each time, as in TCP's slow start (RFC 5681), up to what is allowed. Each refusal says that it was one call too many;
# then it is tried again seldom. Once headers say what is left, they are believed. It must not know limits, calls or replicas.
# Invariants: never above `most` unless headers say so; what is tried at once is at most half of what is known to go; a refusal
# never raises it.


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
        "is_known",
        "is_news",
        "most",
    )

    def __init__(self, rate_per_s: float, most: float, *, is_known: bool = False) -> None:
        """`most` is what is allowed where headers say nothing."""
        self.most = most
        self.burst = self._first = min(max(FIRST_S * rate_per_s, FIRST_CALLS), most)
        """So many may go at once."""
        self.is_known = is_known
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
        return 0.0 if self.is_known or self._try_at > -inf else self.most - self.burst

    def grow(self, now: float, let_in: int, in_flight: int) -> float:
        """All that may go at once has gone, and calls wait: by how much it is raised.

        `let_in` counts the calls that were let in since the last refusal, `in_flight` are those of whom nobody knows.
        """
        if self.is_known or self.burst >= self.most or now < self._try_at:
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

    def observe(self, left: float, most: float) -> float:
        """Headers say that so many are left, of `most` that there can ever be; returns by how much that raises it."""
        self.is_known = True
        before = self.burst
        self.burst = max(before, min(left, most))
        return self.burst - before

    def adopt(self, burst: float, now: float) -> None:
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
