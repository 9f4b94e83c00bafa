"""Conditions of pipelines come to what JMESPath says, and their work is counted."""

from __future__ import annotations

from typing import Any

import jmespath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jmespath.exceptions import JMESPathError

from gateway.products.jobs.calls import RUN_BUDGET_EXCEEDED
from gateway.products.pipelines.advance import advance
from gateway.products.pipelines.compile import PipelinePlan, compile_plan
from gateway.products.pipelines.rules import (
    TOO_MUCH_WORK,
    RunFailed,
    RunStates,
    Start,
    StepError,
    StepPart,
    StepPhase,
    StepState,
)
from gateway.products.pipelines.templates import ConditionJudge, Hurry, TooLong, TooMuchWork, Work

EXPRESSIONS = (
    "contains(a, b)", "a == b", "a != b", "a < b", "a[?x > `1`].x", "a[*].x", "*.x", "a[]", "a[0:2]", "a[0]",
    "sort(a)", "sort_by(a, &x)", "max_by(a, &x)", "join(',', a)", "to_string(@)", "map(&x, a)", "length(a)", "sum(a)",
    "a && b || !b", "{p: a, q: b}", "[a, b] | [1]", "keys(@)", "merge(a, b)", "not_null(x, a)", "reverse(a)", "b.x",
    "to_number(b)", "starts_with(a, b)", "a[?contains(@, 'p')]", "abs(b)", "type(a)", "nope(a)", "length(a, b)",
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["p", "q", "pq", ""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=8,
)


def outcome(judge: Any, *given: Any) -> Any:
    try:
        return judge(*given)
    except (JMESPathError, TypeError, ValueError, AttributeError) as error:
        return type(error)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(EXPRESSIONS), VALUES, VALUES)
def test_a_counted_expression_comes_to_the_same(expression: str, a: Any, b: Any) -> None:
    parsed, values = jmespath.compile(expression), {"a": a, "b": b}
    assert outcome(ConditionJudge(Work()).visit, parsed.parsed, values) == outcome(parsed.search, values)


def plan_of(when: str) -> PipelinePlan:
    call = {"model": "m", "messages": [{"role": "user", "content": "{{ item }}"}]}
    step = {"for_each": "input.list", "choose": [{"when": when, "call": call}], "on_failure": {"tolerate_count": 1}}
    plan, problems = compile_plan("p", {"steps": {"x": step}})
    assert plan is not None, problems
    return plan


@pytest.mark.parametrize(
    "when",
    [
        "contains(input.list, item)",
        "length(input.list[?@ == 'x']) == `0` && item",
        "contains(to_string(input.list), item)",
        "item && length(sort(input.list)) > `3`",
        "[item] != input.lists[0] && !contains(input.lists, [item])",
        "join('', input.list) != item",
        "length(input.list[]) > `1` && item",
        "length(input.list[0:]) > `1` && item",
    ],
)
def test_conditions_of_items_are_work_that_is_bounded(when: str) -> None:
    """So much of it fails the step by its name, and far less of it is not done while others wait."""
    items = [f"item {number}" for number in range(150)]
    given = {"list": items, "lists": [items] * 150}
    plan = plan_of(when)
    assert isinstance(advance(plan, RunStates(given, {})), Start)
    end = advance(plan, RunStates(given, {}, most_work=700_000))
    assert isinstance(end, RunFailed)
    assert (end.why.error_class, end.why.step) == (TOO_MUCH_WORK, "x")
    assert "filters and conditions make of `item`" in end.why.message
    with pytest.raises(TooLong):  # once more, where nobody waits
        advance(plan, RunStates(given, {}, hurry=Hurry(500_000)))


def test_what_a_function_does_at_once_is_bounded() -> None:
    """It keeps the interpreter's lock all the time; a value that is many times in another is counted as often."""
    doubled = jmespath.compile("to_string(" + " | ".join(["@.{a: @, b: @}"] * 60) + ")")
    for expression, value in ((doubled, {}), (jmespath.compile("sort(@)"), ["a"] * 50_000)):
        with pytest.raises(TooMuchWork):
            ConditionJudge(Work()).visit(expression.parsed, value)


@pytest.mark.parametrize(
    ("when", "often"),
    [
        ("input.is_on", 1),
        ("contains(input.list, 'a')", 1),
        ("item == 'a'", 9),
        ("*.x || input.is_on", 9),
        ("@.item", 9),
    ],
)
def test_a_condition_that_sees_no_item_is_judged_once(when: str, often: int, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = 0
    visit = ConditionJudge.visit

    def counted(self: ConditionJudge, node: Any, value: Any) -> Any:
        nonlocal judged
        judged += isinstance(value, dict) and "steps" in value and node is root
        return visit(self, node, value)

    monkeypatch.setattr(ConditionJudge, "visit", counted)
    plan = plan_of(when)
    condition = plan.steps["x"].branches[0].when
    assert condition is not None
    root = condition.parsed.parsed
    begun = advance(plan, RunStates({"list": ["a"] * 9, "is_on": True}, {}))
    assert isinstance(begun, Start)
    assert begun.steps[0].requests.count(None) == 0
    assert judged == often


def test_an_item_that_had_no_money_is_told_before_others() -> None:
    plan = plan_of("item")
    spent = StepError(RUN_BUDGET_EXCEEDED, "nothing left", "x")
    end = advance(plan, RunStates({"list": []}, {"x": StepState(StepPart.FIRST, StepPhase.DONE, {}, 2, 3, spent)}))
    assert end == RunFailed(spent)
