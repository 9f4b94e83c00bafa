"""The message by which a replica asks the store for a part of one shared limit, and the reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LimitKind = Literal["bucket", "window", "slots"]
"""A bucket refills all the time, a window starts anew, slots are held and given back."""


@dataclass(frozen=True, slots=True)
class LeaseAsk:
    """Tells the store what a replica has of one shared limit, and what it asks for. Amounts are in the limit's own unit.

    The counts go on for as long as the replica lives, so that an ask that is told twice, or whose answer is lost, changes
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
    """The seconds after its first use at which a full bucket begins to refill: the provider hears of the first call late."""


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
