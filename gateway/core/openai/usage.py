"""The tokens of a call, and what its request needs of a target.

Reads the last `usage` object by searching backwards, so that neither a long answer is parsed nor a stream kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import orjson

from gateway.core.openai.json_edit import UNREAD
from gateway.core.types import Endpoint, Usage, UsageParts

# The needs of a call, and the capabilities of a target.
#
# Only asked where some target of a plan declares a restriction. It must not know targets or limits. Invariants: total on any
# JSON object; the work is bounded however large the body is: what lies beyond the bounds is taken not to be there.


CONTEXT_TOLERANCE = 1.25
"""The error of estimates: a call that may fit is let through, and the provider has the last word."""

SURELY_TOO_LONG = 1.5
"""So many times more than a model reads is an estimate that is too long for it, where the operator says no window."""
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
    """The needs of one call; `tokens` are the estimated input and the bound on the output together, 0: unknown."""

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
    asked = [body.get("n"), body.get("best_of"), _field(body.get("generationConfig"), "candidateCount")]
    return count_prompts(body) * max([_choices_of(number) for number in asked])


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
        or _has_schema(_field(body.get("text"), "format"))
        or _has_schema(_field(body.get("output_config"), "format")),
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


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else UNREAD if value is UNREAD else None


def _has_schema(value: object) -> bool:
    """Returns whether a schema is asked for; `json_object` asks for any JSON, which every model serves when asked in words."""
    return value is UNREAD or _field(value, "type") == "json_schema"


def _shows_images(messages: object) -> bool:
    return isinstance(messages, list) and any(_is_image(part) for part in islice(_parts(messages), _MOST_PARTS))


def _parts(messages: list[Any]) -> Iterator[object]:
    """Yields messages and the parts of their content; in responses a part may stand among the messages, and in Messages those
    of a tool's result are one step deeper."""
    for message in reversed(messages):
        yield message
        for name in ("content", "output"):  # of a message; of a tool's answer in responses
            content = _field(message, name)
            if isinstance(content, list):
                yield from content
                for part in content:
                    inner = _field(part, "content")
                    if isinstance(inner, list):
                        yield from inner
            elif content is not None:
                yield content


def _is_image(part: object) -> bool:
    kind = _field(part, "type")
    if kind == "document":  # of Messages: it is looked at page by page, unless it is text
        return _field(_field(part, "source"), "type") not in ("text", "content")
    return isinstance(kind, str) and kind in _IMAGES


# Tells which calls to passthrough endpoints cost nothing: reading, deleting, cancelling, uploading.


_FREE_METHODS = frozenset(("GET", "HEAD", "DELETE"))
_FREE_POSTS = re.compile(r"/(?:files|uploads(?:/[^/]+(?:/[^/]+)?)?|[^?]+/cancel)/?")
"""The free POST paths: a file, an upload with its parts and its end, and every cancellation."""


def costs_nothing(endpoint: Endpoint, method: str, path: str) -> bool:
    """Returns whether a call to that path below the base URL is free at every provider; endpoints with a price are not."""
    if endpoint.request != "any":
        return False
    return method in _FREE_METHODS or (method == "POST" and _FREE_POSTS.fullmatch(path) is not None)


# Fields by which some provider chooses a model, whatever `model` says: some read names in any case, some have their own.
#
# A key that may use some models only must not send them.


CHOOSES_A_MODEL = frozenset(
    ("model", "models", "provider", "route", "fallbacks", "preset", "engine", "deployment_id", "model_id", "model_list")
)
"""In lower case (OpenRouter's `models` and `provider`; Go reads field names in any case)."""


def other_model_field(names: Iterable[str]) -> str | None:
    """Returns the first name, other than `model` itself, by which a provider may choose a model."""
    return next((name for name in names if name != "model" and name.casefold() in CHOOSES_A_MODEL), None)


_BYTES_PER_TOKEN = 4
_SEARCHES = 4
_MOST = 1 << 53
_MOST_SECONDS = 1e7
_INPUTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_NAMES = (b'"usage"', b'"usageMetadata"')
_MAX_BYTES = 16_384  # of a usage object: the longest have some dozens of numbers
_PICTURES = 64
_BASE64 = re.compile(rb';base64,[A-Za-z0-9+/=]++|"data":\s?"[A-Za-z0-9+/=]{256,}+')
"""A picture or file, as OpenAI has it, and as Anthropic and Gemini do."""


def find_usage(tail: bytes) -> Usage | None:
    """Returns the usage that the end of an answer reports; None when there is none that can be read."""
    end = len(tail)
    for _ in range(_SEARCHES):
        key = tail.rfind(b'"usage', 0, end)
        if key < 0:
            return None
        end = key
        name = next((one for one in _NAMES if tail.startswith(one, key)), b"")
        found = _object_after(tail, key + len(name)) if name else None
        usage = found and read_usage(found)
        if usage:
            return usage
    return None


def read_usage(usage: dict[str, Any]) -> Usage | None:
    """Returns the tokens of a provider's usage object; None when it has no numbers.

    The names are those of chat completions, Responses, or Anthropic's Messages, whose input leaves out what was read from the
    cache and written to it; or of Gemini's. Proxies give Anthropic's names beside `prompt_tokens`, which has all of it.
    `estimated` is our own word, in an answer that was converted from one without numbers.
    """
    if "totalTokenCount" in usage or "promptTokenCount" in usage:
        return _googles(usage)
    if usage.get("type") == "duration":  # of a transcription (OpenAI)
        seconds = read_seconds(usage.get("seconds"))
        return None if seconds is None else Usage(0, 0, parts=UsageParts(audio_s=seconds))
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
    known = input_tokens or 0
    if "prompt_tokens" not in usage and ("cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage):
        read = _count(usage.get("cache_read_input_tokens")) or 0
        written = _count(usage.get("cache_creation_input_tokens")) or 0
        hourly = _hourly(usage.get("cache_creation"), written)
        return Usage(known + read + written, output_tokens or 0, read, cache_written=written, cache_written_1h=hourly)
    details = (
        usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or usage.get("input_token_details")
    )
    if not isinstance(details, dict):
        return Usage(known, output_tokens or 0, estimated=usage.get("estimated") is True)
    cached = min(_count(details.get("cached_tokens")) or 0, known)
    written = min(_count(details.get("cache_write_tokens")) or 0, known - cached)
    hourly = _hourly(details.get("cache_creation_token_details"), written)
    return Usage(known, output_tokens or 0, cached, cache_written=written, cache_written_1h=hourly)


def _hourly(told: object, written: int) -> int:
    """Returns how much of what was written to the cache stays there for an hour, which Anthropic's usage tells apart."""
    return min(_count(told.get("ephemeral_1h_input_tokens")) or 0, written) if isinstance(told, dict) else 0


def _googles(usage: dict[str, Any]) -> Usage | None:
    """Returns the tokens of a `usageMetadata` of Gemini's, whose total has what was thought and what tools were told."""
    read = (_count(usage.get("promptTokenCount")) or 0) + (_count(usage.get("toolUsePromptTokenCount")) or 0)
    said = (_count(usage.get("candidatesTokenCount")) or 0) + (_count(usage.get("thoughtsTokenCount")) or 0)
    total = _count(usage.get("totalTokenCount"))
    if total is not None and total > read:
        said = max(said, total - read)
    cached = min(_count(usage.get("cachedContentTokenCount")) or 0, read)
    return Usage(read, said, cached) if read or said or total else None


def told_later(known: dict[str, Any], news: dict[str, Any], *, is_estimated: bool) -> dict[str, Any]:
    """Returns the usage of a message, whose input is told at the start and output at the end: of each number the last holds.

    The end may tell the input, too, which an estimate at the start must not outlive; none at all is no news.
    """
    told = {name: value for name, value in news.items() if value is not None}
    if any(told.get(name) for name in _INPUTS):
        known = {name: value for name, value in known.items() if name != "estimated"}
    else:
        told = {name: value for name, value in told.items() if name not in _INPUTS}
    return known | told | ({"estimated": True} if is_estimated else {})


def estimate_usage(body: bytes, output_tokens: int) -> Usage:
    """Returns a rough count from the size of the request: four bytes to a token."""
    if b";base64," in body or b'"data":' in body:
        body = _BASE64.sub(b"", body, count=_PICTURES)  # a picture does not cost by its bytes
    return Usage(len(body) // _BYTES_PER_TOKEN, output_tokens, estimated=True)


def estimate_tokens(text: bytes) -> int:
    """Returns the estimated tokens of an answer without usage."""
    return len(text) // _BYTES_PER_TOKEN


def read_seconds(value: object) -> float | None:
    """Returns how long sound is, which some say as a text; None where it is no sane number."""
    try:
        seconds = float(value) if type(value) in (int, float, str) else -1.0  # type: ignore[arg-type]  # one of these
    except (ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < _MOST_SECONDS else None


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
