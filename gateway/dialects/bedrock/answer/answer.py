"""An answer of Converse's as a chat completion: its blocks become one message, its counts all that was read and written."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, Final

import orjson

from gateway.dialects.anthropic.out_thoughts.thoughts import FORMAT
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
from gateway.dialects.bedrock.request.options.signed_turns import keep_content

_FINISH: Final = {
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
}
"""The finish reason of a chat completion, by why the model stopped; all others are a `stop`."""
_MALFORMED: Final = ("malformed_model_output", "malformed_tool_use")
NO_ARGUMENTS: Final = "{}"
OWN_FORMAT: Final = "bedrock-converse-v1"
"""Of encrypted thoughts that are no text, as Anthropic's are, under Bedrock's base64."""


def chat_of_converse(sent: ConvertedRequest, body: Json) -> Json:
    """Returns the chat completion. Raises MalformedAnswer."""
    content = object_of(object_of(body.get("output")).get("message")).get("content")
    if not isinstance(content, list):
        raise MalformedAnswer("the answer has no message")
    said = _Said()
    for place, block in enumerate(content):
        said.take(place, object_of(block))
    finish = finish_of(body.get("stopReason"), has_calls=bool(said.calls))
    keep_content(content, sent.memory)
    choice = {"index": 0, "message": said.message(), "logprobs": None, "finish_reason": finish}
    made = {**head(sent, "chat.completion"), **tier_of(sent, body), "choices": [choice]}
    usage = object_of(body.get("usage"))
    return made | ({"usage": usage_of_chat(usage)} if usage else {})


class _Said:
    """Puts a message together from its blocks."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[Json] = []
        self.thoughts: list[str] = []
        self.details: list[Json] = []
        self.cited: list[Json] = []
        self.length = 0

    def take(self, place: int, block: Json) -> None:
        if "text" in block:
            self._say(text_of(block["text"]))
        elif "toolUse" in block:
            self.calls.append(tool_call(object_of(block["toolUse"]), is_whole=True))
        elif "reasoningContent" in block:
            self._think(place, object_of(block["reasoningContent"]))
        elif "citationsContent" in block:
            inner = object_of(block["citationsContent"])
            start = self.length
            for part in objects(inner.get("content")):
                self._say(text_of(part.get("text")))
            self.cited += [
                found for one in objects(inner.get("citations")) if (found := cited_page(one, start, self.length))
            ]

    def message(self) -> Json:
        made: Json = {"role": "assistant", "content": "".join(self.texts) if self.texts else None, "refusal": None}
        more = {
            "reasoning_content": "".join(self.thoughts),
            "reasoning_details": self.details,
            "tool_calls": self.calls,
            "annotations": self.cited,
        }
        return made | {name: value for name, value in more.items() if value}

    def _say(self, text: str) -> None:
        self.texts.append(text)
        self.length += len(text)

    def _think(self, place: int, inner: Json) -> None:
        if "redactedContent" in inner:
            self.details.append(encrypted(inner["redactedContent"], place))
            return
        told = object_of(inner.get("reasoningText"))
        text, signature = text_of(told.get("text")), text_of(told.get("signature"))
        self.thoughts.append(text)
        detail = {"type": "reasoning.text", "text": text, "index": place}
        self.details.append(detail | ({"signature": signature, "format": FORMAT} if signature else {}))


def head(sent: ConvertedRequest, kind: str) -> Json:
    """Returns what every piece of a chat completion repeats; Converse names neither answer nor model."""
    return {
        "id": f"chatcmpl-{sent.id}",
        "object": kind,
        "created": int(sent.now),
        "model": sent.asked.get("model"),
    }


def tier_of(sent: ConvertedRequest, said: Json) -> Json:
    """Returns the tier by which the call was served, where one was asked for."""
    tier = text_of(object_of(said.get("serviceTier")).get("type"))
    return {"service_tier": tier} if tier and sent.asked.get("service_tier") else {}


def finish_of(reason: Any, *, has_calls: bool) -> str:
    """Returns why the answer ended. Raises MalformedAnswer where the model's words were no answer.

    A limit or a filter is never taken for calls (NousResearch/hermes-agent#43478).
    """
    if reason in _MALFORMED:
        raise MalformedAnswer(f"the model's answer could not be read ({reason})")
    finish = _FINISH.get(text_of(reason), "stop")
    return "tool_calls" if finish == "stop" and has_calls else finish


def tool_call(block: Json, *, is_whole: bool) -> Json:
    """Returns a block that calls a tool as a message has it; where it is not whole, its input follows.

    Raises MalformedAnswer.
    """
    id, name, given = block.get("toolUseId"), block.get("name"), block.get("input")
    if not isinstance(id, str) or not isinstance(name, str) or (is_whole and not isinstance(given, dict | None)):
        raise MalformedAnswer("a call of a tool has no id, no name, or no object as its input")
    arguments = (orjson.dumps(given).decode() if given else NO_ARGUMENTS) if is_whole else ""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def encrypted(data: Any, place: int) -> Json:
    """Returns encrypted thoughts as a detail; Anthropic's are a text under Bedrock's base64, and go to Anthropic, too."""
    given = text_of(data)
    try:
        text = b64decode(given, validate=True).decode("ascii")
    except ValueError:
        text = ""
    if text and text.isprintable() and b64encode(text.encode()).decode() == given:
        return {"type": "reasoning.encrypted", "data": text, "format": FORMAT, "index": place}
    return {"type": "reasoning.encrypted", "data": given, "format": OWN_FORMAT, "index": place}


def redacted_content(data: str) -> str:
    """Returns encrypted thoughts of Claude's as Bedrock has them."""
    return b64encode(data.encode(errors="surrogatepass")).decode()


def cited_page(citation: Json, start: int, end: int) -> Json | None:
    """Returns a citation of a page with its place in the whole text; None: it cites something else."""
    url = object_of(object_of(citation.get("location")).get("web")).get("url")
    if not isinstance(url, str):
        return None
    told = {"start_index": start, "end_index": end, "url": url, "title": text_of(citation.get("title"))}
    return {"type": "url_citation", "url_citation": told}


def usage_of_chat(usage: Json) -> Json:
    """Returns the usage in the words of chat completions, whose input includes what the cache held or was given."""
    read, written = count_in(usage, "cacheReadInputTokens"), count_in(usage, "cacheWriteInputTokens")
    came, went = count_in(usage, "inputTokens") + read + written, count_in(usage, "outputTokens")
    details: Json = {"cached_tokens": read, "cache_write_tokens": written, "audio_tokens": 0}
    told = {
        f"ephemeral_{one.get('ttl')}_input_tokens": one.get("inputTokens") for one in objects(usage.get("cacheDetails"))
    }
    if by_ttl := written_by_ttl(told):
        details[BY_TTL] = by_ttl
    return {
        "prompt_tokens": came,
        "completion_tokens": went,
        "total_tokens": came + went,
        "prompt_tokens_details": details,
    }
