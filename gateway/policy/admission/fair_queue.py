"""The order in which held calls leave one gate: strict lanes, fair shares between tenants, first come first served.

Lanes are strict (`interactive` before `batch` before `background`), except that a lane whose next call has waited too long
gets a small share of the turns (ageing). Inside a lane, deficit round robin over tenants by estimated tokens (Shreedhar and
Varghese, 1996); inside a tenant, by age. It must not know limits, clocks or tasks. Everything is O(1), amortised, but for the
O(log n) of calls that come back. A call that has left otherwise is dropped when it is met. Invariants: `peek` without a change
between gives the same call; nobody is passed by a younger call of his own tenant and lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from gateway.policy.limits.limits import NOTHING, Cost
from gateway.words import LANES, Lane

_FEWEST_DEAD = 64
_ENOUGH = 1 - 1e-9
_MOST_ROUNDS = 32  # a call of any size gets its turn after so many rounds


class Waiter:
    """What all tickets of one held call share. `seq` is its age: smaller came first."""

    __slots__ = ("is_gone", "joined_at", "lane", "rank", "seq", "tenant")

    def __init__(self, seq: int, lane: Lane, tenant: str, joined_at: float) -> None:
        self.seq = seq
        self.lane = lane
        self.rank = LANES.index(lane)
        self.tenant = tenant
        self.joined_at = joined_at
        self.is_gone = False
        """It waits no more, here or anywhere."""


class Ticket:
    """A place in the line of one gate; `cost` is what the call is charged there, `keep_percent` what it must leave over."""

    __slots__ = ("cost", "is_home", "keep_percent", "place", "tokens")

    def __init__(self, place: Waiter, cost: Cost, keep_percent: float) -> None:
        self.place = place
        self.cost = cost
        self.keep_percent = keep_percent
        self.tokens = max(1.0, cost.input_tokens + cost.output_tokens)
        self.is_home = False
        """It counts as one of those ahead here: of all its lines, the call will most likely leave by this one."""


TicketT = TypeVar("TicketT", bound=Ticket)


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
        self._lanes: list[_LaneLine[TicketT] | None] = [None] * len(LANES)  # each made for the first who waits in it
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
        """Whether anybody waits."""
        return bool(self.busy)

    def is_free_for(self, rank: int) -> bool:
        """Whether nobody of this lane or a higher one waits here, nor anyone aged: a newcomer would not pass anyone."""
        return self._aged is None and not self.busy & ((2 << rank) - 1)

    def saves_for(self, ticket: TicketT) -> bool:
        """Whether others leave something over for this aged call, as of the last look."""
        return self._aged is ticket

    def is_first(self, rank: int) -> bool:
        """Whether nobody of this lane or a higher one waits here: a newcomer may be the next to go."""
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
        """Whose turn it is; None when nobody waits. `counts_tokens`: there are limits of tokens to save up from."""
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

    def lose_savings(self, ticket: TicketT) -> bool:
        """What was left over for this call is not there (a provider said so); False: it is not one that had to save."""
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
        """The sum of those who wait in the higher lanes."""
        sums = [lane.sums for lane in self._lanes[:rank] if lane is not None and lane.live]
        return Cost(*[max(0.0, sum(column)) for column in zip(*sums, strict=True)]) if sums else NOTHING

    def ahead(self, rank: int, tenant: str, tokens: float) -> Cost:
        """The sum of those who go before a newcomer: the higher lanes, and its share of its own."""
        above, own = self.above(rank), self._lanes[rank]
        if own is None or not own.sums[0]:
            return above
        share = own.share_ahead(tenant, tokens)
        return Cost(*[max(0.0, part + mine * share) for part, mine in zip(above, own.sums, strict=True)])

    def settle_home(self, ticket: TicketT) -> None:
        """Counts the call among those ahead here."""
        ticket.is_home = True
        self._lane(ticket.place.rank).count(ticket, 1)

    def depths(self) -> dict[tuple[Lane, str], int]:
        """How many wait, by lane and tenant."""
        return {
            (LANES[rank], tenant): line.live
            for rank, lane in enumerate(self._lanes)
            if lane is not None
            for tenant, line in lane.tenants.items()
            if line.live
        }

    def oldest(self) -> dict[tuple[Lane, str], float]:
        """Since when the first of each lane and tenant has been waiting, monotonic seconds."""
        return {
            (LANES[rank], tenant): head.place.joined_at
            for rank, lane in enumerate(self._lanes)
            if lane is not None
            for tenant, line in lane.tenants.items()
            if line.live and (head := line.head()) is not None
        }

    def youngest(self, rank: int, tenant: str | None = None) -> TicketT | None:
        """The last to join of the lowest lane below `rank` (of this tenant): the first to make room for another."""
        for lane in reversed(self._lanes[rank + 1 :]):
            ticket = lane.youngest(tenant) if lane is not None and lane.live else None
            if ticket is not None:
                return ticket
        return None

    def tickets(self) -> list[TicketT]:
        """All who wait, in no particular order; O(n)."""
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

    def _lane(self, rank: int) -> _LaneLine[TicketT]:
        lane = self._lanes[rank]
        if lane is None:
            lane = self._lanes[rank] = _LaneLine()
        return lane

    def _note(self, rank: int) -> None:
        if not self._lane(rank).live:
            self.busy &= ~(1 << rank)
            if not self.busy:
                self._aged = None

    def _find_aged(self, now: float) -> TicketT | None:
        """Of the lanes below the first, the call that is next in its own and has waited too long: the oldest."""
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


class _LaneLine(Generic[TicketT]):
    """One lane: a ring of the tenants who wait, the first of them at his turn. `sums` counts those at home here.

    In a round each tenant gets the same, about the size of a call: else those with large calls would get more.
    """

    __slots__ = (
        "_largest",
        "_mean",
        "_quantum",
        "_ring",
        "_turns_left",
        "_waiting",
        "live",
        "sums",
        "tenants",
        "tokens",
    )

    def __init__(self) -> None:
        self.tenants: dict[str, _TenantLine[TicketT]] = {}
        self._ring: deque[_TenantLine[TicketT]] = deque()
        self._mean = 1.0
        self._quantum = 1.0
        self._largest = 0.0
        self._turns_left = 0
        self._waiting = 0  # tenants with somebody alive
        self.live = 0
        self.sums = [0.0, 0.0, 0.0]
        self.tokens = 0.0

    def add(self, ticket: TicketT, *, is_back: bool) -> None:
        tenant = ticket.place.tenant
        line = self.tenants.get(tenant)
        if line is None:
            line = self.tenants[tenant] = _TenantLine(tenant)
            if is_back:
                line.has_turn = True
                self._ring.appendleft(line)
            else:
                self._ring.append(line)
        if is_back:
            line.deficit += ticket.tokens
            line.returns += 1
            heappush(line.back, (ticket.place.seq, line.returns, ticket))
        else:
            line.queue.append(ticket)
            self._mean += (ticket.tokens - self._mean) * 0.05
        self._waiting += not line.live
        line.live += 1
        self.live += 1

    def left(self, ticket: TicketT) -> None:
        line = self.tenants[ticket.place.tenant]
        self._drop(line, ticket)
        line.dead += 1
        if line.dead > _FEWEST_DEAD and line.dead > line.live:
            line.clean()
        if len(self.tenants) > 2 * self._waiting + _FEWEST_DEAD:
            self._clean()
        if not self.live:
            self._clear()

    def pop(self, ticket: TicketT) -> None:
        line = self._ring[0]
        line.pop()
        line.deficit -= ticket.tokens
        self._drop(line, ticket)
        if not self.live:
            self._clear()

    def peek(self) -> TicketT:
        """Only to be called when somebody waits."""
        ring = self._ring
        while True:
            line = ring[0]
            head = line.head()
            if head is None:
                ring.popleft()
                del self.tenants[line.tenant]
            elif head.tokens <= line.deficit or len(ring) == 1:
                line.deficit = max(line.deficit, head.tokens)
                return head
            elif line.has_turn:
                line.has_turn = False
                ring.rotate(-1)
            else:
                self._begin_turn(line, head)

    def share_ahead(self, tenant: str, tokens: float) -> float:
        """The part of those here who go before a newcomer: while his own wait, every other tenant gets as much as he."""
        line = self.tenants.get(tenant)
        own = line.tokens if line is not None else 0.0
        others = self._waiting - (line is not None and line.live > 0)
        return min(1.0, (own + others * (own + max(tokens, self._mean))) / self.tokens) if self.tokens else 0.0

    def count(self, ticket: TicketT, sign: int) -> None:
        sums, cost = self.sums, ticket.cost
        sums[0] += sign * cost.requests
        sums[1] += sign * cost.input_tokens
        sums[2] += sign * cost.output_tokens
        self.tokens += sign * ticket.tokens
        self.tenants[ticket.place.tenant].tokens += sign * ticket.tokens

    def youngest(self, tenant: str | None) -> TicketT | None:
        """Of this tenant, or of the one who has most waiting: he can spare one."""
        if tenant is None:
            return max(self.tenants.values(), key=lambda line: line.live).last()
        line = self.tenants.get(tenant)
        return line.last() if line is not None else None

    def _begin_turn(self, line: _TenantLine[TicketT], head: TicketT) -> None:
        """One more turn of the round; with the last one a new round begins, with a quantum for what was met in it."""
        if not self._turns_left:
            self._turns_left = len(self._ring)
            self._quantum = max(self._mean, self._largest / _MOST_ROUNDS)
            self._largest = 0.0
        self._turns_left -= 1
        self._largest = max(self._largest, head.tokens)
        line.has_turn = True
        line.deficit += self._quantum

    def _drop(self, line: _TenantLine[TicketT], ticket: TicketT) -> None:
        if ticket.is_home:
            self.count(ticket, -1)
            ticket.is_home = False
        line.live -= 1
        self.live -= 1
        self._waiting -= not line.live

    def _clean(self) -> None:
        """Forget the tenants of whom nobody waits any more."""
        self._ring = deque(line for line in self._ring if line.live)
        self.tenants = {line.tenant: line for line in self._ring}

    def _clear(self) -> None:
        """Nobody waits: what rounding and the dead have left goes, too."""
        self.tenants.clear()
        self._ring.clear()
        self._turns_left = 0
        self.sums = [0.0, 0.0, 0.0]
        self.tokens = 0.0


class _TenantLine(Generic[TicketT]):
    """One tenant's calls in one lane: those that came back, by age, then the others in their order."""

    __slots__ = ("back", "dead", "deficit", "has_turn", "live", "queue", "returns", "tenant", "tokens")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.back: list[tuple[int, int, TicketT]] = []
        self.returns = 0
        self.queue: deque[TicketT] = deque()
        self.deficit = 0.0
        self.has_turn = False
        self.live = 0
        self.dead = 0
        self.tokens = 0.0

    def head(self) -> TicketT | None:
        back, queue = self.back, self.queue
        while back:
            if not back[0][2].place.is_gone:
                return back[0][2]
            heappop(back)
            self.dead -= 1
        while queue:
            if not queue[0].place.is_gone:
                return queue[0]
            queue.popleft()
            self.dead -= 1
        return None

    def pop(self) -> None:
        """The head goes. Not gone yet: `head` has dropped all who are."""
        if self.back:
            heappop(self.back)
        else:
            self.queue.popleft()

    def last(self) -> TicketT | None:
        queue = self.queue
        while queue and queue[-1].place.is_gone:
            queue.pop()
            self.dead -= 1
        return queue[-1] if queue else self.head()

    def all(self) -> list[TicketT]:
        return [ticket for _, _, ticket in self.back] + list(self.queue)

    def clean(self) -> None:
        self.back = sorted(item for item in self.back if not item[2].place.is_gone)  # a sorted list is a heap
        self.queue = deque(ticket for ticket in self.queue if not ticket.place.is_gone)
        self.dead = 0
