"""The texts in a whole answer that a schema is for: which are checked, and how another is put in the place of one.

Of a chat completion each choice's content is one text; of a response, each message's `output_text` parts together; of a
message, all its text blocks together. Answers are read in the caller's language: whatever the target speaks has been put into
it before.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

from gateway.features.output.rules.rules import OutputResult

Json = dict[str, Any]
_CUT = {
    "length": OutputResult.SKIPPED,
    "model_length": OutputResult.SKIPPED,
    "content_filter": OutputResult.REFUSED,
    "tool_calls": OutputResult.SKIPPED,
    "function_call": OutputResult.SKIPPED,
    "error": OutputResult.SKIPPED,
}
"""Why a choice ended that is not meant to be whole."""

_WHOLE = ("end_turn", "stop_sequence")
"""Why a message of Anthropic's ended that is meant to be whole."""


class OutputText(NamedTuple):
    """One text of an answer. `place` is the choice's position, or the item's among a response's output."""

    place: int
    text: str
    excuse: OutputResult | None = None
    """Why it is not checked; None: it is."""


def texts_of(endpoint: str, answer: Json) -> list[OutputText]:
    """Returns the texts of a whole answer; none where it has no such thing."""
    if endpoint == "responses":
        return list(_texts_of_response(answer))
    if endpoint == "messages":
        return text_of_message(answer.get("content"), answer.get("stop_reason"))
    choices = answer.get("choices")
    return [_text_of_choice(at, one) for at, one in enumerate(choices)] if isinstance(choices, list) else []


def text_of_message(content: Any, stop_reason: Any) -> list[OutputText]:
    """Returns the text of a message, and why it is not checked where it has not ended by itself; none where it has none."""
    if not isinstance(content, list):
        return []
    if stop_reason == "refusal":
        return [OutputText(0, "", OutputResult.REFUSED)]
    return [OutputText(0, written_of(content), None if stop_reason in _WHOLE else OutputResult.SKIPPED)]


def _text_of_choice(at: int, choice: Any) -> OutputText:
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        return OutputText(at, "", OutputResult.SKIPPED)
    return text_of(
        at,
        message.get("content"),
        choice.get("finish_reason"),
        is_refused=bool(message.get("refusal")),
        calls_tools=bool(message.get("tool_calls") or message.get("function_call")),
    )


def text_of(at: int, content: Any, finish_reason: Any, *, is_refused: bool, calls_tools: bool) -> OutputText:
    """Returns the text of one choice of a chat completion."""
    if is_refused:
        return OutputText(at, "", OutputResult.REFUSED)
    text = written_of(content)
    if finish_reason in ("length", "model_length", "content_filter", "error"):
        return OutputText(at, text, _CUT[finish_reason])
    if calls_tools and not text:
        return OutputText(at, "", OutputResult.SKIPPED)
    if calls_tools and finish_reason in _CUT:  # some models say what they are going to do
        return OutputText(at, text, OutputResult.SKIPPED)
    return OutputText(at, text)


def written_of(content: Any) -> str:
    """Returns the text of a message's content: that of its text parts, where a model that thinks gives a list (Mistral)."""
    if isinstance(content, str):
        return content
    parts = [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []
    return "".join([one["text"] for one in parts if one.get("type") == "text" and isinstance(one.get("text"), str)])


def _texts_of_response(answer: Json) -> Iterator[OutputText]:
    output = answer.get("output")
    items = [one for one in output if isinstance(one, dict)] if isinstance(output, list) else []
    details = answer.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    excuse = None
    if answer.get("status") != "completed":
        excuse = OutputResult.REFUSED if reason == "content_filter" else OutputResult.SKIPPED
    calls = any(str(one.get("type", "")).endswith("_call") for one in items[-1:])
    for at, item in enumerate(output if isinstance(output, list) else ()):
        if not isinstance(item, dict) or item.get("type") != "message":
            continue
        parts = [part for part in item.get("content") or () if isinstance(part, dict)]
        if any(part.get("type") == "refusal" for part in parts):
            yield OutputText(at, "", OutputResult.REFUSED)
            continue
        text = "".join([str(part.get("text") or "") for part in parts if part.get("type") == "output_text"])
        yield OutputText(at, text, excuse or (OutputResult.SKIPPED if calls else None))
    if excuse is not None and not any(one.get("type") == "message" for one in items):
        yield OutputText(0, "", excuse)


def with_texts(endpoint: str, answer: Json, texts: dict[int, str], usage: Json | None) -> Json:
    """Returns the answer with other texts at these places, and another usage (None: its own), else as it is."""
    told = copy.deepcopy(answer)
    for place, text in texts.items():
        if endpoint == "responses":
            parts = told["output"][place].get("content") or []
            others = [part for part in parts if part.get("type") != "output_text"]
            told["output"][place]["content"] = [
                *others,
                {"type": "output_text", "text": text, "annotations": [], "logprobs": []},
            ]
        elif endpoint == "messages":
            others = [
                block for block in told["content"] if not (isinstance(block, dict) and block.get("type") == "text")
            ]
            told["content"] = [*others, {"type": "text", "text": text}]
        else:
            choice = told["choices"][place]
            choice["message"]["content"] = text
            if choice.get("logprobs") is not None:
                choice["logprobs"] = None  # they were another text's
    if endpoint == "responses" and isinstance(told.get("output_text"), str):
        told["output_text"] = "".join(one.text for one in _texts_of_response(told))
    if usage is not None:
        told["usage"] = usage
    return told


def added_usage(endpoint: str, told: Any, input_tokens: int, output_tokens: int) -> Json | None:
    """Returns an answer's usage with the tokens that were used besides; None: it tells none."""
    if not isinstance(told, dict):
        return None
    is_chat = endpoint not in ("responses", "messages")
    names = ("prompt_tokens", "completion_tokens") if is_chat else ("input_tokens", "output_tokens")
    usage = dict(told)
    for name, more in zip(
        (*names, "total_tokens"), (input_tokens, output_tokens, input_tokens + output_tokens), strict=True
    ):
        if type(usage.get(name)) is int:
            usage[name] += more
    return usage
