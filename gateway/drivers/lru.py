"""An LRU of blobs by key that is bounded by the memory it takes, and knows the owner of each entry.

It must not know what the blobs are, nor read a clock. Invariants: the counted bytes never exceed `bound` (after it was
lowered: after some sweeps), and the resident ones never exceed the counted; no step takes longer for more entries, except
that forgetting takes as long as there are owners.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from gateway.process import find_trim, resident_bytes

STEPS = 4096
"""Entries that are evicted for a new one, and seconds that one sweep examines, at most."""
LET_GO = 1024
"""Entries of a kind (expired, forgotten, above the bound) that one sweep drops, at most: some milliseconds."""
_ENTRY_BYTES = 600
"""Bytes of an entry besides its blob: two nodes of an OrderedDict, the key (80), the tuple (64 + 24), a place in a set."""
_OWNER_BYTES = 600
_TRIMMED_SHARE = 0.125
"""The fraction of the bound that has to be freed before free memory is given back to the system."""
_TRIMMED_BYTES = 4 * 1024 * 1024
"""The least number of freed bytes before that."""

Name = tuple[str, str]
"""Tenant and model."""
Lost = Callable[[float], None]


class OwnerShare:
    """The keys of one owner's live entries in the order of arrival, and their bytes."""

    __slots__ = ("bytes", "keys")

    def __init__(self) -> None:
        self.bytes = 0
        self.keys: OrderedDict[bytes, None] = OrderedDict()


class Lru:
    """A bounded LRU; keys are digests, and times are seconds by the caller's clock."""

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
        """`bound` is in bytes; `lost` is called with the `until` of each entry that is evicted for want of room.

        Where several owners have entries, one with more than `share` of the bound (above a half) is evicted first.
        """
        self.bound = bound
        self._share = share
        self._lost = lost
        self._swept = 0
        self._freed = 0
        """Bytes freed since memory was last given back to the system."""
        self._beside = 0
        """Resident bytes beyond the counted ones at that time."""
        self._reset()

    def _reset(self) -> None:
        """Makes new, empty tables, so that large old ones are freed."""
        # Tuples of plain values, without the OwnerShare: the garbage collector untracks those after its first pass.
        self._entries: OrderedDict[bytes, tuple[bytes, float, Name]] = OrderedDict()
        self._owners: dict[Name, OwnerShare] = {}
        self._forgotten: deque[OwnerShare] = deque()
        self._seconds: dict[int, set[bytes]] = {}
        """The keys that expire within each second."""
        self._largest = OwnerShare()
        self.entries = 0
        """The number of live entries, without the forgotten ones."""
        self.taken = 0
        """The counted bytes, those of forgotten entries included until they are dropped."""

    @property
    def is_empty(self) -> bool:
        """Returns whether there are no entries, forgotten ones included."""
        return not self._entries and not self._forgotten

    def get(self, key: bytes, now: float, *, is_use: bool = True) -> bytes | None:
        """Returns the blob unless it is expired or forgotten; `is_use` makes it the most recently used."""
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
        """Keeps the blob in place of an earlier one; returns False when there is no room for it."""
        self.drop(key)
        second = int(until)
        if second < self._swept:
            return True  # it is expired already
        cost = _cost_of(blob)
        if cost + _OWNER_BYTES > self.bound or (cost > self._share * self.bound and self._has_others(name)):
            return False  # even evicting all other entries, or all others of this owner, would not make room
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
        """Drops one entry; returns whether it was live."""
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
        """Returns the owner of a live entry, else None."""
        entry = self._entries.get(key)
        return None if entry is None or not self._is_live(key, entry[2]) else entry[2]

    def forget(self, matches: Callable[[Name], bool]) -> int:
        """Forgets the entries of all matching owners at once and returns their number; later sweeps free their memory."""
        gone = [self._owners.pop(name) for name in [*self._owners] if matches(name)]
        count = sum(len(owner.keys) for owner in gone)
        for owner in gone:
            owner.bytes = 0  # so that it does not count as the largest any more
        self._forgotten.extend(gone)
        self.entries -= count
        return count

    def sweep(self, now: float) -> None:
        """Drops some entries that are expired, forgotten or above the bound, and gives free memory back."""
        now_s = int(now)
        if not 0 <= now_s - self._swept <= STEPS:  # at the start, or after the clock jumped
            self._swept = min(now_s, *self._seconds) if self._seconds else now_s
        until_s, left = min(now_s, self._swept + STEPS), LET_GO
        while self._swept < until_s and left:
            if keys := self._seconds.get(self._swept):
                self.drop(keys.pop())
                left -= 1
            else:
                self._swept += 1
        for _ in range(LET_GO):
            if not self._drop_forgotten():
                break
        for _ in range(LET_GO):
            if self.taken <= self.bound or not self._evict(None, 0):
                break
        if self.is_empty:
            self._reset()
        self._give_back()

    def _give_back(self) -> None:
        """Gives free memory back to the system where that gains enough: it takes 0.1 s for a gigabyte."""
        much = max(_TRIMMED_SHARE * self.bound, _TRIMMED_BYTES)
        if self._freed > much and (resident_bytes() or 0) - self.taken > self._beside + much / 2:
            self._freed = 0
            if (trim := find_trim()) is not None:
                trim()
            self._beside = (resident_bytes() or 0) - self.taken

    def _drop_forgotten(self) -> bool:
        """Drops one forgotten entry; returns False when there is none."""
        while self._forgotten:
            keys = self._forgotten[0].keys
            while keys:
                key = keys.popitem()[0]
                entry = self._entries.get(key)
                if entry is not None and not self._is_live(key, entry[2]):  # a live one replaced it meanwhile
                    self.drop(key)
                    return True
            self._forgotten.popleft()
            self.taken -= _OWNER_BYTES
        return False

    def _evict(self, name: Name | None, cost: int) -> bool:
        """Drops the entry that makes room for one of this owner and cost; returns False when no entry is left."""
        if self._drop_forgotten():
            return True
        if not self._entries:
            return False
        first = next(iter(self._entries))
        if self._share < 1 and self._has_others(name):
            most = self._share * self.bound
            larger = None if name is None else self._owners.get(name)
            if larger is None or larger.bytes + cost <= most:
                # Only the largest owner can have more than half of the bound.
                larger = self._largest if self._largest.bytes > most else None
            if larger is not None and larger.keys:
                first = next(iter(larger.keys))
        until = self._entries[first][1]
        self.drop(first)
        if self._lost is not None:
            self._lost(until)
        return True

    def _has_others(self, name: Name | None) -> bool:
        return len(self._owners) > (name in self._owners)

    def _is_live(self, key: bytes, name: Name) -> bool:
        """Returns whether the owner of the entry was not forgotten since the entry came."""
        owner = self._owners.get(name)
        return owner is not None and key in owner.keys


def _cost_of(blob: bytes) -> int:
    """Returns the bytes that an entry counts; for blobs of mixed sizes malloc keeps up to 1.5 times their length."""
    return len(blob) + len(blob) // 2 + _ENTRY_BYTES
