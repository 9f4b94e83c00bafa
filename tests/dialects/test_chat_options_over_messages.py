"""Callers of chat completions at Claude: how options and tools go out, by the facts of the model, and what is lost of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from hypothesis import given

from gateway.core.errors import InvalidRequest
from gateway.dialects.base import ModelFacts, ServerFacts
from tests.dialects.claude import (
    ADAPTIVE,
    BOUND,
    BUDGET,
    CLOSED,
    OPEN,
    OTHER,
    PAIR,
    PLAIN,
    RESULT,
    TOOL,
    TURN,
    USER,
    gaps,
    sent,
)
from tests.dialects.odd import odd_bodies
from tests.rows import rows


@rows(
    "model, effort, made, how",
    [
        (ADAPTIVE, "medium", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"}}, None),
        (ADAPTIVE, "minimal", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "approximated"),
        (
            replace(ADAPTIVE, efforts=("low", "medium", "high")),
            "xhigh",
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
            "approximated",
        ),
        (
            replace(ADAPTIVE, efforts=("low", "medium", "high", "max")),
            "xhigh",
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            "approximated",
        ),
        (BUDGET, "high", {"thinking": {"type": "enabled", "budget_tokens": 16_384}}, "approximated"),
        (PLAIN, "high", {}, "dropped"),
        (BUDGET, "huge", {}, "dropped"),
        (replace(BUDGET, max_output=4096), "high", {}, "dropped"),
        (BUDGET, "none", {"thinking": {"type": "disabled"}}, None),
        (PLAIN, "none", {}, None),
        (replace(ADAPTIVE, thinking_off="between_tools"), "none", {"thinking": {"type": "between_tools"}}, "approximated"),
        (replace(ADAPTIVE, thinking_off="never"), "none", {"output_config": {"effort": "low"}}, "approximated"),
    ],
)  # fmt: skip
def test_efforts_are_said_as_the_model_takes_them(model: ModelFacts, effort: str, made: Any, how: str | None) -> None:
    """By its facts, and nothing else."""
    found = sent(model, reasoning_effort=effort)

    assert {name: found[name] for name in ("thinking", "output_config") if name in found} == made
    assert gaps(model, reasoning_effort=effort) == ({"reasoning_effort": how} if how else {})


def test_there_is_room_for_what_is_thought() -> None:
    """A budget has to be less than the most tokens."""
    asked = {"reasoning_effort": "medium", "max_completion_tokens": 100}

    assert sent(**asked)["max_tokens"] == 10_100
    assert gaps(**asked)["max_completion_tokens"] == "approximated"


def test_the_callers_own_words_on_thinking_hold() -> None:
    """As they are."""
    own = {"type": "enabled", "budget_tokens": 2000, "display": "omitted"}

    assert sent(thinking=own)["thinking"] == own
    assert gaps(thinking=own, reasoning_effort="low") == {"reasoning_effort": "dropped"}
    assert sent(ADAPTIVE, thinking={"type": "adaptive"}, reasoning_effort="max")["output_config"] == {"effort": "max"}


# Options.


@rows(
    "model, asked, made, lost",
    [
        (BUDGET, {"temperature": 0.5}, {"temperature": 0.5}, {}),
        (BUDGET, {"temperature": 1.7}, {"temperature": 1.0}, {"temperature": "approximated"}),
        (BUDGET, {"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5}, {"top_p": "dropped"}),
        (BUDGET, {"temperature": 1, "top_p": 0.9, "top_k": 5}, {"top_p": 0.9, "top_k": 5}, {}),
        (ADAPTIVE, {"temperature": 0, "top_k": 5}, {}, {"temperature": "dropped", "top_k": "dropped"}),
        (ADAPTIVE, {"top_p": 0.9}, {}, {"top_p": "dropped"}),
        (ADAPTIVE, {"temperature": 1, "top_p": 1}, {}, {}),
        (
            BUDGET,
            {"temperature": 0, "top_p": 0.97, "thinking": {"type": "enabled", "budget_tokens": 2000}},
            {"top_p": 0.97},
            {"temperature": "dropped"},
        ),
        (BUDGET, {"stop": "x"}, {"stop_sequences": ["x"]}, {}),
        (BUDGET, {"stop": ["x", "\n"]}, {"stop_sequences": ["x"]}, {"stop": "dropped"}),
        (BUDGET, {"max_tokens": 5}, {"max_tokens": 5}, {}),
        (BUDGET, {"max_completion_tokens": 10**6}, {"max_tokens": 64_000}, {}),
        (ModelFacts(), {}, {"max_tokens": 8192}, {}),
        (BUDGET, {"user": "u"}, {"metadata": {"user_id": "u"}}, {}),
        (BUDGET, {"user": "u" * 256}, {"metadata": {"user_id": "u" * 256}}, {}),
        (BUDGET, {"safety_identifier": "s", "user": "u"}, {"metadata": {"user_id": "s"}}, {"user": "dropped"}),
        (BUDGET, {"service_tier": "auto"}, {"service_tier": "auto"}, {}),
        (BUDGET, {"service_tier": "default"}, {"service_tier": "standard_only"}, {}),
        (BUDGET, {"service_tier": "flex"}, {}, {"service_tier": "dropped"}),
        (BUDGET, {"stream": True, "stream_options": {"include_usage": True}}, {"stream": True}, {}),
    ],
)  # fmt: skip
def test_options_are_said_as_the_model_takes_them(model: ModelFacts, asked: Any, made: Any, lost: Any) -> None:
    """Or are told to be lost (litellm#26246, #28113)."""
    found = sent(model, **asked)
    names = ("temperature", "top_p", "top_k", "stop_sequences", "metadata", "service_tier", "stream")

    assert {name: found[name] for name in names if name in found} == {
        k: v for k, v in made.items() if k != "max_tokens"
    }
    assert found["max_tokens"] == made.get("max_tokens", 64_000)
    assert gaps(model, **asked) == lost


@rows("name", ["audio", "logprobs", "n", "top_logprobs", "web_search_options"])
def test_output_that_cannot_come_is_refused(name: str) -> None:
    """Asked for, it is missed; a hint that cannot be followed is not."""
    assert gaps(**{name: 2}) == {name: "refused"}


@rows("name", ["seed", "logit_bias", "presence_penalty", "verbosity", "metadata", "store", "moderation", "prediction"])
def test_hints_are_dropped(name: str) -> None:
    """And said to be."""
    assert gaps(**{name: "x"}) == {name: "dropped"}


def test_values_that_mean_nothing_are_no_loss() -> None:
    """A field that is unknown has no name of its own: names that callers make up are no labels."""
    assert gaps(n=1, logprobs=False, modalities=["text"], seed=None, store=False, frequency_penalty=0) == {}
    assert gaps(my_own="x", another=1) == {"other": "dropped"}
    assert gaps(stream_options={"include_obfuscation": True}) == {"stream_options.include_obfuscation": "dropped"}


def test_answers_by_a_schema() -> None:
    """Where the model does; elsewhere only in words, for those who want that."""
    asked = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": CLOSED, "strict": True}}}
    assert sent(**asked)["output_config"] == {"format": {"type": "json_schema", "schema": CLOSED}}
    assert gaps(**asked) == {}
    assert gaps(PLAIN, **asked) == {"response_format.json_schema": "refused"}
    assert gaps(PLAIN, approximates=True, **asked) == {"response_format.json_schema": "approximated"}
    assert "additionalProperties" in sent(PLAIN, approximates=True, **asked)["system"][-1]["text"]
    loose = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}}
    assert gaps(**loose) == {"response_format.json_schema": "approximated"}
    endless = {
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "array", "items": {"$ref": "#"}}}}
    }
    assert gaps(**endless) == {"response_format.json_schema": "refused"}


def test_any_json_is_asked_for_in_words() -> None:
    """At the end of the instructions, so that what stands before stays cached."""
    said = [{"role": "system", "content": "a"}, USER]

    assert "JSON" in sent(messages=said, response_format={"type": "json_object"})["system"][1]["text"]
    assert gaps(response_format={"type": "json_object"}) == {"response_format.json_object": "approximated"}
    assert gaps(response_format={"type": "grammar"}) == {"response_format.grammar": "refused"}
    assert gaps(response_format={"type": "text"}) == {}


# Tools.


@rows(
    "asked, choice, lost",
    [
        ({}, None, {}),
        ({"tool_choice": "none"}, {"type": "none"}, {}),
        ({"tool_choice": "auto"}, {"type": "auto"}, {}),
        ({"tool_choice": "required"}, {"type": "any"}, {}),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, {"type": "tool", "name": "f"}, {}),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}, {}),
        ({"parallel_tool_calls": False, "tool_choice": "none"}, {"type": "none"}, {}),
        (
            {"parallel_tool_calls": False, "tool_choice": "required"},
            {"type": "any", "disable_parallel_tool_use": True},
            {},
        ),
        ({"tool_choice": "perhaps"}, None, {"tool_choice": "dropped"}),
        ({"tool_choice": {"type": "custom", "custom": {"name": "f"}}}, None, {"tool_choice.custom": "refused"}),
    ],
)
def test_choices_of_tools(asked: Any, choice: Any, lost: Any) -> None:
    """The tools stay, whatever is chosen."""
    made = sent(tools=[TOOL], **asked)

    assert made.get("tool_choice") == choice
    assert [tool["name"] for tool in made["tools"]] == ["f"]
    assert gaps(tools=[TOOL], **asked) == lost


def test_a_model_that_cannot_be_made_to_call() -> None:
    """Some never, others not while they think by a budget: refused, or left to the model by those who want that."""
    never = replace(ADAPTIVE, forced_tools=False)
    for model, more in ((never, {}), (BUDGET, {"thinking": {"type": "enabled", "budget_tokens": 2000}})):
        asked = {"tools": [TOOL], "tool_choice": "required", **more}
        assert gaps(model, **asked) == {"tool_choice": "refused"}
        assert gaps(model, approximates=True, **asked) == {"tool_choice": "approximated"}
        assert sent(model, approximates=True, **asked)["tool_choice"] == {"type": "auto"}
    assert gaps(ADAPTIVE, tools=[TOOL], tool_choice="required", reasoning_effort="low") == {}


def test_tools_without_a_choice_are_none() -> None:
    """A choice alone is refused there; calls in the history want their tools named (anthropic-sdk-python#494)."""
    assert "tool_choice" not in sent(tool_choice="auto")
    assert gaps(tool_choice="auto") == {}
    assert gaps(tool_choice="required") == {"tool_choice": "dropped"}
    made = sent(messages=[USER, TURN, RESULT])
    assert (made["tools"], made["tool_choice"]) == ([{"name": "f", "input_schema": OPEN}], {"type": "none"})


def test_allowed_tools_are_those_that_are_told() -> None:
    """The others are left out."""
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [OTHER]}}
    made = sent(tools=[TOOL, OTHER], tool_choice=allowed)

    assert ([tool["name"] for tool in made["tools"]], made["tool_choice"]) == (["g"], {"type": "any"})
    assert gaps(tools=[TOOL, OTHER], tool_choice=allowed) == {"tool_choice.allowed_tools": "approximated"}


def strict(schema: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": "f", "description": "d", "strict": True, "parameters": schema},
        **more,
    }


def test_strict_tools_are_checked_as_far_as_that_can_be() -> None:
    """By the SDK's own transformation, and within the provider's limits."""
    assert sent(tools=[strict(CLOSED)])["tools"] == [
        {"name": "f", "description": "d", "input_schema": CLOSED, "strict": True}
    ]
    assert gaps(tools=[strict(CLOSED)]) == {}
    short = {**CLOSED, "properties": {"a": {"type": "string", "maxLength": 3}}}
    assert gaps(tools=[strict(short)]) == {"tools.strict": "approximated"}
    assert "maxLength: 3" in sent(tools=[strict(short)])["tools"][0]["input_schema"]["properties"]["a"]["description"]
    assert gaps(PLAIN, tools=[strict(CLOSED)]) == {"tools.strict": "dropped"}
    assert gaps(tools=[strict({"type": "object", "properties": {"a": {"$ref": "#"}}})]) == {"tools.strict": "dropped"}
    many = sent(tools=[strict(CLOSED)] * 22)["tools"]
    assert [tool.get("strict", False) for tool in many] == [True] * 20 + [False] * 2


@rows("kind", ["custom", "file_search", "mcp"])
def test_tools_of_others_are_refused(kind: str) -> None:
    """They run where they are known, or take what cannot be said."""
    assert gaps(tools=[TOOL, {"type": kind}]) == {f"tools.{kind}": "refused"}


def test_unknown_fields_of_tools_are_told() -> None:
    """Under a name of ours."""
    assert gaps(tools=[{**TOOL, "mine": 1}]) == {"tools.other": "dropped"}


FIELDS = ("messages", "tools", "tool_choice", "functions", "function_call", "response_format", "stop", "max_tokens", "thinking",
          "reasoning_effort", "temperature", "top_p", "stream_options", "user", "service_tier", "n", "mine")  # fmt: skip


@given(
    odd_bodies(*FIELDS),
    odd_bodies("role", "content", "tool_calls", "reasoning_details", "cache_control", "refusal", "name"),
)
def test_any_request_is_converted_or_refused(body: dict[str, Any], message: dict[str, Any]) -> None:
    """Nothing else is raised, and the gaps are told of any."""
    for one in (body, {"messages": [message, {"role": "assistant", **message}]}):
        for model in (BUDGET, replace(BOUND, forced_tools=False)):
            facts = ServerFacts(model=model)
            PAIR.gaps(one, facts)
            with suppress(InvalidRequest):
                PAIR.request(one, facts, 0.0, str)
