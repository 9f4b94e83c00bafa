"""Merges the pieces of a streamed answer: the deltas, and the fields that every piece repeats.

A delta adds (`add`): the texts that are known to come in pieces grow, lists whose entries have an `index` grow entry by entry,
everything else comes once. What stands around deltas is said again and again (`agree`): it has to be the same each time, or
more of the same. It must not know which fields an answer has. Invariant: what could be put together in two ways raises
`Ambiguous`; nothing is guessed, nothing is dropped.
"""

from __future__ import annotations

from typing import Any

_TEXTS = frozenset(
    (
        "arguments",
        "content",
        "data",
        "input",
        "reasoning",
        "reasoning_content",
        "refusal",
        "summary",
        "text",
        "thinking",
        "transcript",
    )
)
"""The strings of a delta that come in pieces, at any depth."""
_NAMES = frozenset(("format", "id", "name", "role", "type"))
"""The strings of a delta that some providers repeat; they are never cut."""
_GROWING = frozenset(("annotations",))
"""The lists of a delta whose entries come one after another, without an index."""


class Ambiguous(ValueError):
    """Two pieces of an answer that can be put together in more than one way, or in none."""


class Text:
    """A text that grows; it becomes a string at the end, so that pieces are copied only once."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def __str__(self) -> str:
        return "".join(self.pieces)


def plain(value: object) -> str:
    """For `orjson.dumps(default=…)`: returns the string of a text."""
    if isinstance(value, Text):
        return str(value)
    raise TypeError(type(value).__name__)


def add(known: dict[str, Any], news: dict[str, Any]) -> None:
    """Adds a delta to those before it. Raises Ambiguous."""
    for name, value in news.items():
        known[name] = _added(name, known.get(name), value)


def agree(known: dict[str, Any], news: dict[str, Any]) -> None:
    """Merges a repeated field. Raises Ambiguous where it is not the same as before."""
    for name, value in news.items():
        known[name] = _agreed(known[name], value) if name in known else value


def add_text(known: Text | None, piece: str) -> Text:
    """Returns the text with one more piece."""
    text = known or Text()
    text.pieces.append(piece)
    return text


def index_of(entry: dict[str, Any]) -> int:
    """Returns the index of an entry. Raises Ambiguous when it has none."""
    index = entry.get("index")
    if type(index) is not int or index < 0:
        raise Ambiguous("an entry without an index")
    return index


def is_indexed(entries: list[Any]) -> bool:
    """Returns whether every entry has an index."""
    return bool(entries) and all(isinstance(entry, dict) and type(entry.get("index")) is int for entry in entries)


def _added(name: str, old: Any, new: Any) -> Any:
    if new is None:
        return old
    if isinstance(new, str):
        return _added_string(name, old, new)
    if isinstance(new, dict):
        known = {} if old is None else old
        if not isinstance(known, dict):
            raise Ambiguous(name)
        add(known, new)
        return known
    if isinstance(new, list):
        return _added_list(name, old, new)
    if old is not None and old != new:
        raise Ambiguous(name)
    return new


def _added_string(name: str, old: Any, new: str) -> Any:
    if name in _TEXTS:
        if old is not None and not isinstance(old, Text):
            raise Ambiguous(name)
        if name == "data" and new and old is not None and str(old).endswith("="):
            raise Ambiguous("base64 that had ended")
        return add_text(old, new)
    if name == "id" and new == "null":
        return old  # as Mistral writes it in all pieces of a tool call but the first
    if not old:
        return new
    if new and (name not in _NAMES or old != new):
        raise Ambiguous(name)  # a name that is sent twice, or a text in pieces: the stream does not tell which
    return old


def _added_list(name: str, old: Any, new: list[Any]) -> Any:
    if old is not None and not isinstance(old, list):
        raise Ambiguous(name)
    if name not in _GROWING and is_indexed(new):
        return _added_entries(old or [], new)
    if name == "tool_calls" and new:
        raise Ambiguous("tool calls without an index")
    if not old or not new:
        return old or new
    if name not in _GROWING or any(entry in old for entry in new):
        raise Ambiguous(name)
    return old + new


def _added_entries(old: list[Any], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if old and not is_indexed(old):
        raise Ambiguous("entries with and without an index")
    for entry in new:
        index = index_of(entry)
        known = next((known for known in reversed(old) if known["index"] == index), None)
        if known is None:
            known = {"index": index}
            old.append(known)
        add(known, entry)
    old.sort(key=index_of)
    return old


def _agreed(old: Any, new: Any) -> Any:
    if old == new or new in (None, "") or (new == [] and isinstance(old, list)):
        return old
    if old in (None, ""):
        return new
    if isinstance(old, dict) and isinstance(new, dict):
        agree(old, new)
        return old
    if isinstance(old, list) and isinstance(new, list) and new[: len(old)] == old:
        return new  # some repeat a list with every event, as long as it has become
    raise Ambiguous("said twice, and not the same")
