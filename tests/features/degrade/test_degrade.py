"""A slow model's calls ask for less, and never for more than their caller did."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.degrade.rules import BOUNDS, SCALES, LatencyRules, degraded_request

RULES = LatencyRules(10.0, {"reasoning_effort": "low", "max_completion_tokens": 512})


def lower(body: dict[str, Any], endpoint: str = "chat", rules: LatencyRules = RULES) -> dict[str, Any] | None:
    raw = orjson.dumps(body)
    found = degraded_request(endpoint, raw, body, body.get("max_completion_tokens"), rules)
    return None if found is None else {name: orjson.loads(found.body)[name] for name in found.fields}


@pytest.mark.parametrize(
    ("asked", "lower_to"),
    [
        ({}, {"reasoning_effort": "low", "max_completion_tokens": 512}),
        (
            {"reasoning_effort": "high", "max_completion_tokens": 4000},
            {"reasoning_effort": "low", "max_completion_tokens": 512},
        ),
        ({"reasoning_effort": "minimal", "max_completion_tokens": 100}, None),
        ({"reasoning_effort": "low"}, {"max_completion_tokens": 512}),
        ({"reasoning_effort": "low", "max_tokens": 4000}, {"max_tokens": 512}),
        ({"reasoning_effort": "low", "max_tokens": 100}, None),
        ({"reasoning_effort": "of their own", "max_completion_tokens": "x"}, None),
        (
            {"reasoning_effort": None, "max_completion_tokens": None},
            {"reasoning_effort": "low", "max_completion_tokens": 512},
        ),
    ],
)
def test_fields_are_only_lowered(asked: dict[str, Any], lower_to: dict[str, Any] | None) -> None:
    assert lower({"model": "m", **asked}) == lower_to


def test_an_endpoint_gets_only_fields_that_it_has() -> None:
    assert lower({"model": "m"}, "embeddings") is None
    both = LatencyRules(1.0, {"max_completion_tokens": 9, "max_output_tokens": 7})
    assert lower({"model": "m"}, "responses", both) == {"max_output_tokens": 7}
    assert lower({"model": "m"}, "chat", both) == {"max_completion_tokens": 9}


@pytest.mark.parametrize(
    ("asked", "lower_to"),
    [
        ({}, {"reasoning": {"effort": "low"}, "max_output_tokens": 512}),
        (
            {"reasoning": {"summary": "auto", "effort": "high"}, "max_output_tokens": 999},
            {"reasoning": {"summary": "auto", "effort": "low"}, "max_output_tokens": 512},
        ),
        ({"reasoning": {"summary": None}}, {"reasoning": {"summary": None, "effort": "low"}, "max_output_tokens": 512}),
        ({"reasoning": None, "max_output_tokens": 9}, {"reasoning": {"effort": "low"}}),
        ({"reasoning": {"effort": "minimal"}, "max_output_tokens": 9}, None),
        ({"reasoning": "theirs", "max_output_tokens": 9}, None),
        ({"reasoning": {"effort": ["x"]}, "max_output_tokens": 9}, None),
    ],
)
def test_responses_say_it_in_their_own_words(asked: dict[str, Any], lower_to: dict[str, Any] | None) -> None:
    body = {"model": "m", **asked}
    found = degraded_request("responses", orjson.dumps(body), body, None, RULES)
    assert (None if found is None else orjson.loads(found.body)) == (lower_to and {**body, **lower_to})
    if found is not None:
        names = {"reasoning.effort" if one == "reasoning" else one for one in lower_to or ()}
        assert (set(found.fields), found.max_tokens) == (names, 512 if "max_output_tokens" in names else None)


@pytest.mark.parametrize(
    ("asked", "lower_to"),
    [
        ({"max_tokens": 999}, {"max_tokens": 512}),
        ({"max_tokens": 9}, None),
        ({"max_tokens": 9, "output_config": {"effort": "max"}}, {"output_config": {"effort": "low"}}),
        ({"max_tokens": 9, "output_config": {"format": {}}}, None),
        ({"max_tokens": 999, "thinking": {"type": "enabled", "budget_tokens": 600}}, None),
    ],
)
def test_messages_say_it_in_their_own_words(asked: dict[str, Any], lower_to: dict[str, Any] | None) -> None:
    """An effort that is not named is not, since not every model knows one; what it thinks stays below the bound."""
    body = {"model": "m", **asked}
    for effort in ("none", "low"):
        found = degraded_request(
            "messages", orjson.dumps(body), body, None, replace(RULES, set={**RULES.set, "reasoning_effort": effort})
        )
        assert (None if found is None else orjson.loads(found.body)) == (lower_to and {**body, **lower_to})


def test_a_bound_has_the_name_of_its_endpoint() -> None:
    assert lower({"model": "m"}, "completions") == {"max_tokens": 512}


scalars = st.one_of(st.none(), st.integers(1, 9000), st.sampled_from(("none", "minimal", "low", "medium", "high", "x")))
bodies = st.dictionaries(st.sampled_from((*SCALES, *BOUNDS, "messages", "metadata")), scalars)


@given(
    bodies,
    st.fixed_dictionaries(
        {}, optional={"verbosity": st.sampled_from(SCALES["verbosity"]), "max_tokens": st.integers(1, 9000)}
    ),
)
def test_nothing_is_raised_and_nothing_else_touched(body: dict[str, Any], wanted: dict[str, Any]) -> None:
    raw = orjson.dumps(body)
    found = degraded_request("chat", raw, body, None, LatencyRules(1.0, wanted))
    after = body if found is None else orjson.loads(found.body)
    fields = () if found is None else found.fields
    assert {name: value for name, value in after.items() if name not in fields} == {
        name: value for name, value in body.items() if name not in fields
    }
    for name in fields:
        before = body.get(name)
        if name in SCALES:
            assert SCALES[name].index(after[name]) < SCALES[name].index(before or "medium")
        else:
            assert before is None or after[name] < before
