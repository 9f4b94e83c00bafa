"""The phase that a breaker is in, and how it moves from one to the next.

pybreaker holds the state while it is not closed, and tells its listener of each move; its own timer, which reads the wall
clock, never moves it. It must not know what a phase is entered for. Invariants: the state shown is that of the phase, as soon
as pybreaker has moved; a breaker that is closed has no circuit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from math import inf, log2
from typing import ClassVar, Literal, TypeAlias

from gateway.core.types import LANES, Lane

# The parts of pybreaker that hold a breaker's state, imported without redis-py. It must not know what they are used for.


def _import_without_redis() -> None:
    """Import pybreaker, whose states could be kept in a Redis, without the redis package.

    pybreaker takes the package if there is one, and with it come its asyncio clients and 200 modules: 6 MB of memory and
    time at every start of a process that has no Redis. `None` in `sys.modules` tells an import that a module is not there.
    """
    if "redis" in sys.modules:
        return
    sys.modules["redis"] = None  # type: ignore[assignment]  # as the import system's documentation has it
    try:
        import_module("pybreaker")
    finally:
        del sys.modules["redis"]


_import_without_redis()

from pybreaker import CircuitBreaker, CircuitBreakerListener, CircuitBreakerState  # noqa: E402 - it has to be as said above

__all__ = ["CircuitBreaker", "CircuitBreakerListener", "CircuitBreakerState"]


# The way back of a target that was left alone: a few probes, the least urgent calls first, then growing traffic.
#
# It must not know why the target was ejected, nor what its calls are. Invariants: never more probes out than allowed;
# waits are finite and never negative.


PROBE_GRACE_S = 0.1
"""Seconds for which each lane leaves the probes to the one below it."""
LEAST_RAMP_PER_S = 20.0
"""The calls per second that a slow start lets through at least, however little the traffic was."""
EARLY_S = 1e-6
"""Seconds by which a timer may come too early."""
FIRST_PAUSE_S = 0.1
"""Seconds after the failures of one moment until the first call finds out whether the target serves again."""
ANSWERING_S = 1.0
"""Seconds after which a call that has not failed counts for a sign of life: another one may follow it."""
MOST_OUT = 64
"""The most calls that may be out at once while a target stumbles."""
LASTING_S = 2.0
"""Seconds after which trouble is no passing moment: a target whose tries go on failing is left alone."""
FIRST_SHARE = 0.1
"""The share of the traffic before the ejection that a slow start begins with."""
DOUBLINGS = 10
_AT_ONCE_S = 0.2
_LN2 = 0.6931471805599453


class Probes:
    """The calls that a half-open breaker lets through from `since` on: one, and one more for each that succeeded."""

    __slots__ = ("bad", "good", "out", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.out = 0
        self.good = 0
        self.bad = 0

    def wait_s(self, now: float, rank: int, most: int) -> float | None:
        """Returns the seconds until a call of the lane `rank` may probe; None when one that is out has to end first."""
        if self.out >= min(most, 1 + self.good):
            return None
        grace_s = self.since + (len(LANES) - 1 - rank) * PROBE_GRACE_S - now
        return grace_s if grace_s > EARLY_S else 0.0


class SlowStart:
    """Lets calls through after recovery at a rate that doubles with each tenth of `ramp_s`, from almost none.

    Up to `t` seconds after its beginning r0 d / ln 2 (2^(t/d) - 1) calls may go, where d is a tenth of the ramp and r0 the rate
    it begins with. What is not used is lost but for a fifth of a second's worth. The calls that wait have all gone before the
    ramp ends (Envoy's and nginx's slow start, with a rate in place of a weight).
    """

    __slots__ = ("_began_at", "_double_s", "_first_per_s", "_ramp_s", "_taken")

    def __init__(self, usual_per_s: float, ramp_s: float, now: float) -> None:
        self._began_at = now
        self._ramp_s = ramp_s
        self._double_s = ramp_s / DOUBLINGS
        self._first_per_s = max(LEAST_RAMP_PER_S, usual_per_s * FIRST_SHARE)
        self._taken = 0.0

    def wait_s(self, now: float) -> float:
        """Returns the seconds until the next call may go; 0.0 now."""
        due_s = self._double_s * log2(1 + self._taken * _LN2 / (self._first_per_s * self._double_s))
        wait_s = self._began_at + min(due_s, self._ramp_s) - now
        return wait_s if wait_s > EARLY_S else 0.0

    def take(self, now: float) -> None:
        """Counts a call that goes."""
        rate_per_s = self._first_per_s * 2.0 ** ((now - self._began_at) / self._double_s)
        allowed = (rate_per_s - self._first_per_s) * self._double_s / _LN2
        self._taken = max(self._taken, allowed - rate_per_s * _AT_ONCE_S) + 1

    def is_over(self, now: float) -> bool:
        """Returns whether the slow start has ended, so that all calls go."""
        return now - self._began_at >= self._ramp_s - EARLY_S


# The phases of a breaker: each is a type that has only the fields which mean something in it.
#
#     phase           state shown      which calls go                               it ends by
#     Closed          closed           all; while it ramps up, as many as that lets  an ejection, or a person
#     Stumbling       closed           one, after a pause; one more for each good one enough successes, or trouble that lasts
#     Open            open             none before `probe_at`                        the first call after that
#     AwaitingLeave   open             none: another replica may be the one to try   the fleet's answer, or asking again
#     HalfOpen        half_open        as many as `probes` lets through              enough successes, more failures, a peer
#     ByHand          open, drained    none                                          a person
#
# It must not know who moves a breaker from one to the next, nor why. Invariants: `wait_s` changes nothing, however often it is
# asked; only `ByHand` waits for ever.


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
class Stumbling:
    """Its last calls have failed, perhaps all at one moment: few calls go, until it is known whether the trouble lasts."""

    since: float
    """The time of the first of these failures (monotonic seconds)."""
    probe_at: float
    """The time at which the next call may go (monotonic seconds)."""
    pause_s: float
    """The seconds between two calls; doubled with each failure."""
    sent_at: float = 0.0
    """The time at which the last call went."""
    out: int = 0
    good: int = 0
    bad: int = 0
    state: ClassVar[State] = "closed"

    def wait_s(self, now: float, _rank: int, most: int) -> float | None:
        """Returns the seconds until the next call may go; None when one that is out has to end first.

        Errors come back at once, long answers do not: the longer calls are out, the more others go.
        """
        if self.out >= MOST_OUT:
            return None
        due_at = self.probe_at
        if self.out >= min(most, 1 + self.good):
            due_at = max(due_at, self.sent_at + ANSWERING_S / self.out)
        left_s = due_at - now
        return left_s if left_s > EARLY_S else 0.0


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


BreakerPhase: TypeAlias = Closed | Stumbling | Open | AwaitingLeave | HalfOpen | ByHand


# The compiled rules of `breakers.yaml`: when a target is left alone after failures, and how it comes back.


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """One set of `breakers.yaml`."""

    is_enabled: bool = True
    consecutive_failures: int = 5
    """The failures in a row that open it; raised to 20 at most where failures are usual at this target."""
    failure_rate_percent: float = 50.0
    """The percentage of the calls that usually succeed whose failure opens it; raised to 90 % of all at most."""
    min_calls: int = 20
    """The calls that have to be in the window before a rate is looked at."""
    window_s: float = 60.0
    """The length of the window in seconds; it is made longer where calls take longer."""
    slow_rate_percent: float = 80.0
    """The percentage of calls that opens it whose first byte came later than is usual here ..."""
    slow_factor: float = 4.0
    """... by this factor over the target's own baseline, within the next two ..."""
    slow_at_least_s: float = 10.0
    slow_at_most_s: float = 120.0
    open_s: float = 2.0
    """The seconds that it is open for the first time; doubled with each further ejection."""
    max_open_s: float = 60.0
    jitter_percent: float = 20.0
    """The largest part of the open time by which a draw shortens it."""
    probes: int = 3
    """The most calls in flight while it is half open; as many successes close it."""
    ramp_s: float = 10.0
    """The seconds of the slow start, over which the calls let through grow once it is closed."""
    hold_for_s: Mapping[Lane, float] = field(default_factory=lambda: dict.fromkeys(LANES, 21600.0))
    """The seconds that a call of each lane is held when all its targets are open; its deadline ends that sooner."""


def account_rules(rules: BreakerRules) -> BreakerRules:
    """Returns the rules of a provider's account, which hears of all its targets' failures: no single target should open it."""
    consecutive = max(10, 2 * rules.consecutive_failures)
    return replace(rules, consecutive_failures=consecutive, min_calls=max(50, 2 * rules.min_calls))


_NEVER_S = 1e9  # pybreaker's own timer


class StateMachine:
    """Holds the one phase that a breaker is in, and answers the questions that are asked of it most."""

    __slots__ = (
        "_circuit",
        "_moves",
        "_on_change",
        "ejections",
        "is_clear",
        "is_news",
        "name",
        "phase",
        "reason",
        "rules",
        "state",
    )

    def __init__(
        self, name: str, rules: BreakerRules, now: float, on_change: Callable[[str, str, str], None] | None
    ) -> None:
        """`on_change` is told the name, the new state and the reason of each move."""
        self.name = name
        self.rules = rules
        self.phase: BreakerPhase = Closed(now)
        self.state: State = "closed"
        """The state of `phase`, as pybreaker has announced it."""
        self.reason = "not opened yet"
        self.is_clear = True
        """True while it is closed and not in a slow start: all that the hot path has to ask."""
        self.is_news = False
        """True if calls or probes of this replica moved it, so peers should know; False for a person, rules, peers' reports."""
        self.ejections = 0
        """The ejections in a row, as of the last move; `ejections_at` takes off those that health has made up for since."""
        self._on_change = on_change
        self._moves = [0] * len(STATES)
        self._circuit: CircuitBreaker | None = None  # while it is not closed: most never are anything else

    def wait_s(self, now: float, rank: int) -> float | None:
        """Returns the seconds until a call may go: 0.0 now, inf never by itself, None when a probe has to end first.

        `rank` is the index of the call's lane; the lowest lanes probe first. Where the fleet has to be asked, it is the wait
        until then.
        """
        return 0.0 if self.is_clear else self.phase.wait_s(now, rank, self.rules.probes)

    @property
    def probe_at(self) -> float:
        """The time of the first probe (monotonic seconds); inf: it is closed, or stays as it is until a person says so."""
        return self.phase.probe_at

    @property
    def is_stumbling(self) -> bool:
        """Returns whether single calls find out if the failures of a moment go on."""
        return isinstance(self.phase, Stumbling)

    @property
    def is_by_hand(self) -> bool:
        """Returns whether a person has opened or drained it."""
        return isinstance(self.phase, ByHand)

    @property
    def probes_out(self) -> int:
        """The number of calls in flight that try whether the target is well again."""
        return self.phase.probes.out if isinstance(self.phase, HalfOpen) else 0

    def is_ramping(self, now: float) -> bool:
        """Returns whether it is closed, but still in its slow start."""
        phase = self.phase
        return isinstance(phase, Closed) and phase.ramp is not None and not phase.ramp.is_over(now)

    @property
    def transitions(self) -> dict[State, int]:
        """Returns how many times it has come into each state."""
        return dict(zip(STATES, self._moves, strict=True))

    def ejections_at(self, now: float) -> int:
        """Returns the ejections in a row; while it is closed, one is forgotten for each `max_open_s` of health."""
        if not self.ejections or not isinstance(self.phase, Closed):
            return self.ejections
        return max(0, self.ejections - int((now - self.phase.since) / max(self.rules.max_open_s, 1.0)))

    def retire(self) -> None:
        """Takes the circuit apart, whose parts refer to each other and to this: the breaker is closed, or used no more.

        So a breaker that is dropped is gone at once, and no collection of thousands of them stops the loop.
        """
        circuit, self._circuit = self._circuit, None
        if circuit is not None:
            vars(circuit).clear()

    def _enter(self, phase: BreakerPhase, reason: str, *, is_news: bool = False) -> None:
        """Puts the phase in force, and moves the circuit after it: closed at first, and made anew for each ejection."""
        self.phase = phase
        self.is_clear = isinstance(phase, Closed) and phase.ramp is None
        self.reason, self.is_news = reason, is_news
        circuit = self._circuit
        if circuit is None:
            circuit = CircuitBreaker(reset_timeout=_NEVER_S, listeners=[_Mirror(self)], name=self.name)
            self._circuit = circuit
        if isinstance(phase, Closed):
            circuit.close()
            self.retire()
        elif isinstance(phase, HalfOpen):
            circuit.half_open()
        else:
            circuit.open()

    def note(self, reason: str) -> None:
        """Tells that it is in its state for another reason now."""
        self.reason, self.is_news = reason, False
        if self._on_change is not None:
            self._on_change(self.name, self.state, reason)

    def _became(self) -> None:
        """Takes over the state of the phase and tells of the move; called once pybreaker has moved there."""
        self.state = self.phase.state
        self._moves[STATES.index(self.state)] += 1
        if self._on_change is not None:
            self._on_change(self.name, self.state, self.reason)


class _Mirror(CircuitBreakerListener):
    """Carries pybreaker's transitions over to the breaker."""

    __slots__ = ("_machine",)

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine

    def state_change(
        self, cb: CircuitBreaker, old_state: CircuitBreakerState | None, new_state: CircuitBreakerState
    ) -> None:
        """The circuit has moved."""
        self._machine._became()
