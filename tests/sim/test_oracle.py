"""The looker-on sees what it is there for: each promise is broken on purpose, and it says so."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from gateway.core.admission.fair_queue import FairQueue, Next
from gateway.core.admission.queue import DelayQueue, Held
from gateway.core.limits import reservation
from gateway.core.limits.bucket import Cost
from gateway.core.limits.reservation import Reservation
from gateway.core.limits.target_limits import CallTraits, Gate
from tests.sim.cases import requests_site
from tests.sim.oracle import Oracle, leftovers
from tests.sim.provider import Fault
from tests.sim.traffic import Caller, burst, poisson
from tests.sim.world import World


def looked_at(*, faults: tuple[Fault, ...] = (), until_s: float = inf) -> tuple[World, Oracle]:
    """A burst of batch calls and some interactive ones, with too little time for all."""
    world = World([requests_site(faults=faults)])
    oracle = Oracle(world)
    oracle.watch_idleness(every_s=0.01, for_s=10)
    world.clock.start(burst(world, Caller("batch", deadline_s=15), 800))
    world.clock.start(poisson(world, Caller("interactive"), 200, for_s=3))
    world.run(until_s)
    return world, oracle


def test_it_has_nothing_to_say_when_all_is_well() -> None:
    """No promise is broken, nothing is left."""
    world, oracle = looked_at()

    assert (oracle.wrongs, oracle.idle_s, leftovers(world)) == ([], 0, [])


def test_it_sees_a_lane_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest lane first."""

    def lowest(waiters: FairQueue[Any], now: float, **_: object) -> Next[Any] | None:
        ticket = waiters.youngest(-1)
        return None if ticket is None else Next(ticket, 0.0)

    monkeypatch.setattr(FairQueue, "peek", lowest)
    monkeypatch.setattr(FairQueue, "pop", FairQueue.left)

    _, oracle = looked_at(until_s=2)

    assert any("while a higher lane waited" in wrong for wrong in oracle.wrongs)


def test_it_sees_a_pause_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider asked for 5 s."""
    monkeypatch.setattr(Gate, "pause", lambda *_, **__: None)

    _, oracle = looked_at(faults=(Fault(1.0, 1.2, 429, retry_after_s=5.0),), until_s=4)

    assert any("during its pause" in wrong for wrong in oracle.wrongs)


def test_it_sees_a_deadline_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is ever told that it is too late."""
    held = Held.__init__

    def patient(*args: object, deadline: float, **more: object) -> None:
        held(*args, deadline=deadline + 3600, **more)  # type: ignore[arg-type]  # passed on as they are

    monkeypatch.setattr(Held, "__init__", patient)

    _, oracle = looked_at(faults=(Fault(0.0, 20.0, 429, retry_after_s=5.0),))

    assert any("after the deadline" in wrong for wrong in oracle.wrongs)


def test_it_sees_room_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate that lets nobody through for a while."""
    wait_for = reservation.wait_for

    def slow(
        gate: Gate,
        cost: Cost,
        now: float,
        keep_percent: float = 0.0,
        keep_requests: float = 0.0,
        keep_tokens: float = 0.0,
        rank: int = 1,
        traits: CallTraits | None = None,
    ) -> float | None:
        if 1001.0 < now < 1001.5:
            return 0.5
        return wait_for(gate, cost, now, keep_percent, keep_requests, keep_tokens, rank, traits)

    monkeypatch.setattr(reservation, "wait_for", slow)

    _, oracle = looked_at()

    assert oracle.idle_s > 0.3


def test_it_sees_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that end without telling the queue."""
    monkeypatch.setattr(Reservation, "end", lambda *_: None)
    monkeypatch.setattr(DelayQueue, "leave", lambda *_: None)

    world, _ = looked_at(until_s=5)

    assert any("in flight at p0" in what for what in leftovers(world))
