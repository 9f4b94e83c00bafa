"""No field of a request is lost without a word: each of the official SDK's changes what is sent, or is told of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_type_hints

import pytest
from openai.types import responses, shared_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from gateway.dialects.base import ServerFacts, Translator
from gateway.dialects.openai.translators import ChatOverResponses, ResponsesOverChat
from gateway.errors import InvalidRequest
from tests.rows import rows

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
RESPONSES: dict[str, Any] = {"model": "m", "input": "x", "tools": [TOOL]}
VALUES: dict[str, Any] = {
    "functions": [{"name": "f"}],
    "include": ["file_search_call.results"],
    "input": "y",
    "max_completion_tokens": 99,
    "max_output_tokens": 99,
    "max_tokens": 99,
    "messages": [{"role": "user", "content": "y"}],
    "n": 2,
    "reasoning": {"effort": "low"},
    "response_format": {"type": "json_object"},
    "stream_options": {"include_obfuscation": True},
    "text": {"verbosity": "low"},
    "tools": [{"type": "function", "name": "g", "function": {"name": "g"}}],
    "top_logprobs": 3,
}
SILENT = {"store"}
"""The gateway answers for it: nothing is stored, as the answer says."""
WITH: dict[str, dict[str, Any]] = {"function_call": {"functions": [{"name": "f"}]}}


@pytest.mark.parametrize(
    ("pair", "base", "fields"),
    [
        (ResponsesOverChat(), RESPONSES, response_create_params.ResponseCreateParamsNonStreaming),
        (ChatOverResponses(), CHAT, completion_create_params.CompletionCreateParamsNonStreaming),
    ],
    ids=["responses", "chat"],
)
def test_each_field_arrives_or_is_told_of(pair: Translator, base: dict[str, Any], fields: Any) -> None:
    """At the top."""
    lost = [name for name in get_type_hints(fields) if name not in SILENT and not is_heard(pair, base, name)]
    assert lost == []


def is_heard(pair: Translator, base: dict[str, Any], name: str) -> bool:
    facts, before = ServerFacts(), base | WITH.get(name, {})
    if name == "tool_choice" and "tools" not in base:
        before = before | {"tools": [{"type": "function", "function": {"name": "f"}}]}
    after = before | {name: VALUES.get(name, "told")}
    if pair.gaps(after, facts):
        return True
    try:
        return pair.request(after, facts, 0.0, str).body != pair.request(before, facts, 0.0, str).body
    except InvalidRequest:
        return True


Json = dict[str, Any]


def with_option(name: str, field: Json) -> Json:
    return RESPONSES | {name: field}


def with_tool(tool: Json, field: Json) -> Json:
    return RESPONSES | {"tools": [tool | field]}


def with_message(field: Json) -> Json:
    return RESPONSES | {"input": [{"role": "user", "content": "x"} | field]}


def with_part(part: Json, field: Json) -> Json:
    return with_message({"content": [part | field]})


NESTED: dict[str, tuple[Any, Callable[[Json], Json]]] = {
    "reasoning": (shared_params.Reasoning, partial(with_option, "reasoning")),
    "text": (responses.ResponseTextConfigParam, partial(with_option, "text")),
    "function": (responses.FunctionToolParam, partial(with_tool, TOOL)),
    "custom": (responses.CustomToolParam, partial(with_tool, {"type": "custom", "name": "p"})),
    "message": (responses.EasyInputMessageParam, with_message),
    "words": (responses.ResponseInputTextParam, partial(with_part, {"type": "input_text", "text": "x"})),
    "picture": (responses.ResponseInputImageParam, partial(with_part, {"type": "input_image", "image_url": "x"})),
    "file": (responses.ResponseInputFileParam, partial(with_part, {"type": "input_file", "file_data": "x"})),
}


@rows("place", NESTED)
def test_each_nested_field_arrives_or_is_told_of(place: str) -> None:
    """In items, parts, tools and options."""
    hints, within = NESTED[place]
    facts, pair = ServerFacts(), ResponsesOverChat()
    lost = []
    for name in get_type_hints(hints):
        body = within({name: {"type": "json_object"} if name == "format" and place == "text" else "told"})
        try:
            is_same = pair.request(body, facts, 0.0, str).body == pair.request(within({}), facts, 0.0, str).body
        except InvalidRequest:
            continue
        if is_same and not [gap for gap in pair.gaps(body, facts) if gap not in pair.gaps(within({}), facts)]:
            lost.append(name)
    # A grammar is described in words where it has one; what is no grammar says nothing.
    assert [name for name in lost if (place, name) != ("custom", "format")] == []
