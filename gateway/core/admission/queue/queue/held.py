"""A call that waits: what it may use, where it stands, and how its waiting ends.

    Held ── a QueueTicket for each Option ── in the WaitingLine of the option's gate

It must not know who wakes a call or when, or asyncio. Invariant: all tickets of a call are void once it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from math import inf

from gateway.core.admission.fair_queue.fair_queue import FairQueue
from gateway.core.admission.fair_queue.lane_line import Ticket, Waiter
from gateway.core.limits.estimate.cost import Cost
from gateway.core.limits.reservation.entry import admit, ready_at, take
from gateway.core.limits.reservation.grant import Grant
from gateway.core.limits.target_limits.gate.gate import Gate
from gateway.core.types.words import Lane


class Left(Enum):
    """Why a call waits no more."""

    GRANTED = "granted"
    EXPIRED = "expired"
    """Its deadline has passed."""
    NEVER_FITS = "never fits"
    """No line is left in which it could ever go: a limit has shrunk."""
    SHUT = "shut"
    """No line is left whose target is in service: breakers are open, or quotas are spent."""
    FAILED = "failed"
    """The gateway itself is at fault."""
    DISPLACED = "displaced"
    """The queue is full, and somebody more urgent came."""


class Option:
    """A target that the call may use: its line, what it would be charged there, and what it must leave over."""

    __slots__ = ("cost", "estimate", "index", "keep_percent", "line", "max_tokens")

    def __init__(
        self, index: int, line: WaitingLine, cost: Cost, keep_percent: float, estimate: int, max_tokens: int | None
    ) -> None:
        self.index = index
        self.line = line
        self.cost = cost
        self.keep_percent = keep_percent
        self.estimate = estimate
        self.max_tokens = max_tokens

    def reserve(self, now: float, rank: int = 1) -> Grant | None:
        """Takes what the call costs here, if it may go now."""
        wait_s = admit(self.line.gate, self.cost, now, self.keep_percent, rank=rank)
        return self.take(now) if wait_s == 0.0 else None

    def take(self, now: float) -> Grant:
        """Takes what the call costs here; only to be called when it may go."""
        return take(self.line.gate, self.cost, now, self.estimate, self.max_tokens)


class Held(Waiter):
    """One call that waits. `wake` is called once when it waits no more; then `left` says why."""

    __slots__ = (
        "_joined_as",
        "deadline",
        "fallback_options",
        "grant",
        "left",
        "model",
        "option",
        "size",
        "tickets",
        "wake",
    )

    def __init__(
        self,
        seq: int,
        lane: Lane,
        tenant: str,
        joined_at: float,
        *,
        model: str,
        size: int,
        deadline: float,
        wake: Callable[[], None],
    ) -> None:
        super().__init__(seq, lane, tenant, joined_at)
        self.model = model
        self.size = size
        self.deadline = deadline
        self.wake = wake
        self.left: Left | None = None
        self.grant: Grant | None = None
        self.option: Option | None = None
        self.tickets: list[QueueTicket] = []
        self.fallback_options: tuple[float, Sequence[Option]] = (inf, ())
        """The moment from which on it may use other options, too, and these."""
        self._joined_as: tuple[Option, int] | None = None

    def is_due(self, moment: float) -> bool:
        """Returns whether something is to be done with the call at this moment: no call that is gone has any."""
        return not self.is_gone

    def joined(self, likely: Option, position: int) -> None:
        """Remembers its position in the line it will most likely leave by."""
        self._joined_as = (likely, position + likely.line.served)

    def position(self) -> int:
        """Returns how many go before it, and itself, as far as can be told; 1 is next."""
        if self._joined_as is None:
            return 1
        likely, turn = self._joined_as
        return max(1, turn - likely.line.served)

    def eta_s(self, now: float) -> float:
        """Returns the seconds until its turn comes, as far as can be told."""
        if self._joined_as is None:
            return 0.0
        option = self._joined_as[0]
        before = self.position() - 1
        ahead = Cost(*[before * part for part in option.cost])
        return max(0.0, ready_at(option.line.gate, option.cost, now, ahead, option.keep_percent) - now)


class WaitingLine:
    """A gate and those who wait at it. `served` counts all who have left through it."""

    __slots__ = ("gate", "promised_until", "served", "waiters", "waits_for", "wakes_at", "wanted")

    def __init__(self, gate: Gate, waiters: FairQueue[QueueTicket]) -> None:
        self.gate = gate
        self.waiters = waiters
        self.waits_for: QueueTicket | None = None
        """The ticket whose turn it is, and which cannot go yet."""
        self.wakes_at = inf
        self.served = 0
        self.wanted = 0
        """The number of calls that will stand here once they may use their fallbacks."""
        self.promised_until = 0.0
        """Those who were refused with a time to come back at are promised the room until then."""

    def is_due(self, moment: float) -> bool:
        """Returns whether this moment is still the line's next chance."""
        return self.wakes_at == moment

    def ready_at(self, option: Option, rank: int, tenant: str, now: float, *, is_back: bool = False) -> float:
        """Returns when a newcomer's turn would come, or that of a call that comes back and stands before its own lane."""
        cost = option.cost
        tokens = cost.input_tokens + cost.output_tokens
        ahead = self.waiters.above(rank) if is_back else self.waiters.ahead(rank, tenant, tokens)
        return ready_at(self.gate, cost, now, ahead, option.keep_percent)


class QueueTicket(Ticket):
    """A ticket that knows its call and its option, and so its line."""

    __slots__ = ("held", "option")

    def __init__(self, held: Held, option: Option) -> None:
        super().__init__(held, option.cost, option.keep_percent)
        self.held = held
        self.option = option
