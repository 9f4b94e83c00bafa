"""What the gateway reads in a body: which model, as a stream or not, how many tokens at most. Parsed once, and kept as it came.

Only what the gateway itself needs is checked here; everything else in a body is the provider's to judge. Routing looks at
the matched endpoint and the top-level `model` alone: `api_base`, `base_url` and the like are inert at any depth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from gateway.core.errors import CallerFault, InvalidRequest
from gateway.core.openai.bodies import (
    PEEKED_BYTES,
    Large,
    MultipartError,
    boundary_of,
    digest_in_steps,
    find_form_fields,
    find_in_steps,
    is_parsed,
    large_of,
)
from gateway.core.openai.json_edit import (
    MAX_DEPTH,
    Field,
    MalformedJson,
    Outline,
    is_too_deep,
    is_written_once,
    mended_json,
    read_contents,
    read_outline,
    too_deep,
)
from gateway.core.openai.transcript import FIELDS as REASONING
from gateway.core.openai.transcript import asks_for_reasoning
from gateway.core.openai.usage import count_answers
from gateway.core.types import Endpoint

MAX_MODEL_CHARS = 256
_MODEL_KEY = b'"model"'  # how else a field may be written takes an escape, and then is looked at more closely
_BOUNDS = frozenset(("max_completion_tokens", "max_tokens", "max_output_tokens"))
_ANSWERS = frozenset(("n", "best_of", "prompt"))
"""What multiplies the answers of one call."""
_RARE = REASONING | {"metadata", "generationConfig"}
"""What is looked at more closely; one question for all of it."""
BOUNDING = _BOUNDS | _ANSWERS | {"generationConfig"}
"""The fields that say how long an answer may be, and how many there are."""


@dataclass(slots=True)
class Peeked:
    """What the gateway read in a body."""

    model: str
    stream: bool = False
    stream_options: object = None
    model_span: tuple[int, int] | None = None
    max_tokens: int | None = None
    thinks: bool = False
    parsed: dict[str, Any] | None = None
    large: Large | None = None
    metadata: object = None
    """As it stands in the body; None: there is none, or it was not read."""


def peek(endpoint: Endpoint, body: bytes, index: dict[bytes, bytes]) -> Peeked:
    """What the body asks for; of a large one see `LargeBodies`. Raises CallerFault, naming the field and the remedy."""
    if endpoint.request == "multipart":
        content_type = index.get(b"content-type", b"")
        try:
            found = find_form_fields(body, form_boundary(content_type), ("model", "stream"))
        except MultipartError as exc:
            raise malformed_form(exc) from None
        return read_form(body, found["model"], found["stream"])
    value = json_value(body)
    # To take one character out jumps from one to the next, to count them looks at every byte: three times as long.
    rest = len(body.replace(b"{", b"", MAX_DEPTH + 1)) + len(body.replace(b"[", b"", MAX_DEPTH + 1))
    if 2 * len(body) - rest > MAX_DEPTH and is_too_deep(body):
        raise too_deep()
    peeked = read_fields(value, is_model_optional=endpoint.is_model_optional)
    # One character is found much faster than four; `in` makes and drops an error first, that the text is no number.
    is_plain = body.count(_MODEL_KEY) == 1 and (body.find(b"\\") < 0 or body.find(b"\\u00") < 0)
    if not is_plain and "model" in value and not is_written_once(body, "model"):
        raise written_twice("model")
    return peeked


def json_value(body: bytes) -> dict[str, Any]:
    """The body, parsed. Raises InvalidRequest, or BodyTooComplex where it is deeper than the parser goes."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        value = mended_json(body)
        if value is None:
            raise _not_json(body, exc) from None
    if not isinstance(value, dict):
        raise InvalidRequest('The request body must be a JSON object, such as {"model": …}.', code="invalid_json")
    return value


def read_fields(value: dict[str, Any], *, is_model_optional: bool = False) -> Peeked:
    """What these top-level fields ask for; an empty name where they name no model and need not. Raises InvalidRequest."""
    name = value.get("model")
    if type(name) is not str or not 0 < len(name) <= MAX_MODEL_CHARS or not name.isprintable():
        name = "" if name is None and is_model_optional else _model_name(name, present="model" in value)
    stream = value.get("stream", False)
    if stream is not True and stream is not False:
        if stream is not None:
            raise InvalidRequest("The field 'stream' must be true or false.", param="stream", code="invalid_type")
        stream = False
    thinks, metadata = False, None
    if not _RARE.isdisjoint(value):
        thinks, metadata = asks_for_reasoning(value), value.get("metadata")
    max_tokens = None if _BOUNDS.isdisjoint(value) else max_tokens_of(value)
    if "generationConfig" in value and "contents" in value:
        max_tokens, thinks = _of_generated(value["generationConfig"])
    return Peeked(name, stream, value.get("stream_options"), None, max_tokens, thinks, value, None, metadata)


def written_twice(name: str) -> InvalidRequest:
    """What is said of a field that two parsers may read differently."""
    return InvalidRequest(
        f"The field '{name}' occurs more than once; send it once.", param=name, code="duplicate_field"
    )


def find_bound(value: dict[str, Any]) -> int | None:
    """Returns the bound that a parsed request of any language sets on the tokens of all its answers together; None: none."""
    if "generationConfig" in value and "contents" in value:
        return _of_generated(value["generationConfig"])[0]
    return max_tokens_of(value)


def max_tokens_of(body: dict[str, Any]) -> int | None:
    """The bound on the tokens of all answers together; what is not a sane number is the provider's to judge."""
    bound = body.get("max_completion_tokens") or body.get("max_tokens") or body.get("max_output_tokens")
    if type(bound) is not int or not 0 < bound < 1_000_000_000:
        return None
    for name in ("max_tokens", "max_output_tokens"):  # each provider heeds its own: a small one hides no larger one
        other = body.get(name) or bound
        if other != bound:
            if type(other) is not int or not 0 < other < 1_000_000_000:
                return None
            bound = max(bound, other)
    return bound if _ANSWERS.isdisjoint(body) else bound * count_answers(body)


def _of_generated(config: object) -> tuple[int | None, bool]:
    """The bound on the answer's tokens and whether it is thought before it, from Gemini's own options."""
    if not isinstance(config, dict):
        return None, False
    wanted = {"max_tokens": config.get("maxOutputTokens"), "n": config.get("candidateCount")}
    thinking = config.get("thinkingConfig")
    thinking = thinking if isinstance(thinking, dict) else {}
    budget, level = thinking.get("thinkingBudget"), str(thinking.get("thinkingLevel", "minimal")).lower()
    return max_tokens_of(wanted), level != "minimal" or (type(budget) is int and budget != 0)


def form_boundary(content_type: bytes) -> bytes:
    """The boundary of a form. Raises InvalidRequest for another content type, MultipartError without a boundary."""
    if not content_type.lower().startswith(b"multipart/form-data"):
        raise InvalidRequest(
            "This endpoint takes multipart/form-data; set the content type.", code="invalid_content_type"
        )
    return boundary_of(content_type)


def malformed_form(problem: MultipartError | str) -> InvalidRequest:
    """What is said of a form that is none."""
    return InvalidRequest(f"The multipart body is malformed: {problem}.", code="invalid_multipart")


def read_form(body: bytes, spans: Sequence[tuple[int, int]], streams: Sequence[tuple[int, int]]) -> Peeked:
    """What a form asks for whose fields `model` and `stream` stand there. Raises InvalidRequest."""
    if len(spans) > 1:
        raise written_twice("model")
    raw = body[slice(*spans[0])] if spans else b""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The field 'model' is not valid UTF-8.", param="model", code="invalid_value") from None
    model = _model_name(text, present=bool(spans))
    stream = bool(streams) and body[slice(*streams[0])].lower() == b"true"
    return Peeked(model, stream, model_span=spans[0])


def _model_name(value: Any, *, present: bool) -> str:
    if not present:
        raise no_model()
    if not isinstance(value, str):
        raise InvalidRequest("The field 'model' must be a string.", param="model", code="invalid_type")
    if not value or len(value) > MAX_MODEL_CHARS or not value.isprintable():
        raise InvalidRequest(
            f"The field 'model' must have 1 to {MAX_MODEL_CHARS} printable characters.",
            param="model",
            code="invalid_value",
        )
    return value


def no_model() -> InvalidRequest:
    """What is said where a model has to be named."""
    return InvalidRequest("The field 'model' is missing; name the model to use.", param="model", code="missing_field")


def _not_json(body: bytes, exc: orjson.JSONDecodeError) -> CallerFault:
    if not body.strip():
        return InvalidRequest("The request body is empty; send a JSON object.", code="empty_body")
    if "depth" in exc.msg or "ecursion" in exc.msg:  # its words depend on the version
        return too_deep()
    return InvalidRequest(f"The request body is not valid JSON: {_json_problem(body, exc)}.", code="invalid_json")


def _json_problem(body: bytes, exc: orjson.JSONDecodeError) -> str:
    """The parser's words, made plain where they are not."""
    if body[:3] == b"\xef\xbb\xbf" or body[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "it starts with a byte order mark; send plain UTF-8"
    try:
        body.decode()
    except UnicodeDecodeError as broken:
        return f"it is not valid UTF-8 at byte {broken.start}"
    return f"{exc.msg} at line {exc.lineno} column {exc.colno}"


# Reads what a large body asks for, a piece at a time: between the pieces everybody else is served.
#
# One body at a time, so that the loop is never later by more than one piece, however many come at once. A body of more than a
# few megabytes is not parsed at all: what it costs is its bytes.


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
        """As the function of this name. Raises CallerFault, BodyTooComplex where there are more values than `max_values`."""
        async with self._turn:
            if endpoint.request == "multipart":
                try:
                    boundary = form_boundary(index.get(b"content-type", b""))
                    found = await _in_steps(find_in_steps(body, boundary, ("model", "stream")))
                except MultipartError as exc:
                    raise malformed_form(exc) from None
                peeked = read_form(body, found["model"], found["stream"])
                if b"idempotency-key" in index and len(body) > PEEKED_BYTES:  # it will be compared with another
                    peeked.large = Large(digest=await _in_steps(digest_in_steps(body, boundary)))
                return peeked
            try:
                counts_numbers, is_optional = endpoint.name not in TAKES_TOKENS, endpoint.is_model_optional
                outline = await _in_steps(read_outline(body, max_values, counts_numbers=counts_numbers))
                if is_parsed(body, outline):
                    peeked = read_fields(json_value(body), is_model_optional=is_optional)
                    large = large_of(body, outline)
                else:
                    contents = await _in_steps(read_contents(body))
                    peeked = read_fields(outline.fields, is_model_optional=is_optional)
                    large = large_of(body, outline, contents)
                    if peeked.max_tokens is not None:
                        peeked.max_tokens = peeked.max_tokens // count_answers(outline.fields) * large.answers
                if "model" in outline.repeated:
                    raise written_twice("model")
                peeked.large = large
                return peeked
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


async def _in_steps(work: Generator[None, None, T]) -> T:
    """What the work returns, after as many turns of the loop as it has steps."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            value: T = done.value
            return value
        await asyncio.sleep(0)
