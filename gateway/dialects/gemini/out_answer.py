"""An answer of generateContent as a chat completion: each candidate is a choice, its parts become one message.

In this order: signatures of turns with calls, remembered and put back; citations; signatures as a chat completion carries
them; a whole answer; the stream. A part is read the same way whether the answer is streamed or whole: as what it adds to
the message. Source: the Gemini API's reference, GenerateContentResponse.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from gateway.core.openai.sse import DONE, GIVEN_UP, error_in, event_data, is_silent, json_object
from gateway.core.openai.usage import read_usage
from gateway.dialects.base import (
    ConvertedRequest,
    Json,
    MalformedAnswer,
    chat_usage,
    finish_fields,
    object_of,
    objects,
    text_of,
)
from gateway.dialects.memory import IN_ID, MOST_TURN_BYTES, TurnMemory, UnknownMemory, VisibleTurn, unechoed
from gateway.dialects.streams import AFTER, TOO_LONG, ChatStreamWriter, ConvertingReader, chat_head, data_of

# --- Signatures of turns with calls, remembered, and put back where a client has dropped them ---


def with_echoes(body: Json, memory: TurnMemory | None) -> Json:
    """Returns the request as a client would have made it that sends signatures back.

    They go into the message, where a client that keeps them has them. What follows does not tell the two apart.
    """
    if memory is None or isinstance(memory, UnknownMemory):
        return body
    messages = body.get("messages")
    made: list[Json] | None = None
    for number, turn in unechoed(messages):
        found = memory.find(turn)
        if isinstance(found, dict) and isinstance(messages, list):
            made = list(messages) if made is None else made
            made[number] = _signed(messages[number], found)
    return body if made is None else {**body, "messages": made}


def _signed(message: Json, found: Json) -> Json:
    extras: list[Json | None] = found["extras"]
    pairs = zip(message["tool_calls"], extras, strict=True)
    calls = [call if extra is None else {**call, "extra_content": extra} for call, extra in pairs]
    made = {**message, "tool_calls": calls}
    return made | ({"reasoning_details": found["details"]} if found["details"] else {})


class SignatureRecorder:
    """Records what is to be remembered of an answer that is being written."""

    __slots__ = ("_calls", "_details", "_extras", "_size", "_words")

    def __init__(self) -> None:
        self._words: list[str] = []
        self._calls: list[tuple[str, str, object]] = []
        self._extras: list[Json | None] = []
        self._details: list[Json] = []
        self._size = 0

    def add_text(self, text: str) -> None:
        self._size += len(text)
        if self._size <= MOST_TURN_BYTES:
            self._words.append(text)

    def take(self, delta: Json) -> None:
        """Takes what a part adds to the message; thoughts in words are not wanted back."""
        if "content" in delta:
            self.add_text(delta["content"])
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            self._calls.append((call["id"], function["name"], orjson.loads(function["arguments"])))
            self._extras.append(call.get("extra_content"))
            self._size += len(function["arguments"])
        self._details += (one for one in objects(delta.get("reasoning_details")) if "data" in one)

    def keep(self, memory: TurnMemory) -> None:
        """Remembers the turn, if it has calls and all of it is there."""
        if not self._calls or self._size > MOST_TURN_BYTES:
            return
        has_signatures = bool(self._details) or any(extra is not None for extra in self._extras)
        turn = VisibleTurn(self._calls, "".join(self._words))
        memory.keep(turn, {"extras": self._extras, "details": self._details}, has_thoughts=has_signatures)


# --- Citations: Google's places in bytes become places in characters ---


MOST_WIDE_BYTES: Final = 1_000_000
"""The most bytes of words that are not all ASCII; of more than that no places are known."""
_STRETCH_CHARACTERS: Final = 1_024
"""The most of such words that are counted through to find one place."""


class Words:
    """How far the words of a candidate have come, in bytes; and those of them that have more bytes than characters.

    Places of evidence count from the beginning of all words of the candidate, streamed or not, as recorded answers have it;
    the reference has them counted from a part's. Source: the Gemini API's reference, GroundingMetadata.
    """

    __slots__ = ("_bytes", "_more", "_starts", "_wide", "_wide_bytes")

    def __init__(self) -> None:
        self._bytes = self._wide_bytes = 0
        self._wide: list[bytes] = []
        self._starts: list[int] = []
        """The beginnings of the stretches of wide words, in bytes."""
        self._more = [0]
        """How many more bytes than characters there are before each stretch."""

    def add(self, text: str) -> None:
        if text.isascii():
            self._bytes += len(text)
            return
        for at in range(0, len(text), _STRETCH_CHARACTERS):
            stretch = text[at : at + _STRETCH_CHARACTERS]
            data = stretch.encode(errors="replace")
            self._wide_bytes += len(data)
            if self._wide_bytes <= MOST_WIDE_BYTES:
                self._wide.append(data)
                self._starts.append(self._bytes)
                self._more.append(self._more[-1] + len(data) - len(stretch))
            self._bytes += len(data)

    def cited(self, grounding: Any) -> list[Json]:
        """Returns the citations of pages, one for each of those that a stretch of words is grounded in."""
        metadata = object_of(grounding)
        chunks = metadata.get("groundingChunks")
        pages = [_page_in(object_of(one)) for one in chunks] if isinstance(chunks, list) else []
        found = []
        for support in objects(metadata.get("groundingSupports")) if self._wide_bytes <= MOST_WIDE_BYTES else ():
            segment, places = object_of(support.get("segment")), support.get("groundingChunkIndices")
            start, end = _offset(segment.get("startIndex", 0)), _offset(segment.get("endIndex"))
            if start is None or end is None or not start <= end <= self._bytes:
                continue
            where = {"start_index": self._characters(start), "end_index": self._characters(end)}
            for place in places if isinstance(places, list) else ():
                page = pages[place] if type(place) is int and 0 <= place < len(pages) else None
                if page is not None:
                    found.append({"type": "url_citation", "url_citation": where | page})
        return found

    def _characters(self, offset: int) -> int:
        """Returns how many characters stand before an offset in bytes."""
        last = bisect_left(self._starts, offset) - 1
        if last < 0:
            return offset
        before = self._wide[last][: offset - self._starts[last]]
        return offset - self._more[last] - (len(before) - len(before.decode(errors="ignore")))


def _offset(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _page_in(chunk: Json) -> Json | None:
    """Returns the page of a piece of evidence; None: it has none."""
    for kind in ("web", "maps", "retrievedContext"):
        inner = object_of(chunk.get(kind))
        if url := text_of(inner.get("uri")):
            return {"url": url, "title": text_of(inner.get("title"))}
    return None


# --- Signatures, as a chat completion carries them to its caller and back ---


FORMATS: Final[Mapping[str, str]] = {"gemini": "google-gemini-v1", "vertex": "google-vertex-v1"}
"""The `format` of `reasoning_details`, by the issuer of their signatures.

The Gemini API and Vertex AI refuse each other's, so those of Vertex say whose they are.
"""
_GEMINI: Final = "gemini"
_ENCRYPTED: Final = "reasoning.encrypted"
_TEXT: Final = "reasoning.text"


def format_of(issuer: str) -> str:
    return FORMATS.get(issuer, FORMATS[_GEMINI])


def detail_of_signature(signature: str, issuer: str, index: int) -> Json:
    """Returns the signature of words, or of a picture, as a detail."""
    return {"type": _ENCRYPTED, "data": signature, "format": format_of(issuer), "index": index}


def extra_of_call(signature: str, issuer: str) -> Json:
    """Returns the `extra_content` of a call, where Google's own chat completions have its signature; all others are
    details.

    A model that thinks before it calls a tool wants the first call of a turn signed; for calls that another model made,
    Google documents a word that stands for a signature. Source: ai.google.dev, Thought signatures.
    """
    google = {"thought_signature": signature}
    return {"google": google if issuer != "vertex" else google | {"issuer": issuer}}


def signature_of_call(call: Json, issuer: str) -> str | None:
    """Returns a call's signature, if it is of this issuer; None: it has none, or another's."""
    if "extra_content" in call:
        google = object_of(object_of(call["extra_content"]).get("google"))
        signature = google.get("thought_signature")
        if isinstance(signature, str) and signature:
            return signature if google.get("issuer", _GEMINI) == (issuer or _GEMINI) else None
    id = call.get("id")
    if type(id) is not str or IN_ID not in id:
        return None
    signature = id.partition(IN_ID)[2]
    return signature if signature and issuer in ("", _GEMINI) else None


def signatures_in(message: Json, issuer: str) -> list[tuple[Any, str]]:
    """Returns the signatures of a message's details: each with the id of its call, or None where it is of words."""
    own = format_of(issuer)
    return [
        (detail.get("id"), data)
        for detail in objects(message.get("reasoning_details"))
        if detail.get("type") == _ENCRYPTED and is_own(detail, own) and (data := text_of(detail.get("data")))
    ]


def has_foreign(message: Json, issuer: str) -> bool:
    """Returns whether a message has details that another provider signed."""
    own = format_of(issuer)
    return not all(is_own(detail, own) for detail in objects(message.get("reasoning_details")))


def is_own(detail: Json, own: str) -> bool:
    """Returns whether a detail is of this format; clients may have put the same word together."""
    return text_of(detail.get("format")).startswith(own)


# --- A whole answer ---


FINISH: Final = {
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "MODEL_ARMOR": "content_filter",
    "ESCALATION": "content_filter",
    "PUP_LIMITED_DISABLED": "content_filter",
    "LANGUAGE": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
    "IMAGE_OTHER": "content_filter",
    "NO_IMAGE": "content_filter",
    "STOP": "stop",
    "TOO_MANY_TOOL_CALLS": "stop",
    "UNEXPECTED_TOOL_CALL": "stop",
}
"""The finish reason of a chat completion, by why a candidate ended; one that is not known, nor of GIVEN_UP, stays as it is."""
_OF_CALLS: Final = ("TOO_MANY_TOOL_CALLS", "UNEXPECTED_TOOL_CALL")
"""Reasons that find fault with a call. Where it is there, its caller can answer it, and the model goes on."""
_INTERNAL_FIELDS: Final = ("", "FINISH_REASON_UNSPECIFIED")
_TIERS: Final = {"standard": "default", "flex": "flex", "priority": "priority"}
_MOST_QUOTED: Final = 200
_CALLS_A_CANDIDATE: Final = 100


class Candidate:
    """What is known of one candidate."""

    __slots__ = (
        "_details",
        "_issuer",
        "_pictures",
        "_sent",
        "calls",
        "end",
        "index",
        "is_thinking",
        "message",
        "recorder",
        "words",
    )

    def __init__(self, sent: ConvertedRequest, index: int) -> None:
        self._sent, self._issuer = sent, sent.issuer
        self.index = index
        self.calls = self._details = self._pictures = 0
        self.recorder = SignatureRecorder() if sent.memory is not None and sent.body.get("tools") else None
        """The recorder of what is remembered of it; None: nothing is."""
        self.words = Words()
        self.is_thinking = False
        """The last part was a thought, which a next one goes on with."""
        self.end = ""
        """Why it ended, in the provider's word; empty: it has not. Some models say it more than once, the last word holds."""
        self.message = ""
        """What the provider says of that."""

    def read_end(self, candidate: Json) -> None:
        """Takes note of why a candidate ended. Raises MalformedAnswer where that means that it has failed."""
        reason = text_of(candidate.get("finishReason"))
        if reason in _INTERNAL_FIELDS:
            return
        self.message = text_of(candidate.get("finishMessage"))
        if reason in GIVEN_UP and not (reason in _OF_CALLS and self.calls):
            raise MalformedAnswer(
                f"the provider gave up on the answer ({reason}) {self.message[:_MOST_QUOTED]}".rstrip()
            )
        self.end = reason

    @property
    def finish(self) -> str:
        """Why it ended. A limit or a filter is never taken for calls (NousResearch/hermes-agent#43478)."""
        found = FINISH.get(self.end, self.end) or "stop"
        return "tool_calls" if found == "stop" and self.calls else found

    @property
    def refusal(self) -> str | None:
        """The words of the provider's on an answer that was filtered."""
        return (self.message or None) if self.finish == "content_filter" else None

    @property
    def thought(self) -> int:
        """The place of the open thought among the details."""
        return self._details - 1

    def delta(self, part: Json) -> Json:
        """Returns what a part adds to the message. Raises MalformedAnswer."""
        made = self._delta(part)
        if self.recorder is not None:
            self.recorder.take(made)
        return made

    def remember(self) -> None:
        if self.recorder is not None and self._sent.memory is not None:
            self.recorder.keep(self._sent.memory)

    def _delta(self, part: Json) -> Json:
        signature = text_of(part.get("thoughtSignature"))
        if isinstance(call := part.get("functionCall"), dict):
            return {"tool_calls": [self._call(call, signature)]}
        text = part.get("text")
        made: Json = {}
        if isinstance(text, str) and text:
            if part.get("thought") is True:
                made |= {"reasoning_content": text, "reasoning_details": [self._thought(text)]}
            else:
                self.is_thinking = False
                self.words.add(text)
                made["content"] = text
        elif isinstance(data := part.get("inlineData"), dict) and part.get("thought") is not True:
            made |= self._picture(data)
        if signature:
            detail = detail_of_signature(signature, self._issuer, self._next_detail())
            made.setdefault("reasoning_details", []).append(detail)
        return made

    def _thought(self, text: str) -> Json:
        is_first = not self.is_thinking
        index = self._next_detail() if is_first else self.thought
        self.is_thinking = True
        made: Json = {"type": _TEXT, "text": text, "index": index}
        # Of the pieces of one thought only the first has the format: clients put the strings of pieces together.
        return made | ({"format": format_of(self._issuer)} if is_first else {})

    def _next_detail(self) -> int:
        self._details += 1
        self.is_thinking = False
        return self._details - 1

    def _call(self, call: Json, signature: str) -> Json:
        name, given = call.get("name"), call.get("args")
        if not isinstance(name, str) or not name or not isinstance(given, dict | None):
            raise MalformedAnswer("a call of a tool has no name, or no object as its arguments")
        self.is_thinking = False
        index = self.calls
        self.calls += 1
        id = text_of(call.get("id")) or f"call_{self._sent.id}{self.index * _CALLS_A_CANDIDATE + index:02}"
        made: Json = {
            "index": index,
            "id": id,
            "type": "function",
            "function": {"name": self._sent.names.get(name, name), "arguments": _arguments(given)},
        }
        if signature:
            made["extra_content"] = extra_of_call(signature, self._issuer)
        return made

    def _picture(self, data: Json) -> Json:
        """Returns a picture as OpenRouter has it; chat completions of OpenAI's have none in a message."""
        kind, content = text_of(data.get("mimeType")), text_of(data.get("data"))
        if not kind.startswith("image/") or not content:
            return {}
        self.is_thinking = False
        self._pictures += 1
        url = {"url": f"data:{kind};base64,{content}"}
        return {"images": [{"index": self._pictures - 1, "type": "image_url", "image_url": url}]}


def _arguments(given: Json | None) -> str:
    try:
        return orjson.dumps(given).decode() if given else "{}"
    except orjson.JSONEncodeError as error:
        raise MalformedAnswer("the arguments of a call are nested too deeply") from error


def chat_of_generated(sent: ConvertedRequest, body: Json) -> Json:
    """Returns the chat completion. Raises MalformedAnswer."""
    choices = [_choice(sent, place, one) for place, one in enumerate(objects(body.get("candidates")))]
    if not choices:
        if (reason := blocked(body)) is None:
            raise MalformedAnswer("the answer has no candidates")
        message = {"role": "assistant", "content": "", "refusal": reason}
        choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": "content_filter"}]
    usage = read_usage(object_of(body.get("usageMetadata")))
    made = {**head(sent, body, "chat.completion"), "choices": choices}
    return made | ({"usage": chat_usage(usage)} if usage else {})


def _choice(sent: ConvertedRequest, place: int, source: Json) -> Json:
    candidate = Candidate(sent, index_of(source, place))
    message: Json = {"role": "assistant", "content": "", "refusal": None}
    message |= _merged(map(candidate.delta, objects(object_of(source.get("content")).get("parts"))))
    if "groundingMetadata" in source and (cited := candidate.words.cited(source["groundingMetadata"])):
        message["annotations"] = cited
    candidate.read_end(source)
    if not candidate.end and len(message) == 3 and not message["content"]:
        raise MalformedAnswer("the answer is empty, and has no end")
    candidate.remember()
    for call in message.get("tool_calls", ()):
        del call["index"]
    if candidate.calls and not message["content"]:
        message["content"] = None
    message["refusal"] = candidate.refusal
    return {
        "index": candidate.index,
        "message": message,
        "logprobs": logprobs_of(source),
        **finish_fields(sent, candidate.finish, has_calls=candidate.calls > 0),
    }


def _merged(deltas: Iterable[Json]) -> Json:
    """Returns all that these add to a message."""
    lists: Json = {}
    words: dict[str, list[str]] = {}
    thoughts: dict[int, list[str]] = {}
    """The pieces of details of reasoning that go on, by their places."""
    for delta in deltas:
        for name, value in delta.items():
            if isinstance(value, str):
                words.setdefault(name, []).append(value)
                continue
            held = lists.setdefault(name, [])
            for one in value:
                if name == "reasoning_details" and held and held[-1]["index"] == one["index"]:
                    thoughts.setdefault(len(held) - 1, [held[-1]["text"]]).append(one["text"])
                else:
                    held.append(one)
    for place, pieces in thoughts.items():
        lists["reasoning_details"][place]["text"] = "".join(pieces)
    return {name: "".join(pieces) for name, pieces in words.items()} | lists


def head(sent: ConvertedRequest, body: Json, kind: str) -> Json:
    tier = _TIERS.get(text_of(object_of(body.get("usageMetadata")).get("serviceTier")).lower())
    return chat_head(sent, kind, id=body.get("responseId"), model=text_of(body.get("modelVersion")), tier=tier)


def index_of(candidate: Json, place: int) -> int:
    """Returns a candidate's number; the provider leaves a 0 out at times."""
    index = candidate.get("index")
    return index if type(index) is int and index >= 0 else place


def blocked(body: Json) -> str | None:
    """Returns why a prompt was not answered; None: it was."""
    feedback = object_of(body.get("promptFeedback"))
    reason = text_of(feedback.get("blockReason"))
    message = text_of(feedback.get("blockReasonMessage"))
    return (f"{reason}: {message}" if message else reason) if reason else None


def logprobs_of(candidate: Json) -> Json | None:
    """Returns the probabilities of a candidate's tokens; None: it has none."""
    result = candidate.get("logprobsResult")
    if not isinstance(result, dict):
        return None
    tops = objects(result.get("topCandidates"))
    content = []
    for number, chosen in enumerate(objects(result.get("chosenCandidates"))):
        others = objects(tops[number].get("candidates")) if number < len(tops) else []
        content.append(_token(chosen) | {"top_logprobs": [_token(one) for one in others]})
    return {"content": content, "refusal": None} if content else None


def _token(source: Json) -> Json:
    token = text_of(source.get("token"))
    # Surrogates that stand for half a character have no bytes.
    return {"token": token, "logprob": source.get("logProbability"), "bytes": list(token.encode(errors="replace"))}


# --- The stream ---


_MALFORMED: Final = TOO_LONG
_MORE_WORDS: Final = frozenset(("content", "index"))
"""The fields of a candidate that brings more of its answer and nothing else."""
_THOUGHT: Final = frozenset(("text", "thought"))
_THINKS: Final = b'%b"reasoning_content":%b,"reasoning_details":[{"type":"reasoning.text","text":%b,"index":%d}]%b'


class GenerateAsChat(ConvertingReader):
    """Reads the events of an answer; implements `base.Reader`.

    Each of the provider's events is an answer with what is new. There is no last one: an answer has come to its end when
    each candidate has a reason why it ended, and the stream was not cut. Newer models have it in an event behind that with
    their calls (envoyproxy/ai-gateway#2399), older ones more than once, so the finish reasons are written with the end. No
    word is held back.
    """

    def __init__(self, sent: ConvertedRequest) -> None:
        super().__init__()
        self._sent = sent
        self._out = ChatStreamWriter(sent)
        self._candidates: dict[int, Candidate] = {}
        self._before: dict[int, bytes] = {}
        """All that stands before the delta in a piece, by candidate."""
        self._blocked: str | None = None

    def _at_end(self, *, is_clean: bool) -> bytes:
        """A clean end is one where each candidate has a reason why it ended; elsewhere the stream was cut."""
        if self._is_over or not is_clean or not self._out.head:
            return b""
        if not self._candidates and self._blocked is None:
            return b""
        if not all(candidate.end for candidate in self._candidates.values()):
            return b""
        return self._finish()

    def _read(self, event: bytes) -> bytes:
        if self._is_over:
            return b""
        parsed = json_object(data_of(event))
        return self._read_odd(event) if parsed is None or "error" in parsed else self._take(parsed)

    def _read_odd(self, event: bytes) -> bytes:
        """Reads what is no event of the usual form: an error, a comment, nonsense."""
        if (error := error_in(event)) is not None:
            return self._fail(error)
        data = event_data(event).strip()
        parsed = json_object(data)
        if parsed is not None:
            return self._take(parsed)
        if data == DONE:  # which is written at the end of the stream
            return b""
        if not data and is_silent(event):
            return event + b"\n\n" if event.startswith(b":") else b""  # clients take a name without data for an event
        self._is_over = True
        return event + b"\n\n"  # whoever follows the stream says what is wrong with it

    def _take(self, event: Json) -> bytes:
        if (usage := event.get("usageMetadata")) is not None:
            self.reported = usage
        if not self._out.head:
            self._out.head = head(self._sent, event, "chat.completion.chunk")
        candidates = event.get("candidates")
        if type(candidates) is not list or not candidates:
            self._blocked = blocked(event) or self._blocked
            return b""
        if len(candidates) == 1 and type(candidates[0]) is dict:
            return self._read_candidate(candidates[0], 0)
        return b"".join([self._read_candidate(one, place) for place, one in enumerate(objects(candidates))])

    def _read_candidate(self, source: Json, place: int) -> bytes:
        if self._is_over:  # another one has failed
            return b""
        index = source.get("index", place)
        before = self._before.get(index) if type(index) is int else None
        content = source.get("content")
        parts = content.get("parts") if type(content) is dict else None
        if before is not None and type(parts) is list and len(parts) == 1 and source.keys() <= _MORE_WORDS:
            part = parts[0]
            text = part.get("text") if type(part) is dict else None
            if type(text) is str and text:
                candidate = self._candidates[index]
                if len(part) == 1:
                    candidate.is_thinking = False
                    candidate.words.add(text)
                    if candidate.recorder is not None:
                        candidate.recorder.add_text(text)
                    return b'%b"content":%b%b' % (before, orjson.dumps(text), AFTER)
                if candidate.is_thinking and part.keys() == _THOUGHT and part["thought"] is True:
                    return _THINKS % (before, words := orjson.dumps(text), words, candidate.thought, AFTER)
        return self._read_candidates(source, index_of(source, place), objects(parts))

    def _read_candidates(self, event: Json, index: int, parts: list[Json]) -> bytes:
        made = bytearray()
        candidate = self._candidates.get(index)
        if candidate is None:
            candidate = self._candidates[index] = Candidate(self._sent, index)
            made += self._begin(index)
        before = self._before[index]
        try:
            for part in parts:
                delta = candidate.delta(part)
                if delta:
                    made += b"%b%b%b" % (before, orjson.dumps(delta)[1:-1], AFTER)
            if "groundingMetadata" in event and (cited := candidate.words.cited(event["groundingMetadata"])):
                made += b"%b%b%b" % (before, orjson.dumps({"annotations": cited})[1:-1], AFTER)
            if "logprobsResult" in event and (logprobs := logprobs_of(event)) is not None:
                made += self._out.choice({"index": index, "delta": {}, "logprobs": logprobs, "finish_reason": None})
            if "finishReason" in event:
                candidate.read_end(event)
        except MalformedAnswer as error:
            made += self._fail({"message": str(error), "code": _MALFORMED})
        return bytes(made)

    def _begin(self, index: int) -> bytes:
        self._before[index] = before = self._out.before_choice(index)
        return self._out.role(before)

    def _finish(self) -> bytes:
        self._is_over = True
        made = bytearray()
        if not self._candidates:
            made += self._begin(0)
            made += self._end(0, "content_filter", self._blocked)
        for index, candidate in self._candidates.items():
            candidate.remember()
            made += self._end(index, candidate.finish, candidate.refusal, has_calls=candidate.calls > 0)
        return bytes(made) + self._out.end(read_usage(object_of(self.reported)))

    def _end(self, index: int, finish: str, refusal: str | None, *, has_calls: bool = False) -> bytes:
        events = b""
        if refusal:
            events = b'%b"refusal":%b%b' % (self._before[index], orjson.dumps(refusal), AFTER)
        ended = finish_fields(self._sent, finish, has_calls=has_calls)
        return events + self._out.choice({"index": index, "delta": {}, **ended})

    def _fail(self, error: Json) -> bytes:
        self._is_over = True
        return self._out.failure(error, has_begun=bool(self._candidates))
