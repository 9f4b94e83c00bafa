"""The names of gates that are not in the config: of model names that clients choose, and of callers with accounts of their own.

A wildcard target has a gate for each model name, and a target whose callers bring their credentials one for each of these. A
caller's gate is named after a keyed hash of the credential. It must not know gates or lines. Invariant: no name tells a
credential, and strangers never share one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from hashlib import blake2b
from itertools import islice


class GateName:
    """What is known of one name. `payer` stands for the caller whose account it is; None: it is a model's name."""

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
        """Forgets the name."""
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
