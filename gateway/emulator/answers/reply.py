"""The answer of an endpoint: one whole reply, or a stream of frames.

Plain values, so that the limits, the answers and the faults meet here without knowing each other. Invariant: a value
says everything about the bytes to send and nothing about when they are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

Header = tuple[bytes, bytes]
Headers = tuple[Header, ...]

JSON = b"application/json"
SSE = b"text/event-stream; charset=utf-8"
BROKEN_CHUNK = b'data: {"id":"chatcmpl-broken","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"con\n\n'
"""A chunk of a chat completion that was cut in its middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedReply:
    """A whole answer; `tokens` are the output tokens it holds, which pace it and count against output limits."""

    body: bytes
    status: int = 200
    content_type: bytes = JSON
    headers: Headers = ()
    tokens: int = 0
    is_bare: bool = False  # the reply brings its own limit headers, or none at all
    is_foreign: bool = False  # not the provider speaking but something in front of it: no provider headers either


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A streamed answer: `lead` opens it, each of `frames` holds one token, `tail` is all that marks a proper end.

    `error_frame` makes an event of the JSON of an error, and `broken` is an event whose JSON is not.
    """

    lead: bytes
    frames: Iterable[bytes]
    tail: bytes
    tokens: int
    error_frame: Callable[[bytes], bytes]
    broken: bytes = BROKEN_CHUNK
    content_type: bytes = SSE


def json_reply(value: Mapping[str, Any], tokens: int = 0, headers: Headers = ()) -> EmulatedReply:
    """Returns a 200 with `value` as JSON."""
    return EmulatedReply(body=orjson.dumps(value), tokens=tokens, headers=headers)


def frame(value: Mapping[str, Any], event: str | None = None) -> bytes:
    """Returns one SSE event with `value` as JSON."""
    name = b"event: " + event.encode() + b"\n" if event else b""
    return name + b"data: " + orjson.dumps(value) + b"\n\n"


def around(template: Mapping[str, Any], event: str | None = None) -> tuple[bytes, bytes]:
    """Returns the bytes before and after the one changing string of an event; mark its place in `template` with `SLOT`.

    The last mark wins, so that a mark smuggled in by an earlier field (a model name) changes nothing.
    """
    before, _, after = frame(template, event).rpartition(_SLOT_JSON)
    return before, after


SLOT = "\x00"
_SLOT_JSON = orjson.dumps(SLOT)
