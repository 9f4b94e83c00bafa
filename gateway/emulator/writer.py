"""What an answer says, before any provider's form is put on it: words that follow from the seed and the prompt alone.

In this order: texts, JSON and arguments (`Writer`), the cache of prompts, signatures of thoughts, and `compose`, which puts
a thought, a text and calls of tools together for the providers' own APIs. An answer starts by quoting the prompt, so that a
reader sees which call it belongs to, and goes on with drawn words up to its length. Invariants: same config and same
prompt, same pieces; no more tokens than the request allows; the shape of a body is not known here.
"""

from __future__ import annotations

import math
import random
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from statistics import NormalDist
from typing import Any, Literal

import orjson

from gateway.emulator.config import EmulatorConfig
from gateway.emulator.requests import CheckedRequest

# --- Texts, JSON and arguments ---


_PROSE = (
    "the a this that every one some few many most other next last first small large quiet plain steady bright early late"
    " river field house garden road bridge window letter number signal engine season morning evening answer question"
    " moves turns holds keeps finds shows brings carries follows opens closes begins ends meets leaves returns waits"
    " slowly quickly often always never soon again here there near far above below between within without toward"
)
_CYCLE = 4096
_STEPS = 1024
_NORMAL = tuple(NormalDist().inv_cdf((step + 0.5) / _STEPS) for step in range(_STEPS))


Ending = Literal["stop", "length", "tool_calls", "content_filter"]
_THOUGHT_TOKENS = 12


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


# --- The cache of prompts ---


_MOST = 2000


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt; the prompt up to its end is kept for `keep_s` seconds (None: not asked for)."""

    text: str
    keep_s: float | None = None


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Tokens of a prompt: read from the cache, written into it (of these for an hour: `hourly`), and the others."""

    fresh: int
    read: int = 0
    written: int = 0
    hourly: int = 0

    @property
    def total(self) -> int:
        return self.fresh + self.read + self.written


class PromptCache:
    """A provider's cache of prompts: the prefixes of each model that it has seen; `wall` returns epoch seconds.

    Unlike a provider's it has no smallest size, so that short prompts show it. Of one call, what is read, what is written and
    the rest add up to the whole prompt.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._until: dict[bytes, float] = {}

    def use(self, model: str, segments: Sequence[Segment]) -> CacheUse:
        """Reads the longest known prefix, and keeps the marked ones."""
        digest = blake2b(model.encode("utf-8", "replace"), digest_size=16)
        now, length, read, written, hourly = self._wall(), 0, 0, 0, 0
        for segment in segments:
            digest.update(segment.text.encode("utf-8", "replace"))
            length += len(segment.text)
            if segment.keep_s is None:
                continue
            prefix = digest.digest()
            if self._until.get(prefix, 0.0) > now:
                read = written = tokens(length)
                hourly = 0
            else:
                hourly += (tokens(length) - written) if segment.keep_s > 300 else 0
                written = tokens(length)
            self._keep(prefix, now + segment.keep_s)
        return CacheUse(tokens(length) - written, read, written - read, hourly)

    def _keep(self, prefix: bytes, until: float) -> None:
        self._until.pop(prefix, None)
        if len(self._until) >= _MOST:
            del self._until[next(iter(self._until))]
        self._until[prefix] = until


def tokens(length: int) -> int:
    """Returns the tokens of so many characters: four make one."""
    return (length + 3) // 4


# --- Signatures of thoughts ---


CLAUDE, GEMINI = b"emulated-claude", b"emulated-gemini"


UNCHECKED = "skip_thought_signature_validator"
"""The word that Google documents for calls that another model made."""


def sign(issuer: bytes, text: str) -> str:
    """Returns the signature of a thought, as base64: opaque, and valid for one text alone.

    A thought that comes back is checked, so that a conversion that loses or alters one is found out. The key is fixed, so
    that every emulator of a provider takes the others'.
    """
    return b64encode(issuer + b":" + blake2b(text.encode("utf-8", "replace"), key=issuer).digest()).decode()


def is_gemini(signature: str, text: str) -> bool:
    """Returns whether Gemini takes `signature` for `text`; it is bytes in proto-JSON, so both alphabets of base64 will do."""
    encoded = signature.translate(_URL_SAFE)
    return encoded in (sign(GEMINI, text), b64encode(UNCHECKED.encode()).decode()) or signature == UNCHECKED


_URL_SAFE = str.maketrans("-_", "+/")


# --- Thoughts, texts and calls together ---


def is_mentioned(tool: str, text: str) -> bool:
    """Returns whether the text has the tool's name as a word of its own."""
    return re.search(rf"(?<!\w){re.escape(tool)}(?!\w)", text) is not None


@dataclass(frozen=True, slots=True)
class ToolWish:
    """The tools that may be called, by name with their schemas; `named` must be, `is_wanted`: one of them should be.

    A tool that the last message names is called in any case, and so are several of them, if `is_parallel`.
    """

    schemas: Mapping[str, object]
    named: str | None = None
    is_wanted: bool = False
    is_parallel: bool = True

    def calls(self, request: CheckedRequest, *, is_result: bool) -> list[str]:
        """Returns the names to call; with `is_result` the last message brings a tool's result, and asks for no more."""
        if self.named is not None:
            return [] if is_result else [self.named]
        mentioned = [name for name in self.schemas if is_mentioned(name, request.echo)]
        if not mentioned and self.is_wanted and not is_result:
            mentioned = list(self.schemas)[:1]
        return mentioned if self.is_parallel else mentioned[:1]


@dataclass(frozen=True, slots=True)
class Block:
    """One block of an answer in pieces of one token each; `name` is the tool's."""

    kind: Literal["thought", "text", "tool"]
    pieces: Sequence[str]
    name: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Composed:
    """The blocks of an answer, in order, and why it ends."""

    blocks: tuple[Block, ...]
    ending: Ending

    @property
    def tokens(self) -> int:
        return sum(len(block.pieces) for block in self.blocks)

    @property
    def thought_tokens(self) -> int:
        return sum(len(block.pieces) for block in self.blocks if block.kind == "thought")


def compose(
    request: CheckedRequest,
    writer: Writer,
    *,
    tools: Mapping[str, object] | None = None,
    calls: Sequence[str] = (),
    is_thinking: bool = False,
    schema: Mapping[str, Any] | None = None,
    choice: int = 0,
) -> Composed:
    """Writes the blocks: a thought, then the calls, or else JSON that fits `schema`, or prose."""
    blocks: list[Block] = []
    left = request
    if is_thinking:
        thought = _within(["weighing", " the", " request:", *_words(request)][:_THOUGHT_TOKENS], request.max_tokens)
        blocks.append(Block("thought", thought))
        if request.max_tokens is not None:
            left = replace(request, max_tokens=request.max_tokens - len(thought))
    drafts = [(name, writer.call(left, name, (tools or {}).get(name))) for name in calls]
    if not drafts:
        drafts = [("", writer.json(left, example_of(schema)) if schema is not None else writer.prose(left, choice))]
    blocks += [Block("tool" if name else "text", draft.pieces, name) for name, draft in drafts if draft.pieces or name]
    return Composed(tuple(blocks), _ending(request, [draft for _, draft in drafts]))


def _ending(request: CheckedRequest, drafts: Sequence[Draft]) -> Ending:
    if request.is_filtered:
        return "content_filter"
    if any(draft.finish_reason == "length" for draft in drafts):
        return "length"
    return "tool_calls" if drafts[0].tool is not None else "stop"


def _words(request: CheckedRequest) -> list[str]:
    return [" " + word for word in request.echo[:120].split()]


def _within(pieces: list[str], cap: int | None) -> list[str]:
    return pieces if cap is None else pieces[:cap]
