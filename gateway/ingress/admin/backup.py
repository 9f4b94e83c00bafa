"""`GET /admin/state/backup`: a copy of the state file, made while calls go on.

The copy is made beside the state file, sent, and deleted, whatever becomes of the client; one that a killed process has left
goes at the next start. Behind the admin key: what is kept are answers, in clear.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from glob import escape, glob
from secrets import token_hex

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from gateway.errors import BackupFailed, InvalidRequest
from gateway.ingress.admin.operations import require_admin
from gateway.policy.snapshot import Policies

TOKEN_BYTES = 8
"""The random bytes in the name of a copy, so that two at once are two files."""
log = logging.getLogger("gateway.admin")


@dataclass(frozen=True, slots=True)
class StateFile:
    """A state that is a file: where it is, and how to copy it, which tells what went wrong."""

    path: str
    copy: Callable[[str], Awaitable[str | None]]


def forget_copies(path: str) -> None:
    """Delete what was left of copies; only for who alone has the state file at `path`: they may be in use."""
    for left in glob(f"{escape(path)}.{'[0-9a-f]' * 2 * TOKEN_BYTES}.backup"):
        _delete(left)


class _PassingFile(FileResponse):
    """A file that is gone when it has been sent, or could not be."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            _delete(str(self.path))


def backup_route(policies: Policies, state: StateFile | None) -> BaseRoute:
    """Returns `GET /admin/state/backup`; where the state is no file, `state` is None and the answer says what to do instead."""

    async def backup(request: Request) -> Response:
        require_admin(policies, request)
        if state is None:
            raise InvalidRequest(
                "Only a state file (state: sqlite:///…) can be copied here; with state: memory nothing outlives the process, "
                "and a Redis has backups of its own (BGSAVE).",
                code="state_is_no_file",
            )
        copied = f"{state.path}.{token_hex(TOKEN_BYTES)}.backup"
        try:
            problem = await state.copy(copied)
        except BaseException:
            _delete(copied)
            raise
        if problem is not None:
            _delete(copied)
            raise BackupFailed(
                f"The state file could not be copied: {problem}. There has to be room for a copy beside it."
            )
        log.warning("admin: the state file was copied for an operator")
        return _PassingFile(copied, media_type="application/vnd.sqlite3", filename="gateway-state.db")

    return Route("/admin/state/backup", backup)


def _delete(path: str) -> None:
    for name in (path, f"{path}-journal"):
        with contextlib.suppress(OSError):
            os.unlink(name)
