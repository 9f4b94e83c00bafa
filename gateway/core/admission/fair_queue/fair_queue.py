"""The order in which held calls leave one gate: strict lanes, fair shares between tenants, first come first served.

Lanes are strict (`interactive` before `batch` before `background`), except that a lane whose next call has waited too long
gets a small share of the turns (ageing). Inside a lane, deficit round robin over tenants by estimated tokens (Shreedhar and
Varghese, 1996); inside a tenant, by age. It must not know limits, clocks or tasks. Everything is O(1), amortised, but for the
O(log n) of calls that come back. A call that has left otherwise is dropped when it is met. Invariants: `peek` without a change
between gives the same call; nobody is passed by a younger call of his own tenant and lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, NamedTuple

from gateway.core.admission.fair_queue.lane_line import LaneLine, Ticket, TicketT
from gateway.core.limits.estimate.cost import NOTHING, Cost
from gateway.core.types.words import LANES, Lane

_ENOUGH = 1 - 1e-9


class Next(NamedTuple, Generic[TicketT]):
    """Whose turn it is, and how much of each limit has to be left over: a percentage, and what an aged call saves up."""

    ticket: TicketT
    keep_percent: float = 0.0
    keep_requests: float = 0.0
    keep_tokens: float = 0.0


class FairQueue(Generic[TicketT]):
    """The calls that wait at one gate. `age_after_s`: per lane, after which wait its next call has waited too long.

    An aged call of a lower lane saves up its share: `aged_percent` of what others are granted is left over by them until
    there is enough for it. So it never makes anybody wait for all that it costs.
    """

    __slots__ = ("_age_after_s", "_aged", "_aged_share", "_lanes", "_saved_requests", "_saved_tokens", "busy")

    def __init__(self, age_after_s: Mapping[Lane, float] | None = None, aged_percent: float = 5.0) -> None:
        self._lanes: list[LaneLine[TicketT] | None] = [None] * len(LANES)  # each made for the first who waits in it
        self.busy = 0
        """A bit for each lane in which somebody waits; 0: nobody does."""
        self._aged: TicketT | None = None  # as of the last look
        self._saved_requests = self._saved_tokens = 0.0
        self.configure(age_after_s or {}, aged_percent)

    def configure(self, age_after_s: Mapping[Lane, float], aged_percent: float) -> None:
        """Puts other ageing in force."""
        self._age_after_s = age_after_s
        self._aged_share = aged_percent / max(1.0, 100 - aged_percent)  # of what the others are granted

    def __len__(self) -> int:
        return sum([lane.live for lane in self._lanes if lane is not None])

    @property
    def is_busy(self) -> bool:
        """Tells whether anybody waits."""
        return bool(self.busy)

    def is_free_for(self, rank: int) -> bool:
        """Returns whether nobody of this lane or a higher one waits, nor anyone aged: a newcomer would not pass anyone."""
        return self._aged is None and not self.busy & ((2 << rank) - 1)

    def saves_for(self, ticket: TicketT) -> bool:
        """Returns whether others leave something over for this aged call, as of the last look."""
        return self._aged is ticket

    def is_first(self, rank: int) -> bool:
        """Returns whether nobody of this lane or a higher one waits here: a newcomer may be the next to go."""
        return not self.busy & ((2 << rank) - 1)

    def add(self, ticket: TicketT) -> None:
        """The call joins at the end of its tenant's line."""
        self._add(ticket, is_back=False)

    def add_back(self, ticket: TicketT) -> None:
        """The call comes back: it stands before all of its tenant who came after it, and its turn is not over."""
        self._add(ticket, is_back=True)

    def left(self, ticket: TicketT) -> None:
        """The call waits here no more: it has gone elsewhere, or nowhere. Called once, after `place.is_gone` is set."""
        rank = ticket.place.rank
        self._lane(rank).left(ticket)
        self._note(rank)

    def peek(self, now: float, *, counts_tokens: bool = True) -> Next[TicketT] | None:
        """Returns whose turn it is; None when nobody waits. `counts_tokens`: there are limits of tokens to save up from."""
        aged = self._aged = self._find_aged(now)
        if aged is None:
            self._saved_requests = self._saved_tokens = 0.0
        elif self._saved_requests >= _ENOUGH and (not counts_tokens or self._saved_tokens >= _ENOUGH * _tokens(aged)):
            return Next(aged)
        for lane in self._lanes:
            if lane is not None and lane.live:
                ticket = lane.peek()
                return Next(ticket, ticket.keep_percent, self._saved_requests, self._saved_tokens)
        return None

    def forfeit_credit(self, ticket: TicketT) -> bool:
        """Drops what others left over for the call, which is not there (a provider said so); False: it saved nothing."""
        if ticket is not self._aged or self.busy & ((1 << ticket.place.rank) - 1) == 0:
            return False
        self._saved_requests = self._saved_tokens = 0.0
        return True

    def pop(self, ticket: TicketT) -> None:
        """The call whose turn it was goes. `ticket` is the one that `peek` gave last."""
        rank = ticket.place.rank
        self._lane(rank).pop(ticket)
        aged = self._aged
        if aged is ticket:
            self._saved_requests = self._saved_tokens = 0.0
        elif aged is not None:
            self._saved_requests = min(1.0, self._saved_requests + self._aged_share)
            self._saved_tokens = min(_tokens(aged), self._saved_tokens + self._aged_share * _tokens(ticket))
        self._note(rank)

    def above(self, rank: int) -> Cost:
        """Returns the sum of those who wait in the higher lanes."""
        sums = [lane.sums for lane in self._lanes[:rank] if lane is not None and lane.live]
        return Cost(*[max(0.0, sum(column)) for column in zip(*sums, strict=True)]) if sums else NOTHING

    def ahead(self, rank: int, tenant: str, tokens: float) -> Cost:
        """Returns the sum of those who go before a newcomer: the higher lanes, and its share of its own."""
        above, own = self.above(rank), self._lanes[rank]
        if own is None or not own.sums[0]:
            return above
        share = own.share_ahead(tenant, tokens)
        return Cost(*[max(0.0, part + mine * share) for part, mine in zip(above, own.sums, strict=True)])

    def count_at_likely_line(self, ticket: TicketT) -> None:
        """Counts the call among those ahead here."""
        ticket.is_likely = True
        self._lane(ticket.place.rank).count(ticket, 1)

    def depths(self) -> dict[tuple[Lane, str], int]:
        """Returns how many wait, by lane and tenant."""
        return {
            (LANES[rank], tenant): line.live
            for rank, lane in enumerate(self._lanes)
            if lane is not None
            for tenant, line in lane.tenants.items()
            if line.live
        }

    def oldest(self) -> dict[tuple[Lane, str], float]:
        """Returns since when the first of each lane and tenant has been waiting, in monotonic seconds."""
        return {
            (LANES[rank], tenant): head.place.joined_at
            for rank, lane in enumerate(self._lanes)
            if lane is not None
            for tenant, line in lane.tenants.items()
            if line.live and (head := line.head()) is not None
        }

    def youngest(self, rank: int, tenant: str | None = None) -> TicketT | None:
        """Returns the last to join of the lowest lane below `rank` (of this tenant): the first to make room for another."""
        for lane in reversed(self._lanes[rank + 1 :]):
            ticket = lane.youngest(tenant) if lane is not None and lane.live else None
            if ticket is not None:
                return ticket
        return None

    def tickets(self) -> list[TicketT]:
        """Returns all who wait, in no particular order; O(n)."""
        return [
            ticket
            for lane in self._lanes
            if lane is not None
            for line in lane.tenants.values()
            for ticket in line.all()
            if not ticket.place.is_gone
        ]

    def _add(self, ticket: TicketT, *, is_back: bool) -> None:
        rank = ticket.place.rank
        self._lane(rank).add(ticket, is_back=is_back)
        self.busy |= 1 << rank

    def _lane(self, rank: int) -> LaneLine[TicketT]:
        lane = self._lanes[rank]
        if lane is None:
            lane = self._lanes[rank] = LaneLine()
        return lane

    def _note(self, rank: int) -> None:
        if not self._lane(rank).live:
            self.busy &= ~(1 << rank)
            if not self.busy:
                self._aged = None

    def _find_aged(self, now: float) -> TicketT | None:
        """Returns the oldest call that is next in its lane, which is below the first, and has waited too long."""
        if not self._aged_share or not self.busy & (self.busy - 1):
            return None
        oldest: TicketT | None = None
        is_first = True
        for name, lane in zip(LANES, self._lanes, strict=True):
            if lane is None or not lane.live:
                continue
            age_after_s = self._age_after_s.get(name)
            if not is_first and age_after_s is not None:
                ticket = lane.peek()
                joined_at = ticket.place.joined_at
                if now - joined_at > age_after_s and (oldest is None or joined_at < oldest.place.joined_at):
                    oldest = ticket
            is_first = False
        return oldest


def _tokens(ticket: Ticket) -> float:
    return ticket.cost.input_tokens + ticket.cost.output_tokens
