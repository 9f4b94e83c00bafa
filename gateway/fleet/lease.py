"""The message by which a replica asks the store for a part of one shared limit, and the reply.

First comes the demand, from which a replica knows how much to ask for, then the ask and the reply, and last what the replica
knows of the whole limit by the last reply. Amounts are in the limit's own unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf

from gateway.core.limits.limit_table import LimitKind

# --- demand: how much the calls of one replica will take of one limit in the next moments ---


AHEAD_S = 0.5
"""Seconds of demand that are leased ahead of need."""
WARM_S = 30.0
"""Seconds after its last use for which a share of a large limit holds enough for `WARM_CALLS` calls."""
WARM_CALLS = 2
LARGE = 64
"""The calls at once from which on a limit can spare some for every replica."""
SMALL = 8
"""The calls at once below which nothing of a limit is held ahead: the replica that needs the next one gets it."""
PART = 16
"""The divisor of a limit that bounds what is held ahead of it."""
SMOOTH_S = 1.0


class Demand:
    """Counts the calls of one replica and what they take, and smooths both over `SMOOTH_S`, to predict the next moments."""

    __slots__ = ("_cost", "_per_s", "_reported", "_since", "calls", "used_at")

    def __init__(self, now: float) -> None:
        self.calls = 0
        """The calls since the last `observe`."""
        self.used_at = -inf
        self._per_s = 0.0
        self._cost = 1.0
        self._since = now
        self._reported = 0.0

    def observe(self, used: float | None, now: float) -> None:
        """Takes the calls since the last time into account.

        `used` is all that calls ever took, in the limit's unit; None where each call takes one and gives it back.
        """
        if self.calls:
            self.used_at = now
            if used is not None:
                self._cost += (max(0.0, used - self._reported) / self.calls - self._cost) * 0.5
        span_s = now - self._since
        if span_s > 0:
            self._per_s += (self.calls / span_s - self._per_s) * min(1.0, span_s / SMOOTH_S)
            self.calls, self._since = 0, now
        self._reported = used or 0.0

    def ahead(self, capacity: float, now: float, *, is_whole: bool, keeps_warm: bool) -> float:
        """Returns how much to hold of a limit with this capacity: whole calls, because a part of one is of no use.

        `is_whole` limits count whole units; `keeps_warm` holds a little for some time after the last use.
        """
        calls = floor(self._per_s * AHEAD_S)
        if keeps_warm and calls < WARM_CALLS and now - self.used_at < WARM_S and capacity >= LARGE * self._cost:
            calls = WARM_CALLS
        if not is_whole:
            return min(calls * self._cost, capacity / PART)
        return float(min(calls, max(floor(capacity / PART), int(capacity >= SMALL))))

    def end(self) -> None:
        """Forgets the demand: there will be no more calls."""
        self.calls, self._per_s, self.used_at = 0, 0.0, -inf


@dataclass(frozen=True, slots=True)
class LeaseAsk:
    """Reports to the store what a replica has of one shared limit, and what it asks for. Amounts are in the limit's own unit.

    The counts go on for as long as the replica lives, so that an ask that is sent twice, or whose answer is lost, changes
    nothing: what the replica holds is always `granted - used - given`; below 0 it has used more than it had.
    """

    name: str
    """The name of the limit, the same on every replica: its owner's name and its own."""
    kind: LimitKind
    rate_per_s: float
    """The refill of a bucket; 0 for other kinds."""
    capacity: float
    window_s: float
    """The length of a window; 0 for other kinds."""
    granted: float
    """The sum of all that this replica was ever granted, as far as it knows."""
    used: float
    """The sum of all that its calls ever took, settled, less the refill of local shares; 0 for slots, which are held."""
    given: float
    """The sum of all that it ever gave back unused."""
    want: float
    """The amount that it could use soon, beyond what it holds; 0: nothing."""
    first: float
    """The least amount of that which is of any use: what the call whose turn it is still lacks."""
    keep: float = 0.0
    """The amount that a grant must leave in the whole limit, because calls of lower lanes leave room for others."""
    ceiling: float = float("inf")
    """The most that can be free in the whole limit, by the provider's own word."""
    window: int = 0
    """The number of the window that the counts are of."""
    known: float = -1.0
    """The common level as this replica reckons it, for a store that has lost its own; below 0: it never knew one."""
    away_s: float = 0.0
    """The seconds for which this replica lived on a local share because the store was out of reach; 0.0: it did not."""
    away_rate_per_s: float = 0.0
    """The refill of that local share meanwhile."""
    charged: float = 0.0
    """The sum of what it ever took beyond its lease while the store was out of reach: of the unleased amount, or of a window
    that began meanwhile."""
    charged_before: float = 0.0
    """The value of `charged` when the store last answered."""
    incarnation: int = 0
    """A number that changes when the counts begin anew; to the store they are then those of another replica."""
    lag_s: float = 0.0
    """The seconds after its first use at which a full bucket begins to refill: the provider gets the first call late."""


@dataclass(frozen=True, slots=True)
class LeaseReply:
    """The reply of the store to one ask."""

    granted: float
    """The sum of all that this replica was ever granted, by the store's count."""
    level: float
    """The unleased amount, which no replica holds."""
    wanting: int
    """The number of replicas that want more than they were given, this one among them if it does."""
    retry_s: float
    """The seconds to wait before asking again, if something was wanted and not given; else 0."""
    window: int = 0
    ends_in_s: float = 0.0
    """The seconds until a window starts anew."""
    most: float = float("inf")
    """The most slots that a replica may hold while another waits for one; it gives back those that come free above that."""


# --- what a replica knows of the whole of a shared limit ---


class StoreView:
    """Keeps the last reply of the store, and ages it: what a replica knows of the whole of a shared limit. Times are monotonic
    seconds.
    """

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
        return self._known_at > -inf

    def take_reply(self, reply: LeaseReply, kind: LimitKind, now: float) -> None:
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
