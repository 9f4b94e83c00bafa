"""Keeps what a replica knows of the whole of a shared limit: the last reply of the store.

It must not know what the replica holds. Times are monotonic seconds, amounts in the limit's own unit.
"""

from __future__ import annotations

from math import inf

from gateway.fleet.lease.lease.lease import LeaseReply, LimitKind


class StoreView:
    """Keeps the last reply of the store, and ages it."""

    __slots__ = ("_known_at", "_level", "_spare", "ends_at", "most", "wanting", "window")

    def __init__(self, kind: LimitKind) -> None:
        self._level = -1.0
        self._spare = 0.0  # the same, less what was taken for a part of its own
        self._known_at = -inf
        self.wanting = 1
        """The number of replicas that want more than they were given, at least 1."""
        self.most = inf
        """The most slots that a replica may hold while another waits for one."""
        self.window = 0
        """The number of the window that counts are of."""
        self.ends_at = -inf if kind == "window" else inf
        """The time at which the window starts anew (monotonic seconds); inf for other kinds."""

    @property
    def is_known(self) -> bool:
        """Returns whether the store was ever heard."""
        return self._known_at > -inf

    def hear(self, reply: LeaseReply, kind: LimitKind, now: float) -> None:
        """Takes over the reply of the store."""
        self._level = self._spare = reply.level
        self._known_at, self.most, self.wanting = now, reply.most, max(1, reply.wanting)
        if kind == "window":
            self.window, self.ends_at = reply.window, now + reply.ends_in_s

    def claim(self) -> None:
        """Takes off the unleased amount: this replica's part went into its local share, the rest belongs to the others."""
        self._spare = min(0.0, self._spare)

    def common(self, now: float) -> float:
        """Returns the unleased amount when the store last answered; others may have taken from it since."""
        return self._spare if self.is_known and now < self.ends_at else 0.0

    def reckoned(self, kind: LimitKind, rate_per_s: float, capacity: float, until: float, now: float) -> float:
        """Estimates the unleased amount for a store that has lost it, with the refill until `until`; -1.0: unknown."""
        if not self.is_known or kind == "slots" or now >= self.ends_at:
            return -1.0
        if kind == "window":
            return max(0.0, self._level)
        return max(0.0, min(capacity, self._level + max(0.0, until - self._known_at) * rate_per_s))
