"""`/v1/runs`: a caller's own runs, and the word on what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from difflib import get_close_matches
from math import isfinite
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.admin.operations import require_admin
from gateway.core.clock import Clock
from gateway.core.errors import InvalidRequest, NotFound
from gateway.core.intake import read_object, refuse_unknown
from gateway.core.snapshot import Policies
from gateway.features.runs.http.run_object import WorkflowStats, show_for_operators, show_ladder, show_run
from gateway.features.runs.rules import OTHER, RunChange, RunOutcome, RunRecord, label_change
from gateway.features.runs.step import ID_CHARS, is_id, read_outcome, show_step
from gateway.features.runs.table.table import RunTable
from gateway.products.jobs.model import list_page
from gateway.products.routes import ObjectRoute, limit_of, tenant_of
from gateway.routes import json_response

DEFAULT_LISTED_RUNS, MAX_LISTED_RUNS = 20, 100
MOST_BYTES = 16_384
EXAMPLE = '{"outcome": "succeeded", "usable": true}'
FIELDS = ("workflow", "outcome", "usable", "value_usd")


class RunRoutes:
    """What each route of runs does. A run of another tenant is as one that there never was."""

    def __init__(self, policies: Policies, runs: RunTable, clock: Clock) -> None:
        self._policies = policies
        self._runs = runs
        self._clock = clock

    def routes(self) -> list[BaseRoute]:
        """Returns the routes, with and without `/v1`. An id may have slashes: the longer paths go first."""
        table = (
            ("/runs", self.list_runs, "GET"),
            ("/runs/{id:path}/outcome", self.tell, "POST"),
            ("/runs/{id:path}", self.show, "GET"),
            ("/runs/{id:path}", self.forget, "DELETE"),
        )
        return [
            ObjectRoute(prefix + path, act, methods=[method]) for prefix in ("/v1", "") for path, act, method in table
        ]

    async def list_runs(self, request: Request) -> Response:
        """Lists the tenant's runs, those that were changed last first."""
        tenant, limit = tenant_of(self._policies, request), limit_of(request, DEFAULT_LISTED_RUNS, MAX_LISTED_RUNS)
        query = request.query_params
        below = None
        if (after := query.get("after")) is not None:
            last = await self._runs.get(tenant, after)
            if last is None:
                raise InvalidRequest("The parameter 'after' must be the id of a run of yours.", param="after")
            below = last.so_far.last_ms, last.run
        runs = await self._runs.last(tenant, limit + 1, below=below, workflow=query.get("workflow"))
        shown = [show_run(one, self._runs.outcome(one), with_tasks=False) for one in runs[:limit]]
        return json_response(list_page(shown, has_more=len(runs) > limit))

    async def show(self, request: Request) -> Response:
        """Shows a run with its tasks."""
        tenant, run = self._which(request)
        found = await self._runs.get(tenant, run)
        if found is None:
            raise _no_run(run)
        shown = show_run(found, self._runs.outcome(found))
        if steps := await self._runs.steps(tenant, run):
            shown["steps"] = [show_step(about) for about in steps]
        return json_response(shown)

    async def tell(self, request: Request) -> Response:
        """Takes the caller's word on a run; the last one holds."""
        tenant, run = self._which(request)
        fields = await read_object(request, self._policies.current.server, MOST_BYTES, EXAMPLE)
        found = await self._runs.tell(tenant, run, _word(fields, self._clock.wall()))
        if found is None:
            raise _no_run(run)
        return json_response(show_run(found, self._runs.outcome(found)))

    async def forget(self, request: Request) -> Response:
        """Forgets a run; what it has added to the numbers stays."""
        tenant, run = self._which(request)
        if not await self._runs.forget(tenant, run):
            raise _no_run(run)
        return Response(status_code=204)

    def _which(self, request: Request) -> tuple[str, str]:
        return tenant_of(self._policies, request), request.path_params["id"]


def _no_run(run: str) -> NotFound:
    return NotFound(f"There is no run '{run[:128]}'.", param="id", code="run_not_found")


def _word(fields: dict[str, Any], now: float) -> RunChange:
    """Returns what a body tells. Raises InvalidRequest, naming the field and the remedy."""
    refuse_unknown(fields, FIELDS)
    workflow, usable, value_usd = fields.get("workflow"), fields.get("usable"), fields.get("value_usd")
    if workflow is not None and not is_id(workflow):
        _refuse("workflow", f"must have 1 to 128 of {ID_CHARS}")
    if usable is not None and not isinstance(usable, bool):
        _refuse("usable", "must be true or false")
    is_number = isinstance(value_usd, int | float) and not isinstance(value_usd, bool)
    if value_usd is not None and not (is_number and isfinite(value_usd) and abs(value_usd) <= 1e12):
        _refuse("value_usd", "must be an amount of US dollars, such as 3.2")
    outcome = None if fields.get("outcome") is None else str(read_outcome(fields["outcome"], "field 'outcome'"))
    if outcome is None and usable is None and value_usd is None:
        raise InvalidRequest(f"Say what became of the run: send {EXAMPLE}.", param="outcome", code="missing_field")
    return label_change(
        now,
        workflow=workflow or "",
        outcome=outcome,
        usable=usable,
        value_usd=None if value_usd is None else float(value_usd),
    )


def _refuse(field: str, what: str) -> None:
    raise InvalidRequest(f"The field '{field}' {what}.", param=field, code="invalid_value")


# Serves `/admin/workflows` and `/admin/runs`: what runs come to, and where one has gone wrong. Behind the admin key.


DEFAULT_LISTED_WORKFLOWS, MAX_LISTED_WORKFLOWS = 50, 1000
AT_ONCE = 256


def workflow_routes(policies: Policies, runs: RunTable) -> list[BaseRoute]:
    """Returns `GET /admin/workflows`, `/admin/workflows/{name}/runs`, `/admin/runs` and `/admin/runs/{run}`."""

    async def show_workflows(request: Request) -> Response:
        require_admin(policies, request)
        declared = policies.current.workflows
        ladders = {name: WorkflowStats() for name in declared}
        for number, record in enumerate(await runs.last(), 1):
            name = record.workflow if record.workflow in declared else OTHER
            ladders.setdefault(name, WorkflowStats()).add(record, runs.outcome(record))
            if not number % AT_ONCE:
                await asyncio.sleep(0)
        shown = {name: show_ladder(ladder, declared.get(name)) for name, ladder in ladders.items()}
        return json_response({"workflows": shown})

    async def list_runs(request: Request) -> Response:
        require_admin(policies, request)
        name, wanted = request.path_params.get("name"), _outcome(request)
        limit = limit_of(request, DEFAULT_LISTED_WORKFLOWS, MAX_LISTED_WORKFLOWS)
        declared = policies.current.workflows
        if name is not None and name not in declared and name != OTHER:
            close = get_close_matches(name, declared, n=1)
            raise NotFound(f"There is no workflow '{name[:128]}'{f'; did you mean {close[0]}?' if close else '.'}")
        found = [
            show_for_operators(record, outcome, with_tasks=False)
            for record in await runs.last()
            if name in (None, record.workflow if record.workflow in declared else OTHER)
            and ((outcome := runs.outcome(record)) == wanted or wanted is None)
        ]
        return json_response({"workflow": name, "runs": found[:limit], "has_more": len(found) > limit})

    async def show_run(request: Request) -> Response:
        require_admin(policies, request)
        run, tenant = request.path_params["run"], request.query_params.get("tenant")
        if tenant is not None:
            one = await runs.get(tenant, run)
            found = [] if one is None else [one]
        else:
            found = [one for one in await runs.last() if one.run == run]
        return json_response(show_for_operators(record := _only(found, run), runs.outcome(record)))

    return [
        Route("/admin/workflows", show_workflows),
        Route("/admin/workflows/{name:path}/runs", list_runs),
        Route("/admin/runs", list_runs),
        Route("/admin/runs/{run:path}", show_run),
    ]


def _outcome(request: Request) -> RunOutcome | None:
    value = request.query_params.get("outcome")
    found = next((outcome for outcome in RunOutcome if outcome == value), None)
    if value is not None and found is None:
        raise InvalidRequest(f"The parameter 'outcome' takes one of {', '.join(RunOutcome)}.", param="outcome")
    return found


def _only(found: Sequence[RunRecord], run: str) -> RunRecord:
    if not found:
        raise NotFound(f"There is no run '{run[:128]}'.", param="run", code="run_not_found")
    if len(found) > 1:
        tenants = ", ".join(sorted(one.tenant for one in found)[:20])
        raise InvalidRequest(
            f"Several tenants have a run of this name; add ?tenant= with one of {tenants}.", param="tenant"
        )
    return found[0]
