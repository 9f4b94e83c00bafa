"""What is kept of gates that nobody has used for a while: until when they are left alone, and what of their limits is used up.

A gate in use takes kilobytes; of a hundred thousand callers or model names only this is kept, in at most 256 bytes each. The
longest unused goes first, and begins anew when it comes back: nobody ever gets what belongs to another. Invariants: the number
of entries is bounded; names, which may hold a client's words, are not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable
from hashlib import blake2b
from math import inf
from struct import Struct
from typing import NamedTuple

MOST_REMEMBERED = 100_000
"""So many gates, of all targets together."""
_HEAD = Struct("<dffB")  # all times but the first are kept relative to it: four bytes tell 10 ms in a day
_USED = Struct("<Bff")
_KEY_BYTES = 8


class Used(NamedTuple):
    """Some of a limit is used up: which limit, what is left of it, and when all of it is there again (monotonic seconds)."""

    limit: int
    level: float
    full_at: float


class IdleGateState(NamedTuple):
    """All that is kept of one gate. Times are monotonic seconds."""

    at: float
    """When it was used no more."""
    paused_until: float
    exhausted_until: float
    refusals: int
    """In a row, without a success between; at most 255."""
    used: tuple[Used, ...] = ()


class Remembered:
    """By the names of gates; `salt` keeps anybody from aiming at the entry of another."""

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
