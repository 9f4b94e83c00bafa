"""`gateway workflows` and `gateway runs`: what runs come to, and where one has gone wrong."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from gateway.cli.operate import call_admin, lay_out, moment, safe, usd

WORKFLOWS = ("workflow", "slo", "ok", "failed", "abandoned", "running", "rescued", "ladder")
RUNS = ("run", "tenant", "workflow", "outcome", "usable", "calls", "bad", "cost", "last")
TASKS = ("task", "last call", "calls", "bad", "cached", "attempts", "bad", "cost", "wasted")


def show_workflows(options: argparse.Namespace) -> int:
    """Shows each workflow's ladder, from attempts to use, in one line."""
    return call_admin(options, lambda client: client.get("workflows"), _workflows)


def list_runs(options: argparse.Namespace) -> int:
    """Lists runs, those that were changed last first."""
    params = {"outcome": options.outcome, "limit": options.limit}
    query = urlencode({name: value for name, value in params.items() if value is not None})
    place = "runs" if options.workflow is None else f"workflows/{quote(options.workflow, safe='')}/runs"
    return call_admin(options, lambda client: client.get(f"{place}?{query}"), _runs)


def show_run(options: argparse.Namespace) -> int:
    """Shows one run with its tasks."""
    query = "" if options.tenant is None else f"?tenant={quote(options.tenant, safe='')}"
    return call_admin(options, lambda client: client.get(f"runs/{quote(options.run, safe='')}{query}"), _run)


def _workflows(answer: Mapping[str, Any]) -> str:
    rows = [
        (
            safe(name),
            "-"
            if row["slo"] is None
            else f"{row['slo'] * 100:g} %{'' if row['meets_slo'] is not False else ' missed'}",
            *(str(row["runs"][outcome]) for outcome in ("succeeded", "failed", "abandoned", "running")),
            str(row["rescued"]),
            safe(row["line"]),
        )
        for name, row in answer["workflows"].items()
    ]
    return lay_out([WORKFLOWS, *rows], right=(2, 3, 4, 5, 6)) if rows else "no workflows, and no runs"


def _runs(answer: Mapping[str, Any]) -> str:
    rows = [
        (
            safe(run["id"]),
            safe(run["tenant"]),
            safe(run["workflow"] or "-"),
            safe(run["outcome"]) + (" (rescued)" if run["rescued"] else ""),
            {True: "yes", False: "no"}.get(run["usable"], "-"),
            str(run["calls"]["all"]),
            str(run["calls"]["bad"]),
            usd(run["cost_usd"] + run["wasted_usd"]),
            moment(run["last_at"]),
        )
        for run in answer["runs"]
    ]
    return lay_out([RUNS, *rows], right=(5, 6, 7)) if rows else "no runs"


def _run(run: Mapping[str, Any]) -> str:
    rescued = ", rescued" if run["rescued"] else ""
    mark = " (told)" if run["is_told"] else ""
    use = {True: "usable", False: "not usable"}.get(run["usable"], "nobody spoke of its use")
    head = f"{safe(run['id'])} of {safe(run['tenant'])}, {safe(run['workflow'] or 'no workflow')}: {safe(run['outcome'])}{mark}"
    money = f"{usd(run['cost_usd'])}, {usd(run['wasted_usd'])} wasted, {usd(run['saved_usd'])} saved"
    tasks = [
        (
            safe(task["task"] or "-"),
            "ok" if task["ok"] else safe(task["error_class"] or "-"),
            str(task["calls"]["all"]),
            str(task["calls"]["bad"]),
            str(task["calls"]["cached"]),
            str(task["attempts"]["all"]),
            str(task["attempts"]["bad"]),
            usd(task["cost_usd"]),
            usd(task["wasted_usd"]),
        )
        for task in run["tasks"]
    ]
    return f"{head}{rescued}; {use}; {money}\n\n{lay_out([TASKS, *tasks], right=(2, 3, 4, 5, 6, 7, 8))}"
