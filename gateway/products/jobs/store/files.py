"""The port of the files of the Files API: their rows, and the blobs that nobody needs any more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from gateway.products.jobs.model.stored_file import FileQuery, StoredFile


class JobFiles(Protocol):
    """The files of the Files API in a store of jobs, and which blobs are still needed. Every method raises JobsUnavailable."""

    async def add(self, file: StoredFile) -> None:
        """Keeps a file, durably; one with the same id is replaced, but one that was removed stays so: the blob is garbage."""
        ...

    async def find(self, file_id: str, tenant: str) -> StoredFile | None:
        """Returns a file; None: there is none, it has expired, or it is another tenant's."""
        ...

    async def page(self, query: FileQuery) -> tuple[Sequence[StoredFile], bool]:
        """Returns a page of files, and whether there are more; it goes on behind a file that was removed meanwhile, too."""
        ...

    async def remove(self, file_id: str, tenant: str) -> bool:
        """Takes a file away from its tenant; its blob stays while a job that is not at its end reads it (`NewJob.reads`)."""
        ...

    async def bytes_of(self, tenant: str | None) -> int:
        """Returns the bytes of all files that a tenant has; None: of everybody's."""
        ...

    async def find_garbage(self, most: int) -> Sequence[str]:
        """Returns names of blobs of removed, replaced and expired files, of chunks of ended jobs, until forgotten."""
        ...

    async def forget_garbage(self, names: Sequence[str]) -> None:
        """Forgets blobs that `find_garbage` has named, once they are removed."""
        ...

    async def used(self, names: Sequence[str]) -> Collection[str]:
        """Returns those of the blobs that are a file's, are read by a job that has not ended, or are garbage as yet."""
        ...
