"""The port of blobs: named bytes that outlive the process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol


class BlobWriter(Protocol):
    """A blob in the making. It is nobody's until `commit`."""

    async def write(self, data: bytes) -> None:
        """Adds bytes; may wait for the disk. Raises JobsUnavailable, after which only `abort` may follow."""
        ...

    async def commit(self) -> int:
        """Gives the blob its name, durably, in place of an older one; returns its bytes. Raises JobsUnavailable."""
        ...

    async def abort(self) -> None:
        """Throws away what was written; may follow `commit`, and then does nothing."""
        ...


class Blobs(Protocol):
    """Named bytes that outlive the process. Names are made by us: letters, digits, `-`, `_`, `.` and `/`."""

    async def writer(self, name: str) -> BlobWriter:
        """Begins a blob. Raises JobsUnavailable, also where less than the free space to be kept is left."""
        ...

    def read(self, name: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yields the bytes from `start` on, at most `length` of them. Raises JobsUnavailable; FileNotFoundError if gone."""
        ...

    async def remove(self, names: Sequence[str]) -> None:
        """Removes blobs, those that are there. Raises JobsUnavailable."""
        ...

    async def belong_to(self, store: str) -> bool:
        """Tells whether all blobs are those of the store of this identity: no other has ever asked.

        False also where they are not to be searched. Raises JobsUnavailable.
        """
        ...

    def old_names(self, least_age_s: float, most: int) -> AsyncIterator[Sequence[str]]:
        """Yields the names of all blobs that were written so long ago, at most so many at a time. Raises JobsUnavailable."""
        ...

    async def remove_below(self, folder: str) -> None:
        """Removes all blobs whose names begin with `folder` and a slash, also those nobody knows. Raises JobsUnavailable."""
        ...

    async def aclose(self) -> None:
        """Ends what is under way."""
        ...
