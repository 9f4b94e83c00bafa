"""Who is being served right now, and how to stop them: the client left, its body is too slow, the process is going down.

A request is stopped by cancelling its task with a reason; the edge turns the reason into an answer, or into silence.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from gateway.core.call import Call

StopReason = Literal["client_gone", "body_timeout", "shutdown"]


class Serving:
    """One request being served."""

    __slots__ = ("call", "reading_until", "stopped", "task")

    is_connection = False
    """It is a connection that serves many requests, and wants to be looked after."""

    def __init__(self, task: asyncio.Task[None] | None) -> None:
        self.task = task
        self.stopped: StopReason | None = None
        self.call: Call | None = None
        """What came of the request, once it is one."""
        self.reading_until: float | None = None
        """While its body is being read: when that has to be done."""

    def stop(self, reason: StopReason) -> None:
        """Cancel the request, with the reason as the message of its CancelledError; the first reason counts."""
        if self.stopped is None and self.task is not None:
            self.stopped = reason
            self.task.cancel(reason)

    def look_after(self, now: float, *, is_draining: bool) -> None:
        """What a connection does about once a second."""

    def client_gone(self) -> None:
        """What the connection calls when it is lost: nobody waits any more, unless others do."""
        if self.call is not None and self.call.followers:
            self.call.left = True
        else:
            self.stop("client_gone")


class InFlight:
    """All requests being served."""

    __slots__ = ("draining", "leaving", "serving")

    def __init__(self) -> None:
        self.serving: set[Serving] = set()
        """Who is being served: the edge adds each request, and takes it out when it is answered or its client is gone."""
        self.leaving = False
        """The process will soon be gone, and is ready no more: who deals out connections has to hear of it first."""
        self.draining = False
        """The process is on its way out: no new calls."""

    def __len__(self) -> int:
        return len(self.serving)

    def present(self) -> frozenset[Serving]:
        """Those being served at this moment; may be asked from any thread."""
        return frozenset(self.serving)

    def sweep(self, now: float) -> None:
        """Stop requests whose body takes too long, and look after connections of many; called about once a second."""
        for serving in [one for one in self.serving if one.reading_until is not None and one.reading_until < now]:
            serving.stop("body_timeout")
        for connection in [one for one in self.serving if one.is_connection]:
            connection.look_after(now, is_draining=self.draining)

    def abort(self) -> None:
        """The grace is over: stop everybody; streams end with an error event."""
        for serving in list(self.serving):
            serving.stop("shutdown")
