"""What a failure of one call means for others: breakers that move, credentials that are refused, accounts that are out.

It must not know calls. Invariant: whoever waits for a target hears of every change of its breaker, a moment later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from gateway.core.admission.gates.gates import Gates
from gateway.core.admission.queue.queue.held import WaitingLine
from gateway.core.admission.queue.queue.queue import DelayQueue
from gateway.core.clock import Clock
from gateway.core.error_tables.classify import Diagnosis, Scope
from gateway.core.health.target_health.target_health.target_health import Account
from gateway.core.limits.target_limits.gate.gate import Gate
from gateway.core.ports import Meter
from gateway.core.types.words import LANES

IN_USE_S = 60.0
"""A target that was asked so lately is in use."""
Hand: TypeAlias = Literal["open", "closed", "drained"] | None
"""What a person wants of a breaker; None: what was set by hand holds no more."""
_LOWEST = len(LANES) - 1
MISSING_REMEDY = "correct the target's `model` in the config, or have it made available there"
log = logging.getLogger("gateway.health")


def missing_model(target: str) -> str:
    """Returns what is wrong with a target of this name whose provider does not know its model."""
    return f"the provider knows no model '{target.partition('/')[2]}', or not for this account"


class HealthPropagation:
    """Carries the news from one gate to the others, and to those who wait."""

    __slots__ = ("_clock", "_draw", "_gates", "_meter", "_queue", "on_change", "on_force")

    def __init__(self, clock: Clock, meter: Meter, gates: Gates, queue: DelayQueue, draw: Callable[[], float]) -> None:
        """`draw` gives uniform numbers from [0, 1)."""
        self._clock = clock
        self._meter = meter
        self._gates = gates
        self._queue = queue
        self._draw = draw
        self.on_change: Callable[[str, str, str], None] | None = None
        """Told of each change of a breaker: its name, its new state, and why."""
        self.on_force: Callable[[str, Hand], None] | None = None
        """Told of what is done by hand."""

    def credential_refused(self, gate: Gate, now: float) -> None:
        """The provider does not take the credential: nobody uses it for a while, if it is one of the config's own."""
        account = gate.health.account
        if self._gates.pays(gate):
            account.is_refused = True
            account.breaker.trip("its credential is refused", now, self._draw())

    def model_missing(self, gate: Gate, plan: Sequence[Gate], now: float) -> None:
        """The provider does not know the model that the config names there: others of the plan go first, if any can.

        With nobody else to go to it stays in service: then the provider's own word is the answer, and once the model is
        there the next call is served.
        """
        heard = gate.health.heard
        if self._gates.names.is_callers(gate.name):
            return  # it may be this one caller's account that has no access
        was_known = heard.has_lost_model
        heard.miss_model()
        if not heard.has_lost_model:
            return
        what = missing_model(self._gates.names.label(gate.name))
        if not was_known:
            log.warning("%s: %s; %s", gate.name, what, MISSING_REMEDY)
        breaker = gate.health.breaker
        if any(other.health.is_clear for other in plan if other is not gate):
            breaker.trip(what, now, self._draw())
        elif not breaker.is_by_hand:
            breaker.trust("no other target is in service", now)

    def told_to_wait(self, gate: Gate, diagnosis: Diagnosis, now: float) -> None:
        """The provider has named a delay, perhaps not for this target alone."""
        if diagnosis.delay_s is not None and diagnosis.scope != "target":
            for line in self._siblings(gate, diagnosis.scope):
                line.gate.leave_alone(diagnosis.delay_s, now)

    def exhausted(self, gate: Gate, diagnosis: Diagnosis, now: float) -> None:
        """The account's quota is spent: nobody waits for it."""
        self._queue.shut(self._gates.lines[gate.name])
        if diagnosis.scope != "target":
            for other in self._siblings(gate, diagnosis.scope):
                other.gate.exhaust(diagnosis.delay_s, now)
                self._queue.shut(other)

    def force(self, name: str, to: Hand) -> None:
        """Opens, drains or closes a target or an account by hand; None undoes that, and tries with probes.

        What is closed is trusted at once: its pauses and spent quotas are over, too. A target of which models or callers have
        gates of their own means all of these; one caller's own can only be closed. Raises KeyError for unknown names.
        """
        self.told_force(name, to)
        if self.on_force is not None:
            self.on_force(name, to)

    def told_force(self, name: str, to: Hand) -> None:
        """Does what `force` does, where it was another replica that was told."""
        now = self._clock.monotonic()
        gates = self._gates
        lines = gates.meant(name)
        breakers = [line.gate.health.breaker for line in lines if not gates.names.is_callers(line.gate.name)]
        if lines and not breakers and to != "closed":
            raise KeyError(name)  # a caller's own gate has pauses, and no breaker of its own
        if not lines:
            account = gates.accounts[name]
            account.is_refused = account.is_refused and to != "closed"
            lines, breakers = gates.of_account(account), [account.breaker]
        for breaker in breakers:
            breaker.force(to, now)
        for line in lines if to == "closed" else ():
            line.gate.pauses.end()
            self._queue.freed(line)
        if to == "closed":
            gates.trust(lines)

    def lines_of(self, name: str) -> Sequence[WaitingLine]:
        """Returns the lines for which the breaker of this name matters: a target's own, or all that an account pays for."""
        account = self._gates.accounts.get(name)
        return self._gates.kin(name) or (self._gates.of_account(account) if account is not None else [])

    def freed(self, name: str) -> None:
        """Something was given back at the gate of this name: those who wait there may go, or look at its probe again."""
        line = self._gates.lines.get(name)
        if line is None:
            return
        self._queue.freed(line)
        if self._gates.names.callers and line.gate.health.is_probed:
            self._probe_ended(line.gate)

    def _probe_ended(self, gate: Gate) -> None:
        """A probe may have ended for which callers at other lines wait, too."""
        health, now = gate.health, self._clock.monotonic()
        for line in self._gates.kin(gate.name):
            if health.wait_s(now, _LOWEST) is None:
                return  # as many as may are on their way again
            self._queue.freed(line)

    def changed(self, name: str, state: str, reason: str) -> None:
        """A breaker has opened, or lets calls through again."""
        self._meter.breaker_changed(self._gates.names.label(name), state)
        log.warning("%s is %s: %s", name, state.replace("_", " "), reason)
        if self.on_change is not None:
            self.on_change(name, state, reason)
        changed = self.lines_of(name)
        # Not at once: whoever reports a failure is still busy with this very line.
        self._clock.call_at(self._clock.monotonic(), lambda: self._meet_change(changed, state))

    def _meet_change(self, lines: Sequence[WaitingLine], state: str) -> None:
        for line in lines:
            if state in ("open", "drained"):
                self._queue.shut(line)
                self._queue.freed(line)  # whoever waits there for a probe that another line has sent waits for the next
                self._trip_account_if_all_open(line.gate.health.account)
            else:
                self._queue.freed(line)

    def _trip_account_if_all_open(self, account: Account) -> None:
        """Trips the account's breaker when all of several targets in use are open: it is the account then, or the provider."""
        now = self._clock.monotonic()
        if account.name not in self._gates.accounts or not account.breaker.is_clear:
            return
        used = [line.gate for line in self._gates.of_account(account) if now - line.gate.used_at < IN_USE_S]
        if len(used) > 1 and all(
            gate.health.breaker.state == "open" and not gate.health.breaker.is_by_hand for gate in used
        ):
            account.breaker.trip(f"all {len(used)} targets in use are open", now, self._draw())

    def _siblings(self, gate: Gate, scope: Scope) -> list[WaitingLine]:
        """Returns the other lines that a diagnosis of this scope concerns: of the credential, or of all of the config's there.

        A caller's own credential concerns his own lines at most.
        """
        account = gate.health.account
        if not self._gates.pays(gate):
            lines = self._gates.of_payer(gate)
        elif scope == "key":
            lines = self._gates.of_account(account)
        else:
            group = account.name.partition("#")[0]
            lines = [
                one for one in self._gates.lines.values() if one.gate.health.account.name.partition("#")[0] == group
            ]
        return [line for line in lines if line.gate is not gate]
