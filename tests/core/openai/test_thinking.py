"""Which calls take minutes without a word."""

from __future__ import annotations

from typing import Any

from gateway.core.openai.transcript import asks_for_reasoning, is_thinker
from tests.rows import rows


@rows(
    ("body", "expected"),
    [
        ({}, False),
        ({"messages": [{"reasoning_effort": "high"}]}, False),
        ({"reasoning_effort": "high"}, True),
        ({"reasoning_effort": "low"}, True),
        ({"reasoning_effort": "minimal"}, False),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": None}, False),
        ({"reasoning": {"effort": "medium", "summary": "auto"}}, True),
        ({"reasoning": {"effort": "none"}}, False),
        ({"reasoning": {}}, False),
        ({"reasoning": {"enabled": False}}, False),
        ({"include_reasoning": True}, True),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"enable_thinking": True}, True),
        ({"enable_thinking": False}, False),
        ({"reasoning": ["nonsense"], "thinking": 7}, True),
        ({"reasoning_effort": {"effort": ["nonsense"]}}, False),
    ],
)
def test_what_asks_for_reasoning(body: dict[str, Any], expected: bool) -> None:
    """At the top of the body, in the words of several providers; whatever it is, nothing is raised."""
    assert asks_for_reasoning(body) is expected


@rows(
    "name",
    [
        "o1",
        "o3-mini",
        "openai/o1-preview",
        "gpt-5",
        "gpt-5-mini",
        "gpt-oss-120b",
        "deepseek-r1",
        "deepseek-reasoner",
        "deepseek-r1:32b",
        "qwq-32b",
        "qwen3-235b-thinking",
        "grok-4-fast-reasoning",
        "magistral-small",
    ],
)
def test_models_that_think_unasked(name: str) -> None:
    """By their names."""
    assert is_thinker(name)


@rows(
    "name",
    [
        "gpt-4o",
        "gpt-4.1-mini",
        "gpt-5-chat-latest",
        "deepseek-chat",
        "llama-3.1-8b",
        "claude-3-5-sonnet",
        "foo1",
        "repo1",
        "demo3",
        "m",
        "grok-4-fast-non-reasoning",
        "text-embedding-3-small",
    ],
)
def test_models_that_do_not(name: str) -> None:
    """Or do not say so."""
    assert not is_thinker(name)


def test_words_count_wherever_they_begin_and_what_is_far_behind_does_not() -> None:
    """A name may be a client's: only its beginning is looked at, and in one pass."""
    assert is_thinker("acme/deepthink-1")
    assert is_thinker("x" * 200 + "-thinking")
    assert not is_thinker("-" * 100_000 + "thinking")
