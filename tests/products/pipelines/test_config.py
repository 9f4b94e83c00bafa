"""Pipelines in the policy folder: what is wrong is told with its line, and what changes is loaded again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.admin.describe import describe
from gateway.housekeeping import Reloader
from gateway.products.pipelines.compile import PIPELINES
from gateway.products.pipelines.rules import misfit_of
from gateway.sections import SECTIONS
from tests.support.configs import ENVIRON, GOOD, ROOT, load, load_text, problems_of

CONFIG = f"policies: policies\n{GOOD}"
REPORT = """\
input: {type: object, required: [document]}
usd_per_run: 2
steps:
  extract:
    call: {model: gpt-4o, messages: [{role: user, content: "{{ input.document }}"}]}
    output: {schema: schemas/clauses.json, on_invalid: {retry: 2, repair_with: gpt-4o}}
    timeout: 5m
    retries: 1
  clause:
    for_each: steps.extract.json.clauses
    max_concurrency: 5
    on_failure: {tolerate_percent: 10}
    choose:
      - {when: "item.lang == 'es'", call: {model: gpt-4o, messages: [{role: user, content: "{{ item.text }}"}]}}
      - {call: {model: gpt-4o, messages: [{role: user, content: "{{ item.text }}"}]}}
output: steps.clause.texts
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policies" / "pipelines" / "schemas").mkdir(parents=True)
    (tmp_path / "policies" / "pipelines" / "schemas" / "clauses.json").write_text('{"type": "object"}')
    return tmp_path


def write(folder: Path, text: str, name: str = "report.yaml") -> None:
    (folder / "policies" / "pipelines" / name).write_text(text)


def told(folder: Path, text: str) -> list[str]:
    """What is wrong with a pipeline of this text, without its file's name."""
    write(folder, text)
    return [line.removeprefix("policies/pipelines/report.yaml:") for line in problems_of(folder, CONFIG)]


def test_a_pipeline_is_part_of_the_snapshot(folder: Path) -> None:
    write(folder, REPORT)
    policy = load_text(folder, CONFIG)
    plan = PIPELINES.of(policy)["report"]
    assert list(plan.steps) == ["extract", "clause"]
    assert (plan.steps["extract"].timeout_s, plan.steps["extract"].retries) == (300.0, 1)
    assert plan.source["steps"]["extract"]["output"]["schema"] == {"type": "object"}
    assert describe(policy)["pipelines"]["report"]["models"] == ["gpt-4o"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("usd_per_run: 2", "budget_usd: 2", '2: budget_usd: unknown field; did you mean "usd_per_run"?'),
        ("usd_per_run: 2", "usd_per_run: 0", "2: usd_per_run: must be more than 0"),
        ("for_each:", "foreach:", '10: steps.clause.foreach: unknown field; did you mean "for_each"?'),
        ("retries: 1", "retries: 100", "8: steps.extract.retries: must be at most 99"),
        ("timeout: 5m", "timeout: 5", "7: steps.extract.timeout: 5 has no unit"),
        ("schemas/clauses.json", "schemas/none.json", '6: steps.extract.output.schema: "schemas/none.json" cannot be read'),
        ("schemas/clauses.json", "report.yaml", "is no JSON"),
        ("repair_with: gpt-4o", "repair_with: gpt-4", '6: steps.extract.output.on_invalid.repair_with: no model "gpt-4"'),
        ("steps.extract.json", "steps.extrct.json", '10: steps.clause.for_each: unknown step extrct in steps.extrct.json.cl'),
        ("{{ item.text }}", "{{ item.text | fist(2) }}", 'unknown filter `fist`; did you mean "first"?'),
        ("{{ input.document }}", "{{ steps.clause.texts }}", "4: steps.extract: waits for itself: extract <- clause"),
        ("item.lang ==", "itm.lang ==", '14: steps.clause.choose[0].when: unknown value itm; did you mean "item"?'),
        ("item.lang == 'es'", "item.lang = 'es'", "14: steps.clause.choose[0].when: is not valid JMESPath"),
        ("tolerate_percent: 10", "tolerate: 10", '12: steps.clause.on_failure.tolerate: unknown field; did you mean'),
        ("{tolerate_percent: 10}", "retry", "12: steps.clause.on_failure: unknown way to go on"),
        ("output: steps.clause.texts", "output: steps.clause.text", '16: output: unknown result text in steps.clause.text'),
        ("{type: object,", "{type: objct,", "1: input: cannot be used as a schema"),
        ("{tolerate_percent: 10}", "{repair_with: gpt-4}", '12: steps.clause.on_failure.repair_with: no model "gpt-4"'),
        ("{tolerate_percent: 10}", "{tolerate_percent: 1, use: 1}", "12: steps.clause.on_failure: takes `fail`, `conti"),
        ("{tolerate_percent: 10}", "{tolerate_percent: 200}", "12: steps.clause.on_failure.tolerate_percent: must be at most"),
        ("max_concurrency: 5", "max_concurrency: 5000", "11: steps.clause.max_concurrency: must be at most 1000"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(folder: Path, old: str, new: str, problem: str) -> None:
    assert old in REPORT
    problems = told(folder, REPORT.replace(old, new, 1))
    assert any(problem in line for line in problems), problems


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (
            {"properties": {"a": {"$ref": "part"}}, "$defs": {"p": {"$id": "part"}}},
            '3: input."$defs".p."$id": gives a part',
        ),
        (
            {"properties": {"a": {"$id": "part", "$ref": "#/$defs/p", "$defs": {"p": {}}}}},
            '2: input.properties.a."$id": gives',
        ),
        (
            {"$id": "http://a/b.json", "properties": {"a": {"$ref": "b.json"}}},
            '3: input.properties.a."$ref": leads out',
        ),
        (
            {"properties": {"a": {"$ref": "https://json-schema.org/draft/2020-12/schema"}}},
            '2: input.properties.a."$ref": leads',
        ),
    ],
)
def test_a_schema_that_no_input_would_fit_is_told_with_its_line(
    folder: Path, schema: dict[str, Any], problem: str
) -> None:
    input_ = "input:\n" + "".join(f"  {name}: {json.dumps(value)}\n" for name, value in schema.items())
    problems = told(folder, input_ + "steps:\n" + REPORT.partition("steps:\n")[2])
    assert any(problem in line for line in problems), problems
    assert misfit_of(schema, {"a": "x"}) is not None


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "http://a/b.json", "properties": {"a": {"$ref": "#/$defs/p"}}, "$defs": {"p": {"type": "string"}}},
        {"$id": "http://a/b.json", "properties": {"a": {"$ref": "http://a/b.json#/$defs/p"}}, "$defs": {"p": {}}},
        {"properties": {"a": {"$id": "part", "type": "string"}}},
        {"properties": {"$id": {"type": "string"}, "a": {"$ref": "#/$defs/p"}}, "$defs": {"p": {"type": "string"}}},
        {"properties": {"k": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, "p": {"pattern": "^a*b$"}}},
    ],
)
def test_names_in_a_schema_are_no_problem_where_its_references_are_known(folder: Path, schema: dict[str, Any]) -> None:
    assert told(folder, f"input: {json.dumps(schema)}\nsteps:\n" + REPORT.partition("steps:\n")[2]) == []
    assert misfit_of(schema, {"a": "x"}) is None


def test_failed_items_may_be_repaired_and_then_tolerated(folder: Path) -> None:
    for repaired in ("{repair_with: gpt-4o}", "{tolerate_percent: 10, repair_with: gpt-4o}"):
        assert told(folder, REPORT.replace("{tolerate_percent: 10}", repaired)) == []


def test_odd_files_are_problems_and_nothing_else(folder: Path) -> None:
    steps = (
        "{a: {call: }}",
        "{a: {call: {model: gpt-4o, messages: hello}}}",
        "[]",
        "{a: }",
        "{a: 3}",
        "{a: {call: 3}}",
        "{a: {choose: [3]}}",
        "{a: {call: {model: 3}}}",
    )
    for text in (*steps, "{a: {choose: [{call: {}}], on_failure: {}}}", "{}", "3"):
        assert told(folder, f"steps: {text}"), text
    assert told(folder, "[]")
    large = folder / "policies" / "pipelines" / "schemas" / "clauses.json"
    large.write_text('{"description": "' + "x" * 65536 + '"}')
    assert "is larger than 64 KiB" in told(folder, REPORT)[0]


def test_a_missing_package_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, REPORT)
    for package in ("jmespath", "jsonschema_rs"):
        monkeypatch.setitem(sys.modules, package, None)
    problems = problems_of(folder, CONFIG)
    assert len(problems) == 3
    assert all("pip install '.[pipelines]'" in line for line in problems)
    write(folder, 'steps: {a: {call: {model: gpt-4o, messages: [{role: user, content: "{{ input }}"}]}}}')
    assert problems_of(folder, CONFIG) == []  # it needs neither


def test_the_example_that_is_shipped_can_be_used(folder: Path) -> None:
    write(
        folder, (ROOT / "policies" / "pipelines" / "contract-report.yaml.example").read_text(), "contract-report.yaml"
    )
    policy = load_text(folder, f"{CONFIG}  gpt-4o-mini: {{targets: [openai/gpt-4o-mini]}}\n")
    assert list(PIPELINES.of(policy)["contract-report"].steps) == ["extract", "language", "clause", "report"]


def test_a_changed_pipeline_or_schema_is_loaded_again(folder: Path) -> None:
    write(folder, REPORT)
    first = load_text(folder, CONFIG)
    path = folder / "config.yaml"
    reloader = Reloader(
        path, ENVIRON, sections=SECTIONS, load=lambda: load(path), install=lambda _new: None, current=first
    )
    (folder / "policies" / "pipelines" / "schemas" / "clauses.json").write_text('{"type": "array"}')
    assert not reloader.changed()
    assert reloader.changed()
    assert reloader.reload().status == "loaded"
    second = load(path)
    assert PIPELINES.of(second)["report"].digest != PIPELINES.of(first)["report"].digest
    write(folder, "steps: {}")
    assert reloader.reload().status == "failed"
