"""Server-sent events, seen as bytes: where events end, whether a stream really ended, and what went wrong in it.

Events are never re-encoded. `EventCutter` only decides how many bytes are whole events; what looks inside is called at
the start of a stream, at its end, or when a cheap search says that there is something to see. In JSON a quote inside a
string is escaped, so `"finish_reason":"` without a backslash before it is never text that the model wrote; line ends are
escaped too, so neither is a whole line.
Source: HTML Living Standard, 9.2 (event stream format).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

PENDING_LIMIT = 65_536
"""An event that grows beyond this is passed on in parts: memory stays bounded, whatever a provider sends."""

_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")
_EVENT_END = re.compile(rb"\r?\n\r?\n|\r\r")
_DONE = re.compile(rb"^data: ?\[DONE\]\s*?$", re.MULTILINE)
_FINISH = re.compile(rb'(?<!\\)"finish_reason" ?: ?"')
_RESPONSES_END = re.compile(
    rb"^event: ?(?:response\.(?:completed|failed|incomplete)|error)\r?$"
    rb'|^data: ?\{"type" ?: ?"(?:response\.(?:completed|failed|incomplete)|error)"',
    re.MULTILINE,
)
_ERROR_NAME = re.compile(rb"^event: ?error\r?$", re.MULTILINE)
_STARTUP_EVENTS = frozenset(("response.created", "response.queued", "response.in_progress"))


class EventCutter:
    """Cuts a byte stream behind whole events, holding back at most PENDING_LIMIT bytes.

    Invariant: everything that `feed` and `rest` return, put together, is exactly what was fed.
    """

    __slots__ = ("_pending", "inside")

    def __init__(self) -> None:
        self._pending = bytearray()
        self.inside = False
        """The bytes returned last end inside an event: it was too long to be held back."""

    def feed(self, chunk: bytes) -> bytes:
        """The whole events that are complete now; empty when there is none."""
        if not self._pending and not self.inside and chunk.endswith((b"\n\n", b"\r\n\r\n")):
            return chunk
        return self._feed_slowly(chunk)

    def rest(self) -> bytes:
        """What is left at the end of the stream: an unfinished event, or nothing."""
        rest = bytes(self._pending)
        self._pending.clear()
        return rest

    def _feed_slowly(self, chunk: bytes) -> bytes:
        searched = max(0, len(self._pending) - 3)  # an end may be split over chunks
        self._pending += chunk
        cut = _last_event_end(self._pending, searched)
        if cut:
            self.inside = False
            return self._take(cut)
        if self.inside or len(self._pending) > PENDING_LIMIT:
            self.inside = True
            return self._take(max(0, len(self._pending) - 3))
        return b""

    def _take(self, length: int) -> bytes:
        taken = bytes(self._pending[:length])
        del self._pending[:length]
        return taken


def _last_event_end(buffer: bytearray, start: int) -> int:
    """The offset behind the last blank line at or after `start`; 0 when there is none."""
    ends = ((buffer.rfind(end, start), len(end)) for end in _BLANK_LINES)
    return max((at + length for at, length in ends if at >= 0), default=0)


def split_events(block: bytes) -> Iterator[bytes]:
    """The events of a block of whole events, each with its closing blank line."""
    start = 0
    for end in _EVENT_END.finditer(block):
        yield block[start : end.end()]
        start = end.end()
    if start < len(block):
        yield block[start:]


def event_data(event: bytes) -> bytes:
    """The event's `data`, its lines joined; empty for a comment."""
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


def event_json(event: bytes) -> dict[str, Any] | None:
    """The event's data as a JSON object; None when it is something else."""
    return json_object(event_data(event))


def json_object(text: bytes) -> dict[str, Any] | None:
    """The text parsed as a JSON object; None when it is anything else."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def is_opening(event: bytes) -> bool:
    """Whether the event only announces an answer (a comment, `response.created` …): a failure may still follow."""
    data = event_data(event)
    if not data:
        return True
    parsed = json_object(data)
    return parsed is not None and parsed.get("type") in _STARTUP_EVENTS


def error_in(event: bytes) -> dict[str, Any] | None:
    """The error object of an error event, flat or nested as the provider writes it; None for other events.

    Takes bare JSON too: some append an error to a broken stream as it is, over several lines or in an array.
    """
    if b"error" not in event:
        return None
    is_named = _ERROR_NAME.search(event) is not None
    parsed = event_json(event) or _bare_json(event)
    if parsed is None:
        return {"message": event_data(event).decode(errors="replace")} if is_named else None
    error = parsed.get("error")
    if isinstance(error, dict) and error:
        return error
    if isinstance(error, str) and error:
        return {"message": error, "type": parsed.get("error_type"), "code": parsed.get("code")}
    return parsed if is_named or parsed.get("type") == "error" or parsed.get("object") == "error" else None


def _bare_json(text: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(text.strip().removeprefix(b"data:"))
    except orjson.JSONDecodeError:
        return None
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, dict) else None


def without_usage_events(block: bytes) -> bytes:
    """The block less what asking for usage adds: the extra event (`choices` empty), and `"usage":null` in the others."""
    block = block.replace(b',"usage":null', b"")
    if b'"choices":[]' not in block and b'"choices": []' not in block:
        return block
    return b"".join(event for event in split_events(block) if not _is_usage_event(event))


def _is_usage_event(event: bytes) -> bool:
    parsed = event_json(event)
    return parsed is not None and parsed.get("choices") == [] and isinstance(parsed.get("usage"), dict)


def ends_chat(tail: bytes, choices: int | None = 1) -> bool:
    """Whether a chat or completion stream with this tail is complete: it has `[DONE]`, or so many finish reasons.

    With `choices` None only `[DONE]` will do.
    """
    if _DONE.search(tail):
        return True
    return choices is not None and len(_FINISH.findall(tail)) >= choices


def ends_response(block: bytes) -> bool:
    """Whether this block holds the last event of a Responses stream."""
    return _RESPONSES_END.search(block) is not None


def has_error(tail: bytes) -> bool:
    """Whether the provider itself sent an error event that is whole, so that the client has seen it as one."""
    return b"error" in tail and any(_is_error_event(event) for event in split_events(tail))


def _is_error_event(event: bytes) -> bool:
    return event.endswith(_BLANK_LINES) and event_data(event) != b"" and error_in(event) is not None


def chat_error(message: str, code: str) -> bytes:
    """An error event as OpenAI's chat streams send it; the SDKs raise APIError on it."""
    error = {"message": message, "type": "server_error", "param": None, "code": code}
    return b"data: %s\n\n" % orjson.dumps({"error": error})


def response_error(message: str, code: str) -> bytes:
    """An error event as OpenAI's Responses streams send it."""
    error = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0}
    return b"event: error\ndata: %s\n\n" % orjson.dumps(error)
