"""The input of a response as `GET /v1/responses/{id}/input_items` lists it: items with ids, and texts as parts.

Source: OpenAI's API reference, "List input items".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gateway.products.jobs.model.ids import RESPONSE

_MARKS: Final = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def listed(response_id: str, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the items; those that came without an id have always the same one."""
    body = response_id.removeprefix(RESPONSE)
    return [_listed(item, body, place) for place, item in enumerate(items)]


def _listed(item: dict[str, Any], body: str, place: int) -> dict[str, Any]:
    kind = item.get("type") or "message"
    id = item.get("id")
    made = {
        **item,
        "id": id if isinstance(id, str) and id else f"{_MARKS.get(kind, 'item')}_gw{body}{place:04d}",
        "type": kind,
    }
    if kind != "message":
        return made
    content = made.get("content")
    if isinstance(content, str):
        part = "output_text" if made.get("role") == "assistant" else "input_text"
        made["content"] = [{"type": part, "text": content}]
    made.setdefault("status", "completed")
    return made
