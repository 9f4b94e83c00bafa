"""A response as a chat completion: items become one message."""

from __future__ import annotations

from typing import Any, Final

from gateway.dialects.base.base import ConvertedRequest, Json, MalformedAnswer, count_in, object_of, objects, text_of
from gateway.dialects.openai.gaps import REASONING_FORMAT

FINISH: Final = {"max_output_tokens": "length", "content_filter": "content_filter"}
"""The finish reason of a chat completion, by why a response is incomplete."""
BETWEEN_THOUGHTS: Final = "\n\n"
"""Parts of reasoning, of which Responses have several, are paragraphs of the one text that chat completions have."""

_PLACES: Final = ("start_index", "end_index")
"""Where in its part's text a citation is of."""


def chat_of_response(sent: ConvertedRequest, body: Json) -> Json:
    """Returns the chat completion, or an object with the error of a response that failed. Raises MalformedAnswer."""
    output = body.get("output")
    if body.get("error") or body.get("status") not in (None, "completed", "incomplete"):
        return {"error": error_of(body)}
    if not isinstance(output, list):
        raise MalformedAnswer("the answer has no output")
    message: Json = {"role": "assistant", "content": None, "refusal": None}
    logprobs: list[Json] = []
    thoughts: list[str] = []
    for place, item in enumerate(output):
        if isinstance(item, dict):
            _take(message, logprobs, thoughts, item, place)
    if thoughts:
        message["reasoning_content"] = BETWEEN_THOUGHTS.join(thoughts)
    choice = {"index": 0, "message": message, "logprobs": {"content": logprobs, "refusal": None} if logprobs else None}
    choice["finish_reason"] = finish_of(body, has_calls="tool_calls" in message)
    made = {**head(sent, body), "object": "chat.completion", "choices": [choice]}
    usage = usage_of_chat(body.get("usage"))
    return made | ({"usage": usage} if usage else {})


def head(sent: ConvertedRequest, body: Json) -> Json:
    """Returns what every piece of a chat completion repeats."""
    created = body.get("created_at")
    tier = body.get("service_tier")
    return {
        "id": f"chatcmpl-{sent.id}",
        "created": int(created) if isinstance(created, int | float) else int(sent.now),
        "model": body.get("model") or sent.asked.get("model"),
        **({"service_tier": tier} if tier else {}),
    }


def error_of(body: Json) -> Json:
    """Returns the error of a response that failed, or was given up, as chat completions have them."""
    error = object_of(body.get("error"))
    message = error.get("message") or f"the response is {body.get('status') or 'failed'}"
    return {"message": message, "type": "server_error", "param": None, "code": error.get("code") or "server_error"}


def finish_of(body: Json, *, has_calls: bool, is_incomplete: bool = False) -> str:
    if is_incomplete or body.get("status") == "incomplete":
        return FINISH.get(text_of(object_of(body.get("incomplete_details")).get("reason")), "length")
    return "tool_calls" if has_calls else "stop"


def usage_of_chat(usage: Any) -> Json | None:
    """Returns a response's usage in the words of chat completions."""
    if not isinstance(usage, dict):
        return None
    read, written = count_in(usage, "input_tokens"), count_in(usage, "output_tokens")
    came = usage.get("input_tokens_details")
    thought = count_in(usage.get("output_tokens_details"), "reasoning_tokens")
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": count_in(usage, "total_tokens") or read + written,
        "prompt_tokens_details": {
            "cached_tokens": count_in(came, "cached_tokens"),
            "cache_write_tokens": count_in(came, "cache_write_tokens"),
            "audio_tokens": 0,
        },
        "completion_tokens_details": {"reasoning_tokens": thought, "audio_tokens": 0},
    }


def tool_call(item: Json) -> Json:
    """Returns an item that calls a tool as a message has it."""
    id, name = item.get("call_id"), item.get("name")
    if item.get("type") == "custom_tool_call":
        return {"id": id, "type": "custom", "custom": {"name": name, "input": item.get("input") or ""}}
    return {"id": id, "type": "function", "function": {"name": name, "arguments": item.get("arguments") or ""}}


def reasoning_detail(item: Json, index: int) -> Json | None:
    """Returns what goes back to the provider with the conversation; None: the item has nothing encrypted.

    `index` is the item's place in the answer, for it has to go back before the same call or message as it came.
    """
    data = item.get("encrypted_content")
    if not data:
        return None
    named = {"type": "reasoning.encrypted", "id": item.get("id"), "data": data, "format": REASONING_FORMAT}
    return named | {"index": index}


def annotation(one: Json, start: int) -> Json:
    """Returns a citation as a message has it, nested under its type; `start` is where its part begins in the message's text."""
    kind = str(one.get("type"))
    told = {name: value for name, value in one.items() if name != "type"}
    told |= {name: told[name] + start for name in _PLACES if type(told.get(name)) is int}
    return {"type": kind, kind: told}


def thoughts_in(item: Json) -> list[str]:
    """Returns the parts of an item's reasoning."""
    parts = [*objects(item.get("content")), *objects(item.get("summary"))]
    return [text for part in parts if (text := text_of(part.get("text")))]


def logprobs_of(given: Any) -> list[Json]:
    """Returns log probabilities as chat completions have them; streams of Responses leave the bytes out."""
    return [
        {"bytes": None, **one, "top_logprobs": [{"bytes": None, **top} for top in objects(one.get("top_logprobs"))]}
        for one in objects(given)
    ]


def _take(message: Json, logprobs: list[Json], thoughts: list[str], item: Json, place: int) -> None:
    kind = item.get("type")
    if kind in ("function_call", "custom_tool_call"):
        message.setdefault("tool_calls", []).append(tool_call(item))
    elif kind == "reasoning":
        thoughts += thoughts_in(item)
        if (detail := reasoning_detail(item, place)) is not None:
            message.setdefault("reasoning_details", []).append(detail)
    elif kind == "message":
        for part in objects(item.get("content")):
            if part.get("type") == "refusal":
                message["refusal"] = (message["refusal"] or "") + text_of(part.get("refusal"))
            elif isinstance(part.get("text"), str):
                start = len(message["content"] or "")
                message["content"] = (message["content"] or "") + part["text"]
                logprobs += logprobs_of(part.get("logprobs"))
                if cited := objects(part.get("annotations")):
                    message.setdefault("annotations", []).extend(annotation(one, start) for one in cited)
