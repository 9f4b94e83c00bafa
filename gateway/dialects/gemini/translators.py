"""Callers of chat completions at targets that speak generateContent.

In this order: what of a chat completion it cannot say, the translator (`ChatOverGenerate`), counts of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gateway.core.types import Gap, How
from gateway.dialects.anthropic.in_gaps import MessagesOverChat
from gateway.dialects.base import (
    MOST_NAMED,
    ConvertedRequest,
    CountingTranslator,
    FieldGaps,
    Json,
    Reader,
    ServerFacts,
    ThroughChat,
    object_of,
    objects,
    once,
    text_of,
)
from gateway.dialects.gemini.out_answer import (
    GenerateAsChat,
    chat_of_generated,
    has_foreign,
    signature_of_call,
    with_echoes,
)
from gateway.dialects.gemini.out_request import PLACES, STORED, GenerateOptions, generate_body, url_in
from gateway.dialects.memory import IN_ID, gaps_of_foreign
from gateway.dialects.schema_tools.chat_parts import NO_OPTION, OPENAIS_ALONE, gaps_of_chat, outline, type_of_name
from gateway.dialects.schema_tools.tools import GEMINIS, gaps_of_names, with_allowed_names

# --- What of a chat completion generateContent cannot say, field by field, with the reason ---


CHAT_ONLY: Final[FieldGaps] = {
    **OPENAIS_ALONE,
    **dict.fromkeys(
        ("cache_control", "prompt_cache_options", "prompt_cache_retention"),
        (How.DROPPED, "the target keeps beginnings of prompts by itself", ()),
    ),
    **dict.fromkeys(("safety_identifier", "thinking", "user"), (How.DROPPED, NO_OPTION, ())),
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
"""Fields that a request has, too, or whose gaps depend on more than themselves."""
_ANSWERS: Final = ("text", "image")
_PLAIN: Final = frozenset(("role", "content"))
_MEDIA: Final = frozenset(("image_url", "video_url", "input_audio", "file"))
_NOT_ITS_OWN: Final = "signatures go back to the provider that made them, and to no other"


def gaps_at_top(body: Json) -> list[Gap]:
    """Returns the gaps among the fields that no model knows; those that are unknown to us have no name of their own.

    Source: the Gemini API's reference, and what others lost in silence (earendil-works/pi#1446, vercel/ai#18982).
    """
    found = gaps_of_chat(body, _SETTLED, CHAT_ONLY)
    modalities = body.get("modalities")
    if modalities is not None and not (isinstance(modalities, list) and all(one in _ANSWERS for one in modalities)):
        found.append(Gap("modalities", How.REFUSED, "the target answers with text and pictures"))
    return found


def gaps_of_messages(body: Json, facts: ServerFacts) -> list[Gap]:
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
            found.append(Gap(f"messages.{kind}.detail", How.DROPPED, NO_OPTION))
        if url.startswith(PLACES) and not type_of_name(url):
            why = "where it lies does not tell its type, and the usual one is told"
            found.append(Gap(f"messages.{kind}", How.APPROXIMATED, why))
    if url.startswith(STORED) and facts.issuer != "vertex":
        found.append(Gap(f"messages.{kind}", How.REFUSED, "Vertex AI alone reads what lies in Google's storage"))


def _of_mark() -> Gap:
    return Gap("cache_control", How.DROPPED, "the target keeps beginnings of prompts by itself")


# --- The translator ---


class ChatOverGenerate:
    """Serves a caller of chat completions by generateContent; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        echoed = with_echoes(body, facts.memory)
        return _gaps(body, echoed, facts, GenerateOptions(echoed, facts))

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        echoed = with_echoes(body, facts.memory)
        named, names = with_allowed_names(echoed, GEMINIS)
        settled = GenerateOptions(named, facts)
        lost = _gaps(body, echoed, facts, settled)
        made = generate_body(named, facts, settled)
        memory = facts.memory
        return ConvertedRequest(made, body, new_id(), now, issuer=facts.issuer, memory=memory, gaps=lost, names=names)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return chat_of_generated(sent, body)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return GenerateAsChat(sent)


def _gaps(body: Json, echoed: Json, facts: ServerFacts, settled: GenerateOptions) -> Sequence[Gap]:
    """`echoed` is the request with what was remembered of it."""
    found = gaps_of_foreign(body.get("messages"), facts.memory) + gaps_of_names(body, GEMINIS)
    return once(found + settled.gaps + gaps_at_top(echoed) + gaps_of_messages(echoed, facts))


# --- Counts of tokens for callers of Messages ---


_COUNTED: Final = ("contents", "systemInstruction", "tools")
_MOST_TOKENS: Final = 1
"""The most tokens of an answer, which a request that only asks does not have and a whole one has to; it is not counted."""


class CountsOfGenerate(CountingTranslator):
    """Asks the Gemini API for the tokens of what it would be sent; implements `base.Translator`.

    Source: the Gemini API's reference, `countTokens`, which takes a whole request.
    """

    count_field = "totalTokens"

    def __init__(self) -> None:
        self._request = ThroughChat(MessagesOverChat(), ChatOverGenerate())

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        made = self._request.request({"max_tokens": _MOST_TOKENS, **body}, facts, now, new_id).body
        counted: Json = {name: made[name] for name in _COUNTED if name in made}
        return ConvertedRequest(self._question(counted, body), body, new_id(), now)

    def _question(self, counted: Json, body: Json) -> Json:
        model = f"models/{text_of(body.get('model')).removeprefix('models/')}"
        return {"generateContentRequest": {"model": model, **counted}}


class CountsAtVertexAI(CountsOfGenerate):
    """Asks Vertex AI for the tokens of models of Google's own. Its `countTokens` takes parts of a request (its reference)."""

    def _question(self, counted: Json, body: Json) -> Json:
        return counted
