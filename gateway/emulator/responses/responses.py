"""Bodies of the Responses API: responses, compactions and counts of input tokens, with every field that clients check.

Source: OpenAI's API reference, and the schemas of Open Responses, which ask for all fields of a response even where they are
null. It must not know limits, faults or time; `writer.py` makes a stream of what is built here.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.emulator.answers.chat import shaped
from gateway.emulator.answers.reply import EmulatedReply, Stream, json_reply
from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.dialects.compose import is_mentioned
from gateway.emulator.responses.writer import Draft, Writer, stream_of


def answer_response(request: CheckedRequest, writer: Writer) -> EmulatedReply | Stream:
    """Answers with a response as JSON or as a stream of named events: a message, or a call of one of the tools given."""
    draft = _draft(request, writer)
    opened = _response(request, writer)
    item = _call_item(request, writer, draft) if draft.tool is not None else _message_item(writer, draft)
    closed = _closed(request, draft, opened, item, writer.created())
    if request.is_stream:
        return stream_of(draft.pieces, opened, closed, item)
    return json_reply(closed, len(draft.pieces))


def answer_compaction(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Returns a compacted conversation: the users' messages, and one item that only a provider could read."""
    summary = writer.prose(request)
    given = request.data.get("input")
    messages = [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given
    kept = [_kept(writer, message) for message in messages or () if message.get("role") == "user"]
    secret = b64encode(summary.text.encode()).decode()
    value = {
        "id": writer.new_id("resp_"),
        "object": "response.compaction",
        "created_at": writer.created(),
        "output": [*kept, {"type": "compaction", "id": writer.new_id("cmp_"), "encrypted_content": secret}],
        "usage": _usage(request, len(summary.pieces)),
    }
    return json_reply(value, len(summary.pieces))


def answer_input_tokens(request: CheckedRequest, _writer: Writer) -> EmulatedReply:
    """Returns the number of tokens that a call would send."""
    return json_reply({"object": "response.input_tokens", "input_tokens": request.prompt_tokens})


def _draft(request: CheckedRequest, writer: Writer) -> Draft:
    tool = _wanted_tool(request)
    if tool is not None:
        return writer.call(request, str(tool.get("name", "")), tool.get("parameters"))
    settings = request.data.get("text")
    return shaped(request, writer, settings.get("format") if isinstance(settings, dict) else None)


def _wanted_tool(request: CheckedRequest) -> Mapping[str, Any] | None:
    """Returns the function to call; None once a call's output has come in.

    It is the one that `tool_choice` names, else one that the last message names, in a namespace, too, else the first one.

    Unlike with chat, tools alone are reason enough: that is what the suites of the Responses API expect of `auto`.
    """
    wish = request.data.get("tool_choice", "auto")
    items = request.data.get("input")
    last = items[-1] if isinstance(items, list) and items else None
    if wish == "none" or (isinstance(last, dict) and last.get("type") == "function_call_output"):
        return None
    names = set(_names(wish))
    functions = [tool for tool in _tools(request) if tool.get("type") == "function"]
    mentioned = [tool for tool in _functions(request) if is_mentioned(str(tool.get("name")), request.echo)]
    return next((tool for tool in [*mentioned, *functions] if not names or tool.get("name") in names), None)


def _functions(request: CheckedRequest) -> Iterator[Mapping[str, Any]]:
    """Returns all functions, those of a namespace with its name as their `namespace`."""
    for tool in _tools(request):
        if tool.get("type") == "function":
            yield tool
        elif tool.get("type") == "namespace":
            inner = [one for one in tool.get("tools") or () if isinstance(one, dict) and one.get("type") == "function"]
            yield from ({**one, "namespace": tool.get("name")} for one in inner)


def _names(wish: object) -> Iterator[str]:
    """Returns the functions that a `tool_choice` allows; none: any."""
    if not isinstance(wish, dict):
        return
    allowed = wish.get("tools") if wish.get("type") == "allowed_tools" else [wish]
    for one in allowed if isinstance(allowed, list) else ():
        if isinstance(one, dict) and isinstance(one.get("name"), str):
            yield one["name"]


def _tools(request: CheckedRequest) -> list[dict[str, Any]]:
    tools = request.data.get("tools")
    return [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []


def _response(request: CheckedRequest, writer: Writer) -> dict[str, Any]:
    data = request.data
    absent = {"description": None, "parameters": None, "strict": True}
    return {
        "id": writer.new_id("resp_"),
        "object": "response",
        "created_at": writer.created(),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "frequency_penalty": _or(data, "frequency_penalty", 0.0),
        "incomplete_details": None,
        "instructions": data.get("instructions"),
        "max_output_tokens": request.max_tokens,
        "max_tool_calls": data.get("max_tool_calls"),
        "model": request.model,
        "output": [],
        "parallel_tool_calls": _or(data, "parallel_tool_calls", True),
        "presence_penalty": _or(data, "presence_penalty", 0.0),
        "previous_response_id": data.get("previous_response_id"),
        "prompt_cache_key": data.get("prompt_cache_key"),
        "reasoning": {"effort": None, "summary": None} | _or(data, "reasoning", {}),
        "safety_identifier": data.get("safety_identifier"),
        "service_tier": "default",
        "store": _or(data, "store", True),
        "temperature": _or(data, "temperature", 1.0),
        "text": {"format": {"type": "text"}, "verbosity": "medium"} | _or(data, "text", {}),
        "tool_choice": _or(data, "tool_choice", "auto"),
        "tools": [(absent if tool.get("type") == "function" else {}) | tool for tool in _tools(request)],
        "top_logprobs": _or(data, "top_logprobs", 0),
        "top_p": _or(data, "top_p", 1.0),
        "truncation": _or(data, "truncation", "disabled"),
        "usage": None,
        "user": data.get("user"),
        "metadata": _or(data, "metadata", {}),
    }


def _or(data: Mapping[str, Any], name: str, default: Any) -> Any:
    """Returns the caller's value; the default also in place of null, or of a value that is not its kind of container."""
    value = data.get(name)
    return default if value is None or (isinstance(default, dict) and not isinstance(value, dict)) else value


def _closed(
    request: CheckedRequest, draft: Draft, opened: dict[str, Any], item: dict[str, Any], completed_at: int
) -> dict[str, Any]:
    is_cut = draft.finish_reason == "length"
    return opened | {
        "status": "incomplete" if is_cut else "completed",
        "completed_at": None if is_cut else completed_at,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": [item],
        "usage": _usage(request, len(draft.pieces)),
    }


def _usage(request: CheckedRequest, produced: int) -> dict[str, Any]:
    return {
        "input_tokens": request.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": produced,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": request.prompt_tokens + produced,
    }


def _message_item(writer: Writer, draft: Draft) -> dict[str, Any]:
    part = {"type": "output_text", "text": draft.text, "annotations": [], "logprobs": []}
    status = "incomplete" if draft.finish_reason == "length" else "completed"
    return {"id": writer.new_id("msg_"), "type": "message", "status": status, "role": "assistant", "content": [part]}


def _call_item(request: CheckedRequest, writer: Writer, draft: Draft) -> dict[str, Any]:
    called = next((tool for tool in _functions(request) if tool.get("name") == draft.tool), {})
    space = {"namespace": called["namespace"]} if "namespace" in called else {}
    return {
        "id": writer.new_id("fc_"),
        "type": "function_call",
        "status": "incomplete" if draft.finish_reason == "length" else "completed",
        "call_id": writer.new_id("call_"),
        "name": draft.tool,
        "arguments": draft.text,
        **space,
    }


def _kept(writer: Writer, message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content or []
    return {"id": writer.new_id("msg_"), "type": "message", "status": "completed", "role": "user", "content": parts}
