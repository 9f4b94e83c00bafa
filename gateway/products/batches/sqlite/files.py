"""The files of the jobs file, asked from the event loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from gateway.products.batches.sqlite import file_rows
from gateway.products.jobs.model.stored_file import FileQuery, StoredFile
from gateway.products.jobs.sqlite_store.file import JobsFile


class SqliteJobFiles:
    """Implements `gateway.products.jobs.store.files.JobFiles`."""

    def __init__(self, file: JobsFile, wall: Callable[[], float]) -> None:
        self._file = file
        self._wall = wall

    async def add(self, file: StoredFile) -> None:
        """Keeps a file, durably; one with the same id is replaced."""
        await self._file.write(
            lambda db: file_rows.add(db, file),
            undo=lambda db: file_rows.take_back(db, file),
            is_undone_unheard=True,
        )

    async def find(self, file_id: str, tenant: str) -> StoredFile | None:
        """Returns a file; None: there is none, it has expired, or it is another tenant's."""
        now = self._wall()
        return await self._file.read(lambda db: file_rows.find(db, file_id, tenant, now))

    async def page(self, query: FileQuery) -> tuple[Sequence[StoredFile], bool]:
        """Returns a page of files, and whether there are more."""
        now = self._wall()
        return await self._file.read(lambda db: file_rows.page_of(db, query, now))

    async def remove(self, file_id: str, tenant: str) -> bool:
        """Takes a file away from its tenant; its blob stays while an open job reads it."""
        now = self._wall()
        return await self._file.write(lambda db: file_rows.remove(db, file_id, tenant, now))

    async def bytes_of(self, tenant: str | None) -> int:
        """Returns the bytes of all files that a tenant has; None: of everybody's."""
        now = self._wall()
        return await self._file.read(lambda db: file_rows.bytes_of(db, tenant, now))

    async def find_garbage(self, most: int) -> Sequence[str]:
        """Returns names of blobs that nothing refers to any more, until they are forgotten."""
        now = self._wall()
        return await self._file.write(lambda db: file_rows.find_garbage(db, most, now))

    async def forget_garbage(self, names: Sequence[str]) -> None:
        """Forgets blobs that have been removed."""
        await self._file.write(lambda db: file_rows.forget_garbage(db, names))

    async def used(self, names: Sequence[str]) -> Collection[str]:
        """Returns those of the blobs that are a file's, are read by a job that has not ended, or are garbage as yet."""
        return await self._file.read(lambda db: file_rows.used_of(db, names))
