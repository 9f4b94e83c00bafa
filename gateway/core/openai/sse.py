"""Server-sent events as bytes: finds the ends of events, their data, and the events that are errors.

First the cutting of a stream into events, errors and the events that are recognised without parsing, because most only
bring more of the answer; then what a stream's first events mean (`FirstEventKind`), then the clocks of a stream
(`StreamClock`). Events are never re-encoded. `EventCutter` only decides how many bytes are whole events; `transcript.py`
follows a stream as a whole. In JSON quotes and line ends inside a string are escaped, so `"finish_reason":null` without a
backslash before its quotes is never text that the model wrote. Source: HTML Living Standard, 9.2 (event stream format).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

import orjson

from gateway.core.openai.json_edit import is_crowded, mended_json
from gateway.core.types import Clocks, StreamForm

PENDING_LIMIT = 65_536
"""A longer event is passed on in parts: memory stays bounded, whatever a provider sends."""

_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")
_EVENT_END = re.compile(rb"\r?\n\r?\n|\r\r")
_BLANK = re.compile(rb"(?:\r?\n)+|\r+")
_ERROR_NAME = re.compile(rb"^(?:event: ?error\r?$|error: ?\{)", re.MULTILINE)
_FIELDS = frozenset((b"", b"data", b"event", b"id", b"retry"))
DONE = b"[DONE]"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some servers write it before a stream or an answer; it is no part of either (Encoding Standard, UTF-8 decode)."""
_DELTA_DATA = len(b"event: content_block_delta\n")


class EventCutter:
    """Cuts a byte stream behind whole events, holding back at most PENDING_LIMIT bytes.

    Invariant: everything that `feed` and `rest` return, put together, is exactly what was fed.
    """

    __slots__ = ("_pending", "inside", "is_idle")

    def __init__(self) -> None:
        self._pending = bytearray()
        self.is_idle = True
        """True while nothing is held back and no event has begun: a chunk of whole events need not be fed."""
        self.inside = False
        """The bytes returned last end inside an event, which was too long to be held back."""

    def feed(self, chunk: bytes) -> bytes:
        """Returns the whole events that are complete now; empty when there is none."""
        if self.is_idle and chunk.endswith((b"\n\n", b"\r\n\r\n")):
            return chunk
        block = self._feed_slowly(chunk)
        self.is_idle = not self._pending and not self.inside
        return block

    def rest(self) -> bytes:
        """Returns the rest at the end of the stream: an unfinished event, or nothing."""
        rest = bytes(self._pending)
        self._pending.clear()
        return rest

    def _feed_slowly(self, chunk: bytes) -> bytes:
        searched = max(0, len(self._pending) - 3)  # an end may be split over chunks
        self._pending += chunk
        cut = last_event_end(self._pending, searched)
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


def last_event_end(buffer: bytearray, start: int) -> int:
    """Returns the offset behind the last blank line at or after `start`; 0 when there is none."""
    ends = ((buffer.rfind(end, start), len(end)) for end in _BLANK_LINES)
    return max((at + length for at, length in ends if at >= 0), default=0)


def split_events(block: bytes) -> Iterator[bytes]:
    """Yields the events of a block of whole events, each with its closing blank line; more blank lines are one event."""
    start = 0
    # With plain line feeds, as in most streams, a search for two of them is exact, and cheaper than a pattern.
    if b"\r" not in block:
        while (end_at := block.find(b"\n\n", start)) >= 0:
            if end_at == start and (blank := _BLANK.match(block, start)):
                end_at = blank.end() - 2
            yield block[start : end_at + 2]
            start = end_at + 2
    while end := _EVENT_END.search(block, start):
        blank = _BLANK.match(block, start) if end.start() == start else None
        end_at = (blank or end).end()
        yield block[start:end_at]
        start = end_at
    if start < len(block):
        yield block[start:]


def event_data(event: bytes) -> bytes:
    """Returns the event's `data`, its lines joined; empty for a comment."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2:
        return event[6:-2]  # the usual case: one line, and the blank one
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


def event_json(event: bytes) -> dict[str, Any] | None:
    """Returns the event's data as a JSON object; None when it is something else."""
    return json_object(event_data(event))


def json_object(text: bytes) -> dict[str, Any] | None:
    """Returns the text parsed as a JSON object; None when it is anything else."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = mended_json(text) if b"\\u" in text else None
    return value if isinstance(value, dict) else None


def answer_object(body: bytes) -> dict[str, Any] | None:
    """Returns a whole answer as a JSON object; None when it is anything else, or would take long to parse."""
    return None if is_crowded(body) else json_object(body)


def is_silent(event: bytes) -> bool:
    """Returns whether an event without data has no content: only comments and names of SSE fields."""
    return all(line.partition(b":")[0] in _FIELDS for line in event.splitlines())


def comment_end(index: Mapping[bytes, bytes]) -> bytes:
    """Returns what ends a comment for the client with these headers: the line, and an empty one as behind an event.

    The official Go SDKs take that empty line for an event without data (openai-go before 3.99), the line alone for what it
    is, as the standard has it; clients that split a stream at empty lines need both.
    """
    is_go = index.get(b"x-stainless-lang") == b"go" or b"/Go " in index.get(b"user-agent", b"")
    return b"\n" if is_go else b"\n\n"


def event_without_data(event: bytes, index: Mapping[bytes, bytes]) -> bytes:
    """Returns an event without data, such as a provider's comment, for the client with these headers."""
    if comment_end(index) == b"\n\n":
        return event
    return b"".join([line + b"\n" for line in event.splitlines() if line.startswith(b":")])


def is_whole(event: bytes) -> bool:
    """Returns whether an event lacks only its blank line: its data is `[DONE]` or a JSON object."""
    data = event_data(event).strip()
    return data == DONE or json_object(data) is not None


def error_in(event: bytes) -> dict[str, Any] | None:
    """Returns the error object of an error event, flat or nested as the provider writes it; None for other events.

    It takes bare JSON too: some providers append an error to a broken stream over several lines, in an array, or behind
    `error:`.
    """
    if b"error" not in event and b'"response.failed"' not in event:
        # Most events end here, before anything is parsed.
        return None
    is_named = _ERROR_NAME.search(event) is not None
    parsed = event_json(event) or _bare_json(event)
    if parsed is None:
        return {"message": event_data(event).decode(errors="replace")} if is_named else None
    return error_object(parsed, is_named=is_named)


def error_object(parsed: dict[str, Any], *, is_named: bool = False) -> dict[str, Any] | None:
    """Returns the error that this object is or holds; `is_named`: its event is called one."""
    if parsed.get("type") == "response.failed":
        response = parsed.get("response")
        parsed = response if isinstance(response, dict) else {}
        return error_object(parsed) or {"message": "the response failed", "type": "server_error", "code": None}
    error = parsed.get("error")
    if isinstance(error, dict) and error:
        return error
    if isinstance(error, str) and error:
        return {"message": error, "type": parsed.get("error_type"), "code": parsed.get("code")}
    return parsed if is_named or parsed.get("type") == "error" or parsed.get("object") == "error" else None


def error_json(error: dict[str, Any]) -> bytes:
    """Returns the body of an error; of one that is nested too deeply to be written again, only what is plain."""
    try:
        return orjson.dumps({"error": error})
    except orjson.JSONEncodeError:
        plain = {name: value for name, value in error.items() if isinstance(value, str | int | None)}
        return orjson.dumps({"error": plain})


def _bare_json(text: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(text.strip().removeprefix(b"data:").removeprefix(b"error:"))
    except orjson.JSONDecodeError:
        return None
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, dict) else None


def chat_error(message: str, code: str) -> bytes:
    """Returns an error event as OpenAI's chat streams send it; the SDKs raise APIError on it."""
    error = {"message": message, "type": "server_error", "param": None, "code": code}
    return b"data: %s\n\n" % orjson.dumps({"error": error})


def response_error(message: str, code: str, number: int = 0) -> bytes:
    """Returns an error event as OpenAI's Responses streams send it; `number` is its place among the events."""
    error = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": number}
    return b"event: error\ndata: %s\n\n" % orjson.dumps(error)


_OF_RESPONSE = ("id", "created_at", "model", "previous_response_id", "background", "metadata", "service_tier")


def begun_response(response: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a response that has begun which its end as a failure repeats: its names, and nothing long."""
    return {name: response[name] for name in _OF_RESPONSE if name in response}


def response_failed(error: Mapping[str, Any], number: int = 0, begun: Mapping[str, Any] | None = None) -> bytes:
    """Returns the event with which OpenAI's Responses streams end behind an error event: the response, as failed.

    Clients such as Codex read this event alone. `begun` is what `begun_response` has kept.
    """
    code, message = error.get("code") or error.get("type"), error.get("message")
    failure = {
        "code": code if isinstance(code, str) and code != "error" else "server_error",
        "message": message if isinstance(message, str) else "the provider reported an error",
    }
    response = {
        "id": "resp_failed",
        "object": "response",
        "created_at": 0,
        "model": "",
        **(begun or {}),
        "status": "failed",
        "error": failure,
        "incomplete_details": None,
        "instructions": None,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
    event = {"type": "response.failed", "sequence_number": number, "response": response}
    return b"event: response.failed\ndata: %s\n\n" % orjson.dumps(event)


def google_error(message: str, code: str) -> bytes:
    """Returns an error event as Gemini's streams send it (AIP-193)."""
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code.upper(), "domain": "gateway"}
    error = {"code": 500, "message": message, "status": "INTERNAL", "details": [info]}
    return b"data: %s\n\n" % orjson.dumps({"error": error})


def message_error(message: str, code: str) -> bytes:
    """Returns an error event as Anthropic's streams send it."""
    error = {"type": "error", "error": {"type": "api_error", "message": message, "code": code}}
    return b"event: error\ndata: %s\n\n" % orjson.dumps(error)


def is_plain_chat(block: bytes) -> bool:
    """Returns whether a block is one event with more of an answer: one line that looks like JSON, without a finish reason."""
    return (
        block.endswith(b"}\n\n")
        and block.rfind(b"data: {") == 0  # the only one: a torn event may have run into the next
        and block.find(b"\n") == len(block) - 2
        and (
            block.rfind(b'"finish_reason":null') > 0 or block.rfind(b'"finish_reason": null') > 0
        )  # it stands near the end
    )


def is_plain_response(block: bytes) -> bool:
    """Returns the same as `is_plain_chat` for Responses, which name such events `….delta`."""
    name_end = block.find(b"\n")
    return (
        block.startswith(b"event: response.")
        and block.endswith(b"}\n\n")
        and block.startswith(b".delta\ndata: {", name_end - 6)
        and block.find(b"\n", name_end + 1) == len(block) - 2
    )


def is_plain_message(block: bytes) -> bool:
    """Returns the same as `is_plain_chat` for Anthropic's Messages, which name such events `content_block_delta`."""
    return (
        block.startswith(b"event: content_block_delta\ndata: {")
        and block.endswith(b"}\n\n")
        and block.find(b"\n", _DELTA_DATA) == len(block) - 2
    )


def is_plain_generated(block: bytes) -> bool:
    """Returns the same as `is_plain_chat` for Gemini's streams, whose lines end as Google ends them."""
    return (
        block.startswith(b'data: {"candidates"')
        and block.endswith((b"}\n\n", b"}\r\n\r\n"))
        and block.rfind(b"data: {") == 0
        and block.find(b'"finishReason"') < 0
        and block.find(b'"error"') < 0
    )


_PLAIN: Mapping[StreamForm, Callable[[bytes], bool]] = {
    "chat": is_plain_chat,
    "responses": is_plain_response,
    "messages": is_plain_message,
    "generate": is_plain_generated,
}


def plain_events_of(form: StreamForm) -> Callable[[bytes], bool]:
    """Returns what recognises the plain events of a stream of this form."""
    return _PLAIN.get(form, lambda _block: False)


PROMPT = -1
"""Stands for the prompt where candidates have numbers."""


def ended_candidates(event: dict[str, Any]) -> list[int]:
    """Returns the candidates of an event of Gemini's that have ended; PROMPT, where that was blocked."""
    ended = [_index_of(one) for one in _candidates_of(event) if one.get("finishReason")]
    feedback = event.get("promptFeedback")
    return [*ended, PROMPT] if isinstance(feedback, dict) and feedback.get("blockReason") else ended


def _candidates_of(event: dict[str, Any]) -> list[dict[str, Any]]:
    candidates = event.get("candidates")
    return [one for one in candidates if isinstance(one, dict)] if isinstance(candidates, list) else []


def _index_of(candidate: dict[str, Any]) -> int:
    index = candidate.get("index")
    return index if isinstance(index, int) else 0


# --- the start of a stream: an announcement, or the first event that is output, an error or nonsense ---


_FAILED = ("error", "insufficient_system_resource", "abort", "network_error")
FAILED_REASONS = frozenset((*_FAILED, *map(str.upper, _FAILED)))
"""The finish reasons that mean a failure: OpenRouter's, DeepSeek's, SGLang's and vLLM's, Z.ai's."""

GIVEN_UP = frozenset(
    (
        "MALFORMED_FUNCTION_CALL",
        "UNEXPECTED_TOOL_CALL",
        "TOO_MANY_TOOL_CALLS",
        "MALFORMED_RESPONSE",
        "MISSING_THOUGHT_SIGNATURE",
        "OTHER",
    )
)
"""Gemini's finish reasons that mean that the model's answer is none; another try may give one."""

_ANNOUNCEMENTS = frozenset(
    (
        "response.created",
        "response.queued",
        "response.in_progress",
        "message_start",
        "content_block_start",
        "ping",
    )
)


class FirstEventKind(Enum):
    """The kinds of event in a stream that has not begun yet.

    The client's status line is held back until the first real event, so that whatever goes wrong before it can be repaired
    by another attempt. How long that takes, and what follows, is not known here. Invariant: an event that carries output,
    or says how the answer ended, is never taken for an announcement, so no first token is ever late.
    """

    NOTHING = "nothing"
    """The event is an announcement or a comment: a failure may still follow."""
    SOMETHING = "something"
    """The answer has begun with this event."""
    DONE = "done"
    """The event is `[DONE]`, or the end of a message, without any output before it."""
    NONSENSE = "nonsense"
    """The event is neither JSON nor SSE."""


def first_word(event: bytes) -> FirstEventKind:
    """Returns the kind of an event without output before it; errors are found by `first_error`."""
    data = event_data(event).strip()
    if not data:
        return FirstEventKind.NOTHING if is_silent(event) else FirstEventKind.NONSENSE
    if data == DONE:
        return FirstEventKind.DONE
    parsed = json_object(data)
    if parsed is None:
        return FirstEventKind.NONSENSE
    if parsed.get("type") == "message_stop":  # Anthropic's messages tell why they ended in an event before it
        return FirstEventKind.DONE
    return FirstEventKind.NOTHING if is_without_content(parsed) else FirstEventKind.SOMETHING


def first_error(event: bytes) -> dict[str, Any] | None:
    """Returns the error object of an event that is an error, or that ends an answer with a reason that is one."""
    error = error_in(event)
    if error is not None:
        return error
    may_end = b'"finish_reason"' in event and b'"finish_reason":null' not in event
    parsed = event_json(event) if may_end else None
    return None if parsed is None else failed_error(parsed)


def failed_error(parsed: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the error that an answer or a chunk is whose finish reason means a failure; None: it has no such reason."""
    reason = failed_reason(parsed)
    if reason is None:
        return None
    inner = next((one["error"] for one in choices_of(parsed) if isinstance(one.get("error"), dict)), None)
    kind = "overloaded_error" if reason.lower() == "insufficient_system_resource" else "server_error"
    return inner or {"message": failed_finish_message(reason), "type": kind, "param": None, "code": reason}


def failed_finish_message(reason: str) -> str:
    """Returns the message for an answer that ended with this reason."""
    return f'the provider gave up on the answer (finish_reason "{reason}")'


def failed_reason(parsed: dict[str, Any]) -> str | None:
    """Returns the finish reason that means a failure; None: there is none."""
    reasons = (choice.get("finish_reason") for choice in choices_of(parsed))
    return next((reason for reason in reasons if isinstance(reason, str) and reason in FAILED_REASONS), None)


def choices_of(parsed: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the choices of a chunk that are objects."""
    choices = parsed.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def is_without_content(parsed: dict[str, Any]) -> bool:
    """Returns whether this chunk or event has no output and no end: a role, filter results, a ping, an empty item or text."""
    kind = parsed.get("type")
    if isinstance(kind, str):
        return kind in _ANNOUNCEMENTS or _is_empty_part(kind, parsed)
    if "choices" in parsed:
        return all(map(_is_silent_choice, choices_of(parsed)))
    if "candidates" in parsed or "usageMetadata" in parsed:
        return not ended_candidates(parsed) and not any(map(_has_output, _candidates_of(parsed)))
    return "object" in parsed or not parsed


def _is_empty_part(kind: str, parsed: dict[str, Any]) -> bool:
    """Returns whether the part only begins a message or a text, or adds nothing; reasoning and tool calls count as output."""
    if kind == "content_block_delta":
        delta = parsed.get("delta")
        return isinstance(delta, dict) and not any(value for name, value in delta.items() if name != "type")
    if kind.startswith("response.") and kind.endswith(".delta"):
        return parsed.get("delta") == ""
    if kind == "response.output_item.added":
        item = parsed.get("item")
        return isinstance(item, dict) and item.get("type") == "message" and not item.get("content")
    part = parsed.get("part") if kind == "response.content_part.added" else None
    return isinstance(part, dict) and not part.get("text")


def _has_output(candidate: dict[str, Any]) -> bool:
    """Returns whether a candidate of Gemini's has a part that is more than an empty text or thought."""
    content = candidate.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    given = parts if isinstance(parts, list) else []
    return any(value for part in given if isinstance(part, dict) for name, value in part.items() if name != "thought")


def _is_silent_choice(choice: dict[str, Any]) -> bool:
    if choice.get("finish_reason") or choice.get("text"):
        return False
    delta = choice.get("delta")
    return not isinstance(delta, dict) or not any(value for name, value in delta.items() if name != "role")


# --- the clocks of a running stream ---


class StreamClock:
    """The clocks of one stream that begins at `now`, in monotonic seconds: its total time, and the guard against streams that
    drip.

    A stream that has begun drips when, over a whole window of waiting for the provider, it brings fewer events than it
    must; comments are no events, and time spent on a client that does not read is not the provider's. It must not know what
    an event is. Invariant: between two looks one comparison with `look_at` is all there is to do.
    """

    __slots__ = ("_clocks", "_ends_at", "_events", "_paused_s", "_since", "look_at")

    def __init__(self, clocks: Clocks, now: float) -> None:
        self._clocks = clocks
        self._ends_at = now + clocks.total_s
        self._begin(now, 0, 0.0)

    def look(self, now: float, events: int, paused_s: float) -> str | None:
        """Returns the reason to end the stream now; None: it goes on, and is to be looked at again at `look_at`.

        `events` and `paused_s`, the seconds spent on the client, count from the stream's start.
        """
        clocks = self._clocks
        if now > self._ends_at:
            return f"the answer took longer than the total of {clocks.total_s:g} s"
        left_s = clocks.drip_window_s - (now - self._since - (paused_s - self._paused_s))
        if left_s > 0:
            self.look_at = min(self._ends_at, now + left_s)
        elif events - self._events < clocks.least_events_per_s * clocks.drip_window_s:
            return (
                f"the answer drips: {events - self._events} events in {clocks.drip_window_s:g} s, "
                f"fewer than {clocks.least_events_per_s:g} a second"
            )
        else:
            self._begin(now, events, paused_s)
        return None

    def _begin(self, now: float, events: int, paused_s: float) -> None:
        """Starts a window."""
        self._since, self._events, self._paused_s = now, events, paused_s
        is_guarded = self._clocks.least_events_per_s > 0
        self.look_at = min(self._ends_at, now + self._clocks.drip_window_s) if is_guarded else self._ends_at
