"""What a pipeline is, as facts: its steps in order, whom they ask, how often, and what their failures mean."""

from __future__ import annotations

from typing import Any

from gateway.products.pipelines.compile.compiling import PipelinePlan, Step


def explained(plan: PipelinePlan) -> dict[str, Any]:
    """Returns the facts of a plan, as JSON has them."""
    steps = [_step(step) for step in plan.steps.values()]
    singles = sum(step.for_each is None for step in plan.steps.values())
    many = [f"1 for each item of {step.name}" for step in plan.steps.values() if step.for_each is not None]
    schema = plan.input_schema or {}
    required = set(schema.get("required", ()))
    fields = dict.fromkeys([*schema.get("properties", {}), *schema.get("required", ())])
    return {
        "model": plan.model_name,
        "digest": plan.digest,
        "description": plan.description,
        "input_fields": [name if name in required else f"{name} (optional)" for name in fields],
        "usd_per_run": plan.usd_per_run,
        "calls": " + ".join([f"up to {singles}", *many] if singles else many),
        "steps": steps,
        "output": _shown(plan.source.get("output"), plan),
    }


def _step(step: Step) -> dict[str, Any]:
    is_many = step.for_each is not None
    calls = "1" if step.branches[-1].when is None else "0 or 1"
    each = f"{calls} for each item, {step.max_concurrency} at once" if is_many else calls
    return {
        "step": step.name,
        "waits_for": sorted(step.needs),
        "endpoint": step.endpoint,
        "models": list(dict.fromkeys(branch.call.model for branch in step.branches)),
        "calls": each,
        "on_failure": _on_failure(step),
        "retries": step.retries,
        "timeout_s": step.timeout_s,
        "lane": step.lane,
        "has_output_schema": step.output is not None,
    }


def _on_failure(step: Step) -> str:
    action = step.on_failure
    tolerated = f"{action.percent:g} % may fail" if action.percent else f"{action.count} may fail"
    texts = {
        "fail": "the run fails",
        "continue": "the run goes on without it",
        "use": "a value stands in",
        "tolerate": tolerated,
    }[action.action]
    each = " of each failed item" if step.for_each is not None else ""
    return f"{action.model} changes the request{each} once; then {texts}" if action.model else texts


def _shown(output: object, plan: PipelinePlan) -> str:
    if output is None:
        return f"what {plan.last} says"
    return output if isinstance(output, str) else ", ".join(map(str, output)) if isinstance(output, dict) else "a list"
