"""Names of tools that a target does not allow: they go out as others, everywhere in a request, and come back as they were."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest

from gateway.dialects.base import ConvertedRequest, ServerFacts
from gateway.dialects.registry import pair_of
from tests.dialects.aws_frames import event

Json = dict[str, Any]
LONG, DIGIT, DOTTED = "n" * 129, "3d-model", "shop.search"
CHAT_TARGETS = {
    "generate": (r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}", (LONG, DIGIT)),
    "converse": (r"[a-zA-Z0-9_-]{1,64}", (LONG, DOTTED)),
    "messages": (r"[a-zA-Z0-9_-]{1,128}", (LONG, DOTTED)),
    "responses": (r"[a-zA-Z0-9_-]{1,64}", (LONG, DOTTED)),
}
ODD = [
    pytest.param(target, name, id=f"{target} {name[:9]}")
    for target, (_, names) in CHAT_TARGETS.items()
    for name in names
]


def asked(name: str, **more: Any) -> Json:
    """A conversation that has defined, called and now chooses one tool."""
    call = {"id": "call_a", "type": "function", "function": {"name": name, "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_a", "content": "ok"},
    ]
    named = {"type": "function", "function": {"name": name}}
    tool = {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    return {"model": "m", "messages": messages, "tools": [tool], "tool_choice": named, **more}


def names_in(sent: Any) -> set[str]:
    """All that is called a name in what goes out, and the names that are allowed to be called."""
    if isinstance(sent, list):
        return set().union(*map(names_in, sent))
    if not isinstance(sent, dict):
        return set()
    own = {sent["name"]} if isinstance(sent.get("name"), str) else set()
    return own.union(sent.get("allowedFunctionNames", ()), *map(names_in, sent.values()))


def answers(target: str, name: str) -> tuple[Json, bytes]:
    """A target's answer that calls a tool, whole and streamed."""
    match target:
        case "generate":
            part = {"functionCall": {"name": name, "args": {}}}
            whole: Json = {"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}
            return whole, b"data: %b\n\n" % orjson.dumps(whole)
        case "converse":
            use = {"toolUseId": "t", "name": name}
            told = [{"toolUse": {**use, "input": {}}}]
            frames = [
                event("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": use}}),
                event("messageStop", {"stopReason": "tool_use"}),
                event("metadata", {}),
            ]
            return {"output": {"message": {"content": told}}, "stopReason": "tool_use"}, b"".join(frames)
        case "messages":
            block = {"type": "tool_use", "id": "t", "name": name, "input": {}}
            events: list[Json] = [
                {"type": "message_start", "message": {"id": "m"}},
                {"type": "content_block_start", "index": 0, "content_block": block},
                {"type": "message_stop"},
            ]
            return {"content": [block], "stop_reason": "tool_use"}, streamed(events)
        case _:
            item = {"type": "function_call", "id": "i", "call_id": "t", "name": name, "arguments": "{}"}
            response = {"id": "r", "status": "completed", "output": [item]}
            events = [
                {"type": "response.created", "response": {"id": "r"}},
                {"type": "response.output_item.added", "output_index": 0, "item": item},
                {"type": "response.completed", "response": response},
            ]
            return response, streamed(events)


def streamed(events: list[Json]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (one["type"].encode(), orjson.dumps(one)) for one in events)


def converted(asks: str, target: str, body: Json) -> ConvertedRequest:
    return pair_of(asks, target).translator.request(body, ServerFacts(), 1.0, lambda: "id")


@pytest.mark.parametrize(("target", "name"), ODD)
def test_a_name_that_is_not_allowed_goes_out_as_another_and_comes_back(target: str, name: str) -> None:
    """Everywhere, and always as the same: the target pairs definitions, choices, calls and results by it."""
    translator = pair_of("chat", target).translator
    sent = converted("chat", target, asked(name))
    (other,) = names_in(sent.body)
    whole, raw = answers(target, other)

    assert re.fullmatch(CHAT_TARGETS[target][0], other)
    assert [gap.how.value for gap in translator.gaps(asked(name), ServerFacts()) if gap.field == "tools.name"] == [
        "approximated"
    ]
    assert translator.answer(sent, whole)["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == name
    reader = translator.reader(sent)
    said = reader.feed(raw) + reader.close(is_clean=True)
    assert b'"name":"%b"' % name.encode() in said
    assert other.encode() not in said


@pytest.mark.parametrize("target", CHAT_TARGETS)
def test_an_allowed_name_stays(target: str) -> None:
    sent = converted("chat", target, asked("get_weather-2"))

    assert names_in(sent.body) == {"get_weather-2"}
    assert not [gap for gap in sent.gaps or () if gap.field == "tools.name"]


def test_two_names_never_become_one() -> None:
    tools = [asked(name)["tools"][0] for name in ("a.b", "a_b", "a:b")]
    sent = converted("chat", "converse", {**asked("a_b"), "tools": tools})

    assert len(names_in(sent.body)) == 3


def test_names_among_allowed_tools_are_the_same_ones() -> None:
    named = {"type": "function", "function": {"name": DIGIT}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    sent = converted("chat", "generate", asked(DIGIT, tool_choice=choice))

    assert len(names_in(sent.body)) == 1


@pytest.mark.parametrize(("asks", "target"), [("generate", "chat"), ("generate", "messages"), ("messages", "converse")])
def test_callers_of_other_languages_get_their_names_back_too(asks: str, target: str) -> None:
    """Gemini's allow signs that others do not, Anthropic's are longer."""
    name = DOTTED if asks == "generate" else "n" * 100
    body: Json = {"model": "m", "messages": [{"role": "user", "content": "go"}], "max_tokens": 9}
    body |= {"contents": [{"parts": [{"text": "go"}]}]} if asks == "generate" else {}
    declared: Json = {"functionDeclarations": [{"name": name}]} if asks == "generate" else {"name": name}
    translator = pair_of(asks, target).translator
    sent = converted(
        asks, target, body | {"tools": [declared if asks == "generate" else declared | {"input_schema": {}}]}
    )
    (other,) = names_in(sent.body["tools"] if target != "converse" else sent.body["toolConfig"])
    call = {"id": "t", "type": "function", "function": {"name": other, "arguments": "{}"}}
    chat = {"choices": [{"message": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    answer = translator.answer(sent, chat if target == "chat" else answers(target, other)[0])

    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", other)
    assert names_in(answer) == {name}
    assert "tools.name" in {gap.field for gap in sent.gaps or ()}


def test_names_in_the_old_form_are_the_same_ones() -> None:
    """Of functions, their calls and results."""
    old = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "function_call": {"name": DIGIT, "arguments": "{}"}},
        {"role": "function", "name": DIGIT, "content": "ok"},
    ]
    body = {"model": "m", "messages": old, "functions": [{"name": DIGIT}], "function_call": {"name": DIGIT}}
    sent = converted("chat", "generate", body)

    assert len(names_in(sent.body)) == 1
    assert DIGIT not in names_in(sent.body)
