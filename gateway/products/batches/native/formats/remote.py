"""A provider's own batch as it tells of it. What it tells is believed no further than it can be checked.

Sources: https://platform.openai.com/docs/api-reference/batch/object; of Azure and Groq some of the fields are absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

PART: Final = "gateway_part"
"""The entry of a provider's batch's metadata that has the name of our part."""
ENDED: Final = frozenset(("completed", "failed", "expired", "cancelled"))
FULL: Final = frozenset(("token_limit_exceeded", "too_many_tasks_enqueued", "rate_limit_exceeded"))
"""Codes that say: not now. The provider takes only so many tokens into its queue."""
_MOST_CHARS = 300


class ProviderRefused(Exception):
    """A provider has answered that it does not do what was asked. The message says why, without secrets."""

    def __init__(self, status: int, code: str, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.code = code


class NeverSent(Exception):
    """Nothing was asked of the provider, and nothing will be. The message says why, without secrets."""


class NotToldYet(Exception):
    """A batch that may be the one that is looked for is not over, and nothing of its lines is told before."""


class RemoteBatch(NamedTuple):
    """What is read of a provider's batch."""

    id: str
    status: str
    input_file: str = ""
    output: str = ""
    """The id of its output file; empty: none, or none yet."""
    errors: str = ""
    part: str = ""
    """The name of our part, as its metadata has it."""
    created_at: float = 0.0
    completed: int = 0
    """Lines that have an answer, by its own count."""
    code: str = ""
    """Why it failed."""
    message: str = ""

    @property
    def is_over(self) -> bool:
        """Tells whether the provider does nothing more of it."""
        return self.status in ENDED

    @property
    def is_full(self) -> bool:
        """Tells whether it failed for want of room in the provider's queue."""
        return self.code in FULL


def read_batch(value: object) -> RemoteBatch | None:
    """Returns a provider's batch; None: the text says nothing of one."""
    if not isinstance(value, dict) or not _text(value.get("id")) or not _text(value.get("status")):
        return None
    counts, metadata, errors = (_mapping(value.get(name)) for name in ("request_counts", "metadata", "errors"))
    data = errors.get("data")
    first = _mapping(data[0]) if isinstance(data, list) and data else {}
    return RemoteBatch(
        _text(value["id"]),
        _text(value["status"]),
        _text(value.get("input_file_id")),
        _text(value.get("output_file_id")),
        _text(value.get("error_file_id")),
        _text(metadata.get(PART)),
        _number(value.get("created_at")),
        int(_number(counts.get("completed"))),
        _text(first.get("code")),
        _text(first.get("message"))[:_MOST_CHARS],
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else 0.0
