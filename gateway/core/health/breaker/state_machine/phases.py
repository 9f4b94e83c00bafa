"""The phases of a breaker: each is a type that has only the fields which mean something in it.

    phase           state shown      which calls go                               it ends by
    Closed          closed           all; while it ramps up, as many as that lets  an ejection, or a person
    Open            open             none before `probe_at`                        the first call after that
    AwaitingLeave   open             none: another replica may be the one to try   the fleet's answer, or asking again
    HalfOpen        half_open        as many as `probes` lets through              enough successes, one failure, a peer
    ByHand          open, drained    none                                          a person

It must not know who moves a breaker from one to the next, nor why. Invariants: `wait_s` changes nothing, however often it is
asked; only `ByHand` waits for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal, TypeAlias

from gateway.core.health.breaker.state_machine.recovery import EARLY_S, Probes, SlowStart

State = Literal["closed", "open", "half_open", "drained"]
STATES: tuple[State, ...] = ("closed", "open", "half_open", "drained")


@dataclass(slots=True)
class Closed:
    """The target is trusted."""

    since: float
    """The time at which it closed (monotonic seconds): ejections are forgotten from then on."""
    ramp: SlowStart | None = None
    """The slow start after an ejection, which lets growing traffic through; None: all calls go."""
    state: ClassVar[State] = "closed"
    probe_at: ClassVar[float] = inf

    def wait_s(self, now: float, _rank: int, _most_probes: int) -> float:
        """Returns the seconds until the next call may go."""
        return 0.0 if self.ramp is None or self.ramp.is_over(now) else self.ramp.wait_s(now)


@dataclass(slots=True)
class Open:
    """The target is left alone for a while."""

    probe_at: float
    """The time at which the first probe may go (monotonic seconds)."""
    state: ClassVar[State] = "open"

    @property
    def due_at(self) -> float:
        """The time at which it stops being open, if a call comes (monotonic seconds)."""
        return self.probe_at

    def wait_s(self, now: float, rank: int, most_probes: int) -> float | None:
        """Returns the seconds until a call of the lane `rank` may probe: the lowest lanes go first."""
        left_s = self.probe_at - now
        return left_s if left_s > EARLY_S else Probes(self.probe_at).wait_s(now, rank, most_probes)


@dataclass(slots=True)
class AwaitingLeave:
    """The open time is over, and the fleet has been asked whether it is this replica that probes."""

    due_at: float
    """The end of the open time (monotonic seconds): the order of the lanes counts from there."""
    probe_at: float
    """The time at which the fleet is asked again, unless it answers (monotonic seconds)."""
    state: ClassVar[State] = "open"

    def wait_s(self, now: float, rank: int, most_probes: int) -> float | None:
        """Returns the seconds until a call of the lane `rank` may probe, or ask for leave to."""
        left_s = self.probe_at - now
        return left_s if left_s > EARLY_S else Probes(self.due_at).wait_s(now, rank, most_probes)


@dataclass(slots=True)
class HalfOpen:
    """A few calls find out whether the target is well again."""

    probes: Probes
    has_leave: bool = True
    """False: this replica had leave for long and no call to probe with. The next call probes, and leave is asked for again."""
    state: ClassVar[State] = "half_open"

    @property
    def probe_at(self) -> float:
        """The time at which the first probe was due (monotonic seconds)."""
        return self.probes.since

    def wait_s(self, now: float, rank: int, most_probes: int) -> float | None:
        """Returns the seconds until a call of the lane `rank` may probe; None when one that is out has to end first."""
        return self.probes.wait_s(now, rank, most_probes)


@dataclass(slots=True)
class ByHand:
    """A person has taken the target out of service, until a person says otherwise."""

    state: State
    """`open` or `drained`: they differ in nothing but the name."""
    probe_at: ClassVar[float] = inf

    def wait_s(self, _now: float, _rank: int, _most_probes: int) -> float:
        """Returns inf: only a person ends this phase."""
        return inf


BreakerPhase: TypeAlias = Closed | Open | AwaitingLeave | HalfOpen | ByHand
