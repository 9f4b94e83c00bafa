"""What the gateway reads in a body: which model, as a stream or not, how many tokens at most. Parsed once, and kept as it came.

Only what the gateway itself needs is checked here; everything else in a body is the provider's to judge. Routing looks at
the matched endpoint and the top-level `model` alone: `api_base`, `base_url` and the like are inert at any depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.errors import CallerFault, InvalidRequest
from gateway.core.openai.bodies.large_body import Large
from gateway.core.openai.bodies.multipart import MultipartError, boundary_of, find_fields
from gateway.core.openai.json_edit.json_edit import is_written_once
from gateway.core.openai.json_edit.json_text import MAX_DEPTH, is_too_deep, too_deep
from gateway.core.openai.transcript.thinking import FIELDS as REASONING
from gateway.core.openai.transcript.thinking import asks_for_reasoning
from gateway.core.types.words import Endpoint

MAX_MODEL_CHARS = 256
MAX_CHOICES = 128
_MODEL_KEY = b'"model"'  # how else a field may be written takes an escape, and then is looked at more closely
_BOUNDS = frozenset(("max_completion_tokens", "max_tokens", "max_output_tokens"))
_RARE = REASONING | {"metadata", "generationConfig"}
"""What is looked at more closely; one question for all of it."""


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
    """What the body asks for; of a large one see `large_bodies.py`. Raises CallerFault, naming the field and the remedy."""
    if endpoint.request == "multipart":
        return _peek_multipart(body, index.get(b"content-type", b""))
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
    max_tokens = None if _BOUNDS.isdisjoint(value) else _max_tokens(value)
    if "generationConfig" in value and "contents" in value:
        max_tokens, thinks = _of_generated(value["generationConfig"])
    return Peeked(name, stream, value.get("stream_options"), None, max_tokens, thinks, value, None, metadata)


def written_twice(name: str) -> InvalidRequest:
    """What is said of a field that two parsers may read differently."""
    return InvalidRequest(
        f"The field '{name}' occurs more than once; send it once.", param=name, code="duplicate_field"
    )


def _max_tokens(body: dict[str, Any]) -> int | None:
    """The bound on the answer's tokens, for all choices together; what is not a sane number is the provider's to judge."""
    bound = body.get("max_completion_tokens") or body.get("max_tokens") or body.get("max_output_tokens")
    if type(bound) is not int or not 0 < bound < 1_000_000_000:
        return None
    for name in ("max_tokens", "max_output_tokens"):  # each provider heeds its own: a small one hides no larger one
        other = body.get(name) or bound
        if other != bound:
            if type(other) is not int or not 0 < other < 1_000_000_000:
                return None
            bound = max(bound, other)
    choices = body.get("n")
    return bound * choices if type(choices) is int and 1 < choices <= MAX_CHOICES else bound


def _of_generated(config: object) -> tuple[int | None, bool]:
    """The bound on the answer's tokens and whether it is thought before it, from Gemini's own options."""
    if not isinstance(config, dict):
        return None, False
    bound, choices = config.get("maxOutputTokens"), config.get("candidateCount")
    asked = {"max_tokens": bound} | ({"n": choices} if choices is not None else {})
    thinking = config.get("thinkingConfig")
    thinking = thinking if isinstance(thinking, dict) else {}
    budget, level = thinking.get("thinkingBudget"), str(thinking.get("thinkingLevel", "minimal")).lower()
    return _max_tokens(asked), level != "minimal" or (type(budget) is int and budget != 0)


def _peek_multipart(body: bytes, content_type: bytes) -> Peeked:
    try:
        found = find_fields(body, form_boundary(content_type), ("model", "stream"))
    except MultipartError as exc:
        raise malformed_form(exc) from None
    return read_form(body, found["model"], found["stream"])


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
