"""Nothing of a request is lost without a word: each field that a caller's SDK knows, wherever it may stand, is set by itself.

It changes what is sent, or stands among the gaps; and what is sent has no field that the target's SDK does not know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatch
from typing import NamedTuple

import pytest

from gateway.core.errors import InvalidRequest
from gateway.core.types import Gap, How
from gateway.dialects.base import ServerFacts, Translator
from gateway.dialects.config import read_models
from gateway.dialects.registry import pair_of
from gateway.dialects.target_languages import TargetLanguages
from tests.dialects.sdk.callers import CALLERS, target_forms
from tests.dialects.sdk.forms import Forms, Json
from tests.dialects.sdk.walk import Walk, problems
from tests.rows import rows

MODELS = read_models(None)


class Target(NamedTuple):
    """Who is asked, and in which language."""

    dialect: str
    speaks: str
    model: str


TARGETS = {
    "OpenAI": Target("openai", "chat", "gpt-5.9"),
    "a server of its kind": Target("vllm", "chat", "llama"),
    "OpenAI by Responses": Target("openai", "responses", "gpt-5.9"),
    "Claude": Target("anthropic", "messages", "claude-sonnet-4-5"),
    "Claude, which thinks": Target("anthropic", "messages", "claude-opus-5"),
    "Gemini": Target("gemini", "generate", "gemini-2.5-flash"),
    "Gemini at Vertex": Target("vertex", "vertex", "gemini-3-pro"),
    "Claude at Bedrock": Target("bedrock", "converse", "us.anthropic.claude-haiku-4-5-20251001-v1:0"),
    "Nova": Target("bedrock", "converse", "us.amazon.nova-lite-v1:0"),
    "Llama": Target("bedrock", "converse", "us.meta.llama4-x-v1:0"),
}
_CHAT = {
    "*.cache_control?ephemeral?.ttl=5m": "so it is without",
    "*.detail=auto": "so it is without",
    "logprobs=False": "so it is without",
    "modalities=text": "so it is without",
    "parallel_tool_calls=True": "so it is without",
    "response_format?text?": "so it is without",
    "response_format?json_schema?.*.name": "what follows a schema has no need of its name",
    "response_format?json_schema?.*.strict=*": "a schema is followed in any case",
    "reasoning_effort=none": "a model that does not think needs no word for it",
    "service_tier=auto": "so it is without",
    "service_tier=default": "so it is where there are no others",
    "stream=False": "so it is without",
    "store=False": "so it is without",
    "stream_options*.include_*=False": "so it is without",
    "stream_options*.include_usage=True": "usage is told always there, and by us to those who asked",
    "tool_choice=auto": "so it is without",
    "function_call=auto": "so it is without",
    "tools?function?.*.strict=False": "so it is without",
    "verbosity=medium": "so it is without",
}
_RESPONSES = {
    "*.detail=auto": "so it is without",
    "background=False": "so it is without",
    "include=reasoning.encrypted_content": "it comes where a target encrypts",
    "input?*?.id": "an item's own id is of use to who keeps it, and nobody does",
    "input?*?.status=*": "it tells of the answer that the item came in",
    "parallel_tool_calls=True": "so it is without",
    "input?function_call_output?.name*": "its call has it",
    "*tools?WebSearch*.type=*": "the target has one search, or none",
    "*tools?WebSearchTool?.external_web_access=True": "so it is without",
    "*tools?*?.strict=False": "so it is without",
    "reasoning*.effort=none": "a model that does not think needs no word for it",
    "service_tier=auto": "so it is without",
    "service_tier=default": "so it is where there are no others",
    "stream=False": "so it is without",
    "store=*": "the gateway answers for it, and the answer tells",
    "stream_options*.include_*=False": "so it is without",
    "text*.format?text?": "so it is without",
    "text*.format?json_schema?.name": "what follows a schema has no need of its name",
    "text*.format?json_schema?.strict=*": "a schema is followed in any case",
    "text*.verbosity=medium": "so it is without",
    "*.async=False": "so it is without",
    "*.defer_loading=False": "so it is without",
    "tool_choice=auto": "so it is without",
    "truncation=disabled": "so it is without",
}
_MESSAGES = {
    "*.cache_control?ephemeral?.ttl=5m": "so it is without",
    "*.citations?*.enabled=False": "so it is without",
    "*.disable_parallel_tool_use=False": "so it is without",
    "*.is_error=False": "so it is without",
    "*.caller?direct?": "so it is without",
    "service_tier=*": "it is where there are no others",
    "speed=standard": "so it is without",
    "stream=False": "so it is without",
    "thinking?disabled?": "a model that does not think needs no word for it",
    "tools?*.allowed_callers=direct": "so it is without",
    "tools?*.defer_loading=False": "so it is without",
    "tools?*.eager_input_streaming=False": "so it is without",
    "tools?*.strict=False": "so it is without",
}
_GENERATE = {
    "*=False": "so it is without",
    "*.fileData?*?.displayName": "pictures have no names in a message",
    "*.inlineData?*?.displayName": "pictures have no names in a message",
    "*.fileData?*?.mimeType": "a picture's place tells it to who fetches it",
    "systemInstruction?Content?.role": "instructions are nobody's turn",
    "*.logprobs=7": "they are asked for by responseLogprobs",
    "*.responseModalities=TEXT": "so it is without",
    "*.responseSchema?Schema?.additionalProperties=*": "an answer has the properties that its schema names",
    "*?Schema?.propertyOrdering": "it is the order in which the properties stand",
    "*.thinkingConfig?*.includeThoughts=True": "the answer is told with them",
    "*.behavior=BLOCKING": "so it is without",
    "*.allowedFunctionNames": "they are for modes in which functions are called",
    "*.mode=AUTO": "so it is without",
    "serviceTier=unspecified": "so it is without",
}
_EMBEDDINGS = {"encoding_format=*": "the answer is put into it here", "stream=*": "there is no such field"}
HARMLESS = {
    "chat": _CHAT,
    "responses": _RESPONSES,
    "messages": _MESSAGES,
    "generate": _GENERATE,
    "embeddings": _EMBEDDINGS,
}
"""By the caller's language, places whose value changes nothing, and need not be told of, with the reason."""


_HUBS = {"thinking": "reasoning_details", "redacted_thinking": "reasoning_details"}
"""What chat completions call it that other callers say, where the second of two conversions tells of it."""


_SEARCH = re.compile(r"(?:.*\.)?tools\[(?:web_?search|Tool\]\.googleSearch)", re.IGNORECASE)
"""The places of a provider's own search, which has one name in all languages' gaps."""


class Heard:
    """Listens to what becomes of each place; a `walk.Judge`."""

    def __init__(self, asked: str, target: Target, known: Forms | None = None) -> None:
        """`known` is what may be sent; None: what the target's SDK says."""
        kind, dialect = target.dialect, "openai" if target.dialect == "vllm" else target.dialect
        pair = pair_of(asked, target.speaks)
        self._translator: Translator = pair.translator
        self._facts: ServerFacts = TargetLanguages(kind, frozenset((target.speaks,)), dialect, MODELS.of).facts(
            pair, target.model
        )
        self._forms: Forms = known or target_forms(target.speaks, is_openais=target.dialect == "openai")
        self._model = target.model
        self.lost: list[str] = []
        self.strangers: list[str] = []
        """The objects in which nobody hears of a field that no language has."""
        self.unknown: dict[str, str] = {}
        """What is sent and no SDK knows, with the first place that leads to it."""
        self._place, self.places = "", 0
        self.outright: dict[str, str] = {}
        """What is refused though its gaps do not say so, and what is said of it."""
        self._before: tuple[Json, tuple[Json, Sequence[Gap]]] | None = None

    def leaf(self, place: str, before: Json, after: Json) -> None:
        is_changed, gaps, new = self._compare(place, before, after)
        if not (is_changed or new or before == after or _is_told(place, gaps)):
            self.lost.append(place)

    def stranger(self, place: str, before: Json, after: Json) -> None:
        _, gaps, new = self._compare(place, before, after)
        if not new and not _is_told(place, gaps):
            self.strangers.append(place)

    def opens(self, place: str, before: Json, after: Json) -> bool:
        is_changed, gaps, new = self._compare(place, before, after)
        if not is_changed and _is_told(place, [gap for gap in gaps if gap.how is How.DROPPED]):
            return False
        if place in self.outright or any(gap.how is How.REFUSED for gap in new):
            return False
        return is_changed or not any(gap.how is How.DROPPED for gap in new)

    def _compare(self, place: str, before: Json, after: Json) -> tuple[bool, Sequence[Gap], Sequence[Gap]]:
        """Returns whether another request is sent, the gaps, and those that are new."""
        self._place, self.places = place, self.places + 1
        if self._before is None or self._before[0] != before:
            self._before = before, self._converted(before)
        sent, known = self._before[1]
        try:
            changed, gaps = self._converted(after)
        except InvalidRequest as error:
            self.outright[place] = str(error)
            return True, (), ()
        return changed != sent, gaps, [gap for gap in gaps if gap not in known]

    def _converted(self, body: Json) -> tuple[Json, Sequence[Gap]]:
        """Returns what is sent, nothing where it is refused, and the gaps."""
        asked = {**body, "model": self._model}
        gaps = self._translator.gaps(asked, self._facts)
        if any(gap.how is How.REFUSED for gap in gaps):
            return {}, gaps
        sent = self._translator.request(asked, self._facts, 0.0, lambda: "id").body
        for problem in problems(self._forms, sent, self._forms.root):
            self.unknown.setdefault(problem, self._place)
        return sent, gaps


def _is_told(place: str, gaps: Sequence[Gap]) -> bool:
    """Whether a gap names the place, or what it stands in."""
    if _SEARCH.match(place) and any(gap.field == "tools.web_search" for gap in gaps):
        return True
    words = {*re.split(r"[.\[\]=]+", ".".join(place.split(".")[-2:]))} - {"messages", "input", "tools"}
    words |= {_HUBS[word] for word in words & _HUBS.keys()}
    return any(gap.field.rpartition(".")[2] in words for gap in gaps)


ALONE = {"Claude, which thinks", "Gemini at Vertex", "Llama"}
"""What is asked by callers of chat completions alone: from there on all go the same ways."""
WAYS = [(asked, name) for asked in ("chat", "responses", "messages") for name in TARGETS
        if TARGETS[name].speaks != asked and not (name in ALONE and asked != "chat")]  # fmt: skip
WAYS += [("generate", name) for name in ("OpenAI", "a server of its kind", "Claude")]
EMBED = {
    "Gemini": Target("gemini", "generate", "gemini-embedding-001"),
    "Vertex": Target("vertex", "vertex", "gemini-embedding-001"),
    "Titan": Target("bedrock", "converse", "amazon.titan-embed-text-v2:0"),
    "Cohere": Target("bedrock", "converse", "cohere.embed-v4:0"),
}


@pytest.mark.parametrize(("asked", "name"), WAYS)
def test_each_field_of_a_request_arrives_or_is_told_of(asked: str, name: str) -> None:
    """At each kind of target; and what arrives is known there. A field that no language has is told of wherever it stands,
    but for schemas, whose words are anybody's."""
    assert look(asked, TARGETS[name]).places >= 150


@pytest.mark.parametrize("name", EMBED)
def test_each_field_of_a_request_for_embeddings_arrives_or_is_told_of(name: str) -> None:
    """At each kind of target, none of which has OpenAI's."""
    assert look("embeddings", EMBED[name], known=Forms("any", {})).places >= 5


def look(asked: str, target: Target, known: Forms | None = None) -> Heard:
    heard = Heard(asked, target, known)
    forms, given = CALLERS[asked]
    Walk(forms(), given, heard).run()
    lost = [place for place in heard.lost if not any(fnmatch(place, one) for one in HARMLESS[asked])]
    assert (lost, heard.unknown, heard.outright) == ([], {}, {})
    assert [place for place in heard.strangers if "schema" not in place.lower()] == []
    return heard


@rows("spoken", ["messages", "generate", "converse", "responses"])
def test_a_field_of_a_message_that_nobody_knows_is_told_of(spoken: str) -> None:
    """As one at the top is; what says nothing is none, and what only repeats an answer goes without a word."""
    find = pair_of("chat", spoken).translator.gaps
    others = (
        {"role": "user", "content": "x", "prefix": True},
        {"role": "user", "content": [{"type": "text", "text": "x", "weight": 2}]},
    )
    for message in others:
        assert ("messages.other", How.DROPPED) in [
            (g.field, g.how) for g in find({"messages": [message]}, ServerFacts())
        ]
    said: Json = {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "prefix": False}
    assert find({"messages": [{"role": "user", "content": "x"}, said]}, ServerFacts()) == []
