"""The body of `POST /v1/jobs`, taken apart: what is asked of the job, and the request that it makes, as it was written.

The request is cut out of the bytes: it may have megabytes, and to parse and write it again would keep everybody waiting; it is
read where the body of a plain call would be.
"""

from __future__ import annotations

from typing import Any

from gateway.core.errors import InvalidRequest
from gateway.core.openai.json_edit.json_edit import Field, find_fields
from gateway.core.openai.sse.sse import json_object
from gateway.core.peek.large_bodies import LargeBodies
from gateway.core.peek.peek import written_twice

EXAMPLE = '{"endpoint": "/v1/chat/completions", "body": {…}}'
MOST_REST_BYTES = 65_536
"""Of all that is not the request: some times, keys and metadata."""
Parts = tuple[dict[str, Any], bytes]
"""The fields beside `body`, with `endpoint` among them, and `body`."""


def split_job(raw: bytes) -> Parts:
    """Takes a small body apart. Raises InvalidRequest."""
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
    asked = json_object(rest)
    if asked is None:
        raise _no_object()
    if not isinstance(asked.get("endpoint"), str) or not body.startswith(b"{"):
        param = "body" if isinstance(asked.get("endpoint"), str) else "endpoint"
        raise InvalidRequest(f"The field '{param}' is missing or of another type; send {EXAMPLE}.", param=param)
    return asked, body


def _places_of_body(raw: bytes) -> list[Field]:
    """Returns where `body` is written. Raises InvalidRequest for what breaks off there, or has NULs, which JSON never has."""
    try:
        return find_fields(raw, "body")
    except (IndexError, ValueError):  # it relies on JSON, which nobody has seen to yet
        raise _no_object() from None


def _no_object() -> InvalidRequest:
    return InvalidRequest(f"The body must be a JSON object, such as {EXAMPLE}.", code="invalid_json")
