"""The delay queue: calls that cannot go yet wait here, in memory, until a gate of theirs has room.

A held call stands in the line of every target it may use and leaves by whichever frees first; its other tickets are dropped
when they are met. One heap of moments (a line's next chance, a call's deadline, when it may use its fallbacks) and one timer
for the whole queue: nothing polls. It must not know what a call is, how limits work, or asyncio beyond the clock's timer.
Invariants: every call that is held is woken exactly once or leaves; a grant is only taken for a call that still waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from gateway.clock import Clock, Timer
from gateway.policy.admission.fair_queue import FairQueue
from gateway.policy.admission.lane_line import Ticket, Waiter
from gateway.policy.limits.gate import Gate, Grant
from gateway.policy.limits.limits import Cost
from gateway.policy.snapshot import QueueBounds
from gateway.words import Lane

LONGEST_AGED_S = 1.0
"""An aged call for whom nearly enough is left over may make others wait so long."""
MOST_LOOKED_AT = 1024
"""Of so many lines the youngest call makes room for another; where there are more, of those that were made last."""
_SPARE_MOMENTS = 1024
log = logging.getLogger("gateway.queue")


class Left(Enum):
    """Why a call waits no more."""

    GRANTED = "granted"
    EXPIRED = "expired"
    """Its deadline has passed."""
    NEVER_FITS = "never fits"
    """No line is left in which it could ever go: a limit has shrunk."""
    SHUT = "shut"
    """No line is left whose target has any quota."""
    FAILED = "failed"
    """A defect of ours."""
    DISPLACED = "displaced"
    """The queue is full, and somebody more urgent came."""


class Option:
    """A target that the call may use: its line, what it would be charged there, and what it must leave over."""

    __slots__ = ("cost", "estimate", "index", "keep_percent", "line", "max_tokens")

    def __init__(
        self, index: int, line: Line, cost: Cost, keep_percent: float, estimate: int, max_tokens: int | None
    ) -> None:
        self.index = index
        self.line = line
        self.cost = cost
        self.keep_percent = keep_percent
        self.estimate = estimate
        self.max_tokens = max_tokens

    def reserve(self, now: float, rank: int = 1) -> Grant | None:
        """Takes what the call costs here, if it may go now."""
        wait_s = self.line.gate.admit(self.cost, now, self.keep_percent, rank=rank)
        return self.take(now) if wait_s == 0.0 else None

    def take(self, now: float) -> Grant:
        """Takes what the call costs here; only to be called when it may go."""
        return self.line.gate.take(self.cost, now, self.estimate, self.max_tokens)


class Held(Waiter):
    """One call that waits. `wake` is called once when it waits no more; then `left` says why."""

    __slots__ = ("_joined_as", "deadline", "grant", "left", "model", "option", "size", "tickets", "wake", "wider")

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
        self.tickets: list[_Standing] = []
        self.wider: tuple[float, Sequence[Option]] = (inf, ())
        """From when on it may use these, too."""
        self._joined_as: tuple[Option, int] | None = None

    def joined(self, home: Option, position: int) -> None:
        """Remembers its position in the line it will most likely leave by."""
        self._joined_as = (home, position + home.line.served)

    def position(self) -> int:
        """How many go before it and itself, as far as can be told; 1 is next."""
        if self._joined_as is None:
            return 1
        home, turn = self._joined_as
        return max(1, turn - home.line.served)

    def eta_s(self, now: float) -> float:
        """Until its turn comes, as far as can be told."""
        if self._joined_as is None:
            return 0.0
        option = self._joined_as[0]
        before = self.position() - 1
        ahead = Cost(*[before * part for part in option.cost])
        return max(0.0, option.line.gate.ready_at(option.cost, now, ahead, option.keep_percent) - now)


class Line:
    """A gate and those who wait at it. `served` counts all who have left through it."""

    __slots__ = ("gate", "lineup", "promised_until", "served", "waits_for", "wakes_at", "wanted")

    def __init__(self, gate: Gate, lineup: FairQueue[_Standing]) -> None:
        self.gate = gate
        self.lineup = lineup
        self.waits_for: _Standing | None = None
        """Whose turn it is, and who cannot go yet."""
        self.wakes_at = inf
        self.served = 0
        self.wanted = 0
        """So many calls will stand here once they may use their fallbacks."""
        self.promised_until = 0.0
        """Those who were refused with a time to come back at are promised the room until then."""

    def ready_at(self, option: Option, rank: int, tenant: str, now: float, *, is_back: bool = False) -> float:
        """When a newcomer's turn would come, or that of a call that comes back and stands before its own lane."""
        cost = option.cost
        tokens = cost.input_tokens + cost.output_tokens
        ahead = self.lineup.above(rank) if is_back else self.lineup.ahead(rank, tenant, tokens)
        return self.gate.ready_at(cost, now, ahead, option.keep_percent)


class _Standing(Ticket):
    """A ticket that knows its call and its option, and so its line."""

    __slots__ = ("held", "option")

    def __init__(self, held: Held, option: Option) -> None:
        super().__init__(held, option.cost, option.keep_percent)
        self.held = held
        self.option = option


class DelayQueue:
    """All held calls of the process. Synchronous; everything is for the loop's thread."""

    def __init__(self, clock: Clock, bounds: QueueBounds) -> None:
        self._clock = clock
        self._lines: dict[str, Line] = {}
        self._moments: list[tuple[float, int, Line | Held]] = []
        self.next_seq: Callable[[], int] = count(1).__next__
        """The age of a call that joins now."""
        self._timer: Timer | None = None
        self._timer_at = inf
        self.calls = 0
        self.bytes = 0
        self._by_tenant: dict[str, list[int]] = {}
        self._greedy: set[str] = set()  # tenants with more than their share
        self.depth: dict[tuple[str, Lane], int] = {}
        """How many wait, by model and lane."""
        self.configure(bounds)

    def configure(self, bounds: QueueBounds) -> None:
        """Puts other bounds in force; nobody is sent away for it."""
        self._bounds = bounds
        self._greedy = {tenant for tenant in self._by_tenant if self._is_over_share(tenant, 0)}
        for line in self._lines.values():
            line.lineup.configure(bounds.age_after_s, bounds.aged_percent)

    @property
    def lines(self) -> dict[str, Line]:
        """Every line, by the name of its gate."""
        return self._lines

    def line(self, gate: Gate) -> Line:
        """The line of a gate; made with its first use."""
        line = self._lines.get(gate.name)
        if line is None:
            lineup: FairQueue[_Standing] = FairQueue(self._bounds.age_after_s, self._bounds.aged_percent)
            line = self._lines[gate.name] = Line(gate, lineup)
        return line

    def drop_line(self, name: str) -> None:
        """Forget a gate where nobody waits."""
        del self._lines[name]

    def has_room(self, held: Held) -> bool:
        """Whether the call may be held; makes room by sending away less urgent ones, the youngest first."""
        bounds = self._bounds
        if len(self._by_tenant) > (held.tenant in self._by_tenant) and self._is_over_share(held.tenant, held.size):
            return False  # others wait, too
        if held.size > bounds.max_bytes:
            return False  # however many were sent away
        while self.calls >= bounds.max_calls or self.bytes + held.size > bounds.max_bytes:
            if not self.displace(held.rank) and not self._displace_greedy(held):
                return False
        return True

    def displace(self, rank: int, tenant: str | None = None) -> bool:
        """Send away the youngest call of the lowest lane below `rank` (of this tenant); False when there is none."""
        found: list[_Standing] = []
        for looked_at, line in enumerate(reversed(self._lines.values())):  # the newest first: callers may have one each
            if looked_at >= MOST_LOOKED_AT and found:
                break
            ticket = line.lineup.youngest(rank, tenant) if line.lineup.is_busy else None
            if ticket is not None:
                found.append(ticket)
        if not found:
            return False
        self._end(max(found, key=lambda ticket: (ticket.place.rank, ticket.place.seq)).held, Left.DISPLACED)
        self._arm()
        return True

    def _displace_greedy(self, held: Held) -> bool:
        """A tenant who had the queue for himself makes room for another, lane for lane."""
        greedy = next((tenant for tenant in self._greedy if tenant != held.tenant), None)
        return greedy is not None and self.displace(held.rank - 1, greedy)

    def _is_over_share(self, tenant: str, size: int) -> bool:
        share = self._bounds.max_percent_per_tenant / 100
        calls, held = self._by_tenant.get(tenant, (0, 0))
        return calls >= self._bounds.max_calls * share or held + size > self._bounds.max_bytes * share

    def hold(
        self,
        held: Held,
        options: Sequence[Option],
        home: Option,
        *,
        is_back: bool = False,
        wider: Sequence[Option] = (),
        widen_at: float = inf,
    ) -> None:
        """Let the call wait for `options`, and from `widen_at` on for `wider` too; `home` is the likeliest of all."""
        now = self._clock.monotonic()
        self.calls += 1
        self.bytes += held.size
        share = self._by_tenant.setdefault(held.tenant, [0, 0])
        share[0] += 1
        share[1] += held.size
        if self._is_over_share(held.tenant, 0):
            self._greedy.add(held.tenant)
        depth = held.model, held.lane
        self.depth[depth] = self.depth.get(depth, 0) + 1
        if wider and widen_at < held.deadline:
            held.wider = (widen_at, wider)
            for option in wider:
                option.line.wanted += 1
        self._put(min(held.wider[0], held.deadline), held)
        self._join_all(held, options, home, now, is_back=is_back)
        self._arm()

    def leave(self, held: Held) -> None:
        """The call is given up; it is not woken."""
        if not held.is_gone:
            self._serve_all(self._remove(held))
            self._compact()
            self._arm()

    def freed(self, line: Line) -> None:
        """Something was given back at this gate, or its limits have grown."""
        if line.lineup.is_busy:
            self._serve(line, self._clock.monotonic())
            self._arm()

    def shut(self, line: Line) -> None:
        """The target is out of service: nobody waits for it who may use fallbacks, and nobody who has no other and no time."""
        now = self._clock.monotonic()
        for ticket in line.lineup.tickets():
            held = ticket.held
            if not held.is_gone and held.wider[1]:
                self._widen(held, now)
            if not held.is_gone and all(other.option.line.gate.is_shut(held.lane, now) for other in held.tickets):
                self._end(held, Left.SHUT)
        self._arm()

    def freed_all(self) -> None:
        """New limits are in force."""
        for line in list(self._lines.values()):
            self.freed(line)

    def _join_all(
        self, held: Held, options: Sequence[Option], home: Option | None, now: float, *, is_back: bool
    ) -> None:
        nexts = [option.line for option in options if is_back or option.line.lineup.is_first(held.rank)]
        for option in options:
            self._join(held, option, is_home=option is home, is_back=is_back)
        for line in nexts:  # only where it may be the next to go has anything changed
            self._serve(line, now)

    def _join(self, held: Held, option: Option, *, is_home: bool, is_back: bool) -> None:
        standing = _Standing(held, option)
        held.tickets.append(standing)
        lineup = option.line.lineup
        if is_home:
            ahead = lineup.ahead(held.rank, held.tenant, standing.tokens)
            held.joined(option, 1 if is_back else 1 + round(ahead.requests))
        if is_back:
            lineup.add_back(standing)
        else:
            lineup.add(standing)
        if is_home:
            lineup.settle_home(standing)

    def _serve(self, line: Line, now: float) -> None:
        """Let through whoever may go, in turn, and set the line's next chance."""
        lineup, gate = line.lineup, line.gate
        due, line.wakes_at = line.wakes_at, inf
        line.waits_for = None
        while (turn := lineup.peek(now, counts_tokens=gate.counts_tokens)) is not None:
            ticket = turn.ticket
            is_probe = gate.vitals.breaker.state == "half_open"
            if is_probe:  # who can best afford to fail tries it out, out of turn
                ticket = lineup.youngest(-1) or ticket
            try:
                wait_s = gate.admit(
                    ticket.cost, now, turn.keep_percent, turn.keep_requests, turn.keep_tokens, rank=ticket.place.rank
                )
                grant = ticket.option.take(now) if wait_s == 0.0 else None
            except Exception:
                log.exception("the gate %s failed", gate.name)
                self._end(ticket.held, Left.FAILED)
                continue
            if grant is not None:
                line.served += 1
                if not is_probe:
                    lineup.pop(ticket)
                    ticket.held.tickets.remove(ticket)
                self._grant(ticket, grant)
                continue
            if not is_probe and wait_s is not None and wait_s > LONGEST_AGED_S and lineup.forfeit_credit(ticket):
                continue
            if wait_s != inf:
                line.waits_for = ticket
                if wait_s is not None:
                    line.wakes_at = now + wait_s
                    if line.wakes_at != due:  # else it is in the heap already
                        self._put(line.wakes_at, line)
                return
            self._never(ticket)

    def _grant(self, ticket: _Standing, grant: Grant) -> None:
        held = ticket.held
        held.grant = grant
        held.option = ticket.option
        self._end(held, Left.GRANTED)

    def _never(self, ticket: _Standing) -> None:
        """It will never go by this line; perhaps by another."""
        held = ticket.held
        if len(held.tickets) == 1 and not held.wider[1]:
            self._end(held, Left.NEVER_FITS)
            return
        ticket.option.line.lineup.pop(ticket)
        held.tickets.remove(ticket)
        if not held.tickets:  # no reason to prefer what will never be
            self._widen(held, self._clock.monotonic())

    def _end(self, held: Held, left: Left) -> None:
        held.left = left
        unblocked = self._remove(held)
        try:
            held.wake()
        except Exception:  # a defect, and that call's alone
            log.exception("a held call could not be woken")
        self._serve_all(unblocked)

    def _serve_all(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._serve(line, self._clock.monotonic())

    def _remove(self, held: Held) -> list[Line]:
        """The lines where it was its turn, or others saved for it: somebody may go now."""
        held.is_gone = True
        unblocked = []
        for ticket in held.tickets:
            line = ticket.option.line
            line.lineup.left(ticket)
            if line.waits_for is ticket or line.lineup.saves_for(ticket):
                unblocked.append(line)
        held.tickets.clear()
        self._take_wider(held)
        self.calls -= 1
        self.bytes -= held.size
        share = self._by_tenant[held.tenant]
        share[0] -= 1
        share[1] -= held.size
        if not share[0]:
            del self._by_tenant[held.tenant]
        if self._greedy and not self._is_over_share(held.tenant, 0):
            self._greedy.discard(held.tenant)
        self.depth[held.model, held.lane] -= 1
        return unblocked

    def _put(self, moment: float, item: Line | Held) -> None:
        self._compact()
        heappush(self._moments, (moment, self.next_seq(), item))

    def _compact(self) -> None:
        """Once most moments are void, drop these: O(1) for each that was ever put, and little is held on to."""
        if len(self._moments) > 2 * (self.calls + len(self._lines)) + _SPARE_MOMENTS:
            self._moments = [entry for entry in self._moments if _is_due_still(entry)]
            heapify(self._moments)

    def _arm(self) -> None:
        """Set the timer to the next moment. A moment that has become void only wakes it for nothing."""
        if not self._moments or self._moments[0][0] >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._moments[0][0]
        self._timer = self._clock.call_at(self._timer_at, self._on_time)

    def _on_time(self) -> None:
        self._timer, self._timer_at = None, inf
        now = self._clock.monotonic()
        moments = self._moments
        while moments and moments[0][0] <= now:
            entry = heappop(moments)
            if not _is_due_still(entry):
                continue
            try:
                self._meet(entry[2], now)
            except Exception:  # a defect, and one call's: the others must be woken all the same
                log.exception("a moment of the delay queue failed")
            moments = self._moments
        self._arm()

    def _meet(self, item: Line | Held, now: float) -> None:
        """The moment has come that a line or a call waits for."""
        if isinstance(item, Line):
            item.wakes_at = inf
            self._serve(item, now)
        elif item.wider[0] <= now:
            self._widen(item, now)
        elif item.deadline <= now:  # else it was widened before its time
            self._expire(item, now)

    def _expire(self, held: Held, now: float) -> None:
        """Its deadline has come; what frees at that very moment still serves it."""
        for ticket in [*held.tickets]:
            if ticket.option.line.wakes_at <= now + 1e-6:
                self._serve(ticket.option.line, now)
        if not held.is_gone:
            self._end(held, Left.EXPIRED)

    def _widen(self, held: Held, now: float) -> None:
        """The primary was preferred long enough."""
        options = self._take_wider(held)
        self._put(held.deadline, held)
        self._join_all(held, options, None, now, is_back=False)

    def _take_wider(self, held: Held) -> Sequence[Option]:
        options = held.wider[1]
        held.wider = (inf, ())
        for option in options:
            option.line.wanted -= 1
        return options


def _is_due_still(entry: tuple[float, int, Line | Held]) -> bool:
    moment, _, item = entry
    return item.wakes_at == moment if isinstance(item, Line) else not item.is_gone
