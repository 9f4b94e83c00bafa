"""Converts an answer between its forms: streamed or whole, with the usage that its client asked for or without.

Who asks for a stream may get what another was given whole, and the other way round. It must not know what is kept, nor for
how long. Invariants: what is made of an answer says all that the answer says and nothing else, or is not made at all (None);
of a stream that stays one, only what is about usage changes, every other byte stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

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
    return b"".join([event for event in _events(frames) if not _tells_only_usage(event)]).replace(NULL_USAGE, b"")


def ends_well(endpoint: str, is_stream: bool, body: bytes) -> bool:
    """Returns whether a complete answer may be given to other calls: it is marked as complete, and reports no error."""
    if endpoint == "responses":
        response = last_response(body) if is_stream else sse.answer_object(body)
        return response is not None and response.get("status") == "completed" and not response.get("error")
    if endpoint == "messages":
        return last_reason(body, is_stream=is_stream) is not None
    if endpoint == "generate":
        reasons = _REASONS.findall(body)
        return bool(reasons or b'"blockReason"' in body) and GIVEN_UP.isdisjoint(one.decode() for one in reasons)
    if is_stream:
        if endpoint not in ("chat", "completions"):
            return True
        return any(finish in body for finish in _FINISHES) and _has_output(body)
    if endpoint in ("chat", "completions"):
        whole = sse.answer_object(body) or {}
        choices = choices_of(whole)
        # One without a reason for its end may have been cut, and one that says nothing is a mishap more often than an answer.
        is_ended = all(choice.get("finish_reason") for choice in choices) and any(map(_says_something, choices))
        return is_ended and not whole.get("error") and failed_reason(whole) is None
    return b'"error"' not in body or not (is_crowded(body) or (sse.json_object(body) or {}).get("error"))


def _has_output(frames: bytes) -> bool:
    try:
        return any(_says_something(choice) for chunk in _chunks(frames, b"") for choice in choices_of(chunk))
    except _GIVES_UP:
        return True


def _says_something(choice: dict[str, Any]) -> bool:
    said = choice.get("message") or choice.get("delta")
    has_value = isinstance(said, dict) and any(value for name, value in said.items() if name != "role")
    return has_value or bool(choice.get("text"))


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


def _tells_only_usage(event: bytes) -> bool:
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
