"""Declared pipelines as decisions: what a plan may say, how texts are filled and divided, and what comes next in a run."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.products.jobs.calls import RUN_BUDGET_EXCEEDED
from gateway.products.pipelines.advance import advance, values_of, values_of_many, wanted_values
from gateway.products.pipelines.compile import PipelinePlan, compile_plan
from gateway.products.pipelines.rules import (
    TOO_MANY_FAILED,
    VALUE_MISSING,
    RunFailed,
    RunFinished,
    RunStates,
    Start,
    StepError,
    StepPart,
    StepPhase,
    StepState,
    misfit_of,
    schema_problem,
    with_defaults,
)
from gateway.products.pipelines.templates import (
    PlanProblem,
    Scope,
    StepFilling,
    ValueMissing,
    fill,
    read_place,
    read_template,
    split_text,
)
from tests.rows import rows


def call(content: Any = "x", model: str = "m", **others: Any) -> dict[str, Any]:
    return {"call": {"model": model, "messages": [{"role": "user", "content": content}]}, **others}


def plan_of(steps: dict[str, Any], **others: Any) -> PipelinePlan:
    plan, problems = compile_plan("p", {"steps": steps, **others})
    assert plan is not None, problems
    return plan


def problems_of(steps: dict[str, Any], **others: Any) -> list[str]:
    return [problem.message for problem in compile_plan("p", {"steps": steps, **others})[1]]


def content_of(start: Any, index: int = 0) -> Any:
    return start.requests[index]["messages"][0]["content"]


# --- texts ---


def count(text: str) -> float:
    return len(text.encode()) / 4


@given(st.text(st.sampled_from("ab. \n!?é漢。👩‍🚀\r\t"), max_size=400) | st.text(max_size=200), st.integers(1, 40))
def test_a_divided_text_is_the_text_and_no_part_is_too_long(text: str, tokens: int) -> None:
    pieces = split_text(text, tokens, count)
    assert "".join(pieces) == text
    assert all(pieces)
    assert all(count(piece) <= tokens or len(piece) == 1 for piece in pieces)


def test_cuts_are_made_where_a_reader_would_make_them() -> None:
    text = "One two. Three four.\n\nFive six. Seven eight nine ten."
    assert split_text(text, 6, count) == ["One two. Three four.\n\n", "Five six. ", "Seven eight nine ten."]


@pytest.mark.parametrize(
    "text", ["." * 40_000, "\n" * 40_000, " " * 40_000, "ab. " * 10_000, "a\n\n" + "b c\n" * 9_999]
)
def test_a_divided_text_is_counted_a_few_times_a_piece(text: str) -> None:
    counted: list[int] = []

    def counting(part: str) -> float:
        counted.append(len(part))
        return count(part)

    pieces = split_text(text, 100, counting)
    assert "".join(pieces) == text
    assert len(pieces) < 150
    assert len(counted) <= 4 * len(pieces)
    assert sum(counted) <= 5 * len(text)


def test_places_hold_values_and_values_are_never_templates() -> None:
    problems: list[PlanProblem] = []
    source = {
        "content": '{{ input.a }} {{ input.list | join }}|{{input.list|join(", ")}}|{{ input.d | first(2) }}|{{ "{{" }}',
        "input": "{{ input.list }}",
        "text": "{{ input.list }}",
        "n": ["{{ input.d.k | json }}", 3],
    }
    template = read_template(source, (), problems)
    assert problems == []
    values = {"a": "{{ steps.x.text }}", "list": ["p", None, 2], "d": {"k": {"z": 1}}}
    scope = Scope({**values, "d": "héé"}, {})
    with pytest.raises(ValueMissing, match=r"input\.d\.k is not there"):
        fill(template, scope, StepFilling(count))
    template["n"] = 3
    assert fill(template, scope, StepFilling(count)) == {
        "content": "{{ steps.x.text }} p\n\n2|p, 2|hé|{{",
        "input": ["p", None, 2],
        "text": '["p",null,2]',
        "n": 3,
    }


@rows(
    ("source", "message"),
    [
        ("{{ input.x | frist(2) }}", "unknown filter"),
        ("{{ input.x | first }}", "takes a number"),
        ("{{ input.x | split(0) }}", "takes a number"),
        ("{{ input.x | join(3) }}", "takes nothing, or a text"),
        ("{{ input.x | json(3) }}", "takes nothing"),
        ("{{ __import__('os') }}", "is no value"),
        ("{{ env.HOME }}", "unknown value env"),
        ("{{ steps }}", "is no value"),
        ("{{ input.x", "has no"),
    ],
)
def test_what_is_no_place_is_refused(source: str, message: str) -> None:
    problems: list[PlanProblem] = []
    read_template({"content": source}, (), problems)
    assert message in problems[0].message


def test_a_place_leads_through_lists_and_through_nothing() -> None:
    problems: list[PlanProblem] = []
    deep = read_place("steps.a.json.rows.1.name", (), problems)
    gone = read_place("steps.b.json.rows | join", (), problems)
    assert deep is not None
    assert gone is not None
    scope = Scope({}, {"a": {"json": {"rows": [{}, {"name": "n"}]}}})
    assert StepFilling(count).value(deep, scope) == "n"
    assert StepFilling(count).value(gone, scope) == ""


# --- plans ---


def test_names_that_are_not_there_and_circles_are_refused() -> None:
    ok = {"a": call(), "b": call("{{ steps.a.text }}")}
    assert problems_of({**ok, "b": call("{{ steps.aa.text }}")}) == ["unknown step aa in steps.aa.text"]
    assert problems_of({**ok, "b": call("{{ steps.a.texts }}")}) == ["unknown result texts in steps.a.texts"]
    assert problems_of({**ok, "b": call("{{ item }}")}) == ["`item` is known only in the calls of a step with for_each"]
    assert "waits for itself: a <- b <- a" in problems_of({"a": call("{{ steps.b.text }}"), "b": call(after=["a"])})
    assert problems_of({"a": call("{{ steps.a.text }}")})[0].startswith("waits for itself")
    assert "several steps" in problems_of({"a": call(), "b": call()})[0]
    assert "at most 50" in problems_of({f"s{n}": call() for n in range(51)})[0]
    assert "is no name" in problems_of({"a-b": call()})[0]
    assert problems_of({"a": call(on_failure={"tolerate_count": 1})}) == ["is of steps with for_each only"]
    assert "unknown step" in problems_of({"a": call(when="steps.z.text == 'x'")})[0]
    assert "not valid JMESPath" in problems_of({"a": call(when="a ==")})[0]
    assert problems_of({"a": {"call": {"model": "m", "messages": [], "stream": True}}})[0].startswith("has no place")


def test_a_plan_is_named_by_its_source_and_orders_its_steps() -> None:
    steps = {"z": call("{{ steps.a.text }}"), "a": call(), "m": call(after=["z"])}
    plan = plan_of(steps)
    assert list(plan.steps) == ["a", "z", "m"]
    assert plan.last == "m"
    assert plan.digest == plan_of(dict(reversed(steps.items()))).digest
    assert plan.digest != plan_of({**steps, "a": call("y")}).digest


def test_an_input_whose_check_would_keep_everybody_waiting_does_not_fit() -> None:
    inner = {"$ref": "#/$defs/n"}
    ways = [{"properties": {"x": inner}}, {"properties": {"x": inner}}]
    schema = {"$defs": {"n": {"anyOf": ways, "properties": {"y": {"type": "integer"}}}}, **inner}
    value: dict[str, Any] = {"y": "z"}
    for _ in range(40):
        value = {"x": value}
    assert misfit_of(schema, value) == ("", "is too large, or nested too deep, to be checked by this schema")
    assert misfit_of(schema, {"x": {"y": 1}}) is None
    assert misfit_of({"type": "array", "items": {"type": "integer"}}, list(range(50_000))) is None


def test_schemas_are_checked_and_values_held_against_them() -> None:
    schema = {"type": "object", "required": ["document"], "properties": {"n": {"type": "integer", "default": 3}}}
    assert schema_problem(schema) == ""
    assert "cannot be used" in schema_problem({"type": "objekt"})
    assert "cannot be used" in schema_problem({"pattern": "(?=a)b"})
    assert "not followed" in schema_problem({"$ref": "https://example.com/x.json"})
    assert misfit_of(schema, {}) == ("document", "is missing")
    assert misfit_of(schema, {"document": 1, "n": "x"}) == ("n", "does not fit the rule `type` of the schema")
    assert misfit_of(schema, with_defaults(schema, {"document": 1})) is None
    assert with_defaults(schema, {"document": 1}) == {"document": 1, "n": 3}


def test_results_are_read_by_kind() -> None:
    chat = orjson.dumps({"choices": [{"message": {"content": '```json\n{"a": 1}\n```'}}]})
    said = [{"type": "reasoning"}, {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}]
    assert values_of("chat", chat)["json"] == {"a": 1}
    assert values_of("responses", orjson.dumps({"output": said})) == {"text": "hi"}
    assert values_of("embeddings", orjson.dumps({"data": [{"embedding": [1.0]}]}))["embedding"] == [1.0]
    assert values_of("moderations", b'{"results": [{"flagged": true}]}') == {"results": [{"flagged": True}]}
    many = values_of_many("chat", [orjson.loads(chat), None], "-")
    assert (many["texts"][1], many["json"], many["total"], many["failed"]) == ("-", [{"a": 1}, "-"], 2, 1)


# --- what comes next ---

DONE = StepState(StepPart.FIRST, StepPhase.DONE, {"text": "es"})


def states(given: Any = None, spent: float = 0.0, **steps: StepState) -> RunStates:
    return RunStates(given, steps, spent, lambda _model: count)


def test_the_first_branch_that_holds_is_asked_and_without_one_a_step_is_left_out() -> None:
    choose = [{"when": "steps.a.text == 'es'", **call("si", "big")}, {"when": "steps.a.text == 'de'", **call("ja")}]
    plan = plan_of({"a": call(), "b": {"choose": choose}, "c": call("<{{ steps.b.text }}>")})
    spanish = advance(plan, states(a=DONE))
    assert isinstance(spanish, Start)
    assert (content_of(spanish.steps[0]), spanish.steps[0].models) == ("si", ["big"])
    other = advance(plan, states(a=StepState(StepPart.FIRST, StepPhase.DONE, {"text": "fr"})))
    assert isinstance(other, Start)
    assert content_of(other.steps[0]) == "<>"


def test_items_are_asked_each_by_its_own_branch_and_counted_when_nothing_can_be_asked() -> None:
    choose = [
        {"when": "item.kind == 'a'", **call("A{{ item.t }}")},
        {"when": "item.kind == 'b'", **call("B{{ item.t }}")},
    ]
    plan = plan_of({"x": {"for_each": "input.rows", "choose": choose, "on_failure": {"tolerate_percent": 25}}})
    rows = [{"kind": "b", "t": 1}, {"kind": "c"}, {"kind": "a"}, {"kind": "a", "t": 2}]
    begun = advance(plan, states({"rows": rows}))
    assert isinstance(begun, Start)
    (start,) = begun.steps
    assert [one and one["messages"][0]["content"] for one in start.requests] == ["B1", None, None, "A2"]
    assert start.failed == 1
    assert advance(plan, states({"rows": []})) == RunFinished([])
    assert isinstance(advance(plan, states({"rows": 3})), RunFailed)
    assert isinstance(advance(plan, states({"rows": rows[2:3]})), RunFailed)


def test_so_many_items_may_fail_and_no_more() -> None:
    plan = plan_of({"x": {"for_each": "input", **call("{{ item }}"), "on_failure": {"tolerate_percent": 10}}})
    of = StepState(StepPart.FIRST, StepPhase.DONE, {"texts": ["ok"]}, failed=10, total=100)
    assert advance(plan, states([], x=of)) == RunFinished(["ok"])
    more = advance(plan, states([], x=StepState(StepPart.FIRST, StepPhase.DONE, {}, failed=11, total=100)))
    assert isinstance(more, RunFailed)
    assert more.why.error_class == TOO_MANY_FAILED


def test_a_long_input_is_divided_by_the_tokens_of_the_steps_model() -> None:
    plan = plan_of({"x": {"for_each": "input.document | split(2)", **call("{{ item }}")}})
    begun = advance(plan, states({"document": "abcd efgh ijkl mnop"}))
    assert isinstance(begun, Start)
    assert [one["messages"][0]["content"] for one in begun.steps[0].requests if one] == [
        "abcd ",
        "efgh ",
        "ijkl ",
        "mnop",
    ]


def test_a_request_is_repaired_once() -> None:
    plan = plan_of({"a": call("{{ input }}", on_failure={"repair_with": "fixer"})})
    error = StepError("context_length_exceeded", "too long", "a")
    failed = StepState(StepPart.FIRST, StepPhase.FAILED, error=error)
    asked = advance(plan, states("long text", a=failed))
    assert isinstance(asked, Start)
    (repair,) = asked.steps
    assert (repair.part, repair.models) == (StepPart.REPAIR, ["fixer"])
    told = content_of(repair)
    assert all(words in told for words in ("context_length_exceeded", "too long", "long text"))
    change = {"messages": [{"role": "user", "content": "short"}], "model": "other", "temperature": 2}
    answer = orjson.dumps({"choices": [{"message": {"content": orjson.dumps(change).decode()}}]})
    again = advance(plan, states("long text", a=StepState(StepPart.REPAIR, StepPhase.DONE, answer=answer, error=error)))
    assert isinstance(again, Start)
    assert again.steps[0].requests == [{"model": "m", "messages": change["messages"]}]
    end = advance(plan, states("long text", a=StepState(StepPart.SECOND, StepPhase.FAILED, error=error)))
    assert end == RunFailed(error)
    useless = advance(plan, states("x", a=StepState(StepPart.REPAIR, StepPhase.DONE, answer=b"{}", error=error)))
    assert isinstance(useless, RunFailed)
    assert useless.why.error_class == "context_length_exceeded"


def test_no_step_begins_once_the_run_has_cost_what_it_may() -> None:
    plan = plan_of({"a": call(), "b": call("{{ steps.a.text }}")}, usd_per_run=0.5)
    assert isinstance(advance(plan, states(a=DONE, spent=0.49)), Start)
    over = advance(plan, states(a=DONE, spent=0.5))
    assert isinstance(over, RunFailed)
    assert over.why.error_class == RUN_BUDGET_EXCEEDED
    assert isinstance(advance(plan, states(a=DONE, b=DONE, spent=0.6)), RunFinished)


def test_a_value_that_is_missing_fails_its_step_by_name() -> None:
    plan = plan_of({"a": call(), "b": call("{{ steps.a.json.rows }}")})
    end = advance(plan, states(a=DONE))
    assert isinstance(end, RunFailed)
    assert (end.why.error_class, end.why.step) == (VALUE_MISSING, "b")


def test_what_does_not_fit_a_condition_fails_its_step_and_nothing_else() -> None:
    plan = plan_of(
        {"a": {"choose": [call(when="input.n > `3`")], "on_failure": "continue"}, "b": call()}, output="steps.b.text"
    )
    assert isinstance(advance(plan, RunStates({"n": "many"}, {"b": DONE})), RunFinished)
    assert problems_of({"a": {"choose": [call(when="lenght(input) > `3`")]}}) == ["unknown function lenght"]


def test_an_answer_that_is_nested_too_deep_is_a_text_and_no_value() -> None:
    said = {"choices": [{"message": {"content": "[" * 101 + "]" * 101}}]}
    assert list(values_of("chat", orjson.dumps(said))) == ["text"]


def test_all_requests_for_the_items_of_a_step_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.products.pipelines.advance.MOST_REQUESTS_CHARS", 10_000)
    plan = plan_of({"a": {"for_each": "input.items", **call("{{ input.text }} {{ item }}"), "on_failure": "continue"}})
    large = RunStates({"items": ["x"] * 100, "text": "t" * 1000}, {})
    assert isinstance(advance(plan, replace(large, input={"items": ["x"], "text": "t" * 1000})), Start)
    assert isinstance(advance(plan, large), RunFinished)  # it has failed, and what begins of it is nothing
    end = advance(plan_of({"a": {"for_each": "input.items", **call("{{ input.text }} {{ item }}")}}), large)
    assert isinstance(end, RunFailed)
    assert end.why.error_class == "too_many_items"


def test_what_says_nothing_of_an_item_is_made_once_for_all_items() -> None:
    counted: list[str] = []

    def counting(part: str) -> float:
        counted.append(part)
        return count(part)

    content = "{{ input.text | split(10) | join }} {{ input.rows | json | first(9) }} {{ item }}"
    plan = plan_of({"a": {"for_each": "input.rows", **call(content)}})
    given = {"text": "a b. " * 200, "rows": [{"n": 1}] * 50}
    # the work is that of the list once and of the requests, not that of the list for each item
    run = RunStates(given, {}, count=lambda _model: counting, most_work=300_000)
    begun = advance(plan, run)
    assert isinstance(begun, Start)
    assert len(begun.steps[0].requests) == 50
    assert sum(map(len, counted)) <= 5 * len(given["text"])
    missing = plan_of({"a": {"for_each": "input.rows", **call("{{ input.text | split(10) | json | join }}")}})
    counted.clear()
    assert isinstance(advance(missing, run), RunFailed)
    assert sum(map(len, counted)) <= 5 * len(given["text"])


@pytest.mark.parametrize(
    "step",
    [
        {"for_each": "input.rows", **call("{{ item | split(1) | join }}")},
        {"for_each": "input.text | split(1)", **call("{{ item }}")},
        {"for_each": "input.rows", **call("{{ item | json }} {{ item.no }}")},
        call("{{ input.rows | join }}"),
    ],
)
def test_what_a_step_takes_to_be_put_together_is_bounded(step: dict[str, Any]) -> None:
    run = RunStates({"rows": ["a b. " * 20] * 100, "text": "a b. " * 2_000}, {})
    for on_failure in ({}, {"on_failure": "continue"} if "for_each" in step else {}):
        end = advance(plan_of({"a": {**step, **on_failure}, "b": call()}, output="steps.b.text"), run)
        assert not isinstance(end, RunFailed) or end.why.error_class == TOO_MANY_FAILED
    end = advance(plan_of({"a": step}), replace(run, most_work=9_000))
    assert isinstance(end, RunFailed)
    assert (end.why.error_class, end.why.step) == ("too_much_work", "a")
    assert "fewer or shorter items" in end.why.message


def test_the_models_of_a_plan_are_all_that_may_be_asked() -> None:
    output = {"schema": {}, "on_invalid": {"repair_with": "mender"}}
    steps = {"a": call(output=output, on_failure={"repair_with": "fixer"})}
    assert plan_of(steps).models == ["m", "fixer", "mender"]
    many = {
        "for_each": "input",
        "call": {"endpoint": "embeddings", "model": "e", "input": "{{ item }}"},
        "output": output,
    }
    assert problems_of({"a": many}) == ["is for answers that are texts: no schema is held against those of embeddings"]


def test_without_the_product_that_checks_answers_a_rule_for_them_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.products.pipelines.compile.HAS_OUTPUT", False)

    assert problems_of({"a": call(output={"schema": {}})}) == ["needs the product `output`, which is not installed"]
    assert problems_of({"a": call()}) == []


@st.composite
def sources(draw: st.DrawFn) -> dict[str, Any]:
    """Sources without circles: each step refers to earlier ones, and stands anywhere."""
    number = draw(st.integers(1, 7))
    names = [f"s{index}" for index in range(number)]
    steps: dict[str, Any] = {}
    for index, name in enumerate(names):
        needs = draw(st.lists(st.sampled_from(names[:index]), max_size=3, unique=True)) if index else []
        refer = [one for one in needs if draw(st.booleans())]
        content = " ".join(f"{{{{ steps.{one}.{'texts' if 'for_each' in steps[one] else 'text'} }}}}" for one in refer)
        ways = ["fail", "continue", {"use": "instead"}]
        many = draw(st.booleans())
        ways += [{"tolerate_count": 1}, {"tolerate_percent": 50}] if many else [{"repair_with": "fixer"}]
        entry = call(f"{name} {content}", after=needs, on_failure=draw(st.sampled_from(ways)))
        if draw(st.integers(0, 3)) == 0 and refer and "for_each" not in steps[refer[0]]:
            entry["when"] = f"steps.{refer[0]}.text != 'never'"
        if many:
            entry["for_each"] = "input"
        steps[name] = entry
    order = draw(st.permutations(names))
    output = {name: f"{{{{ steps.{name}.{'texts' if 'for_each' in steps[name] else 'text'} }}}}" for name in names}
    return {"steps": {name: steps[name] for name in order}, "output": output}


class Simulation:
    """Runs a plan: what a part of a step comes to follows from its request, and the order of ends from `rng`."""

    def __init__(self, plan: PipelinePlan, outcomes: dict[str, int], rng: random.Random) -> None:
        self._plan = plan
        self._outcomes = outcomes
        self._rng = rng
        self._running: dict[str, Any] = {}
        self._states: dict[str, StepState] = {}
        self.begun: list[tuple[str, StepPart]] = []

    def run(self) -> RunFinished | RunFailed:
        for _ in range(10 * len(self._plan.steps) + 10):
            wanted = wanted_values(self._plan, self._states)
            shown = {
                name: state if name in wanted else replace(state, values={}) for name, state in self._states.items()
            }
            decision = advance(self._plan, RunStates(["i", "j"], shown))
            if isinstance(decision, RunFinished | RunFailed):
                return decision
            if isinstance(decision, Start):
                for start in decision.steps:
                    self._begin(start)
            else:
                assert self._running
            self._end_one()
        raise AssertionError("the run does not end")

    def _begin(self, start: Any) -> None:
        name = start.step.name
        assert (name, start.part) not in self.begun, "begins once at most"
        assert name not in self._running
        for need in start.step.needs:
            assert need not in self._running, "never before what it needs"
        self.begun.append((name, start.part))
        before = self._states.get(name)
        self._running[name] = start
        self._states[name] = StepState(start.part, StepPhase.RUNNING, error=None if before is None else before.error)

    def _end_one(self) -> None:
        name = self._rng.choice(sorted(self._running))
        start, outcome = self._running.pop(name), self._outcomes[name]
        error = self._states[name].error or StepError("bad_request", "no", name)
        is_ok = outcome == 0 or (start.part is not StepPart.FIRST and outcome == 1)
        if start.step.for_each is not None:
            told = [one["messages"][0]["content"] for one in start.requests]
            failed = min(outcome, 2)
            values = {"texts": [None] * failed + told[failed:], "total": 2, "failed": failed}
            self._states[name] = StepState(start.part, StepPhase.DONE, values, failed, 2)
        elif is_ok and start.part is StepPart.REPAIR:
            change = {"messages": [{"role": "user", "content": f"{name} mended"}]}
            answer = orjson.dumps({"choices": [{"message": {"content": orjson.dumps(change).decode()}}]})
            self._states[name] = StepState(start.part, StepPhase.DONE, answer=answer, error=error)
        elif is_ok:
            self._states[name] = StepState(start.part, StepPhase.DONE, {"text": content_of(start)})
        else:
            self._states[name] = StepState(start.part, StepPhase.FAILED, error=error)


@settings(deadline=None)
@given(sources(), st.data())
def test_runs_end_alike_in_whatever_order_their_steps_do(source: dict[str, Any], data: st.DataObject) -> None:
    plan, problems = compile_plan("p", source)
    assert plan is not None, problems
    outcomes = {name: data.draw(st.sampled_from([0, 0, 0, 1, 2])) for name in plan.steps}
    ends = [Simulation(plan, outcomes, random.Random(seed)).run() for seed in (1, 2, 3)]
    assert len({type(end) for end in ends}) == 1
    if isinstance(ends[0], RunFinished):
        assert ends[0] == ends[1] == ends[2]
    again, _ = compile_plan("p", orjson.loads(orjson.dumps(source)))
    assert again is not None
    assert again.digest == plan.digest


@settings(deadline=None)
@given(st.integers(2, 8), st.data())
def test_circles_are_refused_wherever_they_are(number: int, data: st.DataObject) -> None:
    names = [f"s{index}" for index in range(number)]
    steps = {name: call(after=[names[index - 1]] if index else []) for index, name in enumerate(names)}
    begin = data.draw(st.integers(0, number - 1))
    end = data.draw(st.integers(begin, number - 1))
    steps[names[begin]]["after"].append(names[end])
    assert any("waits for itself" in problem for problem in problems_of(steps))
