"""Reads the texts of a streamed answer as its events pass, so that at its end there is nothing left to read.

Of a response only its last event counts, which has all of it; some providers leave the items to the events before. What
cannot be read for certain has no texts. Memory is bounded: a longer text is not known.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.openai.sse.sse import event_json, split_events
from gateway.features.output.rules.answers import OutputText, text_of, text_of_message, texts_of, written_of

MOST_CHARS: Final = 4_194_304
"""Of all texts of one answer, and of the events that are not whole yet."""
_LAST: Final = ("response.completed", "response.incomplete", "response.failed")


class StreamedTexts:
    """The texts of one stream, so far."""

    __slots__ = ("_choices", "_is_lost", "_items", "_message", "_pending", "_read", "_response", "_size")

    def __init__(self, endpoint: str) -> None:
        by_endpoint = {"responses": self._read_response, "messages": self._read_message}
        self._read = by_endpoint.get(endpoint, self._read_chat)
        self._message: _Message | None = None
        self._pending = b""
        self._size = 0
        self._is_lost = False
        self._choices: dict[int, _Choice] = {}
        self._items: dict[int, Any] = {}
        self._response: dict[str, Any] | None = None

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes of the stream, cut anywhere."""
        if self._is_lost:
            return
        block = self._pending + chunk if self._pending else chunk
        cut = max(block.rfind(b"\n\n") + 2, block.rfind(b"\r\n\r\n") + 4)
        if cut < 4:
            self._pending = block
        else:
            self._pending = block[cut:]
            for event in split_events(block[:cut]):
                self._read(event)
        self._is_lost = self._size + len(self._pending) > MOST_CHARS

    def texts(self) -> list[OutputText] | None:
        """Returns the texts, once the stream has ended; None: they are not known."""
        if self._pending and not self._is_lost:
            self._read(self._pending)  # the last blank line is not always sent
            self._pending = b""
        if self._is_lost:
            return None
        if self._response is not None:
            whole = self._response
            if not whole.get("output"):
                whole = whole | {"output": [self._items[at] for at in sorted(self._items)]}
            return texts_of("responses", whole)
        if self._message is not None:
            return text_of_message([{"type": "text", "text": "".join(self._message.parts)}], self._message.stop_reason)
        choices = [self._choices[at] for at in sorted(self._choices)]
        return [one.text(place) for place, one in enumerate(choices)] or None

    def _read_chat(self, event: bytes) -> None:
        if b'"choices"' not in event:
            return
        chunk = event_json(event) or {}
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            at = choice.get("index", 0) if isinstance(choice, dict) else None
            if type(at) is not int:
                self._is_lost = True
                return
            known = self._choices.get(at)
            if known is None:
                known = self._choices[at] = _Choice()
            self._size += known.add(choice)

    def _read_message(self, event: bytes) -> None:
        if self._message is None:
            self._message = _Message()
        if b"text_delta" not in event and b"stop_reason" not in event and b"content_block_start" not in event:
            return
        told = event_json(event) or {}
        inner = told.get("content_block") if told.get("type") == "content_block_start" else told.get("delta")
        inner = inner if isinstance(inner, dict) else {}
        if told.get("type") == "message_delta":
            self._message.stop_reason = inner.get("stop_reason") or self._message.stop_reason
        elif inner.get("type") in ("text", "text_delta") and isinstance(inner.get("text"), str):
            self._message.parts.append(inner["text"])
            self._size += len(inner["text"])

    def _read_response(self, event: bytes) -> None:
        if b"response.output_item.done" in event:
            told = event_json(event) or {}
            if type(told.get("output_index")) is int:
                self._items[told["output_index"]] = told.get("item")
                self._size += len(event)
        elif any(b'"%b"' % name.encode() in event for name in _LAST):
            told = event_json(event) or {}
            if told.get("type") in _LAST and isinstance(told.get("response"), dict):
                self._response = told["response"]


class _Message:
    """A message of Anthropic's, so far."""

    __slots__ = ("parts", "stop_reason")

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.stop_reason: Any = None


class _Choice:
    """One choice of a chat completion, so far."""

    __slots__ = ("_calls_tools", "_finish_reason", "_is_refused", "_parts")

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._finish_reason: Any = None
        self._is_refused = False
        self._calls_tools = False

    def add(self, choice: dict[str, Any]) -> int:
        """Adds the next part; returns the characters of its text."""
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        self._is_refused = self._is_refused or bool(delta.get("refusal"))
        self._calls_tools = self._calls_tools or bool(delta.get("tool_calls") or delta.get("function_call"))
        content = written_of(delta.get("content"))
        if not content:
            return 0
        self._parts.append(content)
        return len(content)

    def text(self, at: int) -> OutputText:
        return text_of(
            at,
            "".join(self._parts),
            self._finish_reason,
            is_refused=self._is_refused,
            calls_tools=self._calls_tools,
        )
