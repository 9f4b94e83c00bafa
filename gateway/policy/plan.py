"""The name by which a target's provider knows the model that a call asks for.

A target that is compiled for a pattern serves the name the client asked for.
"""

from __future__ import annotations

from gateway.call import Call
from gateway.policy.snapshot import Target


def upstream_model(call: Call, target: Target) -> str:
    """The name by which the target's provider knows the model."""
    return target.model if target.model is not None else call.model_name
