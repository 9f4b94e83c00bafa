"""Ways between languages: one small conversation in each that providers speak, and benches whose targets speak them.

The same words everywhere: a thought, some text, one call of a tool, then the counts. So that whatever reaches a caller of one
language can be held against what reaches it by any other way.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson

from gateway.core.config.error_tables import read_error_tables
from gateway.core.openai.sse import split_events
from gateway.core.snapshot import Model, Target
from gateway.core.types import Endpoint
from gateway.dialects.config import read_models
from gateway.dialects.endpoints import GENERATE as GENERATE
from gateway.dialects.endpoints import MESSAGES as MESSAGES
from gateway.dialects.target_languages import TargetLanguages, languages_of
from gateway.dialects.upstream import Converting
from tests.dialects.aws_frames import event as frame
from tests.support.flow import CHAT, RESPONSES, Bench, Script, ScriptedUpstream

Json = dict[str, Any]
CALLERS: Final[Mapping[str, Endpoint]] = {
    "chat": CHAT,
    "responses": RESPONSES,
    "messages": MESSAGES,
    "generate": GENERATE,
}
FRAMES: Final = (b"content-type", b"application/vnd.amazon.eventstream")
SSE: Final = (b"content-type", b"text/event-stream")
CLAUDE: Final = "us.anthropic.claude-haiku-4-5-20251001-v1:0"
MODELS: Final = read_models(None)
TABLES: Final = read_error_tables((), {}, [])

TOOL: Final[Json] = {"type": "object", "properties": {"x": {"type": "integer"}}}
ASKED: Final[Mapping[str, Json]] = {
    "chat": {
        "messages": [{"role": "user", "content": "go"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": TOOL}}],
    },
    "responses": {"input": "go", "tools": [{"type": "function", "name": "f", "parameters": TOOL, "strict": False}]},
    "messages": {
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "go"}],
        "tools": [{"name": "f", "input_schema": TOOL}],
    },
    "generate": {
        "contents": [{"role": "user", "parts": [{"text": "go"}]}],
        "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": TOOL}]}],
        "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
    },
}
"""What the callers of each language ask."""


class Language(NamedTuple):
    """What a provider of a dialect is configured as, and how it says the one answer."""

    dialect: str
    speaks: frozenset[str] | None
    model: str = "m"


LANGUAGES: Final[Mapping[str, Language]] = {
    "chat": Language("openai", frozenset(("chat",))),
    "responses": Language("openai", frozenset(("responses",))),
    "messages": Language("anthropic", None),
    "generate": Language("gemini", None, "gemini-3-pro"),
    "converse": Language("bedrock", None),
    "claude": Language("bedrock", None, CLAUDE),
    "claude_at_vertex": Language("vertex", None, "claude-haiku-4-5@20251001"),
}
WAYS: Final = [
    *((asked, spoken) for asked in CALLERS for spoken in ("chat", "responses", "messages", "generate", "converse")),
    ("messages", "claude"),
    ("messages", "claude_at_vertex"),
    ("chat", "claude_at_vertex"),
    ("generate", "claude_at_vertex"),
]
"""The caller's language and the provider's; where they are one, bytes go through."""


def sse(*events: Json | str, named: bool = False, end: bytes = b"\n\n") -> list[bytes]:
    """Events as a provider sends them."""
    made = []
    for one in events:
        data = one.encode() if isinstance(one, str) else orjson.dumps(one)
        name = b"event: %b\n" % one["type"].encode() if named and isinstance(one, dict) else b""
        made.append(name + b"data: " + data + end)
    return made


def _chunk(finish: str | None = None, **delta: Any) -> Json:
    return {"id": "c", "model": "g", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _block(kind: str, place: int, **fields: Any) -> Json:
    return {"type": f"content_block_{kind}", "index": place, **fields}


def _said(*parts: Json, **more: Any) -> Json:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "index": 0, **more}]}


_USED: Final = {"input_tokens": 31, "output_tokens": 7, "total_tokens": 38}
_ITEM: Final = {"type": "function_call", "id": "fc_1", "call_id": "call_a", "name": "f", "arguments": '{"x":1}'}
_SAID: Final = {
    "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": "so", "annotations": []}],
}  # fmt: skip
_RESPONSE: Final[Json] = {"id": "resp_1", "object": "response", "model": "g", "status": "in_progress", "output": []}
MESSAGE_EVENTS: Final[list[Json]] = [
    {"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": [], "stop_reason": None,
        "usage": {"input_tokens": 31, "output_tokens": 1}}},
    _block("start", 0, content_block={"type": "thinking", "thinking": "", "signature": ""}),
    _block("delta", 0, delta={"type": "thinking_delta", "thinking": "hm"}),
    _block("delta", 0, delta={"type": "signature_delta", "signature": "S"}),
    _block("stop", 0),
    _block("start", 1, content_block={"type": "text", "text": ""}),
    {"type": "ping"},
    _block("delta", 1, delta={"type": "text_delta", "text": "s"}),
    _block("delta", 1, delta={"type": "text_delta", "text": "o"}),
    _block("stop", 1),
    _block("start", 2, content_block={"type": "tool_use", "id": "call_a", "name": "f", "input": {}}),
    _block("delta", 2, delta={"type": "input_json_delta", "partial_json": '{"x"'}),
    _block("delta", 2, delta={"type": "input_json_delta", "partial_json": ":1}"}),
    _block("stop", 2),
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}},
    {"type": "message_stop"},
]  # fmt: skip
STREAMS: Final[Mapping[str, list[bytes]]] = {
    "chat": sse(
        _chunk(role="assistant", content=""),
        _chunk(reasoning_content="hm"),
        _chunk(content="s"),
        _chunk(content="o"),
        _chunk(tool_calls=[{"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": ""}}]),
        _chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"x"'}}]),
        _chunk(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]),
        _chunk("tool_calls"),
        {"id": "c", "model": "g", "choices": [], "usage": {"prompt_tokens": 31, "completion_tokens": 7}},
        "[DONE]",
    ),
    "responses": sse(
        {"type": "response.created", "response": _RESPONSE, "sequence_number": 0},
        {"type": "response.output_item.added", "output_index": 0, "item": {**_SAID, "content": []}, "sequence_number": 1},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "s", "sequence_number": 2},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "o", "sequence_number": 3},
        {"type": "response.output_item.done", "output_index": 0, "item": _SAID, "sequence_number": 4},
        {"type": "response.output_item.added", "output_index": 1, "item": {**_ITEM, "arguments": ""}, "sequence_number": 5},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"x"', "sequence_number": 6},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": ":1}", "sequence_number": 7},
        {"type": "response.output_item.done", "output_index": 1, "item": _ITEM, "sequence_number": 8},
        {"type": "response.completed", "sequence_number": 9, "response": {
            **_RESPONSE, "status": "completed", "output": [_SAID, _ITEM], "usage": _USED}},
        named=True,
    ),
    "messages": sse(*MESSAGE_EVENTS, named=True),
    "claude_at_vertex": sse(*MESSAGE_EVENTS, named=True),
    "generate": sse(
        _said({"text": "hm", "thought": True}),
        _said({"text": "s"}),
        _said({"text": "o"}),
        _said({"functionCall": {"name": "f", "args": {"x": 1}, "id": "call_a"}, "thoughtSignature": "U0lH"}),
        {**_said({"text": ""}, finishReason="STOP"), "usageMetadata": {
            "promptTokenCount": 31, "candidatesTokenCount": 5, "thoughtsTokenCount": 2, "totalTokenCount": 38}},
        end=b"\r\n\r\n",
    ),
    "converse": [
        frame("messageStart", {"role": "assistant"}),
        frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "hm"}}}),
        frame("contentBlockStop", {"contentBlockIndex": 0}),
        frame("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "s"}}),
        frame("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "o"}}),
        frame("contentBlockStop", {"contentBlockIndex": 1}),
        frame("contentBlockStart", {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "call_a", "name": "f"}}}),
        frame("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"x"'}}}),
        frame("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": ":1}"}}}),
        frame("contentBlockStop", {"contentBlockIndex": 2}),
        frame("messageStop", {"stopReason": "tool_use"}),
        frame("metadata", {"usage": {"inputTokens": 31, "outputTokens": 7, "totalTokens": 38}}),
    ],
    "claude": [frame("chunk", {"bytes": b64encode(orjson.dumps(one)).decode()}) for one in MESSAGE_EVENTS],
}  # fmt: skip
"""The one answer, event by event, by the language that it is said in."""


class Ways(Bench):
    """A bench whose targets speak these languages, in this order."""

    def __init__(self, spoken: list[str], *scripts: list[Script], **options: Any) -> None:
        self.spoken = spoken
        super().__init__([ScriptedUpstream(*one) for one in scripts], **options)

    def _model(self) -> Model:
        model = super()._model()
        by_name = {one.name: self._speaking(one, self.spoken[place]) for place, one in enumerate(model.plan)}
        return replace(
            model,
            targets=tuple(by_name[one.name] for one in model.targets),
            plan=tuple(by_name[one.name] for one in model.plan),
        )

    def _speaking(self, target: Target, name: str) -> Target:
        language = LANGUAGES[name]
        kind = language.dialect if language.dialect != "openai" else "other"
        speaks = languages_of(language.dialect, kind, None) if language.speaks is None else language.speaks
        spoken = TargetLanguages(kind, speaks, language.dialect, MODELS.of).at(language.model)
        around = Converting(target.upstream, spoken, self.clock, lambda: "abc", learned=None)
        return replace(
            target,
            model=language.model,
            converters_by_path=around.converters_by_path,
            errors=TABLES.of(language.dialect),
            on_unknown_path=None,
        )

    def asking(self, asked: str, **changes: Any) -> dict[str, Any]:
        """What a call in this language is made of."""
        endpoint = CALLERS[asked]
        stream = changes.pop("stream", True)
        front = {"model": "m"} | ({"stream": True} if stream else {})
        body = orjson.dumps(front | ASKED[asked] | changes.pop("more", {}))
        return {"endpoint": endpoint, "path": endpoint.path, "body": body, "stream": stream, **changes}


FRAMED: Final = ("converse", "claude")
"""The languages whose streams are frames."""


def stream_of(spoken: str, *chunks: Any) -> Script:
    """A stream of a provider of this language."""
    return Script(200, (FRAMES if spoken in FRAMED else SSE,), chunks)


class Heard(NamedTuple):
    """What an application has of a stream."""

    text: str
    """Thoughts, words and arguments, in the order in which they came."""
    is_ended: bool
    """It was told why the answer ended, or that it has."""
    error: Json | None


_GROWS: Final = (
    "response.reasoning_text.delta",
    "response.output_text.delta",
    "response.function_call_arguments.delta",
)
_ENDS: Final = frozenset(("response.completed", "response.incomplete", "response.failed", "message_stop"))


def heard(asked: str, stream: bytes) -> Heard:
    """What a caller of this language has of a stream; checks that an error is the last event, and in the caller's shape.

    Behind that of a response comes the response, as failed.
    """
    text, is_ended, error, has_failed = "", False, None, False
    for event in split_events(stream):
        data = event.partition(b"data:")[2].strip()
        if not data or data == b"[DONE]":
            assert error is None, "an end behind an error"
            continue
        said = orjson.loads(data)
        if error is not None and said["type"] == "response.failed":
            failed = said["response"]
            assert (failed["status"], failed["error"]["message"]) == ("failed", error["message"])
            assert said["sequence_number"] == error["sequence_number"] + 1
            has_failed = True
            continue
        assert error is None, "something behind an error"
        if said.get("error") or said.get("type") == "error":
            error = _error(asked, said)
            continue
        is_ended = is_ended or said.get("type") in _ENDS
        for candidate in said.get("candidates", ()):
            is_ended = is_ended or "finishReason" in candidate
            text += "".join(map(_part, candidate["content"]["parts"]))
        for choice in said.get("choices", ()):
            is_ended = is_ended or choice["finish_reason"] is not None
            text += _grown(choice["delta"])
        delta = said.get("delta")
        text += delta if said.get("type") in _GROWS else _grown(delta) if isinstance(delta, dict) else ""
    assert has_failed is (error is not None and asked == "responses"), "OpenAI's streams end with the failed response"
    return Heard(text, is_ended, error)


def _part(part: Json) -> str:
    call = part.get("functionCall")
    return part.get("text", "") if call is None else orjson.dumps(call["args"]).decode()


def _grown(delta: Json) -> str:
    calls = [call["function"].get("arguments", "") for call in delta.get("tool_calls", ())]
    names = ("reasoning_content", "content", "thinking", "text", "partial_json")
    return "".join([*(delta.get(name) or "" for name in names), *calls])


def _error(asked: str, said: Json) -> Json:
    """The error, checked to have the shape that callers of this language know."""
    if asked == "responses":
        assert said.keys() == {"type", "sequence_number", "code", "message", "param"}
        return said
    error: Json = said["error"]
    assert error["message"]
    if asked == "generate":
        assert type(error["code"]) is int
        assert error["status"].isupper()
        return error
    if asked == "chat":
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["type"] in ("server_error", "rate_limit_error", "invalid_request_error")
    else:
        assert said["type"] == "error"
        assert error["type"].endswith("_error")
    return error
