"""The operators' view of the caches: purging answers, and explaining how a request would be answered.

Off the hot path. The view asks the same layers by the same keys as a call would, and changes nothing but what it is ordered
to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from gateway.core.call import Call, CallRoute, Request
from gateway.core.clock import Clock
from gateway.core.errors import InvalidRequest, NotFound
from gateway.core.ports import result_or_default
from gateway.core.snapshot import Model, PolicySnapshot
from gateway.core.types import Endpoint, Kept
from gateway.drivers.store import Store
from gateway.features.outcome import OUTCOME, CacheOutcome
from gateway.features.reuse.layers import ReusePlan, in_form, mark_served_from, plan_reuse
from gateway.features.reuse.rules import CACHING, ExactRule
from gateway.features.reuse.service import Replays
from gateway.features.reuse.similar import Explained, Neighbour

SAME = "taken for the same"


class CacheInspector:
    """Inspects and purges everything that stores answers."""

    def __init__(self, clock: Clock, policy: Callable[[], PolicySnapshot], store: Store, replays: Replays) -> None:
        self._clock = clock
        self._policy = policy
        self._store = store
        self._replays = replays

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Returns entries and bytes by kind."""
        return self._store.stats()

    async def purge(self, key: bytes | None, model: str | None, tenant: str | None) -> int:
        """Removes the answers that match every argument given; idempotency records stay, for they are promised."""
        if self._replays.layers.semantic is not None:
            await self._replays.layers.semantic.forget(key=key, model=model, tenant=tenant)
        return await result_or_default(self._store.answers.forget(key=key, model=model, tenant=tenant), 0)

    async def explain(self, endpoint: Endpoint, body: dict[str, Any], tenant: str) -> CacheOutcome:
        """Returns what each layer would have for this request now; may cost an embedding of its question.

        Raises NotFound for an unknown model.

        Calls with a credential of their own, or with headers that change the question, have other keys.
        """
        call = self._call(endpoint, body, tenant)
        plan = plan_reuse(call, self._replays.layers.semantic)
        replay = OUTCOME.find(call) or CacheOutcome("bypass")
        if plan is None:
            replay.why.append(f"nothing is kept of such a request, nor shared: {_why_not(call)}")
            return replay
        self._explain_flight(plan, replay)
        if plan.is_kept:
            found = await result_or_default(self._store.answers.get(plan.exact, plan.caching.name), None)
            self._explain_exact(call, found, replay, plan.caching.exact)
        else:
            replay.why.append("exact: no answer is kept of such a request (exact.requests in cache.yaml)")
        if plan.semantic is not None and self._replays.layers.semantic is not None:
            self._explain_meaning(await self._replays.layers.semantic.explain(call, plan.semantic), replay)
        return replay

    def _explain_meaning(self, found: Explained, replay: CacheOutcome) -> None:
        if found.problem is not None:
            replay.why.append(f"semantic: {found.problem}")
            return
        replay.why.append(f"semantic: {found.rows} questions are in its partition {found.partition}")
        for near in found.nearest:
            verdict = _verdict(near, found.threshold)
            replay.why.append(f"semantic: similarity {near.similarity:.4f} to that of {near.key}: {verdict}")
        match = next((one for one in found.nearest if _verdict(one, found.threshold) == SAME), None)
        replay.tried.append(("semantic", "miss" if match is None else "hit"))
        if match is not None and not replay.layer:
            replay.result, replay.layer, replay.similarity = "semantic", "semantic", match.similarity

    def _explain_flight(self, plan: ReusePlan, replay: CacheOutcome) -> None:
        if not plan.flight:
            replay.why.append("single_flight: such a request is not shared (coalesce in cache.yaml)")
            return
        flight = self._replays.single_flight.get(plan.flight)
        replay.tried.append(("single_flight", "miss" if flight is None else "hit"))
        if flight is None:
            replay.why.append("single_flight: nobody asks the same at this moment")
        else:
            replay.result, replay.layer, replay.source = "coalesced", "single_flight", flight.call.request.id
            replay.why.append(f"single_flight: {flight.call.request.id} asks the same at this moment")

    def _explain_exact(self, call: Call, kept: Kept | None, replay: CacheOutcome, rule: ExactRule) -> None:
        wall = self._clock.wall()
        if kept is None:
            replay.tried.append(("exact", "miss"))
            replay.why.append(
                "exact: no answer is kept under this key; it was never asked so, or it has expired or made room"
            )
            return
        age_s = wall - kept.stored_at
        about = f"the answer of {kept.source}, {age_s:.0f} s old"
        if in_form(call, kept) is None:
            replay.tried.append(("exact", "miss"))
            replay.why.append(f"exact: {about}, cannot be put into the form that is asked for")
        elif kept.fresh_until <= wall:
            replay.tried.append(("exact", "stale"))
            replay.why.append(
                f"exact: {about}, is no longer fresh (ttl {rule.ttl_s:g} s); given when nobody can answer"
            )
        else:
            if not replay.layer:
                mark_served_from(call, kept, "exact", "hit", wall)
            replay.why.append(f"exact: {about}, fresh for {kept.fresh_until - wall:.0f} s")

    def _call(self, endpoint: Endpoint, body: dict[str, Any], tenant: str) -> Call:
        policy, name = self._policy(), str(body.get("model", ""))
        now = self._clock.monotonic()
        key = next((key for key in policy.keys.values() if key.tenant == tenant), policy.anonymous)
        request = Request(
            id="explained",
            endpoint=endpoint,
            model_name=name,
            body=_written(body),
            stream=bool(body.get("stream")),
            stream_options=body.get("stream_options"),
            model_span=None,
            headers=[],
            credential=None,
            lane="interactive",
            received_at=now,
            deadline=now,
            deadline_is_callers=False,
            path=endpoint.path,
            tenant=tenant,
        )
        route = CallRoute(policy, key, _model(policy, name), endpoint, has_own_credential=False, is_internal=True)
        return Call(request, route, body)


def _written(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:
        raise InvalidRequest("The request is nested too deeply to be explained.", param="body") from None


def _verdict(near: Neighbour, threshold: float) -> str:
    if near.similarity < threshold:
        return f"below the threshold of {threshold:g}"
    return SAME if near.objection is None else f"they differ in their {near.objection}"


def _model(policy: PolicySnapshot, name: str) -> Model:
    model = policy.find_model(name)
    if model is None:
        raise NotFound(f"The model '{name}' does not exist.", param="model", code="model_not_found")
    return model


def _why_not(call: Call) -> str:
    caching = CACHING.of(call.route.model)
    return f"the set {caching.name!r} of cache.yaml has coalesce: {caching.coalesce}, exact.requests: {caching.exact.requests}"


# --- the savings of reuse: totals since the start, and the results of the last calls that could have been reused ---
