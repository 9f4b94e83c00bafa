"""What a replica has told and heard of targets, as far as it has to be known later; all of it is bounded.

It must not know gates, breakers or how replicas talk. Invariants: an end is only ever made later; what is kept for gates that
are not there yet goes when it is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from math import inf
from operator import itemgetter
from typing import NamedTuple

from gateway.core.ports import NewsItem
from gateway.fleet.news.codec import Amount

CHANGED = 0.01
"""A limit that differs by less than this share is the same."""
MOST_KEPT = 4096
"""The most ends, limits, hands and items of unknown gates that are kept, each."""

About = tuple[str, str]
"""A kind of news, and the name it is about."""


@dataclass(slots=True)
class KnownLimits:
    """Keeps what is known of targets' limits, by name, and when it was told or heard last."""

    limits: dict[str, Amount] = field(default_factory=dict)
    at: float = -inf

    def changes(self, name: str, amount: Amount) -> bool:
        """Notes the limit; returns whether it differs from what was known of it."""
        before = self.limits.get(name)
        if before is not None and before[1] == amount[1] and abs(before[0] - amount[0]) <= CHANGED * before[0]:
            return False
        self.limits[name] = amount
        return True


class KnownEnds:
    """Keeps the ends of pauses and quotas, as told or heard; of breakers, until when peers keep away (monotonic)."""

    __slots__ = ("ends",)

    def __init__(self) -> None:
        self.ends: dict[About, float] = {}

    def get(self, about: About) -> float:
        """Returns the latest end that is known; -inf: none."""
        return self.ends.get(about, -inf)

    def note(self, about: About, ends_at: float, now: float) -> None:
        """Notes an end; an earlier one than is known changes nothing."""
        if len(self.ends) >= MOST_KEPT:  # half of the room is made at once: seldom, then
            lasting = sorted((one for one in self.ends.items() if one[1] > now), key=itemgetter(1))
            self.ends = dict(lasting[-MOST_KEPT // 2 :])
        self.ends[about] = max(ends_at, self.ends.get(about, -inf))

    def forget(self, *kinds: str, name: str) -> None:
        """Drops these kinds of ends for the name, which are over."""
        for kind in kinds:
            self.ends.pop((kind, name), None)


class _Unmet(NamedTuple):
    """News of a gate that is not there yet."""

    ends_at: float
    order: int
    item: NewsItem


class UnmetNews:
    """News of gates that are not there yet, kept until they are, or until it is over."""

    __slots__ = ("_orders", "items")

    def __init__(self) -> None:
        self.items: dict[About, _Unmet] = {}
        self._orders = count()

    def keep(self, item: NewsItem, now: float) -> None:
        """Keeps the item in place of an older one of its kind; one that is over drops that."""
        about = item.kind, item.name
        if not item.left_s:
            self.items.pop(about, None)
            return
        if len(self.items) >= MOST_KEPT:
            self.items = {one: kept for one, kept in self.items.items() if kept.ends_at > now}
        if len(self.items) < MOST_KEPT:
            self.items[about] = _Unmet(now + item.left_s, next(self._orders), item)

    def take(self, name: str, now: float) -> list[NewsItem]:
        """Takes out what was kept for the name and returns what of it is not over, in the order in which it came."""
        if not self.items:
            return []
        kept = [self.items.pop((kind, name), None) for kind in ("limit", "pause", "quota", "breaker", "hand")]
        present = sorted((one for one in kept if one is not None), key=itemgetter(1))
        return [one.item._replace(left_s=one.ends_at - now) for one in present if one.ends_at > now]
