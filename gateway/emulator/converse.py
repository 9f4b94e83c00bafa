"""Bedrock's Converse: reads a call, checks it as AWS does, and answers it.

In this order: the messages and their blocks, each by itself; the whole request; the answer as one JSON object or as frames of
an event stream. What AWS would refuse is a ValidationException in its words. It must not know limits, faults or time.
Invariant: the events of a stream, put together, say what the JSON would have said, and only `tail` carries `messageStop` and
`metadata`. Source: the Bedrock Runtime API reference, and refusals as the API words them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import orjson

from gateway.emulator.messages import arguments_of
from gateway.emulator.replies import (
    EVENT_STREAM,
    EmulatedReply,
    EmulatedStream,
    event,
    exception,
    frame_of,
    held,
    is_name,
    json_reply,
    objects,
    refused,
    text_of,
)
from gateway.emulator.requests import CheckedRequest
from gateway.emulator.writer import CLAUDE, Block, Composed, Segment, ToolWish, Writer, compose, sign

# --- The messages and their blocks, each by itself ---


Blocks = Sequence[Mapping[str, Any]]
_BLOCKS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "text": frozenset(),
        "image": frozenset({"format", "source", "error"}),
        "document": frozenset({"format", "name", "source", "context", "citations"}),
        "video": frozenset({"format", "source"}),
        "audio": frozenset({"format", "source", "error"}),
        "toolUse": frozenset({"toolUseId", "name", "input", "type"}),
        "toolResult": frozenset({"toolUseId", "content", "status", "type"}),
        "guardContent": frozenset({"text", "image"}),
        "cachePoint": frozenset({"type", "ttl"}),
        "reasoningContent": frozenset({"reasoningText", "redactedContent"}),
        "citationsContent": frozenset({"content", "citations"}),
        "searchResult": frozenset({"source", "title", "content", "citations"}),
    }
)
_IMAGES = ("png", "jpeg", "gif", "webp")
_TOOL_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_DOCUMENT_NAME = re.compile(r"[A-Za-z0-9 ()\[\]-]{1,200}")


def read_message(message: Mapping[str, Any], where: str) -> tuple[str, Blocks]:
    """Returns the role and the blocks of a message; raises ProblemError."""
    unknown = sorted(set(message) - {"role", "content"})
    role = message.get("role")
    if unknown:
        raise refused(f"Malformed input request: #/{where}: extraneous key [{unknown[0]}] is not permitted")
    if role not in ("user", "assistant", "system"):
        text = "failed to satisfy constraint: Member must satisfy enum value set: [user, assistant, system]"
        raise refused(f"1 validation error detected: Value '{role}' at '{where}.role' {text}")
    blocks = objects(message.get("content") or [], f"{where}.content", "expected a list of content blocks")
    if not blocks:
        text = "is empty. Add a ContentBlock object to the content field and try again."
        raise refused(f"The content field in the Message object at {where} {text}")
    for place, block in enumerate(blocks):
        _check_block(block, f"{where}.content.{place}", str(role))
    return str(role), blocks


def _check_block(block: Mapping[str, Any], where: str, role: str) -> None:
    kind = next(iter(block), "")
    if len(block) != 1 or kind not in _BLOCKS:
        text = "must set exactly one of the members of the ContentBlock union"
        raise refused(f"The value at {where} {text}: {', '.join(map(str, block)) or 'none is set'}.")
    value = block[kind]
    if kind == "text":
        if is_blank(value):
            text = "Add text to the text field, and try again."
            raise refused(f"The text field in the ContentBlock object at {where} is blank. {text}")
        return
    if not isinstance(value, dict) or set(value) - _BLOCKS[kind]:
        raise refused(f"Malformed input request: #/{where}/{kind}: extraneous key is not permitted")
    match kind:
        case "image":
            if value.get("format") not in _IMAGES:
                raise refused(f"The format field of the ImageBlock at {where} must be one of {', '.join(_IMAGES)}.")
            _check_source(value, where)
        case "document":
            if not is_name(_DOCUMENT_NAME, value.get("name")):
                text = "may only contain alphanumeric characters, whitespace, hyphens, parentheses and square brackets"
                raise refused(f"The name of the document at {where} {text}.")
            _check_source(value, where)
        case "toolUse":
            _check_tool_use(value, where, role)
        case "toolResult":
            _check_tool_result(value, where, role)
        case "reasoningContent":
            _check_reasoning(value, where)


def _check_source(value: Mapping[str, Any], where: str) -> None:
    source = value.get("source")
    if not isinstance(source, dict) or len(source) != 1 or set(source) - {"bytes", "s3Location", "text", "content"}:
        raise refused(f"The source of the block at {where} must set exactly one of bytes, s3Location, text or content.")
    if "bytes" in source and (not isinstance(source["bytes"], str) or source["bytes"].startswith("data:")):
        raise refused(f"The bytes of the block at {where} are not base64.")


def _check_tool_use(value: Mapping[str, Any], where: str, role: str) -> None:
    if role != "assistant":
        raise refused("User messages cannot contain toolUse blocks.")
    if not is_name(_TOOL_ID, value.get("toolUseId")):
        text = "failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9_.:-]+"
        raise refused(f"1 validation error detected: Value at '{where}.toolUse.toolUseId' {text}, length at most 64")
    if not is_name(TOOL_NAME, value.get("name")):
        text = "failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9_-]+"
        raise refused(f"1 validation error detected: Value at '{where}.toolUse.name' {text}, length at most 64")
    if not isinstance(value.get("input"), dict):
        raise refused(
            f"The format of the value at {where}.toolUse.input is invalid. Provide a json object for the field."
        )


def _check_tool_result(value: Mapping[str, Any], where: str, role: str) -> None:
    if role != "user":
        raise refused("Assistant messages cannot contain toolResult blocks.")
    if value.get("status", "success") not in ("success", "error"):
        raise refused(f"Value at '{where}.toolResult.status' must satisfy enum value set: [success, error]")
    content = objects(value.get("content"), f"{where}.toolResult.content", "expected a list of blocks")
    for block in content:
        if len(block) != 1 or set(block) - {"json", "text", "image", "document", "video", "searchResult"}:
            raise refused(f"The content of the toolResult at {where} must be text, json, image, document or video.")
        if "text" in block and is_blank(block["text"]):
            raise refused(f"The text field in the ToolResultContentBlock at {where} is blank. Add text, and try again.")
        if "json" in block and not isinstance(block["json"], dict):
            raise refused(
                f"The format of the value at {where}.toolResult.content.json is invalid. Provide a json object."
            )


def _check_reasoning(value: Mapping[str, Any], where: str) -> None:
    if len(value) != 1:
        raise refused(f"The reasoningContent at {where} must set exactly one of reasoningText or redactedContent.")
    text = held(value, "reasoningText")
    if text and (not isinstance(text.get("text"), str) or text.get("signature") != sign(CLAUDE, str(text["text"]))):
        raise refused(f"The model returned the following errors: {where}: Invalid `signature` in `thinking` block")


def is_blank(text: object) -> bool:
    """Returns whether a text field has no text."""
    return not isinstance(text, str) or not text.strip()


def block_text(block: Mapping[str, Any]) -> str:
    """Returns the text that a block brings to the prompt."""
    return "\n".join(_texts(block))


def _texts(block: Mapping[str, Any]) -> Iterator[str]:
    if "text" in block:
        yield block["text"]
    elif "toolUse" in block:
        yield text_of(block["toolUse"]["input"])
    elif "toolResult" in block:
        for each in block["toolResult"]["content"]:
            yield each["text"] if "text" in each else text_of(each.get("json", {}))
    elif "reasoningContent" in block:
        yield (block["reasoningContent"].get("reasoningText") or {}).get("text", "")


# --- The whole request ---


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
    conversation = [turn for turn in turns if turn[0] != "system"]
    if not conversation or conversation[0][0] != "user":
        raise refused(
            "A conversation must start with a user message. Try again with a conversation that starts with one."
        )
    _check_system(data.get("system"))
    names = _tool_names(data)
    _check_pairs(conversation, has_tools=bool(names))
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
    """Returns whether the last message brings the result of a tool."""
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
    schema = held(held(form, "structure"), "jsonSchema").get("schema")
    try:
        return orjson.loads(schema) if isinstance(schema, str) else ""
    except orjson.JSONDecodeError:
        return ""


# --- The answer ---


_STOP_REASONS: Mapping[str, str] = MappingProxyType(
    {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "content_filtered"}
)
_PADDING = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LATENCY_MS = 1
_BROKEN_HEADERS = {
    ":event-type": "contentBlockDelta",
    ":content-type": "application/json",
    ":message-type": "event",
}


def answer_converse(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers with the whole object."""
    composed = _compose(request, writer)
    content = [_block(block, _tool_id(block, writer)) for block in composed.blocks]
    answer = {
        "metrics": {"latencyMs": _LATENCY_MS},
        "output": {"message": {"content": content, "role": "assistant"}},
        "stopReason": _STOP_REASONS[composed.ending],
        "usage": _usage(request, writer, composed),
    }
    return json_reply(answer, composed.tokens)


def stream_converse(request: CheckedRequest, writer: Writer) -> EmulatedStream:
    """Answers with the frames of an event stream."""
    composed = _compose(request, writer)
    last = len(composed.blocks) - 1
    closing = _event("contentBlockStop", {"contentBlockIndex": last}) if composed.blocks else b""
    metadata = {"usage": _usage(request, writer, composed), "metrics": {"latencyMs": _LATENCY_MS}}
    stop = _event("messageStop", {"stopReason": _STOP_REASONS[composed.ending]})
    return EmulatedStream(
        lead=_event("messageStart", {"role": "assistant"}),
        frames=_frames(composed, writer),
        tail=closing + stop + _event("metadata", metadata),
        tokens=composed.tokens,
        error_frame=lambda body: exception("serviceUnavailableException", body),
        broken=frame_of(_BROKEN_HEADERS, b'{"contentBlockIndex":0,"delta":{"te'),
        content_type=EVENT_STREAM,
    )


def _compose(request: CheckedRequest, writer: Writer) -> Composed:
    data = request.data
    wish, schema = wish_of(data), schema_of(data)
    return compose(
        request,
        writer,
        tools=wish.schemas,
        calls=wish.calls(request, is_result=ends_with_result(data)),
        is_thinking=_thinks(data),
        schema=schema if isinstance(schema, dict) else None,
    )


def _thinks(data: Mapping[str, Any]) -> bool:
    extra = data.get("additionalModelRequestFields") or {}
    thinking = extra.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") in ("enabled", "adaptive")


def _usage(request: CheckedRequest, writer: Writer, composed: Composed) -> dict[str, int]:
    used = writer.prompt_cache.use(request.model, segments_of(request.data, request.data["_turns"]))
    return {
        "inputTokens": used.fresh,
        "outputTokens": composed.tokens,
        "totalTokens": used.total + composed.tokens,
        "cacheReadInputTokens": used.read,
        "cacheWriteInputTokens": used.written,
    }


def _tool_id(block: Block, writer: Writer) -> str:
    return writer.new_id("tooluse_") if block.kind == "tool" else ""


def _block(block: Block, tool_id: str) -> dict[str, Any]:
    match block.kind:
        case "thought":
            reasoning = {"text": block.text, "signature": sign(CLAUDE, block.text)}
            return {"reasoningContent": {"reasoningText": reasoning}}
        case "tool":
            return {"toolUse": {"toolUseId": tool_id, "name": block.name, "input": arguments_of(block)}}
    return {"text": block.text}


def _frames(composed: Composed, writer: Writer) -> Iterator[bytes]:
    """One a token; what opens or closes a block goes with its first or last token."""
    last = len(composed.blocks) - 1
    for index, block in enumerate(composed.blocks):
        before = after = b""
        if block.kind == "tool":
            start = {"toolUse": {"toolUseId": _tool_id(block, writer), "name": block.name}}
            before = _event("contentBlockStart", {"contentBlockIndex": index, "start": start})
        if block.kind == "thought":
            after = _delta(index, {"reasoningContent": {"signature": sign(CLAUDE, block.text)}})
        if index != last:
            after += _event("contentBlockStop", {"contentBlockIndex": index})
        if not block.pieces:
            yield before + after
        for number, piece in enumerate(block.pieces):
            event = _delta(index, _news(block, piece))
            yield (b"" if number else before) + event + (after if number == len(block.pieces) - 1 else b"")


def _news(block: Block, piece: str) -> dict[str, Any]:
    match block.kind:
        case "thought":
            return {"reasoningContent": {"text": piece}}
        case "tool":
            return {"toolUse": {"input": piece}}
    return {"text": piece}


def _delta(index: int, delta: Mapping[str, Any]) -> bytes:
    return _event("contentBlockDelta", {"contentBlockIndex": index, "delta": delta})


def _event(kind: str, payload: Mapping[str, Any]) -> bytes:
    """Every event has padding of some length, so that its size does not tell its text."""
    size = 1 + len(str(payload)) % len(_PADDING)
    return event(kind, {**payload, "p": _PADDING[:size]})
