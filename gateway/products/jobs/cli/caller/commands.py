"""`gateway jobs`: what a key has under way at a running gateway."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

from gateway.cli.main.exits import FAILED, OK, UNUSABLE, fail
from gateway.cli.operate.client import AdminRefused
from gateway.products.jobs.cli.caller import showing
from gateway.products.jobs.cli.caller.caller import CallerClient, caller_of


def list_jobs(options: argparse.Namespace) -> int:
    """Lists jobs and batches, newest first."""
    asked = {name: getattr(options, name) for name in ("limit", "status", "after") if getattr(options, name)}
    return _ask(options, lambda client: client.ask("GET", f"jobs?{urlencode(asked)}").fields, showing.jobs_table)


def show(options: argparse.Namespace) -> int:
    """Shows a job; of a batch its files, too."""

    def ask(client: CallerClient) -> dict[str, Any]:
        job = client.ask("GET", f"jobs/{quote(options.id, safe='')}").fields
        if job["kind"] == "batch":
            job["batch"] = client.ask("GET", f"batches/{quote(options.id, safe='')}").fields
        return job

    return _ask(options, ask, showing.job_facts)


def cancel(options: argparse.Namespace) -> int:
    """Asks a job or a batch to stop."""
    path = f"jobs/{quote(options.id, safe='')}/cancel"
    return _ask(options, lambda client: client.ask("POST", path).fields, showing.cancelled)


def _ask(
    options: argparse.Namespace,
    ask: Callable[[CallerClient], dict[str, Any]],
    show_answer: Callable[[dict[str, Any]], str],
) -> int:
    """Asks a running gateway, and prints its answer."""
    try:
        answer = ask(caller_of(options))
    except AdminRefused as error:
        return fail(error.message, UNUSABLE if error.is_misuse else FAILED)
    print(json.dumps(answer, indent=2) if options.json else show_answer(answer))
    return OK
