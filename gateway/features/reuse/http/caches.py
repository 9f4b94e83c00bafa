"""Serves `/admin/cache` and `/admin/stats`: what operators ask of the layers of reuse, and do to them.

Behind the admin key, and none of it on the hot path. It must not know how answers are kept: that is behind `CacheAdmin`.
Invariant: nothing is forgotten that was not named, and everything only when that is said in so many words.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.admin.operations.operations import MOST_BYTES, require_admin
from gateway.core.call import Replay
from gateway.core.errors import InvalidRequest, NotFound
from gateway.core.intake.intake.bodies import read_object, refuse_unknown
from gateway.core.snapshot.snapshot.snapshot import Policies, PolicySnapshot
from gateway.core.types.words import Endpoint
from gateway.features.reuse.http.cache_views import show_cache, show_replay, show_savings
from gateway.features.reuse.inspect.stats import MOST_REMEMBERED, Recollection, Savings
from gateway.routes import ENDPOINTS, json_response

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

    async def explain(self, endpoint: Endpoint, body: dict[str, Any], tenant: str) -> Replay:
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
        asked = await read_object(request, server, server.max_body_bytes, WHY_EXAMPLE)
        endpoint, body, tenant = _question(policies.current, asked)
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


def _selection(asked: Mapping[str, Any]) -> tuple[bytes | None, str | None, str | None]:
    """Reads what is to be forgotten: key, model, tenant. Raises InvalidRequest."""
    refuse_unknown(asked, (*SELECTORS, "all"))
    named = {name: _text_of(asked, name) for name in SELECTORS}
    is_all = asked.get("all", False)
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


def _question(policy: PolicySnapshot, asked: Mapping[str, Any]) -> tuple[Endpoint, dict[str, Any], str]:
    """Reads a request that was not made: its endpoint, body and tenant. Raises InvalidRequest."""
    refuse_unknown(asked, ("body", "endpoint", "tenant"))
    body = asked.get("body")
    if not isinstance(body, dict):
        raise InvalidRequest(f"The field 'body' must be a request's JSON object: {WHY_EXAMPLE}.", param="body")
    name = _text_of(asked, "endpoint") or "chat"
    endpoints = {endpoint.name: endpoint for endpoint in ENDPOINTS if endpoint.request == "json"}
    if name not in endpoints:
        raise InvalidRequest(f"The field 'endpoint' must be one of: {', '.join(endpoints)}.", param="endpoint")
    return endpoints[name], body, _text_of(asked, "tenant") or _only_tenant(policy)


def _only_tenant(policy: PolicySnapshot) -> str:
    """Returns the tenant of a config that has only one. Raises InvalidRequest for others."""
    tenants = sorted({key.tenant for key in policy.keys.values()} or {policy.anonymous.tenant})
    if len(tenants) > 1:
        raise InvalidRequest(
            f"Say whose request it is, nobody gets another's answers: 'tenant' as one of {', '.join(tenants[:20])}.",
            param="tenant",
        )
    return tenants[0]


def _text_of(asked: Mapping[str, Any], name: str) -> str | None:
    value = asked.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidRequest(f"The field '{name}' must be a string that is not empty.", param=name)
    return value
