"""Callers of chat completions at models that only answer Responses: what goes out, what is told of losses, what comes back."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given

from gateway.core.errors import InvalidRequest
from gateway.dialects.base import MalformedAnswer, ServerFacts
from gateway.dialects.openai.translators import ChatOverResponses
from tests.dialects.odd import odd_bodies
from tests.rows import rows

PAIR = ChatOverResponses()
USER = {"role": "user", "content": "go"}
CALL = {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}


def sent(**body: Any) -> dict[str, Any]:
    """The Responses request that a chat completion becomes."""
    return PAIR.request({"model": "m", "messages": [USER], **body}, ServerFacts(), 1.7e9, lambda: "abc").body


def items(*messages: Any) -> list[Any]:
    """The items that messages become."""
    found: list[Any] = sent(messages=list(messages))["input"]
    return found


def gaps(**body: Any) -> dict[str, str]:
    return {gap.field: gap.how.value for gap in PAIR.gaps({"model": "m", "messages": [USER], **body}, ServerFacts())}


def answered(*output: Any, **rest: Any) -> dict[str, Any]:
    """The chat completion that a response becomes."""
    request = PAIR.request({"model": "m", "messages": []}, ServerFacts(), 1.7e9, lambda: "abc")
    return PAIR.answer(request, {"model": "m", "status": "completed", "output": list(output), **rest})


# Requests.


def test_roles_and_order_are_kept() -> None:
    """Nothing is hoisted: that would change what a provider has cached."""
    said = [{"role": "system", "content": "a"}, USER, {"role": "developer", "content": "b"}]

    assert items(*said) == said


def test_a_turn_becomes_its_items() -> None:
    """What the model thought, said and called, and the results: strings, never lists."""
    detail = {"type": "reasoning.encrypted", "id": "rs_1", "data": "gAAA", "format": "openai-responses-v1", "index": 0}
    foreign = detail | {"format": "anthropic-claude-v1"}
    turn = {"role": "assistant", "content": "so", "tool_calls": [CALL], "reasoning_details": [detail, foreign]}
    result = {
        "role": "tool",
        "tool_call_id": "call_a",
        "content": [{"type": "text", "text": "o"}, {"type": "text", "text": "k"}],
    }

    assert items(USER, turn, result)[1:] == [
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAA", "id": "rs_1"},
        {"role": "assistant", "content": "so"},
        {"type": "function_call", "call_id": "call_a", "name": "f", "arguments": '{"x":1}'},
        {"type": "function_call_output", "call_id": "call_a", "output": "ok"},
    ]


def test_what_was_thought_goes_back_to_its_place() -> None:
    """Before the call that followed it, or the provider refuses it."""
    output = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "A"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "B"},
        {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
    ]

    assert items(answered(*output)["choices"][0]["message"]) == output


def test_pictures_in_a_result_arrive() -> None:
    """A string cannot say them, so it is a list then; where only text can stand, they are refused."""
    picture = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    turn = {"role": "assistant", "tool_calls": [CALL]}
    made = items(turn, {"role": "tool", "tool_call_id": "call_a", "content": [{"type": "text", "text": "a"}, picture]})
    assert [part["type"] for part in made[-1]["output"]] == ["input_text", "input_image"]
    with pytest.raises(InvalidRequest, match="text only"):
        items({"role": "assistant", "content": [picture]})


def test_free_text_goes_back_to_the_tool_that_it_is_of() -> None:
    """A result is of the kind of its call."""
    call = {"id": "call_a", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    result = {"role": "tool", "tool_call_id": "call_a", "content": "done"}

    assert [item["type"] for item in items({"role": "assistant", "tool_calls": [call]}, result)] == [
        "custom_tool_call",
        "custom_tool_call_output",
    ]


def test_old_functions_are_tools() -> None:
    """With ids made from their places."""
    made = sent(
        functions=[{"name": "f", "parameters": {"type": "object"}}],
        function_call={"name": "f"},
        messages=[
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "ok"},
        ],
    )

    assert made["tools"] == [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}]
    assert made["tool_choice"] == {"type": "function", "name": "f"}
    assert [item["call_id"] for item in made["input"]] == ["call_1", "call_1"]


def test_a_function_is_not_strict_unless_it_says_so() -> None:
    """Responses take the silence for a yes, chat completions for a no."""
    made = sent(
        tools=[
            {"type": "function", "function": {"name": "f"}},
            {"type": "function", "function": {"name": "g", "strict": True}},
        ]
    )

    assert [tool["strict"] for tool in made["tools"]] == [False, True]


def test_parts_keep_their_order() -> None:
    """Texts, pictures, files and sound."""
    parts = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA", "filename": "a.pdf"}},
    ]
    content = items({"role": "user", "content": parts})[0]["content"]

    assert content == [
        {"type": "input_text", "text": "what is this?"},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,AA", "filename": "a.pdf"},
    ]


def test_options_have_their_other_names() -> None:
    """And nothing is stored at the provider, so what is thought comes encrypted."""
    schema = {"name": "n", "schema": {"type": "object"}, "strict": True}
    made = sent(
        max_completion_tokens=99,
        response_format={"type": "json_schema", "json_schema": schema},
        verbosity="low",
        reasoning_effort="high",
        logprobs=True,
        top_logprobs=3,
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        store=True,
        user="u",
    )

    assert made["max_output_tokens"] == 99
    assert made["text"] == {"format": {"type": "json_schema", **schema}, "verbosity": "low"}
    assert made["reasoning"] == {"effort": "high"}
    assert made["include"] == ["reasoning.encrypted_content", "message.output_text.logprobs"]
    assert (made["store"], made["stream"], made["user"], made["top_logprobs"]) == (False, True, "u", 3)
    assert made["stream_options"] == {"include_obfuscation": False}


@rows(
    ("body", "expected"),
    [
        ({"n": 1, "modalities": ["text"], "frequency_penalty": 0}, {}),
        ({"n": 2}, {"n": "refused"}),
        ({"modalities": ["text", "audio"], "audio": {"voice": "x"}}, {"modalities": "refused", "audio": "refused"}),
        ({"web_search_options": {}}, {"web_search_options": "refused"}),
        (
            {"seed": 1, "stop": "x", "logit_bias": {"1": 1}},
            {"seed": "dropped", "stop": "dropped", "logit_bias": "dropped"},
        ),
        ({"max_tokens": 4}, {"max_tokens": "approximated"}),
        ({"messages": [USER | {"name": "bob"}]}, {"messages.name": "dropped"}),
        ({"messages": [{"role": "tool", "name": "f", "tool_call_id": "a", "content": "x"}]}, {}),
        ({"messages": [{"role": "assistant", "refusal": "no"}]}, {"messages.refusal": "approximated"}),
        ({"tools": [{"type": "web_search"}]}, {"tools.web_search": "dropped"}),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, {"messages.audio": "refused"}),
        ({"messages": [{"role": "user", "content": [{"type": "video_url"}]}]}, {"messages.video_url": "refused"}),
    ],
    ids=str,
)
def test_what_is_lost_is_told(body: dict[str, Any], expected: dict[str, str]) -> None:
    """By the caller's own name for it."""
    assert gaps(**body) == expected


@rows(
    ("messages", "param"),
    [
        (None, "messages"),
        (["x"], "messages[0].role"),
        ([{"role": "robot"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "smell"}]}], "messages[0].content[0]"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "assistant", "tool_calls": [{"type": "function"}]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": ["x"]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "content": ["x"]}], "messages[0].content"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_name(messages: Any, param: str) -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidRequest) as refused:
        sent(messages=messages)
    assert refused.value.param == param


@given(
    odd_bodies(
        "messages",
        "tools",
        "tool_choice",
        "functions",
        "function_call",
        "response_format",
        "stream_options",
        "max_tokens",
    )
)
def test_any_request_is_converted_or_refused(body: dict[str, Any]) -> None:
    """Nothing else is raised, whatever comes; each gap is told once."""
    found = PAIR.gaps(body, ServerFacts())
    assert len({gap.field for gap in found}) == len(found)
    with suppress(InvalidRequest):
        PAIR.request(body, ServerFacts(), 0.0, lambda: "abc")


@given(odd_bodies("output", "status", "error", "usage", "model", "created_at", "incomplete_details"))
def test_any_answer_is_converted_or_told_to_be_none(body: dict[str, Any]) -> None:
    """Nothing else is raised, whatever a server says."""
    with suppress(MalformedAnswer):
        PAIR.answer(PAIR.request({"messages": []}, ServerFacts(), 0.0, lambda: "abc"), body)


# Answers.


def test_an_answers_items_are_one_message() -> None:
    """What was said, shown of its thoughts, and called; what is encrypted comes along, to go back."""
    made = answered(
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": "gAAA",
        },
        {
            "type": "message",
            "content": [{"type": "output_text", "text": "so", "annotations": [{"type": "url_citation", "url": "x"}]}],
        },
        {"type": "function_call", "call_id": "call_a", "name": "f", "arguments": "{}"},
    )
    choice = made["choices"][0]
    message = choice["message"]

    assert (message["content"], message["reasoning_content"], choice["finish_reason"]) == ("so", "hm", "tool_calls")
    assert message["tool_calls"] == [{"id": "call_a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert message["reasoning_details"][0]["data"] == "gAAA"
    assert message["annotations"] == [{"type": "url_citation", "url_citation": {"url": "x"}}]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("of the future", "length")],
)
def test_an_incomplete_answer_has_its_reason(reason: str, finish: str) -> None:
    """As chat completions name it."""
    made = answered(status="incomplete", incomplete_details={"reason": reason})

    assert made["choices"][0]["finish_reason"] == finish


def test_a_failed_answer_is_an_error() -> None:
    """So that it is tried again, or told in the caller's shape."""
    made = answered(status="failed", error={"code": "server_error", "message": "the model broke"})

    assert made == {
        "error": {"message": "the model broke", "type": "server_error", "param": None, "code": "server_error"}
    }


def test_usage_counts_what_was_cached_and_thought() -> None:
    """Under its other names."""
    usage = {
        "input_tokens": 10,
        "output_tokens": 7,
        "total_tokens": 17,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens_details": {"reasoning_tokens": 5},
    }
    made = answered(usage=usage)["usage"]

    assert (made["prompt_tokens"], made["completion_tokens"], made["total_tokens"]) == (10, 7, 17)
    assert made["prompt_tokens_details"]["cached_tokens"] == 4
    assert made["completion_tokens_details"]["reasoning_tokens"] == 5
