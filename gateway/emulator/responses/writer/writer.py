"""Writes the text of an answer: words that follow from the seed and the prompt alone.

An answer starts by quoting the prompt, so that a reader sees which call it belongs to, and goes on with drawn words up
to its length. It must not know the shape of a body. Invariant: same config and same prompt, same pieces.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from statistics import NormalDist
from typing import Any

import orjson

from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.config.config.config import EmulatorConfig
from gateway.emulator.dialects.dialects.prompt_cache import PromptCache

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
