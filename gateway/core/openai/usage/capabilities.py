"""The needs of a call, and the capabilities of a target.

Only asked where some target of a plan declares a restriction. It must not know targets or limits. Invariants: total on any
JSON object; the work is bounded however large the body is: what lies beyond the bounds is taken not to be there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from gateway.core.openai.json_edit.outline import UNREAD

CONTEXT_TOLERANCE = 1.25
"""The error of estimates: a call that may fit is let through, and the provider has the last word."""

SURELY_TOO_LONG = 1.5
"""So many times more than a model reads is an estimate that is too long for it, where the operator says no window."""
CONTEXT_WINDOW = "a larger context window"

_MOST_PARTS = 4096  # messages and parts of messages together, the newest
_IMAGES = frozenset(("image_url", "input_image", "image", "computer_screenshot"))


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of a target; without a declaration it can do everything."""

    tools: bool = True
    images: bool = True
    structured_output: bool = True
    context_window: int | None = None
    """The tokens of input and output together; None: unknown."""

    @property
    def is_restricted(self) -> bool:
        """Returns whether the target lacks anything that a call could need."""
        return not (self.tools and self.images and self.structured_output and self.context_window is None)


class Needs(NamedTuple):
    """The needs of one call; `tokens` are the estimated input and the bound on the output together, 0: unknown."""

    tools: bool = False
    images: bool = False
    structured_output: bool = False
    tokens: int = 0


def needs_of(body: dict[str, Any], tokens: int = 0) -> Needs:
    """Returns the needs of a request of chat completions, Responses or Messages; `body` is parsed."""
    return Needs(
        tools=_is_filled(body.get("tools")) or _is_filled(body.get("functions")),
        images=_shows_images(body.get("messages")) or _shows_images(body.get("input")),
        structured_output=_has_schema(body.get("response_format"))
        or _has_schema(_field(body.get("text"), "format"))
        or _has_schema(_field(body.get("output_config"), "format")),
        tokens=tokens,
    )


def needs_of_fields(fields: dict[str, Any], *, images: bool) -> Needs:
    """Returns the needs of a request of which only the top level is known; each part that was not read counts as needed."""
    return needs_of(fields)._replace(images=images)


def lacks(needs: Needs, capabilities: Capabilities) -> str | None:
    """Returns the first need that the target lacks, as a word for the error message; None: it can serve the call."""
    if needs.tools and not capabilities.tools:
        return "tools"
    if needs.images and not capabilities.images:
        return "images"
    if needs.structured_output and not capabilities.structured_output:
        return "structured output"
    window = capabilities.context_window
    if window is not None and needs.tokens > window * CONTEXT_TOLERANCE:
        return CONTEXT_WINDOW
    return None


def _is_filled(value: object) -> bool:
    return value is UNREAD or (isinstance(value, list) and len(value) > 0)


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else UNREAD if value is UNREAD else None


def _has_schema(value: object) -> bool:
    """Returns whether a schema is asked for; `json_object` asks for any JSON, which every model serves when asked in words."""
    return value is UNREAD or _field(value, "type") == "json_schema"


def _shows_images(messages: object) -> bool:
    return isinstance(messages, list) and any(_is_image(part) for part in islice(_parts(messages), _MOST_PARTS))


def _parts(messages: list[Any]) -> Iterator[object]:
    """Yields messages and the parts of their content; in responses a part may stand among the messages, and in Messages those
    of a tool's result are one step deeper."""
    for message in reversed(messages):
        yield message
        for name in ("content", "output"):  # of a message; of a tool's answer in responses
            content = _field(message, name)
            if isinstance(content, list):
                yield from content
                for part in content:
                    inner = _field(part, "content")
                    if isinstance(inner, list):
                        yield from inner
            elif content is not None:
                yield content


def _is_image(part: object) -> bool:
    kind = _field(part, "type")
    if kind == "document":  # of Messages: it is looked at page by page, unless it is text
        return _field(_field(part, "source"), "type") not in ("text", "content")
    return isinstance(kind, str) and kind in _IMAGES
