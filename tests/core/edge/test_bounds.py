"""What a call's answer may have at most, as its body says it."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.core.request_fields import peek
from gateway.dialects.endpoints import ENDPOINTS
from tests.rows import rows

CHAT = next(endpoint for endpoint in ENDPOINTS if endpoint.name == "chat")


@rows(
    ("fields", "bound"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 7, "n": 3}, 21),
        ({"max_tokens": 7, "n": 2, "best_of": 5}, 35),
        ({"max_tokens": 7, "n": 5, "best_of": 2}, 35),
        ({"max_tokens": 7, "n": 500}, 3500),
        ({"max_tokens": 7, "n": "3"}, 21),
        ({"max_tokens": 7, "n": 3.0}, 21),
        ({"max_tokens": 7, "n": True, "best_of": None}, 7),
        ({"max_tokens": 7, "n": -3, "best_of": 1e30}, 7),
        ({"max_tokens": 7, "prompt": ["a", "b", "c"]}, 21),
        ({"max_tokens": 7, "prompt": [[1, 2], [3]], "n": 2}, 28),
        ({"max_tokens": 7, "prompt": [1, 2, 3]}, 7),
        ({"max_tokens": 7, "prompt": "abc"}, 7),
        ({"max_tokens": 7, "prompt": []}, 7),
        ({"max_completion_tokens": 1, "max_tokens": 100_000}, 100_000),
        ({"max_tokens": 1, "max_output_tokens": 100_000}, 100_000),
        ({"max_completion_tokens": 100_000, "max_tokens": 1}, 100_000),
        ({"max_completion_tokens": 1, "max_tokens": 2, "max_output_tokens": 3}, 3),
        ({"max_completion_tokens": 0, "max_tokens": 5}, 5),
        ({"max_completion_tokens": 1, "max_tokens": None}, 1),
        ({"max_completion_tokens": 1, "max_tokens": -1}, None),
        ({"max_tokens": "7"}, None),
    ],
)
def test_the_largest_bound_counts(fields: dict[str, Any], bound: int | None) -> None:
    """A provider heeds the name it knows: a small number under another is not to make a call cheap for limits and budgets."""
    body = orjson.dumps({"model": "m", "messages": [], **fields})

    assert peek(CHAT, body, {}).max_tokens == bound
