"""What a call has used, in the words of each language: a caller is told what is billed, whatever its provider speaks.

    a provider's usage object -> `read_usage` -> Usage -> `chat_usage`, `response_usage`, `message_usage`, `generated_usage`

What `read_usage` makes of the result is the same usage again. Where a language has no word for a count that has a price of its
own, it stands under the name of another language, and only where it is not zero.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.openai.transcript import usage_in
from gateway.core.openai.usage import add_beside, read_usage
from gateway.core.types import ALL_TEXT, Usage
from gateway.dialects.base import BY_TTL, Json

_KINDS: Final = ("audio", "image", "video")


def usage_of_answer(answer: Json) -> Usage | None:
    """Returns the usage that a chat completion, or a piece of one, tells; with what stands beside it. None: it tells none."""
    reported = usage_in(answer)
    usage = None if reported is None else read_usage(reported)
    if usage is not None:
        add_beside(usage, answer)
    return usage


def chat_usage(usage: Usage) -> Json:
    """Returns it in the words of chat completions, whose input includes what a cache held or was given."""
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached,
            "cache_write_tokens": usage.cache_written,
            "audio_tokens": usage.parts.audio_input,
            **_of_input(usage),
        },
        "completion_tokens_details": {
            "reasoning_tokens": usage.parts.reasoning,
            "audio_tokens": usage.parts.audio_output,
            **_of_output(usage),
        },
        **_besides(usage),
    }


def response_usage(usage: Usage) -> Json:
    """Returns it in the words of Responses."""
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {
            "cached_tokens": usage.cached,
            "cache_write_tokens": usage.cache_written,
            **_of_input(usage),
        },
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.parts.reasoning, **_of_output(usage)},
        "total_tokens": usage.input + usage.output,
        **_besides(usage),
    }


def message_usage(usage: Usage) -> Json:
    """Returns it in the words of Messages, whose input is without what a cache has done."""
    made: Json = {
        "input_tokens": usage.input - usage.cached - usage.cache_written,
        "cache_creation_input_tokens": usage.cache_written,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }
    of_input, of_output = _of_input(usage), _of_output(usage)
    if by_ttl := of_input.pop(BY_TTL, None):
        made["cache_creation"] = by_ttl
    if of_input:
        made["input_tokens_details"] = of_input
    if usage.parts.reasoning:
        of_output = {"thinking_tokens": usage.parts.reasoning} | of_output
    if of_output:
        made["output_tokens_details"] = of_output
    return made | _besides(usage)


def generated_usage(usage: Usage) -> Json:
    """Returns it in the words of generateContent, whose candidates are without thoughts."""
    parts = usage.parts
    found = {
        "thoughtsTokenCount": parts.reasoning,
        "cachedContentTokenCount": usage.cached,
        "promptTokensDetails": _by_kind(parts.audio_input, parts.image_input, parts.video_input),
        "cacheTokensDetails": _by_kind(parts.audio_cached, parts.image_cached),
        "candidatesTokensDetails": _by_kind(parts.audio_output, parts.image_output, parts.video_output),
        "cacheWriteTokenCount": usage.cache_written,
        "cacheWrite1hTokenCount": usage.cache_written_1h,
        "serviceTier": usage.tier,
        "server_tool_use": {"web_search_requests": parts.searches} if parts.searches else None,
        "prompt_audio_seconds": parts.audio_s,
        "estimated": usage.estimated,
        "doubt": usage.doubt,
        "steps": [*map(message_usage, usage.steps)],
    }
    return {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": usage.output - parts.reasoning,
        "totalTokenCount": usage.input + usage.output,
    } | {name: value for name, value in found.items() if value}


def _by_kind(*counts: int) -> list[Json]:
    return [
        {"modality": kind.upper(), "tokenCount": count} for kind, count in zip(_KINDS, counts, strict=False) if count
    ]


def _of_input(usage: Usage) -> Json:
    """Returns the details of an input that few answers have."""
    parts = usage.parts
    made: Json = {}
    if usage.cache_written_1h:
        made[BY_TTL] = {
            "ephemeral_5m_input_tokens": usage.cache_written - usage.cache_written_1h,
            "ephemeral_1h_input_tokens": usage.cache_written_1h,
        }
    if parts is not ALL_TEXT:
        made |= _filled(audio_tokens=parts.audio_input, image_tokens=parts.image_input, video_tokens=parts.video_input)
        if cached := _filled(audio_tokens=parts.audio_cached, image_tokens=parts.image_cached):
            made["cached_tokens_details"] = cached
    return made


def _of_output(usage: Usage) -> Json:
    parts = usage.parts
    if parts is ALL_TEXT:
        return {}
    return _filled(audio_tokens=parts.audio_output, image_tokens=parts.image_output, video_tokens=parts.video_output)


def _besides(usage: Usage) -> Json:
    searches = usage.parts.searches
    return _filled(
        server_tool_use={"web_search_requests": searches} if searches else None,
        prompt_audio_seconds=usage.parts.audio_s,
        service_tier=usage.tier,
        estimated=usage.estimated,
        doubt=usage.doubt,
        steps=[*map(message_usage, usage.steps)],
    )


def _filled(**values: Any) -> Json:
    return {name: value for name, value in values.items() if value}
