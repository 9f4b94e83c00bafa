"""What becomes of what an attempt has taken, however it ends; and what its end teaches gates, breakers and budgets.

    (an attempt) -> answered | refused | failed -> … -> ended | cancelled -> settle

It must not know what is done next, or how an answer is relayed. Invariant: whatever an attempt took from a gate is settled
exactly once, and so is what the call took from its key.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.admission.gates.gates import Gates
from gateway.core.admission.keys.key_limits import KeyLimits
from gateway.core.admission.keys.retry_budgets import RetryBudgets
from gateway.core.admission.outcomes.health import HealthPropagation
from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.error_tables.classify import Diagnosis
from gateway.core.health.target_health.target_health.target_health import CLIENT_GONE
from gateway.core.health.times.first_byte_wait import is_deserted, is_evidence, usual_of
from gateway.core.limits.reservation.grant import Grant
from gateway.core.limits.reservation.refusal import Refusal, refused
from gateway.core.types.exchange import RawHeaders
from gateway.core.types.provider_errors import ErrorClass, Phase
from gateway.core.types.words import Usage

CALLERS_DEADLINE = "callers_deadline"
_NO_DIAGNOSIS = Diagnosis(ErrorClass.UNKNOWN)
_WATCH_GRAIN_S = 0.06  # the watch looks every 50 ms


class AttemptOutcomes:
    """Closes attempts: gives back to their gates, and tells these what the end of an attempt means."""

    __slots__ = ("_clock", "_draw", "_gates", "_health", "_keys", "_retries")

    def __init__(
        self,
        clock: Clock,
        gates: Gates,
        health: HealthPropagation,
        keys: KeyLimits,
        retries: RetryBudgets,
        draw: Callable[[], float],
    ) -> None:
        """`draw` gives uniform numbers from [0, 1)."""
        self._clock = clock
        self._gates = gates
        self._health = health
        self._keys = keys
        self._retries = retries
        self._draw = draw

    def answered(self, call: Call, headers: RawHeaders, *, is_error: bool = False) -> None:
        """The target has let the call in, whatever else it says."""
        grant = call.grant
        if grant is not None:
            now = self._clock.monotonic()
            wall_now = self._clock.wall()
            grant.answered(headers, now, wall_now, is_stream=call.stream, is_error=is_error, thinks=call.thinks)
            if not is_error:
                grant.gate.health.tokens.refund(0.0 if grant.retry is None else grant.retry.tokens)
            self._health.freed(grant.gate.name)

    def refused(self, call: Call, diagnosis: Diagnosis, headers: RawHeaders) -> Refusal:
        """The target has refused the call for its rate or its account; says what that means for the call."""
        grant, call.grant = call.grant, None
        if grant is None:
            return Refusal.EXHAUSTED
        now = self._clock.monotonic()
        gate = grant.gate
        refusal = refused(grant, diagnosis, headers, now, self._clock.wall())
        if refusal is Refusal.EXHAUSTED:
            self._health.exhausted(gate, diagnosis, now)
        else:
            self._health.told_to_wait(gate, diagnosis, now)
            self._health.freed(gate.name)
        return refusal

    def failed(
        self,
        call: Call,
        error_class: ErrorClass,
        phase: Phase,
        diagnosis: Diagnosis = _NO_DIAGNOSIS,
        *,
        fault: str | None = None,
    ) -> None:
        """The attempt came to nothing; with a `diagnosis` the target did answer, with an error.

        A `fault` is the operator's to mend, and every call meets it: the target is left alone at once. Not so where the
        gateway itself has no credential, which is no news of the target, and costs a call nothing.
        """
        grant, call.grant = call.grant, None
        if grant is None:
            return
        now = self._clock.monotonic()
        gate = grant.gate
        grant.judge(self._blamed(call, grant, error_class, now), now, self._draw())
        if phase is Phase.NOTHING_SENT:
            grant.cancel(now)
        else:
            grant.failed(now, is_overload=error_class is ErrorClass.TIMEOUT)
        if error_class is ErrorClass.AUTH:
            if fault is None:  # else it is this process that has no credential: it says so at once, call by call
                self._health.credential_refused(gate, now)
        elif fault is not None:
            gate.health.breaker.trip(fault, now, self._draw())
        elif error_class is ErrorClass.MODEL_NOT_FOUND:
            self._health.model_missing(gate, [self._gates.line(one, call).gate for one in call.model.plan], now)
        # Whose credential is refused is told so; that the server wants to be left alone by him concerns nobody else.
        if diagnosis.delay_s is not None and (error_class is not ErrorClass.AUTH or self._gates.pays(gate)):
            gate.leave_alone(diagnosis.delay_s, now)
            self._health.told_to_wait(gate, diagnosis, now)
        self._health.freed(gate.name)

    def unsayable(self, call: Call, phase: Phase) -> None:
        """The call cannot be put into the target's language, which is no news of the target's health."""
        grant, call.grant = call.grant, None
        if grant is None:
            return
        now = self._clock.monotonic()
        if grant.retry is not None:
            grant.retry.cancel()
        if phase is Phase.NOTHING_SENT:
            grant.cancel(now)
        else:  # the request has taught that the target does not know its path
            grant.failed(now, is_overload=False)
        self._health.freed(grant.gate.name)

    def ended(self, call: Call, outcome: str) -> None:
        """The answer that was relayed has ended; `outcome` is `ok`, what went wrong, or who left."""
        grant = call.grant
        if grant is not None:
            grant.judge(None if outcome == "ok" else outcome, self._clock.monotonic(), self._draw())

    def cancelled(self, call: Call, why: str) -> None:
        """The attempt is given up while the call goes on, which is nobody's failure; what it took of the limits stands."""
        grant, call.grant = call.grant, None
        self._retries.cancel(call)
        if grant is not None:
            now = self._clock.monotonic()
            grant.judge(why, now, 0.0)
            grant.settle(None, now)
            self._health.freed(grant.gate.name)

    def used(self, call: Call, usage: Usage | None) -> None:
        """The attempt was answered well, and the call goes on without that answer: corrects what it took to what it used."""
        grant, call.grant = call.grant, None
        if grant is None:
            return
        now = self._clock.monotonic()
        if grant.headers is not None:
            grant.finish(grant.headers, usage, now, self._clock.wall, thinks=call.thinks)
        else:
            grant.judge(None, now, self._draw())
            grant.settle(usage, now)
        grant.gate.health.tokens.refund(0.0 if grant.retry is None else grant.retry.tokens)
        self._health.freed(grant.gate.name)

    def settle(self, call: Call, usage: Usage | None) -> None:
        """The call has ended: corrects what it took to what it used. None: nobody knows, or nothing."""
        grant, call.grant = call.grant, None
        if call.retry is not None:
            self._retries.cancel(call)
        if grant is not None:
            now = self._clock.monotonic()
            gate = grant.gate
            if grant.headers is not None:
                grant.finish(grant.headers, usage, now, self._clock.wall, thinks=call.thinks)
                if gate.health.tokens.spent:
                    gate.health.tokens.refund(0.0 if grant.retry is None else grant.retry.tokens)
            else:
                if not grant.is_judged:
                    self._judge_unended(call, grant, now)
                grant.settle(usage, now)
            line = self._gates.lines.get(gate.name)
            if line is not None and (line.waiters.busy or self._gates.names.callers):
                self._health.freed(gate.name)
        if call.key_cost is not None:
            check = call.output_check
            self._keys.settle(call, usage if check is None else check.total(usage), self._clock.monotonic())

    def _judge_unended(self, call: Call, grant: Grant, now: float) -> None:
        """Every attempt that ended by itself has been judged. Its client has left: mostly nobody's fault."""
        gate = grant.gate
        last = call.attempts[-1] if call.attempts else None
        if call.outcome != CLIENT_GONE or last is None or last.ended_at is not None:
            grant.judge(CLIENT_GONE, now, 0.0)
            return
        usual = usual_of(gate.health.heard.times(stream=call.stream, thinks=call.thinks))
        is_silent = is_deserted(now - last.heard_at, usual, thinks=call.thinks or gate.health.heard.thinks)
        grant.judge(ErrorClass.TIMEOUT if is_silent else CLIENT_GONE, now, self._draw())

    def _blamed(self, call: Call, grant: Grant, error_class: ErrorClass, now: float) -> str:
        """Returns what the target is to blame for: not for a deadline that was shorter than its usual time."""
        if error_class is not ErrorClass.TIMEOUT:
            return error_class
        is_callers = call.deadline_is_callers and now >= call.deadline - _WATCH_GRAIN_S
        if not is_callers and call.other_attempt is None:
            return error_class
        health = grant.gate.health
        unserved_s = 0.0 if call.other_attempt is None else health.heard.unserved_s(now)
        usual = usual_of(health.heard.times(stream=call.stream, thinks=call.thinks))
        thinks = call.thinks or health.heard.thinks
        is_silent = is_evidence(now - call.attempts[-1].heard_at, usual, thinks=thinks, unserved_s=unserved_s)
        return error_class if is_silent or health.is_probed or grant.is_late(now) else CALLERS_DEADLINE
