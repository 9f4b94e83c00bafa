"""The content of a turn of Claude's, whole: how it is remembered from an answer, and put back into a request.

Chat completions have thoughts, words and calls apart, and so no order of a turn that thinks, calls and thinks again. Who
repeats it in another one is refused (400 `thinking blocks ... cannot be modified`) for as long as it stays in the
conversation (maximhq/bifrost#6342).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from gateway.dialects.anthropic.out_request.tools.blocks import is_blank
from gateway.dialects.base.base import Json, ServerFacts, object_of, objects, text_of
from gateway.dialects.memory.remembered import (
    MOST_TURN_BYTES,
    Presumed,
    SaidTurn,
    SignedElsewhere,
    TurnMemory,
    UnknownMemory,
    unechoed,
)

_THOUGHTS: Final = frozenset(("thinking", "redacted_thinking"))
_KNOWN: Final = _THOUGHTS | {"text", "tool_use"}
"""The blocks of which a caller hears; what has others cannot be repeated by one."""
_CITATION_CHARACTERS: Final = 64
"""What a citation is at least, besides the words that it cites."""


class Recalled(NamedTuple):
    """What is known of turns that came back without their thoughts."""

    contents: Mapping[int, list[Json]]
    """By the numbers of their messages."""
    has_foreign: bool
    """Some were signed by another provider."""


NOTHING: Final = Recalled({}, has_foreign=False)


def recalled(body: Json, facts: ServerFacts) -> Recalled:
    """Returns what is remembered of a request's turns.

    Where a model takes thoughts back only behind what it thought them after, that ends with the first turn that is not
    remembered: what follows was thought behind more than is there now.
    """
    if facts.memory is None:
        return NOTHING
    if isinstance(facts.memory, UnknownMemory):
        return Recalled(Presumed(body.get("messages")), has_foreign=False)
    found: dict[int, list[Json]] = {}
    has_foreign = False
    for number, turn in unechoed(body.get("messages")):
        content = facts.memory.find(turn)
        if type(content) is list:
            found[number] = content
        else:
            has_foreign = has_foreign or content is SignedElsewhere.BY_ANOTHER
            if facts.model.binds_thinking:
                break
    return Recalled(found, has_foreign) if found or has_foreign else NOTHING


def with_marks(content: list[Json], blocks: list[Json]) -> list[Json]:
    """Returns a remembered content with the marks for the cache that the caller has put on the same turn."""
    for block in blocks:
        if "cache_control" not in block:
            continue
        same = [one for one in content if one["type"] == block["type"] and one.get("id") == block.get("id")]
        if same:
            same[-1]["cache_control"] = block["cache_control"]
    return content


def keep_message(content: list[Any], memory: TurnMemory | None) -> None:
    """Remembers the content of a whole message, if there are calls in it."""
    if memory is None:
        return
    blocks = objects(content)
    calls = [
        (block["id"], block.get("name"), block.get("input")) for block in blocks if block.get("type") == "tool_use"
    ]
    kinds = {text_of(block.get("type")) for block in blocks}
    if (
        not calls
        or not kinds <= _KNOWN
        or any(one["type"] == "thinking" and not one.get("signature") for one in blocks)
    ):
        return
    words = [text_of(block.get("text")) for block in blocks if block.get("type") == "text"]
    kept = [block for block in blocks if block["type"] != "text" or not is_blank(text_of(block.get("text")))]
    memory.keep(SaidTurn(calls, "".join(words)), kept, has_thoughts=not _THOUGHTS.isdisjoint(kinds))


class OpenTurn:
    """Puts the blocks of a stream together, as far as there is room."""

    __slots__ = ("_blocks", "_citations", "_is_lost", "_parts", "_signatures", "_size")

    def __init__(self) -> None:
        self._blocks: dict[int, Json] = {}
        self._parts: dict[int, list[str]] = {}
        self._citations: dict[int, list[Json]] = {}
        self._signatures: dict[int, str] = {}
        self._size = 0
        self._is_lost = False

    def open(self, place: int, block: Json) -> None:
        """Takes a block that begins; one that is not known, or begins again, makes the turn one that cannot be repeated."""
        if text_of(block.get("type")) not in _KNOWN or place in self._blocks:
            self._lose()
        if not self._is_lost:
            self._blocks[place] = block
            self._parts[place] = []

    def grow(self, place: Any, text: str) -> None:
        """Takes more of a block's text, thought or arguments."""
        parts = self._parts.get(place) if type(place) is int else None
        if parts is None:
            return
        parts.append(text)
        self._size += len(text)
        if self._size > MOST_TURN_BYTES:
            self._lose()

    def sign(self, place: Any, signature: str) -> None:
        """Takes the signature of a thought."""
        if signature and type(place) is int:
            self._signatures[place] = signature

    def cite(self, place: Any, citation: Json) -> None:
        """Takes a citation of a text."""
        if type(place) is not int or place not in self._blocks:
            return
        self._citations.setdefault(place, []).append(citation)
        self._size += _CITATION_CHARACTERS + len(text_of(citation.get("cited_text")))
        if self._size > MOST_TURN_BYTES:
            self._lose()

    def keep(self, memory: TurnMemory) -> None:
        """Remembers the turn that has come to its end, if all of it is there."""
        content = self.blocks()
        if content is not None:
            keep_message(content, memory)

    def blocks(self) -> list[Json] | None:
        """Returns the blocks of a turn with calls that has come to its end; None: not all of it is there, or it has none."""
        if self._is_lost or not any(block["type"] == "tool_use" for block in self._blocks.values()):
            return None
        try:
            return [self._whole(place, self._blocks[place]) for place in sorted(self._blocks)]
        except orjson.JSONDecodeError:
            return None

    def _whole(self, place: int, block: Json) -> Json:
        told = "".join(self._parts[place])
        if block["type"] == "tool_use":
            return {**block, "input": orjson.loads(told) if told else object_of(block.get("input"))}
        if block["type"] == "text":
            cited = [*objects(block.get("citations")), *self._citations.get(place, ())]
            return {**block, "text": told} | ({"citations": cited} if cited else {})
        if block["type"] == "redacted_thinking":
            return block
        return {**block, "thinking": told, "signature": self._signatures.get(place, "")}

    def _lose(self) -> None:
        self._is_lost = True
        self._blocks, self._parts, self._citations = {}, {}, {}
