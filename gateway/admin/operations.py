"""Health, metrics and admin: what operators and their machines ask. None of it is on the hot path.

In this order: views of admission, views of targets and costs, the routes, backups. Views are read-only and plain data, with
times in seconds from now, never as monotonic instants. Health says whether the process lives and whether it takes calls; it
never calls a provider. `/admin/*` needs the admin key and does not exist without one.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from glob import escape, glob
from hashlib import sha256
from math import inf
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
from gateway.core.admission.admission import Admission
from gateway.core.admission.keys import KeyBudgets
from gateway.core.admission.outcomes import MISSING_REMEDY, missing_model
from gateway.core.admission.queue import WaitingLine
from gateway.core.balancing import Retries
from gateway.core.clock import Clock
from gateway.core.errors import BackupFailed, InvalidRequest, NotFound, Unauthorised
from gateway.core.health.breaker import Breaker
from gateway.core.health.detector import Suspicion
from gateway.core.health.target_health import Account
from gateway.core.health.times import Latency
from gateway.core.intake import InFlight, read_object
from gateway.core.limits.estimate import Cost
from gateway.core.limits.limit_table import LimitRow, LimitSet
from gateway.core.limits.reservation import ready_at
from gateway.core.patience import ClientPatience
from gateway.core.ports import StoreHealth
from gateway.core.request_fields import refuse_pages
from gateway.core.snapshot import Key, Model, Policies, PolicySnapshot
from gateway.core.telemetry import CostTotals
from gateway.core.types import LANES, Lane
from gateway.routes import json_response

# --- Limits, queue and pauses, for `/admin/*` and the gauges ---


def show_limits(admission: Admission, now: float) -> dict[str, Any]:
    """Shows every limit of targets and keys: level, capacity, where it is known from, and when one more unit is free."""
    return {
        "targets": {name: _target(line, now) for name, line in admission.gates.shown()},
        "keys": {name: _rows(limits.table.rows(now)) for name, limits in sorted(_key_sets(admission).items())},
    }


def show_queue(admission: Admission, now: float) -> dict[str, Any]:
    """Shows the calls that wait by target, lane and tenant: how many, since when, and how long a newcomer would wait.

    A call that may use several targets is in the line of each.
    """
    queue = admission.queue
    return {
        "calls": queue.occupancy.calls,
        "bytes": queue.occupancy.bytes,
        "lines": {
            name: {
                "next_chance_s": None if line.wakes_at == inf else max(0.0, line.wakes_at - now),
                "paused_s": max(0.0, line.gate.pauses.ends_at - now),
                "waiting": _waiting(line, now),
            }
            for name, line in admission.gates.shown()
            if len(line.waiters)
        },
    }


def show_clients(patience: ClientPatience, now: float) -> list[dict[str, Any]]:
    """Shows the clients that were seen to hang up soon, and how long their calls wait for that."""
    return [
        {"key": client.key, "user_agent": client.user_agent.decode("latin-1"), "waits_s": round(wait_s, 1)}
        for client, wait_s in patience.learned(now)
    ]


def limit_rows(admission: Admission, now: float) -> list[tuple[str, LimitRow]]:
    """Returns every limit of the config's own targets and keys; those that clients have named are no label for a metric."""
    gates = admission.gates
    rows = [
        (name, row)
        for name, line in gates.lines.items()
        if not gates.names.is_named(name)
        for row in line.gate.rows(now)
    ]
    rows += [(f"key:{name}", row) for name, limits in _key_sets(admission).items() for row in limits.table.rows(now)]
    return [(f"{name}:{row.name}", row) for name, row in rows]


def oldest_s(admission: Admission, now: float) -> dict[Lane, float]:
    """Returns the seconds for which the oldest held call of each lane has waited."""
    oldest = dict.fromkeys(LANES, 0.0)
    for line in admission.gates.lines.values():
        for (lane, _), since in line.waiters.oldest().items():
            oldest[lane] = max(oldest[lane], now - since)
    return oldest


def _key_sets(admission: Admission) -> dict[str, LimitSet]:
    return admission.keys.sets


def _target(line: WaitingLine, now: float) -> dict[str, Any]:
    gate = line.gate
    errors = gate.calibration.errors()
    return {
        "limits": _rows(gate.rows(now)),
        "in_flight": gate.in_flight,
        "waiting": len(line.waiters),
        "paused_s": max(0.0, gate.pauses.ends_at - now),
        "pauses": gate.pauses.count,
        "quota_spent_s": max(0.0, gate.pauses.quota_until - now),
        "answer_s": round(gate.answer_s, 4),
        "estimates": {
            "calls": errors.calls,
            "ratio": round(errors.ratio, 3),
            "mean_error": round(errors.mean_error, 3),
        },
    }


def _rows(rows: list[LimitRow]) -> list[dict[str, Any]]:
    return [
        {
            "limit": row.name,
            "level": round(row.level, 3),
            "capacity": round(row.capacity, 3),
            "source": row.source,
            "next_free_s": None if row.next_free_s is None else round(row.next_free_s, 3),
        }
        for row in rows
    ]


def _waiting(line: WaitingLine, now: float) -> list[dict[str, Any]]:
    oldest = line.waiters.oldest()
    return [
        {
            "lane": lane,
            "tenant": tenant,
            "calls": calls,
            "oldest_s": round(now - oldest[lane, tenant], 3),
            "predicted_wait_s": _predicted_s(line, LANES.index(lane), tenant, now),
        }
        for (lane, tenant), calls in sorted(line.waiters.depths().items())
    ]


def _predicted_s(line: WaitingLine, rank: int, tenant: str, now: float) -> float | None:
    wait_s = ready_at(line.gate, Cost(), now, line.waiters.ahead(rank, tenant, 0.0)) - now
    return None if wait_s == inf else round(max(0.0, wait_s), 3)


# --- The health of targets and of the accounts that pay for them, and what calls have cost ---


_THOUGHT = {True: "thinking_streams", False: "thinking_whole_answers"}


def show_targets(admission: Admission, policy: PolicySnapshot, now: float) -> dict[str, dict[str, Any]]:
    """Shows every target and every account of the config: breaker, failures, times, retries, pauses, and where it is used.

    Looking moves no breaker: an open one whose time is over stays open until a call comes.
    """
    gates = admission.gates
    models, tokens = _uses(policy), _retry_tokens(policy)
    targets = {}
    for name, line in gates.shown():
        label = gates.names.label(name)
        # What the operator has to mend at the target, and how.
        is_lost = line.gate.health.responsiveness.has_lost_model
        warning = f"{missing_model(label)}; {MISSING_REMEDY}" if is_lost else None
        row = _target_row(line, tokens.get(label, Retries().tokens), now) | {"warning": warning}
        targets[name] = row | {"account": _payer(admission, line), "config": label, "models": models.get(label, {})}
    accounts = {
        account.name: _account(account, names, now) for account, names in sorted(_paid(admission), key=_name_of)
    }
    return {"targets": targets, "accounts": accounts}


def show_costs(totals: CostTotals, budgets: KeyBudgets, policy: PolicySnapshot) -> dict[str, Any]:
    """Shows what calls have cost since the start, by key and by model, and what is spent of today's budgets."""
    by_key: dict[str, CostTotals] = {}
    by_model: dict[str, CostTotals] = {}
    for (model, key), row in sorted(totals.items()):
        by_key[key] = {**by_key.get(key, {}), (model, key): row}
        by_model[model] = {**by_model.get(model, {}), (model, key): row}
    limited = {key.name: key for key in policy.keys.values() if key.budget_usd_per_day is not None}
    return {
        "keys": {
            name: _costs(by_key.get(name, {})) | _left_of_budget(budgets, limited.get(name))
            for name in sorted({*by_key, *limited})
        },
        "models": {name: _costs(rows) for name, rows in by_model.items()},
        "total": _costs(totals),
    }


def _costs(rows: CostTotals) -> dict[str, Any]:
    usd = sum([usd for usd, _, _ in rows.values()])
    estimated_usd = sum([estimated for _, estimated, _ in rows.values()])
    return {
        "usd": round(usd, 9),
        "estimated_usd": round(estimated_usd, 9),
        "estimated_share": round(estimated_usd / usd, 4) if usd else None,
        "unpriced_calls": sum([unpriced for _, _, unpriced in rows.values()]),
    }


def _left_of_budget(budgets: KeyBudgets, key: Key | None) -> dict[str, Any]:
    if key is None:
        return {"budget_usd_per_day": None, "spent_today_usd": None}
    return {"budget_usd_per_day": key.budget_usd_per_day, "spent_today_usd": round(budgets.spent_today(key), 9)}


def breaker_states(admission: Admission) -> Iterator[tuple[str, str]]:
    """Yields the state of each breaker under its name in the config: a label for a metric, which may come twice."""
    gates = admission.gates
    for name, line in gates.lines.items():
        if not gates.names.is_callers(name):  # these are no target's
            yield gates.names.label(name), line.gate.health.breaker.state
    for account, _ in _paid(admission):
        yield account.name, account.breaker.state


def suspects(admission: Admission) -> Iterator[tuple[str, bool]]:
    """Yields whether each target is suspect, under its name in the config, which may come twice."""
    for name, line in admission.gates.lines.items():
        yield admission.gates.names.label(name), line.gate.health.responsiveness.suspicion is not None


def spent_quotas(admission: Admission, now: float) -> Iterator[tuple[str, bool]]:
    """Yields whether the quota of each target is spent, until a call is served there; under its name in the config."""
    gates, spent = admission.gates, admission.health.spent
    for name, line in gates.lines.items():
        if not gates.names.is_callers(name):
            is_known_spent = not spent.isdisjoint((name, line.gate.health.account.name))
            yield gates.names.label(name), is_known_spent or line.gate.pauses.quota_until > now


def retry_levels(admission: Admission, policy: PolicySnapshot) -> Iterator[tuple[str, float]]:
    """Yields the retry tokens left at each target, under the name that the config has for it."""
    gates, tokens = admission.gates, _retry_tokens(policy)
    for name, line in gates.lines.items():
        label = gates.names.label(name)
        if label in tokens:
            yield label, line.gate.health.tokens.level(tokens[label])


def _target_row(line: WaitingLine, tokens: float, now: float) -> dict[str, Any]:
    gate = line.gate
    health = gate.health
    return {
        **_breaker(health.breaker, now),
        "suspect": _suspect(health.responsiveness.suspicion, now),
        "in_flight": gate.in_flight,
        "waiting": len(line.waiters),
        "retries": {"in_flight": health.retries.in_flight, "tokens_left": round(health.tokens.level(tokens), 1)},
        "time_to_first_byte": {
            "streams": _times(health.first_byte, now),
            "whole_answers": _times(health.whole_answer, now),
            **{
                _THOUGHT[stream]: _times(times, now)
                for stream, times in sorted(health.responsiveness.thought().items())
            },
        },
        "paused_s": _left(gate.pauses.ends_at, now),
        "quota_spent_s": _left(gate.pauses.quota_until, now),
    }


def _suspect(suspicion: Suspicion | None, now: float) -> dict[str, Any] | None:
    """Shows why and since when a target is suspect, and how many of its calls are tried elsewhere; None: it is not."""
    if suspicion is None:
        return None
    return {"reason": suspicion.reason, "since_s": _ago(suspicion.since, now), "moving": suspicion.moving}


def _account(account: Account, names: list[str], now: float) -> dict[str, Any]:
    return {**_breaker(account.breaker, now), "credential_refused": account.is_refused, "targets": names}


def _breaker(breaker: Breaker, now: float) -> dict[str, Any]:
    rate = breaker.failure_rate(now)
    baseline = breaker.baseline
    return {
        "state": breaker.state,
        "reason": breaker.reason,
        "by_hand": breaker.is_by_hand,
        "since_s": _since_s(breaker, now),
        "last_opened_s": _ago(breaker.opened_at, now),
        "next_probe_s": _next_probe_s(breaker, now),
        "ramping": breaker.is_ramping(now),
        "ejections": breaker.ejections_at(now),
        "failures": {
            "rate": round(rate, 4),
            "calls": breaker.outcomes_in_window(now)[0],
            "usual_rate": round(baseline.failure_share, 4),
        },
        "usual_first_byte_s": round(baseline.first_byte_s, 4) or None,
        "slow_after_s": round(breaker.slow_after_s, 3),
    }


def _since_s(breaker: Breaker, now: float) -> float | None:
    """Returns the seconds since it opened, or, where it is half open, since probes were due; None: it is closed."""
    if breaker.state == "closed":
        return None
    return _ago(breaker.probe_at if breaker.state == "half_open" else breaker.opened_at, now)


def _next_probe_s(breaker: Breaker, now: float) -> float | None:
    """Returns the seconds until a call may probe it; None: it is closed, or stays as it is until a person says so."""
    if breaker.state == "half_open":
        return 0.0
    return None if breaker.probe_at == inf else _left(breaker.probe_at, now)


def _times(latency: Latency, now: float) -> dict[str, Any]:
    """Percentiles are None as long as too few answers were measured."""
    return {
        "answers": latency.count,
        "expected_s": round(latency.peak_ewma(now), 4) if latency.count else None,
        "p50_s": _rounded(latency.quantile(0.5)),
        "p95_s": _rounded(latency.quantile(0.95)),
    }


def _payer(admission: Admission, line: WaitingLine) -> dict[str, str]:
    health = line.gate.health
    account = health.account
    is_ours = admission.gates.accounts.get(account.name) is account
    breaker = health.breaker if health.is_callers else account.breaker
    return {"name": account.name if is_ours else "caller's own", "state": breaker.state}


def _paid(admission: Admission) -> list[tuple[Account, list[str]]]:
    """Returns the accounts of the config, each with the targets that it pays for; those without any are left out."""
    paid: dict[str, list[str]] = {}
    for name, line in admission.gates.shown():
        paid.setdefault(line.gate.health.account.name, []).append(name)
    return [(account, paid[name]) for name, account in admission.gates.accounts.items() if name in paid]


def _name_of(paid: tuple[Account, list[str]]) -> str:
    return paid[0].name


def _uses(policy: PolicySnapshot) -> Mapping[str, dict[str, Any]]:
    """Returns by target the models that have it among their own, with its order and weight there."""
    uses: dict[str, dict[str, Any]] = {}
    for model in _models(policy):
        for target in model.targets:
            uses.setdefault(target.name, {})[model.name] = {"order": target.order, "weight": target.weight}
    return uses


def _retry_tokens(policy: PolicySnapshot) -> Mapping[str, float]:
    """Returns by target the most retry tokens that it ever has, by the tightest of the models that use it."""
    tokens: dict[str, float] = {}
    for model in _models(policy):
        for target in model.plan:
            tokens[target.name] = min(model.retries.tokens, tokens.get(target.name, inf))
    return tokens


def _models(policy: PolicySnapshot) -> Iterable[Model]:
    return (*policy.models.values(), *(model for _, model in policy.patterns))


def _left(until: float, now: float) -> float:
    return round(max(0.0, until - now), 3)


def _ago(at: float, now: float) -> float | None:
    return None if at == -inf else round(max(0.0, now - at), 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


# --- The routes: health, metrics, views and switches ---


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


# --- Backups: copies of the state file and the jobs file, made while calls go on ---


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
