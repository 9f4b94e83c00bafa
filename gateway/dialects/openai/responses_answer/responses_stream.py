"""The stream of a chat completion as the stream of a response.

    created in_progress (item)* (completed | incomplete) | ... error

Reasoning, text and calls become items as they come: a text or a reasoning ends when something else begins, calls end with the
answer, because several may come at once. Sequence numbers count up from 0; each item, part and text that is added is also
done. Nothing is held back but what goes through a function to a tool with free text, which is known at its end only.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.core.openai.sse.first_event import first_error
from gateway.core.openai.sse.sse import DONE, event_data, is_silent, json_object
from gateway.dialects.base.base import ConvertedRequest, Json, text_of
from gateway.dialects.openai.responses_answer import responses_answer as answer
from gateway.dialects.openai.responses_answer.open_items import Growing, OpenCall, OpenItem, OpenPart
from gateway.dialects.sse.events import ConvertingReader, data_of

_KINDS: Final = {"content": "output_text", "reasoning_content": "reasoning_text", "reasoning": "reasoning_text"}
"""The parts that grow by these fields of a piece."""


class ChatAsResponses(ConvertingReader):
    """Reads pieces of a chat completion; implements `base.Reader`."""

    def __init__(self, sent: ConvertedRequest) -> None:
        super().__init__()
        self._sent = sent
        self._number = self._told = 0
        """Of the next event; and of the first one that the event of the provider's became which is being read."""
        self._begun: Json | None = None
        self._items: list[Json | None] = []
        """By place; None while one is open."""
        self._open: OpenItem | None = None
        """The message or the reasoning that grows."""
        self._part: OpenPart | None = None
        """Its part that grows."""
        self._calls: list[OpenCall] = []
        self._by_index: dict[int, OpenCall] = {}
        """The call that pieces with an index belong to."""
        self._finish: str | None = None
        self._usage: Any = None

    def _at_end(self, *, is_clean: bool) -> bytes:
        # Some servers leave [DONE] out: a clean end behind a finish reason will do.
        return self._end() if is_clean and self._finish is not None else b""

    def _read(self, event: bytes) -> bytes:
        if self._is_over:
            return b""
        said = json_object(data_of(event))
        if said is None or "error" in said:
            return self._read_odd(event)
        choices = said.get("choices")
        if type(choices) is not list or not choices:
            return self._read_odd(event)
        choice = choices[0]
        if len(choices) == 1 and type(choice) is dict and not (choice.get("finish_reason") or said.get("usage")):
            grown, piece = self._more_of(choice)
            if grown is not None and piece:
                return self._more(grown, piece)
        return self._read_odd(event) if answer.first_choice(said).get("finish_reason") else self._take(said)

    def _more_of(self, choice: Json) -> tuple[Growing | None, str]:
        """Returns what a piece only brings more of, and the piece; None: it says something else, or other things, too."""
        delta = choice.get("delta")
        if type(delta) is not dict or choice.get("logprobs") or choice.get("index"):
            return None, ""
        found = delta if len(delta) == 1 else [name for name, value in delta.items() if value and name != "role"]
        if len(found) != 1:
            return None, ""
        (name,) = found
        value, part = delta[name], self._part
        if type(value) is str:
            return (part, value) if part is not None and part.kind == _KINDS.get(name) else (None, "")
        piece = value[0] if name == "tool_calls" and type(value) is list and len(value) == 1 else None
        if type(piece) is not dict or piece.get("id"):
            return None, ""
        call, named = self._by_index.get(_number(piece.get("index"))), piece.get("function")
        if call is None or not call.name or call.is_custom or type(named) is not dict:
            return None, ""
        text = named.get("arguments")
        return (call, text) if type(text) is str else (None, "")

    def _read_odd(self, event: bytes) -> bytes:
        """Reads what may be no piece of an answer: an error, an end, a comment, nonsense."""
        if (error := first_error(event)) is not None:
            return self._fail(error)
        data = event_data(event).strip()
        if data == DONE:
            return self._end() if self._begun is not None else b""
        said = json_object(data)
        if said is not None:
            return self._take(said)
        if not data and is_silent(event):
            return event + b"\n\n" if event.startswith(b":") else b""  # clients take a name without data for an event
        self._is_over = True
        return event + b"\n\n"  # whoever follows the stream says what is wrong with it

    def _take(self, said: Json) -> bytes:
        self._told = self._number
        made = [] if self._begun is not None else self._begin(said)
        if said.get("usage"):
            self._usage = said["usage"]
        choice = answer.first_choice(said)
        delta = choice.get("delta")
        if isinstance(delta, dict):
            thought, text = answer.words_in(delta)
            logprobs = answer.logprobs_in(choice)
            if thought:
                made.append(self._more(self._part_of(made, "reasoning", "reasoning_text"), thought))
            if text or (logprobs and self._part is not None and self._part.kind == "output_text"):
                part = self._part_of(made, "message", "output_text")
                part.logprobs += logprobs
                made.append(self._more(part, text) if not logprobs else self._more_with(part, text, logprobs))
            if cited := answer.annotations_in(delta):
                self._cite(made, cited)
            if isinstance(refusal := delta.get("refusal"), str) and refusal:
                made.append(self._more(self._part_of(made, "message", "refusal"), refusal))
            for piece in answer.pieces_in(delta):
                self._piece_of_call(made, piece)
        if isinstance(choice.get("finish_reason"), str):
            self._finish = choice["finish_reason"]
        return b"".join(made)

    def _begin(self, said: Json) -> list[bytes]:
        self._begun = answer.response(self._sent, said)
        return [self._event(f"response.{kind}", response=self._begun) for kind in ("created", "in_progress")]

    def _part_of(self, made: list[bytes], item: str, kind: str) -> OpenPart:
        """Returns the open part of this kind; begins it, and ends what is open, if that is another."""
        if self._open is None or self._open.item != item:
            self._close_open(made)
            self._open = OpenItem(self._sent, item, len(self._items))
            self._items.append(None)
            begun = self._open.begun()
            made.append(self._event("response.output_item.added", output_index=self._open.place, item=begun))
        if self._part is None or self._part.kind != kind:
            self._close_part(made)
            part = self._part = self._open.begin_part(kind)
            made.append(self._event("response.content_part.added", **part.where, part=part.as_json("")))
        return self._part

    def _more(self, grown: Growing, piece: str) -> bytes:
        grown.pieces.append(piece)
        number, self._number = self._number, self._number + 1
        return grown.event(number, piece)

    def _more_with(self, part: OpenPart, text: str, logprobs: list[Json]) -> bytes:
        part.pieces.append(text)
        return self._event("response.output_text.delta", **part.where, delta=text, logprobs=logprobs)

    def _cite(self, made: list[bytes], cited: list[Json]) -> None:
        part = self._part_of(made, "message", "output_text")
        for one in cited:
            where = part.where | {"annotation_index": len(part.annotations)}
            part.annotations.append(one)
            made.append(self._event("response.output_text.annotation.added", **where, annotation=one))

    def _close_part(self, made: list[bytes]) -> None:
        part, self._part = self._part, None
        if part is not None:
            whole = part.as_json("".join(part.pieces))
            told = {name: whole[name] for name in ("text", "refusal", "logprobs") if name in whole}
            made.append(self._event(f"response.{part.kind}.done", **part.where, **told))
            made.append(self._event("response.content_part.done", **part.where, part=whole))

    def _close_open(self, made: list[bytes]) -> None:
        self._close_part(made)
        if self._open is not None:
            place, done = self._open.place, self._ended(self._open.done(), self._open.place)
            self._items[place], self._open = done, None
            made.append(self._event("response.output_item.done", output_index=place, item=done))

    def _piece_of_call(self, made: list[bytes], piece: Json) -> None:
        call = self._call_of(piece)
        named = answer.named_in(piece)
        call.is_custom |= "custom" in piece
        call.id = call.id or text_of(piece.get("id"))
        text = answer.argument_in(named)
        if not call.name and (name := text_of(named.get("name"))):
            self._close_open(made)
            item = call.open(name, len(self._items))
            self._items.append(None)
            made.append(self._event("response.output_item.added", output_index=call.place, item=item))
            text, call.pieces = "".join((*call.pieces, text)), []
        if text and call.name and not call.is_wrapped:
            made.append(self._more(call, text))
        elif text:
            call.pieces.append(text)

    def _call_of(self, piece: Json) -> OpenCall:
        """Returns the call that a piece belongs to. Some servers number none, or all of several calls alike, but name each."""
        index, id = piece.get("index"), text_of(piece.get("id"))
        if not isinstance(index, int):
            index = len(self._calls) if id or not self._calls else self._calls[-1].index
        call = self._by_index.get(index)
        if call is not None and id and call.id not in ("", id) and answer.named_in(piece).get("name"):
            call = None
        if call is None:
            call = self._by_index[index] = OpenCall(self._sent, index)
            self._calls.append(call)
        return call

    def _close_call(self, made: list[bytes], call: OpenCall) -> None:
        done = self._items[call.place] = self._ended(call.done(), call.place)
        text = done["input" if call.is_custom else "arguments"]
        if call.is_wrapped or not call.pieces:  # nothing was told yet: deltas and whole are equal
            made.append(self._event(f"response.{call.telling}.delta", **call.where, delta=text))
        said = {"input": text} if call.is_custom else {"name": call.name, "arguments": text}
        made.append(self._event(f"response.{call.telling}.done", **call.where, **said))
        made.append(self._event("response.output_item.done", output_index=call.place, item=done))

    def _ended(self, item: Json, place: int) -> Json:
        """Returns the item; the last one is incomplete where the answer is. That one is open until the end."""
        is_cut = self._finish in answer.INCOMPLETE and place == len(self._items) - 1
        return item | {"status": "incomplete"} if is_cut else item

    def _end(self) -> bytes:
        if self._is_over or self._begun is None:
            return b""
        if not all(call.name for call in self._calls):
            return self._fail({"message": "the provider called a tool without a name", "code": "malformed_response"})
        made: list[bytes] = []
        self._told = self._number
        self._close_open(made)
        for call in self._calls:
            self._close_call(made, call)
        items = [item for item in self._items if item is not None]
        whole = answer.ended(self._begun, items, self._finish or "stop", self._usage)
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
        # Before any output it is not for the caller yet: whoever looks for another target reads all that the provider said.
        raw = {} if self._items or self._calls else {"error": error}
        try:
            return self._event("error", **said, param=error.get("param"), **raw)
        except orjson.JSONEncodeError:  # nested too deeply to be said again
            return self._event("error", **said, param=None)

    def _unsayable(self) -> bytes:
        self._number = self._told
        return super()._unsayable()

    def _event(self, kind: str, **fields: Any) -> bytes:
        told = orjson.dumps({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), told)


def _number(index: Any) -> int:
    return index if type(index) is int else -1
