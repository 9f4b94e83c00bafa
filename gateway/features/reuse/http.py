"""Serves `/admin/cache` and `/admin/stats`: first the layers of reuse as plain data, then what operators do to them.

Behind the admin key, and none of it on the hot path. How answers are kept is behind `CacheAdmin`. Invariant: nothing is
forgotten that was not named, and everything only when that is said in so many words.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.admin.http import MOST_BYTES, require_admin
from gateway.core.errors import InvalidRequest, NotFound
from gateway.core.intake import read_object, refuse_unknown
from gateway.core.snapshot import Policies, PolicySnapshot
from gateway.core.types import Endpoint, StoreBounds
from gateway.dialects.endpoints import ENDPOINTS
from gateway.features.outcome import CacheOutcome
from gateway.features.reuse.savings import MOST_REMEMBERED, PROVIDER, Recollection, Savings, SavingsRow
from gateway.routes import json_response

# --- the layers of reuse as plain data: sizes, savings and the story of one call ---

Rows = Mapping[tuple[str, str, str], SavingsRow]
"""The savings by layer, model and key."""
LAYERS = ("idempotency", "single_flight", "exact", "semantic", PROVIDER)
"""The layers in the order in which they are asked."""


def show_cache(stats: Mapping[str, Mapping[str, int]], bounds: StoreBounds, rows: Rows) -> dict[str, Any]:
    """Shows what is kept, how much may be, and what all of it has saved so far."""
    return {
        "kept": {kind: dict(sizes) for kind, sizes in stats.items()},
        "bounds": {
            "answers_bytes": dict(bounds.answers),
            "records_bytes": bounds.records,
            "vectors_per_partition": bounds.vectors,
        },
        "total": _of_calls(rows),
    }


def show_savings(rows: Rows) -> dict[str, Any]:
    """Shows what was saved since the start: in all, by layer, by model and by key.

    Invariant: an unknown price is counted as one, never as nothing.
    """
    return {
        "total": _of_calls(rows),
        "layers": {layer: _of_layer(layer, part) for layer, part in sorted(_grouped(rows, 0).items(), key=_rank)},
        "models": {model: _of_calls(part) for model, part in sorted(_grouped(rows, 1).items())},
        "keys": {key: _of_calls(part) for key, part in sorted(_grouped(rows, 2).items())},
    }


def show_replay(replay: CacheOutcome) -> dict[str, Any]:
    """Shows how a call was answered without a provider, or why not."""
    saved = replay.saved
    return {
        "result": replay.result,
        "layer": replay.layer or None,
        "tried": [{"layer": layer, "result": result} for layer, result in replay.tried],
        "why": replay.why,
        "cache_key": replay.key.hex() or None,
        "source": replay.source or None,
        "source_target": replay.target or None,
        "age_s": None if replay.age_s is None else round(replay.age_s, 3),
        "similarity": None if replay.similarity is None else round(replay.similarity, 4),
        "saved": {"input_tokens": saved.input, "output_tokens": saved.output, "usd": replay.saved_usd}
        if saved
        else None,
    }


def _of_calls(rows: Rows) -> dict[str, Any]:
    """Sums up the calls that were answered, and those of them that needed no provider."""
    calls = sum(tally.answered for tally in rows.values())
    return _sums(calls, [tally for (layer, _, _), tally in rows.items() if layer != PROVIDER])


def _of_layer(layer: str, rows: Rows) -> dict[str, Any]:
    """Sums up the calls for which the layer was asked; the provider, as a layer, saves nothing."""
    if layer == PROVIDER:
        return _sums(sum(tally.answered for tally in rows.values()), [])
    return _sums(sum(tally.calls for tally in rows.values()), rows.values())


def _sums(calls: int, spared: Iterable[SavingsRow]) -> dict[str, Any]:
    spared = [*spared]
    hits = sum(tally.answered for tally in spared)
    return {
        "calls": calls,
        "hits": hits,
        "hit_rate": round(hits / calls, 4) if calls else None,
        "input_tokens": sum(tally.input for tally in spared),
        "output_tokens": sum(tally.output for tally in spared),
        "usd": round(sum(tally.usd for tally in spared), 9),
        "unpriced": sum(tally.unpriced for tally in spared),
    }


def _rank(group: tuple[str, object]) -> int:
    return LAYERS.index(group[0]) if group[0] in LAYERS else len(LAYERS)


def _grouped(rows: Rows, place: int) -> dict[str, dict[tuple[str, str, str], SavingsRow]]:
    """Returns the rows, grouped by one of their three names."""
    groups: dict[str, dict[tuple[str, str, str], SavingsRow]] = {}
    for names, tally in rows.items():
        groups.setdefault(names[place], {})[names] = tally
    return groups


KEY_BYTES = 32
SELECTORS = ("key", "model", "tenant")
PURGE_EXAMPLE = '{"model": "gpt-4o"}'
WHY_EXAMPLE = '{"body": {"model": "gpt-4o", "messages": []}}'

log = logging.getLogger("gateway.admin")


class CacheAdmin(Protocol):
    """Looks into the store of answers, and purges it."""

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Returns entries and bytes by kind, as `Store.stats` has them."""
        ...

    async def purge(self, key: bytes | None, model: str | None, tenant: str | None) -> int:
        """Forget whatever matches all that is given, everything when nothing is; returns how many answers that were."""
        ...

    async def explain(self, endpoint: Endpoint, body: dict[str, Any], tenant: str) -> CacheOutcome:
        """Returns what each layer would say of this request now; nothing is kept, and at most a question sent to be embedded.

        Raises the GatewayError that the request would be answered with.
        """
        ...


def cache_routes(policies: Policies, cache: CacheAdmin, savings: Savings) -> list[BaseRoute]:
    """Returns `GET /admin/cache`, `GET /admin/stats`, `POST /admin/cache/purge`, and `/admin/cache/why` with either method."""

    async def show(request: Request) -> Response:
        require_admin(policies, request)
        return json_response(show_cache(cache.stats(), policies.current.store, savings.totals()))

    async def stats(request: Request) -> Response:
        require_admin(policies, request)
        return json_response(show_savings(savings.totals()))

    async def purge(request: Request) -> Response:
        require_admin(policies, request)
        key, model, tenant = _selection(await read_object(request, policies.current.server, MOST_BYTES, PURGE_EXAMPLE))
        forgotten = await cache.purge(key, model, tenant)
        log.warning("admin: purge of %s: %d answers forgotten", _named(key, model, tenant), forgotten)
        return json_response({"forgotten": forgotten})

    async def why(request: Request) -> Response:
        require_admin(policies, request)
        if request.method != "POST":
            return json_response(_recalled(savings, request.query_params.get("request", "")))
        server = policies.current.server
        fields = await read_object(request, server, server.most_bytes(), WHY_EXAMPLE)
        endpoint, body, tenant = _question(policies.current, fields)
        replay = await cache.explain(endpoint, body, tenant)
        return json_response({"endpoint": endpoint.name, "tenant": tenant, **show_replay(replay)})

    return [
        Route("/admin/cache", show),
        Route("/admin/stats", stats),
        Route("/admin/cache/purge", purge, methods=["POST"]),
        Route("/admin/cache/why", why, methods=["GET", "POST"]),
    ]


def _recalled(savings: Savings, request_id: str) -> dict[str, Any]:
    """Raises InvalidRequest or NotFound."""
    if not request_id:
        raise InvalidRequest(
            f"Say which call: ?request=<its x-request-id>; or POST a request, such as {WHY_EXAMPLE}.", param="request"
        )
    found = savings.recall(request_id)
    if found is None:
        raise NotFound(
            f"No call '{request_id[:200]}' is remembered: only the last {MOST_REMEMBERED:,} that could be kept or shared are, "
            "since the start; the call log tells of the others.",
            param="request",
        )
    return {"request": request_id, **_whose(found), **show_replay(found.replay)}


def _whose(found: Recollection) -> dict[str, str]:
    return {"endpoint": found.endpoint, "model": found.model, "key": found.key, "tenant": found.tenant}


def _selection(fields: Mapping[str, Any]) -> tuple[bytes | None, str | None, str | None]:
    """Reads what is to be forgotten: key, model, tenant. Raises InvalidRequest."""
    refuse_unknown(fields, (*SELECTORS, "all"))
    named = {name: _text_of(fields, name) for name in SELECTORS}
    is_all = fields.get("all", False)
    if not isinstance(is_all, bool):
        raise InvalidRequest("The field 'all' must be true or false.", param="all")
    if is_all and any(named.values()):
        raise InvalidRequest(
            "Either 'all', or what is to be forgotten: 'all' means everything of everybody.", param="all"
        )
    if not is_all and not any(named.values()):
        raise InvalidRequest(
            "Say what to forget: 'key', 'model' or 'tenant' (what matches all that is given), or {\"all\": true}."
        )
    return _key_of(named["key"]), named["model"], named["tenant"]


def _key_of(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidRequest(
            "The field 'key' must be the 64 hex digits of an answer's 'x-gateway-cache-key'.", param="key"
        )
    return key


def _named(key: bytes | None, model: str | None, tenant: str | None) -> str:
    given = {"key": key.hex() if key else None, "model": model, "tenant": tenant}
    return ", ".join(f"{name} {value!r}" for name, value in given.items() if value) or "everything"


def _question(policy: PolicySnapshot, fields: Mapping[str, Any]) -> tuple[Endpoint, dict[str, Any], str]:
    """Reads a request that was not made: its endpoint, body and tenant. Raises InvalidRequest."""
    refuse_unknown(fields, ("body", "endpoint", "tenant"))
    body = fields.get("body")
    if not isinstance(body, dict):
        raise InvalidRequest(f"The field 'body' must be a request's JSON object: {WHY_EXAMPLE}.", param="body")
    name = _text_of(fields, "endpoint") or "chat"
    endpoints = {endpoint.name: endpoint for endpoint in ENDPOINTS if endpoint.request == "json"}
    if name not in endpoints:
        raise InvalidRequest(f"The field 'endpoint' must be one of: {', '.join(endpoints)}.", param="endpoint")
    return endpoints[name], body, _text_of(fields, "tenant") or _only_tenant(policy)


def _only_tenant(policy: PolicySnapshot) -> str:
    """Returns the tenant of a config that has only one. Raises InvalidRequest for others."""
    tenants = sorted({key.tenant for key in policy.keys.values()} or {policy.anonymous.tenant})
    if len(tenants) > 1:
        raise InvalidRequest(
            f"Say whose request it is, nobody gets another's answers: 'tenant' as one of {', '.join(tenants[:20])}.",
            param="tenant",
        )
    return tenants[0]


def _text_of(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidRequest(f"The field '{name}' must be a string that is not empty.", param=name)
    return value
