"""The fields of what stands within a request of Messages and is judged by nobody else.

Source: Anthropic's API reference, Messages.
"""

from __future__ import annotations

from typing import Final

from gateway.dialects.schema_tools.unknown import Form, form

_MOST_DEPTH: Final = 3
"""Blocks stand in results of tools, and in documents in these."""


def _mark(gap: str) -> Form:
    return form(gap, "type ttl")


def _blocks(depth: int) -> Form:
    """Returns the form of a content's blocks, whose own fields are judged where they are converted."""
    inner = {"content": _blocks(depth - 1)} if depth else {}
    source = form("messages.other", "type media_type data url file_id", **inner)
    usual = form(
        "",
        "",
        source=source,
        cache_control=_mark("messages.other"),
        citations=form("messages.other", "enabled"),
        **inner,
    )
    text = form("", "", cache_control=_mark("messages.other"))
    return form(
        "",
        "",
        {
            "text": text,
            **dict.fromkeys(("image", "document", "search_result", "tool_reference", "tool_use", "tool_result"), usual),
        },
    )


_BLOCKS: Final = _blocks(_MOST_DEPTH)
_FORMAT: Final = form("output_config.other", "type schema")
MESSAGES: Final = form(
    "",
    "",
    system=_BLOCKS,
    messages=form("", "", content=_BLOCKS),
    tools=form(
        "",
        "",
        cache_control=_mark("tools.other"),
        user_location=form("tools.other", "type city country region timezone"),
    ),
    tool_choice=form("tool_choice.other", "type name disable_parallel_tool_use"),
    cache_control=_mark("other"),
    output_config=form("", "", format=_FORMAT),
    output_format=_FORMAT,
)
"""A request of Messages, without the fields that `in_gaps` looks at."""
