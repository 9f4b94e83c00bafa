"""The delay queue: calls that cannot go yet wait here, in memory, until a gate of theirs has room.

First a call that waits (`Held`) with its options and tickets, then the moments at which somebody is looked at again
(`WakeUps`), then the queue. A held call stands in the line of every target it may use and leaves by whichever frees first;
its other tickets are dropped when they are met. What is looked at again later (a line's next chance, a call's deadline,
when it may use its fallbacks) is in one heap with one timer. It must not know what a call is, how limits work, or asyncio
beyond the clock's timer. Invariants: every call that is held is woken exactly once or leaves; a grant is only taken for a
call that still waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Generic, Protocol, TypeVar

from gateway.core.admission.fair_queue import FairQueue, Occupancy, Ticket, Waiter
from gateway.core.clock import Clock, Timer
from gateway.core.limits.bucket import Cost
from gateway.core.limits.reservation import Reservation, admit, ready_at, take
from gateway.core.limits.target_limits import CallTraits, Gate
from gateway.core.types import Lane, QueueBounds

# --- a call that waits: what it may use, where it stands, and how its waiting ends ---


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
    """A target that the call may use: its line, what it would be charged there, and what it must leave over.

    The call itself was refused there for its rate and does not go again before `opens_at`, whoever else does.
    """

    __slots__ = (
        "cost",
        "estimate",
        "index",
        "keep_percent",
        "latest",
        "line",
        "max_tokens",
        "opens_at",
        "yields_until",
    )

    def __init__(
        self,
        index: int,
        line: WaitingLine,
        cost: Cost,
        keep_percent: float,
        estimate: int,
        max_tokens: int | None,
        latest: float = inf,
        opens_at: float = 0.0,
        yields_until: float = 0.0,
    ) -> None:
        self.index = index
        self.line = line
        self.cost = cost
        self.keep_percent = keep_percent
        self.estimate = estimate
        self.max_tokens = max_tokens
        self.latest = latest
        """The last moment at which the call may go there: after it, its answer would come too late; -inf: it never fits."""
        self.opens_at = opens_at
        self.yields_until = yields_until
        """If it alone is refused there, others go first until then."""

    def reserve(self, now: float, rank: int = 1, traits: CallTraits | None = None) -> Reservation | None:
        """Takes what the call costs here, if it may go now."""
        wait_s = admit(self.line.gate, self.cost, now, self.keep_percent, rank=rank, traits=traits)
        return self.take(now) if wait_s == 0.0 else None

    def take(self, now: float) -> Reservation:
        """Takes what the call costs here; only to be called when it may go."""
        return take(self.line.gate, self.cost, now, self.estimate, self.max_tokens)


class Held(Waiter):
    """One call that waits. `wake` is called once when it waits no more; then `left` says why.

        Held ── a QueueTicket for each Option ── in the WaitingLine of the option's gate

    Invariant: all tickets of a call are void once it is gone.
    """

    __slots__ = (
        "_joined_as",
        "deadline",
        "fallback_options",
        "grant",
        "has_tried",
        "left",
        "model",
        "option",
        "postponed",
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
        self.grant: Reservation | None = None
        self.option: Option | None = None
        self.tickets: list[QueueTicket] = []
        self.postponed: list[Option] = []
        """Options that open to it later, and for whose lines it does not stand now."""
        self.has_tried = False
        """It has just found out that a target still fails: others find out next."""
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
        """Estimates how many go before it, and itself; 1 is next."""
        if self._joined_as is None:
            return 1
        likely, turn = self._joined_as
        return max(1, turn - likely.line.served)

    def eta_s(self, now: float) -> float:
        """Estimates the seconds until its turn comes."""
        if self._joined_as is None:
            return 0.0
        option = self._joined_as[0]
        before = self.position() - 1
        ahead = Cost(*[before * part for part in option.cost])
        traits = CallTraits(self.seq, self.tenant, option.estimate)
        at = ready_at(option.line.gate, option.cost, now, ahead, option.keep_percent, traits)
        return max(0.0, at - now, option.opens_at - now)


class WaitingLine:
    """A gate and those who wait at it. `served` counts all who have left through it."""

    __slots__ = ("gate", "served", "waiters", "waits_for", "wakes_at", "wanted")

    def __init__(self, gate: Gate, waiters: FairQueue[QueueTicket]) -> None:
        self.gate = gate
        self.waiters = waiters
        self.waits_for: QueueTicket | None = None
        """The ticket whose turn it is, and which cannot go yet."""
        self.wakes_at = inf
        self.served = 0
        self.wanted = 0
        """The number of calls that will stand here once they may use their fallbacks."""

    def is_due(self, moment: float) -> bool:
        """Returns whether this moment is still the line's next chance."""
        return self.wakes_at == moment

    def ready_at(
        self, option: Option, rank: int, tenant: str, now: float, *, call: int = 0, is_back: bool = False
    ) -> float:
        """Returns when a newcomer's turn would come, or that of a call that comes back and stands before its own lane."""
        cost = option.cost
        tokens = cost.input_tokens + cost.output_tokens
        ahead = self.waiters.above(rank) if is_back else self.waiters.ahead(rank, tenant, tokens)
        traits = CallTraits(call, tenant, option.estimate)
        return max(ready_at(self.gate, cost, now, ahead, option.keep_percent, traits), option.opens_at)


class QueueTicket(Ticket):
    """A ticket that knows its call and its option, and so its line."""

    __slots__ = ("held", "option")

    def __init__(self, held: Held, option: Option) -> None:
        super().__init__(held, option.cost, option.keep_percent)
        self.held = held
        self.option = option

    @property
    def traits(self) -> CallTraits:
        """What may set the call apart from others."""
        return CallTraits(self.held.seq, self.held.tenant, self.option.estimate)


# --- moments at which somebody is looked at again: one heap and one timer for all of them, so nothing polls ---


_SPARE = 1024  # a heap of so few moments is never searched for void ones


class Due(Protocol):
    """Something that is to be looked at."""

    def is_due(self, moment: float) -> bool:
        """Returns whether the moment that was put still counts; a void one is skipped."""
        ...


DueT = TypeVar("DueT", bound=Due)


class WakeUps(Generic[DueT]):
    """Calls `meet` with each item whose moment has come. Moments are monotonic seconds.

    Invariant: whatever is put is met at its moment or later, unless it is void by then.
    """

    __slots__ = ("_clock", "_heap", "_meet", "_most_live", "_next", "_timer", "_timer_at")

    def __init__(self, clock: Clock, meet: Callable[[DueT, float], None], most_live: Callable[[], int]) -> None:
        """`most_live` returns the number of items that may have a moment that counts; one may have two."""
        self._clock = clock
        self._meet = meet
        self._most_live = most_live
        self._heap: list[tuple[float, int, DueT]] = []
        self._next = count().__next__  # of equal moments the one that was put first goes first
        self._timer: Timer | None = None
        self._timer_at = inf

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, moment: float, item: DueT) -> None:
        """Notes a moment; to be followed by `arm`, once all are noted."""
        heappush(self._heap, (moment, self._next(), item))

    def arm(self) -> None:
        """Sets the timer to the next moment. A moment that has become void only wakes it for nothing."""
        # The void moments go once they are the most: O(1) for each that was ever put. Not before all are noted: a line that is
        # looking for its next call may take back the moment that it had.
        if len(self._heap) > 2 * self._most_live() + _SPARE:
            self._heap = [entry for entry in self._heap if entry[2].is_due(entry[0])]
            heapify(self._heap)
        if not self._heap or self._heap[0][0] >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._heap[0][0]
        self._timer = self._clock.call_at(self._timer_at, self._on_time)

    def _on_time(self) -> None:
        # Cleared first: `arm` sets no timer for a moment that is no sooner than `_timer_at`.
        self._timer, self._timer_at = None, inf
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            moment, _, item = heappop(self._heap)
            if not item.is_due(moment):
                continue
            try:
                self._meet(item, now)
            except Exception:  # a defect, and one call's: the others must be woken all the same
                log.exception("a moment of the delay queue failed")
        self.arm()


# --- the queue ---

LONGEST_AGED_S = 1.0
"""Seconds that an aged call for whom nearly enough is left over may make others wait."""
MOST_LOOKED_AT = 1024
"""The youngest call of that many lines makes room for another; where there are more lines, of those made last."""
log = logging.getLogger("gateway.queue")


class DelayQueue:
    """All held calls of the process. Synchronous; everything is for the loop's thread."""

    __slots__ = ("_bounds", "_clock", "_wakeups", "lines", "next_seq", "occupancy")

    def __init__(self, clock: Clock, bounds: QueueBounds) -> None:
        self._clock = clock
        self.occupancy = Occupancy(bounds)
        self.lines: dict[str, WaitingLine] = {}
        """Every line, by the name of its gate."""
        self._wakeups: WakeUps[WaitingLine | Held] = WakeUps(
            clock, self._meet, lambda: self.occupancy.calls + len(self.lines)
        )
        self.next_seq: Callable[[], int] = count(1).__next__
        """The age of a call that joins now."""
        self._bounds = bounds

    def configure(self, bounds: QueueBounds) -> None:
        """Puts other bounds in force; nobody is sent away for it."""
        self._bounds = bounds
        self.occupancy.configure(bounds)
        for line in self.lines.values():
            line.waiters.configure(bounds.age_after_s, bounds.aged_percent)

    def line(self, gate: Gate) -> WaitingLine:
        """The line of a gate; made with its first use."""
        line = self.lines.get(gate.name)
        if line is None:
            waiters: FairQueue[QueueTicket] = FairQueue(self._bounds.age_after_s, self._bounds.aged_percent)
            line = self.lines[gate.name] = WaitingLine(gate, waiters)
        return line

    def drop_line(self, name: str) -> None:
        """Forgets a gate where nobody waits."""
        del self.lines[name]

    def make_room(self, held: Held) -> bool:
        """Sends away less urgent calls until this one may be held, the youngest first; False when that does not help."""
        occupancy = self.occupancy
        if not occupancy.may_hold(held.tenant, held.size):
            return False
        while occupancy.is_full(held.size):
            if self.displace(held.rank):
                continue
            # A tenant who had the queue for itself makes room for another, lane for lane.
            greedy = occupancy.over_share(held.tenant)
            if greedy is None or not self.displace(held.rank - 1, greedy):
                return False
        return True

    def displace(self, rank: int, tenant: str | None = None) -> bool:
        """Sends away the youngest call of the lowest lane below `rank` (of this tenant); False when there is none."""
        found: list[QueueTicket] = []
        for looked_at, line in enumerate(reversed(self.lines.values())):  # the newest first: callers may have one each
            if looked_at >= MOST_LOOKED_AT and found:
                break
            ticket = line.waiters.youngest(rank, tenant) if line.waiters.is_busy else None
            if ticket is not None:
                found.append(ticket)
        if not found:
            return False
        self._end(max(found, key=lambda ticket: (ticket.place.rank, ticket.place.seq)).held, Left.DISPLACED)
        self._wakeups.arm()
        return True

    def hold(
        self,
        held: Held,
        options: Sequence[Option],
        likely: Option,
        *,
        is_back: bool = False,
        fallback_options: Sequence[Option] = (),
        widen_at: float = inf,
    ) -> None:
        """Lets the call wait for `options`, from `widen_at` on for `fallback_options` too; `likely` is the likeliest of all."""
        now = self._clock.monotonic()
        self.occupancy.add(held.tenant, held.size, held.model, held.lane)
        # A call that ends before it may use its fallbacks never stands in their lines.
        if fallback_options and widen_at < held.deadline:
            held.fallback_options = (widen_at, fallback_options)
            for option in fallback_options:
                option.line.wanted += 1
        self._wakeups.put(min(held.fallback_options[0], held.deadline), held)
        self._join_all(held, options, likely, now, is_back=is_back)
        self._wakeups.arm()

    def leave(self, held: Held) -> None:
        """The call is given up; it is not woken."""
        if not held.is_gone:
            self._serve_all(self._remove(held))
            self._wakeups.arm()

    def freed(self, line: WaitingLine) -> None:
        """Something was given back at this gate, or its limits have grown."""
        if line.waiters.is_busy:
            self._serve(line, self._clock.monotonic())
            self._wakeups.arm()

    def shut(self, line: WaitingLine) -> bool:
        """The target is out of service: nobody waits for it who may use fallbacks, and nobody who has no other and no time.

        Returns whether somebody waits for whom no other target is in service.
        """
        now = self._clock.monotonic()
        is_awaited = False
        for ticket in line.waiters.tickets():
            held = ticket.held
            # First, for a fallback that is in service keeps the call from being sent away below.
            if not held.is_gone and held.fallback_options[1]:
                self._widen(held, now)
            if not held.is_gone and all(other.option.line.gate.is_shut(held.lane, now) for other in held.tickets):
                self._end(held, Left.SHUT)
            is_awaited = is_awaited or (
                not held.is_gone and all(other.option.line.gate.health.is_left_alone for other in held.tickets)
            )
        self._wakeups.arm()
        return is_awaited

    def freed_all(self) -> None:
        """New limits are in force."""
        for line in list(self.lines.values()):
            self.freed(line)

    def _join_all(
        self, held: Held, options: Sequence[Option], likely: Option | None, now: float, *, is_back: bool
    ) -> None:
        nexts = []
        for option in options:
            ticket = self._join(held, option, is_likely=option is likely, is_back=is_back)
            line = option.line
            # A call that was not refused may find out whether others are, too.
            if is_back or line.gate.pauses.refusals is not None or line.waiters.is_next(ticket):
                nexts.append(line)
        for line in nexts:  # only where it may be the next to go has anything changed
            self._serve(line, now)

    def _join(self, held: Held, option: Option, *, is_likely: bool, is_back: bool) -> QueueTicket:
        standing = QueueTicket(held, option)
        held.tickets.append(standing)
        waiters = option.line.waiters
        if is_likely:
            # Before it joins: later it would be one of those ahead of itself.
            ahead = waiters.ahead(held.rank, held.tenant, standing.tokens)
            held.joined(option, 1 if is_back else 1 + round(ahead.requests))
        if is_back:
            waiters.add_back(standing)
        else:
            waiters.add(standing)
        if is_likely:
            waiters.count_at_likely_line(standing)
        return standing

    def _serve(self, line: WaitingLine, now: float) -> None:
        """Lets through whoever may go, in turn, and sets the line's next chance."""
        waiters, gate = line.waiters, line.gate
        due, line.wakes_at = line.wakes_at, inf
        line.waits_for = None
        counts_tokens = gate.has_token_limit
        room = (lambda keep_percent: gate.token_room(now, keep_percent)) if counts_tokens else None
        while (turn := waiters.peek(now, counts_tokens=counts_tokens, room=room)) is not None:
            ticket = turn.ticket
            if now > ticket.option.latest:  # an answer would come too late
                self._drop(ticket, Left.NEVER_FITS if ticket.option.latest == -inf else Left.EXPIRED)
                continue
            is_probe = gate.health.is_probed
            if is_probe:  # who can best afford to fail tries it out, out of turn
                youngest = waiters.youngest(-1)
                if youngest is not None and not youngest.held.has_tried and now <= youngest.option.latest:
                    ticket = youngest
            elif ticket.option.opens_at > now >= gate.pauses.ends_at:  # the pause is for this call alone
                self._postpone(ticket)
                continue
            elif gate.pauses.refusals is not None:  # who was not refused finds out for all whether it is the target
                ticket = self._unrefused(line, ticket, now)
            is_out_of_turn = ticket is not turn.ticket
            try:
                rank = ticket.place.rank
                keeps = turn.keep_percent, turn.keep_requests, turn.keep_tokens
                wait_s = admit(gate, ticket.cost, now, *keeps, rank, ticket.traits)
                grant = ticket.option.take(now) if wait_s == 0.0 else None
            except Exception:
                # A defect ends this one call: to stop here would leave all behind it without a wake-up.
                log.exception("the gate %s failed", gate.name)
                self._end(ticket.held, Left.FAILED)
                continue
            if grant is not None:
                line.served += 1
                if not is_out_of_turn:
                    waiters.pop(ticket)
                    ticket.held.tickets.remove(ticket)
                self._grant(ticket, grant)
                continue
            if not is_out_of_turn and wait_s is not None and wait_s > LONGEST_AGED_S and waiters.forfeit_credit(ticket):
                continue
            if wait_s != inf:  # who is next has to wait, and so has everybody behind it
                line.waits_for = ticket
                if wait_s is not None:
                    line.wakes_at = now + wait_s
                    if line.wakes_at != due:  # else it is in the heap already
                        self._wakeups.put(line.wakes_at, line)
                return  # without a time: what is given back here serves the line again
            self._drop(ticket, Left.NEVER_FITS, is_out_of_turn=is_out_of_turn)

    def _unrefused(self, line: WaitingLine, ticket: QueueTicket, now: float) -> QueueTicket:
        """Returns who finds out whether others than those refused are let in; the ticket itself where nobody better waits.

        That is a call unlike those refused, else one that was not refused itself.
        """
        pauses, refusals = line.gate.pauses, line.gate.pauses.refusals
        if refusals is None or not pauses.stands_back(ticket.traits, now, ticket.option.yields_until):
            return ticket

        def is_open(one: QueueTicket) -> bool:
            return one.option.opens_at <= now <= one.option.latest

        first = line.waiters.first
        unlike = first(lambda one: is_open(one) and not pauses.stands_back(one.traits, now, one.option.yields_until))
        if unlike is None and refusals.has_refused(ticket.traits):
            unlike = first(lambda one: is_open(one) and not refusals.has_refused(one.traits))
        return unlike or ticket

    def _postpone(self, ticket: QueueTicket) -> None:
        """Takes a call out of a line whose target has refused it and lets others in, until its own pause is over."""
        held, option = ticket.held, ticket.option
        option.line.waiters.pop(ticket)
        held.tickets.remove(ticket)
        held.postponed.append(option)
        option.line.wanted += 1
        self._wakeups.put(option.opens_at, held)

    def _grant(self, ticket: QueueTicket, grant: Reservation) -> None:
        held = ticket.held
        held.grant = grant
        held.option = ticket.option
        self._end(held, Left.GRANTED)

    def _drop(self, ticket: QueueTicket, left: Left, *, is_out_of_turn: bool = False) -> None:
        """It will never go by this line; perhaps by another. If there is none, `left` says why it waits no more."""
        held = ticket.held
        is_only = len(held.tickets) == 1
        if is_only and not held.fallback_options[1] and not held.postponed:
            self._end(held, left)
            return
        if is_out_of_turn:  # it stands in the midst of its line, and is passed over there until its turn comes
            ticket.option.latest = -inf
            if is_only:
                self._widen(held, self._clock.monotonic())
            return
        ticket.option.line.waiters.pop(ticket)
        held.tickets.remove(ticket)
        if not held.tickets:  # no reason to prefer what will never be
            self._widen(held, self._clock.monotonic())

    def _end(self, held: Held, left: Left) -> None:
        held.left = left
        # Before anybody is woken or served: a call that is out of all lines cannot be granted a second time.
        unblocked = self._remove(held)
        try:
            held.wake()
        except Exception:  # a defect, and that call's alone
            log.exception("a held call could not be woken")
        self._serve_all(unblocked)

    def _serve_all(self, lines: Sequence[WaitingLine]) -> None:
        for line in lines:
            self._serve(line, self._clock.monotonic())

    def _remove(self, held: Held) -> list[WaitingLine]:
        """The lines where it was its turn, or others saved for it: somebody may go now."""
        held.is_gone = True
        unblocked = []
        for ticket in held.tickets:
            line = ticket.option.line
            line.waiters.left(ticket)
            if line.waits_for is ticket or line.waiters.saves_for(ticket):
                unblocked.append(line)
        held.tickets.clear()
        self._take_wider(held)
        for option in held.postponed:
            option.line.wanted -= 1
        held.postponed.clear()
        self.occupancy.remove(held.tenant, held.size, held.model, held.lane)
        return unblocked

    def _meet(self, item: WaitingLine | Held, now: float) -> None:
        """The moment has come that a line or a call waits for."""
        if isinstance(item, WaitingLine):
            item.wakes_at = inf
            self._serve(item, now)
        elif due := [option for option in item.postponed if option.opens_at <= now]:
            item.postponed = [option for option in item.postponed if option not in due]
            for option in due:
                option.line.wanted -= 1
            self._join_all(item, due, None, now, is_back=True)
            for option in due:  # it did not stand there, and may have missed that the target went out of service
                if not item.is_gone and option.line.gate.is_shut(item.lane, now):
                    self.shut(option.line)
        elif item.fallback_options[0] <= now:
            self._widen(item, now)
        elif item.deadline <= now:  # else it was widened before its time
            self._expire(item, now)

    def _expire(self, held: Held, now: float) -> None:
        """Its deadline has come; what frees at that very moment still serves it."""
        for ticket in [*held.tickets]:
            # A timer may come a little early: a chance at the same moment as the deadline counts.
            if ticket.option.line.wakes_at <= now + 1e-6:
                self._serve(ticket.option.line, now)
        if not held.is_gone:
            self._end(held, Left.EXPIRED)

    def _widen(self, held: Held, now: float) -> None:
        """The primary was preferred long enough."""
        options = self._take_wider(held)
        self._wakeups.put(held.deadline, held)
        self._join_all(held, options, None, now, is_back=False)

    def _take_wider(self, held: Held) -> Sequence[Option]:
        options = held.fallback_options[1]
        held.fallback_options = (inf, ())
        for option in options:
            option.line.wanted -= 1
        return options
