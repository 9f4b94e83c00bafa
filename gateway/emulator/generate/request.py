"""Reads a call of Gemini's generateContent as Google does: what it would refuse is refused in its words.

Names may be camelCase or snake_case, as in every proto-JSON API. It must not know answers. Source: the Gemini API reference,
and refusals as the API words them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.dialects.compose import ToolWish
from gateway.emulator.generate.contents import (
    camel,
    check_signatures,
    check_turns,
    known,
    listed,
    read_content,
    texts_of,
)
from gateway.emulator.problems.refusing import refused, text_of

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
_MODES = ("MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED")


def read_generate(data: dict[str, Any], model: str) -> CheckedRequest:
    """Reads a call of generateContent or of its stream; raises ProblemError."""
    data = known(data, "")
    contents = [
        read_content(content, f"contents[{place}]") for place, content in enumerate(listed(data.get("contents")))
    ]
    if not contents:
        raise refused("* GenerateContentRequest.contents: contents is not specified\n")
    config = data["generationConfig"] = known(data.get("generationConfig") or {}, "generationConfig")
    config["thinkingConfig"] = known(config.get("thinkingConfig") or {}, "thinkingConfig")
    system = (
        read_content(data["systemInstruction"], "system_instruction")
        if data.get("systemInstruction")
        else {"parts": []}
    )
    data |= {"contents": contents, "systemInstruction": system, "tools": _tools(data, model)}
    _check_config(config)
    check_turns(contents)
    if model.startswith("gemini-3"):
        check_signatures(contents)
    texts = ["".join(texts_of(content)) for content in contents]
    prompt = "".join([text_of(data["tools"]) if data["tools"] else "", *texts_of(system), *texts])
    cap = config.get("maxOutputTokens")
    return CheckedRequest(model, data, prompt, texts[-1], cap, config.get("candidateCount") or 1)


def read_count(data: dict[str, Any], model: str) -> CheckedRequest:
    """Reads a call of countTokens: contents, or a whole call under `generateContentRequest`."""
    inner = data.get("generateContentRequest") or data.get("generate_content_request")
    given = dict(inner) if isinstance(inner, dict) else dict(data)
    return read_generate(given, model)


def wish_of(data: Mapping[str, Any]) -> ToolWish:
    """Returns the functions that may be called, of a checked call."""
    config = (data.get("toolConfig") or {}).get("functionCallingConfig") or {}
    if config.get("mode") == "NONE":
        return ToolWish({})
    declared = [each for tool in data["tools"] for each in tool.get("functionDeclarations") or ()]
    allowed = config.get("allowedFunctionNames")
    schemas = {
        each["name"]: each.get("parametersJsonSchema") or lowered(each.get("parameters"))
        for each in declared
        if not allowed or each["name"] in allowed
    }
    return ToolWish(schemas, None, "mode" in config)


def ends_with_result(data: Mapping[str, Any]) -> bool:
    """Tells whether the last content brings the result of a function."""
    return any("functionResponse" in part for part in data["contents"][-1]["parts"])


def lowered(schema: object) -> object:
    """Returns an OpenAPI schema with its types in lower case, as JSON Schema has them."""
    if isinstance(schema, list):
        return [lowered(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value.lower() if name == "type" and isinstance(value, str) else lowered(value)
        for name, value in schema.items()
    }


def _tools(data: dict[str, Any], model: str) -> list[dict[str, Any]]:
    tools, names = [], []
    for tool in listed(data.get("tools")):
        if not isinstance(tool, dict):
            raise refused("Invalid value at 'tools': expected an object.")
        named = camel(tool)
        if "functionDeclarations" in named:
            declared = [known(each, "functionDeclarations") for each in listed(named["functionDeclarations"])]
            named["functionDeclarations"] = declared
            names += [_declared(each, place) for place, each in enumerate(declared)]
        tools.append(named)
    if len(set(names)) < len(names):
        raise refused(f"Duplicate function declaration found: {next(each for each in names if names.count(each) > 1)}")
    config = data["toolConfig"] = known(data.get("toolConfig") or {}, "toolConfig")
    calling = config["functionCallingConfig"] = known(
        config.get("functionCallingConfig") or {}, "functionCallingConfig"
    )
    mode, allowed = calling.get("mode"), calling.get("allowedFunctionNames")
    if mode is not None and mode not in _MODES:
        raise refused(f"Invalid value at 'tool_config.function_calling_config.mode' (TYPE_ENUM), \"{mode}\"")
    if not isinstance(allowed or [], list) or not all(isinstance(name, str) for name in allowed or ()):
        raise refused("Invalid value at 'tool_config.function_calling_config.allowed_function_names' (TYPE_STRING)")
    if allowed and mode not in ("ANY", "VALIDATED"):
        raise refused("Function calling config: allowed_function_names should only be set when mode is ANY.")
    if set(allowed or ()) - set(names):
        raise refused("Function calling config: allowed_function_names contains a name that is not declared.")
    if mode == "ANY" and not names:
        raise refused("Function calling config is set without function_declarations.")
    form = (data.get("generationConfig") or {}).get("responseMimeType")
    if names and form == "application/json" and not model.startswith("gemini-3"):
        raise refused("Function calling with a response mime type: 'application/json' is unsupported")
    return tools


def _declared(declaration: Mapping[str, Any], place: int) -> str:
    name = declaration.get("name")
    where = f"* GenerateContentRequest.tools[0].function_declarations[{place}]"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise refused(f"{where}.name: Invalid function name. Must start with a letter or an underscore.\n")
    if declaration.get("parameters") and declaration.get("parametersJsonSchema"):
        raise refused(f"{where}: parameters and parameters_json_schema are mutually exclusive.\n")
    return name


def _check_config(config: Mapping[str, Any]) -> None:
    text_of(config)  # it may be nested too deeply
    for name, low, high, is_whole in (
        ("temperature", 0, 2, False),
        ("topP", 0, 1, False),
        ("candidateCount", 1, 8, True),
        ("maxOutputTokens", 1, None, True),
    ):
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int if is_whole else int | float):
            raise refused(f"Invalid value at 'generation_config.{name}', {value!r}")
        if value < low or (high is not None and value > high):
            text = f"must be in the range [{low}, {high}]" if high is not None else "must be positive"
            raise refused(f"* GenerateContentRequest.generation_config.{name}: {name} {text}.\n")
    if len(config.get("stopSequences") or ()) > 5:
        raise refused("* GenerateContentRequest.generation_config.stop_sequences: at most 5 are allowed.\n")
    has_schema = config.get("responseSchema") or config.get("responseJsonSchema")
    if has_schema and config.get("responseMimeType") not in ("application/json", "text/x.enum"):
        raise refused("response_schema is only supported with response_mime_type 'application/json'.")
