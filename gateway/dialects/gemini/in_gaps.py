"""What of a generateContent request chat completions cannot say, field by field, with the reason.

In this order: the gaps (`gaps_of`), the translator (`GenerateOverChat`), the fields that nobody else judges (`GENERATE`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Final

from gateway.core.types import Gap, How
from gateway.dialects.base import (
    MOST_NAMED,
    MOST_STOPS,
    ConvertedRequest,
    Json,
    Reader,
    ServerFacts,
    form,
    object_of,
    once,
    stops_for,
    strings,
    text_of,
)
from gateway.dialects.gemini import in_request
from gateway.dialects.gemini.in_answer import ChatAsGenerate, camel, generated, held_by, inner, listed
from gateway.dialects.gemini.in_request import FORMATS, OWN_FILES, chat_body
from gateway.dialects.gemini.out_request import BUDGETS
from gateway.dialects.openai.gaps import NOT_SAMPLED, effort_for, how_fitted, is_not_default, is_sampled
from gateway.dialects.schema_tools.chat_parts import type_of_name
from gateway.dialects.schema_tools.tools import GAP, LESS_SEARCH, NO_SEARCH, OPENAIS, with_allowed_names

# --- The gaps ---


_HINT: Final = "the target has no such option"
_AWAY: Final = "it runs at Google only"
_FILES: Final = "files of a provider are unknown to others"
_NOT_ITS_OWN: Final = "signatures go back to the provider that made them, and to no other"

AT_TOP: Final[Mapping[str, tuple[How, str]]] = {
    "cachedContent": (How.REFUSED, "what a provider keeps is unknown to others"),
    "safetySettings": (How.DROPPED, "the target's own filters are as its provider has set them"),
    "labels": (How.DROPPED, _HINT),
    "store": (How.DROPPED, "what is kept is the gateway's to decide"),
    "modelArmorConfig": (How.DROPPED, _HINT),
}
"""Top-level fields that never arrive."""
_SUPPORTED_AT_TOP: Final = frozenset(
    ("model", "stream", "contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "serviceTier")
)
IN_CONFIG: Final[Mapping[str, tuple[How, str]]] = {
    "speechConfig": (How.REFUSED, "the target cannot answer so"),
    "imageConfig": (How.DROPPED, _HINT),
    "mediaResolution": (How.DROPPED, _HINT),
    "enableEnhancedCivicAnswers": (How.DROPPED, _HINT),
    "audioTimestamp": (How.DROPPED, _HINT),
    "routingConfig": (How.DROPPED, _HINT),
    "modelSelectionConfig": (How.DROPPED, _HINT),
    "translationConfig": (How.DROPPED, _HINT),
}
"""Fields of `generationConfig` that never arrive."""
_SUPPORTED_IN_CONFIG: Final = frozenset(
    (
        "temperature", "topP", "topK", "seed", "presencePenalty", "frequencyPenalty", "candidateCount", "maxOutputTokens",
        "stopSequences", "responseLogprobs", "logprobs", "thinkingConfig", "responseMimeType", "responseSchema",
        "responseJsonSchema", "_responseJsonSchema", "responseModalities",
    )
)  # fmt: skip
_TOOLS: Final = frozenset(
    (
        "googleSearch", "googleSearchRetrieval", "codeExecution", "urlContext", "googleMaps", "fileSearch", "computerUse",
        "enterpriseWebSearch", "retrieval", "mcpServers", "parallelAiSearch",
    )
)  # fmt: skip
_SUPPORTED_OF_FUNCTIONS: Final = frozenset(("name", "description", "parameters", "parametersJsonSchema", "behavior"))
_PARTS: Final = frozenset(
    (
        "text",
        "inlineData",
        "fileData",
        "functionCall",
        "functionResponse",
        "executableCode",
        "codeExecutionResult",
        "toolCall",
    )
)
_OF_TURNS: Final = frozenset(("text", "functionCall", "functionResponse"))
"""What most parts are, and nothing else besides."""
_BESIDE: Final = frozenset(("thought", "thoughtSignature", "videoMetadata", "mediaResolution"))
"""What a part may have besides what it is."""
_SUPPORTED_OF_CALLING: Final = frozenset(("mode", "allowedFunctionNames"))
_SUPPORTED_OF_CALLS: Final = frozenset(("id", "name", "args", "partialArgs"))
_SUPPORTED_OF_RESULTS: Final = frozenset(("id", "name", "response", "parts"))
_SHOWN: Final = frozenset(("text", "inlineData", "fileData"))
_UNSAID: Final[tuple[Any, ...]] = (None, [], {}, False)
_NO_LEVEL: Final = "thinking_level_unspecified"
_MIME_TYPES: Final = ("", "text/plain", "application/json")


def gaps_of(body: Json, facts: ServerFacts) -> list[Gap]:
    """Returns the gaps of a request."""
    given = camel(body)
    found: list[Gap] = []
    for name, value in given.items():
        if name not in _SUPPORTED_AT_TOP and value not in _UNSAID:
            how, why = AT_TOP.get(name, (How.DROPPED, _HINT))
            found.append(Gap(name if name in AT_TOP else "other", how, why))
    if given.get("serviceTier") and not (facts.takes_developer or facts.takes_details):
        found.append(Gap("serviceTier", How.DROPPED, _HINT))
    _add_config(found, inner(given, "generationConfig"), facts)
    _add_tools(found, given, facts)
    for part in map(camel, listed(inner(given, "systemInstruction").get("parts"))):
        if _more(part, {"text"}):
            found.append(Gap("systemInstruction.other", How.DROPPED, "instructions are text alone"))
    for content in listed(given.get("contents")):
        for part in listed(camel(content).get("parts")):
            if isinstance(part, dict) and (len(part) != 1 or "text" not in part):  # words alone always arrive
                _add_part(found, camel(part), facts)
    return found


def _more(value: Json, supported: Set[str]) -> bool:
    """Whether an object says something besides."""
    more = value.keys() - supported
    return bool(more) and any(value[name] not in _UNSAID for name in more)


def _add_config(found: list[Gap], config: Json, facts: ServerFacts) -> None:
    for name, value in config.items():
        if name not in _SUPPORTED_IN_CONFIG and value not in _UNSAID:
            how, why = IN_CONFIG.get(name, (How.DROPPED, _HINT))
            found.append(Gap(f"generationConfig.{name if name in IN_CONFIG else 'other'}", how, why))
    if config.get("topK") is not None and not facts.takes_details:
        found.append(Gap("generationConfig.topK", How.DROPPED, _HINT))
    thinking = inner(config, "thinkingConfig")
    level, effort = text_of(thinking.get("thinkingLevel")).lower(), in_request.effort_of(thinking)
    if not facts.takes_details and not is_sampled(effort_for(effort, facts.model), facts):
        found += (
            Gap(f"generationConfig.{name}", How.DROPPED, NOT_SAMPLED)
            for name in ("temperature", "topP")
            if (value := config.get(name)) is not None and is_not_default(value)
        )
    if not facts.takes_details and (lost := how_fitted(effort, facts.model)) is not None:
        name = "thinkingLevel" if level else "thinkingBudget"
        found.append(Gap(f"generationConfig.thinkingConfig.{name}", lost, "the model has no such effort"))
    stops = strings(config.get("stopSequences"))
    if len(kept := stops_for(stops, facts)) < len(stops):
        why = f"the target stops at the first {MOST_STOPS}" if kept else "the model is told nothing to stop at"
        found.append(Gap("generationConfig.stopSequences", How.DROPPED, why))
    if type(most := config.get("maxOutputTokens")) is int and not facts.takes_details:
        highest = facts.model.max_output
        if highest is not None and most > highest:
            found.append(Gap("generationConfig.maxOutputTokens", How.APPROXIMATED, "the model says less at most"))
    kind = text_of(config.get("responseMimeType"))
    if kind not in _MIME_TYPES:
        found.append(Gap("generationConfig.responseMimeType", How.REFUSED, "the target has no such format"))
    schema = in_request.requested_schema(config)
    if schema is not None and in_request.checked_form(schema, facts) is None:
        name = "responseSchema" if config.get("responseSchema") is not None else "responseJsonSchema"
        why = "answers are held to an object without optional properties alone"
        found.append(Gap(f"generationConfig.{name}", How.APPROXIMATED, why))
    if level and level not in BUDGETS and level != _NO_LEVEL:
        found.append(Gap("generationConfig.thinkingConfig.thinkingLevel", How.DROPPED, "nobody knows such a level"))
    if type(budget := thinking.get("thinkingBudget")) is int and budget > 0 and not level:
        found.append(Gap("generationConfig.thinkingConfig.thinkingBudget", How.APPROXIMATED, "it becomes an effort"))
    modalities = in_request.modalities_of(config)
    if "audio" in modalities or (modalities and not facts.takes_details):
        found.append(Gap("generationConfig.responseModalities", How.REFUSED, "the target answers with text"))


def _add_tools(found: list[Gap], given: Json, facts: ServerFacts) -> None:
    for tool in map(camel, listed(given.get("tools"))):
        for name in tool.keys() - {"functionDeclarations"}:
            if name in in_request.SEARCHES:
                is_less = bool(inner(tool, name).keys() - {"excludeDomains"})
                found += [NO_SEARCH] if not facts.takes_details else [LESS_SEARCH] if is_less else []
                continue
            found.append(Gap(f"tools.{name if name in _TOOLS else 'other'}", How.REFUSED, _AWAY))
    for one in in_request.declarations(given):
        if not facts.takes_details and OPENAIS.allowed.fullmatch(text_of(one.get("name"))) is None:
            found.append(GAP)
        if one.get("response") is not None or one.get("responseJsonSchema") is not None:
            found.append(Gap("tools.response", How.DROPPED, "what a tool answers is not described there"))
        if any(name not in _SUPPORTED_OF_FUNCTIONS and not name.startswith("response") for name in one):
            found.append(Gap("tools.other", How.DROPPED, _HINT))
        if text_of(one.get("behavior")).upper() == "NON_BLOCKING":
            found.append(Gap("tools.behavior", How.DROPPED, _HINT))
    config = inner(given, "toolConfig")
    if config.get("retrievalConfig"):
        found.append(Gap("toolConfig.retrievalConfig", How.DROPPED, _HINT))
    if _more(config, {"retrievalConfig", "functionCallingConfig"}):
        found.append(Gap("toolConfig.other", How.DROPPED, _HINT))
    calling = inner(config, "functionCallingConfig")
    if _more(calling, _SUPPORTED_OF_CALLING):
        found.append(Gap("toolConfig.functionCallingConfig.other", How.DROPPED, _HINT))
    if facts.requires_all and text_of(calling.get("mode")).upper() == in_request.CHECKED:
        schemas = (in_request.parameters_of(one) for one in in_request.declarations(given))
        if any(in_request.checked_schema(schema, facts) is None for schema in schemas):
            why = "arguments are held to a schema without optional properties alone"
            found.append(Gap("toolConfig.functionCallingConfig.mode", How.DROPPED, why))
    if len(strings(calling.get("allowedFunctionNames"))) > 1:
        why = "the other tools are left out"
        found.append(Gap("toolConfig.functionCallingConfig.allowedFunctionNames", How.APPROXIMATED, why))


def _add_part(found: list[Gap], part: Json, facts: ServerFacts) -> None:
    if not part or not part.keys() <= _OF_TURNS:
        # More than words, a call or its result.
        if not part.keys() & _PARTS and part.get("thoughtSignature") is None:
            found.append(Gap("contents.other", How.REFUSED, "chat completions have no such part"))
        elif _more(part, _PARTS | _BESIDE):
            found.append(Gap("contents.other", How.DROPPED, _HINT))
        for name in ("executableCode", "codeExecutionResult", "toolCall"):
            if name in part:
                found.append(Gap(f"contents.{name}"[:MOST_NAMED], How.REFUSED, _AWAY))
        if part.get("videoMetadata"):
            found.append(Gap("contents.videoMetadata", How.DROPPED, _HINT))
        if part.get("mediaResolution"):
            found.append(Gap("contents.mediaResolution", How.DROPPED, _HINT))
        _add_media(found, part, facts)
        signature = part.get("thoughtSignature")
        held = held_by(signature) if isinstance(signature, str) else None
        if isinstance(signature, str) and signature and held != {} and not _is_carried(part, held, facts):
            is_own = held is None
            found.append(
                Gap("contents.thoughtSignature", How.DROPPED, _NOT_ITS_OWN if is_own else "the target takes none back")
            )
        if part.get("thought") is True and part.get("text") and not (facts.takes_reasoning or facts.takes_details):
            found.append(Gap("contents.thought", How.DROPPED, "the target takes no reasoning back"))
    if "functionCall" in part:
        call = inner(part, "functionCall")
        if call.get("partialArgs"):
            found.append(Gap("contents.functionCall.partialArgs", How.REFUSED, "calls are said whole"))
        if _more(call, _SUPPORTED_OF_CALLS):
            found.append(Gap("contents.functionCall.other", How.DROPPED, _HINT))
    if "functionResponse" in part:
        response = inner(part, "functionResponse")
        if _more(response, _SUPPORTED_OF_RESULTS):
            found.append(Gap("contents.functionResponse.other", How.DROPPED, _HINT))
        if listed(response.get("parts")):
            why = "what a result shows stands behind the results"
            found.append(Gap("contents.functionResponse.parts", How.APPROXIMATED, why))
        for one in map(camel, listed(response.get("parts"))):
            _add_media(found, one, facts)
            if _more(one, _SHOWN):
                found.append(Gap("contents.functionResponse.parts.other", How.DROPPED, _HINT))
        if object_of(response.get("response")).keys() == {"error"} and not facts.takes_details:
            found.append(Gap("contents.functionResponse.error", How.APPROXIMATED, "it is told in the text"))


def _add_media(found: list[Gap], part: Json, facts: ServerFacts) -> None:
    file = inner(part, "fileData")
    url = text_of(file.get("fileUri"))
    kind: Any = file.get("mimeType") or inner(part, "inlineData").get("mimeType") or type_of_name(url)
    if url.startswith(OWN_FILES):
        found.append(Gap("contents.fileData", How.REFUSED, _FILES))
    elif not isinstance(kind, str):
        return
    elif kind.startswith("video/") and not facts.takes_details:
        found.append(Gap("contents.video", How.REFUSED, "the target sees no films"))
    elif url and not kind.startswith("image/") and kind and not facts.takes_details:
        found.append(Gap("contents.fileData", How.REFUSED, "the target fetches pictures alone"))
    elif kind.startswith("audio/") and kind not in FORMATS:
        found.append(Gap("contents.audio", How.APPROXIMATED, "its format is told by the name of its type"))


def _is_carried(part: Json, held: Json | None, facts: ServerFacts) -> bool:
    is_of_call = "functionCall" in part if held is None else "extra_content" in held
    return facts.takes("extra_content" if is_of_call else "reasoning_details")


# --- The translator ---


class GenerateOverChat:
    """Serves a caller of generateContent by chat completions; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return once(gaps_of(body, facts))

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        made = chat_body(body, facts)
        names: Mapping[str, str] = {}
        if not facts.takes_details:  # behind another conversion, that one knows which names are allowed
            made, names = with_allowed_names(made, OPENAIS)
        return ConvertedRequest(made, body, new_id(), now, gaps=self.gaps(body, facts), names=names)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return generated(sent, body)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return ChatAsGenerate(sent)


# --- The fields of what stands within a request and is judged by nobody else, in both spellings ---


_DATA: Final = form("contents.other", "data displayName display_name mimeType mime_type")
_FILE: Final = form("contents.other", "fileUri file_uri displayName display_name mimeType mime_type")
_MEDIA: Final = {"inlineData": _DATA, "inline_data": _DATA, "fileData": _FILE, "file_data": _FILE}
_RESULT: Final = form("", "", parts=form("", "", **_MEDIA))
_INSTRUCTION: Final = form("systemInstruction.other", "role parts")
_THINKING: Final = form(
    "generationConfig.other",
    "includeThoughts include_thoughts thinkingBudget thinking_budget thinkingLevel thinking_level",
)
_CONFIG: Final = form("", "", thinkingConfig=_THINKING, thinking_config=_THINKING)
GENERATE: Final = form(
    "",
    "",
    contents=form(
        "contents.other",
        "role",
        parts=form("", "", functionResponse=_RESULT, function_response=_RESULT, **_MEDIA),
    ),
    systemInstruction=_INSTRUCTION,
    system_instruction=_INSTRUCTION,
    generationConfig=_CONFIG,
    generation_config=_CONFIG,
)
"""A generateContent request, without the fields that `gaps_of` looks at.

Source: the Gemini API's reference, Content and GenerationConfig.
"""
