"""Reads what a large body asks for, a piece at a time: between the pieces everybody else is served.

One body at a time, so that the loop is never later by more than one piece, however many come at once. A body of more than a
few megabytes is not parsed at all: what it costs is its bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

from gateway.core.errors import InvalidRequest
from gateway.core.openai.bodies.large_body import PEEKED_BYTES, Large, is_parsed, large_of
from gateway.core.openai.bodies.multipart import MultipartError, digest_in_steps, find_in_steps
from gateway.core.openai.json_edit.json_edit import Field
from gateway.core.openai.json_edit.json_text import MalformedJson
from gateway.core.openai.json_edit.outline import Outline, read_contents, read_outline
from gateway.core.peek.peek import (
    Peeked,
    form_boundary,
    json_value,
    malformed_form,
    read_fields,
    read_form,
    written_twice,
)
from gateway.core.types.words import Endpoint

TAKES_TOKENS = frozenset(("embeddings", "completions"))
"""Endpoints whose texts may be lists of token numbers: 2,048 of them with 512 each are usual, and harmless."""
_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")

T = TypeVar("T")


class LargeBodies:
    """Reads the large bodies of this process."""

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def peek(self, endpoint: Endpoint, body: bytes, index: dict[bytes, bytes], max_values: int) -> Peeked:
        """As `peek.peek`. Raises CallerFault, BodyTooComplex where there are more values than `max_values`."""
        async with self._turn:
            if endpoint.request == "multipart":
                return await _peek_form(body, index, keyed=b"idempotency-key" in index)
            try:
                return await _peek_json(body, max_values, endpoint)
            except MalformedJson as problem:
                raise _malformed(body, problem) from None

    async def outline(self, body: bytes, max_values: int) -> Outline:
        """Returns the top level of a JSON object. Raises InvalidRequest, or BodyTooComplex."""
        async with self._turn:
            try:
                return await _in_steps(read_outline(body, max_values))
            except MalformedJson as problem:
                raise _malformed(body, problem) from None

    async def find_field(self, body: bytes, name: str, max_values: int) -> Field | None:
        """Returns the place of a field of the object that the body is; None: it has no such field.

        Raises InvalidRequest, also where the field is written twice, and BodyTooComplex.
        """
        async with self._turn:
            try:
                outline = await _in_steps(read_outline(body, max_values, counts_numbers=False))
            except MalformedJson as problem:
                raise _malformed(body, problem) from None
        if name in outline.repeated:
            raise written_twice(name)
        return outline.spans.get(name)


def _malformed(body: bytes, problem: MalformedJson) -> InvalidRequest:
    why = "it starts with a byte order mark; send plain UTF-8" if body.startswith(_MARKS) else str(problem)
    return InvalidRequest(f"The request body is not valid JSON: {why}.", code="invalid_json")


async def _peek_json(body: bytes, max_values: int, endpoint: Endpoint) -> Peeked:
    counts_numbers, is_optional = endpoint.name not in TAKES_TOKENS, endpoint.is_model_optional
    outline = await _in_steps(read_outline(body, max_values, counts_numbers=counts_numbers))
    if is_parsed(body, outline):
        peeked = read_fields(json_value(body), is_model_optional=is_optional)
        large = large_of(body, outline)
    else:
        contents = await _in_steps(read_contents(body))
        peeked = read_fields(outline.fields, is_model_optional=is_optional)
        large = large_of(body, outline, contents)
    if "model" in outline.repeated:
        raise written_twice("model")
    peeked.large = large
    return peeked


async def _peek_form(body: bytes, index: dict[bytes, bytes], *, keyed: bool) -> Peeked:
    """`keyed`: it will be compared with another."""
    try:
        boundary = form_boundary(index.get(b"content-type", b""))
        found = await _in_steps(find_in_steps(body, boundary, ("model", "stream")))
    except MultipartError as exc:
        raise malformed_form(exc) from None
    peeked = read_form(body, found["model"], found["stream"])
    if keyed and len(body) > PEEKED_BYTES:
        peeked.large = Large(digest=await _in_steps(digest_in_steps(body, boundary)))
    return peeked


async def _in_steps(work: Generator[None, None, T]) -> T:
    """What the work returns, after as many turns of the loop as it has steps."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            value: T = done.value
            return value
        await asyncio.sleep(0)
