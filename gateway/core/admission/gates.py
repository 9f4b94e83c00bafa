"""The gates and lines of all targets, and what becomes there of the attempts that go through them.

    line -> (an attempt) -> answered | refused | failed -> … -> ended | cancelled -> settle

First what a call is to gates (its tokens as estimated, its traits), then `Gates`, then what a failure means for others
(`HealthPropagation`), and last the ends of attempts (`AttemptOutcomes`). Gates stand under the targets' stable names: a
reload changes their numbers, not their state. A wildcard target (`openai/*`) has a gate for each model name that is asked
for. A target whose callers bring their own credentials has one for each of these, beside its own: the provider counts and
refuses by account, so a caller's limits, pauses, spent quotas and breaker are nobody else's. How quick the target is all of
them find out together, and its own breaker opens where several of them fail. Idle gates of model names and callers are
evicted, the longest unused first; a compact summary of each outlives it. It must not know what is done next, or how an
answer is relayed. Invariants: strangers never share a gate, however many they are; idle gates are bounded; whatever an
attempt took from a gate is settled exactly once, and so is what the call took from its key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from secrets import token_bytes
from typing import Literal, TypeAlias

from gateway.core.admission.keys import KeyLimits
from gateway.core.admission.queue import DelayQueue, WaitingLine
from gateway.core.call import Call, earlier_tries_of, upstream_model
from gateway.core.clock import Clock
from gateway.core.error_tables import Diagnosis, Scope
from gateway.core.health.detector import Responsiveness, account_rules, is_shared
from gateway.core.health.target_health import (
    CLIENT_GONE,
    STILL_REFUSED,
    TRIED_AGAIN,
    UNHEALTHY,
    Account,
    OnChange,
    TargetHealth,
)
from gateway.core.health.times import is_deserted, is_evidence, usual_of
from gateway.core.limits.idle_gates import GateNames, IdleGates
from gateway.core.limits.reservation import Refusal, Reservation, refused
from gateway.core.limits.target_limits import FIRST_BACKOFF_S, LONGEST_BACKOFF_S, MOST_DOUBLINGS, CallTraits, Gate
from gateway.core.openai.bodies import count_answers
from gateway.core.openai.sse import json_object
from gateway.core.openai.transcript import is_thinker
from gateway.core.openai.usage import estimate_input_tokens
from gateway.core.ports import LimitSource, Meter
from gateway.core.retry import Attempt, attempts_apart, usage_in_all
from gateway.core.snapshot import Model, PolicySnapshot, Target
from gateway.core.types import LANES, ErrorClass, Phase, RawHeaders, Usage

# --- what a call is to gates ---


def answers_of(call: Call) -> int:
    """Returns how many answers the call pays for."""
    if call.request.endpoint.request != "json":
        return 1
    if call.request.large is not None and call.request.large.tokens >= 0:
        return call.request.large.answers
    return count_answers(call.parsed or json_object(call.request.body) or {})


def opens_at(call: Call, target: Target) -> float:
    """Returns the moment before which the call does not go to the target again, as it was refused there; 0.0: it was not."""
    return max([attempt.retry_at for attempt in call.attempts if attempt.target.name == target.name], default=0.0)


def estimate_of(call: Call) -> int:
    """The input tokens of the call, uncorrected; 0 where it has none. Counted once."""
    if call.estimate < 0:
        call.estimate = 0
        request = call.request
        if request.endpoint.tokens == "none" or request.endpoint.request != "json":
            return 0
        if request.large is not None and request.large.tokens >= 0:
            call.estimate = request.large.tokens
        else:
            parsed = call.parsed or json_object(request.body)
            if parsed is not None:
                target = call.route.model.targets[0]
                find_tokenizer = target.counting.exact_tokens
                count = find_tokenizer(upstream_model(call, target)) if find_tokenizer is not None else None
                call.estimate = estimate_input_tokens(request.body, parsed, count)
    return call.estimate


def traits_of(call: Call) -> CallTraits:
    """Returns what may set the call apart from others at a target that refuses it."""
    return CallTraits(call.seq, call.request.tenant, estimate_of(call))


def is_moving(call: Call) -> bool:
    """Returns whether one of the call's attempts has stalled, and others are made beside it."""
    return any(one.is_stalled for one in call.attempts)


# --- the gate and line of each target ---

MOST_NAMED = 1024
"""That many model names and callers keep gates of their own while nobody uses them; gates in use are not counted."""
MOST_SHOWN = 1000
_LOOKS = 8  # at gates that may be forgotten, for each new one


class Gates:
    """Finds the gate and line of a target."""

    __slots__ = (
        "_by_caller",
        "_clock",
        "_idle",
        "_keyless",
        "_limit_source",
        "_queue",
        "_thinkers",
        "accounts",
        "lines",
        "names",
        "on_change",
        "on_open",
        "on_rate",
    )

    def __init__(
        self,
        clock: Clock,
        queue: DelayQueue,
        limit_source: LimitSource | None = None,
    ) -> None:
        """With `limit_source` replicas share the limits. It has no gates before the first `install`."""
        self._clock = clock
        self.on_change: OnChange | None = None
        """Called with every change of a breaker; to be set before the first `install`."""
        self.on_rate: Callable[[str, float | None], None] | None = None
        """The `Gate.on_rate` of every gate that is made from now on."""
        self.accounts: dict[str, Account] = {}
        """The accounts of the config's own credentials, by name."""
        self._keyless: dict[str, Account] = {}  # of callers' own, by provider: nothing is ever said of it
        self._queue = queue
        self._limit_source = limit_source
        salt = token_bytes(16)
        self.names = GateNames(salt)
        self._idle = IdleGates(salt)
        self._by_caller: set[str] = set()
        self._thinkers: set[str] = set()
        self.lines: dict[str, WaitingLine] = {}
        """All lines, by the name of the gate."""
        self.on_open: Callable[[WaitingLine], None] | None = None
        """Called with each line that is made from now on."""

    def install(self, policy: PolicySnapshot) -> None:
        """Puts a policy's numbers in force. What it does not name is forgotten, unless somebody still uses it."""
        targets = {target.name: target for model in _models(policy) for target in (*model.plan, *model.context_plan)}
        self._thinkers = {
            target.name for model in _models(policy) for target in (*model.plan, *model.context_plan) if target.thinks
        }
        self._by_caller = {name for name, target in targets.items() if _is_callers_own(target, policy)}
        self._idle.configure(targets.keys(), self._clock.monotonic())
        self.names.configure(targets.keys())
        for name in reversed([*self.lines]):  # callers' before what they share
            label = self.names.label(name)
            if label not in targets:
                self._forget(name)
            elif label != name:
                self._configure(self.lines[name], targets[label])
        for name, target in targets.items():
            self._open(name, target)

    def line(self, target: Target, call: Call) -> WaitingLine:
        """Returns the line of a target; of a wildcard, the one for the model that the call names."""
        name = base = target.name if target.model is not None else f"{target.provider}/{call.request.model_name}"
        is_callers = (
            call.request.credential is not None
            and target.name in self._by_caller
            and target.name not in call.route.model.without_caller_credential
        )
        if is_callers and call.request.credential is not None:
            name = self.names.of_caller(base, call.request.credential)
        line = self.lines.get(name)
        if line is not None:
            return line
        return self._open_of_caller(name, base, target) if is_callers else self._open_of_model(name, target)

    def responsiveness_of(self, target: Target, call: Call) -> Responsiveness | None:
        """Returns the answer times of the target for all callers together; None: nothing yet. Makes no gate."""
        line = self.lines.get(
            target.name if target.model is not None else f"{target.provider}/{call.request.model_name}"
        )
        return None if line is None else line.gate.health.responsiveness

    def kin(self, name: str) -> list[WaitingLine]:
        """Returns the lines that share a breaker with this gate, its own among them."""
        base = self.names.base(name)
        line = self.lines.get(base)
        return [] if line is None else [line, *self._of_callers(base)]

    def lines_named(self, name: str) -> list[WaitingLine]:
        """Returns the lines that a person means by the name: a gate's or a target's, with all their models and callers."""
        lines = [line for key, line in self.lines.items() if name in (key, self.names.label(key))]
        found = {one.gate.name: one for line in lines for one in (line, *self._of_callers(line.gate.name))}
        return [*found.values()]

    def pays(self, gate: Gate) -> bool:
        """Returns whether one of the config's own accounts pays there."""
        account = gate.health.account
        return self.accounts.get(account.name) is account

    def shown(self) -> list[tuple[str, WaitingLine]]:
        """The lines that people are shown, in order of their names: all of the config's, and as many others as one reads."""
        own = [item for item in self.lines.items() if not self.names.is_named(item[0])]
        named = [(name, self.lines[name]) for name in self.names.newest(MOST_SHOWN - len(own))]
        return sorted(own + named, key=itemgetter(0))

    def of_account(self, account: Account) -> list[WaitingLine]:
        """Returns the lines of all targets that this account pays for."""
        return [line for line in self.lines.values() if line.gate.health.account is account]

    def of_payer(self, gate: Gate) -> list[WaitingLine]:
        """Returns the lines of the caller whose own account pays at this gate, at the same provider; of strangers none."""
        lines = [self.lines[name] for name in self.names.of_same_payer(gate.name)]
        return [line for line in lines if line.gate.health.account.name == gate.health.account.name]

    def trust(self, lines: Iterable[WaitingLine]) -> None:
        """Voids, by hand, what is remembered of idle gates of these targets."""
        labels = [self.names.label(line.gate.name) for line in lines]
        self._idle.trust(labels, self._clock.monotonic())

    def _of_callers(self, base: str) -> list[WaitingLine]:
        return [self.lines[name] for name in self.names.callers.get(base, ())]

    def _open_of_caller(self, name: str, base: str, target: Target) -> WaitingLine:
        """Makes the line of a caller's own account, beside that of all callers, which it shares the target's health with."""
        self._make_room()
        shared = self.lines.get(base) or self._open_of_model(base, target)
        self.names.add_caller(name, base, self.names.label(base), self._clock.monotonic())
        return self._open(name, target, shared.gate)

    def _open_of_model(self, name: str, target: Target) -> WaitingLine:
        """Makes the line of a model name. An earlier policy's target lives on as long as its calls, under its own."""
        if name != target.name:
            self._make_room()
            self.names.add_model(name, target.name, self._clock.monotonic())
        return self._open(name, target)

    def _open(self, name: str, target: Target, kin: Gate | None = None) -> WaitingLine:
        line = self.lines.get(name)
        if line is not None:
            self._configure(line, target)
            return line
        now = self._clock.monotonic()
        account = self._account(target, now)
        health = TargetHealth(name, account, target.breaker, now, self.on_change, None if kin is None else kin.health)
        # A caller's own account has a name that no other replica knows.
        source = self._limit_source
        share_out = None if source is None or kin is not None else source.of_target(name)
        calibration = None if kin is None else kin.calibration
        gate = Gate(name, target.limits, target.counting, now, health, share_out, calibration)
        gate.on_rate = self.on_rate
        line = self.lines[name] = self._queue.line(gate)
        kept = self._idle.take(name, self.names.label(name))
        if kept is not None:
            gate.remember(kept, now)
        if kin is None:
            # What was set by hand for the target holds for every name and caller of it.
            parent = self.lines.get(target.name)
            if parent is not None and parent is not line and parent.gate.health.breaker.is_by_hand:
                state = parent.gate.health.breaker.state
                line.gate.health.breaker.force("drained" if state == "drained" else "open", now)
            self._note_thinking(line, target)
        if self.on_open is not None:
            self.on_open(line)
        return line

    def _configure(self, line: WaitingLine, target: Target) -> None:
        now = self._clock.monotonic()
        line.gate.configure(target.limits, target.counting, now)
        line.gate.health.breaker.configure(target.breaker, now)
        if not line.gate.health.is_callers:
            line.gate.health.account.breaker.configure(account_rules(target.breaker), now)
            self._note_thinking(line, target)

    def _note_thinking(self, line: WaitingLine, target: Target) -> None:
        """Notes whether its model thinks; of a wildcard, by the name that the client has chosen."""
        requested_name = line.gate.name if target.model is None else ""
        line.gate.health.responsiveness.thinks = target.name in self._thinkers or is_thinker(requested_name)

    def _account(self, target: Target, now: float) -> Account:
        """The account that pays; that of a provider's callers stands for all of them, and never fails."""
        if not target.account:
            account = self._keyless.get(target.provider)
            if account is None:
                name = f"callers of {target.provider}"
                account = self._keyless[target.provider] = Account(name, target.breaker, now)
            return account
        account = self.accounts.get(target.account)
        if account is None:
            account = self.accounts[target.account] = Account(target.account, target.breaker, now, self.on_change)
        return account

    def _make_room(self) -> None:
        """Forgets a few of those that were not used since they were looked at last; while many are in use there are more."""
        names = self.names
        for name, known in names.oldest(_LOOKS) if len(names) >= MOST_NAMED else ():
            if len(names) < MOST_NAMED:
                return
            gate = self.lines[name].gate
            # Forgotten, a model in trouble would come back with a closed breaker.
            is_ill = known.payer is None and not gate.health.breaker.is_clear and len(names) < 2 * MOST_NAMED
            if is_ill or gate.used_at > known.looked_at or not self._forget(name):
                names.keep(name, self._clock.monotonic())

    def _forget(self, name: str) -> bool:
        """Forgets a gate, unless somebody waits or runs there, it shares its health with others, or it was set by hand."""
        line = self.lines[name]
        gate = line.gate
        breaker = gate.health.breaker
        is_callers = self.names.is_callers(name)
        if len(line.waiters) or line.wanted or gate.in_flight or name in self.names.callers:
            return False
        if not is_callers and (breaker.is_by_hand if self.names.is_named(name) else not breaker.is_clear):
            return False
        kept = gate.kept(self._clock.monotonic())
        if kept is not None:
            self._idle.keep(name, kept)
        del self.lines[name]
        self.names.drop(name)
        self._queue.drop_line(name)
        gate.limits.table.retire()
        breaker.retire()
        return True


def _is_callers_own(target: Target, policy: PolicySnapshot) -> bool:
    """Returns whether each caller brings an account of his own, and it is the accounts that are limited."""
    provider = policy.providers.get(target.provider)
    return provider is not None and provider.is_callers and provider.limits_are == "account"


def _models(policy: PolicySnapshot) -> Iterable[Model]:
    yield from policy.models.values()
    for _, model in policy.patterns:
        yield model


# --- what a failure of one call means for others: breakers, refused credentials, spent accounts ---


IN_USE_S = 60.0
"""Seconds after its last call for which a target is in use."""
Hand: TypeAlias = Literal["open", "closed", "drained"] | None
"""The state that a person wants of a breaker; None: what was set by hand holds no more."""
_LOWEST = len(LANES) - 1
MISSING_REMEDY = "correct the target's `model` in the config, or have it made available there"
log = logging.getLogger("gateway.health")


def missing_model(target: str) -> str:
    """Returns what is wrong with a target of this name whose provider does not know its model."""
    return f"the provider knows no model '{target.partition('/')[2]}', or not for this account"


class HealthPropagation:
    """Carries the news from one gate to the others, and to those who wait.

    Invariant: whoever waits for a target gets every change of its breaker, a moment later.
    """

    __slots__ = ("_clock", "_draw", "_gates", "_meter", "_queue", "on_change", "on_force", "spent")

    def __init__(self, clock: Clock, meter: Meter, gates: Gates, queue: DelayQueue, draw: Callable[[], float]) -> None:
        """`draw` gives uniform numbers from [0, 1)."""
        self._clock = clock
        self._meter = meter
        self._gates = gates
        self._queue = queue
        self._draw = draw
        self.spent: set[str] = set()
        """The targets and accounts of the config whose quota was found spent, and has not been seen to be back."""
        self.on_change: Callable[[str, str, str], None] | None = None
        """Called with each change of a breaker: its name, its new state, and why."""
        self.on_force: Callable[[str, Hand], None] | None = None
        """Called with what is done by hand."""

    def credential_refused(self, gate: Gate, now: float) -> None:
        """The provider does not take the credential: nobody uses it for a while, if it is one of the config's own."""
        account = gate.health.account
        if self._gates.pays(gate):
            reason = STILL_REFUSED if account.breaker.reason == TRIED_AGAIN else "its credential is refused"
            account.is_refused = True
            account.breaker.trip(reason, now, self._draw())

    def model_missing(self, gate: Gate, plan: Sequence[Gate], now: float) -> None:
        """The provider does not know the model that the config names there: others of the plan go first, if any can.

        With nobody else to go to it stays in service: then the provider's own word is the answer, and once the model is
        there the next call is served.
        """
        responsiveness = gate.health.responsiveness
        if self._gates.names.is_callers(gate.name):
            return  # it may be this one caller's account that has no access
        was_known = responsiveness.has_lost_model
        responsiveness.miss_model()
        if not responsiveness.has_lost_model:
            return
        what = missing_model(self._gates.names.label(gate.name))
        if not was_known:
            log.warning("%s: %s; %s", gate.name, what, MISSING_REMEDY)
        breaker = gate.health.breaker
        if any(other.health.is_clear for other in plan if other is not gate):
            breaker.trip(what, now, self._draw())
        elif not breaker.is_by_hand:
            breaker.trust("no other target is in service", now)

    def callers_failed(self, gate: Gate, why: str, now: float) -> None:
        """A caller with a credential of his own has failed: where several have, one after the other, it is the target."""
        breaker, failures = gate.health.target_breaker, gate.health.responsiveness.failed_callers
        at_least = breaker.rules.consecutive_failures
        # First without the calls in flight, which cost a look at the lines of all callers.
        if len(failures) < 2 or not breaker.is_clear or not is_shared(failures.values(), at_least, 0):
            return
        in_flight = sum([line.gate.in_flight for line in self._gates.kin(gate.name)])
        if is_shared(failures.values(), at_least, in_flight):
            breaker.fall_ill(f"failures of {len(failures)} callers ({why})", now, self._draw(), why)
            failures.clear()

    def apply_pause(self, gate: Gate, diagnosis: Diagnosis, now: float) -> None:
        """The provider has named a delay, perhaps not for this target alone."""
        if diagnosis.delay_s is not None and diagnosis.scope != "target":
            for line in self._siblings(gate, diagnosis.scope):
                line.gate.leave_alone(diagnosis.delay_s, now)

    def exhausted(self, gate: Gate, diagnosis: Diagnosis, now: float) -> None:
        """The account's quota is spent: nobody waits for it."""
        self._queue.shut(self._gates.lines[gate.name])
        name = gate.name if diagnosis.scope == "target" else gate.health.account.name or gate.name
        if name not in self.spent and self._gates.pays(gate):
            self.spent.add(name)
            log.warning(
                "%s: its quota is spent; tried again in %.0f s, or at once after 'gateway targets close %s'",
                *(name, gate.pauses.quota_until - now, name),
            )
        if diagnosis.scope != "target":
            for other in self._siblings(gate, diagnosis.scope):
                other.gate.exhaust(diagnosis.delay_s, now)
                self._queue.shut(other)

    def quota_is_back(self, gate: Gate) -> None:
        """A target has served a call: a quota of it that was found spent is back."""
        for name in self.spent & {gate.name, gate.health.account.name}:
            self.spent.discard(name)
            log.warning("%s: its quota is back", name)

    def force(self, name: str, to: Hand) -> None:
        """Opens, drains or closes a target or an account by hand; None undoes that, and tries with probes.

        What is closed is trusted at once: its pauses and spent quotas are over, too. A target of which models or callers have
        gates of their own means all of these; one caller's own can only be closed. Raises KeyError for unknown names.
        """
        self.apply_override(name, to)
        if self.on_force is not None:
            self.on_force(name, to)

    def apply_override(self, name: str, to: Hand) -> None:
        """Applies a manual override received from another replica."""
        now = self._clock.monotonic()
        gates = self._gates
        lines = gates.lines_named(name)
        healths = [line.gate.health for line in lines]
        breakers = [health.breaker for health in healths if to == "closed" or not health.is_callers]
        if lines and not breakers:
            raise KeyError(name)  # one caller's own is left alone by itself only
        if not lines:
            account = gates.accounts[name]
            account.is_refused = account.is_refused and to != "closed"
            lines, breakers = gates.of_account(account), [account.breaker]
        for breaker in breakers:
            breaker.force(to, now)
        for line in lines if to == "closed" else ():
            line.gate.pauses.end()
            self.spent -= {line.gate.name, line.gate.health.account.name}
            self._queue.freed(line)
        if to == "closed":
            gates.trust(lines)

    def rate_found(self, name: str, per_min: float | None) -> None:
        """A target's refusals have shown a rate that binds; None: it binds no more."""
        if per_min is None:
            log.warning("%s takes more than that: no rate of its own binds it any more", name)
        else:
            log.warning(
                "%s takes about %.0f requests a minute, as its refusals show: calls wait for that rate", name, per_min
            )

    def lines_of(self, name: str) -> Sequence[WaitingLine]:
        """Returns the lines for which the breaker of this name matters: a target's own, or all that an account pays for."""
        if self._gates.names.is_callers(name):
            return [self._gates.lines[name]] if name in self._gates.lines else []
        account = self._gates.accounts.get(name)
        return self._gates.kin(name) or (self._gates.of_account(account) if account is not None else [])

    def freed(self, name: str) -> None:
        """Something was given back at the gate of this name: those who wait there may go, or look at its probe again."""
        line = self._gates.lines.get(name)
        if line is None:
            return
        self._queue.freed(line)
        health = line.gate.health
        if self._gates.names.callers and not health.target_breaker.is_clear:
            self._probe_ended(line.gate)
        if not health.is_callers and not health.account.breaker.is_clear:
            for other in self._gates.of_account(health.account):
                self._queue.freed(other)

    def _probe_ended(self, gate: Gate) -> None:
        """A probe may have ended for which callers at other lines wait, too."""
        health, now = gate.health, self._clock.monotonic()
        for line in self._gates.kin(gate.name):
            if health.wait_s(now, _LOWEST) is None:
                return  # as many as may are on their way again
            self._queue.freed(line)

    def changed(self, name: str, state: str, reason: str) -> None:
        """A breaker has opened, or lets calls through again. What each call tries again in vain is reported once."""
        if reason not in (TRIED_AGAIN, STILL_REFUSED):
            if not self._gates.names.is_callers(name):
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
                if self._queue.shut(line):
                    line.gate.health.probe_for_waiting(self._clock.monotonic(), self._draw())
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


# --- the ends of attempts: what is given back, and what they teach ---

CALLERS_DEADLINE = "callers_deadline"
CONTENTS_OWN = "contents_own"
OWN_WANT = "own_want"
_FRONT_BYTES, _END_BYTES = 2048, 8192
_NO_DIAGNOSIS = Diagnosis(ErrorClass.UNKNOWN)
_WATCH_GRAIN_S = 0.06  # the watch looks every 50 ms


def content_of(body: bytes) -> int:
    """Returns a hash by which calls of the same content are known; of a long body its ends stand for all."""
    return hash((len(body), bytes(body[:_FRONT_BYTES]), bytes(body[-_END_BYTES:])))


class AttemptOutcomes:
    """Closes attempts: gives back to their gates, and reports to these what the end of an attempt means."""

    __slots__ = ("_clock", "_draw", "_gates", "_health", "_keys")

    def __init__(
        self,
        clock: Clock,
        gates: Gates,
        health: HealthPropagation,
        keys: KeyLimits,
        draw: Callable[[], float],
    ) -> None:
        """`draw` gives uniform numbers from [0, 1)."""
        self._clock = clock
        self._gates = gates
        self._health = health
        self._keys = keys
        self._draw = draw

    def answered(self, call: Call, attempt: Attempt, headers: RawHeaders, *, is_error: bool = False) -> None:
        """The target has let the attempt in, whatever else it says."""
        reservation = attempt.reservation
        if reservation is not None:
            request = call.request
            now = self._clock.monotonic()
            wall_now = self._clock.wall()
            _let_in(call, reservation, now)
            reservation.answered(
                headers, now, wall_now, is_stream=request.stream, is_error=is_error, thinks=request.thinks
            )
            if not is_error:
                if self._health.spent:
                    self._health.quota_is_back(reservation.gate)
                reservation.gate.health.tokens.refund(0.0 if reservation.retry is None else reservation.retry.tokens)
                if reservation.gate.health.responsiveness.failed_contents:
                    reservation.gate.health.responsiveness.failed_contents.pop(content_of(request.body), None)
            self._health.freed(reservation.gate.name)

    def refused(self, call: Call, attempt: Attempt, diagnosis: Diagnosis, headers: RawHeaders) -> Refusal:
        """The target has refused the attempt for its rate or its account; says what that means for the call."""
        reservation, attempt.reservation = attempt.reservation, None
        if reservation is None:
            return Refusal.EXHAUSTED
        now = self._clock.monotonic()
        gate = reservation.gate
        traits = traits_of(call)
        refusal = refused(reservation, diagnosis, headers, now, self._clock.wall(), traits)
        if refusal is Refusal.EXHAUSTED:
            self._health.exhausted(gate, diagnosis, now)
            return refusal
        is_lone = gate.pauses.refusals is not None and gate.pauses.refusals.is_lone(traits)
        if not is_lone:
            self._health.apply_pause(gate, diagnosis, now)
        is_paused = gate.pauses.until > now
        name = attempt.target.name
        before = sum([one.target.name == name and one.retry_at > 0.0 for one in call.attempts])
        requested_s = diagnosis.delay_s or 0.0
        backoff_s = 0.0  # the first time it goes as soon as it is asked to, if it is
        if before or diagnosis.delay_s is None:
            backoff_s = min(FIRST_BACKOFF_S * 2.0 ** min(before, MOST_DOUBLINGS), LONGEST_BACKOFF_S)
        attempt.retry_at = now + (max(requested_s, backoff_s) if is_lone else requested_s if is_paused else backoff_s)
        self._health.freed(gate.name)
        return refusal

    def failed(
        self,
        call: Call,
        attempt: Attempt,
        error_class: ErrorClass,
        phase: Phase,
        diagnosis: Diagnosis = _NO_DIAGNOSIS,
        *,
        fault: str | None = None,
        is_ours: bool = False,
    ) -> None:
        """The attempt came to nothing; with a `diagnosis` the target did answer, with an error.

        What `is_ours` is no news of the target: this process could not open a connection to anybody.

        A `fault` is the operator's to mend, and every call meets it: the target is left alone at once. Not so where the
        gateway itself has no credential, which is no news of the target, and costs a call nothing.
        """
        reservation, attempt.reservation = attempt.reservation, None
        if reservation is None:
            return
        now = self._clock.monotonic()
        gate = reservation.gate
        if len(attempts_apart(call.attempts, attempt)) == 1 and not earlier_tries_of(call) and not is_ours:
            gate.health.breaker.fresh_failed_at = now
        # Before the reservation ends, which gives the permits of an unjudged attempt back without news.
        self._judge(
            call, reservation, OWN_WANT if is_ours else self._blamed(call, attempt, reservation, error_class, now), now
        )
        if phase is Phase.NOTHING_SENT:
            reservation.cancel(now)
        else:
            reservation.failed(now, is_overload=error_class is ErrorClass.TIMEOUT)
        if error_class is ErrorClass.AUTH:
            if fault is None:  # else it is this process that has no credential: it says so at once, call by call
                self._health.credential_refused(gate, now)
        elif fault is not None:
            gate.health.target_breaker.trip(fault, now, self._draw())
        elif error_class is ErrorClass.MODEL_NOT_FOUND:
            self._health.model_missing(gate, [self._gates.line(one, call).gate for one in call.route.model.plan], now)
        # A refused credential is the caller's to know; a server that wants to be left alone by him concerns nobody else.
        if diagnosis.delay_s is not None and (error_class is not ErrorClass.AUTH or self._gates.pays(gate)):
            gate.leave_alone(diagnosis.delay_s, now)
            self._health.apply_pause(gate, diagnosis, now)
        self._health.freed(gate.name)

    def not_expressible(self, attempt: Attempt, phase: Phase) -> None:
        """The call cannot be put into the target's language, which is no news of the target's health."""
        reservation, attempt.reservation = attempt.reservation, None
        if reservation is None:
            return
        now = self._clock.monotonic()
        if reservation.retry is not None:
            reservation.retry.cancel()
        if phase is Phase.NOTHING_SENT:
            reservation.cancel(now)
        else:  # the request has taught that the target does not know its path
            reservation.failed(now, is_overload=False)
        self._health.freed(reservation.gate.name)

    def ended(self, call: Call, attempt: Attempt, outcome: str) -> None:
        """The answer that was relayed has ended; `outcome` is `ok`, what went wrong, or who left."""
        reservation = attempt.reservation
        if reservation is not None:
            self._judge(call, reservation, None if outcome == "ok" else outcome, self._clock.monotonic())

    def cancelled(self, attempt: Attempt, why: str) -> None:
        """The attempt is given up while the call goes on, which is nobody's failure; what it took of the limits stands."""
        reservation, attempt.reservation = attempt.reservation, None
        if reservation is not None:
            now = self._clock.monotonic()
            reservation.judge(why, now, 0.0)
            reservation.settle(None, now)
            self._health.freed(reservation.gate.name)

    def used(self, call: Call, attempt: Attempt, usage: Usage | None) -> None:
        """The attempt was answered well, and the call goes on without that answer: corrects what it took to what it used."""
        reservation, attempt.reservation = attempt.reservation, None
        if reservation is None:
            return
        now = self._clock.monotonic()
        _let_in(call, reservation, now)
        if reservation.headers is not None:
            reservation.finish(reservation.headers, usage, now, self._clock.wall, thinks=call.request.thinks)
        else:
            reservation.judge(None, now, self._draw())
            reservation.settle(usage, now)
        reservation.gate.health.tokens.refund(0.0 if reservation.retry is None else reservation.retry.tokens)
        self._health.freed(reservation.gate.name)

    def settle(self, call: Call, attempt: Attempt | None, usage: Usage | None) -> None:
        """The call has ended: corrects what it took to what it used. None: nobody knows, or nothing.

        `attempt` is the one that had the answer; None: there is no answer, and whatever its attempts still hold is given back.
        """
        for one in call.attempts if attempt is None else (attempt,):
            reservation, one.reservation = one.reservation, None
            if reservation is None:
                continue
            now = self._clock.monotonic()
            gate = reservation.gate
            if reservation.headers is not None:
                if gate.pauses.refusals is not None:
                    _let_in(call, reservation, now)
                reservation.finish(reservation.headers, usage, now, self._clock.wall, thinks=call.request.thinks)
                if self._health.spent:
                    self._health.quota_is_back(gate)
                if gate.health.tokens.spent or gate.health.responsiveness.failed_contents:
                    gate.health.tokens.refund(0.0 if reservation.retry is None else reservation.retry.tokens)
                    gate.health.responsiveness.failed_contents.pop(content_of(call.request.body), None)
            else:
                if not reservation.is_judged:
                    self._judge_unended(call, one, reservation, now)
                reservation.settle(usage, now)
            line = self._gates.lines.get(gate.name)
            if line is not None and (line.waiters.busy or self._gates.names.callers):
                self._health.freed(gate.name)
        if call.key_cost is not None:
            used = usage if len(call.attempts) < 2 else usage_in_all(call.attempts, usage)
            self._keys.settle(call, used, self._clock.monotonic())

    def _judge_unended(self, call: Call, attempt: Attempt, reservation: Reservation, now: float) -> None:
        """Every attempt that ended by itself has been judged. Its client has left: mostly nobody's fault."""
        gate = reservation.gate
        if call.outcome != CLIENT_GONE or attempt.ended_at is not None:
            reservation.judge(CLIENT_GONE, now, 0.0)
            return
        usual = usual_of(gate.health.responsiveness.times(stream=call.request.stream, thinks=call.request.thinks))
        is_silent = is_deserted(
            now - attempt.answered_at, usual, thinks=call.request.thinks or gate.health.responsiveness.thinks
        )
        self._judge(call, reservation, ErrorClass.TIMEOUT if is_silent else CLIENT_GONE, now)

    def _judge(self, call: Call, reservation: Reservation, why: str | None, now: float) -> None:
        """Reports to the breakers how the attempt went, and the target's own what several callers have met."""
        health = reservation.gate.health
        if (
            why in UNHEALTHY
            # Before `is_clear`: the question itself counts the failure.
            and health.responsiveness.is_contents_own(content_of(call.request.body), call.seq, now)
            and health.is_clear
        ):
            why = CONTENTS_OWN
        reservation.judge(why, now, self._draw())
        if health.is_callers and why in UNHEALTHY:
            self._health.callers_failed(reservation.gate, str(why), now)

    def _blamed(
        self, call: Call, attempt: Attempt, reservation: Reservation, error_class: ErrorClass, now: float
    ) -> str:
        """Returns what the target is to blame for: not for a deadline that was shorter than its usual time."""
        if error_class is not ErrorClass.TIMEOUT:
            return error_class
        is_callers = call.request.deadline_is_callers and now >= call.request.deadline - _WATCH_GRAIN_S
        is_moved = is_moving(call)
        if not is_callers and not is_moved:
            return error_class
        health = reservation.gate.health
        unserved_s = health.responsiveness.unserved_s(now) if is_moved else 0.0
        usual = usual_of(health.responsiveness.times(stream=call.request.stream, thinks=call.request.thinks))
        thinks = call.request.thinks or health.responsiveness.thinks
        is_silent = is_evidence(now - attempt.answered_at, usual, thinks=thinks, unserved_s=unserved_s)
        return error_class if is_silent or health.is_probed or reservation.is_late(now) else CALLERS_DEADLINE


def _let_in(call: Call, reservation: Reservation, now: float) -> None:
    """The target has let the call in: whoever was refused before it may have been refused for a reason of his own."""
    pauses = reservation.gate.pauses
    refusals = pauses.refusals
    if refusals is None or not refusals.may_learn(call.seq, call.request.tenant):
        return
    if pauses.let_in(traits_of(call), reservation.epoch, now):
        reservation.gate.trust_rate(now)
