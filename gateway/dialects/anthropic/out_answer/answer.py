"""A message of Claude's as a chat completion: its blocks become one message, its counts the whole of what was read and written.

Blocks of text are joined without anything between, for citations cut one sentence into many blocks.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.dialects.anthropic.out_thoughts.signed_turns import keep_message
from gateway.dialects.anthropic.out_thoughts.thoughts import detail_of
from gateway.dialects.base.base import (
    BY_TTL,
    ConvertedRequest,
    Json,
    MalformedAnswer,
    count_in,
    object_of,
    objects,
    text_of,
    written_by_ttl,
)

FINISH: Final = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
    "tool_use": "tool_calls",
}
"""The finish reason of a chat completion, by why a message ended; all others are a `stop`."""
_TIERS: Final = {"standard": "default", "priority": "priority"}
NO_ARGUMENTS: Final = "{}"


def chat_of_message(sent: ConvertedRequest, body: Json) -> Json:
    """Returns the chat completion. Raises MalformedAnswer."""
    content = body.get("content")
    if not isinstance(content, list):
        raise MalformedAnswer("the answer has no content")
    texts: list[str] = []
    thoughts: list[str] = []
    details: list[Json] = []
    calls: list[Json] = []
    cited: list[Json] = []
    length = 0
    for place, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            text = text_of(block.get("text"))
            cited += cited_pages(block.get("citations"), length, length + len(text))
            length += len(text)
            texts.append(text)
        elif kind == "tool_use":
            calls.append(tool_call(block))
        elif kind in ("thinking", "redacted_thinking"):
            details.append(detail_of(block, place) or {})
            thoughts.append(text_of(block.get("thinking")))
    message: Json = {"role": "assistant", "content": "".join(texts) if texts else None, "refusal": None}
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    if details:
        message["reasoning_details"] = details
    if calls:
        message["tool_calls"] = calls
    if cited:
        message["annotations"] = cited
    finish = finish_of(body.get("stop_reason"), has_calls=bool(calls))
    if finish == "content_filter":
        message["refusal"] = refusal_of(body)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    keep_message(content, sent.memory)
    usage = object_of(body.get("usage"))
    made = {**head(sent, body, "chat.completion"), "choices": [choice]}
    return made | ({"usage": usage_of_chat(usage)} if usage else {})


def head(sent: ConvertedRequest, body: Json, kind: str) -> Json:
    """Returns what every piece of a chat completion repeats; the tier only where one was asked for, as OpenAI does."""
    made = {
        "id": text_of(body.get("id")) or f"chatcmpl-{sent.id}",
        "object": kind,
        "created": int(sent.now),
        "model": body.get("model") or sent.asked.get("model"),
    }
    tier = _TIERS.get(text_of(object_of(body.get("usage")).get("service_tier")))
    return made | ({"service_tier": tier} if tier and sent.asked.get("service_tier") else {})


def finish_of(reason: Any, *, has_calls: bool) -> str:
    """Returns why the answer ended; a limit or a refusal is never taken for calls (NousResearch/hermes-agent#43478)."""
    finish = FINISH.get(text_of(reason), "stop")
    return "tool_calls" if finish == "stop" and has_calls else finish


def refusal_of(body: Json) -> str | None:
    """Returns in words why the model, or what watches over it, has refused."""
    return text_of(object_of(body.get("stop_details")).get("explanation")) or None


def tool_call(block: Json) -> Json:
    """Returns a block that calls a tool as a message has it. Raises MalformedAnswer."""
    id, name, given = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(id, str) or not isinstance(name, str) or not isinstance(given, dict | None):
        raise MalformedAnswer("a call of a tool has no id, no name, or no object as its input")
    try:
        arguments = orjson.dumps(given).decode() if given else NO_ARGUMENTS
    except orjson.JSONEncodeError as error:
        raise MalformedAnswer("the input of a call is nested too deeply") from error
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def cited_pages(citations: Any, start: int, end: int) -> list[Json]:
    """Returns a block's citations of pages, as chat completions have them: with their places in the whole text."""
    return [
        {
            "type": "url_citation",
            "url_citation": {
                "start_index": start,
                "end_index": end,
                "url": text_of(one.get("url")),
                "title": text_of(one.get("title")),
            },
        }
        for one in objects(citations)
        if one.get("type") == "web_search_result_location"
    ]


def usage_of_chat(usage: Json) -> Json:
    """Returns a message's usage in the words of chat completions, whose input includes what the cache held or was given."""
    read, written = count_in(usage, "cache_read_input_tokens"), count_in(usage, "cache_creation_input_tokens")
    came, went = count_in(usage, "input_tokens") + read + written, count_in(usage, "output_tokens")
    thought = count_in(object_of(usage.get("output_tokens_details")), "thinking_tokens")
    details: Json = {"cached_tokens": read, "cache_write_tokens": written, "audio_tokens": 0}
    if by_ttl := written_by_ttl(usage.get("cache_creation")):
        details[BY_TTL] = by_ttl
    return {
        "prompt_tokens": came,
        "completion_tokens": went,
        "total_tokens": came + went,
        "prompt_tokens_details": details,
        "completion_tokens_details": {"reasoning_tokens": thought, "audio_tokens": 0},
    }
