"""The stream of a chat completion, as it is written for its callers, and as it is read for callers of other languages.

    role delta* finish usage? [DONE] | ... error

Each piece is one line that ends with its choices, so that `sse.is_plain_chat` need not parse it again. What all pieces repeat
is written once: a word is put between `before` and `AFTER`. The readers of providers' streams call this in the order of events.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Final

import orjson

from gateway.core.openai.sse import DONE, event_data, first_error, is_silent, json_object
from gateway.core.types import Usage
from gateway.dialects.base import ConvertedRequest, Json, object_of, text_of
from gateway.dialects.streams import ConvertingReader, chat_failure
from gateway.dialects.usage import chat_usage

AFTER: Final = b'},"finish_reason":null}]}\n\n'
"""Stands behind the delta of a piece."""
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
    """Writes one stream, whose first choice most of it is about."""

    __slots__ = ("_includes_usage", "_sent", "before", "calls", "has_output", "head")

    def __init__(self, sent: ConvertedRequest) -> None:
        self._sent = sent
        self._includes_usage = bool(object_of(sent.source.get("stream_options")).get("include_usage"))
        self.head: Json = {}
        """What every piece repeats; empty until the stream has begun."""
        self.before = b""
        """Of a piece, all that stands before its delta; empty until the stream has begun."""
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
