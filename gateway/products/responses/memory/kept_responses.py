"""The kept responses in memory: the reference."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from gateway.products.responses.log.shared_logs.bounds import REMOVED_S, EarlyResponses, KeptBounds
from gateway.products.responses.rules.response_object.stored_response import StoredResponse


class MemoryKeptResponses:
    """Implements `gateway.products.responses.rules.response_object.kept_responses.KeptResponses`: knows responses by
    tenant, those put first at the head."""

    def __init__(self, wall: Callable[[], float], bounds: KeptBounds) -> None:
        self._wall = wall
        self._bounds = bounds
        self._early = EarlyResponses(bounds)
        self._tenants: dict[str, OrderedDict[str, StoredResponse]] = {}
        self._bytes: dict[str, int] = {}
        self._ends: list[tuple[float, str, str]] = []
        """When responses are to be forgotten, with tenants and ids; those that are gone or put again are among them."""
        self._removed: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Until when responses that were removed are not kept again."""

    @property
    def early(self) -> int:
        """Returns how many went before their time."""
        return self._early.count

    async def put(self, response: StoredResponse) -> None:
        """Keeps a response in place of one with the same id; one that was removed is not kept again."""
        tenant = response.tenant
        if self._removed.get((tenant, response.id), 0.0) > self._wall():
            return
        self._forget(tenant, response.id)
        if response.bytes > self._bounds.tenant_bytes:
            self._early.note(1)
            return
        self._tenants.setdefault(tenant, OrderedDict())[response.id] = response
        self._bytes[tenant] = self._bytes.get(tenant, 0) + response.bytes
        heappush(self._ends, (response.keep_until, tenant, response.id))
        while self._bytes[tenant] > self._bounds.tenant_bytes:
            self._forget(tenant, next(iter(self._tenants[tenant])))
            self._early.note(1)

    async def find(self, response_id: str, tenant: str) -> StoredResponse | None:
        """Returns a response of the tenant whose time is not over."""
        response = self._get(response_id, tenant)
        return response if response is not None and response.keep_until > self._wall() else None

    async def chain(
        self, response_id: str, tenant: str, most: int, most_bytes: int = 8 * 1024 * 1024
    ) -> Sequence[StoredResponse]:
        """Returns the response and those that it goes on from, the latest first."""
        found: dict[str, StoredResponse] = {}
        size = 0
        while len(found) < most and size <= most_bytes and response_id not in found:
            response = await self.find(response_id, tenant)
            if response is None:
                break
            found[response_id] = response
            size += response.bytes
            response_id = response.previous_id
        return list(found.values())

    async def remove(self, response_id: str, tenant: str, *, is_expected: bool = False) -> bool:
        """Forgets a response; it is not kept again."""
        is_there = await self.find(response_id, tenant) is not None
        if is_there or is_expected:
            self._removed[tenant, response_id] = self._wall() + REMOVED_S
            self._removed.move_to_end((tenant, response_id))
        self._forget(tenant, response_id)
        return is_there

    async def trim(self, most: int) -> int:
        """Forgets responses whose time is over."""
        now, gone = self._wall(), 0
        while self._removed and next(iter(self._removed.values())) <= now:
            self._removed.popitem(last=False)
        while gone < most and self._ends and self._ends[0][0] <= now:
            keep_until, tenant, response_id = heappop(self._ends)
            response = self._get(response_id, tenant)
            if response is not None and response.keep_until == keep_until:
                self._forget(tenant, response_id)
                gone += 1
        return gone

    def _get(self, response_id: str, tenant: str) -> StoredResponse | None:
        responses = self._tenants.get(tenant)
        return None if responses is None else responses.get(response_id)

    def _forget(self, tenant: str, response_id: str) -> None:
        responses = self._tenants.get(tenant, OrderedDict())
        response = responses.pop(response_id, None)
        if response is not None:
            self._bytes[tenant] -= response.bytes
        if not responses:
            self._tenants.pop(tenant, None)
            self._bytes.pop(tenant, None)
