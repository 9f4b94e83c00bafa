"""The arguments of `gateway workflows` and `gateway runs`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from gateway.cli.values import between

AddAdmin = Callable[[argparse.ArgumentParser], None]


def add_workflows(command: argparse.ArgumentParser, add_admin: AddAdmin) -> None:
    """Adds what `gateway workflows` takes; `add_admin` adds what each command needs that asks the admin API."""
    add_admin(command)
    command.set_defaults(command="gateway.features.runs.cli:show_workflows")


def add_runs(command: argparse.ArgumentParser, add_admin: AddAdmin) -> None:
    """Adds what `gateway runs` takes."""
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    action = actions.add_parser("ls", help="those that were changed last")
    action.add_argument("workflow", nargs="?", metavar="WORKFLOW", help="only its runs; 'other' for undeclared ones")
    action.add_argument("--outcome", help="only those: running, succeeded, failed, abandoned, cancelled, unknown")
    action.add_argument("--limit", type=between(1, 1000), help="so many, at most 1000 (default: 50)")
    add_admin(action)
    action.set_defaults(command="gateway.features.runs.cli:list_runs")

    action = actions.add_parser("show", help="one run with its tasks, attempts and cost")
    action.add_argument("run", metavar="RUN", help="its id, as its calls have named it")
    action.add_argument("--tenant", help="whose, where several tenants have one of this name")
    add_admin(action)
    action.set_defaults(command="gateway.features.runs.cli:show_run")
