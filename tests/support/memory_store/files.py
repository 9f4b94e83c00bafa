"""The files of the store of jobs in memory, and the blobs that nobody needs any more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from gateway.products.jobs.model import FileQuery, StoredFile


class MemoryJobFiles:
    """Implements `gateway.products.jobs.store.JobFiles`: knows files by id, in the order in which they came."""

    def __init__(self, wall: Callable[[], float], read_blobs: Callable[[], Collection[str]]) -> None:
        """`read_blobs` gives the blobs that open jobs read."""
        self._wall = wall
        self._read_blobs = read_blobs
        self._files: dict[str, StoredFile] = {}
        self._gone: set[str] = set()
        """The ids of removed files: they keep their places, so that a list can go on behind one of them."""
        self._removed: set[str] = set()
        """Those among them that had not expired: they are never kept again."""
        self._garbage: dict[str, None] = {}

    async def add(self, file: StoredFile) -> None:
        """Keeps a file; the blob of one that it replaces is garbage, unless it is the same, or its own if that was removed."""
        if file.id in self._removed:
            self.discard([file.blob])
            return
        old = self._files.get(file.id)
        if old is not None and old.blob != file.blob and file.id not in self._gone:
            self.discard([old.blob])
        self._files[file.id] = file
        self._gone.discard(file.id)

    async def find(self, file_id: str, tenant: str) -> StoredFile | None:
        """Returns a file of the tenant that has neither been removed nor expired."""
        file = self._files.get(file_id)
        return file if file is not None and file.tenant == tenant and self._is_there(file) else None

    async def page(self, query: FileQuery) -> tuple[Sequence[StoredFile], bool]:
        """Returns a page of files, and whether there are more; nothing behind an id that the tenant never had."""
        places = list(self._files.values())
        if query.is_newest_first:
            places.reverse()
        places = [file for file in places if file.tenant == query.tenant]
        if query.after is not None:
            ids = [file.id for file in places]
            places = places[ids.index(query.after) + 1 :] if query.after in ids else []
        found = [file for file in places if self._is_there(file) and query.purpose in (None, file.purpose)]
        return found[: query.limit], len(found) > query.limit

    async def remove(self, file_id: str, tenant: str) -> bool:
        """Takes a file away; returns whether there was one."""
        file = await self.find(file_id, tenant)
        if file is None:
            return False
        self._gone.add(file_id)
        self._removed.add(file_id)
        self.discard([file.blob])
        return True

    async def bytes_of(self, tenant: str | None) -> int:
        """Returns the bytes of the files that are there, of one tenant or of all."""
        return sum(
            file.bytes for file in self._files.values() if tenant in (None, file.tenant) and self._is_there(file)
        )

    def discard(self, blobs: Sequence[str]) -> None:
        """Notes blobs that are garbage as soon as nothing refers to them."""
        self._garbage.update(dict.fromkeys(blob for blob in blobs if blob))

    async def find_garbage(self, most: int) -> Sequence[str]:
        """Returns names of blobs that nothing refers to any more, until they are forgotten."""
        read = self._read_blobs()
        for file in self._files.values():
            if file.id not in self._gone and not self._is_there(file):
                self._gone.add(file.id)
                self.discard([file.blob])
        used = {file.blob for file in self._files.values() if self._is_there(file)}
        return [blob for blob in self._garbage if blob not in used and blob not in read][:most]

    async def forget_garbage(self, names: Sequence[str]) -> None:
        """Forgets blobs that have been removed."""
        for name in names:
            self._garbage.pop(name, None)

    async def used(self, names: Sequence[str]) -> Collection[str]:
        """Returns the blobs that are a file's, are read by a job that has not ended, or are garbage as yet."""
        read = self._read_blobs()
        files = {file.blob for file in self._files.values() if file.id not in self._gone}
        return {name for name in names if name in files or name in read or name in self._garbage}

    def _is_there(self, file: StoredFile) -> bool:
        return file.id not in self._gone and (file.expires_at is None or file.expires_at > self._wall())
