"""Blocks of a message that are open while a stream of chat completions is put into one."""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.core.openai.sse.sse import json_object
from gateway.dialects.anthropic.in_answer.ids import id_back
from gateway.dialects.anthropic.in_request.thinking import MARK
from gateway.dialects.base.base import Json

TEXT: Final = "text"
THINKING: Final = "thinking"
CALL: Final = "tool_use"
_DELTAS: Final = {
    TEXT: ("text_delta", "text"),
    THINKING: ("thinking_delta", "thinking"),
    CALL: ("input_json_delta", "partial_json"),
}
_MOST_CHECKED: Final = 1024 * 1024
"""The characters of a call's arguments that are kept to find out whether they are JSON."""
_MOST_TRIES: Final = 8


def event(kind: str, **fields: Any) -> bytes:
    """Returns an event; each has its name, for Anthropic's SDK passes over those that have none."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


class MessageBlock:
    """A block that grows. Most events only bring more of it, so they are put together of bytes."""

    __slots__ = ("_before", "_place", "is_signed", "kind", "told")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.is_signed = False
        """It is thinking, and all was told of it."""
        self.told = 0
        """The characters that were told."""
        self._place = -1
        self._before = b""

    def begin(self, place: int) -> None:
        self._place = place
        delta, field = _DELTAS[self.kind]
        told = f'{{"type":"content_block_delta","index":{place},"delta":{{"type":"{delta}","{field}":'
        self._before = b"event: content_block_delta\ndata: " + told.encode()

    def more(self, text: str) -> bytes:
        """Returns the event that tells this piece."""
        self.told += len(text)
        return b"%b%b}}\n\n" % (self._before, orjson.dumps(text))

    def sign(self, signature: str) -> bytes:
        """Returns the event with what proves whose the thinking is."""
        self.is_signed = True
        return event(
            "content_block_delta", index=self._place, delta={"type": "signature_delta", "signature": signature}
        )

    def ended(self) -> bytes:
        """Returns the events that end the block; thinking that nobody has signed gets our mark."""
        signed = self.sign(MARK) if self.kind is THINKING and not self.is_signed else b""
        return signed + event("content_block_stop", index=self._place)


class ToolUse(MessageBlock):
    """A call. It is a block when its turn has come; until then its arguments are held."""

    __slots__ = (
        "_held", "_kept", "_known_whole", "_made_id", "_tried", "_tries", "extra", "held_characters", "id", "index",
        "is_closed", "is_empty", "is_waiting", "name",
    )  # fmt: skip

    def __init__(self, index: int, id: str) -> None:
        """`index` is its provider's; `id` is for a call that comes without one."""
        super().__init__(CALL)
        self.index, self._made_id = index, id
        self.id = self.name = ""
        self.extra: Json = {}
        """What its provider has said besides."""
        self.is_waiting = self.is_closed = False
        self.is_empty = True
        """No argument was told yet."""
        self.held_characters = 0
        self._held: list[str] = []
        self._kept: list[str] | None = []
        """What was told, as long as it is kept to be checked."""
        self._known_whole = False
        self._tries = self._tried = 0

    @property
    def told_id(self) -> str:
        """The id that the caller gets."""
        return id_back(self.id) if self.id else self._made_id

    def begun(self) -> Json:
        return {"type": CALL, "id": self.told_id, "name": self.name, "input": {}}

    def hold(self, text: str) -> None:
        """Keeps a piece until the call's turn has come."""
        if text:
            self._held.append(text)
            self.held_characters += len(text)

    def release(self) -> str:
        """Returns what was held."""
        text = "".join(self._held)
        self._held.clear()
        self.held_characters = 0
        return text

    def more(self, text: str) -> bytes:
        self.is_empty = self.is_empty and not text.strip()
        self._known_whole = False
        if self._kept is not None:
            self._kept.append(text)
            self.held_characters += len(text)
            if self.held_characters > _MOST_CHECKED:
                self._kept = None
        return super().more(text)

    def is_whole(self) -> bool:
        """Returns whether what was told is a JSON object, which nothing can follow.

        It is asked for with each piece of another call, so after some tries the next one waits until there is twice as much.
        """
        kept = self._kept
        if kept is None or self._known_whole or self.is_empty:
            return self._known_whole
        if not kept[-1].rstrip().endswith("}") or self._tried == len(kept):
            return False
        if self._tries >= _MOST_TRIES and len(kept) < 2 * self._tried:
            return False
        self._tries, self._tried = self._tries + 1, len(kept)
        self._known_whole = json_object("".join(kept).encode(errors="replace")) is not None
        return self._known_whole

    def is_sound(self) -> bool:
        """Returns whether it can end here: with a JSON object, or nothing, or more than was kept to be checked."""
        kept = self._kept
        if kept is None or self._known_whole or self.is_empty:
            return True
        return json_object("".join(kept).encode(errors="replace")) is not None

    def ended(self) -> bytes:
        """Returns the events that end the block; a call without arguments has an empty object."""
        self.is_closed = True
        told = self.more("{}") if self.is_empty else b""
        self._kept = None
        return told + super().ended()
