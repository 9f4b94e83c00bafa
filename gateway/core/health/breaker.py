"""A circuit breaker: a target that fails is left alone for a while, then tried with a few calls, then trusted again.

    closed ── failures in a row | share of failures ──> stumbling ── a few tries succeed ──> closed, behind a short ramp
    stumbling ── tries fail for two seconds ──> open        closed ── timeouts | share of slow calls ──> open
    open ── its time is over ──> half_open
    half_open ── most probes fail ──> open, for longer       half_open ── `probes` successes ──> closed, behind a ramp
    by hand: open and drained stay until undone              peers: see `PeerReports`

First come the ways back (probes, and the slow start behind them) and the phases with the calls that may go in each, then what
peers report, and last `Breaker`, which moves from one phase to the next and decides when: `detector.py` says who is ill.
pybreaker holds the state while it is not closed, and calls its listener with each move; its own timer, which reads the wall
clock, never moves it. It must not know calls, targets or providers: its owner tells it the outcomes that speak of health.
Invariants: questions change nothing, `admit` acts; a half-open breaker never has more than `probes` calls out; every state but
those set by hand is left again; a call sent before the last ejection is no evidence after it. Every permit is given back
exactly once, by `succeeded`, `failed` or `forget`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from math import inf, log2
from typing import ClassVar, Literal, TypeAlias

from gateway.core.health.detector import Baseline, BreakerRules, FailureDetector
from gateway.core.types import LANES, ErrorClass


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

from pybreaker import CircuitBreaker, CircuitBreakerListener, CircuitBreakerState  # noqa: E402 - it must not import redis

# --- the way back of a target that was left alone: a few probes, then growing traffic ---

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
    """The calls that a half-open breaker lets through from `since` on: one, and one more for each that succeeded.

    The least urgent calls go first. Invariants: never more probes out than allowed; waits are finite and never negative.
    """

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
        rate_per_s = self._first_per_s * 2.0 ** ((now - self._began_at) / self._double_s)
        allowed = (rate_per_s - self._first_per_s) * self._double_s / _LN2
        self._taken = max(self._taken, allowed - rate_per_s * _AT_ONCE_S) + 1

    def is_over(self, now: float) -> bool:
        """Returns whether the slow start has ended, so that all calls go."""
        return now - self._began_at >= self._ramp_s - EARLY_S


# --- the phases: each is a type that has only the fields which mean something in it ---
#
#     phase           state shown      which calls go                               it ends by
#     Closed          closed           all; while it ramps up, as many as that lets  an ejection, or a person
#     Stumbling       closed           one, after a pause; one more for each good one enough successes, or trouble that lasts
#     Open            open             none before `probe_at`                        the first call after that
#     AwaitingLeave   open             none: another replica may be the one to try   the fleet's answer, or asking again
#     HalfOpen        half_open        as many as `probes` lets through              enough successes, more failures, a peer
#     ByHand          open, drained    none                                          a person
#
# Invariants: `wait_s` changes nothing, however often it is asked; only `ByHand` waits for ever.


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


_NEVER_S = 1e9  # pybreaker's own timer


class _Mirror(CircuitBreakerListener):
    """Carries pybreaker's transitions over to the breaker."""

    __slots__ = ("_breaker",)

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker

    def state_change(
        self, cb: CircuitBreaker, old_state: CircuitBreakerState | None, new_state: CircuitBreakerState
    ) -> None:
        self._breaker._became()


# --- what other replicas report ---

OWN_SUCCESS_SPANS = 2
"""The multiple of the longest open time for which the success of own probes outranks what peers report."""


class PeerReports:
    """The reports of peers about one breaker, and the own evidence that outranks them. Times are monotonic seconds.

    They are kept apart from what was seen here, and for a while the latter outranks them. Invariant: what a peer has
    reported goes with the ejection that it was about.
    """

    __slots__ = ("failure_rate", "open_until", "own_success_until")

    def __init__(self) -> None:
        self.failure_rate: float | None = None
        """The share of failures seen by the peer whose report opened the breaker; None: what was seen here opened it."""
        self.open_until: float | None = None
        """The time until which peers leave the target alone, if only their report opened it here; None: it failed here, too."""
        self.own_success_until: float | None = None
        """The time until which the success of own probes outranks reports; None: there was none of late."""

    def forget(self) -> None:
        """Drops both sides' evidence: the breaker opens, and for that one reason."""
        self.open_until = self.own_success_until = None

    def remember_own_success(self, max_open_s: float, now: float) -> None:
        """Notes that own probes have succeeded; a peer that errs repeats its report within the longest open time."""
        self.own_success_until = now + OWN_SUCCESS_SPANS * max_open_s

    def has_own_success(self, now: float) -> bool:
        """Returns whether own probes have found the target well, and nothing has failed since."""
        return self.own_success_until is not None and now < self.own_success_until


# --- the breaker ---

LEAVE_S = 0.2
"""Seconds after which leave to probe is asked for again: an answer takes milliseconds, or is lost."""
_MS = 1000
_SENT_BITS = 44  # milliseconds of 500 years; the generation is in the bits above them
_SENT = (1 << _SENT_BITS) - 1
_NOBODY = -1


class Breaker:
    """The breaker of one target or account; kept over reloads under its name."""

    __slots__ = (
        "_base",
        "_circuit",
        "_health",
        "_moves",
        "_on_change",
        "_out",
        "_run_from",
        "_usual_per_s",
        "ask_leave",
        "ejections",
        "fresh_failed_at",
        "has_failed_for_all",
        "is_clear",
        "is_news",
        "name",
        "opened_at",
        "peers",
        "phase",
        "reason",
        "rules",
        "state",
    )

    def __init__(
        self, name: str, rules: BreakerRules, now: float, on_change: Callable[[str, str, str], None] | None = None
    ) -> None:
        """`on_change` is called with the name, the new state and the reason of each move."""
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
        self.opened_at = -inf
        """The time of the last opening (monotonic seconds); -inf: it was never opened."""
        self.ask_leave: Callable[[Breaker], object] | None = None
        """Asks the fleet whether this replica probes; the answer comes by `FleetView`. None: there are no other replicas."""
        self.peers = PeerReports()
        self.fresh_failed_at = -inf
        """The last time at which a call failed that had not been here before (monotonic seconds); set by the owner."""
        self.has_failed_for_all = False
        """It opened by failures that went on, calls that were new here among them: what it served before is out of date."""
        self._base = 0  # permits below it are of calls sent before the last ejection or probing
        self._out = 0  # calls of this generation that have not ended
        self._run_from = _NOBODY  # the permit of the first call of the present run of failures
        self._usual_per_s = 0.0
        self._health = FailureDetector(rules, now)

    # --- questions ---

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
        return dict(zip(STATES, self._moves, strict=True))

    def ejections_at(self, now: float) -> int:
        """Returns the ejections in a row; while it is closed, one is forgotten for each `max_open_s` of health."""
        if not self.ejections or not isinstance(self.phase, Closed):
            return self.ejections
        return max(0, self.ejections - int((now - self.phase.since) / max(self.rules.max_open_s, 1.0)))

    @property
    def slow_after_s(self) -> float:
        """A first byte that comes later than so many seconds is late here."""
        return self._health.slow_after_s

    @property
    def failures_in_a_row(self) -> int:
        """The number of calls that have failed since one was served to its end, while it was closed."""
        return self._health.run

    @property
    def baseline(self) -> Baseline:
        """Returns what is usual at this target: failures, first bytes, durations."""
        return self._health.baseline

    def outcomes_in_window(self, now: float) -> tuple[int, int]:
        """Returns the calls that ended in the window, and how many failed; while not closed, in the window that opened it."""
        return self._health.outcomes(now) if isinstance(self.phase, Closed) else self._health.window.failures()

    def failure_rate(self, now: float) -> float:
        """Returns the share of the calls of `outcomes_in_window` that failed, 0 to 1; of a peer's, where that has opened it."""
        if self.peers.failure_rate is not None and not isinstance(self.phase, Closed):
            return self.peers.failure_rate
        calls, failures = self.outcomes_in_window(now)
        return failures / calls if calls else 0.0

    def has_own_evidence(self, now: float) -> bool:
        """Returns whether recent calls here speak clearly against an outage: many calls, or probes, and few failures."""
        phase = self.phase
        if not isinstance(phase, Closed):
            return isinstance(phase, HalfOpen) and phase.probes.good > 0
        calls, failures = self.outcomes_in_window(now)
        is_rare = failures * 100 < calls * self.rules.failure_rate_percent / 2
        return (calls >= self.rules.min_calls and is_rare) or self.peers.has_own_success(now)

    # --- calls ---

    def admit(self, now: float, rank: int) -> float | None:
        """Does what a call that wants to go brings about, and returns its `wait_s` after that; 0.0: it may be taken.

        A ramp that is over ends. An open breaker whose time is over begins to probe; where others probe, too, the fleet is
        asked for leave first, whose answer may be there at once.
        """
        phase = self.phase
        if isinstance(phase, Closed):
            if phase.ramp is not None and phase.ramp.is_over(now):
                phase.ramp, self.is_clear = None, True
        elif isinstance(phase, Open | AwaitingLeave):
            if phase.probe_at - now <= EARLY_S:
                if self.ask_leave is None:
                    self.begin_probing(phase, now)
                else:
                    self.phase = AwaitingLeave(phase.due_at, now + LEAVE_S)
                    self.ask_leave(self)
        elif isinstance(phase, HalfOpen) and not phase.has_leave and self.ask_leave is not None:
            # Its leave lapsed for want of a call to probe with: this call may probe while leave is asked for anew.
            phase.has_leave = True
            self.ask_leave(self)
        return self.wait_s(now, rank)

    def take(self, now: float) -> int:
        """Counts a call that `admit` has let through; returns its permit, the generation and the time of sending."""
        if not self.is_clear:
            phase = self.phase
            if isinstance(phase, HalfOpen):
                phase.probes.out += 1
            elif isinstance(phase, Stumbling):
                phase.out += 1
                phase.sent_at = now
            elif isinstance(phase, Closed) and phase.ramp is not None:
                phase.ramp.take(now)
        self._out += 1
        return self._base + int(now * _MS)

    def forget(self, permit: int, _now: float) -> None:
        """Takes back a permit whose call shows nothing about health: refused for a rate or itself, unsent, or left."""
        if permit >= self._base:
            self._out -= 1
            if isinstance(self.phase, HalfOpen):
                self.phase.probes.out -= 1
            elif isinstance(self.phase, Stumbling):
                self.phase.out -= 1

    def succeeded(self, permit: int, now: float, first_byte_s: float | None) -> None:
        """Counts a call that was served; `first_byte_s` is the time from sending it to its first byte, None if unknown.

        While it is half open this may be called at the first byte of a long stream, if it is not called again at its end.
        """
        if self.state != "closed" or permit < self._base:
            self._probe_succeeded(permit, now)
            return
        if not self.is_clear and isinstance(self.phase, Stumbling):
            self._try_succeeded(self.phase, now)
            return
        self._out -= 1
        if permit < self._run_from:
            # It was sent before the failures began, and says nothing about the time since: their run goes on.
            run = self._health.run
            self._health.succeeded(now - (permit & _SENT) / _MS, now, first_byte_s)
            self._health.run = run
            return
        self._run_from = _NOBODY
        illness = self._health.succeeded(now - (permit & _SENT) / _MS, now, first_byte_s)
        if illness is not None and first_byte_s is not None:
            self._eject(illness, now, first_byte_s * 1e4 % 1.0)  # the last digits of its time serve as the draw

    def failed(self, permit: int, now: float, u: float, why: str) -> None:
        """Counts a call that failed in a way that speaks of health; `why` is its error class, `u` a draw in [0, 1)."""
        if permit < self._base:
            return
        self._out -= 1
        self.peers.own_success_until = None
        phase = self.phase
        if isinstance(phase, HalfOpen):
            self._probe_failed(phase.probes, now, u, why)
        elif isinstance(phase, Stumbling):
            self._try_failed(phase, now, u, why)
        elif isinstance(phase, Closed):
            if self._run_from == _NOBODY:
                self._run_from = permit
            illness = self._health.failed(now, why, self._out)
            if illness is not None:
                self.fall_ill(illness, now, u, why)

    # --- acts of its owner ---

    def configure(self, rules: BreakerRules, now: float) -> None:
        """Puts other rules in force; the state stays, but a breaker that is disabled closes, unless it was set by hand."""
        self.rules = rules
        self._health.configure(rules)
        if not rules.is_enabled and not self.is_by_hand and not self.is_clear:
            self.close("disabled", now, ramp_s=0.0)

    def force(self, to: Literal["open", "closed", "drained"] | None, now: float) -> None:
        """Sets the state by hand: open and drained stay until undone, closed is trusted at once, None undoes and probes."""
        if to == "open" or to == "drained":
            self._open(ByHand(to), "opened by hand" if to == "open" else "drained by hand", now)
        elif to == "closed":
            self.ejections = 0
            self.close("closed by hand", now, ramp_s=0.0)
        elif self.is_by_hand and not self.rules.is_enabled:
            self.close("disabled", now, ramp_s=0.0)
        elif self.is_by_hand and self.ask_leave is None:
            self._half_open("no longer held by hand", now)
        elif self.is_by_hand:  # one of all replicas tries
            self.open_until(now, "no longer held by hand", now)

    def trip(self, reason: str, now: float, u: float) -> None:
        """Opens at once, whatever the shares: its owner knows better. `u` is a draw in [0, 1)."""
        if isinstance(self.phase, Closed | Stumbling | HalfOpen):
            self._eject(reason, now, u)

    def fall_ill(self, illness: str, now: float, u: float, why: str) -> None:
        """Lets single calls find out whether the trouble lasts. After timeouts it opens at once: these have taken long already.

        Calls in flight that fail together are one observation: a second later the target may serve again.
        """
        if why == ErrorClass.TIMEOUT:
            self._eject(illness, now, u)
        elif self.rules.is_enabled:
            self._usual_per_s = self._health.window.calls_per_s(now)
            since = now if self._run_from == _NOBODY else (self._run_from & _SENT) / _MS
            self._new_generation()
            self._health.run = 0
            self.phase, self.is_clear, self.reason = (
                Stumbling(since, now + FIRST_PAUSE_S, FIRST_PAUSE_S),
                False,
                illness,
            )

    def begin_pacing(self, now: float) -> bool:
        """Lets single calls find out whether it serves, after all tries of a call have failed; returns whether they do so now.

        Few calls do not make it ill by themselves, because what one of them tries again does not count.
        """
        # As long as more calls are out than have failed, these may all be well.
        if isinstance(self.phase, Closed) and self._health.run > self._out:
            self.fall_ill("all tries of a call failed", now, 0.0, ErrorClass.OVERLOADED)
        return not isinstance(self.phase, Closed)

    def trust(self, reason: str, now: float) -> None:
        """Closes at once, without a ramp: its owner knows better."""
        if not isinstance(self.phase, Closed):
            self.close(reason, now, ramp_s=0.0)

    def probe_soon(self, now: float, within_s: float = 0.0) -> None:
        """Lets an open breaker be probed in so many seconds, because there is a sign of life, or because calls wait for it."""
        if isinstance(self.phase, Open | AwaitingLeave):
            self.phase.probe_at = min(self.phase.probe_at, now + within_s)

    # --- from phase to phase ---

    def open_until(self, probe_at: float, reason: str, now: float, *, is_news: bool = False) -> None:
        """Opens the breaker: no call goes before `probe_at` (monotonic seconds)."""
        self._open(Open(probe_at), reason, now, is_news=is_news)

    def begin_probing(self, phase: Open | AwaitingLeave, now: float) -> None:
        """Lets the first probes through, in the order of lanes from the moment at which its time was over."""
        self._half_open(f"open for {now - self.opened_at:.0f} s", phase.due_at)

    def close(self, reason: str, now: float, ramp_s: float, *, is_news: bool = False) -> None:
        """Trusts the target again, behind a ramp of so many seconds; 0.0: at once."""
        self._health.restart(now)
        self.has_failed_for_all = False
        self.peers.open_until = None
        phase = Closed(now, SlowStart(self._usual_per_s, ramp_s, now) if ramp_s > 0 else None)
        self._enter(phase, reason, is_news=is_news)

    def catch_up(self, now: float) -> None:
        """Learns what has left the window since the last outcome."""
        self._health.catch_up(now)

    def retire(self) -> None:
        """Takes the circuit apart, whose parts refer to each other and to this: the breaker is closed, or used no more.

        So a breaker that is dropped is gone at once, and no collection of thousands of them stops the loop.
        """
        circuit, self._circuit = self._circuit, None
        if circuit is not None:
            vars(circuit).clear()

    def _enter(self, phase: BreakerPhase, reason: str, *, is_news: bool = False) -> None:
        """Puts the phase in force, and moves the circuit after it: closed at first, and made anew for each ejection."""
        # First: the listener of the circuit takes the state over from the phase.
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
        """Reports that it is in its state for another reason now."""
        self.reason, self.is_news = reason, False
        if self._on_change is not None:
            self._on_change(self.name, self.state, reason)

    def _became(self) -> None:
        """Takes over the state of the phase and reports the move; called once pybreaker has moved there."""
        self.state = self.phase.state
        self._moves[STATES.index(self.state)] += 1
        if self._on_change is not None:
            self._on_change(self.name, self.state, self.reason)

    def _open(self, phase: Open | ByHand, reason: str, now: float, *, is_news: bool = False) -> None:
        if self.is_clear:
            # Only of full traffic: that of a slow start or of probes shows nothing of what is usual.
            self._usual_per_s = self._health.window.calls_per_s(now)
        if isinstance(self.phase, Closed | Stumbling):
            self.peers.failure_rate = None
        self.peers.forget()
        self.opened_at = now
        self._new_generation()
        self._enter(phase, reason, is_news=is_news)

    def _half_open(self, reason: str, since: float) -> None:
        self._new_generation()
        self._enter(HalfOpen(Probes(since)), reason)

    def _try_failed(self, phase: Stumbling, now: float, u: float, why: str) -> None:
        phase.out -= 1
        phase.bad += 1
        if phase.bad <= phase.good:
            return  # a stray error among answers
        if now - phase.since >= LASTING_S:
            self.has_failed_for_all = self.fresh_failed_at >= phase.since
            self._eject(f"failures for {now - phase.since:.0f} s ({why})", now, u)
            return
        phase.pause_s *= 2
        phase.probe_at = now + phase.pause_s * (1 - self.rules.jitter_percent / 100 * u)

    def _try_succeeded(self, phase: Stumbling, now: float) -> None:
        self._out -= 1
        phase.out -= 1
        phase.good += 1
        phase.bad = max(0, phase.bad - 1)
        phase.probe_at = now
        if phase.good >= self.rules.probes:
            # What waits goes at a growing pace: over as long as the trouble has lasted.
            self._health.restart(now)
            ramp_s = min(self.rules.ramp_s, now - phase.since)
            self.phase, self.is_clear = Closed(now, SlowStart(self._usual_per_s, ramp_s, now)), False

    def _eject(self, reason: str, now: float, u: float) -> None:
        """Opens for longer than the last time; `u` spreads the probes of several gateways."""
        rules, until = self.rules, self.peers.open_until
        if not rules.is_enabled:
            return
        if until is not None and until > now:  # as peers have said: no more than that, and no news
            self.open_until(until, reason, now)
            return
        ejections = self.ejections_at(now)
        # 30 doublings are beyond any longest time; without a bound the power would overflow.
        open_s = min(rules.open_s * 2.0 ** min(ejections, 30), rules.max_open_s)
        self.ejections = ejections + 1
        self.open_until(now + open_s * (1 - rules.jitter_percent / 100 * u), reason, now, is_news=True)

    def _probe_succeeded(self, permit: int, now: float) -> None:
        """Counts the success of a probe; that of a call sent before the last ejection is no evidence, and is left out."""
        if not isinstance(self.phase, HalfOpen) or permit < self._base:
            return
        self._out -= 1
        probes = self.phase.probes
        probes.out -= 1
        probes.good += 1
        if probes.good >= self.rules.probes:
            self.peers.remember_own_success(self.rules.max_open_s, now)
            self.close(f"{probes.good} probes succeeded", now, self.rules.ramp_s, is_news=True)

    def _probe_failed(self, probes: Probes, now: float, u: float, why: str) -> None:
        """Opens again, unless more probes have succeeded: a stray error comes back before slower good answers do."""
        probes.out -= 1
        probes.bad += 1
        if probes.bad > probes.good:
            if probes.good:
                self.ejections = 0  # it has served: the waits begin anew
            self._eject(f"a probe failed ({why})", now, u)

    def _new_generation(self) -> None:
        """Begins a new generation of permits: calls that are out are no evidence any more."""
        self._base += 1 << _SENT_BITS
        self._out = 0
        self._run_from = _NOBODY
