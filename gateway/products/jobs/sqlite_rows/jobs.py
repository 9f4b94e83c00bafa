"""The jobs that the event loop hands to the file's thread, and how durable each has to be."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal

Work = Callable[[sqlite3.Connection], Any]
"""Works on the file; it may run twice. It returns a `Rest` when it has more to do after other jobs have had their turn."""
Effort = Literal["read", "cache", "durable", "told"]
"""`read` changes nothing; a `cache` write may be lost with the power; a `durable` one is on the disk when it is done, and is
made up for later if it failed; a `told` one is as durable, but where it fails this is told, and nothing of it happens later."""


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
    undo: Work | None = None
    """Takes back what a `told` job has done where its caller was told that it failed."""
    _verdict: Lock | None = field(default=None, init=False)
    """Of a `told` job that somebody waits for: whoever takes it decides whether the job is done or was given up."""

    def __post_init__(self) -> None:
        if self.effort == "told":
            self._verdict = Lock()

    def decide(self) -> bool:
        """Returns True to the first that asks, which is the loop that gives a job up or the thread that has done it."""
        return self._verdict is None or self._verdict.acquire(blocking=False)

    @property
    def is_given_up(self) -> bool:
        """Tells whether a `told` job need not be done any more."""
        return self._verdict is not None and self._verdict.locked()


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
