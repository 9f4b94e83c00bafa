"""Blobs as the files of a folder: written beside their place, made durable, and then given their name.

The file's bytes reach the disk before its name does, and the name before `commit` returns (fsync of the file, rename, fsync of
the folder), so after a crash a blob is there whole or not at all. Everything that may wait for a disk runs in threads of their
own: the loop never does. Invariants: no name leads out of the folder; what is not committed is gone with its writer, or at the
next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple, TypeVar

from gateway.drivers.durability import JobsUnavailable

# --- names of blobs: paths below a place that is ours, which no name can leave ---


_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}(?:/[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}){0,7}")
"""The form of a name: no step is empty or begins with a dot, so none goes up, and none is a hidden file of ours."""


def check_name(name: str) -> str:
    """Returns the name. Raises ValueError for one that no blob can have: names are made by us, so it is a defect."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a blob")
    return name


# --- trouble: callers get what is wrong for everybody, the log gets where, and the remedy ---


log = logging.getLogger("gateway.store")

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_REMEDIES = {
    errno.EROFS: "mount it writable",
    errno.EACCES: "give the gateway's user the right to write there",
    errno.EPERM: "give the gateway's user the right to write there",
    errno.EIO: "look after the disk: what it holds may be damaged",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files",
}
_WHAT_WAITS = "Uploads are refused and batches wait meanwhile; other jobs and plain calls go on."
NO_ROOM = "Files cannot be stored now: there is no room left for them."


class BlobTrouble:
    """What is wrong with a folder of blobs, if anything is.

    Its methods may be called from any thread. Invariant: one trouble is one line in the log, and its end another.
    """

    def __init__(self, folder: str, min_free_bytes: int) -> None:
        self._folder = folder
        self._min_free_bytes = min_free_bytes
        self._lock = threading.Lock()
        self._logged: int | None = None
        """The error number that is logged already."""

    def from_error(self, error: OSError, doing: str) -> JobsUnavailable:
        """Returns the refusal for an error of the system while `doing` ("stored", "read")."""
        number = error.errno or errno.EIO
        if number in _FULL:
            self._log(errno.ENOSPC, f"is full ({error.strerror}); make room, or set 'jobs.files' to a larger volume")
            return JobsUnavailable(NO_ROOM)
        remedy = _REMEDIES.get(number, "see to it that the folder is there and can be written")
        self._log(number, f"cannot be used ({error.strerror or error}); {remedy}")
        return JobsUnavailable(f"Files cannot be {doing} now: their disk fails. Plain calls are served.")

    def no_room(self, free_bytes: int) -> JobsUnavailable:
        """Returns the refusal where less is free than has to stay free."""
        least = self._min_free_bytes
        self._log(
            errno.ENOSPC,
            f"has {free_bytes} bytes free, and {least} have to stay free; make room, or lower 'jobs.min_free'",
        )
        return JobsUnavailable(NO_ROOM)

    def over(self) -> None:
        """Something was written again."""
        if self._logged is not None:
            with self._lock:
                was, self._logged = self._logged, None
            if was is not None:
                log.warning("the folder of files %s can be written again.", self._folder)

    def _log(self, number: int, what: str) -> None:
        with self._lock:
            was, self._logged = self._logged, number
        if was != number:
            log.error("the folder of files %s %s. %s", self._folder, what, _WHAT_WAITS)


T = TypeVar("T")
PIECE_BYTES = 262_144
"""The bytes of one read or write."""
THREADS = 4
OWNERS = ".store"
"""The file that says which stores of jobs know blobs of the folder."""
NEW = ".new"
"""The folder of files that have no name yet; no blob's name begins with a dot."""


class DirectoryBlobs:
    """Implements `Blobs` on the folder `root`, of whose volume `min_free_bytes` stay free.

    The folder is made when the first blob is: a gateway that has never kept a file has none.
    """

    def __init__(self, root: str | Path, *, min_free_bytes: int = 0, wall: Callable[[], float] = time.time) -> None:
        """`wall` is the clock by which files are old."""
        self._wall = wall
        self.root = Path(root)
        self._min_free_bytes = min_free_bytes
        self._trouble = BlobTrouble(str(root), min_free_bytes)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="blobs")
        self._preparing = threading.Lock()
        self._is_prepared = False

    async def writer(self, name: str) -> DirectoryWriter:
        """Begins a blob. Raises JobsUnavailable, also where less than the free space to be kept is left."""
        path = self._path(name)
        return DirectoryWriter(self, path, await self.run(self._create, "stored", _discard))

    async def read(self, name: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yields the bytes from `start` on, at most `length` of them. Raises JobsUnavailable, FileNotFoundError."""
        path = self._path(name)
        file = await self.run(lambda: OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC)), "read", OpenFile.close)
        try:
            at, end = start, None if length is None else start + length
            while end is None or at < end:
                count = PIECE_BYTES if end is None else min(PIECE_BYTES, end - at)
                piece = await self.run(partial(file.read, at, count), "read")
                if not piece:
                    return
                yield piece
                at += len(piece)
        finally:
            self.submit(file.close)

    async def remove(self, names: Sequence[str]) -> None:
        """Removes blobs, those that are there, and the folders that are empty then. Raises JobsUnavailable."""
        paths = [self._path(name) for name in names]
        if paths:
            await self.run(lambda: self._unlink(paths), "removed")

    async def belong_to(self, store: str) -> bool:
        """Returns whether the folder is this store's alone, by a file in it that names all that have asked."""
        return await self.run(lambda: self._is_of(store), "read")

    async def old_names(self, least_age_s: float, most: int) -> AsyncIterator[Sequence[str]]:
        """Yields the names of files that were written so long ago, by the clock of this machine. Raises JobsUnavailable."""
        found = _old_files(self.root, least_age_s, self._wall)
        while names := await self.run(lambda: list(islice(found, most)), "listed"):
            yield names

    async def remove_below(self, folder: str) -> None:
        """Removes all blobs below a folder, and the folder. Raises JobsUnavailable."""
        path = self._path(folder)
        await self.run(lambda: self._unlink([one for one in path.rglob("*") if one.is_file()]), "removed")

    async def aclose(self) -> None:
        """Returns when nothing is under way any more; what comes later is refused."""
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)

    async def run(self, work: Callable[[], T], doing: str, undo: Callable[[T], object] | None = None) -> T:
        """Does the work in a thread, and undoes it where nobody waits for it any more.

        Raises JobsUnavailable for errors of the system; FileNotFoundError of a read as it is.
        """
        try:
            future = self._pool.submit(work)
        except RuntimeError:
            raise JobsUnavailable("The gateway is stopping and takes no more jobs.") from None
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if undo is not None and not future.cancelled():
                future.add_done_callback(lambda done: None if done.exception() else undo(done.result()))
            raise
        except FileNotFoundError as error:
            if doing == "read":
                raise
            raise self._trouble.from_error(error, doing) from error
        except OSError as error:
            raise self._trouble.from_error(error, doing) from error

    def submit(self, work: Callable[[], object]) -> None:
        """Does the work in a thread, and nobody waits for it."""
        try:
            self._pool.submit(work)
        except RuntimeError:  # at the end, when nothing else runs
            work()

    def _path(self, name: str) -> Path:
        return self.root / check_name(name)

    # The methods below run in threads.

    def refuse_full(self) -> None:
        """Raises JobsUnavailable where less than the free space to be kept is left."""
        if self._min_free_bytes:
            volume = os.statvfs(self.root)
            free_bytes = volume.f_bavail * volume.f_frsize
            if free_bytes < self._min_free_bytes:
                raise self._trouble.no_room(free_bytes)

    def place(self, new: Path, path: Path) -> None:
        """Gives a file its name, durably."""
        for is_last in (False, False, True):
            self._make_folders(path.parent)
            try:
                os.rename(new, path)
                break
            except FileNotFoundError:  # `remove` has just taken the folder for an empty one
                if is_last:
                    raise
        _sync_folder(path.parent)
        self._trouble.over()

    def _prepare(self) -> None:
        """Makes the folder, and removes what writers have left that were killed."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.root / NEW).mkdir(mode=0o700, exist_ok=True)
        for left in (self.root / NEW).iterdir():
            # whoever still writes one, perhaps in another process, has a lock on it
            with contextlib.suppress(OSError):
                number = os.open(left, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(left)
                finally:
                    os.close(number)
        _sync_folder(self.root)
        self._is_prepared = True

    def _create(self) -> NewFile:
        with self._preparing:
            if not self._is_prepared:
                self._prepare()
        if not self.root.is_dir():
            self._prepare()
        self.refuse_full()
        path = self.root / NEW / token_hex(12)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            number = os.open(path, flags, 0o600)
        except FileNotFoundError:  # somebody has taken the folder away meanwhile
            self._prepare()
            number = os.open(path, flags, 0o600)
        with contextlib.suppress(OSError):  # a network's file system may know no locks
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return NewFile(OpenFile(number), path)

    def _make_folders(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_folders(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        _sync_folder(folder.parent)

    def _is_of(self, store: str) -> bool:
        if not self.root.is_dir():
            return False
        owners = self.root / OWNERS
        if not owners.exists() or store not in owners.read_text(encoding="utf-8").split():
            with owners.open("a", encoding="utf-8") as file:
                file.write(f"{store}\n")
        return owners.read_text(encoding="utf-8").split() == [store]

    def _unlink(self, paths: Sequence[Path]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        for folder in {path.parent for path in paths}:
            with contextlib.suppress(OSError):  # it is not empty, or somebody else was faster
                while folder != self.root:
                    os.rmdir(folder)
                    folder = folder.parent


class DirectoryWriter:
    """Implements `BlobWriter`: gathers small writes, and gives large ones to the disk."""

    def __init__(self, blobs: DirectoryBlobs, path: Path, new: NewFile) -> None:
        self._blobs = blobs
        self._path = path
        self._new = new
        self._parts: list[bytes] = []
        self._gathered = 0

    async def write(self, data: bytes) -> None:
        """Adds bytes; may wait for the disk. Raises JobsUnavailable, after which only `abort` may follow."""
        self._parts.append(data)
        self._gathered += len(data)
        if self._gathered >= PIECE_BYTES:
            await self._blobs.run(self._flush_of(), "stored")

    async def commit(self) -> int:
        """Gives the blob its name, durably, in place of an older one; returns its bytes. Raises JobsUnavailable."""
        flush = self._flush_of()

        def finish() -> int:
            file = self._new.file
            with file.lock:  # an `abort` that follows although nobody waits for this any more comes behind it
                flush()
                size = file.sync()
                os.utime(self._new.path)  # its first byte may be hours old, but nobody knows it yet
                self._blobs.place(self._new.path, self._path)
                file.close()
                return size

        return await self._blobs.run(finish, "stored")

    async def abort(self) -> None:
        """Throws away what was written; may follow `commit`, and then does nothing."""
        self._parts.clear()
        self._blobs.submit(partial(_discard, self._new))

    def _flush_of(self) -> Callable[[], None]:
        parts, self._parts, self._gathered = self._parts, [], 0

        def flush() -> None:
            self._blobs.refuse_full()
            self._new.file.append(b"".join(parts))

        return flush


class OpenFile:
    """An open file. Its methods run in threads, one at a time: a caller that was cancelled leaves the work behind."""

    __slots__ = ("_number", "lock")

    def __init__(self, number: int) -> None:
        self._number = number
        self.lock = threading.RLock()

    def read(self, at: int, count: int) -> bytes:
        """Returns the bytes there; fewer at the end."""
        with self.lock:
            return os.pread(self._open(), count, at)

    def append(self, data: bytes) -> None:
        """Writes all of it behind what is there."""
        with self.lock:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._open(), rest) :]

    def sync(self) -> int:
        """Makes all that was written durable; returns its bytes."""
        with self.lock:
            os.fsync(self._open())
            return os.fstat(self._number).st_size

    def close(self) -> None:
        """Closes it, once."""
        with self.lock:
            number, self._number = self._number, -1
            if number >= 0:
                os.close(number)

    def _open(self) -> int:
        if self._number < 0:
            raise JobsUnavailable("The file was given up.")
        return self._number


class NewFile(NamedTuple):
    """A file that has no blob's name yet; once it has, there is nothing at its path."""

    file: OpenFile
    path: Path


def _discard(new: NewFile) -> None:
    with new.file.lock:
        new.file.close()
        with contextlib.suppress(OSError):
            os.unlink(new.path)


def _old_files(root: Path, least_age_s: float, wall: Callable[[], float]) -> Iterator[str]:
    """Yields the names of blobs whose last write is so long ago; goes on where a folder is gone meanwhile."""
    folders = [root]
    while folders:
        with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if wall() - entry.stat(follow_symlinks=False).st_mtime >= least_age_s:
                        yield str(Path(entry.path).relative_to(root))


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
