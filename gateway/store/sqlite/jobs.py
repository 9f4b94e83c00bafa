"""What the event loop has the file's thread do, and how sure it has to be of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Work = Callable[[sqlite3.Connection], Any]
"""May be done twice; returns a `Rest` when it has more to do, after others have had their turn."""
Effort = Literal["read", "cache", "durable"]
"""`read` changes nothing; a `cache` write may be lost with the power; a `durable` one is on the disk when it is done."""


@dataclass(slots=True, eq=False)
class FileJob:
    """Something to do with the file."""

    work: Work
    otherwise: Any
    """Its result when it cannot be done."""
    effort: Effort = "read"
    bytes: int = 0
    """Held in memory until it is done."""
    then: Callable[[Any], None] | None = None
    """Called with the result in the event loop."""
    asked_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy of the whole file, to be made while jobs go on."""

    path: str
    """A file that does not exist yet."""
    told: Callable[[str | None], None]
    """Called in the event loop with what went wrong; None: the copy is there, and on the disk."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left of some work."""

    work: Work
