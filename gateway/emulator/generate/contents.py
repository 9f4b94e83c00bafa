"""Checks the contents of a Gemini call: names, parts, and the pairing of calls with their results.

It must not know tools or answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gateway.emulator.dialects.dialects.signatures import is_gemini
from gateway.emulator.problems.refusing import refused, text_of

_DATA = frozenset(
    {
        "text",
        "inlineData",
        "fileData",
        "functionCall",
        "functionResponse",
        "executableCode",
        "codeExecutionResult",
        "toolCall",
        "toolResponse",
    }
)
_KNOWN: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "": frozenset(
            {
                "contents",
                "systemInstruction",
                "tools",
                "toolConfig",
                "safetySettings",
                "generationConfig",
                "cachedContent",
                "labels",
                "serviceTier",
                "store",
                "model",
                "continuationToken",
                "modelArmorConfig",
            }
        ),
        "contents": frozenset({"role", "parts"}),
        "parts": _DATA
        | {"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata", "mediaProcessing"},
        "functionCall": frozenset({"id", "name", "args", "partialArgs", "willContinue"}),
        "functionResponse": frozenset({"id", "name", "response", "parts", "scheduling", "willContinue"}),
        "inlineData": frozenset({"mimeType", "data", "displayName"}),
        "functionDeclarations": frozenset(
            {
                "name",
                "description",
                "parameters",
                "parametersJsonSchema",
                "response",
                "responseJsonSchema",
                "behavior",
            }
        ),
        "toolConfig": frozenset({"functionCallingConfig", "retrievalConfig", "includeServerSideToolInvocations"}),
        "functionCallingConfig": frozenset({"mode", "allowedFunctionNames", "streamFunctionCallArguments"}),
        "generationConfig": frozenset(
            {
                "stopSequences",
                "responseMimeType",
                "responseSchema",
                "responseJsonSchema",
                "responseModalities",
                "candidateCount",
                "maxOutputTokens",
                "temperature",
                "topP",
                "topK",
                "seed",
                "presencePenalty",
                "frequencyPenalty",
                "responseLogprobs",
                "logprobs",
                "enableEnhancedCivicAnswers",
                "speechConfig",
                "thinkingConfig",
                "imageConfig",
                "mediaResolution",
                "responseFormat",
                "routingConfig",
                "modelSelectionConfig",
                "audioTimestamp",
                "modelConfig",
                "enableAffectiveDialog",
                "translationConfig",
                "audioTranscriptionConfig",
            }
        ),
        "thinkingConfig": frozenset({"includeThoughts", "thinkingBudget", "thinkingLevel"}),
    }
)
_UNDERLINE = re.compile(r"_([a-z])")


def camel(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object with its names in camelCase."""
    return {_UNDERLINE.sub(lambda match: match[1].upper(), name): value for name, value in given.items()}


def known(given: object, kind: str) -> dict[str, Any]:
    """Returns an object with its names in camelCase; raises ProblemError for a name that its kind has not."""
    if not isinstance(given, dict):
        raise refused(f"Invalid value at '{kind or 'request'}': expected an object.")
    named = camel(given)
    unknown = sorted(set(named) - _KNOWN[kind])
    if unknown:
        place = f' at "{kind}"' if kind else ""
        text = f'Invalid JSON payload received. Unknown name "{unknown[0]}"{place}: Cannot find field.'
        raise refused(text)
    return named


def listed(value: object) -> Sequence[Any]:
    """Returns a list as it is, and what stands for one, as one."""
    if value is None:
        return ()
    return value if isinstance(value, list) else [value]


def read_content(given: object, where: str) -> dict[str, Any]:
    """Returns a content and its parts, with their names in camelCase; raises ProblemError."""
    content = known(given, "contents")
    role = content.setdefault("role", "user")
    if role not in ("user", "model", "function", "system"):
        raise refused("Please use a valid role: user, model.")
    content["parts"] = [
        _part(part, f"{where}.parts[{place}]") for place, part in enumerate(listed(content.get("parts")))
    ]
    if not content["parts"]:
        raise refused(f"* GenerateContentRequest.{where}.parts: contents.parts must not be empty.\n")
    return content


def _part(given: object, where: str) -> dict[str, Any]:
    part = known(given, "parts")
    kinds = [name for name in part if name in _DATA]
    if not kinds and "thoughtSignature" not in part:
        text = "required oneof field 'data' must have one initialized field"
        raise refused(f"* GenerateContentRequest.{where}.data: {text}\n")
    if len(kinds) > 1:
        raise refused(f"Invalid value at '{where}' (oneof), oneof field 'data' is already set. Cannot set '{kinds[1]}'")
    if "text" in part and not isinstance(part["text"], str):
        raise refused(f"Invalid value at '{where}.text' (TYPE_STRING)")
    for name, held in (("functionCall", "args"), ("functionResponse", "response")):
        if name not in part:
            continue
        inner = part[name] = known(part[name], name)
        spelled = "function_call" if held == "args" else "function_response"
        if not isinstance(inner.get("name"), str) or not inner["name"]:
            raise refused(f"* GenerateContentRequest.{where}.{spelled}.name: Name cannot be empty.\n")
        if not isinstance(inner.get(held, {}), dict):
            raise refused(f"Invalid value at '{where}.{spelled}.{held}' (type.googleapis.com/google.protobuf.Struct)")
    told = part.get("functionResponse", {}).get("response", {})
    if '"$ref"' in text_of(told) and (found := _reference(told)):
        raise refused(f"Reference to '{found}' in {where}.function_response.response cannot be resolved.")
    if "inlineData" in part:
        inner = part["inlineData"] = known(part["inlineData"], "inlineData")
        if not isinstance(inner.get("data"), str) or inner["data"].startswith("data:") or "mimeType" not in inner:
            raise refused(f"Invalid value at '{where}.inline_data.data' (TYPE_BYTES), Base64 decoding failed")
    return part


def _reference(value: object) -> str | None:
    """Google takes a `$ref` inside a result for a reference."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            return str(value["$ref"])
        return next((found for each in value.values() if (found := _reference(each))), None)
    if isinstance(value, list):
        return next((found for each in value if (found := _reference(each))), None)
    return None


def check_turns(contents: Sequence[Mapping[str, Any]]) -> None:
    """A turn of calls follows a user's turn, and as many results follow it, each with the name of its call."""
    waiting: list[Mapping[str, Any]] = []
    for place, content in enumerate(contents):
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        results = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        if calls and (place == 0 or content["role"] != "model"):
            text = "function call turn comes immediately after a user turn or after a function response turn."
            raise refused(f"Please ensure that {text}")
        if len(results) != len(waiting):
            text = "the number of function response parts is equal to the number of function call parts of the"
            raise refused(f"Please ensure that {text} function call turn.")
        for result in results:
            if all(
                call["name"] != result["name"] or call.get("id") != result.get("id", call.get("id")) for call in waiting
            ):
                raise refused(f"No function call turn has a call named '{result['name']}' with this id.")
        waiting = calls
    if waiting:
        raise refused("Please ensure that function response turn comes immediately after a function call turn.")


def check_signatures(contents: Sequence[Mapping[str, Any]]) -> None:
    """Of each step of the present turn the first call has to bring the signature of its thought back."""
    for place, content in reversed(list(enumerate(contents))):
        if content["role"] == "user" and not any("functionResponse" in part for part in content["parts"]):
            return
        part = next((part for part in content["parts"] if "functionCall" in part), None)
        if part is None:
            continue
        name, signature = part["functionCall"]["name"], part.get("thoughtSignature")
        if not signature:
            text = f"Function call is missing a thought_signature in functionCall parts. function call `{name}`"
            raise refused(f"{text}, position {place + 1}.")
        if not is_gemini(str(signature), name):
            raise refused("Corrupted thought signature.")


def texts_of(content: Mapping[str, Any]) -> Iterator[str]:
    """Returns the text that each part brings to the prompt."""
    for part in content["parts"]:
        if "text" in part:
            yield part["text"]
        elif "functionCall" in part:
            yield text_of(part["functionCall"].get("args", {}))
        elif "functionResponse" in part:
            yield text_of(part["functionResponse"].get("response", {}))
