"""Reads a Messages call, or a count of its tokens, as Anthropic does: what it would refuse is refused in its words.

It must not know answers. Source: the Messages API reference (versions 2023-06-01 and 2026-10-21).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.dialects.compose import ToolWish
from gateway.emulator.dialects.dialects.prompt_cache import Segment
from gateway.emulator.messages_request.turns import Blocks, check_text, read_turns, texts_of
from gateway.emulator.problems.problems import EmulatedProblem, ProblemError
from gateway.emulator.problems.refusing import objects, refused, text_of

VERSIONS = ("2023-01-01", "2023-06-01", "2026-10-21")
_WITHOUT_SAMPLING = "2026-10-21"
_COUNTED = frozenset(
    {
        "model",
        "messages",
        "system",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "output_format",
        "cache_control",
    }
)
_FIELDS = _COUNTED | {
    "max_tokens",
    "stream",
    "stop_sequences",
    "temperature",
    "top_p",
    "top_k",
    "metadata",
    "service_tier",
    "container",
    "context_management",
    "diagnostics",
    "inference_geo",
    "mcp_servers",
    "speed",
    "user_profile_id",
    "workspace_id",
}
_TOOL_FIELDS = frozenset(
    {
        "type",
        "name",
        "description",
        "input_schema",
        "strict",
        "cache_control",
        "allowed_callers",
        "defer_loading",
        "eager_input_streaming",
        "input_examples",
    }
)
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_OWN_TOOL = re.compile(r"[a-z_]+_20\d{6}|mcp_toolset")  # such as web_search_20250305
_RANGES = (("temperature", 0.0, 1.0), ("top_p", 0.0, 1.0), ("top_k", 0.0, None))
_MOST_MARKS = 4
_NO_THREADS = EmulatedProblem(
    400,
    "thread: this request cannot be continued as a message thread.",
    details=({"error_code": "thread_unsupported_request", "unsupported": ["thread"]},),
)
"""No conversation is held here: the SDKs know this answer, and send it whole."""


@dataclass(frozen=True, slots=True)
class MessagesReader:
    """Reads calls of one API version; `is_count`: to count tokens, so without `max_tokens`."""

    version: str
    is_count: bool = False

    def __call__(self, data: dict[str, Any], model: str) -> CheckedRequest:
        """Returns the checked call; raises ProblemError."""
        known = _COUNTED if self.is_count else _FIELDS
        if data.get("thread") and not self.is_count:
            raise ProblemError(_NO_THREADS)
        unknown = sorted(set(data) - known)
        if unknown:
            raise refused(f"{unknown[0]}: Extra inputs are not permitted")
        cap = None if self.is_count else _cap(data)
        turns = read_turns(data.get("messages"), model)
        _check_system(data.get("system"))
        _check_tools(data)
        _check_sampling(data, self.version)
        _check_thinking(data, turns, cap)
        _check_rest(data)
        segments = segments_of(data, turns)
        if sum(segment.keep_s is not None for segment in segments) > _MOST_MARKS:
            found = sum(segment.keep_s is not None for segment in segments)
            raise refused(f"A maximum of {_MOST_MARKS} blocks with cache_control may be provided. Found {found}.")
        echo = [text for role, blocks in turns if role == "user" for text in texts_of(blocks)][-1]
        return CheckedRequest(model, data, "".join(segment.text for segment in segments), echo, cap)


def wish_of(data: Mapping[str, Any]) -> ToolWish:
    """Returns the tools that may be called, of a checked call; Anthropic's own tools run there, and are never called."""
    choice = data.get("tool_choice") or {}
    kind = choice.get("type")
    if kind == "none":
        return ToolWish({})
    schemas = {tool["name"]: tool["input_schema"] for tool in data.get("tools") or () if "input_schema" in tool}
    named = choice["name"] if kind == "tool" else None
    return ToolWish(schemas, named, kind is not None, choice.get("disable_parallel_tool_use") is not True)


def form_of(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the form that the answer is to have, of a checked call; clients of before it moved say `output_format`."""
    return (data.get("output_config") or {}).get("format") or data.get("output_format") or {}


def ends_with_result(data: Mapping[str, Any]) -> bool:
    """Tells whether the last message brings the result of a tool."""
    content = data["messages"][-1]["content"]
    return isinstance(content, list) and any(block.get("type") == "tool_result" for block in content)


def segments_of(data: Mapping[str, Any], turns: Sequence[tuple[str, Blocks]]) -> list[Segment]:
    """Returns the prompt in the order in which it is cached: tools, system, messages."""
    system = data.get("system") or ()
    parts = [Segment(text_of(_bare(tool)), _keep_s(tool)) for tool in data.get("tools") or ()]
    if isinstance(system, str):
        parts.append(Segment(system))
    else:
        parts += [Segment(block["text"], _keep_s(block)) for block in system]
    parts += list(_turn_segments(turns))
    if data.get("cache_control") and parts:
        parts[-1] = Segment(parts[-1].text, _keep_s(data))
    return parts


def _turn_segments(turns: Sequence[tuple[str, Blocks]]) -> Iterator[Segment]:
    for role, blocks in turns:
        for block, text in zip(blocks, texts_of(blocks), strict=True):
            yield Segment(f"\n{role}: {text}", _keep_s(block))


def _keep_s(block: Mapping[str, Any]) -> float | None:
    mark = block.get("cache_control")
    if not mark:
        return None
    if not isinstance(mark, dict) or mark.get("type") != "ephemeral" or mark.get("ttl", "5m") not in ("5m", "1h"):
        raise refused("cache_control: Input should be of type 'ephemeral' with a ttl of '5m' or '1h'")
    return 3600.0 if mark.get("ttl") == "1h" else 300.0


def _bare(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tool.items() if name != "cache_control"}


def _cap(data: Mapping[str, Any]) -> int:
    cap = data.get("max_tokens")
    if cap is None:
        raise refused("max_tokens: Field required")
    if type(cap) is not int:
        raise refused("max_tokens: Input should be a valid integer")
    if cap < 0:
        raise refused("max_tokens: must be greater than or equal to 0")
    return cap


def _check_system(system: object) -> None:
    if system is None or isinstance(system, str):
        return
    for place, block in enumerate(objects(system, "system", "Input should be a valid list of text blocks")):
        unknown = sorted(set(block) - {"type", "text", "cache_control", "citations"})
        if block.get("type") != "text" or unknown:
            raise refused(f"system.{place}.{unknown[0] if unknown else 'type'}: Extra inputs are not permitted")
        check_text(block, f"system.{place}")


def _check_tools(data: Mapping[str, Any]) -> None:
    tools = objects(data.get("tools") or [], "tools", "Input should be a valid list of tools")
    names = [_tool_name(tool, f"tools.{place}") for place, tool in enumerate(tools)]
    if len(set(names)) < len(names):
        raise refused("tools: Tool names must be unique.")
    choice = data.get("tool_choice")
    if choice is None:
        return
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind not in ("auto", "any", "tool", "none"):
        tags = "'auto', 'any', 'tool', 'none'"
        raise refused(
            f"tool_choice: Input tag '{kind}' found using 'type' does not match any of the expected tags: {tags}"
        )
    unknown = sorted(set(choice) - {"type", "name", "disable_parallel_tool_use"})
    if unknown:
        raise refused(f"tool_choice.{kind}.{unknown[0]}: Extra inputs are not permitted")
    if not tools:
        raise refused("tool_choice: may only be specified while providing tools.")
    if kind == "tool" and choice.get("name") not in names:
        raise refused(f"Tool '{choice.get('name')}' not found in provided tools")


def _tool_name(tool: Mapping[str, Any], where: str) -> str:
    kind, name = tool.get("type") or "custom", tool.get("name")
    if kind != "custom":
        if not _OWN_TOOL.fullmatch(str(kind)):
            raise refused(f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags")
        return str(name or kind)
    unknown = sorted(set(tool) - _TOOL_FIELDS)
    if unknown:
        raise refused(f"{where}.custom.{unknown[0]}: Extra inputs are not permitted")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise refused(f"{where}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise refused(f"{where}.custom.input_schema: Field required")
    if schema.get("type") != "object":
        raise refused(f"{where}.custom.input_schema.type: Input should be 'object'")
    return name


def _check_sampling(data: Mapping[str, Any], version: str) -> None:
    for name, low, high in _RANGES:
        value = data.get(name)
        if value is None:
            continue
        if version >= _WITHOUT_SAMPLING:
            raise refused(f"{name}: is not supported in version {version}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refused(f"{name}: Input should be a valid number")
        if value < low or (high is not None and value > high):
            raise refused(f"{name}: range: {low:g}..{'' if high is None else format(high, 'g')}")


def _check_thinking(data: Mapping[str, Any], turns: Sequence[tuple[str, Blocks]], cap: int | None) -> None:
    thinking = data.get("thinking")
    if thinking is None:
        return
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind not in ("enabled", "adaptive", "disabled", "between_tools"):
        raise refused(f"thinking: Input tag '{kind}' found using 'type' does not match any of the expected tags")
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        if type(budget) is not int or budget < 1024:
            raise refused("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
        if cap is not None and cap <= budget:
            raise refused("`max_tokens` must be greater than `thinking.budget_tokens`.")
        _check_thoughts_kept(turns)
    if kind in ("enabled", "adaptive"):
        if (data.get("tool_choice") or {}).get("type") in ("any", "tool"):
            raise refused("Thinking may not be enabled when tool_choice forces tool use.")
        if data.get("temperature", 1) != 1:
            raise refused("`temperature` may only be set to 1 when thinking is enabled.")
        if data.get("top_k") is not None:
            raise refused("`top_k` must be unset when thinking is enabled.")


def _check_thoughts_kept(turns: Sequence[tuple[str, Blocks]]) -> None:
    """In the middle of a tool use the thought that led to it has to come back."""
    if len(turns) < 2 or not any(block["type"] == "tool_result" for block in turns[-1][1]):
        return
    role, blocks = turns[-2]
    if role == "assistant" and blocks[0]["type"] not in ("thinking", "redacted_thinking"):
        text = f"Expected `thinking` or `redacted_thinking`, but found `{blocks[0]['type']}`."
        rule = "When `thinking` is enabled, a final `assistant` message must start with a thinking block."
        raise refused(f"messages.{len(turns) - 2}.content.0.type: {text} {rule}")


def _check_rest(data: Mapping[str, Any]) -> None:
    stops = data.get("stop_sequences") or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise refused("stop_sequences: Input should be a valid list of strings")
    if any(not stop.strip() for stop in stops):
        raise refused("stop_sequences: each stop sequence must contain non-whitespace")
    if not isinstance(data.get("stream", False), bool):
        raise refused("stream: Input should be a valid boolean")
    metadata = data.get("metadata")
    if metadata is not None and (not isinstance(metadata, dict) or set(metadata) - {"user_id"}):
        raise refused("metadata: Extra inputs are not permitted")
    if data.get("service_tier") not in (None, "auto", "standard_only"):
        raise refused("service_tier: Input should be 'auto' or 'standard_only'")
    config = data.get("output_config")
    if config is not None and (not isinstance(config, dict) or set(config) - {"effort", "format", "task_budget"}):
        raise refused("output_config: Extra inputs are not permitted")
    former = data.get("output_format")
    form = (config or {}).get("format")
    if form is not None and former is not None:
        raise refused("output_format: may not be given beside output_config.format")
    for name, value in (("output_config.format", form), ("output_format", former)):
        if value is not None and (
            not isinstance(value, dict)
            or value.get("type") != "json_schema"
            or not isinstance(value.get("schema"), dict)
        ):
            raise refused(f"{name}: Input should be of type 'json_schema' with a schema")
