"""A shelf: blobs by key, as many as fit into a number of bytes, in the order of their use.

An entry is a number, its slot, and what is known of it stands in arrays: a million entries are little work for the garbage
collector, and no table is ever so large that its growth is felt. It must not know what is kept, nor read a clock.
Invariants: all of it together takes no more than `bound` (after a lower one was set: in bounded steps); every step is O(1).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from sys import getsizeof

from gateway.store.memory_pages import LARGE, Pages

STEPS = 4096
"""So many entries are looked at in one go, or go for one that is new."""
LET_GO = 1024
"""So many go in one go when it is for no new one: some milliseconds."""
_GIVEN_BACK = 16
"""So many segments are vacated in one go."""
_SPARE_SHARE = 0.125
"""Of the memory taken: so much may be free before it is given back."""
_BATCH = 64
"""Slots are added in batches."""
_SLOT_BYTES = 168
"""The key and its number (80 + 32), two references, eight numbers of 4 bytes, and what arrays reserve."""
_OWNER_BYTES = 600
_TABLE_BYTES = 4 * 1024 * 1024
"""There is a table of keys for about so many bytes of the bound: its growth is to take microseconds."""
_MOST_TABLES = 12
"""As a power of two."""

Name = tuple[str, str]
Lost = Callable[[float], None]


class Rings:
    """Numbers in rings: each has a neighbour on either side, itself when it is alone."""

    __slots__ = ("after", "before")

    def __init__(self) -> None:
        self.after = array("I")
        self.before = array("I")

    def grow(self, count: int) -> None:
        """So many numbers more, each alone."""
        start = len(self.after)
        alone = array("I", range(start, start + count))
        self.after.extend(alone)
        self.before.extend(alone)

    def join(self, one: int, other: int) -> None:
        """Put a number that is alone before the other: at the end of the ring that begins there."""
        last = self.before[other]
        self.after[last] = self.before[other] = one
        self.before[one], self.after[one] = last, other

    def leave(self, one: int) -> None:
        """Let a number be alone."""
        before, after = self.before[one], self.after[one]
        self.after[before], self.before[after] = after, before
        self.after[one] = self.before[one] = one


class Owner:
    """Whose entries can be forgotten together: how many there are, and one of them."""

    __slots__ = ("count", "is_forgotten", "name", "slot")

    def __init__(self, name: Name, slot: int) -> None:
        self.name = name
        self.slot = slot
        self.count = 0
        self.is_forgotten = False


class Shelf:
    """Keys are 32 bytes of a digest; times are whatever the caller's clock says."""

    __slots__ = (
        "_cursor",
        "_first",
        "_forgotten",
        "_free",
        "_index_bytes",
        "_keys",
        "_kin",
        "_lost",
        "_nobody",
        "_owner_of",
        "_owners",
        "_pages",
        "_size",
        "_tables",
        "_until",
        "_use",
        "bound",
        "entries",
    )

    def __init__(self, bound: int, lost: Lost | None = None) -> None:
        """`bound` is in bytes; `lost` is told the `until` of each entry that goes because there is no room."""
        self.bound = bound
        self._lost = lost
        self._start()

    def _start(self) -> None:
        """With nothing on it."""
        self.entries = 0
        """Those that were forgotten not among them."""
        self._tables: list[dict[bytes, int]] = [{} for _ in range(tables_for(self.bound))]
        self._index_bytes = 0
        self._pages = Pages(self.bound)
        self._keys = [b""]  # of a free slot: empty; slot 0 is where the ring of use begins and ends
        self._nobody = Owner(("", ""), 0)
        self._nobody.is_forgotten = True
        self._owner_of = [self._nobody]
        self._first, self._size, self._until = array("I", [0]), array("I", [0]), array("d", [0.0])
        self._use, self._kin = Rings(), Rings()
        self._use.grow(1)
        self._kin.grow(1)
        self._free = array("I")
        self._owners: dict[Name, Owner] = {}
        self._forgotten: deque[Owner] = deque()
        self._cursor = 0

    @property
    def taken(self) -> float:
        """What it takes in memory, in bytes."""
        return self._pages.taken + self._index_bytes

    def get(self, key: bytes, now: float, *, is_use: bool = True) -> bytes | None:
        """What is kept under this key, if its time is not over; `is_use`: it is now the last that would go."""
        slot = self._table(key).get(key)
        if slot is None:
            return None
        if self._until[slot] < now or self._owner_of[slot].is_forgotten:
            self._drop(slot)
            return None
        if is_use:
            self._use.leave(slot)
            self._use.join(slot, 0)
        return self._pages.read(slot, self._first[slot], self._size[slot])

    def put(self, key: bytes, blob: bytes, until: float, name: Name = ("", "")) -> bool:
        """Keep it until then, instead of what was there, as one of those of this name. False: there is no room for it."""
        self.drop(key)
        if not self._make_room(len(blob)):
            return False
        slot = self._free.pop()
        try:
            self._first[slot] = self._pages.write(slot, blob)
        except OSError:  # the system has no memory for it
            self._free.append(slot)
            return False
        self._size[slot], self._until[slot], self._keys[slot] = len(blob), until, key
        self._list(key, slot)
        self._use.join(slot, 0)
        self._adopt(slot, name)
        self.entries += 1
        while self.taken > self.bound and self._shrink(0):
            pass  # a table of keys has grown
        return self._keys[slot] is key

    def drop(self, key: bytes) -> bool:
        """Let go of one entry; False: there is none."""
        slot = self._table(key).get(key)
        if slot is None:
            return False
        is_forgotten = self._owner_of[slot].is_forgotten
        self._drop(slot)
        return not is_forgotten

    def name_of(self, key: bytes) -> Name | None:
        """Whose entry it is; None: there is none."""
        slot = self._table(key).get(key)
        owner = self._nobody if slot is None else self._owner_of[slot]
        return None if owner.is_forgotten else owner.name

    def forget(self, matches: Callable[[Name], bool]) -> int:
        """Give none of these owners' entries any more; returns how many there were. They are let go of step by step."""
        gone = [owner for owner in self._owners.values() if matches(owner.name)]
        for owner in gone:
            owner.is_forgotten = True
            del self._owners[owner.name]
            self._forgotten.append(owner)
            self.entries -= owner.count
        return sum(owner.count for owner in gone)

    def sweep(self, now: float) -> None:
        """Let go of some of what is over, forgotten or too much, and of memory that is not needed for now."""
        self._sweep_past(now)
        for _ in range(LET_GO):
            if (owner := self._next_forgotten()) is None:
                break
            self._drop(owner.slot)
        for _ in range(LET_GO):
            if self.taken <= self.bound or not self._shrink(self.taken - self.bound):
                break
        for _ in range(_GIVEN_BACK):
            if not self._pages.has_spare(_SPARE_SHARE):
                break
            self._pages.vacate(self._move)
        if self.is_empty and len(self._keys) > 1:
            self._start()

    @property
    def is_empty(self) -> bool:
        """Nothing is on it, nor waits to be let go of."""
        return self._use.after[0] == 0

    def _sweep_past(self, now: float) -> None:
        """Look at some entries, and let go of those whose time is over."""
        start, self._cursor = self._cursor, min(self._cursor + STEPS, len(self._keys))
        past = [slot for slot in range(start, self._cursor) if self._until[slot] < now and self._keys[slot]]
        for slot in past[:LET_GO]:
            self._drop(slot)
        if len(past) > LET_GO:
            self._cursor = past[LET_GO]
        elif self._cursor == len(self._keys):
            self._cursor = 0

    def _make_room(self, size: int) -> bool:
        """See to it that a slot is free, and that a blob of this size fits; False: it does not."""
        pages = self._pages
        if self._index_bytes + _BATCH * _SLOT_BYTES + pages.cost(size) > self.bound:
            return False  # though all else went for it
        for _ in range(STEPS):
            lack = pages.lack(size)
            over = self.taken + lack + (0 if self._free else _BATCH * _SLOT_BYTES) - self.bound
            if over <= 0:
                break
            if not self._shrink(over, is_short_of_pages=lack > 0 and size < LARGE):
                return False
        else:
            return False
        if not self._free:
            self._add_slots()
        return True

    def _shrink(self, over: float, *, is_short_of_pages: bool = False) -> bool:
        """Go a step towards taking less, by so many bytes in the end; False: nothing is left to go.

        Pages are given back before entries go, so that memory follows what entries need most of now: pages for large ones,
        or slots for many. But not before enough of them are free: then some segments are mostly empty, and few pages move.
        """
        if not is_short_of_pages and self._pages.can_vacate(over):
            self._pages.vacate(self._move)
            return True
        if owner := self._next_forgotten():
            self._drop(owner.slot)
            return True
        if (oldest := self._use.after[0]) == 0:
            return False
        if self._lost is not None:
            self._lost(self._until[oldest])
        self._drop(oldest)
        return True

    def _drop(self, slot: int) -> None:
        key = self._keys[slot]
        del self._table(key)[key]
        self._keys[slot] = b""
        self._pages.release(slot, self._first[slot], self._size[slot])
        self._use.leave(slot)
        self._disown(slot)
        self._free.append(slot)

    def _move(self, slot: int) -> None:
        """Write an entry's blob to other pages."""
        first, size = self._first[slot], self._size[slot]
        blob = self._pages.read(slot, first, size)
        self._pages.release(slot, first, size)
        self._first[slot] = self._pages.write(slot, blob)

    def _adopt(self, slot: int, name: Name) -> None:
        owner = self._owners.get(name)
        if owner is None:
            owner = self._owners[name] = Owner(name, slot)
            self._index_bytes += _OWNER_BYTES
        else:
            self._kin.join(slot, owner.slot)
        owner.count += 1
        self._owner_of[slot] = owner

    def _disown(self, slot: int) -> None:
        owner = self._owner_of[slot]
        owner.slot = self._kin.after[slot]
        self._kin.leave(slot)
        self._owner_of[slot] = self._nobody
        owner.count -= 1
        if not owner.is_forgotten:
            self.entries -= 1
            if not owner.count:
                del self._owners[owner.name]
                self._index_bytes -= _OWNER_BYTES

    def _next_forgotten(self) -> Owner | None:
        """One of those who were forgotten, and have entries still."""
        while self._forgotten and not self._forgotten[0].count:
            self._forgotten.popleft()
            self._index_bytes -= _OWNER_BYTES
        return self._forgotten[0] if self._forgotten else None

    def _table(self, key: bytes) -> dict[bytes, int]:
        return self._tables[(key[0] << 8 | key[1]) & (len(self._tables) - 1)]

    def _list(self, key: bytes, slot: int) -> None:
        """Put a key into its table, and count what that grows by."""
        table = self._table(key)
        before = getsizeof(table)
        table[key] = slot
        self._index_bytes += getsizeof(table) - before

    def _add_slots(self) -> None:
        start = len(self._keys)
        self._index_bytes += _BATCH * _SLOT_BYTES
        self._keys.extend([b""] * _BATCH)
        self._owner_of.extend([self._nobody] * _BATCH)
        for numbers in (self._first, self._size):
            numbers.extend(array("I", bytes(4 * _BATCH)))
        self._until.extend(array("d", bytes(8 * _BATCH)))
        self._use.grow(_BATCH)
        self._kin.grow(_BATCH)
        self._free.extend(range(start + _BATCH - 1, start - 1, -1))


def tables_for(bound: int) -> int:
    """How many tables of keys there are: a power of two."""
    return 1 << min(_MOST_TABLES, (bound // _TABLE_BYTES).bit_length())
