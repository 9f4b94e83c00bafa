"""A chat completion as a response: what a model said, thought and called becomes items.

The ids of the answer and of its items are made from `ConvertedRequest.id`, because chat completions name neither.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.dialects.base import ConvertedRequest, Json, MalformedAnswer, object_of, objects, text_of
from gateway.dialects.openai.responses_request import INPUT_NAME
from gateway.policy.openai.sse import json_object

_ECHOED: Final[Json] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""What a response repeats of its request, with the values of a request that says nothing."""

INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why an answer is incomplete, by a chat completion's finish reason."""


def response_of_chat(sent: ConvertedRequest, body: Json) -> Json:
    """Returns the response. Raises MalformedAnswer where there is no message."""
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict) or not isinstance(choice, dict):
        raise MalformedAnswer("the answer has no message")
    items: list[Json] = []
    if reasoning := reasoning_in(message):
        items.append(reasoning_item(sent, len(items), reasoning))
    parts = _parts(message, choice)
    if parts:
        items.append(message_item(sent, len(items), parts))
    for call in calls_in(message):
        items.append(call_item(sent, len(items), call["id"], call["name"], call["arguments"]))
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
    for name, usual in _ECHOED.items():
        asked = sent.asked.get(name)
        made[name] = usual if asked is None else asked
    made["store"] = False  # nobody keeps it
    tier = said.get("service_tier") or sent.asked.get("service_tier")
    return made | ({"service_tier": tier} if tier else {})


def ended(begun: Json, items: list[Json], finish: str, usage: Any) -> Json:
    """Returns the response at its end."""
    reason = INCOMPLETE.get(finish)
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
    read, written = _number(usage, "prompt_tokens"), _number(usage, "completion_tokens")
    came = usage.get("prompt_tokens_details")
    thought = _number(usage.get("completion_tokens_details"), "reasoning_tokens")
    return {
        "input_tokens": read,
        "input_tokens_details": {
            "cached_tokens": _number(came, "cached_tokens"),
            "cache_write_tokens": _number(came, "cache_write_tokens"),
        },
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": _number(usage, "total_tokens") or read + written,
    }


def reasoning_in(message: Json) -> str:
    """Returns the reasoning that a message or a piece of it shows, by the names that servers have for it."""
    said = message.get("reasoning_content") or message.get("reasoning")
    return said if isinstance(said, str) else ""


def calls_in(message: Json) -> list[Json]:
    """Returns a message's calls: id, name, arguments. Raises MalformedAnswer where one has no name."""
    found = []
    for number, call in enumerate(objects(message.get("tool_calls"))):
        named = call.get(text_of(call.get("type")) or "function")
        if not isinstance(named, dict) or not isinstance(named.get("name"), str):
            raise MalformedAnswer("the answer calls a tool without a name")
        said = named.get("input") if "input" in named else named.get("arguments")
        found.append({"id": call.get("id") or f"call_{number}", "name": named["name"], "arguments": text_of(said)})
    old = message.get("function_call")
    if isinstance(old, dict) and isinstance(old.get("name"), str):
        found.append({"id": "call_0", "name": old["name"], "arguments": text_of(old.get("arguments"))})
    return found


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


def call_item(sent: ConvertedRequest, index: int, id: str, name: str, arguments: str) -> Json:
    """Returns a call; of a tool with free text that went out as a function, the text is taken out again."""
    if name in sent.custom_tools:
        made = {"id": item_id(sent, "ctc", index), "type": "custom_tool_call", "status": "completed", "call_id": id}
        return made | {"name": name, "input": free_text(arguments)}
    made = {"id": item_id(sent, "fc", index), "type": "function_call", "status": "completed", "call_id": id}
    return made | {"name": name, "arguments": arguments or "{}"}


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


def _parts(message: Json, choice: Json) -> list[Json]:
    """Returns the parts of what the model said; none where it only called tools."""
    parts: list[Json] = []
    content, refusal = message.get("content"), message.get("refusal")
    if isinstance(content, list):  # servers that answer in parts
        content = "".join(text_of(part.get("text")) for part in objects(content) if part.get("type") == "text")
    if isinstance(content, str) and content:
        parts.append(output_text(content, annotations_in(message), logprobs_in(choice)))
    if isinstance(refusal, str) and refusal:
        parts.append({"type": "refusal", "refusal": refusal})
    return parts


def _number(holder: Any, name: str) -> int:
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
