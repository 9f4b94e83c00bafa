"""Errors on the wire, always in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`, with a request id."""

from __future__ import annotations

from random import getrandbits
from typing import Any

import orjson

from gateway.errors import GatewayError, MethodNotAllowed

RawHeader = tuple[bytes, bytes]


def new_request_id() -> str:
    """A new request id: unique, but no secret, so the cheap generator will do."""
    return f"req_{getrandbits(128):032x}"


def error_body(error: GatewayError) -> bytes:
    """The JSON text of an error."""
    return orjson.dumps(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}},
    )


def error_headers(error: GatewayError, length: int) -> list[RawHeader]:
    """The headers that go with an error's body, without the request id."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]
    if error.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if error.should_retry else b"false"))
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after_s))))
        headers.append((b"retry-after-ms", b"%d" % round(error.retry_after_s * 1000)))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    return headers


async def send_error(send: Any, error: GatewayError, extra: list[RawHeader]) -> None:
    """Answer with an error; `extra` carries the request id and whatever the call's trail has to tell."""
    body = error_body(error)
    await send_whole(send, error.status, error_headers(error, len(body)) + extra, body)


async def send_whole(send: Any, status: int, headers: list[RawHeader], body: bytes) -> None:
    """Answer in one piece."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
