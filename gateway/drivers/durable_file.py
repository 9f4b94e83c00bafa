"""A file and its thread, asked from the event loop: work is done, or its caller learns that it was not.

Invariants: what a caller was told to have failed does not happen later; what was claimed for a caller who never heard of it is
ready again.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final, TypeVar

from gateway.core.clock import Ahead
from gateway.drivers.durability import JobsUnavailable
from gateway.drivers.sqlite import Effort, File, FileThread, Rest, Total, Trouble
from gateway.drivers.sqlite_file import Connect, FileKind

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T | Rest]
Undo = Callable[[sqlite3.Connection], None]

FAILED: Final = object()
"""The result of work that could not be done."""


class DurableFile:
    """Has work done in the file's thread; the constructor opens the file and raises StoreUnusable."""

    def __init__(
        self,
        path: str,
        kind: FileKind,
        begin: Callable[[sqlite3.Connection, int], None],
        readied: Callable[[], int],
        connect: Connect,
        monotonic: Callable[[], float],
        ahead: Ahead,
    ) -> None:
        """`begin` works on the file when it is opened, as in `File`; `readied` counts what work has made ready so far."""
        self._readied = readied
        trouble = Trouble(path, kind, monotonic)
        self._file = File(
            *(path, kind, connect, trouble),
            keep_to_bounds=lambda _db, _totals: False,
            begin=begin,
            ahead=ahead,
        )
        self._thread = FileThread(self._file, trouble, monotonic)
        self._thread.start()
        self._wakes: list[Callable[[], None]] = []
        self._is_closing = False
        self.changes = 0
        """Grows with everything that has changed the file, or may have."""
        self._quiet_until = -inf

    @property
    def totals(self) -> Sequence[Total]:
        """Returns the counts of pieces and open jobs as of the last write."""
        return self._file.totals

    @property
    def is_well(self) -> bool:
        """Returns whether the last attempt to write did not fail."""
        return self._thread.is_well

    def is_quiet(self, now: float) -> bool:
        """Returns whether it is known that nothing is ready or due."""
        return now < self._quiet_until

    def note_quiet(self, until: float, changes: int) -> None:
        """Notes that nothing is ready or becomes due until then, found out when there were so many changes."""
        if changes == self.changes:
            self._quiet_until = until

    def on_ready(self, wake: Callable[[], None]) -> None:
        """Registers `wake`, called when a piece became ready."""
        self._wakes.append(wake)

    def watch(self) -> None:
        """Is called about once a second: gives up work that has waited too long for the disk."""
        self._thread.watch()

    async def backup(self, path: str) -> str | None:
        """Copies the file to `path`, which must not exist; returns an error message or None."""
        return await self._thread.backup(path)

    async def aclose(self) -> None:
        """Does all that was asked, and nothing more."""
        self._is_closing = True
        await self._thread.aclose()

    async def read(self, work: Work[T]) -> T:
        """Returns the result of work that changes nothing. Raises JobsUnavailable."""
        return await self._answer(work, "read")

    async def write(self, work: Work[T], *, undo: Undo | None = None, is_undone_unacknowledged: bool = False) -> T:
        """Returns the result of work once it is on the disk. Raises JobsUnavailable; then `undo` takes back what was done.

        `is_undone_unacknowledged`: also where the caller was cancelled meanwhile.
        """
        return await self._answer(work, "acknowledged", undo, is_undone_unacknowledged)

    async def note(self, work: Work[T]) -> T:
        """Returns the result of work that no piece waits for, and that a loss of power may take back. Raises JobsUnavailable.

        Where it has failed it may be done all the same.
        """
        result: T = self._unwrap(await self._thread.later(work, FAILED, "cache"))
        return result

    async def _answer(
        self,
        work: Work[T],
        effort: Effort,
        undo: Undo | None = None,
        is_undone_unacknowledged: bool = False,
    ) -> T:
        """Has the work done, and returns its result. Raises JobsUnavailable."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def answered(result: Any) -> None:
            if future.done():  # the caller was cancelled
                if is_undone_unacknowledged and undo is not None and result is not FAILED:
                    self.submit(undo, "durable", lambda _: None)
            else:
                future.set_result(result)

        self.submit(work, effort, answered, undo)
        answer: T = self._unwrap(await future)
        return answer

    def _unwrap(self, result: Any) -> Any:
        """Returns the result of work that could be done, or raises JobsUnavailable."""
        if result is FAILED:
            raise JobsUnavailable(
                "Jobs cannot be kept now: the gateway is stopping. Send the request again in a moment."
                if self._is_closing
                else "Jobs cannot be kept or read now: the gateway's disk fails, or is full. Try again later."
            )
        return result

    def submit(self, work: Work[Any], effort: Effort, then: Callable[[Any], None], undo: Undo | None = None) -> None:
        """Has the work done; `then` gets its result, or FAILED. Those who wait for work are woken where some became ready."""

        def answered(result: Any) -> None:
            value, is_ready, is_changed = (FAILED, False, True) if result is FAILED else result
            if is_changed:
                self.changes += 1
                self._quiet_until = -inf
            if is_ready:
                for wake in self._wakes:
                    wake()
            then(value)

        self._thread.submit(self._noting(work), FAILED, answered, effort, undo=undo)

    def _noting(self, work: Work[Any], was_ready: bool = False, was_changed: bool = False) -> Work[Any]:
        """Returns the work with another result: its own, whether pieces became ready by it, and whether it changed anything."""

        def noting(db: sqlite3.Connection) -> Any:
            readied, changes = self._readied(), db.total_changes
            result = work(db)
            is_ready = was_ready or self._readied() > readied
            is_changed = was_changed or db.total_changes > changes
            if isinstance(result, Rest):
                return Rest(self._noting(result.work, is_ready, is_changed))
            return result, is_ready, is_changed

        return noting
