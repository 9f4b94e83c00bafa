"""The targets of a model as sessions use them: under the same names, with the same limits and breakers, by another wire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gateway.core.call import Call
from gateway.core.errors import InvalidRequest
from gateway.core.snapshot.snapshot.provider import Provider
from gateway.core.snapshot.snapshot.snapshot import Model, PolicySnapshot
from gateway.core.types.exchange import Upstream
from gateway.products.realtime.rules.capable import why_no_sessions

MOST_MODELS = 1024

Connect = Callable[[Provider, str | None], Upstream]


class SocketTargets:
    """Models for sessions, compiled when they are first asked for; those of an earlier policy are forgotten."""

    __slots__ = ("_connect", "_models", "_policy")

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._policy: PolicySnapshot | None = None
        self._models: dict[int, tuple[Model, Model]] = {}

    def of(self, call: Call) -> Model:
        """Returns what the call's model is for a session. Raises InvalidRequest where none of its targets can have one."""
        if self._policy is not call.policy or len(self._models) > MOST_MODELS:
            self._policy, self._models = call.policy, {}
        known = self._models.get(id(call.model))
        if known is None:
            known = self._models[id(call.model)] = (call.model, self._compile(call.model, call.policy))
        if not known[1].plan:
            raise InvalidRequest(
                f"No target of '{call.model_name}' has realtime sessions{_reasons(call)}; name a model at OpenAI, Azure, or a "
                "server that speaks their Realtime API.",
                param="model",
                code="unsupported_by_targets",
            )
        return known[1]

    def _compile(self, model: Model, policy: PolicySnapshot) -> Model:
        if model.pipeline is not None:
            return replace(model, targets=(), plan=(), context_plan=())
        targets = {
            target.name: replace(
                target,
                upstream=self._connect(policy.providers[target.provider], target.model),
                detours={},
                learn=None,
                gaps={},
                edits=None,
            )
            for target in model.plan
            if why_no_sessions(policy.providers[target.provider]) is None
        }
        own = tuple(targets[one.name] for one in model.targets if one.name in targets)
        plan = tuple(targets[one.name] for one in model.plan if one.name in targets)
        return replace(
            model, targets=own or plan, plan=plan, context_plan=(), retries=replace(model.retries, hedging=None)
        )


def _reasons(call: Call) -> str:
    """Why, by provider: behind a colon, or nothing where there is none to tell of."""
    providers = call.policy.providers
    names = dict.fromkeys(target.provider for target in call.model.plan)
    said = [f"the provider '{name}' {why_no_sessions(providers[name])}" for name in names]
    return f": {'; '.join(said)}" if said and call.model.pipeline is None else ""
