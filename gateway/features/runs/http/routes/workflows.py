"""Serves `/admin/workflows` and `/admin/runs`: what runs come to, and where one has gone wrong. Behind the admin key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from difflib import get_close_matches

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.admin.operations.operations import require_admin
from gateway.core.errors import InvalidRequest, NotFound
from gateway.core.snapshot.snapshot.snapshot import Policies
from gateway.features.runs.http.run_object.run_object import Ladder, show_for_operators, show_ladder
from gateway.features.runs.rules.run import RunRecord
from gateway.features.runs.rules.workflow import OTHER, RunOutcome
from gateway.features.runs.table.table import RunTable
from gateway.products.routes.own_routes import limit_of
from gateway.routes import json_response

USUALLY_LISTED, MOST_LISTED = 50, 1000
AT_ONCE = 256


def workflow_routes(policies: Policies, runs: RunTable) -> list[BaseRoute]:
    """Returns `GET /admin/workflows`, `/admin/workflows/{name}/runs`, `/admin/runs` and `/admin/runs/{run}`."""

    async def show_workflows(request: Request) -> Response:
        require_admin(policies, request)
        declared = policies.current.workflows
        ladders = {name: Ladder() for name in declared}
        for number, record in enumerate(await runs.last(), 1):
            name = record.workflow if record.workflow in declared else OTHER
            ladders.setdefault(name, Ladder()).add(record, runs.outcome(record))
            if not number % AT_ONCE:
                await asyncio.sleep(0)
        shown = {name: show_ladder(ladder, declared.get(name)) for name, ladder in ladders.items()}
        return json_response({"workflows": shown})

    async def list_runs(request: Request) -> Response:
        require_admin(policies, request)
        name, asked = request.path_params.get("name"), _outcome(request)
        limit = limit_of(request, USUALLY_LISTED, MOST_LISTED)
        declared = policies.current.workflows
        if name is not None and name not in declared and name != OTHER:
            close = get_close_matches(name, declared, n=1)
            raise NotFound(f"There is no workflow '{name[:128]}'{f'; did you mean {close[0]}?' if close else '.'}")
        found = [
            show_for_operators(record, outcome, with_tasks=False)
            for record in await runs.last()
            if name in (None, record.workflow if record.workflow in declared else OTHER)
            and ((outcome := runs.outcome(record)) == asked or asked is None)
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
    said = request.query_params.get("outcome")
    found = next((outcome for outcome in RunOutcome if outcome == said), None)
    if said is not None and found is None:
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
