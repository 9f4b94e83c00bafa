"""What one line of a batch's input has to be, and what is said of one that is not: OpenAI's codes, and the remedy.

    {"custom_id": "a-1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "gpt-4o", …}}

A line is read once when the batch is checked, and again when it runs; its body goes on byte by byte as it was uploaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from gateway.core.openai.json_edit.json_edit import find_fields
from gateway.core.openai.json_edit.json_text import MAX_DEPTH, outside_strings

MOST_ID_CHARS = 512
MOST_MODEL_CHARS = 256
MOST_VALUES = 1_000_000
"""In one line, as in other bodies by default: reading more would keep everybody else waiting for seconds."""
MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
"""Byte order marks."""
_NOT_CHECKED = "this is no line of a batch that was checked"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_BEFORE_BODY = re.compile(
    rb'\s*\{(?:\s*"(?!body")[^"\\]*+"\s*:\s*(?:%s|[^\s"{}\[\],]++)\s*,)*+\s*"body"\s*:\s*' % _STRING
)
_NAMES = re.compile(rb'"\s*:')
"""Every name in a text has one, and a string that looks like JSON may have more."""
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
    parsed: dict[str, Any]
    """The same, read."""


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
    return _body_at_end(text) or _anywhere(text)


def read_custom_id(text: bytes) -> str:
    """Returns the custom_id of a line that has been checked. Raises ValueError for one that is another than was checked."""
    return _custom_id(orjson.loads(text))


def _body_at_end(text: bytes) -> BatchLine | None:
    """Returns the parts where the body stands behind the other fields, which are plain, as in nearly all files; else None.

    What stands between its colon and the line's last brace is the body if it is JSON by itself.
    """
    before = _BEFORE_BODY.match(text)
    if before is None:
        return None
    body = text[before.end() : text.rindex(b"}")].rstrip()
    try:
        return BatchLine(_custom_id(orjson.loads(before[0] + b"0}")), body, _object(orjson.loads(body)))
    except ValueError:
        return None


def _anywhere(text: bytes) -> BatchLine:
    value = orjson.loads(text)
    places = find_fields(text, "body")
    if len(places) != 1:
        raise ValueError(_NOT_CHECKED)
    return BatchLine(_custom_id(value), text[places[0].start : places[0].end], _object(value["body"]))


def _custom_id(value: Any) -> str:
    if isinstance(value, dict) and isinstance(value.get("custom_id"), str):
        return str(value["custom_id"])
    raise ValueError(_NOT_CHECKED)


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise ValueError(_NOT_CHECKED)


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
    if text.count(b",") > MOST_VALUES and outside_strings(text).count(b",") > MOST_VALUES:
        return LineProblem("invalid_request", f"This line has more than {MOST_VALUES} JSON values.")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return _not_json(text, error)
    if not isinstance(value, dict):
        return no_json("This line is no JSON object")
    names, depth = _measure(value)
    if depth > MAX_DEPTH:
        return no_json(f"This line is nested more than {MAX_DEPTH} levels deep")
    if len(_NAMES.findall(text)) != names and outside_strings(text).count(b":") != names:
        return no_json("An object in this line has a name twice; write each once")
    return value


def _measure(value: object) -> tuple[int, int]:
    """Returns the number of names in all objects of a parsed value (written are more where one occurs twice), and its depth."""
    names = depth = 0
    level: list[Any] = [value]
    while level:
        depth += 1
        inner: list[Any] = []
        for one in level:
            if type(one) is dict:
                names += len(one)
                one = one.values()
            inner += [child for child in one if type(child) is dict or type(child) is list]
        level = inner
    return names, depth


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
