"""Backups: copies of the state file and the jobs file, made while calls go on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from glob import escape, glob
from secrets import token_hex

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from gateway.admin.http import log, require_admin
from gateway.core.errors import BackupFailed, InvalidRequest
from gateway.core.snapshot import Policies

TOKEN_BYTES = 8
"""The random bytes in the name of a copy, so that two at once are two files."""


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file that operators may copy: where it is, and how to copy it, which returns what went wrong."""

    path: str
    copy: Callable[[str], Awaitable[str | None]]


def forget_copies(path: str) -> None:
    """Delete what was left of copies; only for who alone has the file at `path`: they may be in use."""
    for left in glob(f"{escape(path)}.{'[0-9a-f]' * 2 * TOKEN_BYTES}.backup"):
        _delete(left)


class _PassingFile(FileResponse):
    """A file that is gone when it has been sent, or could not be."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            _delete(str(self.path))


def backup_routes(
    policies: Policies, state: KeptFile | None, jobs: Callable[[], Awaitable[KeptFile | None]]
) -> list[BaseRoute]:
    """Returns `GET /admin/state/backup` and `GET /admin/jobs/backup`, behind the admin key: what is kept are answers, in
    clear.

    A copy is made beside its file, sent, and deleted, whatever becomes of the client; one that a killed process has left
    goes at the next start. Where there is no file, `state` is None, or `jobs` gives None: the answer says what to do.
    `jobs` raises JobsUnavailable.
    """

    async def state_backup(request: Request) -> Response:
        require_admin(policies, request)
        if state is None:
            raise InvalidRequest(
                "Only a state file (state: sqlite:///…) can be copied here; with state: memory nothing outlives the process, "
                "and a Redis has backups of its own (BGSAVE).",
                code="state_is_no_file",
            )
        return await _copy_of(state, "state")

    async def jobs_backup(request: Request) -> Response:
        require_admin(policies, request)
        file = await jobs()
        if file is None:
            raise InvalidRequest(
                "There is no jobs file to copy: no job was taken yet, jobs are off, or they are kept in a Redis, which has "
                "backups of its own (BGSAVE).",
                code="no_jobs_file",
            )
        return await _copy_of(file, "jobs")

    return [Route("/admin/state/backup", state_backup), Route("/admin/jobs/backup", jobs_backup)]


async def _copy_of(file: KeptFile, name: str) -> Response:
    """Returns a copy that is gone when it has been sent. Raises BackupFailed."""
    copied = f"{file.path}.{token_hex(TOKEN_BYTES)}.backup"
    try:
        problem = await file.copy(copied)
    except BaseException:
        _delete(copied)
        raise
    if problem is not None:
        _delete(copied)
        raise BackupFailed(
            f"The {name} file could not be copied: {problem}. There has to be room for a copy beside it."
        )
    log.warning("admin: the %s file was copied for an operator", name)
    return _PassingFile(copied, media_type="application/vnd.sqlite3", filename=f"gateway-{name}.db")


def _delete(path: str) -> None:
    for name in (path, f"{path}-journal"):
        with contextlib.suppress(OSError):
            os.unlink(name)
