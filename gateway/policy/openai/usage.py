"""The tokens of a call: read from the end of the answer, or estimated when the provider reported none.

Reads the last `usage` object by searching backwards, so that neither a long answer is parsed nor a stream kept.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from gateway.words import Usage

_BYTES_PER_TOKEN = 4
_SEARCHES = 4
_MOST = 1 << 53
_MAX_BYTES = 16_384  # of a usage object: the longest have some dozens of numbers
_PICTURES = 64
_BASE64 = re.compile(rb";base64,[A-Za-z0-9+/=]++")


def find_usage(tail: bytes) -> Usage | None:
    """Returns the usage that the end of an answer reports; None when there is none that can be read."""
    end = len(tail)
    for _ in range(_SEARCHES):
        key = tail.rfind(b'"usage"', 0, end)
        if key < 0:
            return None
        end = key
        found = _object_after(tail, key + 7)
        usage = found and read_usage(found)
        if usage:
            return usage
    return None


def read_usage(usage: dict[str, Any]) -> Usage | None:
    """Returns the tokens of a provider's usage object (Chat Completions' or Responses' names); None when it has no numbers."""
    input_tokens = usage.get("prompt_tokens", usage.get("input_tokens"))
    output_tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    if (
        type(input_tokens) is not int
        or type(output_tokens) is not int
        or not (0 <= input_tokens | output_tokens < _MOST)
    ):
        input_tokens, output_tokens = _count(input_tokens), _count(output_tokens)
        if input_tokens is None and output_tokens is None:
            return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    known = input_tokens or 0
    return Usage(known, output_tokens or 0, min(cached or 0, known))


def estimate_usage(body: bytes, output_tokens: int) -> Usage:
    """Returns a rough count from the size of the request: four bytes to a token."""
    if b";base64," in body:
        body = _BASE64.sub(b"", body, count=_PICTURES)  # a picture does not cost by its bytes
    return Usage(len(body) // _BYTES_PER_TOKEN, output_tokens, estimated=True)


def estimate_tokens(text: bytes) -> int:
    """Returns the estimated tokens of an answer without usage."""
    return len(text) // _BYTES_PER_TOKEN


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < _MOST else None


def _object_after(text: bytes, start: int) -> dict[str, Any] | None:
    """Returns the JSON object behind `"usage":`, found by its closing brace; usage objects hold no strings with braces."""
    opening = text.find(b"{", start, start + _MAX_BYTES)
    if opening < 0 or text[start:opening].strip() != b":":
        return None
    depth = 0
    closing = opening
    while True:
        brace = text.find(b"}", closing, opening + _MAX_BYTES)
        if brace < 0:
            return None
        depth += text.count(b"{", closing, brace) - 1
        closing = brace + 1
        if depth == 0:
            break
    try:
        value = orjson.loads(text[opening:closing])
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
