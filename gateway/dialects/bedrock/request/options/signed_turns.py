"""The content of a turn of Claude's at Bedrock, whole: how it is remembered from an answer, and put back into a request.

As with Messages, who repeats such a turn in another order is refused (see `anthropic.from_chat.signed_turns`); the blocks are
Converse's own. What a model of another maker thought is signed by nobody, and does not go back.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.dialects.anthropic.out_request.tools.blocks import is_blank
from gateway.dialects.anthropic.out_thoughts.signed_turns import OpenTurn
from gateway.dialects.base.base import Json, object_of, objects, text_of
from gateway.dialects.memory.remembered import SaidTurn, TurnMemory

_KNOWN: Final = frozenset(("text", "toolUse", "reasoningContent"))
"""The blocks of which a caller hears in a way that is told apart; what has others cannot be repeated by one."""


def keep_content(content: list[Any], memory: TurnMemory | None) -> None:
    """Remembers the content of a whole answer, if there are calls in it."""
    if memory is None:
        return
    blocks = objects(content)
    calls = [
        (use["toolUseId"], use.get("name"), use.get("input"))
        for block in blocks
        if (use := object_of(block.get("toolUse")))
    ]
    if not calls or not all(len(block) == 1 and block.keys() <= _KNOWN for block in blocks):
        return
    thoughts = [object_of(block["reasoningContent"]) for block in blocks if "reasoningContent" in block]
    if not all("redactedContent" in one or object_of(one.get("reasoningText")).get("signature") for one in thoughts):
        return
    words = "".join(text_of(block.get("text")) for block in blocks)
    kept = [block for block in blocks if "text" not in block or not is_blank(text_of(block["text"]))]
    memory.keep(SaidTurn(calls, words), kept, has_thoughts=bool(thoughts))


def with_points(content: list[Json], blocks: list[Json]) -> list[Json]:
    """Returns a remembered content with the points for the cache that the caller has put behind the same blocks."""
    for number, block in enumerate(blocks[1:]):
        if "cachePoint" not in block:
            continue
        before = blocks[number]
        same = [place for place, one in enumerate(content) if _is_same(one, before)]
        if same:
            content.insert(same[-1] + 1, block)
    return content


def _is_same(one: Json, other: Json) -> bool:
    if "toolUse" in one and "toolUse" in other:
        return bool(one["toolUse"]["toolUseId"] == other["toolUse"]["toolUseId"])
    return "text" in one and "text" in other


class OpenContent:
    """Puts the blocks of a stream together, as far as there is room; of words, nothing tells that they begin."""

    __slots__ = ("_opened", "_turn")

    def __init__(self) -> None:
        self._turn = OpenTurn()
        self._opened: set[int] = set()

    def call(self, place: int, use: Json) -> None:
        """Takes a call that begins."""
        self._open(place, {"type": "tool_use", "id": use.get("toolUseId"), "name": use.get("name")})

    def other(self, place: int) -> None:
        """Takes a block that is none of those that can be repeated."""
        self._open(place, {"type": ""})

    def say(self, place: int, text: str) -> None:
        """Takes more of a block's words."""
        if place not in self._opened:
            self._open(place, {"type": "text"})
        self._turn.grow(place, text)

    def argue(self, place: int, text: str) -> None:
        """Takes more of a call's arguments."""
        self._turn.grow(place, text)

    def think(self, place: int, text: str, signature: str) -> None:
        """Takes more of a thought."""
        if place not in self._opened:
            self._open(place, {"type": "thinking"})
        self._turn.grow(place, text)
        self._turn.sign(place, signature)

    def hide(self, place: int, data: Any) -> None:
        """Takes encrypted thoughts."""
        self._open(place, {"type": "redacted_thinking", "data": data})

    def keep(self, memory: TurnMemory) -> None:
        """Remembers the turn that has come to its end, if all of it is there."""
        blocks = self._turn.blocks()
        if blocks is not None:
            keep_content([_converse_block(block) for block in blocks], memory)

    def _open(self, place: int, block: Json) -> None:
        self._opened.add(place)
        self._turn.open(place, block)


def _converse_block(block: Json) -> Json:
    match block["type"]:
        case "text":
            return {"text": block["text"]}
        case "tool_use":
            return {"toolUse": {"toolUseId": block["id"], "name": block["name"], "input": block["input"]}}
        case "redacted_thinking":
            return {"reasoningContent": {"redactedContent": block["data"]}}
        case _:
            told = {"text": block["thinking"], "signature": block["signature"]}
            return {"reasoningContent": {"reasoningText": told}}
