"""What is told when blobs cannot be written or read: callers hear what is wrong for everybody, the log where and the remedy.

May be called from any thread. Invariant: one trouble is one line in the log, and its end another.
"""

from __future__ import annotations

import errno
import logging
import threading

from gateway.products.jobs.model.errors import JobsUnavailable

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
    """What is wrong with a folder of blobs, if anything is."""

    def __init__(self, folder: str, min_free_bytes: int) -> None:
        self._folder = folder
        self._min_free_bytes = min_free_bytes
        self._lock = threading.Lock()
        self._told: int | None = None
        """The error number that the log has told of."""

    def from_error(self, error: OSError, doing: str) -> JobsUnavailable:
        """Returns the refusal for an error of the system while `doing` ("stored", "read")."""
        number = error.errno or errno.EIO
        if number in _FULL:
            self._tell(errno.ENOSPC, f"is full ({error.strerror}); make room, or set 'jobs.files' to a larger volume")
            return JobsUnavailable(NO_ROOM)
        remedy = _REMEDIES.get(number, "see to it that the folder is there and can be written")
        self._tell(number, f"cannot be used ({error.strerror or error}); {remedy}")
        return JobsUnavailable(f"Files cannot be {doing} now: their disk fails. Plain calls are served.")

    def no_room(self, free_bytes: int) -> JobsUnavailable:
        """Returns the refusal where less is free than has to stay free."""
        least = self._min_free_bytes
        self._tell(
            errno.ENOSPC,
            f"has {free_bytes} bytes free, and {least} have to stay free; make room, or lower 'jobs.min_free'",
        )
        return JobsUnavailable(NO_ROOM)

    def over(self) -> None:
        """Something was written again."""
        if self._told is not None:
            with self._lock:
                was, self._told = self._told, None
            if was is not None:
                log.warning("the folder of files %s can be written again.", self._folder)

    def _tell(self, number: int, what: str) -> None:
        with self._lock:
            was, self._told = self._told, number
        if was != number:
            log.error("the folder of files %s %s. %s", self._folder, what, _WHAT_WAITS)
