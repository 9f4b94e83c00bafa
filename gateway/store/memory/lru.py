"""An LRU of blobs by key that is bounded by the bytes it takes, and knows whose each entry is.

It must not know what is kept, nor read a clock. Invariants: what is counted never exceeds `bound` (after a lower one was set:
in bounded steps), and what is resident does not exceed what is counted; no step takes longer for more entries, but forgetting
takes as long as there are owners.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from resource import getpagesize

STEPS = 4096
"""So many entries go at most for one that is new, or seconds are looked at in one sweep."""
LET_GO = 1024
"""So many entries of a kind go in one sweep: some milliseconds."""
_ENTRY_BYTES = 600
"""Two nodes of an OrderedDict with their part of its tables, the key (80), the tuple (64 + 24), and a place in a set."""
_OWNER_BYTES = 600
_TRIMMED_SHARE = 0.125
"""So much of the bound is let go of before free memory is given back."""
_TRIMMED_BYTES = 4 * 1024 * 1024
"""But at least so much."""

Name = tuple[str, str]
"""Tenant and model."""
Lost = Callable[[float], None]


class OwnerShare:
    """The live entries of one name, in the order in which they came, and the bytes that they take."""

    __slots__ = ("bytes", "keys")

    def __init__(self) -> None:
        self.bytes = 0
        self.keys: OrderedDict[bytes, None] = OrderedDict()


class Lru:
    """Keys are digests; times are whatever the caller's clock says, in seconds."""

    __slots__ = (
        "_beside",
        "_entries",
        "_forgotten",
        "_freed",
        "_largest",
        "_lost",
        "_owners",
        "_seconds",
        "_share",
        "_swept",
        "bound",
        "entries",
        "taken",
    )

    def __init__(self, bound: int, lost: Lost | None = None, share: float = 1.0) -> None:
        """`bound` is in bytes; `lost` is told the `until` of each entry that goes because there is no room.

        Where several names have entries, one that has more than this share (above a half) makes room before the others do.
        """
        self.bound = bound
        self._share = share
        self._lost = lost
        self._swept = 0
        self._freed = 0
        """Bytes that were let go of since free memory was last given back."""
        self._beside = 0
        """Resident bytes that were none of the counted ones then."""
        self._start()

    def _start(self) -> None:
        """Begin with nothing: tables that were large once are given back."""
        # Plain tuples of a name and not of its Owner: the garbage collector stops looking at those after its first pass.
        self._entries: OrderedDict[bytes, tuple[bytes, float, Name]] = OrderedDict()
        self._owners: dict[Name, OwnerShare] = {}
        self._forgotten: deque[OwnerShare] = deque()
        self._seconds: dict[int, set[bytes]] = {}
        """The keys that run out within each second."""
        self._largest = OwnerShare()
        self.entries = 0
        """Those that can be given: the forgotten ones are not among them."""
        self.taken = 0
        """Bytes, the forgotten entries included until they have gone."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept, nor waits to be let go of."""
        return not self._entries and not self._forgotten

    def get(self, key: bytes, now: float, *, is_use: bool = True) -> bytes | None:
        """What is kept under this key, if its time is not over; `is_use`: it is now the last that would go."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        blob, until, name = entry
        if until < now or not self._is_live(key, name):
            self.drop(key)
            return None
        if is_use:
            self._entries.move_to_end(key)
        return blob

    def put(self, key: bytes, blob: bytes, until: float, name: Name = ("", "")) -> bool:
        """Keep it until then, instead of what was there, as one of those of this name. False: there is no room for it."""
        self.drop(key)
        second = int(until)
        if second < self._swept:
            return True  # its time is over
        cost = _cost_of(blob)
        if cost + _OWNER_BYTES > self.bound or (cost > self._share * self.bound and self._has_others(name)):
            return False  # though all else, or all else of this name, went for it
        for _ in range(STEPS):
            if self.taken + cost + (0 if name in self._owners else _OWNER_BYTES) <= self.bound:
                break
            if not self._evict(name, cost):
                return False
        else:
            return False
        owner = self._owners.get(name)
        if owner is None:
            owner = self._owners[name] = OwnerShare()
            self.taken += _OWNER_BYTES
        owner.keys[key] = None
        owner.bytes += cost
        if owner.bytes > self._largest.bytes:
            self._largest = owner
        self._entries[key] = blob, until, name
        self._seconds.setdefault(second, set()).add(key)
        self.taken += cost
        self.entries += 1
        return True

    def drop(self, key: bytes) -> bool:
        """Let go of one entry; False: there is none that could have been given."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        blob, until, name = entry
        cost = _cost_of(blob)
        self.taken -= cost
        self._freed += cost
        keys = self._seconds[int(until)]
        keys.discard(key)
        if not keys:
            del self._seconds[int(until)]
        if not self._is_live(key, name):
            return False
        owner = self._owners[name]
        del owner.keys[key]
        owner.bytes -= cost
        self.entries -= 1
        if not owner.keys:
            del self._owners[name]
            self.taken -= _OWNER_BYTES
        return True

    def name_of(self, key: bytes) -> Name | None:
        """Whose entry it is; None: there is none."""
        entry = self._entries.get(key)
        return None if entry is None or not self._is_live(key, entry[2]) else entry[2]

    def forget(self, matches: Callable[[Name], bool]) -> int:
        """Give none of these owners' entries any more; returns how many there were. They are let go of step by step."""
        gone = [self._owners.pop(name) for name in [*self._owners] if matches(name)]
        count = sum(len(owner.keys) for owner in gone)
        for owner in gone:
            owner.bytes = 0  # it is the largest no more
        self._forgotten.extend(gone)
        self.entries -= count
        return count

    def sweep(self, now: float) -> None:
        """Let go of some of what is over, forgotten or too much."""
        self._drop_past(int(now))
        for _ in range(LET_GO):
            if not self._drop_forgotten():
                break
        for _ in range(LET_GO):
            if self.taken <= self.bound or not self._evict(None, 0):
                break
        if self.is_empty:
            self._start()
        self._give_back()

    def _give_back(self) -> None:
        """Trim where it gains something, for it takes a tenth of a second for a gigabyte."""
        much = max(_TRIMMED_SHARE * self.bound, _TRIMMED_BYTES)
        if self._freed > much and _resident() - self.taken > self._beside + much / 2:
            self._freed = 0
            _trim()
            self._beside = _resident() - self.taken

    def _drop_past(self, now_s: int) -> None:
        if not 0 <= now_s - self._swept <= STEPS:  # at the start, or after the clock was set
            self._swept = min(now_s, *self._seconds) if self._seconds else now_s
        until_s, left = min(now_s, self._swept + STEPS), LET_GO
        while self._swept < until_s and left:
            if keys := self._seconds.get(self._swept):
                self.drop(keys.pop())
                left -= 1
            else:
                self._swept += 1

    def _drop_forgotten(self) -> bool:
        """Let go of one entry that was forgotten; False: there is none."""
        while self._forgotten:
            keys = self._forgotten[0].keys
            while keys:
                key = keys.popitem()[0]
                entry = self._entries.get(key)
                if entry is not None and not self._is_live(key, entry[2]):  # otherwise it was replaced meanwhile
                    self.drop(key)
                    return True
            self._forgotten.popleft()
            self.taken -= _OWNER_BYTES
        return False

    def _evict(self, name: Name | None, cost: int) -> bool:
        """Let go of the entry that is to make room for one of this name and cost; False: nothing is left to go."""
        if self._drop_forgotten():
            return True
        if not self._entries:
            return False
        first = next(iter(self._entries))
        if self._share < 1 and self._has_others(name):
            most = self._share * self.bound
            greedy = None if name is None else self._owners.get(name)
            if greedy is None or greedy.bytes + cost <= most:
                greedy = (
                    self._largest if self._largest.bytes > most else None
                )  # whoever has more than half is the largest
            if greedy is not None and greedy.keys:
                first = next(iter(greedy.keys))
        until = self._entries[first][1]
        self.drop(first)
        if self._lost is not None:
            self._lost(until)
        return True

    def _has_others(self, name: Name | None) -> bool:
        return len(self._owners) > (name in self._owners)

    def _is_live(self, key: bytes, name: Name) -> bool:
        """Whether an entry of this name can be given: its owner was not forgotten since it came."""
        owner = self._owners.get(name)
        return owner is not None and key in owner.keys


def _cost_of(blob: bytes) -> int:
    """Bytes in memory. malloc keeps up to one and a half times of what blobs of mixed sizes take, between and behind them."""
    return len(blob) + len(blob) // 2 + _ENTRY_BYTES


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def _trim() -> None:
    """Give the system what malloc keeps of blobs that have gone: where sizes change it would hold nearly all of it.

    Only glibc needs to be asked, and only it can be. See malloc_trim(3).
    """
    import ctypes  # only a process needs it whose cache is full

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
