"""Jobs in HTTP: bodies read, stored answers given, and the events of a job or batch until its end.

In this order: events; the body of a new job; a job as it is shown; headers; and routes. The id of an event is the revision of
the job: whoever comes back with it (`Last-Event-ID`) has only what is new. While nothing happens a comment goes out now and
then, so that nobody between takes the connection for a dead one.
Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from gateway.core.errors import InvalidRequest
from gateway.core.openai.json_edit import Field, find_fields
from gateway.core.openai.sse import json_object
from gateway.core.request_fields import LargeBodies, written_twice
from gateway.core.snapshot import Policies
from gateway.products.jobs.model import (
    CURRENT,
    SETTLED,
    STATE_OF_STATUS,
    Job,
    JobKind,
    JobPage,
    JobState,
    Mark,
    StoredAnswer,
    TooManyReaders,
    is_ours,
    job_status,
)
from gateway.products.routes import ObjectRoute, Serve, head_alone, list_page

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


# --- the body of `POST /v1/jobs`: what is asked of the job, and the request that it makes, as it was written ---

EXAMPLE = '{"endpoint": "/v1/chat/completions", "body": {…}}'
MOST_REST_BYTES = 65_536
"""The most bytes of all that is not the request: some times, keys and metadata."""
Parts = tuple[dict[str, Any], bytes]
"""The fields beside `body`, with `endpoint` among them, and `body`."""


def split_job(raw: bytes) -> Parts:
    """Takes a small body apart. Raises InvalidRequest.

    The request is cut out of the bytes: it may have megabytes, and to parse and write it again would keep everybody waiting; it
    is read where the body of a plain call would be.
    """
    places = _places_of_body(raw)
    if len(places) > 1:
        raise written_twice("body")
    return _split(raw, places[0] if places else None)


async def split_large_job(raw: bytes, bodies: LargeBodies, max_values: int) -> Parts:
    """Takes a large body apart, a piece at a time. Raises InvalidRequest, BodyTooComplex."""
    return _split(raw, await bodies.find_field(raw, "body", max_values))


def _split(raw: bytes, place: Field | None) -> Parts:
    start, end = (place.start, place.end) if place is not None else (len(raw), len(raw))
    body, rest = raw[start:end], raw[:start] + (b"null" if place is not None else b"") + raw[end:]
    if len(rest) > MOST_REST_BYTES:
        raise InvalidRequest(
            f"The fields beside 'body' have more than {MOST_REST_BYTES} bytes; send {EXAMPLE}.", param="body"
        )
    parsed = json_object(rest)
    if parsed is None:
        raise _no_object()
    if not isinstance(parsed.get("endpoint"), str) or not body.startswith(b"{"):
        param = "body" if isinstance(parsed.get("endpoint"), str) else "endpoint"
        raise InvalidRequest(f"The field '{param}' is missing or of another type; send {EXAMPLE}.", param=param)
    return parsed, body


def _places_of_body(raw: bytes) -> list[Field]:
    """Returns where `body` is written. Raises InvalidRequest for what breaks off there, or has NULs, which JSON never has."""
    try:
        return find_fields(raw, "body")
    except (IndexError, ValueError):  # it relies on JSON, which nobody has seen to yet
        raise _no_object() from None


def _no_object() -> InvalidRequest:
    return InvalidRequest(f"The body must be a JSON object, such as {EXAMPLE}.", code="invalid_json")


# --- a job as its owner sees it: the JSON object of `/v1/jobs`, and its events ---

POLL_AFTER_S: Final = 2.0
"""Seconds until those who poll a job that is not at its end are to come again."""


def show_job(job: Job) -> dict[str, Any]:
    """Returns the job object. Times are seconds since 1970, money is US dollars."""
    tally, error = job.tally, job.last_error
    if job.kind is JobKind.RUN and not job.state.is_end:
        tally = tally._replace(completed=job.marks.get(SETTLED, 0))
    done = tally.completed + tally.failed
    return {
        "id": job.id,
        "object": "job",
        "kind": str(job.kind),
        "status": job_status(job),
        "stage": _stage(job),
        "is_paused": job.is_paused,
        "endpoint": job.about.get("endpoint"),
        "model": job.model or None,
        "lane": job.lane,
        "priority": job.about.get("priority"),
        "created_at": int(job.created_at),
        "run_at": int(job.run_at),
        "started_at": _whole(job.started_at),
        "finished_at": _whole(job.ended_at),
        "deadline": int(job.deadline),
        "attempts": {"made": job.attempts, "max": job.max_attempts},
        "progress": {
            "total": tally.total,
            "done": tally.completed,
            "failed": tally.failed,
            "percent": round(100 * done / tally.total, 1) if tally.total else 0.0,
        },
        "last_error": None
        if error is None
        else {"class": error.error_class, "message": error.message, "at": int(error.at)},
        "result": {"url": f"/v1/jobs/{job.id}/result"} if _may_have_answer(job) else None,
        "usage": {
            "input_tokens": tally.input_tokens,
            "input_tokens_details": {"cached_tokens": tally.cached_tokens},
            "output_tokens": tally.output_tokens,
            "total_tokens": tally.input_tokens + tally.output_tokens,
        },
        "cost_usd": round(tally.cost_usd, 8),
        "metadata": job.about.get("metadata") or {},
    }


def _stage(job: Job) -> str | None:
    """Returns the part of its life that a batch is in, or the steps of a run that are under way."""
    if job.kind is JobKind.BATCH:
        return str(job.stage)
    if job.kind is JobKind.RUN and not job.state.is_end:
        return ", ".join(job.marks.get(CURRENT, ())) or None
    return None


def show_page(page: JobPage) -> dict[str, Any]:
    """Returns a page of job objects."""
    return list_page([show_job(job) for job in page.jobs], has_more=page.has_more)


def _may_have_answer(job: Job) -> bool:
    """Returns whether the job is of the kind that has an answer, and has come to its end by itself; a batch has files."""
    kinds = JobKind.CALL, JobKind.RUN, JobKind.RESPONSE
    return job.kind in kinds and job.state in (JobState.SUCCEEDED, JobState.FAILED)


def _whole(at: float | None) -> int | None:
    return None if at is None else int(at)


# --- headers: of a 202, and of an answer that is given again ---


def accepted_headers(job: Job) -> list[tuple[bytes, bytes]]:
    """Returns the headers of a 202: where the job is, and when to look."""
    return [
        (b"content-type", b"application/json"),
        (b"location", b"/v1/jobs/%b" % job.id.encode()),
        (b"retry-after", b"%d" % ceil(POLL_AFTER_S)),
        (b"openai-poll-after-ms", b"%d" % (POLL_AFTER_S * 1000)),
        (b"x-gateway-job", job.id.encode()),
        (b"x-request-id", job.id.encode()),
    ]


def stored_headers(job: Job, answer: StoredAnswer) -> list[tuple[bytes, bytes]]:
    """Returns the headers with which a stored answer is given again."""
    own = (b"x-gateway-job", job.id.encode()), (b"x-request-id", job.id.encode())
    return [*((name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers), *own]


# --- routes of ids that look like ours, and the statuses that lists are asked for ---


class OwnRoute(ObjectRoute):
    """The path of objects. With a `passthrough` it takes only ids that look like ours, and pages of lists behind those."""

    def __init__(self, policies: Policies, mark: Mark, path: str, serve: Serve, method: str) -> None:
        super().__init__(path, serve, methods=[method])
        self._policies = policies
        self._mark = mark

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        if match is not Match.NONE and self._policies.current.passthrough is not None:
            id = found["path_params"].get("id")
            if id is not None and not is_ours(self._mark, id):
                return Match.NONE, {}
            if id is None and _is_behind_theirs(self._mark, scope):
                return Match.NONE, {}
        return match, found


def _is_behind_theirs(mark: Mark, scope: Scope) -> bool:
    """Returns whether a page of a list is asked for that begins behind an object of the provider's."""
    query: bytes = scope.get("query_string", b"")
    if scope["method"] not in ("GET", "HEAD") or b"after" not in query:
        return False
    after = dict(parse_qsl(query.decode("latin-1"))).get("after")
    return after is not None and not is_ours(mark, after)


def own_routes(policies: Policies, mark: Mark, table: Iterable[tuple[str, str, Serve]]) -> list[BaseRoute]:
    """Returns routes for (method, path below the base URL, function), with and without `/v1`."""
    return [
        OwnRoute(policies, mark, prefix + path, serve, method)
        for method, path, serve in table
        for prefix in ("/v1", "")
    ]


def statuses_of(request: Request) -> list[str]:
    """Returns the statuses of jobs that a list is asked for; none: all. Raises InvalidRequest."""
    wanted = [one for one in request.query_params.get("status", "").split(",") if one]
    known = [*JobState, *STATE_OF_STATUS]
    if not set(wanted) <= set(known):
        raise InvalidRequest(f"The parameter 'status' takes {', '.join(known)}, divided by commas.", param="status")
    return wanted
