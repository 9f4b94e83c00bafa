"""The tokens of a call: as its answer reports them, and as they are estimated where nobody does.

First the calls that cost nothing and the fields by which a provider chooses a model; then the usage: the table of the
fields in which it is reported, how it is read, added and estimated, and what of it can be believed; and last the estimate
of a request. The last `usage` object is found by searching backwards, so that neither a long answer is parsed nor a stream
kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from math import ceil
from operator import add, attrgetter
from typing import Any, Final

import orjson

from gateway.core.openai.json_edit import UNREAD
from gateway.core.openai.sse import answer_object
from gateway.core.types import ALL_TEXT, Endpoint, Usage, UsageParts

# --- calls to passthrough endpoints that cost nothing: reading, deleting, cancelling, uploading ---


_FREE_METHODS = frozenset(("GET", "HEAD", "DELETE"))
_FREE_POSTS = re.compile(r"/(?:files|uploads(?:/[^/]+(?:/[^/]+)?)?|[^?]+/cancel)/?")
"""The free POST paths: a file, an upload with its parts and its end, and every cancellation."""


def costs_nothing(endpoint: Endpoint, method: str, path: str) -> bool:
    """Returns whether a call to that path below the base URL is free at every provider; endpoints with a price are not."""
    if endpoint.request != "any":
        return False
    return method in _FREE_METHODS or (method == "POST" and _FREE_POSTS.fullmatch(path) is not None)


# --- fields by which some provider chooses a model ---


CHOOSES_A_MODEL = frozenset(
    ("model", "models", "provider", "route", "fallbacks", "preset", "engine", "deployment_id", "model_id", "model_list")
)
"""The names in lower case (OpenRouter's `models` and `provider`; Go reads field names in any case)."""


def other_model_field(names: Iterable[str]) -> str | None:
    """Returns the first name, other than `model` itself, by which a provider may choose a model.

    Whatever `model` says: some read names in any case, some have fields of their own. A key that may use some models only
    must not send them.
    """
    return next((name for name in names if name != "model" and name.casefold() in CHOOSES_A_MODEL), None)


BYTES_PER_TOKEN = 4
_SEARCHES = 4
_MOST = 1 << 53
MOST_SECONDS = 1e5
"""The most seconds of sound in one call: more than a day."""
INPUTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_NAMES = (b'"usage"', b'"usageMetadata"')
_MAX_BYTES = 16_384  # of a usage object: the longest have some dozens of numbers
_TIER_NAMES = (b'"service_tier"', b'"serviceTier"', b'"speed"')
"""The names of the field of a tier: of OpenAI and others, of Gemini and Converse, and Anthropic's fast mode."""
_SEARCHED = b'"tool_usage"'
_TIER_WORD = re.compile(rb'\s*:\s*(?:\{\s*"type"\s*:\s*)?"([A-Za-z_]{1,32})"')
"""A tier behind its name, which in Converse is an object's."""


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
            searched = tail.rfind(_SEARCHED)
            used = _object_after(tail, searched + len(_SEARCHED)) if searched >= 0 else None
            # Whoever names it within, or has another word for it, does not name it beside: that is what a tool was called with.
            is_beside = name == _NAMES[0] and found is not None and "service_tier" not in found
            add_beside(usage, {"service_tier": is_beside and _tier_in(tail, _TIER_NAMES[0]), "tool_usage": used})
            return usage
    return None


def find_requested_tier(body: bytes) -> str:
    """Returns the service tier that a request names, in any language; empty: none."""
    return next(filter(None, [_tier_in(body, name) for name in _TIER_NAMES]), "")


def _tier_in(text: bytes, name: bytes) -> str:
    """Returns the first tier of this name: no text of a JSON document holds one, because its quotes would be escaped, and
    `metadata`, which is the caller's, comes last in answers.
    """
    at = text.find(name)
    word = _TIER_WORD.match(text, at + len(name)) if at >= 0 else None
    return "" if word is None else word[1].decode().lower()


def add_beside(usage: Usage, answer: dict[str, Any]) -> None:
    """Adds to a usage what stands beside it in an answer or an event: the service tier, and the searches of OpenAI's Responses
    (`tool_usage.web_search.num_requests`)."""
    response = answer.get("response")
    extra = response if isinstance(response, dict) else answer
    usage.tier = usage.tier or tier_named(extra.get("service_tier"))
    searched = field_of(extra.get("tool_usage"), "web_search")
    searches = _count(field_of(searched, "num_requests"))
    if searches and not usage.parts.searches:
        usage.parts = replace(usage.parts, searches=searches if searches <= MOST_SEARCHES else 0)
        if searches > MOST_SEARCHES:
            usage.estimated, usage.doubt = True, ABSURD


def tier_named(word: object) -> str:
    """Returns the service tier that a provider's word is for; empty: it is the usual one, or no word."""
    tier = word.lower().removeprefix(_ON_DEMAND)[:_MOST_TIER] if isinstance(word, str) else ""
    return "" if tier in USUAL_TIERS else tier


# --- usage: the fields in which providers report what a call has used, in every language ---
#
# `read_usage` reads what stands in this table, and nothing else; docs/reference/usage.md has the providers, and a recorded
# example of each field.


_OF_INPUT: Final[dict[str, Any]] = {
    "cached_tokens": "cached",
    "cache_read_input_tokens": "cached",  # Perplexity's Responses
    "cache_write_tokens": "written",
    "audio_tokens": "audio_input",
    "image_tokens": "image_input",
    "video_tokens": "video_input",
    "cached_tokens_details": {"audio_tokens": "audio_cached", "image_tokens": "image_cached"},
    "cache_creation_token_details": {"ephemeral_1h_input_tokens": "written_1h"},  # LiteLLM's word
}
_OF_OUTPUT: Final[dict[str, Any]] = {
    "reasoning_tokens": "reasoning",
    "thinking_tokens": "reasoning",
    "audio_tokens": "audio_output",
    "image_tokens": "image_output",
    "video_tokens": "video_output",
}
_READ_BY_KIND: Final = {
    "AUDIO": "audio_input",
    "IMAGE": "image_input",
    "DOCUMENT": "image_input",
    "VIDEO": "video_input",
}
_MADE_BY_KIND: Final = {
    "AUDIO": "audio_output",
    "IMAGE": "image_output",
    "DOCUMENT": "image_output",
    "VIDEO": "video_output",
}
FIELDS: Final[dict[str, Any]] = {
    # Chat completions
    "prompt_tokens": "input",
    "completion_tokens": "output",
    "total_tokens": "total",
    "prompt_tokens_details": _OF_INPUT,
    "completion_tokens_details": _OF_OUTPUT,
    "cached_tokens": "cached",  # Moonshot
    "prompt_cache_hit_tokens": "cached",  # DeepSeek
    "cached_prompt_text_tokens": "cached",  # xAI's older API
    "reasoning_tokens": "reasoning",  # Perplexity, Databricks
    "citation_tokens": "citations",  # Perplexity
    "num_search_queries": "searches",  # Perplexity
    "server_side_tool_usage_details": {"web_search_calls": "searches", "x_search_calls": "x_searches"},  # xAI
    # Responses, images, transcriptions, realtime
    "input_tokens": "input",
    "output_tokens": "output",
    "input_tokens_details": _OF_INPUT,
    "input_token_details": _OF_INPUT,
    "output_tokens_details": _OF_OUTPUT,
    "output_token_details": _OF_OUTPUT,
    "seconds": "audio_s",
    "prompt_audio_seconds": "audio_s",  # Mistral
    # Messages
    "cache_read_input_tokens": "read_beside",
    "cache_creation_input_tokens": "written_beside",
    "cache_creation": {"ephemeral_1h_input_tokens": "written_1h"},
    "server_tool_use": {"web_search_requests": "searches"},
    # generateContent; the last two are ours, in answers that were converted
    "promptTokenCount": "input",
    "toolUsePromptTokenCount": "tools",
    "candidatesTokenCount": "output",
    "thoughtsTokenCount": "thoughts",
    "totalTokenCount": "total",
    "cachedContentTokenCount": "cached",
    "promptTokensDetails": _READ_BY_KIND,
    "toolUsePromptTokensDetails": _READ_BY_KIND,
    "candidatesTokensDetails": _MADE_BY_KIND,
    "cacheTokensDetails": {"AUDIO": "audio_cached", "IMAGE": "image_cached", "DOCUMENT": "image_cached"},
    "cacheWriteTokenCount": "written",
    "cacheWrite1hTokenCount": "written_1h",
    # Converse
    "inputTokens": "input",
    "outputTokens": "output",
    "cacheReadInputTokens": "read_beside",
    "cacheWriteInputTokens": "written_beside",
    "cacheDetails": {"1h": "written_1h"},
}
"""What a field counts, by its name; of an object, and of a list by kinds, a table of what is inside."""
_CHAT: Final = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
)
_RESPONSES: Final = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "input_tokens_details",
    "output_tokens_details",
)
_CHAT_NAMES: Final = frozenset(_CHAT)
_RESPONSES_NAMES: Final = frozenset(_RESPONSES)
_NO_DETAILS: Final[dict[str, Any]] = {}
_LISTED: Final = (("modality", "tokenCount"), ("ttl", "inputTokens"))
"""The fields by which the entries of a list name their kind and their count: Gemini's, Converse's."""
_MOST_LISTED: Final = 64
_WHOLEINPUTS: Final = ("prompt_tokens", "promptTokenCount")
"""Counts of an input that include what stands beside them."""
USUAL_TIERS: Final = ("", "standard", "default", "on_demand", "traffic_type_unspecified")
_ON_DEMAND: Final = "on_demand_"
"""The prefix that Vertex puts before the names of tiers."""
_MOST_TIER: Final = 32
CONTRADICTS: Final = "its total is not the sum of its parts"
ABSURD: Final = "no call can have used so much"
MOST_TOKENS: Final = 1 << 24
"""The most tokens of input, and of output: no call is known to have used as many. The longest contexts have two million, and
agents that run at a provider read theirs some times over."""
MOST_SEARCHES: Final = 10_000
"""The most searches of the web in one call; deep research makes some hundreds."""
LONGEST_ANSWER: Final = 131_072
"""The tokens of output that a model of today writes at most, its reasoning among them."""
_ANSWERS: Final = frozenset(("choices", "output", "content", "candidates"))
"""The fields that hold an answer: chat completions; Responses, Converse; Messages; generateContent."""
_OUTPUT: Final = frozenset(
    (
        "arguments",
        "candidates",
        "choices",
        "code",
        "content",
        "content_block",
        "custom",
        "delta",
        "executableCode",
        "function",
        "functionCall",
        "function_call",
        "message",
        "name",
        "partial_json",
        "parts",
        "reasoning",
        "reasoningContent",
        "reasoningText",
        "reasoning_content",
        "refusal",
        "summary",
        "text",
        "thinking",
        "toolUse",
        "tool_calls",
        "transcript",
    )
)
"""The fields of answers and events, in all languages, whose texts are output."""
AUDIO_CHARACTERS: Final = 3_200
"""The characters of base64 to a token: PCM of 24 kHz, of which OpenAI counts a token for each 50 ms."""
_GEMINIS_AUDIO_CHARACTERS: Final = 2_560
"""The characters of base64 to a token of Gemini, which counts 25 tokens a second."""
PICTURE_TOKENS: Final = 1_290.0
"""The tokens of a picture of Gemini's, up to 1024 x 1024."""
_MOST_NESTED: Final = 16
_NO_PARTS: Final = frozenset(
    (
        "input",
        "output",
        "total",
        "tools",
        "cached",
        "read_beside",
        "written",
        "written_beside",
        "written_1h",
        "citations",
    )
)
_COUNTS: Final = attrgetter("input", "output", "cached", "cache_written", "cache_written_1h")
_PARTS: Final = attrgetter(*(one.name for one in fields(UsageParts)))


def read_usage(fields: dict[str, Any]) -> Usage | None:
    """Returns the tokens of a provider's usage object, in any language; None when it has no numbers, or only zeros.

    A count is a whole number that is not negative; whatever else stands there counts as missing, and so does what no call can
    have used, which is marked. `estimated`, `doubt` and `steps` are our own words, in an answer that was converted from one
    without numbers, with odd ones, or of several requests to the model.
    """
    keys = fields.keys()
    usual = _CHAT if keys <= _CHAT_NAMES else _RESPONSES if keys <= _RESPONSES_NAMES else None
    if usual is not None:
        came, went, total, of_input, of_output = map(fields.get, usual)
        # `came | went` is below a power of two only where both are, and negative where either is.
        if type(came) is int and type(went) is int and came + went == total and 0 < came | went < MOST_TOKENS:
            if not of_input and not of_output:
                return Usage(came, went)
            usage = _with_details(came, went, of_input or _NO_DETAILS, of_output or _NO_DETAILS)
            if usage is not None:
                return usage
    usage = _read(fields)
    steps = _read_steps(fields.get("iterations"))
    for kind, step in steps:
        # Anthropic's summary of a conversation that had become too long; all other steps are in the counts above, which are
        # zeros where the model has paused behind the summary.
        if kind == "compaction":
            usage = replace(step, tier=_tier_of(fields)) if usage is None else added(usage, step)
    if usage is None:
        return None
    steps = steps or _read_steps(fields.get("steps"))
    if len(steps) > 1:
        usage.steps = tuple([step for _, step in steps])
        if not _are_steps(usage):
            usage.steps, usage.doubt = (), usage.doubt or CONTRADICTS
    return plausible(usage)


def _are_steps(usage: Usage) -> bool:
    """Returns whether the requests that a usage counts can have come to it."""
    came, went = sum([step.input for step in usage.steps]), sum([step.output for step in usage.steps])
    searches = sum([step.parts.searches for step in usage.steps])
    return came <= usage.input and went <= usage.output and searches <= max(usage.parts.searches, MOST_SEARCHES)


def _read_steps(fields: object) -> list[tuple[object, Usage]]:
    """Returns the kinds and the usages of the requests that one call has come to."""
    steps = [step for step in fields[:_MOST_LISTED] if isinstance(step, dict)] if isinstance(fields, list) else []
    return [(step.get("type"), usage) for step in steps if (usage := _read(step)) is not None]


def _with_details(came: int, went: int, of_input: Any, of_output: Any) -> Usage | None:
    """Returns what OpenAI's own details say, without a look at the table; None: they say more than most do."""
    if type(of_input) is not dict or type(of_output) is not dict:
        return None
    read, made = [*filter(None, of_input.values())], [*filter(None, of_output.values())]
    if not read and not made:
        return Usage(came, went)
    cached, reasoning = of_input.get("cached_tokens") or 0, of_output.get("reasoning_tokens") or 0
    if len(read) != (cached != 0) or len(made) != (reasoning != 0):
        return None
    if type(cached) is not int or type(reasoning) is not int or not (0 <= cached <= came and 0 <= reasoning <= went):
        return None
    return Usage(came, went, cached, parts=UsageParts(reasoning=reasoning) if reasoning else ALL_TEXT)


def _read(usage: dict[str, Any]) -> Usage | None:
    found: dict[str, Any] = {}
    _collect(usage, FIELDS, found)
    count = found.get
    came, went = count("input", 0) + count("tools", 0), count("output", 0) + count("thoughts", 0)
    cached, written = count("cached", 0), count("written", 0)
    if "read_beside" in found or "written_beside" in found:
        cached, written = max(cached, count("read_beside", 0)), max(written, count("written_beside", 0))
        if not any(name in usage for name in _WHOLEINPUTS):
            came += cached + written
    known = usage.get("doubt")
    if not came and not went:
        if known != ABSURD and "audio_s" not in found:
            return None
        parts = UsageParts(audio_s=found["audio_s"]) if "audio_s" in found else ALL_TEXT
        return Usage(0, 0, estimated=known == ABSURD, parts=parts, doubt=ABSURD if known == ABSURD else "")
    came, went, doubt = _summed(came, went, found)
    cached = min(cached, came)
    written = min(written, came - cached)
    parts = ALL_TEXT if _NO_PARTS.issuperset(found) else _parts_of(found, came, went, cached)
    hourly = min(count("written_1h", 0), written)
    doubt = known if known in (ABSURD, CONTRADICTS) else doubt
    return Usage(came, went, cached, usage.get("estimated") is True, written, hourly, parts, _tier_of(usage), doubt)


def _collect(usage: dict[str, Any], table: dict[str, Any], found: dict[str, Any]) -> None:
    """Adds what the fields of a table count. Several names for one quantity say the same; kinds of a list add up."""
    for name, value in usage.items():
        if not value or (counts := table.get(name)) is None:
            continue
        if counts == "audio_s" and (seconds := read_seconds(value)):
            found["audio_s"] = seconds
        if type(value) is float:
            value = _count(value)
        if type(value) is int:
            if type(counts) is str and found.get(counts, 0) < value < _MOST:
                found[counts] = value
        elif type(counts) is str:
            continue  # text, or an object in place of a number
        elif type(value) is dict:
            _collect(value, counts, found)
        elif type(value) is list:
            for one in value[:_MOST_LISTED]:
                for kind, tokens in _LISTED if type(one) is dict else ():
                    quantity = counts.get(str(one.get(kind)))
                    if type(quantity) is str:
                        found[quantity] = found.get(quantity, 0) + (_count(one.get(tokens)) or 0)


def _summed(came: int, went: int, found: dict[str, int]) -> tuple[int, int, str]:
    """Returns input and output with what was counted beside them, and what is odd about their total.

    What a total has beyond its parts is output: xAI counts reasoning beside `completion_tokens`, and Google's endpoint for
    chat completions counts thoughts in the total alone. Reasoning that is more than the output cannot be a part of it.
    Perplexity's never is, nor are the texts that it cites, which it sells at the price of input and leaves out of all other
    counts.
    """
    reasoning, total = found.get("reasoning", 0), found.get("total")
    if total is None or total == came + went:
        is_beside = "citations" in found or reasoning > went
        doubt = CONTRADICTS if total is not None and reasoning > went and "citations" not in found else ""
        return came + found.get("citations", 0), went + reasoning if is_beside else went, doubt
    rest = total - came - went
    if rest < 0:
        return came, went, CONTRADICTS
    if not came:
        return rest, went, ""
    return came, went + rest, "" if rest == reasoning or not went else CONTRADICTS


def _parts_of(found: dict[str, Any], came: int, went: int, cached: int) -> UsageParts:
    """Returns the parts with prices of their own; together they are never more than what they are parts of.

    Of what a cache held, no more can have been text than there was: the rest was sound or pictures, whether that is reported or
    not.
    """
    count = found.get
    sound = min(count("audio_input", 0), came)
    seen = min(count("image_input", 0), came - sound)
    text = came - sound - seen
    sound_cached = min(count("audio_cached", 0), sound, cached)
    seen_cached = min(count("image_cached", 0), seen, cached - sound_cached)
    sound_cached = max(sound_cached, min(sound, cached - seen_cached - text))
    seen_cached = max(seen_cached, cached - sound_cached - text)
    audio_output = min(count("audio_output", 0), went)
    drawn = min(count("image_output", 0), went - audio_output)
    return UsageParts(
        audio_input=sound,
        audio_output=audio_output,
        audio_cached=sound_cached,
        image_input=seen,
        image_output=drawn,
        image_cached=seen_cached,
        video_input=min(count("video_input", 0), came - sound - seen),
        video_output=min(count("video_output", 0), went - audio_output - drawn),
        reasoning=min(count("reasoning", 0) + count("thoughts", 0), went),
        searches=count("searches", 0) + count("x_searches", 0),
        audio_s=count("audio_s", 0.0),
    )


def _tier_of(usage: dict[str, Any]) -> str:
    """Returns the provider's word for how the call was processed; empty: as usual, or it says nothing."""
    if usage.get("speed") == "fast":
        return "fast"
    return tier_named(usage.get("service_tier") or usage.get("serviceTier") or usage.get("trafficType"))


def added(one: Usage, more: Usage) -> Usage:
    """Returns what two attempts, or two steps of one, have used together."""
    return joined(one, more, add)


def joined(one: Usage, more: Usage, join: Callable[[Any, Any], Any]) -> Usage:
    """Returns two usages as one, each count made of two by `join`: by `max` of two reports on one call, whose counts grow."""
    came, went, cached, written, hourly = map(join, _COUNTS(one), _COUNTS(more))
    parts = ALL_TEXT
    if one.parts is not ALL_TEXT or more.parts is not ALL_TEXT:
        parts = UsageParts(*map(join, _PARTS(one.parts), _PARTS(more.parts)))
    is_estimated = one.estimated or more.estimated
    return Usage(
        *(came, went, cached, is_estimated, written, hourly, parts, more.tier or one.tier, more.doubt or one.doubt),
        steps=more.steps or one.steps,
    )


def merge_usage(known: dict[str, Any], news: dict[str, Any], *, is_estimated: bool) -> dict[str, Any]:
    """Returns the usage of a message, whose input stands at the start and output at the end: of each number the last holds.

    The end may tell the input, too, which an estimate at the start must not outlive; none at all is no news.
    """
    reported = {name: value for name, value in news.items() if value is not None}
    if any(reported.get(name) for name in INPUTS):
        known = {name: value for name, value in known.items() if name != "estimated"}
    else:
        reported = {name: value for name, value in reported.items() if name not in INPUTS}
    return known | reported | ({"estimated": True} if is_estimated else {})


def filled(reported: Usage | None, estimate: Usage) -> Usage:
    """Returns a usage with each number that the provider does not report taken from an estimate; it is marked then."""
    if reported is None:
        return estimate
    if (reported.input or not estimate.input) and (reported.output or not estimate.output):
        return reported
    return replace(
        reported, input=reported.input or estimate.input, output=reported.output or estimate.output, estimated=True
    )


def estimate_tokens(text: bytes) -> int:
    """Returns the estimated tokens of an answer without usage."""
    return len(text) // BYTES_PER_TOKEN


def read_seconds(value: object) -> float | None:
    """Returns how long sound is, which some say as a text; None where it is no sane number."""
    try:
        seconds = float(value) if type(value) in (int, float, str) else -1.0  # type: ignore[arg-type]  # one of these
    except (ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < MOST_SECONDS else None


def estimate_answer(body: bytes) -> int:
    """Returns the estimated tokens of a whole answer without usage, in any language: of its words, thoughts, calls of tools,
    sound and pictures.

    What is no JSON, and what would take long to parse, is estimated by all of its bytes.
    """
    answer = answer_object(body)
    if answer is None:
        return estimate_tokens(body)
    return ceil(sum([_tokens_of(value, 1) for name, value in answer.items() if name in _ANSWERS]))


def output_tokens_in(event: dict[str, Any]) -> float:
    """Returns the estimated tokens of the text, thinking, tool calls, sound and pictures in an event of any language.

    The events of Responses that repeat what others have brought add nothing.
    """
    kind = event.get("type")
    if not isinstance(kind, str) or not kind.startswith("response."):
        return _tokens_of(event, 0)
    delta = event.get("delta") if kind.endswith(".delta") else None
    if not isinstance(delta, str):
        return 0.0
    return len(delta) / AUDIO_CHARACTERS if kind.endswith("audio.delta") else _tokens_of(delta, 0)


def _tokens_of(value: object, depth: int) -> float:
    if isinstance(value, str):
        return (len(value) if value.isascii() else len(value.encode(errors="replace"))) / BYTES_PER_TOKEN
    if depth > _MOST_NESTED:
        return 0.0
    if isinstance(value, list):
        return sum([_tokens_of(one, depth + 1) for one in value])
    if not isinstance(value, dict):
        return 0.0
    tokens = 0.0
    for name, inner in value.items():
        if name == "reasoning" and value.get("reasoning_content"):
            continue  # it repeats that
        if name in _OUTPUT:
            tokens += _tokens_of(inner, depth + 1)
        elif name == "args" or name == "input":  # of a call: an object, or a text
            is_object = isinstance(inner, dict) and inner
            tokens += _tokens_of(orjson.dumps(inner).decode() if is_object else inner, depth + 1)
        elif name == "audio" and isinstance(inner, dict):
            tokens += _tokens_of(inner, depth + 1) + _length(inner.get("data")) / AUDIO_CHARACTERS
        elif name == "inlineData" and isinstance(inner, dict):
            is_picture = str(inner.get("mimeType")).startswith("image/")
            tokens += PICTURE_TOKENS if is_picture else _length(inner.get("data")) / _GEMINIS_AUDIO_CHARACTERS
        elif name == "images" and isinstance(inner, list):
            tokens += PICTURE_TOKENS * len(inner)
        elif name == "reasoning_details" and not (value.get("reasoning_content") or value.get("reasoning")):
            tokens += _tokens_of(inner, depth + 1)  # elsewhere these repeat it
    return tokens


def _length(value: object) -> int:
    return len(value) if isinstance(value, str) else 0


def most_output(max_tokens: int | None, answers: int) -> int:
    """Returns the most tokens of output that are believed of a call: what its caller allows, and an answer's length for each.

    `max_tokens` is the bound on all answers together; None: there is none. Some providers do not count reasoning against it
    (SiliconFlow's guide to reasoning, Alibaba's to deep thinking), and none thinks longer than a model writes at most.
    """
    return MOST_TOKENS if max_tokens is None else min(MOST_TOKENS, max_tokens + answers * LONGEST_ANSWER)


def plausible(usage: Usage, most: int = MOST_TOKENS) -> Usage:
    """Returns a usage in which a number that no call can have used is missing, with its parts; it is marked then.

    `most` is the bound on the output. Whoever knows request and answer fills the gap with an estimate (`filled`).

    Only numbers that can't be right are touched. A provider may count much that nobody sees here: the turns before, files and
    pictures behind ids and URLs, pages that it has searched, thoughts.
    """
    has_input, has_output = usage.input <= MOST_TOKENS, usage.output <= most
    parts = usage.parts
    if has_input and has_output and parts.searches <= MOST_SEARCHES:
        return usage
    if not has_input:
        usage = replace(usage, input=0, cached=0, cache_written=0, cache_written_1h=0)
        parts = replace(parts, audio_input=0, audio_cached=0, image_input=0, image_cached=0, video_input=0)
    if not has_output:
        usage = replace(usage, output=0)
        parts = replace(parts, audio_output=0, image_output=0, video_output=0, reasoning=0)
    if parts.searches > MOST_SEARCHES:
        parts = replace(parts, searches=0)
    return replace(usage, estimated=True, parts=parts, doubt=ABSURD, steps=())


def _count(value: object) -> int | None:
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < _MOST else None


def field_of(value: object, name: str) -> object:
    """Returns the field of an object; None: there is none, UNREAD: the object was not read."""
    return value.get(name) if isinstance(value, dict) else UNREAD if value is UNREAD else None


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


# --- the estimate of a request's tokens: a heuristic over sizes (no tokenizer), total on any JSON object, in bounded work ---

Count = Callable[[str], float]

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
                tokens += _MESSAGE_TOKENS + len(text) / BYTES_PER_TOKEN  # most messages, without a call for each
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
        return len(text) / BYTES_PER_TOKEN
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
    return ascii_bytes / BYTES_PER_TOKEN + wide_bytes / (_CJK_BYTES_PER_TOKEN if is_cjk else _WIDE_BYTES_PER_TOKEN)


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
