"""The gates and lines of all targets, under the targets' stable names: a reload changes their numbers, not their state.

A wildcard target (`openai/*`) has a gate for each model name that is asked for. A target whose callers bring their own
credentials has one for each of these, beside its own: the provider counts and refuses by account, so a caller's limits, pauses,
spent quotas and breaker are nobody else's. How quick the target is all of them find out together, and its own breaker opens
where several of them fail. Idle gates of model names and callers are evicted, the longest unused first; a compact summary of
each outlives it. Invariants: strangers never share a gate, however many they are;
no name tells a credential; idle gates are bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from itertools import islice
from operator import itemgetter
from secrets import token_bytes

from gateway.core.admission.queue import DelayQueue, WaitingLine
from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.health.detector import Responsiveness, account_rules
from gateway.core.health.target_health import Account, OnChange, TargetHealth
from gateway.core.limits.target_limits import Gate, IdleGates
from gateway.core.openai.transcript import is_thinker
from gateway.core.ports import LimitSource
from gateway.core.snapshot import Model, PolicySnapshot, Target

# --- names of gates that are not in the config: of models that clients choose, of callers with accounts of their own ---


class GateName:
    """What is known of one name. `payer` stands for the caller whose account it is; None: it is a model's name.

    A caller's gate is named after a keyed hash of the credential.
    """

    __slots__ = ("base", "label", "looked_at", "payer")

    def __init__(self, label: str, base: str, payer: str | None, now: float) -> None:
        self.label = label
        """The target as the config names it."""
        self.base = base
        """The gate that it shares the target's health with; its own name if there is none."""
        self.payer = payer
        self.looked_at = now
        """When it was last found to be in use, or too good to go."""


class GateNames:
    """All such names, those that were looked at longest ago first."""

    __slots__ = ("_by_payer", "_known", "_salt", "callers")

    def __init__(self, salt: bytes) -> None:
        """`salt` keeps credentials from being guessed from names."""
        self._salt = salt
        self._known: OrderedDict[str, GateName] = OrderedDict()
        self._by_payer: dict[str, dict[str, None]] = {}
        self.callers: dict[str, dict[str, None]] = {}
        """The names of callers' own accounts, by the gate that they share the target's health with."""

    def __len__(self) -> int:
        return len(self._known)

    def label(self, name: str) -> str:
        """Returns the name of a gate or an account as the config knows it."""
        known = self._known.get(name)
        return name if known is None else known.label

    def base(self, name: str) -> str:
        """Returns the name of the gate that this one shares its target's health with; its own if there is none."""
        known = self._known.get(name)
        return name if known is None else known.base

    def is_named(self, name: str) -> bool:
        """Returns whether something of a client's is in the name: then it is no label for a metric."""
        return name in self._known

    def is_callers(self, name: str) -> bool:
        """Returns whether the gate is of one caller's own credential: no other process knows it by this name."""
        known = self._known.get(name)
        return known is not None and known.payer is not None

    def of_caller(self, base: str, credential: bytes) -> str:
        """Returns the name of a caller's own gate, beside the gate `base`."""
        return f"{base}@{blake2b(credential, key=self._salt, digest_size=16).hexdigest()}"

    def of_same_payer(self, name: str) -> Iterable[str]:
        """Returns the names of all gates of the caller whose own account pays at this one; of others none."""
        known = self._known.get(name)
        return () if known is None or known.payer is None else self._by_payer[known.payer]

    def newest(self, most: int) -> list[str]:
        """Returns the names that were made or looked at last."""
        return [*islice(reversed(self._known), max(0, most))]

    def oldest(self, most: int) -> list[tuple[str, GateName]]:
        """Returns the names that were looked at longest ago."""
        return [*islice(self._known.items(), most)]

    def add_model(self, name: str, label: str, now: float) -> None:
        """Notes a model name that a client has chosen, at a target that the config calls `label`."""
        self._known[name] = GateName(label, name, None, now)

    def add_caller(self, name: str, base: str, label: str, now: float) -> None:
        """Notes the name that `of_caller` gave."""
        payer = name[len(base) + 1 :]
        self._known[name] = GateName(label, base, payer, now)
        self.callers.setdefault(base, {})[name] = None
        self._by_payer.setdefault(payer, {})[name] = None

    def keep(self, name: str, now: float) -> None:
        """Notes that the name was looked at, and stays."""
        self._known[name].looked_at = now
        self._known.move_to_end(name)

    def drop(self, name: str) -> None:
        known = self._known.pop(name, None)
        if known is not None and known.payer is not None:
            _remove(self.callers, known.base, name)
            _remove(self._by_payer, known.payer, name)

    def configure(self, names: Collection[str]) -> None:
        """Notes that the config has these names from now on: callers' gates there are labelled with them."""
        for base in names & self.callers.keys():
            for caller in self.callers[base]:
                self._known[caller].label = base
        for name in names:
            self._known.pop(name, None)


def _remove(groups: dict[str, dict[str, None]], group: str, name: str) -> None:
    del groups[group][name]
    if not groups[group]:
        del groups[group]


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
