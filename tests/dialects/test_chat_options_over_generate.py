"""Options of chat completions at Gemini: each arrives as the model takes it, or is told of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.dialects.base import ModelFacts
from tests.dialects.google import BUDGET, LEVEL, PLAIN, TOOL, facts, gaps, sent
from tests.rows import rows

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
BY_SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}}
JSON_MODE = {"response_format": {"type": "json_object"}}
OFF = replace(BUDGET, thinking_off="never")


def config(model: ModelFacts, body: dict[str, Any]) -> Any:
    return sent(facts(model), **body).get("generationConfig", {})


@rows(
    "body, made",
    [
        ({"max_completion_tokens": 9, "max_tokens": 8}, {"maxOutputTokens": 9}),
        ({"max_tokens": 100_000}, {"maxOutputTokens": 65_536}),
        (
            {"temperature": 2, "top_p": 0.1, "top_k": 5},
            {"temperature": 2, "topP": 0.1, "topK": 5},
        ),
        ({"presence_penalty": 1, "frequency_penalty": -1}, {"presencePenalty": 1, "frequencyPenalty": -1}),
        ({"stop": "x"}, {"stopSequences": ["x"]}),
        ({"stop": ["x", "y"]}, {"stopSequences": ["x", "y"]}),
        ({"seed": 7}, {"seed": 7}),
        ({"n": 2}, {"candidateCount": 2}),
        ({"n": 1}, {}),
        (BY_SCHEMA, {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}),
        (JSON_MODE, {"responseMimeType": "application/json"}),
        ({"response_format": {"type": "text"}}, {}),
        ({"modalities": ["text", "image"]}, {"responseModalities": ["TEXT", "IMAGE"]}),
        ({"modalities": ["text"]}, {}),
        ({"logprobs": True, "top_logprobs": 3}, {"responseLogprobs": True, "logprobs": 3}),
    ],
)
def test_options_arrive(body: Any, made: Any) -> None:
    """As they are."""
    assert config(LEVEL, body) == made
    assert gaps(facts(LEVEL), **body) == {}


SAFETY = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]


@rows(
    "body, made, lost",
    [
        ({"safety_settings": SAFETY}, {"safetySettings": SAFETY}, {}),
        ({"google": {"safety_settings": SAFETY}}, {"safetySettings": SAFETY}, {}),
        ({"extra_body": {"google": {"cached_content": "cachedContents/a"}}}, {"cachedContent": "cachedContents/a"}, {}),
        (
            {"extra_body": {"google": {"thinking_config": {"thinking_budget": 9, "include_thoughts": True}}}},
            {"generationConfig": {"thinkingConfig": {"thinkingBudget": 9, "includeThoughts": True}}},
            {},
        ),
        ({"extra_body": {"google": {"x": 1}}}, {}, {"other": "dropped"}),
        ({"extra_body": {"x": 1}, "google": 1}, {}, {"other": "dropped"}),
    ],
)
def test_what_googles_own_chat_completions_know_besides_arrives(body: Any, made: Any, lost: Any) -> None:
    """The words are those that its clients, and configs for it, are written in already."""
    said = sent(facts(LEVEL), **body)

    assert {name: one for name, one in said.items() if name != "contents"} == made
    assert gaps(facts(LEVEL), **body) == lost


@rows(
    "model, body, thinking, lost",
    [
        (LEVEL, {"reasoning_effort": "low"}, {"thinkingLevel": "LOW", "includeThoughts": True}, {}),
        (
            LEVEL,
            {"reasoning_effort": "medium"},
            {"thinkingLevel": "HIGH", "includeThoughts": True},
            {"reasoning_effort": "approximated"},
        ),
        (
            LEVEL,
            {"reasoning_effort": "max"},
            {"thinkingLevel": "HIGH", "includeThoughts": True},
            {"reasoning_effort": "approximated"},
        ),
        (LEVEL, {"reasoning_effort": "none"}, {"thinkingLevel": "LOW"}, {"reasoning_effort": "approximated"}),
        (
            BUDGET,
            {"reasoning_effort": "medium"},
            {"thinkingBudget": 8192, "includeThoughts": True},
            {"reasoning_effort": "approximated"},
        ),
        (BUDGET, {"reasoning_effort": "none"}, {"thinkingBudget": 0}, {}),
        (OFF, {"reasoning_effort": "none"}, {"thinkingBudget": 512}, {"reasoning_effort": "approximated"}),
        (BUDGET, {"reasoning": {"max_tokens": 77}}, {"thinkingBudget": 77, "includeThoughts": True}, {}),
        (LEVEL, {"reasoning": {"max_tokens": 77}}, {"includeThoughts": True}, {"reasoning": "dropped"}),
        (LEVEL, {"reasoning": {"effort": "high", "exclude": True}}, {"thinkingLevel": "HIGH"}, {}),
        (LEVEL, {"reasoning": {"enabled": True}}, {"includeThoughts": True}, {}),
        (BUDGET, {"reasoning": {"enabled": False}}, {"thinkingBudget": 0}, {}),
        (PLAIN, {"reasoning_effort": "high"}, None, {"reasoning_effort": "dropped"}),
        (PLAIN, {"reasoning_effort": "none"}, None, {}),
        (LEVEL, {"reasoning_effort": "much"}, None, {"reasoning_effort": "dropped"}),
        (LEVEL, {}, None, {}),
    ],
)
def test_an_effort_becomes_what_the_model_knows(model: Any, body: Any, thinking: Any, lost: Any) -> None:
    """Thoughts are told only where somebody asked for them."""
    assert config(model, body).get("thinkingConfig") == thinking
    assert gaps(facts(model), **body) == lost


@rows(
    "model, body, lost",
    [
        (PLAIN, BY_SCHEMA, {"response_format.json_schema": "refused"}),
        (BUDGET, BY_SCHEMA | {"tools": [TOOL]}, {"response_format.json_schema": "refused"}),
        (BUDGET, JSON_MODE | {"tools": [TOOL]}, {"response_format.json_object": "approximated"}),
        (LEVEL, {"response_format": {"type": "grammar"}}, {"response_format.grammar": "refused"}),
        (BUDGET, {"logprobs": True}, {"logprobs": "refused"}),
        (LEVEL, {"modalities": ["text", "audio"], "audio": {}}, {"modalities": "refused", "audio": "refused"}),
        (replace(LEVEL, sampling=False), {"temperature": 1, "seed": 1}, {"temperature": "dropped"}),
        (LEVEL, {"stop": list("abcdef")}, {"stop": "dropped"}),
        (LEVEL, {"seed": 2**40}, {"seed": "dropped"}),
        (LEVEL, {"metadata": {"a": "b"}}, {"metadata": "dropped"}),
        (LEVEL, {"service_tier": "scale"}, {"service_tier": "dropped"}),
        (LEVEL, {"service_tier": "auto"}, {}),
        (LEVEL, {"logit_bias": {"1": 1}, "user": "u"}, {"logit_bias": "dropped", "user": "dropped"}),
        (LEVEL, {"prediction": {}, "verbosity": "low"}, {"prediction": "dropped", "verbosity": "dropped"}),
        (LEVEL, {"web_search_options": {}}, {"web_search_options": "dropped"}),
        (LEVEL, {"store": False, "top_logprobs": 0, "verbosity": "medium"}, {}),
        (LEVEL, {"store": True}, {"store": "dropped"}),
        (LEVEL, {"my_own": 1}, {"other": "dropped"}),
        (LEVEL, {"stream_options": {"include_obfuscation": True}}, {"stream_options.include_obfuscation": "dropped"}),
    ],
)
def test_what_is_lost_is_told(model: Any, body: Any, lost: Any) -> None:
    """With how; what was asked for and cannot come is refused."""
    assert gaps(facts(model), **body) == lost


def test_a_form_is_told_in_words_where_that_is_wanted() -> None:
    """At the end of the instructions."""
    where = facts(BUDGET, approximates=True)
    body = BY_SCHEMA | {
        "tools": [TOOL],
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
    }
    parts = sent(where, **body)["systemInstruction"]["parts"]

    assert [part["text"][:6] for part in parts] == ["s", "Answer"]
    assert '"integer"' in parts[1]["text"]
    assert gaps(where, **body) == {"response_format.json_schema": "approximated"}


def test_labels_are_vertexs() -> None:
    """As far as its alphabet goes."""
    where = facts(LEVEL, "vertex")

    assert sent(where, metadata={"team": "a-1"})["labels"] == {"team": "a-1"}
    assert gaps(where, metadata={"team": "a-1"}) == {}
    assert sent(where, metadata={"team": "a", "Who": "x y"})["labels"] == {"team": "a"}
    assert gaps(where, metadata={"team": "a", "Who": "x y"}) == {"metadata": "dropped"}


def test_a_tier_is_named() -> None:
    assert sent(service_tier="flex")["serviceTier"] == "flex"
    assert "serviceTier" not in sent(service_tier="default")
