"""models.yaml: the built-in rows, those of the user over them, and what clouds put around a model's name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from gateway.core.config.source import read_document
from gateway.core.types import plain_name
from gateway.dialects.base import ModelFacts
from gateway.dialects.config import ModelFactsEntry, read_models
from gateway.dialects.known import ListedModels, ModelTable
from tests.rows import rows
from tests.support.configs import problems_of, with_policies

SHOWN = ("image", "pdf")


def table(folder: Path, text: str) -> ModelTable:
    file = folder / "models.yaml"
    file.write_text(text)
    return read_models(read_document(file, []))


@rows(
    ("model", "plain"),
    [
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5-20250929"),
        ("anthropic.claude-3-haiku-20240307-v1:0:200k", "claude-3-haiku-20240307"),
        ("claude-opus-4-5@20251101", "claude-opus-4-5"),
        ("anthropic/claude-opus-4-5", "claude-opus-4-5"),
        ("publishers/google/models/gemini-2.5-pro", "gemini-2.5-pro"),
        ("gemini-2.5-pro", "gemini-2.5-pro"),
        ("Claude-X", "claude-x"),
        ("", ""),
    ],
)
def test_a_model_is_known_by_whatever_name_a_cloud_gives_it(model: str, plain: str) -> None:
    assert plain_name(model) == plain


@rows(
    ("unknown", "newest"),
    [
        ("claude-sonnet-7", "claude-haiku-5-5"),
        ("claude-opus-6-1@20270101", "claude-haiku-5-5"),
        ("gemini-4-argon", "gemini-3.5-flash"),
        ("gemini-flash-latest", "gemini-3.5-flash"),
        ("gpt-6-mini", "gpt-5.6"),
    ],
)
def test_a_model_that_nobody_knows_yet_is_as_the_newest(unknown: str, newest: str) -> None:
    facts = read_models(None).of
    assert facts(unknown) == facts(newest)
    assert facts(unknown).thinking in ("adaptive", "level")


@rows(
    ("model", "facts"),
    [
        ("claude-3-haiku-20240307", ModelFacts(max_output=4096, own_fields="anthropic", reads=SHOWN)),
        (
            "claude-opus-4@20250514",
            ModelFacts(max_output=32000, thinking="budget", own_fields="anthropic", reads=SHOWN),
        ),
        (
            "anthropic/claude-opus-4.1",
            ModelFacts(max_output=32000, thinking="budget", own_fields="anthropic", reads=SHOWN),
        ),
        (
            "anthropic/claude-sonnet-4",
            ModelFacts(max_output=64000, thinking="budget", own_fields="anthropic", reads=SHOWN),
        ),
        (
            "anthropic/claude-3.7-sonnet:thinking",
            ModelFacts(max_output=64000, thinking="budget", own_fields="anthropic", reads=SHOWN),
        ),
        (
            "claude-sonnet-4-20250514",
            ModelFacts(max_output=64000, thinking="budget", own_fields="anthropic", reads=SHOWN),
        ),
        (
            "claude-haiku-4-5",
            ModelFacts(max_output=64000, thinking="budget", json_schema=True, own_fields="anthropic", reads=SHOWN),
        ),
        (
            "claude-opus-4-7",
            ModelFacts(
                max_output=128000,
                sampling=False,
                thinking="adaptive",
                efforts=("low", "medium", "high", "xhigh", "max"),
                json_schema=True,
                own_fields="anthropic",
                reads=SHOWN,
            ),
        ),
        ("gpt-4o", ModelFacts()),
    ],
)
def test_what_is_built_in(model: str, facts: ModelFacts) -> None:
    assert read_models(None).of(model) == facts


@rows(
    ("model", "sampling", "stops"),
    [
        ("o3", False, False),
        ("o3-mini", False, True),
        ("gpt-5-mini", False, False),
        ("gpt-5-chat-latest", True, True),
        ("gpt-5.2", True, False),
        ("gpt-4o", True, True),
    ],
)
def test_openais_models_that_think_are_told_less(model: str, sampling: bool, stops: bool) -> None:
    """They refuse a `temperature` (400 `unsupported_value`), and a `stop` (`unsupported_parameter`)."""
    facts = read_models(None).of(model)
    assert (facts.sampling, facts.stops) == (sampling, stops)


def test_the_rows_of_a_user_go_over_those_that_are_built_in_field_by_field(tmp_path: Path) -> None:
    """Whatever the length of their patterns; a longer one of the same file goes over a shorter one."""
    own = table(tmp_path, 'mine: {"claude-3-haiku*": {max_output: 9}, "claude-*": {max_output: 7, logprobs: true}}')

    assert own.of("claude-3-haiku") == ModelFacts(max_output=9, logprobs=True, own_fields="anthropic", reads=SHOWN)
    assert own.of("claude-haiku-4-5").max_output == 7
    assert own.of("claude-haiku-4-5").json_schema


def test_what_a_provider_tells_goes_over_what_is_built_in_and_under_what_the_user_says(tmp_path: Path) -> None:
    """It holds for that provider's models alone, under whatever name a call has for them, and at once."""
    told, common = ListedModels(), table(tmp_path, 'mine: {"claude-x*": {max_output: 9}}')
    known = common.for_provider(told, "a")
    assert known.of("claude-x-1").max_input is None

    assert told.tell("a", {"claude-x-1": {"max_input": 50, "max_output": 70, "sampling": True}}) == 1
    assert told.tell("a", {"claude-x-1": {"max_input": 50, "max_output": 70, "sampling": True}}) == 0

    facts = known.of("anthropic/claude-x-1@2026")
    assert (facts.max_input, facts.max_output, facts.sampling, facts.json_schema) == (50, 9, True, True)
    assert common.of("claude-x-1").max_input is common.for_provider(told, "b").of("claude-x-1").max_input is None
    assert {name: one.source for name, one in known.sources("claude-x-1").items() if name[:4] in ("max_", "json")} == {
        "max_output": "models.yaml, claude-x*", "max_input": "told by a", "json_schema": "built in, claude-*"
    }  # fmt: skip


def test_a_copy_of_the_built_in_file_changes_nothing(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "policies" / "models.yaml").read_text()

    assert all(
        table(tmp_path, text).of(one) == read_models(None).of(one) for one in ("claude-fable-5-1", "gemini-3-pro")
    )


def test_every_fact_can_be_said_and_has_the_same_default() -> None:
    entry = ModelFactsEntry()

    assert {one.name: one.default for one in fields(ModelFacts)} == {
        name: tuple(value) if isinstance(value := getattr(entry, name), list) else value
        for name in ModelFactsEntry.model_fields
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1]", 'models.yaml:1: expected groups such as `anthropic: {"claude-*": {…}}`, not a list'),
        ("a: 5", 'models.yaml:1: a: expected rows such as `"claude-*": {max_output: 64000}`, not 5'),
        (
            'a: {"x*": {thinking: hard}}',
            'models.yaml:1: a."x*".thinking: "hard" is not one of none, budget, adaptive, level',
        ),
        ('a: {"x*": {samplin: true}}', 'models.yaml:1: a."x*".samplin: unknown field; did you mean "sampling"?'),
    ],
)
def test_a_mistake_is_said_by_its_line(tmp_path: Path, text: str, problem: str) -> None:
    config = with_policies(tmp_path, models=text)

    assert [one.removeprefix("rules/") for one in problems_of(tmp_path, config)] == [problem]
