"""The kept responses in the jobs file, asked from the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.products.jobs.sqlite_store.file import JobsFile
from gateway.products.responses.log.shared_logs.bounds import EarlyResponses, KeptBounds
from gateway.products.responses.rules.response_object.stored_response import StoredResponse
from gateway.products.responses.sqlite import kept_rows


class SqliteKeptResponses:
    """Implements `gateway.products.responses.rules.response_object.kept_responses.KeptResponses`."""

    def __init__(self, file: JobsFile, wall: Callable[[], float], bounds: KeptBounds) -> None:
        self._file = file
        self._wall = wall
        self._bounds = bounds
        self._early = EarlyResponses(bounds)

    @property
    def early(self) -> int:
        """Returns how many went before their time."""
        return self._early.count

    async def put(self, response: StoredResponse) -> None:
        """Keeps a response, durably, in place of one with the same id; one that was removed is not kept again."""
        now = self._wall()
        self._early.note(await self._file.write(lambda db: kept_rows.put(db, response, now, self._bounds)))

    async def find(self, response_id: str, tenant: str) -> StoredResponse | None:
        """Returns a response of the tenant whose time is not over."""
        now = self._wall()
        return await self._file.read(lambda db: kept_rows.find(db, response_id, tenant, now))

    async def chain(
        self, response_id: str, tenant: str, most: int, most_bytes: int = 8 * 1024 * 1024
    ) -> Sequence[StoredResponse]:
        """Returns the response and those that it goes on from, the latest first."""
        now = self._wall()
        return await self._file.read(lambda db: kept_rows.chain(db, response_id, tenant, most, most_bytes, now))

    async def remove(self, response_id: str, tenant: str, *, is_expected: bool = False) -> bool:
        """Forgets a response, durably; it is not kept again."""
        now = self._wall()
        return await self._file.write(
            lambda db: kept_rows.remove(db, response_id, tenant, now, is_expected=is_expected)
        )

    async def trim(self, most: int) -> int:
        """Forgets responses whose time is over."""
        now = self._wall()
        return await self._file.write(lambda db: kept_rows.trim(db, most, now))
