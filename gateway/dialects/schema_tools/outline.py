"""A chat completion at a glance: which of its fields and messages have more than every language can say.

Most messages have none, so that what a target would lose of a conversation is found without reading each message.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final, NamedTuple

from gateway.core.types import Gap, How
from gateway.dialects.base import FieldGaps, Json, object_of
from gateway.dialects.memory import IN_ID

_NO_OPTION: Final = "the target has no such option"
_SYSTEM: Final = ("system", "developer")
_FIELDS_OF_A_CALL: Final = 3
"""Its id, type and function."""


def gaps_of_chat(body: Json, settled: Container[str], table: FieldGaps) -> list[Gap]:
    """Returns the gaps among the top-level fields of a chat completion that no model of the target's knows.

    Those in `settled` are said there, or judged elsewhere; those that are unknown to us have no name of their own.
    """
    found = []
    for name, value in body.items():
        if value is None or name in settled:
            continue
        if name not in table:
            found.append(Gap("other", How.DROPPED, _NO_OPTION))
        elif value not in table[name][2]:
            found.append(Gap(name, table[name][0], table[name][1]))
    if object_of(body.get("stream_options")).get("include_obfuscation"):
        found.append(Gap("stream_options.include_obfuscation", How.DROPPED, _NO_OPTION))
    return found


class ChatOutline(NamedTuple):
    """What there is to look at in a conversation."""

    notable: list[tuple[int, Json]]
    """The messages, each with its number, that have more than words, calls of functions with or without words, and
    results of tools in words."""
    begins_at: int | None
    """The number of the first message that is no instruction; None: all are."""
    has_later_system: bool
    """Instructions stand behind that one."""


def outline(messages: Any) -> ChatOutline:
    """Returns what there is to look at among messages; what is no message is passed over."""
    notable: list[tuple[int, Json]] = []
    begins_at, has_later_system = None, False
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        if type(message) is not dict:
            continue
        content, size = message.get("content"), len(message)
        if message.get("role") in _SYSTEM:
            has_later_system = begins_at is not None
        elif begins_at is None:
            begins_at = number
        has_words = type(content) is str
        if size == 2 and has_words:
            continue
        if size == 3 and has_words and "tool_call_id" in message and content and not content.isspace():
            continue
        is_turn = size == 3 and "tool_calls" in message and "content" in message and (has_words or content is None)
        if is_turn and _are_plain(message["tool_calls"]):
            continue
        notable.append((number, message))
    return ChatOutline(notable, begins_at, has_later_system)


def _are_plain(calls: Any) -> bool:
    """Returns whether these are calls of functions, and no provider has added anything to them."""
    if type(calls) is not list:
        return False
    for call in calls:
        if type(call) is not dict or len(call) != _FIELDS_OF_A_CALL or call.get("type") != "function":
            return False
        if "function" not in call or type(id := call.get("id")) is not str or IN_ID in id:
            return False
    return True
