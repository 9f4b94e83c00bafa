"""The port of kept responses: what `GET /v1/responses/{id}` shows, and what `previous_response_id` goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.policy.responses.stored_response import StoredResponse


class KeptResponses(Protocol):
    """Responses by id, bounded in bytes for each tenant: the oldest go early then. All methods raise JobsUnavailable."""

    async def put(self, response: StoredResponse) -> None:
        """Keeps a response, durably, in place of one with the same id; one that was removed is not kept again."""
        ...

    async def find(self, response_id: str, tenant: str) -> StoredResponse | None:
        """Returns a response; None: there is none, its time is over, or it is another tenant's."""
        ...

    async def chain(self, response_id: str, tenant: str, most: int) -> Sequence[StoredResponse]:
        """Returns the response and those that it goes on from, the latest first, at most so many; it ends where one is gone."""
        ...

    async def remove(self, response_id: str, tenant: str) -> bool:
        """Forgets a response, durably; False: there was none."""
        ...

    async def trim(self, most: int) -> int:
        """Forgets responses whose time is over, at most so many; returns how many."""
        ...
