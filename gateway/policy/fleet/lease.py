"""What a replica asks the store for of one shared limit, and what it is answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LimitKind = Literal["bucket", "window", "slots"]
"""What refills all the time, what starts anew, what is held and given back."""


@dataclass(frozen=True, slots=True)
class LeaseAsk:
    """What a replica tells of its part of one shared limit, and what it asks for. Amounts are in the limit's own unit.

    The counts go on for as long as the replica lives, so that an ask that is told twice, or whose answer is lost, changes
    nothing: what the replica holds is always `granted - used - given`; below 0 it has used more than it had.
    """

    name: str
    """Of the limit, the same on every replica: its owner's name and its own."""
    kind: LimitKind
    rate_per_s: float
    """Of a bucket."""
    capacity: float
    window_s: float
    """Of a window; else 0."""
    granted: float
    """All that this replica was ever granted, as far as it knows."""
    used: float
    """All that its calls ever took, settled, less what flowed into parts of its own; of slots always 0, they are held."""
    given: float
    """All that it ever gave back unused."""
    want: float
    """What it could use soon, over and above what it holds; 0: nothing."""
    first: float
    """The least of that which is of any use: what the call whose turn it is still lacks."""
    keep: float = 0.0
    """So much has to be left over in the whole limit by what is granted: calls of lower lanes leave room."""
    ceiling: float = float("inf")
    """No more than this can be free in all, by the provider's own word."""
    window: int = 0
    """The number of the window that the counts are of."""
    known: float = -1.0
    """The common level as this replica reckons it, for a store that has lost its own; below 0: it never knew one."""
    away_s: float = 0.0
    """So long this replica has lived on a part of its own because the store was out of reach; 0.0: it has not."""
    away_rate_per_s: float = 0.0
    """What flowed into that part meanwhile."""
    charged: float = 0.0
    """All that it ever took of the rest when the store was out of reach: of what nobody held, or of a window that began
    meanwhile."""
    charged_before: float = 0.0
    """The same, when the store last answered."""
    incarnation: int = 0
    """Counts that begin anew are those of another replica, as far as the store is concerned."""
    lag_s: float = 0.0
    """A full bucket begins to refill so much after it was used: whoever else counts hears of the first call late."""


@dataclass(frozen=True, slots=True)
class LeaseReply:
    """What the store says to one ask."""

    granted: float
    """All that this replica was ever granted, by the store's count."""
    level: float
    """What nobody holds."""
    wanting: int
    """How many replicas want more than they were given, this one among them if it does."""
    retry_s: float
    """When to ask again at the earliest, if something was wanted and not given."""
    window: int = 0
    ends_in_s: float = 0.0
    """Of a window: until it starts anew."""
    most: float = float("inf")
    """Of slots, while somebody waits for one: who holds more than this gives back those that come free."""
