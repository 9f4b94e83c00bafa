"""Converts an answer between its forms: streamed or whole, with the usage that its client asked for or without.

Who asks for a stream may get what another was given whole, and the other way round. It must not know what is kept, nor for
how long. Invariants: what is made of an answer says all that the answer says and nothing else, or is not made at all (None);
of a stream that stays one, only what is about usage changes, every other byte stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Final

import orjson

from gateway.core.openai import sse
from gateway.core.openai.json_edit import is_crowded
from gateway.core.openai.sse import GIVEN_UP, choices_of, failed_reason, is_plain_chat
from gateway.core.openai.transcript import NULL_USAGE
from gateway.dialects.conversion.chat import Ambiguous, chunks_of, completion_of, normal, plain
from gateway.dialects.conversion_answers import (
    events_of,
    frames_of,
    generated_of,
    last_reason,
    last_response,
    message_of,
    response_of,
)

_DONE_FRAME = b"data: [DONE]\n\n"
_GIVES_UP = (Ambiguous, RecursionError, orjson.JSONEncodeError)
"""The errors of a conversion; the last two mean that the answer is nested too deeply."""
_REASONS = re.compile(rb'(?<!\\)"finishReason" ?: ?"([A-Z_]+)"')
_FINISHES = (b'"finish_reason":"', b'"finish_reason": "')
_BLOCKED = b'"blockReason"'
_NO_DATA = re.compile(rb'"data"\s*:\s*\[\s*\]')


def as_whole(endpoint: str, frames: bytes, usage_event: bytes = b"") -> bytes | None:
    """Returns the JSON form of the complete answer in these frames; None where that is not certain.

    `usage_event`: what was taken out of the stream for a client that had not asked for it.
    """
    try:
        if endpoint == "responses":
            response = response_of(frames)
            return None if response is None else orjson.dumps(response)
        if endpoint == "messages":
            return orjson.dumps(message_of(frames), default=plain)
        if endpoint == "generate":
            return orjson.dumps(generated_of(_chunks(frames, usage_event)), default=plain)
        return orjson.dumps(completion_of(_chunks(frames, usage_event), is_chat=endpoint == "chat"), default=plain)
    except _GIVES_UP:
        return None


def as_stream(endpoint: str, body: bytes, *, include_usage: bool) -> bytes | None:
    """Returns the frames of an answer that was given whole; None where that is not certain.

    `include_usage` is what `stream_options` asks for; streams of Responses and Messages tell it in any case.
    """
    whole = sse.answer_object(body)
    if whole is None:
        return None
    try:
        if endpoint == "responses":
            return frames_of(whole)
        if endpoint == "messages":
            return _message_stream(whole)
        return _chat_stream(endpoint, whole, include_usage=include_usage)
    except _GIVES_UP:
        return None


def with_usage(frames: bytes, usage_event: bytes) -> bytes:
    """Returns the stream for a client that asks for usage, made of one without; `usage_event` is the missing event."""
    if not usage_event:
        return frames
    follower = _after_usage(usage_event)
    events = [_with_null(event, follower) for event in _events(frames)]
    at = next((at for at in range(len(events) - 1, -1, -1) if _is_done(events[at])), len(events))
    return b"".join([*events[:at], usage_event, *events[at:]])


def without_usage(frames: bytes) -> bytes:
    """Returns the stream for a client that does not ask for usage, as the relay would have passed it on."""
    return b"".join([event for event in _events(frames) if not _is_only_usage(event)]).replace(NULL_USAGE, b"")


def ends_well(endpoint: str, is_stream: bool, body: bytes) -> bool:
    """Returns whether a complete answer may be given to other calls: it is marked as complete, and reports no error.

    One without a reason for its end may have been cut, and one that says nothing is a mishap more often than an answer.
    """
    if endpoint in _PARTS_OF:
        if not (_stream_ended(endpoint, body) if is_stream else _ended(endpoint, body)):
            return False
        return _has_content(endpoint, is_stream, body)
    if is_stream:
        return True
    if endpoint == "embeddings" and _NO_DATA.search(body):
        return False
    return b'"error"' not in body or not (is_crowded(body) or (sse.json_object(body) or {}).get("error"))


def _stream_ended(endpoint: str, body: bytes) -> bool:
    if endpoint == "responses":
        response = last_response(body)
        return response is not None and response.get("status") == "completed"
    if endpoint == "messages":
        return last_reason(body, is_stream=True) is not None
    if endpoint == "generate":
        return _ended(endpoint, body)
    return any(finish in body for finish in _FINISHES)


def _ended(endpoint: str, body: bytes) -> bool:
    if endpoint == "messages":
        return last_reason(body, is_stream=False) is not None
    if endpoint == "generate":
        reasons = _REASONS.findall(body)
        return bool(reasons or _BLOCKED in body) and GIVEN_UP.isdisjoint(one.decode() for one in reasons)
    whole = sse.answer_object(body) or {}
    if endpoint == "responses":
        return whole.get("status") == "completed" and not whole.get("error")
    is_over = all(choice.get("finish_reason") for choice in choices_of(whole))
    return is_over and not whole.get("error") and failed_reason(whole) is None


# What an answer says: text, a call of a tool, a picture …; what its model thinks is no answer, and a refusal is one.


def _has_content(endpoint: str, is_stream: bool, body: bytes) -> bool:
    if endpoint == "generate" and _BLOCKED in body:
        return True
    if endpoint == "messages" and last_reason(body, is_stream=is_stream) == "refusal":
        return True
    parts_of = _PARTS_OF[endpoint]
    try:
        objects = _chunks(body, b"") if is_stream else iter([sse.answer_object(body) or {}])
        return any(_has_words(part) for one in objects for part in parts_of(one))
    except _GIVES_UP:
        return True


def _has_words(part: dict[str, Any]) -> bool:
    """Returns whether a part of an answer is more than an empty text."""
    if part.get("thought") is True or str(part.get("type")) in _THOUGHTS:
        return False
    return any(value for name, value in part.items() if name not in _BESIDE)


def _chat_parts(chunk: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for choice in choices_of(chunk):
        yield {"text": choice.get("text")}
        message = _as_object(choice.get("message") or choice.get("delta"))
        if isinstance(message.get("content"), list):  # Mistral's, of models that think
            yield from _objects(message["content"])
            message = {**message, "content": None}
        yield message


def _message_parts(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if event.get("type") == "message":
        yield from _objects(event.get("content"))
    elif event.get("type") in ("content_block_start", "content_block_delta"):
        yield _as_object(event.get("content_block") or event.get("delta"))


def _generated_parts(chunk: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for candidate in _objects(chunk.get("candidates")):
        yield from _objects(_as_object(candidate.get("content")).get("parts"))


def _response_parts(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the items of a whole response, or that an event has finished; of messages their parts."""
    response = _as_object(event.get("response") or event)
    for item in (*_objects(response.get("output")), _as_object(event.get("item"))):
        if event.get("type") == "response.output_item.added":
            continue  # it is told again when it is finished
        yield from _objects(item.get("content")) if item.get("type") == "message" else (item,)


_PARTS_OF: Final = MappingProxyType(
    {
        "chat": _chat_parts,
        "completions": _chat_parts,
        "messages": _message_parts,
        "generate": _generated_parts,
        "responses": _response_parts,
    }
)
_THOUGHTS: Final = frozenset(("thinking", "redacted_thinking", "reasoning", "thinking_delta", "signature_delta"))
_BESIDE: Final = frozenset(
    ("type", "role", "id", "index", "status", "annotations", "citations", "logprobs", "thoughtSignature", "signature")
) | {
    *("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks"),
    *("provider_specific_fields", "extra_content"),
}
"""Fields beside what a part says."""


def _as_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _chunks(frames: bytes, usage_event: bytes) -> Iterator[dict[str, Any]]:
    """Yields the objects of a stream's events. Raises Ambiguous for other events."""
    for event in _events(frames):
        data = sse.event_data(event).strip()
        if data == sse.DONE:
            break
        chunk = sse.json_object(data)
        if chunk is not None:
            yield chunk
        elif data or not sse.is_silent(event):
            raise Ambiguous("an event that is no object")
    if usage_event:
        yield sse.event_json(usage_event) or {}


def _chat_stream(endpoint: str, whole: dict[str, Any], *, include_usage: bool) -> bytes | None:
    """Returns the frames of a chat or text completion; None when they do not make that answer again."""
    is_chat = endpoint == "chat"
    body = normal(whole, is_chat=is_chat)
    chunks = chunks_of(body, is_chat=is_chat, include_usage=include_usage)
    frames = [b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks]
    if sse.json_object(as_whole(endpoint, b"".join(frames)) or b"") != body:
        return None
    if not include_usage and not chunks[-1]["choices"]:
        frames.pop()
    return b"".join(frames) + _DONE_FRAME


def _message_stream(whole: dict[str, Any]) -> bytes | None:
    """Returns the events of a message; None when they do not make that message again."""
    frames = events_of(whole)
    return frames if sse.json_object(as_whole("messages", frames) or b"") == whole else None


def _events(frames: bytes) -> list[bytes]:
    """Returns all events with their line ends: most streams have only one kind of these."""
    if b"\r" in frames:
        return list(sse.split_events(frames))
    *events, rest = frames.split(b"\n\n")
    return [event + b"\n\n" for event in events] + ([rest] if rest else [])


def _is_only_usage(event: bytes) -> bool:
    """Returns whether the relay takes this event out. Keep in sync with `core/openai/transcript.py`."""
    if b'"usage"' not in event or is_plain_chat(event):
        return False
    chunk = sse.event_json(event)
    return chunk is not None and chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)


def _is_done(event: bytes) -> bool:
    return sse.event_data(event).strip() == sse.DONE


def _after_usage(usage_event: bytes) -> bytes:
    """Returns the beginning of the JSON field that the provider writes behind `usage`; empty: it is the last."""
    names = list(sse.event_json(usage_event) or ())
    after = names[names.index("usage") + 1 :] if "usage" in names else []
    return b',"%b":"' % after[0].encode() if len(after) == 1 else b""


def _with_null(event: bytes, follower: bytes) -> bytes:
    """Returns the chunk with `"usage":null`, as a provider writes it that was asked for usage.

    A chunk with blanks between its fields was never stripped of it, and comes back as it is.
    """
    if b'"choices":[' not in event or b'"usage":' in event:
        return event
    at = event.rfind(follower) if follower else -1
    if at < 0:
        at = event.rfind(b"}")
    changed = event[:at] + NULL_USAGE + event[at:]
    parsed = sse.event_json(changed)
    return changed if parsed is not None and "usage" in parsed and parsed["usage"] is None else event
