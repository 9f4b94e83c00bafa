"""The phase that a breaker is in, and how it moves from one to the next.

pybreaker holds the state while it is not closed, and tells its listener of each move; its own timer, which reads the wall
clock, never moves it. It must not know what a phase is entered for. Invariants: the state shown is that of the phase, as soon
as pybreaker has moved; a breaker that is closed has no circuit.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.health.breaker.circuit import CircuitBreaker, CircuitBreakerListener, CircuitBreakerState
from gateway.core.health.breaker.state_machine.phases import STATES, BreakerPhase, ByHand, Closed, HalfOpen, State
from gateway.core.health.breaker.state_machine.rules import BreakerRules

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
