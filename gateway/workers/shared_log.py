"""The standard output that all workers write their call log to: whole batches, one worker at a time.

A batch is longer than what a pipe takes in one piece, so without turns the lines of one would end up inside those of another.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from typing import TextIO


class LockedLog:
    """A stream whose writer waits for its turn; `turns` is of `make_turns`, and common to all.

    The lock is a process's own, and is gone when the process is.
    """

    def __init__(self, stream: TextIO, turns: int) -> None:
        self._stream = stream
        self._turns = turns

    def write(self, text: str) -> int:
        """Write and flush."""
        fcntl.lockf(self._turns, fcntl.LOCK_EX)
        try:
            self._stream.write(text)
            self._stream.flush()
        finally:
            fcntl.lockf(self._turns, fcntl.LOCK_UN)
        return len(text)

    def flush(self) -> None:
        """Nothing is left to write."""


def make_turns() -> int:
    """The descriptor of a file without a name, by whose lock processes that inherit it take turns."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("gateway-log")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
