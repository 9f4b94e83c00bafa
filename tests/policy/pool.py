"""A store of leases that fits on a page: who asks first is served first. What is fair is the real store's business."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor, inf

from gateway.ports import LeaseAsk, LeaseReply


@dataclass
class Told:
    """One replica's counts, by the store."""

    granted: float
    used: float
    given: float

    @property
    def lent(self) -> float:
        return self.granted - self.used - self.given


@dataclass
class Pool:
    """One limit, and what replicas hold of it."""

    capacity: float
    rate_per_s: float = 0.0
    window_s: float = 0.0
    at: float = 0.0
    level: float = field(init=False)
    window: int = 0
    ends_at: float = -inf
    told: dict[str, Told] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.level = self.capacity

    def ask(self, replica: str, ask: LeaseAsk, now: float) -> LeaseReply:
        """Counts what was used, and grants what there is."""
        self._refill(now)
        told = self.told.get(replica)
        if told is None or ask.away_s:
            told = self.told[replica] = Told(ask.granted, ask.used, ask.given)
        if ask.kind == "window" and ask.window != self.window:
            told.granted, told.used, told.given = ask.used + ask.given, ask.used, ask.given
        self.level += ask.given - told.given
        told.used, told.given = ask.used, ask.given
        if told.lent < 0:
            self.level += told.lent
            told.granted -= told.lent
        self.level = min(self.level, ask.ceiling - self.lent)
        granted = max(0.0, min(ask.want, self.level - ask.keep))
        if granted < ask.first:
            granted = 0.0
        if ask.kind != "bucket":
            granted = float(floor(granted))
        if granted and ask.kind == "window" and now >= self.ends_at:
            self.ends_at = now + self.window_s
        self.level -= granted
        told.granted += granted
        short = ask.first > granted
        ends_in_s = max(0.0, self.ends_at - now)
        return LeaseReply(told.granted, self.level, int(short), 0.05 if short else 0.0, self.window, ends_in_s)

    @property
    def lent(self) -> float:
        """What replicas hold, as far as they have told."""
        return sum(max(0.0, one.lent) for one in self.told.values())

    def _refill(self, now: float) -> None:
        self.level = min(self.level + (now - self.at) * self.rate_per_s, self.capacity - self.lent)
        self.at = now
        if self.window_s and self.ends_at <= now and self.ends_at > -inf:
            self.window, self.ends_at, self.level = self.window + 1, -inf, self.capacity
            for one in self.told.values():
                one.granted = one.used + one.given
