"""The gates and lines of all targets, under the targets' stable names: a reload changes their numbers, not their state.

A wildcard target (`openai/*`) has a gate for each model name that is asked for. A target whose callers bring their own
credentials has one for each of these, beside its own: the provider counts and refuses by account, so a caller's limits, pauses
and spent quotas are nobody else's. How well the target is (breaker, times) all of them find out together. Of gates of names and
callers that nobody uses any more the longest unused go, and what is to be known of them is remembered, packed, for longer than
they are. Invariants: strangers never share a gate, however many they are; no name tells a credential; idle gates are bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import islice
from math import inf
from operator import itemgetter
from secrets import token_bytes

from gateway.call import Call
from gateway.clock import Clock
from gateway.flow.admission.held import Line
from gateway.flow.admission.queue import DelayQueue
from gateway.flow.fleet.leases import Sharing
from gateway.policy.health.rules import account_rules
from gateway.policy.health.signs_of_life import Heard
from gateway.policy.health.target_health import Account, OnChange, TargetHealth
from gateway.policy.limits.gate import Gate
from gateway.policy.limits.idle_gates import Remembered
from gateway.policy.openai.thinking import is_thinker
from gateway.policy.snapshot import Model, PolicySnapshot, Target

MOST_NAMED = 1024
"""So many model names and callers have gates of their own while nobody uses them; those in use are not counted."""
MOST_SHOWN = 1000
_LOOKS = 8  # at gates that may be forgotten, for each new one


class _Name:
    """What is known of a name that is not in the config. `payer` tells one caller's own account; None: it is a model's name."""

    __slots__ = ("base", "label", "looked_at", "payer")

    def __init__(self, label: str, base: str, payer: str | None, now: float) -> None:
        self.label = label
        """The target as the config names it."""
        self.base = base
        """The gate that it shares the target's health with; its own name if there is none."""
        self.payer = payer
        self.looked_at = now


class Gates:
    """Finds the line of a target."""

    __slots__ = (
        "_by_caller",
        "_by_payer",
        "_clock",
        "_keyless",
        "_named",
        "_queue",
        "_quotas_void_before",
        "_remembered",
        "_salt",
        "_sharing",
        "_thinkers",
        "_trusted_at",
        "accounts",
        "callers",
        "lines",
        "on_change",
        "on_open",
    )

    def __init__(
        self,
        clock: Clock,
        queue: DelayQueue,
        sharing: Sharing | None = None,
    ) -> None:
        """With `sharing` replicas share the limits. It has no gates before the first `install`."""
        self._clock = clock
        self.on_change: OnChange | None = None
        """Told of every change of a breaker; to be set before the first `install`."""
        self.accounts: dict[str, Account] = {}
        """Of the config's own credentials, by name."""
        self._keyless: dict[str, Account] = {}  # of callers' own, by provider: nothing is ever said of it
        self._queue = queue
        self._sharing = sharing
        self._named: OrderedDict[str, _Name] = OrderedDict()
        self.callers: dict[str, dict[str, Line]] = {}
        """Those of callers' own accounts, by the gate that they share the target's health with."""
        self._by_payer: dict[str, dict[str, Line]] = {}  # the lines of each caller's own account, wherever they lead
        self._by_caller: set[str] = set()
        self._thinkers: set[str] = set()
        self._salt = token_bytes(16)  # credentials are not to be guessed from the names of gates
        self._remembered = Remembered(self._salt)
        self._quotas_void_before = -inf
        self._trusted_at: dict[str, float] = {}  # by label: whatever was remembered before is over
        self.lines: dict[str, Line] = {}
        """By the name of the gate."""
        self.on_open: Callable[[Line], None] | None = None
        """Told of each line that is made from now on."""

    def install(self, policy: PolicySnapshot) -> None:
        """Puts a policy's numbers in force. What it does not name is forgotten, unless somebody still uses it."""
        targets = {target.name: target for model in _models(policy) for target in (*model.plan, *model.context_plan)}
        self._thinkers = {
            target.name for model in _models(policy) for target in (*model.plan, *model.context_plan) if target.thinks
        }
        self._by_caller = {name for name, target in targets.items() if _is_callers_own(target, policy)}
        self._quotas_void_before = self._clock.monotonic()
        self._trusted_at = {label: at for label, at in self._trusted_at.items() if label in targets}
        for name in targets.keys() & self.callers.keys():  # a model's name that the config knows by now
            for caller in self.callers[name]:
                self._named[caller].label = name
        for name in reversed([*self.lines]):  # callers' before what they share
            label = self.label(name)
            if label not in targets:
                self._forget(name)
            elif label != name:
                self._configure(self.lines[name], targets[label])
        for name, target in targets.items():
            self._named.pop(name, None)
            self._open(name, target)

    def line(self, target: Target, call: Call) -> Line:
        """The line of a target; of a wildcard, the one for the model that the call names."""
        name = target.name if target.model is not None else f"{target.provider}/{call.model_name}"
        if call.credential is not None and target.name in self._by_caller and target.name not in call.model.withheld:
            return self._line_of_caller(name, target, call.credential)
        line = self.lines.get(name)
        if line is not None:
            return line
        # An earlier policy's target lives on as long as its calls.
        return self._open(name, target) if name == target.name else self._open_named(name, target)

    def heard(self, target: Target, call: Call) -> Heard | None:
        """What all callers together have heard of where `line` would lead; None: nothing yet. Makes no gate."""
        line = self.lines.get(target.name if target.model is not None else f"{target.provider}/{call.model_name}")
        return None if line is None else line.gate.vitals.heard

    def label(self, name: str) -> str:
        """The name of a gate or an account as the config knows it."""
        known = self._named.get(name)
        return name if known is None else known.label

    def is_named(self, name: str) -> bool:
        """Whether something of a client's is in the name: then it is no label for a metric."""
        return name in self._named

    def is_callers(self, name: str) -> bool:
        """Whether the gate is of one caller's own credential: no other process knows it by this name."""
        known = self._named.get(name)
        return known is not None and known.payer is not None

    def kin(self, name: str) -> list[Line]:
        """The lines that share a breaker with this gate, its own among them."""
        known = self._named.get(name)
        base = name if known is None else known.base
        line = self.lines.get(base)
        return [] if line is None else [line, *self.callers.get(base, {}).values()]

    def meant(self, name: str) -> list[Line]:
        """Those that a person means by the name: a gate's or a target's, with all their models and callers."""
        lines = [line for key, line in self.lines.items() if name in (key, self.label(key))]
        found = {one.gate.name: one for line in lines for one in (line, *self.callers.get(line.gate.name, {}).values())}
        return [*found.values()]

    def pays(self, gate: Gate) -> bool:
        """Whether it is one of the config's own accounts that pays there."""
        account = gate.vitals.account
        return self.accounts.get(account.name) is account

    def shown(self) -> list[tuple[str, Line]]:
        """The lines that people are shown, in order of their names: all of the config's, and as many others as one reads."""
        own = [item for item in self.lines.items() if item[0] not in self._named]
        named = [(name, self.lines[name]) for name in islice(reversed(self._named), max(0, MOST_SHOWN - len(own)))]
        return sorted(own + named, key=itemgetter(0))

    def of_account(self, account: Account) -> list[Line]:
        """The lines of all targets that this account pays for."""
        return [line for line in self.lines.values() if line.gate.vitals.account is account]

    def of_payer(self, gate: Gate) -> list[Line]:
        """The lines of the caller whose own account pays at this gate, at the same provider; of strangers none."""
        known = self._named.get(gate.name)
        if known is None or known.payer is None:
            return []
        account = gate.vitals.account
        return [line for line in self._by_payer[known.payer].values() if line.gate.vitals.account is account]

    def trust(self, lines: Iterable[Line]) -> None:
        """By hand: what was remembered of gates of these targets before is over."""
        now = self._clock.monotonic()
        self._trusted_at.update({self.label(line.gate.name): now for line in lines})

    def _line_of_caller(self, base: str, target: Target, credential: bytes) -> Line:
        payer = blake2b(credential, key=self._salt, digest_size=16).hexdigest()
        name = f"{base}@{payer}"
        line = self.lines.get(name)
        if line is not None:
            return line
        self._make_room()
        if base not in self.lines:
            if base == target.name:
                self._open(base, target)
            else:
                self._open_named(base, target)
        known = self._named.get(base)
        label = target.name if known is None else known.label
        self._named[name] = _Name(label, base, payer, self._clock.monotonic())
        line = self._open(name, target, self.lines[base].gate)
        self.callers.setdefault(base, {})[name] = line
        self._by_payer.setdefault(payer, {})[name] = line
        return line

    def _open_named(self, name: str, target: Target) -> Line:
        self._make_room()
        self._named[name] = _Name(target.name, name, None, self._clock.monotonic())
        return self._open(name, target)

    def _open(self, name: str, target: Target, kin: Gate | None = None) -> Line:
        line = self.lines.get(name)
        if line is not None:
            self._configure(line, target)
            return line
        now = self._clock.monotonic()
        account = self._account(target, now)
        vitals = TargetHealth(name, account, target.breaker, now, self.on_change, None if kin is None else kin.vitals)
        # A caller's own account has a name that no other replica knows.
        share_out = None if self._sharing is None or kin is not None else self._sharing.of_target(name)
        calibration = None if kin is None else kin.calibration
        gate = Gate(name, target.limits, target.counting, now, vitals, share_out, calibration)
        line = self.lines[name] = self._queue.line(gate)
        self._recall(gate, now)
        if kin is None:
            self._inherit(line, target, now)
            self._tell_thinks(line, target)
        if self.on_open is not None:
            self.on_open(line)
        return line

    def _configure(self, line: Line, target: Target) -> None:
        now = self._clock.monotonic()
        line.gate.configure(target.limits, target.counting, now)
        line.gate.vitals.breaker.configure(target.breaker, now)
        line.gate.vitals.account.breaker.configure(account_rules(target.breaker), now)
        if not self.is_callers(line.gate.name):
            self._tell_thinks(line, target)

    def _tell_thinks(self, line: Line, target: Target) -> None:
        """Whether its model thinks; of a wildcard, by the name that the client has chosen."""
        asked = line.gate.name if target.model is None else ""
        line.gate.vitals.heard.thinks = target.name in self._thinkers or is_thinker(asked)

    def _recall(self, gate: Gate, now: float) -> None:
        """It was used before."""
        kept = self._remembered.take(gate.name)
        if kept is not None and kept.at > self._trusted_at.get(self.label(gate.name), -inf):
            if kept.at < self._quotas_void_before:
                kept = kept._replace(exhausted_until=-inf)
            gate.remember(kept, now)

    def _inherit(self, line: Line, target: Target, now: float) -> None:
        """What was set by hand for a target holds for every name and caller of it."""
        parent = self.lines.get(target.name)
        if parent is not None and parent is not line and parent.gate.vitals.breaker.is_by_hand:
            state = parent.gate.vitals.breaker.state
            line.gate.vitals.breaker.force("drained" if state == "drained" else "open", now)

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
        if len(self._named) < MOST_NAMED:
            return
        for name, known in [*islice(self._named.items(), _LOOKS)]:
            if len(self._named) < MOST_NAMED:
                return
            gate = self.lines[name].gate
            breaker = gate.vitals.breaker
            is_ill = known.payer is None and not breaker.is_clear and len(self._named) < 2 * MOST_NAMED
            if is_ill or gate.used_at > known.looked_at or not self._forget(name):
                known.looked_at = self._clock.monotonic()
                self._named.move_to_end(name)

    def _forget(self, name: str) -> bool:
        """Unless somebody waits or runs there, it shares its health with others, or was set by hand."""
        line = self.lines[name]
        gate = line.gate
        breaker = gate.vitals.breaker
        is_callers = self.is_callers(name)
        if len(line.lineup) or line.wanted or gate.in_flight or name in self.callers:
            return False
        if not is_callers and (breaker.is_by_hand if self.is_named(name) else not breaker.is_clear):
            return False
        kept = gate.kept(self._clock.monotonic())
        if kept is not None:
            self._remembered.keep(name, kept)
        del self.lines[name]
        known = self._named.pop(name, None)
        self._queue.drop_line(name)
        gate.limits.retire()
        if known is None or known.payer is None:
            breaker.retire()
        else:
            callers = self.callers[known.base]
            del callers[name]
            if not callers:
                del self.callers[known.base]
            own = self._by_payer[known.payer]
            del own[name]
            if not own:
                del self._by_payer[known.payer]
        return True


def _is_callers_own(target: Target, policy: PolicySnapshot) -> bool:
    """Whether each caller brings an account of his own, and it is the accounts that are limited."""
    provider = policy.providers.get(target.provider)
    return provider is not None and provider.api_key is None and provider.limits_are == "account"


def _models(policy: PolicySnapshot) -> Iterable[Model]:
    yield from policy.models.values()
    for _, model in policy.patterns:
        yield model
