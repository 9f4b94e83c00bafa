"""The exact cache in this process's memory: one LRU per group.

It must not know what may be kept, nor for how long. Invariants: a group takes no more bytes than its bound; its least recently
used answer is evicted first; a forgotten answer is not given again, though its memory is freed step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.core.types.words import Kept
from gateway.drivers.lru import Lru, Name
from gateway.features.reuse.memory.entry_codec import pack, unpack


class MemoryAnswers:
    """Implements `gateway.core.ports.Answers`."""

    __slots__ = ("_given_up", "_groups", "_wall")

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._groups: dict[str, Lru] = {}
        self._given_up: list[Lru] = []
        """The LRUs of removed groups, which serve no look-up and are emptied step by step."""

    def get(self, key: bytes, group: str) -> Kept | None:
        """Returns the answer unless it is past its `stale_until`."""
        lru = self._groups.get(group)
        blob = None if lru is None else lru.get(key, self._wall())
        return None if blob is None else unpack(blob)

    def put(self, key: bytes, kept: Kept) -> None:
        """Keeps the answer in place of an earlier one, unless it alone exceeds the bound of its group."""
        if lru := self._groups.get(kept.group):
            lru.put(key, pack(kept), kept.stale_until, (kept.tenant, kept.model))

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
        """Forgets every answer that matches all given arguments and returns their number.

        The time it takes grows with the number of pairs of tenant and model.
        """

        def matches(name: Name) -> bool:
            return tenant in (None, name[0]) and model in (None, name[1])

        if key is None:
            return sum(lru.forget(matches) for lru in self._groups.values())
        return sum(_forget_one(lru, key, matches) for lru in self._groups.values())

    def configure(self, bounds: Mapping[str, int]) -> None:
        """Bounds each group to its number of bytes."""
        for gone in self._groups.keys() - bounds.keys():
            self._given_up.append(self._groups.pop(gone))
            self._given_up[-1].bound = 0
        for group, bound in bounds.items():
            lru = self._groups.setdefault(group, Lru(bound))
            lru.bound = bound

    def tick(self) -> None:
        """Drops some expired answers and some above the bounds."""
        now = self._wall()
        for lru in (*self._groups.values(), *self._given_up):
            lru.sweep(now)
        self._given_up = [lru for lru in self._given_up if not lru.is_empty]

    def stats(self) -> dict[str, int]:
        """Returns the number of live answers, and the bytes of all."""
        bytes_taken = sum(lru.taken for lru in (*self._groups.values(), *self._given_up))
        return {"entries": sum(lru.entries for lru in self._groups.values()), "bytes": bytes_taken}


def _forget_one(lru: Lru, key: bytes, matches: Callable[[Name], bool]) -> int:
    name = lru.name_of(key)
    return int(name is not None and matches(name) and lru.drop(key))
