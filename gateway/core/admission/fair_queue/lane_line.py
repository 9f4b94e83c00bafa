"""The calls of one lane that wait at one gate: a ring of tenants who take turns, and each tenant's own line.

Deficit round robin by estimated tokens (Shreedhar and Varghese, 1996): in a round each tenant gets the same, about the size of
a call. It must not know lanes' order, limits or clocks. Invariant: nobody is passed by a younger call of his own tenant.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Generic, TypeVar

from gateway.core.limits.estimate.cost import Cost
from gateway.core.types.words import LANES, Lane

_FEWEST_DEAD = 64
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

    __slots__ = ("cost", "is_likely", "keep_percent", "place", "tokens")

    def __init__(self, place: Waiter, cost: Cost, keep_percent: float) -> None:
        self.place = place
        self.cost = cost
        self.keep_percent = keep_percent
        self.tokens = max(1.0, cost.input_tokens + cost.output_tokens)
        self.is_likely = False
        """It counts as one of those ahead here: of all its lines, the call will most likely leave by this one."""


TicketT = TypeVar("TicketT", bound=Ticket)


class LaneLine(Generic[TicketT]):
    """One lane: a ring of the tenants who wait, the first of them at his turn. `sums` counts calls at their likeliest line.

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
        self.tenants: dict[str, TenantLine[TicketT]] = {}
        self._ring: deque[TenantLine[TicketT]] = deque()
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
            line = self.tenants[tenant] = TenantLine(tenant)
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
        """Returns whose turn it is; only to be called when somebody waits."""
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
        """Returns the part of those here who go before a newcomer: while its own wait, each other tenant gets as much."""
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
        """Returns the last to join of this tenant, or of the one who has most waiting, who can spare one."""
        if tenant is None:
            return max(self.tenants.values(), key=lambda line: line.live).last()
        line = self.tenants.get(tenant)
        return line.last() if line is not None else None

    def _begin_turn(self, line: TenantLine[TicketT], head: TicketT) -> None:
        """One more turn of the round; with the last one a new round begins, with a quantum for what was met in it."""
        if not self._turns_left:
            self._turns_left = len(self._ring)
            self._quantum = max(self._mean, self._largest / _MOST_ROUNDS)
            self._largest = 0.0
        self._turns_left -= 1
        self._largest = max(self._largest, head.tokens)
        line.has_turn = True
        line.deficit += self._quantum

    def _drop(self, line: TenantLine[TicketT], ticket: TicketT) -> None:
        if ticket.is_likely:
            self.count(ticket, -1)
            ticket.is_likely = False
        line.live -= 1
        self.live -= 1
        self._waiting -= not line.live

    def _clean(self) -> None:
        """Forgets the tenants of whom nobody waits any more."""
        self._ring = deque(line for line in self._ring if line.live)
        self.tenants = {line.tenant: line for line in self._ring}

    def _clear(self) -> None:
        """Nobody waits: what rounding and the dead have left goes, too."""
        self.tenants.clear()
        self._ring.clear()
        self._turns_left = 0
        self.sums = [0.0, 0.0, 0.0]
        self.tokens = 0.0


class TenantLine(Generic[TicketT]):
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
