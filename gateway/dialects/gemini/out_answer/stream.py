"""The stream of generateContent as the stream of a chat completion.

    role delta* finish usage? [DONE] | ... error

Each of the provider's events is an answer with what is new. There is no last one: an answer has come to its end when each
candidate has told why it ended, and the stream was not cut. Newer models tell it in an event behind that with their calls
(envoyproxy/ai-gateway#2399), older ones more than once, so the finish reasons are told with the end. No word is held back.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.core.openai.sse.sse import DONE, error_in, event_data, is_silent, json_object
from gateway.dialects.base.base import ConvertedRequest, Json, MalformedAnswer, object_of, objects
from gateway.dialects.gemini.out_answer import answer
from gateway.dialects.sse.events import TOO_LONG, ConvertingReader, chat_failure, data_of

_AFTER: Final = b'},"finish_reason":null}]}\n\n'
_MALFORMED: Final = TOO_LONG
_MORE_WORDS: Final = frozenset(("content", "index"))
"""The fields of a candidate that brings more of its answer and nothing else."""
_THOUGHT: Final = frozenset(("text", "thought"))
_THINKS: Final = b'%b"reasoning_content":%b,"reasoning_details":[{"type":"reasoning.text","text":%b,"index":%d}]%b'


class GenerateAsChat(ConvertingReader):
    """Reads the events of an answer; implements `base.Reader`."""

    def __init__(self, sent: ConvertedRequest) -> None:
        super().__init__()
        self._sent = sent
        self._tells_usage = bool(object_of(sent.asked.get("stream_options")).get("include_usage"))
        self._head: Json | None = None
        self._candidates: dict[int, answer.Candidate] = {}
        self._before: dict[int, bytes] = {}
        """Of a piece of each candidate, all that stands before its delta."""
        self._usage: Any = None
        self._blocked: str | None = None

    def _at_end(self, *, is_clean: bool) -> bytes:
        """A clean end is one where each candidate has told why it ended; elsewhere the stream was cut."""
        if self._is_over or not is_clean or self._head is None:
            return b""
        if not self._candidates and self._blocked is None:
            return b""
        if not all(candidate.end for candidate in self._candidates.values()):
            return b""
        return self._finish()

    def _read(self, event: bytes) -> bytes:
        if self._is_over:
            return b""
        said = json_object(data_of(event))
        return self._read_odd(event) if said is None or "error" in said else self._take(said)

    def _read_odd(self, event: bytes) -> bytes:
        """Reads what is no event of the usual form: an error, a comment, nonsense."""
        if (error := error_in(event)) is not None:
            return self._fail(error)
        data = event_data(event).strip()
        said = json_object(data)
        if said is not None:
            return self._take(said)
        if data == DONE:  # which is told at the end of the stream, as the provider has it
            return b""
        if not data and is_silent(event):
            return event + b"\n\n" if event.startswith(b":") else b""  # clients take a name without data for an event
        self._is_over = True
        return event + b"\n\n"  # whoever follows the stream says what is wrong with it

    def _take(self, said: Json) -> bytes:
        if (usage := said.get("usageMetadata")) is not None:
            self._usage = usage
        if self._head is None:
            self._head = answer.head(self._sent, said, "chat.completion.chunk")
        candidates = said.get("candidates")
        if type(candidates) is not list or not candidates:
            self._blocked = answer.blocked(said) or self._blocked
            return b""
        if len(candidates) == 1 and type(candidates[0]) is dict:
            return self._hear(candidates[0], 0)
        return b"".join([self._hear(one, place) for place, one in enumerate(objects(candidates))])

    def _hear(self, said: Json, place: int) -> bytes:
        """Tells what is new of a candidate."""
        if self._is_over:  # another one has failed
            return b""
        index = said.get("index", place)
        before = self._before.get(index) if type(index) is int else None
        content = said.get("content")
        parts = content.get("parts") if type(content) is dict else None
        if before is not None and type(parts) is list and len(parts) == 1 and said.keys() <= _MORE_WORDS:
            part = parts[0]
            text = part.get("text") if type(part) is dict else None
            if type(text) is str and text:
                candidate = self._candidates[index]
                if len(part) == 1:
                    candidate.is_thinking = False
                    candidate.words.say(text)
                    if candidate.kept is not None:
                        candidate.kept.say(text)
                    return b'%b"content":%b%b' % (before, orjson.dumps(text), _AFTER)
                if candidate.is_thinking and part.keys() == _THOUGHT and part["thought"] is True:
                    return _THINKS % (before, words := orjson.dumps(text), words, candidate.thought, _AFTER)
        return self._hear_all(said, answer.index_of(said, place), objects(parts))

    def _hear_all(self, said: Json, index: int, parts: list[Json]) -> bytes:
        made = bytearray()
        candidate = self._candidates.get(index)
        if candidate is None:
            candidate = self._candidates[index] = answer.Candidate(self._sent, index)
            made += self._begin(index)
        before = self._before[index]
        try:
            for part in parts:
                delta = candidate.delta(part)
                if delta:
                    made += b"%b%b%b" % (before, orjson.dumps(delta)[1:-1], _AFTER)
            if "groundingMetadata" in said and (cited := candidate.words.cited(said["groundingMetadata"])):
                made += b"%b%b%b" % (before, orjson.dumps({"annotations": cited})[1:-1], _AFTER)
            if "logprobsResult" in said and (logprobs := answer.logprobs_of(said)) is not None:
                choice = {"index": index, "delta": {}, "logprobs": logprobs, "finish_reason": None}
                made += self._chunk({"choices": [choice]})
            if "finishReason" in said:
                candidate.hear_end(said)
        except MalformedAnswer as error:
            made += self._fail({"message": str(error), "code": _MALFORMED})
        return bytes(made)

    def _begin(self, index: int) -> bytes:
        before = orjson.dumps({**(self._head or {}), "choices": []}).removesuffix(b"]}")
        self._before[index] = before = b'data: %b{"index":%d,"delta":{' % (before, index)
        return b'%b"role":"assistant","content":""%b' % (before, _AFTER)

    def _finish(self) -> bytes:
        self._is_over = True
        made = bytearray()
        if not self._candidates:
            made += self._begin(0)
            made += self._end(0, "content_filter", self._blocked)
        for index, candidate in self._candidates.items():
            candidate.remember()
            made += self._end(index, candidate.finish, candidate.refusal)
        if self._tells_usage and isinstance(self._usage, dict):
            made += self._chunk({"choices": [], "usage": answer.usage_of_chat(self._usage)})
        made += b"data: [DONE]\n\n"
        return bytes(made)

    def _end(self, index: int, finish: str, refusal: str | None) -> bytes:
        told = b""
        if refusal:
            told = b'%b"refusal":%b%b' % (self._before[index], orjson.dumps(refusal), _AFTER)
        return told + self._chunk({"choices": [{"index": index, "delta": {}, "finish_reason": finish}]})

    def _fail(self, error: Json) -> bytes:
        self._is_over = True
        return chat_failure(self._sent, error, has_begun=bool(self._candidates))

    def _chunk(self, fields: Json) -> bytes:
        return b"data: %b\n\n" % orjson.dumps({**(self._head or {}), **fields})
