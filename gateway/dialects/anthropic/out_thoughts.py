"""What Claude thought: how it is remembered from an answer, and put back into a request.

In this order: the content of a turn, remembered whole; thoughts as callers send them back (`reasoning_details`). Chat
completions have thoughts, words and calls apart, and so no order of a turn that thinks, calls and thinks again. Who repeats
it in another one is refused (400 `thinking blocks ... cannot be modified`) for as long as it stays in the conversation
(maximhq/bifrost#6342).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

from gateway.dialects.base import Json, ServerFacts, is_blank, object_of, objects, text_of
from gateway.dialects.memory import (
    MOST_TURN_BYTES,
    Presumed,
    SignedElsewhere,
    TurnMemory,
    UnknownMemory,
    VisibleTurn,
    unechoed,
)

# --- The content of a turn, remembered whole ---


_THOUGHTS: Final = frozenset(("thinking", "redacted_thinking"))
_KNOWN: Final = _THOUGHTS | {"text", "tool_use"}
"""The blocks of which a caller hears; what has others cannot be repeated by one."""
_CITATION_CHARACTERS: Final = 64
"""The least characters of a citation besides the words that it cites."""


class RememberedTurns(NamedTuple):
    """What is known of turns that came back without their thoughts."""

    contents: Mapping[int, list[Json]]
    """The contents of the turns, by the numbers of their messages."""
    has_foreign: bool
    """Some were signed by another provider."""


NOTHING: Final = RememberedTurns({}, has_foreign=False)


def recalled(body: Json, facts: ServerFacts) -> RememberedTurns:
    """Returns what is remembered of a request's turns.

    Where a model takes thoughts back only behind what it thought them after, that ends with the first turn that is not
    remembered: what follows was thought behind more than is there now.
    """
    if facts.memory is None:
        return NOTHING
    if isinstance(facts.memory, UnknownMemory):
        return RememberedTurns(Presumed(body.get("messages")), has_foreign=False)
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
    return RememberedTurns(found, has_foreign) if found or has_foreign else NOTHING


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
    memory.keep(VisibleTurn(calls, "".join(words)), kept, has_thoughts=not _THOUGHTS.isdisjoint(kinds))


class TurnRecorder:
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
        if signature and type(place) is int:
            self._signatures[place] = signature

    def cite(self, place: Any, citation: Json) -> None:
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
        text = "".join(self._parts[place])
        if block["type"] == "tool_use":
            return {**block, "input": orjson.loads(text) if text else object_of(block.get("input"))}
        if block["type"] == "text":
            cited = [*objects(block.get("citations")), *self._citations.get(place, ())]
            return {**block, "text": text} | ({"citations": cited} if cited else {})
        if block["type"] == "redacted_thinking":
            return block
        return {**block, "thinking": text, "signature": self._signatures.get(place, "")}

    def _lose(self) -> None:
        self._is_lost = True
        self._blocks, self._parts, self._citations = {}, {}, {}


# --- Thoughts as callers send them back: `reasoning_details`, byte for byte ---


FORMAT: Final = "anthropic-claude-v1"
_TEXT: Final = "reasoning.text"
_ENCRYPTED: Final = "reasoning.encrypted"


def detail_of(block: Json, index: int) -> Json | None:
    """Returns a block of thoughts as a detail; None: it is another block.

    A block that is changed, moved or not signed is refused for as long as it stays in the conversation. So each detail has
    the block's place in the answer as its `index`; a stream has a block in pieces of one index, the `format` with one of
    them only, because clients put the strings of pieces together.
    """
    if block.get("type") == "redacted_thinking":
        return {"type": _ENCRYPTED, "data": block.get("data"), "format": FORMAT, "index": index}
    if block.get("type") != "thinking":
        return None
    made = {"type": _TEXT, "text": text_of(block.get("thinking")), "format": FORMAT, "index": index}
    return made | ({"signature": block["signature"]} if block.get("signature") else {})


def thought_blocks(message: Json) -> list[tuple[int | None, Json]]:
    """Returns the blocks that can go back, each with its place among the message's blocks, in their order.

    A message may have them as they are, too, without their places (`thinking_blocks`).
    """
    if "reasoning_details" not in message and "thinking_blocks" not in message:
        return []
    found = [
        (place if type(place := detail.get("index")) is int else None, block)
        for detail in _whole_details(message.get("reasoning_details"))
        if (block := _block_of(detail)) is not None
    ]
    if found:
        return sorted(found, key=lambda placed: -1 if placed[0] is None else placed[0])
    given = objects(message.get("thinking_blocks"))
    blocks = [_signed_block(one, "redacted_thinking", "thinking", "thinking") for one in given]
    return [(None, block) for block in blocks if block is not None]


def put_back(blocks: list[Json], thoughts: list[tuple[int | None, Json]]) -> None:
    """Puts thoughts to their places among a message's other blocks; those without a place stand before them.

    Texts were joined, and blank ones are gone, so that a place may be behind them all, where no thought ever stands: it is
    followed by what it led to (400 `The final block in an assistant message cannot be thinking`).
    """
    last = max(0, len(blocks) - 1)
    for number, (place, block) in enumerate(thoughts):
        blocks.insert(number if place is None else max(0, min(place, last + number)), block)


def has_foreign(message: Json) -> bool:
    """Returns whether a message has thoughts that cannot go back: another provider's, or unsigned ones."""
    return any(_block_of(detail) is None for detail in _whole_details(message.get("reasoning_details")))


def lacks_thoughts(messages: Any, recalled: Container[int]) -> bool:
    """Returns whether results of tools follow calls last whose thoughts did not come back; nor are they `recalled`, by number.

    A model with a budget for thinking refuses that; one that thinks as it sees fit does not (BerriAI/litellm#15601).
    """
    given = messages if isinstance(messages, list) else []
    for number in range(len(given) - 1, -1, -1):
        message = object_of(given[number])
        if message.get("role") == "assistant":
            return number not in recalled and not thought_blocks(message)
        if message.get("role") not in ("tool", "function"):
            return False
    return False


def _whole_details(details: Any) -> Iterator[Json]:
    """Yields details, the pieces of which a client may have left apart."""
    whole: Json | None = None
    for detail in objects(details):
        is_of_one = whole is not None and type(whole.get("index")) is int and whole["index"] == detail.get("index")
        if whole is not None and is_of_one and whole.get("type") == detail.get("type") == _TEXT:
            whole["text"] = text_of(whole.get("text")) + text_of(detail.get("text"))
            whole |= {name: detail[name] for name in ("signature", "format") if detail.get(name)}
            continue
        if whole is not None:
            yield whole
        whole = dict(detail)
    if whole is not None:
        yield whole


def _block_of(detail: Json) -> Json | None:
    """Returns a detail as the block that it was; None: another provider's, or nobody signed it."""
    if not text_of(detail.get("format")).startswith(FORMAT):  # clients may have put the same word together
        return None
    return _signed_block(detail, _ENCRYPTED, _TEXT, "text")


def _signed_block(given: Json, encrypted: str, plain: str, words: str) -> Json | None:
    """Returns a block of thoughts made of what is of these types, and has its words in this field; None: nobody signed it."""
    data, signature = given.get("data"), given.get("signature")
    if given.get("type") == encrypted and isinstance(data, str) and data:
        return {"type": "redacted_thinking", "data": data}
    if given.get("type") == plain and isinstance(signature, str) and signature:
        return {"type": "thinking", "thinking": text_of(given.get(words)), "signature": signature}
    return None
