"""The facts kept of a large body, so that it is walked through only once.

Bodies up to PEEKED_BYTES with few values are parsed once as small ones are; of all others only this is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from gateway.core.limits.estimate.estimate import estimate_large
from gateway.core.openai.json_edit.json_edit import Field, insert_field, replace_field
from gateway.core.openai.json_edit.outline import Contents, Outline
from gateway.core.openai.usage.capabilities import Needs, needs_of_fields
from gateway.core.types.splice import Edit, Spliced

LARGE_BYTES = 262_144
"""A larger body is read in outline first, a piece at a time."""
PEEKED_BYTES = 4_000_000
"""A larger body is not parsed at all."""
PARSED_VALUES = 50_000
"""A body with more values is not parsed: objects are a hundred times as dear as text."""
MAX_CHOICES = 128


@dataclass(frozen=True, slots=True)
class Large:
    """The facts about a large body. An empty or negative one has to be, and may be, found by parsing it."""

    model: Field | None = None
    """The place of the model's name in the JSON."""
    stream_options: Field | None = None
    choices: int = 1
    tokens: int = -1
    """The tokens of the input, estimated from its length; negative: they may be counted."""
    needs: Needs | None = None
    digest: bytes = b""
    """The SHA-256 of the body, which replaces it in keys."""


def is_parsed(body: bytes, outline: Outline) -> bool:
    """Returns whether the body may be parsed."""
    return len(body) <= PEEKED_BYTES and outline.tally.values <= PARSED_VALUES


def large_of(body: bytes, outline: Outline, contents: Contents | None = None) -> Large:
    """Returns the facts of a body; `contents` is given if it is not parsed."""
    model, options = outline.spans.get("model"), outline.spans.get("stream_options")
    choices = outline.fields.get("n")
    count = choices if type(choices) is int and 1 < choices <= MAX_CHOICES else 1
    if contents is None:
        return Large(model, options, count)
    tokens = estimate_large(body, outline.tally.data_bytes, outline.tally.data_strings)
    needs = needs_of_fields(outline.fields, images=contents.may_show_images)
    return Large(model, options, count, tokens, needs, contents.digest)


def edited(body: bytes, large: Large, model: str | None, stream_options: object, *, adds_usage: bool) -> Spliced:
    """Returns the body with another model (None: its own), and asking for usage, without copying it."""
    edits: list[Edit] = []
    if model is not None and large.model is not None:
        edits.append((large.model.start, large.model.end, orjson.dumps(model)))
    if adds_usage:
        span = large.stream_options
        if span is None:
            begin = body.index(b"{") + 1
            edits.append((begin, begin, b'"stream_options":{"include_usage":true},'))
        else:
            edits.append((span.start, span.end, _with_usage(body[span.start : span.end], stream_options)))
    return Spliced(body, edits)


def _with_usage(options: bytes, parsed: object) -> bytes:
    """Returns the value of `stream_options`, which is short where it was parsed."""
    if not isinstance(parsed, dict):
        return b'{"include_usage":true}'
    edit = replace_field if "include_usage" in parsed else insert_field
    return edit(options, "include_usage", b"true")
