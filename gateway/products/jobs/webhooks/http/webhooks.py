"""Serves `/admin/webhooks`: how the endpoints of webhooks are, and what operators do about them. Behind the admin key."""

from __future__ import annotations

import logging
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.admin.operations.operations import MOST_BYTES, require_admin
from gateway.core.clock import Clock
from gateway.core.errors import InvalidRequest
from gateway.core.intake.intake.bodies import read_object, refuse_unknown
from gateway.core.snapshot.snapshot.snapshot import Policies
from gateway.products.jobs.model.errors import JobsOff
from gateway.products.jobs.webhooks.http.desk import WebhookDesk
from gateway.routes import json_response

ACTIONS: Final = ("redeliver", "disable", "enable", "test")
EXAMPLE: Final = '{"id": "batch_gw…"} or {"since_s": 86400}'
MOST_SINCE_S: Final = 366 * 86_400.0
log = logging.getLogger("gateway.admin")


def webhook_routes(policies: Policies, desk: WebhookDesk | None, clock: Clock) -> list[BaseRoute]:
    """Returns `GET /admin/webhooks` and `POST /admin/webhooks/{name}/{action}`; without a desk they say that there is none."""

    def desk_of(request: Request) -> WebhookDesk:
        require_admin(policies, request)
        if desk is None:
            raise JobsOff("This gateway takes no jobs, so there is nothing that webhooks are told.")
        return desk

    async def show(request: Request) -> Response:
        return json_response(await desk_of(request).show())

    async def redeliver(request: Request) -> Response:
        serving, name = desk_of(request), request.path_params["name"]
        asked = await read_object(request, policies.current.server, MOST_BYTES, EXAMPLE)
        id, since_s = _what(asked)
        if id is not None:
            told = await serving.redeliver(name, id)
        else:
            told = await serving.redeliver_since(name, clock.wall() - since_s)
        log.warning("admin: redeliver %d to webhook %s", told["redelivered"], name)
        return json_response(told)

    async def switch(request: Request) -> Response:
        serving, name = desk_of(request), request.path_params["name"]
        is_on = request.url.path.endswith("/enable")
        told = serving.switch(name, on=is_on)
        log.warning("admin: %s webhook %s", "enable" if is_on else "disable", name)
        return json_response(told)

    async def test(request: Request) -> Response:
        return json_response(await desk_of(request).test(request.path_params["name"]))

    served = {"redeliver": redeliver, "disable": switch, "enable": switch, "test": test}
    return [
        Route("/admin/webhooks", show),
        *(Route(f"/admin/webhooks/{{name:path}}/{action}", served[action], methods=["POST"]) for action in ACTIONS),
    ]


def _what(asked: dict[str, Any]) -> tuple[str | None, float]:
    """Reads which deliveries are meant: one, or those that have failed lately. Raises InvalidRequest."""
    refuse_unknown(asked, ("id", "since_s"))
    id, since_s = asked.get("id"), asked.get("since_s")
    if isinstance(id, str) and since_s is None:
        return id, 0.0
    is_time = isinstance(since_s, int | float) and not isinstance(since_s, bool) and 0 <= since_s <= MOST_SINCE_S
    if id is not None or not is_time:
        raise InvalidRequest(f"Say which: send {EXAMPLE}, seconds from now.", param="id")
    return None, float(since_s or 0)
