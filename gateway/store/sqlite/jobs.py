"""The jobs that the event loop hands to the file's thread, and how durable each has to be."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Work = Callable[[sqlite3.Connection], Any]
"""Works on the file; it may run twice. It returns a `Rest` when it has more to do after other jobs have had their turn."""
Effort = Literal["read", "cache", "durable"]
"""`read` changes nothing; a `cache` write may be lost with the power; a `durable` one is on the disk when it is done."""


@dataclass(slots=True, eq=False)
class FileJob:
    """One read or write of the file."""

    work: Work
    otherwise: Any
    """The result when the job cannot be run."""
    effort: Effort = "read"
    bytes: int = 0
    """The memory that the job holds until it is done."""
    then: Callable[[Any], None] | None = None
    """Is called with the result in the event loop; None: the caller does not wait."""
    asked_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Backup:
    """The order to copy the whole file while jobs go on."""

    path: str
    """The path of the copy, where no file exists yet."""
    told: Callable[[str | None], None]
    """Is called in the event loop with an error message; None: the copy is complete and on the disk."""


@dataclass(frozen=True, slots=True)
class Rest:
    """The result of work that has more to do: the work that goes on."""

    work: Work
