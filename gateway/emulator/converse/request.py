"""Reads a call of Bedrock's Converse as AWS does: what it would refuse is a ValidationException in its words.

It must not know answers. Source: the Bedrock Runtime API reference, and refusals as the API words them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.converse.blocks import TOOL_NAME, Blocks, block_text, is_blank, read_message
from gateway.emulator.dialects.compose import ToolWish
from gateway.emulator.dialects.dialects.prompt_cache import Segment
from gateway.emulator.problems.refusing import held, is_name, objects, refused, text_of

_FIELDS = frozenset(
    {
        "messages",
        "system",
        "inferenceConfig",
        "toolConfig",
        "guardrailConfig",
        "additionalModelRequestFields",
        "promptVariables",
        "additionalModelResponseFieldPaths",
        "requestMetadata",
        "performanceConfig",
        "serviceTier",
        "outputConfig",
    }
)
_CACHE_S = 300.0


def read_converse(data: dict[str, Any], model: str) -> CheckedRequest:
    """Reads a call of Converse or of its stream; raises ProblemError."""
    unknown = sorted(set(data) - _FIELDS)
    if unknown:
        raise refused(f"Malformed input request: #: extraneous key [{unknown[0]}] is not permitted, please reformat.")
    messages = objects(data.get("messages") or [], "messages", "expected a list of messages")
    if not messages:
        raise refused(
            "1 validation error detected: Value at 'messages' failed to satisfy constraint: must not be empty"
        )
    turns: list[tuple[str, list[Mapping[str, Any]]]] = []
    for place, message in enumerate(messages):
        role, blocks = read_message(message, f"messages.{place}")
        if role != "system" and turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, list(blocks)))
    spoken = [turn for turn in turns if turn[0] != "system"]
    if not spoken or spoken[0][0] != "user":
        raise refused(
            "A conversation must start with a user message. Try again with a conversation that starts with one."
        )
    _check_system(data.get("system"))
    names = _tool_names(data)
    _check_pairs(spoken, has_tools=bool(names))
    _check_config(data)
    segments = segments_of(data, turns)
    echo = [text for role, blocks in turns if role == "user" for block in blocks if (text := block_text(block))]
    cap = (data.get("inferenceConfig") or {}).get("maxTokens")
    prompt = "".join(segment.text for segment in segments)
    return CheckedRequest(model, data | {"_turns": turns}, prompt, echo[-1] if echo else "", cap)


def wish_of(data: Mapping[str, Any]) -> ToolWish:
    """Returns the tools that may be called, of a checked call."""
    config = data.get("toolConfig") or {}
    schemas = {
        spec["name"]: spec["inputSchema"]["json"]
        for tool in config.get("tools") or ()
        if (spec := tool.get("toolSpec"))
    }
    if held(held(data, "additionalModelRequestFields"), "tool_choice").get("type") == "none":
        return ToolWish({})
    choice = config.get("toolChoice") or {}
    return ToolWish(schemas, (choice.get("tool") or {}).get("name"), bool(choice))


def ends_with_result(data: Mapping[str, Any]) -> bool:
    """Tells whether the last message brings the result of a tool."""
    return any("toolResult" in block for block in data["messages"][-1]["content"])


def segments_of(data: Mapping[str, Any], turns: Sequence[tuple[str, Blocks]]) -> list[Segment]:
    """Returns the prompt in the order in which it is cached; a cache point marks what stands before it."""
    parts: list[Segment] = []
    tools = (data.get("toolConfig") or {}).get("tools") or ()
    for block in (*tools, *(data.get("system") or ()), *(block for _, blocks in turns for block in blocks)):
        if "cachePoint" in block:
            keep_s = 3600.0 if held(block, "cachePoint").get("ttl") == "1h" else _CACHE_S
            parts[-1:] = [Segment(parts[-1].text, keep_s)] if parts else []
            continue
        parts.append(Segment(text_of(block) if "toolSpec" in block else block_text(block)))
    return parts


def _check_system(system: object) -> None:
    for place, block in enumerate(objects(system or [], "system", "expected a list of blocks")):
        if len(block) != 1 or set(block) - {"text", "guardContent", "cachePoint"}:
            raise refused(f"The value at system.{place} must set exactly one of text, guardContent or cachePoint.")
        if "text" in block and is_blank(block["text"]):
            text = "is blank. Add text to the text field, and try again."
            raise refused(f"The text field in the SystemContentBlock at system.{place} {text}")


def _tool_names(data: Mapping[str, Any]) -> list[str]:
    config = data.get("toolConfig")
    if config is None:
        return []
    tools = config.get("tools") if isinstance(config, dict) else None
    if not isinstance(tools, list) or not tools:
        raise refused(
            "1 validation error detected: Value at 'toolConfig.tools' must have length greater than or equal to 1"
        )
    names = []
    for place, tool in enumerate(tools):
        spec = tool.get("toolSpec") if isinstance(tool, dict) else None
        if not isinstance(spec, dict):
            continue  # a cache point, or a tool of the provider's own
        where = f"toolConfig.tools.{place}.member.toolSpec"
        unknown = sorted(set(spec) - {"name", "description", "inputSchema", "strict"})
        if unknown:
            raise refused(f"Malformed input request: #/{where}: extraneous key [{unknown[0]}] is not permitted")
        if not is_name(TOOL_NAME, spec.get("name")):
            raise refused(
                f"Value at '{where}.name' failed to satisfy constraint: pattern [a-zA-Z0-9_-]+, length at most 64"
            )
        if spec.get("description") == "":
            raise refused(
                f"Value at '{where}.description' failed to satisfy constraint: length greater than or equal to 1"
            )
        schema = spec.get("inputSchema")
        inner = schema.get("json") if isinstance(schema, dict) else None
        if not isinstance(inner, dict) or inner.get("type") != "object":
            raise refused(f"The value at {where}.inputSchema.json.type must be one of the following: object.")
        names.append(str(spec["name"]))
    if len(set(names)) < len(names):
        raise refused("The toolConfig field contains duplicate tool names.")
    choice = held(config, "toolChoice")
    if "toolChoice" in config and (len(choice) != 1 or set(choice) - {"auto", "any", "tool"}):
        raise refused("The value at toolConfig.toolChoice must set exactly one of auto, any or tool.")
    if "tool" in choice and held(choice, "tool").get("name") not in names:
        raise refused("The tool of toolConfig.toolChoice is not in toolConfig.tools.")
    return names


def _check_pairs(turns: Sequence[tuple[str, Blocks]], *, has_tools: bool) -> None:
    waiting: list[str] = []
    for number, (role, blocks) in enumerate(turns):
        used = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
        given = [block["toolResult"].get("toolUseId") for block in blocks if "toolResult" in block]
        if (used or given) and not has_tools:
            raise refused("The toolConfig field must be defined when using toolUse and toolResult content blocks.")
        if role == "user":
            if missing := [each for each in waiting if each not in given]:
                raise refused(
                    f"Expected toolResult blocks at messages.{number}.content for the following Ids: {', '.join(missing)}"
                )
            if len(given) > len(waiting) or set(given) - set(waiting):
                text = "exceeds the number of toolUse blocks of previous turn."
                raise refused(f"The number of toolResult blocks at messages.{number}.content {text}")
        if len(set(used)) < len(used):
            raise refused(f"The toolUse blocks at messages.{number}.content contain duplicate Ids.")
        waiting = used
    if waiting:
        raise refused(
            f"Expected toolResult blocks at messages.{len(turns)}.content for the following Ids: {', '.join(waiting)}"
        )


def _check_config(data: Mapping[str, Any]) -> None:
    config = held(data, "inferenceConfig")
    unknown = sorted(set(config) - {"maxTokens", "temperature", "topP", "stopSequences"})
    if unknown:
        raise refused(f"Malformed input request: #/inferenceConfig: extraneous key [{unknown[0]}] is not permitted")
    for name, low, high in (("maxTokens", 1, None), ("temperature", 0, 1), ("topP", 0, 1)):
        value = config.get(name)
        if value is None:
            continue
        kinds = int if name == "maxTokens" else int | float
        if isinstance(value, bool) or not isinstance(value, kinds) or value < low or (high and value > high):
            raise refused(f"Value '{value}' at 'inferenceConfig.{name}' failed to satisfy constraint: from {low}")
    held(held(data, "additionalModelRequestFields"), "tool_choice")
    schema = schema_of(data)
    if schema is not None and not isinstance(schema, dict):
        raise refused("The schema of outputConfig.textFormat must be a string of JSON.")


def schema_of(data: Mapping[str, Any]) -> object:
    """Returns the schema that an answer has to fit; None: prose."""
    form = held(held(data, "outputConfig"), "textFormat")
    if not form:
        return None
    told = held(held(form, "structure"), "jsonSchema").get("schema")
    try:
        return orjson.loads(told) if isinstance(told, str) else ""
    except orjson.JSONDecodeError:
        return ""
