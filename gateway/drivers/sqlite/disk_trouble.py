"""Keeps the state of a failing disk: when it is tried again, what the log says, and which writes it still has to take.

It must not know how sqlite works. Invariants: the log tells once of the trouble and once of its end; the trouble is over when
a write has succeeded and every durable write that was missed is in the file.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from gateway.core.errors import StoreUnusable
from gateway.drivers.sqlite_store.opening import FileKind
from gateway.products.jobs.sqlite_rows.jobs import FileJob, Work

log = logging.getLogger("gateway.store")

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 15.0
"""Seconds until a failed disk is tried again: the first delay, doubled after each failure up to the second."""
QUIET_S = 60.0
"""Trouble that returns within this many seconds counts as the same and is not logged again."""
OWED_BYTES = 16 * 1024 * 1024
"""Durable writes and deletions that failed are remembered up to this many bytes, until the file takes them."""


class Trouble:
    """The trouble of one file; any thread may ask for `is_well`."""

    def __init__(self, path: str, kind: FileKind, monotonic: Callable[[], float]) -> None:
        self._path = path
        self._kind = kind
        self._monotonic = monotonic
        self._retry_at: float | None = None
        """The monotonic time of the next attempt; None while the disk works."""
        self._retry_s = FIRST_RETRY_S
        self._told_at: float | None = None
        self._is_told = False
        """The log has told of the present trouble, and has to tell of its end."""
        self._odd_at: float | None = None
        self.owed: deque[FileJob] = deque()
        self._owed_bytes = 0
        self._missed = 0

    @property
    def is_well(self) -> bool:
        """Tells whether a write is expected to last: the last attempt did not fail."""
        return self._retry_at is None

    @property
    def may_try(self) -> bool:
        """Tells whether the disk works, or the next attempt is due."""
        return self._retry_at is None or self._monotonic() >= self._retry_at

    def try_now(self) -> None:
        """Makes the next attempt due now."""
        if self._retry_at is not None:
            self._retry_at = self._monotonic()

    def began(self, error: BaseException) -> None:
        """Notes that an attempt failed, sets the time of the next one, and logs new trouble."""
        now = self._monotonic()
        is_new = self._retry_at is None
        self._retry_s = FIRST_RETRY_S if is_new else min(LAST_RETRY_S, self._retry_s * 2)
        self._retry_at = now + self._retry_s
        if is_new and (self._told_at is None or now - self._told_at >= QUIET_S):
            self._told_at, self._is_told = now, True
            log.warning(
                "%s %s",
                error if isinstance(error, StoreUnusable) else f"{self._kind.name} {self._path}: {error}.",
                self._kind.when_failing,
            )

    def log_data_error(self, error: BaseException) -> None:
        """Logs, at most once a minute, that a job failed because of its data and not because of the disk."""
        now = self._monotonic()
        if self._odd_at is None or now - self._odd_at >= QUIET_S:
            self._odd_at = now
            log.warning("%s %s: something could not be stored or read: %r", self._kind.name, self._path, error)

    def missed(self, job: FileJob) -> None:
        """Notes that a write failed: a durable one is owed to the file, any other is counted as lost."""
        if job.effort == "durable" and self._owed_bytes + job.bytes <= OWED_BYTES:
            self.owed.append(job)
            self._owed_bytes += job.bytes
        else:
            self._missed += bool(job.bytes)

    def owe(self, undo: Work) -> None:
        """Notes work that takes back what may be in the file though it was told to have failed."""
        self.owed.append(FileJob(undo, None, "durable"))

    def ended(self) -> None:
        """Notes that the disk works and has taken all owed writes; logs the end of trouble that was logged."""
        missed = self._missed
        self._retry_at, self._owed_bytes, self._missed = None, 0, 0
        self.owed.clear()
        if self._is_told:
            self._is_told = False
            log.warning("%s %s works again; it misses %d writes.", self._kind.name, self._path, missed)
