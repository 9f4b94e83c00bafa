"""Items of a response that are open while a stream of chat completions is put into one."""

from __future__ import annotations

import orjson

from gateway.dialects.base.base import ConvertedRequest, Json
from gateway.dialects.openai.responses_answer import responses_answer as answer


class Growing:
    """What pieces are added to: a text, or the arguments of a call. `where` is what its events say of its place.

    Most pieces of a stream only bring more of it, so the event that says so is put together of bytes.
    """

    def __init__(self) -> None:
        self.where: Json = {}
        self.pieces: list[str] = []
        self._before = self._behind = self._tail = b""

    def begin(self, kind: str, where: Json, **rest: object) -> None:
        """Says how events with more of it are called, and what they say of its place, and behind the piece."""
        self.where = where
        self._before = f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":'.encode()
        self._behind = b',%b,"delta":' % orjson.dumps(where)[1:-1]
        self._tail = (b",%b" % orjson.dumps(rest)[1:] if rest else b"}") + b"\n\n"

    def event(self, number: int, piece: str) -> bytes:
        """Returns the event that tells this piece."""
        return b"%b%d%b%b%b" % (self._before, number, self._behind, orjson.dumps(piece), self._tail)


class OpenPart(Growing):
    """A part of an item: a text that grows."""

    def __init__(self, kind: str, where: Json) -> None:
        super().__init__()
        self.kind = kind
        self.logprobs: list[Json] = []
        self.annotations: list[Json] = []
        rest: Json = {"logprobs": []} if kind == "output_text" else {}
        self.begin(f"response.{kind}.delta", where, **rest)

    def as_json(self, text: str) -> Json:
        if self.kind == "output_text":
            return answer.output_text(text, self.annotations, self.logprobs)
        return {"type": self.kind, "refusal" if self.kind == "refusal" else "text": text}


class OpenItem:
    """A message or a reasoning; its last part is the one that grows."""

    def __init__(self, sent: ConvertedRequest, item: str, place: int) -> None:
        self._sent, self.item, self.place = sent, item, place
        self._parts: list[OpenPart] = []

    @property
    def part(self) -> OpenPart | None:
        return self._parts[-1] if self._parts else None

    def begin_part(self, kind: str) -> OpenPart:
        id = answer.item_id(self._sent, "msg" if self.item == "message" else "rs", self.place)
        where = {"item_id": id, "output_index": self.place, "content_index": len(self._parts)}
        self._parts.append(OpenPart(kind, where))
        return self._parts[-1]

    def begun(self) -> Json:
        return self._made([]) | {"status": "in_progress", "content": []}

    def done(self) -> Json:
        return self._made([part.as_json("".join(part.pieces)) for part in self._parts])

    def _made(self, parts: list[Json]) -> Json:
        if self.item == "message":
            return answer.message_item(self._sent, self.place, parts)
        return answer.reasoning_item(self._sent, self.place, parts[0]["text"] if parts else "")


class OpenCall(Growing):
    """A call. It begins when its name is known; until then it has no place."""

    def __init__(self, sent: ConvertedRequest, index: int) -> None:
        super().__init__()
        self._sent, self.index = sent, index
        self.id = self.name = ""
        self.is_custom = False
        self.is_wrapped = False
        """It is of a tool with free text that went out as a function, so its text is known at its end only."""
        self.place = -1

    @property
    def telling(self) -> str:
        """The name of the events that tell what it is called with."""
        return "custom_tool_call_input" if self.is_custom else "function_call_arguments"

    def open(self, name: str, place: int) -> Json:
        """Returns its item as it is at first."""
        self.name, self.place = name, place
        self.is_wrapped = name in self._sent.custom_tools and not self.is_custom
        self.is_custom |= self.is_wrapped
        self.id = self.id or answer.call_id(self._sent, self.index)
        item = answer.call_item(self._sent, place, self.id, name, "", is_custom=self.is_custom)
        self.begin(f"response.{self.telling}.delta", {"item_id": item["id"], "output_index": place})
        return item | {"status": "in_progress", "input" if self.is_custom else "arguments": ""}

    def done(self) -> Json:
        said = "".join(self.pieces)
        text = answer.free_text(said) if self.is_wrapped else said
        return answer.call_item(self._sent, self.place, self.id, self.name, text, is_custom=self.is_custom)
