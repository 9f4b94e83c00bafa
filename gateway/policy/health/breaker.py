"""A circuit breaker: who fails is left alone for a while, then tried with a few calls, then trusted again.

    closed ── failures in a row | share of failures | share of slow calls ──> open ── its time is over ──> half_open
    half_open ── a probe fails ──> open, for longer          half_open ── `probes` successes ──> closed, behind a ramp
    by hand: open and drained stay until undone
    others: what they tell of it opens it, holds it open for longer, or closes it; where they probe, too, it asks for leave;
            whoever has seen no failure of its own takes their word for a short time, then finds out with one probe

pybreaker holds the state while it is not closed, and tells its listener; when to move is decided here, with our clock:
`failures.py` says who is ill, `recovery.py` who may go on the way back. It must not know calls, targets or providers: its owner
tells it the outcomes that speak of health. Invariants: a half-open breaker never has more than `probes` calls out; every state
but those set by hand is left again; a call sent before the last ejection is no evidence after it. Every permit is given back
exactly once, by `succeeded`, `failed` or `forget`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Literal

from gateway.policy.health.baseline import Baseline
from gateway.policy.health.circuit import CircuitBreaker, CircuitBreakerListener, CircuitBreakerState
from gateway.policy.health.failures import Health
from gateway.policy.health.recovery import EARLY_S, Growth, Probes
from gateway.policy.health.rules import BreakerRules

State = Literal["closed", "open", "half_open", "drained"]

LEAVE_S = 0.2
"""So long leave to probe is waited for, before it is asked for again: it takes milliseconds, or is lost."""
_NEVER_S = 1e9  # pybreaker's own timer, which reads the wall clock
_MS = 1000
_SENT_BITS = 44
_SENT = (1 << _SENT_BITS) - 1
_NOBODY = -1
_MOVES: tuple[State, ...] = ("closed", "open", "half_open", "drained")
_STATES: Mapping[str, State] = {"closed": "closed", "open": "open", "half-open": "half_open"}  # pybreaker's, and ours


class Breaker:
    """The breaker of one target or account; kept over reloads under its name."""

    __slots__ = (
        "_base",
        "_circuit",
        "_due_at",
        "_has_leave",
        "_health",
        "_healthy_since",
        "_is_asking",
        "_is_drained",
        "_moves",
        "_on_change",
        "_out",
        "_pending",
        "_probes",
        "_proved_until",
        "_ramp",
        "_run_from",
        "_told_rate",
        "_told_until",
        "_usual_per_s",
        "ask_leave",
        "ejections",
        "is_by_hand",
        "is_clear",
        "is_news",
        "name",
        "opened_at",
        "probe_at",
        "reason",
        "rules",
        "state",
    )

    def __init__(
        self, name: str, rules: BreakerRules, now: float, on_change: Callable[[str, str, str], None] | None = None
    ) -> None:
        self.name = name
        self.rules = rules
        self.state: State = "closed"
        self.reason = "not opened yet"
        self.is_clear = True
        """Closed, and not ramping up: all that the hot path has to ask."""
        self.is_by_hand = False
        """Open or drained until somebody undoes it."""
        self.opened_at = -inf
        """When it was opened last (monotonic seconds)."""
        self.probe_at = inf
        """When the first probe may go, while it is open; inf: never by itself."""
        self.ejections = 0
        """In a row; one is forgotten for each `max_open_s` of health."""
        self._moves = [0] * len(_MOVES)
        self.is_news = False
        """It moved by what was seen here, or found out: others should know. Neither by hand, nor by rules, nor by hearsay."""
        self.ask_leave: Callable[[Breaker], object] | None = None
        """Where others probe, too: asks whether it is this one's turn; `let_probe` or `look_again` is the answer."""
        self._is_asking = False  # it is open, and was due ...
        self._due_at = inf  # ... at this time; `probe_at` is now when it asks again
        self._has_leave = True
        self._told_rate: float | None = None  # of failures, by whoever saw those that it is open for
        self._told_until = -inf  # others leave it alone until then; -inf: what it is open for was seen here, too
        self._proved_until = -inf  # so long its own probes count for more than what others tell
        self._on_change = on_change
        self._base = 0  # permits below it are of calls sent before the last ejection or probing
        self._is_drained = False
        self._out = 0  # calls of this generation that have not ended
        self._pending = 0  # of these, the ones sent before the present run of failures began ...
        self._run_from = _NOBODY  # ... which was then, as a permit
        self._probes = Probes(now)
        self._healthy_since = now
        self._usual_per_s = 0.0
        self._ramp: Growth | None = None
        self._health = Health(rules, now)
        self._circuit: CircuitBreaker | None = None  # while it is not closed: most never are anything else
        self.configure(rules, now)

    def configure(self, rules: BreakerRules, now: float) -> None:
        """Puts other rules in force; the state stays, but a breaker that is disabled closes, unless it was set by hand."""
        self.rules = rules
        self._health.configure(rules)
        if not rules.is_enabled and not self.is_by_hand and not self.is_clear:
            self._close("disabled", now, ramp_s=0.0)

    def wait_s(self, now: float, rank: int) -> float | None:
        """Seconds until a call may go: 0.0 now, inf never by itself, None when a probe in flight has to end first.

        `rank` is the index of the call's lane; the lowest lanes probe first.
        """
        if self.is_clear:
            return 0.0
        if self.state == "closed":
            return self._ramp_wait_s(now)
        if self.state != "half_open":
            wait_s = self.probe_at - now
            if wait_s > EARLY_S:
                return wait_s
            if self.ask_leave is not None:
                return self._asked(self.ask_leave, now, rank)
            self._half_open(f"open for {now - self.opened_at:.0f} s")
        elif not self._has_leave and self.ask_leave is not None:
            self._has_leave = True  # it had, and nobody came to probe: this call may, while it asks again
            self.ask_leave(self)
        return self._probes.wait_s(now, rank, self.rules.probes)

    def take(self, now: float) -> int:
        """A call goes; only to be called when `wait_s` is 0.0. Returns its permit: the generation, and when it was sent."""
        if not self.is_clear:
            if self.state == "half_open":
                self._probes.out += 1
            elif self._ramp is not None:
                self._ramp.take(now)
        self._out += 1
        return self._base + int(now * _MS)

    def forget(self, permit: int, _now: float) -> None:
        """The call says nothing about health: refused for its rate or itself, left by its client, never sent."""
        if permit >= self._base:
            self._came_back(permit)
            if self.state == "half_open":
                self._probes.out -= 1

    def succeeded(self, permit: int, now: float, first_byte_s: float | None) -> None:
        """The call was served; `first_byte_s` is the time from sending it to its first byte, None where nobody knows.

        While it is half open this may be told at the first byte of a long stream, if it is not told again at its end.
        """
        if self.state != "closed" or permit < self._base:
            self._succeeded_aside(permit, now)
            return
        self._out -= 1
        self._run_from = _NOBODY
        illness = self._health.succeeded(now - (permit & _SENT) / _MS, now, first_byte_s)
        if illness is not None and first_byte_s is not None:
            self._eject(illness, now, first_byte_s * 1e4 % 1.0)  # the last digits of its time serve as the draw

    def failed(self, permit: int, now: float, u: float, why: str) -> None:
        """The call failed in a way that speaks of health; `why` is its error class, `u` a draw in [0, 1)."""
        if permit < self._base:
            return
        self._came_back(permit)
        self._proved_until = -inf
        if self.state == "half_open":
            self._eject(f"a probe failed ({why})", now, u)
        elif self.state == "closed":
            if self._run_from == _NOBODY:
                self._run_from, self._pending = self._base + int(now * _MS), self._out
            illness = self._health.failed(now, why, self._pending)
            if illness is not None:
                self._eject(illness, now, u)

    def force(self, to: Literal["open", "closed", "drained"] | None, now: float) -> None:
        """By hand: open and drained stay until undone; closed is trusted at once; None undoes, and tries with probes."""
        if to == "open" or to == "drained":
            self.is_by_hand = True
            self._is_drained = to == "drained"
            self._open("opened by hand" if to == "open" else "drained by hand", now, inf, is_news=False)
        elif to == "closed":
            self.ejections = 0
            self._close("closed by hand", now, ramp_s=0.0)
        elif self.is_by_hand and self.rules.is_enabled:
            self.is_by_hand = self._is_drained = False
            self.probe_at = now
            if self.ask_leave is None:
                self._half_open("no longer held by hand")
            else:  # one of all tries
                self._open("no longer held by hand", now, now, is_news=False)
        elif self.is_by_hand:
            self._close("disabled", now, ramp_s=0.0)

    @property
    def transitions(self) -> dict[State, int]:
        """How often it has come into each state."""
        return dict(zip(_MOVES, self._moves, strict=True))

    @property
    def slow_after_s(self) -> float:
        """A first byte that comes later than so many seconds is late here."""
        return self._health.slow_after_s

    def trip(self, reason: str, now: float, u: float) -> None:
        """Opens at once, whatever the shares: its owner knows better. `u` is a draw in [0, 1)."""
        if self.state in ("closed", "half_open"):
            self._eject(reason, now, u)

    def trust(self, reason: str, now: float) -> None:
        """Closes at once, without a ramp: its owner knows better."""
        if self.state != "closed":
            self._close(reason, now, ramp_s=0.0)

    def let_probe(self, now: float) -> bool:
        """It has the leave that it asked for; False: it has no use for it any more."""
        if self.state == "half_open":
            self._has_leave = True
        elif self._is_asking:
            self.probe_at = self._due_at
            self._half_open(f"open for {now - self.opened_at:.0f} s")
        else:
            return False
        return True

    def look_again(self, at: float, now: float) -> bool:
        """Somebody else has the leave that it asked for: it may ask again at `at`. False: things have moved on."""
        if self._is_asking:
            self.probe_at = at
        elif self.state == "half_open" and self.ask_leave is not None:
            self._has_leave = False
            if not self.is_probing:
                told_until = self._told_until
                self._open("another replica tries it", now, at, is_news=False)
                self._told_until = told_until
        else:
            return False
        return True

    def lose_leave(self) -> None:
        """It had leave for long and no call to probe with: the next one probes, while it asks again."""
        self._has_leave = False

    @property
    def is_probing(self) -> bool:
        """A call is out that tries whether it is well again."""
        return self.state == "half_open" and self._probes.out > 0

    def told_open(self, until: float, ejections: int, reason: str, now: float, rate: float = 1.0) -> bool:
        """Another replica leaves it alone until then, after so many ejections in a row; here so, too, unless it knows better.

        `rate` is the share of failures that was seen there. Never for longer than the longest open time here, nor for less
        than it is open already. Where nothing failed it may be the other's own way out that is broken: then it is taken at
        its word for no longer than a first ejection, however often it says so. True: it was open, and is so for longer.
        """
        until = min(until, now + self.rules.max_open_s)
        if self.is_by_hand or not self.rules.is_enabled or until <= now or self._is_surely_well(now):
            return False
        self.ejections = max(self.ejections, ejections)
        if self._is_hearsay:
            self._told_until = max(until, self._told_until)
        elif self.state != "open":
            has_seen_none = self.state == "closed" and not self._health.window.failures()[1]
            self._open(f"told by another replica: {reason}", now, until, is_news=False)
            self._told_rate = rate
            if has_seen_none:
                self.probe_at, self._told_until = min(until, now + self.rules.open_s), until
        elif until > self.probe_at or self._is_asking:
            self.probe_at, self._is_asking = until, False
            return True
        return False

    def told_closed(self, reason: str, now: float) -> None:
        """Another replica has found it well; what was set by hand here stays."""
        if self.state in ("open", "half_open") and not self.is_by_hand:
            self._close(f"told by another replica: {reason}", now, self.rules.ramp_s)

    def failure_rate(self, now: float) -> float:
        """The share of calls in the window that failed, 0 to 1; while it is not closed, of the window that opened it.

        Another replica's window, where that has opened it.
        """
        if self.state == "closed":
            self._health.catch_up(now)
            self._forget_ejections(now)
        elif self._told_rate is not None:
            return self._told_rate
        calls, failures = self._health.window.failures()
        return failures / calls if calls else 0.0

    @property
    def calls_in_window(self) -> int:
        """Calls that ended within the window, as of the last outcome or look at the rate."""
        return self._health.window.failures()[0]

    @property
    def failures_in_a_row(self) -> int:
        """So many calls have failed there since one was served to its end, while it was closed."""
        return self._health.run

    @property
    def baseline(self) -> Baseline:
        """What is usual here."""
        return self._health.baseline

    def _asked(self, ask_leave: Callable[[Breaker], object], now: float, rank: int) -> float | None:
        """Asks for leave to probe; the answer may be there at once."""
        if not self._is_asking:
            self._is_asking, self._due_at = True, self.probe_at
        self.probe_at = now + LEAVE_S
        ask_leave(self)
        return max(0.0, self.probe_at - now) if self._is_asking else self.wait_s(now, rank)

    def _is_surely_well(self, now: float) -> bool:
        """What was seen here of late speaks clearly against an outage: many calls, or probes, and few failures."""
        if self.state != "closed":
            return self.state == "half_open" and self._probes.good > 0
        self._health.catch_up(now)
        calls, failures = self._health.window.failures()
        if not failures and now < self._proved_until:
            self._prove(now)
        is_rare = failures * 100 < calls * self.rules.failure_rate_percent / 2
        return (calls >= self.rules.min_calls and is_rare) or now < self._proved_until

    @property
    def _is_hearsay(self) -> bool:
        """It is not closed, only because another replica said so."""
        return self._told_until > -inf

    def _prove(self, now: float) -> None:
        """It is well, seen from here; who is wrong about that says so again within the longest open time."""
        self._proved_until = now + 2 * self.rules.max_open_s

    def _came_back(self, permit: int) -> None:
        self._out -= 1
        if permit <= self._run_from and self._pending:
            self._pending -= 1

    def _succeeded_aside(self, permit: int, now: float) -> None:
        """A probe; or a call whose success says nothing, because it was sent before the last ejection."""
        if self.state != "half_open" or permit < self._base:
            return
        self._out -= 1
        self._probes.out -= 1
        self._probes.good += 1
        if self._probes.good >= self.rules.probes:
            self._prove(now)
            self._close(f"{self._probes.good} probes succeeded", now, self.rules.ramp_s, is_news=True)

    def _ramp_wait_s(self, now: float) -> float:
        if self._ramp is None or self._ramp.is_over(now):
            self._ramp = None
            self.is_clear = True
            return 0.0
        return self._ramp.wait_s(now)

    def _forget_ejections(self, now: float) -> None:
        if self.ejections:
            step_s = max(self.rules.max_open_s, 1.0)
            steps = int((now - self._healthy_since) / step_s)
            self.ejections = max(0, self.ejections - steps)
            self._healthy_since += steps * step_s

    def _eject(self, reason: str, now: float, u: float) -> None:
        """Opens for longer than the last time; `u` spreads the probes of several gateways."""
        rules = self.rules
        if not rules.is_enabled:
            return
        if self._told_until > now:  # as was said: no more than that, and no news
            self._open(reason, now, self._told_until, is_news=False)
            return
        if self.state == "closed":
            self._forget_ejections(now)
        open_s = min(rules.open_s * 2.0 ** min(self.ejections, 30), rules.max_open_s)
        self.ejections += 1
        self._open(reason, now, now + open_s * (1 - rules.jitter_percent / 100 * u), is_news=True)

    def _open(self, reason: str, now: float, probe_at: float, *, is_news: bool) -> None:
        if self.is_clear:
            self._usual_per_s = self._health.window.calls_per_s(now)
        self.opened_at = now
        self.probe_at = probe_at
        self._told_until = self._proved_until = -inf
        self.is_clear = self._is_asking = False
        self._ramp = None
        if self.state == "closed":
            self._told_rate = None
        self._new_generation()
        self.reason, self.is_news = reason, is_news
        self._moving().open()

    def _new_generation(self) -> None:
        """Calls that are out are no evidence any more."""
        self._base += 1 << _SENT_BITS
        self._out = self._pending = 0
        self._run_from = _NOBODY

    def _half_open(self, reason: str) -> None:
        self._new_generation()
        self._probes = Probes(self.probe_at)
        self._is_asking, self._has_leave = False, True
        self.reason, self.is_news = reason, False
        self._moving().half_open()

    def _close(self, reason: str, now: float, ramp_s: float, *, is_news: bool = False) -> None:
        self.is_by_hand = self._is_drained = self._is_asking = False
        self.probe_at = inf
        self._told_until = -inf
        self._healthy_since = now
        self._health.restart(now)
        self._ramp = Growth(self._usual_per_s, ramp_s, now) if ramp_s > 0 else None
        self.is_clear = self._ramp is None
        self.reason, self.is_news = reason, is_news
        self._moving().close()
        self.retire()

    def retire(self) -> None:
        """Nobody uses it any more, or it is closed: takes the circuit apart, whose parts refer to each other and to this.

        So whatever is dropped is gone at once, and no collection of thousands of them stops the loop.
        """
        circuit, self._circuit = self._circuit, None
        if circuit is not None:
            vars(circuit).clear()

    def _moving(self) -> CircuitBreaker:
        """The circuit, which is closed at first; made anew for each ejection."""
        circuit = self._circuit
        if circuit is None:
            circuit = CircuitBreaker(reset_timeout=_NEVER_S, listeners=[_Mirror(self)], name=self.name)
            self._circuit = circuit
        return circuit

    def _became(self, state: State) -> None:
        self.state = "drained" if state == "open" and self._is_drained else state
        self._moves[_MOVES.index(self.state)] += 1
        if self._on_change is not None:
            self._on_change(self.name, self.state, self.reason)


class _Mirror(CircuitBreakerListener):
    """Carries pybreaker's transitions over to the breaker's own slots."""

    __slots__ = ("_breaker",)

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker

    def state_change(
        self, cb: CircuitBreaker, old_state: CircuitBreakerState | None, new_state: CircuitBreakerState
    ) -> None:
        """It has moved."""
        self._breaker._became(_STATES[new_state.name])
