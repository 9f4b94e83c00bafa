"""Adds up what all replicas have used of something, such as money: no call waits for it, each replica hears of the others.

It is told to the store like a share that leases nothing and uses what it was never granted: the store's level is what is
left of a sum larger than anybody's. It must not know what is counted. Invariant: what was added here counts once, whatever
is lost on the way; while the store is out of reach the others' part stays as last heard.
"""

from __future__ import annotations

from collections.abc import Callable
from math import floor, inf

from gateway.core.limits.bucket import Bucket, Limit, Slots, Window
from gateway.fleet.lease.lease import LeaseAsk, LeaseReply, LimitKind

# A local share is one of N equal parts of a limit, for a replica that cannot hear what the others use.
#
# It begins with what the replica held, and its part of the unleased amount that the store told last: that is borrowed, and
# owed when the store is back. It must not know the store. Invariant: all parts together let no more through than the limit
# would have.


class LocalShare:
    """Holds the share as a limit of its own, and since when the replica lives on it."""

    __slots__ = ("_kind", "_knows_level", "borrowed", "limit", "rate_per_s", "since")

    def __init__(self, kind: LimitKind, limit: Limit, free: float, borrowed: float | None, now: float) -> None:
        """`free` is its level now, `borrowed` the part of it that was unleased; None: the store was never heard."""
        self.limit = limit
        self.rate_per_s = limit.rate_per_s if isinstance(limit, Bucket) else 0.0
        self.since = now
        self._kind = kind
        self._knows_level = borrowed is not None
        self.borrowed = borrowed or 0.0
        if kind != "slots":
            limit.correct(free, now)

    def wait_s(self, cost: float, now: float, keep: float, most: float) -> float | None:
        """Returns what `Limit.wait_s` does; a call larger than the share, but not than the limit (`most`), has to save up."""
        if self.limit.capacity < cost <= most:
            return (cost - self.limit.level_at(now)) / self.rate_per_s if self.rate_per_s else None
        return self.limit.wait_s(cost, now, min(keep, self.limit.capacity))

    def want(self, cost: float, now: float, most: float) -> None:
        """Saves up from now on for a call larger than the share, but not than the limit (`most`)."""
        if self.limit.capacity < cost <= most:
            self.limit.resize(self.rate_per_s, cost, now)

    def resize(self, change_rate: float, change_capacity: float, now: float) -> None:
        """Scales the share with its limit, which is now so many times as fast and as large."""
        self.rate_per_s *= change_rate
        self.limit.resize(self.rate_per_s, self.limit.capacity * change_capacity, now)

    def correct(self, level: float, now: float) -> None:
        """Sets the level; a loss was not used by anybody here, so that much of what was borrowed is not owed."""
        before = self.limit.level_at(now)
        self.limit.correct(level, now)
        self._forgive(before, now)

    def reconcile(
        self, remaining: float, now: float, sent_at: float, taken_since: float, grain: float, doubt: float | None = None
    ) -> None:
        """Does what `Limit.reconcile` does; a loss is not owed."""
        before = self.limit.level_at(now)
        self.limit.reconcile(remaining, now, sent_at, taken_since, grain, doubt)
        self._forgive(before, now)

    def _forgive(self, before: float, now: float) -> None:
        lost = before - self.limit.level_at(now)
        if lost > 0 and self._kind != "slots":
            self.borrowed = max(0.0, self.borrowed - lost)

    def left(self, now: float) -> float:
        """Returns what the replica brings back to the store, below 0 what it owes; slots in use are counted apart."""
        return self.limit.level_at(now) if self._kind != "slots" and self._knows_level else 0.0

    def used(self, now: float) -> float:
        """Returns what the present window has let through, if one has begun since."""
        return self.limit.capacity - self.limit.level_at(now)


def own_bucket(
    rate_per_s: float, capacity: float, held: float, common: float | None, replicas: int, now: float
) -> LocalShare:
    """Returns the local share of a bucket; `common` is the unleased amount; if None, never heard of, the share begins full."""
    part = capacity / replicas
    free, borrowed = _free(part, held, common, replicas)
    return LocalShare("bucket", Bucket(rate_per_s / replicas, part, now), free, borrowed, now)


def own_window(
    window_s: float, ends_in_s: float, capacity: float, held: float, common: float | None, replicas: int, now: float
) -> LocalShare:
    """Returns the local share of a window, which begins in the one that ends in `ends_in_s`; at least one call fits."""
    part = max(1.0, capacity / replicas)
    if ends_in_s <= 0:  # none is open
        return LocalShare("window", Window(part, window_s, now), part, 0.0, now)
    free, borrowed = _free(part, held, common, replicas)
    window = Window(part, window_s, now)
    window.force(0.0, now)  # it has begun
    window.align(ends_in_s, now, now)
    return LocalShare("window", window, free, borrowed, now)


def own_slots(capacity: float, in_use: float, replicas: int, now: float) -> LocalShare:
    """Returns the local share of slots, at least one; those in use are its own."""
    slots = Slots(max(1.0, floor(capacity / replicas)))
    slots.force(in_use, now)
    return LocalShare("slots", slots, 0.0, None, now)


def _free(part: float, held: float, common: float | None, replicas: int) -> tuple[float, float | None]:
    if common is None:
        return part, None
    free = min(part, held + max(0.0, common) / replicas)
    return free, max(0.0, free - held)


MOST = 1e7
"""The capacity told to the store, small enough that a double still tells a millionth of a cent apart."""
REPORT_S = 0.2
REFRESH_S = 1.0


class FleetSum:
    """Keeps one replica's account of one sum."""

    __slots__ = (
        "__weakref__",
        "_counted",
        "_elsewhere",
        "_given",
        "_granted",
        "_is_known",
        "_is_read",
        "_own",
        "_sent",
        "_sent_at",
        "_wake",
        "is_alone",
        "is_pending",
        "name",
        "needs_refill",
        "owner",
        "part",
        "retry_at",
    )

    def __init__(self, owner: str, name: str, now: float, wake: Callable[[FleetSum], None]) -> None:
        """`wake` is called when there is something to tell, or to hear."""
        self.owner = owner
        self.name = name
        self.part = 0
        self.is_alone = False
        self.is_pending = False
        self.needs_refill = False
        self.retry_at = -inf
        self._wake = wake
        self._own = 0.0
        self._sent = 0.0
        self._counted = 0.0  # of that, what the store has confirmed
        self._elsewhere = 0.0
        self._granted = 0.0
        self._given = 0.0
        self._is_known = self._is_read = False
        self._sent_at = now

    @property
    def is_known(self) -> bool:
        """Returns whether the store has told what others have added."""
        return self._is_known

    def read(self) -> float:
        """Returns what was added here, and elsewhere as far as is known; from now on the sum is kept fresh."""
        self._is_read = True
        return self._own + self._elsewhere

    @property
    def untold(self) -> float:
        """Returns the part of what was added here that the store has not confirmed."""
        return self._own - self._counted

    def add(self, amount: float) -> None:
        """Adds an amount; one below 0 corrects what was added before."""
        self._own = max(0.0, self._own + amount)
        self.look()

    def look(self) -> None:
        """Asks for what the others have added by now, with the next round."""
        if not self.needs_refill and not self.is_pending and not self.is_alone:
            self.needs_refill = True
            self._wake(self)

    def ask(self, now: float, waiting: float) -> LeaseAsk:
        """Returns the message to the store, and begins an ask; `waiting` means nothing here."""
        self.is_pending, self.needs_refill = True, False
        self._sent_at, self._sent, self._is_read = now, self._own, False
        self._given += max(0.0, self._granted - self._own - self._given)
        return LeaseAsk(
            name=f"{self.owner}|{self.name}",
            kind="bucket",
            rate_per_s=0.0,
            capacity=MOST,
            window_s=0.0,
            granted=self._granted,
            used=self._own,
            given=self._given,
            want=0.0,
            first=0.0,
            known=MOST - self._counted - self._elsewhere if self._is_known else -1.0,
        )

    def take_reply(self, reply: LeaseReply, now: float) -> None:
        """Takes the reply of the store in, which ends the ask."""
        self.is_pending, self._is_known = False, True
        self._granted, self._counted = reply.granted, self._sent
        self._elsewhere = max(0.0, MOST - reply.level - self._sent)
        self.retry_at = now + REPORT_S

    def go_local(self, replicas: int, now: float) -> None:
        """Counts for this replica alone from now on, from what was heard, because the store is out of reach."""
        self.is_alone, self.is_pending, self.needs_refill = True, False, False

    def rejoin(self, now: float) -> None:
        """Tells the store, which is back, what was added meanwhile."""
        self.is_alone = False
        self.retry_at = -inf
        self.look()

    def is_due(self, now: float) -> bool:
        """Returns whether there is something to tell, or to hear."""
        if self.is_pending:
            return False
        after_s = REPORT_S if self._own != self._sent else REFRESH_S if self._is_read else inf
        return now - self._sent_at >= after_s

    def is_idle(self, now: float) -> bool:
        """Returns False: others may add to it at any time."""
        return False

    def leave(self) -> None:
        """Does nothing: this replica ends, and what it has added stays."""
