"""Small bodies, off the hot path: read whole, within the time that bodies have, as the JSON objects that they are to be."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from starlette.requests import ClientDisconnect, Request

from gateway.core.errors import BodyTimeout, BodyTooLarge, InvalidRequest
from gateway.core.openai.sse.sse import json_object
from gateway.core.types.process import Server


async def read_object(request: Request, server: Server, most: int, example: str) -> dict[str, Any]:
    """Returns the JSON object in the body, of at most so many bytes. Raises InvalidRequest, BodyTooLarge, BodyTimeout."""
    asked = json_object(await read_bytes(request, server, most))
    if asked is None:
        raise InvalidRequest(f"The body must be a JSON object, such as {example}.", code="invalid_json")
    return asked


async def read_bytes(request: Request, server: Server, most: int) -> bytes:
    """Returns the body, of at most so many bytes. Raises InvalidRequest, BodyTooLarge, BodyTimeout."""
    body = bytearray()
    try:
        async with asyncio.timeout(server.body_timeout_s):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise BodyTooLarge(f"The body is over the {most} bytes that are read here.")
    except ClientDisconnect:
        raise InvalidRequest("The body has ended early.") from None
    except TimeoutError:
        raise BodyTimeout("The request body did not arrive in time; send it faster or smaller.") from None
    return bytes(body)


def refuse_unknown(asked: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises InvalidRequest for a field that is not known: it may be a misspelt one, and more would be meant without it."""
    for name in asked:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(known)}."
            raise InvalidRequest(f"Unknown field '{name[:200]}'; {hint}", param=name[:200], code="unknown_field")
