"""Bodies and frames of chat completions and legacy completions.

It must not know limits, faults or time. Invariant: the frames of a stream, put together, say what the JSON would have
said, and only `tail` carries a finish_reason and `[DONE]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import orjson

from gateway.emulator.answers.reply import SLOT, EmulatedReply, Stream, around, frame, json_reply
from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.dialects.compose import ToolWish
from gateway.emulator.responses.writer.writer import Draft, Writer, example_of

_DONE = b"data: [DONE]\n\n"
_SAFE = {"filtered": False, "severity": "safe"}
_FILTER_RESULTS = {"hate": _SAFE, "self_harm": _SAFE, "sexual": _SAFE, "violence": _SAFE}


def answer_chat(request: CheckedRequest, writer: Writer) -> EmulatedReply | Stream:
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


def answer_completion(request: CheckedRequest, writer: Writer) -> EmulatedReply | Stream:
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
        is_asked=choice is not None,
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
) -> Stream:
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


def _completion_stream(request: CheckedRequest, head: dict[str, Any], drafts: Sequence[Draft]) -> Stream:
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
) -> Stream:
    if wants_usage(request):
        tail += frame(head | {"choices": [], "usage": usage_of(request, drafts)})
    return Stream(
        lead=lead,
        frames=frames[0] if len(frames) == 1 else _interleave(frames),
        tail=tail + _DONE,
        tokens=_tokens(drafts),
        error_frame=data_error,
    )


def wants_usage(request: CheckedRequest) -> bool:
    """Tells whether the caller asked for the extra usage chunk."""
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
