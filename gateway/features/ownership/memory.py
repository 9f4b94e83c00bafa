"""The owners of objects at providers, in this process's memory; the least recently used are evicted.

An object takes about 110 bytes. Objects are in generations, a new one after a fixed number of arrivals and uses; eviction
takes from the oldest, so that every step is O(1) and no table is ever large. It must not know files or sockets.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

log = logging.getLogger("gateway.store")

GENERATIONS = 16


class MemoryObjects:
    """Implements `gateway.features.ownership.store.Objects`."""

    __slots__ = ("_bound", "_generations", "_has_warned", "_is_logged", "_names", "lost")

    def __init__(self, bound: int, *, is_logged: bool = True) -> None:
        """`is_logged`: the first eviction is logged."""
        self._bound = bound
        self._is_logged = is_logged
        self._has_warned = False
        self._generations: deque[dict[bytes, str]] = deque([{}])
        self._names: dict[str, str] = {}
        """One string per tenant, which all its objects share."""
        self.lost = 0

    @property
    def entries(self) -> int:
        return sum(map(len, self._generations))

    def configure(self, bound: int) -> None:
        if bound != self._bound:
            self._bound, self._has_warned = bound, False
            self._make_room()

    def own(self, objects: Sequence[bytes], tenant: str) -> list[str]:
        owners = []
        for one in objects:
            owner = self._find(one)
            if owner is None:
                owner = self._names.setdefault(tenant, tenant)
                self._put(one, owner)
            owners.append(owner)
        return owners

    def owners(self, objects: Sequence[bytes]) -> list[str | None]:
        return [self._find(one) for one in objects]

    def disown(self, objects: Sequence[bytes]) -> bool:
        for one in objects:
            for generation in self._generations:
                generation.pop(one, None)
        return True

    def _find(self, one: bytes) -> str | None:
        """Returns the owner of an object and marks it as used."""
        newest = self._generations[-1]
        owner = newest.get(one)
        if owner is not None:
            return owner
        for generation in self._generations:
            owner = generation.pop(one, None)
            if owner is not None:
                self._put(one, owner)
                return owner
        return None

    def _put(self, one: bytes, owner: str) -> None:
        if len(self._generations[-1]) >= max(1, self._bound // GENERATIONS):
            self._generations.append({})
            if len(self._generations) > 2 * GENERATIONS:  # the oldest generations hold only objects without a later use
                oldest = self._generations.popleft()
                oldest.update(self._generations[0])
                self._generations[0] = oldest
        self._generations[-1][one] = owner
        self._make_room()

    def _make_room(self) -> None:
        while self.entries > self._bound:
            oldest = self._generations[0]
            if oldest:
                oldest.popitem()
                self.lost += 1
                self._warn()
            if not oldest and len(self._generations) > 1:
                self._generations.popleft()
        while len(self._generations) > 1 and not self._generations[0]:
            self._generations.popleft()

    def _warn(self) -> None:
        if self._is_logged and not self._has_warned:
            self._has_warned = True
            warn_of_evictions(self._bound)


def warn_of_evictions(bound: int) -> None:
    """Logs that owners are evicted, whose tenants get a 404 for their objects from now on."""
    log.warning(
        "No room to remember whose all objects at providers are (files, responses and the like; %d at most): those not used "
        "for longest are forgotten, and their tenants get 404 for them. gateway objects claim gives one back.",
        bound,
    )
