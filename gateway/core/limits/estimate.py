"""Estimates a request's tokens: a heuristic over sizes (no tokenizer).

It must not know limits. Invariants: total on any JSON object; the work is bounded however large the body is.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import orjson

Count = Callable[[str], float]

_BYTES_PER_TOKEN = 4.0
_WIDE_BYTES_PER_TOKEN = 3.0  # two-byte scripts: Cyrillic, Greek, Arabic, accented letters
_CJK_BYTES_PER_TOKEN = 2.0  # three bytes and more: Chinese, Japanese, Korean, Indic, emoji
_JSON_BYTES_PER_TOKEN = 3.5
_MESSAGE_TOKENS = 4
_REPLY_TOKENS = 3
_IMAGE_TOKENS = 765
_LOW_IMAGE_TOKENS = 85

_MOST_ITEMS = 1024  # more are not looked at one by one
_MOST_PARTS = 128  # of one message
_SLICE = 512
_SLICES = 8

_BLOCKS = frozenset(("tool_use", "tool_result", "thinking", "document"))
_TEXT_FIELDS = ("prompt", "input", "system", "instructions")
_MEDIA = frozenset(("inlineData", "inline_data", "fileData", "file_data"))
_JSON_FIELDS = ("tools", "functions", "response_format", "output_config")


def estimate_input_tokens(body: bytes, parsed: dict[str, Any], count: Count | None = None) -> int:
    """Input tokens of a request of any language; at least 1. `parsed` is `body`, parsed.

    `count` is a tokenizer: the tokens of a text. Without one, texts are judged by their length and script.
    """
    count = count or text_tokens
    tokens = 0.0
    messages = parsed.get("messages")
    if messages is not None:
        tokens = _content_tokens(messages, body, count) + _REPLY_TOKENS
    if "contents" in parsed:
        tokens += _contents_tokens(parsed["contents"], body, count)
        tokens += _contents_tokens([parsed.get("systemInstruction")], body, count)
    for field in _TEXT_FIELDS:
        if field in parsed:
            tokens += _content_tokens(parsed[field], body, count)
    for field in _JSON_FIELDS:
        if field in parsed:
            tokens += _json_bytes(parsed[field], body) / _JSON_BYTES_PER_TOKEN
    return ceil(tokens) or _body_tokens(body) or 1


def estimate_large(body: bytes, data_bytes: int, data_strings: int) -> int:
    """Input tokens of a body that is not parsed, by its length and script; at least 1.

    `data_bytes` of it are Base64, in `data_strings` strings: each is taken for a picture, whose bytes say nothing.
    """
    text = _body_tokens(body) * (len(body) - data_bytes) / len(body)
    return ceil(text + data_strings * _IMAGE_TOKENS) or 1


def _content_tokens(content: object, body: bytes, count: Count) -> float:
    """Tokens of a text, or of a list of texts, messages, parts or token numbers, in any mixture."""
    if type(content) is str:
        return count(content)
    if type(content) is not list or not content:
        return 0.0
    if type(content[0]) is int:
        return len(content)
    if len(content) > _MOST_ITEMS:
        # Of very many small things token numbers are counted, everything else goes by the size of the body.
        if type(content[0]) is list:
            return sum([len(item) for item in content if type(item) is list])
        return _body_tokens(body)
    tokens = 0.0
    for item in content:
        kind = type(item)
        if kind is dict:
            text = item.get("content")
            if count is text_tokens and type(text) is str and text.isascii() and "tool_calls" not in item:
                tokens += _MESSAGE_TOKENS + len(text) / _BYTES_PER_TOKEN  # most messages, without a call for each
            else:
                tokens += _item_tokens(item, count)
        elif kind is str:
            tokens += count(item)
        elif kind is list:
            tokens += len(item)
    return tokens


def _contents_tokens(contents: object, body: bytes, count: Count) -> float:
    """Tokens of the contents of Gemini's: a list of parts each."""
    if type(contents) is not list or len(contents) > _MOST_ITEMS:
        return _body_tokens(body)
    return sum([_content_of_parts(one.get("parts"), count) for one in contents if type(one) is dict])


def _content_of_parts(parts: object, count: Count) -> float:
    if type(parts) is not list:
        return 0.0
    tokens = 1.0 * _MESSAGE_TOKENS
    for part in parts[:_MOST_PARTS]:
        text = part.get("text") if type(part) is dict else None
        if type(text) is str:
            tokens += count(text)
        elif type(part) is dict and not _MEDIA.isdisjoint(part):
            tokens += _IMAGE_TOKENS
        else:
            tokens += _json_bytes(part, b"") / _JSON_BYTES_PER_TOKEN
    return tokens


def _item_tokens(item: dict[str, Any], count: Count) -> float:
    """Tokens of a message or of one part of its content."""
    content = item.get("content")
    if type(content) is str:
        tokens = _MESSAGE_TOKENS + count(content)
    elif content is not None:
        tokens = _MESSAGE_TOKENS + _parts_tokens(content, count)
    else:
        tokens = _part_tokens(item, count)
    if "tool_calls" in item:
        tokens += _calls_tokens(item["tool_calls"], count)
    return tokens


def _parts_tokens(parts: object, count: Count) -> float:
    if type(parts) is not list or not parts:
        return 0.0
    sample = parts[:: 1 + (len(parts) - 1) // _MOST_PARTS]
    return sum([_part_tokens(part, count) for part in sample if type(part) is dict]) * len(parts) / len(sample)


def _calls_tokens(calls: object, count: Count) -> float:
    if type(calls) is not list:
        return 0.0
    functions = [call.get("function") for call in calls[:_MOST_PARTS] if type(call) is dict]
    return sum([_MESSAGE_TOKENS + _part_tokens(function, count) for function in functions if type(function) is dict])


def _part_tokens(part: dict[str, Any], count: Count) -> float:
    """A text by its length, a picture (or sound, or file) by its detail; its bytes say nothing about its tokens."""
    for field in ("text", "output", "arguments"):
        text = part.get(field)
        if type(text) is str:
            return count(text)
    kind = part.get("type")
    if type(kind) is str and kind in _BLOCKS:
        return _block_tokens(part, count)
    if type(kind) is not str or not ("image" in kind or "audio" in kind or "file" in kind):
        return _MESSAGE_TOKENS
    image = part.get("image_url")
    detail = image.get("detail") if type(image) is dict else part.get("detail")
    return _LOW_IMAGE_TOKENS if detail == "low" else _IMAGE_TOKENS


def _block_tokens(block: dict[str, Any], count: Count) -> float:
    """Tokens of a block that Messages alone have: a tool's call or result, a thought, a document."""
    source = block.get("source")
    source = source if type(source) is dict else {}
    if block["type"] == "document" and source.get("type") not in ("text", "content"):
        return _IMAGE_TOKENS
    tokens = 1.0 * _MESSAGE_TOKENS
    for text in (block.get("content"), block.get("thinking"), source.get("data"), source.get("content")):
        if type(text) is str:
            tokens += count(text)
        elif type(text) is list:  # what stands in these is not followed deeper
            inner = [part for part in text[:_MOST_PARTS] if type(part) is dict and str(part.get("type")) not in _BLOCKS]
            tokens += sum([_part_tokens(part, count) for part in inner])
    if "input" in block:
        tokens += _json_bytes(block["input"], b"") / _JSON_BYTES_PER_TOKEN
    return tokens


def text_tokens(text: str) -> float:
    """Tokens of a text, by its length and script."""
    if text.isascii():  # known without looking: strings remember it
        return len(text) / _BYTES_PER_TOKEN
    chars = len(text)
    if chars <= 2 * _SLICES * _SLICE:
        return _script_tokens(text)
    step = (chars - _SLICE) // (_SLICES - 1)
    sample = "".join([text[start : start + _SLICE] for start in range(0, step * _SLICES, step)])
    return _script_tokens(sample) * chars / len(sample)


def _script_tokens(text: str) -> float:
    """ASCII by four bytes to a token; the rest by how many bytes its characters take."""
    ascii_bytes = len(text.encode("ascii", "ignore"))
    wide_bytes = len(text.encode("utf-8", "surrogatepass")) - ascii_bytes
    is_cjk = wide_bytes >= 2.5 * (len(text) - ascii_bytes)
    return ascii_bytes / _BYTES_PER_TOKEN + wide_bytes / (_CJK_BYTES_PER_TOKEN if is_cjk else _WIDE_BYTES_PER_TOKEN)


def _json_bytes(value: object, body: bytes) -> int:
    """The size of a part of the body. Nested too deep to be written again: at most that of the body."""
    try:
        return len(orjson.dumps(value))
    except orjson.JSONEncodeError:
        return len(body)


def _body_tokens(body: bytes) -> int:
    if len(body) <= 2 * _SLICES * _SLICE:
        return ceil(text_tokens(body.decode("utf-8", "replace")))
    step = (len(body) - _SLICE) // (_SLICES - 1)
    sample = b"".join([body[start : start + _SLICE] for start in range(0, step * _SLICES, step)])
    return ceil(text_tokens(sample.decode("utf-8", "replace")) * len(body) / len(sample))
