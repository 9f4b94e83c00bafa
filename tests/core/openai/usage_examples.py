"""A usage object of each provider and language, as its documentation or an answer of it shows it, and what a call is billed by.

The numbers of some are made rounder or larger, so that each count can be told from all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from gateway.core.openai.usage import FIELDS
from gateway.core.types import ALL_TEXT, Usage, UsageParts


class Example(NamedTuple):
    """A usage object, where it is from, and how it is read."""

    provider: str
    language: str
    source: str
    told: dict[str, Any]
    usage: Usage


def used(
    input: int,
    output: int,
    cached: int = 0,
    written: int = 0,
    hourly: int = 0,
    parts: UsageParts = ALL_TEXT,
    tier: str = "",
    doubt: str = "",
    steps: tuple[Usage, ...] = (),
) -> Usage:
    return Usage(input, output, cached, False, written, hourly, parts, tier, doubt, steps)


EXAMPLES = [
    Example(
        "OpenAI, Azure",
        "chat completions",
        "API reference, the chat completion object",
        {
            "prompt_tokens": 1117,
            "completion_tokens": 446,
            "total_tokens": 1563,
            "prompt_tokens_details": {"cached_tokens": 1024, "cache_write_tokens": 64, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 300,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
        used(1117, 446, 1024, 64, parts=UsageParts(reasoning=300)),
    ),
    Example(
        "OpenAI",
        "chat completions, with sound and pictures",
        "guide to audio: gpt-4o-audio-preview; API reference, prompt_tokens_details",
        {
            "prompt_tokens": 1000,
            "completion_tokens": 1000,
            "total_tokens": 2000,
            "prompt_tokens_details": {"cached_tokens": 0, "text_tokens": 40, "audio_tokens": 900, "image_tokens": 60},
            "completion_tokens_details": {"reasoning_tokens": 0, "text_tokens": 100, "audio_tokens": 900},
        },
        used(1000, 1000, parts=UsageParts(audio_input=900, audio_output=900, image_input=60)),
    ),
    Example(
        "OpenAI, Azure",
        "responses",
        "API reference, the response object",
        {
            "input_tokens": 328,
            "input_tokens_details": {"cached_tokens": 128, "cache_write_tokens": 32},
            "output_tokens": 52,
            "output_tokens_details": {"reasoning_tokens": 20},
            "total_tokens": 380,
        },
        used(328, 52, 128, 32, parts=UsageParts(reasoning=20)),
    ),
    Example(
        "OpenAI",
        "images",
        "API reference, the image generation response of gpt-image-1",
        {
            "total_tokens": 100,
            "input_tokens": 50,
            "output_tokens": 50,
            "input_tokens_details": {"text_tokens": 10, "image_tokens": 40},
            "output_tokens_details": {"image_tokens": 48, "text_tokens": 2},
        },
        used(50, 50, parts=UsageParts(image_input=40, image_output=48)),
    ),
    Example(
        "OpenAI",
        "transcriptions",
        "API reference, transcript.text.done of gpt-4o-transcribe",
        {
            "type": "tokens",
            "input_tokens": 14,
            "input_token_details": {"text_tokens": 4, "audio_tokens": 10},
            "output_tokens": 45,
            "total_tokens": 59,
        },
        used(14, 45, parts=UsageParts(audio_input=10)),
    ),
    Example(
        "OpenAI",
        "realtime",
        "API reference, response.done",
        {
            "total_tokens": 253,
            "input_tokens": 132,
            "output_tokens": 121,
            "input_token_details": {
                "text_tokens": 100,
                "audio_tokens": 20,
                "image_tokens": 12,
                "cached_tokens": 64,
                "cached_tokens_details": {"text_tokens": 40, "audio_tokens": 16, "image_tokens": 8},
            },
            "output_token_details": {"text_tokens": 30, "audio_tokens": 91},
        },
        used(
            132,
            121,
            64,
            parts=UsageParts(audio_input=20, audio_output=91, audio_cached=16, image_input=12, image_cached=8),
        ),
    ),
    Example(
        "OpenAI",
        "embeddings",
        "API reference, create embeddings",
        {"prompt_tokens": 8, "total_tokens": 8},
        used(8, 0),
    ),
    Example(
        "Anthropic",
        "messages",
        "API reference, create a message; prompt caching; web search tool; priority tier",
        {
            "input_tokens": 105,
            "cache_creation_input_tokens": 2100,
            "cache_read_input_tokens": 7123,
            "cache_creation": {"ephemeral_5m_input_tokens": 2000, "ephemeral_1h_input_tokens": 100},
            "output_tokens": 609,
            "output_tokens_details": {"thinking_tokens": 400},
            "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 0},
            "service_tier": "priority",
        },
        used(9328, 609, 7123, 2100, 100, UsageParts(reasoning=400, searches=2), "priority"),
    ),
    Example(
        "Anthropic",
        "messages, fast mode",
        "guide to fast mode",
        {"input_tokens": 523, "output_tokens": 1842, "service_tier": "standard", "speed": "fast"},
        used(523, 1842, tier="fast"),
    ),
    Example(
        "Anthropic",
        "messages, compaction",
        "guide to compaction at a token threshold, understanding usage",
        {
            "input_tokens": 23000,
            "output_tokens": 1000,
            "iterations": [
                {"type": "compaction", "input_tokens": 180000, "output_tokens": 3500, "cache_read_input_tokens": 500},
                {"type": "message", "input_tokens": 23000, "output_tokens": 1000},
            ],
        },
        used(203500, 4500, 500, steps=(used(180500, 3500, 500), used(23000, 1000))),
    ),
    Example(
        "Google (Gemini API, Vertex)",
        "generateContent",
        "API reference, UsageMetadata; guide to image generation",
        {
            "promptTokenCount": 1270,
            "candidatesTokenCount": 1400,
            "thoughtsTokenCount": 300,
            "toolUsePromptTokenCount": 30,
            "cachedContentTokenCount": 512,
            "totalTokenCount": 3000,
            "promptTokensDetails": [
                {"modality": "TEXT", "tokenCount": 420},
                {"modality": "IMAGE", "tokenCount": 200},
                {"modality": "DOCUMENT", "tokenCount": 58},
                {"modality": "AUDIO", "tokenCount": 250},
                {"modality": "VIDEO", "tokenCount": 342},
            ],
            "toolUsePromptTokensDetails": [
                {"modality": "TEXT", "tokenCount": 20},
                {"modality": "IMAGE", "tokenCount": 10},
            ],
            "cacheTokensDetails": [
                {"modality": "TEXT", "tokenCount": 400},
                {"modality": "AUDIO", "tokenCount": 80},
                {"modality": "IMAGE", "tokenCount": 20},
                {"modality": "DOCUMENT", "tokenCount": 12},
            ],
            "candidatesTokensDetails": [
                {"modality": "IMAGE", "tokenCount": 1120},
                {"modality": "AUDIO", "tokenCount": 60},
                {"modality": "VIDEO", "tokenCount": 50},
                {"modality": "DOCUMENT", "tokenCount": 5},
            ],
            "serviceTier": "flex",
        },
        used(
            1300,
            1700,
            512,
            parts=UsageParts(
                audio_input=250,
                audio_output=60,
                audio_cached=80,
                image_input=268,
                image_output=1125,
                image_cached=32,
                video_input=342,
                video_output=50,
                reasoning=300,
            ),
            tier="flex",
        ),
    ),
    Example(
        "Google (Gemini API, Vertex)",
        "generateContent, all spent on thoughts",
        "answers of gemini-2.5-flash that end with MAX_TOKENS",
        {"promptTokenCount": 15, "totalTokenCount": 65},
        used(15, 50),
    ),
    Example(
        "Google (Vertex)",
        "generateContent, by traffic",
        "Vertex AI, UsageMetadata, TrafficType",
        {
            "promptTokenCount": 12,
            "candidatesTokenCount": 20,
            "totalTokenCount": 32,
            "trafficType": "ON_DEMAND_PRIORITY",
        },
        used(12, 20, tier="priority"),
    ),
    Example(
        "Google",
        "chat completions (its OpenAI endpoint)",
        "answers of gemini-2.5-pro: thoughts stand in the total alone",
        {"prompt_tokens": 11, "completion_tokens": 9, "total_tokens": 320},
        used(11, 309, doubt="its total is not the sum of its parts"),
    ),
    Example(
        "Amazon Bedrock",
        "converse",
        "API reference, TokenUsage, CacheDetail",
        {
            "inputTokens": 30,
            "outputTokens": 628,
            "totalTokens": 2658,
            "cacheReadInputTokens": 1500,
            "cacheWriteInputTokens": 500,
            "cacheDetails": [{"ttl": "1h", "inputTokens": 200}, {"ttl": "5m", "inputTokens": 300}],
        },
        used(2030, 628, 1500, 500, 200),
    ),
    Example(
        "xAI",
        "chat completions",
        "guide to reasoning, usage of grok-3-mini",
        {
            "prompt_tokens": 1000,
            "completion_tokens": 100,
            "total_tokens": 1400,
            "prompt_tokens_details": {
                "text_tokens": 1000,
                "audio_tokens": 0,
                "image_tokens": 0,
                "cached_tokens": 600,
            },
            "completion_tokens_details": {
                "reasoning_tokens": 300,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
            "num_sources_used": 0,
        },
        used(1000, 400, 600, parts=UsageParts(reasoning=300)),
    ),
    Example(
        "xAI",
        "responses",
        "guide to tools: tool usage details",
        {
            "input_tokens": 33069,
            "input_tokens_details": {"cached_tokens": 20224},
            "output_tokens": 1439,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 34508,
            "num_sources_used": 0,
            "num_server_side_tools_used": 13,
            "server_side_tool_usage_details": {
                "web_search_calls": 2,
                "x_search_calls": 11,
                "code_interpreter_calls": 0,
            },
        },
        used(33069, 1439, 20224, parts=UsageParts(searches=13)),
    ),
    Example(
        "xAI",
        "its older API",
        "genai-prices, x-ai, flavor default",
        {"prompt_tokens": 30, "completion_tokens": 20, "total_tokens": 50, "cached_prompt_text_tokens": 12},
        used(30, 20, 12),
    ),
    Example(
        "DeepSeek",
        "chat completions",
        "guide to context caching; API reference",
        {
            "prompt_tokens": 1000,
            "completion_tokens": 100,
            "total_tokens": 1100,
            "prompt_cache_hit_tokens": 600,
            "prompt_cache_miss_tokens": 400,
        },
        used(1000, 100, 600),
    ),
    Example(
        "Moonshot",
        "chat completions",
        "API reference; in streams it stands in choices[0]",
        {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100, "cached_tokens": 600},
        used(1000, 100, 600),
    ),
    Example(
        "Perplexity",
        "chat completions",
        "API reference, sonar-deep-research",
        {
            "prompt_tokens": 33,
            "completion_tokens": 7163,
            "total_tokens": 7196,
            "citation_tokens": 19028,
            "num_search_queries": 19,
            "reasoning_tokens": 5305,
        },
        used(19061, 12468, parts=UsageParts(reasoning=5305, searches=19)),
    ),
    Example(
        "Perplexity",
        "responses",
        "genai-prices, perplexity, flavor responses",
        {
            "input_tokens": 500,
            "input_tokens_details": {"cache_read_input_tokens": 200},
            "output_tokens": 90,
            "total_tokens": 590,
        },
        used(500, 90, 200),
    ),
    Example(
        "OpenRouter",
        "chat completions",
        "guide to usage accounting",
        {
            "completion_tokens": 300,
            "completion_tokens_details": {"reasoning_tokens": 120, "image_tokens": 90, "video_tokens": 8},
            "cost": 0.00014,
            "prompt_tokens": 194,
            "prompt_tokens_details": {"cached_tokens": 40, "audio_tokens": 20, "video_tokens": 30},
            "total_tokens": 494,
        },
        used(
            194,
            300,
            40,
            parts=UsageParts(audio_input=20, video_input=30, image_output=90, video_output=8, reasoning=120),
        ),
    ),
    Example(
        "LiteLLM, before Anthropic",
        "chat completions",
        "guide to prompt caching",
        {
            "prompt_tokens": 1100,
            "completion_tokens": 3,
            "total_tokens": 1103,
            "cache_read_input_tokens": 900,
            "cache_creation_input_tokens": 90,
            "prompt_tokens_details": {
                "cached_tokens": 900,
                "cache_creation_token_details": {"ephemeral_5m_input_tokens": 50, "ephemeral_1h_input_tokens": 40},
            },
        },
        used(1100, 3, 900, 90, 40),
    ),
    Example(
        "OpenAI",
        "transcriptions",
        "API reference, the transcription object of whisper-1",
        {"type": "duration", "seconds": 27},
        used(0, 0, parts=UsageParts(audio_s=27.0)),
    ),
    Example(
        "OpenRouter",
        "transcriptions",
        "API reference, STTUsage",
        {"cost": 0.000508, "input_tokens": 83, "output_tokens": 30, "seconds": 9.2, "total_tokens": 113},
        used(83, 30, parts=UsageParts(audio_s=9.2)),
    ),
    Example(
        "Mistral",
        "transcriptions",
        "guide to audio: transcription",
        {"prompt_audio_seconds": 203, "prompt_tokens": 4, "total_tokens": 1139, "completion_tokens": 1135},
        used(4, 1135, parts=UsageParts(audio_s=203.0)),
    ),
    Example(
        "the gateway, of an answer that it converted",
        "generateContent",
        "docs/generate.md",
        {
            "promptTokenCount": 100,
            "candidatesTokenCount": 20,
            "totalTokenCount": 120,
            "cachedContentTokenCount": 10,
            "cacheWriteTokenCount": 60,
            "cacheWrite1hTokenCount": 40,
        },
        used(100, 20, 10, 60, 40),
    ),
]


# --- the table of docs/reference/usage.md: `python -m tests.core.openai.usage_examples` renews it ---

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "usage.md"
HEAD = "| provider | language | fields that are read | billed as | example from |\n|---|---|---|---|---|\n"


def table() -> str:
    """Return the rows of all examples."""
    rows = []
    for one in EXAMPLES:
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(read_in(one.told, FIELDS)))
        rows.append(f"| {one.provider} | {one.language} | {names} | {billed(one.usage)} | {one.source} |\n")
    return HEAD + "".join(rows)


def read_in(told: Any, known: Any, above: str = "") -> Iterator[str]:
    """Yield the names of the fields of an example that are read; of a list, its kinds."""
    if isinstance(told, list):
        kinds = [str(one.get("modality") or one.get("ttl") or one.get("type")) for one in told]
        yield f"{above}[{'/'.join(kind for kind in dict.fromkeys(kinds) if kind in known)}]"
        return
    for name, value in told.items():
        path = f"{above}.{name}" if above else name
        if name == "iterations":
            yield "iterations[compaction]"
        elif not above and name in ("service_tier", "speed", "serviceTier", "trafficType"):
            yield path
        elif value and name in known:
            yield from read_in(value, known[name], path) if isinstance(known[name], dict) else (path,)


def billed(usage: Usage) -> str:
    """Return a usage in words."""
    parts = {"cached": usage.cached, "written": usage.cache_written, "written for 1 h": usage.cache_written_1h}
    parts |= {one.name.replace("_", " "): getattr(usage.parts, one.name) for one in fields(usage.parts)}
    more = [f"{count:,} {name}" for name, count in parts.items() if count] + ([usage.tier] if usage.tier else [])
    return f"{usage.input:,} in, {usage.output:,} out" + (f" ({', '.join(more)})" if more else "")


def with_table(page: str) -> str:
    """Return the page with the table as it has to be."""
    start = page.index(HEAD.partition("\n")[0])
    end = page.index("\n\n", start) + 1
    return page[:start] + table() + page[end:]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
