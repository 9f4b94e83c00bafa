"""Streams of what happens to a job or batch: server-sent events, one for each change, until its end.

The id of an event is the revision of the job: whoever comes back with it (`Last-Event-ID`) is told only what is new. While
nothing happens a comment goes out now and then, so that nobody between takes the connection for a dead one.
Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.products.jobs.model.errors import TooManyReaders
from gateway.products.jobs.model.job import Job
from gateway.products.routes.own_routes import head_alone

MOST_READERS, MOST_READERS_PER_TENANT = 1000, 500
"""No tenant keeps all others from following their jobs."""
COMMENT = b": nothing new\n\n"


class EventReaders:
    """Counts those who follow events, and streams these to them."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()
        """The streams that are open, by tenant."""

    def follow(
        self, request: Request, tenant: str, event: str, changes: Changes, show: Callable[[Job], dict[str, Any]]
    ) -> Response:
        """Returns the stream of a job that is there. `changes` gives it anew from a revision on, None while nothing happens.

        Raises TooManyReaders.
        """
        headers = {"cache-control": "no-cache"}
        if request.method == "HEAD":
            return head_alone(headers, "text/event-stream")
        self.refuse_more(tenant)
        events = _events(event, changes(_last_seen(request)), show)
        return FollowedEvents(self, tenant, events, headers=headers, media_type="text/event-stream")

    @contextmanager
    def counted(self, tenant: str) -> Iterator[None]:
        """Counts a stream while it is open."""
        self.open[tenant] += 1
        try:
            yield
        finally:
            self.open[tenant] -= 1
            if not self.open[tenant]:
                del self.open[tenant]

    def refuse_more(self, tenant: str) -> None:
        """Raises TooManyReaders where there is no room for one more."""
        if self.open.total() >= MOST_READERS:
            raise TooManyReaders(f"{MOST_READERS} streams of job events are open, which is the limit; poll instead.")
        if self.open[tenant] >= MOST_READERS_PER_TENANT:
            raise TooManyReaders(
                f"This tenant has {MOST_READERS_PER_TENANT} streams of job events open, which is its limit; end some, or "
                "poll instead."
            )


class FollowedEvents(StreamingResponse):
    """A stream that is counted while it is open."""

    def __init__(self, readers: EventReaders, tenant: str, events: AsyncIterator[bytes], **options: Any) -> None:
        super().__init__(events, **options)
        self._readers = readers
        self._tenant = tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it, to its end or until the client leaves."""
        with self._readers.counted(self._tenant):
            await super().__call__(scope, receive, send)


Changes = Callable[[int], AsyncIterator[Job | None]]


def _last_seen(request: Request) -> int:
    """Returns the revision of the last event that the client has seen; -1: none."""
    last = request.headers.get("last-event-id", "")
    return int(last) if last.isascii() and last.isdigit() and len(last) < 16 else -1


async def _events(
    event: str, changes: AsyncIterator[Job | None], show: Callable[[Job], dict[str, Any]]
) -> AsyncIterator[bytes]:
    name = event.encode()
    async for job in changes:
        yield (
            COMMENT
            if job is None
            else b"event: %b\nid: %d\ndata: %b\n\n" % (name, job.revision, orjson.dumps(show(job)))
        )
