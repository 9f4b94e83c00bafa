"""Route plans: what is compiled once for the calls of one key to one model at one endpoint."""

from __future__ import annotations

from dataclasses import replace

from gateway.core.intake import MOST_VARIANTS, InFlight, Intake
from gateway.core.request_fields import MOST_PLANS, RoutePlans, plan_route
from gateway.core.snapshot import Holding, Key, Policies
from gateway.core.waiting import Shedding
from gateway.dialects.endpoints import CHAT, EMBEDDINGS
from tests.support.flow import Bench, ScriptedUpstream

WEB = Key("web", "shop", b"1", lane="batch")


def test_clients_who_choose_names_cannot_make_a_snapshots_plans_grow_for_ever() -> None:
    """Under a pattern there is no end of names: the oldest plans go, the last one stays."""
    policy = Bench([ScriptedUpstream()]).policy
    plans = RoutePlans(policy)
    plan = plan_route(policy, WEB, policy.models["m"], CHAT, is_callers=False)
    routes = [(WEB.digest, f"name-{number}", "chat", False) for number in range(MOST_PLANS + 1)]
    for route in routes:
        plans.remember(route, plan)

    assert plans.get(routes[-1]) is plan
    assert sum(plans.get(route) is not None for route in routes) <= MOST_PLANS


def test_clients_who_choose_options_cannot_make_a_routes_hooks_grow_for_ever() -> None:
    """Headers that bring in a product can be sent in any combination."""
    bench = Bench([ScriptedUpstream()])
    intake = Intake(Policies(bench.policy), bench.clock, InFlight(), Shedding(), bench.pipeline)
    plan = plan_route(bench.policy, WEB, bench.policy.models["m"], CHAT, is_callers=False)
    for number in range(3 * MOST_VARIANTS):
        intake._route_for(plan, frozenset((b"%d" % number,)))

    assert 0 < len(plan.variants) <= MOST_VARIANTS
    last = frozenset((b"%d" % (3 * MOST_VARIANTS - 1),))
    assert intake._route_for(plan, last) is plan.variants[last], "compiled once"


def test_a_plan_has_the_keys_lane_tenant_and_deadline() -> None:
    """What a call may have otherwise, it says in headers."""
    policy = Bench([ScriptedUpstream()]).policy
    plan = plan_route(policy, WEB, policy.models["m"], CHAT, is_callers=False)

    assert (plan.lane, plan.tenant, plan.deadline_s) == ("batch", "shop", policy.lane_deadline_s["batch"])
    assert not plan.passes_account


def test_callers_with_a_credential_have_a_plan_of_their_own() -> None:
    """Their calls may go elsewhere, and tell their account only where no provider has a key of its own."""
    policy = Bench([ScriptedUpstream()]).policy
    model = policy.models["m"]
    bound = replace(model, name="bound")
    plan = plan_route(policy, WEB, replace(model, model_for_caller_credentials=bound), CHAT, is_callers=True)
    keyless = {name: replace(provider, api_key=None) for name, provider in policy.providers.items()}
    keyed = {name: replace(provider, api_key="sk-1") for name, provider in policy.providers.items()}

    assert plan.route.model is bound
    assert plan_route(replace(policy, providers=keyless), WEB, model, CHAT, is_callers=True).passes_account
    assert not plan_route(replace(policy, providers=keyed), WEB, model, CHAT, is_callers=True).passes_account


def test_a_plan_knows_how_its_calls_may_be_kept_alive() -> None:
    """By comments where streams tell their usage or are no chat, by interim responses where the model has some."""
    policy = Bench([ScriptedUpstream()]).policy
    model = policy.models["m"]
    patient = replace(model, holding=Holding(interim=102))

    assert plan_route(policy, WEB, model, CHAT, is_callers=False).takes_comments
    assert not plan_route(policy, WEB, model, EMBEDDINGS, is_callers=False).takes_comments
    assert not plan_route(policy, WEB, model, CHAT, is_callers=False).takes_interim
    assert plan_route(policy, WEB, patient, CHAT, is_callers=False).takes_interim
