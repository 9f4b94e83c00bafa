"""The blocks of a user's message in Messages, and of a tool's result, as parts of a chat completion.

A block that the target cannot be sent is refused by its place.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.errors import InvalidRequest
from gateway.dialects.base import Json, ServerFacts, object_of, objects, text_of
from gateway.dialects.schema_tools.tools import (
    SEARCH,
    name_for,
)

BREAKPOINT: Final[Json] = {"mode": "explicit"}
_PDF: Final = "application/pdf"


class Parts:
    """Converts blocks of Messages into parts of a chat completion, for one target."""

    def __init__(self, facts: ServerFacts) -> None:
        self._facts = facts

    def content(self, content: Any, place: str) -> Any:
        """Returns the content of a message without results: a text, or parts."""
        if not isinstance(content, list):
            return text_at(content, place)
        parts = [part for number, block in enumerate(content) for part in self.of_block(block, f"{place}[{number}]")]
        return parts[0]["text"] if len(parts) == 1 and is_plain_text(parts[0]) else parts

    def of_block(self, block: Any, place: str) -> list[Json]:
        """Returns the parts that a block becomes. Raises InvalidRequest where the target has none for it."""
        kind = block.get("type") if isinstance(block, dict) else None
        made: list[Json] = []
        if kind == "text":
            made = [{"type": "text", "text": text_at(block.get("text"), f"{place}.text")}]
        elif kind == "image":
            made = _image(object_of(block.get("source")))
        elif kind == "document":
            made = self._document(block, place)
        elif kind == "search_result":
            made = _found(block, place)
        elif kind == "tool_reference":  # a tool that is loaded late there is a usual one here
            name = name_for(text_at(block.get("tool_name"), f"{place}.tool_name"), self._facts)
            made = [{"type": "text", "text": f"The tool {name} can be called."}]
        if not made:
            raise InvalidRequest(f"'{place}' is no block that this model's provider takes.", param=place)
        return [*made[:-1], self.marked(block, made[-1])]

    def of_result(self, block: Json, place: str) -> Any:
        """Returns a tool's result: a text, or parts with pictures and files among them."""
        content = block.get("content")
        if content is None:
            return ""
        made = self.content(content, place)
        if not block.get("cache_control") or self._facts.takes_details or not self._facts.model.cache_marks:
            return made
        parts = made if isinstance(made, list) else [{"type": "text", "text": made}]
        return [*parts[:-1], self.marked(block, parts[-1])] if parts else parts

    def as_text(self, parts: list[Json]) -> Any:
        """Returns a result's texts as the target takes them: as one, or, where it knows parts there, as they are."""
        if any(len(part) > 2 for part in parts) or (self._facts.takes_developer and len(parts) > 1):
            return parts
        return "\n".join(part["text"] for part in parts)

    def marked(self, block: Json, part: Json) -> Json:
        """Returns the part with the block's mark for the cache of prompts, as the target says it."""
        mark = block.get("cache_control")
        if not mark:
            return part
        if self._facts.takes_details:
            return part | {"cache_control": mark}
        return part | {"prompt_cache_breakpoint": BREAKPOINT} if self._facts.model.cache_marks else part

    def _document(self, block: Json, place: str) -> list[Json]:
        source = object_of(block.get("source"))
        kind, title = source.get("type"), text_of(block.get("title"))
        before = [{"type": "text", "text": text} for text in [text_of(block.get("context"))] if text]
        if kind == "base64" and isinstance(source.get("data"), str):
            data = f"data:{text_of(source.get('media_type')) or _PDF};base64,{source['data']}"
            name = title or ("" if self._facts.takes_details else "document.pdf")  # which OpenAI wants in any case
            named = {"filename": name} if name else {}
            return [*before, {"type": "file", "file": {"file_data": data, **named}}]
        if title:
            before.insert(0, {"type": "text", "text": title})
        if kind == "text":
            return [*before, {"type": "text", "text": text_at(source.get("data"), f"{place}.source.data")}]
        if kind == "content":
            return before + _inner(source.get("content"), f"{place}.source.content")
        return []


def is_passed_over(block: Any) -> bool:
    """Returns whether a block tells of a search that Anthropic has made, which a conversation goes on without."""
    kind = text_of(object_of(block).get("type"))
    return kind == "web_search_tool_result" or (kind == "server_tool_use" and block.get("name") == SEARCH)


def is_plain_text(block: Any) -> bool:
    """Returns whether a block is a text and nothing besides: such is the same in both languages."""
    return type(block) is dict and len(block) == 2 and block.get("type") == "text" and type(block.get("text")) is str


def text_at(value: Any, place: str) -> str:
    """Returns a text; none is empty. Raises InvalidRequest where it is something else."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest(f"'{place}' must be a string.", param=place)
    return value


def texts_of(content: Any) -> tuple[list[Json], list[Json]]:
    """Returns a result's texts, and what it has besides."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    texts = [part for part in content if part["type"] == "text"]
    return texts, [part for part in content if part["type"] != "text"]


def _image(source: Json) -> list[Json]:
    url = source.get("url")
    if source.get("type") == "base64" and isinstance(source.get("data"), str):
        url = f"data:{text_of(source.get('media_type')) or 'image/png'};base64,{source['data']}"
    elif source.get("type") != "url":
        url = None
    return [{"type": "image_url", "image_url": {"url": url}}] if isinstance(url, str) else []


def _inner(content: Any, place: str) -> list[Json]:
    """Returns the texts and pictures that a document is made of."""
    if not isinstance(content, list):
        return [{"type": "text", "text": text_at(content, place)}]
    made = []
    for block in objects(content):
        if block.get("type") == "text":
            made.append({"type": "text", "text": text_at(block.get("text"), place)})
        elif block.get("type") == "image":
            made += _image(object_of(block.get("source")))
    return made


def _found(block: Json, place: str) -> list[Json]:
    """Returns what a search of the caller's has found, as text."""
    content = block.get("content")
    if content is not None and not isinstance(content, list):
        raise InvalidRequest(f"'{place}.content' must be a list of text blocks.", param=f"{place}.content")
    texts = [text_at(one.get("text"), f"{place}.content") for one in objects(content)]
    lines = [text_of(block.get("title")), text_of(block.get("source")), *texts]
    return [{"type": "text", "text": "\n".join(filter(None, lines))}]
