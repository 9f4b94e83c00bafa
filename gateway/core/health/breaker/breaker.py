"""A circuit breaker: a target that fails is left alone for a while, then tried with a few calls, then trusted again.

    closed ── failures in a row | share of failures ──> stumbling ── a few tries succeed ──> closed, behind a short ramp
    stumbling ── tries fail for two seconds ──> open        closed ── timeouts | share of slow calls ──> open
    open ── its time is over ──> half_open
    half_open ── most probes fail ──> open, for longer       half_open ── `probes` successes ──> closed, behind a ramp
    by hand: open and drained stay until undone              peers: see `target_health/`

When to move is decided here: `detector.py` says who is ill; `state_machine.py` says what each state has and who may go on the
way back, and moves. It must not know calls, targets or providers: its owner tells it the outcomes that speak of health.
Invariants: questions change nothing, `admit` acts; a half-open breaker never has more than `probes` calls out; every state
but those set by hand is left again; a call sent before the last ejection is no evidence after it. Every permit is given back
exactly once, by `succeeded`, `failed` or `forget`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Literal

from gateway.core.health.breaker.state_machine import (
    EARLY_S,
    FIRST_PAUSE_S,
    LASTING_S,
    AwaitingLeave,
    BreakerRules,
    ByHand,
    Closed,
    HalfOpen,
    Open,
    Probes,
    SlowStart,
    StateMachine,
    Stumbling,
)
from gateway.core.health.detector import Baseline, FailureDetector
from gateway.core.types import ErrorClass

# Keeps what other replicas report about one target apart from what was seen here, and for how long the latter outranks it.
#
# It must not know states, nor how replicas talk. Invariant: what a peer has said goes with the
# ejection that it was about.

OWN_SUCCESS_SPANS = 2
"""The multiple of the longest open time for which the success of own probes outranks what peers report."""


class PeerReports:
    """The reports of peers about one breaker, and the own evidence that outranks them. Times are monotonic seconds."""

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


LEAVE_S = 0.2
"""Seconds after which leave to probe is asked for again: an answer takes milliseconds, or is lost."""
_MS = 1000
_SENT_BITS = 44
_SENT = (1 << _SENT_BITS) - 1
_NOBODY = -1


class Breaker(StateMachine):
    """The breaker of one target or account; kept over reloads under its name."""

    __slots__ = (
        "_base",
        "_health",
        "_out",
        "_run_from",
        "_usual_per_s",
        "ask_leave",
        "fresh_failed_at",
        "has_failed_for_all",
        "opened_at",
        "peers",
    )

    def __init__(
        self, name: str, rules: BreakerRules, now: float, on_change: Callable[[str, str, str], None] | None = None
    ) -> None:
        super().__init__(name, rules, now, on_change)
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
        """Takes back a permit whose call tells nothing about health: refused for a rate or itself, unsent, or left."""
        if permit >= self._base:
            self._out -= 1
            if isinstance(self.phase, HalfOpen):
                self.phase.probes.out -= 1
            elif isinstance(self.phase, Stumbling):
                self.phase.out -= 1

    def succeeded(self, permit: int, now: float, first_byte_s: float | None) -> None:
        """Counts a call that was served; `first_byte_s` is the time from sending it to its first byte, None if unknown.

        While it is half open this may be told at the first byte of a long stream, if it is not told again at its end.
        """
        if self.state != "closed" or permit < self._base:
            self._probe_succeeded(permit, now)
            return
        if not self.is_clear and isinstance(self.phase, Stumbling):
            self._try_succeeded(self.phase, now)
            return
        self._out -= 1
        if permit < self._run_from:
            self._succeeded_late(permit, now, first_byte_s)
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

    def _open(self, phase: Open | ByHand, reason: str, now: float, *, is_news: bool = False) -> None:
        if self.is_clear:
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
        open_s = min(rules.open_s * 2.0 ** min(ejections, 30), rules.max_open_s)
        self.ejections = ejections + 1
        self.open_until(now + open_s * (1 - rules.jitter_percent / 100 * u), reason, now, is_news=True)

    def _succeeded_late(self, permit: int, now: float, first_byte_s: float | None) -> None:
        """Counts the success of a call sent before the failures began: it says nothing about the time since."""
        run = self._health.run
        self._health.succeeded(now - (permit & _SENT) / _MS, now, first_byte_s)
        self._health.run = run

    def _probe_succeeded(self, permit: int, now: float) -> None:
        """Counts the success of a probe; that of a call sent before the last ejection says nothing, and is left out."""
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
