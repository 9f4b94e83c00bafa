"""A shelf: blobs by key, as many as fit into a number of bytes, in the order of their use.

An entry is a number, its slot, and what is known of it stands in arrays: a million entries are little work for the garbage
collector, and no table is ever so large that its growth is felt. It must not know what is kept, nor read a clock.
Invariants: all of it together takes no more than `bound` (after a lower one was set: in bounded steps); every step is O(1).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from sys import getsizeof

from gateway.store.memory_owners import Name, Owners, Rings
from gateway.store.memory_pages import LARGE, PAGE, Pages, pages_of

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
_KEY = 32
_SLOT_BYTES = 196
"""The key, twice, and its number (32 + 80 + 32), a reference, nine numbers of 4 bytes, and what arrays reserve."""
_TABLE_BYTES = 4 * 1024 * 1024
"""There is a table of keys for about so many bytes of the bound: its growth is to take microseconds."""
_MOST_TABLES = 12
"""As a power of two."""

Lost = Callable[[float], None]


class Shelf:
    """Keys are 32 bytes of a digest; times are whatever the caller's clock says."""

    __slots__ = (
        "_cursor",
        "_first",
        "_free",
        "_index_bytes",
        "_keys",
        "_lost",
        "_owners",
        "_pages",
        "_share",
        "_size",
        "_tables",
        "_until",
        "_use",
        "bound",
        "entries",
    )

    def __init__(self, bound: int, lost: Lost | None = None, share: float = 1.0) -> None:
        """`bound` is in bytes; `lost` is told the `until` of each entry that goes because there is no room.

        Where several names have entries, one that has more than this share of the bound makes room before the others do.
        """
        self.bound = bound
        self._share = share
        self._lost = lost
        self._start()

    def _start(self) -> None:
        """With nothing on it."""
        self.entries = 0
        """Those that were forgotten not among them."""
        self._tables: list[dict[bytes, int]] = [{} for _ in range(tables_for(self.bound))]
        self._index_bytes = 0
        self._pages = Pages(self.bound)
        # By slot; 0 is where the ring of use begins and ends. A free one has no size.
        self._keys = bytearray(_KEY)  # end to end: of a list of them, the garbage collector would look at each
        self._first, self._size, self._until = array("I", [0]), array("I", [0]), array("d", [0.0])
        self._use = Rings()
        self._use.grow(1)
        self._owners = Owners()
        self._owners.grow(1)
        self._free = array("I")
        self._cursor = 0

    @property
    def taken(self) -> float:
        """What it takes in memory, in bytes."""
        return self._pages.taken + self._index_bytes + self._owners.taken

    def get(self, key: bytes, now: float, *, is_use: bool = True) -> bytes | None:
        """What is kept under this key, if its time is not over; `is_use`: it is now the last that would go."""
        slot = self._table(key).get(key)
        if slot is None:
            return None
        if self._until[slot] < now or self._owners.is_forgotten(slot):
            self._drop(slot)
            return None
        if is_use:
            self._use.leave(slot)
            self._use.join(slot, 0)
        return self._pages.read(slot, self._first[slot], self._size[slot])

    def put(self, key: bytes, blob: bytes, until: float, name: Name = ("", "")) -> bool:
        """Keep it until then, instead of what was there, as one of those of this name. False: there is no room for it."""
        self.drop(key)
        if not self._make_room(len(blob), name):
            return False
        slot = self._free.pop()
        try:
            self._first[slot] = self._pages.write(slot, blob)
        except OSError:  # the system has no memory for it
            self._free.append(slot)
            return False
        self._size[slot], self._until[slot] = len(blob), until
        self._keys[slot * _KEY : (slot + 1) * _KEY] = key
        self._list(key, slot)
        self._use.join(slot, 0)
        self._owners.adopt(slot, name, self._cost(len(blob)))
        self.entries += 1
        while self.taken > self.bound and self._shrink(0):
            pass  # a table of keys has grown
        return self._table(key).get(key) == slot

    def drop(self, key: bytes) -> bool:
        """Let go of one entry; False: there is none."""
        slot = self._table(key).get(key)
        return slot is not None and self._drop(slot)

    def name_of(self, key: bytes) -> Name | None:
        """Whose entry it is; None: there is none."""
        slot = self._table(key).get(key)
        return None if slot is None or self._owners.is_forgotten(slot) else self._owners.name_of(slot)

    def forget(self, matches: Callable[[Name], bool]) -> int:
        """Give none of these owners' entries any more; returns how many there were. They are let go of step by step."""
        count = self._owners.forget(matches)
        self.entries -= count
        return count

    def sweep(self, now: float) -> None:
        """Let go of some of what is over, forgotten or too much, and of memory that is not needed for now."""
        self._sweep_past(now)
        for _ in range(LET_GO):
            if not (slot := self._owners.next_forgotten()):
                break
            self._drop(slot)
        for _ in range(LET_GO):
            if self.taken <= self.bound or not self._shrink(self.taken - self.bound):
                break
        for _ in range(_GIVEN_BACK):
            if not self._pages.has_spare(_SPARE_SHARE):
                break
            self._pages.vacate(self._move)
        if self.is_empty and len(self._size) > 1:
            self._start()

    @property
    def is_empty(self) -> bool:
        """Nothing is on it, nor waits to be let go of."""
        return self._use.after[0] == 0

    def _sweep_past(self, now: float) -> None:
        """Look at some entries, and let go of those whose time is over."""
        start, self._cursor = self._cursor, min(self._cursor + STEPS, len(self._size))
        past = [slot for slot in range(start, self._cursor) if self._until[slot] < now and self._size[slot]]
        for slot in past[:LET_GO]:
            self._drop(slot)
        if len(past) > LET_GO:
            self._cursor = past[LET_GO]
        elif self._cursor == len(self._size):
            self._cursor = 0

    def _make_room(self, size: int, name: Name) -> bool:
        """See to it that a slot is free, and that a blob of this size and name fits; False: it does not."""
        pages = self._pages
        if self._index_bytes + _BATCH * _SLOT_BYTES + pages.cost(size) > self.bound:
            return False  # though all else went for it
        if self._cost(size) > self._share * self.bound and self._owners.has_others(name):
            return False  # though all else of this name went for it
        for _ in range(STEPS):
            lack = pages.lack(size)
            over = self.taken + lack + (0 if self._free else _BATCH * _SLOT_BYTES) - self.bound
            if over <= 0:
                break
            if not self._shrink(over, name, size, is_short_of_pages=lack > 0 and size < LARGE):
                return False
        else:
            return False
        if not self._free:
            self._add_slots()
        return True

    def _cost(self, size: int) -> float:
        """What counts against its owner's share."""
        return _SLOT_BYTES + (self._pages.cost(size) if size >= LARGE else pages_of(size) * PAGE)

    def _first_to_go(self, name: Name | None, size: int) -> int:
        """The entry that makes room for one of this name and size; 0: there is none."""
        if self._share < 1 and self._owners.has_others(name):
            greedy = self._owners.first_above(self._share * self.bound, name, self._cost(size))
            if greedy:
                return greedy
        return self._use.after[0]

    def _shrink(self, over: float, name: Name | None = None, size: int = 0, *, is_short_of_pages: bool = False) -> bool:
        """Go a step towards taking less, by so many bytes in the end; False: nothing is left to go.

        Pages are given back before entries go, so that memory follows what entries need most of now: pages for large ones,
        or slots for many. But not before enough of them are free: then some segments are mostly empty, and few pages move.
        """
        if not is_short_of_pages and self._pages.can_vacate(over):
            self._pages.vacate(self._move)
            return True
        if slot := self._owners.next_forgotten():
            self._drop(slot)
            return True
        if (first := self._first_to_go(name, size)) == 0:
            return False
        if self._lost is not None:
            self._lost(self._until[first])
        self._drop(first)
        return True

    def _drop(self, slot: int) -> bool:
        """Let go of an entry; False: it was forgotten."""
        key = bytes(self._keys[slot * _KEY : (slot + 1) * _KEY])
        del self._table(key)[key]
        size = self._size[slot]
        self._pages.release(slot, self._first[slot], size)
        self._size[slot] = 0
        self._use.leave(slot)
        self._free.append(slot)
        was_there = self._owners.disown(slot, self._cost(size))
        self.entries -= was_there
        return was_there

    def _move(self, slot: int) -> None:
        """Write an entry's blob to other pages."""
        first, size = self._first[slot], self._size[slot]
        blob = self._pages.read(slot, first, size)
        self._pages.release(slot, first, size)
        self._first[slot] = self._pages.write(slot, blob)

    def _table(self, key: bytes) -> dict[bytes, int]:
        return self._tables[(key[0] << 8 | key[1]) & (len(self._tables) - 1)]

    def _list(self, key: bytes, slot: int) -> None:
        """Put a key into its table, and count what that grows by."""
        table = self._table(key)
        before = getsizeof(table)
        table[key] = slot
        self._index_bytes += getsizeof(table) - before

    def _add_slots(self) -> None:
        start = len(self._size)
        self._index_bytes += _BATCH * _SLOT_BYTES
        self._keys.extend(bytes(_KEY * _BATCH))
        for numbers in (self._first, self._size):
            numbers.extend(array("I", bytes(4 * _BATCH)))
        self._until.extend(array("d", bytes(8 * _BATCH)))
        self._use.grow(_BATCH)
        self._owners.grow(_BATCH)
        self._free.extend(range(start + _BATCH - 1, start - 1, -1))


def tables_for(bound: int) -> int:
    """How many tables of keys there are: a power of two."""
    return 1 << min(_MOST_TABLES, (bound // _TABLE_BYTES).bit_length())
