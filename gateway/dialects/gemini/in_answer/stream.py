"""The stream of a chat completion as that of generateContent: each event is an answer with what is new.

Words leave in the chunk that they came in. A call leaves when it is whole, as Gemini's do; the end, when the usage is known.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.core.openai.sse.first_event import first_error
from gateway.core.openai.sse.sse import DONE, error_json, event_data, is_silent, json_object
from gateway.dialects.base.base import ConvertedRequest, Json, MalformedAnswer, objects, text_of
from gateway.dialects.gemini.in_answer import answer
from gateway.dialects.openai.responses_answer.responses_answer import argument_in, named_in, pieces_in, words_in
from gateway.dialects.sse.events import ConvertingReader, data_of
from gateway.dialects.sse.shapes import generate_error

_BEFORE: Final = b'data: {"candidates":[{"content":{"parts":[{"text":%b}],"role":"model"},"index":0}]%b\n\n'

_GROWING: Final = ("text", "summary", "signature", "data")
"""The fields of a detail of reasoning that come in pieces."""


class _Call:
    """A call whose pieces come."""

    def __init__(self) -> None:
        self.said: Json = {}
        self.name = ""
        self.text: list[str] = []


class _Detail:
    """A detail of reasoning whose pieces come."""

    def __init__(self) -> None:
        self.fields: Json = {}
        self.pieces: dict[str, list[str]] = {}

    def whole(self) -> Json:
        return self.fields | {name: "".join(pieces) for name, pieces in self.pieces.items()}


class _Candidate:
    """What has been told of one choice."""

    def __init__(self) -> None:
        self.calls: dict[int, _Call] = {}
        self.last_call = 0
        """The highest of their numbers."""
        self.details: dict[int, _Detail] = {}
        """Signed thoughts, whose pieces come."""
        self.cited: list[Json] = []
        self.has_told_thoughts = False
        self.refusal: list[str] = []
        self.end: Json | None = None


class ChatAsGenerate(ConvertingReader):
    """Reads pieces of a chat completion; implements `base.Reader`."""

    def __init__(self, sent: ConvertedRequest) -> None:
        super().__init__()
        self._sent = sent
        self._shows = answer.shows_thoughts(sent)
        self._candidates: dict[int, _Candidate] = {}
        self._tail = b""
        """What every event ends with, once the model is known."""
        self._head: Json = {}
        self._usage: Json | None = None
        self._has_told = False
        """Some of the answer has left."""

    def _at_end(self, *, is_clean: bool) -> bytes:
        # Some servers leave [DONE] out: a clean end behind a finish reason will do.
        return self._end() if is_clean else b""

    def _read(self, event: bytes) -> bytes:
        if self._is_over:
            return b""
        said = json_object(data_of(event))
        if said is None or "error" in said:
            return self._read_odd(event)
        choices = said.get("choices")
        if type(choices) is list and len(choices) == 1 and self._tail and type(choices[0]) is dict:
            choice = choices[0]
            delta = choice.get("delta")
            if (
                type(delta) is dict
                and not choice.get("index")
                and not choice.get("finish_reason")
                and not said.get("usage")
            ):
                text = delta.get("content")
                if type(text) is str and text and not choice.get("logprobs") and len(delta) == 1 + ("role" in delta):
                    self._has_told = True
                    return _BEFORE % (orjson.dumps(text), self._tail) if not self._is_thinking() else self._take(said)
        return self._read_odd(event) if first_error(event) is not None else self._take(said)

    def _is_thinking(self) -> bool:
        candidate = self._candidates.get(0)
        return candidate is not None and bool(candidate.details)

    def _read_odd(self, event: bytes) -> bytes:
        """Reads what may be no piece of an answer: an error, an end, a comment, nonsense."""
        if (error := first_error(event)) is not None:
            return self._fail(error)
        data = event_data(event).strip()
        if data == DONE:
            return self._end()
        said = json_object(data)
        if said is not None:
            return self._take(said)
        if not data and is_silent(event):
            return b""  # Google's own clients take a comment for a part of an answer
        self._is_over = True
        return event + b"\n\n"  # whoever follows the stream says what is wrong with it

    def _take(self, said: Json) -> bytes:
        if not self._tail:
            self._head = answer.head(self._sent, said)
            self._tail = b"," + orjson.dumps(self._head)[1:]
        self._usage = answer.usage_of(said) or self._usage
        made = []
        try:
            for choice in objects(said.get("choices")):
                index = choice.get("index")
                index = index if type(index) is int else 0
                made += self._take_choice(index, choice)
        except MalformedAnswer as error:
            made.append(self._fail({"message": str(error), "code": "malformed_response"}))
        return b"".join(made)

    def _take_choice(self, index: int, choice: Json) -> list[bytes]:
        candidate = self._candidates.setdefault(index, _Candidate())
        delta = choice.get("delta")
        parts: list[Json] = []
        if isinstance(delta, dict):
            thought, text = words_in(delta)
            details = objects(delta.get("reasoning_details"))
            for detail in details:
                _gather(candidate.details, detail)
            if thought and self._shows:
                parts.append({"text": thought, "thought": True})
                candidate.has_told_thoughts = True
            candidate.cited += objects(delta.get("annotations"))
            pieces = pieces_in(delta)
            if text or pieces or delta.get("refusal"):
                parts += self._vouch(candidate)
            refusal = text_of(delta.get("refusal"))
            if refusal:
                candidate.refusal.append(refusal)
            parts += [{"text": words} for words in (text, refusal) if words] + answer.pictures_of(delta)
            for piece in pieces:
                _add_piece(candidate, piece)
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and candidate.end is None:
            parts += self._vouch(candidate)
            for place, call in enumerate(candidate.calls.values()):
                text = "".join(call.text)
                if not (answer.is_cut(choice) and json_object(text.encode()) is None):  # what was cut off is no call
                    parts.append(answer.part_of_call(self._sent, place, call.name, text, call.said))
            candidate.end = answer.end_of(choice, refusal="".join(candidate.refusal))
        told = answer.logprobs_of(choice)
        if not parts and not told:
            return []
        self._has_told = True
        inner = {"content": {"parts": parts, "role": "model"}, "index": index, **told}
        return [b"data: %b\n\n" % orjson.dumps({"candidates": [inner], **self._head})]

    def _vouch(self, candidate: _Candidate) -> list[Json]:
        """Returns the parts that say whose the thoughts are that have been told."""
        details, candidate.details = candidate.details, {}
        told = [one.whole() for one in details.values()]
        signed = [one for one in told if one.get("data") or one.get("signature")]
        has_told = candidate.has_told_thoughts
        made = answer.parts_of_details(signed, shows=has_told)
        return [{**part, "text": ""} if part.get("thought") and has_told else part for part in made]

    def _end(self) -> bytes:
        """Tells why each candidate ended, if all did."""
        if self._is_over or not self._candidates or any(one.end is None for one in self._candidates.values()):
            return b""
        self._is_over = True
        empty = {"parts": [{"text": ""}], "role": "model"}
        ended: list[Json] = [
            {"content": empty, **(one.end or {}), "index": index, **answer.citations_of({"annotations": one.cited})}
            for index, one in sorted(self._candidates.items())
        ]
        made = {"candidates": ended} | ({"usageMetadata": self._usage} if self._usage else {}) | self._head
        return b"data: %b\n\n" % orjson.dumps(made)

    def _fail(self, error: Json) -> bytes:
        """Tells what the provider has reported; nothing follows.

        Before any output it is not for the caller yet: whoever looks for another target reads all that the provider said.
        """
        self._is_over = True
        return b"data: %b\n\n" % error_json(generate_error(error) if self._has_told else error)


def _gather(details: dict[int, _Detail], detail: Json) -> None:
    """Puts a piece of a detail to those before it."""
    index = detail.get("index")
    index = index if type(index) is int else len(details)
    held = details.setdefault(index, _Detail())
    for name, value in detail.items():
        if name in _GROWING and isinstance(value, str):
            held.pieces.setdefault(name, []).append(value)
        elif value is not None and name not in held.fields:
            held.fields[name] = value


def _add_piece(candidate: _Candidate, piece: Json) -> None:
    calls = candidate.calls
    index: Any = piece.get("index")
    if type(index) is not int:
        index = len(calls) if piece.get("id") or not calls else candidate.last_call
    candidate.last_call = max(index, candidate.last_call)
    call = calls.setdefault(index, _Call())
    named = named_in(piece)
    call.name = call.name or text_of(named.get("name"))
    call.text.append(argument_in(named))
    for name in ("id", "extra_content"):
        if piece.get(name) and name not in call.said:
            call.said[name] = piece[name]
