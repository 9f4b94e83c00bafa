"""The arguments of `gateway dlq`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from gateway.cli.values import seconds


def add_dead_letters(command: argparse.ArgumentParser, add_admin: Callable[[argparse.ArgumentParser], None]) -> None:
    """Adds what operators may do; `add_admin` adds what each command needs that asks the admin API."""
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")

    action = actions.add_parser("ls", help="groups of letters that look the same, the largest first")
    action.add_argument("--group", metavar="ID", help="the letters of this one, the oldest first")
    action.add_argument("--limit", type=int, default=20, help="letters, at most 100 (default: %(default)s)")
    action.add_argument("--after", metavar="CURSOR", help="those that come after the page before")
    action.set_defaults(command="gateway.products.jobs.dead_letters.cli.dead_letters:list_letters")
    add_admin(action)

    action = actions.add_parser("show", help="a letter with every failed attempt; or how far a replay is")
    action.add_argument("id", metavar="ID", help="dl_gw…, or job_gw… of a replay")
    action.add_argument("--payload", action="store_true", help="with the request")
    action.set_defaults(command="gateway.products.jobs.dead_letters.cli.dead_letters:show")
    add_admin(action)

    action = actions.add_parser("replay", help="run letters again")
    _add_filter(action)
    action.add_argument("--rate", type=float, default=5.0, help="letters a second (default: %(default)s)")
    action.add_argument("--to-model", metavar="NAME", help="to this model instead of the one that they named")
    action.add_argument("--max", type=int, help="so many, at most")
    action.add_argument(
        "--dry-run", action="store_true", help="only say what would run: how many, for how much, how long"
    )
    action.set_defaults(command="gateway.products.jobs.dead_letters.cli.dead_letters:replay")
    add_admin(action)

    action = actions.add_parser("purge", help="throw letters away")
    _add_filter(action)
    action.add_argument("--yes", action="store_true", help="yes, that is meant")
    action.set_defaults(command="gateway.products.jobs.dead_letters.cli.dead_letters:purge")
    add_admin(action)

    action = actions.add_parser("stats", help="how many there are, and since when, by kind and class")
    action.set_defaults(command="gateway.products.jobs.dead_letters.cli.dead_letters:stats")
    add_admin(action)


def _add_filter(action: argparse.ArgumentParser) -> None:
    action.add_argument("--id", metavar="ID", help="this letter")
    action.add_argument("--group", metavar="ID", help="of this group")
    action.add_argument("--kind", choices=("call", "response", "run", "delivery", "line"), help="of this kind")
    action.add_argument("--class", dest="error_class", metavar="NAME", help="of this class of errors")
    action.add_argument("--model", metavar="NAME", help="that named this model")
    action.add_argument("--tenant", metavar="NAME", help="of this tenant")
    action.add_argument("--older-than", type=seconds, metavar="TIME", help="that are there for longer, such as 24h")
    action.add_argument("--all", action="store_true", help="every one")
