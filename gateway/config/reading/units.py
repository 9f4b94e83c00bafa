"""Quantities as people write them: durations (`300ms`, `30s`, `5m`, `6h`, `1d`) and sizes (`20MB`, `512MiB`).

A bare number is refused: whoever reads it later would have to guess the unit.
"""

from __future__ import annotations

import re
from typing import Final

_BARE_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")

_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MAX_DURATION_S = 366 * 86400.0

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?(B|kB|MB|GB|KiB|MiB|GiB)", re.IGNORECASE)
_BYTES: Final = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
MAX_SIZE_BYTES = 2**40


def parse_duration(text: object) -> float:
    """Seconds. Raises ValueError, whose message continues the sentence that begins with the value."""
    match = _DURATION.fullmatch(str(text))
    if match is None:
        what = "has no unit" if _BARE_NUMBER.fullmatch(str(text)) else "is not a duration"
        raise ValueError(f"{what}: write for example 300ms, 30s, 5m, 6h or 1d")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > MAX_DURATION_S:
        raise ValueError("is too long: at most 366d")
    return seconds


def parse_size(text: object) -> int:
    """Bytes. Raises ValueError, whose message continues the sentence that begins with the value."""
    match = _SIZE.fullmatch(str(text))
    if match is None:
        what = "has no unit" if _BARE_NUMBER.fullmatch(str(text)) else "is not a size"
        raise ValueError(f"{what}: write for example 500kB, 20MB or 512MiB")
    size = int(float(match[1]) * _BYTES[match[2].lower()])
    if size > MAX_SIZE_BYTES:
        raise ValueError("is too large: at most 1024GiB")
    return size
