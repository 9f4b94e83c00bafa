"""Gates that come and go with clients: their names, and what is remembered of those that nobody uses.

First the names of gates that are not in the config (`GateNames`), then the summaries of idle gates (`IdleGates`). It must not
know gates. Invariants: no name tells a credential; the number of summaries is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Container, Iterable
from hashlib import blake2b
from itertools import islice
from math import inf
from struct import Struct
from typing import NamedTuple

from gateway.core.limits.limit_table import Used

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


# --- idle gates: the summaries of those that nobody uses ---

MOST_REMEMBERED = 100_000
"""The most gates of all targets together whose summaries are kept."""
_HEAD = Struct("<dffB")  # all times but the first are kept relative to it: four bytes tell 10 ms in a day
_USED = Struct("<Bff")
_KEY_BYTES = 8


class IdleGateState(NamedTuple):
    """All that is kept of one gate. Times are monotonic seconds."""

    at: float
    """When it was used no more."""
    paused_until: float
    exhausted_until: float
    refusals: int
    """The refusals in a row, without a success between; at most 255."""
    used: tuple[Used, ...] = ()


class IdleGates:
    """The summaries, by the names of gates; `salt` keeps anybody from aiming at the entry of another.

    A gate in use takes kilobytes; of a hundred thousand callers or model names that nobody has used for a while only a
    summary is kept, in at most 256 bytes each. The longest unused goes first, and begins anew when it comes back: nobody
    ever gets what belongs to another. Invariants: the number of entries is bounded; names, which may hold a client's words,
    are not kept.
    """

    __slots__ = ("_kept", "_most", "_quotas_void_before", "_salt", "_trusted_at")

    def __init__(self, salt: bytes, most: int = MOST_REMEMBERED) -> None:
        self._salt = salt
        self._most = most
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._quotas_void_before = -inf
        self._trusted_at: dict[str, float] = {}  # by label

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, name: str, kept: IdleGateState) -> None:
        """The gate of this name goes."""
        key = self._key(name)
        # The order is that of age: an entry that is put in anew becomes the youngest, and drops nobody else.
        self._kept.pop(key, None)
        if len(self._kept) >= self._most:
            self._kept.popitem(last=False)
        at = kept.at
        head = _HEAD.pack(at, kept.paused_until - at, kept.exhausted_until - at, min(kept.refusals, 255))
        self._kept[key] = head + b"".join([_USED.pack(one.limit, one.level, one.full_at - at) for one in kept.used])

    def take(self, name: str, label: str = "") -> IdleGateState | None:
        """Returns what was kept of the gate of this name, which is back, at a target of this label; None: nothing."""
        packed = self._kept.pop(self._key(name), None) if self._kept else None
        if packed is None:
            return None
        at, paused_s, exhausted_s, refusals = _HEAD.unpack_from(packed)
        if at <= self._trusted_at.get(label, -inf):
            return None
        exhausted_until = -inf if at < self._quotas_void_before else at + exhausted_s
        used = [Used(limit, level, at + full_s) for limit, level, full_s in _USED.iter_unpack(packed[_HEAD.size :])]
        return IdleGateState(at, at + paused_s, exhausted_until, refusals, tuple(used))

    def configure(self, labels: Container[str], now: float) -> None:
        """Notes that the config has these targets from now on. A quota that was spent before is tried again."""
        self._quotas_void_before = now
        self._trusted_at = {label: at for label, at in self._trusted_at.items() if label in labels}

    def trust(self, labels: Iterable[str], now: float) -> None:
        """Voids, by hand, what was kept of gates at these targets until now."""
        self._trusted_at.update(dict.fromkeys(labels, now))

    def _key(self, name: str) -> int:
        data = name.encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(data, key=self._salt, digest_size=_KEY_BYTES).digest(), "little")
