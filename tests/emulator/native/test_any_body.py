"""Whatever JSON comes, it is answered or refused: never a failure of the emulator's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.emulator.config import EmulatorConfig
from gateway.emulator.replies import EmulatedReply, ProblemError
from gateway.emulator.routes import endpoint_of
from gateway.emulator.writer import CLAUDE, GEMINI, Writer, sign
from tests.emulator.native.support import CONVERSE, GENERATE, MESSAGES, SCHEMA, STREAMED

MARK = {"cache_control": {"type": "ephemeral"}}
CLAUDE_BODY: dict[str, Any] = {
    "max_tokens": 3000,
    "system": [{"type": "text", "text": "s", **MARK}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "use f", **MARK}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": sign(CLAUDE, "t")},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "r"}]},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
            ],
        },
    ],
    "tools": [{"name": "f", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["x"],
}
GEMINI_BODY: dict[str, Any] = {
    "systemInstruction": {"parts": [{"text": "s"}]},
    "contents": [
        {"role": "user", "parts": [{"text": "use f"}, {"inlineData": {"mimeType": "image/png", "data": "AA=="}}]},
        {
            "role": "model",
            "parts": [{"functionCall": {"name": "f", "args": {}}, "thoughtSignature": sign(GEMINI, "f")}],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"a": [1]}}}]},
    ],
    "tools": [{"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT"}}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
    "generationConfig": {
        "thinkingConfig": {"includeThoughts": True},
        "candidateCount": 2,
        "responseMimeType": "application/json",
        "responseJsonSchema": SCHEMA,
    },
}
CONVERSE_BODY: dict[str, Any] = {
    "system": [{"text": "s"}, {"cachePoint": {"type": "default"}}],
    "messages": [
        {"role": "user", "content": [{"text": "use f"}, {"image": {"format": "png", "source": {"bytes": "AA=="}}}]},
        {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "t", "signature": sign(CLAUDE, "t")}}},
                {"toolUse": {"toolUseId": "a", "name": "f", "input": {}}},
            ],
        },
        {"role": "user", "content": [{"toolResult": {"toolUseId": "a", "content": [{"json": {}}, {"text": "x"}]}}]},
    ],
    "toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": SCHEMA}}}], "toolChoice": {"any": {}}},
    "inferenceConfig": {"maxTokens": 100, "stopSequences": ["x"]},
    "additionalModelRequestFields": {"thinking": {"type": "enabled"}, "tool_choice": {"type": "auto"}},
    "outputConfig": {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": {"schema": "{}"}}}},
}
CARRIED = {**CLAUDE_BODY, "anthropic_version": "bedrock-2023-05-31"}
PATHS: dict[str, dict[str, Any]] = {
    MESSAGES: {**CLAUDE_BODY, "model": "m"},
    GENERATE: GEMINI_BODY,
    STREAMED.partition("?")[0]: GEMINI_BODY,
    "/v1beta/models/gemini-3:countTokens": {"generateContentRequest": GEMINI_BODY},
    "/v1beta/models/m:embedContent": {
        "content": {"parts": [{"text": "x"}]},
        "embedContentConfig": {"outputDimensionality": 8},
    },
    "/v1beta/models/m:batchEmbedContents": {"requests": [{"model": "models/m", "content": {"parts": [{"text": "x"}]}}]},
    "/v1beta/models/m:predict": {"instances": [{"content": "x"}], "parameters": {"outputDimensionality": 8}},
    CONVERSE: CONVERSE_BODY,
    f"{CONVERSE}-stream": CONVERSE_BODY,
    "/model/m/count-tokens": {"input": {"converse": CONVERSE_BODY}},
    "/model/m/invoke": CARRIED,
    "/model/m/invoke-with-response-stream": CARRIED,
    "/model/titan-embed/invoke": {"inputText": "x", "dimensions": 256},
    "/model/cohere.embed/invoke": {"texts": ["x"], "input_type": "search_query", "output_dimension": 256},
}
SCALARS: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    "",
    " ",
    "x",
    [],
    {},
    [None],
    [[]],
    [{}],
    {"x": None},
    {"type": "text"},
)


NAMES = st.sampled_from(["type", "text", "role", "content", "parts", "name", "json", "x"])


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to every node of a body."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way, *(found for step, each in steps for found in places(each, (*way, step)))]


def changed(body: Any, way: tuple[Any, ...], value: Any) -> Any:
    """A copy of a body with another value at one place."""
    if not way:
        return value
    copy = dict(body) if isinstance(body, dict) else list(body)
    copy[way[0]] = changed(body[way[0]], way[1:], value)
    return copy


def serve(path: str, body: Any) -> bool:
    """Answers to the last byte, or refuses; tells whether it answered."""
    return serve_bytes(path, orjson.dumps(body))


def serve_bytes(path: str, body: bytes) -> bool:
    writer = Writer(EmulatorConfig(), random.Random(0), lambda: 0.0)
    endpoint = endpoint_of("POST", path, b"", b"2023-06-01")
    assert endpoint is not None
    try:
        answer = endpoint.answer(endpoint.request(body, None), writer)
    except ProblemError:
        return False
    return bool(
        answer.body if isinstance(answer, EmulatedReply) else b"".join([answer.lead, *answer.frames, answer.tail])
    )


@pytest.mark.parametrize("path", list(PATHS))
def test_a_body_with_one_wrong_value_is_answered_or_refused(path: str) -> None:
    """Every value of a rich body by every kind of JSON."""
    assert serve(path, PATHS[path])
    for way in places(PATHS[path]) if "tream" not in path else ():  # a stream is read as what is whole
        for value in SCALARS:
            serve(path, changed(PATHS[path], way, value))


@settings(max_examples=20, deadline=None)
@given(path=st.sampled_from(list(PATHS)), draw=st.data())
def test_any_object_is_answered_or_refused(path: str, draw: st.DataObject) -> None:
    """Under the names that the body may have."""
    values: Callable[..., Any] = st.recursive
    json = values(
        st.sampled_from(SCALARS),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
        max_leaves=6,
    )
    serve(path, draw.draw(st.dictionaries(st.sampled_from(sorted(PATHS[path])), json)))


@pytest.mark.parametrize(
    ("path", "way"),
    [
        (MESSAGES, ("tools", 0, "input_schema", "properties")),
        (MESSAGES, ("output_config", "format", "schema", "properties")),
        (GENERATE, ("contents", 2, "parts", 0, "functionResponse", "response")),
        (GENERATE, ("generationConfig", "responseJsonSchema")),
        (CONVERSE, ("messages", 2, "content", 0, "toolResult", "content", 0, "json")),
    ],
)
def test_a_deep_body_is_answered_or_refused(path: str, way: tuple[Any, ...]) -> None:
    """As deep as JSON is read at all."""
    nested = b'{"type":' * 900 + b"{}" + b"}" * 900

    serve_bytes(path, orjson.dumps(changed(PATHS[path], way, "deep")).replace(b'"deep"', nested))
