"""The standard output to which all workers write their call log: whole batches, one worker at a time.

A batch is longer than the bytes that a pipe takes atomically, so without a lock the lines of workers would be mixed.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from typing import TextIO


class LockedLog:
    """A stream whose writer takes a lock first; `lock` is the descriptor of `make_lock`, which all workers share.

    A process that dies releases the lock.
    """

    def __init__(self, stream: TextIO, lock: int) -> None:
        self._stream = stream
        self._lock = lock

    def write(self, text: str) -> int:
        """Writes and flushes the text."""
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            self._stream.write(text)
            self._stream.flush()
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)
        return len(text)

    def flush(self) -> None:
        """Does nothing: `write` flushes."""


def make_lock() -> int:
    """Returns the descriptor of an unnamed file, whose lock the processes that inherit it take in turn."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("gateway-log")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
