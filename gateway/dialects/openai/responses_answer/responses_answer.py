"""A chat completion as a response: what a model said, thought and called becomes items.

The ids of the answer and of its items are made from `ConvertedRequest.id`, because chat completions name neither.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.core.openai.sse.sse import json_object
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
from gateway.dialects.openai.responses_request import INPUT_NAME
from gateway.products.responses.rules.response_object.response_object import ECHOED

_UNSAID: Final[Json] = {"description": None, "parameters": None, "strict": None}
"""What a function's tool repeats where its request said nothing."""

INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why an answer is incomplete, by a chat completion's finish reason."""


def response_of_chat(sent: ConvertedRequest, body: Json) -> Json:
    """Returns the response. Raises MalformedAnswer where there is no message."""
    choice = first_choice(body)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise MalformedAnswer("the answer has no message")
    items: list[Json] = []
    thought, text = words_in(message)
    if thought:
        items.append(reasoning_item(sent, len(items), thought))
    parts = _parts(message, text, choice)
    if parts:
        items.append(message_item(sent, len(items), parts))
    for number, call in enumerate(pieces_in(message)):
        items.append(_called(sent, call, number, len(items)))
    finish = choice.get("finish_reason")
    return ended(response(sent, body), items, finish if isinstance(finish, str) else "stop", body.get("usage"))


def response(sent: ConvertedRequest, said: Json) -> Json:
    """Returns a response that has just begun; `said` is a chat completion or a piece of one."""
    created = said.get("created")
    made: Json = {
        "id": f"resp_{sent.id}",
        "object": "response",
        "created_at": created if isinstance(created, int) and created > 0 else int(sent.now),
        "status": "in_progress",
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": said.get("model") or sent.asked.get("model"),
        "output": [],
        "usage": None,
    }
    for name, usual in ECHOED.items():
        asked = sent.asked.get(name)
        made[name] = usual if asked is None else asked
    for name in ("reasoning", "text"):
        made[name] = {**ECHOED[name], **object_of(made[name])}
    made["tools"] = [_UNSAID | tool if tool.get("type") == "function" else tool for tool in objects(made["tools"])]
    made["store"] = False  # nobody keeps it
    made["service_tier"] = said.get("service_tier") or sent.asked.get("service_tier") or "default"
    return made


def ended(begun: Json, items: list[Json], finish: str, usage: Any) -> Json:
    """Returns the response at its end."""
    reason = INCOMPLETE.get(finish)
    if reason and items:
        items[-1]["status"] = "incomplete"  # what came last was cut, a call's arguments, too
    status = "incomplete" if reason else "completed"
    return begun | {
        "status": status,
        "completed_at": None if reason else begun["created_at"],
        "incomplete_details": {"reason": reason} if reason else None,
        "output": items,
        "usage": usage_of_response(usage),
    }


def usage_of_response(usage: Any) -> Json | None:
    """Returns a chat completion's usage in the words of Responses."""
    if not isinstance(usage, dict):
        return None
    read, written = count_in(usage, "prompt_tokens"), count_in(usage, "completion_tokens")
    came = usage.get("prompt_tokens_details")
    thought = count_in(usage.get("completion_tokens_details"), "reasoning_tokens")
    details: Json = {name: count_in(came, name) for name in ("cached_tokens", "cache_write_tokens")}
    if by_ttl := written_by_ttl(object_of(came).get(BY_TTL)):
        details[BY_TTL] = by_ttl
    return {
        "input_tokens": read,
        "input_tokens_details": details,
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": count_in(usage, "total_tokens") or read + written,
    }


def first_choice(said: Json) -> Json:
    """Returns the first choice, which is all that a response has; empty where there is none."""
    return next((choice for choice in objects(said.get("choices")) if not choice.get("index")), {})


def words_in(message: Json) -> tuple[str, str]:
    """Returns what a message, or a piece of one, shows of the reasoning, and says; by the names that servers have for it.

    Mistral's reasoning models say both in parts.
    """
    thought, content = message.get("reasoning_content") or message.get("reasoning"), message.get("content")
    thought = thought if isinstance(thought, str) else ""
    if not isinstance(content, list):
        return thought, content if isinstance(content, str) else ""
    parts = objects(content)
    thoughts = [inner for part in parts if part.get("type") == "thinking" for inner in objects(part.get("thinking"))]
    said = [text_of(part.get("text")) for part in parts if part.get("type") in ("text", "output_text")]
    return thought + "".join(text_of(one.get("text")) for one in thoughts), "".join(said)


def pieces_in(message: Json) -> list[Json]:
    """Returns a message's calls, or the pieces of some; a call as it was before there were tools is the only one."""
    found = objects(message.get("tool_calls"))
    old = message.get("function_call")
    return [{"index": 0, "function": old}] if not found and isinstance(old, dict) else found


def named_in(call: Json) -> Json:
    """Returns what a call, or a piece of one, says of its tool."""
    return object_of(call.get("custom") or call.get("function"))


def argument_in(named: Json) -> str:
    """Returns what a tool is called with; some servers send the object instead of its text."""
    said = named.get("input") if "input" in named else named.get("arguments")
    return orjson.dumps(said).decode() if isinstance(said, dict) else text_of(said)


def _called(sent: ConvertedRequest, call: Json, number: int, index: int) -> Json:
    """Returns a whole call as an item. Raises MalformedAnswer where it has no name."""
    named = named_in(call)
    name, said, is_custom = text_of(named.get("name")), argument_in(named), "custom" in call
    if not name:
        raise MalformedAnswer("the answer calls a tool without a name")
    if name in sent.custom_tools and not is_custom:
        is_custom, said = True, free_text(said)
    id = text_of(call.get("id")) or call_id(sent, number)
    return call_item(sent, index, id, name, said, is_custom=is_custom)


def call_id(sent: ConvertedRequest, number: int) -> str:
    """Returns an id for a call that came without one, unlike those of other turns."""
    return f"call_{sent.id}{number:02d}"


def reasoning_item(sent: ConvertedRequest, index: int, text: str) -> Json:
    content = [{"type": "reasoning_text", "text": text}]
    return {
        "id": item_id(sent, "rs", index),
        "type": "reasoning",
        "summary": [],
        "content": content,
        "status": "completed",
    }


def message_item(sent: ConvertedRequest, index: int, parts: list[Json]) -> Json:
    made = {"id": item_id(sent, "msg", index), "type": "message", "status": "completed", "role": "assistant"}
    return made | {"content": parts}


def call_item(sent: ConvertedRequest, index: int, id: str, name: str, said: str, *, is_custom: bool) -> Json:
    """Returns a call; `said` is the free text or the arguments."""
    if is_custom:
        made = {"id": item_id(sent, "ctc", index), "type": "custom_tool_call", "status": "completed", "call_id": id}
        return made | {"name": name, "input": said}
    made = {"id": item_id(sent, "fc", index), "type": "function_call", "status": "completed", "call_id": id}
    return made | {"name": name, "arguments": said or "{}"}


def free_text(arguments: str) -> str:
    """Returns the text that a function's only argument stands for; a model that gave no JSON has given the text itself."""
    found = json_object(arguments.encode())
    text = None if found is None else found.get(INPUT_NAME)
    return text if isinstance(text, str) else arguments


def item_id(sent: ConvertedRequest, kind: str, index: int) -> str:
    return f"{kind}_{sent.id}{index:02d}"


def output_text(text: str, annotations: list[Json], logprobs: list[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": logprobs}


def annotations_in(message: Json) -> list[Json]:
    """Returns a message's citations, which Responses do not nest."""
    found = []
    for one in objects(message.get("annotations")):
        if isinstance(kind := one.get("type"), str):
            inner = one.get(kind)
            found.append({"type": kind, **inner} if isinstance(inner, dict) else one)
    return found


def logprobs_in(choice: Json) -> list[Json]:
    """Returns the log probabilities of a choice's text, in the form of Responses."""
    return [
        {
            "token": one.get("token", ""),
            "bytes": one.get("bytes") or [],
            "logprob": one.get("logprob", 0.0),
            "top_logprobs": [
                {"token": top.get("token", ""), "bytes": top.get("bytes") or [], "logprob": top.get("logprob", 0.0)}
                for top in objects(one.get("top_logprobs"))
            ],
        }
        for one in objects(object_of(choice.get("logprobs")).get("content"))
    ]


def _parts(message: Json, text: str, choice: Json) -> list[Json]:
    """Returns the parts of what the model said; none where it only called tools."""
    parts: list[Json] = []
    refusal, cited = message.get("refusal"), annotations_in(message)
    if text or cited:
        parts.append(output_text(text, cited, logprobs_in(choice)))
    if isinstance(refusal, str) and refusal:
        parts.append({"type": "refusal", "refusal": refusal})
    return parts
