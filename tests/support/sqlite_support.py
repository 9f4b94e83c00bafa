"""Connections that are not what they seem: hasty ones, and ones whose disk does as a test says."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


class Hasty(sqlite3.Connection):
    """Never waits for the disk to be sure: for tests that are not about what survives a loss of power."""

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql.startswith("PRAGMA synchronous"):
            sql = "PRAGMA synchronous = OFF"
        elif sql.startswith("PRAGMA journal_mode"):
            super().execute("PRAGMA synchronous = OFF")
        return super().execute(sql, *parameters)


connect_hastily = partial(sqlite3.connect, factory=Hasty)


class Disk:
    """Sees every statement, and does `before` first, which may raise or wait."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.opened = 0
        self.last: sqlite3.Connection
        """The one opened last."""
        self.most_pages = 0
        """Of the file; 0: no bound."""
        self.before: Callable[[str], object] = lambda _: None

    def connect(self, path: str, **options: Any) -> sqlite3.Connection:
        self.opened += 1
        disk = self

        class Watched(Hasty):
            def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
                disk.statements.append(sql)
                disk.before(sql)
                if sql.startswith("BEGIN"):
                    super().execute(f"PRAGMA max_page_count = {disk.most_pages or 2**30}")
                return super().execute(sql, *parameters)

        self.last = sqlite3.connect(path, factory=Watched, **options)
        return self.last

    def count(self, prefix: str) -> int:
        """How many statements began so."""
        return sum(sql.startswith(prefix) for sql in self.statements)


def failing(words: str, code: int, *statements: str) -> Any:
    """For `Disk.before`: these statements fail so; all when none is named."""

    def before(sql: str) -> None:
        if not statements or sql.startswith(statements):
            error = sqlite3.OperationalError(words)
            error.sqlite_errorcode = code
            raise error

    return before


class Monotonic:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def in_a_child(work: Callable[[], None]) -> int:
    """Run it in a process of its own; the pid."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            work()
            os._exit(0)
        os._exit(1)
    return pid


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fill(file: Path) -> None:
    """Writes until there is no room."""
    with contextlib.suppress(OSError), open(file, "wb", buffering=0) as filler:
        while filler.write(bytes(1024)) == 1024:
            pass
