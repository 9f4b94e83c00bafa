"""What a target's config sets in the body of each call and leaves out of it, on top-level fields alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.openai.json_edit.json_edit import find_fields, insert_field, remove_fields, replace_field

NOT_EDITABLE = frozenset(("model", "stream", "stream_options"))
"""Fields that decide where a call goes and how its answer comes; a model is named by the target, not by its body."""


COUNTED = frozenset(
    [
        "messages",
        "system",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "output_format",
        "cache_control",
        "context_management",
        "mcp_servers",
        "prefill",
        "speed",
        "compaction",
        "billing_policy",
        "user_profile_id",
        "workspace_id",
    ]
)
"""The fields of a question for the tokens of a request of Messages; with any other it is refused."""


@dataclass(frozen=True, slots=True)
class BodyEdits:
    """The edits of one target. Invariant: no field is both set and dropped."""

    set: tuple[tuple[str, bytes], ...] = ()
    """Names and their values, as JSON texts."""
    drop: tuple[str, ...] = ()

    def of_count(self) -> BodyEdits:
        """Returns the edits for a question that only asks how many tokens the call would have."""
        return BodyEdits(tuple(one for one in self.set if one[0] in COUNTED), self.drop)

    def seen(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what a parsed body says with the edits made."""
        kept = {name: value for name, value in body.items() if name not in self.drop}
        return kept | {name: orjson.loads(value) for name, value in self.set}

    def apply(self, body: bytes) -> tuple[bytes, tuple[str, ...]]:
        """Returns the body, a JSON object, with the edits made, and the names of the fields that it has lost by them."""
        dropped = []
        for name in self.drop:
            if _may_have(body, name) and (fields := find_fields(body, name)):
                body = remove_fields(body, fields)
                dropped.append(name)
        for name, value in self.set:
            if _may_have(body, name) and (fields := find_fields(body, name)):
                body = replace_field(remove_fields(body, fields[:-1]), name, value)
            else:
                body = insert_field(body, name, value)
        return body, tuple(dropped)


def _may_have(body: bytes, name: str) -> bool:
    """Returns False where a plain search shows that there is no such field; it is much faster than to look for its place."""
    return name.encode() in body or b"\\u" in body
