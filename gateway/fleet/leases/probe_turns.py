"""Whose turn it is to probe: of all replicas one tries whether a target that was left alone is well again.

A breaker whose time is over asks for leave; here that is a slot of the fleet, held while probes are out and given back when it
is known how they went. Who has a slot and no call to probe with gives it up, and may ask again with the next call. Where an
account is open, too, its targets probe in the account's turn. It must not know calls, nor how a breaker decides. Invariants:
every ask is answered, sooner or later or by asking again; a slot that nobody gives back is free after `SLOT_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.core.admission.gates import Gates
from gateway.core.admission.outcomes import HealthPropagation
from gateway.core.admission.queue.queue import DelayQueue
from gateway.core.clock import Clock, Timer
from gateway.core.health.breaker.breaker import Breaker
from gateway.core.health.target_health.target_health import FleetView
from gateway.core.ports import News

SLOT_S = 5.0
"""Seconds for which a slot is held unless it is given back: a replica that dies costs the others no more."""
RENEW_S = SLOT_S / 2
LOOK_AGAIN_S = 0.25
"""Seconds, or twice as many, until a slot is asked for again after another replica got it."""
FEW = 100
"""The longest line that a call joins in the hope of a probe; longer ones are of calls that can wait."""


class ProbeTurns:
    """Asks for slots on behalf of breakers, and keeps them while they are of use."""

    __slots__ = ("_clock", "_draw", "_gates", "_health", "_held", "_news", "_queue")

    def __init__(
        self,
        clock: Clock,
        news: News,
        gates: Gates,
        health: HealthPropagation,
        queue: DelayQueue,
        draw: Callable[[], float],
    ) -> None:
        """`draw` gives uniform numbers from [0, 1)."""
        self._clock = clock
        self._news = news
        self._gates = gates
        self._health = health
        self._queue = queue
        self._draw = draw
        self._held: dict[str, tuple[str, Timer]] = {}  # by the breaker's name: its slot, and when to look after it

    def ask(self, breaker: Breaker) -> None:
        """Asks the fleet whether this replica may probe the target of the breaker."""
        slot = self._slot_of(breaker)
        answer = self._news.take_slot(slot, SLOT_S)
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(lambda done: self._answered(breaker, slot, is_ours=_is_granted(done)))
        else:
            self._answered(breaker, slot, is_ours=answer)

    def state_changed(self, breaker: Breaker) -> None:
        """Gives the slot of a breaker back when its state has changed, because the result of its probes is known."""
        if breaker.state != "half_open":
            self._give_up(breaker)

    def _answered(self, breaker: Breaker, slot: str, *, is_ours: bool) -> None:
        now = self._clock.monotonic()
        if not is_ours:
            self._drop(breaker)
            if FleetView(breaker).retry_probe_at(now + LOOK_AGAIN_S * (1 + self._draw()), now):
                # Not at once: whoever has asked is still busy with this very line.
                self._clock.call_at(now, lambda: self._release_waiters(breaker))
        elif FleetView(breaker).grant_leave(now):
            self._drop(breaker)
            self._held[breaker.name] = slot, self._clock.call_at(now + RENEW_S, lambda: self._look_after(breaker))
        elif not self._is_held(slot):
            self._news.give_slot(slot)

    def _look_after(self, breaker: Breaker) -> None:
        if breaker.probes_out:
            self.ask(breaker)
        else:
            FleetView(breaker).return_permit()
            self._give_up(breaker)

    def _give_up(self, breaker: Breaker) -> None:
        slot = self._drop(breaker)
        if slot is not None and not self._is_held(slot):
            self._news.give_slot(slot)

    def _drop(self, breaker: Breaker) -> str | None:
        slot, timer = self._held.pop(breaker.name, (None, None))
        if timer is not None:
            timer.cancel()
        return slot

    def _is_held(self, slot: str) -> bool:
        return any(slot == held for held, _ in self._held.values())

    def _release_waiters(self, breaker: Breaker) -> None:
        """Releases the calls that wait here for the probe of another replica."""
        if breaker.state == "open":
            for line in self._health.lines_of(breaker.name):
                if len(line.waiters) <= FEW:
                    self._queue.shut(line)

    def _slot_of(self, breaker: Breaker) -> str:
        line = self._gates.lines.get(breaker.name)
        account = None if line is None else line.gate.health.account
        is_accounts = account is not None and account.breaker.state != "closed" and account.name in self._gates.accounts
        return f"probe:{account.name if account is not None and is_accounts else breaker.name}"


def _is_granted(answer: asyncio.Future[bool]) -> bool:
    """Returns the store's answer; where it gives none, True: this replica probes by itself."""
    return answer.cancelled() or answer.exception() is not None or answer.result()
