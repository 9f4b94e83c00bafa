"""Which targets a call may use, in order: the model's own, then those of its fallbacks (compiled ahead of time).

A target that is compiled for a pattern serves the name the client asked for.
"""

from __future__ import annotations

from gateway.call import Call
from gateway.policy.snapshot import Target


def plan_targets(call: Call) -> tuple[Target, ...]:
    """The targets for this call, each at most once, best first; never empty."""
    return call.model.plan


def upstream_model(call: Call, target: Target) -> str:
    """The name by which the target's provider knows the model."""
    return target.model if target.model is not None else call.model_name
