"""Streams that are converted: the events of providers, and chat completions as they are written and read.

In this order: events (`EventReader`, `ConvertingReader`), chat completions (`ChatStreamWriter`, `ChatStreamReader`). What
passes through as it is may be passed on in parts (`sse.EventCutter`); what is converted has to be whole. A response that
repeats long instructions, many tools or a picture is one event of megabytes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

import orjson

from gateway.core.openai import sse
from gateway.core.openai.json_edit import is_overcrowded
from gateway.core.openai.sse import DONE, event_data, first_error, is_silent, json_object
from gateway.core.types import Usage
from gateway.dialects.base import ConvertedRequest, Json, chat_usage, object_of, text_of
from gateway.dialects.shapes import chat_error

# --- Events ---


MOST_EVENT_BYTES: Final = 16 * 1024 * 1024
"""The bytes of the longest event that is waited for."""
TOO_LONG: Final = "malformed_response"
"""The code of the error that a longer one is."""
UNCONVERTIBLE: Final[Json] = {"message": "an event of the provider's is nested too deeply", "code": TOO_LONG}
"""The error that ends a stream at an event with something in it that cannot be written again."""

_LINE_END = re.compile(rb"\r\n?")


class EventReader:
    """Holds back what is no whole event yet. Events come without the blank line that ends them."""

    __slots__ = ("_has_begun", "_pending")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._has_begun = False
        """More than a byte order mark has come."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the events that are complete now. Raises EventTooLong, also where one has too many values to be read."""
        if not self._has_begun:
            chunk = self._begin(chunk)
        if not self._pending and chunk.endswith(b"\n\n") and b"\r" not in chunk:
            return chunk[:-2].split(b"\n\n")  # the usual case
        if not self._pending and chunk.endswith(b"\r\n\r\n") and chunk.find(b"\r") == len(chunk) - 4:
            return [chunk[:-4]] if chunk.find(b"\n") == len(chunk) - 3 else chunk[:-4].split(b"\n\n")  # Google's
        searched = max(0, len(self._pending) - 3)  # an end may be split over chunks
        self._pending += chunk
        cut = sse.last_event_end(self._pending, searched)
        if not cut:
            if len(self._pending) > MOST_EVENT_BYTES:
                self._pending.clear()
                raise EventTooLong
            return []
        block = bytes(self._pending[:cut])
        del self._pending[:cut]
        if is_overcrowded(block):
            raise EventTooLong
        return [event for event in _unified(block).split(b"\n\n") if event]

    def _begin(self, chunk: bytes) -> bytes:
        """Returns what has come so far without a byte order mark; nothing where that may be one which is not whole."""
        chunk = bytes(self._pending) + chunk
        self._has_begun = not sse.BYTE_ORDER_MARK.startswith(chunk)
        self._pending[:] = b"" if self._has_begun else chunk
        return chunk.removeprefix(sse.BYTE_ORDER_MARK) if self._has_begun else b""

    def rest(self) -> bytes:
        """Returns the last event, where it lacks only its blank line; empty where it was cut, which is no event."""
        rest = _unified(bytes(self._pending)).strip(b"\n")
        self._pending.clear()
        return rest if rest and (sse.is_whole(rest) or sse.error_in(rest) is not None) else b""


class EventTooLong(Exception):
    """An event did not end within MOST_EVENT_BYTES, or is too long to be parsed."""


class ConvertingReader(ABC):
    """What the readers have in common that convert event streams (see `base.Reader`).

    Whatever a provider sends, it ends with the caller's words for it, and never with a defect of ours.
    """

    def __init__(self) -> None:
        self._events = EventReader()
        self._is_over = False
        """The end has left, or an error: nothing follows."""
        self.reported: Any = None
        """The report of the provider, as `base.Reader` has it."""

    @property
    def is_over(self) -> bool:
        return self._is_over

    def feed(self, chunk: bytes) -> bytes:
        if self._is_over:
            return b""
        try:
            events = self._events.feed(chunk)
        except EventTooLong:
            return self._fail({"message": "an event of the provider's is too long to be converted", "code": TOO_LONG})
        made = []
        for event in events:
            if not event:  # a stream may consist of blank lines
                continue
            try:
                made.append(self._read(event))
            except orjson.JSONEncodeError:
                made.append(self._fail_unconvertible())
        return made[0] if len(made) == 1 else b"".join(made)

    def close(self, *, is_clean: bool) -> bytes:
        made = b""
        try:
            if rest := self._events.rest():
                made = self._read(rest)
            return made + self._at_end(is_clean=is_clean)
        except orjson.JSONEncodeError:
            return made + self._fail_unconvertible()

    def _at_end(self, *, is_clean: bool) -> bytes:
        """Returns what follows the last event. Where a stream has an event as its end, nothing: one without it was cut."""
        return b""

    def _fail_unconvertible(self) -> bytes:
        """Ends the stream at an event that has not left, for what is in it cannot be written again."""
        return self._fail(UNCONVERTIBLE)

    @abstractmethod
    def _read(self, event: bytes) -> bytes:
        """Returns the events that this one becomes. Raises JSONEncodeError where it cannot be written."""

    @abstractmethod
    def _fail(self, error: Json) -> bytes:
        """Ends the stream with an error."""


def chat_failure(sent: ConvertedRequest, error: Json, *, has_begun: bool) -> bytes:
    """Returns the last event of a stream of chat completions that an error has ended.

    Before any output the error is not for the caller yet: whoever looks for another target reads all that the provider said.
    And so does the conversion that follows, where the caller speaks another language.
    """
    message = text_of(error.get("message")) or "the provider reported an error"
    is_last = has_begun and sent.via is None
    return b"data: %b\n\n" % sse.error_json(chat_error(error) if is_last else {**error, "message": message})


def data_of(event: bytes) -> bytes:
    """Returns what follows the first `data:` of an event: its data, if that is JSON; else it may be anything."""
    return event[6:] if event.startswith(b"data: ") else event.partition(b"\ndata: ")[2]


def _unified(block: bytes) -> bytes:
    return _LINE_END.sub(b"\n", block) if b"\r" in block else block


# --- Chat completions, as they are written for their callers, and read for callers of other languages ---


AFTER: Final = b'},"finish_reason":null}]}\n\n'
"""What stands behind the delta of a piece."""
NO_ARGUMENTS: Final = "{}"


def chat_head(
    sent: ConvertedRequest, kind: str, *, id: object = None, model: object = None, tier: str | None = None
) -> Json:
    """Returns what every piece of a chat completion repeats; the tier only where one was asked for, as OpenAI does."""
    made: Json = {
        "id": text_of(id) or f"chatcmpl-{sent.id}",
        "object": kind,
        "created": int(sent.now),
        "model": model or sent.source.get("model"),
    }
    return made | ({"service_tier": tier} if tier and sent.source.get("service_tier") else {})


class OpenTool:
    """A call whose arguments come: its place in the message, and those that it began with."""

    __slots__ = ("given", "index", "is_begun")

    def __init__(self, index: int, given: Any = None) -> None:
        self.index, self.given, self.is_begun = index, given, False


class ChatStreamWriter:
    """Writes one stream, whose first choice most of it is about.

        role delta* finish usage? [DONE] | ... error

    Each piece is one line that ends with its choices, so that `sse.is_plain_chat` need not parse it again. What all pieces
    repeat is written once: a word is put between `before` and `AFTER`. The readers of providers' streams call this in the
    order of events.
    """

    __slots__ = ("_includes_usage", "_sent", "before", "calls", "has_output", "head")

    def __init__(self, sent: ConvertedRequest) -> None:
        self._sent = sent
        self._includes_usage = bool(object_of(sent.source.get("stream_options")).get("include_usage"))
        self.head: Json = {}
        """What every piece repeats; empty until the stream has begun."""
        self.before = b""
        """All that stands before the delta in a piece; empty until the stream has begun."""
        self.calls = 0
        self.has_output = False
        """Words, thoughts or calls are written: an error that follows is the caller's."""

    def begin(self, head: Json) -> bytes:
        self.head = head
        self.before = self.before_choice(0)
        return self.role(self.before)

    def before_choice(self, index: int) -> bytes:
        """Returns all that stands before the delta of a piece of one choice."""
        before = orjson.dumps({**self.head, "choices": []}).removesuffix(b"]}")
        return b'data: %b{"index":%d,"delta":{' % (before, index)

    def role(self, before: bytes) -> bytes:
        """Returns the first piece of a choice."""
        return b'%b"role":"assistant","content":""%b' % (before, AFTER)

    def text(self, text: str) -> bytes:
        self.has_output = True
        return b'%b"content":%b%b' % (self.before, orjson.dumps(text), AFTER)

    def thought(self, index: int, text: str, signed: bytes) -> bytes:
        """Returns thoughts twice: in plain words, and as a detail that can go back, with the fields of its signature."""
        self.has_output = True
        words = orjson.dumps(text)
        plain = b'"reasoning_content":%b,' % words if text else b""
        form = b'%b%b"reasoning_details":[{"type":"reasoning.text","index":%d,"text":%b%b}]%b'
        return form % (self.before, plain, index, words, signed, AFTER)

    def call(self, call: Json) -> bytes:
        """Returns the piece that begins the next call."""
        self.has_output = True
        index, self.calls = self.calls, self.calls + 1
        return self.delta({"tool_calls": [{"index": index, **call}]})

    def arguments(self, tool: OpenTool, text: str) -> bytes:
        tool.is_begun = True
        form = b'%b"tool_calls":[{"index":%d,"function":{"arguments":%b}}]%b'
        return form % (self.before, tool.index, orjson.dumps(text), AFTER)

    def delta(self, delta: Json, **more: Any) -> bytes:
        """Returns a piece of the first choice, which has `more` beside the delta."""
        return self.choice({"index": 0, "delta": delta, **more, "finish_reason": None})

    def choice(self, choice: Json) -> bytes:
        return b"data: %b\n\n" % orjson.dumps({**self.head, "choices": [choice]})

    def end(self, usage: Usage | None) -> bytes:
        """Returns what follows the finish reasons: the usage, for a caller who has asked for it, and the end."""
        made = b""
        if self._includes_usage and usage:
            made = b"data: %b\n\n" % orjson.dumps({**self.head, "choices": [], "usage": chat_usage(usage)})
        return made + b"data: [DONE]\n\n"

    def failure(self, error: Json, *, has_begun: bool | None = None) -> bytes:
        """Returns the error that ends the stream. `has_begun`: the caller has got something, if that is not output alone."""
        return chat_failure(self._sent, error, has_begun=self.has_output if has_begun is None else has_begun)


class ChatStreamReader(ConvertingReader):
    """What the readers of such a stream have in common; each has the usual pieces in its `_read`."""

    passes_comments: ClassVar = True

    def _at_end(self, *, is_clean: bool) -> bytes:
        # Some servers leave [DONE] out: a clean end behind a finish reason will do.
        return self._end() if is_clean else b""

    def _read_odd(self, event: bytes) -> bytes:
        """Reads what may be no piece of an answer: an error, an end, a comment, nonsense."""
        if (error := first_error(event)) is not None:
            return self._fail(error)
        data = event_data(event).strip()
        if data == DONE:
            return self._end()
        parsed = json_object(data)
        if parsed is not None:
            return self._take(parsed)
        if not data and is_silent(event):
            is_passed = self.passes_comments and event.startswith(b":")  # clients take a name without data for an event
            return event + b"\n\n" if is_passed else b""
        self._is_over = True
        return event + b"\n\n"  # whoever follows the stream says what is wrong with it

    @abstractmethod
    def _take(self, chunk: Json) -> bytes:
        """Returns the events that a piece becomes."""

    @abstractmethod
    def _end(self) -> bytes:
        """Returns the last events, if the provider has given the reason why its answer ended."""
