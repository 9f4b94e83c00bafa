"""Anthropic's Messages API: reads a call or a count of its tokens, checks it as Anthropic does, and answers it.

In this order: the turns (roles, blocks, and the pairing of calls with their results), the other fields, the answer as JSON or
as named events. What Anthropic would refuse is refused in its words. It must not know limits, faults or time. Invariant: the
events of a stream, put together, say what the JSON would have said, and only `tail` carries `stop_reason` and `message_stop`.
Source: the Messages API reference (versions 2023-06-01 and 2026-10-21), and refusals as the API words them.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from gateway.emulator.replies import (
    EVENT_STREAM,
    EmulatedProblem,
    EmulatedReply,
    EmulatedStream,
    ProblemError,
    event,
    exception,
    frame,
    json_reply,
    objects,
    refused,
    text_of,
)
from gateway.emulator.requests import CheckedRequest
from gateway.emulator.writer import (
    CLAUDE,
    Block,
    CacheUse,
    Composed,
    Segment,
    ToolWish,
    Writer,
    compose,
    sign,
)

# --- Turns: roles, blocks, and the pairing of calls with their results ---


Blocks = Sequence[Mapping[str, Any]]
_EVERYWHERE = frozenset({"type", "cache_control"})
_BLOCK_FIELDS: Mapping[str, frozenset[str]] = MappingProxyType(
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
    conversation = [turn for turn in turns if turn[0] != "system"]
    if not conversation or conversation[0][0] != "user":
        raise refused('messages: first message must use the "user" role')
    _check_pairs(conversation)
    return list(turns)


def texts_of(blocks: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the text that each block brings to the prompt."""
    return [_block_text(block) for block in blocks]


def _role(message: Mapping[str, Any], where: str, model: str) -> str:
    role = message.get("role")
    own = {"clear_at", "output_config"} if role == "system" else set()
    unknown = sorted(set(message) - {"role", "content", "cache_control"} - own)
    if unknown:
        raise refused(f"{where}.{unknown[0]}: Extra inputs are not permitted")
    if role == "system" and where != "messages.0" and _TAKES_SYSTEM.search(model):
        return "system"
    if role == "system":
        text = 'Unexpected role "system". The Messages API accepts a top-level `system` parameter, not "system" as an'
        is_first = where == "messages.0"
        raise refused(
            f"messages: {text} input message role." if is_first else "role 'system' is not supported on this model"
        )
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
    known = _BLOCK_FIELDS.get(str(kind))
    if known is None:
        if isinstance(kind, str) and (kind.endswith("_tool_result") or kind in ("server_tool_use", "container_upload")):
            return
        tags = ", ".join(f"'{each}'" for each in _BLOCK_FIELDS)
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
            _check_thinking_block(block, where)
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


def _check_thinking_block(block: Mapping[str, Any], where: str) -> None:
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


# --- The other fields ---


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
        _check_thinking_order(data, turns, cap)
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
    """Returns whether the last message brings the result of a tool."""
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


def _check_thinking_order(data: Mapping[str, Any], turns: Sequence[tuple[str, Blocks]], cap: int | None) -> None:
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


# --- The answer ---


_STOP_REASONS: Mapping[str, str] = MappingProxyType(
    {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
)
_PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_PING_EVERY = 50
_BROKEN = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","te\n\n'
)
Event = Mapping[str, Any]
Render = Callable[[Event], bytes]


def answer_messages(request: CheckedRequest, writer: Writer) -> EmulatedReply | EmulatedStream:
    """Answers with a message, as JSON or as a stream of server-sent events."""
    composed, message = _message(request, writer)
    if not request.is_stream:
        return json_reply(message, composed.tokens)

    def render(event: Event) -> bytes:
        return frame(event, str(event["type"]))

    return EmulatedStream(
        lead=_lead(message, render, _PING),
        frames=_with_pings(_frames(composed, message, render)),
        tail=_tail(composed, message, render),
        tokens=composed.tokens,
        error_frame=lambda body: b"event: error\ndata: " + body + b"\n\n",
        broken=_BROKEN,
    )


def answer_invoked(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers a Messages call that Bedrock carries, with the message."""
    composed, message = _message(request, writer)
    return json_reply(message, composed.tokens)


def stream_invoked(request: CheckedRequest, writer: Writer) -> EmulatedStream:
    """Answers a Messages call that Bedrock carries, with frames of `chunk` events."""
    composed, message = _message(request, writer)

    def render(inner: Event) -> bytes:
        return event("chunk", {"bytes": b64encode(orjson.dumps(inner)).decode()})

    return EmulatedStream(
        lead=_lead(message, render, b""),
        frames=_frames(composed, message, render),
        tail=_tail(composed, message, render),
        tokens=composed.tokens,
        error_frame=lambda body: exception("serviceUnavailableException", body),
        broken=event("chunk", {"bytes": b64encode(b'{"type":"content_block_delta","inde').decode()}),
        content_type=EVENT_STREAM,
    )


def answer_token_count(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers with the tokens of a prompt."""
    return json_reply({"input_tokens": request.prompt_tokens})


def _message(request: CheckedRequest, writer: Writer) -> tuple[Composed, dict[str, Any]]:
    data = request.data
    wish = wish_of(data)
    composed = compose(
        request,
        writer,
        tools=wish.schemas,
        calls=wish.calls(request, is_result=ends_with_result(data)),
        is_thinking=_thinks(data),
        schema=form_of(data).get("schema"),
    )
    turns = read_turns(data["messages"], request.model)
    used = writer.prompt_cache.use(request.model, segments_of(data, turns))
    is_shown = (data.get("thinking") or {}).get("display") != "omitted"
    return composed, {
        "id": writer.new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [_block(block, writer, is_shown=is_shown) for block in composed.blocks],
        "stop_reason": _STOP_REASONS[composed.ending],
        "stop_sequence": None,
        "stop_details": _STOP_DETAILS if composed.ending == "content_filter" else None,
        "usage": _usage(used, composed),
    }


_STOP_DETAILS = {"type": "refusal", "category": "general_harms", "explanation": "It was refused (emulated)."}


def _thinks(data: Mapping[str, Any]) -> bool:
    return (data.get("thinking") or {}).get("type") in ("enabled", "adaptive")


def _usage(used: CacheUse, composed: Composed) -> dict[str, Any]:
    return {
        "input_tokens": used.fresh,
        "cache_creation_input_tokens": used.written,
        "cache_read_input_tokens": used.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": used.written - used.hourly,
            "ephemeral_1h_input_tokens": used.hourly,
        },
        "output_tokens": composed.tokens,
        "output_tokens_details": {"thinking_tokens": composed.thought_tokens},
        "service_tier": "standard",
    }


def _block(block: Block, writer: Writer, *, is_shown: bool) -> dict[str, Any]:
    match block.kind:
        case "thought":
            thought = block.text if is_shown else ""
            return {"type": "thinking", "thinking": thought, "signature": sign(CLAUDE, thought)}
        case "tool":
            return {"type": "tool_use", "id": writer.new_id("toolu_"), "name": block.name, "input": arguments_of(block)}
    return {"type": "text", "text": block.text}


def arguments_of(block: Block) -> object:
    """Returns the arguments of a call; none when the answer was cut in the middle of them."""
    try:
        return orjson.loads(block.text)
    except orjson.JSONDecodeError:
        return {}


def _lead(message: Mapping[str, Any], render: Render, ping: bytes) -> bytes:
    usage = message["usage"] | {"output_tokens": 1}
    opening = {**message, "content": [], "stop_reason": None, "stop_details": None, "usage": usage}
    return render({"type": "message_start", "message": opening}) + ping


def _frames(composed: Composed, message: Mapping[str, Any], render: Render) -> Iterator[bytes]:
    """One frame a token; what opens or closes a block goes with its first or last token."""
    last = len(composed.blocks) - 1
    for index, (block, shown) in enumerate(zip(composed.blocks, message["content"], strict=True)):
        before = render({"type": "content_block_start", "index": index, "content_block": _opened(shown)})
        deltas = [delta for piece in block.pieces if (delta := _delta(block, shown, piece)) is not None]
        after = b""
        if block.kind == "thought":
            signed = {"type": "signature_delta", "signature": shown["signature"]}
            after = render({"type": "content_block_delta", "index": index, "delta": signed})
        if index != last:
            after += render({"type": "content_block_stop", "index": index})
        if not deltas:
            yield before + after
        for number, delta in enumerate(deltas):
            event = render({"type": "content_block_delta", "index": index, "delta": delta})
            yield (b"" if number else before) + event + (after if number == len(deltas) - 1 else b"")


def _opened(shown: Mapping[str, Any]) -> dict[str, Any]:
    match shown["type"]:
        case "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "tool_use":
            return {**shown, "input": {}}
    return {"type": "text", "text": ""}


def _delta(block: Block, shown: Mapping[str, Any], piece: str) -> dict[str, Any] | None:
    match block.kind:
        case "thought":
            return {"type": "thinking_delta", "thinking": piece} if shown["thinking"] else None
        case "tool":
            return {"type": "input_json_delta", "partial_json": piece}
    return {"type": "text_delta", "text": piece}


def _tail(composed: Composed, message: Mapping[str, Any], render: Render) -> bytes:
    closing = b""
    if composed.blocks:
        closing = render({"type": "content_block_stop", "index": len(composed.blocks) - 1})
    named = ("stop_reason", "stop_sequence", "stop_details")
    usage = {name: count for name, count in message["usage"].items() if name not in ("cache_creation", "service_tier")}
    delta = {"type": "message_delta", "delta": {name: message[name] for name in named}, "usage": usage}
    return closing + render(delta) + render({"type": "message_stop"})


def _with_pings(frames: Iterator[bytes]) -> Iterator[bytes]:
    for number, each in enumerate(frames, 1):
        yield each if number % _PING_EVERY else each + _PING
