"""The records of each tenant, each in a slot of its own, and the bound of each.

In a cluster the tenants spread over the servers, and no script sees two of them. So this process adds up the sizes as last
reported, and a tenant above its bound shrinks with its next record, or with a sweep. Invariant: the bounds of all tenants add
up to the whole, except for tenants that this process does not know yet.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from gateway.core.ports import TENANTS_SHARE
from gateway.drivers.redis.link import Link, StoreRefused
from gateway.features.reuse.redis.lru import SharedLru, WallTime
from gateway.fleet.redis import Registry

MOST_KNOWN = 4096
"""Tenants whose sizes this process knows, at most; the longest unused are forgotten first."""
ID_BYTES = 32
"""The length of a record's id; the bytes behind it name the tenant."""


class TenantRecords:
    """The records of one tenant."""

    __slots__ = ("bytes", "entries", "fence", "lru", "name", "running")

    def __init__(self, link: Link, name: bytes, now: WallTime) -> None:
        base = link.key("records", name)
        self.name = name
        self.lru = SharedLru(link, base, now)
        self.running, self.fence = base + b":running", base + b":fence"
        """The keys of the claims and of the last fence."""
        self.entries = self.bytes = 0
        """The size that `Tenants` counts."""

    def keys(self, record: bytes) -> tuple[bytes, ...]:
        """Returns the keys of a script on this record."""
        lru, id = self.lru, record[:ID_BYTES]
        return (*lru.keys, lru.value(id), self.running, self.fence, lru.parts(id))


class Tenants:
    """The records of all known tenants."""

    def __init__(self, link: Link, now: WallTime, bound: int) -> None:
        self.bound = bound
        """The bytes of all tenants together, at most."""
        self.entries = 0
        self.bytes = 0
        """The bytes of the known tenants, as last reported."""
        self._link = link
        self._now = now
        self._known: OrderedDict[bytes, TenantRecords] = OrderedDict()
        self._registry = Registry(link, link.key("record_tenants"), now)

    def records_of(self, record: bytes) -> TenantRecords:
        """Returns the tenant's part of the store that keeps a record."""
        return self._records(record[ID_BYTES:])

    def told(self, tenant: TenantRecords, entries: int, taken: int) -> None:
        """Notes a tenant's size; one with entries is known from now on."""
        self._forget(tenant.name)
        if not entries:
            return
        tenant.entries, tenant.bytes = entries, taken
        self._known[tenant.name] = tenant
        self.entries += entries
        self.bytes += taken
        if len(self._known) > MOST_KNOWN:
            self._forget(next(iter(self._known)))

    def bound_of(self, tenant: TenantRecords) -> int:
        """Returns a tenant's bound: the bytes that others leave, up to the tenants' share, and an equal part at least."""
        known = self._known.get(tenant.name)
        others = self.bytes - (0 if known is None else known.bytes)
        if others <= 0:
            return self.bound
        count = len(self._known) + (known is None)
        return int(max(self.bound / count, min(TENANTS_SHARE * self.bound, self.bound - others)))

    async def note(self, tenant: TenantRecords, left_s: float) -> None:
        """Registers a tenant with records for `left_s` seconds, so that other replicas find it. Raises StoreGone."""
        try:
            await self._registry.note(tenant.name, left_s)
        except StoreRefused:  # there are too many tenants to register: the records of this one end by themselves
            return

    def lost(self) -> None:
        """Has all tenants registered anew, because the store may have lost its data."""
        self._registry.lost()

    async def discover(self) -> None:
        """Finds some of the tenants that other replicas serve. Raises StoreGone."""
        await self._registry.discover()

    def all(self) -> Iterator[TenantRecords]:
        """Yields the known tenants and those found last."""
        for name in dict.fromkeys((*self._known, *self._registry.found)):
            yield self._records(name)

    def _forget(self, name: bytes) -> None:
        """Removes a tenant from the count."""
        gone = self._known.pop(name, None)
        if gone is not None:
            self.entries -= gone.entries
            self.bytes -= gone.bytes

    def _records(self, name: bytes) -> TenantRecords:
        return self._known.get(name) or TenantRecords(self._link, name, self._now)
