"""Instructions between the messages, as coding agents have them on every call, at targets that do not take them there."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.anthropic.in_request import with_later_system, without_system_turns
from gateway.dialects.base import ServerFacts
from gateway.dialects.config import read_models
from gateway.dialects.registry import pair_of
from gateway.dialects.target_languages import TargetLanguages, facts_of
from gateway.dialects.upstream import Converting
from tests.dialects.wire.test_converting import Now, answers, outgoing
from tests.rows import rows
from tests.support.flow import ScriptedUpstream

Json = dict[str, Any]
USER: Json = {"role": "user", "content": "x"}
SYSTEM: Json = {"role": "system", "content": "be brief"}
TOLD: Json = {"type": "text", "text": "<system>be brief</system>"}
CALL: Json = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
RESULT: Json = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "ok"}]}
WORDS: Json = {"type": "text", "text": "x"}


@rows(
    ("messages", "expected"),
    [
        ([USER, SYSTEM], [{"role": "user", "content": [WORDS, TOLD]}]),
        ([USER, SYSTEM, USER], [{"role": "user", "content": [WORDS, TOLD, WORDS]}]),
        ([USER, {"role": "assistant", "content": "y"}, SYSTEM],
         [USER, {"role": "assistant", "content": "y"}, {"role": "user", "content": [TOLD]}]),
        ([USER, CALL, SYSTEM, RESULT], [USER, CALL, {"role": "user", "content": [*RESULT["content"], TOLD]}]),
        ([USER, CALL, RESULT, SYSTEM], [USER, CALL, {"role": "user", "content": [*RESULT["content"], TOLD]}]),
        ([USER, {"role": "system", "content": []}], [{"role": "user", "content": [WORDS]}]),
        ([USER, CALL, RESULT], [USER, CALL, RESULT]),
    ],
)  # fmt: skip
def test_instructions_become_a_users_words_in_their_place(messages: list[Json], expected: list[Json]) -> None:
    """Behind a tool's result where they stand before it, for nothing may stand between a call and its result."""
    before = deepcopy(messages)
    made, lost = with_later_system(messages, is_taken=False)
    assert made == expected
    assert messages == before
    assert [gap.field for gap in lost] == (
        ["messages.system"] if SYSTEM["role"] in {m["role"] for m in messages} else []
    )


@rows(
    ("kind", "dialect", "spoken", "model"),
    [
        ("openai", "openai", "chat", "gpt-5.9"),
        ("vllm", "openai", "chat", "llama"),
        ("openai", "openai", "responses", "gpt-5.9"),
        ("gemini", "gemini", "generate", "gemini-2.5-flash"),
        ("bedrock", "bedrock", "converse", "us.amazon.nova-lite-v1:0"),
        ("vertex", "vertex", "claude_at_vertex", "claude-haiku-4-5"),
        ("bedrock", "bedrock", "claude", "us.anthropic.claude-haiku-4-5-20251001-v1:0"),
    ],
)
def test_each_target_takes_them(kind: str, dialect: str, spoken: str, model: str) -> None:
    """Behind the user, between calls and results, at the end; only servers with templates of their own lose their role."""
    pair = pair_of("messages", spoken)
    facts = TargetLanguages(kind, frozenset((spoken,)), dialect, read_models(None).of).facts(pair, model)
    body = {"model": model, "max_tokens": 9, "messages": [USER, SYSTEM, CALL, SYSTEM, RESULT, SYSTEM]}
    sent = pair.translator.request(body, facts, 0.0, lambda: "id")
    said = orjson.dumps(sent.body)
    assert said.count(b"be brief") == 3
    assert (b'"role":"system"' in said) is False
    is_kept = kind == "openai"
    assert (said.count(b"<system>be brief</system>") == 0) is is_kept
    assert [gap.how.value for gap in pair.translator.gaps(body, facts) if gap.field == "messages.system"] == [
        "approximated"
    ]


def test_a_model_that_takes_them_at_a_cloud_gets_them() -> None:
    pair = pair_of("messages", "claude_at_vertex")
    facts = TargetLanguages("vertex", frozenset(("claude_at_vertex",)), "vertex", read_models(None).of).facts(
        pair, "claude-opus-5"
    )
    body = {"model": "m", "max_tokens": 9, "messages": [USER, SYSTEM]}
    assert pair.translator.request(body, facts, 0.0, lambda: "id").body["messages"] == [USER, SYSTEM]
    assert pair.translator.gaps(body, facts) == ()


@rows(
    ("items", "roles"),
    [
        ([{"role": "developer", "content": "a"}, USER], ["system", "user"]),
        ([USER, {"role": "developer", "content": "b"}, USER], ["system", "user", "user", "user"]),
        ([USER, {"role": "system", "content": [{"type": "input_text", "text": "b"}]}], ["system", "user", "user"]),
    ],
)
def test_templates_have_their_instructions_once_and_first(items: list[Json], roles: list[str]) -> None:
    """Of callers of Responses, whose instructions and first items are the beginning; OpenAI's take them anywhere."""
    translator = pair_of("responses", "chat").translator
    body = {"model": "m", "instructions": "be kind", "input": items}
    sent = translator.request(body, ServerFacts(), 0.0, lambda: "id")
    assert [one["role"] for one in sent.body["messages"]] == roles
    assert sent.body["messages"][0]["content"] == ("be kind\n\na" if items[0]["role"] == "developer" else "be kind")
    has_later = items[0]["role"] != "developer"
    assert ("input.system" in {gap.field for gap in sent.gaps or ()}) is has_later
    own = translator.request(body, facts_of("openai"), 0.0, lambda: "id")
    assert [one["role"] for one in own.body["messages"]].count("developer") == 2
    assert not own.gaps


TURNS = st.lists(
    st.sampled_from([USER, SYSTEM, CALL, RESULT, {"role": "assistant", "content": "y"}, 5, None]), max_size=8
)


@given(TURNS, st.booleans())
def test_no_words_are_lost(messages: list[Any], is_taken: bool) -> None:
    """Whatever the conversation; who takes them gets all turns, and a call is followed by what followed it."""
    made, _ = with_later_system(messages, is_taken=is_taken)
    assert orjson.dumps(made).count(b"be brief") == messages.count(SYSTEM)
    others = [one for one in made if one != SYSTEM]
    assert not is_taken or others == [one for one in messages if one != SYSTEM]
    assert is_taken or SYSTEM not in made


def test_bytes_without_such_turns_stay_as_they_are() -> None:
    """A text may speak of them, and a long number keeps its digits."""
    plain = b'{"messages": [{"role": "user", "content": "\\"role\\": \\"system\\""}]}'
    assert without_system_turns(plain)[0] is plain
    long = b'{"messages":[{"role":"user","content":"x"},{"role":"system","content":"s"}],"n":12345678901234567890123}'
    made, lost = without_system_turns(long)
    assert b"12345678901234567890123" in made
    assert b'"role":"system"' not in made
    assert len(lost) == 1


@rows(
    ("dialect", "model", "is_kept"),
    [
        ("openai", "qwen", False),
        ("openai", "anthropic/claude-opus-5", True),
        ("anthropic", "claude-sonnet-4-5", True),
    ],
)
async def test_other_servers_with_messages_get_words_of_the_user(dialect: str, model: str, is_kept: bool) -> None:
    """llama.cpp, vLLM and the like refuse the role; Anthropic says itself what its models do not take, and clients know it."""
    inner = ScriptedUpstream(*answers({"type": "message"}))
    spoken = TargetLanguages("other", frozenset(("messages",)), dialect, read_models(None).of)
    asked = replace(outgoing("/messages", {"max_tokens": 9, "messages": [USER, SYSTEM]}), model=model)
    await Converting(inner, spoken, Now(), lambda: "abc", learned=None).send(asked)
    assert asked.signs is not None
    assert (inner.sent[0].body == asked.body) is is_kept
    assert ["messages.system"] * (not is_kept) == [gap.field for gap in asked.signs.gaps]
