"""Checks the messages of a Converse call and their blocks, each by itself.

It must not know what stands beside a message, or answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gateway.emulator.dialects.dialects.signatures import CLAUDE, sign
from gateway.emulator.problems.refusing import held, is_name, objects, refused, text_of

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
    told = held(value, "reasoningText")
    if told and (not isinstance(told.get("text"), str) or told.get("signature") != sign(CLAUDE, str(told["text"]))):
        raise refused(f"The model returned the following errors: {where}: Invalid `signature` in `thinking` block")


def is_blank(text: object) -> bool:
    """Tells whether a text field has no text."""
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
