"""Callers of chat completions at Claude: the messages that go out, row by row of the mapping, and what is told of losses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.core.errors import InvalidRequest
from gateway.dialects.anthropic.out_answer import tool_call
from gateway.dialects.base import MalformedAnswer, ModelFacts, ServerFacts
from gateway.dialects.registry import pair_of
from tests.dialects.claude import (
    ADAPTIVE,
    BOUND,
    BUDGET,
    CALL,
    FORMAT,
    HIDDEN,
    OPEN,
    OTHER,
    REDACTED,
    RESULT,
    THINKING,
    THOUGHT,
    TOOL,
    TURN,
    USE,
    USER,
    gaps,
    messages,
    sent,
    text,
)
from tests.rows import rows

# Messages.


def test_instructions_at_the_start_are_the_system_ones() -> None:
    """One block for each part; both roles are the same here."""
    said = [{"role": "system", "content": [text("a"), text("b")]}, {"role": "developer", "content": "c"}, USER]
    made = sent(messages=said)

    assert (made["system"], made["messages"]) == ([text("a"), text("b"), text("c")], [USER])
    assert gaps(messages=said) == {}


def test_later_instructions_stay_in_their_place() -> None:
    """To hoist them changes their order, and what the provider has cached."""
    said = [USER, {"role": "system", "content": "brief"}, USER]

    assert messages(*said)[1] == {"role": "user", "content": [text("<system>brief</system>")]}
    assert gaps(messages=said) == {"messages.system": "approximated"}
    knowing = replace(BUDGET, later_system=True)
    assert messages(*said, model=knowing)[1] == {"role": "system", "content": [text("brief")]}
    assert gaps(knowing, messages=said) == {}


def test_instructions_alone_are_a_users_words() -> None:
    """A conversation has to begin with somebody."""
    said = [{"role": "system", "content": "a"}]

    assert sent(messages=said).get("system") is None
    assert messages(*said) == [{"role": "user", "content": [text("a")]}]
    assert gaps(messages=said) == {"messages.system": "approximated"}


def test_blank_text_is_left_out() -> None:
    """It would be refused for as long as it stays in the conversation (NousResearch/hermes-agent#55092)."""
    said = [{"role": "user", "content": [text(" \n"), text("go")]}, {"role": "assistant", "content": ""}, USER]

    assert messages(*said) == [{"role": "user", "content": [text("go")]}, USER]
    assert messages(USER, {**TURN, "content": " "}, RESULT)[1]["content"] == [USE]
    assert messages(USER, TURN, {**RESULT, "content": ""})[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "call_a"}
    ]


PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
PNG_BLOCK: dict[str, Any] = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


@rows(
    "part, block",
    [
        (PNG, PNG_BLOCK),
        (
            {"type": "image_url", "image_url": {"url": "https://x/y"}},
            {"type": "image", "source": {"type": "url", "url": "https://x/y"}},
        ),
        (
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}},
            {"type": "document", "source": {**PNG_BLOCK["source"], "media_type": "application/pdf"}, "title": "a.pdf"},
        ),
        (
            {"type": "file", "file": {"file_data": "aGk=", "filename": "a.md"}},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}, "title": "a.md"},
        ),
        (
            {"type": "file", "file": {"file_data": "https://x/a.pdf"}},
            {"type": "document", "source": {"type": "url", "url": "https://x/a.pdf"}},
        ),
    ],
)  # fmt: skip
def test_media_arrives(part: Any, block: Any) -> None:
    """As it came, in users' words and in tools' results (litellm#6953, vercel/ai#18982)."""
    assert messages({"role": "user", "content": [part]}) == [{"role": "user", "content": [block]}]
    result = messages(USER, TURN, {**RESULT, "content": [text("a"), part]})[2]["content"][0]
    assert result["content"] == [text("a"), block]
    assert gaps(messages=[{"role": "user", "content": [part]}]) == {}


@rows(
    "part, field",
    [
        ({"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AAAA"}}, "messages.image_url"),
        ({"type": "file", "file": {"file_id": "file-1"}}, "messages.file.file_id"),
        ({"type": "file", "file": {"file_data": "AAAA", "filename": "a.docx"}}, "messages.file"),
        ({"type": "file", "file": {"file_data": "https://x/a.mp4"}}, "messages.file"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "messages.input_audio"),
        ({"type": "video_url", "video_url": {"url": "https://x/y"}}, "messages.video_url"),
    ],
)
def test_other_media_is_refused(part: Any, field: str) -> None:
    """Nothing is put in its place."""
    said = [{"role": "user", "content": [part]}]

    assert gaps(messages=said) == {field: "refused"}
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.content\[0\]"):
        messages(*said)


def test_results_of_a_turn_are_one_message_with_what_follows() -> None:
    """Results first; split ones teach the model not to call in parallel (opencode#41445, Zoo-Code#1716)."""
    both = {**TURN, "content": "so", "tool_calls": [CALL, {**CALL, "id": "b"}]}
    made = messages(USER, both, {**RESULT, "tool_call_id": "b", "is_error": True}, RESULT, USER)

    assert made[1]["content"] == [text("so"), USE, {**USE, "id": "b"}]
    assert made[2:] == [
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "b", "content": "ok", "is_error": True},
                {"type": "tool_result", "tool_use_id": "call_a", "content": "ok"},
                text("go"),
            ],
        }
    ]


def test_ids_that_are_not_taken_are_replaced_in_pairs() -> None:
    """Other providers make ids of other characters."""
    id = "functions.f:0"
    made = messages(USER, {**TURN, "tool_calls": [{**CALL, "id": id}]}, {**RESULT, "tool_call_id": id})
    new = made[1]["content"][0]["id"]

    assert new == made[2]["content"][0]["tool_use_id"]
    assert new.replace("_", "").isalnum()


def test_histories_that_cannot_be_paired_are_refused() -> None:
    """By the message's place (openai/openai-agents-python#1797)."""
    for said, place in (([USER, RESULT], 1), ([USER, TURN, USER], 1), ([USER, TURN], 1)):
        with pytest.raises(InvalidRequest, match=rf"messages\[{place}\]"):
            messages(*said)


def test_old_functions_are_tools() -> None:
    """With ids made from their places."""
    made = sent(
        functions=[{"name": "f"}],
        function_call={"name": "f"},
        messages=[
            USER,
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}},
            {"role": "function", "name": "f", "content": "ok"},
        ],
    )

    assert (made["tools"], made["tool_choice"]) == (
        [{"name": "f", "input_schema": OPEN}],
        {"type": "tool", "name": "f"},
    )
    assert made["messages"][1]["content"][0]["id"] == made["messages"][2]["content"][0]["tool_use_id"]
    assert made["messages"][1]["content"][0]["input"] == {}


# Thoughts.


def thinking(*details: Any, model: ModelFacts = BUDGET, **more: Any) -> list[Any]:
    turn = {**TURN, "content": "so", "reasoning_content": "hm", "reasoning_details": list(details), **more}
    content: list[Any] = messages(USER, turn, RESULT, model=model)[1]["content"]
    return content


def test_thoughts_go_back_byte_for_byte_to_their_places() -> None:
    """Moved ones are refused for ever (maximhq/bifrost#6342, #5274)."""
    assert thinking(THOUGHT, HIDDEN) == [THINKING, text("so"), REDACTED, USE]
    assert thinking(THOUGHT, {**HIDDEN, "index": 5}) == [THINKING, text("so"), REDACTED, USE], "behind blank texts"
    assert thinking({**HIDDEN, "index": None}, {**THOUGHT, "index": None}) == [REDACTED, THINKING, text("so"), USE]
    assert thinking(thinking_blocks=[THINKING, {"type": "thinking", "thinking": "x"}]) == [THINKING, text("so"), USE]


def test_thoughts_in_pieces_are_put_together() -> None:
    """As streams tell them, and as clients leave them: apart, or with the same words twice."""
    pieces = [
        {"type": "reasoning.text", "text": "h", "format": FORMAT, "index": 0},
        {"type": "reasoning.text", "text": "m", "index": 0},
        {"type": "reasoning.text", "text": "", "signature": "S", "index": 0},
    ]

    assert thinking(*pieces)[0] == THINKING
    assert thinking({**THOUGHT, "format": FORMAT * 2})[0] == THINKING


@rows(
    "turn, field",
    [
        ({"reasoning_content": "hm"}, "messages.reasoning_content"),
        ({"reasoning_details": [{**THOUGHT, "signature": None}]}, "messages.reasoning_details"),
        ({"reasoning_details": [THOUGHT, {**HIDDEN, "format": "openai-responses-v1"}]}, "messages.reasoning_details"),
        ({"tool_calls": [{**CALL, "extra_content": {"google": {}}}]}, "messages.tool_calls.extra_content"),
        ({"name": "bob"}, "messages.name"),
    ],
)
def test_what_cannot_go_back_is_left_out(turn: Any, field: str) -> None:
    """Signed things go back to their issuer, unsigned ones nowhere."""
    said = [USER, {**TURN, **turn}, RESULT]

    assert gaps(messages=said, tools=[TOOL]) == {field: "dropped"}
    assert {block["type"] for block in messages(*said)[1]["content"]} <= {"thinking", "tool_use"}


def test_some_models_take_thoughts_back_behind_the_same_words_only() -> None:
    """Where tools were left out, a format is told in words, or another provider has answered, they cannot go back."""
    assert thinking(THOUGHT, model=BOUND)[0] == THINKING
    foreign = {**HIDDEN, "format": "openai-responses-v1"}
    assert thinking(THOUGHT, foreign, model=BOUND) == [text("so"), USE]
    said = [USER, {"role": "assistant", "content": "so", "reasoning_details": [THOUGHT]}, USER]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}
    for change in ({"tools": [TOOL, OTHER], "tool_choice": allowed}, {"response_format": {"type": "json_object"}}):
        assert sent(BOUND, messages=said, **change)["messages"][1]["content"] == [text("so")]
        assert gaps(BOUND, messages=said, **change)["messages.reasoning_details"] == "dropped"
        assert sent(ADAPTIVE, messages=said, **change)["messages"][1]["content"][0] == THINKING


def test_a_budget_needs_the_thoughts_before_the_calls() -> None:
    """A client that lost them gets an answer without thinking, and is told (BerriAI/litellm#15601)."""
    said = [USER, TURN, RESULT]
    assert "thinking" not in sent(messages=said, reasoning_effort="low")
    assert gaps(messages=said, reasoning_effort="low") == {"reasoning_effort": "dropped", "tools": "approximated"}
    assert sent(messages=[*said, USER], reasoning_effort="low")["thinking"]["type"] == "enabled"
    kept = [USER, {**TURN, "reasoning_details": [THOUGHT]}, RESULT]
    assert sent(messages=kept, reasoning_effort="low")["thinking"]["type"] == "enabled"
    assert sent(ADAPTIVE, messages=said, reasoning_effort="low")["thinking"] == {"type": "adaptive"}
    own = {"type": "enabled", "budget_tokens": 2000}
    assert "thinking" not in sent(messages=said, thinking=own)
    assert gaps(messages=said, thinking=own) == {"thinking": "dropped", "tools": "approximated"}
    assert sent(messages=kept, thinking=own)["thinking"] == own


# Marks for the cache.


def test_marks_are_kept() -> None:
    """On parts, messages and tools; OpenAI's last for an hour here."""
    short, long = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
    said = [
        {"role": "system", "content": "a", "cache_control": long},
        {"role": "user", "content": [{**text("b"), "prompt_cache_breakpoint": {"mode": "explicit"}}]},
        {**TURN, "cache_control": short},
        {**RESULT, "cache_control": short},
    ]
    made = sent(messages=said, tools=[{**TOOL, "cache_control": long}])

    assert made["tools"] == [{"name": "f", "input_schema": TOOL["function"]["parameters"]}]  # a fifth mark
    assert made["system"] == [{**text("a"), "cache_control": long}]
    assert made["messages"][0]["content"] == [{**text("b"), "cache_control": long}]
    assert made["messages"][1]["content"] == [{**USE, "cache_control": short}]
    assert made["messages"][2]["content"][0]["cache_control"] == short
    assert sent(messages=said[:2], tools=[{**TOOL, "cache_control": long}])["tools"][0]["cache_control"] == long
    assert gaps(messages=said, tools=[TOOL]) == {"messages.prompt_cache_breakpoint": "approximated"}
    assert gaps(messages=said, tools=[{**TOOL, "cache_control": long}])["cache_control"] == "approximated"


def test_no_more_marks_than_are_taken() -> None:
    """The last ones are kept, and none lasts longer behind a shorter one."""
    parts = [{**text(str(number)), "cache_control": {"type": "ephemeral"}} for number in range(5)]
    parts.append({**text("5"), "cache_control": {"type": "ephemeral", "ttl": "1h"}})
    made = messages({"role": "user", "content": parts})[0]["content"]

    assert ["cache_control" in part for part in made] == [False] * 2 + [True] * 4
    assert made[-1]["cache_control"] == {"type": "ephemeral"}
    assert parts[0]["cache_control"]
    whole = sent(messages=[{"role": "user", "content": parts}], cache_control={"type": "ephemeral"})
    assert whole["cache_control"] == {"type": "ephemeral"}
    assert sum("cache_control" in part for part in whole["messages"][0]["content"]) == 3


def nested(depth: int) -> str:
    return '{"a":' * depth + "{}" + "}" * depth


def test_arguments_nested_too_deeply_are_refused() -> None:
    """Only their text was read when the call came in."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": nested(300)}}
    said: list[dict[str, Any]] = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    said.append({"role": "tool", "tool_call_id": "c", "content": "x"})
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        pair_of("chat", "messages").request(orjson.dumps({"model": "m", "messages": said}), ServerFacts(), 0.0, str)
    block = {"type": "tool_use", "id": "c", "name": "f", "input": orjson.loads(nested(300))}
    with pytest.raises(MalformedAnswer, match="nested too deeply"):
        tool_call(block)
