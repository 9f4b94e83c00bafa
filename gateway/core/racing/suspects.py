"""Looks at open attempts that get no answer: finds calls that have waited for too long, and targets that are silent.

    look ── the first event of a stream is late ──────────────── its attempt ends
         ── the remaining time is needed for another target ───── the call moves on
         ── a target is suspect: its breaker opens ───────────── the calls that hang there move on, a few at a time

The attempts are inspected a few times a second, so a call that is answered soon pays nothing for it. `policy/` decides,
`moving.py` moves the calls. Invariants: no call is moved without another target to go to, and no attempt ends just because its
target is suspect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from gateway.core.admission.admission.admission import Admission
from gateway.core.answers import clocks_of
from gateway.core.attempts.outgoing.deadlines import AttemptDeadlines, Open, Task
from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.health.breaker.breaker import Breaker
from gateway.core.health.detector.signs_of_life import Heard
from gateway.core.health.detector.suspects import SilentAttempt, Suspicion, is_suspect
from gateway.core.health.times.first_byte_wait import (
    UNKNOWN,
    UsualTimes,
    first_event_s,
    probe_s,
    room_s,
    silence_s,
    usual_of,
)
from gateway.core.limits.target_limits.gate.gate import Gate
from gateway.core.racing.moving import Moves, find_target
from gateway.core.types.exchange import Clocks
from gateway.core.types.provider_errors import ErrorClass

LOOK_AFTER_S = 1.0
"""Attempts younger than this are not looked at, in seconds."""
STAYS_S = 2.0
"""A call that had no other target, or was refused there, is not asked to move again for this long, in seconds."""
RETRIP_S = 30.0
"""A breaker that was closed although its target is still suspect is opened again after this time, in seconds."""
FORGET_S = 3600.0
"""A target at which no call has waited for this long is forgotten, in seconds."""
log = logging.getLogger("gateway.health")


class Hanging(NamedTuple):
    """One open attempt that is older than LOOK_AFTER_S."""

    task: Task
    ends_at: float
    call: Call
    usual: UsualTimes
    clocks: Clocks
    silent_s: float


@dataclass(slots=True)
class Suspect:
    """The state of a suspect target. Times are monotonic seconds."""

    breaker: Breaker
    since: float
    tripped_at: float = -inf
    """The time at which the suspicion opened the target's breaker."""
    waited_at: float = -inf
    """The time at which a call last waited at the target."""


class Suspects:
    """Watches the open attempts of all calls. One per process."""

    __slots__ = ("_admission", "_clock", "_draw", "_known", "_moves", "_stay_until", "_suspects", "_watch")

    def __init__(
        self, clock: Clock, admission: Admission, watch: AttemptDeadlines, moves: Moves, draw: Callable[[], float]
    ) -> None:
        """`draw` gives uniform numbers from [0, 1)."""
        self._clock = clock
        self._admission = admission
        self._watch = watch
        self._moves = moves
        self._draw = draw
        self._suspects: dict[Heard, Suspect] = {}
        self._stay_until: dict[Task, float] = {}
        self._known: dict[tuple[Heard, bool, bool], UsualTimes] = {}  # of this look

    def look(self, opens: Open, now: float) -> None:
        """Judges all open attempts; called a few times a second while there are any."""
        self._known.clear()
        self._stay_until = {task: until for task, until in self._stay_until.items() if until > now and task in opens}
        groups: dict[Heard, tuple[Gate, list[Hanging]]] = {}
        for task, (ends_at, call) in opens.items():
            grant = call.grant
            if grant is not None and now - call.attempts[-1].started_at >= LOOK_AFTER_S:
                gate = grant.gate
                _, group = groups.setdefault(gate.health.heard, (gate, []))
                group.append(self._hanging(gate, task, ends_at, call, now))
        for gate, group in groups.values():
            self._look_at(gate, group, now)
        for heard, suspect in [*self._suspects.items()]:
            if heard.unserved_s(now) < now - suspect.since:
                self._clear(heard, suspect)
            elif heard in groups:
                suspect.waited_at = now
            elif now - suspect.waited_at > FORGET_S:
                del self._suspects[heard]
                heard.suspicion = None

    def _hanging(self, gate: Gate, task: Task, ends_at: float, call: Call, now: float) -> Hanging:
        target = find_target(call)
        clocks = _NO_CLOCKS if target is None else clocks_of(target, call)
        return Hanging(
            task, ends_at, call, self._usual(gate.health.heard, call), clocks, now - call.attempts[-1].heard_at
        )

    def _look_at(self, gate: Gate, group: Sequence[Hanging], now: float) -> None:
        for one in group:
            if one.call.stream and one.clocks.first_event_s is None:
                self._bound_first_event(one, gate)
        oldest_first = sorted(group, key=lambda one: one.call.received_at)
        witnesses = [one for one in oldest_first if one.clocks.suspect_in_flight]
        why = self._why_suspect(gate, witnesses, now)
        if why is not None:
            self._suspect(gate, why, witnesses, now)
        suspicion = gate.health.heard.suspicion
        for one in oldest_first:
            if _is_probe(one, gate):
                if self._has_probed(one, gate) or self._needs_room(one, gate, now):
                    self._move(one, now)
            elif suspicion is not None and suspicion.free and _hangs(one):
                self._move(one, now, suspicion)
            elif self._needs_room(one, gate, now):
                self._move(one, now)

    def _why_suspect(self, gate: Gate, witnesses: Sequence[Hanging], now: float) -> str | None:
        unserved_s = gate.health.heard.unserved_s(now)
        if not witnesses:
            return None
        deadlines = [one.call.deadline - one.call.received_at for one in witnesses if one.call.deadline_is_callers]
        shortest_s = min(deadlines, default=inf)
        waiting = [
            SilentAttempt(one.call.attempts[-1].started_at, one.silent_s, self._patience_s(one, gate, shortest_s))
            for one in witnesses
        ]
        return is_suspect(waiting, min([one.clocks.suspect_in_flight for one in witnesses]), unserved_s)

    def _usual(self, heard: Heard, call: Call) -> UsualTimes:
        kind = (heard, call.stream, call.thinks)
        usual = self._known.get(kind)
        if usual is None:
            usual = self._known[kind] = usual_of(heard.times(stream=call.stream, thinks=call.thinks))
        return usual

    def _thinks(self, gate: Gate, call: Call) -> bool:
        return call.thinks or gate.health.heard.thinks

    def _patience_s(self, one: Hanging, gate: Gate, shortest_s: float) -> float:
        return silence_s(
            one.usual,
            one.clocks.suspect_factor,
            stream=one.call.stream,
            thinks=self._thinks(gate, one.call),
            shortest_deadline_s=shortest_s,
        )

    def _bound_first_event(self, one: Hanging, gate: Gate) -> None:
        limit_s = first_event_s(one.usual, thinks=self._thinks(gate, one.call)) + one.clocks.connect_s
        self._watch.shorten(one.task, one.call.attempts[-1].started_at + limit_s)

    def _needs_room(self, one: Hanging, gate: Gate, now: float) -> bool:
        """Returns whether the call must move now to leave its untried targets the time that they need."""
        call = one.call
        if not call.deadline_is_callers or len(call.model.plan) < 2:
            return False
        started_at = call.attempts[-1].started_at
        met = {attempt.target for attempt in call.attempts}
        following = next((target for target in call.model.plan if target.name not in met), None)
        if following is None:
            return False
        heard = self._admission.gates.heard(following, call)
        after = UNKNOWN if heard is None else self._usual(heard, call)
        thinks = self._thinks(gate, call)
        return now - started_at >= room_s(call.deadline - started_at, one.usual, after, thinks=thinks)

    def _has_probed(self, one: Hanging, gate: Gate) -> bool:
        """Returns whether the probe has waited long enough to show that a silent target still is silent."""
        health = gate.health
        if health.heard.suspicion is None and health.heard.last_failure != ErrorClass.TIMEOUT:
            return False
        return one.silent_s >= probe_s(
            one.usual, health.breaker.ejections_at(self._clock.monotonic()), thinks=self._thinks(gate, one.call)
        )

    def _suspect(self, gate: Gate, why: str, group: Sequence[Hanging], now: float) -> None:
        """Opens the breaker of a silent target, if any of the calls that hang there could be served elsewhere."""
        heard, breaker = gate.health.heard, gate.health.breaker
        suspect = self._suspects.get(heard)
        if suspect is None:
            heard.suspicion = Suspicion(why, now)
            suspect = self._suspects[heard] = Suspect(breaker, now, waited_at=now)
            log.warning("%s is suspect: %s", breaker.name, why)
        if now - suspect.tripped_at >= RETRIP_S and any(self._can_move(one, now) for one in group):
            suspect.tripped_at = now
            breaker.trip(f"suspect: {why}", now, self._draw())

    def _can_move(self, one: Hanging, now: float) -> bool:
        if self._stay_until.get(one.task, -inf) > now:
            return False
        beside = self._watch.beside(one.task)
        places = self._moves.places(one.call)
        if beside is not None:
            places = [place for place in places if place.name != beside.attempts[-1].target]
        if places:
            return True
        self._stay_until[one.task] = now + STAYS_S
        return False

    def _move(self, one: Hanging, now: float, suspicion: Suspicion | None = None) -> None:
        """Moves the call to another target, if it can. A call that has already moved gives up the target that it is at now."""
        call = one.call
        is_second = call.other_attempt is not None and call.other_attempt.call is call
        if (call.other_attempt is not None and not is_second) or self._watch.is_spared(one.task):
            return
        if not self._can_move(one, now):
            return
        if is_second or self._watch.beside(one.task) is not None:
            self._watch.expire(one.task)
            return
        self._stay_until[one.task] = now + STAYS_S  # if nothing comes of it
        if suspicion is None:
            self._moves.begin(call, one.task)
        else:
            suspicion.moved()
            self._moves.begin(call, one.task, lambda is_answered: suspicion.ended(is_answered=is_answered))

    def _clear(self, heard: Heard, suspect: Suspect) -> None:
        """Clears the suspicion because the target has answered a call: it may be tried at once."""
        del self._suspects[heard]
        heard.suspicion = None
        breaker = suspect.breaker
        log.warning("%s is no longer suspect: it has answered", breaker.name)
        breaker.probe_soon(self._clock.monotonic())


def _hangs(one: Hanging) -> bool:
    """Returns whether the call moves on when its target is suspect."""
    return one.silent_s >= LOOK_AFTER_S and one.clocks.suspect_in_flight > 0


def _is_probe(one: Hanging, gate: Gate) -> bool:
    """Returns whether the call is one of the probes that try the target again."""
    breaker = gate.health.breaker
    return breaker.state == "half_open" and one.call.attempts[-1].started_at >= breaker.probe_at


_NO_CLOCKS = Clocks(inf, inf, inf, inf, inf, first_event_s=inf, suspect_in_flight=0)
