"""The signatures of a turn with calls, remembered from an answer and put back where a client has dropped them.

They go back to where a client that keeps them has them: into the message. What follows does not tell the two apart.
"""

from __future__ import annotations

import orjson

from gateway.dialects.base.base import Json, objects
from gateway.dialects.memory.remembered import MOST_TURN_BYTES, SaidTurn, TurnMemory, UnknownMemory, unechoed


def with_echoes(body: Json, memory: TurnMemory | None) -> Json:
    """Returns the request as a client would have made it that keeps what it is told."""
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


class KeptTurn:
    """What is to be remembered of an answer that is being told."""

    __slots__ = ("_calls", "_details", "_extras", "_size", "_words")

    def __init__(self) -> None:
        self._words: list[str] = []
        self._calls: list[tuple[str, str, object]] = []
        self._extras: list[Json | None] = []
        self._details: list[Json] = []
        self._size = 0

    def say(self, text: str) -> None:
        """Takes words."""
        self._size += len(text)
        if self._size <= MOST_TURN_BYTES:
            self._words.append(text)

    def take(self, delta: Json) -> None:
        """Takes what a part adds to the message; thoughts in words are not wanted back."""
        if "content" in delta:
            self.say(delta["content"])
        for call in delta.get("tool_calls", ()):
            said = call["function"]
            self._calls.append((call["id"], said["name"], orjson.loads(said["arguments"])))
            self._extras.append(call.get("extra_content"))
            self._size += len(said["arguments"])
        self._details += (one for one in objects(delta.get("reasoning_details")) if "data" in one)

    def keep(self, memory: TurnMemory) -> None:
        """Remembers the turn, if it has calls and all of it is there."""
        if not self._calls or self._size > MOST_TURN_BYTES:
            return
        has_signatures = bool(self._details) or any(extra is not None for extra in self._extras)
        turn = SaidTurn(self._calls, "".join(self._words))
        memory.keep(turn, {"extras": self._extras, "details": self._details}, has_thoughts=has_signatures)
