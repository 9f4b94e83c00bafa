"""How full the delay queue is: calls and bytes against its bounds, as a whole and by tenant.

It must not know lines, gates or why a call waits. Invariant: whatever `add` counted, `remove` takes back once.
"""

from __future__ import annotations

from gateway.core.types.process import QueueBounds
from gateway.core.types.words import Lane


class Occupancy:
    """Counts what is held. While several tenants wait, none may take more than `max_percent_per_tenant` of the bounds."""

    __slots__ = ("_bounds", "_by_tenant", "_over_share", "bytes", "calls", "depth")

    def __init__(self, bounds: QueueBounds) -> None:
        self.calls = 0
        self.bytes = 0
        self.depth: dict[tuple[str, Lane], int] = {}
        """The number of calls that wait, by model and lane."""
        self._by_tenant: dict[str, list[int]] = {}  # calls and bytes
        self._over_share: set[str] = set()
        self.configure(bounds)

    def configure(self, bounds: QueueBounds) -> None:
        """Puts other bounds in force; calls that wait already stay."""
        self._bounds = bounds
        self._over_share = {tenant for tenant in self._by_tenant if self._exceeds_share(tenant, 0)}

    def add(self, tenant: str, size: int, model: str, lane: Lane) -> None:
        """Counts a call of `size` bytes that is held from now on."""
        self.calls += 1
        self.bytes += size
        share = self._by_tenant.setdefault(tenant, [0, 0])
        share[0] += 1
        share[1] += size
        if self._exceeds_share(tenant, 0):
            self._over_share.add(tenant)
        self.depth[model, lane] = self.depth.get((model, lane), 0) + 1

    def remove(self, tenant: str, size: int, model: str, lane: Lane) -> None:
        """Counts a call out that waits no more."""
        self.calls -= 1
        self.bytes -= size
        share = self._by_tenant[tenant]
        share[0] -= 1
        share[1] -= size
        if not share[0]:
            del self._by_tenant[tenant]
        if self._over_share and not self._exceeds_share(tenant, 0):
            self._over_share.discard(tenant)
        self.depth[model, lane] -= 1

    def may_hold(self, tenant: str, size: int) -> bool:
        """Returns whether such a call could be held if others made room: it fits the bounds and its tenant's share.

        A tenant that is the only one to wait may take everything.
        """
        others_wait = len(self._by_tenant) > (tenant in self._by_tenant)
        return size <= self._bounds.max_bytes and not (others_wait and self._exceeds_share(tenant, size))

    def is_full(self, size: int) -> bool:
        """Returns whether there is no room for a call of this size as things stand."""
        return self.calls >= self._bounds.max_calls or self.bytes + size > self._bounds.max_bytes

    def over_share(self, tenant: str) -> str | None:
        """Returns a tenant other than this one who waits with more than the share of one among several."""
        return next((other for other in self._over_share if other != tenant), None)

    def _exceeds_share(self, tenant: str, size: int) -> bool:
        share = self._bounds.max_percent_per_tenant / 100
        calls, held = self._by_tenant.get(tenant, (0, 0))
        return calls >= self._bounds.max_calls * share or held + size > self._bounds.max_bytes * share
