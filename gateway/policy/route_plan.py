"""What a plan means for one call: the name by which a target knows its model, and where its own credential does not go.

A target that is compiled for a pattern serves the name the client asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.policy.request import Request
from gateway.policy.snapshot import Model, Target


def upstream_model(request: Request, target: Target) -> str:
    """The name by which the target's provider knows the model."""
    return target.model if target.model is not None else request.model_name


def strangers_of(model: Model) -> Iterator[tuple[Target, str]]:
    """The targets that do not see callers' own credentials, and in words what that means."""
    bound = model.for_callers
    if bound is None:
        return
    kept = {target.name for target in (*bound.plan, *bound.context_plan)}
    for target in {target.name: target for target in (*model.plan, *model.context_plan)}.values():
        if target.name in bound.withheld:
            what = "is called without the caller's own credential"
        elif target.name not in kept:
            what = "is skipped by calls with a credential of the caller's own"
        else:
            continue
        remedy = f"providers.{target.provider}.accepts_callers_of: [{bound.credentials_of}] lets it go there"
        yield target, f"{what}, which is taken to be one of {bound.credentials_of} ({remedy})"
