"""Who of the waiting calls goes next, and whether a call waits, goes to a fallback or is refused.

Lanes are strict (`interactive` before `batch` before `background`), except that a lane whose next call has waited too long
gets a small share of the turns (ageing). Inside a lane, deficit round robin over tenants by estimated tokens (Shreedhar and
Varghese, 1996); inside a tenant, by age. It must not know limits, clocks or tasks. Everything is O(1), amortised, but for the
O(log n) of calls that come back. A call that has left otherwise is dropped when it is met. Invariants: `peek` without a change
between gives the same call; nobody is passed by a younger call of his own tenant and lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from heapq import heappop, heappush
from math import inf
from typing import Generic, NamedTuple, TypeVar

from gateway.core.limits.estimate import NOTHING, Cost
from gateway.core.types import LANES, Lane, QueueBounds

# What becomes of a call now: serve it, hold it, use a fallback, or refuse it at once.
#
# A pure function of predicted moments; it must not know gates, limits or who else waits. Invariants: nothing is held that is
# predicted to come too late, nothing is refused that is predicted to come in time, and the choice is never later than needed.


class Verdict(Enum):
    """What to do with the call."""

    SERVE = "serve"
    """Now, at the target number `choice`."""
    HOLD = "hold"
    """For the model's own targets, as long as these are preferred."""
    HOLD_ANYWHERE = "hold anywhere"
    """For whichever target of the plan frees first."""
    REFUSE = "refuse"
    """It would be too late: its turn comes at `ready_at` (inf: never)."""


class Decision(NamedTuple):
    """`ready_at` is when its turn will be (monotonic seconds)."""

    verdict: Verdict
    ready_at: float
    choice: int = -1


def decide(ready_at: Sequence[float], own: int, now: float, deadline: float, prefer_primary_until: float) -> Decision:
    """`ready_at` are the moments when each target of the plan could take the call, the model's `own` ones first.

    A fallback is used when the model's own targets are not predicted free until `prefer_primary_until`. `deadline` is the
    last moment at which the call may go.
    """
    own_at = min(ready_at[:own], default=inf)
    other_at = min(ready_at[own:], default=inf)
    if own_at <= now:
        return Decision(Verdict.SERVE, now, _first(ready_at, now))
    if own_at <= min(prefer_primary_until, deadline) and own_at < inf:
        return Decision(Verdict.HOLD, own_at)
    if other_at <= now:
        return Decision(Verdict.SERVE, now, _first(ready_at, now))
    soonest = min(own_at, other_at)
    if soonest <= deadline and soonest < inf:
        return Decision(Verdict.HOLD_ANYWHERE, soonest)
    return Decision(Verdict.REFUSE, soonest)


def _first(ready_at: Sequence[float], now: float) -> int:
    return next(index for index, at in enumerate(ready_at) if at <= now)


# The calls of one lane that wait at one gate: a ring of tenants who take turns, and each tenant's own line.
#
# Deficit round robin by estimated tokens (Shreedhar and Varghese, 1996): in a round each tenant gets the same, about the size
# of a call. It must not know lanes' order, limits or clocks. Invariant: nobody is passed by a younger call of his own tenant.


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

    def first(self, is_meant: Callable[[TicketT], bool]) -> TicketT | None:
        """Returns the first that is meant of those who are next of their tenants, in the order of their turns."""
        for line in self._ring:
            for ticket in (line.head(), line.newest_head()):
                if ticket is not None and is_meant(ticket):
                    return ticket
        return None

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
        back = self.back
        while back:
            if not back[0][2].place.is_gone:
                return back[0][2]
            heappop(back)
            self.dead -= 1
        return self.newest_head()

    def newest_head(self) -> TicketT | None:
        """Returns the next of those that have not come back."""
        queue = self.queue
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

    def first(self, is_meant: Callable[[TicketT], bool]) -> TicketT | None:
        """Returns the first that is meant of those who are next of their tenants; the highest lane goes first.

        Of each tenant its next call is looked at, and the next that has not come back: O(tenants), for rare occasions.
        """
        for lane in self._lanes:
            ticket = lane.first(is_meant) if lane is not None and lane.live else None
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


# How full the delay queue is: calls and bytes against its bounds, as a whole and by tenant.
#
# It must not know lines, gates or why a call waits. Invariant: whatever `add` counted, `remove` takes back once.


class Occupancy:
    """Counts what is held. While several tenants wait, none may take more than `max_percent_per_tenant` of the bounds."""

    __slots__ = ("_bounds", "_by_tenant", "_over_share", "bytes", "calls", "depth")

    def __init__(self, bounds: QueueBounds) -> None:
        self.calls = 0
        self.bytes = 0
        self.depth: dict[tuple[str, Lane], int] = {}
        """The number of calls that wait, by model and lane."""
        self._by_tenant: dict[str, list[int]] = {}  # calls and bytes
        self._over_share: set[str] = set()
        self.configure(bounds)

    def configure(self, bounds: QueueBounds) -> None:
        """Puts other bounds in force; calls that wait already stay."""
        self._bounds = bounds
        self._over_share = {tenant for tenant in self._by_tenant if self._exceeds_share(tenant, 0)}

    def add(self, tenant: str, size: int, model: str, lane: Lane) -> None:
        """Counts a call of `size` bytes that is held from now on."""
        self.calls += 1
        self.bytes += size
        share = self._by_tenant.setdefault(tenant, [0, 0])
        share[0] += 1
        share[1] += size
        if self._exceeds_share(tenant, 0):
            self._over_share.add(tenant)
        self.depth[model, lane] = self.depth.get((model, lane), 0) + 1

    def remove(self, tenant: str, size: int, model: str, lane: Lane) -> None:
        """Counts a call out that waits no more."""
        self.calls -= 1
        self.bytes -= size
        share = self._by_tenant[tenant]
        share[0] -= 1
        share[1] -= size
        if not share[0]:
            del self._by_tenant[tenant]
        if self._over_share and not self._exceeds_share(tenant, 0):
            self._over_share.discard(tenant)
        self.depth[model, lane] -= 1

    def may_hold(self, tenant: str, size: int) -> bool:
        """Returns whether such a call could be held if others made room: it fits the bounds and its tenant's share.

        A tenant that is the only one to wait may take everything.
        """
        others_wait = len(self._by_tenant) > (tenant in self._by_tenant)
        return size <= self._bounds.max_bytes and not (others_wait and self._exceeds_share(tenant, size))

    def is_full(self, size: int) -> bool:
        """Returns whether there is no room for a call of this size as things stand."""
        return self.calls >= self._bounds.max_calls or self.bytes + size > self._bounds.max_bytes

    def over_share(self, tenant: str) -> str | None:
        """Returns a tenant other than this one who waits with more than the share of one among several."""
        return next((other for other in self._over_share if other != tenant), None)

    def _exceeds_share(self, tenant: str, size: int) -> bool:
        share = self._bounds.max_percent_per_tenant / 100
        calls, held = self._by_tenant.get(tenant, (0, 0))
        return calls >= self._bounds.max_calls * share or held + size > self._bounds.max_bytes * share
