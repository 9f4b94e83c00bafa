"""A whole answer of a route that starlette has found: it leaves in one write.

It must not know what an answer means. Behind another server, or one of starlette's own applications in a test, it is a
response as any other.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.core.http.writing.cycle import AsgiCycle
from gateway.core.http.writing.writing import answer_at_once


class WholeResponse(Response):
    """An answer whose body is there: head and body are one write, where ASGI's two messages make two."""

    def __init__(self, body: bytes, status: int, headers: list[tuple[bytes, bytes]]) -> None:  # pylint: disable=super-init-not-called
        """`headers` are made here, not by a caller: they are written as they are. The length of the body is added."""
        self.body = body
        self.status_code = status
        self.background = None
        self.raw_headers = [*headers, (b"content-length", b"%d" % len(body))]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request."""
        cycle = scope.get("state", {}).pop("cycle", None)  # it holds the scope: only the collector could free both
        if isinstance(cycle, AsgiCycle):
            await answer_at_once(cycle, self.status_code, self.raw_headers, bytes(self.body))
        else:
            await super().__call__(scope, receive, send)
