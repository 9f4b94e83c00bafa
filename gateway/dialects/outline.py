"""A conversation of chat completions at a glance: which of its messages have more than every language can say.

Most have none, so that what a target would lose of a conversation is found without reading each message.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from gateway.dialects.base import Json
from gateway.dialects.remembered import IN_ID

_SYSTEM: Final = ("system", "developer")
_FIELDS_OF_A_CALL: Final = 3
"""Its id, type and function."""


class ChatOutline(NamedTuple):
    """What there is to look at in a conversation."""

    notable: list[tuple[int, Json]]
    """The messages, each with its number, that have more than words, results of tools in words, and calls of functions."""
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
        if type(content) is str:
            if size == 2 or (size == 3 and "tool_call_id" in message and content and not content.isspace()):
                continue
        elif content is None and size == 3 and _are_plain(message.get("tool_calls")):
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
