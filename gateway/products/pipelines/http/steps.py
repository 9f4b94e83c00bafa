"""What a call is that is made for a step of a pipeline: a part of its run, whose answer may have to fit a schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from gateway.core.errors import InvalidRequest
from gateway.core.snapshot.route_plan import RoutePlan
from gateway.core.snapshot.snapshot.snapshot import PolicySnapshot
from gateway.features.output.rules.rules import CHECKED, OutputRule
from gateway.features.output.schema.schema import SchemaUnusable, compile_schema
from gateway.features.runs.rules.workflow import RunPart, WorkflowRules
from gateway.features.runs.step.part import OTHERS
from gateway.products.jobs.calls.ports.ports import StepOfRun

MOST_RULES = 64
"""That are remembered, compiled."""


class StepRules:
    """The rules for the answers of steps, each compiled when it is first asked for."""

    def __init__(self) -> None:
        self._rules: dict[bytes, OutputRule] = {}

    def rule_of(self, step: StepOfRun, plan: RoutePlan) -> OutputRule | None:
        """Returns what the answer has to be: what the step says, else what its model's policy does.

        Raises InvalidRequest where the schema cannot be used here.
        """
        if step.output is None or plan.endpoint.name not in CHECKED:
            return plan.output
        source = orjson.dumps(step.output)
        rule = self._rules.get(source)
        if rule is None:
            if len(self._rules) >= MOST_RULES:
                self._rules.clear()
            rule = self._rules[source] = _compiled(step.output)
        return rule


def part_of_step(policy: PolicySnapshot, step: StepOfRun) -> RunPart:
    """Returns the part of its run that a step's call is. The pipeline is a workflow, and may be declared as one.

    What has begun of a run is paid for: its calls are let in while it has cost less than it may, and reserve nothing.
    """
    declared = policy.workflows.get(step.workflow)
    rules = WorkflowRules(step.workflow) if declared is None else declared
    bounds = [one for one in (rules.usd_per_run, step.usd_per_run) if one is not None]
    if bounds:
        rules = replace(rules, usd_per_run=min(bounds), reserves=False)
    labels = OTHERS if declared is None else declared.labels.get(step.step) or (step.workflow, OTHERS[1])
    return RunPart(step.workflow, step.run, step.step, labels, rules, is_durable=True)


def _compiled(said: Mapping[str, Any]) -> OutputRule:
    invalid = said.get("on_invalid") or {}
    try:
        schema = compile_schema(orjson.dumps(said["schema"]))
    except SchemaUnusable as error:
        raise InvalidRequest(f"The schema of the step cannot be used here: {error}", param="output") from None
    return OutputRule(
        schema, invalid.get("retry", 0), invalid.get("repair_with"), invalid.get("then", "fail"), stream="relay"
    )
