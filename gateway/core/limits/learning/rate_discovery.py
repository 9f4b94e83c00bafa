"""Whether a target's rate has to be found out, because nobody tells one or the one told is not believed.

    nobody tells a rate -> a search          someone does -> none          too many refusals all the same -> a search from there

What is told may be wrong: somebody else uses the account, or the config has a slip. It must not know limits or pauses: the rate
that is told comes in as an argument. Invariant: every refusal is judged by the strays, with a search or without.
"""

from __future__ import annotations

from math import inf

from gateway.core.limits.rate_search.rate_search import RateSearch
from gateway.core.limits.rate_search.stray_refusals import Strays

ASSUMED_PER_S = 100.0
"""Calls per second to search from, where only tokens are told."""
_UNEXPLAINED = 0.1
"""A greater share of refusals than this, and the rate that is told is not believed any more."""
_FADE = 0.02
"""The part of one call in that share."""
_LEAST_SHARE = 0.25
"""A search that has come below this share of what was told has shown that it is not our rate which is refused."""


class RateDiscovery:
    """What is found out about the rate of one target."""

    __slots__ = ("_refused_share", "_strays", "is_distrusted", "let_in", "search")

    def __init__(self) -> None:
        self.search: RateSearch | None = None
        """The search for a rate; None: there is one that is told and believed, or nothing is to be learned."""
        self.is_distrusted = False
        """The rate that is told is not believed."""
        self.let_in = 0
        """Calls that were let in since the last refusal; whoever sees one counts it here."""
        self._strays = Strays()
        self._refused_share = 0.0

    def review(self, now: float, *, learns: bool, is_told: bool) -> None:
        """Begins or ends the search after what is known has changed: `is_told` says that there is a rate."""
        if not learns or (is_told and not self.is_distrusted):
            self.search = None
        elif self.search is None:
            self.search = RateSearch(now, strays=self._strays)

    def refused(self, sent_at: float, now: float, *, is_current: bool) -> bool:
        """Notes a refusal; returns False for one that beyond doubt would have come at any rate.

        `is_current` says that no other call of its epoch was refused before.
        """
        let_in, self.let_in = self.let_in, 0
        self._refused_share *= (1 - _FADE) ** let_in
        if self.search is not None:
            is_limit = self.search.refused(sent_at, now)
        elif is_current:
            self._strays.accepted = let_in
            is_limit = self._strays.refused(has_room=True)  # by all that is known there was
        else:
            return True
        return is_limit or not self._strays.are_proven

    def count_unexplained(self) -> None:
        """Counts a refusal that a burst does not explain against the rate that is told."""
        self._refused_share += (1 - self._refused_share) * _FADE

    @property
    def is_unexplained(self) -> bool:
        """More is refused than a rate that is true would bring about."""
        return self._refused_share > _UNEXPLAINED

    def distrust(self, told_per_s: float, now: float) -> None:
        """Begins a search from the rate that was told (inf: only tokens were), with one refusal at once."""
        self.is_distrusted = True
        self.search = RateSearch(now, strays=self._strays)
        self.search.assume(_per_s(told_per_s), now)
        self.search.refused(now, now)

    def trust_if_confirmed(self, told_per_s: float) -> bool:
        """Trusts a distrusted rate again if the search from it has come above it; returns whether it did."""
        if not self.is_distrusted or self.search is None or self.search.rate_per_s <= told_per_s:
            return False
        self.is_distrusted = False
        return True

    def trust_if_in_vain(self, told_per_s: float) -> bool:
        """Trusts a distrusted rate again if going far slower does not help; returns whether it did."""
        if not self.is_distrusted or self.search is None or self.search.rate_per_s >= _LEAST_SHARE * _per_s(told_per_s):
            return False
        self.is_distrusted, self._refused_share = False, 0.0
        return True


def _per_s(told_per_s: float) -> float:
    return told_per_s if told_per_s < inf else ASSUMED_PER_S
