"""Bodies and frames of chat completions and legacy completions.

It must not know limits, faults or time. Invariant: the frames of a stream, put together, say what the JSON would have
said, and only `tail` carries a finish_reason and `[DONE]`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from typing import Any

import orjson

from gateway.emulator.answers.reply import SLOT, EmulatedReply, Headers, Stream, around, frame, json_reply
from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.app.call import EmulatedCall
from gateway.emulator.config.config import Fault
from gateway.emulator.dialects.compose import ToolWish
from gateway.emulator.dialects.dialects import EmulatedAccount
from gateway.emulator.generate import blocked
from gateway.emulator.problems import CDN_PAGE, LANGUAGES, fault_problem, overload, overloaded_503
from gateway.emulator.responses.writer import Draft, Writer, example_of

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


# Acts out an answer: at its pace, whole, or broken in the way its fault says.
#
# It must not know why a fault was picked (`config/config.py`). Invariant: without a fault every answer ends properly; with one,
# the call ends exactly as `FAULTS` there describes it.


_FINISH_REASON = re.compile(rb'"finish_reason":"\w+"')
_YIELD_EVERY = 64  # frames sent at once before others get their turn
_PIECES = 16  # of a whole answer that drips
_LONGEST_GAP_S = 3600.0
_BEFORE_LIMITS = frozenset({"e401", "e403", "e404"})  # refused before anything is counted: no limit headers
_DRIPS = frozenset({"drip", "fade"})
_ERRORS_IN_200 = frozenset({"in_band_error", "opening_error", "raw_error"})
_UNFRAMED = frozenset({"truncated", "wrong_length"})


@dataclass(frozen=True, slots=True)
class EmulatedPace:
    """Seconds until the first token and between the next."""

    ttft_s: float
    per_token_s: float


def refusal_of(fault: Fault, account: EmulatedAccount, call: EmulatedCall, now: float) -> EmulatedReply | None:
    """Returns the whole reply that `fault` consists of, or None for the faults that break a good answer."""
    dialect = call.dialect
    match fault.kind:
        case "rate_limit" | "rate_limit_bare":
            refusal = account.throttle(fault.seconds or 0.0, now, is_bare=fault.kind == "rate_limit_bare")
            return refusal.reply(dialect, call.request_id)
        case "html502":
            return EmulatedReply(status=502, body=CDN_PAGE, content_type=b"text/html", is_foreign=True)
        case "empty_200":
            return EmulatedReply(body=b"")
        case "error_in_200":
            return EmulatedReply(body=_overload(call, dialect))
        case "content_filter" if dialect == "generate":  # Google answers with 200, and with nothing but the reason
            return json_reply(blocked(0))
    problem = fault_problem(fault.kind, dialect, call.path)
    if problem is None:
        return None
    is_bare = fault.kind in _BEFORE_LIMITS
    return problem.reply(dialect, _retry_after(fault), is_bare=is_bare, request_id=call.request_id)


async def perform(
    call: EmulatedCall,
    answer: EmulatedReply | Stream,
    fault: Fault | None,
    pace: EmulatedPace,
    account: EmulatedAccount,
) -> None:
    """Plays `answer` at `pace`, as `fault` bends it."""
    if fault is not None and fault.kind == "silence":
        await call.hang()
    if fault is not None and fault.kind == "reset" and not fault.after_chunks:
        await call.reset()
        return
    wait_s = pace.ttft_s
    if fault is not None and fault.kind == "slow_first_token":
        wait_s += fault.seconds or 0.0
    if isinstance(answer, EmulatedReply):
        wait_s += max(0, answer.tokens - 1) * pace.per_token_s
    if wait_s:
        await call.sleep(wait_s)
    if fault is not None and fault.kind in _UNFRAMED:
        await _misframe(call, _whole(answer), fault.kind)
    elif isinstance(answer, Stream):
        await _play_stream(call, answer, fault, pace.per_token_s, account)
    else:
        await _play_reply(call, answer, fault, account)


async def _play_reply(call: EmulatedCall, reply: EmulatedReply, fault: Fault | None, account: EmulatedAccount) -> None:
    account.emitted(reply.tokens, call.now())
    half = len(reply.body) // 2
    match fault.kind if fault else None:
        case "cut" | "stall" | "reset" as kind:
            await call.start(reply, len(reply.body))
            await call.write(reply.body[:half])
            await _break_off(call, kind)
        case "malformed":
            await call.reply(replace(reply, body=reply.body[:half]))
        case kind if kind in _ERRORS_IN_200:
            await call.reply(EmulatedReply(body=_overload(call, "openai")))
        case kind if fault is not None and kind in _DRIPS:
            await _drip_reply(call, reply, fault)
        case "refusal":
            await call.reply(replace(reply, body=_filtered(reply.body)))
        case _:
            await call.reply(reply)


async def _play_stream(
    call: EmulatedCall, stream: Stream, fault: Fault | None, per_token_s: float, account: EmulatedAccount
) -> None:
    kind, chunks = (fault.kind, fault.after_chunks) if fault else ("", None)
    left = iter(() if kind == "opening_error" else stream.frames)
    frames = _with_broken_frame(stream, chunks) if kind == "malformed" else islice(left, chunks)
    call.watch()
    await call.start(EmulatedReply(body=b"", content_type=stream.content_type), None)
    if stream.lead and chunks != 0:
        await call.write(stream.lead)
    await _play_frames(call, frames, per_token_s, account.emitted)
    match kind:
        case "cut" | "stall" | "reset":
            await _break_off(call, kind)
        case "in_band_error" | "opening_error":
            await call.finish(stream.error_frame(_overload(call, "openai")))
        case "raw_error":
            await call.finish(_overload(call, "openai"))
        case kind if fault is not None and kind in _DRIPS:
            await _drip(call, left, fault, account.emitted)
            await call.finish(stream.tail)
        case "no_done":
            await call.finish()
        case "refusal":
            await call.finish(_filtered(stream.tail))
        case _:
            await call.finish(stream.tail)


async def _play_frames(
    call: EmulatedCall, frames: Iterable[bytes], per_token_s: float, emitted: Callable[[int, float], None]
) -> None:
    # Each frame has its own due time from the first on: late wake-ups do not add up.
    due = call.now()
    for number, each in enumerate(frames):
        due += per_token_s if number else 0.0
        ahead_s = due - call.now() if per_token_s else 0.0
        if ahead_s > 0:
            await call.sleep(ahead_s)
        elif number % _YIELD_EVERY == _YIELD_EVERY - 1:
            await asyncio.sleep(0)
        await call.write(each)
        emitted(1, due)


async def _drip(
    call: EmulatedCall, pieces: Iterable[bytes], fault: Fault, emitted: Callable[[int, float], None]
) -> None:
    gap_s = fault.seconds or 0.0
    for each in pieces:
        await call.sleep(gap_s)
        await call.write(each)
        emitted(1, call.now())
        if fault.kind == "fade":
            gap_s = min(2 * gap_s, _LONGEST_GAP_S)


async def _drip_reply(call: EmulatedCall, reply: EmulatedReply, fault: Fault) -> None:
    size = -(-len(reply.body) // _PIECES)
    pieces = [reply.body[start : start + size] for start in range(0, len(reply.body), size)]
    at_once = fault.after_chunks or 0
    await call.start(reply, len(reply.body))
    await call.write(b"".join(pieces[:at_once]))
    await _drip(call, pieces[at_once:], fault, lambda _count, _now: None)
    await call.finish()


async def _break_off(call: EmulatedCall, kind: str) -> None:
    match kind:
        case "cut":
            await call.close()
        case "reset":
            await call.reset()
        case _:
            await call.hang()


async def _misframe(call: EmulatedCall, reply: EmulatedReply, kind: str) -> None:
    if kind == "truncated":
        await call.start(reply, len(reply.body))
        await call.write(reply.body[: len(reply.body) // 2])
        await call.close()
        return
    length = max(1, len(reply.body) - 16)
    await call.start(reply, length)
    await call.finish(reply.body[:length])
    call.smuggle(reply.body[length:])


def _whole(answer: EmulatedReply | Stream) -> EmulatedReply:
    if isinstance(answer, EmulatedReply):
        return answer
    return EmulatedReply(body=answer.lead + b"".join(answer.frames) + answer.tail, content_type=answer.content_type)


def _with_broken_frame(stream: Stream, chunks: int | None) -> Iterator[bytes]:
    frames = iter(stream.frames)
    late_lead = () if chunks else (stream.lead,)
    return chain(islice(frames, chunks), (stream.broken,), late_lead, frames)


def _overload(call: EmulatedCall, dialect: str) -> bytes:
    """Returns the JSON of the error that a stream ends with: in the form of the call, or else in that of `dialect`."""
    if call.dialect in LANGUAGES:
        return overload(call.dialect).render(call.dialect, call.request_id)
    return overloaded_503(dialect).render(dialect)


def _filtered(body: bytes) -> bytes:
    return _FINISH_REASON.sub(b'"finish_reason":"content_filter"', body)


def _retry_after(fault: Fault) -> Headers:
    return ((b"retry-after", f"{fault.seconds:.15g}".encode()),) if fault.seconds is not None else ()
