"""Blobs in memory, in place of a directory: they are lost with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from gateway.drivers.blobs import check_name
from gateway.drivers.durability import JobsUnavailable

PIECE_BYTES = 262_144
"""Of one piece that a reader gets."""


class MemoryBlobs:
    """Implements `Blobs`."""

    def __init__(self, max_bytes: int = 1024**3) -> None:
        self._max_bytes = max_bytes
        self._blobs: dict[str, bytes] = {}
        self._bytes = 0

    @property
    def names(self) -> list[str]:
        """The names of all blobs, in order, for tests."""
        return sorted(self._blobs)

    async def writer(self, name: str) -> MemoryWriter:
        """Begins a blob. Raises JobsUnavailable where there is no room."""
        check_name(name)
        self.refuse_over(0)
        return MemoryWriter(self, name)

    async def read(self, name: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yields the bytes from `start` on. Raises FileNotFoundError."""
        blob = self._blobs.get(check_name(name))
        if blob is None:
            raise FileNotFoundError(name)
        end = len(blob) if length is None else min(len(blob), start + length)
        for at in range(start, end, PIECE_BYTES):
            yield blob[at : min(end, at + PIECE_BYTES)]

    async def remove(self, names: Sequence[str]) -> None:
        """Removes blobs, those that are there."""
        for name in names:
            self._bytes -= len(self._blobs.pop(check_name(name), b""))

    async def belong_to(self, _store: str) -> bool:
        """Returns False: nothing is left behind here, for it goes with the process."""
        return False

    async def old_names(self, _least_age_s: float, _most: int) -> AsyncIterator[Sequence[str]]:
        """Yields nothing."""
        nothing: Sequence[Sequence[str]] = ()
        for names in nothing:
            yield names

    async def remove_below(self, folder: str) -> None:
        """Removes all blobs below a folder."""
        start = f"{check_name(folder)}/"
        await self.remove([name for name in self._blobs if name.startswith(start)])

    async def aclose(self) -> None:
        """There is nothing to end."""

    def keep(self, name: str, data: bytes) -> None:
        """Gives the blob its name, in place of an older one."""
        self._bytes += len(data) - len(self._blobs.get(name, b""))
        self._blobs[name] = data

    def refuse_over(self, more: int) -> None:
        """Raises JobsUnavailable where `more` bytes find no room."""
        if self._bytes + more >= self._max_bytes:
            raise JobsUnavailable("Files cannot be stored now: there is no room left for them.")


class MemoryWriter:
    """Implements `BlobWriter`."""

    def __init__(self, blobs: MemoryBlobs, name: str) -> None:
        self._blobs = blobs
        self._name = name
        self._data = bytearray()

    async def write(self, data: bytes) -> None:
        """Adds bytes. Raises JobsUnavailable where there is no room."""
        self._blobs.refuse_over(len(self._data) + len(data))
        self._data += data

    async def commit(self) -> int:
        """Gives the blob its name; returns its bytes."""
        self._blobs.keep(self._name, bytes(self._data))
        return len(self._data)

    async def abort(self) -> None:
        """Throws away what was written, unless it was committed."""
        self._data.clear()
