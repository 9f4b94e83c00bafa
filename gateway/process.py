"""The process: whether its Python was built to be fast (`doubt`), and its memory.

The same call takes a third more CPU time on a Python that was not.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

DISTRIBUTIONS = frozenset(("/usr",))
"""Where Linux distributions put theirs. They are optimised in ways that their configure line does not always tell: Debian's
says nothing of the profile that its packages are built with."""


def doubt() -> str | None:
    """Tell in a sentence why the interpreter may be slower than others; None where it was built with optimisations.

    That is the case with `./configure --enable-optimizations` (profile-guided, see Python's "Configure Python"), and with
    what a distribution ships. Where a build tells nothing of itself, as on Windows, nothing is doubted.
    """
    variables = sysconfig.get_config_vars()
    return judge(
        str(variables.get("CONFIG_ARGS") or ""),
        str(variables.get("PY_CORE_CFLAGS") or ""),
        prefix=sys.base_prefix,
        is_debug=bool(variables.get("Py_DEBUG")),
    )


def judge(configured: str, flags: str, *, prefix: str, is_debug: bool) -> str | None:
    """Judge a build by its configure line, its compiler flags (the last -O counts) and where it is installed."""
    levels = re.findall(r"(?<!\S)-O(\S*)", flags)
    if is_debug or (flags and (not levels or levels[-1] == "0")):
        return (
            "this Python is a debug build, or compiled without optimisation: a call may cost several times as much CPU"
        )
    is_optimised = "--enable-optimizations" in configured or "-fprofile-use" in flags
    if is_optimised or not configured or prefix in DISTRIBUTIONS:
        return None
    return (
        f"the Python at {prefix} was built without --enable-optimizations: a call costs up to a third more CPU than on one "
        "that was"
    )


# --- its memory, and the C library's way to give freed memory back to the system ---


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
