"""Refusals that come whatever the rate: told from those of a limit, so that they neither slow a target nor pause it.

A limit refuses all that is too much: its refusals come thick, and stop as soon as the rate is lowered. Some providers
refuse one call in a hundred at any rate; such strays come one at a time, at a low rate, too. A cumulative sum of evidence
(Page, "Continuous inspection schemes", Biometrika 1954) tells the two apart: each refusal adds to it, each accepted call
takes a little of it away, and when it is full there is a limit. How much a refusal adds depends on how usual strays are,
which is learned while the rate is known to be low enough. Where none was ever seen, one refusal is proof enough.

It must not know rates, calls or time. Invariant: O(1), and nothing but a counter for a call that was accepted.
"""

from __future__ import annotations

from math import log

_RAREST = 0.00009
"""Where none was ever seen: one refusal is all the evidence that is needed."""
_MOST_USUAL = 0.06
"""A higher share than this is never taken to be usual."""
_FULL = 7.0
"""Of the evidence: odds of a thousand to one."""
_HEAD_START = 4.0
"""What evidence begins with once the rate was lowered (Lucas and Crosier, 1982): often it was not lowered enough."""
_BY_LIMIT = 0.10
"""The least share of calls that a limit which matters refuses, beside the strays."""
_MEMORY = 2000.0
"""So many calls tell how usual strays are, then the older count half."""
_DOUBT = 60.0
"""So many calls without a stray are assumed beside those that were seen."""
_PROVEN = 3.0
"""So many strays are beyond doubt; before, one of them may have been a limit's."""
_CLEAN, _CLEAN_PROVEN = 3.0, 5.0
"""Half are forgotten after so many times the calls that usually bring one, without any: a chance of one in 20 (150)."""


class Strays:
    """The refusals of one target, and how many of them are usual whatever the rate."""

    __slots__ = ("_calls", "_evidence", "_found", "_limits", "_suspects", "accepted")

    def __init__(self) -> None:
        self.accepted = 0
        """Calls since the last refusal; whoever sees one accepted counts it here."""
        self._evidence = 0.0
        self._calls = 0.0  # at a rate that is low enough, as far as somebody was refused there ...
        self._found = 0.0  # ... and those of them that were refused
        self._limits = 0.0  # how often several were too many for chance
        self._suspects = 0.0  # of these, the ones that are evidence of a limit now

    def refused(self, *, has_room: bool) -> bool:
        """A call was refused: True when there is a limit, False for a stray. The former begins anew.

        `has_room` says that no limit is thought to be near: then it tells how usual strays are.
        """
        accepted, self.accepted = self.accepted, 0
        usual = self.usual
        evidence = self._evidence - accepted * log((1 - usual) / (1 - usual - _BY_LIMIT))
        if evidence <= 0:
            evidence = self._suspects = 0.0
        if accepted * usual > (_CLEAN_PROVEN if self.are_proven else _CLEAN):
            self._found /= 2
        if has_room:
            self._calls += accepted + 1
            self._found += 1
            self._suspects += 1
            if self._calls > _MEMORY:
                self._calls, self._found, self._suspects = self._calls / 2, self._found / 2, self._suspects / 2
                self._limits /= 2
            usual = self.usual
        self._evidence = evidence + log((usual + _BY_LIMIT) / usual)
        if self._evidence < _FULL:
            return False
        if self._suspects > 1:  # a single one may well have been a stray
            self._found = max(0.0, self._found - self._suspects)
            self._limits += 1
        self.lowered()
        return True

    def lowered(self) -> None:
        """The rate was lowered."""
        self._suspects = 0.0
        self._evidence = _HEAD_START

    def found(self, strays: float, calls: float) -> None:
        """So many of these calls were strays, as it has turned out."""
        self._found += strays
        self._calls += calls

    @property
    def usual(self) -> float:
        """The share of calls that is refused whatever the rate, as far as anybody knows."""
        share = (self._found - (0.0 if self.are_proven else 1.0)) / (self._calls + _DOUBT)
        return min(max(share, _RAREST), _MOST_USUAL)

    @property
    def are_usual(self) -> bool:
        """Whether more than one was seen."""
        return self._found > 1.0

    @property
    def are_proven(self) -> bool:
        """Whether they are usual beyond doubt, and not too many to be strays: then no pause follows from one."""
        return max(_PROVEN, 2 * self._limits) <= self._found <= _MOST_USUAL * self._calls
