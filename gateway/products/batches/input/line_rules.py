"""What the lines of one batch may ask for, under the policy in force: the key that pays, its models, their providers."""

from __future__ import annotations

from typing import Any

from gateway.core.openai.usage.model_fields import other_model_field
from gateway.core.snapshot.snapshot.snapshot import Key, Model, PolicySnapshot
from gateway.core.types.words import EMULATOR
from gateway.products.batches.input.lines import LineProblem, LineRules


def line_rules(policy: PolicySnapshot, key: Key, endpoint: str, *, is_callers: bool) -> LineRules:
    """Returns the rules of a batch's lines; `endpoint` is below the base URL.

    `is_callers`: the batch came with a credential of the caller's own, which is not stored.
    """
    faults: dict[str, LineProblem | None] = {}

    def fault_of_model(name: str) -> LineProblem | None:
        if name not in faults:
            if len(faults) >= 4096:
                faults.clear()
            faults[name] = _fault_of_model(policy, key, name, is_callers=is_callers)
        return faults[name]

    return LineRules(endpoint, fault_of_model, _fault_of_fields if key.allows is not None else None)


def bare_provider(policy: PolicySnapshot, model: Model) -> str | None:
    """Returns a provider's name in the config if no provider of the model can be used without the caller's credential.

    The emulator wants none.
    """
    providers = [policy.providers[target.provider] for target in model.plan]
    if not providers or any(not one.is_callers or one.base_url.startswith(EMULATOR) for one in providers):
        return None
    return providers[0].group or providers[0].name


def key_named(policy: PolicySnapshot, name: str) -> Key | None:
    """Returns the key of that name; None: it has been taken away."""
    if not policy.keys:
        return policy.anonymous
    return next((key for key in policy.keys.values() if key.name == name), None)


def _fault_of_model(policy: PolicySnapshot, key: Key, name: str, *, is_callers: bool) -> LineProblem | None:
    model = policy.find_model(name)
    if model is None:
        return _fault("model_not_found", f"The model '{name}' does not exist; GET /v1/models lists those that do.")
    if key.allows is not None and not key.allows.match(name):
        return _fault("model_not_found", f"The key '{key.name}' may not use the model '{name}'.")
    if model.pipeline is not None:
        return _fault("model_not_found", f"'{name}' is a pipeline; a batch has calls to models: use POST /v1/jobs.")
    bare = bare_provider(policy, model) if is_callers else None
    if bare is not None:
        return _fault(
            "job_needs_provider_key",
            f"The provider '{bare}' is paid with the caller's own credential here, and a batch keeps none; set "
            f"providers.{bare}.api_key in the gateway's config.",
        )
    return None


def _fault_of_fields(body: dict[str, Any]) -> LineProblem | None:
    other = other_model_field(body)
    if other is None:
        return None
    message = f"The batch's key may use some models only, and by '{other}' a provider may choose another; leave it out."
    return LineProblem("invalid_request", message, f"body.{other}")


def _fault(code: str, message: str) -> LineProblem:
    return LineProblem(code, message, "body.model")
