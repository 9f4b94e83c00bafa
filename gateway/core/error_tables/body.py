"""Reads the wording of an error answer of any shape: an object, an array of one, a flat object, text, HTML, a stream.

It reads known places only and must not know what the words mean. Total, and bounded: of a body no more than BODY_BYTES
are looked at, of a field no more than FIELD_CHARS, and nothing is followed deeper than those places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.openai.json_edit.json_text import is_crowded

BODY_BYTES = 8_192
TEXT_CHARS = 2_048
"""The characters of all words together, after the codes."""
FIELD_CHARS = 1_024
_ITEMS = 4
"""The items that are read of a list."""
_TRIES = 4
"""The places in a broken body at which JSON may begin."""

_QUOTE = re.compile(r"[`\"]|(?<!\w)'")
_QUOTE_IN_JSON = re.compile(r"`|\\\"|(?<!\w)'")
_NUMBER = re.compile(r"[0-9]+(?:[,._][0-9]+)*")
_STATUS = re.compile(r"[45][0-9][0-9]")
_STREAM_STARTS = (b"data:", b"event:", b"id:", b":")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wording:
    """An answer's words, all in lower case; `text` has all of them, `numberless` the same with # for every number."""

    codes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    """The values of the body's `status` fields."""
    finishes: tuple[str, ...] = ()
    """The reasons for which an answer that is no error has ended."""
    text: str = ""
    numberless: str = ""
    unquoted: str = ""
    """The `text` without quotations: providers quote a request, so quoted words may be the caller's."""
    unquoted_numberless: str = ""


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """One body, read; `error` is None where it holds no error object."""

    error: Json | None
    wording: Wording


def read_body(body: bytes) -> ErrorBody:
    """Returns the wording of a body."""
    seen = _window(body)
    value = _json_in(seen)
    if value is None:
        return ErrorBody(None, _wording([], [], [], [], [seen[:TEXT_CHARS].decode(errors="replace")]))
    error = _error_in(value)
    finishes = _finishes(value)
    if error is None:
        return ErrorBody(None, _wording([], [], [], finishes, []))
    return ErrorBody(error, _words_of(error, finishes))


def read_error(error: Json) -> ErrorBody:
    """Returns the wording of an error object that came inside an answer."""
    return ErrorBody(error, _words_of(error, _finishes(error)))


def error_object(body: bytes) -> Json | None:
    """Returns the error object of a body: `{"error": {…}}`, an array of one such, or flat; None when there is none."""
    value = _parsed(body)
    return None if value is None else _error_in(value)


def is_openai_shaped(body: bytes) -> bool:
    """Returns whether a client that expects OpenAI's error shape can read this body, as far as a short look tells."""
    if is_crowded(body):
        return False
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and isinstance(value.get("error"), dict)


def status_in(error: Json) -> int | None:
    """Returns the HTTP status that an error object names itself."""
    for place in ("code", "status", "statusCode", "status_code"):
        found = _plain(error.get(place))
        if found is not None and _STATUS.fullmatch(found):
            return int(found)
    return None


def resets_at(error: Json) -> str | None:
    """Returns the time at which the limit of an error is reset, as written (OpenRouter)."""
    metadata = _inner(error, "metadata")
    headers = _inner(metadata, "headers")
    return _plain(metadata.get("resets_at")) or _plain(headers.get("X-RateLimit-Reset"))


def normalised(text: str) -> str:
    """Returns the text in lower case, with single spaces."""
    return " ".join(text.lower().split())


def numberless(text: str) -> str:
    """Returns the text with # for every number, be it `30`, `1,000` or `2.5`."""
    return _NUMBER.sub("#", text)


def _window(body: bytes) -> bytes:
    """Returns the part of a body that is read: the end of a stream, the beginning of anything else."""
    if len(body) <= BODY_BYTES:
        return body
    return body[-BODY_BYTES:] if body.startswith(_STREAM_STARTS) else body[:BODY_BYTES]


def _json_in(seen: bytes) -> Json | None:
    """Returns the body's JSON object; else an object in it that is an error, or the last one."""
    value = _parsed(seen)
    if value is not None:
        return value
    found = [value for piece in _pieces(seen) if (value := _parsed(piece)) is not None]
    return next((value for value in found if _error_in(value) is not None), found[0] if found else None)


def _pieces(seen: bytes) -> Iterator[bytes]:
    """Yields the parts of a non-JSON body that may hold an error: lines behind `data:`, or raw JSON at the end of a stream."""
    tail = max(seen.rfind(b"\n{"), seen.rfind(b"\n["))
    if tail >= 0:
        yield seen[tail:]
        yield seen[tail:].rstrip().removesuffix(b"]")  # the last item of an array that began long before
    for mark in (b"\ndata:", b"\nerror:"):
        yield from _last_lines(b"\n" + seen, mark)


def _last_lines(seen: bytes, mark: bytes) -> Iterator[bytes]:
    """Yields the contents of the last few lines that begin with `mark`, the last one first."""
    end = len(seen)
    for _ in range(_TRIES):
        end = seen.rfind(mark, 0, end)
        if end < 0:
            return
        yield seen[end + len(mark) :].partition(b"\n")[0]


def _parsed(text: bytes) -> Json | None:
    if is_crowded(text):
        return None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if isinstance(value, list) and value:
        value = value[-1]
    return value if isinstance(value, dict) else None


def _error_in(value: Json) -> Json | None:
    """Returns the error that an object is or holds."""
    error = value.get("error")
    if isinstance(error, dict):
        return error
    if isinstance(error, str):
        return {"message": error, **value}
    inner = next((place["error"] for place in _holders(value) if place.get("error")), None)
    if isinstance(inner, dict):
        return inner
    if isinstance(inner, str):
        return {"message": inner}
    if "message" in value or "Message" in value:
        return value
    return {"message": value["detail"], **value} if "detail" in value else None


def _holders(value: Json) -> tuple[Json, ...]:
    """Returns the objects below the top that may hold an error: of a Responses event, OpenRouter's choice, Groq's own part."""
    return _inner(value, "response"), _first(value, "choices"), _inner(value, "x_groq")


def _words_of(error: Json, finishes: list[Any]) -> Wording:
    details, metadata = error.get("details"), _inner(error, "metadata")
    parts = [item for item in _items(details) if isinstance(item, dict)]
    kept = details if isinstance(details, dict) else {}
    reasons = [part.get("reason") for part in parts]
    quotas = [limit.get("quotaId") for part in parts for limit in _items(part.get("violations")) if _is_object(limit)]
    faults = [fault for fault in _items(error.get("detail")) if isinstance(fault, dict)]
    codes = [error.get("code"), kept.get("error_code"), _inner(error, "innererror").get("code")]
    types = [error.get("type"), error.get("error_type"), metadata.get("error_type"), _amazon(error)]
    said = [error.get("message"), error.get("Message"), *quotas, *(fault.get("msg") for fault in faults)]
    about = [metadata.get(name) for name in ("limit_source", "provider_code", "raw")]
    flagged = ["flagged_input"] if "flagged_input" in metadata else _items(metadata.get("reasons"))
    named = [*codes, error.get("statusCode"), *reasons]
    return _wording(named, types, [error.get("status")], finishes, [*said, *flagged, *about])


def _amazon(error: Json) -> str:
    """Returns the telling part of a type such as `com.amazon.coral.service#ThrottlingException`."""
    return (_plain(error.get("__type")) or "").rpartition("#")[2]


def _wording(codes: list[Any], types: list[Any], states: list[Any], finishes: list[Any], said: list[Any]) -> Wording:
    known = [_all_plain(one) for one in (codes, types, states, finishes, said)]
    words = normalised("\n".join(text for one in (*known[:3], known[4]) for text in one)[:TEXT_CHARS])
    exact = [tuple(text.strip().lower() for text in one) for one in known[:4]]
    own = _unquoted(words)
    return Wording(exact[0], exact[1], exact[2], exact[3], words, numberless(words), own, numberless(own))


def _unquoted(words: str) -> str:
    """Returns the text without everything from its first quotation mark to its last, or to the end.

    A caller may have written what stands between. In JSON that could not be read, the marks of the JSON itself do not count.
    """
    quote = _QUOTE_IN_JSON if words.startswith(("{", "[")) else _QUOTE
    first = quote.search(words)
    if first is None:
        return words
    last = max(words.rfind(mark) for mark in (("`", '\\"', "'") if quote is _QUOTE_IN_JSON else ("`", '"', "'")))
    return f"{words[: first.start()]} {words[last + 1 :] if last > first.start() else ''}"


def _finishes(value: Json) -> list[Any]:
    """Returns every word for how an answer ended, by the dialects' names."""
    choice, candidate = _first(value, "choices"), _first(value, "candidates")
    incomplete = _inner(value, "incomplete_details") or _inner(_inner(value, "response"), "incomplete_details")
    told = [place.get(name) for place in (value, choice) for name in ("finish_reason", "stop_reason", "stopReason")]
    refusal = "refusal" if _inner(choice, "message").get("refusal") else None
    blocked = _inner(value, "promptFeedback").get("blockReason")
    stopped = _inner(value, "delta").get("stop_reason")
    return [*told, refusal, blocked, stopped, candidate.get("finishReason"), incomplete.get("reason")]


def _all_plain(values: list[Any]) -> list[str]:
    return [text for value in values if (text := _plain(value))]


def _plain(value: object) -> str | None:
    """Returns text, cut, or a number of a sane length; None for anything else, which may be nested too deeply to be printed."""
    if isinstance(value, str):
        return value[:FIELD_CHARS]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**15:
        return str(value)
    return None


def _inner(value: Json, name: str) -> Json:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _first(value: Json, name: str) -> Json:
    items = _items(value.get(name))
    return items[0] if items and isinstance(items[0], dict) else {}


def _items(value: object) -> list[Any]:
    return value[:_ITEMS] if isinstance(value, list) else []


def _is_object(value: object) -> bool:
    return isinstance(value, dict)
