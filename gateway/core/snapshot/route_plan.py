"""Compiles once what is the same for all calls of one key to one model at one endpoint, and applies it to a call.

A target that is compiled for a pattern serves the name the client asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gateway.core.patience import UNKNOWN_S
from gateway.core.snapshot.snapshot import Key, Model, PolicySnapshot, Request, Target
from gateway.core.types import Endpoint, Lane
from gateway.features.output.rules import CHECKED, OutputRule
from gateway.products.responses.keeping import keeping_of
from gateway.products.responses.rules import Keeping

MOST_PLANS = 4096
"""The most plans of one snapshot: under a pattern clients choose the names, and there is no end of them."""


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """Holds the policy for every call of one key to one model name at one endpoint, with or without a credential of its own.

    A plan exists only if the key may use the name, and the name is fit to be one.
    """

    endpoint: Endpoint
    model: Model
    """The entry that serves the name, for callers with a credential where that differs."""
    lane: Lane
    """The key's own lane."""
    tenant: str
    """The key's own tenant."""
    deadline_s: float
    """The seconds that a call waits for which the caller has set no time and chosen no lane."""
    waits_as_client: bool
    """True if nobody has chosen a lane: then calls wait for as long as their client is known to."""
    passes_account: bool
    """True if the caller's headers that name its account go along: its own credential pays at each of the targets."""
    is_restricted: bool
    """True if the key may not use every model, so the body must not name another in a way that only some providers read."""
    takes_comments: bool
    """True if a stream that waits may be told so by comments."""
    takes_interim: bool
    """True if a call that is no stream and waits may be told so by interim responses."""
    is_plain: bool
    """True if its calls are served as they come: nobody keeps their responses, and their answers are in OpenAI's form."""
    keeping: Keeping | None
    """Who keeps the responses of its calls; None: they make none, or it is none of the gateway's business."""
    output: OutputRule | None
    """What the answers have to be, by the model's policy; None: whatever they are."""


def plan_route(policy: PolicySnapshot, key: Key, model: Model, endpoint: Endpoint, *, is_callers: bool) -> RoutePlan:
    """Returns the plan of calls of `key` to `model` at `endpoint`; `is_callers`: with a credential of the caller's own."""
    passes_account = False
    if is_callers:
        model = model.model_for_caller_credentials or model
        going_to = (*model.plan, *model.context_plan)
        # beside a provider's own key these headers would name another's account
        passes_account = all(policy.providers[target.provider].is_callers for target in going_to)
    keeping = keeping_of(policy, key, model, endpoint)
    waits_as_client = policy.waits_as_clients and key.lane == "interactive" and not key.is_lane_chosen
    return RoutePlan(
        endpoint=endpoint,
        model=model,
        lane=key.lane,
        tenant=key.tenant,
        deadline_s=UNKNOWN_S if waits_as_client else policy.lane_deadline_s[key.lane],
        waits_as_client=waits_as_client,
        passes_account=passes_account,
        is_restricted=key.allows is not None,
        takes_comments=(endpoint.usage_option or endpoint.sse != "chat") and endpoint.sse != "generate",
        takes_interim=model.holding.interim is not None,
        is_plain=keeping is None and endpoint.sse not in ("messages", "generate"),
        keeping=keeping,
        output=model.output if endpoint.name in CHECKED else None,
    )


class RoutePlans:
    """Keeps the plans of one snapshot, each compiled when it is first asked for.

    A route is (digest of the key's secret, model name, endpoint's name, whether the caller has a credential of its own).
    """

    __slots__ = ("_plans", "get", "policy")

    def __init__(self, policy: PolicySnapshot) -> None:
        self.policy = policy
        self._plans: dict[tuple[bytes, str, str, bool], RoutePlan] = {}
        self.get = self._plans.get
        """Returns the plan of a route; None: it was not asked for yet, or its calls are refused."""

    def remember(self, route: tuple[bytes, str, str, bool], plan: RoutePlan) -> None:
        """Keeps a plan for the next call; when there are too many, all are dropped and compiled anew."""
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[route] = plan


def followed_models(model: Model, models: Mapping[str, Model]) -> dict[str, Model]:
    """Returns the models that calls of a model may fall back to, by their names; `models` are all entries of the config."""
    followed: dict[str, Model] = {}
    ahead = [*model.fallbacks, *model.context_fallbacks]
    while ahead:
        name = ahead.pop(0)
        if name != model.name and name not in followed:
            followed[name] = models[name]
            ahead += (*models[name].fallbacks, *models[name].context_fallbacks)
    return followed


def for_key(policy: PolicySnapshot, key: Key, model: Model) -> Model:
    """Returns the model without the fallbacks that the key may not use, if its `fallbacks` are the allowed ones."""
    allows = key.allows
    if allows is None or key.fallbacks == "any":
        return model
    followed = followed_models(model, {**policy.models, **{one.name: one for _, one in policy.patterns}})
    kept = [model, *(one for name, one in followed.items() if allows.match(name))]
    names = frozenset(target.name for one in kept for target in one.targets)
    if names.issuperset(target.name for target in (*model.plan, *model.context_plan)):
        return model
    left_out = ", ".join(name for name in followed if not allows.match(name))
    bound = model.model_for_caller_credentials
    reduced = _only(model, names, left_out)
    return reduced if bound is None else replace(reduced, model_for_caller_credentials=_only(bound, names, left_out))


def _only(model: Model, names: frozenset[str], left_out: str) -> Model:
    return replace(
        model,
        plan=tuple(target for target in model.plan if target.name in names),
        context_plan=tuple(target for target in model.context_plan if target.name in names),
        skipped=f"{model.skipped} The key may not fall back to {left_out}.",
    )


def upstream_model(request: Request, target: Target) -> str:
    """Returns the name by which the target's provider knows the model."""
    if target.model is not None:
        return target.model
    return request.model_name.removeprefix(target.strip) if target.strip else request.model_name


def targets_hidden_from_callers(model: Model) -> Iterator[tuple[Target, str]]:
    """Yields the targets that do not see callers' own credentials, and in words what that means."""
    bound = model.model_for_caller_credentials
    if bound is None:
        return
    kept = {target.name for target in (*bound.plan, *bound.context_plan)}
    for target in {target.name: target for target in (*model.plan, *model.context_plan)}.values():
        if target.name in bound.without_caller_credential:
            what = "is called without the caller's own credential"
        elif target.name not in kept:
            what = "is skipped by calls with a credential of the caller's own"
        else:
            continue
        remedy = f"providers.{target.provider}.accepts_callers_of: [{bound.credentials_of}] lets it go there"
        yield target, f"{what}, which is taken to be one of {bound.credentials_of} ({remedy})"
