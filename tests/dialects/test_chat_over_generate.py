"""Callers of chat completions at Gemini: the contents that go out, row by row of the mapping, and what is told of losses."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from tests.dialects.google import (
    ANSWERED,
    BUDGET,
    CALL,
    CALLED,
    LEVEL,
    PAIR,
    PLAIN,
    RESULT,
    STAND_IN,
    TOOL,
    TURN,
    USER,
    contents,
    facts,
    gaps,
    sent,
)
from tests.dialects.odd import odd_bodies
from tests.rows import rows

SYSTEM = {"role": "system", "content": "be"}
HI = {"text": "go"}
SIGNED = {**CALL, "extra_content": {"google": {"thought_signature": "sig"}}}


def test_instructions_stand_where_they_stood() -> None:
    """At the start they are the system's, later a user's words in their place."""
    made = sent(messages=[SYSTEM, {"role": "developer", "content": "c"}, USER, SYSTEM])

    assert made["systemInstruction"] == {"parts": [{"text": "be"}, {"text": "c"}]}
    assert made["contents"] == [{"role": "user", "parts": [HI, {"text": "<system>be</system>"}]}]
    assert gaps(messages=[SYSTEM, USER, SYSTEM]) == {"messages.system": "approximated"}
    assert gaps(messages=[SYSTEM, USER]) == {}


def test_instructions_alone_are_a_users_words() -> None:
    """A conversation has to begin with somebody."""
    assert contents(SYSTEM) == [{"role": "user", "parts": [{"text": "be"}]}]
    assert gaps(messages=[SYSTEM]) == {"messages.system": "approximated"}


def test_turns_of_one_role_are_one() -> None:
    """Empty ones are none."""
    answer = {"role": "assistant", "content": "so"}
    made = contents(USER, USER, answer, {**answer, "content": ""}, answer, USER)

    assert [(one["role"], len(one["parts"])) for one in made] == [("user", 2), ("model", 2), ("user", 1)]


@rows(
    "part, made",
    [
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://x/y.webp"}},
            {"fileData": {"fileUri": "https://x/y.webp", "mimeType": "image/webp"}},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
            {"inlineData": {"mimeType": "audio/mp3", "data": "AAAA"}},
        ),
        (
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}},
            {"inlineData": {"mimeType": "application/pdf", "data": "AAAA"}},
        ),
        (
            {"type": "file", "file": {"file_data": "https://x/a.mp4"}},
            {"fileData": {"fileUri": "https://x/a.mp4", "mimeType": "video/mp4"}},
        ),
        (
            {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
            {"inlineData": {"mimeType": "video/mp4", "data": "AAAA"}},
        ),
    ],
)
def test_media_arrive(part: Any, made: Any) -> None:
    """As they came; in results of tools behind them all (BerriAI/litellm#6953, vercel/ai#18982)."""
    user = {"role": "user", "content": [part]}
    assert contents(user) == [{"role": "user", "parts": [made]}]
    assert gaps(messages=[user]) == {}
    shown = {**RESULT, "content": [{"type": "text", "text": "ok"}, part]}
    assert contents(USER, TURN, shown)[2]["parts"] == [ANSWERED, {"text": "From the result of f:"}, made]
    assert gaps(messages=[USER, TURN, shown]) == {f"messages.{part['type']}": "approximated"}


@rows(
    "part, lost",
    [
        ({"type": "file", "file": {"file_id": "file-1"}}, {"messages.file.file_id": "refused"}),
        ({"type": "image_url", "image_url": {"url": "gs://b/x.png"}}, {"messages.image_url": "refused"}),
        ({"type": "image_url", "image_url": {"url": "https://x/y"}}, {"messages.image_url": "approximated"}),
        (
            {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "high"}},
            {"messages.image_url.detail": "dropped"},
        ),
        ({"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"cache_control": "dropped"}),
        ({"type": "hologram"}, {"messages.hologram": "refused"}),
        (
            {"type": "file", "file": {"file_data": "AAAA", "filename": "a.pdf"}},
            {"messages.file.filename": "dropped"},
        ),
    ],
)
def test_what_is_lost_of_parts_is_told(part: Any, lost: dict[str, str]) -> None:
    """Nothing is fetched, and nothing put in the place of what cannot be said."""
    assert gaps(messages=[{"role": "user", "content": [part]}]) == lost


def test_a_files_name_tells_its_type() -> None:
    said = {"role": "user", "content": [{"type": "file", "file": {"file_data": "AAAA", "filename": "a.pdf"}}]}

    assert contents(said)[0]["parts"] == [{"inlineData": {"mimeType": "application/pdf", "data": "AAAA"}}]


def test_what_lies_in_googles_storage_is_for_vertex() -> None:
    stored = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "gs://b/x.png"}}]}

    assert gaps(facts(issuer="vertex"), messages=[stored]) == {}
    assert contents(stored, given=facts(issuer="vertex"))[0]["parts"][0]["fileData"]["fileUri"] == "gs://b/x.png"


def test_results_of_a_turn_are_one_content_each_with_its_name() -> None:
    """In their order, which need not be the calls' (braintrustdata/lingua#166)."""
    both = {**TURN, "content": "so", "tool_calls": [CALL, {**CALL, "id": "b", "function": {"name": "g"}}]}
    made = contents(USER, both, {**RESULT, "tool_call_id": "b", "is_error": True}, RESULT, USER)

    other = {"name": "g", "args": {}, "id": "b"}
    assert made[1] == {"role": "model", "parts": [{"text": "so"}, CALLED, {"functionCall": other}]}
    failed = {"functionResponse": {"name": "g", "response": {"error": "ok"}, "id": "b"}}
    assert made[2] == {"role": "user", "parts": [failed, ANSWERED, HI]}


@rows(
    "content, response",
    [
        ('{"a":1}', {"a": 1}),
        ('{"a":{"$ref":"#/x","b":[{"$defs":1}]}}', {"a": {"b": [{}]}}),
        ("[1]", {"output": "[1]"}),
        ("{no json", {"output": "{no json"}),
        ("", {"output": ""}),
        (None, {"output": ""}),
        ([{"type": "text", "text": '{"a":'}, {"type": "text", "text": "1}"}], {"a": 1}),
    ],
)
def test_a_result_is_an_object(content: Any, response: Any) -> None:
    """Without the keys that Gemini takes for its own (vercel/ai#14369)."""
    assert (
        contents(USER, TURN, {**RESULT, "content": content})[2]["parts"][0]["functionResponse"]["response"] == response
    )


def test_signatures_go_back_to_their_issuer_alone() -> None:
    """Nobody else knows them; those of Vertex AI say whose they are."""
    other = {**CALL, "extra_content": {"google": {"thought_signature": "sig", "issuer": "vertex"}}}
    for call, issuer, has_it in (
        (SIGNED, "gemini", 1),
        (SIGNED, "vertex", 0),
        (other, "gemini", 0),
        (other, "vertex", 1),
    ):
        said = [USER, {**TURN, "tool_calls": [call]}, RESULT]
        where = facts(LEVEL, issuer)
        part = contents(*said, given=where)[1]["parts"][0]
        assert part["thoughtSignature"] == ("sig" if has_it else STAND_IN)
        assert gaps(where, messages=said) == ({} if has_it else {"messages.tool_calls.extra_content": "dropped"})


def test_the_first_call_of_a_turn_is_signed() -> None:
    """By what stands for a signature where there is none; the others stay calls (earendil-works/pi#1446)."""
    second = {**CALL, "id": "b"}
    both = {**TURN, "tool_calls": [CALL, second]}
    results = [RESULT, {**RESULT, "tool_call_id": "b"}]

    parts = contents(USER, both, *results, given=facts(LEVEL))[1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [STAND_IN, None]
    parts = contents(USER, {**TURN, "tool_calls": [SIGNED, second]}, *results, given=facts(LEVEL))[1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == ["sig", None]
    assert "thoughtSignature" not in contents(USER, TURN, RESULT, given=facts(BUDGET))[1]["parts"][0]


def test_signatures_come_back_in_every_clothing() -> None:
    """As details of words or of a call, and in the id of a call, as another gateway had it (BerriAI/litellm#18374)."""
    detail = {"type": "reasoning.encrypted", "data": "d", "format": "google-gemini-v1", "index": 0}
    words = contents(USER, {"role": "assistant", "content": "so", "reasoning_details": [detail]})[1]["parts"]
    assert words == [{"text": "so", "thoughtSignature": "d"}]
    for details in ([detail], [{**detail, "id": "call_a"}]):
        assert contents(USER, {**TURN, "reasoning_details": details}, RESULT)[1]["parts"] == [
            {**CALLED, "thoughtSignature": "d"}
        ]
    long = "call_a__thought__d"
    made = contents(USER, {**TURN, "tool_calls": [{**CALL, "id": long}]}, {**RESULT, "tool_call_id": long})
    assert made[1]["parts"] == [{**CALLED, "thoughtSignature": "d"}]
    assert made[2]["parts"] == [ANSWERED]
    alone = contents(USER, {"role": "assistant", "content": "", "reasoning_details": [detail]}, USER)
    assert [one["role"] for one in alone] == ["user"], "a signature alone is no part"


@rows(
    "more, lost",
    [
        ({"reasoning_details": [{"type": "reasoning.text", "format": "google-gemini-v1", "text": "hm"}]}, {}),
        (
            {"reasoning_details": [{"type": "reasoning.encrypted", "format": "anthropic-claude-v1", "data": "x"}]},
            {"messages.reasoning_details": "dropped"},
        ),
        ({"reasoning_content": "hm"}, {"messages.reasoning_content": "dropped"}),
        ({"reasoning_content": "hm", "tool_calls": [SIGNED]}, {}),
        ({"reasoning_content": "hm", "tool_calls": [CALL]}, {"messages.reasoning_content": "dropped"}),
        ({"refusal": "no"}, {"messages.refusal": "approximated"}),
        ({"name": "bob"}, {"messages.name": "dropped"}),
        ({"audio": {"id": "a"}}, {"messages.audio": "refused"}),
        ({"images": [{}]}, {"messages.images": "dropped"}),
    ],
)
def test_what_is_lost_of_answers_is_told(more: Any, lost: dict[str, str]) -> None:
    assert gaps(messages=[USER, {"role": "assistant", "content": "so", **more}]) == lost


def test_older_models_at_vertex_know_no_ids() -> None:
    made = contents(USER, TURN, RESULT, given=facts(BUDGET, "vertex"))

    assert made[1]["parts"] == [{"functionCall": {"name": "f", "args": {"x": 1}}}]
    assert "id" not in made[2]["parts"][0]["functionResponse"]
    assert "id" in contents(USER, TURN, RESULT, given=facts(LEVEL, "vertex"))[1]["parts"][0]["functionCall"]


def test_histories_that_cannot_be_paired_are_refused() -> None:
    """By the message's place (openai/openai-agents-python#1797)."""
    for said in ([USER, RESULT], [USER, TURN, USER], [USER, TURN]):
        with pytest.raises(InvalidRequest, match=r"messages\[1\]"):
            contents(*said)
    for tool in ({}, {"type": "function", "function": {}}, {"type": "function", "function": {"name": ""}}):
        with pytest.raises(InvalidRequest, match="a 'name'"):
            sent(tools=[TOOL, tool])


STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}
NAMED = {"type": "function", "function": {"name": "f"}}
SOME = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}


@rows(
    "body, config",
    [
        ({"tools": [TOOL]}, None),
        ({"tools": [TOOL], "tool_choice": "none"}, {"mode": "NONE"}),
        ({"tools": [TOOL], "tool_choice": "auto"}, {"mode": "AUTO"}),
        ({"tools": [TOOL], "tool_choice": "required"}, {"mode": "ANY"}),
        ({"tools": [TOOL], "tool_choice": NAMED}, {"mode": "ANY", "allowedFunctionNames": ["f"]}),
        ({"tools": [TOOL], "tool_choice": SOME}, {"mode": "VALIDATED", "allowedFunctionNames": ["f"]}),
        ({"tools": [STRICT]}, {"mode": "VALIDATED"}),
        ({"tools": [STRICT], "tool_choice": "required"}, {"mode": "ANY"}),
        (
            {"functions": [{"name": "f"}], "function_call": {"name": "f"}},
            {"mode": "ANY", "allowedFunctionNames": ["f"]},
        ),
    ],
)
def test_which_tool_is_called_is_told(body: Any, config: Any) -> None:
    """The functions keep their JSON Schema as it is."""
    made = sent(**body)

    assert made.get("toolConfig", {}).get("functionCallingConfig") == config
    assert made["tools"][0]["functionDeclarations"][0]["name"] == "f"
    assert gaps(**body) == {}


def test_a_number_that_would_lose_digits_stays_a_text() -> None:
    """Read and written again it would be another one."""
    long = '{"id": 123456789012345678901}'
    (_, answered) = contents(TURN, {**RESULT, "content": long})

    assert answered["parts"][0]["functionResponse"]["response"] == {"output": long}


def test_schemas_go_as_they_are() -> None:
    """Unions and all (UKGovernmentBEIS/inspect_ai#3097)."""
    schema = {"type": "object", "properties": {"a": {"anyOf": [{"type": ["string", "null"]}, {"minimum": 1}]}}}
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}

    assert sent(tools=[tool])["tools"] == [
        {"functionDeclarations": [{"name": "f", "description": "d", "parametersJsonSchema": schema}]}
    ]


@rows(
    "body, lost",
    [
        ({"tools": [STRICT, TOOL]}, {"tools.strict": "dropped"}),
        ({"tools": [TOOL], "parallel_tool_calls": False}, {"parallel_tool_calls": "dropped"}),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, {"tools.custom": "refused"}),
        ({"tools": [TOOL], "tool_choice": {"type": "custom"}}, {"tool_choice.custom": "refused"}),
        ({"tools": [{**TOOL, "defer": True}]}, {"tools.other": "dropped"}),
        ({"tool_choice": "required"}, {"tool_choice": "dropped"}),
        ({"tools": [TOOL], "tool_choice": "maybe"}, {"tool_choice": "dropped"}),
    ],
)
def test_what_is_lost_of_tools_is_told(body: Any, lost: dict[str, str]) -> None:
    assert gaps(**body) == lost


@each(odd_bodies("messages", "tools", "tool_choice", "functions", "stop", "response_format", "reasoning", "modalities"),
      st.sampled_from((PLAIN, BUDGET, LEVEL)))  # fmt: skip
def test_any_request_is_read(body: dict[str, Any], model: Any) -> None:
    """Converted, or refused as the caller's mistake."""
    PAIR.gaps(body, facts(model))
    with suppress(InvalidRequest):
        PAIR.request(body, facts(model), 0.0, str)


@each(st.lists(odd_bodies("role", "content", "tool_calls", "reasoning_details", "extra_content", "name", "refusal",
                          "tool_call_id", "is_error", "images"), max_size=4))  # fmt: skip
def test_any_conversation_is_read(messages: list[dict[str, Any]]) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}, *messages]}
    PAIR.gaps(body, facts(LEVEL))
    with suppress(InvalidRequest):
        PAIR.request(body, facts(LEVEL), 0.0, str)
