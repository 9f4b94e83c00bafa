"""Calls of stored requests: what the edge does with a request, for one that a job has kept.

The policy is the one in force when the job runs: a key that was taken away serves no more of its jobs. There is no credential
of a caller's own, ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gateway.core import request_fields
from gateway.core.call import Call, Request
from gateway.core.clock import Clock
from gateway.core.errors import InvalidRequest, NotFound, Unauthorised
from gateway.core.intake import refuse_other_readings
from gateway.core.request_fields import LargeBodies, Peeked, RoutePlan, RoutePlans, peek, plan_route, read_fields
from gateway.core.snapshot import Key, Policies, PolicySnapshot
from gateway.core.types import Endpoint
from gateway.dialects.endpoints import WORK
from gateway.features.identity import SENT_KEY
from gateway.features.run_port import NO_RUNS, RunPort
from gateway.installed import is_installed
from gateway.products.jobs.calls import STRICT, StoredRequest

HAS_GROUPS: Final = is_installed("gateway.features.grouping")
if HAS_GROUPS:
    from gateway.features.grouping.rules import LINES_WINDOW_S, GroupRules
    from gateway.features.grouping.service import GROUP_RULES
HAS_OUTPUT: Final = is_installed("gateway.features.output")
if HAS_OUTPUT:
    from gateway.features.output.service import DeclaredRules

_BY_PATH: Mapping[str, Endpoint] = {prefix + one.path: one for one in WORK for prefix in ("/v1", "")}


def endpoint_of(path: str) -> Endpoint:
    """Returns the endpoint at the path, with or without `/v1`. Raises NotFound."""
    endpoint = _BY_PATH.get(path)
    if endpoint is None:
        known = ", ".join("/v1" + one.path for one in WORK)
        raise NotFound(f"Unknown endpoint {path[:200]}; use one of {known}.", param="endpoint")
    return endpoint


class CallMaker:
    """Implements `gateway.products.jobs.calls.MakeCall`."""

    def __init__(self, policies: Policies, clock: Clock, runs: RunPort = NO_RUNS) -> None:
        """`runs` are joined by the calls that are parts of them."""
        self._policies = policies
        self._clock = clock
        self._runs = runs
        self._plans = RoutePlans(policies.current)
        self._large_bodies = LargeBodies()
        self._output_rules = DeclaredRules() if HAS_OUTPUT else None
        self._keys: tuple[PolicySnapshot | None, dict[str, Key]] = None, {}

    async def __call__(self, request: StoredRequest) -> Call:
        """Returns the call. Raises GatewayError as the edge would, also when the key is gone or may not use the model."""
        policy = self._policies.current
        key = self._key(policy, request.key)
        endpoint = endpoint_of(request.endpoint)
        peeked = await self._peek(policy, endpoint, request)
        plan = self._plan(policy, key, endpoint, peeked.model)
        if plan.is_restricted:
            refuse_other_readings(key, endpoint, peeked.parsed or (), request.body, dict(request.headers))
        now = self._clock.monotonic()
        route, headers = replace(plan.route, is_internal=True), list(request.headers)
        if STRICT[0] in (index := dict(headers)):
            route = replace(route, model=request_fields.strictly(route.model, index))
            headers = [header for header in headers if header[0] != STRICT[0]]
        sent = Request(
            id=request.id,
            endpoint=endpoint,
            model_name=peeked.model,
            body=request.body,
            stream=peeked.stream,
            stream_options=peeked.stream_options,
            model_span=peeked.model_span,
            headers=headers,
            credential=None,
            lane=request.lane,
            received_at=now,
            deadline=now + min(request.deadline_s, policy.lane_deadline_s[request.lane]),
            deadline_is_callers=False,
            path=endpoint.path,
            query=request.query,
            tenant=request.tenant,
            max_tokens=peeked.max_tokens,
            thinks=peeked.thinks,
            large=peeked.large,
        )
        call = Call(sent, route, peeked.parsed)
        step = request.step
        output = None if step is None else step.output
        if self._output_rules is not None:
            self._output_rules.set_for(call, output, is_held=request.is_held)
        elif output is not None:  # its run began where answers were checked
            raise InvalidRequest(
                "The step's answer has to keep a schema, and `output` is not installed.", param="output"
            )
        if step is None:
            self._runs.join(call, request.part, request.lost_tries)
        else:
            self._runs.join_as_step(call, step.words, step.usd_per_run, request.lost_tries)
        if request.group_most and HAS_GROUPS:
            GROUP_RULES.put(call, GroupRules(LINES_WINDOW_S, request.group_most))
        if request.idempotency_key is not None:
            SENT_KEY.put(call, request.idempotency_key)
        return call

    async def _peek(self, policy: PolicySnapshot, endpoint: Endpoint, request: StoredRequest) -> Peeked:
        index = dict(request.headers)
        if len(request.body) <= policy.server.small_body_bytes:
            if request.parsed is not None:
                return read_fields(request.parsed, is_model_optional=endpoint.is_model_optional)
            return peek(endpoint, request.body, index)
        return await self._large_bodies.peek(endpoint, request.body, index, policy.server.max_json_values)

    def _key(self, policy: PolicySnapshot, name: str) -> Key:
        if not policy.keys:
            return policy.anonymous
        if self._keys[0] is not policy:
            self._keys = policy, {key.name: key for key in policy.keys.values()}
        key = self._keys[1].get(name)
        if key is None:
            raise Unauthorised(f"The key '{name}' that created this job is no longer one of this gateway's keys.")
        return key

    def _plan(self, policy: PolicySnapshot, key: Key, endpoint: Endpoint, name: str) -> RoutePlan:
        if self._plans.policy is not policy:
            self._plans = RoutePlans(policy)
        route = key.digest, name, endpoint.name, False
        plan = self._plans.get(route)
        if plan is None:
            model = request_fields.find_model(policy, key, name) if name else request_fields.unnamed_model(policy, key)
            if model is None:
                raise InvalidRequest(
                    "The field 'model' is missing; name the model to use.", param="model", code="missing_field"
                )
            plan = plan_route(policy, key, model, endpoint, is_callers=False)
            self._plans.remember(route, plan)
        return plan
