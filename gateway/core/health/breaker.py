"""A circuit breaker: a target that fails is left alone for a while, then tried with a few calls, then trusted again.

    closed ── failures in a row | share of failures ──> stumbling ── a few tries succeed ──> closed, behind a short ramp
    stumbling ── tries fail for two seconds ──> open        closed ── timeouts | share of slow calls ──> open
    open ── its time is over ──> half_open
    half_open ── most probes fail ──> open, for longer       half_open ── `probes` successes ──> closed, behind a ramp
    by hand: open and drained stay until undone              peers: see `PeerReports`

First come the outcomes of calls, and what is usual at a target:

    outcomes -> `OutcomeWindow` (the last minute, or longer where calls are) -> what leaves it -> `Baseline`

So the present is judged by the past, and an outage that opens the breaker never teaches. The baseline moves slowly and within
bounds: what fails more often than `MOST_USUAL` is sick, however long it has been so. Then comes the verdict
(`FailureDetector`), and last `Breaker`, which moves from one phase of `phases.py` to the next.

pybreaker holds the state while it is not closed, and calls its listener with each move; its own timer, which reads the wall
clock, never moves it. It must not know calls, targets or providers: its owner tells it the outcomes that speak of health.
Invariants: questions change nothing, `admit` acts; a half-open breaker never has more than `probes` calls out; every state but
those set by hand is left again; a call sent before the last ejection is no evidence after it. Every permit is given back
exactly once, by `succeeded`, `failed` or `forget`. No sample is kept; each outcome takes O(1).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from math import ceil, inf, log
from typing import Literal

from gateway.core.health.detector import BreakerRules
from gateway.core.health.phases import (
    EARLY_S,
    FIRST_PAUSE_S,
    LASTING_S,
    STATES,
    AwaitingLeave,
    BreakerPhase,
    ByHand,
    Closed,
    HalfOpen,
    Open,
    PeerReports,
    Probes,
    SlowStart,
    State,
    Stumbling,
)
from gateway.core.types import ErrorClass


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

# --- the outcomes of calls: of late, and usually ---

BUCKETS = 12
"""The number of buckets in a window, which forgets one at a time."""
BEYOND_CHANCE = log(1e8)
"""The `surprise` in nats from which failures are not put down to chance: it brings about as many once in 1e8 times."""
MOST_USUAL = 0.25
"""The largest share of failures that can become the rule."""
MOST_AT_FIRST = 0.1
"""The largest share of failures that can become the rule while little is known."""
ENOUGH_CALLS = 1000
"""The number of calls that show what is usual; from then on it moves slowly ..."""
SLOWLY_S = 600.0
"""... with this time constant."""
DURATIONS = 3.0
"""The length of a window in durations of a call ..."""
LONGEST_WINDOW_S = 600.0
"""... up to this length."""
_DOUBT_CALLS = 50
_LEAST_USUAL = 1e-8


class OutcomeCounts:
    """Counts outcomes of calls. `busy_s` sums the durations of successes, `first_byte_s` the first bytes of the `timed`."""

    __slots__ = ("busy_s", "calls", "failures", "first_byte_s", "slow", "timed")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.calls = self.failures = self.timed = self.slow = 0
        self.busy_s = self.first_byte_s = 0.0

    def add(self, other: OutcomeCounts) -> None:
        self.calls += other.calls
        self.failures += other.failures
        self.timed += other.timed
        self.slow += other.slow
        self.busy_s += other.busy_s
        self.first_byte_s += other.first_byte_s


class OutcomeWindow:
    """Holds the last `span_s` seconds in a ring of buckets. Outcomes go to `present` until `ends_at`; then it has to `turn`."""

    __slots__ = ("_began_at", "_buckets", "_index", "ends_at", "present", "span_s")

    def __init__(self, span_s: float, now: float) -> None:
        self._buckets = [OutcomeCounts()]  # the others are made as time passes: most breakers of callers never see it
        self.restart(span_s, now)

    def restart(self, span_s: float, now: float) -> None:
        del self._buckets[1:]
        self._buckets[0].clear()
        self.span_s = span_s
        self._began_at = now
        self._index = 0
        self.present = self._buckets[0]
        self.ends_at = now + span_s / BUCKETS

    def turn(self, span_s: float, now: float) -> OutcomeCounts:
        """Begins the bucket that `now` belongs to, with the length `span_s` from here on; returns what has left the window."""
        self.span_s = span_s
        step_s = span_s / BUCKETS
        steps = int((now - self.ends_at) / step_s) + 1
        gone = OutcomeCounts()
        for _ in range(min(steps, BUCKETS)):
            if len(self._buckets) < BUCKETS:
                self._buckets.append(OutcomeCounts())
            self._index = (self._index + 1) % BUCKETS
            self.present = self._buckets[self._index]
            gone.add(self.present)
            self.present.clear()
        self.ends_at += steps * step_s
        return gone

    def total(self) -> OutcomeCounts:
        total = OutcomeCounts()
        for bucket in self._buckets:
            total.add(bucket)
        return total

    def recent(self) -> Iterator[tuple[float, int, int]]:
        """Yields seconds, calls and failures of the present bucket, of the last two, and so on up to the whole window."""
        calls = failures = 0
        for age in range(BUCKETS):
            if age < len(self._buckets):
                bucket = self._buckets[self._index - age]
                calls += bucket.calls
                failures += bucket.failures
            yield (age + 1) * self.span_s / BUCKETS, calls, failures

    def failures(self) -> tuple[int, int]:
        calls = failures = 0
        for bucket in self._buckets:
            calls += bucket.calls
            failures += bucket.failures
        return calls, failures

    def failures_at(self, span_s: float, now: float) -> tuple[int, int]:
        """Returns the calls and failures that will be left when the window turns at `now`, to the length `span_s`."""
        gone = int((now - self.ends_at) * BUCKETS / span_s) + 1 if now >= self.ends_at else 0
        left = [self._buckets[self._index - age] for age in range(min(BUCKETS - gone, len(self._buckets)))]
        return sum([bucket.calls for bucket in left]), sum([bucket.failures for bucket in left])

    def slow(self) -> tuple[int, int]:
        """Returns the calls whose first byte was timed, and how many of them were slow."""
        return sum(bucket.timed for bucket in self._buckets), sum(bucket.slow for bucket in self._buckets)

    def calls_per_s(self, now: float) -> float:
        """Returns the rate at which calls ended, over the window or as much of it as has passed."""
        return self.failures()[0] / min(max(now - self._began_at, 1.0), self.span_s)


class Baseline:
    """Describes one target when it is well. Times are running means in seconds; 0.0: unknown."""

    __slots__ = ("call_s", "failure_share", "first_byte_s", "known_calls")

    def __init__(self) -> None:
        self.failure_share = 0.0
        self.first_byte_s = 0.0
        self.call_s = 0.0
        self.known_calls = 0

    def learn(self, seen: OutcomeCounts, span_s: float) -> None:
        """Takes these outcomes, of `span_s` seconds, for usual; only outcomes that led to no ejection may be given."""
        if seen.calls <= 0:
            return
        is_settled = self.known_calls >= ENOUGH_CALLS
        self.known_calls = min(self.known_calls + seen.calls, ENOUGH_CALLS)
        weight = min(seen.calls / self.known_calls, span_s / SLOWLY_S if is_settled else 1.0)
        share = self.failure_share + (seen.failures / seen.calls - self.failure_share) * weight
        self.failure_share = min(share, MOST_USUAL)
        if seen.timed:
            self.first_byte_s = _towards(self.first_byte_s, seen.first_byte_s / seen.timed, weight)
        if seen.calls > seen.failures:
            self.call_s = _towards(self.call_s, seen.busy_s / (seen.calls - seen.failures), weight)

    def usual_failures(self, calls: int, failures: int) -> float:
        """Returns the share of calls that usually fail; `calls` and `failures`, the ones since, count while little is known."""
        share = self.failure_share
        if self.known_calls < ENOUGH_CALLS:
            known = share * self.known_calls + failures
            share = min(MOST_AT_FIRST, known / (_DOUBT_CALLS + self.known_calls + calls))
        return max(share, _LEAST_USUAL)

    def window_s(self, at_least_s: float) -> float:
        """Returns the length of a window that is longer than calls here usually take."""
        return max(at_least_s, min(DURATIONS * self.call_s, LONGEST_WINDOW_S))

    def slow_after_s(self, factor: float, at_least_s: float, at_most_s: float) -> float:
        """Returns the seconds after which a first byte is slow; `at_most_s`, as long as nothing is known."""
        if not self.first_byte_s:
            return at_most_s
        return min(max(factor * self.first_byte_s, at_least_s), at_most_s)


def surprise(calls: int, failures: int, usual: float) -> float:
    """Returns how far so many failures are from what is usual, in nats: chance brings as many once in e**surprise times.

    It is `calls` times the Kullback-Leibler divergence of the share of failures from the usual one (Chernoff's bound); for
    failures in a row that is -calls * log(usual). It is 0.0 where no more fail than usual.
    """
    share = failures / calls
    if share <= usual:
        return 0.0
    well = (1 - share) * log((1 - share) / (1 - usual)) if failures < calls else 0.0
    return calls * (share * log(share / usual) + well)


def longest_run(usual: float) -> int:
    """Returns the number of failures in a row that is beyond chance."""
    return ceil(BEYOND_CHANCE / -log(usual) - 1e-9)


def _towards(mean: float, value: float, weight: float) -> float:
    return mean + (value - mean) * weight if mean else value


# --- the verdict: failures in a row, their share, and late first bytes ---


LONGEST_RUN = 20
"""A number of failures in a row that is never usual."""
HIGHEST_PERCENT = 90.0
"""A share of failures that is never usual."""


class FailureDetector:
    """Judges one target by the outcomes of its calls, while calls go there freely.

    A target is ill if its last calls all failed, if too many failed, or if too many were slow; each beyond what is usual
    there and what chance would bring about. Invariant: a verdict needs at least `consecutive_failures` failures, or
    `min_calls` calls.
    """

    __slots__ = ("baseline", "rules", "run", "slow_after_s", "window")

    def __init__(self, rules: BreakerRules, now: float) -> None:
        self.baseline = Baseline()
        self.window = OutcomeWindow(rules.window_s, now)
        self.run = 0
        """The number of failures in a row."""
        self.configure(rules)

    def configure(self, rules: BreakerRules) -> None:
        """Puts other rules in force; what was seen and learned stays."""
        self.rules = rules
        self.slow_after_s = self.baseline.slow_after_s(rules.slow_factor, rules.slow_at_least_s, rules.slow_at_most_s)

    def restart(self, now: float) -> None:
        self.run = 0
        self.window.restart(self.baseline.window_s(self.rules.window_s), now)

    def succeeded(self, took_s: float, now: float, first_byte_s: float | None) -> str | None:
        """Counts a call that was served; returns what is wrong with the target all the same, in words, or None."""
        window = self.window
        if now >= window.ends_at:
            self._turn(now)
        present = window.present
        present.calls += 1
        present.busy_s += took_s
        self.run = 0
        if first_byte_s is None:
            return None
        present.timed += 1
        if first_byte_s > self.slow_after_s:
            return self._was_slow(present)
        present.first_byte_s += first_byte_s
        return None

    def failed(self, now: float, why: str, pending: int = 0) -> str | None:
        """Counts a call that failed for `why`; returns what is wrong with the target, in words, or None.

        `pending` calls have not ended: failures come back sooner than successes, so as long as these are the more, they may
        all be well.
        """
        window, rules = self.window, self.rules
        if now >= window.ends_at:
            self._turn(now)
        self.run = run = self.run + 1
        window.present.calls += 1
        window.present.failures += 1
        calls, failures = window.failures()
        # Without the run, which is in question and must not make itself usual.
        usual = self.baseline.usual_failures(calls - run, failures - run)
        if run >= max(rules.consecutive_failures, min(longest_run(usual), LONGEST_RUN), pending):
            self._learn_all(but=run)
            return f"{run} failures in a row ({why})"
        percent = rules.failure_rate_percent
        for span_s, ended, failures in window.recent():  # the latest calls first: health long past hides nothing
            calls = ended + pending
            if (
                failures * 100 >= calls * percent
                and calls >= rules.min_calls
                and _is_high(calls, failures, usual, percent)
            ):
                return f"{100 * failures / calls:.0f} % of {calls} calls failed in {span_s:.0f} s ({why})"
        return None

    def outcomes(self, now: float) -> tuple[int, int]:
        """Returns the calls that ended within the window, and how many of them failed."""
        return self.window.failures_at(self.baseline.window_s(self.rules.window_s), now)

    def catch_up(self, now: float) -> None:
        """Drops the outcomes that have left the window, and learns from them."""
        if now >= self.window.ends_at:
            self._turn(now)

    def _turn(self, now: float) -> None:
        """Begins the next bucket; outcomes that leave the window led to no ejection, and become part of what is usual."""
        gone = self.window.turn(self.baseline.window_s(self.rules.window_s), now)
        self._learn(gone, self.window.span_s / BUCKETS)

    def _was_slow(self, present: OutcomeCounts) -> str | None:
        """Counts a slow first byte, which teaches no more than what is still usual; returns what is wrong, or None."""
        rules, slow_after_s = self.rules, self.slow_after_s
        present.slow += 1
        present.first_byte_s += slow_after_s
        timed, slow = self.window.slow()
        if timed < rules.min_calls or slow * 100 < timed * rules.slow_rate_percent:
            return None
        self._learn_all()
        return f"{100 * slow / timed:.0f} % of {timed} calls got their first byte after more than {slow_after_s:.0f} s"

    def _learn_all(self, but: int = 0) -> None:
        """Learns the whole window, `but` for the run of failures at its end.

        A target that has become somewhat worse, or slower, for good is thus not ejected for ever.
        """
        seen = self.window.total()
        seen.calls -= but
        seen.failures -= but
        self._learn(seen, self.window.span_s)

    def _learn(self, seen: OutcomeCounts, span_s: float) -> None:
        if self.rules.is_enabled:
            self.baseline.learn(seen, span_s)
            self.configure(self.rules)


def _is_high(calls: int, failures: int, usual: float, percent: float) -> bool:
    """Returns whether `percent` of the calls that usually succeed have failed, and that was no chance."""
    threshold = max(percent, min(percent + (100 - percent) * usual, HIGHEST_PERCENT))
    share = 100 * failures / calls
    return share >= threshold and (share >= HIGHEST_PERCENT or surprise(calls, failures, usual) >= BEYOND_CHANCE)


# --- the breaker ---

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
        """Asks the fleet whether this replica probes; the answer comes later. None: there are no other replicas."""
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
                self._set_phase(Closed(phase.since))
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
            self._set_phase(Stumbling(since, now + FIRST_PAUSE_S, FIRST_PAUSE_S))
            self.reason = illness

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
        self._set_phase(phase)
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

    def _set_phase(self, phase: BreakerPhase) -> None:
        """Puts the phase in force, and derives from it whether all calls go."""
        self.phase = phase
        self.is_clear = isinstance(phase, Closed) and phase.ramp is None

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
            self._set_phase(Closed(now, SlowStart(self._usual_per_s, ramp_s, now)))

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
