"""Pages of lists of jobs, files and batches, in the form of OpenAI's: https://platform.openai.com/docs/api-reference/files/list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def list_page(objects: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Returns a page of a list, of whatever has an id."""
    return {
        "object": "list",
        "data": list(objects),
        "first_id": objects[0]["id"] if objects else None,
        "last_id": objects[-1]["id"] if objects else None,
        "has_more": has_more,
    }
