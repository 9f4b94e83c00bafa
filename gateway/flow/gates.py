"""The gates and lines of all targets, under the targets' stable names: a reload changes their numbers, not their state.

A wildcard target (`openai/*`) has a gate for each model name that is asked for, and a target whose callers bring their own
credentials has one for each of these, because that is how providers count; their number is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from hashlib import blake2b
from secrets import token_bytes

from gateway.call import Call
from gateway.clock import Clock
from gateway.flow.delayqueue import DelayQueue, Line
from gateway.flow.sharing import Sharing
from gateway.policy.breaker import account_rules
from gateway.policy.gate import Gate
from gateway.policy.snapshot import Limits, Model, PolicySnapshot, Target
from gateway.policy.vitals import Account, OnChange, Vitals

MOST_NAMED = 1024
"""So many model names and callers have gates of their own; more share that of their target."""


_OF_CALLER = re.compile("@[0-9a-f]{8}$")


class Gates:
    """Finds the line of a target."""

    __slots__ = (
        "_by_caller",
        "_clock",
        "_named",
        "_on_change",
        "_queue",
        "_salt",
        "_sharing",
        "accounts",
        "lines",
        "on_open",
    )

    def __init__(
        self,
        clock: Clock,
        queue: DelayQueue,
        policy: PolicySnapshot,
        on_change: OnChange | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        """`on_change` is told of every change of a breaker; with `sharing` replicas share the limits."""
        self._clock = clock
        self._on_change = on_change
        self.accounts: dict[str, Account] = {}
        """Of the config's own credentials, by name."""
        self._queue = queue
        self._sharing = sharing
        self._named: dict[str, str] = {}
        self._by_caller: set[str] = set()
        self._salt = token_bytes(16)  # credentials are not to be guessed from the names of gates
        self.lines: dict[str, Line] = {}
        """By the name of the gate."""
        self.on_open: Callable[[Line], None] | None = None
        """Told of each line that is made from now on."""
        self.install(policy)

    def install(self, policy: PolicySnapshot) -> None:
        """Puts a policy's numbers in force. What it does not name is forgotten, unless somebody still uses it."""
        targets = {target.name: target for model in _models(policy) for target in (*model.plan, *model.context_plan)}
        self._by_caller = {name for name, target in targets.items() if _is_callers_own(target, policy)}
        for name in [*self.lines]:
            named_by = self._named.get(name, name)
            if named_by not in targets:
                self._forget(name)
            elif named_by != name:
                self._open(name, targets[named_by])
        for name, target in targets.items():
            self._named.pop(name, None)
            self._open(name, target)

    def line(self, target: Target, call: Call) -> Line:
        """The line of a target; of a wildcard, the one for the model that the call names."""
        name = target.name if target.model is not None else f"{target.provider}/{call.model_name}"
        if call.credential is not None and target.name in self._by_caller:
            name += "@" + blake2b(call.credential, key=self._salt, digest_size=4).hexdigest()
        line = self.lines.get(name)
        if line is not None:
            return line
        # An earlier policy's target lives on as long as its calls.
        return self._open(name, target) if name == target.name else self._open_named(name, target)

    def label(self, name: str) -> str:
        """The name of a gate or an account as the config knows it."""
        return self._named.get(name, name)

    def is_named(self, name: str) -> bool:
        """Whether something of a client's is in the name: then it is no label for a metric."""
        return name in self._named

    def is_callers(self, name: str) -> bool:
        """Whether the gate is of one caller's own credential: no other process knows it by this name."""
        return name in self._named and _OF_CALLER.search(name) is not None

    def _open_named(self, name: str, target: Target) -> Line:
        if len(self._named) >= MOST_NAMED:
            self._forget_longest_unused()
        if len(self._named) >= MOST_NAMED:
            return self.lines.get(target.name) or self._open(target.name, target)
        self._named[name] = target.name
        return self._open(name, target)

    def _open(self, name: str, target: Target) -> Line:
        line = self.lines.get(name)
        now = self._clock.monotonic()
        if line is None:
            vitals = Vitals(name, self._account(name, target, now), target.breaker, now, self._on_change)
            # A caller's own account has a name that no other replica knows.
            share_out = None if self._sharing is None or self.is_callers(name) else self._sharing.of_target(name)
            gate = Gate(name, target.limits, target.counting, now, vitals, share_out)
            line = self.lines[name] = self._queue.line(gate)
            self._inherit(line, target, now)
            if self.on_open is not None:
                self.on_open(line)
        else:
            line.gate.configure(target.limits, target.counting, now)
            line.gate.vitals.breaker.configure(target.breaker, now)
            line.gate.vitals.account.breaker.configure(account_rules(target.breaker), now)
        return line

    def _inherit(self, line: Line, target: Target, now: float) -> None:
        """What was set by hand for a target holds for every name and caller of it."""
        parent = self.lines.get(target.name)
        if parent is not None and parent is not line and parent.gate.vitals.breaker.is_by_hand:
            state = parent.gate.vitals.breaker.state
            line.gate.vitals.breaker.force("drained" if state == "drained" else "open", now)

    def _account(self, name: str, target: Target, now: float) -> Account:
        """The account that pays; a caller's own is nobody else's business."""
        if not target.account:
            return Account(f"caller of {name}", target.breaker, now)
        account = self.accounts.get(target.account)
        if account is None:
            account = self.accounts[target.account] = Account(target.account, target.breaker, now, self._on_change)
        return account

    def of_account(self, account: Account) -> list[Line]:
        """The lines of all targets that this account pays for."""
        return [line for line in self.lines.values() if line.gate.vitals.account is account]

    def _forget_longest_unused(self) -> None:
        """Of the idle ones; what was learned about those in use stays."""
        unused = sorted(self._named, key=lambda name: self.lines[name].gate.used_at)
        for name in unused[: max(1, MOST_NAMED // 16)]:
            self._forget(name)

    def _forget(self, name: str) -> None:
        """Unless somebody waits or runs there, or it is to be left alone for a while."""
        line = self.lines[name]
        if (
            not len(line.lineup)
            and not line.wanted
            and not line.gate.in_flight
            and line.gate.paused_until <= self._clock.monotonic()
            and line.gate.vitals.breaker.is_clear
        ):
            del self.lines[name]
            self._named.pop(name, None)
            self._queue.drop_line(name)


def _is_callers_own(target: Target, policy: PolicySnapshot) -> bool:
    """Whether each caller brings an account of his own. What the operator has limited is one server's, or one account's."""
    provider = policy.providers.get(target.provider)
    is_keyless = provider is not None and provider.api_key is None
    return is_keyless and target.limits == Limits() and not target.counting.adaptive


def _models(policy: PolicySnapshot) -> Iterable[Model]:
    yield from policy.models.values()
    for _, model in policy.patterns:
        yield model
