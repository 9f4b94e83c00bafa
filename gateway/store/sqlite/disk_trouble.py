"""How the disk fares: what is said of it, when it is tried again, and what is owed to it meanwhile.

It must not know sqlite's ways. Invariants: trouble is told once, and its end; it is over when a write has succeeded and
everything that had to be kept meanwhile is in the file.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from gateway.errors import StoreUnusable
from gateway.store.sqlite.jobs import FileJob

log = logging.getLogger("gateway.store")

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 15.0
"""How soon a failed disk is tried again, doubling."""
QUIET_S = 60.0
"""Trouble that comes back within this time is the same trouble, and is not told again."""
OWED_BYTES = 16 * 1024 * 1024
"""Of what has to be kept, or forgotten, and could not be written, so much is remembered until it can."""


class Trouble:
    """Of one file; `is_well` may be asked from any thread."""

    def __init__(self, path: str, monotonic: Callable[[], float]) -> None:
        self._path = path
        self._monotonic = monotonic
        self._retry_at: float | None = None
        """None: all is well."""
        self._retry_s = FIRST_RETRY_S
        self._told_at: float | None = None
        self._is_told = False
        """Of the present trouble."""
        self._odd_at: float | None = None
        self.owed: deque[FileJob] = deque()
        self._owed_bytes = 0
        self._missed = 0

    @property
    def is_well(self) -> bool:
        """Whether what is written now is believed to last."""
        return self._retry_at is None

    @property
    def may_try(self) -> bool:
        """Whether it is well, or time to see whether it is."""
        return self._retry_at is None or self._monotonic() >= self._retry_at

    def try_now(self) -> None:
        """It is time."""
        if self._retry_at is not None:
            self._retry_at = self._monotonic()

    def began(self, error: BaseException) -> None:
        """It does not work, or still not."""
        now = self._monotonic()
        is_new = self._retry_at is None
        self._retry_s = FIRST_RETRY_S if is_new else min(LAST_RETRY_S, self._retry_s * 2)
        self._retry_at = now + self._retry_s
        if is_new and (self._told_at is None or now - self._told_at >= QUIET_S):
            self._told_at, self._is_told = now, True
            log.warning(
                "%s Calls go on; what they would leave for others is kept in memory only, until the file works again. "
                "There has to be room on a disk that works; a broken file is to be replaced by a backup, or moved away.",
                error if isinstance(error, StoreUnusable) else f"state file {self._path}: {error}.",
            )

    def log_data_error(self, error: BaseException) -> None:
        """Something is not what can be stored or read; that is said now and then."""
        now = self._monotonic()
        if self._odd_at is None or now - self._odd_at >= QUIET_S:
            self._odd_at = now
            log.warning("state file %s: something could not be stored or read: %r", self._path, error)

    def missed(self, job: FileJob) -> None:
        """A write could not be done; one that has to be is remembered."""
        if job.effort == "durable" and self._owed_bytes + job.bytes <= OWED_BYTES:
            self.owed.append(job)
            self._owed_bytes += job.bytes
        else:
            self._missed += bool(job.bytes)

    def ended(self) -> None:
        """It works, and has been given all that it was owed."""
        missed = self._missed
        self._retry_at, self._owed_bytes, self._missed = None, 0, 0
        self.owed.clear()
        if self._is_told:
            self._is_told = False
            log.warning("state file %s works again; it misses %d writes.", self._path, missed)
