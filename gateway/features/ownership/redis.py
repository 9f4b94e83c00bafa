"""The owners of objects at providers, in Redis: in several parts, so that no step is long and a cluster spreads the load.

While the store is out of reach this process uses the owners that it knows, and sends new ones when the store is back.
Invariants: of two replicas that name an object's owner the first wins, for all replicas; a store that does not answer is not
taken for an empty one; no operation takes longer than the timeout.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from gateway.core.ports import Later
from gateway.drivers.redis.link import BackgroundTasks, Link, Script, StoreGone
from gateway.drivers.redis.lru import WallTime
from gateway.drivers.redis.wire import FOLDER, script_of
from gateway.drivers.redis_store import SharedPart
from gateway.features.ownership.memory import MemoryObjects, warn_of_evictions

PARTS = 16
AT_ONCE = 64
"""Objects of one part in one step, at most."""
LOCAL = 65_536
"""Owners that this process knows while the store is gone, at most; the same bound holds for owners owed to the store."""


def objects_script(name: str) -> Script:
    """Returns a script that works on a part."""
    return script_of(name, "".join((FOLDER / f"{part}.lua").read_text() for part in ("objects", name)))


OWN = objects_script("objects_own")
LOOK = objects_script("objects_look")
DISOWN = objects_script("objects_disown")


class RedisObjects(SharedPart):
    """Implements `gateway.features.ownership.store.Objects`."""

    def __init__(self, link: Link, background: BackgroundTasks, now: WallTime, bound: int) -> None:
        self._link = link
        self._background = background
        self._now = now
        self._bound = bound
        self._keys = []
        for part in range(PARTS):
            base = link.key("objects", str(part))
            self._keys.append((base + b":owners", base + b":used"))
        self._local = MemoryObjects(min(bound, LOCAL), is_logged=False)
        self._owed: dict[bytes, str | None] = {}
        """The owners that the store still has to take; None: the object's owner is removed."""
        self._counts = [0] * PARTS
        self._has_warned = False
        self.lost = 0

    def configure(self, bound: int) -> None:
        self._has_warned = self._has_warned and bound == self._bound
        self._bound = bound
        self._local.configure(min(bound, LOCAL))

    @property
    def entries(self) -> int:
        """Returns the number of objects that the used parts last reported."""
        return sum(self._counts)

    @property
    def owed(self) -> int:
        """Returns the number of owners that the store still has to take."""
        return len(self._owed)

    def own(self, objects: Sequence[bytes], tenant: str) -> Later[Sequence[str] | None]:
        """Makes the tenant the owner of objects that have none; returns the owner of each, None where the store fails."""
        if not self._link.is_up:
            return self._own_here(objects, tenant)
        return self._background.start(self._own(objects, tenant))

    def owners(self, objects: Sequence[bytes]) -> Later[Sequence[str | None] | None]:
        if not self._link.is_up:
            return self._known_here(objects)
        return self._background.start(self._owners(objects))

    def disown(self, objects: Sequence[bytes]) -> Later[bool]:
        self._local.disown(objects)
        if not self._link.is_up:
            self._owe(objects, None)
            return False
        return self._background.start(self._disown(objects))

    async def catch_up(self) -> None:
        """Sends the owners that the store missed."""
        try:
            while self._owed and self._link.is_up:
                one, tenant = next(iter(self._owed.items()))
                some = [other for other, whose in self._owed.items() if whose == tenant][:AT_ONCE]
                if tenant is None:
                    await self._run(DISOWN, some)
                else:
                    self._learn(some, await self._owners_of(some, tenant))
                for other in some:
                    if self._owed.get(other, one) == tenant:
                        del self._owed[other]
        except StoreGone:
            pass  # the next tick goes on

    async def _own(self, objects: Sequence[bytes], tenant: str) -> Sequence[str]:
        try:
            owners = await self._owners_of(objects, tenant)
        except StoreGone:
            return self._own_here(objects, tenant)
        self._learn(objects, owners)
        return owners

    async def _owners(self, objects: Sequence[bytes]) -> Sequence[str | None] | None:
        try:
            found = await self._run(LOOK, objects, self._now())
        except StoreGone:
            return self._known_here(objects)
        owners = [self._owed[one] if one in self._owed else found[one].decode() or None for one in objects]
        self._learn(objects, owners)
        return owners

    async def _disown(self, objects: Sequence[bytes]) -> bool:
        try:
            await self._run(DISOWN, objects)
        except StoreGone:
            self._owe(objects, None)
            return False
        self._local.disown(objects)  # a look-up may have brought an owner back meanwhile
        return True

    def _own_here(self, objects: Sequence[bytes], tenant: str) -> list[str]:
        owners = self._local.own(objects, tenant)
        self._owe([one for one, owner in zip(objects, owners, strict=True) if owner == tenant], tenant)
        return owners

    def _known_here(self, objects: Sequence[bytes]) -> list[str | None] | None:
        known = self._local.owners(objects)
        return None if None in known else known

    def _learn(self, objects: Sequence[bytes], owners: Sequence[str | None]) -> None:
        """Remembers owners for times without the store; an object that another replica gave to another tenant is dropped."""
        for one, owner in zip(objects, owners, strict=True):
            if self._local.owners((one,)) != [owner]:
                self._local.disown((one,))
                if owner is not None:
                    self._local.own((one,), owner)

    def _owe(self, objects: Sequence[bytes], tenant: str | None) -> None:
        for one in objects:
            if len(self._owed) < LOCAL:
                self._owed[one] = tenant

    async def _owners_of(self, objects: Sequence[bytes], tenant: str) -> list[str]:
        found = await self._run(OWN, objects, self._now(), max(1, self._bound // PARTS), tenant)
        return [found[one].decode() for one in objects]

    async def _run(self, script: Script, objects: Sequence[bytes], *args: bytes | str | float) -> dict[bytes, bytes]:
        """Returns the script's result for each object. Raises StoreGone."""
        parts: defaultdict[int, list[bytes]] = defaultdict(list)
        for one in dict.fromkeys(objects):
            parts[one[0] % PARTS].append(one)
        asks = [(part, some[at : at + AT_ONCE]) for part, some in parts.items() for at in range(0, len(some), AT_ONCE)]
        replies: list[Any] = await asyncio.gather(
            *[self._link.run(script, self._keys[part], (*args, *some)) for part, some in asks]
        )
        found: dict[bytes, bytes] = {}
        for (part, some), reply in zip(asks, replies, strict=True):
            found.update(zip(some, self._read(script, part, reply), strict=False))
        return found

    def _read(self, script: Script, part: int, reply: Any) -> Sequence[bytes]:
        """Returns the owners of a reply, and notes the size of the part in front of them."""
        if script is DISOWN:
            self._counts[part] = int(reply)
            return ()
        self._counts[part] = int(reply[0])
        if script is LOOK:
            return list(reply[1:])
        self.lost += int(reply[1])
        if reply[1] and not self._has_warned:
            self._has_warned = True
            warn_of_evictions(self._bound)
        return list(reply[2:])
