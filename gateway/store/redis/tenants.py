"""A shelf of records for each tenant, each in a slot of its own, and how much of the room each of them may take.

In a cluster tenants spread over the servers, and no script sees two of them: so what all take together is known here as last
told, and a tenant that has too much gives some of it up with its next record, or when it is looked through. Invariant: the
bounds given out add up to the whole, but for tenants that nobody here has heard of yet.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from gateway.ports import TENANTS_SHARE
from gateway.store.redis.lru import Now, Shelf
from gateway.store.redis.registry import FIRST, Registry
from gateway.store.redis_link.link import Link, StoreRefused

MOST_KNOWN = 4096
"""Of so many tenants it is known here what they take; those unheard of for longest are forgotten first."""
ID_BYTES = 32
"""Of a record's id; what stands behind them names the tenant."""


class TenantShelf:
    """The records of one tenant."""

    __slots__ = ("bytes", "entries", "fence", "name", "running", "shelf")

    def __init__(self, link: Link, name: bytes, now: Now) -> None:
        base = link.key("records", name)
        self.name = name
        self.shelf = Shelf(link, base, now)
        self.running, self.fence = base + b":running", base + b":fence"
        """The keys of those that run, and of the last fence."""
        self.entries = self.bytes = 0
        """What `Tenants` has counted of it."""

    def keys(self, record: bytes) -> tuple[bytes, ...]:
        """All that a script on this record needs."""
        shelf, id = self.shelf, record[:ID_BYTES]
        return (*shelf.keys, shelf.value(id), self.running, self.fence, shelf.parts(id))


class Tenants:
    """The shelves of all tenants, as far as they are known."""

    def __init__(self, link: Link, now: Now, bound: int) -> None:
        self.bound = bound
        """Bytes, of all together."""
        self.entries = 0
        self.bytes = 0
        """Of those known, as last told."""
        self._link = link
        self._now = now
        self._known: OrderedDict[bytes, TenantShelf] = OrderedDict()
        self._registry = Registry(link, link.key("record_tenants"), now)
        self._cursor = FIRST
        self._found: list[bytes] = []

    def shelf_of(self, record: bytes) -> TenantShelf:
        """Where a record is kept."""
        return self._shelf(record[ID_BYTES:])

    def told(self, tenant: TenantShelf, entries: int, taken: int) -> None:
        """These are a tenant's numbers; one that has something is known from now on."""
        self._forget(tenant.name)
        if not entries:
            return
        tenant.entries, tenant.bytes = entries, taken
        self._known[tenant.name] = tenant
        self.entries += entries
        self.bytes += taken
        if len(self._known) > MOST_KNOWN:
            self._forget(next(iter(self._known)))

    def bound_of(self, tenant: TenantShelf) -> int:
        """What a tenant may have: all that others leave, but not nearly all where there are others; an equal part at least."""
        known = self._known.get(tenant.name)
        others = self.bytes - (0 if known is None else known.bytes)
        if others <= 0:
            return self.bound
        count = len(self._known) + (known is None)
        return int(max(self.bound / count, min(TENANTS_SHARE * self.bound, self.bound - others)))

    async def note(self, tenant: TenantShelf, left_s: float) -> None:
        """It will have something for so long: other replicas are to find it. Raises StoreGone."""
        try:
            await self._registry.note(tenant.name, left_s)
        except StoreRefused:  # there are too many tenants to be found: its records go by themselves when they run out
            return

    def lost(self) -> None:
        """The store may have lost all it had."""
        self._registry.lost()

    async def discover(self) -> None:
        """Learn of some of the tenants that other replicas serve. Raises StoreGone."""
        self._cursor, self._found = await self._registry.page(self._cursor)

    def all(self) -> Iterator[TenantShelf]:
        """Those known and those found last."""
        for name in dict.fromkeys((*self._known, *self._found)):
            yield self._shelf(name)

    def _forget(self, name: bytes) -> None:
        """Count a tenant no more."""
        gone = self._known.pop(name, None)
        if gone is not None:
            self.entries -= gone.entries
            self.bytes -= gone.bytes

    def _shelf(self, name: bytes) -> TenantShelf:
        return self._known.get(name) or TenantShelf(self._link, name, self._now)
