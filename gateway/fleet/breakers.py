"""What other replicas report of a breaker, applied to this replica's own.

It must not know how reports travel. Invariants: a breaker set by hand is never changed by a peer; a report never shortens the
time for which it is open.
"""

from __future__ import annotations

from gateway.core.health.breaker import Breaker
from gateway.core.health.phases import AwaitingLeave, ByHand, Closed, HalfOpen, Open


class FleetView:
    """Applies to one breaker what its peers report; keeps nothing of its own, and is made for the occasion.

    They report that it is open or closed, and who has the leave to probe it. A replica with its own recent evidence ignores
    what peers report; the others adopt it. Where nothing has failed here, a report is taken at its word for no longer than
    a first ejection, and one probe finds out.
    """

    __slots__ = ("_breaker",)

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker

    def peer_opened(self, until: float, ejections: int, reason: str, now: float, rate: float = 1.0) -> bool:
        """Opens the breaker as another replica has done: until `until`, after so many `ejections` in a row.

        A replica with its own evidence of health ignores the report. `rate` is the share of failures that the peer has seen.
        The breaker is open for no longer than its own longest open time, nor for less than it is already. Where nothing failed
        here it may be the peer's own way out that is broken: then its word holds for no longer than a first ejection, however
        often it is repeated.
        Returns True where the breaker was open, and is so for longer.
        """
        breaker = self._breaker
        until = min(until, now + breaker.rules.max_open_s)
        if breaker.is_by_hand or not breaker.rules.is_enabled or until <= now or self._is_outranked(now):
            return False
        phase, peers = breaker.phase, breaker.peers
        breaker.ejections = max(breaker.ejections_at(now), ejections)
        if peers.open_until is not None:
            peers.open_until = max(until, peers.open_until)
        elif isinstance(phase, Open | AwaitingLeave):
            if until > phase.probe_at or isinstance(phase, AwaitingLeave):
                breaker.phase = Open(until)
                return True
        else:
            has_seen_none = isinstance(phase, Closed) and not breaker.outcomes_in_window(now)[1]
            probe_at = min(until, now + breaker.rules.open_s) if has_seen_none else until
            breaker.open_until(probe_at, f"told by another replica: {reason}", now)
            # Behind the opening, which drops all that peers have reported.
            peers.failure_rate = rate
            peers.open_until = until if has_seen_none else None
        return False

    def peer_closed(self, reason: str, now: float) -> None:
        """Closes the breaker behind a slow start, because another replica has found the target well."""
        breaker = self._breaker
        if not isinstance(breaker.phase, Closed | ByHand):
            breaker.close(f"told by another replica: {reason}", now, breaker.rules.ramp_s)

    def grant_leave(self, now: float) -> bool:
        """Takes the leave to probe that the fleet gives; returns False if the breaker has no use for it any more."""
        phase = self._breaker.phase
        if isinstance(phase, HalfOpen):
            phase.has_leave = True
        elif isinstance(phase, AwaitingLeave):
            self._breaker.begin_probing(phase, now)
        else:
            return False
        return True

    def retry_probe_at(self, at: float, now: float) -> bool:
        """Puts off asking for leave to probe until `at`, because another replica has it.

        A breaker whose leave had lapsed opens again, unless its probe is out already. Returns False if it has moved on.
        """
        breaker = self._breaker
        phase = breaker.phase
        if isinstance(phase, AwaitingLeave):
            phase.probe_at = at
        elif isinstance(phase, HalfOpen) and breaker.ask_leave is not None:
            phase.has_leave = False
            if not breaker.probes_out:
                # Opening drops what peers have reported, but this is no ejection: their report stays.
                reported_until = breaker.peers.open_until
                breaker.open_until(at, "another replica tries it", now)
                breaker.peers.open_until = reported_until
        else:
            return False
        return True

    def return_permit(self) -> None:
        """Gives up leave that was held for long without a call to probe with: the next one probes while it is asked for."""
        phase = self._breaker.phase
        if isinstance(phase, HalfOpen):
            phase.has_leave = False

    def _is_outranked(self, now: float) -> bool:
        """Returns whether this replica's own evidence outranks a report of an outage, and renews that while nothing fails."""
        breaker, peers = self._breaker, self._breaker.peers
        is_outranked = breaker.has_own_evidence(now)
        if isinstance(breaker.phase, Closed):
            if peers.has_own_success(now) and not breaker.outcomes_in_window(now)[1]:
                peers.remember_own_success(breaker.rules.max_open_s, now)
            breaker.catch_up(now)
        return is_outranked
