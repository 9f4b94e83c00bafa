"""Turns of a model with signed thoughts, remembered for callers that do not send back what they were signed with.

A model that thinks wants its thoughts back with the results of its calls, unchanged and at their places. Chat completions carry
them beyond OpenAI's own fields (`reasoning_details`, `extra_content`), which many clients drop. What is remembered of a turn is
the provider's own, found by the id of its first call; it goes back only where the caller repeats the very same ids, names,
arguments and words. Where the memory is, and whose a turn is, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from hashlib import blake2b
from typing import Any, Final, Protocol

import orjson

from gateway.core.types.words import Gap, How

IN_ID: Final = "__thought__"
"""Some gateways put a call's signature behind this into its id (BerriAI/litellm#18374)."""
MOST_TURN_BYTES: Final = 1_000_000
"""What is longer is not remembered."""
FOREIGN: Final = Gap(
    "messages.reasoning_details", How.DROPPED, "thoughts go back to the provider that signed them, and to no other"
)
"""What a provider is not told of the turns that another one has signed."""
_DIGEST_BYTES: Final = 16


class SaidTurn:
    """A turn of the model with calls, as far as its caller is told of it."""

    __slots__ = ("_calls", "_words", "id")

    def __init__(self, calls: Sequence[tuple[str, Any, Any]], words: Any) -> None:
        """`calls` are ids, names and arguments, of one call at least; `words` are a string, or the parts of a message."""
        self.id = calls[0][0]
        self._calls, self._words = calls, words

    def is_same(self, other: SaidTurn) -> bool:
        """Returns whether the other one is written the same, of two turns of one request."""
        return self is other or (self._calls == other._calls and self._words == other._words)

    def digest(self) -> bytes:
        """Returns what is equal for equal turns, however their arguments are written; empty: they cannot be told."""
        calls = [(id, name, _object_in(arguments)) for id, name, arguments in self._calls]
        words = _text_in(self._words)
        try:
            said = orjson.dumps([calls, "" if words.isspace() else words], option=orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError:  # of arguments that are deeper than what can be written
            return b""
        return blake2b(said, digest_size=_DIGEST_BYTES).digest()


class SignedElsewhere(Enum):
    """Whose a remembered turn is, where it does not go back."""

    BY_ANOTHER = "another"


class TurnMemory(Protocol):
    """The turns of one tenant; what signs one call's answer."""

    def keep(self, turn: SaidTurn, signed: Any, *, has_thoughts: bool) -> None:
        """Remembers what was signed in a turn (anything that JSON can say); it may refuse."""
        ...

    def find(self, turn: SaidTurn) -> Any:
        """Returns what was signed in this very turn; None where none is known, `BY_ANOTHER` where
        it was signed, but not here."""
        ...


class UnknownMemory:
    """Stands for a memory that cannot be asked yet: whatever may be remembered is. Implements `TurnMemory`."""

    def keep(self, turn: SaidTurn, signed: Any, *, has_thoughts: bool) -> None:
        """Remembers nothing."""

    def find(self, turn: SaidTurn) -> Any:
        return []


class Presumed(Mapping[int, list[Any]]):
    """What such a memory has of a conversation, by the numbers of messages, each of which is looked at when it is asked for."""

    def __init__(self, messages: Any) -> None:
        self._messages = messages if isinstance(messages, list) else []

    def __getitem__(self, number: int) -> list[Any]:
        if any(True for _ in unechoed(self._messages[number : number + 1])):
            return []
        raise KeyError(number)

    def __iter__(self) -> Iterator[int]:
        return (number for number, _ in unechoed(self._messages))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def unechoed(messages: Any) -> Iterator[tuple[int, SaidTurn]]:
    """Yields the turns that came back without what they were signed with, each with its message's number."""
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        if type(message) is dict and "tool_calls" in message and message.get("role") == "assistant":
            turn = _turn_of(message)
            if turn is not None:
                yield number, turn


def gaps_of_foreign(messages: Any, memory: TurnMemory | None) -> list[Gap]:
    """Returns the gap of turns that another provider has signed, for a target that takes back no thoughts of anybody's."""
    if memory is None or isinstance(memory, UnknownMemory):
        return []
    return [FOREIGN] if any(memory.find(turn) is SignedElsewhere.BY_ANOTHER for _, turn in unechoed(messages)) else []


def id_of_call(id: str) -> str:
    """Returns a call's id without a signature in it."""
    return id.partition(IN_ID)[0] or id if IN_ID in id else id


def _turn_of(message: dict[str, Any]) -> SaidTurn | None:
    """Returns a turn as the caller repeats it; None: it has no calls, or thoughts of its own, or makes no sense."""
    calls = message["tool_calls"]
    if type(calls) is not list or not calls or message.get("refusal"):
        return None
    if message.get("reasoning_details") or message.get("thinking_blocks"):
        return None
    made = []
    for call in calls:
        function = call.get("function") if type(call) is dict else None
        if type(function) is not dict or "extra_content" in call:
            return None
        id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
        if type(id) is not str or not id:
            return None
        made.append((id_of_call(id), name, arguments))
    return SaidTurn(made, message.get("content"))


def _object_in(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        return orjson.loads(arguments or b"{}")
    except orjson.JSONDecodeError:
        return arguments


def _text_in(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))
