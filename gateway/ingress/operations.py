"""Health, metrics and admin: what operators and their machines ask. None of it is on the hot path.

Health says whether the process lives and whether it takes calls; it never calls a provider. `/admin/*` needs the admin key
and does not exist without one.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway import __version__
from gateway.errors import NotFound, Unauthorised
from gateway.ingress.inflight import InFlight
from gateway.ingress.routes import json_response
from gateway.policy.snapshot import Policies

LIVE_PATHS = ("/healthz", "/livez", "/health/liveliness", "/health/liveness")
READY_PATHS = ("/readyz", "/health/readiness")


def health_routes(inflight: InFlight) -> list[BaseRoute]:
    """Alive as long as it answers; ready until it drains."""

    async def live(_request: Request) -> Response:
        return json_response({"status": "ok", "version": __version__})

    async def ready(_request: Request) -> Response:
        if inflight.draining:
            return json_response({"status": "draining", "calls": len(inflight)}, status=503)
        return json_response({"status": "ready", "calls": len(inflight)})

    return [*(Route(path, live) for path in LIVE_PATHS), *(Route(path, ready) for path in READY_PATHS)]


def metrics_route(registry: CollectorRegistry) -> BaseRoute:
    """Prometheus text, or OpenMetrics where the scraper asks for it."""

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    return Route("/metrics", metrics)


def admin_routes(policies: Policies, views: dict[str, Callable[[], Any]]) -> list[BaseRoute]:
    """`GET /admin/<name>` for each view, behind the admin key."""

    def route(name: str, view: Callable[[], Any]) -> BaseRoute:
        async def show(request: Request) -> Response:
            require_admin(policies, request)
            return json_response(view())

        return Route(f"/admin/{name}", show)

    return [route(name, view) for name, view in views.items()]


def require_admin(policies: Policies, request: Request) -> None:
    """Raises NotFound when the config has no admin key, Unauthorised when the request does not carry it."""
    digest = policies.current.server.admin_digest
    if digest is None:
        raise NotFound("The admin API is off; set 'admin.key' in the config to use it.")
    sent = request.headers.get("authorization", "")
    secret = sent[7:].strip() if sent[:7].lower() == "bearer " else request.headers.get("x-api-key", "")
    if not secret or not hmac.compare_digest(sha256(secret.encode()).digest(), digest):
        raise Unauthorised("This path needs the admin key as 'Authorization: Bearer <key>'.")
