"""What is done with bodies of requests of any size, and what they need of a target.

First fields that are set and dropped (`BodyEdits`), then large bodies (`Large`), the text fields of forms, and last the
needs of a call and the capabilities of a target.

Source for forms: RFC 7578; RFC 2046, 5.1.1. They are worked on by their delimiter lines only: file parts are skipped, never
copied.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple

import orjson
from python_multipart.multipart import parse_options_header

from gateway.core.openai.json_edit import (
    UNREAD,
    Contents,
    Field,
    Outline,
    find_fields,
    insert_field,
    remove_fields,
    replace_field,
)
from gateway.core.openai.usage import estimate_large, field_of
from gateway.core.types import Edit, Spliced

# --- what a target's config sets in the body of each call and leaves out of it ---


NOT_EDITABLE = frozenset(("model", "stream", "stream_options"))
"""Fields that decide where a call goes and how its answer comes; a model is named by the target, not by its body."""


COUNTED = frozenset(
    [
        "messages",
        "system",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "output_format",
        "cache_control",
        "context_management",
        "mcp_servers",
        "prefill",
        "speed",
        "compaction",
        "billing_policy",
        "user_profile_id",
        "workspace_id",
    ]
)
"""The fields of a question for the tokens of a request of Messages; with any other it is refused."""


@dataclass(frozen=True, slots=True)
class BodyEdits:
    """The edits of one target, on top-level fields alone. Invariant: no field is both set and dropped."""

    set: tuple[tuple[str, bytes], ...] = ()
    """Names and their values, as JSON texts."""
    drop: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The names of all fields that are set or dropped."""
        return frozenset((*(name for name, _ in self.set), *self.drop))

    def of_count(self) -> BodyEdits:
        """Returns the edits for a question that only asks how many tokens the call would have."""
        return BodyEdits(tuple(one for one in self.set if one[0] in COUNTED), self.drop)

    def seen(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what a parsed body says with the edits made."""
        kept = {name: value for name, value in body.items() if name not in self.drop}
        return kept | {name: orjson.loads(value) for name, value in self.set}

    def apply(self, body: bytes) -> tuple[bytes, tuple[str, ...]]:
        """Returns the body, a JSON object, with the edits made, and the names of the fields that it has lost by them."""
        dropped = []
        for name in self.drop:
            if _may_have(body, name) and (fields := find_fields(body, name)):
                body = remove_fields(body, fields)
                dropped.append(name)
        for name, value in self.set:
            if _may_have(body, name) and (fields := find_fields(body, name)):
                # Of a repeated field one place stays, so that nobody can read another value.
                body = replace_field(remove_fields(body, fields[:-1]), name, value)
            else:
                body = insert_field(body, name, value)
        return body, tuple(dropped)


def _may_have(body: bytes, name: str) -> bool:
    """Returns False where a plain search shows that there is no such field; it is much faster than to look for its place."""
    return name.encode() in body or b"\\u" in body


# --- the facts kept of a large body, so that it is walked through only once ---


LARGE_BYTES = 262_144
"""A larger body is read in outline first, a piece at a time."""
PEEKED_BYTES = 4_000_000
"""A larger body is not parsed at all."""
PARSED_VALUES = 50_000
"""A body with more values is not parsed: objects are a hundred times as dear as text."""
MAX_CHOICES = 128


@dataclass(frozen=True, slots=True)
class Large:
    """The facts about a large body. An empty or negative one has to be, and may be, found by parsing it.

    Bodies up to PEEKED_BYTES with few values are parsed once as small ones are; of all others only these facts are known.
    """

    model: Field | None = None
    """The place of the model's name in the JSON."""
    stream_options: Field | None = None
    choices: int = 1
    """The answers that come back of one prompt."""
    answers: int = 1
    """The answers that are paid for, of all prompts together."""
    tokens: int = -1
    """The tokens of the input, estimated from its length; negative: they may be counted."""
    data_bytes: int = 0
    """The bytes of the body that are Base64, where it is not parsed."""
    data_strings: int = 0
    """The number of strings with these bytes."""
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
    tally = outline.tally
    answers = count_answers(outline.fields) * _count_prompts(body, outline)
    tokens = estimate_large(body, tally.data_bytes, tally.data_strings)
    needs = needs_of_fields(outline.fields, images=contents.may_show_images)
    return Large(model, options, count, answers, tokens, tally.data_bytes, tally.data_strings, needs, contents.digest)


def _count_prompts(body: bytes, outline: Outline) -> int:
    """Returns how many prompts a body has that is not parsed: at most as many as values (of tokens, no number is counted)."""
    prompt = outline.spans.get("prompt")
    return 1 if prompt is None or body[prompt.start : prompt.start + 1] != b"[" else max(1, outline.tally.values)


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


_BOUNDARY = re.compile(rb"""[;\s]boundary=(?:"([^"]{1,70})"|([^\s;,"]{1,70}))(?![^\s;])""", re.IGNORECASE)
_DISPOSITION = re.compile(rb"^content-disposition:[ \t]*([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
MAX_PARTS = 1000
_PARTS_A_STEP = 16
_SEARCHED_BYTES = 262_144
Spans = dict[str, list[tuple[int, int]]]
Part = tuple[str, int, int]
_MAX_PART_HEAD = 8192


class MultipartError(ValueError):
    """The body is not the multipart/form-data that its content type promises."""


def boundary_of(content_type: bytes) -> bytes:
    """Returns the boundary that the content type names. Raises MultipartError when there is none."""
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise MultipartError("the content type names no boundary")
    return found.group(1) or found.group(2)


def find_form_fields(body: bytes, boundary: bytes, names: Collection[str]) -> Spans:
    """Returns the offsets of the values of all fields with these names. Raises MultipartError on a malformed body."""
    steps = find_in_steps(body, boundary, names)
    while True:
        try:
            next(steps)
        except StopIteration as found:
            spans: Spans = found.value
            return spans


def find_in_steps(body: bytes, boundary: bytes, names: Collection[str]) -> Generator[None, None, Spans]:
    """Does the same as `find_form_fields`, in steps of a millisecond or two between which the caller can let others run."""
    spans: Spans = {name: [] for name in names}
    for part in parts_in_steps(body, boundary):
        if part is None:
            yield
        elif part[0] in spans:
            spans[part[0]].append(part[1:])
    return spans


def parts_in_steps(body: bytes, boundary: bytes) -> Generator[Part | None, None, None]:
    """Yields every part: its name (empty: none), and the offsets of its value; None behind each step of a millisecond or two.

    Raises MultipartError on a malformed body.
    """
    delimiter = b"--" + boundary
    line = b"\r\n" + delimiter
    at = 0
    if not body.startswith(delimiter):
        at = (yield from _find(body, line, 0)) + 2
        if at < 2:
            raise MultipartError("the boundary does not occur in the body")
    for number in range(MAX_PARTS):
        if number % _PARTS_A_STEP == 0:
            yield None
        line_end = at + len(delimiter)
        if body[line_end : line_end + 2] == b"--":
            return  # the closing boundary
        if body[line_end : line_end + 2] != b"\r\n":
            raise MultipartError("a boundary does not end its line")
        part_end = yield from _find(body, line, line_end)
        if part_end < 0:
            raise MultipartError("a part does not end")
        head_end = body.find(b"\r\n\r\n", line_end, min(part_end + 2, line_end + _MAX_PART_HEAD))
        if head_end < 0:
            raise MultipartError("the head of a part does not end")
        disposition = _DISPOSITION.search(body, line_end, head_end)
        # The line end of the head may be that of the boundary, too: then the value is empty.
        yield _name_in(disposition[1]) if disposition is not None else "", head_end + 4, max(head_end + 4, part_end)
        at = part_end + 2
    raise MultipartError(f"more than {MAX_PARTS} parts")


def _name_in(disposition: bytes) -> str:
    """Returns the name of a form's field by its `Content-Disposition`; empty: it has none (RFC 7578, 4.2)."""
    kind, options = parse_options_header(disposition)
    return options.get(b"name", b"").decode("latin-1") if kind == b"form-data" else ""


def digest_in_steps(body: bytes, boundary: bytes) -> Generator[None, None, bytes]:
    """Returns the SHA-256 of the parts, each behind its length, without the boundaries, which clients draw anew each time."""
    whole, line = sha256(), b"\r\n--" + boundary
    start = 0 if body.startswith(line[2:]) else -1  # the first boundary may lack its line end
    if start == 0:
        whole.update(b"0:")
        start = len(line) - 2
    else:
        start = 0
    lead = b"\r\n" if start == 0 else b""
    while True:
        end = yield from _find(body, line, start)
        stop = len(body) if end < 0 else end
        whole.update(b"%d:%b" % (stop - start + len(lead), lead))
        lead = b""
        for at in range(start, stop, _SEARCHED_BYTES):
            whole.update(memoryview(body)[at : min(stop, at + _SEARCHED_BYTES)])
            yield
        if end < 0:
            return whole.digest()
        start = end + len(line)


def _find(body: bytes, what: bytes, start: int) -> Generator[None, None, int]:
    """Does the same as `bytes.find`, a piece of the body at a time."""
    while start < len(body):
        # Beyond the piece, so that what lies across two of them is found.
        found = body.find(what, start, start + _SEARCHED_BYTES + len(what) - 1)
        if found >= 0:
            return found
        start += _SEARCHED_BYTES
        if start < len(body):
            yield
    return -1


# --- the needs of a call, and the capabilities of a target ---


CONTEXT_TOLERANCE = 1.25
"""The error of estimates: a call that may fit is let through, and the provider has the last word."""

SURELY_TOO_LONG = 1.5
"""The multiple of what a model reads above which an estimate is too long for it, where the operator names no window."""
CONTEXT_WINDOW = "a larger context window"

_COUNT_DIGITS = 6
_MOST_PARTS = 4096  # messages and parts of messages together, the newest
_IMAGES = frozenset(("image_url", "input_image", "image", "computer_screenshot"))


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of a target; without a declaration it can do everything."""

    tools: bool = True
    images: bool = True
    structured_output: bool = True
    context_window: int | None = None
    """The tokens of input and output together; None: unknown."""

    @property
    def is_restricted(self) -> bool:
        """Returns whether the target lacks anything that a call could need."""
        return not (self.tools and self.images and self.structured_output and self.context_window is None)


class Needs(NamedTuple):
    """The needs of one call; `tokens` are the estimated input and the bound on the output together, 0: unknown.

    They are only asked for where some target of a plan declares a restriction. Nothing here knows targets or limits.
    Invariants: total on any JSON object; the work is bounded however large the body is: what lies beyond the bounds is
    taken not to be there.
    """

    tools: bool = False
    images: bool = False
    structured_output: bool = False
    tokens: int = 0


def count_prompts(body: dict[str, Any]) -> int:
    """Returns how many prompts a parsed request has: a list of texts, or of lists of tokens, is one each."""
    prompt = body.get("prompt")
    return len(prompt) if type(prompt) is list and prompt and type(prompt[0]) is not int else 1


def count_answers(body: dict[str, Any]) -> int:
    """Returns how many answers a parsed request pays for: of each prompt `n`, or the `best_of` of which they are chosen."""
    counts = [body.get("n"), body.get("best_of"), field_of(body.get("generationConfig"), "candidateCount")]
    return count_prompts(body) * max([_choices_of(number) for number in counts])


def _choices_of(number: object) -> int:
    """Returns the number, also as a text or a float, as lax servers take it; 1 for what is no sane one."""
    if type(number) is str and number.isdecimal() and len(number) < _COUNT_DIGITS:
        number = int(number)
    return int(number) if isinstance(number, int | float) and 1 < number < 10**_COUNT_DIGITS else 1


def needs_of(body: dict[str, Any], tokens: int = 0) -> Needs:
    """Returns the needs of a request of chat completions, Responses or Messages; `body` is parsed."""
    return Needs(
        tools=_is_filled(body.get("tools")) or _is_filled(body.get("functions")),
        images=_shows_images(body.get("messages")) or _shows_images(body.get("input")),
        structured_output=_has_schema(body.get("response_format"))
        or _has_schema(field_of(body.get("text"), "format"))
        or _has_schema(field_of(body.get("output_config"), "format")),
        tokens=tokens,
    )


def needs_of_fields(fields: dict[str, Any], *, images: bool) -> Needs:
    """Returns the needs of a request of which only the top level is known; each part that was not read counts as needed."""
    return needs_of(fields)._replace(images=images)


def lacks(needs: Needs, capabilities: Capabilities) -> str | None:
    """Returns the first need that the target lacks, as a word for the error message; None: it can serve the call."""
    if needs.tools and not capabilities.tools:
        return "tools"
    if needs.images and not capabilities.images:
        return "images"
    if needs.structured_output and not capabilities.structured_output:
        return "structured output"
    window = capabilities.context_window
    if window is not None and needs.tokens > window * CONTEXT_TOLERANCE:
        return CONTEXT_WINDOW
    return None


def _is_filled(value: object) -> bool:
    return value is UNREAD or (isinstance(value, list) and len(value) > 0)


def _has_schema(value: object) -> bool:
    """Returns whether a schema is asked for; `json_object` asks for any JSON, which every model serves when asked in words."""
    return value is UNREAD or field_of(value, "type") == "json_schema"


def _shows_images(messages: object) -> bool:
    return isinstance(messages, list) and any(_is_image(part) for part in islice(_parts(messages), _MOST_PARTS))


def _parts(messages: list[Any]) -> Iterator[object]:
    """Yields messages and the parts of their content; in responses a part may stand among the messages, and in Messages those
    of a tool's result are one step deeper."""
    # The newest first, because only so many parts are looked at.
    for message in reversed(messages):
        yield message
        for name in ("content", "output"):  # of a message; of a tool's answer in responses
            content = field_of(message, name)
            if isinstance(content, list):
                yield from content
                for part in content:
                    inner = field_of(part, "content")
                    if isinstance(inner, list):
                        yield from inner
            elif content is not None:
                yield content


def _is_image(part: object) -> bool:
    kind = field_of(part, "type")
    if kind == "document":  # of Messages: it is looked at page by page, unless it is text
        return field_of(field_of(part, "source"), "type") not in ("text", "content")
    return isinstance(kind, str) and kind in _IMAGES
