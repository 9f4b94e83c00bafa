"""What one line of a batch's input has to be, and what is said of one that is not: OpenAI's codes, and the remedy.

    {"custom_id": "a-1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "gpt-4o", …}}

A line is read once when the batch is checked, and again when it runs; its body goes on byte by byte as it was uploaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from gateway.policy.openai.json_edit import find_fields
from gateway.policy.openai.json_text import MAX_DEPTH, is_too_deep, outside_strings

MOST_ID_CHARS = 512
MOST_MODEL_CHARS = 256
MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
"""Byte order marks."""
_STREAM = "A batch has whole answers only; leave 'stream' out."


@dataclass(frozen=True, slots=True)
class LineProblem:
    """What is wrong with one line, as a batch's `errors` have it."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
    """Counted from 1; None: the whole file is meant."""


class CheckedLine(NamedTuple):
    """What is known of a line that is right."""

    id_digest: bytes
    """16 bytes that stand for its custom_id."""
    model: str


class BatchLine(NamedTuple):
    """A checked line, to be run."""

    custom_id: str
    body: bytes
    """As it was uploaded."""


@dataclass(frozen=True, slots=True)
class LineRules:
    """What the lines of one batch have in common."""

    endpoint: str
    """Below the base URL, such as `/chat/completions`."""
    fault_of_model: Callable[[str], LineProblem | None]
    """Tells why the batch's key cannot use a model."""
    fault_of_fields: Callable[[dict[str, Any]], LineProblem | None] | None = None
    """Tells what else of a body is not for this key; None: it may send anything."""


def check_line(text: bytes, rules: LineRules) -> CheckedLine | LineProblem:
    """Returns what is known of a line (without its end), or the first thing that is wrong with it."""
    value = _parsed(text)
    if isinstance(value, LineProblem):
        return value
    for name in ("custom_id", "method", "url", "body"):
        if name not in value:
            return _missing(name)
    custom_id, body = value["custom_id"], value["body"]
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MOST_ID_CHARS:
        return _wrong("custom_id", f"The 'custom_id' must be a string of 1 to {MOST_ID_CHARS} characters.")
    if value["method"] != "POST":
        return _wrong("method", "The 'method' must be \"POST\".")
    if not _is_url_of(rules.endpoint, value["url"]):
        return LineProblem(
            "url_mismatch", f"The 'url' must be the batch's endpoint, \"/v1{rules.endpoint}\", in every line.", "url"
        )
    if not isinstance(body, dict):
        return _wrong("body", "The 'body' must be a JSON object.")
    fault = _fault_of_body(body, rules)
    return fault or CheckedLine(id_digest(custom_id), body["model"])


def read_line(text: bytes) -> BatchLine:
    """Returns the parts of a line that has been checked. Raises ValueError for one that is another than was checked."""
    value = orjson.loads(text)
    places = find_fields(text, "body")
    if not isinstance(value, dict) or not isinstance(value.get("custom_id"), str) or len(places) != 1:
        raise ValueError("this is no line of a batch that was checked")
    return BatchLine(value["custom_id"], text[places[0].start : places[0].end])


def id_digest(custom_id: str) -> bytes:
    """Returns 16 bytes that stand for a custom_id."""
    return blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _fault_of_body(body: dict[str, Any], rules: LineRules) -> LineProblem | None:
    if "model" not in body:
        return _missing("body.model")
    model = body["model"]
    if not isinstance(model, str) or not 0 < len(model) <= MOST_MODEL_CHARS or not model.isprintable():
        return _wrong("body.model", f"The model must be a string of 1 to {MOST_MODEL_CHARS} printable characters.")
    stream = body.get("stream")
    if stream is not None and stream is not False:
        return _wrong("body.stream", _STREAM)
    return rules.fault_of_model(model) or (rules.fault_of_fields(body) if rules.fault_of_fields else None)


def _is_url_of(endpoint: str, url: object) -> bool:
    return isinstance(url, str) and url.removeprefix("/v1") == endpoint


def _parsed(text: bytes) -> dict[str, Any] | LineProblem:
    """Returns the line's object, if it is one that all parsers read alike."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return _not_json(text, error)
    if not isinstance(value, dict):
        return no_json("This line is no JSON object")
    if text.count(b"{") + text.count(b"[") > MAX_DEPTH and is_too_deep(text):
        return no_json(f"This line is nested more than {MAX_DEPTH} levels deep")
    written = text.count(b":")
    pairs = _count_pairs(value)
    if written != pairs and outside_strings(text).count(b":") != pairs:
        return no_json("An object in this line has a name twice; write each once")
    return value


def _count_pairs(value: object) -> int:
    """Returns the number of names in all objects of a parsed value; written were more where one occurs twice."""
    pairs = 0
    left = [value]
    while left:
        value = left.pop()
        if type(value) is dict:
            pairs += len(value)
            inner: Any = value.values()
        else:
            inner = value
        left += [one for one in inner if type(one) is dict or type(one) is list]
    return pairs


def _not_json(text: bytes, error: orjson.JSONDecodeError) -> LineProblem:
    if not text.strip():
        return no_json("This line is empty; take it out")
    if text.startswith(MARKS):
        return no_json("This file begins with a byte order mark; save it as plain UTF-8")
    try:
        text.decode()
    except UnicodeDecodeError as broken:
        return no_json(f"This line is not valid UTF-8 at byte {broken.start}; save the file as UTF-8")
    return no_json(f"This line is not parseable as valid JSON: {error.msg} at column {error.colno}")


def no_json(why: str) -> LineProblem:
    """Returns the problem of a line that is no JSON object."""
    return LineProblem("invalid_json_line", f"{why}.")


def _missing(name: str) -> LineProblem:
    return LineProblem("missing_required_parameter", f"Missing required parameter: '{name}'.", name)


def _wrong(name: str, message: str) -> LineProblem:
    return LineProblem("invalid_request", message, name)
