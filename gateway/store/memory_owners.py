"""Whose an entry is, so that all of an owner's entries can be forgotten at once, and none of them takes another's room.

An entry is a number, its slot; the entries of an owner form a ring. Invariant: no step takes longer for more entries, but
forgetting takes as long as there are owners.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable

_OWNER_BYTES = 600
"""What an owner takes besides its entries: the object, its name and its place in the tables."""

Name = tuple[str, str]
"""Tenant and model."""


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
    """How many entries it has, what these take, and the first of them."""

    __slots__ = ("bytes", "count", "is_forgotten", "name", "slot")

    def __init__(self, name: Name) -> None:
        self.name = name
        self.slot = 0
        self.count = 0
        self.bytes = 0.0
        self.is_forgotten = False


class Owners:
    """Of each slot whose it is; those who were forgotten are so until they have no entries left."""

    __slots__ = ("_by_name", "_forgotten", "_kin", "_largest", "_nobody", "_of", "taken")

    def __init__(self) -> None:
        self._nobody = Owner(("", ""))
        self._nobody.is_forgotten = True
        self._of: list[Owner] = []
        self._kin = Rings()
        self._by_name: dict[Name, Owner] = {}
        self._forgotten: deque[Owner] = deque()
        self._largest = self._nobody
        self.taken = 0
        """Bytes, what it takes for a slot not among them."""

    def grow(self, count: int) -> None:
        """So many slots more, nobody's."""
        self._of.extend([self._nobody] * count)
        self._kin.grow(count)

    def adopt(self, slot: int, name: Name, size: float = 0.0) -> None:
        """A slot that was nobody's is of this name now, and takes so many bytes."""
        owner = self._by_name.get(name)
        if owner is None:
            owner = self._by_name[name] = Owner(name)
            owner.slot = slot
            self.taken += _OWNER_BYTES
        else:
            self._kin.join(slot, owner.slot)
        owner.count += 1
        owner.bytes += size
        if owner.bytes > self._largest.bytes:
            self._largest = owner
        self._of[slot] = owner

    def disown(self, slot: int, size: float = 0.0) -> bool:
        """The slot, which took so many bytes, is nobody's; False: its entry was forgotten."""
        owner = self._of[slot]
        if owner.slot == slot:
            owner.slot = self._kin.after[slot]
        self._kin.leave(slot)
        self._of[slot] = self._nobody
        owner.count -= 1
        owner.bytes -= size
        if not owner.is_forgotten and not owner.count:
            del self._by_name[owner.name]
            self.taken -= _OWNER_BYTES
        return not owner.is_forgotten

    def has_others(self, name: Name | None) -> bool:
        """Whether anybody else has entries."""
        return len(self._by_name) > (name in self._by_name)

    def first_above(self, most: float, name: Name | None, size: float) -> int:
        """The first entry of whoever has more than so many bytes, or would if this name had so many more; 0: nobody has."""
        owner = None if name is None else self._by_name.get(name)
        if owner is not None and owner.bytes + size > most:
            return owner.slot
        largest = self._largest  # if anybody has more than half, it is this one
        return largest.slot if largest.count and not largest.is_forgotten and largest.bytes > most else 0

    def is_forgotten(self, slot: int) -> bool:
        """Whether its entry is to be given no more."""
        return self._of[slot].is_forgotten

    def name_of(self, slot: int) -> Name:
        """Whose it is."""
        return self._of[slot].name

    def forget(self, matches: Callable[[Name], bool]) -> int:
        """Forget these owners; returns how many entries they had."""
        gone = [owner for owner in self._by_name.values() if matches(owner.name)]
        for owner in gone:
            owner.is_forgotten = True
            del self._by_name[owner.name]
        self._forgotten.extend(gone)
        return sum(owner.count for owner in gone)

    def next_forgotten(self) -> int:
        """The slot of an entry that was forgotten; 0: there is none."""
        while self._forgotten and not self._forgotten[0].count:
            self._forgotten.popleft()
            self.taken -= _OWNER_BYTES
        return self._forgotten[0].slot if self._forgotten else 0
