"""The routes of health, metrics and admin: what operators and their machines ask. None of it is on the hot path.

In this order: health, metrics, views and switches, and then copies of the state file and the jobs file. Health says whether the
process lives and whether it takes calls; it never calls a provider. `/admin/*` needs the admin key and does not exist without
one.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from glob import escape, glob
from hashlib import sha256
from secrets import token_hex
from typing import Any, Literal

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from gateway import __version__
from gateway.admin.views import show_clients, show_costs, show_limits, show_queue, show_targets
from gateway.core.admission.admission import Admission
from gateway.core.clock import Clock
from gateway.core.errors import BackupFailed, InvalidRequest, NotFound, Unauthorised
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


# --- backups: copies of the state file and the jobs file, made while calls go on ---

TOKEN_BYTES = 8
"""The random bytes in the name of a copy, so that two at once are two files."""


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file that operators may copy: where it is, and how to copy it, which returns what went wrong."""

    path: str
    copy: Callable[[str], Awaitable[str | None]]


def forget_copies(path: str) -> None:
    """Delete what was left of copies; only for who alone has the file at `path`: they may be in use."""
    for left in glob(f"{escape(path)}.{'[0-9a-f]' * 2 * TOKEN_BYTES}.backup"):
        _delete(left)


class _PassingFile(FileResponse):
    """A file that is gone when it has been sent, or could not be."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            _delete(str(self.path))


def backup_routes(
    policies: Policies, state: KeptFile | None, jobs: Callable[[], Awaitable[KeptFile | None]]
) -> list[BaseRoute]:
    """Returns `GET /admin/state/backup` and `GET /admin/jobs/backup`, behind the admin key: what is kept are answers, in
    clear.

    A copy is made beside its file, sent, and deleted, whatever becomes of the client; one that a killed process has left
    goes at the next start. Where there is no file, `state` is None, or `jobs` gives None: the answer says what to do.
    `jobs` raises JobsUnavailable.
    """

    async def state_backup(request: Request) -> Response:
        require_admin(policies, request)
        if state is None:
            raise InvalidRequest(
                "Only a state file (state: sqlite:///…) can be copied here; with state: memory nothing outlives the process, "
                "and a Redis has backups of its own (BGSAVE).",
                code="state_is_no_file",
            )
        return await _copy_of(state, "state")

    async def jobs_backup(request: Request) -> Response:
        require_admin(policies, request)
        file = await jobs()
        if file is None:
            raise InvalidRequest(
                "There is no jobs file to copy: no job was taken yet, jobs are off, or they are kept in a Redis, which has "
                "backups of its own (BGSAVE).",
                code="no_jobs_file",
            )
        return await _copy_of(file, "jobs")

    return [Route("/admin/state/backup", state_backup), Route("/admin/jobs/backup", jobs_backup)]


async def _copy_of(file: KeptFile, name: str) -> Response:
    """Returns a copy that is gone when it has been sent. Raises BackupFailed."""
    copied = f"{file.path}.{token_hex(TOKEN_BYTES)}.backup"
    try:
        problem = await file.copy(copied)
    except BaseException:
        _delete(copied)
        raise
    if problem is not None:
        _delete(copied)
        raise BackupFailed(
            f"The {name} file could not be copied: {problem}. There has to be room for a copy beside it."
        )
    log.warning("admin: the %s file was copied for an operator", name)
    return _PassingFile(copied, media_type="application/vnd.sqlite3", filename=f"gateway-{name}.db")


def _delete(path: str) -> None:
    for name in (path, f"{path}-journal"):
        with contextlib.suppress(OSError):
            os.unlink(name)
