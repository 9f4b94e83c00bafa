"""Tells how an event stream starts: an announcement, or the first event that is output, an error or nonsense.

The client's status line is held back until the first real event, so that whatever goes wrong before it can be repaired by
another attempt. It must not know how long that takes, nor what follows. Invariant: an event that carries output, or says
how the answer ended, is never taken for an announcement, so no first token is ever late.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from gateway.core.openai.sse import sse

FAILED_REASONS = frozenset(("error", "insufficient_system_resource", "abort"))
"""The finish reasons that mean a failure: OpenRouter's, DeepSeek's, SGLang's and vLLM's."""

GIVEN_UP = frozenset(
    (
        "MALFORMED_FUNCTION_CALL",
        "UNEXPECTED_TOOL_CALL",
        "TOO_MANY_TOOL_CALLS",
        "MALFORMED_RESPONSE",
        "MISSING_THOUGHT_SIGNATURE",
        "OTHER",
    )
)
"""Gemini's finish reasons that mean that the model's answer is none; another try may give one."""

_ANNOUNCEMENTS = frozenset(
    (
        "response.created",
        "response.queued",
        "response.in_progress",
        "message_start",
        "content_block_start",
        "ping",
    )
)


class FirstEventKind(Enum):
    """The kinds of event in a stream that has not begun yet."""

    NOTHING = "nothing"
    """The event is an announcement or a comment: a failure may still follow."""
    SOMETHING = "something"
    """The answer has begun with this event."""
    DONE = "done"
    """The event is `[DONE]`, or the end of a message, without any output before it."""
    NONSENSE = "nonsense"
    """The event is neither JSON nor SSE."""


def first_word(event: bytes) -> FirstEventKind:
    """Returns the kind of an event without output before it; errors are found by `first_error`."""
    data = sse.event_data(event).strip()
    if not data:
        return FirstEventKind.NOTHING if sse.is_silent(event) else FirstEventKind.NONSENSE
    if data == sse.DONE:
        return FirstEventKind.DONE
    parsed = sse.json_object(data)
    if parsed is None:
        return FirstEventKind.NONSENSE
    if parsed.get("type") == "message_stop":  # Anthropic's messages tell why they ended in an event before it
        return FirstEventKind.DONE
    return FirstEventKind.NOTHING if says_nothing(parsed) else FirstEventKind.SOMETHING


def first_error(event: bytes) -> dict[str, Any] | None:
    """Returns the error object of an event that is an error, or that ends an answer with a reason that is one."""
    error = sse.error_in(event)
    if error is not None:
        return error
    may_end = b'"finish_reason"' in event and b'"finish_reason":null' not in event
    parsed = sse.event_json(event) if may_end else None
    reason = failed_reason(parsed) if parsed is not None else None
    if reason is None:
        return None
    kind = "overloaded_error" if reason == "insufficient_system_resource" else "server_error"
    return {"message": failed_finish_message(reason), "type": kind, "param": None, "code": reason}


def failed_finish_message(reason: str) -> str:
    """Returns the message for an answer that ended with this reason."""
    return f'the provider gave up on the answer (finish_reason "{reason}")'


def failed_reason(parsed: dict[str, Any]) -> str | None:
    """Returns the finish reason that means a failure; None: there is none."""
    reasons = (choice.get("finish_reason") for choice in choices_of(parsed))
    return next((reason for reason in reasons if isinstance(reason, str) and reason.lower() in FAILED_REASONS), None)


def choices_of(parsed: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the choices of a chunk that are objects."""
    choices = parsed.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def says_nothing(parsed: dict[str, Any]) -> bool:
    """Returns whether this chunk or event has no output and no end: a role, filter results, a ping, an empty item."""
    kind = parsed.get("type")
    if isinstance(kind, str):
        return kind in _ANNOUNCEMENTS or _is_empty_part(kind, parsed)
    if "choices" not in parsed:
        return "object" in parsed or not parsed
    return all(map(_is_silent_choice, choices_of(parsed)))


def _is_empty_part(kind: str, parsed: dict[str, Any]) -> bool:
    """Returns whether the part only begins a message or a text; reasoning and tool calls count as output."""
    if kind == "response.output_item.added":
        item = parsed.get("item")
        return isinstance(item, dict) and item.get("type") == "message" and not item.get("content")
    part = parsed.get("part") if kind == "response.content_part.added" else None
    return isinstance(part, dict) and not part.get("text")


def _is_silent_choice(choice: dict[str, Any]) -> bool:
    if choice.get("finish_reason") or choice.get("text"):
        return False
    delta = choice.get("delta")
    return not isinstance(delta, dict) or not any(value for name, value in delta.items() if name != "role")
