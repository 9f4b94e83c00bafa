"""Looks on while a world runs, and writes down what admission promises never to do.

Judges by what callers and providers see, not by the gate's own levels; of the queue it reads only who stands in which line.
Invariant: it changes nothing.
"""

from __future__ import annotations

from collections import Counter
from math import inf

from gateway.core.admission.queue import Held, Left
from gateway.core.limits.target_limits import MOST_CHECKS
from gateway.core.types import LANES, Lane
from tests.sim.call import SimCall, held_of
from tests.sim.clock import until
from tests.sim.provider import Demand
from tests.sim.world import World

_ROUNDING_S = 2e-6
_AFTER_PAUSE_S = 1.0
"""So long after a pause a target is used with care: what is idle then is meant to be."""
_MOST_LOOKED_AT = 30


class Oracle:
    """Set as a world's `watch`; `wrongs` has a line for each broken promise."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.wrongs: list[str] = []
        self.waiting: dict[Lane, dict[SimCall, None]] = {lane: {} for lane in LANES}
        self.grants: Counter[str] = Counter()
        """By target."""
        self.aged = 0
        """Grants that a lower lane got while a higher one waited there, because it had waited long enough."""
        self.contested = 0
        """Grants while a lower lane waited for which that would have been allowed."""
        self.idle_s = 0.0
        """Room that nobody used although somebody waited who fitted; the sum over targets."""
        self._paused_until: dict[str, float] = {}
        self._paused_at: dict[str, float] = {}
        self._checks: Counter[str] = Counter()
        """Calls that went to find out whether the present pause concerns them, by target."""
        world.watch = self

    def waits(self, call: SimCall) -> None:
        self.waiting[call.request.lane][call] = None

    def waits_no_more(self, call: SimCall) -> None:
        held = held_of(call)
        del self.waiting[call.request.lane][call]
        if held.left is Left.GRANTED:
            assert held.option is not None
            call.checked = held.grant
            self.goes(call, held.option.line.gate.name)
        elif held.left is Left.EXPIRED:
            self._check_expiry(call, held)

    def goes(self, call: SimCall, target: str) -> None:
        now = self._world.clock.now
        self.grants[target] += 1
        if now > call.request.deadline + _ROUNDING_S:
            self._wrong(f"let through {now - call.request.deadline:.4f} s after the deadline")
        if now < self._paused_until.get(target, 0.0) - _ROUNDING_S:
            self._checks[target] += 1
            if self._checks[target] > MOST_CHECKS:
                self._wrong(f"let through to {target} during its pause")
        self._check_lane(call, target, now)

    def told_to_wait(self, target: str, seconds: float | None) -> None:
        now = self._world.clock.now
        if seconds is not None:
            if now >= self._paused_until.get(target, 0.0):
                self._paused_at[target], self._checks[target] = now, 0
            self._paused_until[target] = max(now + seconds, self._paused_until.get(target, 0.0))

    def let_in(self, target: str, sent_at: float) -> None:
        """The target serves a call that was sent at this time: a pause that was asked for before does not concern all."""
        if sent_at >= self._paused_at.get(target, 0.0):
            self._paused_until.pop(target, None)

    def watch_idleness(self, every_s: float, for_s: float) -> None:
        """Look for unused room so often."""
        self._world.clock.start(self._probe(every_s, self._world.clock.now + for_s))

    def _check_expiry(self, call: SimCall, held: Held) -> None:
        """On time; and where an answer has to begin by the deadline, no earlier than that takes."""
        late_s = self._world.clock.now - held.deadline
        early_s = call.request.deadline - held.deadline
        most_s = (
            (call.request.deadline - call.request.received_at) / 2 * call.request.deadline_is_callers
        )  # as in `needed_s`
        if not -_ROUNDING_S <= late_s <= 0.001 or not 0 <= early_s <= most_s + _ROUNDING_S:
            self._wrong(f"expired {late_s - early_s:+.4f} s from the deadline")

    def _check_lane(self, call: SimCall, target: str, now: float) -> None:
        rank = LANES.index(call.request.lane)
        if any(self._has_aged(lane, target, now) for lane in LANES[max(rank, 2) :]):
            self.contested += 1
        if not any(self._first(lane, target) is not None for lane in LANES[:rank]):
            return
        waited_s = now - call.request.received_at
        if waited_s > self._world.bounds.age_after_s.get(call.request.lane, inf) - _ROUNDING_S:
            self.aged += 1
        else:
            self._wrong(
                f"{call.request.lane} let through to {target} after {waited_s:.3f} s while a higher lane waited"
            )

    def _has_aged(self, lane: Lane, target: str, now: float) -> bool:
        first = self._first(lane, target)
        return first is not None and now - first.request.received_at > self._world.bounds.age_after_s.get(lane, inf)

    def _first(self, lane: Lane, target: str) -> SimCall | None:
        """The one who has waited longest of those who stand in this target's line."""
        waiting = self.waiting[lane]
        for call in list(waiting)[:1] if len(self._world.sites) == 1 else list(waiting):
            if call.held is None or held_of(call).is_gone:
                del waiting[call]  # its client has left
            elif any(ticket.option.line.gate.name == target for ticket in held_of(call).tickets):
                return call
        return None

    async def _probe(self, every_s: float, ends_at: float) -> None:
        """Room counts as idle when it was there at the last look, too, and nobody has gone in between."""
        clock = self._world.clock
        seen: dict[str, int] = {}
        while clock.now < ends_at:
            for target in self._world.providers:
                has_room = self._has_idle_room(target, clock.now)
                if has_room and seen.get(target) == self.grants[target]:
                    self.idle_s += every_s
                seen[target] = self.grants[target] if has_room else -1
            await until(clock.now + every_s)

    def _has_idle_room(self, target: str, now: float) -> bool:
        """Whether whoever could be next at this target would be let in there."""
        if now < self._paused_until.get(target, -inf) + _AFTER_PAUSE_S:
            return False
        provider = self._world.providers[target]
        for lane in LANES:
            if self._first(lane, target) is not None:
                keep_percent = self._world.holding.reserve_percent if LANES.index(lane) > 1 else 0.0
                nexts = list(self.waiting[lane])[:_MOST_LOOKED_AT]
                return all(provider.has_room(call.demand, now, keep_percent) for call in nexts)
        return False

    def _wrong(self, what: str) -> None:
        self.wrongs.append(f"at {self._world.since_s:.3f} s: {what}")


def leftovers(world: World) -> list[str]:
    """What is not as it was before the first call, once all have ended and every limit has had time to fill up."""
    world.run(for_s=86_400.0)
    queue, now = world.admission.queue, world.clock.now
    left = [f"{queue.occupancy.calls} calls held"] if queue.occupancy.calls else []
    left += [f"{queue.occupancy.bytes} bytes held"] if queue.occupancy.bytes else []
    left += [f"{number} waiting: {depth}" for depth, number in queue.occupancy.depth.items() if number]
    for name, line in queue.lines.items():
        left += [f"{len(line.waiters)} in the line of {name}"] if len(line.waiters) else []
        left += [f"{line.gate.in_flight} in flight at {name}"] if line.gate.in_flight else []
        left += [
            f"{row.name} of {name} at {row.level} of {row.capacity}"
            for row in line.gate.rows(now)
            if abs(row.level - row.capacity) > 1e-6 * row.capacity
        ]
    left += [f"{one.in_flight} in flight seen by {name}" for name, one in world.providers.items() if one.in_flight]
    left += [f"{call.request.lane} call never ended" for call in world.calls if not call.outcome]
    return left + _next_waits(world)


def _next_waits(world: World) -> list[str]:
    """Whatever was held by those who have ended, a new call goes at once."""
    call = SimCall(world.policy, world.clock.now, "interactive", "new", Demand(1, 1, 1), 1, None)
    world.offer(call)
    world.run()
    return [] if call.outcome == "ok" and not call.queue_s else [f"a new call waits {call.queue_s} s: {call.outcome}"]
