"""Answers of OpenAI's APIs.

In this order: chat completions and legacy completions, the Responses API, images, speech, moderations. Limits, faults and
time are not known here. Invariant: the frames of a stream, put together, say what the JSON would have said, and only `tail`
carries its end. Source: OpenAI's API reference, and the schemas of Open Responses.
"""

from __future__ import annotations

import base64
import io
import struct
import wave
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import orjson

from gateway.emulator.replies import SLOT, EmulatedReply, EmulatedStream, around, frame, json_reply
from gateway.emulator.requests import CheckedRequest
from gateway.emulator.writer import Draft, ToolWish, Writer, example_of, is_mentioned

_DONE = b"data: [DONE]\n\n"
_SAFE = {"filtered": False, "severity": "safe"}
_FILTER_RESULTS = {"hate": _SAFE, "self_harm": _SAFE, "sexual": _SAFE, "violence": _SAFE}


# --- Chat completions and legacy completions ---


def answer_chat(request: CheckedRequest, writer: Writer) -> EmulatedReply | EmulatedStream:
    """Answers with a chat completion as JSON or as a stream."""
    answers = [_answer(request, writer, choice) for choice in range(request.choices)]
    head = {
        "id": writer.new_id("chatcmpl-"),
        "object": "chat.completion.chunk" if request.is_stream else "chat.completion",
        "created": writer.created(),
        "model": request.model,
        "system_fingerprint": "fp_emulator",
    }
    if request.is_stream:
        return _chat_stream(request, writer, head, answers)
    choices = [_choice(index, drafts, writer) for index, drafts in enumerate(answers)]
    written = list(chain.from_iterable(answers))
    return json_reply(head | {"choices": choices, "usage": usage_of(request, written)}, _tokens(written))


def answer_completion(request: CheckedRequest, writer: Writer) -> EmulatedReply | EmulatedStream:
    """Answers with a legacy text completion as JSON or as a stream."""
    drafts = [writer.prose(request, choice) for choice in range(request.choices)]
    head = {
        "id": writer.new_id("cmpl-"),
        "object": "text_completion",
        "created": writer.created(),
        "model": request.model,
    }
    if request.is_stream:
        return _completion_stream(request, head, drafts)
    choices = [_text_choice(index, draft.text, draft.finish_reason) for index, draft in enumerate(drafts)]
    return json_reply(head | {"choices": choices, "usage": usage_of(request, drafts)}, _tokens(drafts))


def usage_of(request: CheckedRequest, drafts: Sequence[Draft]) -> dict[str, Any]:
    """Returns OpenAI's usage object."""
    produced = _tokens(drafts)
    return {
        "prompt_tokens": request.prompt_tokens,
        "completion_tokens": produced,
        "total_tokens": request.prompt_tokens + produced,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def data_error(error_body: bytes) -> bytes:
    """Returns an error event in a chat stream."""
    return b"data: " + error_body + b"\n\n"


def _wanted_tools(request: CheckedRequest) -> list[Mapping[str, Any]]:
    """Returns the functions to call: those that `tool_choice` asks for, or that the last message names."""
    tools, choice = request.data.get("tools"), request.data.get("tool_choice")
    if not isinstance(tools, list) or choice == "none":
        return []
    given = [tool["function"] for tool in tools if isinstance(tool, dict) and isinstance(tool.get("function"), dict)]
    functions = {str(function.get("name", "")): function for function in given}
    function = choice.get("function") if isinstance(choice, dict) else None
    named = function.get("name") if isinstance(function, dict) else None
    wish = ToolWish(
        functions,
        named=named if named in functions else None,
        is_wanted=choice is not None,
        is_parallel=request.data.get("parallel_tool_calls") is not False,
    )
    if named is not None and wish.named is None:
        return []
    return [functions[name] for name in wish.calls(request, is_result=_last_role(request) == "tool")]


def shaped(request: CheckedRequest, writer: Writer, wish: object, choice: int = 0) -> Draft:
    """Returns prose, or JSON where `wish` (response_format, or text.format of a Responses call) asks for it."""
    kind = wish.get("type") if isinstance(wish, dict) else None
    if not isinstance(wish, dict) or kind not in ("json_object", "json_schema"):
        return writer.prose(request, choice)
    holder = wish.get("json_schema", wish)
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if kind == "json_schema" and isinstance(schema, dict):
        return writer.json(request, example_of(schema))
    return writer.json(
        request,
        {
            "answer": writer.prose(
                CheckedRequest(request.model, request.data, request.prompt, request.echo), choice
            ).text
        },
    )


def _answer(request: CheckedRequest, writer: Writer, choice: int) -> list[Draft]:
    """Returns what one choice consists of: a text, or one call or several."""
    tools = _wanted_tools(request)
    if tools:
        return [writer.call(request, str(tool.get("name", "")), tool.get("parameters")) for tool in tools]
    return [shaped(request, writer, request.data.get("response_format"), choice)]


def _choice(index: int, drafts: Sequence[Draft], writer: Writer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": drafts[0].text, "refusal": None, "annotations": []}
    calls = [_tool_call(writer.new_id("call_"), draft.tool, draft.text) for draft in drafts if draft.tool is not None]
    if calls:
        message |= {"content": None, "tool_calls": calls}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": _ending(drafts)} | (
        {"content_filter_results": _FILTER_RESULTS} if writer.dialect == "azure" else {}
    )


def _chat_stream(
    request: CheckedRequest, writer: Writer, head: dict[str, Any], answers: Sequence[Sequence[Draft]]
) -> EmulatedStream:
    extra = {"usage": None} if wants_usage(request) else {}

    def chunk(index: int, delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return head | {"choices": [choice]} | extra

    def pieces(index: int, drafts: Sequence[Draft]) -> Iterator[bytes]:
        for place, draft in enumerate(drafts):
            if place:
                yield frame(chunk(index, _opened_call(draft, writer, place)))
            yield from _fill(around(chunk(index, _slot(draft, place))), draft.pieces)

    filtered = head | {"choices": [], "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}]}
    lead = frame(filtered) if writer.dialect == "azure" else b""
    lead += b"".join(frame(chunk(index, _opening(drafts[0], writer))) for index, drafts in enumerate(answers))
    frames = [pieces(index, drafts) for index, drafts in enumerate(answers)]
    tail = b"".join(frame(chunk(index, {}, _ending(drafts))) for index, drafts in enumerate(answers))
    return _stream(request, head, list(chain.from_iterable(answers)), lead, frames, tail)


def _completion_stream(request: CheckedRequest, head: dict[str, Any], drafts: Sequence[Draft]) -> EmulatedStream:
    extra = {"usage": None} if wants_usage(request) else {}

    def chunk(index: int, text: str, finish_reason: str | None = None) -> dict[str, Any]:
        return head | {"choices": [_text_choice(index, text, finish_reason)]} | extra

    frames = [_fill(around(chunk(index, SLOT)), draft.pieces) for index, draft in enumerate(drafts)]
    tail = b"".join(frame(chunk(index, "", draft.finish_reason)) for index, draft in enumerate(drafts))
    return _stream(request, head, drafts, b"", frames, tail)


def _stream(
    request: CheckedRequest,
    head: dict[str, Any],
    drafts: Sequence[Draft],
    lead: bytes,
    frames: list[Iterator[bytes]],
    tail: bytes,
) -> EmulatedStream:
    if wants_usage(request):
        tail += frame(head | {"choices": [], "usage": usage_of(request, drafts)})
    return EmulatedStream(
        lead=lead,
        frames=frames[0] if len(frames) == 1 else _interleave(frames),
        tail=tail + _DONE,
        tokens=_tokens(drafts),
        error_frame=data_error,
    )


def wants_usage(request: CheckedRequest) -> bool:
    """Returns whether the caller asked for the extra usage chunk."""
    options = request.data.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _opening(draft: Draft, writer: Writer) -> dict[str, Any]:
    if draft.tool is None:
        return {"role": "assistant", "content": "", "refusal": None}
    return {"role": "assistant", "content": None} | _opened_call(draft, writer, 0)


def _opened_call(draft: Draft, writer: Writer, place: int) -> dict[str, Any]:
    return {"tool_calls": [{"index": place} | _tool_call(writer.new_id("call_"), str(draft.tool), "")]}


def _slot(draft: Draft, place: int) -> dict[str, Any]:
    if draft.tool is None:
        return {"content": SLOT}
    return {"tool_calls": [{"index": place, "function": {"arguments": SLOT}}]}


def _ending(drafts: Sequence[Draft]) -> str:
    return "length" if any(draft.finish_reason == "length" for draft in drafts) else drafts[0].finish_reason


def _tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _text_choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": finish_reason}


def _fill(around_slot: tuple[bytes, bytes], pieces: Iterable[str]) -> Iterator[bytes]:
    before, after = around_slot
    return (before + orjson.dumps(piece) + after for piece in pieces)


def _interleave(streams: Sequence[Iterator[bytes]]) -> Iterator[bytes]:
    return (each for row in zip_longest(*streams) for each in row if each is not None)


def _tokens(drafts: Sequence[Draft]) -> int:
    return sum(len(draft.pieces) for draft in drafts)


def _last_role(request: CheckedRequest) -> object:
    messages = request.data.get("messages")
    return messages[-1].get("role") if isinstance(messages, list) and messages else None


# --- The Responses API: responses, compactions and counts of input tokens ---


def answer_response(request: CheckedRequest, writer: Writer) -> EmulatedReply | EmulatedStream:
    """Answers with a response as JSON or as a stream of named events: a message, or a call of one of the tools given.

    All fields are there even where they are null, as the schemas of Open Responses ask. The sequence numbers of events
    count up by one from 0.
    """
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


_Event = tuple[str, dict[str, Any]]


def stream_of(
    pieces: Sequence[str], opened: dict[str, Any], closed: dict[str, Any], item: Mapping[str, Any]
) -> EmulatedStream:
    """Returns the events of a response with one item: `opened` before there is any, `closed` at its end; a piece is a delta."""
    is_call = item["type"] == "function_call"
    lead, tail = _around_call(item) if is_call else _around_text(item)
    kind = "response.function_call_arguments.delta" if is_call else "response.output_text.delta"
    place = {"item_id": item["id"], "output_index": 0} | ({} if is_call else {"content_index": 0, "logprobs": []})
    empty: dict[str, Any] = {"arguments": ""} if is_call else {"content": []}
    lead = [
        ("response.created", {"response": opened}),
        ("response.in_progress", {"response": opened}),
        ("response.output_item.added", {"output_index": 0, "item": {**item, "status": "in_progress", **empty}}),
        *lead,
    ]
    end = "response.completed" if closed["status"] == "completed" else "response.incomplete"
    tail = [*tail, ("response.output_item.done", {"output_index": 0, "item": item}), (end, {"response": closed})]
    return EmulatedStream(
        lead=_frames(lead, 0),
        frames=_deltas(kind, place, pieces, len(lead)),
        tail=_frames(tail, len(lead) + len(pieces)),
        tokens=len(pieces),
        error_frame=response_error,
    )


def response_error(error_body: bytes) -> bytes:
    """Returns an error event as seen on the wire: the error nested under its own key."""
    return b'event: error\ndata: {"type":"error","sequence_number":2,' + error_body[1:] + b"\n\n"


def _around_text(item: Mapping[str, Any]) -> tuple[list[_Event], list[_Event]]:
    """Returns the events before and behind the pieces of a message's text."""
    (part,) = item["content"]
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    return (
        [("response.content_part.added", place | {"part": part | {"text": ""}})],
        [
            ("response.output_text.done", place | {"text": part["text"], "logprobs": []}),
            ("response.content_part.done", place | {"part": part}),
        ],
    )


def _around_call(item: Mapping[str, Any]) -> tuple[list[_Event], list[_Event]]:
    """Returns the events before and behind the pieces of a call's arguments."""
    place = {"item_id": item["id"], "output_index": 0}
    done = place | {"name": item["name"], "arguments": item["arguments"]}
    return [], [("response.function_call_arguments.done", done)]


def _frames(events: Sequence[_Event], first: int) -> bytes:
    return b"".join(
        frame({"type": name, "sequence_number": number} | fields, name)
        for number, (name, fields) in enumerate(events, first)
    )


def _deltas(kind: str, place: dict[str, Any], pieces: Sequence[str], first: int) -> Iterator[bytes]:
    opening = orjson.dumps({"type": kind} | place)[:-1]
    before = b"event: " + kind.encode() + b"\ndata: " + opening + b',"delta":'
    for number, piece in enumerate(pieces, first):
        yield before + orjson.dumps(piece) + b',"sequence_number":%d}\n\n' % number


# --- Images, speech, moderations ---


def answer_image(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers with one grey pixel per image asked for, as base64 PNG."""
    image = {"b64_json": _PIXEL, "revised_prompt": request.prompt}
    usage = {"input_tokens": request.prompt_tokens, "output_tokens": request.choices, "total_tokens": 0}
    usage["total_tokens"] = usage["input_tokens"] + usage["output_tokens"]
    details = {"input_tokens_details": {"text_tokens": request.prompt_tokens, "image_tokens": 0}}
    return json_reply({"created": writer.created(), "data": [image] * request.choices, "usage": usage | details})


def answer_speech(_ask: CheckedRequest, _writer: Writer) -> EmulatedReply:
    """Answers with a twentieth of a second of silence, as WAV whatever format was asked for."""
    return EmulatedReply(body=_SILENCE, content_type=b"audio/wav")


def answer_transcription(_ask: CheckedRequest, _writer: Writer) -> EmulatedReply:
    """Answers with the text of any recording."""
    return json_reply({"text": "emulated transcription"})


def _png(grey: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    pixel = zlib.compress(bytes([0, grey]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")


def _wav(frames: int) -> bytes:
    sink = io.BytesIO()
    with wave.open(sink, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(2 * frames))
    return sink.getvalue()


_PIXEL = base64.b64encode(_png(128)).decode()


_SILENCE = _wav(400)


def answer_moderation(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers with a moderation list; a text with the word `violence` is flagged."""
    results = [_verdict(text) for text in request.inputs]
    return json_reply({"id": writer.new_id("modr-"), "model": request.model, "results": results})


_CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)


def _verdict(text: str) -> dict[str, Any]:
    is_violent = "violence" in text.lower()
    found = {name: is_violent and name == "violence" for name in _CATEGORIES}
    return {
        "flagged": is_violent,
        "categories": found,
        "category_scores": {name: 0.98 if flagged else 0.0001 for name, flagged in found.items()},
        "category_applied_input_types": {name: ["text"] for name in _CATEGORIES},
    }
