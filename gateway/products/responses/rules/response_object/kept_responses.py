"""The port of kept responses: what `GET /v1/responses/{id}` shows, and what `previous_response_id` goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.products.responses.rules.response_object.stored_response import StoredResponse


class KeptResponses(Protocol):
    """Responses by id, bounded in bytes for each tenant: those put first go early then. All methods raise JobsUnavailable."""

    @property
    def early(self) -> int:
        """Returns how many went before their time for want of room, as this process has seen since it started."""
        ...

    async def put(self, response: StoredResponse) -> None:
        """Keeps a response, durably, in place of one with the same id; one that was removed is not kept again for a day."""
        ...

    async def find(self, response_id: str, tenant: str) -> StoredResponse | None:
        """Returns a response; None: there is none, its time is over, or it is another tenant's."""
        ...

    async def chain(
        self, response_id: str, tenant: str, most: int, most_bytes: int = 8 * 1024 * 1024
    ) -> Sequence[StoredResponse]:
        """Returns the response and those that it goes on from, the latest first, at most so many; it ends where one is gone.

        It ends with the one by which they have more than `most_bytes`, too.
        """
        ...

    async def remove(self, response_id: str, tenant: str, *, is_expected: bool = False) -> bool:
        """Forgets a response, durably; False: there was none.

        `is_expected`: its job is under way, and what that puts is not kept.
        """
        ...

    async def trim(self, most: int) -> int:
        """Forgets responses whose time is over, at most so many; returns how many."""
        ...
