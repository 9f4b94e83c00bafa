"""The stream of a response as the stream of a chat completion.

    role delta* finish usage? [DONE] | ... error

Each piece is one line that ends with its choices, so that `sse.is_plain_chat` need not parse it again. No word is held
back; citations are, because chat completions tell them at once. What a server says only of an item as a whole, or of the whole
answer, is told then, so that the same comes out as from an answer that was not streamed.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.core.openai.sse import DONE, error_in, event_data, is_silent, json_object
from gateway.dialects.base import ConvertedRequest, Json, object_of, objects, text_of
from gateway.dialects.openai.chat import chat_request
from gateway.dialects.schema_tools.tools import with_own_name
from gateway.dialects.sse.events import ConvertingReader, chat_failure, data_of
from gateway.dialects.usage import chat_usage, usage_of_answer

_BEGINS = frozenset(("response.created", "response.in_progress", "response.queued"))
_ENDS = frozenset(("response.completed", "response.incomplete"))
_THOUGHTS = {
    "response.reasoning_text.delta": "content_index",
    "response.reasoning_summary_text.delta": "summary_index",
}
_ARGUMENTS = frozenset(("response.function_call_arguments.delta", "response.custom_tool_call_input.delta"))
_CALLS = frozenset(("function_call", "custom_tool_call"))


class _OpenCall:
    """A call: its place in the message, and whether its arguments were told."""

    def __init__(self, index: int, *, is_custom: bool) -> None:
        self.index, self.is_custom, self.is_begun = index, is_custom, False


class ResponsesAsChat(ConvertingReader):
    """Reads the events of a response; implements `base.Reader`."""

    def __init__(self, sent: ConvertedRequest) -> None:
        super().__init__()
        self._sent = sent
        self._includes_usage = bool(object_of(sent.source.get("stream_options")).get("include_usage"))
        self._head: Json | None = None
        self._before_text = b""
        """Of a piece with words, all that stands before them; empty until the stream has begun."""
        self._calls: dict[int, _OpenCall] = {}
        """By their places among the response's items."""
        self._sent_places: set[int] = set()
        """The items whose words were told, by place."""
        self._thought: tuple[int, str, int] | None = None
        """The part whose reasoning was told last."""
        self._citations: list[Json] = []
        self._cited = 0
        """The characters of the parts whose citations are known."""

    def _read(self, event: bytes) -> bytes:
        if self._is_over:
            return b""
        parsed = json_object(data_of(event))
        if parsed is None:
            return self._read_odd(event)
        kind = parsed.get("type")
        if kind == "response.output_text.delta" and self._before_text and type(parsed.get("delta")) is str:
            self._sent_places.add(_number(parsed.get("output_index")))
            if not parsed.get("logprobs"):
                return b'%b%b},"finish_reason":null}]}\n\n' % (self._before_text, orjson.dumps(parsed["delta"]))
            return self._delta({"content": parsed["delta"]}, chat_request.logprobs_of(parsed["logprobs"]))
        if (response := parsed.get("response")) is not None:
            self.reported = usage_of_answer(object_of(response)) or self.reported
        if (
            type(kind) is not str
            or not kind.startswith("response.")
            or kind == "response.failed"
            or parsed.get("error")
        ):
            return self._read_odd(event)
        return self._take(kind, parsed)

    def _read_odd(self, event: bytes) -> bytes:
        """Reads what is no event of the usual form: an error, a comment, an end, nonsense."""
        if (error := error_in(event)) is not None:
            return self._fail(error)
        data = event_data(event).strip()
        if data == DONE:
            return b""
        parsed = json_object(data)
        if parsed is not None:
            return self._take(str(parsed.get("type")), parsed)
        if not data and is_silent(event):
            return event + b"\n\n" if event.startswith(b":") else b""  # clients take a name without data for an event
        self._is_over = True
        return event + b"\n\n"  # whoever follows the stream says what is wrong with it

    def _take(self, kind: str, event: Json) -> bytes:
        if kind in _BEGINS:
            return self._begin(event.get("response"))
        if kind in _ENDS:
            return self._end(kind, object_of(event.get("response")))
        begun = self._begin(None)
        delta, place = event.get("delta"), _number(event.get("output_index"))
        if kind in _ARGUMENTS:
            return begun + self._piece(self._calls.get(place), delta)
        if kind in _THOUGHTS:
            return begun + self._think((place, kind, _number(event.get(_THOUGHTS[kind]))), delta)
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            return begun + self._text_delta(
                place, "content" if kind == "response.output_text.delta" else "refusal", delta
            )
        item = event.get("item")
        if kind == "response.output_item.added" and isinstance(item, dict):
            return begun + self._open(place, item)
        if kind == "response.output_item.done" and isinstance(item, dict):
            return begun + self._close(place, item)
        return begun

    def _begin(self, body: Any) -> bytes:
        if self._head is not None:
            return b""
        head = chat_request.head(self._sent, object_of(body))
        if head.get("service_tier") == "auto":
            del head["service_tier"]  # which one it was is known at the end
        self._head = {**head, "object": "chat.completion.chunk"}
        before = orjson.dumps({**self._head, "choices": []}).removesuffix(b"]}")
        self._before_text = b'data: %b{"index":0,"delta":{"content":' % before
        return self._delta({"role": "assistant", "content": ""})

    def _text_delta(self, place: int, field: str, text: Any) -> bytes:
        if not isinstance(text, str) or not text:
            return b""
        self._sent_places.add(place)
        return self._delta({field: text})

    def _think(self, part: tuple[int, str, int], text: Any) -> bytes:
        """Tells reasoning; its parts are paragraphs."""
        if not isinstance(text, str) or not text:
            return b""
        self._sent_places.add(part[0])
        is_next, self._thought = self._thought is not None and self._thought != part, part
        return self._delta({"reasoning_content": chat_request.BETWEEN_THOUGHTS + text if is_next else text})

    def _open(self, place: int, item: Json) -> bytes:
        if text_of(item.get("type")) not in _CALLS or place in self._calls:
            return b""
        is_custom = item["type"] == "custom_tool_call"
        call = self._calls[place] = _OpenCall(len(self._calls), is_custom=is_custom)
        made = with_own_name(chat_request.tool_call(item), self._sent.names)
        call.is_begun = bool(made["custom"]["input"] if is_custom else made["function"]["arguments"])
        return self._delta({"tool_calls": [{"index": call.index, **made}]})

    def _piece(self, call: _OpenCall | None, text: Any) -> bytes:
        if call is None or not isinstance(text, str) or not text:
            return b""
        call.is_begun = True
        named = {"custom": {"input": text}} if call.is_custom else {"function": {"arguments": text}}
        return self._delta({"tool_calls": [{"index": call.index, **named}]})

    def _close(self, place: int, item: Json) -> bytes:
        """Tells what is known at an item's end only: what goes back encrypted, and what was not told piece by piece."""
        kind = text_of(item.get("type"))
        if kind in _CALLS:
            opened = self._open(place, item)
            call = self._calls[place]
            return (
                opened
                if call.is_begun
                else opened + self._piece(call, item.get("input" if call.is_custom else "arguments"))
            )
        made = bytearray()
        if kind == "reasoning":
            if place not in self._sent_places:
                for number, text in enumerate(chat_request.thoughts_in(item)):
                    made += self._think((place, "", number), text)
            detail = chat_request.reasoning_detail(item, place)
            made += b"" if detail is None else self._delta({"reasoning_details": [detail]})
        if kind == "message":
            is_sent = place in self._sent_places
            for part in objects(item.get("content")):
                self._citations += [
                    chat_request.annotation(one, self._cited) for one in objects(part.get("annotations"))
                ]
                self._cited += len(text_of(part.get("text")))
                if not is_sent:
                    made += self._text_delta(place, "content", part.get("text")) + self._text_delta(
                        place, "refusal", part.get("refusal")
                    )
        return bytes(made)

    def _end(self, kind: str, body: Json) -> bytes:
        if body.get("error") or body.get("status") not in (None, "completed", "incomplete"):
            return self._fail(chat_request.error_of(body))
        made = bytearray(self._begin(body))
        if not self._sent_places and not self._calls:
            for place, item in enumerate(objects(body.get("output"))):  # a server that has told nothing but the whole
                made += self._close(place, item)
        if self._citations:
            made += self._delta({"annotations": self._citations})
        self._is_over = True
        if body.get("service_tier"):
            self._head = {**(self._head or {}), "service_tier": body["service_tier"]}
        finish = chat_request.finish_of(body, is_incomplete=kind == "response.incomplete", has_calls=bool(self._calls))
        made += self._chunk([{"index": 0, "delta": {}, "finish_reason": finish}])
        if self._includes_usage and self.reported is not None:
            chunk = {**(self._head or {}), "choices": [], "usage": chat_usage(self.reported)}
            made += b"data: %b\n\n" % orjson.dumps(chunk)
        made += b"data: [DONE]\n\n"
        return bytes(made)

    def _fail(self, error: Json) -> bytes:
        self._is_over = True
        kind = error.get("type") if error.get("type") not in ("error", None) else "server_error"
        rest = {name: value for name, value in error.items() if name not in ("sequence_number", "event_id")}
        failure = {"param": None, "code": None, **rest, "type": kind}
        return chat_failure(self._sent, failure, has_begun=bool(self._sent_places or self._calls))

    def _delta(self, delta: Json, logprobs: list[Json] | None = None) -> bytes:
        extra = {"logprobs": {"content": logprobs, "refusal": None}} if logprobs else {}
        return self._chunk([{"index": 0, "delta": delta, **extra, "finish_reason": None}])

    def _chunk(self, choices: list[Json]) -> bytes:
        return b"data: %b\n\n" % orjson.dumps({**(self._head or {}), "choices": choices})


def _number(place: Any) -> int:
    return place if isinstance(place, int) else 0
