"""The phases of a circuit breaker, and which calls may go in each.

First the ways back (probes, and the slow start behind them), then the phases, and last what other replicas report. `breaker.py`
moves from one phase to the next. It must not know outcomes of calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log2
from typing import ClassVar, Literal, TypeAlias

from gateway.core.types import LANES

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
