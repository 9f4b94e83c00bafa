"""Measures this process's memory, and finds the C library's way to give freed memory back to the system.

It must not know when that is done, nor what it is for.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

Trim = Callable[[], object]


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
