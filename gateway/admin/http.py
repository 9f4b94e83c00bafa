"""The routes of health, metrics and admin: what operators and their machines ask. None of it is on the hot path.

Health says whether the process lives and whether it takes calls; it never calls a provider. `/admin/*` needs the admin key and
does not exist without one.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from difflib import get_close_matches
from hashlib import sha256
from typing import Any, Literal

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway import __version__
from gateway.admin.views import show_clients, show_costs, show_limits, show_queue, show_targets
from gateway.core.admission.admission import Admission
from gateway.core.clock import Clock
from gateway.core.errors import InvalidRequest, NotFound, Unauthorised
from gateway.core.intake import InFlight, read_object
from gateway.core.patience import ClientPatience
from gateway.core.ports import StoreHealth
from gateway.core.request_fields import refuse_pages
from gateway.core.snapshot import Policies
from gateway.core.telemetry import CostTotals
from gateway.routes import json_response

LIVE_PATHS = ("/healthz", "/livez", "/health/liveliness", "/health/liveness")
READY_PATHS = ("/readyz", "/health/readiness")
SWITCH_EXAMPLE = '{"action": "drain"}'
MOST_BYTES = 65_536
"""The most bytes that an operator may send."""

To = Literal["open", "closed", "drained"]
ACTIONS: Mapping[str, To] = {"open": "open", "close": "closed", "drain": "drained", "reset": "closed"}
"""The actions that a person may take on a breaker, and the state that each leads to."""
Shown = Mapping[str, Mapping[str, Mapping[str, Any]]]
Gather = Callable[[], Awaitable[Collector]]
"""The numbers of every process that serves this port."""

log = logging.getLogger("gateway.admin")


def health_routes(
    inflight: InFlight,
    state: Callable[[], StoreHealth | None] = lambda: None,
    wall: Callable[[], float] = time.time,
    emulated: Callable[[], Sequence[str]] = tuple,
    jobs: Callable[[], str] | None = None,
) -> list[BaseRoute]:
    """Returns the routes of health: alive as long as it answers, ready until it leaves, with or without the shared store.

    `state` tells how that store is, None where there is none; `wall` is the clock of its `since`. `emulated` names the
    providers in whose place the emulator answers others than this machine: made-up answers are not service, so no
    balancer may send calls here. `jobs` tells what a job is worth here: on disk, not opened yet, unavailable.
    """

    async def live(_request: Request) -> Response:
        return json_response({"status": "ok", "version": __version__})

    async def ready(_request: Request) -> Response:
        health = state()
        made_up = emulated()
        is_ready = not (inflight.leaving or inflight.draining or made_up)
        status = (
            "draining" if inflight.draining else "leaving" if inflight.leaving else "emulating" if made_up else "ready"
        )
        answer: dict[str, Any] = {"status": status, "calls": len(inflight)}
        if made_up:
            answer["emulated"] = list(made_up)
            answer["remedy"] = "set the api_key of these providers; until then the emulator makes their answers up"
        if health is not None:
            # Without the reason, which may name hosts: anybody may ask.
            now_wall = wall()
            news = {"news": "not heard"} if health.is_deaf else {}
            answer["state"] = {
                "status": "up" if health.is_up else "gone",
                "since_s": round(max(now_wall - health.since, 0.0), 1),
                "replicas": health.replicas,
                "limits": "shared" if health.is_up else f"1/{health.replicas} of each",
                **news,
            }
        if jobs is not None:
            answer["jobs"] = jobs()
        return json_response(answer, status=200 if is_ready else 503)

    return [*(Route(path, live) for path in LIVE_PATHS), *(Route(path, ready) for path in READY_PATHS)]


def metrics_route(
    registry: CollectorRegistry, gather: Gather | None = None, is_private: Callable[[], bool] = lambda: False
) -> BaseRoute:
    """Prometheus text, or OpenMetrics where the scraper asks for it; `gather` gives what is shown in the registry's place.

    `is_private`: only this machine is to read it, and no web page that is open there. Then it raises Forbidden for others.
    """

    async def metrics(request: Request) -> Response:
        if is_private():
            refuse_pages(dict(request.scope["headers"]))
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        shown = registry if gather is None else await gather()
        return Response(encode(shown), headers={"content-type": content_type})

    return Route("/metrics", metrics)


def state_routes(
    policies: Policies,
    admission: Admission,
    clock: Clock,
    show_config: Callable[[], Any],
    patience: ClientPatience,
    costs: Callable[[], CostTotals],
) -> list[BaseRoute]:
    """Returns the routes that show the state of a running gateway, and the switches of its targets and accounts."""

    def show_all_targets() -> dict[str, dict[str, Any]]:
        return show_targets(admission, policies.current, clock.monotonic())

    shown: dict[str, Callable[[], Any]] = {
        "config": show_config,
        "limits": lambda: show_limits(admission, clock.monotonic()),
        "queue": lambda: (
            show_queue(admission, clock.monotonic()) | {"clients": show_clients(patience, clock.monotonic())}
        ),
        "targets": show_all_targets,
        "costs": lambda: show_costs(costs(), admission.budgets, policies.current),
    }
    return [*admin_routes(policies, shown), *switch_routes(policies, show_all_targets, admission.health.force)]


def admin_routes(policies: Policies, views: dict[str, Callable[[], Any]]) -> list[BaseRoute]:
    """Returns `GET /admin/<name>` for each view, behind the admin key."""

    def route(name: str, view: Callable[[], Any]) -> BaseRoute:
        async def show(request: Request) -> Response:
            require_admin(policies, request)
            return json_response(view())

        return Route(f"/admin/{name}", show)

    return [route(name, view) for name, view in views.items()]


def switch_routes(policies: Policies, show: Callable[[], Shown], force: Callable[[str, To], None]) -> list[BaseRoute]:
    """Returns `POST /admin/targets/<name>` and `/admin/accounts/<name>` with `{"action": …}`, behind the admin key.

    `show` gives what there is, by kind and name; `force` carries out. The name may also come as `?name=` or in the body.
    """

    def switch(kind: str) -> Callable[[Request], Any]:
        async def act(request: Request) -> Response:
            require_admin(policies, request)
            fields = await read_object(request, policies.current.server, MOST_BYTES, SWITCH_EXAMPLE)
            name = _known_name(request, fields, kind, show())
            action = fields.get("action")
            if not isinstance(action, str) or action not in ACTIONS:
                message = f"The field 'action' must be one of: {', '.join(ACTIONS)}."
                raise InvalidRequest(message, param="action", code="unknown_action")
            log.warning("admin: %s %s", action, name)
            force(name, ACTIONS[action])
            return json_response({"name": name, "action": action, **show()[kind][name]})

        return act

    return [
        Route(f"/admin/{kind}{rest}", switch(kind), methods=["POST"])
        for kind in ("targets", "accounts")
        for rest in ("", "/{name:path}")
    ]


def _known_name(request: Request, fields: Mapping[str, Any], kind: str, shown: Shown) -> str:
    """Returns the name of the target or account that is meant. Raises InvalidRequest without one, NotFound for a wrong one."""
    name = request.path_params.get("name") or request.query_params.get("name") or fields.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"Say which: /admin/{kind}/<name>, ?name= or the field 'name'.", param="name")
    if name not in shown[kind]:
        raise NotFound(f"'{name[:200]}' is none of the {kind}; {_hint(name[:200], kind, shown)}", param="name")
    return name


def _hint(name: str, kind: str, shown: Shown) -> str:
    for other in shown:
        if name in shown[other]:
            return f"it is one of the {other}: use /admin/{other}."
    if close := get_close_matches(name, shown[kind], n=1):
        return f"did you mean '{close[0]}'?"
    if parts := [target for target in shown["targets"] if name in target.split("/", 1)]:  # a provider, or a model there
        return f"did you mean {' or '.join(repr(target) for target in parts[:5])}?"
    return f"there are: {', '.join([*shown[kind]][:20]) or 'none'}."


def require_admin(policies: Policies, request: Request) -> None:
    """Raises NotFound when the config has no admin key, Unauthorised when the request does not carry it."""
    digest = policies.current.server.admin_digest
    if digest is None:
        raise NotFound("The admin API is off; set 'admin.key' in the config to use it.")
    sent = request.headers.get("authorization", "")
    secret = sent[7:].strip() if sent[:7].lower() == "bearer " else request.headers.get("x-api-key", "")
    if not secret or not hmac.compare_digest(sha256(secret.encode()).digest(), digest):
        raise Unauthorised("This path needs the admin key as 'Authorization: Bearer <key>'.")
