"""The stream of a response as the stream of a chat completion.

    role delta* finish usage? [DONE] | ... error

Each piece is one line that ends with its choices, so that `transcript.is_plain_chat` need not parse it again. Nothing is held
back: the only things remembered are which item is which call.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.dialects.base import ConvertedRequest, Json
from gateway.dialects.openai import chat_answer as answer
from gateway.policy.openai.sse import DONE, EventCutter, error_in, event_data, is_silent, json_object, split_events


class ResponsesAsChat:
    """Reads the events of a response; implements `base.Reader`."""

    def __init__(self, sent: ConvertedRequest) -> None:
        self._sent = sent
        asked = sent.asked.get("stream_options")
        self._tells_usage = isinstance(asked, dict) and bool(asked.get("include_usage"))
        self._cutter = EventCutter()
        self._head: Json | None = None
        self._calls: dict[int, int] = {}
        """Places among the message's calls, by those among the response's items."""
        self._details = 0
        self._is_over = False

    def feed(self, chunk: bytes) -> bytes:
        block = self._cutter.feed(chunk)
        return b"".join(map(self._read, split_events(block))) if block else b""

    def close(self, *, is_clean: bool) -> bytes:
        """Responses end with an event of their own: a rest without it is a cut, however clean."""
        rest = self._cutter.rest()
        return self._read(rest) if rest.strip() else b""

    def _read(self, event: bytes) -> bytes:
        if self._is_over:
            return b""
        data = event_data(event).strip()
        if not data:
            return event if is_silent(event) else b""
        if data == DONE:
            return b""
        said = json_object(data)
        if said is None:
            self._is_over = True
            return event  # whoever follows the stream says what is wrong with it
        error = error_in(event)
        if error is not None:
            return self._fail(error)
        return self._take(str(said.get("type")), said)

    def _take(self, kind: str, said: Json) -> bytes:
        if kind in ("response.created", "response.in_progress", "response.queued"):
            return self._begin(said.get("response"))
        if kind in ("response.completed", "response.incomplete"):
            return self._end(said.get("response"))
        begun = self._begin(None)
        if kind == "response.output_text.delta":
            return begun + self._delta({"content": said.get("delta")}, said.get("logprobs"))
        if kind == "response.function_call_arguments.delta":
            piece = {
                "index": self._calls.get(_place(said), 0),
                "function": {"arguments": said.get("delta")},
            }
            return begun + self._delta({"tool_calls": [piece]})
        if kind in ("response.reasoning_text.delta", "response.reasoning_summary_text.delta"):
            return begun + self._delta({"reasoning_content": said.get("delta")})
        if kind == "response.refusal.delta":
            return begun + self._delta({"refusal": said.get("delta")})
        if kind == "response.output_text.annotation.added" and isinstance(said.get("annotation"), dict):
            return begun + self._delta({"annotations": [answer.annotation(said["annotation"])]})
        item = said.get("item")
        if kind == "response.output_item.added" and isinstance(item, dict):
            return begun + self._open(_place(said), item)
        if kind == "response.output_item.done" and isinstance(item, dict):
            return begun + self._close(_place(said), item)
        return begun

    def _begin(self, body: Any) -> bytes:
        if self._head is not None:
            return b""
        self._head = {
            **answer.head(self._sent, body if isinstance(body, dict) else {}),
            "object": "chat.completion.chunk",
        }
        return self._delta({"role": "assistant", "content": ""})

    def _open(self, place: int, item: Json) -> bytes:
        if item.get("type") != "function_call":
            return b""
        index = self._calls[place] = len(self._calls)
        call = answer.tool_call(item)
        return self._delta({"tool_calls": [{"index": index, **call}]})

    def _close(self, place: int, item: Json) -> bytes:
        """Tells what is known at an item's end only: what goes back encrypted, and the words for a custom tool."""
        if item.get("type") == "custom_tool_call":
            index = self._calls[place] = len(self._calls)
            return self._delta({"tool_calls": [{"index": index, **answer.tool_call(item)}]})
        detail = answer.reasoning_detail(item, self._details) if item.get("type") == "reasoning" else None
        if detail is None:
            return b""
        self._details += 1
        return self._delta({"reasoning_details": [detail]})

    def _end(self, body: Any) -> bytes:
        body = body if isinstance(body, dict) else {}
        begun = self._begin(body)
        self._is_over = True
        last = self._chunk(
            [{"index": 0, "delta": {}, "finish_reason": answer.finish_of(body, has_calls=bool(self._calls))}]
        )
        usage = answer.usage_of_chat(body.get("usage"))
        if self._tells_usage and usage is not None:
            last += b"data: %b\n\n" % orjson.dumps({**(self._head or {}), "choices": [], "usage": usage})
        return begun + last + b"data: [DONE]\n\n"

    def _fail(self, error: Json) -> bytes:
        self._is_over = True
        code = error.get("code")
        type = error.get("type") if error.get("type") != "error" else None
        said = {"message": error.get("message") or "the provider reported an error", "type": type or "server_error"}
        return b"data: %b\n\n" % orjson.dumps({"error": {**said, "param": error.get("param"), "code": code}})

    def _delta(self, delta: Json, logprobs: Any = None) -> bytes:
        told = {"logprobs": {"content": logprobs, "refusal": None}} if logprobs else {}
        return self._chunk([{"index": 0, "delta": delta, **told, "finish_reason": None}])

    def _chunk(self, choices: list[Json]) -> bytes:
        return b"data: %b\n\n" % orjson.dumps({**(self._head or {}), "choices": choices})


def _place(said: Json) -> int:
    """Returns the place of an event's item among the response's."""
    place = said.get("output_index")
    return place if isinstance(place, int) else 0
