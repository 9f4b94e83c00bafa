"""Loads the config again when its files change, and keeps the old one when the new one is bad.

It needs no thread and no task: the app calls `changed()` once a second, and `reload()` when that is true and on SIGHUP.
Invariant: the snapshot in force is replaced only by one that compiled whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Literal

from gateway.core.config.load.folder import list_error_files, list_policy_files
from gateway.core.config.load.load.load import locate_policies
from gateway.core.errors import ConfigError
from gateway.core.snapshot.snapshot.snapshot import PolicySnapshot
from gateway.products.pipelines.config import list_pipeline_files, list_schema_files

_Stamp = dict[str, tuple[int, int, int] | None]
"""The modification time in nanoseconds, size and inode of every file; None: the file does not exist."""


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """The outcome of one reload; `version` and `digest` are those in force after it (0 and empty: none yet)."""

    status: Literal["loaded", "unchanged", "failed"]
    version: int
    digest: str
    problems: tuple[str, ...]
    at_wall: float


class Reloader:
    """Watches the files of one config.

    `load` compiles, `install` puts a snapshot in force. `current` is the snapshot that is in force already, if any.
    """

    def __init__(
        self,
        path: FilePath,
        environ: Mapping[str, str],
        *,
        load: Callable[[], PolicySnapshot],
        install: Callable[[PolicySnapshot], None],
        current: PolicySnapshot | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._environ = environ
        self._load = load
        self._install = install
        self._wall = wall
        self._version = current.version if current else 0
        self._digest = current.digest if current else ""
        self._files = current.files if current else ()
        self._policies = locate_policies(path, environ)
        self._loaded = self._stamp()
        self._seen_before: _Stamp | None = None
        self.last: ReloadReport | None = None

    def changed(self) -> bool:
        """Tells whether the files differ from those last loaded, and have not changed since the previous call.

        A file that is still being written differs from one call to the next, so it is loaded only when it is complete.
        """
        stamp = self._stamp()
        at_rest = stamp == self._seen_before
        self._seen_before = stamp
        return stamp != self._loaded and at_rest

    def reload(self) -> ReloadReport:
        """Compiles the files and puts the result in force, unless it is bad or the same as before."""
        self._policies = locate_policies(self._path, self._environ) or self._policies
        self._loaded = self._stamp()  # taken first, so that a change during the read is noticed afterwards
        try:
            snapshot = self._load()
        except ConfigError as error:
            return self._tell("failed", tuple(error.problems))
        if snapshot.digest == self._digest:
            return self._tell("unchanged")
        self._install(snapshot)
        self._version, self._digest, self._files = snapshot.version, snapshot.digest, snapshot.files
        self._loaded = {
            file: self._loaded.get(file, stat) for file, stat in self._stamp().items()
        }  # of others than before
        return self._tell("loaded")

    def _tell(self, status: Literal["loaded", "unchanged", "failed"], problems: tuple[str, ...] = ()) -> ReloadReport:
        self.last = ReloadReport(status, self._version, self._digest, problems, self._wall())
        return self.last

    def _stamp(self) -> _Stamp:
        files = (self._path, *self._policy_files(), *map(FilePath, self._files))
        return {str(file): _stat(file) for file in files}

    def _policy_files(self) -> list[FilePath]:
        if self._policies is None:
            return []
        try:
            folder = self._policies
            lists = (list_policy_files, list_error_files, list_pipeline_files, list_schema_files)
            return [file for files in lists for file in files(folder)]
        except OSError:
            return []


def _stat(file: FilePath) -> tuple[int, int, int] | None:
    try:
        found = file.stat()  # follows links, so a swapped link shows as another inode
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
