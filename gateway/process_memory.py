"""Measures this process's memory, and gives freed memory back to the system.

The C library keeps freed memory for later use, also after a peak that will not come again; glibc gives it back when told to.
That takes milliseconds for hundreds of megabytes, so it is done rarely: before load would be shed for want of memory, and when
a peak is over. It must not know which calls are shed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from gateway.flow.shedding import EASY

PEAK_BYTES = 32 * 1024 * 1024
"""Memory is given back, while no call is served, when it exceeds the last amount by this much."""
SOONEST_S = 10.0
"""The least seconds between two attempts if the first freed memory; each attempt that frees nothing doubles them."""
LATEST_S = 60.0
LITTLE = 0.02
"""The part of the resident memory below which an attempt counts as having freed nothing."""

Trim = Callable[[], object]


class GiveBack:
    """Decides when freed memory is given back to the system. One per process."""

    __slots__ = ("_next_at", "_settled_bytes", "_trim", "_wait_s")

    def __init__(self, trim: Trim | None) -> None:
        """`trim` gives memory back within milliseconds; None: the C library has no such function, and nothing is ever due."""
        self._trim = trim
        self._next_at = float("-inf")
        self._wait_s = SOONEST_S
        self._settled_bytes: int | None = None

    def is_due(self, now: float, resident_bytes: int | None, limit: int | None, *, is_at_rest: bool) -> bool:
        """Returns whether to give memory back now: it is nearly at `limit`, or a peak is over and no call is served."""
        if self._trim is None or resident_bytes is None or now < self._next_at:
            return False
        if limit and resident_bytes > EASY * limit:
            return True
        if self._settled_bytes is None or resident_bytes < self._settled_bytes:
            self._settled_bytes = resident_bytes
        return is_at_rest and resident_bytes > self._settled_bytes + PEAK_BYTES

    def run(self) -> None:
        """Gives memory back; to be called in a thread."""
        if self._trim is not None:
            self._trim()

    def done(self, now: float, before_bytes: int, after_bytes: int) -> None:
        """Notes the result: the memory that is resident now is the normal amount until a new peak."""
        brought = before_bytes - after_bytes > LITTLE * before_bytes
        self._wait_s = SOONEST_S if brought else min(2 * self._wait_s, LATEST_S)
        self._next_at = now + self._wait_s
        self._settled_bytes = after_bytes


def find_trim() -> Trim | None:
    """Returns glibc's `malloc_trim` for all that is free; None with another C library."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return None if trim is None else lambda: trim(0)


def resident_bytes() -> int | None:
    """Returns the memory that this process has in RAM, in bytes; None where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_bytes().split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def container_bytes(limit_file: Path = Path("/sys/fs/cgroup/memory.max")) -> int | None:
    """Returns four fifths of the memory that the container may use (cgroup v2), in bytes; None where it is not limited."""
    try:
        limit = limit_file.read_text().strip()
    except OSError:
        return None
    return int(limit) * 4 // 5 if limit.isdigit() else None
