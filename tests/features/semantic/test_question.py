"""What of a request is the question, and what is everything else."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.semantic.question import MOST_CHARS, Question, last_question
from tests.rows import rows

USER = {"role": "user", "content": "Why is the sky blue?"}
SYSTEM = {"role": "system", "content": "Be brief."}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def chat(*messages: object, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **fields}


def asked(parsed: dict[str, Any], endpoint: str = "chat", ignored: frozenset[str] = frozenset()) -> Question:
    question = last_question(endpoint, parsed, ignored)
    assert question is not None
    return question


def test_the_question_of_a_chat_is_its_last_user_message() -> None:
    """Everything before it belongs to the rest."""
    earlier = {"role": "user", "content": "Hi"}

    question = asked(chat(SYSTEM, earlier, USER))

    assert question.text == "Why is the sky blue?"
    assert orjson.loads(question.rest)["messages"] == [SYSTEM, earlier, {"role": "user", "content": ""}]


def test_the_question_of_a_message_leaves_its_system_and_tools_with_the_rest() -> None:
    """A picture, or a tool's result, is no question."""
    parts = [{"type": "text", "text": "Why?"}]
    said = {"system": "Be brief.", "tools": [{"name": "f"}], "max_tokens": 5}
    question = asked(chat({"role": "user", "content": parts}, **said), "messages")

    assert question.text == "Why?"
    rest = orjson.loads(question.rest)
    assert {name: rest[name] for name in said} == said
    result = [{"type": "tool_result", "tool_use_id": "t", "content": "Why?"}]
    assert last_question("messages", chat({"role": "user", "content": result}, **said)) is None


def test_parts_of_text_are_joined() -> None:
    """Whatever else they carry must match exactly."""
    parts = [{"type": "text", "text": "Why"}, {"type": "text", "text": "blue?", "cache_control": {"type": "ephemeral"}}]

    question = asked(chat({"role": "user", "content": parts}))

    assert question.text == "Why\nblue?"
    assert b"ephemeral" in question.rest


@pytest.mark.parametrize(
    "given_input",
    [
        "Why?",
        [{"role": "user", "content": "Why?"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Why?"}]}],
        [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Why?"}],
    ],
)
def test_responses_ask_in_a_string_or_in_their_last_item(given_input: object) -> None:
    """As `input` of a Responses request may be either."""
    question = asked({"model": "m", "input": given_input}, "responses")

    assert question.text == "Why?"
    assert b"Why?" not in question.rest


@rows(
    "messages",
    [
        [],
        ["Why?"],
        [USER, {"role": "assistant", "content": "Because"}],
        [USER, {"role": "tool", "tool_call_id": "1", "content": "blue"}],
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": " \n\t"}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": {"type": "text", "text": "Why?"}}],
        [{"role": "user", "content": ["Why?"]}],
        [{"role": "user", "content": [{"type": "text", "text": 5}]}],
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": "x"}}],
            }
        ],
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": ""}}]}],
        [{"role": "user", "content": "x" * (MOST_CHARS + 1)}],
    ],
)
def test_what_is_no_plain_question_has_none(messages: list[object]) -> None:
    """Pictures, sounds, tools' results, silence and long documents are not judged by their meaning."""
    assert last_question("chat", chat(*messages)) is None


@pytest.mark.parametrize(
    "item", [{"type": "function_call_output", "output": "x"}, {"type": "reasoning", "role": "user"}]
)
def test_a_response_that_goes_on_after_a_tool_has_none(item: dict[str, Any]) -> None:
    """The last item is not a message."""
    assert last_question("responses", {"input": [USER, {**item, "content": "Why?"}]}) is None


def test_other_endpoints_and_several_choices_have_none() -> None:
    """One answer is recognised, not a choice of them; embeddings and completions have no conversation."""
    assert last_question("embeddings", {"input": "Why?"}) is None
    assert last_question("completions", {"prompt": "Why?"}) is None
    assert last_question("chat", chat(USER, n=2)) is None
    assert last_question("chat", chat(USER, n=1)) is not None
    assert last_question("chat", {"messages": "Why?"}) is None


def test_how_an_answer_is_sent_and_what_is_ignored_is_left_out() -> None:
    """A streamed question is the same question."""
    plain = asked(chat(USER))

    streamed = chat(USER, stream=True, stream_options={"include_usage": True}, user="u1")

    assert asked(streamed, ignored=frozenset({"user"})) == plain
    assert asked(streamed) != plain


@pytest.mark.parametrize(
    "changed",
    [
        {"temperature": 0.5},
        {"tools": [{"type": "function"}]},
        {"response_format": {"type": "json_object"}},
        {"seed": 1},
    ],
)
def test_every_other_field_is_in_the_rest(changed: dict[str, Any]) -> None:
    """Parameters, tools and formats must match exactly."""
    assert asked(chat(USER, **changed)).rest != asked(chat(USER)).rest


def test_what_cannot_be_written_again_has_none() -> None:
    """A body nested more deeply than the encoder goes."""
    deep: Any = 1
    for _ in range(300):
        deep = [deep]

    assert last_question("chat", chat(USER, metadata=deep)) is None


@given(JSON)
def test_odd_bodies_have_a_question_or_none_and_never_an_error(value: object) -> None:
    """Whatever stands where messages or their content should."""
    for endpoint in ("chat", "responses"):
        for parsed in ({"messages": value, "input": value}, {"messages": [{"role": "user", "content": value}]}):
            question = last_question(endpoint, parsed)
            assert question is None or question.text.strip()


@given(st.text(min_size=1), st.text(min_size=1), st.dictionaries(st.sampled_from(["a", "b", "seed"]), JSON))
def test_the_rest_does_not_depend_on_the_text_or_the_order_of_fields(
    one: str, other: str, fields: dict[str, Any]
) -> None:
    """It names a partition."""
    a = last_question("chat", chat(SYSTEM, {"role": "user", "content": one}, **fields))
    b = last_question("chat", {**fields, **chat(SYSTEM, {"content": other, "role": "user"})})

    assert a is None or b is None or a.rest == b.rest
