"""What of a chat completion generateContent cannot say, field by field, with the reason.

Source: the Gemini API's reference, and what others lost in silence (earendil-works/pi#1446, vercel/ai#18982).
"""

from __future__ import annotations

from typing import Final

from gateway.core.types import Gap, How
from gateway.dialects.base import MOST_NAMED, FieldGaps, Json, ServerFacts, object_of, objects, text_of
from gateway.dialects.gemini.out_answer import has_foreign, signature_of_call
from gateway.dialects.gemini.out_request import PLACES, STORED, url_in
from gateway.dialects.memory import IN_ID
from gateway.dialects.schema_tools.media import type_of_name
from gateway.dialects.schema_tools.outline import gaps_of_chat, outline

_HINT: Final = "the target has no such option"
_OUTPUT: Final = "the target cannot answer so"

CHAT_ONLY: Final[FieldGaps] = {
    "audio": (How.REFUSED, _OUTPUT, ()),
    "cache_control": (How.DROPPED, "the target keeps beginnings of prompts by itself", ()),
    "logit_bias": (How.DROPPED, _HINT, ({},)),
    "moderation": (How.DROPPED, _HINT, ()),
    "prediction": (How.DROPPED, _HINT, ()),
    "prompt_cache_key": (How.DROPPED, _HINT, ()),
    "prompt_cache_options": (How.DROPPED, "the target keeps beginnings of prompts by itself", ()),
    "prompt_cache_retention": (How.DROPPED, "the target keeps beginnings of prompts by itself", ()),
    "safety_identifier": (How.DROPPED, _HINT, ()),
    "store": (How.DROPPED, "the target keeps no answers", (False,)),
    "thinking": (How.DROPPED, _HINT, ()),
    "user": (How.DROPPED, _HINT, ()),
    "verbosity": (How.DROPPED, _HINT, ("medium",)),
    "web_search_options": (How.DROPPED, "the target searches by a tool of its own", ()),
}
"""Top-level fields of a chat completion: what becomes of each in a request, and the values that mean nothing."""

_SETTLED: Final = frozenset(
    (
        "messages", "model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "stop", "stream",
        "stream_options", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls", "response_format",
        "reasoning_effort", "reasoning", "service_tier", "metadata", "n", "seed", "presence_penalty", "frequency_penalty",
        "logprobs", "top_logprobs", "modalities", "extra_body", "google", "safety_settings",
    )
)  # fmt: skip
"""Fields that are said in a request, or whose gaps depend on more than themselves."""
_ANSWERS: Final = ("text", "image")
_PLAIN: Final = frozenset(("role", "content"))
_MEDIA: Final = frozenset(("image_url", "video_url", "input_audio", "file"))
_NOT_ITS_OWN: Final = "signatures go back to the provider that made them, and to no other"


def gaps_at_top(body: Json) -> list[Gap]:
    """Returns the gaps among the fields that no model knows; those that are unknown to us have no name of their own."""
    found = gaps_of_chat(body, _SETTLED, CHAT_ONLY)
    modalities = body.get("modalities")
    if modalities is not None and not (isinstance(modalities, list) and all(one in _ANSWERS for one in modalities)):
        found.append(Gap("modalities", How.REFUSED, "the target answers with text and pictures"))
    return found


def gaps_of_messages(body: Json, facts: ServerFacts) -> list[Gap]:
    """Returns the gaps among a chat completion's messages."""
    found: list[Gap] = []
    looks = outline(body.get("messages"))
    if looks.has_later_system:
        why = "instructions between the messages become a user's words, in their place"
        found.append(Gap("messages.system", How.APPROXIMATED, why))
    for _, message in looks.notable:
        role, content = message.get("role"), message.get("content")
        if type(content) is list:
            _read_parts(content, role, facts, found)
        if message.keys() <= _PLAIN:
            continue
        if "cache_control" in message or "prompt_cache_breakpoint" in message:
            found.append(_of_mark())
        if message.get("name") and role not in ("tool", "function"):
            found.append(Gap("messages.name", How.DROPPED, "the target knows no names of speakers"))
        if role == "assistant":
            _read_answer(message, facts, found)
    if looks.begins_at is None:
        found.append(Gap("messages.system", How.APPROXIMATED, "instructions alone become a user's words"))
    return found


def _read_answer(message: Json, facts: ServerFacts, found: list[Gap]) -> None:
    """Looks at what the model has said before."""
    if message.get("audio"):
        found.append(Gap("messages.audio", How.REFUSED, "the target does not hear what it said"))
    if message.get("images"):
        found.append(Gap("messages.images", How.DROPPED, "pictures that the model made are not shown to it again"))
    if message.get("refusal"):
        found.append(Gap("messages.refusal", How.APPROXIMATED, "it goes back as what the model has said"))
    is_signed = False
    for call in objects(message.get("tool_calls")):
        if call.get("type", "function") != "function":
            found.append(Gap("messages.tool_calls.custom", How.REFUSED, "the target has functions alone as tools"))
        if "extra_content" not in call and IN_ID not in text_of(call.get("id")):
            continue
        if signature_of_call(call, facts.issuer) is None:
            found.append(Gap("messages.tool_calls.extra_content", How.DROPPED, _NOT_ITS_OWN))
        else:
            is_signed = True  # Gemini takes signatures back, which stand for the thoughts, and no words of thoughts
    details = message.get("reasoning_details")
    if message.get("thinking_blocks") or (details and has_foreign(message, facts.issuer)):
        found.append(Gap("messages.reasoning_details", How.DROPPED, _NOT_ITS_OWN))
    if not (details or is_signed) and (message.get("reasoning_content") or message.get("reasoning")):
        found.append(Gap("messages.reasoning_content", How.DROPPED, "thoughts in words do not go back"))


def _read_parts(parts: list[object], role: object, facts: ServerFacts, found: list[Gap]) -> None:
    """Looks at a message's parts."""
    for part in parts:
        if not isinstance(part, dict):
            continue
        kind = text_of(part.get("type"))
        if "cache_control" in part or "prompt_cache_breakpoint" in part:
            found.append(_of_mark())
        if kind in _MEDIA:
            _read_media(part, kind, facts, found)
            if role in ("tool", "function"):
                why = "what a result shows stands behind the results"
                found.append(Gap(f"messages.{kind}", How.APPROXIMATED, why))
        elif kind == "refusal" and role == "assistant":
            found.append(Gap("messages.refusal", How.APPROXIMATED, "it goes back as what the model has said"))
        elif kind != "text":
            found.append(Gap(f"messages.{kind}"[:MOST_NAMED], How.REFUSED, "the target takes no such part"))


def _read_media(part: Json, kind: str, facts: ServerFacts, found: list[Gap]) -> None:
    inner = object_of(part.get(kind))
    if kind == "file":
        if inner.get("file_id"):
            found.append(Gap("messages.file.file_id", How.REFUSED, "files of a provider are unknown to others"))
        url = text_of(inner.get("file_data"))
        if inner.get("filename"):
            found.append(Gap("messages.file.filename", How.DROPPED, "files have no names there"))
    elif kind == "input_audio":
        return
    else:
        url = url_in(part, kind) or ""
        if inner.get("detail") not in (None, "", "auto"):
            found.append(Gap(f"messages.{kind}.detail", How.DROPPED, _HINT))
        if url.startswith(PLACES) and not type_of_name(url):
            why = "where it lies does not tell its type, and the usual one is told"
            found.append(Gap(f"messages.{kind}", How.APPROXIMATED, why))
    if url.startswith(STORED) and facts.issuer != "vertex":
        found.append(Gap(f"messages.{kind}", How.REFUSED, "Vertex AI alone reads what lies in Google's storage"))


def _of_mark() -> Gap:
    return Gap("cache_control", How.DROPPED, "the target keeps beginnings of prompts by itself")
