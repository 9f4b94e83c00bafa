"""What Claude thought, as a chat completion carries it: `reasoning_details`, which go back byte for byte.

A block that is changed, moved or not signed is refused, for as long as it stays in the conversation (maximhq/bifrost#6342). So
each detail has the block's place in the answer as its `index`; a stream tells a block in pieces of one index, the `format` with
one of them only, because clients put the strings of pieces together.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any, Final

from gateway.dialects.base.base import Json, object_of, objects, text_of

FORMAT: Final = "anthropic-claude-v1"
_TEXT: Final = "reasoning.text"
_ENCRYPTED: Final = "reasoning.encrypted"


def detail_of(block: Json, index: int) -> Json | None:
    """Returns a block of thoughts as a detail; None: it is another block."""
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
    blocks = map(_own_block, objects(message.get("thinking_blocks")))
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
        if whole is not None and _is_piece(whole, detail):
            whole["text"] = text_of(whole.get("text")) + text_of(detail.get("text"))
            whole |= {name: detail[name] for name in ("signature", "format") if detail.get(name)}
            continue
        if whole is not None:
            yield whole
        whole = dict(detail)
    if whole is not None:
        yield whole


def _is_piece(whole: Json, detail: Json) -> bool:
    is_of_one = type(whole.get("index")) is int and whole["index"] == detail.get("index")
    return is_of_one and whole.get("type") == detail.get("type") == _TEXT


def _block_of(detail: Json) -> Json | None:
    if not text_of(detail.get("format")).startswith(FORMAT):  # clients may have put the same word together
        return None
    if detail.get("type") == _ENCRYPTED:
        return _redacted(detail)
    return _thinking(detail, "text") if detail.get("type") == _TEXT else None


def _own_block(block: Json) -> Json | None:
    if block.get("type") == "redacted_thinking":
        return _redacted(block)
    return _thinking(block, "thinking") if block.get("type") == "thinking" else None


def _redacted(given: Json) -> Json | None:
    data = given.get("data")
    return {"type": "redacted_thinking", "data": data} if isinstance(data, str) and data else None


def _thinking(given: Json, name: str) -> Json | None:
    signature = given.get("signature")
    if not isinstance(signature, str) or not signature:
        return None
    return {"type": "thinking", "thinking": text_of(given.get(name)), "signature": signature}
