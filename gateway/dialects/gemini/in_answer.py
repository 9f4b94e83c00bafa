"""What chat completions answer, for callers of generateContent.

In this order: names of fields, which Google's APIs take in two forms; signatures of other providers on their way through a
client; the whole answer; the stream, each event of which is an answer with what is new.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any, Final

import orjson

from gateway.core.openai.json_edit import is_too_deep
from gateway.core.openai.sse import error_json, first_error, json_object
from gateway.core.types import Gap, How, Usage
from gateway.dialects.base import (
    ENDED_WELL,
    ConvertedRequest,
    Json,
    MalformedAnswer,
    finish_in,
    generated_usage,
    is_no_argument,
    object_of,
    objects,
    text_of,
    usage_of_answer,
)
from gateway.dialects.gemini.out_answer import FORMATS
from gateway.dialects.issuers import NOT_ITS_OWN, STAND_IN, read_exactly, written
from gateway.dialects.openai.responses_answer import argument_in, named_in, pieces_in, words_in
from gateway.dialects.schema_tools.chat_parts import data_url
from gateway.dialects.shapes import generate_error
from gateway.dialects.streams import ChatStreamReader, data_of

# --- Names of fields ---


_STEP: Final = re.compile(r"(?<=[a-z0-9])_([a-z0-9])")


def camel(value: Any) -> Json:
    """Returns an object with all its names in camel case; an empty one where the value is none.

    Google's APIs take `inlineData` as its JSON has it, or `inline_data` as its protocol buffers do. Source: protobuf.dev,
    ProtoJSON: parsers take both.
    """
    given = object_of(value)
    for name in given:
        if "_" in name:
            return {_STEP.sub(lambda found: found[1].upper(), one): inner for one, inner in given.items()}
    return given


def inner(value: Json, name: str) -> Json:
    """Returns the object in a field of an object, both with their names in camel case."""
    return camel(value.get(name))


def listed(value: Any) -> list[Any]:
    """Returns a list as it is; one thing that stands where a list is wanted as the only one of it, and nothing as none."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


# --- Signatures of other providers, on their way through a client and back ---


_BEGIN: Final = b"gw1"
MARK: Final = urlsafe_b64encode(_BEGIN).decode()
"""How a mark begins: three bytes are four characters of Base64, whatever follows."""
FOREIGN: Final = urlsafe_b64encode(_BEGIN + b"{}").decode()
"""Marks a turn's first call that nobody signed: Gemini refuses to go on from its own without a signature."""
IN_BODY: Final = b'"' + MARK.encode()
_BOTH: Final = str.maketrans("+/", "-_")


def marked(holds: Json) -> str | None:
    """Returns a mark with what is to come back; None where that is nested too deeply to be written again.

    Clients repeat a turn's parts as they got them, each with its `thoughtSignature`, which has to be Base64. What another
    provider signed rides there in a mark of ours. It is for its own target only: what goes to Gemini is freed of it.
    """
    try:
        return urlsafe_b64encode(_BEGIN + orjson.dumps(holds)).decode()
    except orjson.JSONEncodeError:
        return None


def held_by(signature: str) -> Json | None:
    """Returns what a mark of ours holds; None: it is none of ours, but a signature of Gemini's."""
    if not signature.startswith(MARK):
        return None
    given = signature.translate(_BOTH).rstrip("=")
    try:
        return json_object(urlsafe_b64decode(given + "=" * (-len(given) % 4))[len(_BEGIN) :])
    except ValueError:
        return None


def without_marks(body: bytes) -> bytes:
    """Returns a request for Gemini without the signatures that only other providers' targets understand.

    Costs one search where there are none, and then the very bytes come back.
    """
    return without_signatures(body, _is_mark)[0] if IN_BODY in body else body


def without_signatures(body: bytes, is_left: Callable[[str], bool]) -> tuple[bytes, list[Gap]]:
    """Returns a request for Gemini without such signatures, and what that loses; the very bytes where there are none.

    A call has Google's word for none instead; a turn's first call that nobody signed, too, if `is_left` says so of none.
    """
    parsed = read_exactly(body)
    contents = None if parsed is None else parsed.get("contents")
    if parsed is None or not isinstance(contents, list):
        return body, []
    kept = [_freed(one, is_left) for one in contents]
    if all(one is other for one, other in zip(kept, contents, strict=True)):
        return body, []
    lost = Gap("contents.thoughtSignature", How.DROPPED, NOT_ITS_OWN)
    return written({**parsed, "contents": kept}, body), [lost]


def _freed(content: Any, is_left: Callable[[str], bool]) -> Any:
    parts = content.get("parts") if isinstance(content, dict) else None
    first = next((part for part in objects(parts) if "functionCall" in camel(part)), None)

    def has_foreign(part: Json) -> bool:
        signature = camel(part).get("thoughtSignature")
        if not isinstance(signature, str):
            return part is first and is_left("")
        return signature != STAND_IN and is_left(signature)

    if not any(map(has_foreign, objects(parts))):
        return content
    made: list[Any] = []
    for part in parts or ():
        if not isinstance(part, dict) or not has_foreign(part):
            made.append(part)
        elif not part.get("thought"):
            named = camel(part)
            rest = {name: value for name, value in named.items() if name != "thoughtSignature"}
            made.append(rest | ({"thoughtSignature": STAND_IN} if "functionCall" in rest else {}))
    return {**content, "parts": made}


def _is_mark(signature: str) -> bool:
    return held_by(signature) is not None


# --- The whole answer: each choice is a candidate, its message becomes parts ---


FINISH: Final = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}
"""Why a candidate ended, by the finish reason of a chat completion; a good end is a STOP, with calls of tools too."""
_GEMINI: Final = FORMATS["gemini"]


def generated(sent: ConvertedRequest, body: Json) -> Json:
    """Returns the answer. Raises MalformedAnswer where there is none, or a call in it makes no sense.

    Thoughts in words are shown where the caller wants them (`includeThoughts`); what proves whose they are rides in any
    case.
    """
    choices = objects(body.get("choices"))
    if not choices:
        raise MalformedAnswer("the answer has no choices")
    usage = usage_of_answer(body)
    made: Json = {"candidates": [_candidate(sent, place, one) for place, one in enumerate(choices)]}
    return made | ({"usageMetadata": generated_usage(usage)} if usage else {}) | head(sent, body)


def head(sent: ConvertedRequest, body: Json) -> Json:
    model = text_of(body.get("model")) or text_of(sent.source.get("model"))
    return {"modelVersion": model, "responseId": sent.id}


def shows_thoughts(sent: ConvertedRequest) -> bool:
    """Returns whether the caller wants to read what the model thinks."""
    thinking = inner(inner(camel(sent.source), "generationConfig"), "thinkingConfig")
    return thinking.get("includeThoughts") is True


def parts_of_details(details: list[Json], *, shows: bool) -> list[Json]:
    """Returns the parts that thoughts become that somebody has signed."""
    made: list[Json] = []
    for detail in details:
        own = text_of(detail.get("format")).startswith(_GEMINI)
        words = text_of(detail.get("text")) or text_of(detail.get("summary"))
        proof = text_of(detail.get("data")) or text_of(detail.get("signature"))
        if own and proof and not detail.get("id"):
            made.append({"text": "", "thoughtSignature": proof})
        elif proof and (mark := marked({"detail": _held(detail, shows=shows and bool(words))})) is not None:
            made.append({"text": words if shows else "", "thought": True, "thoughtSignature": mark})
        elif words and shows:
            made.append({"text": words, "thought": True})
    return made


def part_of_call(sent: ConvertedRequest, place: int, name: str, text: str, call: Json) -> Json:
    """Returns the part that a call becomes. Raises MalformedAnswer where its arguments are no object."""
    args = {} if is_no_argument(text) else json_object(text.encode())
    if args is None or not name or is_too_deep(text.encode()):
        raise MalformedAnswer(f"the arguments of the call of '{name}' are not a JSON object")
    id = text_of(call.get("id")) or f"call_{sent.id}{place:02}"
    made: Json = {"functionCall": {"name": sent.names.get(name, name), "args": args, "id": id}}
    extra = object_of(call.get("extra_content"))
    google = object_of(extra.get("google"))
    signature = text_of(google.get("thought_signature"))
    if signature and "issuer" not in google:
        made["thoughtSignature"] = signature
    elif extra and (mark := marked({"extra_content": extra})) is not None:
        made["thoughtSignature"] = mark
    elif not place:
        made["thoughtSignature"] = FOREIGN
    return made


def end_of(choice: Json, *, refusal: str = "") -> Json:
    finish = finish_in(choice)
    reason = FINISH.get(finish) or ("SAFETY" if refusal else "STOP")
    if finish not in (*FINISH, *ENDED_WELL):
        return {"finishReason": "OTHER", "finishMessage": f"the provider's reason: {finish}"}
    return {"finishReason": reason} | ({"finishMessage": refusal} if refusal else {})


def is_cut(choice: Json) -> bool:
    """Returns whether the answer ended before it was whole."""
    return finish_in(choice) in FINISH


def logprobs_of(choice: Json) -> Json:
    tokens = objects(object_of(choice.get("logprobs")).get("content"))
    if not tokens:
        return {}
    chosen = [_token(one) for one in tokens]
    top = [{"candidates": [_token(other) for other in objects(one.get("top_logprobs"))]} for one in tokens]
    result: Json = {"chosenCandidates": chosen} | (
        {"topCandidates": top} if any(one["candidates"] for one in top) else {}
    )
    return {"logprobsResult": result}


def pictures_of(message: Json) -> list[Json]:
    """Returns the parts of pictures that the model has made."""
    made: list[Json] = []
    for image in objects(message.get("images")):
        media = data_url(text_of(object_of(image.get("image_url")).get("url")))
        if media is not None:
            made.append({"inlineData": {"mimeType": media.type, "data": media.data}})
    return made


def citations_of(message: Json) -> Json:
    cited = [object_of(one.get("url_citation")) for one in objects(message.get("annotations"))]
    sources = [
        {name: one[ours] for name, ours in _CITED if one.get(ours) is not None}
        for one in cited
        if text_of(one.get("url"))
    ]
    return {"citationMetadata": {"citationSources": sources}} if sources else {}


_CITED: Final = (("uri", "url"), ("title", "title"), ("startIndex", "start_index"), ("endIndex", "end_index"))


def _candidate(sent: ConvertedRequest, place: int, choice: Json) -> Json:
    message = choice.get("message")
    if not isinstance(message, dict):
        raise MalformedAnswer("the answer has no message")
    shows = shows_thoughts(sent)
    thought, text = words_in(message)
    details = objects(message.get("reasoning_details"))
    parts = parts_of_details(details, shows=shows)
    if thought and shows and not any(part.get("thought") and part["text"] for part in parts):
        parts.insert(0, {"text": thought, "thought": True})
    refusal = text_of(message.get("refusal"))
    parts += [{"text": words} for words in (text, refusal) if words] + pictures_of(message)
    for number, call in enumerate(pieces_in(message)):
        named = named_in(call)
        name, text = text_of(named.get("name")), argument_in(named)
        if not (is_cut(choice) and json_object(text.encode()) is None):  # what was cut off is no call
            parts.append(part_of_call(sent, number, name, text, call))
    index = choice.get("index")
    return {
        "content": {"role": "model", "parts": parts},
        **end_of(choice, refusal=refusal),
        "index": index if type(index) is int else place,
        **citations_of(message),
        **logprobs_of(choice),
    }


def _held(detail: Json, *, shows: bool) -> Json:
    """Returns what a mark holds of a detail: its words too, where they do not stand beside it."""
    left_out = ("text", "summary", "index") if shows else ("index",)
    return {name: value for name, value in detail.items() if name not in left_out}


def _token(one: Json) -> Json:
    return {"token": text_of(one.get("token")), "logProbability": one.get("logprob")}


# --- The stream ---


_BEFORE: Final = b'data: {"candidates":[{"content":{"parts":[{"text":%b}],"role":"model"},"index":0}]%b\n\n'

_GROWING: Final = ("text", "summary", "signature", "data")
"""The fields of a detail of reasoning that come in pieces."""


class _Call:
    """A call whose pieces come."""

    def __init__(self) -> None:
        self.pieces: Json = {}
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
    """What is known of one choice."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.by_index: dict[int, _Call] = {}
        """The call that pieces with an index belong to."""
        self.last_call = 0
        """The highest of their numbers."""
        self.details: dict[int, _Detail] = {}
        """Signed thoughts, whose pieces come."""
        self.cited: list[Json] = []
        self.has_sent_thoughts = False
        self.refusal: list[str] = []
        self.end: Json | None = None


class ChatAsGenerate(ChatStreamReader):
    """Reads pieces of a chat completion; implements `base.Reader`.

    Words leave in the chunk that they came in. A call leaves when it is whole, as Gemini's do; the end, when the usage is
    known.
    """

    passes_comments = False  # Google's own clients take one for a part of an answer

    def __init__(self, sent: ConvertedRequest) -> None:
        super().__init__()
        self._sent = sent
        self._shows = shows_thoughts(sent)
        self._candidates: dict[int, _Candidate] = {}
        self._tail = b""
        """What every event ends with, once the model is known."""
        self._head: Json = {}
        self.reported: Usage | None = None
        self._has_sent = False
        """Some of the answer has left."""

    def _read(self, event: bytes) -> bytes:
        if self._is_over:
            return b""
        parsed = json_object(data_of(event))
        if parsed is None or "error" in parsed:
            return self._read_odd(event)
        choices = parsed.get("choices")
        if type(choices) is list and len(choices) == 1 and self._tail and type(choices[0]) is dict:
            choice = choices[0]
            delta = choice.get("delta")
            if (
                type(delta) is dict
                and not choice.get("index")
                and not choice.get("finish_reason")
                and not parsed.get("usage")
            ):
                text = delta.get("content")
                if type(text) is str and text and not choice.get("logprobs") and len(delta) == 1 + ("role" in delta):
                    self._has_sent = True
                    return _BEFORE % (orjson.dumps(text), self._tail) if not self._is_thinking() else self._take(parsed)
        return self._read_odd(event) if first_error(event) is not None else self._take(parsed)

    def _is_thinking(self) -> bool:
        candidate = self._candidates.get(0)
        return candidate is not None and bool(candidate.details)

    def _take(self, chunk: Json) -> bytes:
        if not self._tail:
            self._head = head(self._sent, chunk)
            self._tail = b"," + orjson.dumps(self._head)[1:]
        self.reported = usage_of_answer(chunk) or self.reported
        made = []
        try:
            for choice in objects(chunk.get("choices")):
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
                candidate.has_sent_thoughts = True
            candidate.cited += objects(delta.get("annotations"))
            pieces = pieces_in(delta)
            if text or pieces or delta.get("refusal"):
                parts += self._signed_parts(candidate)
            refusal = text_of(delta.get("refusal"))
            if refusal:
                candidate.refusal.append(refusal)
            parts += [{"text": words} for words in (text, refusal) if words] + pictures_of(delta)
            for piece in pieces:
                named = named_in(piece)
                call = _call_of(candidate, piece, is_named=bool(named.get("name")))
                call.name = call.name or text_of(named.get("name"))
                call.text.append(argument_in(named))
                call.pieces = {name: piece[name] for name in ("id", "extra_content") if piece.get(name)} | call.pieces
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and candidate.end is None:
            parts += self._signed_parts(candidate)
            for place, call in enumerate(candidate.calls):
                text = "".join(call.text)
                if not (is_cut(choice) and json_object(text.encode()) is None):  # what was cut off is no call
                    parts.append(part_of_call(self._sent, place, call.name, text, call.pieces))
            candidate.end = end_of(choice, refusal="".join(candidate.refusal))
        logprobs = logprobs_of(choice)
        if not parts and not logprobs:
            return []
        self._has_sent = True
        inner = {"content": {"parts": parts, "role": "model"}, "index": index, **logprobs}
        return [b"data: %b\n\n" % orjson.dumps({"candidates": [inner], **self._head})]

    def _signed_parts(self, candidate: _Candidate) -> list[Json]:
        """Returns the parts with the signatures of the thoughts so far."""
        details, candidate.details = candidate.details, {}
        thoughts = [one.whole() for one in details.values()]
        signed = [one for one in thoughts if one.get("data") or one.get("signature")]
        has_sent = candidate.has_sent_thoughts
        made = parts_of_details(signed, shows=has_sent)
        return [{**part, "text": ""} if part.get("thought") and has_sent else part for part in made]

    def _end(self) -> bytes:
        """Writes why each candidate ended, if all did."""
        if self._is_over or not self._candidates or any(one.end is None for one in self._candidates.values()):
            return b""
        self._is_over = True
        empty = {"parts": [{"text": ""}], "role": "model"}
        ended: list[Json] = [
            {"content": empty, **(one.end or {}), "index": index, **citations_of({"annotations": one.cited})}
            for index, one in sorted(self._candidates.items())
        ]
        usage = {} if self.reported is None else {"usageMetadata": generated_usage(self.reported)}
        made = {"candidates": ended} | usage | self._head
        return b"data: %b\n\n" % orjson.dumps(made)

    def _fail(self, error: Json) -> bytes:
        """Writes the error that the provider has reported; nothing follows.

        Before any output it is not for the caller yet: whoever looks for another target reads all that the provider said.
        """
        self._is_over = True
        return b"data: %b\n\n" % error_json(generate_error(error) if self._has_sent else error)


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


def _call_of(candidate: _Candidate, piece: Json, *, is_named: bool) -> _Call:
    """Returns the call that a piece belongs to. Some servers number none, or all of several calls alike, but name each."""
    index, id = piece.get("index"), text_of(piece.get("id"))
    if type(index) is not int:
        index = len(candidate.calls) if id or not candidate.calls else candidate.last_call
    candidate.last_call = max(index, candidate.last_call)
    call = candidate.by_index.get(index)
    if call is not None and id and is_named and call.pieces.get("id") not in (None, id):
        call = None
    if call is None:
        call = candidate.by_index[index] = _Call()
        candidate.calls.append(call)
    return call
