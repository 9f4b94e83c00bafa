"""The name by which a provider knows the model that a call asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from gateway.core.call import Call, upstream_model
from gateway.core.snapshot import Model, Target
from gateway.core.types import Clocks, Upstream

CLOCKS = Clocks(1, 1, 1, 1, 1)


def target(provider: str, model: str | None) -> Target:
    return Target(f"{provider}/{model or '*'}", provider, model, cast("Upstream", None), CLOCKS)


def call_for(model: Model, name: str) -> Call:
    """As much of a call as is looked at."""
    return cast("Call", SimpleNamespace(route=SimpleNamespace(model=model), request=SimpleNamespace(model_name=name)))


def test_a_target_without_a_model_serves_the_name_that_was_asked_for() -> None:
    """That is what a pattern is compiled to."""
    named, any_name = target("openai", "gpt-4o-2024-11-20"), target("openai", None)
    call = call_for(Model("*", (named,), (named,)), "gpt-5")

    assert upstream_model(call, named) == "gpt-4o-2024-11-20"
    assert upstream_model(call, any_name) == "gpt-5"
