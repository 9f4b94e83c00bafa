"""`/v1/runs`: a caller's own runs, and the word on what became of them; then the operators' views, and how a run is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import isfinite
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.admin.http import require_admin
from gateway.core.clock import Clock
from gateway.core.errors import InvalidRequest, NotFound
from gateway.core.intake import read_object, refuse_unknown
from gateway.core.snapshot import Policies
from gateway.features.runs.rules import (
    OTHER,
    PER_USD,
    WORKFLOWS,
    RunChange,
    RunOutcome,
    RunRecord,
    TaskSum,
    WorkflowRules,
    is_rescued,
    label_change,
    use_of,
)
from gateway.features.runs.step import ID_CHARS, is_id, read_outcome, show_step
from gateway.features.runs.table import RunTable
from gateway.products.routes import ObjectRoute, limit_of, list_page, tenant_of
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
            ("/runs/{id:path}/outcome", self.label, "POST"),
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
        tenant, run = self._which(request)
        found = await self._runs.get(tenant, run)
        if found is None:
            raise _no_run(run)
        shown = show_run(found, self._runs.outcome(found))
        if steps := await self._runs.steps(tenant, run):
            shown["steps"] = [show_step(about) for about in steps]
        return json_response(shown)

    async def label(self, request: Request) -> Response:
        """Takes the caller's word on a run; the last one holds."""
        tenant, run = self._which(request)
        fields = await read_object(request, self._policies.current.server, MOST_BYTES, EXAMPLE)
        found = await self._runs.label(tenant, run, _word(fields, self._clock.wall()))
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
    """Returns what a body says. Raises InvalidRequest, naming the field and the remedy."""
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


# --- `/admin/workflows` and `/admin/runs`: what runs come to, and where one has gone wrong; behind the admin key ---

DEFAULT_LISTED_WORKFLOWS, MAX_LISTED_WORKFLOWS = 50, 1000
AT_ONCE = 256


def workflow_routes(policies: Policies, runs: RunTable) -> list[BaseRoute]:
    """Returns `GET /admin/workflows`, `/admin/workflows/{name}/runs`, `/admin/runs` and `/admin/runs/{run}`."""

    async def show_workflows(request: Request) -> Response:
        require_admin(policies, request)
        declared = WORKFLOWS.of(policies.current)
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
        declared = WORKFLOWS.of(policies.current)
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


# --- runs as they are shown: to callers, to operators, and many of them as one line ---


def show_run(record: RunRecord, outcome: RunOutcome, *, with_tasks: bool = True) -> dict[str, Any]:
    """Returns a run as its caller sees it."""
    so_far = record.so_far
    shown: dict[str, Any] = {
        "id": record.run,
        "object": "run",
        "workflow": record.workflow or None,
        "outcome": str(outcome),
        "is_told": so_far.outcome is not None,
        "rescued": is_rescued(record, outcome),
        "usable": {"usable": True, "unusable": False}.get(use_of(record)),
        "value_usd": None if so_far.value_usd is None else so_far.value_usd.word,
        "started_at": so_far.first_ms / 1000,
        "last_at": so_far.last_ms / 1000,
        **_numbers(so_far.total),
    }
    if with_tasks:
        shown["tasks"] = [_task(name, task) for name, task in sorted(so_far.tasks.items(), key=_by_time)]
    return shown


def show_for_operators(record: RunRecord, outcome: RunOutcome, *, with_tasks: bool = True) -> dict[str, Any]:
    """Returns a run as operators see it: with whose it is."""
    return {"tenant": record.tenant, **show_run(record, outcome, with_tasks=with_tasks)}


@dataclass(slots=True)
class WorkflowStats:
    """What the runs of one workflow add up to: attempts, calls, runs, use."""

    total: TaskSum = field(default_factory=TaskSum)
    runs: dict[RunOutcome, int] = field(default_factory=dict)
    rescued: int = 0
    usable: int = 0
    unusable: int = 0
    value_usd: float = 0.0

    def add(self, record: RunRecord, outcome: RunOutcome) -> None:
        self.total += record.so_far.total
        self.runs[outcome] = self.runs.get(outcome, 0) + 1
        self.rescued += is_rescued(record, outcome)
        use = use_of(record)
        self.usable += use == "usable"
        self.unusable += use == "unusable"
        if record.so_far.value_usd is not None:
            self.value_usd += record.so_far.value_usd.word

    @property
    def success(self) -> float | None:
        """Returns the part of the runs that have ended that have succeeded, 0 to 1; None: none of which that is known."""
        good = self.runs.get(RunOutcome.SUCCEEDED, 0)
        ended = good + self.runs.get(RunOutcome.FAILED, 0) + self.runs.get(RunOutcome.ABANDONED, 0)
        return good / ended if ended else None

    def line(self) -> str:
        total, number = self.total, sum(self.runs.values())
        steps = (
            ("attempts", _part(total.attempts - total.bad_attempts, total.attempts)),
            ("calls", _part(total.calls - total.bad_calls, total.calls)),
            ("runs", self.success),
            ("usable", _part(self.usable, self.usable + self.unusable)),
        )
        spent = total.cost + total.wasted
        saved = _part(total.saved, total.saved + total.cost)
        money = f"${spent / PER_USD / number:.3g} a run" if number else "no runs"
        return f"{' → '.join(f'{name} {_percent(part)}' for name, part in steps)}; {money}, {_percent(saved)} saved"


def show_ladder(ladder: WorkflowStats, rules: WorkflowRules | None) -> dict[str, Any]:
    """Returns a workflow as operators see it; `rules` are None for what is not declared."""
    slo = None if rules is None else rules.slo
    return {
        "line": ladder.line(),
        "runs": {str(outcome): ladder.runs.get(outcome, 0) for outcome in RunOutcome},
        "success": ladder.success,
        "slo": slo,
        "meets_slo": None if slo is None or ladder.success is None else ladder.success >= slo,
        "rescued": ladder.rescued,
        "used": {"usable": ladder.usable, "unusable": ladder.unusable, "value_usd": ladder.value_usd},
        **_numbers(ladder.total),
    }


def _numbers(total: TaskSum) -> dict[str, Any]:
    return {
        "calls": {"all": total.calls, "bad": total.bad_calls, "cached": total.cached},
        "attempts": {"all": total.attempts, "bad": total.bad_attempts},
        "cost_usd": total.cost / PER_USD,
        "wasted_usd": total.wasted / PER_USD,
        "saved_usd": total.saved / PER_USD,
        "usage": {"input_tokens": total.input_tokens, "output_tokens": total.output_tokens},
    }


def _task(name: str, task: TaskSum) -> dict[str, Any]:
    last = task.last
    return {
        "task": name or None,
        "ok": None if last is None else last.is_ok,
        "error_class": None if last is None or last.is_ok else last.error_class,
        "last_at": None if last is None else last.at_ms / 1000,
        **_numbers(task),
    }


def _by_time(item: tuple[str, TaskSum]) -> int:
    last = item[1].last
    return 0 if last is None else last.at_ms


def _part(good: int, of: int) -> float | None:
    return good / of if of else None


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part * 100:.1f} %"
