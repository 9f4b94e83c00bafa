"""Compiles once what is the same for all calls of one key to one model at one endpoint, and applies it to a call.

A target that is compiled for a pattern serves the name the client asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.patience import UNKNOWN_S
from gateway.core.snapshot import Key, Model, PolicySnapshot
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
