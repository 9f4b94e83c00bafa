"""What a replica knows of the whole of a shared limit: what the store has said last.

It must not know what the replica holds. Times are monotonic seconds, amounts in the limit's own unit.
"""

from __future__ import annotations

from math import inf

from gateway.policy.fleet.lease import LeaseReply, LimitKind


class StoreView:
    """The last reply of the store, and how it ages."""

    __slots__ = ("_known_at", "_level", "_spare", "ends_at", "most", "wanting", "window")

    def __init__(self, kind: LimitKind) -> None:
        self._level = -1.0
        self._spare = 0.0  # the same, less what was taken for a part of its own
        self._known_at = -inf
        self.wanting = 1
        """So many replicas want more than they were given."""
        self.most = inf
        """Of slots, while others wait who have fewer: who holds more gives back those that come free."""
        self.window = 0
        """The number of the window that counts are of."""
        self.ends_at = -inf if kind == "window" else inf
        """When the window starts anew."""

    @property
    def is_known(self) -> bool:
        """Whether the store was ever heard."""
        return self._known_at > -inf

    def hear(self, reply: LeaseReply, kind: LimitKind, now: float) -> None:
        """Takes the store's word."""
        self._level = self._spare = reply.level
        self._known_at, self.most, self.wanting = now, reply.most, max(1, reply.wanting)
        if kind == "window":
            self.window, self.ends_at = reply.window, now + reply.ends_in_s

    def claim(self) -> None:
        """The replica has taken its part of what nobody held; the rest is the others'."""
        self._spare = min(0.0, self._spare)

    def common(self, now: float) -> float:
        """What nobody holds, as far as is known: others take from it, and it refills."""
        return self._spare if self.is_known and now < self.ends_at else 0.0

    def reckoned(self, kind: LimitKind, rate_per_s: float, capacity: float, until: float, now: float) -> float:
        """What nobody holds, reckoned for a store that has lost it: it refilled until then; below 0: never known."""
        if not self.is_known or kind == "slots" or now >= self.ends_at:
            return -1.0
        if kind == "window":
            return max(0.0, self._level)
        return max(0.0, min(capacity, self._level + max(0.0, until - self._known_at) * rate_per_s))
