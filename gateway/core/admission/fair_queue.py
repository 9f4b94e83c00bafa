"""Who of the waiting calls goes next, and whether a call waits, goes to a fallback or is refused.

First what becomes of a call (`decide`), then the line of one lane (`LaneLine`), then all lanes at one gate (`FairQueue`),
and last how full the delay queue is (`Occupancy`). Lanes are strict (`interactive` before `batch` before `background`),
except that a lane whose next call has waited too long gets a small share of the turns (ageing). Inside a lane, fair
queueing over tenants by estimated tokens; inside a tenant, by age. It must not know limits, clocks or tasks. A turn costs
O(log n) of the tenants, a call that comes back O(log n) of those. A call that has left otherwise is dropped when it is met.
Invariants: `peek` without a change between gives the same call; nobody is passed by a younger call of his own tenant and
lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, NamedTuple, TypeVar

from gateway.core.limits.bucket import NOTHING, Cost
from gateway.core.types import LANES, Lane, QueueBounds

# --- what becomes of a call now: serve it, hold it, use a fallback, or refuse it at once ---


class Verdict(Enum):
    """What to do with the call."""

    SERVE = "serve"
    """Serve it now, at the target number `choice`."""
    HOLD = "hold"
    """Hold it for the model's own targets, as long as these are preferred."""
    HOLD_ANYWHERE = "hold anywhere"
    """Hold it for whichever target of the plan frees first."""
    REFUSE = "refuse"
    """It would be too late: its turn comes at `ready_at` (inf: never)."""


class Decision(NamedTuple):
    """`ready_at` is when its turn will be (monotonic seconds)."""

    verdict: Verdict
    ready_at: float
    choice: int = -1


def decide(ready_at: Sequence[float], own: int, now: float, deadline: float, prefer_primary_until: float) -> Decision:
    """Returns what becomes of a call, by the moments `ready_at` when each target of its plan could take it, the `own` ones
    first.

    A fallback is used when the model's own targets are not predicted free until `prefer_primary_until`. `deadline` is the
    last moment at which the call may go. A pure function; it must not know gates, limits or who else waits. Invariants:
    nothing is held that is predicted to come too late, nothing is refused that is predicted to come in time, and the choice
    is never later than needed.
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


# --- the calls of one lane that wait at one gate: each tenant's own line, and whose turn is next ---


_FEWEST_DEAD = 64
_ROUNDING = 1e-9
_SMALLEST_SCALE = 1e-6  # of savings: what is left of less is nothing


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
    """One lane: the tenants who wait, in the order in which their next calls are due. `sums` counts calls at their likely line.

    A virtual clock advances with the tokens that are let through. A tenant's next call is due when the clock has advanced by
    its tokens since it became the next, so small calls pass a large one while it waits for its tokens, and each tenant gets
    the same. What the clock has advanced meanwhile is what the tenant has saved up: those who pass leave that much over, so the
    large call finds its tokens when it is due. Savings that are not there (a higher lane, or a provider's word, took them) are
    cut for all tenants alike. O(log tenants) for a turn.

    Self-clocked fair queueing by estimated tokens (Golestani, INFOCOM 1994; compare start-time fair queueing: Goyal, Vin
    and Cheng, 1996). Invariant: nobody is passed by a younger call of his own tenant.
    """

    __slots__ = (
        "_base",
        "_clock",
        "_generation",
        "_marks",
        "_pushes",
        "_scale",
        "_turns",
        "_waiting",
        "live",
        "sums",
        "tenants",
        "tokens",
    )

    _turns: list[tuple[float, bool, int, TenantLine[TicketT]]]
    """Void where the line has another turn by now."""
    _pushes: int
    _clock: float
    _scale: float
    _base: float
    _marks: float
    _generation: int
    _waiting: int

    def __init__(self) -> None:
        self.tenants: dict[str, TenantLine[TicketT]] = {}
        self.live = 0
        self._clear()

    def add(self, ticket: TicketT, *, is_back: bool) -> None:
        tenant = ticket.place.tenant
        line = self.tenants.get(tenant)
        is_new = line is None
        if line is None:
            line = self.tenants[tenant] = TenantLine(tenant)
            self._waiting += 1
            self._save(line, 0.0)
        if is_back:
            self._save(line, self._saved(line) + ticket.tokens)  # what it was charged when it went
            line.returns += 1
            heappush(line.back, (ticket.place.seq, line.returns, ticket))
        else:
            line.queue.append(ticket)
        line.live += 1
        self.live += 1
        if is_new or is_back:
            self._push(line)

    def left(self, ticket: TicketT) -> None:
        line = self.tenants[ticket.place.tenant]
        self._drop(line, ticket)
        line.dead += 1
        if line.live and line.dead > _FEWEST_DEAD and line.dead > line.live:
            line.clean()
        self._follow(line, ticket)

    def pop(self, ticket: TicketT) -> None:
        line = self._turns[0][3]
        # Before the clock moves, from which it counts.
        due = self._due(line, ticket)
        advance = max(0.0, due - self._clock)
        self._clock += advance
        self._base += advance  # all save as much
        line.pop()
        self._drop(line, ticket)
        if line.live:
            self._save(line, self._clock - due)
        self._follow(line, ticket)

    def peek(self, room: Callable[[float], float] | None = None) -> TicketT:
        """Returns whose turn it is; only to be called when somebody waits.

        `room` returns the tokens that are there when so many percent of the limits are left over; None: nobody counts them.
        """
        while True:
            due, _, number, line = self._turns[0]
            head = line.head() if line.turn == number else None
            if head is None:
                heappop(self._turns)
                continue
            if room is not None:
                self._cut(room(head.keep_percent))
                # One cut is enough: nobody takes anything between two rounds of this loop.
                room = None
            if self._turn(line, head) <= due + _ROUNDING * (1 + abs(due)):
                return head
            self._push(line)  # its savings were cut: others may be due before

    def keep(self, ticket: TicketT) -> float:
        """Returns the tokens that others have saved up once this call has gone, which it leaves over."""
        if self._waiting < 2:
            return 0.0
        line = self.tenants[ticket.place.tenant]
        advance = max(0.0, self._due(line, ticket) - self._clock)
        return max(0.0, self._all_saved() - self._saved(line) + (self._waiting - 1) * advance)

    def share_ahead(self, tenant: str, tokens: float) -> float:
        """Returns the part of those here who go before a newcomer, with what the others have saved up.

        While its own wait, each other tenant gets as much.
        """
        line = self.tenants.get(tenant)
        own = line.tokens if line is not None else 0.0
        others = self._waiting - (line is not None)
        saved = self._all_saved() - (self._saved(line) if line is not None else 0.0)
        return min(1.0, (own + others * (own + tokens) + max(0.0, saved)) / self.tokens) if self.tokens else 0.0

    def count(self, ticket: TicketT, sign: int) -> None:
        sums, cost = self.sums, ticket.cost
        sums[0] += sign * cost.requests
        sums[1] += sign * cost.input_tokens
        sums[2] += sign * cost.output_tokens
        self.tokens += sign * ticket.tokens
        self.tenants[ticket.place.tenant].tokens += sign * ticket.tokens

    def first(self, is_eligible: Callable[[TicketT], bool]) -> TicketT | None:
        """Returns the first that is meant of those who are next of their tenants."""
        for line in self.tenants.values():
            for ticket in (line.head(), line.newest_head()):
                if ticket is not None and is_eligible(ticket):
                    return ticket
        return None

    def youngest(self, tenant: str | None) -> TicketT | None:
        """Returns the last to join of this tenant, or of the one who has most waiting, who can spare one."""
        if tenant is None:
            return max(self.tenants.values(), key=lambda line: line.live).last()
        line = self.tenants.get(tenant)
        return line.last() if line is not None else None

    def _saved(self, line: TenantLine[TicketT]) -> float:
        return self._scale * (line.mark if line.generation == self._generation else 0.0) + self._base

    def _save(self, line: TenantLine[TicketT], saved: float) -> None:
        mark = (saved - self._base) / self._scale
        self._marks += mark - (line.mark if line.generation == self._generation else 0.0)
        line.mark, line.generation = mark, self._generation

    def _all_saved(self) -> float:
        return self._scale * self._marks + self._waiting * self._base

    def _cut(self, room: float) -> None:
        """Cuts all savings to what is there."""
        saved, room = self._all_saved(), max(0.0, room)
        if saved <= room + _ROUNDING * (1 + saved):
            return
        share = room / saved
        self._scale *= share
        self._base *= share
        # A new generation voids all marks at once, without a visit to any line.
        if self._scale < _SMALLEST_SCALE:
            self._scale, self._base, self._marks = 1.0, 0.0, 0.0
            self._generation += 1

    def _due(self, line: TenantLine[TicketT], head: TicketT) -> float:
        return self._clock + head.tokens - self._saved(line)

    def _turn(self, line: TenantLine[TicketT], head: TicketT) -> float:
        """Returns when its turn is: when it is due, and now where it has come back."""
        due = self._due(line, head)
        return min(due, self._clock) if line.back else due

    def _push(self, line: TenantLine[TicketT]) -> None:
        head = line.head()
        if head is None:
            return
        self._pushes += 1
        line.turn, line.next = self._pushes, head
        # False sorts first: of equal turns those of calls that came back go first.
        heappush(self._turns, (self._turn(line, head), not line.back, self._pushes, line))
        # Void turns are swept once they are the most, so the heap grows with the tenants alone.
        if len(self._turns) > 2 * len(self.tenants) + _FEWEST_DEAD:
            self._turns = [entry for entry in self._turns if entry[3].turn == entry[2]]
            heapify(self._turns)

    def _follow(self, line: TenantLine[TicketT], ticket: TicketT) -> None:
        """The ticket has gone: whoever is behind it is the next, or nobody of its tenant waits any more."""
        if not self.live:
            self._clear()
        elif not line.live:
            self._marks -= line.mark if line.generation == self._generation else 0.0
            self._waiting -= 1
            # No turn has this number, so `peek` drops what the line has left in the heap.
            line.turn = 0
            del self.tenants[line.tenant]
        elif line.next is ticket:
            self._push(line)

    def _drop(self, line: TenantLine[TicketT], ticket: TicketT) -> None:
        if ticket.is_likely:
            self.count(ticket, -1)
            ticket.is_likely = False
        line.live -= 1
        self.live -= 1

    def _clear(self) -> None:
        """Nobody waits: what rounding and the dead have left goes, too."""
        self.tenants.clear()
        self._turns = []
        self._pushes = 0
        self._clock = 0.0
        # A tenant has saved `_scale * mark + _base`: so the clock advances for all, and all are cut, at once.
        self._scale, self._base, self._marks = 1.0, 0.0, 0.0
        self._generation = 0
        self._waiting = 0  # tenants
        self.sums = [0.0, 0.0, 0.0]
        self.tokens = 0.0


class TenantLine(Generic[TicketT]):
    """One tenant's calls in one lane: those that came back, by age, then the others in their order."""

    __slots__ = ("back", "dead", "generation", "live", "mark", "next", "queue", "returns", "tenant", "tokens", "turn")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.back: list[tuple[int, int, TicketT]] = []
        self.returns = 0
        self.queue: deque[TicketT] = deque()
        self.next: TicketT | None = None
        """The ticket for which it has its turn."""
        self.turn = 0
        self.mark = 0.0
        self.generation = 0
        """The generation of the savings that `mark` belongs to: earlier ones are lost."""
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


_ENOUGH = 1 - 1e-9  # rounding: shares do not sum to one exactly


# --- all lanes at one gate ---


class Next(NamedTuple, Generic[TicketT]):
    """Whose turn it is, and how much of each limit has to be left over: a percentage, and what others save up."""

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
        """Returns whether anybody waits."""
        return bool(self.busy)

    def is_free_for(self, rank: int) -> bool:
        """Returns whether nobody of this lane or a higher one waits, nor anyone aged: a newcomer would not pass anyone."""
        # The bits of this lane and of all above it.
        return self._aged is None and not self.busy & ((2 << rank) - 1)

    def saves_for(self, ticket: TicketT) -> bool:
        """Returns whether others leave something over for this aged call, as of the last look."""
        return self._aged is ticket

    def is_next(self, ticket: TicketT) -> bool:
        """Returns whether it is this call's turn here, as far as the lanes' order tells."""
        rank = ticket.place.rank
        return not self.busy & ((1 << rank) - 1) and self._lane(rank).peek() is ticket

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

    def peek(
        self, now: float, *, counts_tokens: bool = True, room: Callable[[float], float] | None = None
    ) -> Next[TicketT] | None:
        """Returns whose turn it is; None when nobody waits. `counts_tokens`: there are limits of tokens to save up from.

        `room` returns the tokens that are there when so many percent of the limits are left over; None: nobody knows.
        """
        aged = self._aged = self._find_aged(now)
        if aged is None:
            self._saved_requests = self._saved_tokens = 0.0
        elif self._saved_requests >= _ENOUGH and (not counts_tokens or self._saved_tokens >= _ENOUGH * _tokens(aged)):
            # The others have left enough over for it: it goes before the lanes above its own.
            return Next(aged)
        for lane in self._lanes:
            if lane is not None and lane.live:
                ticket = lane.peek(room)
                keep_tokens = self._saved_tokens + lane.keep(ticket)
                return Next(ticket, ticket.keep_percent, self._saved_requests, keep_tokens)
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

    def first(self, is_eligible: Callable[[TicketT], bool]) -> TicketT | None:
        """Returns the first that is meant of those who are next of their tenants; the highest lane goes first.

        Of each tenant its next call is looked at, and the next that has not come back: O(tenants), for rare occasions.
        """
        for lane in self._lanes:
            ticket = lane.first(is_eligible) if lane is not None and lane.live else None
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
                # Else newcomers would go on standing behind an aged call that has left.
                self._aged = None

    def _find_aged(self, now: float) -> TicketT | None:
        """Returns the oldest call that is next in its lane, which is below the first, and has waited too long."""
        # With one bit set there is one lane only: no other lane keeps its calls from their turn.
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


# --- how full the delay queue is: calls and bytes against its bounds, as a whole and by tenant ---


class Occupancy:
    """Counts what is held. While several tenants wait, none may take more than `max_percent_per_tenant` of the bounds.

    Invariant: whatever `add` counted, `remove` takes back once.
    """

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
            # `may_hold` takes every tenant here for one who waits.
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
