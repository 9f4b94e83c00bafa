"""The stream of a chat completion as the stream of a response.

    created in_progress (item)* (completed | incomplete) | ... error

Reasoning, text and calls become items as they come: a text or a reasoning ends when something else begins, calls end with the
answer, because several may come at once. Sequence numbers count up from 0; each item, part and text that is added is also
done. Nothing is held back but the words of custom tools, whose text is known at their end only.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.dialects.base import ConvertedRequest, Json, object_of, objects, text_of
from gateway.dialects.openai import responses_answer as answer
from gateway.policy.openai.first_event import first_error
from gateway.policy.openai.sse import DONE, EventCutter, event_data, json_object, split_events

_TEXTS: Final = {
    "output_text": ("text", "output_text"),
    "refusal": ("refusal", "refusal"),
    "reasoning_text": ("text", "reasoning_text"),
}
"""The parts of items: their text's field, and the name of its events."""


class _OpenPart:
    """A part of an item that is open: a text that grows."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.texts: list[str] = []
        self.logprobs: list[Json] = []
        self.annotations: list[Json] = []

    def as_json(self, text: str) -> Json:
        if self.kind == "output_text":
            return answer.output_text(text, self.annotations, self.logprobs)
        return {"type": self.kind, _TEXTS[self.kind][0]: text}


class _OpenCall:
    """A call that is open."""

    def __init__(self, place: int, id: str, name: str, *, is_custom: bool) -> None:
        self.place, self.id, self.name, self.is_custom = place, id, name, is_custom
        self.pieces: list[str] = []


class ChatAsResponses:
    """Reads pieces of a chat completion; implements `base.Reader`."""

    def __init__(self, sent: ConvertedRequest) -> None:
        self._sent = sent
        self._cutter = EventCutter()
        self._number = 0
        self._begun: Json | None = None
        self._items: list[Json | None] = []
        """By place; None while one is open."""
        self._open: tuple[int, str, list[_OpenPart]] | None = None
        """The message or the reasoning that grows: its place, its type, its parts, of which the last one is open."""
        self._calls: dict[int, _OpenCall] = {}
        self._finish: str | None = None
        self._usage: Any = None
        self._is_over = False

    def feed(self, chunk: bytes) -> bytes:
        block = self._cutter.feed(chunk)
        return b"".join(map(self._read, split_events(block))) if block else b""

    def close(self, *, is_clean: bool) -> bytes:
        rest = self._cutter.rest()
        last = self._read(rest) if rest.strip() else b""
        # Some servers leave [DONE] out: a clean end behind a finish reason will do.
        return last + (self._end() if is_clean and self._finish is not None else b"")

    def _read(self, event: bytes) -> bytes:
        if self._is_over:
            return b""
        data = event_data(event).strip()
        if data == DONE:
            return self._end() if self._finish is not None else b""
        error = first_error(event)
        if error is not None:
            return self._fail(error)
        if not data:
            return event  # a comment
        said = json_object(data)
        return self._event_of_nonsense(event) if said is None else self._take(said)

    def _event_of_nonsense(self, event: bytes) -> bytes:
        """Passes it on: whoever follows the stream says what is wrong with it."""
        self._is_over = True
        return event

    def _take(self, said: Json) -> bytes:
        made = [] if self._begun is not None else self._begin(said)
        if said.get("usage"):
            self._usage = said["usage"]
        choices = said.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        delta = choice.get("delta")
        if isinstance(delta, dict):
            if thought := answer.reasoning_in(delta):
                made += self._text("reasoning", "reasoning_text", thought, delta, {})
            if isinstance(text := delta.get("content"), str) and text:
                made += self._text("message", "output_text", text, delta, choice)
            if isinstance(refusal := delta.get("refusal"), str) and refusal:
                made += self._text("message", "refusal", refusal, delta, {})
            for piece in objects(delta.get("tool_calls")):
                made += self._piece_of_call(piece)
        if isinstance(choice.get("finish_reason"), str):
            self._finish = choice["finish_reason"]
        return b"".join(made)

    def _begin(self, said: Json) -> list[bytes]:
        self._begun = answer.response(self._sent, said)
        return [self._event(f"response.{kind}", response=self._begun) for kind in ("created", "in_progress")]

    def _text(self, item: str, kind: str, text: str, delta: Json, choice: Json) -> list[bytes]:
        made: list[bytes] = []
        if self._open is None or self._open[1] != item:
            made += self._close_open()
            place = len(self._items)
            self._items.append(None)
            self._open = (place, item, [])
            made.append(self._event("response.output_item.added", output_index=place, item=self._opened(place, item)))
        place, _, parts = self._open
        if not parts or parts[-1].kind != kind:
            made += self._close_part()
            parts.append(_OpenPart(kind))
            where = self._where(place, item) | {"content_index": len(parts) - 1}
            made.append(self._event("response.content_part.added", **where, part=_OpenPart(kind).as_json("")))
        part = parts[-1]
        part.texts.append(text)
        where = self._where(place, item) | {"content_index": len(parts) - 1}
        told: Json = {}
        if kind == "output_text":
            told["logprobs"] = answer.logprobs_in(choice)
            part.logprobs += told["logprobs"]
        made.append(self._event(f"response.{_TEXTS[kind][1]}.delta", **where, delta=text, **told))
        for one in answer.annotations_in(delta) if kind == "output_text" else ():
            number = len(part.annotations)
            part.annotations.append(one)
            made.append(
                self._event("response.output_text.annotation.added", **where, annotation_index=number, annotation=one)
            )
        return made

    def _close_part(self) -> list[bytes]:
        if self._open is None or not self._open[2]:
            return []
        place, item, parts = self._open
        part, where = parts[-1], self._where(place, item) | {"content_index": len(parts) - 1}
        field, name = _TEXTS[part.kind]
        text = "".join(part.texts)
        told = {"logprobs": part.logprobs} if part.kind == "output_text" else {}
        return [
            self._event(f"response.{name}.done", **where, **{field: text}, **told),
            self._event("response.content_part.done", **where, part=part.as_json(text)),
        ]

    def _close_open(self) -> list[bytes]:
        made = self._close_part()
        if self._open is not None:
            place, item, parts = self._open
            whole = [part.as_json("".join(part.texts)) for part in parts]
            if item == "message":
                done = answer.message_item(self._sent, place, whole)
            else:
                done = answer.reasoning_item(self._sent, place, whole[0]["text"])
            self._items[place] = done
            self._open = None
            made.append(self._event("response.output_item.done", output_index=place, item=done))
        return made

    def _opened(self, place: int, item: str) -> Json:
        made = (
            answer.message_item(self._sent, place, [])
            if item == "message"
            else answer.reasoning_item(self._sent, place, "")
        )
        return made | {"status": "in_progress", "content": []}

    def _where(self, place: int, item: str) -> Json:
        return {
            "item_id": answer.item_id(self._sent, "msg" if item == "message" else "rs", place),
            "output_index": place,
        }

    def _piece_of_call(self, piece: Json) -> list[bytes]:
        made: list[bytes] = []
        index = piece.get("index")
        index = (
            index if isinstance(index, int) else len(self._calls) if piece.get("id") else max(len(self._calls) - 1, 0)
        )
        named = object_of(piece.get("function") or piece.get("custom"))
        call = self._calls.get(index)
        if call is None:
            made += self._close_open()
            name = text_of(named.get("name"))
            call = _OpenCall(
                len(self._items), piece.get("id") or f"call_{index}", name, is_custom=name in self._sent.custom_tools
            )
            self._calls[index] = call
            self._items.append(None)
            item = self._call_item(call, "") | {"status": "in_progress", "input" if call.is_custom else "arguments": ""}
            made.append(self._event("response.output_item.added", output_index=call.place, item=item))
        text = named.get("input") if "input" in named else named.get("arguments")
        if isinstance(text, str) and text:
            call.pieces.append(text)
            if not call.is_custom:
                where = {"item_id": answer.item_id(self._sent, "fc", call.place), "output_index": call.place}
                made.append(self._event("response.function_call_arguments.delta", **where, delta=text))
        return made

    def _call_item(self, call: _OpenCall, arguments: str) -> Json:
        return answer.call_item(self._sent, call.place, call.id, call.name, arguments)

    def _close_call(self, call: _OpenCall) -> list[bytes]:
        done = self._items[call.place] = self._call_item(call, "".join(call.pieces))
        where = {"item_id": done["id"], "output_index": call.place}
        if call.is_custom:
            texts = [
                self._event("response.custom_tool_call_input.delta", **where, delta=done["input"]),
                self._event("response.custom_tool_call_input.done", **where, input=done["input"]),
            ]
        else:
            # A call without arguments brings none: its delta says the empty object, so that deltas and whole are equal.
            missing = (
                [] if call.pieces else [self._event("response.function_call_arguments.delta", **where, delta="{}")]
            )
            said = {"name": call.name, "arguments": done["arguments"]}
            texts = [*missing, self._event("response.function_call_arguments.done", **where, **said)]
        return [*texts, self._event("response.output_item.done", output_index=call.place, item=done)]

    def _end(self) -> bytes:
        if self._is_over or self._begun is None or self._finish is None:
            return b""
        made = self._close_open()
        for call in self._calls.values():
            made += self._close_call(call)
        items = [item for item in self._items if item is not None]
        whole = answer.ended(self._begun, items, self._finish, self._usage)
        self._is_over = True
        made.append(self._event(f"response.{whole['status']}", response=whole))
        return b"".join(made)

    def _fail(self, error: Json) -> bytes:
        """Tells what the provider has reported; nothing follows."""
        self._is_over = True
        code = error.get("code") or error.get("type")
        said = {
            "code": str(code) if code else None,
            "message": str(error.get("message") or "the provider reported an error"),
        }
        return self._event("error", **said, param=error.get("param"))

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(event))
