"""One page of a list of objects, as OpenAI's API writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(slots=True)
class Page:
    """One page of a provider's list."""

    whole: Any
    """The page as it came: an object with `data`, or a list alone."""
    items: list[Any]

    @property
    def has_more(self) -> bool:
        return isinstance(self.whole, dict) and self.whole.get("has_more") is True and bool(self.items)

    def ids(self) -> list[str]:
        """Returns the ids of its objects, in order; empty for an object without one."""
        return [id_of(item) for item in self.items]


def read_page(body: bytes) -> Page | None:
    """Returns the page; None: the body is no list that could be read."""
    try:
        whole = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    items = whole.get("data") if isinstance(whole, dict) else whole
    if items is None and isinstance(whole, dict) and "data" in whole:
        items = []  # some write an empty list so
    return Page(whole, items) if isinstance(items, list) else None


def id_of(item: Any) -> str:
    found = item.get("id") if isinstance(item, dict) else None
    return found if isinstance(found, str) else ""
