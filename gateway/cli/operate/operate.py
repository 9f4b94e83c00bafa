"""The commands of operators: each asks the admin API of a running gateway, and shows its answer."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from gateway.cli.main.exits import FAILED, OK, UNUSABLE, fail
from gateway.cli.operate import showing
from gateway.cli.operate.client import AdminClient, AdminRefused, question, save


def targets(options: argparse.Namespace) -> int:
    """Shows how targets and accounts are doing, or switches one by hand."""
    action, name = options.action, options.name
    if not action:
        return ask_admin(options, lambda client: client.get("targets"), showing.table)
    if not name:
        return fail(f"which one? gateway targets {action} NAME; 'gateway targets' shows them", UNUSABLE)
    kind = "targets" if "/" in name else "accounts"
    path = f"{kind}/{quote(name, safe='/')}"
    return ask_admin(options, lambda client: client.post(path, {"action": action}), showing.sentence)


def stats(options: argparse.Namespace) -> int:
    """Shows what was spared, by model, tenant or layer."""
    return ask_admin(
        options, lambda client: client.get("stats"), lambda answer: showing.stats_table(answer, options.by)
    )


def cache_show(options: argparse.Namespace) -> int:
    """Shows what the caches hold."""
    return ask_admin(options, lambda client: client.get("cache"), showing.cache_table)


def cache_purge(options: argparse.Namespace) -> int:
    """Forgets kept answers."""
    given = {name: getattr(options, name) for name in ("key", "model", "tenant", "all") if getattr(options, name)}
    if not given:
        return fail("purge what? --key HEX, --model NAME, --tenant NAME, or --all for everything", UNUSABLE)
    return ask_admin(options, lambda client: client.post("cache/purge", given), showing.purged)


def cache_why(options: argparse.Namespace) -> int:
    """Tells how a call fared with the caches, or how a request would fare now."""

    def ask(client: AdminClient) -> dict[str, Any]:
        body = question(options.request, sys.stdin)
        if body is None:
            return client.get(f"cache/why?request={quote(options.request, safe='')}")
        whose = {name: getattr(options, name) for name in ("endpoint", "tenant") if getattr(options, name)}
        return client.post("cache/why", {"body": body, **whose})

    return ask_admin(options, ask, showing.story)


def state_backup(options: argparse.Namespace) -> int:
    """Copies the state file of a running gateway, and checks the copy."""
    return _backup(options, "state")


def jobs_backup(options: argparse.Namespace) -> int:
    """Copies the jobs file of a running gateway, and checks the copy."""
    return _backup(options, "jobs")


def flag_jobs(options: argparse.Namespace) -> int:
    """Has jobs stand still or go on; fails where one of them is not there."""
    path = f"jobs/{options.flag}"
    unknown: list[str] = []

    def ask(client: AdminClient) -> dict[str, Any]:
        answer = client.post(path, {"ids": options.ids})
        unknown.extend(answer["unknown"])
        return answer

    return ask_admin(options, ask, showing.flagged) or (FAILED if unknown else OK)


def retry_jobs(options: argparse.Namespace) -> int:
    """Has jobs and batches that failed tried again; fails where one of them is not."""
    left: list[object] = []

    def ask(client: AdminClient) -> dict[str, Any]:
        answer = client.post("jobs/retry", {"ids": options.ids})
        left.extend([*answer["refused"], *answer["unknown"]])
        return answer

    return ask_admin(options, ask, showing.retried) or (FAILED if left else OK)


def _backup(options: argparse.Namespace, name: str) -> int:
    from gateway.drivers.sqlite_store.opening import damage_of  # no other command needs sqlite

    def copy(client: AdminClient) -> dict[str, Any]:
        return save(client.backup(name), options.file, damage_of)

    return ask_admin(options, copy, lambda answer: showing.saved(answer, name))


def claim(options: argparse.Namespace) -> int:
    """Gives objects that were there before to their tenant."""
    ids = [id for given in options.ids for id in (sys.stdin.read().split() if given == "-" else (given,))]
    given = {"tenant": options.tenant, "ids": ids, "move": options.move}
    if options.provider:
        given["provider"] = options.provider
    return ask_admin(options, lambda client: client.post("objects/claim", given), showing.claimed)


def ask_admin(
    options: argparse.Namespace,
    ask: Callable[[AdminClient], dict[str, Any]],
    show_answer: Callable[[dict[str, Any]], str],
) -> int:
    """Asks the admin API of a running gateway, and prints its answer; returns the exit code."""
    key = options.admin_key or os.environ.get("GATEWAY_ADMIN_KEY", "")
    if not key:
        hint = f"set GATEWAY_ADMIN_KEY or give {options.key_flag}; it is admin.key of the config"
        return fail(f"no admin key: {hint}", UNUSABLE)
    try:
        answer = ask(AdminClient(options.url, key))
    except AdminRefused as error:
        return fail(error.message, UNUSABLE if error.is_misuse else FAILED)
    print(json.dumps(answer, indent=2) if options.json else show_answer(answer))
    return OK
