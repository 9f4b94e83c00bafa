"""Checks the turns of a Messages call as Anthropic does: roles, blocks, and the pairing of calls with their results.

It must not know answers. Source: the Messages API reference, and refusals as the API words them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gateway.emulator.dialects.dialects.signatures import CLAUDE, sign
from gateway.emulator.problems.refusing import objects, refused, text_of

Blocks = Sequence[Mapping[str, Any]]
_EVERYWHERE = frozenset({"type", "cache_control"})
_FIELDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "text": _EVERYWHERE | {"text", "citations"},
        "image": _EVERYWHERE | {"source", "transformations"},
        "document": _EVERYWHERE | {"source", "title", "context", "citations"},
        "tool_use": _EVERYWHERE | {"id", "name", "input", "caller", "toolset_name"},
        "tool_result": _EVERYWHERE | {"tool_use_id", "content", "is_error", "toolset_name"},
        "thinking": frozenset({"type", "thinking", "signature"}),
        "redacted_thinking": frozenset({"type", "data"}),
    }
)
_ONLY_OF: Mapping[str, str] = MappingProxyType(
    {"tool_use": "assistant", "thinking": "assistant", "redacted_thinking": "assistant", "tool_result": "user"}
)
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_TAKES_SYSTEM = re.compile(r"claude-(opus-(4-8|5)|fable|mythos)")
_TOOL_ID = re.compile(r"[a-zA-Z0-9_-]+")


def read_turns(given: object, model: str) -> list[tuple[str, Blocks]]:
    """Returns the turns as roles and blocks, neighbours of one role merged as the API does; raises ProblemError."""
    if given is None:
        raise refused("messages: Field required")
    messages = objects(given, "messages", "Input should be a valid list of messages")
    if not messages:
        raise refused("messages: at least one message is required")
    turns: list[tuple[str, list[Mapping[str, Any]]]] = []
    for index, message in enumerate(messages):
        role = _role(message, f"messages.{index}", model)
        blocks = _content(message, f"messages.{index}", is_last=index == len(messages) - 1)
        for place, block in enumerate(blocks):
            check_block(block, f"messages.{index}.content.{place}", role)
        if role != "system" and turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, list(blocks)))
    spoken = [turn for turn in turns if turn[0] != "system"]
    if not spoken or spoken[0][0] != "user":
        raise refused('messages: first message must use the "user" role')
    _check_pairs(spoken)
    return list(turns)


def texts_of(blocks: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the text that each block brings to the prompt."""
    return [_block_text(block) for block in blocks]


def _role(message: Mapping[str, Any], where: str, model: str) -> str:
    unknown = sorted(set(message) - {"role", "content", "cache_control"})
    if unknown:
        raise refused(f"{where}.{unknown[0]}: Extra inputs are not permitted")
    role = message.get("role")
    if role == "system" and where != "messages.0" and _TAKES_SYSTEM.search(model):
        return "system"
    if role == "system":
        text = 'Unexpected role "system". The Messages API accepts a top-level `system` parameter, not "system" as an'
        raise refused(f"messages: {text} input message role.")
    if role not in ("user", "assistant"):
        raise refused(f"{where}.role: Input should be 'user' or 'assistant'")
    return str(role)


def _content(message: Mapping[str, Any], where: str, *, is_last: bool) -> Blocks:
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    elif content is None:
        raise refused(f"{where}.content: Field required")
    blocks = objects(content, f"{where}.content", "Input should be a valid list of content blocks")
    if not blocks and not (is_last and message["role"] == "assistant"):
        raise refused(
            f"{where}: all messages must have non-empty content except for the optional final assistant message"
        )
    last = blocks[-1] if blocks else {}
    if is_last and message["role"] == "assistant" and str(last.get("text", "")) != str(last.get("text", "")).rstrip():
        raise refused("messages: final assistant content cannot end with trailing whitespace")
    return blocks


def check_block(block: Mapping[str, Any], where: str, role: str) -> None:
    """Raises ProblemError for a block that the API refuses at this place."""
    kind = block.get("type")
    known = _FIELDS.get(str(kind))
    if known is None:
        if isinstance(kind, str) and (kind.endswith("_tool_result") or kind in ("server_tool_use", "container_upload")):
            return
        tags = ", ".join(f"'{each}'" for each in _FIELDS)
        raise refused(f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags: {tags}")
    unknown = sorted(set(block) - known)
    if unknown:
        raise refused(f"{where}.{kind}.{unknown[0]}: Extra inputs are not permitted")
    if _ONLY_OF.get(str(kind), role) != role:
        raise refused(f"messages: `{kind}` blocks can only be in `{_ONLY_OF[str(kind)]}` messages")
    match kind:
        case "text":
            check_text(block, where)
        case "image" | "document":
            _check_source(block, f"{where}.{kind}")
        case "tool_use":
            _check_tool_use(block, f"{where}.tool_use")
        case "tool_result":
            _check_tool_result(block, f"{where}.tool_result")
        case "thinking":
            _check_thinking(block, where)
        case "redacted_thinking" if not isinstance(block.get("data"), str) or not block["data"]:
            raise refused(f"{where}.redacted_thinking.data: Field required")


def check_text(block: Mapping[str, Any], where: str) -> None:
    """Raises ProblemError for a text block without text."""
    text = block.get("text")
    if not isinstance(text, str):
        raise refused(f"{where}.text.text: Input should be a valid string")
    if not text:
        raise refused("messages: text content blocks must be non-empty")
    if not text.strip():
        raise refused("messages: text content blocks must contain non-whitespace text")


def _check_source(block: Mapping[str, Any], where: str) -> None:
    source = block.get("source")
    if not isinstance(source, dict):
        raise refused(f"{where}.source: Field required")
    kind = source.get("type")
    if kind == "base64":
        if not isinstance(source.get("data"), str) or source["data"].startswith("data:"):
            raise refused(f"{where}.source.base64.data: Input should be valid base64 data")
        if block["type"] == "image" and source.get("media_type") not in _IMAGES:
            wanted = ", ".join(f"'{each}'" for each in _IMAGES)
            raise refused(f"{where}.source.base64.media_type: Input should be {wanted}")
    elif kind not in ("url", "file", "text", "content"):
        raise refused(f"{where}.source: Input tag '{kind}' found using 'type' does not match any of the expected tags")


def _check_tool_use(block: Mapping[str, Any], where: str) -> None:
    if not isinstance(block.get("id"), str) or not _TOOL_ID.fullmatch(block["id"]):
        raise refused(f"{where}.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if not isinstance(block.get("name"), str) or not 1 <= len(block["name"]) <= 200:
        raise refused(f"{where}.name: String should have at least 1 character")
    if not isinstance(block.get("input"), dict):
        raise refused(f"{where}.input: Input should be a valid dictionary")


def _check_tool_result(block: Mapping[str, Any], where: str) -> None:
    if not isinstance(block.get("tool_use_id"), str):
        raise refused(f"{where}.tool_use_id: Field required")
    if not isinstance(block.get("is_error", False), bool):
        raise refused(f"{where}.is_error: Input should be a valid boolean")
    content = block.get("content", "")
    if isinstance(content, str):
        return
    for place, each in enumerate(objects(content, f"{where}.content", "Input should be a valid list")):
        if each.get("type") in ("text", "image", "document"):
            check_block(each, f"{where}.content.{place}", "user")


def _check_thinking(block: Mapping[str, Any], where: str) -> None:
    thought, signature = block.get("thinking"), block.get("signature")
    if not isinstance(thought, str):
        raise refused(f"{where}.thinking.thinking: Field required")
    if not isinstance(signature, str):
        raise refused(f"{where}.thinking.signature: Field required")
    if signature != sign(CLAUDE, thought):
        raise refused(f"{where}: Invalid `signature` in `thinking` block")


def _check_pairs(turns: Sequence[tuple[str, Blocks]]) -> None:
    seen: set[str] = set()
    waiting: list[str] = []
    for number, (role, blocks) in enumerate(turns):
        if role == "user":
            _check_results(blocks, waiting, number)
            waiting = []
            continue
        waiting = [str(block["id"]) for block in blocks if block["type"] == "tool_use"]
        if len(set(waiting)) < len(waiting) or seen & set(waiting):
            raise refused("messages: `tool_use` ids must be unique")
        seen.update(waiting)
    if waiting:
        raise _without_results(len(turns) - 1, waiting)


def _check_results(blocks: Blocks, waiting: Sequence[str], number: int) -> None:
    results = [(place, block) for place, block in enumerate(blocks) if block["type"] == "tool_result"]
    for place, block in results:
        if block["tool_use_id"] not in waiting:
            text = f"unexpected `tool_use_id` found in `tool_result` blocks: {block['tool_use_id']}."
            rule = "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            raise refused(f"messages.{number}.content.{place}: {text} {rule}")
    given = [block["tool_use_id"] for _, block in results]
    if len(set(given)) < len(given):
        raise refused(
            f"messages.{number}: each tool_use must have a single result. Found multiple `tool_result` blocks."
        )
    missing = [each for each in waiting if each not in given]
    late = any(place >= len(given) for place, _ in results)
    if missing or late:
        raise _without_results(number - 1, missing or given)


def _without_results(number: int, ids: Sequence[str]) -> Exception:
    text = "`tool_use` ids were found without `tool_result` blocks immediately after"
    rule = "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    return refused(f"messages.{number}: {text}: {', '.join(ids)}. {rule}")


def _block_text(block: Mapping[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return str(block["text"])
        case "thinking":
            return str(block["thinking"])
        case "tool_use":
            return text_of(block["input"])
        case "tool_result":
            content = block.get("content", "")
            return content if isinstance(content, str) else "\n".join(texts_of(content))
    return ""
