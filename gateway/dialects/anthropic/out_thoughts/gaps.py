"""What of a chat completion Messages cannot say, field by field, with the reason.

Source: Anthropic's API reference, and what others lost in silence (maximhq/bifrost#5274, vercel/ai#18982).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from gateway.core.types.words import Gap, How
from gateway.dialects.anthropic.out_request.tools.blocks import (
    MOST_MARKS,
    PDF,
    PICTURES,
    has_mark,
    mark_of,
    most_marks,
    picture_url,
)
from gateway.dialects.anthropic.out_thoughts.signed_turns import Recalled
from gateway.dialects.anthropic.out_thoughts.thoughts import has_foreign, thought_blocks
from gateway.dialects.base.base import MOST_NAMED, FieldGaps, Json, ServerFacts, object_of, objects, text_of
from gateway.dialects.schema_tools.media import URLS, data_url, file_of, is_text, type_of_name
from gateway.dialects.schema_tools.outline import ChatOutline, gaps_of_chat, outline

_HINT: Final = "the target has no such option"
_OUTPUT: Final = "the target cannot answer so"

CHAT_ONLY: Final[FieldGaps] = {
    "audio": (How.REFUSED, _OUTPUT, ()),
    "logprobs": (How.REFUSED, _OUTPUT, (False,)),
    "modalities": (How.REFUSED, "the target answers with text alone", (["text"],)),
    "n": (How.REFUSED, "the target gives one answer", (1,)),
    "top_logprobs": (How.REFUSED, _OUTPUT, (0,)),
    "web_search_options": (How.REFUSED, "the target searches by a tool of its own", ()),
    "frequency_penalty": (How.DROPPED, _HINT, (0,)),
    "logit_bias": (How.DROPPED, _HINT, ({},)),
    "metadata": (How.DROPPED, _HINT, ({},)),
    "moderation": (How.DROPPED, _HINT, ()),
    "prediction": (How.DROPPED, _HINT, ()),
    "presence_penalty": (How.DROPPED, _HINT, (0,)),
    "prompt_cache_key": (How.DROPPED, _HINT, ()),
    "prompt_cache_options": (How.DROPPED, "marks say what the target is to keep", ()),
    "prompt_cache_retention": (How.DROPPED, "marks say what the target is to keep", ()),
    "seed": (How.DROPPED, _HINT, ()),
    "store": (How.DROPPED, "the target keeps no answers", (False,)),
    "verbosity": (How.DROPPED, _HINT, ("medium",)),
}
"""Top-level fields of a chat completion: what becomes of each in a Messages request, and the values that mean nothing."""

_SETTLED: Final = frozenset(
    (
        "messages", "model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "stop", "stream",
        "stream_options", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls", "response_format",
        "reasoning_effort", "thinking", "user", "safety_identifier", "service_tier",
        "cache_control",
    )
)  # fmt: skip
"""Fields that are said in Messages, or whose gaps depend on more than themselves."""
_PARTS: Final = frozenset(("text", "refusal", "image_url", "file"))
_NOTED: Final = frozenset(
    (
        "name", "audio", "refusal", "tool_calls", "reasoning_details", "reasoning_content", "reasoning", "thinking_blocks",
        "cache_control", "prompt_cache_breakpoint",
    )
)  # fmt: skip
"""Fields of a message that may be lost, or go with it."""
_NOT_ITS_OWN: Final = "thoughts go back to the provider that signed them, and to no other"
_BOUND: Final = "the model takes thoughts back only behind what it thought them after"
_OTHER: Final = Gap("messages.other", How.DROPPED, "the target's messages have no such field")
_IN_PLACE: Final = "instructions between the messages become a user's words, in their place"


def gaps_at_top(body: Json) -> list[Gap]:
    """Returns the gaps among the fields that no model knows; those that are unknown to us have no name of their own."""
    return gaps_of_chat(body, _SETTLED, CHAT_ONLY)


def gaps_of_recalled(recalled: Recalled, *, keeps_thoughts: bool) -> list[Gap]:
    """Returns the gap of turns whose thoughts are remembered but cannot go back."""
    if recalled.has_foreign:
        return [Gap("messages.reasoning_details", How.DROPPED, _NOT_ITS_OWN)]
    if not keeps_thoughts and any(recalled.contents.values()):
        return [Gap("messages.reasoning_details", How.DROPPED, _BOUND)]
    return []


def gaps_of_messages(
    body: Json, facts: ServerFacts, recalled: Container[int], *, keeps_thoughts: bool, looks: ChatOutline | None = None
) -> list[Gap]:
    """Returns the gaps among a chat completion's messages; of those `recalled`, by number, the thoughts are remembered.

    `looks`: the messages' outline, where it was made.
    """
    found: list[Gap] = []
    marks, looks = _marks_of_tools(body), looks or outline(body.get("messages"))
    for number, message in looks.notable:
        role = message.get("role")
        content = message.get("content")
        if type(content) is list:
            marks += _read_parts(content, role, found)
        if _NOTED.isdisjoint(message):
            continue
        marks += _mark(message, found)
        if message.get("name") and role not in ("tool", "function"):
            found.append(Gap("messages.name", How.DROPPED, "the target knows no names of speakers"))
        if role == "assistant":
            if not keeps_thoughts and thought_blocks(message):
                found.append(Gap("messages.reasoning_details", How.DROPPED, _BOUND))
            _read_answer(message, found, is_recalled=keeps_thoughts and number in recalled)
    if looks.has_other:
        found.append(_OTHER)
    if looks.has_later_system and not facts.model.later_system:
        found.append(Gap("messages.system", How.APPROXIMATED, _IN_PLACE))
    if looks.begins_at is None:
        found.append(Gap("messages.system", How.APPROXIMATED, "instructions alone become a user's words"))
    if marks > most_marks(body):
        found.append(Gap("cache_control", How.APPROXIMATED, f"the last {MOST_MARKS} marks for the cache are kept"))
    return found


def _read_answer(message: Json, found: list[Gap], *, is_recalled: bool) -> None:
    """Looks at what the model has said before."""
    if message.get("audio"):
        found.append(Gap("messages.audio", How.REFUSED, "the target does not hear what it said"))
    if message.get("refusal"):
        found.append(Gap("messages.refusal", How.APPROXIMATED, "it goes back as what the model has said"))
    for call in objects(message.get("tool_calls")):
        if call.get("type", "function") != "function":
            found.append(Gap("messages.tool_calls.custom", How.REFUSED, "the target has functions alone as tools"))
        if call.get("extra_content"):
            found.append(Gap("messages.tool_calls.extra_content", How.DROPPED, _NOT_ITS_OWN))
    if message.get("reasoning_details") and has_foreign(message):
        found.append(Gap("messages.reasoning_details", How.DROPPED, _NOT_ITS_OWN))
    told = message.get("reasoning_content") or message.get("reasoning")
    if told and not is_recalled and not message.get("reasoning_details") and not message.get("thinking_blocks"):
        found.append(Gap("messages.reasoning_content", How.DROPPED, "thoughts that nobody signed cannot go back"))


def _read_parts(parts: list[object], role: object, found: list[Gap]) -> int:
    """Looks at a message's parts. Returns the number of its marks for the cache."""
    marks = 0
    for part in parts:
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if kind == "image_url":
            _read_picture(part, found)
        elif kind == "file":
            _read_file(object_of(part.get("file")), found)
        elif kind == "refusal" and role == "assistant":
            found.append(Gap("messages.refusal", How.APPROXIMATED, "it goes back as what the model has said"))
        elif kind != "text" and text_of(kind) not in _PARTS:
            found.append(Gap(f"messages.{text_of(kind)}"[:MOST_NAMED], How.REFUSED, "the target takes no such part"))
        marks += _mark(part, found)
    return marks


def _mark(given: Json, found: list[Gap]) -> int:
    if not has_mark(given):
        return 0
    mark = mark_of(given)
    if mark is not None and mark is not given.get("cache_control"):
        found.append(Gap("messages.prompt_cache_breakpoint", How.APPROXIMATED, "the target keeps it for an hour"))
    return mark is not None


def _marks_of_tools(body: Json) -> int:
    tools = objects(body.get("tools"))
    return sum(1 for tool in tools if (mark_of(tool) or mark_of(object_of(tool.get("function")))) is not None)


def _read_picture(part: Json, found: list[Gap]) -> None:
    detail = object_of(part.get("image_url")).get("detail")
    if detail and detail != "auto":
        found.append(Gap("messages.image_url.detail", How.DROPPED, _HINT))
    url = picture_url(part) or ""
    media = data_url(url[: url.find(",") + 1]) if url[:5].lower() == "data:" else None
    if media is not None and media.type not in PICTURES:
        found.append(Gap("messages.image_url", How.REFUSED, "the target takes PNG, JPEG, GIF and WebP"))


def _read_file(file: Json, found: list[Gap]) -> None:
    if file.get("file_id"):
        found.append(Gap("messages.file.file_id", How.REFUSED, "files of a provider are unknown to others"))
    elif isinstance(data := file.get("file_data"), str):
        if data.startswith(URLS):
            is_taken = type_of_name(data) == PDF
        else:
            media = file_of(data[: data.find(",") + 1] if data[:5].lower() == "data:" else "", file.get("filename"))
            is_taken = media.type == PDF or is_text(media.type)
        if not is_taken:
            found.append(Gap("messages.file", How.REFUSED, "the target takes PDF and texts"))
