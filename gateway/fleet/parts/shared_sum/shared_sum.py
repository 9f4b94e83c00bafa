"""Adds up what all replicas have used of something, such as money: no call waits for it, each replica hears of the others.

It is told to the store like a share that leases nothing and uses what it was never granted: the store's level is what is
left of a sum larger than anybody's. It must not know what is counted. Invariant: what was added here counts once, whatever
is lost on the way; while the store is out of reach the others' part stays as last heard.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from gateway.fleet.lease.lease.lease import LeaseAsk, LeaseReply

MOST = 1e7
"""The capacity told to the store, small enough that a double still tells a millionth of a cent apart."""
REPORT_S = 0.2
REFRESH_S = 1.0


class FleetSum:
    """Keeps one replica's account of one sum."""

    __slots__ = (
        "__weakref__",
        "_asked_at",
        "_counted",
        "_elsewhere",
        "_given",
        "_granted",
        "_is_known",
        "_is_read",
        "_own",
        "_told",
        "_wake",
        "is_alone",
        "is_asked",
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
        self.is_asked = False
        self.needs_refill = False
        self.retry_at = -inf
        self._wake = wake
        self._own = 0.0
        self._told = 0.0
        self._counted = 0.0  # of that, what the store has confirmed
        self._elsewhere = 0.0
        self._granted = 0.0
        self._given = 0.0
        self._is_known = self._is_read = False
        self._asked_at = now

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
        if not self.needs_refill and not self.is_asked and not self.is_alone:
            self.needs_refill = True
            self._wake(self)

    def ask(self, now: float, waiting: float) -> LeaseAsk:
        """Returns the message to the store, and begins an ask; `waiting` means nothing here."""
        self.is_asked, self.needs_refill = True, False
        self._asked_at, self._told, self._is_read = now, self._own, False
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

    def heard(self, reply: LeaseReply, now: float) -> None:
        """Takes the reply of the store in, which ends the ask."""
        self.is_asked, self._is_known = False, True
        self._granted, self._counted = reply.granted, self._told
        self._elsewhere = max(0.0, MOST - reply.level - self._told)
        self.retry_at = now + REPORT_S

    def go_local(self, replicas: int, now: float) -> None:
        """Counts for this replica alone from now on, from what was heard, because the store is out of reach."""
        self.is_alone, self.is_asked, self.needs_refill = True, False, False

    def rejoin(self, now: float) -> None:
        """Tells the store, which is back, what was added meanwhile."""
        self.is_alone = False
        self.retry_at = -inf
        self.look()

    def is_due(self, now: float) -> bool:
        """Returns whether there is something to tell, or to hear."""
        if self.is_asked:
            return False
        after_s = REPORT_S if self._own != self._told else REFRESH_S if self._is_read else inf
        return now - self._asked_at >= after_s

    def is_idle(self, now: float) -> bool:
        """Returns False: others may add to it at any time."""
        return False

    def leave(self) -> None:
        """Does nothing: this replica ends, and what it has added stays."""
