"""Writes the text of an answer: words that follow from the seed and the prompt alone.

An answer starts by quoting the prompt, so that a reader sees which call it belongs to, and goes on with drawn words up
to its length. It must not know the shape of a body. Invariant: same config and same prompt, same pieces.
"""

from __future__ import annotations

import base64
import io
import math
import random
import re
import struct
import wave
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from statistics import NormalDist
from typing import Any

import orjson

from gateway.emulator.answers.reply import EmulatedReply, Stream, frame, json_reply
from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.config.config import EmulatorConfig
from gateway.emulator.dialects.dialects import PromptCache

# A response as the stream of named events that the Responses API makes of it.
#
# Invariant: sequence numbers count up by one from 0 through a stream, and only `tail` carries the terminal event.


_Event = tuple[str, dict[str, Any]]


def stream_of(pieces: Sequence[str], opened: dict[str, Any], closed: dict[str, Any], item: Mapping[str, Any]) -> Stream:
    """Returns the events of a response with one item: `opened` before there is any, `closed` at its end; a piece is a delta."""
    is_call = item["type"] == "function_call"
    lead, tail = _around_call(item) if is_call else _around_text(item)
    kind = "response.function_call_arguments.delta" if is_call else "response.output_text.delta"
    place = {"item_id": item["id"], "output_index": 0} | ({} if is_call else {"content_index": 0, "logprobs": []})
    empty: dict[str, Any] = {"arguments": ""} if is_call else {"content": []}
    lead = [
        ("response.created", {"response": opened}),
        ("response.in_progress", {"response": opened}),
        ("response.output_item.added", {"output_index": 0, "item": {**item, "status": "in_progress", **empty}}),
        *lead,
    ]
    end = "response.completed" if closed["status"] == "completed" else "response.incomplete"
    tail = [*tail, ("response.output_item.done", {"output_index": 0, "item": item}), (end, {"response": closed})]
    return Stream(
        lead=_frames(lead, 0),
        frames=_deltas(kind, place, pieces, len(lead)),
        tail=_frames(tail, len(lead) + len(pieces)),
        tokens=len(pieces),
        error_frame=response_error,
    )


def response_error(error_body: bytes) -> bytes:
    """Returns an error event as seen on the wire: the error nested under its own key."""
    return b'event: error\ndata: {"type":"error","sequence_number":2,' + error_body[1:] + b"\n\n"


def _around_text(item: Mapping[str, Any]) -> tuple[list[_Event], list[_Event]]:
    """Returns the events before and behind the pieces of a message's text."""
    (part,) = item["content"]
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    return (
        [("response.content_part.added", place | {"part": part | {"text": ""}})],
        [
            ("response.output_text.done", place | {"text": part["text"], "logprobs": []}),
            ("response.content_part.done", place | {"part": part}),
        ],
    )


def _around_call(item: Mapping[str, Any]) -> tuple[list[_Event], list[_Event]]:
    """Returns the events before and behind the pieces of a call's arguments."""
    place = {"item_id": item["id"], "output_index": 0}
    done = place | {"name": item["name"], "arguments": item["arguments"]}
    return [], [("response.function_call_arguments.done", done)]


def _frames(events: Sequence[_Event], first: int) -> bytes:
    return b"".join(
        frame({"type": name, "sequence_number": number} | fields, name)
        for number, (name, fields) in enumerate(events, first)
    )


def _deltas(kind: str, place: dict[str, Any], pieces: Sequence[str], first: int) -> Iterator[bytes]:
    opening = orjson.dumps({"type": kind} | place)[:-1]
    before = b"event: " + kind.encode() + b"\ndata: " + opening + b',"delta":'
    for number, piece in enumerate(pieces, first):
        yield before + orjson.dumps(piece) + b',"sequence_number":%d}\n\n' % number


_PROSE = (
    "the a this that every one some few many most other next last first small large quiet plain steady bright early late"
    " river field house garden road bridge window letter number signal engine season morning evening answer question"
    " moves turns holds keeps finds shows brings carries follows opens closes begins ends meets leaves returns waits"
    " slowly quickly often always never soon again here there near far above below between within without toward"
)
_CYCLE = 4096
_STEPS = 1024
_NORMAL = tuple(NormalDist().inv_cdf((step + 0.5) / _STEPS) for step in range(_STEPS))


@dataclass(frozen=True, slots=True)
class Draft:
    """The text of one choice in pieces of one token each; `tool` names the function it calls, if it calls one."""

    pieces: Sequence[str]
    finish_reason: str
    tool: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@lru_cache(maxsize=8)  # a reset of the emulator keeps its seed
def _cycle_of(seed: int) -> tuple[str, ...]:
    """Returns the filler words of a seed, in the order in which they come round."""
    drawn = random.Random(seed)  # noqa: S311 - filler words, not secrets
    return tuple(" " + word for word in drawn.choices(_PROSE.split(), k=_CYCLE))


class Writer:
    """Writes drafts for one config; `wall` is the time of day in epoch seconds."""

    def __init__(self, config: EmulatorConfig, rng: random.Random, wall: Callable[[], float]) -> None:
        self.dialect = config.dialect
        self.prompt_cache = PromptCache(wall)
        """What the providers' own APIs have seen of prompts."""
        self._rng = rng
        self._wall = wall
        self._key = str(config.seed).encode()[:64]
        self._median = config.output_tokens
        self._sigma = config.output_sigma
        self._cycle = _cycle_of(config.seed)

    def created(self) -> int:
        """Returns the time in epoch seconds."""
        return int(self._wall())

    def new_id(self, prefix: str) -> str:
        """Returns a fresh id such as `chatcmpl-` + 24 hex digits."""
        return f"{prefix}{self._rng.getrandbits(96):024x}"

    def prose(self, request: CheckedRequest, choice: int = 0) -> Draft:
        """Returns a plain text answer."""
        digest = self._digest(request, choice)
        length = self._length(digest)
        opening = ["emulated", " answer", " to:", *(" " + word for word in request.echo[:120].split()[:12])]
        pieces = opening + self._filler(digest, length - len(opening))
        return _cut(pieces[:length], request.max_tokens, "stop")

    def json(self, request: CheckedRequest, value: object) -> Draft:
        """Returns an answer that is the JSON of `value`."""
        return _cut(_split(orjson.dumps(value).decode()), request.max_tokens, "stop")

    def call(self, request: CheckedRequest, tool: str, schema: object) -> Draft:
        """Returns an answer that calls `tool` with arguments that fit its JSON schema."""
        arguments = orjson.dumps(example_of(schema)).decode() if isinstance(schema, dict) else "{}"
        draft = _cut(_split(arguments), request.max_tokens, "tool_calls")
        return Draft(draft.pieces, draft.finish_reason, tool)

    def _digest(self, request: CheckedRequest, choice: int) -> int:
        hashed = blake2b(request.prompt.encode("utf-8", "replace"), digest_size=8, key=self._key, salt=b"%d" % choice)
        return int.from_bytes(hashed.digest(), "big")

    def _length(self, digest: int) -> int:
        if not self._sigma:
            return self._median
        return max(1, round(self._median * math.exp(self._sigma * _NORMAL[digest % _STEPS])))

    def _filler(self, digest: int, count: int) -> list[str]:
        start = (digest >> 10) % _CYCLE
        words = list(self._cycle[start : start + max(0, count)])
        while len(words) < count:
            words += self._cycle[: count - len(words)]
        return words


def example_of(schema: Mapping[str, Any]) -> object:
    """Returns a value that fits a JSON schema, as far as types, enums, references and unions go."""
    return _example(schema, schema, 0)


def _example(schema: object, root: Mapping[str, Any], depth: int) -> object:
    if not isinstance(schema, Mapping) or depth > 16:
        return None
    if "const" in schema:
        return schema["const"]
    for union in ("anyOf", "oneOf", "allOf", "enum"):
        options = schema.get(union)
        if isinstance(options, list) and options:
            return options[0] if union == "enum" else _example(options[0], root, depth + 1)
    if isinstance(schema.get("$ref"), str):
        return _example(_resolve(schema["$ref"], root), root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    match kind:
        case "object":
            properties = schema.get("properties")
            given = properties if isinstance(properties, Mapping) else {}
            return {name: _example(each, root, depth + 1) for name, each in given.items()}
        case "array":
            return [_example(schema.get("items"), root, depth + 1)] if schema.get("items") else []
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case "null":
            return None
    return "emulated"


def _resolve(reference: str, root: Mapping[str, Any]) -> object:
    found: object = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if step:
            found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _split(text: str) -> list[str]:
    return [text[start : start + 4] for start in range(0, len(text), 4)]


def _cut(pieces: Sequence[str], cap: int | None, finish_reason: str) -> Draft:
    if cap is not None and cap < len(pieces):
        return Draft(pieces[:cap], "length")
    return Draft(pieces, finish_reason)


# Images, speech and transcriptions: the smallest valid file of each kind.
#
# It must not know HTTP. Invariant: the bytes are the same in every process.


def answer_image(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers with one grey pixel per image asked for, as base64 PNG."""
    image = {"b64_json": _PIXEL, "revised_prompt": request.prompt}
    usage = {"input_tokens": request.prompt_tokens, "output_tokens": request.choices, "total_tokens": 0}
    usage["total_tokens"] = usage["input_tokens"] + usage["output_tokens"]
    details = {"input_tokens_details": {"text_tokens": request.prompt_tokens, "image_tokens": 0}}
    return json_reply({"created": writer.created(), "data": [image] * request.choices, "usage": usage | details})


def answer_speech(_ask: CheckedRequest, _writer: Writer) -> EmulatedReply:
    """Answers with a twentieth of a second of silence, as WAV whatever format was asked for."""
    return EmulatedReply(body=_SILENCE, content_type=b"audio/wav")


def answer_transcription(_ask: CheckedRequest, _writer: Writer) -> EmulatedReply:
    """Answers with the text of any recording."""
    return json_reply({"text": "emulated transcription"})


def _png(grey: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    pixel = zlib.compress(bytes([0, grey]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")


def _wav(frames: int) -> bytes:
    sink = io.BytesIO()
    with wave.open(sink, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(2 * frames))
    return sink.getvalue()


_PIXEL = base64.b64encode(_png(128)).decode()
_SILENCE = _wav(400)


# Embeddings: the bag of a text's words hashed to a unit vector, so that similar texts are near each other.
#
# Each word adds or subtracts one in a few dimensions that its hash picks. It must not know HTTP. Invariant: the same text
# gives the same vector of length 1, in every process.


_WORD = re.compile(r"\w+")
_DEFAULT_DIMENSIONS = 1536
_LARGE_DIMENSIONS = 3072


def answer_embedding(request: CheckedRequest, _writer: Writer) -> EmulatedReply:
    """Answers with an embeddings list, as floats or base64 of little-endian float32."""
    default = _LARGE_DIMENSIONS if "large" in request.model else _DEFAULT_DIMENSIONS
    dimensions = min(request.data.get("dimensions") or default, _LARGE_DIMENSIONS)
    is_base64 = request.data.get("encoding_format") == "base64"
    vectors = (unit_vector(text, dimensions) for text in request.inputs)
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(vector) if is_base64 else vector}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": request.prompt_tokens, "total_tokens": request.prompt_tokens}
    return json_reply({"object": "list", "data": data, "model": request.model, "usage": usage})


def answer_moderation(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers with a moderation list; a text with the word `violence` is flagged."""
    results = [_verdict(text) for text in request.inputs]
    return json_reply({"id": writer.new_id("modr-"), "model": request.model, "results": results})


def unit_vector(text: str, dimensions: int) -> list[float]:
    """Returns the vector of `text`; texts that share words share directions."""
    vector = [0.0] * dimensions
    for word in _WORD.findall(text.lower()) or [text]:
        for chunk in struct.unpack("<8I", blake2b(word.encode("utf-8", "replace"), digest_size=32).digest()):
            vector[(chunk >> 1) % dimensions] += 1.0 if chunk & 1 else -1.0
    length = math.sqrt(sum(value * value for value in vector))
    if not length:  # the words cancelled each other
        vector[0] = length = 1.0
    return [value / length for value in vector]


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


_CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)


def _verdict(text: str) -> dict[str, Any]:
    is_violent = "violence" in text.lower()
    found = {name: is_violent and name == "violence" for name in _CATEGORIES}
    return {
        "flagged": is_violent,
        "categories": found,
        "category_scores": {name: 0.98 if flagged else 0.0001 for name, flagged in found.items()},
        "category_applied_input_types": {name: ["text"] for name in _CATEGORIES},
    }
