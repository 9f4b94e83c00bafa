"""What operators may see and do about webhooks: how endpoints are, a test, deliveries made again, a switch.

First what is done, then its routes. Endpoints are known to one process, deliveries to all that share the store of jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.admin.http import MOST_BYTES, require_admin
from gateway.core.clock import Clock
from gateway.core.errors import InvalidRequest, NotFound
from gateway.core.intake import read_object, refuse_unknown
from gateway.core.snapshot import Policies
from gateway.drivers.durability import JobsOff
from gateway.drivers.outward import Unreachable
from gateway.products.jobs.model import (
    BATCH,
    DELIVERY,
    EVENT,
    JOB,
    Job,
    JobKind,
    JobQuery,
    JobState,
    derived_event_ids,
    derived_redelivery_id,
    is_ours,
)
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.webhooks.rules import (
    ENDPOINT,
    OF,
    REQUESTED,
    REQUESTED_SEGMENT,
    TEST_EVENT,
    WebhookRules,
    Webhooks,
    event_body,
    redelivery_of,
    result_of,
)
from gateway.products.jobs.webhooks.service import (
    AttemptResult,
    EndpointHealth,
    Endpoints,
    RequestedUrls,
    signed_headers,
)
from gateway.routes import json_response

PAGE: Final = 500
MOST_AT_ONCE: Final = 10_000
"""Deliveries that one wish makes again."""
MOST_AGAIN: Final = 100
"""Times that one delivery is made again."""
TEST_TIMEOUT_S: Final = 8.0
"""Somebody waits for it at a terminal."""
_UNDELIVERED: Final = (JobState.FAILED, JobState.EXPIRED)


class WebhookAdmin:
    """Shows and serves endpoints by their names; `(requests)` stands for all URLs of requests."""

    def __init__(
        self,
        webhooks: Callable[[], Webhooks],
        endpoints: Endpoints,
        requested: RequestedUrls,
        read_store: Callable[[], Awaitable[JobStore]],
        clock: Clock,
    ) -> None:
        self._webhooks = webhooks
        self._endpoints = endpoints
        self._requested = requested
        self._read_store = read_store
        self._clock = clock

    async def show(self) -> dict[str, Any]:
        """Returns how all endpoints are, and what waits for them. Raises JobsUnavailable."""
        store = await self._read_store()
        waiting: dict[str, dict[str, Any]] = {}
        for (segment, _, state), depth in store.depth().items():
            row = waiting.setdefault(segment, {})
            row[state] = row.get(state, 0) + depth.number
        return {
            "webhooks": {
                rules.name: self._shown(rules, waiting.get(rules.segment, {})) for rules in self._webhooks().values()
            },
            "requests": {
                "state": "allowed" if self._requested.is_allowed else "off",
                "in_flight": self._requested.in_flight,
                "resting_hosts": self._requested.resting,
                "waiting": _waiting(waiting.get(REQUESTED_SEGMENT, {})),
                "last": _last(self._requested.last),
            },
        }

    def switch(self, name: str, *, on: bool) -> dict[str, Any]:
        """Lets an endpoint hear of things again, or of nothing any more, in this process. Raises NotFound, InvalidRequest."""
        rules = self._find(name)
        standing = self._endpoints.standing(rules)
        if on:
            standing.enable()
        else:
            standing.is_disabled = True
        return {"name": name, "state": _state(standing, self._clock.monotonic())}

    async def test(self, name: str) -> dict[str, Any]:
        """Sends an endpoint a signed event `test` now, whatever its state. Raises NotFound, InvalidRequest."""
        rules, now = self._find(name), self._clock.wall() - self._clock.ahead_s
        message_id = derived_event_ids(f"{TEST_EVENT} {now}", name)[1]
        body = event_body(TEST_EVENT, name, now)
        began_at = self._clock.monotonic()
        try:
            headers = signed_headers(rules.secrets, message_id, body, now)
            answer = await self._endpoints.outward.post(rules.url, headers, body, TEST_TIMEOUT_S)
        except Unreachable as error:
            result: dict[str, Any] = {"result": "unreachable", "status": None, "why": str(error)}
        else:
            result = {"result": result_of(answer.status).value, "status": answer.status, "why": None}
        took_ms = round((self._clock.monotonic() - began_at) * 1000, 1)
        return {"name": name, "event": TEST_EVENT, "webhook_id": message_id, **result, "took_ms": took_ms}

    async def redeliver_since(self, name: str, since: float) -> dict[str, Any]:
        """Makes the deliveries again that have failed, or expired, since a time (wall-clock seconds), once each.

        Raises NotFound, JobsUnavailable, TooManyJobs.
        """
        self._refuse_unknown(name)
        store = await self._read_store()
        redelivered, under_way, after, has_more = 0, 0, None, True
        while has_more and redelivered < MOST_AT_ONCE:
            page = await store.list_jobs(JobQuery("", JobKind.DELIVERY, _UNDELIVERED, after, PAGE))
            after, has_more = (page.jobs[-1].id if page.jobs else None), page.has_more
            due = [job for job in page.jobs if job.about[ENDPOINT] == name and (job.ended_at or 0.0) >= since]
            if due:
                accepted = await store.accept([redelivery_of(job, self._clock.wall()) for job in due])
                redelivered += sum(one.is_new for one in accepted)
                under_way += sum(not one.is_new and not one.job.state.is_end for one in accepted)
            await asyncio.sleep(0)
        return {"name": name, "redelivered": redelivered, "under_way": under_way, "more": has_more}

    async def redeliver(self, name: str, id: str) -> dict[str, Any]:
        """Makes one delivery again, delivered or not: that of a job or batch, of an event, or by its `webhook-id`.

        One that is under way is left to it. Raises NotFound, InvalidRequest, JobsUnavailable, TooManyJobs.
        """
        self._refuse_unknown(name)
        store = await self._read_store()
        last = await self._last_of(store, await self._delivery_id(store, name, id))
        if last is None or last.about[ENDPOINT] != name:
            raise NotFound(f"Nothing was to be told to '{name}' about '{id[:64]}', or it is forgotten.", param="id")
        if not last.state.is_end:
            return {"name": name, "redelivered": 0, "under_way": 1, "more": False}
        (accepted,) = await store.accept([redelivery_of(last, self._clock.wall())])
        return {"name": name, "redelivered": int(accepted.is_new), "under_way": int(not accepted.is_new), "more": False}

    async def _delivery_id(self, store: JobStore, name: str, id: str) -> str:
        if is_ours(DELIVERY, id):
            return id
        if is_ours(JOB, id) or is_ours(BATCH, id):
            return derived_event_ids(id, name)[1]
        if not is_ours(EVENT, id):
            raise InvalidRequest(
                "The field 'id' must be that of a job (job_gw…), a batch (batch_gw…), an event (evt_gw…) or a delivery "
                "(msg_gw…).",
                param="id",
            )
        after, has_more = None, True
        while has_more:
            page = await store.list_jobs(JobQuery("", JobKind.DELIVERY, (), after, PAGE))
            for job in page.jobs:
                if derived_event_ids(job.about[OF], name)[0] == id:
                    return derived_event_ids(job.about[OF], name)[1]
            after, has_more = (page.jobs[-1].id if page.jobs else None), page.has_more
            await asyncio.sleep(0)
        return ""

    async def _last_of(self, store: JobStore, delivery_id: str) -> Job | None:
        """Returns the delivery, or the last one that was made in its place."""
        last = None
        for _ in range(MOST_AGAIN):
            found = await store.find(delivery_id, "")
            if found is None or found.kind is not JobKind.DELIVERY:
                break
            last, delivery_id = found, derived_redelivery_id(found.id)
        return last

    def _shown(self, rules: WebhookRules, waiting: Mapping[str, int]) -> dict[str, Any]:
        standing, now = self._endpoints.standing(rules), self._clock.monotonic()
        return {
            "origin": rules.origin,
            "events": list(rules.events),
            "tenants": list(rules.tenants),
            "state": _state(standing, now),
            "rests_s": round(max(0.0, standing.rests_until - now), 1),
            "in_flight": standing.in_flight,
            "waiting": _waiting(waiting),
            "last": _last(standing.last),
        }

    def _find(self, name: str) -> WebhookRules:
        self._refuse_unknown(name)
        if name == REQUESTED:
            raise InvalidRequest(
                "URLs of requests are not tested or switched; allow_request_urls of jobs.yaml is their switch."
            )
        return self._webhooks()[name]

    def _refuse_unknown(self, name: str) -> None:
        known = [*self._webhooks(), REQUESTED]
        if name not in known:
            raise NotFound(f"'{name[:64]}' is no webhook; there are: {', '.join(known[:20])}.", param="name")


def _state(standing: EndpointHealth, now: float) -> str:
    if standing.is_disabled:
        return "disabled"
    if standing.is_gone:
        return "gone"
    return "throttled" if standing.throttled or standing.rests_until > now else "ok"


def _waiting(depth: Mapping[str, int]) -> dict[str, int]:
    return {state: depth.get(state, 0) for state in ("ready", "later", "claimed")}


def _last(attempts: Iterable[AttemptResult]) -> list[dict[str, Any]]:
    """The last attempts, the newest first."""
    return [
        {"at": int(one.at), "event": one.event, "id": one.of, "result": one.result.value, "why": one.why or None}
        for one in reversed([*attempts])
    ]


# --- `/admin/webhooks`, behind the admin key ---

ACTIONS: Final = ("redeliver", "disable", "enable", "test")
EXAMPLE: Final = '{"id": "batch_gw…"} or {"since_s": 86400}'
MOST_SINCE_S: Final = 366 * 86_400.0
log = logging.getLogger("gateway.admin")


def webhook_routes(policies: Policies, desk: WebhookAdmin | None, clock: Clock) -> list[BaseRoute]:
    """Returns `GET /admin/webhooks` and `POST /admin/webhooks/{name}/{action}`; without a desk they say that there is none."""

    def desk_of(request: Request) -> WebhookAdmin:
        require_admin(policies, request)
        if desk is None:
            raise JobsOff("This gateway takes no jobs, so there is nothing that webhooks are told.")
        return desk

    async def show(request: Request) -> Response:
        return json_response(await desk_of(request).show())

    async def redeliver(request: Request) -> Response:
        serving, name = desk_of(request), request.path_params["name"]
        fields = await read_object(request, policies.current.server, MOST_BYTES, EXAMPLE)
        id, since_s = _what(fields)
        if id is not None:
            result = await serving.redeliver(name, id)
        else:
            result = await serving.redeliver_since(name, clock.wall() - since_s)
        log.warning("admin: redeliver %d to webhook %s", result["redelivered"], name)
        return json_response(result)

    async def switch(request: Request) -> Response:
        serving, name = desk_of(request), request.path_params["name"]
        is_on = request.url.path.endswith("/enable")
        result = serving.switch(name, on=is_on)
        log.warning("admin: %s webhook %s", "enable" if is_on else "disable", name)
        return json_response(result)

    async def test(request: Request) -> Response:
        return json_response(await desk_of(request).test(request.path_params["name"]))

    served = {"redeliver": redeliver, "disable": switch, "enable": switch, "test": test}
    return [
        Route("/admin/webhooks", show),
        *(Route(f"/admin/webhooks/{{name:path}}/{action}", served[action], methods=["POST"]) for action in ACTIONS),
    ]


def _what(fields: dict[str, Any]) -> tuple[str | None, float]:
    """Reads which deliveries are meant: one, or those that have failed lately. Raises InvalidRequest."""
    refuse_unknown(fields, ("id", "since_s"))
    id, since_s = fields.get("id"), fields.get("since_s")
    if isinstance(id, str) and since_s is None:
        return id, 0.0
    is_time = isinstance(since_s, int | float) and not isinstance(since_s, bool) and 0 <= since_s <= MOST_SINCE_S
    if id is not None or not is_time:
        raise InvalidRequest(f"Say which: send {EXAMPLE}, seconds from now.", param="id")
    return None, float(since_s or 0)
