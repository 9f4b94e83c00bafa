"""The stream of a chat completion as that of generateContent: each event is an answer with what is new.

Words leave in the chunk that they came in. A call leaves when it is whole, as Gemini's do; the end, when the usage is known.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.dialects.base import ConvertedRequest, Json, MalformedAnswer, objects, text_of
from gateway.dialects.events import TOO_LONG, EventReader, EventTooLong, data_of
from gateway.dialects.gemini.from_generate import answer
from gateway.dialects.openai.responses_answer import argument_in, named_in, pieces_in, words_in
from gateway.policy.openai.first_event import first_error
from gateway.policy.openai.sse import DONE, event_data, is_silent, json_object

_BEFORE: Final = b'data: {"candidates":[{"content":{"parts":[{"text":%b}],"role":"model"},"index":0}]%b\n\n'


class _Call:
    """A call whose pieces come."""

    def __init__(self) -> None:
        self.said: Json = {}
        self.name = ""
        self.text: list[str] = []


class _Candidate:
    """What has been told of one choice."""

    def __init__(self) -> None:
        self.calls: dict[int, _Call] = {}
        self.details: dict[int, Json] = {}
        """Signed thoughts, whose pieces come."""
        self.cited: list[Json] = []
        self.has_told_thoughts = False
        self.refusal = ""
        self.end: Json | None = None


class ChatAsGenerate:
    """Reads pieces of a chat completion; implements `base.Reader`."""

    def __init__(self, sent: ConvertedRequest) -> None:
        self._sent = sent
        self._events = EventReader()
        self._shows = answer.shows_thoughts(sent)
        self._candidates: dict[int, _Candidate] = {}
        self._tail = b""
        """What every event ends with, once the model is known."""
        self._head: Json = {}
        self._usage: Json | None = None
        self._is_over = False

    def feed(self, chunk: bytes) -> bytes:
        try:
            events = self._events.feed(chunk)
        except EventTooLong:
            return self._fail({"message": "an event of the provider's is too long to be converted", "code": TOO_LONG})
        return self._read(events[0]) if len(events) == 1 else b"".join(map(self._read, events))

    def close(self, *, is_clean: bool) -> bytes:
        rest = self._events.rest()
        last = self._read(rest) if rest else b""
        # Some servers leave [DONE] out: a clean end behind a finish reason will do.
        return last + (self._end() if is_clean else b"")

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
            candidate.refusal += refusal
            parts += [{"text": words} for words in (text, refusal) if words] + answer.pictures_of(delta)
            for piece in pieces:
                _add_piece(candidate.calls, piece)
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and candidate.end is None:
            parts += self._vouch(candidate)
            for place, call in enumerate(candidate.calls.values()):
                text = "".join(call.text)
                if not (answer.is_cut(choice) and json_object(text.encode()) is None):  # what was cut off is no call
                    parts.append(answer.part_of_call(self._sent, place, call.name, text, call.said))
            candidate.end = answer.end_of(choice, refusal=candidate.refusal)
        told = answer.logprobs_of(choice)
        if not parts and not told:
            return []
        inner = {"content": {"parts": parts, "role": "model"}, "index": index, **told}
        return [b"data: %b\n\n" % orjson.dumps({"candidates": [inner], **self._head})]

    def _vouch(self, candidate: _Candidate) -> list[Json]:
        """Returns the parts that say whose the thoughts are that have been told."""
        details, candidate.details = candidate.details, {}
        signed = [one for one in details.values() if one.get("data") or one.get("signature")]
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
        """Tells what the provider has reported; nothing follows."""
        self._is_over = True
        try:
            return b"data: %b\n\n" % orjson.dumps({"error": error})
        except orjson.JSONEncodeError:  # nested too deeply to be said again
            return b"data: %b\n\n" % orjson.dumps({"error": {"message": text_of(error.get("message"))}})


def _gather(details: dict[int, Json], detail: Json) -> None:
    """Puts a piece of a detail to those before it."""
    index = detail.get("index")
    index = index if type(index) is int else len(details)
    held = details.setdefault(index, {})
    for name, value in detail.items():
        if name in ("text", "summary", "signature", "data") and isinstance(value, str):
            held[name] = held.get(name, "") + value
        elif value is not None and name not in held:
            held[name] = value


def _add_piece(calls: dict[int, _Call], piece: Json) -> None:
    index: Any = piece.get("index")
    if type(index) is not int:
        index = len(calls) if piece.get("id") or not calls else max(calls)
    call = calls.setdefault(index, _Call())
    named = named_in(piece)
    call.name = call.name or text_of(named.get("name"))
    call.text.append(argument_in(named))
    for name in ("id", "extra_content"):
        if piece.get(name) and name not in call.said:
            call.said[name] = piece[name]
