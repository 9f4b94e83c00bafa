"""What chat completions and Responses cannot say of each other, field by field, with the reason.

Source: OpenAI's API reference for both, and what others lost silently (BerriAI/litellm#18201, open-webui/open-webui#30085).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.dialects.base import Json, object_of, objects, strings, text_of
from gateway.words import Gap, How

_STATE: Final = "the target keeps no state of conversations"
_HINT: Final = "the target has no such option"

RESPONSES_ONLY: Final[Mapping[str, tuple[How, str, tuple[object, ...]]]] = {
    "background": (How.REFUSED, "the target answers only while one waits", (False,)),
    "conversation": (How.REFUSED, _STATE, ()),
    "previous_response_id": (How.REFUSED, _STATE, ()),
    "prompt": (How.REFUSED, "prompts that are kept by the provider are its own", ()),
    "context_management": (How.DROPPED, _HINT, ([],)),
    "max_tool_calls": (How.DROPPED, "it bounds tools that run at the provider", ()),
    "moderation": (How.DROPPED, _HINT, ()),
    "truncation": (How.DROPPED, "the target does not shorten conversations", ("disabled",)),
}
"""Top-level fields of a Responses request: what becomes of each in a chat completion, and the values that mean nothing."""

CHAT_ONLY: Final[Mapping[str, tuple[How, str, tuple[object, ...]]]] = {
    "n": (How.REFUSED, "Responses give one answer", (1,)),
    "audio": (How.REFUSED, "Responses do not speak", ()),
    "modalities": (How.REFUSED, "Responses give text alone", (["text"],)),
    "web_search_options": (How.REFUSED, "Responses search by a tool of theirs", ()),
    "frequency_penalty": (How.DROPPED, _HINT, (0,)),
    "presence_penalty": (How.DROPPED, _HINT, (0,)),
    "logit_bias": (How.DROPPED, _HINT, ({},)),
    "prediction": (How.DROPPED, _HINT, ()),
    "seed": (How.DROPPED, _HINT, ()),
    "stop": (How.DROPPED, _HINT, ([],)),
}
"""Top-level fields of a chat completion: what becomes of each in a Responses request."""

_TOOLS_OF_CHAT: Final = frozenset(("function", "custom"))
_ITEMS: Final = frozenset(
    ("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning")
)
_PARTS_OF_CHAT: Final = frozenset(("text", "refusal", "image_url", "file", "input_audio"))
_INCLUDED: Final = frozenset(("message.output_text.logprobs", "reasoning.encrypted_content"))


def gaps_of_tools(body: Json, *, takes_custom: bool) -> list[Gap]:
    """Returns the gaps among a Responses request's tools and the choice of them."""
    found = []
    for tool in objects(body.get("tools")):
        kind = text_of(tool.get("type"))
        if kind not in _TOOLS_OF_CHAT:
            found.append(Gap(f"tools.{kind}", How.REFUSED, "the tool runs at a provider that has it"))
        elif kind == "custom" and not takes_custom:
            found.append(Gap("tools.custom", How.APPROXIMATED, "it becomes a function with one text as input"))
    chosen = text_of(object_of(body.get("tool_choice")).get("type"))
    if chosen == "allowed_tools":
        found.append(Gap("tool_choice.allowed_tools", How.APPROXIMATED, "the other tools are left out of the request"))
    elif chosen and chosen not in _TOOLS_OF_CHAT:
        found.append(Gap(f"tool_choice.{chosen}", How.REFUSED, "the tool runs at a provider that has it"))
    return found


def gaps_of_input(body: Json) -> list[Gap]:
    """Returns the gaps among a Responses request's items and their parts."""
    found = []
    for item in objects(body.get("input")):
        kind = text_of(item.get("type", "message"))
        if kind not in _ITEMS:
            found.append(Gap(f"input.{kind}", How.REFUSED, "chat completions have no such item"))
        elif kind == "reasoning":
            found += _gaps_of_reasoning(item)
        for part in objects(item.get("output" if kind.endswith("_output") else "content")):
            found += _gaps_of_part(part, of_tool=kind.endswith("_output"))
    return found


def _gaps_of_reasoning(item: Json) -> list[Gap]:
    if item.get("encrypted_content"):
        return [Gap("input.reasoning", How.DROPPED, "encrypted reasoning is of use to its own provider only")]
    has_summary = item.get("summary") and not item.get("content")
    return [Gap("input.reasoning", How.DROPPED, "a summary of reasoning cannot go back")] if has_summary else []


def _gaps_of_part(part: Json, *, of_tool: bool) -> list[Gap]:
    kind = text_of(part.get("type"))
    if kind in ("input_image", "input_file") and part.get("file_id"):
        return [Gap(f"input.{kind}.file_id", How.REFUSED, "files of a provider are unknown to others")]
    if kind == "input_file" and part.get("file_url"):
        return [Gap("input.input_file.file_url", How.REFUSED, "the target fetches no files, and the gateway does not")]
    if of_tool and kind in ("input_image", "input_file"):
        return [Gap("input.function_call_output", How.APPROXIMATED, "its pictures and files follow in a user message")]
    return []


def gaps_of_options(body: Json) -> list[Gap]:
    """Returns the gaps among a Responses request's nested options."""
    found = []
    if set(strings(body.get("include"))) - _INCLUDED:
        found.append(Gap("include", How.DROPPED, "the target has nothing of what is to be included"))
    reasoning = object_of(body.get("reasoning"))
    for name in ("summary", "generate_summary"):
        if reasoning.get(name):
            found.append(Gap(f"reasoning.{name}", How.DROPPED, "the target shows its reasoning, or does not"))
    return found


def gaps_of_messages(body: Json) -> list[Gap]:
    """Returns the gaps among a chat completion's messages and tools."""
    found = []
    for message in objects(body.get("messages")):
        if message.get("audio"):
            found.append(Gap("messages.audio", How.REFUSED, "Responses do not hear what they said"))
        if message.get("name"):
            found.append(Gap("messages.name", How.DROPPED, "Responses know no names of speakers"))
        for part in objects(message.get("content")):
            if part.get("type") == "file" and object_of(part.get("file")).get("file_id"):
                continue  # of the same provider
            if part.get("type") not in _PARTS_OF_CHAT:
                found.append(Gap(f"messages.{part.get('type')}", How.REFUSED, "Responses take no such part"))
    return found
